use super::*;

/// 70 billion parameters in bf16 on 1,024 GPUs.
fn large() -> Training {
    Training {
        parameters: 70e9,
        bytes: 2.0,
        layers: 80,
        hidden: 8192,
        tokens: 8192.0,
        compute: Compute::Us(8e6),
        data: 1024,
        tensor: 1,
        pipeline: 1,
        expert: 1,
        experts: 0,
        top_k: 0,
        fsdp: true,
        buckets: 80,
        microbatches: 1,
    }
}

fn sent(training: &Training, kind: Kind) -> f64 {
    training.traffic().iter().filter(|one| one.kind == kind).map(|one| one.sent_bytes).sum()
}

#[test]
fn fsdp_moves_three_times_the_parameters() {
    let training = large();
    training.check().unwrap();
    let bytes: f64 = training.traffic().iter().map(|one| one.sent_bytes).sum();
    assert!((bytes / 420e9 - 1.0).abs() < 0.001, "{bytes}");
    // At 50 GB/s.
    assert!((bytes / 50e9 / 8.4 - 1.0).abs() < 0.001);
    // Without sharing, two thirds.
    let data = Training { fsdp: false, ..training };
    let bytes = sent(&data, Kind::Gradients);
    assert!((bytes / 280e9 - 1.0).abs() < 0.001, "{bytes}");
    // Micro-batches gather anew; stages keep what they have.
    let twice = Training { microbatches: 2, ..training };
    assert!((sent(&twice, Kind::Gather) / sent(&training, Kind::Gather) - 2.0).abs() < 1e-9);
    let stages = Training { microbatches: 8, pipeline: 4, data: 256, ..training };
    let part = sent(&stages, Kind::Gather) / (70e9 * 2.0 / 4.0 * 255.0 / 256.0);
    assert!((part - 1.0).abs() < 1e-9, "{part}");
}

#[test]
fn a_7_b_model_wants_28_gb_a_step() {
    let training = Training { parameters: 7e9, fsdp: false, ..large() };
    let bytes = sent(&training, Kind::Gradients);
    assert!((bytes / 28e9 - 1.0).abs() < 0.001, "{bytes}");
}

#[test]
fn tensor_pipeline_and_expert_parts_follow_their_formulas() {
    let training = Training {
        data: 16,
        tensor: 8,
        pipeline: 8,
        buckets: 10,
        microbatches: 16,
        fsdp: false,
        tokens: 16.0 * 4096.0,
        ..large()
    };
    training.check().unwrap();
    assert_eq!(training.ranks(), 1024);
    let block = 4096.0 * 8192.0 * 2.0;
    assert_eq!(training.activation_bytes(), block);
    // Four all-reduces for each of 10 layers and 16 micro-batches.
    let tensor = training.traffic().into_iter().find(|one| one.kind == Kind::Tensor).unwrap();
    assert_eq!((tensor.calls, tensor.call_bytes), (640.0, 640.0 * block));
    assert_eq!(tensor.sent_bytes, 640.0 * block * 2.0 * 7.0 / 8.0);
    assert_eq!(sent(&training, Kind::Pipeline), 32.0 * block / 8.0);
    // Of two stages one only sends on, the other only back.
    let two = Training { data: 64, pipeline: 2, ..training };
    assert_eq!(sent(&two, Kind::Pipeline), 16.0 * block / 8.0);
    let moe = Training { experts: 16, expert: 8, top_k: 2, ..training };
    moe.check().unwrap();
    assert_eq!(sent(&moe, Kind::Expert), 640.0 * block * 2.0 / 8.0 * 7.0 / 8.0);
    // 2 of 16 experts: 20 of 132 parts of a layer.
    assert!((moe.active_parameters() / 70e9 - 20.0 / 132.0).abs() < 1e-12);
    // All gradients are reduced by somebody: shared ones 16 ways, experts by two replicas each.
    let gradients: Vec<Traffic> =
        moe.traffic().into_iter().filter(|one| one.kind == Kind::Gradients).collect();
    assert_eq!(gradients.iter().map(|one| one.ranks).collect::<Vec<_>>(), [16, 2]);
}

#[test]
fn computing_takes_six_operations_for_each_parameter_and_token() {
    let rate = Compute::Rate { tflops: 1000.0, part: 0.4 };
    let training = Training { compute: rate, ..large() };
    // 6 * 70e9 * 8192 / 400e12 = 8.6 s.
    assert!((training.compute_us() / 8.6016e6 - 1.0).abs() < 1e-6);
    let stages = Training { compute: rate, tensor: 8, pipeline: 4, microbatches: 16, ..training };
    assert!((stages.compute_us() * 32.0 / training.compute_us() - 1.0).abs() < 1e-9);
    assert!((stages.bubble_us() / stages.compute_us() - 3.0 / 16.0).abs() < 1e-12);
}

#[test]
fn numbers_that_do_not_fit_are_named() {
    let good = large();
    let table: [(Training, &str); 12] = [
        (Training { parameters: 1e200, ..good }, "at most 1e15"),
        (Training { buckets: 81, ..good }, "81 buckets, but a stage has 80 layers"),
        (Training { layers: 8192, buckets: 5000, ..good }, "at most 4096"),
        (Training { parameters: 0.0, ..good }, "parameters 0"),
        (Training { tokens: f64::NAN, ..good }, "tokens NaN"),
        (Training { layers: 0, ..good }, "layers 0"),
        (Training { pipeline: 81, ..good }, "81 stages, but 80 layers"),
        (Training { expert: 4, ..good }, "no experts"),
        (Training { expert: 3, experts: 9, top_k: 1, ..good }, "does not divide"),
        (Training { expert: 4, experts: 9, top_k: 1, ..good }, "spread evenly"),
        (Training { experts: 4, top_k: 5, ..good }, "top 5 of 4"),
        (Training { compute: Compute::Rate { tflops: 1.0, part: 1.5 }, ..good }, "at most 1"),
    ];
    for (training, part) in table {
        let error = training.check().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// Runs schedules of equal pieces, backward twice as long as forward; gives the time of all.
fn length(stages: u32, microbatches: u32) -> u32 {
    let orders: Vec<Vec<Work>> =
        (0..stages).map(|stage| one_forward_one_backward(stage, stages, microbatches)).collect();
    let mut at = vec![0_usize; orders.len()];
    let mut free = vec![0_u32; orders.len()];
    let mut done: std::collections::BTreeMap<(usize, bool, u32), u32> =
        std::collections::BTreeMap::new();
    loop {
        let mut moved = false;
        for stage in 0..orders.len() {
            while let Some(work) = orders[stage].get(at[stage]) {
                let (needs, key, long) = match *work {
                    Work::Forward(mb) => (
                        stage.checked_sub(1).map(|before| (before, true, mb)),
                        (stage, true, mb),
                        1,
                    ),
                    Work::Backward(mb) if stage + 1 < orders.len() => {
                        (Some((stage + 1, false, mb)), (stage, false, mb), 2)
                    }
                    Work::Backward(mb) => (Some((stage, true, mb)), (stage, false, mb), 2),
                };
                let ready = needs.map_or(Some(0), |needs| done.get(&needs).copied());
                let Some(ready) = ready else { break };
                free[stage] = free[stage].max(ready) + long;
                done.insert(key, free[stage]);
                at[stage] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    assert!(at.iter().zip(&orders).all(|(at, order)| *at == order.len()), "it stands still");
    free.into_iter().max().unwrap_or(0)
}

#[test]
fn the_pipeline_fills_and_drains_once() {
    for stages in 1..=6 {
        for microbatches in 1..=12 {
            let order = one_forward_one_backward(0, stages, microbatches);
            assert_eq!(order.len(), 2 * microbatches as usize);
            // The textbook's: (stages - 1) more than the work itself.
            assert_eq!(
                length(stages, microbatches),
                3 * (microbatches + stages - 1),
                "{stages} stages, {microbatches} micro-batches"
            );
        }
    }
}

mod simulated {
    use ringway_fabric::generate::FatTree;
    use ringway_fabric::rate::Rate;

    use super::super::*;
    use super::large;
    use crate::dag;
    use crate::engine::Options;
    use crate::machine::Machine;
    use crate::network::Network;
    use crate::route::{Routing, Way};

    /// Hosts on one switch, with so many GPUs and as many adapters of 50 GB/s.
    fn network(hosts: usize, gpus: usize) -> Network {
        wide(hosts, gpus, gpus)
    }

    /// The same, with a number of adapters of its own.
    fn wide(hosts: usize, gpus: usize, adapters: usize) -> Network {
        let tree = FatTree {
            hosts,
            adapters,
            rails: false,
            down: hosts * adapters,
            up: 0,
            spines: 0,
            pod_leaves: 0,
            spine_up: 0,
            cores: 0,
            rate: Rate::parse("4xNDR").expect("a rate"),
        };
        // Formulas of bytes leave out how long messages take to arrive.
        let (inside_us, net_us, switch_us) = (0.0, 0.0, 0.0);
        let machine = Machine { gpus, inside_us, net_us, switch_us, ..Machine::default() };
        Network::build(tree.build().expect("a tree"), machine, None).expect("a network")
    }

    fn run(network: &Network, training: &Training) -> StepTime {
        let tasks = tasks(network, training, &Style::default()).expect("a graph");
        let routing = Routing { way: Way::Adaptive, ..Routing::default() };
        let options = Options { routing, ..Options::default() };
        let outcome = dag::run(network, &tasks, &options).expect("an outcome");
        StepTime::of(training, &outcome)
    }

    fn near(value: f64, wanted: f64, part: f64) {
        assert!((value / wanted - 1.0).abs() < part, "{value}, wanted {wanted}");
    }

    #[test]
    fn fsdp_of_70_b_takes_8_4_s_at_50_gb_s() {
        let network = network(32, 1);
        // Computing is nothing beside it.
        let training = Training { data: 32, compute: Compute::Us(1.0), ..large() };
        let time = run(&network, &training);
        near(time.step_us, 8.4e6 * 31.0 / 32.0, 0.01);
        near(time.communication_us, time.step_us, 0.01);
        near(time.exposed_us, time.step_us, 0.01);
        // With as long to compute, what is left is the first piece's gather and the last piece's scatter, and
        // what gathers of both directions and scatters take of each other.
        let both = Training { compute: Compute::Us(20e6), ..training };
        let time = run(&network, &both);
        assert!(time.step_us < 20.6e6 && time.step_us > 20e6, "{time:?}");
        assert!(time.utilisation > 0.97, "{time:?}");
    }

    #[test]
    fn gradients_are_hidden_where_they_fit_in_the_way_back() {
        let network = network(16, 1);
        let training = Training {
            parameters: 7e9,
            fsdp: false,
            data: 16,
            buckets: 32,
            compute: Compute::Us(3e6),
            ..large()
        };
        // 26.25 GB at 50 GB/s: 0.525 s of the 2 s back; the last of 32 buckets stays.
        let time = run(&network, &training);
        near(time.communication_us, 0.525e6, 0.01);
        near(time.exposed_us, 0.525e6 / 32.0, 0.02);
        // Of a tenth of the time to compute, what does not fit shows.
        let short = Training { compute: Compute::Us(0.3e6), ..training };
        let time = run(&network, &short);
        // All but what goes while buckets after the first are computed.
        near(time.step_us, 0.1e6 + 0.2e6 / 32.0 + 0.525e6, 0.01);
        near(time.tokens_per_s, 8192.0 * 16.0 / time.step_us * 1e6, 1e-9);
    }

    #[test]
    fn tensor_calls_stay_inside_and_stages_pass_on() {
        let network = network(8, 8);
        let training = Training {
            parameters: 7e9,
            layers: 32,
            hidden: 4096,
            tokens: 8.0 * 4096.0,
            data: 2,
            tensor: 8,
            pipeline: 4,
            microbatches: 8,
            fsdp: false,
            buckets: 4,
            compute: Compute::Us(1e6),
            ..large()
        };
        let time = run(&network, &training);
        let kinds: Vec<Kind> = time.kinds.iter().map(|one| one.traffic.kind).collect();
        assert_eq!(kinds, [Kind::Gradients, Kind::Tensor, Kind::Pipeline]);
        near(time.bubble_us, 1e6 * 3.0 / 8.0, 1e-9);
        // Never less than the work and the bubble; tensor calls come on top: 7/4 of the bytes at 450 GB/s.
        let tensor = time.kinds[1].traffic.sent_bytes / 450e3;
        let least = time.compute_us + time.bubble_us + tensor * (1.0 + 3.0 / 8.0);
        assert!(time.step_us > least && time.step_us < least * 1.1, "{least} {time:?}");
        // No more GPUs than there are.
        let more = Training { data: 4, ..training };
        let error = tasks(&network, &more, &Style::default()).unwrap_err().to_string();
        assert!(error.contains("are 128 GPUs, but there are 64"), "{error}");
    }

    #[test]
    fn stages_pass_on_by_all_adapters_of_a_rank() {
        let training = Training {
            layers: 2,
            data: 1,
            tensor: 2,
            pipeline: 2,
            microbatches: 2,
            buckets: 1,
            fsdp: false,
            ..large()
        };
        let busy = |network: &Network| {
            let time = run(network, &training);
            let pipeline = time.kinds.iter().find(|one| one.traffic.kind == Kind::Pipeline);
            pipeline.expect("stages").busy_us
        };
        near(busy(&wide(2, 2, 4)), busy(&wide(2, 2, 2)) / 2.0, 1e-6);
    }

    #[test]
    fn a_model_without_experts_calls_nobody_for_them() {
        let network = network(4, 1);
        let training = Training { data: 4, tensor: 1, pipeline: 1, fsdp: false, ..large() };
        let list = tasks(&network, &training, &Style::default()).unwrap();
        let calls = list.iter().filter(|task| task.name.starts_with("all_reduce"));
        let streams =
            |task: &&crate::work::Task| !matches!(task.what, crate::work::What::Wait { .. });
        assert_eq!(calls.filter(streams).count(), training.buckets as usize);
        assert!(list.iter().all(|task| !task.name.ends_with(" 0 B")));
    }

    #[test]
    fn experts_are_reached_across_hosts() {
        let network = network(4, 8);
        let training = Training {
            parameters: 20e9,
            layers: 8,
            hidden: 4096,
            tokens: 4096.0,
            data: 32,
            expert: 32,
            experts: 32,
            top_k: 2,
            fsdp: false,
            buckets: 2,
            compute: Compute::Us(1e5),
            ..large()
        };
        let time = run(&network, &training);
        let expert = time.kinds.iter().find(|one| one.traffic.kind == Kind::Expert).unwrap();
        // 24 of 31 parts that leave the GPU leave the host, at 50 GB/s.
        let wanted = expert.traffic.sent_bytes * 24.0 / 31.0 / 50e3;
        near(expert.busy_us, wanted, 0.05);
        // Each expert is on one replica alone: only what all hold is reduced.
        let gradients = time.kinds.iter().find(|one| one.traffic.kind == Kind::Gradients).unwrap();
        near(gradients.traffic.call_bytes, training.held_bytes().0, 1e-9);
    }
}

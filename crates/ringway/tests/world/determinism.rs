//! The determinism levels: what the bits of a result may depend on.

use half::bf16;
use ringway::config::Config;
use ringway::element::{Element, as_bytes, as_bytes_mut};
use ringway::plan::algorithm::Algorithm;
use ringway::{Call, Collective, Communicator, Level, ReduceOp};

use crate::case::Shape;
use crate::harness::{Random, seed, settings, watchdog, world_each};
use crate::sweep::Hosts;

/// Values of very different sizes and signs: any other order of a sum shows in the bits.
fn noise(random: &mut Random) -> f32 {
    let mantissa = (random.next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
    mantissa * f32::from(random.pick(&[1_u16, 100, 10_000, 60_000]))
}

fn inputs<T: Element>(ranks: u32, count: usize, from: fn(f32) -> T) -> Vec<Vec<T>> {
    let mut random = Random::new(seed(), u64::from(ranks) << 8 | T::DATA_TYPE as u64);
    (0..ranks).map(|_| (0..count).map(|_| from(noise(&mut random))).collect()).collect()
}

/// The definition of the level: the left fold in rank order, rounded once.
fn left_fold<T: Element>(inputs: &[Vec<T>], to: fn(T) -> f32, from: fn(f32) -> T) -> Vec<T> {
    (0..inputs[0].len())
        .map(|at| {
            let fold = inputs.iter().map(|input| to(input[at])).reduce(|sum, value| sum + value);
            from(fold.unwrap())
        })
        .collect()
}

/// Ways to cut a buffer into calls: offsets that are no multiples of anything.
fn splits(count: usize) -> Vec<Vec<usize>> {
    vec![
        vec![0, count],
        vec![0, 1, count],
        vec![0, count / 3 + 1, count / 2 + 3, count],
        (0..=count).step_by(count / 7).chain([count]).collect(),
    ]
}

fn reduce_in_pieces<T: Element>(
    comm: &Communicator,
    input: &[T],
    cuts: &[usize],
    algorithm: Option<Algorithm>,
) -> Vec<T> {
    let mut output = input.to_vec();
    for cut in cuts.windows(2) {
        let (start, end) = (cut[0], cut[1]);
        let mut call = Call::new(Collective::AllReduce, T::DATA_TYPE, (end - start) as u64)
            .op(ReduceOp::Sum)
            .level(Level::Shape);
        call.algorithm = algorithm;
        comm.call(&call, as_bytes(&input[start..end]), as_bytes_mut(&mut output[start..end]))
            .unwrap();
    }
    output
}

fn bits_depend_on_values_alone<T: Element>(count: usize, to: fn(T) -> f32, from: fn(f32) -> T) {
    let worlds = [
        (Hosts::One, "auto", "auto"),
        (Hosts::One, "3", "4096"),
        (Hosts::Each, "auto", "auto"),
        (Hosts::Each, "2", "1000"),
        (Hosts::Pairs, "1", "16K"),
    ];
    for ranks in [2, 3, 4, 7, 8] {
        let inputs = inputs(ranks, count, from);
        let right = left_fold(&inputs, to, from);
        for (hosts, lanes, chunk) in worlds {
            let config = settings(&[("RINGWAY_LANES", lanes), ("RINGWAY_CHUNK_BYTES", chunk)]);
            let shape = Shape {
                level: Level::Shape,
                ..Shape::new(Collective::AllReduce, T::DATA_TYPE, count as u64)
            };
            let problem = shape.problem(0, ranks);
            let able = Algorithm::ALL
                .into_iter()
                .filter(|a| a.supports(&problem, &hosts.numbers(ranks)).is_ok())
                .map(Some);
            let ways: Vec<Option<Algorithm>> = std::iter::once(None).chain(able).collect();
            world_each(
                ranks,
                |rank| hosts.config(rank, config.clone()),
                |comm| {
                    let comm = comm.unwrap();
                    let input = &inputs[comm.rank() as usize];
                    let splits = splits(count);
                    for (number, way) in ways.iter().enumerate() {
                        for cuts in [&splits[0], &splits[1 + number % (splits.len() - 1)]] {
                            let found = reduce_in_pieces(&comm, input, cuts, *way);
                            assert!(
                                as_bytes(&found) == as_bytes(&right),
                                "{} of {ranks} ranks: {way:?}, {hosts:?}, lanes {lanes}, chunk \
                                 {chunk}, cut at {cuts:?}: other bits (seed {})",
                                T::DATA_TYPE,
                                seed()
                            );
                        }
                    }
                },
            );
        }
    }
}

#[test]
fn at_level_shape_float_bits_depend_on_values_alone() {
    let _watchdog = watchdog("determinism::at_level_shape_float_bits_depend_on_values_alone");
    bits_depend_on_values_alone::<f32>(5003, |value| value, |value| value);
}

#[test]
fn at_level_shape_bfloat_bits_depend_on_values_alone() {
    let _watchdog = watchdog("determinism::at_level_shape_bfloat_bits_depend_on_values_alone");
    bits_depend_on_values_alone::<bf16>(5003, bf16::to_f32, bf16::from_f32);
}

/// reduce and reduce_scatter give the bits all_reduce gives.
#[test]
fn at_level_shape_all_reductions_agree() {
    let _watchdog = watchdog("determinism::at_level_shape_all_reductions_agree");
    for (ranks, hosts) in [(4_u32, Hosts::One), (3, Hosts::Each), (5, Hosts::One)] {
        let block = 401;
        let count = block * ranks as usize;
        let inputs = inputs::<f32>(ranks, count, |value| value);
        let right = left_fold(&inputs, |value| value, |value| value);
        world_each(
            ranks,
            |rank| hosts.config(rank, settings(&[("RINGWAY_LEVEL", "shape")])),
            |comm| {
                let comm = comm.unwrap();
                let rank = comm.rank() as usize;
                assert_eq!(comm.level(), Level::Shape);
                let input = &inputs[rank];
                let mut mine = vec![0.0; block];
                comm.reduce_scatter(input, &mut mine, ReduceOp::Sum).unwrap();
                assert!(as_bytes(&mine) == as_bytes(&right[rank * block..][..block]));
                for root in 0..ranks {
                    let mut whole = vec![0.0; if comm.rank() == root { count } else { 0 }];
                    comm.reduce(input, &mut whole, ReduceOp::Sum, root).unwrap();
                    assert!(whole.is_empty() || as_bytes(&whole) == as_bytes(&right));
                }
            },
        );
    }
}

#[test]
fn at_level_run_the_same_call_gives_the_same_bits_on_every_rank() {
    let _watchdog =
        watchdog("determinism::at_level_run_the_same_call_gives_the_same_bits_on_every_rank");
    for (ranks, hosts) in [(4, Hosts::One), (7, Hosts::One), (5, Hosts::Each), (4, Hosts::Pairs)] {
        for count in [1_usize, 3000, 70_001] {
            let inputs = inputs::<f32>(ranks, count, |value| value);
            let job = || {
                world_each(
                    ranks,
                    |rank| hosts.config(rank, Config::default()),
                    |comm| {
                        let comm = comm.unwrap();
                        let once = || {
                            let mut sum = inputs[comm.rank() as usize].clone();
                            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
                            as_bytes(&sum).to_vec()
                        };
                        let first = once();
                        assert!(first == once(), "twice in one job: {ranks} ranks, {count}");
                        first
                    },
                )
            };
            let first = job();
            assert!(first.iter().all(|bits| *bits == first[0]), "{ranks} ranks, {count}");
            assert!(first == job(), "in two jobs: {ranks} ranks, {count}");
        }
    }
}

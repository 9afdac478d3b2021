use super::*;
use crate::types::Level;
use crate::verify::verify;

fn prove(way: Way, problem: &Problem, blocks: u16) {
    let plan = way.plan(problem, blocks);
    for in_place in [false, true] {
        let form = (0..problem.ranks).any(|rank| problem.in_place(rank).is_some());
        if in_place && !form {
            continue;
        }
        if let Err(refusal) = verify(&plan, in_place) {
            panic!("{way} {problem:?}, {blocks} blocks, in place {in_place}: {refusal}");
        }
    }
}

#[test]
fn every_way_is_proved_for_every_number_of_ranks_and_blocks() {
    let mut proved = 0;
    for ranks in (1..=9).chain([16, 31, 32]) {
        for collective in Collective::ALL {
            for (count, data_type) in
                [(0, DataType::F32), (1, DataType::I8), (37, DataType::Bf16), (1001, DataType::F64)]
            {
                for root in [0, ranks - 1] {
                    let mut problem = Problem::new(collective, ranks, count, data_type);
                    problem.root = if collective.has_root() { root } else { 0 };
                    problem.level = Level::Shape;
                    for way in Way::ALL.into_iter().filter(|way| way.supports(&problem).is_ok()) {
                        for blocks in [1, 2, 3].into_iter().filter(|_| ranks <= 16 || count < 100) {
                            prove(way, &problem, blocks);
                            proved += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(proved > 1000, "only {proved} plans");
}

/// A plan whose rank `r` does the lanes of all blocks in `fewer(r)` lanes: each step for all of them before the next.
fn crowded(mut plan: Plan, fewer: impl Fn(usize) -> usize) -> Plan {
    for (rank, part) in plan.ranks.iter_mut().enumerate() {
        let all = std::mem::take(&mut part.lanes);
        let mut lanes = vec![Vec::new(); fewer(rank).clamp(1, all.len().max(1))];
        let (count, steps) = (lanes.len(), all.iter().map(Vec::len).max().unwrap_or(0));
        for step in 0..steps {
            for (lane, from) in all.iter().enumerate() {
                // None is left out for want of values.
                assert_eq!(from.len(), steps);
                lanes[lane % count].push(from[step]);
            }
        }
        part.lanes = lanes;
    }
    plan
}

#[test]
fn ranks_with_fewer_blocks_than_others_are_proved() {
    for ranks in [2, 3, 4, 8] {
        for collective in Collective::ALL {
            let mut problem = Problem::new(collective, ranks, 203, DataType::F32);
            problem.level = Level::Shape;
            for way in Way::ALL.into_iter().filter(|way| way.supports(&problem).is_ok()) {
                for blocks in [2, 5, 7] {
                    let whole = || way.plan(&problem, blocks);
                    let plans = [
                        crowded(whole(), |rank| 1 + rank),
                        crowded(whole(), |rank| [1, 7, 3, 2][rank % 4]),
                        crowded(whole(), |_| 1),
                    ];
                    for plan in plans {
                        if let Err(refusal) = verify(&plan, false) {
                            panic!("{way} {problem:?}, {blocks} blocks: {refusal}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_block_that_waits_before_it_has_signalled_for_all_its_parts_is_refused() {
    let problem = Problem::new(Collective::AllReduce, 2, 203, DataType::F32);
    let mut plan = crowded(Way::Buffers.plan(&problem, 2), |_| 1);
    // One rank goes on to the wait of its first part before it signals for its second, the other the other way round.
    for (rank, first) in [(0, 1), (1, 0)] {
        let lane = &mut plan.ranks[rank].lanes[0];
        let signal = lane.remove(first);
        let wait = if first == 1 { 2 } else { 3 };
        lane.insert(wait, signal);
    }
    let refusal = verify(&plan, false).expect_err("each waits for what the other does later");
    assert!(refusal.to_string().contains("wait"), "{refusal}");
}

#[test]
fn counts_per_rank_are_proved() {
    let counts: std::sync::Arc<[u64]> = [5, 0, 70, 3].into();
    for collective in
        [Collective::AllGather, Collective::ReduceScatter, Collective::Gather, Collective::Scatter]
    {
        let mut problem = Problem::new(collective, 4, 0, DataType::F16);
        problem.counts = Counts::PerRank(counts.clone());
        for way in Way::ALL.into_iter().filter(|way| way.supports(&problem).is_ok()) {
            prove(way, &problem, 2);
        }
    }
}

/// Both ends of messages, as one plan.
#[test]
fn messages_are_proved() {
    let mut problem = Problem::new(Collective::AllToAll, 2, 0, DataType::U8);
    let pairwise = |send: [u64; 2], receive: [u64; 2]| Counts::Pairwise {
        send: send.to_vec().into(),
        receive: receive.to_vec().into(),
    };
    problem.counts = pairwise([0, 100], [0, 0]);
    let mut other = problem.clone();
    other.counts = pairwise([0, 0], [100, 0]);
    let plan = Plan {
        algorithm: "message".to_owned(),
        problems: vec![problem, other],
        hosts: vec![0, 0],
        ranks: vec![split(&send(1), 3, DataType::U8), split(&receive(0, 100), 3, DataType::U8)],
    };
    verify(&plan, false).unwrap();
}

#[test]
fn a_peer_that_was_not_waited_for_is_refused() {
    let problem = Problem::new(Collective::AllReduce, 2, 64, DataType::F32);
    let mut plan = Way::Buffers.plan(&problem, 1);
    for part in &mut plan.ranks {
        part.lanes[0].retain(|step| !matches!(step, Step::Wait { flag: DONE, .. }));
        part.lanes[0].retain(|step| !matches!(step, Step::Signal { flag: DONE, .. }));
    }
    let refusal = verify(&plan, false).unwrap_err().to_string();
    assert!(refusal.contains("does not wait until that is over"), "{refusal}");
    let mut plan = Way::Buffers.plan(&problem, 1);
    for part in &mut plan.ranks {
        part.lanes[0].retain(|step| !matches!(step, Step::Wait { flag: OPEN, .. }));
        part.lanes[0].retain(|step| !matches!(step, Step::Signal { flag: OPEN, .. }));
    }
    let refusal = verify(&plan, false).unwrap_err().to_string();
    assert!(refusal.contains("is not known to have begun"), "{refusal}");
}

#[test]
fn small_calls_go_by_cards_and_large_ones_by_buffers() {
    let call = |count| Problem::new(Collective::AllReduce, 2, count, DataType::F32);
    let choice = |count| choose(&call(count), card_bytes(2));
    assert_eq!(choice(256), Ok(Way::Cards));
    assert_eq!(choice(1 << 20), Ok(Way::Buffers));
    let many = Problem::new(Collective::AllReduce, 33, 1, DataType::F32);
    assert!(choose(&many, 64).unwrap_err().contains("33 ranks"));
}

#[test]
fn who_has_nothing_to_show_is_met() {
    for collective in [Collective::AllReduce, Collective::AllGather] {
        let problem = Problem::new(collective, 3, 0, DataType::F32);
        assert_eq!(choose(&problem, card_bytes(3)), Ok(Way::Buffers), "{collective}");
    }
    let mut problem = Problem::new(Collective::AllGather, 3, 0, DataType::F32);
    problem.counts = Counts::PerRank([5, 0, 7].into());
    let refusal = Way::Cards.supports(&problem).unwrap_err();
    assert!(refusal.contains("rank 1 has nothing"), "{refusal}");
    assert_eq!(choose(&problem, card_bytes(3)), Ok(Way::Buffers));
    problem.counts = Counts::PerRank([5, 1, 7].into());
    assert_eq!(choose(&problem, card_bytes(3)), Ok(Way::Cards));
}

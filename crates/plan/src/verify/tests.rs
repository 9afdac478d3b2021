//! Broken plans: each is refused, or harmless in every order of events.
//!
//! A mutant that the verifier lets pass is not believed: it is run on numbers, in adverse
//! orders, by [`chaos::run`], which knows nothing of clocks or proofs.

mod chaos;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::build::Tuning;
use crate::plan::{Operand, RankPlan};
use crate::problem::{Counts, Problem};
use crate::types::{Collective, Level};

/// Plans small enough that every mutant of each can be tried.
fn samples() -> Vec<Plan> {
    let mut plans = Vec::new();
    for algorithm in Algorithm::ALL {
        for collective in Collective::ALL {
            for (ranks, level) in [(3, Level::Run), (4, Level::Shape), (5, Level::Run)] {
                let layouts: [Vec<u32>; 3] = [
                    vec![0; ranks as usize],
                    (0..ranks).collect(),
                    (0..ranks).map(|rank| rank / 2).collect(),
                ];
                for (lanes, hosts) in [1, 1, 2].into_iter().zip(&layouts) {
                    let mut problem = Problem::new(collective, ranks, 70, DataType::F16);
                    problem.level = level;
                    problem.root = 1;
                    let tuning = Tuning { lanes, slot_bytes: 64, slots: 2, scratch_bytes: 1 << 14 };
                    if algorithm.supports(&problem, hosts).is_ok() {
                        plans.push(algorithm.plan(&problem, hosts, tuning));
                    }
                }
            }
        }
    }
    plans
}

/// The places of a plan's steps, thinned out to about `most`.
fn places(plan: &Plan, most: usize) -> Vec<Place> {
    let all: Vec<Place> = (0..)
        .zip(&plan.ranks)
        .flat_map(|(rank, part)| {
            part.lanes.iter().enumerate().flat_map(move |(lane, steps)| {
                (0..steps.len()).map(move |step| Place { rank, lane, step })
            })
        })
        .collect();
    let stride = (all.len() / most).max(1);
    // A stride that is odd does not always meet the same kind of step.
    all.into_iter().step_by(stride | 1).collect()
}

fn step_at(plan: &Plan, place: Place) -> Step {
    plan.ranks[place.rank as usize].lanes[place.lane][place.step]
}

fn with_step(plan: &Plan, place: Place, step: Option<Step>) -> Plan {
    let mut mutant = plan.clone();
    let lane = &mut mutant.ranks[place.rank as usize].lanes[place.lane];
    match step {
        Some(step) => lane[place.step] = step,
        None => {
            lane.remove(place.step);
        }
    }
    mutant
}

fn with_operands(plan: &Plan, rank: Rank, change: impl FnOnce(&mut Vec<Operand>)) -> Plan {
    let mut mutant = plan.clone();
    change(&mut mutant.ranks[rank as usize].operands);
    mutant
}

/// Every mutant of one step, by name. Names that end in `?` may be harmless.
fn mutants(plan: &Plan, place: Place) -> Vec<(&'static str, Plan)> {
    let step = step_at(plan, place);
    let shift = |offset: u64| {
        if offset >= 64 { offset - 64 } else { offset + 64 }
    };
    let with = |step| with_step(plan, place, Some(step));
    let without = || with_step(plan, place, None);
    let ordered = plan.problems[0].level == Level::Shape;
    let mut made = Vec::new();
    match step {
        Step::Wait { peer, flag, count } => {
            made.push(("dropped wait?", without()));
            made.push(("wait for one more?", with(Step::Wait { peer, flag, count: count + 1 })));
            if count > 1 {
                made.push((
                    "wait for one less?",
                    with(Step::Wait { peer, flag, count: count - 1 }),
                ));
            }
            made.push(("wait on another flag?", with(Step::Wait { peer, flag: flag + 1, count })));
        }
        Step::Signal { peer, flag } => {
            made.push(("dropped signal", without()));
            made.push(("signal on another flag", with(Step::Signal { peer, flag: flag + 1 })));
            let other = (peer + 1) % plan.problems[0].ranks;
            made.push(("signal to another rank", with(Step::Signal { peer: other, flag })));
        }
        Step::Show { source, card } => {
            made.push(("card not shown?", without()));
            made.push(("another card shown?", with(Step::Show { source, card: card + 1 })));
            if source.count > 0 {
                let moved = Span { offset: source.offset + 2, ..source };
                made.push(("card with other values?", with(Step::Show { source: moved, card })));
                let short = Span { count: source.count - 1, ..source };
                made.push(("card with fewer values?", with(Step::Show { source: short, card })));
            }
        }
        Step::See { peer, card } => {
            made.push(("card not looked at?", without()));
            made.push(("looks at another card?", with(Step::See { peer, card: card + 1 })));
            let other = (peer + 1) % plan.problems[0].ranks;
            made.push(("looks at another rank's card?", with(Step::See { peer: other, card })));
        }
        Step::Put { peer, source, target, signal } => {
            made.push(("dropped put", without()));
            if signal.is_some() {
                made.push((
                    "put without signal",
                    with(Step::Put { peer, source, target, signal: None }),
                ));
            }
            let moved = Remote { offset: shift(target.offset), ..target };
            made.push(("put elsewhere", with(Step::Put { peer, source, target: moved, signal })));
            let moved = Span { offset: source.offset + 2, ..source };
            made.push((
                "put of other values",
                with(Step::Put { peer, source: moved, target, signal }),
            ));
            let short = Span { count: source.count - 1, ..source };
            made.push((
                "put of fewer values",
                with(Step::Put { peer, source: short, target, signal }),
            ));
        }
        Step::Get { peer, source, target } => {
            made.push(("dropped get", without()));
            let moved = Remote { offset: shift(source.offset), ..source };
            made.push(("get of other values", with(Step::Get { peer, source: moved, target })));
            let moved = Span { offset: shift(target.offset), ..target };
            made.push(("get to elsewhere", with(Step::Get { peer, source, target: moved })));
            let short = Span { count: target.count - 1, ..target };
            made.push(("get of fewer values", with(Step::Get { peer, source, target: short })));
        }
        Step::Copy { source, target } => {
            made.push(("dropped copy", without()));
            let moved = Span { offset: shift(target.offset), ..target };
            made.push(("copy elsewhere", with(Step::Copy { source, target: moved })));
            let moved = Span { offset: shift(source.offset), ..source };
            made.push(("copy of other values", with(Step::Copy { source: moved, target })));
        }
        Step::Reduce { first, operands, target, finish } => {
            made.push(("dropped reduction", without()));
            let turned = Step::Reduce { first, operands, target, finish: !finish };
            made.push(("reduction (un)finished", with(turned)));
            let short = Step::Reduce { first, operands: operands - 1, target, finish };
            made.push(("dropped operand", with(short)));
            let moved = Span { offset: shift(target.offset), ..target };
            let elsewhere = Step::Reduce { first, operands, target: moved, finish };
            made.push(("reduction elsewhere", with(elsewhere)));
            let first = first as usize;
            if operands > 1 {
                let name = if ordered { "swapped operands" } else { "swapped operands?" };
                made.push((
                    name,
                    with_operands(plan, place.rank, |list| list.swap(first, first + 1)),
                ));
                made.push((
                    "doubled operand",
                    with_operands(plan, place.rank, |list| list[first + 1] = list[first]),
                ));
            }
            made.push((
                "operand of other values",
                with_operands(plan, place.rank, |list| list[first].span.offset += 2),
            ));
            made.push((
                "operand of another origin",
                with_operands(plan, place.rank, |list| {
                    list[first].fresh = match list[first].fresh {
                        Some(_) => None,
                        None => Some(0),
                    };
                }),
            ));
        }
    }
    made
}

#[test]
fn every_mutant_is_refused_or_harmless() {
    let (mut refused, mut passed) = (BTreeMap::new(), BTreeMap::new());
    for plan in samples() {
        assert_eq!(verify(&plan, false).err(), None, "{}", plan.algorithm);
        for place in places(&plan, 16) {
            for (name, mutant) in mutants(&plan, place) {
                if verify(&mutant, false).is_err() {
                    *refused.entry(name).or_insert(0) += 1;
                    continue;
                }
                *passed.entry(name).or_insert(0) += 1;
                let what = format!(
                    "{name} at {place} of {} {:?} on {:?}",
                    plan.algorithm, plan.problems[0], plan.hosts
                );
                assert!(name.ends_with('?'), "{what}: not refused");
                for seed in 0..20 {
                    if let Err(wrong) = chaos::run(&mutant, seed) {
                        panic!("{what}: proved, but with seed {seed} {wrong}");
                    }
                }
            }
        }
    }
    println!("refused {refused:#?}\nproved, and harmless {passed:#?}");
    for (name, least) in [("dropped wait?", 300), ("dropped signal", 100), ("dropped put", 100)] {
        assert!(refused[name] > least, "{name}: {} refused", refused[name]);
    }
    assert!(refused["swapped operands"] > 20);
    assert!(refused["dropped wait?"] > 2 * passed["dropped wait?"]);
}

/// The runner of the test above sees what the verifier forbids.
#[test]
fn chaos_finds_dropped_waits() {
    let (mut caught, mut all) = (0, 0);
    for plan in samples().iter().step_by(5) {
        chaos::run(plan, 1).unwrap();
        for place in places(plan, 12) {
            let mutant = with_step(plan, place, None);
            if matches!(step_at(plan, place), Step::Wait { .. }) && verify(&mutant, false).is_err()
            {
                all += 1;
                caught += u32::from((0..20).any(|seed| chaos::run(&mutant, seed).is_err()));
            }
        }
    }
    assert!(caught * 4 > all * 3, "only {caught} of {all} were seen to go wrong");
}

#[test]
fn ranks_that_fold_alike_only_at_first_are_refused() {
    // Both ranks hold all contributions, but of the second half rank 1 folds them the other way.
    let mut problem = Problem::new(Collective::AllReduce, 2, 64, DataType::F32);
    let tuning = Tuning { slot_bytes: 128, ..Tuning::default() };
    problem.level = Level::Run;
    let mut plan = Algorithm::OneShot.plan(&problem, &[0, 0], tuning);
    assert_eq!(plan.ranks[1].operands.len(), 4);
    plan.ranks[1].operands.swap(2, 3);
    let refusal = verify(&plan, false).unwrap_err().to_string();
    assert!(refusal.contains("rank 1: output value 32"), "{refusal}");
    assert!(refusal.contains("left by rank 1 lane 0 step"), "{refusal}");
}

#[test]
fn a_cycle_of_waits_is_told_from_a_missing_signal() {
    let problem = Problem::new(Collective::AllReduce, 3, 64, DataType::F32);
    let plan = Algorithm::Ring.plan(&problem, &[0, 1, 2], Tuning::default());
    let mut missing = plan.clone();
    missing.ranks[2].lanes[0].retain(|step| !matches!(step, Step::Put { .. }));
    let text = verify(&missing, false).unwrap_err().to_string();
    assert!(text.starts_with("rank 0 lane 0"), "{text}");
    assert!(text.contains("raises it only 0 times"), "{text}");
    let mut cycle = plan;
    for part in &mut cycle.ranks {
        part.lanes[0].sort_by_key(|step| !matches!(step, Step::Wait { .. }));
    }
    let text = verify(&cycle, false).unwrap_err().to_string();
    assert!(text.contains("which itself stands at rank 2 lane 0 step 0"), "{text}");
}

#[test]
fn overlapping_copies_are_refused() {
    let problem = Problem::new(Collective::Broadcast, 1, 64, DataType::F32);
    let mut plan = Algorithm::Direct.plan(&problem, &[0], Tuning::default());
    let Step::Copy { source, target } = plan.ranks[0].lanes[0][0] else {
        panic!("one rank copies");
    };
    let part = |span: Span, start| span.slice(start, 40, DataType::F32);
    plan.ranks[0].lanes[0] = vec![
        Step::Copy { source, target },
        Step::Copy { source: part(target, 0), target: part(target, 8) },
    ];
    let text = verify(&plan, false).unwrap_err().to_string();
    assert_eq!(text, "rank 0 lane 0 step 1: source and target overlap");
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..200_u64,
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 63),
        1 => Just(1 << 63),
        1 => Just((1 << 56) - 1),
        1 => any::<u64>(),
    ]
}

fn any_rank() -> impl Strategy<Value = Rank> {
    prop_oneof![6 => 0..4_u32, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn any_region() -> impl Strategy<Value = Region> {
    prop_oneof![
        (0..2_u16).prop_map(Region::Input),
        (0..2_u16).prop_map(Region::Output),
        Just(Region::Scratch),
        any_rank().prop_map(Region::Window),
        any_rank().prop_map(Region::Card),
        any_rank().prop_map(Region::PeerInput),
        any_rank().prop_map(Region::PeerOutput),
    ]
}

fn any_span() -> impl Strategy<Value = Span> {
    let form = prop_oneof![Just(Form::Element), Just(Form::Accumulator)];
    (any_region(), any_number(), any_number(), form)
        .prop_map(|(region, offset, count, form)| Span { region, offset, count, form })
}

fn any_step() -> impl Strategy<Value = Step> {
    let flag = prop_oneof![8 => 0..4_u16, 1 => any::<u16>()];
    let count = prop_oneof![8 => 0..4_u32, 1 => any::<u32>()];
    (0..8, any_span(), any_span(), any_rank(), flag, count, any::<bool>()).prop_map(
        |(kind, source, target, peer, flag, count, finish)| match kind {
            0 => Step::Copy { source, target },
            1 => Step::Reduce { first: count, operands: u32::from(flag), target, finish },
            2 => Step::Put {
                peer,
                source,
                target: Remote { region: target.region, offset: target.offset },
                signal: finish.then_some(flag),
            },
            3 => Step::Signal { peer, flag },
            4 => Step::Show { source, card: flag },
            5 => Step::See { peer, card: flag },
            6 => {
                let source = Remote { region: source.region, offset: source.offset };
                Step::Get { peer, source, target }
            }
            _ => Step::Wait { peer, flag, count },
        },
    )
}

fn any_counts() -> impl Strategy<Value = Counts> {
    let list = || prop::collection::vec(any_number(), 0..5);
    prop_oneof![
        4 => any_number().prop_map(Counts::Equal),
        1 => list().prop_map(|counts| Counts::PerRank(counts.into())),
        1 => (list(), list()).prop_map(|(send, receive)| Counts::Pairwise {
            send: send.into(),
            receive: receive.into(),
        }),
    ]
}

fn any_part() -> impl Strategy<Value = RankPlan> {
    let lanes = prop::collection::vec(prop::collection::vec(any_step(), 0..6), 0..3);
    let operands = prop::collection::vec(
        (any_span(), prop::option::of(any_rank()))
            .prop_map(|(span, fresh)| Operand { span, fresh }),
        0..4,
    );
    (lanes, operands, any_number()).prop_map(|(lanes, operands, scratch_bytes)| RankPlan {
        lanes,
        operands,
        scratch_bytes,
        flags: 4,
        cards: 4,
        exposed: true,
        wide_card_bytes: 0,
    })
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let problem = (0..10_usize, any_rank(), any_counts(), 0..12_usize);
    (problem, prop::collection::vec(any_part(), 1..4)).prop_map(
        |((collective, root, counts, data_type), mut ranks)| {
            let scratch_bytes = ranks[0].scratch_bytes;
            for part in &mut ranks {
                part.scratch_bytes = scratch_bytes;
            }
            let problem = Problem {
                collective: Collective::ALL[collective],
                ranks: u32::try_from(ranks.len()).unwrap(),
                root,
                counts,
                data_type: DataType::ALL[data_type],
                level: Level::Shape,
            };
            Plan {
                algorithm: "any".to_owned(),
                problems: vec![problem; ranks.len()],
                hosts: vec![0; ranks.len()],
                ranks,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_makes_the_verifier_panic(plan in any_plan()) {
        for in_place in [false, true] {
            let _ = verify(&plan, in_place).map_err(|refusal| refusal.to_string());
        }
    }

    #[test]
    fn no_change_of_a_good_plan_makes_the_verifier_panic(
        which in any::<prop::sample::Index>(),
        rank in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        step in any_step(),
        span in any_span(),
        scratch in any_number(),
        counts in any_counts(),
        kind in 0..5,
    ) {
        thread_local! {
            static SAMPLES: Vec<Plan> = samples();
        }
        let mut plan = SAMPLES.with(|samples| which.get(samples).clone());
        let part = &mut plan.ranks[rank.index(plan.hosts.len())];
        match kind {
            0 if !part.lanes.is_empty() && !part.lanes[0].is_empty() => {
                let lane = &mut part.lanes[0];
                let place = at.index(lane.len());
                lane[place] = step;
            }
            1 if !part.lanes.is_empty() => {
                let place = at.index(part.lanes[0].len() + 1);
                part.lanes[0].insert(place, step);
            }
            2 if !part.operands.is_empty() => {
                let place = at.index(part.operands.len());
                part.operands[place].span = span;
            }
            3 => {
                for part in &mut plan.ranks {
                    part.scratch_bytes = scratch;
                }
            }
            _ => {
                for problem in &mut plan.problems {
                    problem.counts = counts.clone();
                }
            }
        }
        for in_place in [false, true] {
            let _ = verify(&plan, in_place).map_err(|refusal| refusal.to_string());
        }
    }
}

/// A rank's buffers are its user's again as soon as it is done: who reads them must know that it has
/// come, and it must know that they have read.
#[test]
fn gets_are_refused_outside_the_operation_of_their_owner() {
    let problem = Problem::new(Collective::AllGather, 2, 70, DataType::F32);
    let plan = Algorithm::SingleCopy.plan(&problem, &[0, 0], Tuning::default());
    verify(&plan, false).unwrap();
    let without_see = |wanted: usize| {
        let sees = places(&plan, usize::MAX)
            .into_iter()
            .filter(|place| place.rank == 0 && matches!(step_at(&plan, *place), Step::See { .. }));
        with_step(&plan, sees.into_iter().nth(wanted).unwrap(), None)
    };
    let refusal = |plan: &Plan| verify(plan, false).unwrap_err().to_string();
    let early = refusal(&without_see(0));
    assert!(early.contains("rank 1, which is not known to have begun"), "{early}");
    let late = refusal(&without_see(1));
    assert!(late.contains("rank 0, which does not wait until that is over"), "{late}");
    let mut hidden = plan.clone();
    hidden.ranks[1].exposed = false;
    assert!(refusal(&hidden).contains("rank 1 does not expose its buffers"));
}

//! Shares are max-min fair, and found again where something changed as if all had been found anew.

use proptest::prelude::*;
use ringway_fabric::generate::FatTree;
use ringway_fabric::rate::Rate;

use super::*;
use crate::machine::Machine;

fn network() -> Network {
    let tree = FatTree {
        hosts: 8,
        adapters: 1,
        rails: false,
        down: 4,
        up: 2,
        spines: 2,
        pod_leaves: 0,
        spine_up: 0,
        cores: 0,
        rate: Rate::parse("400G").expect("a rate"),
    };
    let fabric = tree.build().expect("a fabric");
    Network::build(fabric, Machine { gpus: 1, ..Machine::default() }, None).expect("a network")
}

fn loads(list: &[(u32, u32)], links: usize) -> Box<[Load]> {
    let links = u32::try_from(links).expect("few");
    let mut merged = std::collections::BTreeMap::new();
    for (link, weight) in list {
        *merged.entry(link % links).or_insert(0.0) += f64::from(*weight) / 4.0;
    }
    merged.into_iter().map(|(link, weight)| Load { link, weight }).collect()
}

/// Nothing is over its capacity, and every stream has a full link where nobody is faster.
fn is_max_min(solver: &Solver) -> Result<(), TestCaseError> {
    let used: Vec<f64> = solver
        .links
        .iter()
        .map(|link| link.members.iter().map(|m| m.weight * solver.rate(m.slot)).sum())
        .collect();
    for (link, used) in solver.links.iter().zip(&used) {
        prop_assert!(*used <= link.capacity * (1.0 + 1e-9), "{used} of {}", link.capacity);
        prop_assert!((link.used - used).abs() <= link.capacity * 1e-9);
    }
    for stream in solver.streams.iter().filter(|stream| stream.present) {
        let bottleneck = stream.loads.iter().any(|load| {
            let link = &solver.links[load.link as usize];
            let full = used[load.link as usize] >= link.capacity * (1.0 - 1e-6);
            let most = link.members.iter().map(|m| solver.rate(m.slot)).fold(0.0, f64::max);
            full && stream.rate >= most * (1.0 - 1e-6)
        });
        prop_assert!(bottleneck, "nothing holds up a stream of rate {}", stream.rate);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn shares_are_max_min_after_every_change(
        streams in prop::collection::vec(prop::collection::vec((0_u32..1000, 1_u32..9), 1..6), 1..40),
        changes in prop::collection::vec((any::<bool>(), 0_usize..40, 1_u32..16), 0..30),
    ) {
        let network = network();
        let links = network.links.len();
        let mut solver = Solver::new(&network, Pause::Never);
        let mut present = vec![false; streams.len()];
        let mut before = Vec::new();
        for (slot, list) in streams.iter().enumerate().filter(|(slot, _)| slot % 2 == 0) {
            solver.add(u32::try_from(slot).expect("few"), loads(list, links), Box::default());
            present[slot] = true;
        }
        solver.solve(0.0, &mut before);
        is_max_min(&solver)?;
        for (index, (capacity, slot, part)) in changes.iter().enumerate() {
            let slot = slot % streams.len();
            let id = u32::try_from(slot).expect("few");
            if *capacity {
                let link = u32::try_from(index * 7 % links).expect("few");
                let whole = network.links[link as usize].capacity;
                solver.set_capacity(link, whole * f64::from(*part) / 16.0);
            } else if present[slot] {
                solver.remove(id, 0.0);
                present[slot] = false;
            } else {
                solver.add(id, loads(&streams[slot], links), Box::default());
                present[slot] = true;
            }
            // Several changes at a time, now and then.
            if part % 3 > 0 {
                let now_us = f64::from(u32::try_from(index).expect("few"));
                solver.solve(now_us, &mut before);
                is_max_min(&solver)?;
            }
        }
    }
}

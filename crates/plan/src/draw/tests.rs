use super::*;
use crate::algorithm::Algorithm;
use crate::build::Tuning;
use crate::types::{Collective, DataType};

fn plan(algorithm: Algorithm, collective: Collective, ranks: u32, lanes: u32) -> Plan {
    let problem = Problem::new(collective, ranks, values(algorithm), DataType::Bf16);
    let hosts: Vec<u32> = (0..ranks).map(|rank| rank / 4).collect();
    algorithm.plan(&problem, &hosts, Tuning { lanes, ..Tuning::default() })
}

/// As many as it takes several steps to deal with, where that many can be dealt with.
fn values(algorithm: Algorithm) -> u64 {
    if algorithm == Algorithm::Tiny { 20 } else { 4096 }
}

/// Tags open and close in order, attributes are quoted, no bare `&` or `<`.
fn assert_well_formed(xml: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml;
    while let Some(at) = rest.find('<') {
        let words = &rest[..at];
        assert!(!words.contains('>'), "stray > in {words}");
        for entity in words.split('&').skip(1) {
            let name = entity.split(';').next().unwrap();
            assert!(["amp", "lt", "gt", "quot"].contains(&name), "&{name}");
        }
        let end = at + rest[at..].find('>').expect("tags end");
        let tag = &rest[at + 1..end];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?} stay open");
}

#[test]
fn every_algorithm_is_drawn_and_listed() {
    for algorithm in Algorithm::ALL {
        for collective in Collective::ALL {
            for (ranks, lanes) in [(1, 1), (3, 2), (8, 1)] {
                let problem = Problem::new(collective, ranks, values(algorithm), DataType::Bf16);
                let hosts: Vec<u32> = (0..ranks).map(|rank| rank / 4).collect();
                if algorithm.supports(&problem, &hosts).is_err() {
                    continue;
                }
                let plan = plan(algorithm, collective, ranks, lanes);
                let drawn = svg(&plan, SvgOptions::default());
                assert_well_formed(&drawn);
                assert!(!drawn.contains("wait for ever"), "{algorithm} {collective}");
                let listed = text(&plan, TextOptions::default());
                let widest = listed.lines().map(|line| line.chars().count()).max();
                assert!(widest <= Some(80), "{widest:?} {algorithm} {collective}");
                assert!(listed.starts_with(algorithm.name()));
            }
        }
    }
}

#[test]
fn large_plans_are_elided_and_broken_ones_marked() {
    let mut plan = plan(Algorithm::Ring, Collective::AllReduce, 80, 1);
    let drawn = svg(&plan, SvgOptions::default());
    assert_well_formed(&drawn);
    assert!(drawn.contains("not drawn: 16 more ranks, "), "rows are left out");
    let listed = text(&plan, TextOptions::default());
    assert!(listed.contains("… 64 more ranks …") && listed.contains(" steps …"));
    plan.ranks[3].lanes[0].clear();
    let drawn = svg(&plan, SvgOptions::default());
    assert_well_formed(&drawn);
    assert!(drawn.contains("waits for ever"));
}

#[test]
fn the_summary_counts() {
    let plan = plan(Algorithm::Ring, Collective::AllReduce, 4, 1);
    let summary = Summary::of(&plan);
    assert_eq!((summary.ranks, summary.hosts, summary.lanes), (4, 1, 1));
    // Each of 4 ranks folds 3 shares of 2 operands.
    assert!(summary.bytes_reduced > 0 && summary.messages > 0);
    assert_eq!(
        title(&plan),
        "ring all_reduce of 4096 bfloat16 (8 KiB), 4 ranks on 1 host, level run"
    );
}

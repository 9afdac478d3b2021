//! The textbook's numbers, and designs that are built and looked at.

use proptest::prelude::*;

use super::*;
use crate::rate::Rate;
use crate::shape::Shape;

fn request(nodes: u64, layout: Layout) -> Request {
    Request {
        gpus: nodes * 8,
        gpus_per_node: 8,
        nics_per_node: 8,
        rate: Rate::wanted("NDR").unwrap(),
        radix: 64,
        layout,
        oversubscription: 1.0,
        tiers: None,
    }
}

#[test]
fn k_ary_trees_have_the_textbooks_sizes() {
    let table = [
        (32, 512, (32, 16), 8192, 1280),
        (36, 648, (36, 18), 11_664, 1620),
        (40, 800, (40, 20), 16_000, 2000),
        (64, 2048, (64, 32), 65_536, 5120),
        (128, 8192, (128, 64), 524_288, 20_480),
        (144, 10_368, (144, 72), 746_496, 25_920),
    ];
    for (k, two, (leaves, spines), three, switches) in table {
        assert_eq!(k_ary(k, 2), Some((two, vec![leaves, spines])));
        let (ends, tiers) = k_ary(k, 3).unwrap();
        assert_eq!((ends, tiers.iter().sum::<u64>()), (three, switches), "k = {k}");
        // The planner comes to the same.
        for (ends, tiers) in [(two, 2), (three, 3)] {
            let wanted = Request {
                gpus: ends,
                gpus_per_node: 1,
                nics_per_node: 1,
                radix: k,
                ..request(1, Layout::FatTree)
            };
            let design = design(&wanted).unwrap();
            assert_eq!(design.tiers, tiers, "k = {k}");
            let expected: u64 = k_ary(k, tiers).unwrap().1.iter().sum();
            assert_eq!((design.switches, design.nodes_most), (expected, ends), "k = {k}");
            let one_more = Request { gpus: ends + 1, tiers: Some(tiers), ..wanted };
            assert!(super::design(&one_more).is_err(), "k = {k}: {} fit", ends + 1);
        }
    }
}

#[test]
fn rail_units_have_the_references_sizes() {
    for (nodes, leaves, spines) in [(32, 8, 4), (64, 16, 8), (256, 64, 32)] {
        let design = design(&request(nodes, Layout::Rail)).unwrap();
        assert_eq!(
            (design.leaves, design.spines, design.tiers, design.unit_nodes),
            (leaves, spines, 2, 32)
        );
        assert_eq!(design.nodes_most, 256);
    }
    let only = design(&request(64, Layout::RailOnly)).unwrap();
    assert_eq!((only.switches, only.planes, only.gpus, only.nodes_most), (8, 8, 512, 64));
    assert!(design(&request(65, Layout::RailOnly)).is_err());
}

#[test]
fn five_hundred_nodes_do_not_fit_two_tiers_of_rails() {
    let wanted = Request { tiers: Some(2), ..request(512, Layout::Rail) };
    let misfit = design(&wanted).unwrap_err();
    assert!(misfit.why.contains("128 leaves") && misfit.why.contains("64"), "{misfit}");
    let offered: Vec<&str> = misfit.instead.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(
        offered,
        ["--tiers 3", "--layout planes: each rail a tree of its own", "--radix 128"],
        "{misfit:#?}"
    );
    let planes = &misfit.instead[1].1;
    assert_eq!((planes.planes, planes.leaves, planes.spines, planes.tiers), (8, 128, 64, 2));
    let big = &misfit.instead[2].1;
    assert_eq!((big.leaves, big.spines, big.radix, big.tiers), (64, 32, 128, 2));
    // Without a wish for two tiers it is three.
    assert_eq!(design(&request(512, Layout::Rail)).unwrap().tiers, 3);
}

#[test]
fn bisection_and_oversubscription_are_the_references() {
    let one = design(&request(256, Layout::Rail)).unwrap();
    assert_eq!(one.bisection_gbps / 8.0, 51_200.0, "51.2 TB/s");
    assert_eq!((one.host_cables, one.switch_cables), (2048, 2048));
    let three = Request { oversubscription: 3.0, ..request(256, Layout::FatTree) };
    let three = design(&three).unwrap();
    assert_eq!((three.leaf_down, three.leaf_up), (48, 16));
    assert!((three.bisection_gbps / 8.0 - 17_066.7).abs() < 1.0, "{}", three.bisection_gbps / 8.0);
}

#[test]
fn seven_billion_parameters_need_28_gbytes() {
    let workload = Workload {
        parameters: 7e9,
        bytes: 2.0,
        step_s: 1.0,
        overlap: 1.0,
        parallel: Parallel::Data,
        inside: Some(450.0),
    };
    let demand = workload.demand(2048);
    assert!((demand.gbytes - 28.0).abs() < 0.02, "{demand:?}");
    let supply = workload.supply(&design(&request(256, Layout::Rail)).unwrap());
    assert_eq!(supply.alone, 47.5);
    assert_eq!(supply.ring, Some(360.0));
    assert!((supply.headroom - 12.86).abs() < 0.01, "{supply:?}");
    let slow = Workload { inside: Some(20.0), ..workload };
    let capped = slow.supply(&design(&request(256, Layout::Rail)).unwrap());
    assert_eq!(capped.all_to_all, 16.0, "by the GPUs' own links");
    let fsdp = Workload { parameters: 70e9, parallel: Parallel::Fsdp, ..workload };
    assert!((fsdp.demand(1 << 20).step_bytes / 1e9 - 420.0).abs() < 0.01);
}

#[test]
fn what_is_planned_can_be_built_and_is_what_was_planned() {
    for (nodes, layout, radix) in [
        (4, Layout::FatTree, 64),
        (40, Layout::Rail, 64),
        (12, Layout::FatTree, 16),
        (20, Layout::Rail, 16),
    ] {
        let wanted = Request { radix, ..request(nodes, layout) };
        let design = design(&wanted).unwrap();
        let fabric =
            design.tree().unwrap().build().unwrap_or_else(|error| panic!("{design:?}: {error}"));
        let shape = Shape::of(&fabric);
        assert_eq!(
            shape.switches as u64, design.switches,
            "{layout:?} {nodes} {radix}: {design:?}"
        );
        assert_eq!(
            shape.links as u64,
            design.host_cables + design.switch_cables,
            "{layout:?} {nodes} {radix}: {design:?}"
        );
        assert_eq!(shape.tiers.len(), usize::from(design.tiers));
        assert!(
            fabric.nodes.iter().all(|node| node.ports.len() as u64 <= radix),
            "{layout:?} {nodes} {radix}"
        );
        let found = crate::check::check(&fabric, crate::check::CheckOptions::default());
        assert_eq!(found, [], "{layout:?} {nodes} {radix}");
    }
}

#[test]
fn prices_add_up_and_nonsense_is_refused() {
    let prices = Prices::from_json(br#"{"currency": "EUR", "switch": 20000, "adapter": 1500, "host_cable": 200, "switch_watts": 1000}"#).unwrap();
    let bill = prices.bill(&design(&request(32, Layout::Rail)).unwrap());
    assert_eq!(bill.cost, 12.0 * 20_000.0 + 256.0 * 1700.0);
    assert_eq!(
        (bill.watts, bill.unpriced.as_slice()),
        (12_000.0, &["cables between switches"][..])
    );
    assert_eq!(bill.unmeasured, ["adapters", "cables to hosts", "cables between switches"]);
    for text in ["", "[]", "{\"swich\": 1}", "{\"switch\": -1}", "{\"switch\": 1e999}"] {
        assert!(Prices::from_json(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    let base = request(4, Layout::Rail);
    let all = [
        Request { gpus: 0, ..base },
        Request { radix: 1, ..base },
        Request { oversubscription: 0.5, ..base },
        Request { oversubscription: f64::NAN, ..base },
        Request { tiers: Some(4), ..base },
        Request { nics_per_node: 0, ..base },
    ];
    for request in all {
        assert!(!design(&request).unwrap_err().why.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_design_has_more_cables_than_ports(
        nodes in 1_u64..400,
        nics in 1_u64..9,
        radix in prop::sample::select(vec![8_u64, 16, 36, 40, 64]),
        layout in prop::sample::select(vec![Layout::FatTree, Layout::Rail, Layout::Planes, Layout::RailOnly]),
        oversubscription in prop::sample::select(vec![1.0, 1.5, 2.0, 3.0]),
        tiers in prop::option::of(1_u8..4),
    ) {
        let wanted = Request {
            gpus: nodes * 8,
            nics_per_node: nics,
            radix,
            layout,
            oversubscription,
            tiers,
            ..request(nodes, layout)
        };
        let Ok(design) = design(&wanted) else { return Ok(()) };
        prop_assert!(design.ports_used <= design.ports, "{design:?}");
        prop_assert!(design.leaf_down + design.leaf_up <= radix, "{design:?}");
        prop_assert!(design.nodes <= design.nodes_most, "{design:?}");
        for step in &design.growth {
            let switches = step.leaves + step.spines + step.cores;
            let used = step.nodes * nics + step.switch_cables * 2;
            prop_assert!(used <= switches * radix, "{step:?} of {design:?}");
        }
        let Some(tree) = design.tree().filter(|tree| tree.hosts * tree.adapters <= 400) else { return Ok(()) };
        let fabric = match tree.build() {
            Ok(fabric) => fabric,
            Err(error) => return Err(TestCaseError::fail(format!("{error}: {design:?}"))),
        };
        let shape = Shape::of(&fabric);
        prop_assert_eq!(shape.links as u64, design.host_cables + design.switch_cables, "{:?}", design);
        prop_assert_eq!(shape.switches as u64, design.switches, "{:?}", design);
        for node in &fabric.nodes {
            prop_assert!(node.ports.len() as u64 <= radix, "{} has {} ports: {:?}", node.name, node.ports.len(), design);
        }
        let found = crate::check::check(&fabric, crate::check::CheckOptions::default());
        prop_assert!(found.is_empty(), "{:?}: {:?}", found, design);
    }
}

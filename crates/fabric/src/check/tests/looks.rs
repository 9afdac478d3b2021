//! Two looks at counters: what is new, what is full, what is idle, and how fast it comes.

use super::*;
use crate::counter::Form;

fn told(fabric: &mut Fabric, name: &str, number: u32, form: Form, values: &[(&str, u64)]) {
    let node = node(fabric, name);
    let port =
        fabric.nodes[node].ports.iter_mut().find(|port| port.number == number).expect("the port");
    let mut counters = Counters::of(form);
    for (name, value) in values {
        counters.set(counter::place(name).expect("a counter"), *value);
    }
    port.counters.get_or_insert_default().merge(&counters);
}

fn since(now: &Fabric, before: &Fabric, interval_s: Option<f64>) -> Vec<Finding> {
    check(now, CheckOptions { before: Some(before), interval_s, ..CheckOptions::default() })
}

#[test]
fn a_port_that_is_new_in_the_list_of_errors_is_found() {
    let (mut before, mut now) = (healthy(), healthy());
    before.errors_listed = true;
    now.errors_listed = true;
    told(&mut now, "leaf-1-1", 3, Form::Listed, &[("SymbolErrorCounter", 5000)]);
    let found = since(&now, &before, None);
    assert_eq!((found[0].id, found[0].verdict), ("ctr-01", Verdict::Fail), "{found:#?}");
    assert_eq!(found.len(), 1);
    // The port was listed, for another counter.
    told(&mut before, "leaf-1-1", 3, Form::Listed, &[("LinkDownedCounter", 1)]);
    assert_eq!(since(&now, &before, None)[0].id, "ctr-01");
}

#[test]
fn ports_that_one_look_lacks_are_listed() {
    let (mut before, mut now) = (healthy(), healthy());
    count(&mut before, "leaf-1-1", 3, &[("SymbolErrorCounter", 0)]);
    count(&mut now, "leaf-1-1", 3, &[("SymbolErrorCounter", 0)]);
    count(&mut now, "leaf-1-2", 4, &[("SymbolErrorCounter", 5000)]);
    let found = since(&now, &before, None);
    assert_eq!((found[0].id, found[0].verdict), ("ctr-dumps", Verdict::Unknown), "{found:#?}");
    assert!(found[0].evidence[0].contains("leaf-1-2 port 4"), "{found:#?}");
}

#[test]
fn counters_that_are_full_do_not_disappear() {
    let (mut before, mut now) = (healthy(), healthy());
    for fabric in [&mut before, &mut now] {
        told(fabric, "leaf-1-1", 3, Form::Narrow, &[("LinkDownedCounter", 255)]);
        told(fabric, "leaf-1-2", 9, Form::Narrow, &[("PortXmitData", 0xffff_ffff)]);
    }
    let found = since(&now, &before, Some(3600.0));
    let ids: Vec<&str> = found.iter().map(|f| f.id).collect();
    assert_eq!(ids, ["ctr-02", "ctr-dumps"], "{found:#?}");
    assert_eq!((found[0].verdict, found[1].verdict), (Verdict::Warn, Verdict::Unknown));
    assert!(found[0].title.contains("cannot be seen"), "{found:#?}");
    assert!(found[1].evidence[0].contains("leaf-1-2 port 9"), "{found:#?}");
    // Grown to its end: at least that much.
    let mut less = healthy();
    told(&mut less, "leaf-1-1", 3, Form::Narrow, &[("LinkDownedCounter", 100)]);
    let found = since(&now, &less, Some(3600.0));
    let downed = found.iter().find(|f| f.id == "ctr-02").unwrap();
    assert_eq!(downed.verdict, Verdict::Fail);
    assert!(downed.evidence[0].contains("at least 155"), "{found:#?}");
}

#[test]
fn faults_are_judged_by_the_hour() {
    let (mut before, mut now) = (healthy(), healthy());
    count(&mut before, "leaf-1-1", 3, &[("SymbolErrorCounter", 0)]);
    count(&mut now, "leaf-1-1", 3, &[("SymbolErrorCounter", 8)]);
    assert_eq!(since(&now, &before, Some(60.0))[0].verdict, Verdict::Fail, "480 an hour");
    assert_eq!(since(&now, &before, Some(86_400.0))[0].verdict, Verdict::Warn);
    count(&mut now, "leaf-1-1", 3, &[("SymbolErrorCounter", 50)]);
    assert_eq!(since(&now, &before, Some(86_400.0))[0].verdict, Verdict::Warn, "2 an hour");
    assert_eq!(since(&now, &before, None)[0].verdict, Verdict::Fail);
}

#[test]
fn an_idle_adapter_is_named() {
    let (mut before, mut now) = (healthy(), healthy());
    for (fabric, words) in [(&mut before, 0_u64), (&mut now, 1_000_000_000)] {
        for adapter in 0..4 {
            let words = if adapter == 2 { 0 } else { words };
            count(fabric, &format!("node3 mlx5_{adapter}"), 1, &[("PortXmitData", words)]);
        }
    }
    let found = since(&now, &before, Some(10.0));
    assert_eq!(found.iter().map(|f| f.id).collect::<Vec<_>>(), ["ctr-12"], "{found:#?}");
    assert!(found[0].evidence[0].contains("node3 mlx5_2"), "{found:#?}");
}

#[test]
fn an_idle_adapter_for_storage_is_none_of_the_others_equals() {
    let (mut before, mut now) = (healthy(), healthy());
    for (fabric, words) in [(&mut before, 0_u64), (&mut now, 1_000_000_000)] {
        for adapter in 0..4 {
            let name = format!("node3 mlx5_{adapter}");
            let words = if adapter == 2 { 0 } else { words };
            count(fabric, &name, 1, &[("PortXmitData", words)]);
            let place = node(fabric, &name);
            fabric.nodes[place].device =
                Some(if adapter == 2 { "MT4123" } else { "MT4129" }.to_owned());
        }
    }
    assert_eq!(since(&now, &before, Some(10.0)), []);
}

#[test]
fn imbalance_in_totals_is_a_warning() {
    let mut fabric = healthy();
    for port in 9..=16 {
        let words = if port == 9 { 9_000_000_000 } else { 1_000_000_000 };
        count(&mut fabric, "leaf-1-1", port, &[("PortXmitData", words)]);
    }
    let found = found(&fabric);
    assert_eq!((found[0].id, found[0].verdict), ("fab-06", Verdict::Warn), "{found:#?}");
}

#[test]
fn a_link_of_unknown_rate_is_no_imbalance() {
    let mut fabric = healthy();
    for port in 9..=16 {
        count(&mut fabric, "leaf-1-1", port, &[("PortXmitData", 1_000_000_000)]);
    }
    let leaf = node(&fabric, "leaf-1-1");
    let link = fabric.nodes[leaf].ports[8].link.unwrap();
    fabric.links[link].rate = None;
    assert_eq!(found(&fabric), []);
}

#[test]
fn waiting_is_a_part_of_the_time_that_passed() {
    let (mut before, mut now) = (healthy(), healthy());
    count(&mut before, "leaf-1-1", 3, &[("PortXmitWait", 0), ("PortXmitData", 0)]);
    // Almost nothing was sent; 2e9 words at 400 Gb/s are 0.16 s.
    let values = [("PortXmitWait", 2_000_000_000), ("PortXmitData", 1000)];
    count(&mut now, "leaf-1-1", 3, &values);
    assert_eq!(since(&now, &before, Some(3600.0)), []);
    let found = since(&now, &before, Some(1.0));
    assert!(found[0].evidence[0].ends_with("16 % of the time"), "{found:#?}");
    assert_eq!(found[0].verdict, Verdict::Warn);
}

#[test]
fn a_port_that_sends_many_pauses_is_named() {
    let mut fabric = healthy();
    for host in 1..=8 {
        let frames = if host == 5 { 70_000 } else { 10 };
        count(&mut fabric, &format!("node{host} mlx5_0"), 1, &[("tx_prio3_pause", frames)]);
    }
    only(&fabric, "ctr-08", &["node5 mlx5_0", "70000 pause frames sent"]);
}

//! Ceilings and verdicts, from links that are made up.

use super::super::table::Cell;
use super::link::port;
use super::*;

fn devices(hosts: &[&str]) -> Vec<Device> {
    let device = |(rank, host): (u32, &&str)| Device {
        rank,
        pid: 1,
        host: (*host).to_owned(),
        device: 0,
        address: NO_ADDRESS.to_owned(),
        name: String::new(),
    };
    (0..).zip(hosts).map(device).collect()
}

fn own(ports: &[(&str, Option<f64>)]) -> Own {
    let port = |(name, gbs): &(&str, Option<f64>)| Port { name: (*name).to_owned(), gbs: *gbs };
    Own { near: 1, loops: false, ports: ports.iter().map(port).collect(), gpu: None }
}

const PLAIN: Wanted = Wanted { percent: None, rate_gbs: None };

fn row(bytes: usize, busbw: f64) -> Row {
    let cell = Cell { time_us: 1.0, alg_bw: 1.0, bus_bw: busbw, wrong: None, iterations: None };
    Row {
        bytes,
        count: bytes / 4,
        data_type: "float",
        op: "sum",
        root: -1,
        out_of_place: cell.clone(),
        in_place: Cell { bus_bw: busbw / 2.0, ..cell },
        actual_iterations: 1,
        timestamp: None,
    }
}

fn ceiling(gbs: f64, percent: f64) -> Ceiling {
    Ceiling { gbs, percent, link: "eth0 of a (100 Gb/s)".to_owned() }
}

#[test]
fn the_slowest_port_limits_and_is_named() {
    let devices = devices(&["a", "a", "b", "b"]);
    let fast = [("eth0", Some(12.5)), ("eth1", Some(12.5))];
    let all = [own(&fast), own(&fast), own(&[("eth0", Some(1.25))]), own(&[("eth0", Some(1.25))])];
    let cuts = cuts(PLAIN, &devices, &all).unwrap();
    assert_eq!((cuts[0].gbs, cuts[1].gbs), (25.0, 1.25), "ports of a machine add up, once each");
    let found = over_links(&cuts, Collective::AllReduce, 4, 0, PLAIN).unwrap();
    assert_eq!((found.gbs, found.percent), (1.25 * 1.5, LINK_PERCENT));
    assert_eq!(found.link, "eth0 of b (10 Gb/s)");
}

#[test]
fn what_is_not_known_is_an_error_with_the_fix() {
    let hosts = devices(&["a", "b"]);
    let known = own(&[("eth0", Some(1.0))]);
    for unknown in [own(&[("veth0", None)]), own(&[]), Own { loops: true, ..known.clone() }] {
        let error = cuts(PLAIN, &hosts, &[known.clone(), unknown]).unwrap_err().to_string();
        assert!(error.contains("--expect-rate") && error.contains("machine"), "{error}");
    }
    let one = devices(&["a", "a"]);
    let loops = Own { loops: true, ..own(&[]) };
    let error = cuts(PLAIN, &one, &[loops.clone(), loops.clone()]).unwrap_err().to_string();
    assert!(error.contains("of each rank: --expect-rate"), "{error}");
    let gpu = Own { gpu: Some(Port { name: "GPU0".to_owned(), gbs: None }), ..own(&[]) };
    let error = cuts(PLAIN, &one, &[gpu.clone(), gpu]).unwrap_err().to_string();
    assert!(error.contains("GPU0") && error.contains("--expect-rate"), "{error}");

    let said = Wanted { percent: Some(90.0), rate_gbs: Some(2.0) };
    let links = cuts(said, &one, &[loops.clone(), loops]).unwrap();
    let found = over_links(&links, Collective::AllGather, 2, 0, said).unwrap();
    assert_eq!((found.gbs, found.percent), (2.0, 90.0));
    let links = cuts(said, &hosts, &[own(&[]), own(&[])]).unwrap();
    assert!(links[1].name.starts_with("the link of b (2.00 GB/s"), "{links:?}");
}

#[test]
fn gpus_of_their_own_are_limited_by_their_links() {
    let mut hosts = devices(&["a", "a"]);
    hosts[0].address = "0000:01:00".to_owned();
    hosts[1].address = "0000:02:00".to_owned();
    let gpu = |gbs| Own {
        gpu: Some(Port { name: "18 NVLinks of GPU0".to_owned(), gbs: Some(gbs) }),
        ..own(&[])
    };
    let links = cuts(PLAIN, &hosts, &[gpu(370.0), gpu(185.0)]).unwrap();
    let found = over_links(&links, Collective::AllReduce, 2, 0, PLAIN).unwrap();
    assert_eq!(found.gbs, 185.0);
    hosts[1].address = "0000:01:00".to_owned();
    let error = cuts(PLAIN, &hosts, &[gpu(370.0), gpu(185.0)]).unwrap_err().to_string();
    assert!(error.contains("several ranks"), "{error}");
}

#[test]
fn rows_are_judged_by_the_better_placement_from_a_millisecond_on() {
    let large = 64 << 20;
    let expectation =
        Expectation { ceilings: vec![ceiling(10.0, 80.0), ceiling(10.0, 80.0)], factor: 1.0 };
    let verdict = expectation.judge(&[row(1024, 0.01), row(large, 8.1)]);
    assert!(verdict.okay);
    assert_eq!((verdict.rows[0].okay, verdict.rows[1].okay), (None, Some(true)));
    let lines = verdict.lines();
    assert!(lines[3].contains("small") && lines[4].contains("81.0  OK"), "{lines:?}");
    assert!(verdict.complaint().is_none());

    let verdict = expectation.judge(&[row(1024, 0.01), row(large, 7.9)]);
    assert!(!verdict.okay);
    let complaint = verdict.complaint().unwrap();
    assert!(complaint.contains("7.90 GB/s at 64 MiB is 79.0 % of what eth0 of a"), "{complaint}");
    // Cycles repeat the ceilings.
    let rows = [row(1024, 0.01), row(large, 9.0), row(1024, 0.01), row(large, 1.0)];
    assert!(!expectation.judge(&rows).okay);
    assert!(!expectation.judge(&[row(1024, 9.9)]).okay, "nothing judged is no pass");
    assert!(!expectation.judge(&[]).okay);
}

#[test]
fn small_sweeps_are_told_to_grow() {
    let expectation = Expectation { ceilings: vec![ceiling(12.5, 80.0)], factor: 1.0 };
    let subject = |bytes| Subject {
        data_type: ringway_plan::types::DataType::F32,
        op: None,
        root: None,
        bytes,
    };
    let error = expectation.check_sizes(&[subject(1 << 20)]).unwrap_err().to_string();
    assert!(error.contains("raise -e to 16 MiB"), "{error}");
    expectation.check_sizes(&[subject(16 << 20)]).unwrap();
}

#[test]
fn rates_and_percentages_are_read() {
    for (text, gbs) in
        [("100G", 12.5), ("10Gb/s", 1.25), ("NDR", 50.0), ("12.5GB/s", 12.5), ("800M", 0.1)]
    {
        assert!((rate(text).unwrap() - gbs).abs() < 1e-9, "{text}");
    }
    for text in ["", "fast", "-1", "0", "NaNGB/s", "1e99GB/s", "10 furlongs"] {
        assert!(rate(text).unwrap_err().contains("100G"), "{text}");
    }
    assert_eq!(percent("90"), Ok(90.0));
    assert_eq!(percent("90%"), Ok(90.0));
    for text in ["0", "101", "x", "", "NaN"] {
        assert!(percent(text).is_err(), "{text}");
    }
}

#[test]
fn memory_inside_hosts_limits_jobs_of_many() {
    let alone = memory_factor(Collective::AllReduce, 4, 4).unwrap();
    let many = memory_factor(Collective::AllReduce, 8, 4).unwrap();
    assert!((many / alone - (7.0 / 8.0) / (3.0 / 4.0)).abs() < 1e-12);
    assert_eq!(memory_factor(Collective::Broadcast, 8, 4), None);
    assert_eq!(memory_factor(Collective::Gather, 4, 4), None);
}

/// A machine as its files describe it: the port's own rate, PCI's where that is less, nothing where nobody knows.
#[test]
fn ports_have_the_rate_of_the_slower_of_wire_and_slot() {
    let folder = std::env::temp_dir().join(format!("ringway-expect-{}", std::process::id()));
    let nic = |name: &str, mbit: &str, slot: Option<(&str, &str)>| {
        let net = folder.join("sys/class/net").join(name);
        std::fs::create_dir_all(&net).unwrap();
        std::fs::write(net.join("mtu"), "1500").unwrap();
        std::fs::write(net.join("speed"), mbit).unwrap();
        if let Some((bus, width)) = slot {
            let device = folder.join("sys/bus/pci/devices").join(bus);
            std::fs::create_dir_all(&device).unwrap();
            for (file, text) in [
                ("class", "0x020000"),
                ("vendor", "0x15b3"),
                ("device", "0x1017"),
                ("max_link_speed", "8.0 GT/s PCIe"),
                ("max_link_width", width),
            ] {
                std::fs::write(device.join(file), text).unwrap();
            }
            let below = format!("../../../bus/pci/devices/{bus}");
            std::os::unix::fs::symlink(below, net.join("device")).unwrap();
        }
    };
    nic("eth0", "100000", Some(("0000:03:00.0", "16")));
    nic("eth1", "-1", Some(("0000:04:00.0", "16")));
    nic("veth0", "10000", None);
    nic("eth2", "100000", Some(("0000:01:00.0", "2")));
    nic("eth3", "10000", Some(("0000:02:00.0", "16")));
    let machine = ringway::topo::Machine::from_files(&ringway::topo::Root::at(&folder));
    let limit = Port { name: "PCI (8.0 GT/s x16) below eth0".to_owned(), gbs: Some(12.0) };
    assert_eq!(port(&machine, "eth0"), limit);
    assert_eq!(port(&machine, "veth0").gbs, None, "what a veth says is made up");
    let slot = Port { name: "PCI (8.0 GT/s x2) below eth2".to_owned(), gbs: Some(1.5) };
    assert_eq!(port(&machine, "eth2"), slot);
    assert_eq!(port(&machine, "eth3"), Port { name: "eth3".to_owned(), gbs: Some(1.25) });
    assert_eq!(port(&machine, "eth1").gbs, None, "a link that does not tell");
    assert_eq!(port(&machine, "mlx5_0:1").gbs, None, "not there");
    std::fs::remove_dir_all(&folder).unwrap();
}

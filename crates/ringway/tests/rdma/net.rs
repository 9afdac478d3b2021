//! `ringway net`: devices, addresses, and measurements between the two ends of a rail.

use std::thread;

use ringway::config::{AddressFamily, RdmaSettings};
use ringway::net::{self, BufferPlace, Kind, Operation, Row, Server, Side, Test, Transport};

use crate::machine::{is_here, rail};

pub(crate) fn test(kind: Kind, operation: Operation) -> Test {
    Test {
        kind,
        operation,
        transport: Transport::Rdma,
        sizes: vec![1, 8, 4096, 70_000],
        iterations: Some(40),
        seconds: 1.0,
        lanes: 1,
        depth: 16,
        bidirectional: false,
    }
}

/// Patient: an emulated machine may stand still for a good while, and what it sends again though nothing was lost
/// confuses rxe. A cable that goes is told at once all the same.
pub(crate) fn settings() -> RdmaSettings {
    RdmaSettings { timeout: 19, retries: 6, ..RdmaSettings::default() }
}

/// Runs both sides; the client's rows or error, and what the server said.
fn run(
    rails: usize,
    test: &Test,
    settings: &RdmaSettings,
    row: &mut dyn FnMut(&Row),
) -> (Result<(), String>, Result<(), String>) {
    let side = |end: &str| {
        let device = Some(format!("rxe{end}{rails}").parse().unwrap());
        Side { device, buffer: BufferPlace::Host }
    };
    run_sides(&(side("a"), side("b")), test, settings, &mut |_| {}, row)
}

/// The same with any two sides, the client's first; `tell` hears what the client is told.
pub(crate) fn run_sides(
    (client, side): &(Side, Side),
    test: &Test,
    settings: &RdmaSettings,
    tell: &mut dyn FnMut(&str),
    row: &mut dyn FnMut(&Row),
) -> (Result<(), String>, Result<(), String>) {
    let server = Server::bind(0).unwrap();
    let port = server.port().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| net::serve(&server, settings, side, &mut |_| {}));
        let outcome = net::measure(("127.0.0.1", port), test, settings, client, tell, row);
        let served = serving.join().unwrap();
        (outcome.map_err(|error| error.to_string()), served.map_err(|error| error.to_string()))
    })
}

fn rows(test: &Test, settings: &RdmaSettings) -> Vec<Row> {
    let mut rows = Vec::new();
    let outcome = run(0, test, settings, &mut |row| rows.push(row.clone()));
    assert_eq!(outcome, (Ok(()), Ok(())), "{test:?}");
    rows
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn devices_and_the_addresses_that_are_used() {
    if !is_here() {
        return;
    }
    let used = |settings: &RdmaSettings| {
        let devices = net::devices(settings).unwrap();
        let device = devices.iter().find(|device| device.name == "rxea0").unwrap().clone();
        assert_eq!(device.error, None);
        let port = device.ports[0].clone();
        assert_eq!((port.state.as_str(), port.mtu), ("ACTIVE", Some(4096)));
        let used: Vec<String> =
            port.gids.iter().filter(|gid| gid.used).map(|gid| gid.gid.clone()).collect();
        (used, port.used, port.reason)
    };
    let (gids, is_used, reason) = used(&settings());
    assert_eq!(gids, ["0000:0000:0000:0000:0000:ffff:0a4d:0001"]);
    assert!(is_used && reason.contains("RoCE v2, routable IPv4"), "{reason}");
    let six = RdmaSettings { family: Some(AddressFamily::V6), ..settings() };
    assert_eq!(used(&six).0, ["fd77:0000:0000:0000:0000:0000:0000:0001"]);
    let index = RdmaSettings { gid_index: Some(9), ..settings() };
    let (gids, is_used, reason) = used(&index);
    assert!(gids.is_empty() && !is_used && reason.contains("GID index 9 is empty"), "{reason}");
    let none = RdmaSettings { roce_version: 1, ..settings() };
    assert!(used(&none).2.contains("NCCL_IB_ROCE_VERSION_NUM"));
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn every_operation_is_measured_with_right_bytes() {
    if !is_here() {
        return;
    }
    for operation in [Operation::Write, Operation::Read, Operation::Send] {
        for row in rows(&test(Kind::Latency, operation), &settings()) {
            let Row::Latency(found) = row else { panic!("{row:?}") };
            assert_eq!(found.iterations, 40);
            assert!(0.0 < found.min_us && found.min_us <= found.typical_us, "{found:?}");
            assert!(found.typical_us <= found.p99_us && found.p99_us <= found.max_us, "{found:?}");
        }
        for (lanes, bidirectional) in [(1, false), (3, true)] {
            let test = Test { lanes, bidirectional, ..test(Kind::Bandwidth, operation) };
            let rows = rows(&test, &settings());
            assert_eq!(rows.len(), 4);
            for row in rows {
                let Row::Bandwidth(found) = row else { panic!("{row:?}") };
                assert_eq!(found.messages, 40 * u64::from(lanes));
                assert!(found.bytes_per_second > 0.0 && found.seconds > 0.0, "{found:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn ipv6_alone_and_a_chosen_time_work() {
    if !is_here() {
        return;
    }
    let six = RdmaSettings { family: Some(AddressFamily::V6), ..settings() };
    let timed = Test {
        iterations: None,
        seconds: 0.05,
        sizes: vec![64, 4096],
        ..test(Kind::Bandwidth, Operation::Write)
    };
    assert_eq!(rows(&timed, &six).len(), 2);
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn what_cannot_be_is_refused_in_words() {
    if !is_here() {
        return;
    }
    let lat = test(Kind::Latency, Operation::Write);
    let empty = RdmaSettings { gid_index: Some(9), ..settings() };
    let (client, _server) = run(0, &lat, &empty, &mut |_| {});
    assert!(client.unwrap_err().contains("rxea0:1: GID index 9 is empty"));
    let wide = Test { lanes: 2, ..lat };
    let server = Server::bind(0).unwrap();
    let target = ("127.0.0.1", server.port().unwrap());
    let nobody = Side { device: Some("rxez9".parse().unwrap()), ..Side::default() };
    let any = Side::default();
    let error = net::measure(target, &wide, &settings(), &any, &mut |_| {}, &mut |_| {});
    assert!(error.unwrap_err().to_string().contains("one queue pair"));
    let narrow = Test { lanes: 1, ..wide };
    let error = net::measure(target, &narrow, &settings(), &nobody, &mut |_| {}, &mut |_| {});
    let error = error.unwrap_err().to_string();
    assert!(error.contains("there is no port rxez9") && error.contains("rxea0"), "{error}");
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_cable_that_goes_ends_the_measurement_with_its_device() {
    if !is_here() {
        return;
    }
    let long = Test {
        sizes: vec![4096; 64],
        iterations: None,
        seconds: 0.2,
        ..test(Kind::Bandwidth, Operation::Write)
    };
    let mut seen = 0;
    let (client, _server) = run(1, &long, &settings(), &mut |_| {
        seen += 1;
        if seen == 1 {
            rail("cut 1");
        }
    });
    rail("restore 1");
    let error = client.unwrap_err();
    assert!(seen >= 1 && error.contains("rxea1:1") && error.contains("IBV_WC_"), "{error}");
    let again = Test { sizes: vec![4096], ..test(Kind::Bandwidth, Operation::Write) };
    assert_eq!(run(1, &again, &settings(), &mut |_| {}).0, Ok(()));
}

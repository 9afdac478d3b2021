//! The collectives over RDMA: the sweep of the other transports, bits, several queue pairs, both rails.

use ringway::element::{as_bytes, as_bytes_mut};
use ringway::{Call, Collective, Communicator, DataType, Level, ReduceOp};

use crate::case::{Case, Shape};
use crate::harness::{Random, seed, settings, watchdog, world_each};
use crate::machine::{is_here, sent};
use crate::sweep::{Hosts, Rails, run, sweep};

const BOTH: Rails = Rails { both: true, family: "AF_INET", queue_pairs: "1" };

fn swept(name: &'static str, rails: Rails) {
    if is_here() {
        let _watchdog = watchdog(name);
        sweep(Hosts::Rdma(rails), &[2, 4], 1);
    }
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn one_rail() {
    swept("collectives::one_rail", Rails { both: false, ..BOTH });
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn one_rail_ipv6() {
    swept("collectives::one_rail_ipv6", Rails { both: false, family: "AF_INET6", ..BOTH });
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn two_rails() {
    swept("collectives::two_rails", BOTH);
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn two_rails_ipv6_three_queue_pairs() {
    swept(
        "collectives::two_rails_ipv6_three_queue_pairs",
        Rails { family: "AF_INET6", queue_pairs: "3", ..BOTH },
    );
}

/// Takes the IPv4 addresses off both rails until it is dropped.
struct WithoutIpv4(Vec<(String, String)>);

impl WithoutIpv4 {
    fn begin() -> Self {
        let mut taken = Vec::new();
        for interface in ["ra0", "rb0", "ra1", "rb1"] {
            let shown = ip(&["-4", "-o", "address", "show", "dev", interface]);
            let address = shown.split_whitespace().skip_while(|word| *word != "inet").nth(1);
            let address = address.unwrap().to_owned();
            ip(&["address", "del", &address, "dev", interface]);
            taken.push((address, interface.to_owned()));
        }
        Self(taken)
    }
}

impl Drop for WithoutIpv4 {
    fn drop(&mut self) {
        for (address, interface) in &self.0 {
            ip(&["address", "add", address, "dev", interface]);
        }
    }
}

fn ip(words: &[&str]) -> String {
    let done = std::process::Command::new("ip").args(words).output().unwrap();
    assert!(done.status.success(), "ip {words:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A fabric that has no IPv4 at all, and settings that say nothing of addresses.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_fabric_of_ipv6_alone() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("collectives::a_fabric_of_ipv6_alone");
    let _without = WithoutIpv4::begin();
    let before = sent("ra0") + sent("ra1");
    world_each(
        2,
        |rank| {
            let mut config = Hosts::Rdma(BOTH).config(rank, settings(&[]));
            config.rdma.family = None;
            config
        },
        |comm| {
            let comm = comm.unwrap();
            assert_eq!(comm.carrier(1 - comm.rank()), "NET/IB");
            all_reduce(&comm, 300_000);
        },
    );
    assert!(sent("ra0") + sent("ra1") - before > 600_000, "the rails were not used");
}

/// Parts by all queue pairs at once, and packets that may overtake each other.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn split_messages_told_by_a_write_behind_them() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("collectives::split_messages_told_by_a_write_behind_them");
    let config = settings(&[
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
        ("NCCL_IB_ADAPTIVE_ROUTING", "1"),
        ("NCCL_IB_AR_THRESHOLD", "1000"),
    ]);
    let mut random = Random::new(seed(), 77);
    let shapes = [
        Shape::new(Collective::AllReduce, DataType::F32, 100_001),
        Shape::new(Collective::AllToAll, DataType::I64, 9_001),
        Shape::new(Collective::Broadcast, DataType::U8, 150_000),
        Shape::new(Collective::AllReduce, DataType::F32, 3),
    ];
    let cases: Vec<Case> =
        shapes.into_iter().map(|shape| Case::new(shape, 2, &mut random)).collect();
    run(&cases, 2, Hosts::Rdma(Rails { queue_pairs: "2", ..BOTH }), &config);
}

/// At level `shape` the bits are those of the left fold, and of TCP.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn bits_are_those_of_other_transports() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("collectives::bits_are_those_of_other_transports");
    const COUNT: usize = 10_007;
    for ranks in [2, 4] {
        let value = |rank: u32, at: usize| {
            let mut random = Random::new(seed(), u64::from(rank) << 32 | at as u64);
            let mantissa = (random.next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
            mantissa * f32::from(random.pick(&[1_u16, 100, 10_000, 60_000]))
        };
        let input = |rank| (0..COUNT).map(|at| value(rank, at)).collect::<Vec<f32>>();
        let reduced = |hosts: Hosts| {
            world_each(
                ranks,
                |rank| hosts.config(rank, settings(&[])),
                |comm| {
                    let comm = comm.unwrap();
                    let input = input(comm.rank());
                    let mut output = vec![0_f32; COUNT];
                    let call = Call::new(Collective::AllReduce, DataType::F32, COUNT as u64)
                        .op(ReduceOp::Sum)
                        .level(Level::Shape);
                    comm.call(&call, as_bytes(&input), as_bytes_mut(&mut output)).unwrap();
                    output.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
                },
            )
        };
        let folded: Vec<u32> = (0..COUNT)
            .map(|at| (1..ranks).fold(value(0, at), |sum, rank| sum + value(rank, at)).to_bits())
            .collect();
        for hosts in [Hosts::Each, Hosts::Rdma(BOTH)] {
            for output in reduced(hosts) {
                assert!(output == folded, "{hosts:?}, {ranks} ranks");
            }
        }
    }
}

/// Ranks of which one has a port more: it is left out, or goes to the other's first.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_port_without_a_counterpart() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("collectives::a_port_without_a_counterpart");
    for cross in ["0", "1"] {
        world_each(
            2,
            |rank| {
                let mut config =
                    Hosts::Rdma(BOTH).config(rank, settings(&[("NCCL_CROSS_NIC", cross)]));
                let ports = if rank == 0 { "rxea" } else { "=rxeb0" };
                config.set("NCCL_IB_HCA", ports, ringway::config::Source::Default).unwrap();
                config
            },
            |comm| {
                let comm = comm.unwrap();
                all_reduce(&comm, 50_000);
                let detail = comm.links()[0].detail.clone();
                let many = cross == "1";
                assert_eq!(detail.split(' ').count(), if many { 2 } else { 1 }, "{detail}");
            },
        );
    }
}

/// The sum of ranks, checked.
pub(crate) fn all_reduce(comm: &Communicator, count: usize) {
    let rank = comm.rank() as i32;
    let input: Vec<i32> = (0..count).map(|at| at as i32 ^ rank).collect();
    let mut output = vec![0; count];
    comm.all_reduce(&input, &mut output, ReduceOp::Sum).unwrap();
    check(&output, comm.size());
}

pub(crate) fn check(output: &[i32], ranks: u32) {
    let right =
        |at: usize| (0..ranks as i32).fold(0_i32, |sum, rank| sum.wrapping_add(at as i32 ^ rank));
    let wrong = output.iter().enumerate().filter(|(at, value)| **value != right(*at)).count();
    assert_eq!(wrong, 0, "wrong values");
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn both_rails_carry_the_same() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("collectives::both_rails_carry_the_same");
    let now = || ["ra0", "ra1", "rb0", "rb1"].map(sent);
    let before = now();
    world_each(
        2,
        |rank| Hosts::Rdma(BOTH).config(rank, settings(&[])),
        |comm| {
            let comm = comm.unwrap();
            all_reduce(&comm, 1 << 20);
            assert_eq!(comm.carrier(1 - comm.rank()), "NET/IB");
        },
    );
    let after = now();
    let bytes: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    for pair in bytes.chunks(2) {
        let (least, most) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
        assert!(least > 1 << 20 && least * 10 >= most * 9, "{bytes:?}");
    }
    // The real standard error: a figure that people want to see.
    use std::io::Write as _;
    let _closed = writeln!(std::io::stderr(), "bytes on ra0 ra1 rb0 rb1: {bytes:?}");
}

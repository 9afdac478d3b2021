//! What cannot be at the start is said with its fix, and is an error where RDMA is required.

use std::process::Command;

use ringway::config::{Config, Source};
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

use crate::collectives::all_reduce;
use crate::harness::{settings, watchdog, world_each};
use crate::machine::{Log, is_here};
use crate::sweep::{Hosts, Rails};

const BOTH: Rails = Rails { both: true, family: "AF_INET", queue_pairs: "1" };

/// Two ranks, of which rank 1 has these settings too; the reason why they do not use RDMA, as an error where it is
/// required and in the log where it is not.
fn refused(more: &[(&str, &str)], words: &[&str], before: impl Fn(u32) + Sync) {
    let with = |rank: u32, required: bool| {
        let mut config = Hosts::Rdma(BOTH).config(rank, settings(&[]));
        let mut set = |name: &str, value: &str| config.set(name, value, Source::Default).unwrap();
        set("RINGWAY_TRANSPORT", "auto");
        set("NCCL_SHM_DISABLE", "1");
        if required {
            set("RINGWAY_REQUIRE", "rdma");
        }
        if rank == 1 {
            more.iter().for_each(|(name, value)| set(name, value));
        }
        config
    };
    let log = Log::begin();
    world_each(
        2,
        |rank| {
            before(rank);
            with(rank, false)
        },
        |comm| {
            let comm = comm.unwrap();
            assert_eq!(comm.carrier(1 - comm.rank()), "NET/Socket");
            all_reduce(&comm, 1000);
        },
    );
    log.expect(words);
    log.expect(&["Using network Socket"]);
    let errors = world_each(
        2,
        |rank| {
            before(rank);
            with(rank, true)
        },
        |comm| comm.map(|_| ()).unwrap_err().to_string(),
    );
    for error in errors {
        let all = words.iter().all(|word| error.contains(word));
        assert!(
            all && error.contains("RINGWAY_REQUIRE=rdma is not met"),
            "no {words:?} in {error}"
        );
    }
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_wrong_address_and_no_device_are_refused() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("start::a_wrong_address_and_no_device_are_refused");
    let gid = ["rank 1", "rxeb0:1", "GID index 77 is empty", "unset NCCL_IB_GID_INDEX"];
    refused(&[("NCCL_IB_GID_INDEX", "77")], &gid, |_| {});
    let none = ["rank 1 uses no RDMA port", "NCCL_IB_HCA==mlx5_9 leaves it out"];
    refused(&[("NCCL_IB_HCA", "=mlx5_9")], &none, |_| {});
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn memory_that_may_not_be_locked_is_refused() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("start::memory_that_may_not_be_locked_is_refused");
    let before = rustix::process::getrlimit(Resource::Memlock);
    let little = Rlimit { current: Some(64 << 10), maximum: before.maximum };
    rustix::process::setrlimit(Resource::Memlock, little).unwrap();
    // The thread of rank 1 may lock no more than that: it has lost the right to.
    let lose = |rank: u32| {
        if rank == 1 {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::IPC_LOCK);
            rustix::thread::set_capabilities(None, sets).unwrap();
        }
    };
    refused(&[], &["rank 1", "ibv_reg_mr on rxeb0", "ulimit -l"], lose);
    rustix::process::setrlimit(Resource::Memlock, before).unwrap();
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn devices_that_are_not_in_the_container_are_refused() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("start::devices_that_are_not_in_the_container_are_refused");
    let run = |words: &str| {
        let status = Command::new("sh").args(["-c", words]).status().unwrap();
        assert!(status.success(), "{words}");
    };
    run("mkdir -p /tmp/none && mount --bind /tmp/none /dev/infiniband");
    let outcome = std::panic::catch_unwind(|| {
        refused(&[], &["rank 1", "rxea0, rxea1, rxeb0, rxeb1", "--device=/dev/infiniband"], |_| {});
    });
    run("umount /dev/infiniband");
    outcome.unwrap();
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn settings_that_contradict_each_other_are_refused() {
    if !is_here() {
        return;
    }
    for (name, value) in [("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")] {
        let config: Config = settings(&[("RINGWAY_REQUIRE", "rdma"), (name, value)]);
        let error = config.check().unwrap_err().to_string();
        assert!(
            error.contains(&format!("RINGWAY_REQUIRE=rdma contradicts {name}={value}")),
            "{error}"
        );
    }
}

/// Packets of the smaller size are used, and it is said.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn unlike_packets_are_told() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("start::unlike_packets_are_told");
    let resize = |bytes: &str| {
        let status =
            Command::new("ip").args(["link", "set", "rb0", "mtu", bytes]).status().unwrap();
        assert!(status.success());
    };
    let log = Log::begin();
    resize("1500");
    let outcome = std::panic::catch_unwind(|| {
        world_each(
            2,
            |rank| Hosts::Rdma(Rails { both: false, ..BOTH }).config(rank, settings(&[])),
            |comm| all_reduce(&comm.unwrap(), 30_000),
        );
    });
    resize("4200");
    outcome.unwrap();
    log.expect(&["rxea0:1 has MTU 4096", "MTU 1024", "both use 1024", "same MTU"]);
    log.expect(&["NET/IB : Using [0]rxea0:1/RoCE"]);
}

/// Where a communicator may not take what RDMA needs, it says so and goes over sockets.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn memory_that_a_communicator_may_not_take_is_refused() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("start::memory_that_a_communicator_may_not_take_is_refused");
    let log = Log::begin();
    for (most, carrier, bytes) in [("12M", "NET/Socket", 12 << 20), ("20M", "NET/IB", 20 << 20)] {
        world_each(
            2,
            |rank| {
                let mut config =
                    Hosts::Rdma(BOTH).config(rank, settings(&[("RINGWAY_MAX_BYTES", most)]));
                config.set("RINGWAY_TRANSPORT", "auto", Source::Default).unwrap();
                config.set("NCCL_SHM_DISABLE", "1", Source::Default).unwrap();
                config
            },
            |comm| {
                let comm = comm.unwrap();
                all_reduce(&comm, 1000);
                assert_eq!(comm.carrier(1 - comm.rank()), carrier);
                assert!(comm.memory_bytes() <= bytes, "{}", comm.memory_bytes());
            },
        );
    }
    log.expect(&["uses no RDMA port: RINGWAY_MAX_BYTES=12582912 is less than"]);
}

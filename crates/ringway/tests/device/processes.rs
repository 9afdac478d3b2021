#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! Ranks in processes of their own, which map each other's memory by the driver's handles.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringway::device::Buffer;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork};

use crate::collectives::{Side, compare};
use crate::world::config;

const RANKS: u32 = 3;

/// Set in the processes of the ranks.
const RANK: &str = "RINGWAY_RANK";

fn start(rank: u32, root: &str) -> Child {
    let config = config().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::ranks_map_what_other_processes_have"]);
    command.args(["--nocapture", "--test-threads=1"]);
    command.env(RANK, rank.to_string()).env("RINGWAY_SIZE", RANKS.to_string());
    command.env("RINGWAY_ROOT", root).stdin(Stdio::null());
    if let (Some(driver), Some(nvrtc)) = (config.cuda_library, config.nvrtc_library) {
        command.env("RINGWAY_CUDA_LIBRARY", driver).env("RINGWAY_NVRTC_LIBRARY", nvrtc);
    }
    command.spawn().unwrap()
}

#[test]
fn ranks_map_what_other_processes_have() {
    if std::env::var_os(RANK).is_some() {
        return rank();
    }
    if config().is_none() {
        return;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let root = format!("127.0.0.1:{port}");
    let mut children: Vec<Child> = (0..RANKS).map(|rank| start(rank, &root)).collect();
    let end = Instant::now() + Duration::from_secs(100);
    for (rank, child) in (0..).zip(&mut children) {
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if Instant::now() > end => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if status.is_none() {
            let _gone = child.kill();
        }
        assert!(status.is_some_and(|s| s.success()), "rank {rank} of {RANKS}: {status:?}");
    }
}

fn rank() {
    let comm = Communicator::from_env().unwrap();
    let side = Side::of(&comm);
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
        // By cards, and by buffers.
        for count in [100, 40_000] {
            compare(&comm, &side, &Call::new(collective, DataType::F32, count), 4);
        }
    }
    // Memory that comes and goes: entries are never mistaken for each other.
    let (rank, size) = (comm.rank(), comm.size());
    for round in 0..20_u8 {
        let mut out = vec![Buffer::new(&side.gpu, 50_000).unwrap()];
        if round % 3 == 0 {
            out.insert(0, Buffer::new(&side.gpu, 70_000).unwrap());
        }
        let (out, into) = (out.remove(0), Buffer::new(&side.gpu, 50_000).unwrap());
        out.write(0, &vec![round * 3 + u8::try_from(rank).unwrap(); 50_000]).unwrap();
        let next =
            DeviceWork::Send { peer: (rank + 1) % size, address: out.address(), bytes: 50_000 };
        let from = (rank + size - 1) % size;
        let before = DeviceWork::Receive { peer: from, address: into.address(), bytes: 50_000 };
        // SAFETY: the buffers live until the stream was waited for.
        unsafe { comm.enqueue(&[side.stream.stream()], &[next, before]) }.unwrap();
        side.stream.synchronize().unwrap();
        let mut found = vec![0; 50_000];
        into.read(0, &mut found).unwrap();
        let expected = round * 3 + u8::try_from(from).unwrap();
        assert!(found.iter().all(|byte| *byte == expected), "round {round}, rank {rank}");
    }
    comm.barrier().unwrap();
}

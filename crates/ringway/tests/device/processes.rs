#![allow(unsafe_code, reason = "kernels use addresses of device memory")]
//! Ranks in processes of their own, which map each other's memory by the driver's handles.

use std::ffi::c_void;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringway::config::{Config, Environment};
use ringway::device::{Buffer, DeviceStream};
use ringway::{Call, Collective, Communicator, DataType, DeviceQueue, DeviceWork, Place, ReduceOp};

use crate::collectives::{Side, compare};
use crate::driver::call;
use crate::graph::OwnStream;
use crate::world::{config, is_real};

/// Set in the processes of the ranks.
pub(crate) const RANK: &str = "RINGWAY_RANK";

/// This process once more, as a rank that runs one test.
pub(crate) fn command(test: &str, rank: u32, size: u32, root: &str) -> Command {
    let config = config().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(RANK, rank.to_string()).env("RINGWAY_SIZE", size.to_string());
    command.env("RINGWAY_ROOT", root).stdin(Stdio::null());
    if let (Some(driver), Some(nvrtc)) = (config.cuda_library, config.nvrtc_library) {
        command.env("RINGWAY_CUDA_LIBRARY", driver).env("RINGWAY_NVRTC_LIBRARY", nvrtc);
    }
    command
}

/// Runs a test in a process of its own, on a fake GPU with such settings.
pub(crate) fn run_apart(test: &str, settings: &[(&str, String)]) {
    let name = format!("ringway-{}-{}", test.replace("::", "-"), std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).unwrap();
    let told = folder.0.join("told");
    let mut command = command(test, 0, 1, &root());
    command.envs(settings.iter().map(|(name, value)| (name, value)));
    command.stdout(std::fs::File::create(&told).unwrap());
    wait(vec![command.spawn().unwrap()]);
    let told = std::fs::read_to_string(told).unwrap();
    assert!(told.contains("1 passed"), "{test}: {told}");
}

/// Whether this process is such a one, or the GPU a real one; else runs the test in such a process.
pub(crate) fn is_apart(test: &str, settings: &[(&str, String)]) -> bool {
    let is_apart = is_real() || std::env::var_os(RANK).is_some();
    if !is_apart {
        run_apart(test, settings);
    }
    is_apart
}

/// Writes the log where the environment says.
pub(crate) fn log() {
    assert!(ringway::log::install(&Config::load(&Environment::from_process())));
}

pub(crate) fn root() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("127.0.0.1:{port}")
}

/// Waits for ranks, which all must end well; none is left when this returns.
pub(crate) fn wait(mut children: Vec<Child>) {
    let end = Instant::now() + Duration::from_secs(100);
    let mut statuses = Vec::new();
    for child in &mut children {
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if Instant::now() > end => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if status.is_none() {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
        statuses.push(status);
    }
    let well = statuses.iter().all(|status| status.is_some_and(|status| status.success()));
    assert!(well, "ranks ended with {statuses:?}");
}

/// Runs a test's ranks as processes of their own.
fn ranks(test: &str, size: u32) {
    let root = root();
    wait((0..size).map(|rank| command(test, rank, size, &root).spawn().unwrap()).collect());
}

#[test]
fn ranks_map_what_other_processes_have() {
    if std::env::var_os(RANK).is_some() {
        return rank();
    }
    if config().is_some() {
        ranks("processes::ranks_map_what_other_processes_have", 3);
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

/// A stream that is held up for a while comes to its end after the communicator was dropped, which waits for it: also where
/// a graph was replayed, so that more launches ended than were made. Until then what kernels ask for is mapped.
#[test]
fn a_communicator_ends_behind_what_was_enqueued() {
    if std::env::var_os(RANK).is_some() {
        return ends_late();
    }
    if config().is_some() {
        ranks("processes::a_communicator_ends_behind_what_was_enqueued", 2);
    }
}

extern "C" fn sleep(_nothing: *mut c_void) {
    std::thread::sleep(Duration::from_millis(300));
}

fn ends_late() {
    const COUNT: usize = 40_000;
    let comm = Communicator::from_env().unwrap();
    let side = Side::of(&comm);
    let own = OwnStream::new();
    let memory = [(); 4].map(|()| Buffer::new(&side.gpu, 4 * COUNT).unwrap());
    let sum = |from: &Buffer, to: &Buffer| {
        let (input, output) = (from.address().cast_const(), to.address());
        let call = Call::new(Collective::AllReduce, DataType::U32, COUNT as u64);
        let work = DeviceWork::Collective { call, input, output, scalar: None };
        // SAFETY: the buffers live until the stream was waited for.
        unsafe { comm.enqueue(&[own.stream()], &[work]) }.unwrap();
    };
    let ones = 1_u32.to_le_bytes().repeat(COUNT);
    memory[0].write(0, &ones).unwrap();
    memory[2].write(0, &ones).unwrap();
    // There and back: every replay takes what the one before has written.
    let graph = own.capture(|| {
        sum(&memory[0], &memory[1]);
        sum(&memory[1], &memory[0]);
    });
    graph.replay(3);
    let held = call!(own.cuda, cuLaunchHostFunc(own.handle => *mut c_void, sleep => extern "C" fn(*mut c_void),
        null_mut() => *mut c_void));
    assert_eq!(held, 0);
    // On memory that no peer has mapped yet.
    sum(&memory[2], &memory[3]);
    drop(comm);
    own.wait();
    let mut found = vec![0; 4 * COUNT];
    for (buffer, value) in [(0, 64_u32), (1, 32), (3, 2)] {
        memory[buffer].read(0, &mut found).unwrap();
        assert!(found == value.to_le_bytes().repeat(COUNT), "buffer {buffer}");
    }
}

/// A driver that loads a kernel only when those at work on the GPU have ended: a rank that loads one waits for the other's
/// launch, which must not wait for the kernel that is loaded.
#[test]
fn a_kernel_that_is_loaded_late_holds_up_no_other_gpu() {
    const TEST: &str = "processes::a_kernel_that_is_loaded_late_holds_up_no_other_gpu";
    if std::env::var_os(RANK).is_some() {
        return loads_while_another_launches();
    }
    // Real ones are as they are.
    if config().is_none_or(|config| config.cuda_library.is_none()) {
        return;
    }
    let mut child = command(TEST, 0, 1, &root());
    child.env("FAKE_CUDA_LOADS", "wait").env("FAKE_CUDA_DEVICES", "2");
    wait(vec![child.spawn().unwrap()]);
}

fn loads_while_another_launches() {
    let mut config = config().unwrap();
    config.timeout = crate::world::patience(30);
    let has_launched = AtomicBool::new(false);
    ringway::testing::world_with(2, &config, |comm| {
        comm.attach_gpu(Some(i32::try_from(comm.rank()).unwrap())).unwrap();
        assert!(comm.is_gpu_direct(), "{:?}", comm.gpu_path());
        let queue = DeviceQueue::new(comm, &[4000, 4000]).unwrap();
        let [from, to] = [0, 1].map(|area| Place { area, offset: 0 });
        comm.barrier().unwrap();
        // The other has launched the first call, and is at the kernel of the second by then.
        if comm.rank() == 1 {
            while !has_launched.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        for op in [ReduceOp::Sum, ReduceOp::Max] {
            let call = Call::new(Collective::AllReduce, DataType::I64, 100).op(op);
            queue.collective(&call, from, to).unwrap();
            has_launched.store(true, Ordering::Release);
        }
        queue.finish().unwrap();
        comm.barrier().unwrap();
    });
}

/// A rank whose kernel begins when another, which has a GPU of its own in this process, has given the communicator up and left it: what
/// it tells that rank must not go where other memory may be by then.
#[test]
fn a_rank_that_left_is_told_nothing_in_the_memory_of_others() {
    const TEST: &str = "processes::a_rank_that_left_is_told_nothing_in_the_memory_of_others";
    if is_real() || config().is_none() {
        return;
    }
    // Kernels of the second begin when the first has left.
    let settings =
        [("FAKE_CUDA_DEVICES", "2".to_owned()), ("FAKE_CUDA_SLOW", "1:500000".to_owned())];
    if is_apart(TEST, &settings) {
        let mut config = config().unwrap();
        config.timeout = crate::world::patience(30);
        ringway::testing::world_with(2, &config, leaves_early);
    }
}

fn leaves_early(comm: &Communicator) {
    let rank = i32::try_from(comm.rank()).unwrap();
    // By cards, and by buffers.
    for count in [100_usize, 600_000] {
        let given_up = comm.dup().unwrap();
        given_up.attach_gpu(Some(rank)).unwrap();
        let gpu = given_up.gpu().expect("a GPU");
        let stream = DeviceStream::new(&gpu).unwrap();
        let memory = Buffer::new(&gpu, 4 * count).unwrap();
        let enqueue = || {
            let call = Call::new(Collective::AllReduce, DataType::F32, count as u64);
            let (input, output) = (memory.address().cast_const(), memory.address());
            let work = DeviceWork::Collective { call, input, output, scalar: None };
            // SAFETY: the memory has the size of the call, and lives until the stream was waited for.
            unsafe { given_up.enqueue(&[stream.stream()], &[work]) }.unwrap();
        };
        // The kernel is loaded.
        enqueue();
        stream.synchronize().unwrap();
        comm.barrier().unwrap();
        if rank == 1 {
            enqueue();
        }
        comm.barrier().unwrap();
        if rank == 0 {
            given_up.abort("enough");
            drop(given_up);
        } else {
            stream.synchronize().unwrap();
            drop(given_up);
        }
        comm.barrier().unwrap();
    }
}

/// A rank that calls when the other, on the same GPU, has left: what it tells that one goes nowhere, and it is told that it waits in vain.
#[test]
fn a_call_after_a_rank_has_left_is_an_error() {
    const TEST: &str = "processes::a_call_after_a_rank_has_left_is_an_error";
    let Some(mut config) = config() else { return };
    if is_apart(TEST, &[]) {
        config.timeout = crate::world::patience(60);
        ringway::testing::world_with(2, &config, calls_late);
    }
}

fn calls_late(comm: &Communicator) {
    for count in [100_usize, 600_000] {
        let left = comm.dup().unwrap();
        left.attach_gpu(Some(0)).unwrap();
        let gpu = left.gpu().expect("a GPU");
        let stream = DeviceStream::new(&gpu).unwrap();
        let memory = Buffer::new(&gpu, 4 * count).unwrap();
        let enqueue = || {
            let call = Call::new(Collective::AllReduce, DataType::F32, count as u64);
            let (input, output) = (memory.address().cast_const(), memory.address());
            let work = DeviceWork::Collective { call, input, output, scalar: None };
            // SAFETY: the memory has the size of the call, and lives until the stream was waited for.
            unsafe { left.enqueue(&[stream.stream()], &[work]) }.unwrap();
        };
        enqueue();
        crate::world::finish(comm, &stream);
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            drop(left);
            comm.barrier().unwrap();
        } else {
            comm.barrier().unwrap();
            enqueue();
            let began = Instant::now();
            stream.synchronize().unwrap();
            let error = left.check().unwrap_err().to_string();
            assert!(error.contains("rank 0") && error.contains("left the communicator"), "{error}");
            assert!(began.elapsed() < crate::world::patience(30), "{:?}", began.elapsed());
        }
        // Memory of rank 0 is there until rank 1 is done.
        comm.barrier().unwrap();
    }
}

/// Kernels made ahead are of the same source, for any operation and any number of operands.
#[test]
fn a_kernel_for_any_operation_has_the_bits_of_the_host() {
    const TEST: &str = "processes::a_kernel_for_any_operation_has_the_bits_of_the_host";
    let Some(config) = config() else { return };
    if std::env::var_os(RANK).is_none() {
        // Real compilers are told by nobody.
        if config.nvrtc_library.is_some() {
            let mut child = command(TEST, 0, 1, &root());
            wait(vec![child.env("FAKE_NVRTC_ANY", "1").spawn().unwrap()]);
        }
        return;
    }
    ringway::testing::world_with(3, &config, |comm| {
        let side = Side::of(comm);
        for data_type in [DataType::F32, DataType::I8] {
            for op in ReduceOp::ALL {
                // By cards, and by buffers.
                for count in [77, 100_000] {
                    let mut call = Call::new(Collective::AllReduce, data_type, count).op(op);
                    call.scalar = 0.5 + f64::from(comm.rank());
                    compare(comm, &side, &call, 0);
                }
            }
        }
    });
}

/// A folder that goes when it is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _absent = std::fs::remove_dir_all(&self.0);
    }
}

/// A compiler that nobody named: in a toolkit of the environment, and in a package beside a library that is loaded.
#[test]
fn the_compiler_is_found_where_toolkits_and_packages_have_it() {
    const TEST: &str = "processes::the_compiler_is_found_where_toolkits_and_packages_have_it";
    if std::env::var_os(RANK).is_some() {
        log();
        let comm = Communicator::from_env().unwrap();
        let call = Call::new(Collective::AllReduce, DataType::F32, 100);
        return compare(&comm, &Side::of(&comm), &call, 0);
    }
    // A real one is wherever it is.
    let Some(nvrtc) = config().and_then(|config| config.nvrtc_library) else { return };
    let name = format!("ringway-compiler-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    let (home, site) = (folder.0.join("cuda"), folder.0.join("site/nvidia"));
    let places = [
        home.join("lib64/libnvrtc.so.12"),
        site.join("cuda_nvrtc/lib/libnvrtc.so.12"),
        site.join("cublas/lib/libcublas.so.12"),
    ];
    for place in &places {
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        // Any library will do for the one that is loaded already.
        std::fs::copy(&nvrtc, place).unwrap();
    }
    for (variable, value, found) in
        [("CUDA_HOME", &home, &places[0]), ("LD_PRELOAD", &places[2], &places[1])]
    {
        let log = folder.0.join(format!("{variable}.log"));
        let mut command = command(TEST, 0, 1, &root());
        command.env_remove("RINGWAY_NVRTC_LIBRARY").env_remove("CUDA_HOME");
        command.env("RINGWAY_CACHE_DIR", folder.0.join(variable)).env(variable, value);
        command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_FILE", &log);
        wait(vec![command.spawn().unwrap()]);
        let log = std::fs::read_to_string(log).unwrap();
        let line = format!("of {}", found.display());
        assert!(log.contains("kernels are compiled by NVRTC") && log.contains(&line), "{log}");
    }
}

#![allow(
    unsafe_code,
    reason = "calls the driver by symbols; kernels use addresses of device memory"
)]
//! Memory whose addresses and allocations are apart (cuMem), as allocators that grow use it: ranks of other processes map
//! it by descriptors.

use std::ffi::c_void;
use std::process::Command;
use std::ptr::null_mut;

use libloading::Library;
use ringway::{Call, Collective, Communicator, DataType, DeviceWork};

use crate::collectives::{Side, compare};
use crate::driver::call;
use crate::processes::{Folder, RANK, command, log, root, wait};
use crate::world::config;

const MIB: usize = 1 << 20;
const RANKS: u32 = 3;

/// `CUmemAllocationProp` and `CUmemAccessDesc` of device 0.
#[repr(C)]
struct Properties([i32; 4], usize, [u8; 8]);
#[repr(C)]
struct Access([i32; 3]);

/// Memory that grows in addresses it has reserved, as PyTorch's expandable segments do.
struct Grown {
    cuda: Library,
    base: u64,
    reserved: usize,
    /// Bytes of each allocation, and whether it can be passed as a descriptor.
    parts: Vec<usize>,
    handles: i32,
}

impl Grown {
    fn new(parts: &[usize], handles: i32) -> Self {
        let driver = config().unwrap().cuda_library.unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: the library is open already.
        let cuda = unsafe { Library::new(driver) }.unwrap();
        let mut context: *mut c_void = null_mut();
        assert_eq!(call!(cuda, cuDevicePrimaryCtxRetain(&raw mut context => *mut _, 0 => i32)), 0);
        assert_eq!(call!(cuda, cuCtxSetCurrent(context => *mut c_void)), 0);
        let (mut base, reserved) = (0_u64, 64 * MIB);
        let made = call!(cuda, cuMemAddressReserve(&raw mut base => *mut u64, reserved => usize, 0 => usize,
            0 => u64, 0 => u64));
        assert_eq!(made, 0);
        let mut grown = Self { cuda, base, reserved, parts: Vec::new(), handles };
        for bytes in parts {
            let at = grown.start(grown.parts.len());
            grown.map(at, *bytes);
            grown.parts.push(*bytes);
        }
        grown
    }

    /// Where a part begins.
    fn start(&self, part: usize) -> u64 {
        self.base + self.parts[..part].iter().sum::<usize>() as u64
    }

    fn map(&self, at: u64, bytes: usize) {
        let (properties, access) =
            (Properties([1, self.handles, 1, 0], 0, [0; 8]), Access([1, 0, 3]));
        let mut handle = 0_u64;
        let cuda = &self.cuda;
        let made = call!(cuda, cuMemCreate(&raw mut handle => *mut u64, bytes => usize,
            &raw const properties => *const Properties, 0 => u64));
        assert_eq!(made, 0);
        let mapped =
            call!(cuda, cuMemMap(at => u64, bytes => usize, 0 => usize, handle => u64, 0 => u64));
        assert_eq!(mapped, 0);
        let allowed = call!(cuda, cuMemSetAccess(at => u64, bytes => usize, &raw const access => *const Access,
            1 => usize));
        assert_eq!(allowed, 0);
        assert_eq!(call!(cuda, cuMemRelease(handle => u64)), 0);
    }

    fn unmap(&self, part: usize) {
        let (at, bytes) = (self.start(part), self.parts[part]);
        assert_eq!(call!(self.cuda, cuMemUnmap(at => u64, bytes => usize)), 0);
    }

    /// Other memory at the addresses of a part.
    fn replace(&self, part: usize) {
        self.unmap(part);
        self.map(self.start(part), self.parts[part]);
    }

    fn address(&self, offset: usize) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(usize::try_from(self.base).unwrap() + offset)
    }

    fn write(&self, offset: usize, values: &[u32]) {
        let (at, from) = (self.base + offset as u64, values.as_ptr().cast::<c_void>());
        let bytes = size_of_val(values);
        let done =
            call!(self.cuda, cuMemcpyHtoD_v2(at => u64, from => *const c_void, bytes => usize));
        assert_eq!(done, 0);
    }

    fn read(&self, offset: usize, count: usize) -> Vec<u32> {
        let mut values = vec![0_u32; count];
        let (at, to) = (self.base + offset as u64, values.as_mut_ptr().cast::<c_void>());
        let done =
            call!(self.cuda, cuMemcpyDtoH_v2(to => *mut c_void, at => u64, 4 * count => usize));
        assert_eq!(done, 0);
        values
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        for part in 0..self.parts.len() {
            self.unmap(part);
        }
        let (base, reserved) = (self.base, self.reserved);
        assert_eq!(call!(self.cuda, cuMemAddressFree(base => u64, reserved => usize)), 0);
    }
}

/// What a rank has at a place, in a round.
fn value(round: u32, rank: u32, at: usize) -> u32 {
    u32::try_from(at).unwrap().wrapping_mul(2_654_435_761) ^ (round * 1000 + rank)
}

fn enqueue(comm: &Communicator, side: &Side, work: &[DeviceWork]) {
    // SAFETY: the buffers live until the stream was waited for.
    unsafe { comm.enqueue(&[side.stream.stream()], work) }.unwrap();
    side.stream.synchronize().unwrap();
    comm.check().unwrap();
}

/// An all_reduce of `count` values, `offset` bytes into both.
fn sum(
    comm: &Communicator,
    side: &Side,
    (from, to): (&Grown, &Grown),
    (offset, count): (usize, usize),
    round: u32,
) {
    let own: Vec<u32> = (0..count).map(|at| value(round, comm.rank(), at)).collect();
    from.write(offset, &own);
    to.write(offset, &vec![0; count]);
    let call = Call::new(Collective::AllReduce, DataType::U32, count as u64);
    let (input, output) = (from.address(offset), to.address(offset));
    enqueue(comm, side, &[DeviceWork::Collective { call, input, output, scalar: None }]);
    for (at, found) in to.read(offset, count).into_iter().enumerate() {
        let expected =
            (0..comm.size()).fold(0, |sum: u32, r| sum.wrapping_add(value(round, r, at)));
        assert_eq!(found, expected, "value {at}, round {round}, rank {}", comm.rank());
    }
}

/// Messages to all others in one group, from and into memory that several allocations hold.
fn messages(comm: &Communicator, side: &Side, (from, to): (&Grown, &Grown), round: u32) {
    const COUNT: usize = 600_000;
    let (rank, size) = (comm.rank(), comm.size());
    let place = |peer: u32| peer as usize * 4 * COUNT + 64;
    let mut work = Vec::new();
    for peer in (0..size).filter(|peer| *peer != rank) {
        let out: Vec<u32> = (0..COUNT).map(|at| value(round, rank * 8 + peer, at)).collect();
        from.write(place(peer), &out);
        work.push(DeviceWork::Send { peer, address: from.address(place(peer)), bytes: 4 * COUNT });
        work.push(DeviceWork::Receive { peer, address: to.address(place(peer)), bytes: 4 * COUNT });
    }
    enqueue(comm, side, &work);
    for peer in (0..size).filter(|peer| *peer != rank) {
        let expected: Vec<u32> = (0..COUNT).map(|at| value(round, peer * 8 + rank, at)).collect();
        assert!(to.read(place(peer), COUNT) == expected, "from {peer} to {rank}, round {round}");
    }
}

/// Allocations that are mapped in this process; of the fake driver's.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("fake virtual memory")).count()
}

fn maps_what_others_have() {
    let comm = Communicator::from_env().unwrap();
    let side = Side::of(&comm);
    let path = comm.gpu_path().unwrap();
    assert!(path.contains("cuMem memory by descriptors"), "{path}");
    let parts = [2 * MIB, 4 * MIB, 2 * MIB];
    let both = (Grown::new(&parts, 1), Grown::new(&parts, 1));
    let pair = (&both.0, &both.1);
    // Inside of one allocation, at its end, across all, and again.
    for (round, place) in
        (0..).zip([(0, 1000), (2 * MIB - 400_000, 100_000), (MIB + 4, 1_500_000), (MIB, 1_000_000)])
    {
        sum(&comm, &side, pair, place, round);
    }
    messages(&comm, &side, pair, 10);
    // Other memory at the same addresses is never taken for what was there.
    for round in 20..26 {
        both.0.replace(round as usize % 3);
        both.1.replace((round as usize / 2) % 3);
        sum(&comm, &side, pair, (MIB + 4, 1_500_000), round);
    }
    messages(&comm, &side, pair, 30);
    comm.barrier().unwrap();
    let before = mapped();
    drop(comm);
    if std::env::var_os("RINGWAY_TEST_GPU").is_none() {
        // What was there for others stays, what was mapped of others goes.
        assert!(before > 6 && mapped() == 6, "{before} before, {} after", mapped());
    }
}

/// Runs a test's ranks, with more in their environment.
fn run(test: &str, more: impl Fn(&mut Command)) {
    let root = root();
    let start = |rank| {
        let mut command = command(test, rank, RANKS, &root);
        more(&mut command);
        command.spawn().unwrap()
    };
    wait((0..RANKS).map(start).collect());
}

fn folder(name: &str) -> Folder {
    let folder =
        Folder(std::env::temp_dir().join(format!("ringway-{name}-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    folder
}

#[test]
fn memory_of_several_allocations_is_mapped() {
    if std::env::var_os(RANK).is_some() {
        return maps_what_others_have();
    }
    if config().is_some() {
        run("shared::memory_of_several_allocations_is_mapped", |_| ());
    }
}

#[test]
fn ranks_meet_in_a_directory_where_one_is_given() {
    if std::env::var_os(RANK).is_some() {
        return maps_what_others_have();
    }
    if config().is_some() {
        let folder = folder("doors");
        run("shared::ranks_meet_in_a_directory_where_one_is_given", |command| {
            command.env("RINGWAY_SHM_DIR", &folder.0);
        });
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "doors are left");
    }
}

#[test]
fn memory_that_has_no_descriptor_is_copied_and_it_is_said() {
    if std::env::var_os(RANK).is_some() {
        log();
        let comm = Communicator::from_env().unwrap();
        let side = Side::of(&comm);
        let both = (Grown::new(&[2 * MIB, 2 * MIB], 0), Grown::new(&[4 * MIB], 0));
        for round in 0..2 {
            sum(&comm, &side, (&both.0, &both.1), (MIB, 500_000), round);
        }
        if comm.rank() == 0 {
            // One message at a time can be copied. Of a group with more nothing is done: the others make the next call.
            let call = Call::new(Collective::AllReduce, DataType::U32, 10);
            let (input, output) = (both.0.address(0), both.1.address(0));
            let send = |peer| DeviceWork::Send { peer, address: input, bytes: MIB };
            let work =
                [DeviceWork::Collective { call, input, output, scalar: None }, send(1), send(2)];
            // SAFETY: the memory is long enough, and lives longer than the communicator.
            let error = unsafe { comm.enqueue(&[side.stream.stream()], &work) }.unwrap_err();
            assert!(error.to_string().contains("cannot map"), "{error}");
        }
        sum(&comm, &side, (&both.0, &both.1), (MIB, 500_000), 2);
        return comm.barrier().unwrap();
    }
    if config().is_some() {
        let folder = folder("copied");
        run("shared::memory_that_has_no_descriptor_is_copied_and_it_is_said", |command| {
            command.env("NCCL_DEBUG", "WARN").env("NCCL_DEBUG_FILE", folder.0.join("%p.log"));
        });
        let logs: Vec<_> =
            std::fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(logs.len(), RANKS as usize);
        for log in logs {
            let text = std::fs::read_to_string(log).unwrap();
            assert_eq!(text.matches("is copied around every call").count(), 1, "{text}");
            assert!(text.contains("making a descriptor of device memory"), "{text}");
        }
    }
}

/// A driver that has no such memory, and one whose numbers do not tell memory from what was there before: what
/// cannot be told apart is copied.
#[test]
fn a_driver_that_will_not_do_is_not_relied_upon() {
    const WHY: &str = "FAKE_CUDA_WHY";
    if let Ok(why) = std::env::var(WHY) {
        let comm = Communicator::from_env().unwrap();
        let side = Side::of(&comm);
        let path = comm.gpu_path().unwrap();
        assert!(path.contains(&format!("cuMem memory copied, because {why}")), "{path}");
        compare(&comm, &side, &Call::new(Collective::AllReduce, DataType::F32, 40_000), 4);
        if !why.contains("no cuMem") {
            let both = (Grown::new(&[2 * MIB], 1), Grown::new(&[2 * MIB], 1));
            for round in 0..3 {
                sum(&comm, &side, (&both.0, &both.1), (MIB, 100_000), round);
                both.0.replace(0);
                both.1.replace(0);
            }
        }
        return comm.barrier().unwrap();
    }
    // A real one has it.
    if config().is_some_and(|config| config.cuda_library.is_some()) {
        for (vmm, why) in
            [("0", "GPU 0 has no cuMem memory"), ("2", "the driver does not tell new")]
        {
            run("shared::a_driver_that_will_not_do_is_not_relied_upon", |command| {
                command.env("FAKE_CUDA_VMM", vmm).env(WHY, why);
            });
        }
    }
}

#![allow(unsafe_code, reason = "calls a library it has compiled, by symbols")]
//! The fake CUDA driver is one: kernels run, streams keep their order, mistakes have the driver's codes.

use std::ffi::{CString, c_void};
use std::process::{Command, ExitStatus, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libloading::Library;

use crate::fakes;

const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_IMAGE: i32 = 200;
const INVALID_CONTEXT: i32 = 201;
const INVALID_HANDLE: i32 = 400;
const NOT_FOUND: i32 = 500;
const NOT_READY: i32 = 600;
const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
const NOT_PERMITTED: i32 = 800;
const NOT_SUPPORTED: i32 = 801;

/// The two libraries, opened once.
struct Libraries {
    cuda: Library,
    nvrtc: Library,
}

fn libraries() -> Option<&'static Libraries> {
    static OPENED: OnceLock<Option<Libraries>> = OnceLock::new();
    OPENED
        .get_or_init(|| {
            let fakes::Cuda { driver, nvrtc } = fakes::cuda()?;
            // SAFETY: compiled from the sources in this tree; neither has constructors that matter.
            let [cuda, nvrtc] = [driver, nvrtc].map(|file| unsafe { Library::new(file) }.unwrap());
            Some(Libraries { cuda, nvrtc })
        })
        .as_ref()
}

/// Calls a function of a library by its name and the types of its arguments.
macro_rules! call {
    ($library:expr, $name:ident ( $($argument:expr => $type:ty),* )) => {{
        let name = stringify!($name);
        // SAFETY: the type is that of the function in the fake's source.
        let found = unsafe { $library.get::<unsafe extern "C" fn($($type),*) -> i32>(name.as_bytes()) };
        let function = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        // SAFETY: the addresses are those of live locals or of memory the driver gave.
        unsafe { function($($argument),*) }
    }};
}

pub(crate) use call;

/// The driver, with the device's context current on this thread.
struct Driver {
    cuda: &'static Library,
    /// One test at a time: each asks about addresses and handles that are nobody's.
    _turn: MutexGuard<'static, ()>,
}

fn driver() -> Option<Driver> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = &libraries()?.cuda;
    assert_eq!(call!(cuda, cuInit(0 => u32)), 0);
    let mut context: *mut c_void = null_mut();
    assert_eq!(call!(cuda, cuDevicePrimaryCtxRetain(&raw mut context => *mut _, 0 => i32)), 0);
    assert_eq!(call!(cuda, cuCtxSetCurrent(context => *mut c_void)), 0);
    Some(Driver { cuda, _turn: turn })
}

fn allocate(cuda: &Library, bytes: usize) -> u64 {
    let mut address = 0_u64;
    assert_eq!(call!(cuda, cuMemAlloc_v2(&raw mut address => *mut u64, bytes => usize)), 0);
    address
}

fn stream(cuda: &Library, flags: u32) -> *mut c_void {
    let mut stream: *mut c_void = null_mut();
    assert_eq!(call!(cuda, cuStreamCreate(&raw mut stream => *mut _, flags => u32)), 0);
    stream
}

fn event(cuda: &Library) -> *mut c_void {
    let mut event: *mut c_void = null_mut();
    assert_eq!(call!(cuda, cuEventCreate(&raw mut event => *mut _, 0 => u32)), 0);
    event
}

fn upload<T: Copy>(cuda: &Library, address: u64, values: &[T]) {
    let source = values.as_ptr().cast::<c_void>();
    let bytes = size_of_val(values);
    let done =
        call!(cuda, cuMemcpyHtoD_v2(address => u64, source => *const c_void, bytes => usize));
    assert_eq!(done, 0);
}

fn download(cuda: &Library, address: u64, count: usize) -> Vec<u32> {
    let mut values = vec![0_u32; count];
    let target = values.as_mut_ptr().cast::<c_void>();
    let done =
        call!(cuda, cuMemcpyDtoH_v2(target => *mut c_void, address => u64, 4 * count => usize));
    assert_eq!(done, 0);
    values
}

/// Compiles a source; its image, or the code and the log.
fn compile(nvrtc: &Library, source: &str, options: &[&str]) -> Result<Vec<u8>, (i32, String)> {
    let mut program: *mut c_void = null_mut();
    let (source, name) = (CString::new(source).unwrap(), c"a kernel.cu");
    let none: *const *const i8 = null();
    let made = call!(nvrtc, nvrtcCreateProgram(&raw mut program => *mut _,
        source.as_ptr() => *const _, name.as_ptr() => *const _, 0 => i32, none => *const _, none => *const _));
    assert_eq!(made, 0);
    let options: Vec<CString> =
        options.iter().map(|option| CString::new(*option).unwrap()).collect();
    let words: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let count = i32::try_from(words.len()).unwrap();
    let code = call!(nvrtc, nvrtcCompileProgram(program => *mut c_void, count => i32,
        words.as_ptr() => *const _));
    let mut bytes = 0_usize;
    let outcome = if code == 0 {
        assert_eq!(
            call!(nvrtc, nvrtcGetCUBINSize(program => *mut c_void, &raw mut bytes => *mut _)),
            0
        );
        let mut image = vec![0_u8; bytes];
        let got =
            call!(nvrtc, nvrtcGetCUBIN(program => *mut c_void, image.as_mut_ptr() => *mut u8));
        assert_eq!(got, 0);
        Ok(image)
    } else {
        let asked =
            call!(nvrtc, nvrtcGetProgramLogSize(program => *mut c_void, &raw mut bytes => *mut _));
        assert_eq!(asked, 0);
        let mut log = vec![0_u8; bytes];
        let got =
            call!(nvrtc, nvrtcGetProgramLog(program => *mut c_void, log.as_mut_ptr() => *mut u8));
        assert_eq!(got, 0);
        Err((code, String::from_utf8(log).unwrap()))
    };
    assert_eq!(call!(nvrtc, nvrtcDestroyProgram(&raw mut program => *mut _)), 0);
    outcome
}

fn function(cuda: &Library, image: &[u8], name: &str) -> Result<*mut c_void, i32> {
    let mut module: *mut c_void = null_mut();
    let loaded = call!(cuda, cuModuleLoadDataEx(&raw mut module => *mut _,
        image.as_ptr() => *const u8, 0 => u32, null_mut() => *mut i32, null_mut() => *mut *mut c_void));
    if loaded != 0 {
        return Err(loaded);
    }
    let mut function: *mut c_void = null_mut();
    let name = CString::new(name).unwrap();
    let found = call!(cuda, cuModuleGetFunction(&raw mut function => *mut _,
        module => *mut c_void, name.as_ptr() => *const _));
    if found == 0 { Ok(function) } else { Err(found) }
}

fn launch<T>(cuda: &Library, run: *mut c_void, blocks: u32, stream: *mut c_void, with: &T) -> i32 {
    let mut parameters = [(&raw const *with).cast::<c_void>().cast_mut()];
    call!(cuda, cuLaunchKernel(run => *mut c_void, blocks => u32, 1 => u32, 1 => u32, 1 => u32,
        1 => u32, 1 => u32, 0 => u32, stream => *mut c_void, parameters.as_mut_ptr() => *mut _,
        null_mut() => *mut *mut c_void))
}

/// Launches a kernel that is told one thing more than its shape; `CUlaunchConfig` and `CUlaunchAttribute`.
fn launch_with<T>(
    cuda: &Library,
    run: *mut c_void,
    blocks: u32,
    stream: *mut c_void,
    (id, value): (u32, u32),
    with: &T,
) -> i32 {
    #[repr(C)]
    struct Config([u32; 7], *mut c_void, *const [u32; 18], u32);
    let mut attribute = [0; 18];
    (attribute[0], attribute[2]) = (id, value);
    let config = Config([blocks, 1, 1, 1, 1, 1, 0], stream, &raw const attribute, 1);
    let mut parameters = [(&raw const *with).cast::<c_void>().cast_mut()];
    call!(cuda, cuLaunchKernelEx(&raw const config => *const Config, run => *mut c_void,
        parameters.as_mut_ptr() => *mut _, null_mut() => *mut *mut c_void))
}

fn synchronize(cuda: &Library, stream: *mut c_void) {
    assert_eq!(call!(cuda, cuStreamSynchronize(stream => *mut c_void)), 0);
}

/// What a host function waits for: a flag, or ten seconds.
extern "C" fn wait_for_flag(flag: *mut c_void) {
    // SAFETY: every caller passes a static.
    let flag = unsafe { &*flag.cast::<AtomicU32>() };
    let end = Instant::now() + Duration::from_secs(10);
    while flag.load(Ordering::Acquire) == 0 && Instant::now() < end {
        std::thread::yield_now();
    }
}

fn hold(cuda: &Library, stream: *mut c_void, flag: &'static AtomicU32) {
    let data = std::ptr::from_ref(flag).cast_mut().cast::<c_void>();
    let done = call!(cuda, cuLaunchHostFunc(stream => *mut c_void,
        wait_for_flag => extern "C" fn(*mut c_void), data => *mut c_void));
    assert_eq!(done, 0);
}

fn set(cuda: &Library, address: u64, value: u8, bytes: usize, stream: *mut c_void) {
    let done = call!(cuda, cuMemsetD8Async(address => u64, value => u8, bytes => usize,
        stream => *mut c_void));
    assert_eq!(done, 0);
}

const ADD: &str = "
struct Launch { unsigned* target; unsigned count, more; };
RW_KERNEL(add, Launch) {
    __shared__ unsigned sum;
    sum = launch.more * FACTOR;
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < launch.count; i += gridDim.x * blockDim.x)
        launch.target[i] += sum;
}";

#[repr(C)]
struct Add {
    target: u64,
    count: u32,
    more: u32,
}

#[test]
fn kernels_run_over_their_blocks_in_the_order_of_a_stream() {
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    let nvrtc = &libraries().unwrap().nvrtc;
    let image =
        compile(nvrtc, ADD, &["--gpu-architecture=sm_90", "-DFACTOR=3", "-lineinfo"]).unwrap();
    let add = function(cuda, &image, "add").unwrap();
    assert_eq!(function(cuda, &image, "subtract"), Err(NOT_FOUND));
    assert_eq!(
        function(cuda, b"no image at all, for sure: nothing that dlopen would take", "add"),
        Err(INVALID_IMAGE)
    );

    let (target, queue) = (allocate(cuda, 4000), stream(cuda, 0));
    set(cuda, target, 0, 4000, queue);
    for more in [1, 10, 100] {
        assert_eq!(launch(cuda, add, 7, queue, &Add { target, count: 1000, more }), 0);
    }
    // Told that it may not overlap, which it does not anyway; and something nobody knows.
    let more = Add { target, count: 1000, more: 1000 };
    assert_eq!(launch_with(cuda, add, 7, queue, (6, 0), &more), 0);
    assert_eq!(launch_with(cuda, add, 7, queue, (99, 0), &more), INVALID_VALUE);
    synchronize(cuda, queue);
    assert_eq!(download(cuda, target, 1000), vec![3333; 1000]);
    assert_eq!(launch(cuda, add, 0, queue, &Add { target, count: 1, more: 1 }), INVALID_VALUE);
    assert_eq!(launch(cuda, queue, 1, queue, &Add { target, count: 1, more: 1 }), INVALID_HANDLE);
    assert_eq!(call!(cuda, cuStreamDestroy_v2(queue => *mut c_void)), 0);
    assert_eq!(launch(cuda, add, 1, queue, &Add { target, count: 1, more: 1 }), INVALID_HANDLE);
    assert_eq!(call!(cuda, cuMemFree_v2(target => u64)), 0);
}

const SUM: &str = "
struct Launch { const rw_pack* left; const rw_pack* right; rw_pack* sum; };
RW_KERNEL(sum, Launch) {
    Accumulator left[RW_PER_PACK], right[RW_PER_PACK];
    rw_widen_pack(launch.left[blockIdx.x], left);
    rw_widen_pack(launch.right[blockIdx.x], right);
    for (int i = 0; i < RW_PER_PACK; i++) left[i] = rw_combine(left[i], right[i]);
    launch.sum[blockIdx.x] = rw_narrow_pack(left);
}";

#[test]
fn kernels_take_the_arithmetic_of_reductions_in() {
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    let header = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(header.join("src/device/kernels/arithmetic.h")).unwrap();
    let options = ["--gpu-architecture=sm_90", "-D", "RW_TYPE=7", "--define-macro=RW_OP=0"];
    let image = compile(&libraries().unwrap().nvrtc, &(header + SUM), &options).unwrap();
    let sum = function(cuda, &image, "sum").unwrap();
    let [left, right, target] = [1.5_f32, 0.25, 0.0].map(|value| {
        let address = allocate(cuda, 64);
        upload(cuda, address, &[value; 16]);
        address
    });
    assert_eq!(launch(cuda, sum, 4, null_mut(), &[left, right, target]), 0);
    assert_eq!(download(cuda, target, 16), [1.75_f32.to_bits(); 16]);
}

#[test]
fn what_does_not_compile_is_named_with_its_line() {
    let Some(libraries) = libraries() else { return };
    let (code, log) =
        compile(&libraries.nvrtc, "int fine;\nint wrong = nothing;", &[]).unwrap_err();
    assert_eq!(code, 6, "{log}");
    assert!(log.contains("a kernel.cu:2:") && log.contains("nothing"), "{log}");
}

const MEET: &str = "
struct Launch { unsigned* mine; unsigned* theirs; unsigned* seen; };
RW_KERNEL(meet, Launch) {
    const unsigned i = blockIdx.x;
    rw_store_release(launch.theirs + i, 41u + i);
    while (rw_load_acquire(launch.mine + i) == 0) {}
    launch.seen[i] = rw_load_relaxed(launch.mine + i);
}";

#[test]
fn kernels_on_two_streams_may_wait_for_each_other() {
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    let image = compile(&libraries().unwrap().nvrtc, MEET, &["-arch=sm_90"]).unwrap();
    let meet = function(cuda, &image, "meet").unwrap();
    let flags = [allocate(cuda, 64), allocate(cuda, 64)];
    let seen = [allocate(cuda, 64), allocate(cuda, 64)];
    let queues = [stream(cuda, 1), stream(cuda, 1)];
    for address in flags.iter().chain(&seen) {
        set(cuda, *address, 0, 64, null_mut());
    }
    synchronize(cuda, null_mut());
    for i in 0..2 {
        let with = [flags[i], flags[1 - i], seen[i]];
        assert_eq!(launch(cuda, meet, 16, queues[i], &with), 0);
    }
    for i in 0..2 {
        synchronize(cuda, queues[i]);
        assert_eq!(download(cuda, seen[i], 16), (41..57).collect::<Vec<_>>());
    }
}

#[test]
fn events_hold_streams_back_and_tell_times() {
    static FLAG: AtomicU32 = AtomicU32::new(0);
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    let (first, second, target) = (stream(cuda, 1), stream(cuda, 1), allocate(cuda, 4));
    let (begin, end, never) = (event(cuda), event(cuda), event(cuda));
    set(cuda, target, 1, 4, second);
    synchronize(cuda, second);

    let record =
        |event, stream| call!(cuda, cuEventRecord(event => *mut c_void, stream => *mut c_void));
    let query = |event| call!(cuda, cuEventQuery(event => *mut c_void));
    assert_eq!(record(begin, first), 0);
    hold(cuda, first, &FLAG);
    assert_eq!(record(end, first), 0);
    // What was never recorded holds nobody.
    for event in [never, end] {
        let waits =
            call!(cuda, cuStreamWaitEvent(second => *mut c_void, event => *mut c_void, 0 => u32));
        assert_eq!(waits, 0);
    }
    set(cuda, target, 2, 4, second);
    assert_eq!((query(end), query(never)), (NOT_READY, 0));
    assert_eq!(call!(cuda, cuStreamQuery(second => *mut c_void)), NOT_READY);
    assert_eq!(call!(cuda, cuEventSynchronize(begin => *mut c_void)), 0);
    let mut milliseconds = -1_f32;
    let elapsed = |milliseconds: &mut f32, from| {
        call!(cuda, cuEventElapsedTime_v2(&raw mut *milliseconds => *mut f32, from => *mut c_void,
            end => *mut c_void))
    };
    assert_eq!(elapsed(&mut milliseconds, begin), NOT_READY);

    FLAG.store(1, Ordering::Release);
    synchronize(cuda, second);
    assert_eq!(download(cuda, target, 1), [0x0202_0202]);
    assert_eq!(query(end), 0);
    assert_eq!(elapsed(&mut milliseconds, begin), 0);
    assert!(milliseconds >= 0.0);
    assert_eq!(elapsed(&mut milliseconds, never), INVALID_HANDLE);
    assert_eq!(call!(cuda, cuEventDestroy_v2(never => *mut c_void)), 0);
    assert_eq!(query(never), INVALID_HANDLE);
}

#[test]
fn the_null_stream_is_ordered_with_blocking_streams_only() {
    static FLAG: AtomicU32 = AtomicU32::new(0);
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    let (blocking, free) = (stream(cuda, 0), stream(cuda, 1));
    let target = allocate(cuda, 8);
    hold(cuda, blocking, &FLAG);
    set(cuda, target, 1, 8, null_mut());
    set(cuda, target + 4, 2, 4, free);
    synchronize(cuda, free);
    assert_eq!(call!(cuda, cuStreamQuery(null_mut() => *mut c_void)), NOT_READY);
    FLAG.store(1, Ordering::Release);
    set(cuda, target, 3, 2, blocking);
    synchronize(cuda, blocking);
    // The free stream's came first, then the null stream's, then the blocking one's.
    assert_eq!(download(cuda, target, 2), [0x0101_0303, 0x0101_0101]);
}

#[test]
fn mistakes_have_the_codes_of_the_driver() {
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    let address = allocate(cuda, 100);
    let local = [0_u8; 200];
    let source = local.as_ptr().cast::<c_void>();
    let copy = |to: u64, bytes: usize| call!(cuda, cuMemcpyHtoD_v2(to => u64, source => *const c_void, bytes => usize));
    assert_eq!(copy(address, 100), 0);
    assert_eq!(copy(address + 1, 100), INVALID_VALUE);
    assert_eq!(copy(local.as_ptr().addr() as u64, 100), INVALID_VALUE);
    assert_eq!(call!(cuda, cuMemFree_v2(address + 4 => u64)), INVALID_VALUE);

    let (mut kind, memory_type) = (0_u32, 2);
    let ask = |kind: &mut u32, address: u64| call!(cuda, cuPointerGetAttribute(&raw mut *kind => *mut u32, memory_type => i32, address => u64));
    assert_eq!((ask(&mut kind, address + 99), kind), (0, 2));
    assert_eq!(ask(&mut kind, address + 100), INVALID_VALUE);
    assert_eq!(ask(&mut kind, source.addr() as u64), INVALID_VALUE);
    let mut pinned: *mut c_void = null_mut();
    assert_eq!(call!(cuda, cuMemHostAlloc(&raw mut pinned => *mut _, 64 => usize, 0 => u32)), 0);
    assert_eq!((ask(&mut kind, pinned.addr() as u64), kind), (0, 1));
    assert_eq!(call!(cuda, cuMemFreeHost(pinned => *mut c_void)), 0);
    assert_eq!(ask(&mut kind, pinned.addr() as u64), INVALID_VALUE);

    let mut huge = 0_u64;
    let asked = call!(cuda, cuMemAlloc_v2(&raw mut huge => *mut u64, 1_usize << 40 => usize));
    assert_eq!(asked, OUT_OF_MEMORY);
    let stranger = std::thread::spawn(move || {
        let mut address = 0_u64;
        call!(cuda, cuMemAlloc_v2(&raw mut address => *mut u64, 8 => usize))
    });
    assert_eq!(stranger.join().unwrap(), INVALID_CONTEXT);

    let mut name: *const i8 = null();
    assert_eq!(call!(cuda, cuGetErrorName(NOT_READY => i32, &raw mut name => *mut _)), 0);
    // SAFETY: the driver's names are strings that live as long as it does.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(name.cast()) }, c"CUDA_ERROR_NOT_READY");
    assert_eq!(call!(cuda, cuMemFree_v2(address => u64)), 0);
    assert_eq!(call!(cuda, cuMemFree_v2(address => u64)), INVALID_VALUE);
}

/// What a host function got for an answer.
static ANSWER: AtomicU64 = AtomicU64::new(0);

extern "C" fn ask_the_driver(_: *mut c_void) {
    let cuda = &libraries().unwrap().cuda;
    let code = call!(cuda, cuStreamQuery(null_mut() => *mut c_void));
    ANSWER.store(u64::try_from(code).unwrap(), Ordering::Release);
}

#[test]
fn host_functions_may_not_call_the_driver() {
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    let queue = stream(cuda, 0);
    let done = call!(cuda, cuLaunchHostFunc(queue => *mut c_void,
        ask_the_driver => extern "C" fn(*mut c_void), null_mut() => *mut c_void));
    assert_eq!(done, 0);
    synchronize(cuda, queue);
    assert_eq!(ANSWER.load(Ordering::Acquire), u64::try_from(NOT_PERMITTED).unwrap());
}

/// Runs one of these tests in a process of its own, with these variables, for a minute at most.
fn child(test: &str, variables: &[(&str, &str)]) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("driver::{test}")])
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the child did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn there_are_as_many_devices_and_bytes_as_variables_say() {
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    if std::env::var("RINGWAY_TEST_CHILD").is_err() {
        let name = "there_are_as_many_devices_and_bytes_as_variables_say";
        let two = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_MEMORY", "1000")];
        let status = child(name, &[two[0], two[1], ("RINGWAY_TEST_CHILD", "devices")]);
        assert!(status.success(), "{status}");
        return;
    }
    let (mut count, mut can, mut none) = (0, 0, 0_u64);
    assert_eq!(call!(cuda, cuDeviceGetCount(&raw mut count => *mut i32)), 0);
    let asked = call!(cuda, cuDeviceCanAccessPeer(&raw mut can => *mut i32, 0 => i32, 1 => i32));
    assert_eq!((count, asked, can), (2, 0, 1));

    let (here, queue) = (allocate(cuda, 600), stream(cuda, 0));
    upload(cuda, here, &[1_u32, 2, 3]);
    let too_much = call!(cuda, cuMemAlloc_v2(&raw mut none => *mut u64, 600 => usize));
    assert_eq!(too_much, OUT_OF_MEMORY);

    let mut first: *mut c_void = null_mut();
    let mut second: *mut c_void = null_mut();
    assert_eq!(call!(cuda, cuCtxGetCurrent(&raw mut first => *mut _)), 0);
    assert_eq!(call!(cuda, cuDevicePrimaryCtxRetain(&raw mut second => *mut _, 1 => i32)), 0);
    assert_eq!(call!(cuda, cuCtxPushCurrent_v2(second => *mut c_void)), 0);
    let there = allocate(cuda, 600);
    for expected in [0, PEER_ACCESS_ALREADY_ENABLED] {
        let enabled = call!(cuda, cuCtxEnablePeerAccess(first => *mut c_void, 0 => u32));
        assert_eq!(enabled, expected);
    }
    let copied = call!(cuda, cuMemcpy(there => u64, here => u64, 12 => usize));
    assert_eq!((copied, download(cuda, there, 3)), (0, vec![1, 2, 3]));
    let (mut ordinal, device_ordinal) = (-1, 9);
    let asked = call!(cuda, cuPointerGetAttribute(&raw mut ordinal => *mut i32,
        device_ordinal => i32, there => u64));
    assert_eq!((asked, ordinal), (0, 1));
    // A stream is of one context.
    assert_eq!(call!(cuda, cuStreamQuery(queue => *mut c_void)), INVALID_HANDLE);
    assert_eq!(call!(cuda, cuCtxPopCurrent_v2(null_mut() => *mut *mut c_void)), 0);
    assert_eq!(call!(cuda, cuStreamQuery(queue => *mut c_void)), 0);
}

/// 64 bytes that name an allocation.
type Handle = [u8; 64];

fn open_handle(cuda: &Library, handle: Handle) -> Result<u64, i32> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct ByValue(Handle);
    let mut address = 0_u64;
    let code = call!(cuda, cuIpcOpenMemHandle_v2(&raw mut address => *mut u64,
        ByValue(handle) => ByValue, 1 => u32));
    if code == 0 { Ok(address) } else { Err(code) }
}

#[test]
fn memory_is_shared_with_other_processes_by_handles() {
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    if let Ok(text) = std::env::var("RINGWAY_TEST_CHILD") {
        let bytes = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
        let bytes: Vec<u8> = bytes.map(|two| u8::from_str_radix(two, 16).unwrap()).collect();
        let handle: Handle = bytes.try_into().unwrap();
        let address = open_handle(cuda, handle).unwrap();
        assert_eq!(open_handle(cuda, handle), Ok(address), "opened twice, mapped once");
        assert_eq!(download(cuda, address, 3), [1, 2, 3]);
        upload(cuda, address + 4, &[20_u32]);
        for left in [0, 0, INVALID_VALUE] {
            assert_eq!(call!(cuda, cuIpcCloseMemHandle(address => u64)), left);
        }
        return;
    }
    let address = allocate(cuda, 12);
    upload(cuda, address, &[1_u32, 2, 3]);
    let mut handle: Handle = [0; 64];
    let got = call!(cuda, cuIpcGetMemHandle(&raw mut handle => *mut Handle, address + 4 => u64));
    assert_eq!(got, 0);
    assert_eq!(open_handle(cuda, handle), Err(INVALID_CONTEXT), "not where it comes from");
    assert_eq!(open_handle(cuda, [7; 64]), Err(INVALID_HANDLE));

    let text: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let status =
        child("memory_is_shared_with_other_processes_by_handles", &[("RINGWAY_TEST_CHILD", &text)]);
    assert!(status.success(), "{status}");
    assert_eq!(download(cuda, address, 3), [1, 20, 3]);
}

#[test]
fn every_function_the_library_may_ask_for_is_there() {
    let Some(libraries) = libraries() else { return };
    let missing = |library: &Library, names: &str| -> Vec<String> {
        let there = |name: &str| {
            // SAFETY: only its being there is looked at.
            unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_ok()
        };
        names.split_whitespace().filter(|name| !there(name)).map(str::to_owned).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(missing(&libraries.cuda, CUDA_NAMES), none);
    assert_eq!(missing(&libraries.nvrtc, NVRTC_NAMES), none);
}

const CUDA_NAMES: &str = "cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName \
    cuDeviceGetUuid_v2 cuDeviceGetAttribute cuDeviceGetPCIBusId cuDeviceTotalMem_v2 \
    cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxGetCurrent cuCtxSetCurrent \
    cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxGetDevice cuCtxSynchronize cuStreamGetCtx cuMemAlloc_v2 \
    cuMemFree_v2 cuMemHostAlloc cuMemFreeHost cuMemHostGetDevicePointer_v2 cuMemHostRegister_v2 \
    cuMemHostUnregister cuMemsetD8Async cuMemsetD8_v2 cuMemcpy cuMemcpyAsync cuMemcpyHtoD_v2 \
    cuMemcpyDtoH_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyHtoDAsync_v2 \
    cuMemGetAddressRange_v2 cuPointerGetAttribute cuPointerGetAttributes cuIpcGetMemHandle \
    cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuDeviceCanAccessPeer cuCtxEnablePeerAccess \
    cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuFuncGetAttribute cuFuncSetAttribute \
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuLaunchKernel cuStreamCreate \
    cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery cuStreamWaitEvent \
    cuStreamIsCapturing cuStreamGetCaptureInfo_v2 cuThreadExchangeStreamCaptureMode cuEventCreate \
    cuEventDestroy_v2 cuEventRecord cuEventQuery cuEventSynchronize cuEventElapsedTime_v2 \
    cuEventElapsedTime cuLaunchHostFunc cuGetErrorName cuGetErrorString";

const NVRTC_NAMES: &str = "nvrtcVersion nvrtcCreateProgram nvrtcCompileProgram nvrtcGetProgramLogSize \
    nvrtcGetProgramLog nvrtcGetCUBINSize nvrtcGetCUBIN nvrtcGetPTXSize nvrtcGetPTX nvrtcDestroyProgram \
    nvrtcGetErrorString";

#[test]
fn a_descriptor_of_device_memory_is_of_whole_pages_from_its_start() {
    let Some(driver) = driver() else { return };
    let cuda = driver.cuda;
    let address = allocate(cuda, 2 << 20);
    let ask = |address: u64, bytes: usize, kind: i32| {
        let mut number = -1_i32;
        let code = call!(cuda, cuMemGetHandleForAddressRange(
            &raw mut number => *mut i32, address => u64, bytes => usize, kind => i32, 0 => u64));
        (code, number)
    };
    let (code, number) = ask(address, 2 << 20, 1);
    assert!(code == 0 && number >= 0, "{code} {number}");
    let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
    assert!(link.to_string_lossy().contains("fake device memory"), "{link:?}");
    assert_eq!(ask(address + 4096, 4096, 1), (INVALID_VALUE, -1));
    assert_eq!(ask(address, 100, 1), (INVALID_VALUE, -1));
    assert_eq!(ask(address, 4 << 20, 1), (INVALID_VALUE, -1));
    assert_eq!(ask(address, 2 << 20, 2), (INVALID_VALUE, -1));
    assert_eq!(ask(4096, 4096, 1), (NOT_SUPPORTED, -1));
    assert_eq!(call!(cuda, cuMemFree_v2(address => u64)), 0);
}

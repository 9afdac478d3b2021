//! A GPU of this process: its context, memory, streams and launches, behind safe handles.
//!
//! *Invariant:* every call is made with the GPU's primary context current, and leaves the thread's context
//! as it was.

#![allow(unsafe_code, reason = "calls into the driver by pointers")]

mod direct;
mod handle;
mod stream;
mod virtual_memory;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub(crate) use self::direct::DirectMemory;
pub(super) use self::handle::{DeviceMemory, Event, Function, OwnStream, PinnedMemory};
use self::handle::{Entered, Relaxed};
pub(super) use self::stream::Identity;
pub use self::stream::Stream;
pub(super) use self::virtual_memory::{Mapped, Segment};
use super::Fault;
use super::seats::Seats;
use super::turn::Turn;
use crate::config::Config;
use crate::error::Error;
use crate::ffi::FfiError;
use crate::ffi::cuda::{
    Address, Driver, Handle, IpcHandle, LaunchAttribute, LaunchConfig, LaunchValue, Vendor,
};

/// Attributes of devices: CUDA's numbers, and HIP's.
const THREADS_MOST: (c_int, c_int) = (1, 56);
const PROCESSORS: (c_int, c_int) = (16, 63);
const MAJOR: (c_int, c_int) = (75, 23);
const MINOR: (c_int, c_int) = (76, 61);
/// Attributes of pointers, the same for both.
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
/// `CU_MEMORYTYPE_DEVICE`.
const ON_DEVICE: c_uint = 2;
const ON_HOST: c_uint = 1;
/// Pinned memory that every context sees, mapped into the device.
const HOST_FLAGS: c_uint = 1 | 2;
/// A stream that does not wait for the null stream.
const NON_BLOCKING: c_uint = 1;
/// An event that measures no time.
const NO_TIMING: c_uint = 2;
/// Peer access is enabled when memory of another process is opened.
const LAZY_PEER_ACCESS: c_uint = 1;
const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may begin before the one in front of it has ended.
const OVERLAPS: c_uint = 6;
/// The first compute capability that has it, and the first driver that captures it into graphs too.
const OVERLAPS_FROM: (u32, c_int) = (9, 12_030);
/// `CUDA_ERROR_NOT_READY`, HIP's too.
const NOT_READY: c_int = 600;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// In the host's memory.
    Host,
    /// In the host's memory, and the GPU's driver knows it: what is put on streams may use it.
    Pinned,
    /// On a GPU.
    Device,
}

/// The driver, once a GPU was opened; the first that asks decides which library it is.
static DRIVER: OnceLock<Result<Arc<Driver>, FfiError>> = OnceLock::new();

/// GPUs of this process that were opened.
static OPENED: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());

fn driver(config: &Config) -> Result<Arc<Driver>, FfiError> {
    DRIVER
        .get_or_init(|| {
            let path = config.cuda_library.as_ref().map(|path| path.to_string_lossy());
            let nvidia = Driver::open(Vendor::Nvidia, path.as_deref());
            let driver = match nvidia {
                Err(FfiError::NoLibrary { .. }) if path.is_none() => {
                    // What is missing on most machines is CUDA: its error is the one to tell.
                    Driver::open(Vendor::Amd, None).or(nvidia)?
                }
                other => other?,
            };
            // SAFETY: starts the driver; it may be called any number of times.
            let code = unsafe { (driver.init)(0) };
            match code {
                0 => Ok(Arc::new(driver)),
                code => Err(FfiError::Call { call: "starting the GPU driver", code }),
            }
        })
        .clone()
}

/// Where the memory at an address is: `Host` where no GPU was opened in this process, or none knows it.
#[must_use]
pub fn memory_of(address: *const c_void) -> Memory {
    let Some(Ok(driver)) = DRIVER.get() else { return Memory::Host };
    let address = address.expose_provenance() as Address;
    let mut kind: c_uint = 0;
    // SAFETY: the attribute is an unsigned integer, for any address.
    let code = unsafe { (driver.pointer_attribute)((&raw mut kind).cast(), MEMORY_TYPE, address) };
    match (code, kind) {
        (0, ON_DEVICE) => Memory::Device,
        (0, ON_HOST) => Memory::Pinned,
        _ => Memory::Host,
    }
}

/// A GPU, with its primary context.
#[derive(Debug)]
pub struct Gpu {
    driver: Arc<Driver>,
    ordinal: c_int,
    device: c_int,
    context: Handle,
    /// For copies that the caller waits for. One for all: streams share few queues of the hardware, and
    /// what stands behind a kernel that waits comes late.
    copies: Handle,
    /// What tells it from all others.
    pub(crate) uuid: [u8; 16],
    /// Its multiprocessors.
    pub(crate) processors: u32,
    /// Who has kernels on them.
    pub(super) seats: Seats,
    /// Whose turn it is to enqueue: taken for what waits for no kernel, unless its queue is full.
    turn: Turn,
    /// Most threads of a block.
    pub(crate) threads_most: u32,
    /// What kernels are compiled for: `sm_90`, `gfx942`.
    pub(crate) architecture: String,
    /// Whether a kernel that waits for the one in front of it by itself can begin before that has ended.
    pub(super) can_overlap: bool,
    name: String,
    bus: String,
}

// SAFETY: contexts and device numbers may be used from any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver takes its own locks.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// How many GPUs the driver shows to this process.
    ///
    /// # Errors
    /// There is no driver or no GPU, or `RINGWAY_GPU` is 0.
    pub fn count(config: &Config) -> Result<u32, Error> {
        if !config.gpu {
            return Err(Error::usage("RINGWAY_GPU is 0"));
        }
        let driver = driver(config).map_err(Fault::Library)?;
        Ok(u32::try_from(count(&driver)?).unwrap_or(0))
    }

    /// The number of the GPU that is current in this thread; 0 where none is.
    ///
    /// # Errors
    /// There is no driver or no GPU, or `RINGWAY_GPU` is 0.
    pub fn current(config: &Config) -> Result<i32, Error> {
        if !config.gpu {
            return Err(Error::usage("RINGWAY_GPU is 0"));
        }
        let driver = driver(config).map_err(Fault::Library)?;
        count(&driver)?;
        let (mut context, mut ordinal): (Handle, c_int) = (std::ptr::null_mut(), 0);
        // SAFETY: a place for a handle.
        let code = unsafe { (driver.context_current)(&raw mut context) };
        if code == 0 && !context.is_null() {
            // SAFETY: a place for an integer; a context is current.
            unsafe { (driver.context_device)(&raw mut ordinal) };
        }
        Ok(ordinal)
    }

    /// The GPU with this number; one object for each in a process.
    ///
    /// # Errors
    /// There is no driver or no such GPU, it refuses, or `RINGWAY_GPU` is 0.
    pub fn at(config: &Config, ordinal: i32) -> Result<Arc<Self>, Error> {
        if !config.gpu {
            return Err(Error::usage("RINGWAY_GPU is 0"));
        }
        Ok(Self::find(config, ordinal)?)
    }

    fn find(config: &Config, ordinal: i32) -> Result<Arc<Self>, Fault> {
        let driver = driver(config)?;
        let count = count(&driver)?;
        if !(0..count).contains(&ordinal) {
            return Err(Fault::Other(format!(
                "there is no GPU {ordinal}; the driver shows {count}"
            )));
        }
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = opened.iter().find(|gpu| gpu.ordinal == ordinal) {
            return Ok(Arc::clone(gpu));
        }
        let gpu = Arc::new(Self::open(driver, ordinal)?);
        opened.push(Arc::clone(&gpu));
        Ok(gpu)
    }

    fn open(driver: Arc<Driver>, ordinal: c_int) -> Result<Self, Fault> {
        let mut device = 0;
        // SAFETY: a place for a device number.
        let code = unsafe { (driver.device_get)(&raw mut device, ordinal) };
        checked(&driver, "finding the GPU", code)?;
        let nvidia = driver.vendor() == Vendor::Nvidia;
        let attribute = |numbers: (c_int, c_int)| -> Result<u32, Fault> {
            let (number, mut value) = (if nvidia { numbers.0 } else { numbers.1 }, 0);
            // SAFETY: a place for an integer.
            let code = unsafe { (driver.device_attribute)(&raw mut value, number, device) };
            checked(&driver, "reading an attribute of the GPU", code)?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let (major, minor) = (attribute(MAJOR)?, attribute(MINOR)?);
        let architecture = if nvidia {
            format!("sm_{major}{minor}")
        } else {
            // gfx942 is 9.4, stepping 2: the stepping has no attribute; the compiler takes the native one.
            "native".to_owned()
        };
        let can_overlap = driver.launch_with.is_some()
            && major >= OVERLAPS_FROM.0
            && version(&driver).is_some_and(|version| version >= OVERLAPS_FROM.1);
        let (processors, threads_most) = (attribute(PROCESSORS)?, attribute(THREADS_MOST)?);
        let mut uuid = [0; 16];
        // SAFETY: a place for 16 bytes.
        let code = unsafe { (driver.device_uuid)(&raw mut uuid, device) };
        checked(&driver, "reading the GPU's UUID", code)?;
        let name = text(driver.device_name, device);
        let bus = text(driver.device_bus, device);
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: a place for a handle. It is kept until the process ends, as GPUs are.
        let code = unsafe { (driver.context_retain)(&raw mut context, device) };
        checked(&driver, "making the GPU's context", code)?;
        let mut gpu = Self {
            driver,
            ordinal,
            device,
            context,
            copies: std::ptr::null_mut(),
            uuid,
            processors: processors.max(1),
            seats: Seats::new(processors.max(1)),
            turn: Turn::new(),
            threads_most,
            architecture,
            can_overlap,
            name,
            bus,
        };
        // Kept until the process ends, as the context is.
        gpu.copies = gpu.new_stream()?;
        Ok(gpu)
    }

    /// Its number in this process.
    #[must_use]
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// What its vendor calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address on the PCI bus, as `0000:18:00.0`; empty where the driver does not say.
    #[must_use]
    pub fn bus_address(&self) -> &str {
        &self.bus
    }

    /// What tells it from all others, as `nvidia-smi -L` writes it; empty for GPUs of other vendors.
    #[must_use]
    pub fn uuid(&self) -> String {
        if self.vendor() != Vendor::Nvidia {
            return String::new();
        }
        let mut text = "GPU".to_owned();
        for (at, byte) in self.uuid.iter().enumerate() {
            let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            let _ = write!(text, "{dash}{byte:02x}");
        }
        text
    }

    pub(super) fn vendor(&self) -> Vendor {
        self.driver.vendor()
    }

    /// The first number of the newest CUDA whose code the driver takes; any, where it does not say.
    pub(super) fn newest_cuda(&self) -> i32 {
        version(&self.driver).filter(|version| *version >= 1000).map_or(i32::MAX, |all| all / 1000)
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), Fault> {
        checked(&self.driver, call, code)
    }

    /// Makes the GPU's context current until the guard goes.
    pub(super) fn enter(&self) -> Result<Entered<'_>, Fault> {
        let mut current: Handle = std::ptr::null_mut();
        // SAFETY: a place for a handle.
        let code = unsafe { (self.driver.context_current)(&raw mut current) };
        if code == 0 && current == self.context {
            return Ok(Entered { gpu: self, is_pushed: false });
        }
        // SAFETY: the context lives as long as the process.
        let code = unsafe { (self.driver.context_push)(self.context) };
        self.checked("making the GPU's context current", code)?;
        Ok(Entered { gpu: self, is_pushed: true })
    }

    /// Lets this thread make calls that a capture under way forbids, until the guard goes: none of those
    /// made here touches a stream that is captured.
    pub(super) fn relax(&self) -> Relaxed<'_> {
        let mut mode = RELAXED;
        // SAFETY: a place for a mode, which holds a valid one.
        let code = unsafe { (self.driver.capture_mode)(&raw mut mode) };
        Relaxed { gpu: self, before: (code == 0).then_some(mode) }
    }

    fn new_stream(&self) -> Result<Handle, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a place for a handle.
        let code = unsafe { (self.driver.stream_create)(&raw mut handle, NON_BLOCKING) };
        self.checked("making a stream", code)?;
        Ok(handle)
    }

    /// Waits until a stream is done with everything.
    fn finish(&self, stream: Handle) -> Result<(), Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        // SAFETY: the stream is alive.
        let code = unsafe { (self.driver.stream_synchronize)(stream) };
        self.checked("waiting for a stream", code)
    }

    /// Copies to the device, and waits for it.
    pub(super) fn write(&self, to: Address, from: &[u8]) -> Result<(), Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let (source, bytes) = (from.as_ptr().cast(), from.len());
        // SAFETY: `from` has so many bytes and stays until the copy was waited for.
        let code = unsafe { (self.driver.copy_to_device)(to, source, bytes, self.copies) };
        self.checked("copying to the device", code)?;
        self.finish(self.copies)
    }

    /// Copies from the device, and waits for it.
    pub(super) fn read(&self, to: &mut [u8], from: Address) -> Result<(), Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let (target, bytes) = (to.as_mut_ptr().cast(), to.len());
        // SAFETY: `to` has so many bytes and stays until the copy was waited for.
        let code = unsafe { (self.driver.copy_to_host)(target, from, bytes, self.copies) };
        self.checked("copying from the device", code)?;
        self.finish(self.copies)
    }

    /// Device memory, filled with zeros.
    pub(super) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceMemory, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let mut address = 0;
        // SAFETY: a place for an address.
        let code = unsafe { (self.driver.alloc)(&raw mut address, bytes.max(1)) };
        self.checked("taking device memory", code)?;
        let memory = DeviceMemory { gpu: Arc::clone(self), address, bytes };
        // Waited for: nobody may see it late.
        let turn = self.turn.take();
        // SAFETY: the memory was just taken, and has so many bytes.
        let code = unsafe { (self.driver.set_bytes)(address, 0, bytes.max(1), self.copies) };
        drop(turn);
        self.checked("clearing device memory", code)?;
        self.finish(self.copies)?;
        Ok(memory)
    }

    /// Pinned host memory that kernels see, filled with zeros.
    pub(super) fn pinned(self: &Arc<Self>, bytes: usize) -> Result<PinnedMemory, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let mut place: *mut c_void = std::ptr::null_mut();
        // SAFETY: a place for a pointer.
        let code = unsafe { (self.driver.host_alloc)(&raw mut place, bytes.max(1), HOST_FLAGS) };
        self.checked("taking pinned memory", code)?;
        let place = NonNull::new(place.cast::<u8>())
            .ok_or_else(|| Fault::Other("the driver gave no pinned memory".to_owned()))?;
        let mut memory = PinnedMemory { gpu: Arc::clone(self), place, address: 0 };
        // SAFETY: the memory was just taken, and has so many bytes.
        unsafe { place.as_ptr().write_bytes(0, bytes) };
        // SAFETY: a place for an address, and pinned memory of this context.
        let code = unsafe {
            (self.driver.host_address)(&raw mut memory.address, place.as_ptr().cast(), 0)
        };
        self.checked("mapping pinned memory", code)?;
        Ok(memory)
    }

    /// A stream of our own, which waits for no other.
    pub(super) fn stream(self: &Arc<Self>) -> Result<OwnStream, Fault> {
        Ok(OwnStream { handle: self.new_stream()?, gpu: Arc::clone(self) })
    }

    pub(super) fn event(self: &Arc<Self>) -> Result<Event, Fault> {
        let _context = self.enter()?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a place for a handle.
        let code = unsafe { (self.driver.event_create)(&raw mut handle, NO_TIMING) };
        self.checked("making an event", code)?;
        Ok(Event { gpu: Arc::clone(self), handle })
    }

    /// Makes all that is enqueued on `stream` from now on wait for `event`.
    pub(super) fn wait_event(&self, stream: Stream, event: &Event) -> Result<(), Fault> {
        let _turn = self.turn.take();
        // SAFETY: both handles are alive.
        let code = unsafe { (self.driver.stream_wait_event)(stream.handle(), event.handle, 0) };
        self.checked("waiting for an event", code)
    }

    /// Copies on a stream, between any two addresses that the device sees.
    pub(super) fn copy(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), Fault> {
        let _turn = self.turn.take();
        // SAFETY: the caller vouches for the addresses, as for those of a launch.
        let code = unsafe { (self.driver.copy_async)(to, from, bytes, stream.handle()) };
        self.checked("copying device memory", code)
    }

    /// Loads code that was compiled for this GPU, and finds a kernel in it. It stays loaded. One that `overlaps` is
    /// launched before the kernel in front of it has ended: it waits for that by itself.
    pub(super) fn load(
        &self,
        code: &[u8],
        kernel: &CStr,
        overlaps: bool,
    ) -> Result<Function, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let (mut module, mut function): (Handle, Handle) =
            (std::ptr::null_mut(), std::ptr::null_mut());
        let image = code.as_ptr().cast();
        let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a whole image of code, as a compiler of the vendor's made it; there are no options.
        let status =
            unsafe { (self.driver.module_load)(&raw mut module, image, 0, options, values) };
        self.checked("loading a kernel", status)?;
        // SAFETY: the module was just loaded; the name ends with 0.
        let status =
            unsafe { (self.driver.module_function)(&raw mut function, module, kernel.as_ptr()) };
        self.checked("finding a kernel", status)?;
        Ok(Function { handle: function.expose_provenance(), overlaps })
    }

    /// Launches a kernel that takes one argument by value.
    ///
    /// # Safety
    /// The argument has the layout the kernel's has, and what it names is valid until the launch is over.
    pub(super) unsafe fn launch<T>(
        &self,
        function: Function,
        (blocks, threads): (u32, u32),
        stream: Stream,
        argument: &T,
    ) -> Result<(), Fault> {
        let kernel: Handle = std::ptr::with_exposed_provenance_mut(function.handle);
        let mut arguments = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
        let _turn = self.turn.take();
        if let Some(launch) = self.driver.launch_with.filter(|_| function.overlaps) {
            let mut value = [0; 16];
            value[0] = 1;
            let attribute = LaunchAttribute { id: OVERLAPS, value: LaunchValue(value) };
            let config = LaunchConfig {
                grid: [blocks, 1, 1],
                block: [threads, 1, 1],
                shared_bytes: 0,
                stream: stream.handle(),
                attributes: &raw const attribute,
                attribute_count: 1,
            };
            let (arguments, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
            // SAFETY: as below; the driver reads what it is told before it returns.
            let code = unsafe { launch(&raw const config, kernel, arguments, extra) };
            return self.checked("launching a kernel", code);
        }
        // SAFETY: the kernel has one parameter, which the driver copies before it returns.
        let code = unsafe {
            (self.driver.launch)(
                kernel,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.handle(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.checked("launching a kernel", code)
    }

    /// The allocation an address belongs to: start, bytes, and a number no other ever had.
    pub(super) fn allocation(&self, address: Address) -> Result<(Address, usize, u64), Fault> {
        let (mut base, mut bytes, mut id) = (0, 0, 0_u64);
        // SAFETY: places for an address and a size.
        let code = unsafe { (self.driver.address_range)(&raw mut base, &raw mut bytes, address) };
        self.checked("looking up device memory", code)?;
        // SAFETY: the attribute is a 64-bit number.
        let code =
            unsafe { (self.driver.pointer_attribute)((&raw mut id).cast(), BUFFER_ID, address) };
        self.checked("looking up device memory", code)?;
        Ok((base, bytes, id))
    }

    /// Whether an address is of managed memory, which has no one place.
    pub(super) fn is_managed(&self, address: Address) -> bool {
        let mut managed: c_uint = 0;
        // SAFETY: the attribute is a boolean, which the driver writes as an integer.
        let code = unsafe {
            (self.driver.pointer_attribute)((&raw mut managed).cast(), IS_MANAGED, address)
        };
        code == 0 && managed != 0
    }

    /// A name for the allocation at `base` that other processes can open.
    pub(super) fn export(&self, base: Address) -> Result<IpcHandle, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let mut handle = IpcHandle([0; crate::ffi::cuda::IPC_BYTES]);
        // SAFETY: a place for a handle.
        let code = unsafe { (self.driver.ipc_export)(&raw mut handle, base) };
        self.checked("naming device memory to other processes", code)?;
        Ok(handle)
    }

    /// Maps an allocation of another process.
    pub(super) fn import(&self, handle: IpcHandle) -> Result<Address, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let mut base = 0;
        // SAFETY: a place for an address; a wrong handle is refused by the driver.
        let code = unsafe { (self.driver.ipc_open)(&raw mut base, handle, LAZY_PEER_ACCESS) };
        self.checked("mapping device memory of another process", code)?;
        Ok(base)
    }

    /// Ends a mapping of [`Gpu::import`].
    pub(super) fn forget(&self, base: Address) {
        let Ok(_context) = self.enter() else { return };
        let _relaxed = self.relax();
        // SAFETY: the base came from `import`. A failure leaves it mapped: nothing to be done.
        unsafe { (self.driver.ipc_close)(base) };
    }

    /// Lets kernels of this GPU use memory of another GPU of this process.
    pub(super) fn reach(&self, other: &Self) -> Result<(), Fault> {
        if self.device == other.device {
            return Ok(());
        }
        let mut can = 0;
        // SAFETY: a place for an integer.
        let code =
            unsafe { (self.driver.can_access_peer)(&raw mut can, self.device, other.device) };
        self.checked("asking whether GPUs reach each other", code)?;
        if can == 0 {
            return Err(Fault::Other(format!(
                "GPU {} cannot reach the memory of GPU {}: see `ringway topo` and `ringway doctor`",
                self.ordinal, other.ordinal
            )));
        }
        let _context = self.enter()?;
        // SAFETY: the other context lives as long as the process.
        let code = unsafe { (self.driver.enable_peer)(other.context, 0) };
        if code == PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        self.checked("reaching another GPU's memory", code)
    }
}
/// The GPU of this process with this number, where it was opened.
pub(super) fn opened(ordinal: i32) -> Option<Arc<Gpu>> {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.iter().find(|gpu| gpu.ordinal == ordinal).cloned()
}

/// A text that the driver has of a device; empty where it has none.
fn text(ask: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int, device: c_int) -> String {
    let mut text: [c_char; 128] = [0; 128];
    // SAFETY: a place for so many bytes, which the driver ends with 0.
    unsafe { ask(text.as_mut_ptr(), 127, device) };
    // SAFETY: the last byte is 0 in any case.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
}

/// The newest CUDA that the driver knows, as 12030 for 12.3.
fn version(driver: &Driver) -> Option<c_int> {
    let mut version: c_int = 0;
    // SAFETY: a place for an integer.
    let code = unsafe { (driver.version)(&raw mut version) };
    (code == 0).then_some(version)
}

/// How many GPUs there are, at least one.
fn count(driver: &Driver) -> Result<c_int, Fault> {
    let mut count = 0;
    // SAFETY: a place for an integer.
    let code = unsafe { (driver.device_count)(&raw mut count) };
    if code != 0 || count == 0 {
        return Err(Fault::Other("this machine has no GPU that its driver shows".to_owned()));
    }
    Ok(count)
}

fn checked(driver: &Driver, call: &'static str, code: c_int) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault::Call { call, name: driver.error_name(code) }) }
}

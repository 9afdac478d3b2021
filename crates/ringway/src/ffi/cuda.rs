//! The driver of GPUs: CUDA's, or HIP's, whose functions have the same shape under other names.
//!
//! *Invariant:* a function pointer is used only while its library is held, with the types the vendor's
//! header gives it. What the functions promise about memory and streams is kept by `device`, their only
//! user.

#![allow(unsafe_code, reason = "function pointers into the vendor's driver")]

pub(crate) mod virtual_memory;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::Library;

use self::virtual_memory::VirtualMemory;
use super::{FfiError, function, open};

/// A handle of the driver: a context, module, function, stream or event.
pub(crate) type Handle = *mut c_void;

/// An address in device memory, or of pinned memory as devices see it.
pub(crate) type Address = u64;

/// Bytes of a handle that names memory to another process.
pub(crate) const IPC_BYTES: usize = 64;

/// A handle that names memory to another process; passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IpcHandle(pub(crate) [u8; IPC_BYTES]);

/// Makes a handle of a range of addresses: a descriptor of a dma-buf.
pub(crate) type RangeHandle =
    unsafe extern "C" fn(*mut c_void, Address, usize, c_int, c_ulonglong) -> c_int;

/// One thing more that a launch is told: `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    /// A union of 64 bytes; the attributes used here are a number in its first four.
    pub(crate) value: LaunchValue,
}

/// `CUlaunchAttributeValue`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchValue(pub(crate) [c_uint; 16]);

/// How a kernel is launched: `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

/// Says what tells a stream from all others, also those that have its handle after it.
pub(crate) type StreamId = unsafe extern "C" fn(Handle, *mut u64) -> c_int;

/// Launches a kernel that is told more than its shape.
pub(crate) type LaunchWith =
    unsafe extern "C" fn(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void) -> c_int;

/// Whose driver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    /// NVIDIA: CUDA.
    Nvidia,
    /// AMD: HIP.
    Amd,
}

impl Vendor {
    /// The name of its library, for messages.
    pub(crate) const fn library(self) -> &'static str {
        match self {
            Self::Nvidia => "the CUDA driver",
            Self::Amd => "the HIP runtime",
        }
    }

    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Nvidia => &["libcuda.so.1", "libcuda.so"],
            Self::Amd => {
                &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"]
            }
        }
    }
}

macro_rules! driver {
    ($($field:ident: $cuda:literal, $hip:literal, ($($argument:ty),*);)*) => {
        /// The functions of a driver, and the library they are in.
        pub(crate) struct Driver {
            vendor: Vendor,
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Nothing where the driver lacks it, and of HIP.
            pub(crate) virtual_memory: Option<VirtualMemory>,
            /// `cuMemGetHandleForAddressRange`: nothing where the driver is older than CUDA 11.7, and of HIP.
            pub(crate) range_handle: Option<RangeHandle>,
            /// `cuLaunchKernelEx`: nothing where the driver is older than CUDA 11.8, and of HIP.
            pub(crate) launch_with: Option<LaunchWith>,
            /// `cuStreamGetId`: nothing where the driver is older than CUDA 12.0.
            pub(crate) stream_id: Option<StreamId>,
            name_of: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
            // Dropped last: fields go in order.
            _library: Library,
        }

        impl Driver {
            fn load(vendor: Vendor, library: Library) -> Result<Self, FfiError> {
                let name = vendor.library();
                $(
                    let symbol = if vendor == Vendor::Nvidia { $cuda } else { $hip };
                    // SAFETY: the type is that of the vendor's header, and the pointer goes with the library.
                    let $field = unsafe { function(&library, name, symbol)? };
                )*
                let symbol = if vendor == Vendor::Nvidia { "cuGetErrorName" } else { "hipDrvGetErrorName" };
                // SAFETY: as above.
                let name_of = unsafe { function(&library, name, symbol)? };
                let virtual_memory = match vendor {
                    Vendor::Nvidia => VirtualMemory::load(&library),
                    Vendor::Amd => None,
                };
                let range_handle = match vendor {
                    // SAFETY: as above.
                    Vendor::Nvidia => unsafe { function(&library, name, "cuMemGetHandleForAddressRange") }.ok(),
                    Vendor::Amd => None,
                };
                let launch_with = match vendor {
                    // SAFETY: as above.
                    Vendor::Nvidia => unsafe { function(&library, name, "cuLaunchKernelEx") }.ok(),
                    Vendor::Amd => None,
                };
                let symbol = if vendor == Vendor::Nvidia { "cuStreamGetId" } else { "hipStreamGetId" };
                // SAFETY: as above.
                let stream_id = unsafe { function(&library, name, symbol) }.ok();
                Ok(Self {
                    vendor,
                    $($field,)*
                    virtual_memory,
                    range_handle,
                    launch_with,
                    stream_id,
                    name_of,
                    _library: library,
                })
            }
        }
    };
}

driver! {
    init: "cuInit", "hipInit", (c_uint);
    version: "cuDriverGetVersion", "hipDriverGetVersion", (*mut c_int);
    device_count: "cuDeviceGetCount", "hipGetDeviceCount", (*mut c_int);
    device_get: "cuDeviceGet", "hipDeviceGet", (*mut c_int, c_int);
    device_name: "cuDeviceGetName", "hipDeviceGetName", (*mut c_char, c_int, c_int);
    device_bus: "cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId", (*mut c_char, c_int, c_int);
    device_uuid: "cuDeviceGetUuid_v2", "hipDeviceGetUuid", (*mut [u8; 16], c_int);
    device_attribute: "cuDeviceGetAttribute", "hipDeviceGetAttribute", (*mut c_int, c_int, c_int);
    can_access_peer: "cuDeviceCanAccessPeer", "hipDeviceCanAccessPeer", (*mut c_int, c_int, c_int);
    context_retain: "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain", (*mut Handle, c_int);
    context_current: "cuCtxGetCurrent", "hipCtxGetCurrent", (*mut Handle);
    context_push: "cuCtxPushCurrent_v2", "hipCtxPushCurrent", (Handle);
    context_pop: "cuCtxPopCurrent_v2", "hipCtxPopCurrent", (*mut Handle);
    context_device: "cuCtxGetDevice", "hipCtxGetDevice", (*mut c_int);
    enable_peer: "cuCtxEnablePeerAccess", "hipCtxEnablePeerAccess", (Handle, c_uint);
    alloc: "cuMemAlloc_v2", "hipMalloc", (*mut Address, usize);
    free: "cuMemFree_v2", "hipFree", (Address);
    host_alloc: "cuMemHostAlloc", "hipHostMalloc", (*mut *mut c_void, usize, c_uint);
    host_free: "cuMemFreeHost", "hipHostFree", (*mut c_void);
    host_address: "cuMemHostGetDevicePointer_v2", "hipHostGetDevicePointer", (*mut Address, *mut c_void, c_uint);
    set_bytes: "cuMemsetD8Async", "hipMemsetD8Async", (Address, u8, usize, Handle);
    copy_async: "cuMemcpyAsync", "hipMemcpyDtoDAsync", (Address, Address, usize, Handle);
    copy_to_device: "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", (Address, *const c_void, usize, Handle);
    copy_to_host: "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (*mut c_void, Address, usize, Handle);
    address_range: "cuMemGetAddressRange_v2", "hipMemGetAddressRange", (*mut Address, *mut usize, Address);
    pointer_attribute: "cuPointerGetAttribute", "hipPointerGetAttribute", (*mut c_void, c_int, Address);
    ipc_export: "cuIpcGetMemHandle", "hipIpcGetMemHandle", (*mut IpcHandle, Address);
    ipc_open: "cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle", (*mut Address, IpcHandle, c_uint);
    ipc_close: "cuIpcCloseMemHandle", "hipIpcCloseMemHandle", (Address);
    module_load: "cuModuleLoadDataEx", "hipModuleLoadDataEx",
        (*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    module_function: "cuModuleGetFunction", "hipModuleGetFunction", (*mut Handle, Handle, *const c_char);
    launch: "cuLaunchKernel", "hipModuleLaunchKernel",
        (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    stream_create: "cuStreamCreate", "hipStreamCreateWithFlags", (*mut Handle, c_uint);
    stream_destroy: "cuStreamDestroy_v2", "hipStreamDestroy", (Handle);
    stream_synchronize: "cuStreamSynchronize", "hipStreamSynchronize", (Handle);
    stream_wait_event: "cuStreamWaitEvent", "hipStreamWaitEvent", (Handle, Handle, c_uint);
    stream_capturing: "cuStreamIsCapturing", "hipStreamIsCapturing", (Handle, *mut c_int);
    capture_mode: "cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode", (*mut c_int);
    event_create: "cuEventCreate", "hipEventCreateWithFlags", (*mut Handle, c_uint);
    event_destroy: "cuEventDestroy_v2", "hipEventDestroy", (Handle);
    event_record: "cuEventRecord", "hipEventRecord", (Handle, Handle);
    event_query: "cuEventQuery", "hipEventQuery", (Handle);
}

impl Driver {
    /// Opens a vendor's driver: the library at `path`, or the one of the system.
    pub(crate) fn open(vendor: Vendor, path: Option<&str>) -> Result<Self, FfiError> {
        let library = match path {
            Some(path) => open(vendor.library(), &[path])?,
            None => open(vendor.library(), vendor.names())?,
        };
        Self::load(vendor, library)
    }

    /// Whose it is.
    pub(crate) fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The driver's name of an error.
    pub(crate) fn error_name(&self, code: c_int) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: `name` is a place for a pointer to a constant string, or null.
        let found = unsafe { (self.name_of)(code, &raw mut name) };
        if found != 0 || name.is_null() {
            return format!("code {code}");
        }
        // SAFETY: the driver's names are constant strings.
        let name = unsafe { CStr::from_ptr(name) };
        format!("{} ({code})", name.to_string_lossy())
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("vendor", &self.vendor).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn structures_are_those_of_the_header() {
        assert_eq!((size_of::<LaunchAttribute>(), size_of::<LaunchValue>()), (72, 64));
        assert_eq!(std::mem::offset_of!(LaunchAttribute, value), 8);
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(std::mem::offset_of!(LaunchConfig, stream), 32);
        assert_eq!(std::mem::offset_of!(LaunchConfig, attribute_count), 48);
    }
}

//! RDMA verbs: `libibverbs.so.1`, opened when it is there, behind types that own what they hold.
//!
//! ```text
//! Verbs ◄── Device ◄── Context ◄─┬─ Pd ◄──┬─ Mr ◄── Part (a range of it)
//!                                │        ├─ Srq
//!                                ├─ Cq ◄──┴─ Qp (a reliable connection)
//!                                └─ CompletionChannel ◄── Cq
//! ```
//!
//! *Invariant:* arrows are `Arc`s, so nothing goes before what stands on it. Posting is safe: the
//! adapter reaches memory by the keys of registrations only, and memory is promised to whoever
//! registers it ([`Pd::register`]) until the registration is dropped. What adapters write is read
//! through atomics and raw copies, as memory of other processes is.

#![allow(unsafe_code, reason = "function pointers into libibverbs and what they hand out")]
#![allow(
    dead_code,
    unused_imports,
    reason = "verbs as a whole: shared queues, states and keys are used by the tests on real devices alone"
)]

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::path::Path as FilePath;
use std::sync::Arc;

use libloading::Library;

use super::{FfiError, function, open};

mod abi;
mod completion;
mod context;
mod memory;
mod queue_pair;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use completion::{Completion, CompletionChannel, Cq};
pub(crate) use context::{
    AsyncEvent, Context, Device, EventKind, Gid, GidEntry, GidKind, Limits, LinkLayer, Port,
    PortState, Transport,
};
pub(crate) use memory::{Access, ForeignMemory, Memory, Mr, Part, Pd};
pub(crate) use queue_pair::{
    Capacity, Flags, Mtu, Operation, Path, Qp, QpState, Remote, Request, Srq,
};
pub(crate) use status::Status;

const NAME: &str = "libibverbs";

/// Where the kernel's verbs devices are.
const DEVICE_FOLDER: &str = "/dev/infiniband";

/// Why verbs cannot be used, or a call of them failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum VerbsError {
    /// The library is not there, or too old.
    #[error(
        "{0}; install it: Debian and Ubuntu libibverbs1 and ibverbs-providers, RHEL and its kin libibverbs"
    )]
    Library(#[from] FfiError),
    /// The kernel has no RDMA devices at all.
    #[error(
        "this machine has no RDMA device: {0}; load the adapter's driver (mlx5_ib, bnxt_re, irdma, …) and ib_uverbs"
    )]
    NoDevice(String),
    /// The kernel has devices, and the library lists none of them.
    #[error("the kernel has RDMA devices ({devices}), but libibverbs lists none: {hint}")]
    Unlisted {
        devices: String,
        /// Why, and what to do about it.
        hint: &'static str,
    },
    /// A call failed.
    #[error("{call} on {device} failed: {why}{hint}")]
    Call {
        call: &'static str,
        /// The device, and the port where that matters.
        device: String,
        why: String,
        /// Error number of the system.
        code: i32,
        /// What to do about it, after a semicolon; or nothing.
        hint: &'static str,
    },
}

impl VerbsError {
    fn call(call: &'static str, device: impl fmt::Display, code: i32, hint: &'static str) -> Self {
        let why = io::Error::from_raw_os_error(code).to_string();
        Self::Call { call, device: device.to_string(), why, code, hint }
    }

    /// A call that sets `errno` failed just now.
    fn last(call: &'static str, device: impl fmt::Display, hint: &'static str) -> Self {
        let code = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::call(call, device, code, hint)
    }

    /// Error number of the system, where a call failed.
    pub(crate) fn code(&self) -> Option<i32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            Self::Library(_) | Self::NoDevice(_) | Self::Unlisted { .. } => None,
        }
    }
}

macro_rules! library {
    (needed { $($field:ident: $symbol:literal, ($($argument:ty),*) $(-> $result:ty)?;)* }
     optional { $($maybe:ident: $other:literal, ($($more:ty),*) $(-> $gives:ty)?;)* }) => {
        /// The library's functions, and the library they are in.
        pub(crate) struct Verbs {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $($maybe: Option<unsafe extern "C" fn($($more),*) $(-> $gives)?>,)*
            // Dropped last: fields go in order.
            _library: Library,
        }

        impl Verbs {
            fn load(library: Library) -> Result<Self, FfiError> {
                $(
                    // SAFETY: the type is that of infiniband/verbs.h, whose default symbol versions are
                    // kept for ever; the pointer goes with the library.
                    let $field = unsafe { function(&library, NAME, $symbol)? };
                )*
                $(
                    // SAFETY: as above.
                    let $maybe = unsafe { function(&library, NAME, $other).ok() };
                )*
                Ok(Self { $($field,)* $($maybe,)* _library: library })
            }
        }
    };
}

library! {
    needed {
        get_device_list: "ibv_get_device_list", (*mut c_int) -> *mut *mut abi::Device;
        free_device_list: "ibv_free_device_list", (*mut *mut abi::Device);
        get_device_guid: "ibv_get_device_guid", (*mut abi::Device) -> u64;
        open_device: "ibv_open_device", (*mut abi::Device) -> *mut abi::Context;
        close_device: "ibv_close_device", (*mut abi::Context) -> c_int;
        query_device: "ibv_query_device", (*mut abi::Context, *mut abi::DeviceAttributes) -> c_int;
        query_port: "ibv_query_port", (*mut abi::Context, u8, *mut abi::PortAttributes) -> c_int;
        query_gid: "ibv_query_gid", (*mut abi::Context, u8, c_int, *mut abi::RawGid) -> c_int;
        query_pkey: "ibv_query_pkey", (*mut abi::Context, u8, c_int, *mut u16) -> c_int;
        get_async_event: "ibv_get_async_event", (*mut abi::Context, *mut abi::AsyncEvent) -> c_int;
        ack_async_event: "ibv_ack_async_event", (*mut abi::AsyncEvent);
        alloc_pd: "ibv_alloc_pd", (*mut abi::Context) -> *mut abi::Pd;
        dealloc_pd: "ibv_dealloc_pd", (*mut abi::Pd) -> c_int;
        reg_mr: "ibv_reg_mr", (*mut abi::Pd, *mut c_void, usize, c_int) -> *mut abi::Mr;
        dereg_mr: "ibv_dereg_mr", (*mut abi::Mr) -> c_int;
        create_comp_channel: "ibv_create_comp_channel", (*mut abi::Context) -> *mut abi::CompletionChannel;
        destroy_comp_channel: "ibv_destroy_comp_channel", (*mut abi::CompletionChannel) -> c_int;
        create_cq: "ibv_create_cq",
            (*mut abi::Context, c_int, *mut c_void, *mut abi::CompletionChannel, c_int) -> *mut abi::Cq;
        destroy_cq: "ibv_destroy_cq", (*mut abi::Cq) -> c_int;
        get_cq_event: "ibv_get_cq_event",
            (*mut abi::CompletionChannel, *mut *mut abi::Cq, *mut *mut c_void) -> c_int;
        ack_cq_events: "ibv_ack_cq_events", (*mut abi::Cq, u32);
        create_srq: "ibv_create_srq", (*mut abi::Pd, *mut abi::SrqInit) -> *mut abi::Srq;
        destroy_srq: "ibv_destroy_srq", (*mut abi::Srq) -> c_int;
        create_qp: "ibv_create_qp", (*mut abi::Pd, *mut abi::QpInit) -> *mut abi::Qp;
        modify_qp: "ibv_modify_qp", (*mut abi::Qp, *mut abi::QpAttributes, c_int) -> c_int;
        query_qp: "ibv_query_qp", (*mut abi::Qp, *mut abi::QpAttributes, c_int, *mut abi::QpInit) -> c_int;
        destroy_qp: "ibv_destroy_qp", (*mut abi::Qp) -> c_int;
    }
    optional {
        fork_init: "ibv_fork_init", () -> c_int;
        reg_mr_iova2: "ibv_reg_mr_iova2", (*mut abi::Pd, *mut c_void, usize, u64, u32) -> *mut abi::Mr;
        reg_dmabuf_mr: "ibv_reg_dmabuf_mr", (*mut abi::Pd, u64, usize, u64, c_int, c_int) -> *mut abi::Mr;
        query_gid_table: "_ibv_query_gid_table",
            (*mut abi::Context, *mut abi::GidEntry, usize, u32, usize) -> isize;
    }
}

impl Verbs {
    /// Opens the library.
    pub(crate) fn open() -> Result<Arc<Self>, VerbsError> {
        let verbs = Self::load(open(NAME, &["libibverbs.so.1"])?)?;
        if let Some(fork_init) = verbs.fork_init {
            // Where the kernel does not copy pinned pages at a fork, the library must keep children
            // from them; an older library that cannot is as good as one without the call.
            // SAFETY: it takes nothing, and nothing is registered yet by this handle of the library.
            let _code = unsafe { fork_init() };
        }
        Ok(Arc::new(verbs))
    }

    /// Every RDMA device this process sees, in the library's order.
    pub(crate) fn devices(self: &Arc<Self>) -> Result<Vec<Device>, VerbsError> {
        Device::list(self)
    }

    /// Whether memory can be registered by a dma-buf, as far as the library goes.
    pub(crate) fn has_dmabuf(&self) -> bool {
        self.reg_dmabuf_mr.is_some()
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").finish_non_exhaustive()
    }
}

/// Names in a folder; none where there is none.
fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Why the library lists no device: there is none, or it may not see those that are there.
fn none_listed() -> VerbsError {
    let devices = names("/sys/class/infiniband");
    if devices.is_empty() {
        return VerbsError::NoDevice("the kernel lists none".to_owned());
    }
    let files = names(DEVICE_FOLDER);
    let hint = if files.iter().any(|name| name.starts_with("uverbs")) {
        "no provider knows them; install ibverbs-providers, or the maker's"
    } else {
        "their /dev/infiniband/uverbs* are not here; load ib_uverbs, or give them to the container (--device=/dev/infiniband, or an RDMA device plugin)"
    };
    VerbsError::Unlisted { devices: devices.join(", "), hint }
}

/// What to do when a device of the kernel's cannot be opened.
fn open_hint(code: i32) -> &'static str {
    if !FilePath::new(DEVICE_FOLDER).exists() {
        return "; there is no /dev/infiniband: load ib_uverbs, or give it to the container (--device=/dev/infiniband, or an RDMA device plugin)";
    }
    match code {
        libc::EACCES | libc::EPERM => {
            "; this user may not open it: see the modes of /dev/infiniband/uverbs*"
        }
        libc::ENOENT | libc::ENODEV | libc::ENXIO => {
            "; its /dev/infiniband/uverbs* is not here: give it to the container"
        }
        libc::ENOSYS => "; its provider is missing: install ibverbs-providers, or the maker's",
        _ => "",
    }
}

/// A C string in a buffer of the library's, ended by a zero or by the buffer.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> =
        buffer.iter().take_while(|byte| **byte != 0).map(|byte| byte.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

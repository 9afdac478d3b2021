//! The types and codes of nccl.h, to the byte.
//!
//! The header of this crate (`include/nccl.h`) says the same in C; `tests/` compares the two.

use std::ffi::{c_char, c_int, c_uint};

use ringway::{DataType, Error, ErrorKind};

/// The version of NCCL's interface this library has: X·10000 + Y·100 + Z.
pub(crate) const VERSION: c_int = 22809;

/// The word in structures that were made by their initializer.
pub(crate) const API_MAGIC: u32 = 0xcafe_beef;

/// The word in an `ncclSimInfo_t` that was made by its initializer.
pub(crate) const SIM_INFO_MAGIC: u32 = 0x7468_5283;

/// A field of a configuration that was not set.
pub(crate) const UNDEF_INT: c_int = c_int::MIN;

/// The color of a rank that takes no part in a split.
pub(crate) const SPLIT_NOCOLOR: c_int = -1;

/// Shrinking stops what is under way first.
pub(crate) const SHRINK_ABORT: c_int = 1;

/// The first reduction that a program made itself.
pub(crate) const NUM_OPS: c_int = 5;

/// `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Success = 0,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
}

impl From<&Error> for Code {
    /// A deadline is `ncclRemoteError`: `ncclTimeout` is newer than the version this library
    /// claims, and programs stop at codes they do not know.
    fn from(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::System => Self::SystemError,
            ErrorKind::InvalidArgument => Self::InvalidArgument,
            ErrorKind::InvalidUsage => Self::InvalidUsage,
            ErrorKind::Remote | ErrorKind::Timeout => Self::RemoteError,
            _ => Self::InternalError,
        }
    }
}

/// The text of a code, as `ncclGetErrorString` gives it.
pub(crate) fn error_string(code: c_int) -> &'static std::ffi::CStr {
    match code {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the developers of ringway",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    }
}

/// The element type of an `ncclDataType_t`.
pub(crate) fn data_type(number: c_int) -> Result<DataType, Error> {
    let known = usize::try_from(number).ok().and_then(|number| DataType::ALL.get(number));
    known.copied().ok_or_else(|| {
        Error::argument(format!("data type {number} does not exist; types are 0 to 11"))
    })
}

/// `ncclUniqueId`, which C passes by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct UniqueIdBytes {
    pub(crate) internal: [u8; 128],
}

/// `ncclSimInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SimInfo {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) estimated_time: f32,
}

/// `ncclTeam_t` of the device interface, which C gets by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Team {
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}

const _: () = assert!(size_of::<UniqueIdBytes>() == 128);
const _: () = assert!(size_of::<SimInfo>() == 24);
const _: () = assert!(size_of::<Team>() == 12);
const _: () = assert!(size_of::<*const c_char>() == 8, "the layouts are those of LP64");

//! Versions, errors, and what a communicator is.

use std::ffi::{c_char, c_int};

use super::{exports, exports_plain};
use crate::boundary::last_error;
use crate::comm::{Comm, Token};
use crate::raw::Out;
use crate::types::{Code, VERSION, error_string};

fn number(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

exports! {
    fn ncclGetVersion / pncclGetVersion(version: Out<c_int>) {
        version.put("version", VERSION)?;
        Ok(Code::Success)
    }

    fn ncclCommCount / pncclCommCount(comm: *const Token, count: Out<c_int>) {
        count.put("count", number(Comm::find(comm)?.size))?;
        Ok(Code::Success)
    }

    fn ncclCommUserRank / pncclCommUserRank(comm: *const Token, rank: Out<c_int>) {
        rank.put("rank", number(Comm::find(comm)?.rank))?;
        Ok(Code::Success)
    }

    fn ncclCommCuDevice / pncclCommCuDevice(comm: *const Token, device: Out<c_int>) {
        device.put("device", Comm::find(comm)?.device)?;
        Ok(Code::Success)
    }

    fn ncclCommGetAsyncError / pncclCommGetAsyncError(comm: *const Token, error: Out<c_int>) {
        error.check("asyncError")?;
        error.put("asyncError", Comm::find(comm)?.async_error() as c_int)?;
        Ok(Code::Success)
    }
}

exports_plain! {
    fn ncclGetErrorString / pncclGetErrorString(code: c_int)
        -> *const c_char, or std::ptr::null() => error_string(code).as_ptr();

    /// The communicator is not looked at: the text is the process's.
    fn ncclGetLastError / pncclGetLastError(_comm: *const Token)
        -> *const c_char, or std::ptr::null() => last_error();

    fn ncclResetDebugInit / pncclResetDebugInit() => tracing::warn!(
        target: "ringway",
        "ncclResetDebugInit has no effect: NCCL_DEBUG is read once, when the library is first used"
    );
}

//! Communicators go: finalized, destroyed, aborted, revoked.

use std::sync::Arc;
use std::time::Duration;

use ringway::{Error, Result};

use crate::comm::{Comm, Phase, Token, bury};
use crate::group;

/// A call that is under way ends by its own deadline; there is no sense in waiting less for it.
const CALLS_END: Duration = Duration::from_secs(8 * 24 * 3600);

/// A call that was given up ends within a second; ten are a bug.
const ABORTED_CALLS_END: Duration = Duration::from_secs(10);

/// To give GPU memory back a driver waits for all that the program has on that GPU: for kernels of another communicator, say,
/// which is given up next.
const RELEASE: Duration = Duration::from_secs(1);

/// `ncclCommFinalize`: what is under way ends, nothing new begins.
pub(crate) fn finalize(handle: *const Token) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    let comm = Comm::find(handle)?;
    match comm.phase() {
        Phase::Finalized => return Err(Error::argument("the communicator was finalized before")),
        Phase::Revoked => {
            return Err(Error::argument("a revoked communicator cannot be finalized; destroy it"));
        }
        // What was under way of it was stopped on purpose.
        Phase::Shrunk => {}
        _ => comm.check_callable()?,
    }
    group::add_ending(Box::new(move || {
        comm.wait_idle(CALLS_END);
        comm.enter_phase(Phase::Finalized);
        Ok(())
    }));
    Ok(())
}

/// `ncclCommDestroy`.
pub(crate) fn destroy(handle: *const Token) -> Result<()> {
    if handle.is_null() || bury(handle) {
        return Ok(());
    }
    let comm = Comm::find(handle)?;
    group::add_ending(Box::new(move || {
        comm.wait_idle(CALLS_END);
        comm.enter_phase(Phase::Finalized);
        comm.forget(false);
        comm.release();
        Ok(())
    }));
    Ok(())
}

/// `ncclCommAbort`: at once, whatever other threads are doing. The handle stays, for
/// `ncclCommDestroy` alone.
pub(crate) fn abort(handle: *const Token) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    let comm = Comm::find(handle)?;
    group::drop_operations(&comm);
    comm.forget(true);
    stop(&comm, Phase::Aborted, "ncclCommAbort was called");
    let over = comm.wait_calls(ABORTED_CALLS_END);
    comm.release_within(RELEASE);
    if over { Ok(()) } else { Err(stuck()) }
}

/// `ncclCommRevoke`: as abort, but the handle lives on, to be shrunk or destroyed.
pub(crate) fn revoke(comm: &Arc<Comm>, flags: std::ffi::c_int) -> Result<()> {
    if flags != 0 {
        return Err(Error::argument(format!("revokeFlags is {flags}; it must be 0")));
    }
    match comm.phase() {
        Phase::Starting | Phase::Ready | Phase::Shrunk => {}
        Phase::Finalized => return Err(Error::argument("the communicator is finalized")),
        Phase::Revoked => return Err(Error::argument("the communicator was revoked before")),
        Phase::Aborted => return Err(Error::usage("the communicator was aborted")),
    }
    stop(comm, Phase::Revoked, "ncclCommRevoke was called");
    if comm.settings.blocking && !comm.wait_calls(ABORTED_CALLS_END) {
        return Err(stuck());
    }
    Ok(())
}

fn stop(comm: &Comm, phase: Phase, why: &str) {
    if let Some(communicator) = comm.enter_phase(phase) {
        communicator.abort(why);
    }
}

fn stuck() -> Error {
    Error::internal(format!(
        "a call on the communicator has not ended {} s after it was given up",
        ABORTED_CALLS_END.as_secs()
    ))
}

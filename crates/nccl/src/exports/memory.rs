//! Memory, and what is registered of it.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use ringway::{Error, Result};

use super::exports;
use crate::comm::{Comm, Token};
use crate::memory;
use crate::raw::Out;
use crate::registered::{Kind, Registered};
use crate::types::Code;

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

fn with_registered<T>(
    comm: *const Token,
    body: impl FnOnce(&mut Registered) -> Result<T>,
) -> Result<T> {
    let comm = Comm::find(comm)?;
    let mut registered = comm.registered.lock().unwrap_or_else(PoisonError::into_inner);
    body(&mut registered)
}

exports! {
    fn ncclMemAlloc / pncclMemAlloc(out: Out<*mut c_void>, bytes: usize) {
        out.check("ptr")?;
        out.put("ptr", pointer(memory::allocate(bytes)?))?;
        Ok(Code::Success)
    }

    fn ncclMemFree / pncclMemFree(address: *const c_void) {
        memory::free(address.expose_provenance())?;
        Ok(Code::Success)
    }

    fn ncclCommRegister / pncclCommRegister(
        comm: *const Token, buffer: *const c_void, bytes: usize, handle: Out<*mut c_void>,
    ) {
        handle.check("handle")?;
        let address = buffer.expose_provenance();
        let made = with_registered(comm, |all| all.add(Kind::Buffer, address, bytes))?;
        handle.put("handle", pointer(made))?;
        Ok(Code::Success)
    }

    fn ncclCommDeregister / pncclCommDeregister(comm: *const Token, handle: *const c_void) {
        with_registered(comm, |all| all.remove(Kind::Buffer, handle.addr()))?;
        Ok(Code::Success)
    }

    fn ncclCommWindowRegister / pncclCommWindowRegister(
        comm: *const Token, buffer: *const c_void, bytes: usize, window: Out<*mut c_void>, flags: c_int,
    ) {
        window.check("win")?;
        if !(0..16).contains(&flags) {
            return Err(Error::argument(format!("winFlags is {flags:#x}, which has unknown flags")));
        }
        let address = buffer.expose_provenance();
        let made = with_registered(comm, |all| all.add(Kind::Window, address, bytes))?;
        window.put("win", pointer(made))?;
        Ok(Code::Success)
    }

    fn ncclCommWindowDeregister / pncclCommWindowDeregister(
        comm: *const Token, window: *const c_void,
    ) {
        with_registered(comm, |all| all.remove(Kind::Window, window.addr()))?;
        Ok(Code::Success)
    }

    fn ncclWinGetUserPtr / pncclWinGetUserPtr(
        comm: *const Token, window: *const c_void, out: Out<*mut c_void>,
    ) {
        out.check("outUserPtr")?;
        let address = with_registered(comm, |all| all.address(Kind::Window, window.addr()))?;
        out.put("outUserPtr", pointer(address))?;
        Ok(Code::Success)
    }

    /// GPU memory that a communicator takes for itself.
    fn ncclCommMemStats / pncclCommMemStats(comm: *const Token, stat: c_int, value: Out<u64>) {
        /// `ncclStatGpuMemPersist`, the first of the two that are not of what can be suspended.
        const PERSISTS: c_int = 2;
        let comm = Comm::find(comm)?;
        if !(0..4).contains(&stat) {
            return Err(Error::argument(format!("stat {stat} does not exist; they are 0 to 3")));
        }
        let held = if stat >= PERSISTS { comm.communicator()?.device_bytes() } else { 0 };
        value.put("value", held)?;
        Ok(Code::Success)
    }
}

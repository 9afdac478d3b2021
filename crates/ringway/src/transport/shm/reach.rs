//! Reading a peer's buffers where they lie: the kernel copies from process to process.
//!
//! Whether it may is tried when ranks meet: it takes the right to trace the peer (the same user, and
//! no security module, container or namespace in between).
//!
//! **Invariant:** what is read comes from the process that was met. Its number may be given to
//! another once it has died, so after every read it must still be alive.

#![allow(unsafe_code, reason = "copies into the buffers of a call")]

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use super::Segment;
use crate::os;

/// A way into the memory of a peer.
#[derive(Debug)]
pub(crate) struct Reach(Process);

#[derive(Debug)]
enum Process {
    /// Ranks that are threads of one process.
    Own,
    Other {
        pid: Pid,
        alive: OwnedFd,
    },
}

impl Reach {
    /// Memory of this process.
    pub(crate) fn own() -> Self {
        Self(Process::Own)
    }

    /// The memory of `pid`, which owns `segment`, if the kernel lets us read it; else why not.
    pub(crate) fn open(pid: Option<Pid>, segment: &Segment) -> Result<Self, String> {
        let pid = pid.ok_or("its process is not visible from here (another PID namespace)")?;
        if pid == rustix::process::getpid() {
            return Ok(Self::own());
        }
        let alive = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|error| format!("process {pid} cannot be watched: {error}"))?;
        let reach = Self(Process::Other { pid, alive });
        let (address, token) = segment.probe();
        let mut found = [0_u8; 8];
        // SAFETY: `found` has 8 bytes.
        unsafe { reach.read(address, found.as_mut_ptr(), 8) }.map_err(|error| {
            format!("{error} (is kernel.yama.ptrace_scope above 1, or process_vm_readv forbidden?)")
        })?;
        match u64::from_ne_bytes(found) == token {
            true => Ok(reach),
            false => Err(format!("process {pid} is not the one that was met")),
        }
    }

    /// Copies `bytes` bytes at `address` of the peer to `target`.
    ///
    /// # Safety
    /// `target` must have room for them, and nobody else may touch it meanwhile. In one process
    /// (threads as ranks) so must `address` be valid, and nobody may write there.
    pub(super) unsafe fn read(
        &self,
        address: u64,
        target: *mut u8,
        bytes: usize,
    ) -> Result<(), String> {
        let Process::Other { pid, alive } = &self.0 else {
            let source = std::ptr::with_exposed_provenance::<u8>(
                usize::try_from(address).expect("an address of this process"),
            );
            // SAFETY: the caller's promise; `copy`, as a rank may read what it shares with itself.
            unsafe { std::ptr::copy(source, target, bytes) };
            return Ok(());
        };
        // SAFETY: the caller's promise.
        unsafe { os::read_process(*pid, address, target, bytes) }
            .map_err(|error| format!("the memory of process {pid} cannot be read: {error}"))?;
        let mut ended = [PollFd::new(alive, PollFlags::IN)];
        let at_once = rustix::time::Timespec::default();
        match rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&at_once))) {
            Ok(0) => Ok(()),
            _ => Err(format!("process {pid} has ended")),
        }
    }
}

//! The bell of a rank: an eventfd that wakes it when it sleeps in the kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::EventfdFlags;

use crate::error::{Error, Result};

/// A handle by which somebody can be woken; peers hold copies of it.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|fd| Self(Arc::new(fd)))
            .map_err(|e| Error::system("cannot create an eventfd", e))
    }

    /// The bell whose descriptor a peer has passed.
    pub(crate) fn from_descriptor(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    /// Wakes the owner, now or when it next goes to sleep.
    pub(crate) fn ring(&self) {
        // A full counter (2^64 - 2 rings unheard) means that the owner will wake anyway.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets past rings.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.0, &mut count);
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

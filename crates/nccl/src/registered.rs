//! Buffers and windows a program has registered with a communicator.
//!
//! Registration lets a library prepare for buffers; calls on buffers that were not registered work
//! as well. On host memory there is nothing to prepare: what was registered is kept in a list, so that
//! a wrong handle is an error and `ncclWinGetUserPtr` has its answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringway::{Error, Result};

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Buffer,
    Window,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Buffer => "registered buffer",
            Self::Window => "window",
        }
    }
}

/// The handles of one communicator.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    /// By handle: what it is, and the address of the memory.
    all: HashMap<usize, (Kind, usize)>,
}

/// Handles made in this process: those of two communicators are never the same.
static MADE: AtomicUsize = AtomicUsize::new(0);

impl Registered {
    /// A handle for memory at this address. Handles look like addresses, but are none.
    pub(crate) fn add(&mut self, kind: Kind, address: usize, bytes: usize) -> Result<usize> {
        if address == 0 || bytes == 0 {
            return Err(Error::argument(format!(
                "a {} needs memory: {bytes} bytes at {address:#x}",
                kind.name()
            )));
        }
        let handle = (MADE.fetch_add(1, Ordering::Relaxed) + 1) << 4;
        self.all.insert(handle, (kind, address));
        Ok(handle)
    }

    /// The address behind a handle.
    pub(crate) fn address(&self, kind: Kind, handle: usize) -> Result<usize> {
        let found = self.all.get(&handle).filter(|(found, _)| *found == kind);
        found.map(|(_, address)| *address).ok_or_else(|| {
            Error::argument(format!("{handle:#x} is no {} of this communicator", kind.name()))
        })
    }

    /// Ends a registration.
    pub(crate) fn remove(&mut self, kind: Kind, handle: usize) -> Result<()> {
        self.address(kind, handle)?;
        self.all.remove(&handle);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_handles_are_errors() {
        let mut all = Registered::default();
        let buffer = all.add(Kind::Buffer, 0x1000, 16).unwrap();
        let window = all.add(Kind::Window, 0x2000, 16).unwrap();
        assert_eq!(all.address(Kind::Window, window).unwrap(), 0x2000);
        assert!(all.remove(Kind::Window, buffer).is_err());
        all.remove(Kind::Buffer, buffer).unwrap();
        assert!(all.remove(Kind::Buffer, buffer).is_err());
        assert!(all.add(Kind::Buffer, 0, 16).is_err());
        assert!(all.add(Kind::Window, 0x3000, 0).is_err());
    }
}

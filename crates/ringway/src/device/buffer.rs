//! Device memory and streams for whoever has no library of its own for them: tests, measurements, the
//! C ABI's allocator.

use std::ffi::c_void;
use std::sync::Arc;

use super::gpu::{DeviceMemory, Gpu, OwnStream, Stream};
use crate::error::{Error, Result};

/// Device memory, filled with zeros, given back when dropped.
#[derive(Debug)]
pub struct Buffer {
    gpu: Arc<Gpu>,
    memory: DeviceMemory,
}

impl Buffer {
    /// So many bytes on a GPU.
    ///
    /// # Errors
    /// The GPU has no memory left.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        Ok(Self { memory: gpu.alloc(bytes)?, gpu: Arc::clone(gpu) })
    }

    /// The device address.
    #[must_use]
    pub fn address(&self) -> *mut c_void {
        let address = usize::try_from(self.memory.address()).unwrap_or(0);
        std::ptr::with_exposed_provenance_mut(address)
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<u64> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes()) {
            return Ok(self.memory.address() + offset as u64);
        }
        let whole = self.bytes();
        Err(Error::argument(format!("bytes {offset}+{bytes} of a device buffer of {whole}")))
    }

    /// Copies bytes to the device, and waits for it.
    ///
    /// # Errors
    /// They do not fit, or the driver refuses.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = self.check(offset, bytes.len())?;
        Ok(self.gpu.write(to, bytes)?)
    }

    /// Copies bytes from the device, and waits for it. What streams have not come past is not in them.
    ///
    /// # Errors
    /// There are not so many, or the driver refuses.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let from = self.check(offset, bytes.len())?;
        Ok(self.gpu.read(bytes, from)?)
    }
}

/// A stream that waits for no other.
#[derive(Debug)]
pub struct DeviceStream(OwnStream);

impl DeviceStream {
    /// A new stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self(gpu.stream()?))
    }

    /// What calls are enqueued on.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.0.stream()
    }

    /// Waits until it is done with everything.
    ///
    /// # Errors
    /// The driver refuses, or a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.0.finish()?)
    }
}

//! Memory of a GPU that network adapters may reach by themselves.
//!
//! *Invariant:* bytes of it are reached by the driver's copies and by adapters, never by a reference.

#![allow(unsafe_code, reason = "calls into the driver by pointers")]

use std::ffi::c_int;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use super::{DeviceMemory, Fault, Gpu};
use crate::error::{Error, Result};
use crate::ffi::cuda::{Address, Vendor};
use crate::ffi::verbs::ForeignMemory;

/// The GPU's large pages: what is taken in whole ones shares none with other memory, and begins at a page of the host's,
/// where a dma-buf must.
const PAGE: usize = 2 << 20;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: c_int = 1;
/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const HAS_DMA_BUF: c_int = 124;

/// GPU memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct DirectMemory {
    memory: DeviceMemory,
}

// SAFETY: the driver gave the memory for as long as `memory` lives, and only copies reach it.
unsafe impl ForeignMemory for DirectMemory {
    fn range(&self) -> (u64, usize) {
        (self.memory.address(), self.memory.bytes())
    }

    fn fetch(&self, address: u64, target: &mut [u8]) -> std::result::Result<(), String> {
        self.read(self.offset(address), target).map_err(|error| error.to_string())
    }

    fn store(&self, address: u64, source: &[u8]) -> std::result::Result<(), String> {
        self.write(self.offset(address), source).map_err(|error| error.to_string())
    }
}

impl DirectMemory {
    /// Takes at least so many bytes, set to zero.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Arc<Self>> {
        let memory = gpu.alloc(bytes.max(1).next_multiple_of(PAGE))?;
        Ok(Arc::new(Self { memory }))
    }

    /// Where its GPU is on the PCI bus.
    pub(crate) fn bus_address(&self) -> &str {
        self.memory.gpu.bus_address()
    }

    /// `GPU 0 (NVIDIA H100 80GB HBM3, 0000:18:00.0)`.
    pub(crate) fn name(&self) -> String {
        let gpu = &self.memory.gpu;
        format!("GPU {} ({}, {})", gpu.ordinal(), gpu.name(), gpu.bus_address())
    }

    /// Copies bytes in, and waits for it.
    ///
    /// # Errors
    /// When they do not fit, or the driver refuses.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        Ok(self.memory.gpu.write(self.place(offset, from.len())?, from)?)
    }

    /// Copies bytes out, and waits for it.
    ///
    /// # Errors
    /// When there are not as many, or the driver refuses.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        Ok(self.memory.gpu.read(to, self.place(offset, to.len())?)?)
    }

    /// Where an address of the device's is in it; past its end for one that is not.
    fn offset(&self, address: Address) -> usize {
        let offset = address.checked_sub(self.memory.address());
        offset.and_then(|offset| usize::try_from(offset).ok()).unwrap_or(usize::MAX)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Where kernels find it.
    pub(crate) fn address(&self) -> Address {
        self.memory.address()
    }

    fn place(&self, offset: usize, bytes: usize) -> Result<Address> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.memory.bytes());
        if !inside {
            return Err(Error::internal(format!("{offset}+{bytes} is not in GPU memory")));
        }
        Ok(self.memory.address() + offset as u64)
    }

    /// A dma-buf of all of it; or why there is none, and what to do.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn dmabuf(&self) -> std::result::Result<OwnedFd, String> {
        let gpu = &self.memory.gpu;
        let words = |fault: Fault| fault.to_string();
        let Some(handle_of) = gpu.driver.range_handle else {
            return Err(match gpu.vendor() {
                Vendor::Nvidia => {
                    "the CUDA driver lacks cuMemGetHandleForAddressRange; it came with CUDA 11.7 (driver 515)"
                }
                Vendor::Amd => "it is not done for AMD GPUs yet",
            }
            .to_owned());
        };
        let (_context, _relaxed) = (gpu.enter().map_err(words)?, gpu.relax());
        let mut has: c_int = 0;
        // SAFETY: a place for an integer.
        let code = unsafe { (gpu.driver.device_attribute)(&raw mut has, HAS_DMA_BUF, gpu.device) };
        if code != 0 || has == 0 {
            return Err("the GPU's driver offers none (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0): it takes NVIDIA's open kernel modules and Linux 5.12".to_owned());
        }
        let mut number: RawFd = -1;
        let (address, bytes) = (self.memory.address(), self.memory.bytes());
        // SAFETY: a place for a descriptor; the range is this memory's own.
        let code = unsafe { handle_of((&raw mut number).cast(), address, bytes, DMA_BUF, 0) };
        if code != 0 || number < 0 {
            let name = gpu.driver.error_name(code);
            return Err(format!("cuMemGetHandleForAddressRange of {bytes} bytes: {name}"));
        }
        // SAFETY: the driver has just opened it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

#![allow(unsafe_code, reason = "gives C programs memory by address")]
//! Whose memory an address is in, and memory that programs ask for.
//!
//! One of the two places that know of GPUs, with `submit`: everything else passes addresses on.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

pub(crate) use ringway::device::Memory;
use ringway::device::{self, Buffer, Gpu};
use ringway::{Error, Result};

use crate::config;

/// What windows and registered memory are aligned to.
const PAGE_BYTES: usize = 4096;

/// The memory an address belongs to.
pub(crate) fn memory_of(address: usize) -> Memory {
    device::memory_of(std::ptr::with_exposed_provenance(address))
}

/// The device that this thread works with; 0 where there is none.
pub(crate) fn current_device() -> c_int {
    Gpu::current(&config::load()).unwrap_or(0)
}

/// How many GPUs there are to this process, where there is a driver.
pub(crate) fn device_count() -> Option<u32> {
    Gpu::count(&config::load()).ok().filter(|count| *count > 0)
}

/// The GPU that this thread works with.
pub(crate) fn current_gpu() -> Result<Arc<Gpu>> {
    let config = config::load();
    Gpu::at(&config, Gpu::current(&config)?)
}

#[derive(Debug)]
enum Allocation {
    Host(Layout),
    Device { _memory: Buffer },
}

static ALLOCATED: LazyLock<Mutex<HashMap<usize, Allocation>>> = LazyLock::new(Mutex::default);

fn allocated() -> MutexGuard<'static, HashMap<usize, Allocation>> {
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// New memory, zeroed and aligned to a page: on the GPU where there is one; 0 for no bytes.
pub(crate) fn allocate(bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Ok(0);
    }
    let config = config::load();
    if let Ok(ordinal) = Gpu::current(&config) {
        let memory = Buffer::new(&Gpu::at(&config, ordinal)?, bytes)?;
        let address = memory.address().expose_provenance();
        allocated().insert(address, Allocation::Device { _memory: memory });
        return Ok(address);
    }
    let layout = Layout::from_size_align(bytes, PAGE_BYTES)
        .map_err(|_| Error::argument(format!("{bytes} bytes do not fit the address space")))?;
    // SAFETY: the layout's size is not 0.
    let address = unsafe { alloc_zeroed(layout) };
    if address.is_null() {
        return Err(Error::system(format!("cannot allocate {bytes} bytes"), "out of memory"));
    }
    let address = address.expose_provenance();
    allocated().insert(address, Allocation::Host(layout));
    Ok(address)
}

/// Gives memory of [`allocate`] back.
pub(crate) fn free(address: usize) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    let allocation = allocated().remove(&address).ok_or_else(|| {
        Error::argument(format!("ncclMemFree({address:#x}): not allocated by ncclMemAlloc"))
    })?;
    let Allocation::Host(layout) = allocation else { return Ok(()) };
    // SAFETY: `allocate` made it with this layout, and it was taken off the list just now, so
    // nobody has freed it before.
    unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address), layout) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_freed_once() {
        let address = allocate(10_000).unwrap();
        assert!(address.is_multiple_of(PAGE_BYTES) && address != 0);
        assert_eq!(memory_of(address), Memory::Host);
        free(address).unwrap();
        assert!(free(address).unwrap_err().to_string().contains("not allocated"));
        assert_eq!(allocate(0).unwrap(), 0);
        free(0).unwrap();
        assert!(allocate(usize::MAX).is_err());
    }
}

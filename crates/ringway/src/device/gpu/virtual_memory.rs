//! Memory whose addresses and allocations are apart (cuMem): passed to other processes as descriptors, and
//! mapped from them.
//!
//! ```text
//! addresses    ├──────────────── reserved ────────────────┤     what a program grows its memory in
//! allocations  [ 20 MiB ][ 20 MiB ][ 2 MiB ]                    each a segment; a buffer may touch several
//! ```
//!
//! *Invariant:* what is mapped here is one run of addresses, unmapped and given back when dropped. No allocation of
//! somebody else's is held: that would keep its memory from being given back.

#![allow(unsafe_code, reason = "calls into the driver by pointers")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use super::{Fault, Gpu};
use crate::ffi::cuda::Address;
use crate::ffi::cuda::virtual_memory::{
    Access, Allocation, DESCRIPTOR, HAS_DESCRIPTORS, HAS_IT, Properties, VirtualMemory,
};

/// Segments of a buffer at most.
const SEGMENTS_MOST: usize = 1 << 16;

/// An allocation where it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::device) struct Segment {
    pub(in crate::device) base: Address,
    pub(in crate::device) bytes: usize,
    /// A number no other mapping ever had.
    pub(in crate::device) id: u64,
}

impl Segment {
    /// The address behind it.
    pub(in crate::device) fn end(&self) -> Address {
        self.base + self.bytes as u64
    }
}

impl Gpu {
    fn virtual_memory(&self) -> Result<&VirtualMemory, Fault> {
        let missing = || Fault::Other("the GPU's driver has no cuMem functions".to_owned());
        self.driver.virtual_memory.as_ref().ok_or_else(missing)
    }

    /// Says why memory cannot be passed as descriptors, where that is so.
    pub(in crate::device) fn check_descriptors(&self) -> Result<(), Fault> {
        self.virtual_memory()?;
        for (attribute, what) in
            [(HAS_IT, "cuMem memory"), (HAS_DESCRIPTORS, "descriptors of memory")]
        {
            let mut has: c_int = 0;
            // SAFETY: a place for an integer.
            let code =
                unsafe { (self.driver.device_attribute)(&raw mut has, attribute, self.device) };
            self.checked("reading an attribute of the GPU", code)?;
            if has == 0 {
                return Err(Fault::Other(format!("GPU {} has no {what}", self.ordinal)));
            }
        }
        Ok(())
    }

    /// The allocations behind the bytes at an address, in order.
    pub(in crate::device) fn segments(
        &self,
        address: Address,
        bytes: usize,
    ) -> Result<Vec<Segment>, Fault> {
        let _context = self.enter()?;
        let end = address + bytes as u64;
        let (mut all, mut at) = (Vec::new(), address);
        while at < end {
            let (base, bytes, id) = self.allocation(at)?;
            let segment = Segment { base, bytes, id };
            if segment.end() <= at || all.len() == SEGMENTS_MOST {
                return Err(Fault::Other(format!("no end of the memory at {address:#x}")));
            }
            at = segment.end();
            all.push(segment);
        }
        Ok(all)
    }

    /// A descriptor of the allocation that is mapped at `base`, for another process.
    pub(in crate::device) fn descriptor(&self, base: Address) -> Result<OwnedFd, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let functions = self.virtual_memory()?;
        let place: *mut c_void =
            std::ptr::with_exposed_provenance_mut(usize::try_from(base).unwrap_or(0));
        let (mut allocation, mut number): (Allocation, RawFd) = (0, -1);
        // SAFETY: a place for a handle; an address that is not of such memory is refused.
        let code = unsafe { (functions.retain)(&raw mut allocation, place) };
        self.checked("looking up an allocation", code)?;
        // SAFETY: the allocation was just retained; a descriptor is an integer.
        let code =
            unsafe { (functions.export)((&raw mut number).cast(), allocation, DESCRIPTOR, 0) };
        // SAFETY: it was retained above, and is not used again.
        unsafe { (functions.release)(allocation) };
        self.checked("making a descriptor of device memory", code)?;
        if number < 0 {
            return Err(Fault::Other("the driver gave no descriptor".to_owned()));
        }
        // SAFETY: the driver has just opened it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Maps allocations of another process one behind the other, with the bytes of each.
    pub(in crate::device) fn map(
        self: &Arc<Self>,
        parts: &[(OwnedFd, usize)],
    ) -> Result<Mapped, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let functions = self.virtual_memory()?;
        let mut mapped = self.reserve(parts.iter().map(|(_, bytes)| bytes).sum())?;
        for (descriptor, bytes) in parts {
            let number = usize::try_from(descriptor.as_raw_fd()).unwrap_or(usize::MAX);
            let mut allocation: Allocation = 0;
            // The driver takes the number in place of a pointer.
            let number: *mut c_void = std::ptr::without_provenance_mut(number);
            // SAFETY: a place for a handle; what is no descriptor of memory is refused.
            let code = unsafe { (functions.import)(&raw mut allocation, number, DESCRIPTOR) };
            self.checked("opening device memory of another process", code)?;
            mapped.add(functions, allocation, *bytes)?;
        }
        mapped.allow(functions)?;
        Ok(mapped)
    }

    /// The least memory that can be passed as a descriptor.
    pub(in crate::device) fn create_least(self: &Arc<Self>) -> Result<Mapped, Fault> {
        let (_context, _relaxed) = (self.enter()?, self.relax());
        let functions = self.virtual_memory()?;
        let properties = Properties::shared(self.device);
        let mut bytes = 0_usize;
        // SAFETY: a place for a size, and properties.
        let code = unsafe { (functions.granularity)(&raw mut bytes, &raw const properties, 0) };
        self.checked("asking how device memory is divided", code)?;
        let mut mapped = self.reserve(bytes)?;
        mapped.fill(functions)?;
        Ok(mapped)
    }

    fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Mapped, Fault> {
        let mut base = 0;
        // SAFETY: a place for an address.
        let code = unsafe { (self.virtual_memory()?.reserve)(&raw mut base, bytes, 0, 0, 0) };
        self.checked("reserving addresses", code)?;
        Ok(Mapped { gpu: Arc::clone(self), base, reserved: bytes, parts: Vec::new() })
    }
}

/// Allocations that are mapped one behind the other.
#[derive(Debug)]
pub(in crate::device) struct Mapped {
    gpu: Arc<Gpu>,
    base: Address,
    reserved: usize,
    /// Bytes of those that are mapped.
    parts: Vec<usize>,
}

impl Mapped {
    pub(in crate::device) fn base(&self) -> Address {
        self.base
    }

    pub(in crate::device) fn bytes(&self) -> usize {
        self.reserved
    }

    /// Other memory in the place of that of [`Gpu::create_least`], which nobody uses.
    pub(in crate::device) fn renew(&mut self) -> Result<(), Fault> {
        let gpu = Arc::clone(&self.gpu);
        let (_context, _relaxed) = (gpu.enter()?, gpu.relax());
        let functions = gpu.virtual_memory()?;
        for bytes in self.parts.drain(..) {
            // SAFETY: mapped by `add` at the start, as a whole: there is one part.
            let code = unsafe { (functions.unmap)(self.base, bytes) };
            gpu.checked("taking device memory out of its place", code)?;
        }
        self.fill(functions)
    }

    /// Takes memory for all that is reserved.
    fn fill(&mut self, functions: &VirtualMemory) -> Result<(), Fault> {
        let properties = Properties::shared(self.gpu.device);
        let mut allocation: Allocation = 0;
        // SAFETY: a place for a handle, and properties.
        let code = unsafe {
            (functions.create)(&raw mut allocation, self.reserved, &raw const properties, 0)
        };
        self.gpu.checked("taking device memory", code)?;
        self.add(functions, allocation, self.reserved)?;
        self.allow(functions)
    }

    /// Maps one more, and lets its handle go: the mapping keeps it.
    fn add(
        &mut self,
        functions: &VirtualMemory,
        allocation: Allocation,
        bytes: usize,
    ) -> Result<(), Fault> {
        let at = self.base + self.parts.iter().sum::<usize>() as u64;
        // SAFETY: inside of the addresses that were reserved, and nothing is mapped there yet.
        let code = unsafe { (functions.map)(at, bytes, 0, allocation, 0) };
        // SAFETY: the caller's handle, which nobody else has.
        unsafe { (functions.release)(allocation) };
        self.gpu.checked("mapping device memory", code)?;
        self.parts.push(bytes);
        Ok(())
    }

    /// Lets the GPU use all of it.
    fn allow(&self, functions: &VirtualMemory) -> Result<(), Fault> {
        let access = Access::whole(self.gpu.device);
        // SAFETY: all of it is mapped; one description.
        let code =
            unsafe { (functions.set_access)(self.base, self.reserved, &raw const access, 1) };
        self.gpu.checked("letting the GPU use memory of another process", code)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let (Ok(_context), Ok(functions)) = (self.gpu.enter(), self.gpu.virtual_memory()) else {
            return;
        };
        let _relaxed = self.gpu.relax();
        let mut at = self.base;
        for bytes in &self.parts {
            // SAFETY: mapped by `add`, as a whole; kernels that used it are over. A failure leaves it mapped:
            // nothing to be done.
            unsafe { (functions.unmap)(at, *bytes) };
            at += *bytes as u64;
        }
        // SAFETY: reserved by `reserve`, and nothing is mapped there any more.
        unsafe { (functions.free_addresses)(self.base, self.reserved) };
    }
}

//! Protection domains and registered memory.
//!
//! *Invariant:* a registration is dropped before the memory it covers; ranges of one are inside it.

#![allow(unsafe_code, reason = "calls into libibverbs; memory that adapters write")]

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{Context, VerbsError, abi};

/// Bits from here on may be ignored by a device that does not know them.
const OPTIONAL: u32 = 0x3ff0_0000;

/// What may be done with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access(u32);

impl Access {
    /// The adapter may only read it, for what this side sends.
    pub(crate) const LOCAL_READ: Self = Self(0);
    pub(crate) const LOCAL_WRITE: Self = Self(1);
    /// Needs `LOCAL_WRITE` too.
    pub(crate) const REMOTE_WRITE: Self = Self(1 << 1);
    pub(crate) const REMOTE_READ: Self = Self(1 << 2);
    /// PCIe may let writes pass each other: faster, and only a completion tells that bytes are there,
    /// never the bytes themselves. Ignored where library or device do not know it.
    pub(crate) const RELAXED_ORDERING: Self = Self(1 << 20);

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Memory of another device, by an address of that device's.
///
/// # Safety
/// The range is that device's memory, and nothing else, as long as the value lives, and no reference to bytes of it
/// is ever made.
pub(crate) unsafe trait ForeignMemory: Any + Send + Sync {
    /// The address of its first byte, of which `bytes` follow.
    fn range(&self) -> (u64, usize);

    /// Has its device copy bytes out, and waits for it.
    ///
    /// # Errors
    /// When they are not all in it, or the device does not.
    fn fetch(&self, address: u64, target: &mut [u8]) -> Result<(), String>;

    /// Has its device copy bytes in, and waits for it.
    ///
    /// # Errors
    /// As [`ForeignMemory::fetch`].
    fn store(&self, address: u64, source: &[u8]) -> Result<(), String>;
}

/// A protection domain: queue pairs reach only memory of their own.
pub(crate) struct Pd {
    raw: NonNull<abi::Pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs locks what it shares; a domain may be used by any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Makes one.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs().alloc_pd)(context.raw()) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last("ibv_alloc_pd", context.name(), ""));
        };
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut abi::Pd {
        self.raw.as_ptr()
    }

    /// The device.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers memory by its address.
    ///
    /// # Safety
    /// The range is memory of this process, mapped until the registration is dropped, and while it
    /// is registered with a right to write, nobody holds a reference to bytes of it: only raw copies
    /// and atomics touch it.
    pub(crate) unsafe fn register(
        self: &Arc<Self>,
        address: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let verbs = self.context.verbs();
        let plain = c_int::try_from(access.bits() & !OPTIONAL).unwrap_or(0);
        let raw = match verbs.reg_mr_iova2 {
            Some(register) if access.bits() & OPTIONAL != 0 => {
                let base = address.expose_provenance() as u64;
                // SAFETY: the caller vouches for the range; the domain is alive.
                unsafe { register(self.raw(), address.cast(), bytes, base, access.bits()) }
            }
            // SAFETY: as above.
            _ => unsafe { (verbs.reg_mr)(self.raw(), address.cast(), bytes, plain) },
        };
        self.registered("ibv_reg_mr", raw, bytes, Some(address))
    }

    /// Registers memory of another device by its dma-buf; `base` is the address that peers use for its
    /// first byte.
    ///
    /// # Safety
    /// While it is registered with a right to write, whoever maps the memory takes it for memory
    /// that changes by itself.
    pub(crate) unsafe fn register_dmabuf(
        self: &Arc<Self>,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        base: u64,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let call = "ibv_reg_dmabuf_mr";
        let Some(register) = self.context.verbs().reg_dmabuf_mr else {
            let hint = "; this libibverbs is older than rdma-core 34";
            return Err(VerbsError::call(call, self.context.name(), libc::ENOSYS, hint));
        };
        let access = c_int::try_from(access.bits()).unwrap_or(0);
        // SAFETY: the descriptor is open and the domain alive; the kernel holds the dma-buf as
        // long as the registration.
        let raw = unsafe { register(self.raw(), offset, bytes, base, dmabuf.as_raw_fd(), access) };
        self.registered(call, raw, bytes, None)
    }

    /// Registers memory of another device by that device's address, which a module of the kernel must know
    /// (nvidia_peermem, amdkfd). The registration keeps the memory.
    pub(crate) fn register_foreign(
        self: &Arc<Self>,
        memory: &Arc<impl ForeignMemory>,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let (address, bytes) = memory.range();
        let place = usize::try_from(address).unwrap_or(0);
        // SAFETY: by the trait's promise nobody refers to the range, which stays while it is kept below. What is
        // no memory to the kernel is refused.
        let mut made =
            unsafe { self.register(ptr::with_exposed_provenance_mut(place), bytes, access)? };
        made.on_host = false;
        Ok(made.keeping(Arc::clone(memory)))
    }

    /// Registers memory of another device by its dma-buf, whose first byte is that of the memory. The registration
    /// keeps the memory; peers use its addresses.
    pub(crate) fn register_foreign_dmabuf(
        self: &Arc<Self>,
        memory: &Arc<impl ForeignMemory>,
        dmabuf: BorrowedFd<'_>,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let (address, bytes) = memory.range();
        // SAFETY: by the trait's promise nobody refers to the range.
        let mut made = unsafe { self.register_dmabuf(dmabuf, 0, bytes, address, access)? };
        made.base = address;
        Ok(made.keeping(Arc::clone(memory)))
    }

    fn registered(
        self: &Arc<Self>,
        call: &'static str,
        raw: *mut abi::Mr,
        bytes: usize,
        host: Option<*mut u8>,
    ) -> Result<Mr, VerbsError> {
        let Some(raw) = NonNull::new(raw) else {
            let code = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            let hint = match code {
                libc::ENOMEM | libc::EPERM | libc::EAGAIN if host.is_some() => {
                    "; raise the limit of locked memory (ulimit -l unlimited; LimitMEMLOCK= of a service, --ulimit memlock=-1 of a container)"
                }
                libc::EFAULT => "; the memory is not all mapped, or not writable",
                libc::EOPNOTSUPP => "; the device or its driver does not do it",
                _ => "",
            };
            let place = format!("{} ({bytes} bytes)", self.context.name());
            return Err(VerbsError::call(call, place, code, hint));
        };
        // SAFETY: the registration was made just now.
        let made = unsafe { raw.as_ref() };
        let base = match host {
            Some(address) => address.addr() as u64,
            None => made.addr.addr() as u64,
        };
        Ok(Mr {
            raw,
            base,
            bytes,
            lkey: made.lkey,
            rkey: made.rkey,
            on_host: host.is_some(),
            pd: Arc::clone(self),
            keeps: None,
        })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything made in this domain holds it, so nothing of it is left.
        let _code = unsafe { (self.context.verbs().dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pd").field(&self.context.name()).finish()
    }
}

/// Registered memory.
pub(crate) struct Mr {
    raw: NonNull<abi::Mr>,
    base: u64,
    bytes: usize,
    lkey: u32,
    rkey: u32,
    on_host: bool,
    pd: Arc<Pd>,
    /// What holds the memory, if this registration is to.
    keeps: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: libibverbs locks what it shares; a registration may be used and dropped by any thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Keeps what holds the memory until the registration is gone.
    pub(crate) fn keeping(mut self, memory: impl Any + Send + Sync) -> Self {
        self.keeps = Some(Box::new(memory));
        self
    }

    /// The address that peers use for its first byte.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The key that gives peers the rights it was registered with.
    pub(crate) fn remote_key(&self) -> u32 {
        self.rkey
    }

    /// The domain it is in.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// A range of it, to be sent from or received into.
    ///
    /// # Panics
    /// When the range is not inside, or longer than 2 GiB, the most that one message has.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Part<'_> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes) && bytes <= 1 << 31,
            "{offset}+{bytes} is not in a registration of {} bytes",
            self.bytes
        );
        // Both fit: an address, and at most 2 GiB.
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let length = bytes as u32;
        let sge = abi::Sge { addr: self.base + offset as u64, length, lkey: self.lkey };
        Part { sge, on_host: self.on_host, memory: PhantomData }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // The adapter lets go of the memory here; only then does `keeps` go, as fields do.
        // SAFETY: the registration is this value's own.
        let _code = unsafe { (self.pd.context.verbs().dereg_mr)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("base", &self.base)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// A range of registered memory.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(super) sge: abi::Sge,
    pub(super) on_host: bool,
    memory: PhantomData<&'a Mr>,
}

impl Part<'_> {
    /// No bytes, of no memory.
    pub(crate) const NONE: Part<'static> =
        Part { sge: abi::Sge { addr: 0, length: 0, lkey: 0 }, on_host: true, memory: PhantomData };

    pub(crate) fn bytes(&self) -> u32 {
        self.sge.length
    }

    /// Whether it may be posted inline: it is short, and the processor can read it.
    pub(crate) fn can_be_inline(&self, qp: &super::Qp) -> bool {
        self.on_host && self.sge.length <= qp.inline_bytes()
    }
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("at", &self.sge.addr).field("bytes", &self.sge.length).finish()
    }
}

/// Whole pages of this process's own, set to zero; adapters and this process write them.
pub(crate) struct Memory {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are reached by raw copies and atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above. Two threads that copy to the same bytes at once mix them, as an adapter would.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps at least one page.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags)? };
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { address, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Registers it; the registration keeps it mapped.
    pub(crate) fn register(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        // SAFETY: the pages are mapped as long as `self` is, which the registration keeps, and no
        // reference to bytes of them is ever made.
        let made = unsafe { pd.register(self.address.as_ptr(), self.bytes, access)? };
        Ok(made.keeping(Arc::clone(self)))
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they do not fit.
    pub(crate) fn write(&self, offset: usize, source: &[u8]) {
        let at = self.at(offset, source.len());
        // SAFETY: the range is inside the mapping and apart from `source`, which is a reference.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), at, source.len()) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When there are not as many.
    pub(crate) fn read(&self, offset: usize, target: &mut [u8]) {
        let at = self.at(offset, target.len());
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(at, target.as_mut_ptr(), target.len()) }
    }

    /// One byte, as adapters and threads see it change.
    ///
    /// # Panics
    /// When it is outside.
    pub(crate) fn byte(&self, offset: usize) -> &AtomicU8 {
        let at = self.at(offset, 1);
        // SAFETY: inside the mapping, which lives as long as `self`.
        unsafe { AtomicU8::from_ptr(at) }
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "{offset}+{bytes} of {}", self.bytes);
        // SAFETY: asserted to be inside the mapping.
        unsafe { self.address.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; whatever is registered of it holds it.
        let _outcome = unsafe { munmap(self.address.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

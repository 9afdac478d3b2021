//! Completion queues, and the channels that wake a sleeper.

#![allow(unsafe_code, reason = "calls into libibverbs and the device's driver")]

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

pub(crate) use super::abi::Completion;
use super::{Context, Status, VerbsError, abi};

/// Bit of an opcode that is a receive's.
const RECEIVE: c_int = 1 << 7;
/// `IBV_WC_WITH_IMM`.
const WITH_IMMEDIATE: u32 = 1 << 1;

impl Completion {
    /// The number the request was posted with.
    pub(crate) fn id(&self) -> u64 {
        self.wr_id
    }

    pub(crate) fn status(&self) -> Status {
        Status(self.status)
    }

    pub(crate) fn is_success(&self) -> bool {
        self.status == 0
    }

    /// Whether it is a receive's; only of one that succeeded.
    pub(crate) fn is_receive(&self) -> bool {
        self.opcode & RECEIVE != 0
    }

    /// The 32 bits that came with the message.
    pub(crate) fn immediate(&self) -> Option<u32> {
        (self.wc_flags & WITH_IMMEDIATE != 0).then(|| u32::from_be(self.imm_data))
    }

    /// Bytes that came; only of a receive or read.
    pub(crate) fn bytes(&self) -> u32 {
        self.byte_len
    }

    /// The maker's code for what went wrong.
    pub(crate) fn vendor_error(&self) -> u32 {
        self.vendor_err
    }

    /// Number of the queue pair it was posted to.
    pub(crate) fn queue_pair(&self) -> u32 {
        self.qp_num
    }
}

/// Wakes sleepers when queues have something.
pub(crate) struct CompletionChannel {
    raw: NonNull<abi::CompletionChannel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs locks what it shares; a channel may be used by any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Makes one whose descriptor does not block.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs().create_comp_channel)(context.raw()) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last("ibv_create_comp_channel", context.name(), ""));
        };
        let channel = Self { raw, context: Arc::clone(context) };
        rustix::io::ioctl_fionbio(channel.as_fd(), true).map_err(|error| {
            let call = "setting the channel's descriptor";
            VerbsError::call(call, context.name(), error.raw_os_error(), "")
        })?;
        Ok(Arc::new(channel))
    }

    /// The token of a queue that has something since it was last asked to say so; never waits.
    pub(crate) fn take_event(&self) -> Result<Option<usize>, VerbsError> {
        let verbs = self.context.verbs();
        let mut cq = ptr::null_mut();
        let mut token = ptr::null_mut();
        // SAFETY: the channel is alive and does not block; both are places for one pointer.
        let code = unsafe { (verbs.get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut token) };
        if code != 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::WouldBlock {
                return Ok(None);
            }
            return Err(VerbsError::last("ibv_get_cq_event", self.context.name(), ""));
        }
        // SAFETY: a queue is not destroyed before its events are acknowledged, and this one is once.
        unsafe { (verbs.ack_cq_events)(cq, 1) };
        Ok(Some(token.addr()))
    }
}

/// Readable when [`CompletionChannel::take_event`] has something.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive.
        let number: RawFd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel is, which the borrow holds.
        unsafe { BorrowedFd::borrow_raw(number) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues of the channel hold it, so there is none left.
        let _code = unsafe { (self.context.verbs().destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel").field(&self.context.name()).finish()
    }
}

/// A completion queue.
pub(crate) struct Cq {
    raw: NonNull<abi::Cq>,
    poll: abi::PollCq,
    context: Arc<Context>,
    _channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: drivers lock their queues; one may be polled by any thread.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// Makes one with room for at least `entries`. `token` is what the channel names it by.
    pub(crate) fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<(&Arc<CompletionChannel>, usize)>,
    ) -> Result<Arc<Self>, VerbsError> {
        let room = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let (raw_channel, token) = match channel {
            Some((channel, token)) => (channel.raw.as_ptr(), ptr::without_provenance_mut(token)),
            None => (ptr::null_mut(), ptr::null_mut()),
        };
        // SAFETY: the context is open, the channel null or alive; the token is never followed.
        let raw =
            unsafe { (context.verbs().create_cq)(context.raw(), room, token, raw_channel, 0) };
        let Some(raw) = NonNull::new(raw) else {
            let place = format!("{} ({entries} entries)", context.name());
            return Err(VerbsError::last("ibv_create_cq", place, ""));
        };
        // SAFETY: the context is open; its functions stay as they are while it is.
        let poll = unsafe { (*context.raw()).ops.poll_cq };
        let channel = channel.map(|(channel, _)| Arc::clone(channel));
        Ok(Arc::new(Self { raw, poll, context: Arc::clone(context), _channel: channel }))
    }

    pub(super) fn raw(&self) -> *mut abi::Cq {
        self.raw.as_ptr()
    }

    /// Takes completions that are there; how many. Never waits.
    pub(crate) fn poll(&self, found: &mut [Completion]) -> Result<usize, VerbsError> {
        let room = c_int::try_from(found.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive; there is room for as many completions as is said.
        let many = unsafe { (self.poll)(self.raw.as_ptr(), room, found.as_mut_ptr()) };
        usize::try_from(many)
            .map_err(|_| VerbsError::call("ibv_poll_cq", self.context.name(), many.abs(), ""))
    }

    /// Asks for one event on the channel at the next completion (or the next that its sender marked
    /// `solicited`). What came before makes none: poll once more after this, then sleep.
    pub(crate) fn notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        // SAFETY: the context is open; its functions stay as they are while it is.
        let notify = unsafe { (*self.context.raw()).ops.req_notify_cq };
        // SAFETY: the queue is alive.
        let code = unsafe { notify(self.raw.as_ptr(), c_int::from(solicited_only)) };
        if code == 0 {
            return Ok(());
        }
        Err(VerbsError::call("ibv_req_notify_cq", self.context.name(), code.abs(), ""))
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their queues, so none uses this one; its events are acknowledged
        // as they are taken.
        let _code = unsafe { (self.context.verbs().destroy_cq)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cq").field(&self.context.name()).finish()
    }
}

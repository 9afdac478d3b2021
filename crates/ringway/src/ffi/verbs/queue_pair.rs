//! Reliable connections: queue pairs, how they are connected, and what is posted to them.

#![allow(unsafe_code, reason = "calls into libibverbs and the device's driver")]

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::{Access, Cq, Gid, Part, Pd, VerbsError, abi};

/// `IBV_QPT_RC`.
const RELIABLE: c_int = 2;

/// Bits of `enum ibv_qp_attr_mask`.
mod mask {
    use std::ffi::c_int;

    pub(super) const STATE: c_int = 1;
    pub(super) const ACCESS: c_int = 1 << 3;
    pub(super) const PKEY_INDEX: c_int = 1 << 4;
    pub(super) const PORT: c_int = 1 << 5;
    pub(super) const ADDRESS: c_int = 1 << 7;
    pub(super) const MTU: c_int = 1 << 8;
    pub(super) const TIMEOUT: c_int = 1 << 9;
    pub(super) const RETRIES: c_int = 1 << 10;
    pub(super) const RNR_RETRIES: c_int = 1 << 11;
    pub(super) const RECEIVE_PSN: c_int = 1 << 12;
    pub(super) const READS_ASKED: c_int = 1 << 13;
    pub(super) const RNR_TIMER: c_int = 1 << 15;
    pub(super) const SEND_PSN: c_int = 1 << 16;
    pub(super) const READS_ANSWERED: c_int = 1 << 17;
    pub(super) const REMOTE_QP: c_int = 1 << 20;
}

/// Requests that one call of the driver takes here.
const CHAIN_MOST: usize = 16;

/// Bytes of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mtu(c_int);

impl Mtu {
    /// By the header's number: 1 is 256, 5 is 4096.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        (1..=5).contains(&number).then_some(Self(number))
    }

    pub(crate) fn bytes(self) -> u32 {
        128 << self.0
    }

    /// The header's number.
    pub(crate) fn number(self) -> i32 {
        self.0
    }
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpState {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
    Other(i32),
}

/// Room of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    /// Bytes that may be posted inline; the device may give more.
    pub(crate) inline_bytes: u32,
}

/// All that connects a queue pair with its peer.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// Local port, from 1.
    pub(crate) port: u8,
    /// Index of the local address in the port's table.
    pub(crate) gid_index: u8,
    pub(crate) pkey_index: u16,
    pub(crate) remote_gid: Gid,
    /// The peer's local identifier, on InfiniBand.
    pub(crate) remote_lid: u16,
    pub(crate) remote_qp: u32,
    /// Whether packets carry a global route: always on RoCE, between subnets on InfiniBand.
    pub(crate) global: bool,
    /// Sequence numbers the peer and this side begin with, 24 bits each.
    pub(crate) receive_psn: u32,
    pub(crate) send_psn: u32,
    /// The lesser of both ends' active MTUs.
    pub(crate) mtu: Mtu,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    /// 4.096 µs · 2^timeout until a packet is sent again; 0 waits for ever.
    pub(crate) timeout: u8,
    /// How often it is sent again, 0 to 7.
    pub(crate) retries: u8,
    /// How often a peer without a receive is tried again; 7 for ever.
    pub(crate) rnr_retries: u8,
    /// Code of the pause the peer makes us take then; 12 is 0.64 ms.
    pub(crate) rnr_timer: u8,
    /// Reads that this side may have under way, and that it answers.
    pub(crate) reads_asked: u8,
    pub(crate) reads_answered: u8,
    /// What the peer may do with this side's memory.
    pub(crate) access: Access,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// What is asked of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Write to the peer's memory; the peer is not told.
    Write(Remote),
    /// Write to the peer's memory, and complete a receive of the peer's with these 32 bits.
    WriteWithImmediate(Remote, u32),
    /// Read from the peer's memory.
    Read(Remote),
    /// A message for a receive of the peer's.
    Send,
    /// The same with 32 bits more.
    SendWithImmediate(u32),
}

/// How it is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    /// A completion is wanted also if all goes well.
    pub(crate) signalled: bool,
    /// The bytes are copied as they are posted, and may be changed at once.
    pub(crate) inline: bool,
    /// Only after all reads before it.
    pub(crate) fence: bool,
    /// Wakes a peer that sleeps for marked messages only.
    pub(crate) solicited: bool,
}

impl Flags {
    pub(crate) const SIGNALLED: Self =
        Self { signalled: true, inline: false, fence: false, solicited: false };

    fn bits(self) -> u32 {
        u32::from(self.fence)
            | u32::from(self.signalled) << 1
            | u32::from(self.solicited) << 2
            | u32::from(self.inline) << 3
    }
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// Comes back with the completion.
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) local: Part<'a>,
    pub(crate) flags: Flags,
}

/// Receives that several queue pairs take from.
pub(crate) struct Srq {
    raw: NonNull<abi::Srq>,
    pd: Arc<Pd>,
}

// SAFETY: drivers lock their queues; one may be used by any thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// Makes one with room for that many receives.
    pub(crate) fn new(pd: &Arc<Pd>, receives: u32) -> Result<Arc<Self>, VerbsError> {
        let context = pd.context();
        let mut wanted = abi::SrqInit {
            srq_context: ptr::null_mut(),
            max_wr: receives,
            max_sge: 1,
            srq_limit: 0,
        };
        // SAFETY: the domain is alive; `wanted` is a whole ibv_srq_init_attr.
        let raw = unsafe { (context.verbs().create_srq)(pd.raw(), &raw mut wanted) };
        let Some(raw) = NonNull::new(raw) else {
            let place = format!("{} ({receives} receives)", context.name());
            return Err(VerbsError::last("ibv_create_srq", place, ""));
        };
        Ok(Arc::new(Self { raw, pd: Arc::clone(pd) }))
    }

    /// Posts a receive; without a part for what brings no bytes of its own.
    pub(crate) fn post_receive(&self, id: u64, local: Option<Part<'_>>) -> Result<(), VerbsError> {
        let context = self.pd.context();
        let (mut sge, mut request) = receive(id, local);
        request.sg_list = &raw mut sge;
        let mut bad = ptr::null_mut();
        // SAFETY: the context is open; its functions stay as they are while it is.
        let post = unsafe { (*context.raw()).ops.post_srq_recv };
        // SAFETY: the queue is alive; the driver copies the request.
        let code = unsafe { post(self.raw.as_ptr(), &raw mut request, &raw mut bad) };
        posted("ibv_post_srq_recv", context.name(), code)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold it, so none takes from it any more.
        let _code = unsafe { (self.pd.context().verbs().destroy_srq)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Srq").field(&self.pd.context().name()).finish()
    }
}

/// A queue pair of a reliable connection.
pub(crate) struct Qp {
    raw: NonNull<abi::Qp>,
    number: u32,
    inline_bytes: u32,
    post_send: abi::PostSend,
    post_receive: abi::PostReceive,
    pd: Arc<Pd>,
    _queues: [Arc<Cq>; 2],
    _shared: Option<Arc<Srq>>,
}

// SAFETY: drivers lock their queues; a queue pair may be used by any thread.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// Makes one, not connected yet. Completions go to `send` and `receive`, receives are taken from
    /// `shared` if there is one.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        send: &Arc<Cq>,
        receive: &Arc<Cq>,
        shared: Option<&Arc<Srq>>,
        capacity: Capacity,
    ) -> Result<Self, VerbsError> {
        let context = pd.context();
        let mut wanted = abi::QpInit {
            qp_context: ptr::null_mut(),
            send_cq: send.raw(),
            recv_cq: receive.raw(),
            srq: shared.map_or(ptr::null_mut(), |shared| shared.raw.as_ptr()),
            cap: abi::QpCapacity {
                max_send_wr: capacity.sends,
                max_recv_wr: if shared.is_some() { 0 } else { capacity.receives },
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: capacity.inline_bytes,
            },
            qp_type: RELIABLE,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are alive; `wanted` is a whole ibv_qp_init_attr.
        let raw = unsafe { (context.verbs().create_qp)(pd.raw(), &raw mut wanted) };
        let Some(raw) = NonNull::new(raw) else {
            let place = format!("{} ({capacity:?})", context.name());
            return Err(VerbsError::last("ibv_create_qp", place, ""));
        };
        // SAFETY: the queue pair was made just now.
        let number = unsafe { raw.as_ref() }.qp_num;
        // SAFETY: the context is open; its functions stay as they are while it is.
        let ops = unsafe { &(*context.raw()).ops };
        Ok(Self {
            raw,
            number,
            inline_bytes: wanted.cap.max_inline_data,
            post_send: ops.post_send,
            post_receive: ops.post_recv,
            pd: Arc::clone(pd),
            _queues: [Arc::clone(send), Arc::clone(receive)],
            _shared: shared.map(Arc::clone),
        })
    }

    /// Its number, which the peer connects to.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Bytes that may be posted inline.
    pub(crate) fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// The domain it is in.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Connects it: to INIT, to RTR, to RTS. Receives can be posted after [`Self::init`].
    pub(crate) fn connect(&self, path: &Path) -> Result<(), VerbsError> {
        self.init(path)?;
        self.ready_to_receive(path)?;
        self.ready_to_send(path)
    }

    /// To INIT: receives can be posted.
    pub(crate) fn init(&self, path: &Path) -> Result<(), VerbsError> {
        let wanted = abi::QpAttributes {
            qp_state: 1,
            pkey_index: path.pkey_index,
            port_num: path.port,
            qp_access_flags: path.access.bits() & 0xf,
            ..Default::default()
        };
        let bits = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS;
        self.modify("ibv_modify_qp to INIT", wanted, bits, path)
    }

    /// To RTR: what the peer sends is taken.
    pub(crate) fn ready_to_receive(&self, path: &Path) -> Result<(), VerbsError> {
        let mut address = abi::AddressVector {
            dlid: path.remote_lid,
            sl: path.service_level,
            port_num: path.port,
            ..Default::default()
        };
        if path.global {
            address.is_global = 1;
            address.grh = abi::GlobalRoute {
                dgid: abi::RawGid(path.remote_gid.0),
                flow_label: path.flow_label,
                sgid_index: path.gid_index,
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            };
        }
        let wanted = abi::QpAttributes {
            qp_state: 2,
            path_mtu: path.mtu.number(),
            dest_qp_num: path.remote_qp,
            rq_psn: path.receive_psn & 0xff_ffff,
            max_dest_rd_atomic: path.reads_answered,
            min_rnr_timer: path.rnr_timer,
            ah_attr: address,
            ..Default::default()
        };
        let bits = mask::STATE
            | mask::ADDRESS
            | mask::MTU
            | mask::REMOTE_QP
            | mask::RECEIVE_PSN
            | mask::READS_ANSWERED
            | mask::RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", wanted, bits, path)
    }

    /// To RTS: requests go out.
    pub(crate) fn ready_to_send(&self, path: &Path) -> Result<(), VerbsError> {
        let wanted = abi::QpAttributes {
            qp_state: 3,
            timeout: path.timeout,
            retry_cnt: path.retries,
            rnr_retry: path.rnr_retries,
            sq_psn: path.send_psn & 0xff_ffff,
            max_rd_atomic: path.reads_asked,
            ..Default::default()
        };
        let bits = mask::STATE
            | mask::TIMEOUT
            | mask::RETRIES
            | mask::RNR_RETRIES
            | mask::SEND_PSN
            | mask::READS_ASKED;
        self.modify("ibv_modify_qp to RTS", wanted, bits, path)
    }

    /// To ERR: everything posted is flushed, nothing more comes in or goes out.
    pub(crate) fn fail(&self) -> Result<(), VerbsError> {
        let mut wanted = abi::QpAttributes { qp_state: 6, ..Default::default() };
        // SAFETY: the queue pair is alive; `wanted` is a whole ibv_qp_attr.
        let code = unsafe {
            (self.pd.context().verbs().modify_qp)(self.raw.as_ptr(), &raw mut wanted, mask::STATE)
        };
        posted("ibv_modify_qp to ERR", self.pd.context().name(), code)
    }

    /// The state it is in.
    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        let mut found = abi::QpAttributes::default();
        // SAFETY: the structure is pointers that are never followed and numbers; zero is a value.
        let mut made: abi::QpInit = unsafe { std::mem::zeroed() };
        let query = self.pd.context().verbs().query_qp;
        // SAFETY: the queue pair is alive; both are whole structures.
        let code = unsafe { query(self.raw.as_ptr(), &raw mut found, mask::STATE, &raw mut made) };
        posted("ibv_query_qp", self.pd.context().name(), code)?;
        Ok(match found.qp_state {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::ReadyToReceive,
            3 => QpState::ReadyToSend,
            6 => QpState::Error,
            other => QpState::Other(other),
        })
    }

    fn modify(
        &self,
        call: &'static str,
        mut wanted: abi::QpAttributes,
        bits: c_int,
        path: &Path,
    ) -> Result<(), VerbsError> {
        let context = self.pd.context();
        let modify = context.verbs().modify_qp;
        // SAFETY: the queue pair is alive; `wanted` is a whole ibv_qp_attr.
        let code = unsafe { modify(self.raw.as_ptr(), &raw mut wanted, bits) };
        if code == 0 {
            return Ok(());
        }
        let hint = match code.abs() {
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
                "; there is no way from that local address to the peer's: other subnet, VLAN or address family, or the neighbour does not answer"
            }
            libc::EINVAL => {
                "; an argument does not fit the port: the GID index is empty, the MTU is more than its own, the P_Key index is not in its table, or its link is down"
            }
            libc::ENODEV => "; the port's network interface has gone",
            _ => "",
        };
        let place = format!(
            "{}:{} (GID index {}, peer {} QP {}, MTU {})",
            context.name(),
            path.port,
            path.gid_index,
            if path.global {
                path.remote_gid.to_string()
            } else {
                format!("LID {}", path.remote_lid)
            },
            path.remote_qp,
            path.mtu.bytes(),
        );
        Err(VerbsError::call(call, place, code.abs(), hint))
    }

    /// Posts one request.
    ///
    /// # Panics
    /// As [`Self::post_chain`].
    pub(crate) fn post(&self, request: Request<'_>) -> Result<(), VerbsError> {
        self.post_few::<1>(&[request]).map_err(|(_, error)| error)
    }

    /// Posts requests with one call of the driver for each few of them; where it fails, with how
    /// many were posted. A queue that is full fails with `ENOMEM`.
    ///
    /// # Panics
    /// When a request is inline and longer than [`Self::inline_bytes`], or not of host memory.
    #[inline]
    pub(crate) fn post_chain(&self, requests: &[Request<'_>]) -> Result<(), (usize, VerbsError)> {
        let mut before = 0;
        for few in requests.chunks(CHAIN_MOST) {
            self.post_few::<CHAIN_MOST>(few).map_err(|(posted, error)| (before + posted, error))?;
            before += few.len();
        }
        Ok(())
    }

    #[inline]
    fn post_few<const MOST: usize>(&self, few: &[Request<'_>]) -> Result<(), (usize, VerbsError)> {
        let mut sges = [abi::Sge::default(); MOST];
        let mut raw = [EMPTY_REQUEST; MOST];
        // Cells: the driver follows pointers from one to the next, and may write to all.
        let sges = Cell::from_mut(&mut sges[..]).as_slice_of_cells();
        let raw = Cell::from_mut(&mut raw[..]).as_slice_of_cells();
        for ((index, request), (sge, place)) in few.iter().enumerate().zip(sges.iter().zip(raw)) {
            let part = &request.local;
            if request.flags.inline {
                assert!(
                    part.on_host && part.sge.length <= self.inline_bytes,
                    "{} bytes cannot be posted inline; the most is {}",
                    part.sge.length,
                    self.inline_bytes
                );
            }
            sge.set(part.sge);
            let nowhere = Remote { address: 0, key: 0 };
            let (opcode, remote, immediate) = match request.operation {
                Operation::Write(remote) => (0, remote, 0),
                Operation::WriteWithImmediate(remote, immediate) => (1, remote, immediate),
                Operation::Send => (2, nowhere, 0),
                Operation::SendWithImmediate(immediate) => (3, nowhere, immediate),
                Operation::Read(remote) => (4, remote, 0),
            };
            let next = few.get(index + 1).and_then(|_| raw.get(index + 1));
            place.set(abi::SendRequest {
                wr_id: request.id,
                next: next.map_or(ptr::null_mut(), Cell::as_ptr),
                sg_list: sge.as_ptr(),
                num_sge: c_int::from(part.sge.length > 0),
                opcode,
                send_flags: request.flags.bits(),
                imm_data: immediate.to_be(),
                remote_addr: remote.address,
                rkey: remote.key,
                ..EMPTY_REQUEST
            });
        }
        let Some(first) = raw.first().filter(|_| !few.is_empty()).map(Cell::as_ptr) else {
            return Ok(());
        };
        let mut bad: *mut abi::SendRequest = ptr::null_mut();
        // SAFETY: the queue pair is alive; the chain ends in null and is copied by the driver, and so
        // are inline bytes, which are in memory that `few` borrows.
        let code = unsafe { (self.post_send)(self.raw.as_ptr(), first, &raw mut bad) };
        if code == 0 {
            return Ok(());
        }
        let posted = bad.addr().saturating_sub(first.addr()) / size_of::<abi::SendRequest>();
        let error = VerbsError::call("ibv_post_send", self.place(), code.abs(), post_hint(code));
        Err((posted.min(few.len()), error))
    }

    /// Posts a receive; without a part for what brings no bytes of its own, as writes with immediate.
    pub(crate) fn post_receive(&self, id: u64, local: Option<Part<'_>>) -> Result<(), VerbsError> {
        let (mut sge, mut request) = receive(id, local);
        request.sg_list = &raw mut sge;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the driver copies the request.
        let code =
            unsafe { (self.post_receive)(self.raw.as_ptr(), &raw mut request, &raw mut bad) };
        if code == 0 {
            return Ok(());
        }
        Err(VerbsError::call("ibv_post_recv", self.place(), code.abs(), post_hint(code)))
    }

    fn place(&self) -> String {
        format!("{}, QP {}", self.pd.context().name(), self.number)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the queue pair is this value's own; queues and domain are still held.
        let _code = unsafe { (self.pd.context().verbs().destroy_qp)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("device", &self.pd.context().name())
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

const EMPTY_REQUEST: abi::SendRequest = abi::SendRequest {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    rest_of_wr: [0; 2],
    rest: [0; 7],
};

/// A receive; its list is still to be pointed at the first of the two.
fn receive(id: u64, local: Option<Part<'_>>) -> (abi::Sge, abi::ReceiveRequest) {
    let sge = local.map_or_else(abi::Sge::default, |part| part.sge);
    let request = abi::ReceiveRequest {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: c_int::from(local.is_some()),
    };
    (sge, request)
}

fn post_hint(code: c_int) -> &'static str {
    match code.abs() {
        libc::ENOMEM => "; its queue is full",
        libc::EINVAL => "; it is not connected, or the request is not one for it",
        _ => "",
    }
}

fn posted(call: &'static str, device: &str, code: c_int) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(VerbsError::call(call, device, code.abs(), "")) }
}

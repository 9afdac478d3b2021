//! One end of an RDMA measurement: a port, a buffer, and connected queue pairs.
//!
//! The buffer has two halves: the first is sent and read from, the second received and written into.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::buffer::Buffer;
use super::control::{Control, End};
use super::device::failed;
use super::test::{Operation, PortName, Side, Test};
use crate::config::RdmaSettings;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::verbs::{
    Access, Capacity, Completion, CompletionChannel, Cq, Mtu, Part, Path, Pd, Qp, Remote,
};
use crate::transport::verbs::adapter::{self, Adapter};
use crate::transport::verbs::select::Chosen;

/// Bytes to post inline, if the device can; perftest's number for writes.
const INLINE_WISHES: [u32; 3] = [220, 64, 0];
/// Reads under way on a connection.
const READS_MOST: u8 = 16;
/// Misses from one offer of the processor to the next.
const YIELD: u32 = 16;
/// Nothing came for so long: whoever need not answer at once sleeps until something does.
const STILL: Duration = Duration::from_micros(100);
/// The longest sleep.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Nothing moves for so long: it never will.
const STALL: Duration = Duration::from_secs(60);

/// The other side's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    address: u64,
    key: u32,
}

/// One end.
pub(super) struct Endpoint {
    adapter: Arc<Adapter>,
    settings: RdmaSettings,
    channel: Arc<CompletionChannel>,
    pub(super) cq: Arc<Cq>,
    pub(super) buffer: Buffer,
    pub(super) queue_pairs: Vec<(Qp, u32)>,
    reads: (u8, u8),
    half: usize,
    pub(super) depth: u32,
}

impl Endpoint {
    /// Opens a port, the one that is named or the first that can be used.
    pub(super) fn open(settings: &RdmaSettings, side: &Side, test: &Test) -> Result<Self> {
        let adapter = find(settings, side.device.as_ref())?;
        let limits = adapter.context.limits().map_err(failed)?;
        let depth = test.depth.min(limits.requests.max(1));
        let entries = (2 * depth * test.lanes).min(limits.completions.max(1));
        let channel = CompletionChannel::new(&adapter.context).map_err(failed)?;
        let cq = Cq::new(&adapter.context, entries, Some((&channel, 0))).map_err(failed)?;
        let half = test.bytes_most().max(1).next_multiple_of(4096);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // Latency is seen by the bytes themselves, which then must come in order.
        let access = match test.kind {
            super::Kind::Bandwidth => access | Access::RELAXED_ORDERING,
            super::Kind::Latency => access,
        };
        let buffer = Buffer::new(&adapter, settings, &side.buffer, 2 * half, access)?;
        let watches = test.kind == super::Kind::Latency && test.operation == Operation::Write;
        if watches && !buffer.can_be_watched() {
            return Err(Error::usage(
                "the latency of writes is told by a byte that the processor watches, which it cannot in GPU memory; measure -o send or -o read, or --gpudirect off",
            ));
        }
        let mut queue_pairs = Vec::new();
        for _ in 0..test.lanes {
            let psn = random() & 0xff_ffff;
            queue_pairs.push((queue_pair(&adapter.pd, &cq, depth)?, psn));
        }
        let reads = (limits.reads_asked.min(READS_MOST), limits.reads_answered.min(READS_MOST));
        let settings = settings.clone();
        Ok(Self { adapter, settings, channel, cq, buffer, queue_pairs, reads, half, depth })
    }

    /// `mlx5_0:1 GID 3 (::ffff:10.1.2.3), RoCE v2, routable IPv4`.
    pub(super) fn place(&self) -> String {
        let Chosen { index, gid, reason, .. } = &self.adapter.chosen;
        let mtu = Mtu::from_number(self.adapter.port.active_mtu).map_or(0, Mtu::bytes);
        let words = &self.buffer.words;
        let memory = if words.is_empty() { String::new() } else { format!("; {words}") };
        format!("{} MTU {mtu}, GID {index} {gid} ({reason}){memory}", self.adapter.name())
    }

    pub(super) fn end(&self) -> End {
        End::Rdma {
            gid: self.adapter.chosen.gid.0,
            lid: self.adapter.port.lid,
            infiniband: self.adapter.is_infiniband(),
            mtu: self.adapter.port.active_mtu,
            reads_answered: self.reads.1,
            queue_pairs: self.queue_pairs.iter().map(|(qp, psn)| (qp.number(), *psn)).collect(),
            address: self.buffer.mr.base(),
            key: self.buffer.mr.remote_key(),
        }
    }

    /// Connects every queue pair with its like.
    pub(super) fn connect(&self, end: &End) -> Result<Peer> {
        let End::Rdma { gid, lid, infiniband, mtu, reads_answered, queue_pairs, address, key } =
            end
        else {
            return Err(Error::new(ErrorKind::Remote, "the other side offers TCP, not RDMA"));
        };
        let ours = self.adapter.is_infiniband();
        if ours != *infiniband {
            let name = |infiniband: bool| if infiniband { "InfiniBand" } else { "Ethernet" };
            let text = format!("{} cannot talk to {}", name(ours), name(*infiniband));
            return Err(Error::usage(format!("{}: {text}", self.adapter.name())));
        }
        if queue_pairs.len() != self.queue_pairs.len() {
            return Err(Error::new(
                ErrorKind::Remote,
                "the other side has not as many queue pairs",
            ));
        }
        for ((qp, psn), (remote_qp, remote_psn)) in self.queue_pairs.iter().zip(queue_pairs) {
            let to = adapter::End {
                gid: *gid,
                lid: *lid,
                mtu: *mtu,
                number: *remote_qp,
                psn: *remote_psn,
            };
            let path = self.adapter.path(&self.settings, *psn, &to);
            let path =
                path.ok_or_else(|| Error::new(ErrorKind::Remote, "no MTU fits both sides"))?;
            let path = Path {
                reads_asked: self.reads.0.min(*reads_answered),
                reads_answered: self.reads.1,
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
                ..path
            };
            qp.connect(&path).map_err(failed)?;
        }
        Ok(Peer { address: *address, key: *key })
    }

    /// What a message of an operation is, and the memory of it here.
    pub(super) fn message(
        &self,
        operation: Operation,
        peer: Peer,
        bytes: usize,
    ) -> (crate::ffi::verbs::Operation, Part<'_>) {
        use crate::ffi::verbs::Operation as Verb;
        let at = |offset: usize| Remote { address: peer.address + offset as u64, key: peer.key };
        match operation {
            Operation::Write => (Verb::Write(at(self.half)), self.buffer.mr.part(0, bytes)),
            Operation::Read => (Verb::Read(at(0)), self.buffer.mr.part(self.half, bytes)),
            Operation::Send => (Verb::Send, self.buffer.mr.part(0, bytes)),
        }
    }

    /// Where messages are received.
    pub(super) fn receive_part(&self, bytes: usize) -> Part<'_> {
        self.buffer.mr.part(self.half, bytes)
    }

    /// Offset of the half that is received into.
    pub(super) fn received(&self) -> usize {
        self.half
    }

    /// Fills what is sent with the pattern of that size, and what is received into with anything else.
    pub(super) fn prepare(&self, bytes: usize, operation: Operation) -> Result<()> {
        let wanted = pattern(bytes);
        self.buffer.fill(0, &wanted)?;
        let other: Vec<u8> = wanted.iter().map(|byte| !byte).collect();
        self.buffer.fill(self.half, &other)?;
        // Nobody tells this side when it is read from.
        if operation == Operation::Read { self.buffer.stage_out(0, bytes, 1) } else { Ok(()) }
    }

    /// What is wrong with the bytes that came, if anything.
    pub(super) fn verify(&self, bytes: usize, operation: Operation) -> Result<Option<String>> {
        // Nobody told this side when it was written to.
        if operation == Operation::Write {
            self.buffer.stage_in(self.half, bytes, 1)?;
        }
        let mut found = vec![0; bytes];
        self.buffer.fetch(self.half, &mut found)?;
        let wanted = pattern(bytes);
        let Some(at) = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted) else {
            return Ok(None);
        };
        let (got, right) = (found[at], wanted[at]);
        Ok(Some(format!("byte {at} of {bytes} is {got:#04x}, not {right:#04x}")))
    }

    /// Sleeps until there may be a completion, if there was none after the queue was asked to tell
    /// ([`Cq::notify`]); not longer than [`SLEEP`].
    pub(super) fn sleep(&self) -> Result<()> {
        let mut one = [PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN)];
        match poll(&mut one, Some(&SLEEP)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::system("waiting for completions", error)),
        }
        while self.channel.take_event().map_err(failed)?.is_some() {}
        Ok(())
    }

    /// A completion that failed, as an error.
    pub(super) fn failure(&self, completion: &Completion, peer: &Control) -> Error {
        let status = completion.status();
        let text = format!(
            "{} (GID {} {}) to {}: {status}, vendor error {:#x}; {}; see `rdma statistic`, ethtool -S and `ringway doctor` on both hosts",
            self.adapter.name(),
            self.adapter.chosen.index,
            self.adapter.chosen.gid,
            peer.peer(),
            completion.vendor_error(),
            status.cause(),
        );
        Error::new(ErrorKind::Remote, text)
    }

    /// Nothing moves any more, as an error.
    fn stalled(&self, control: &Control) -> Error {
        let text = format!(
            "{} to {}: nothing moved for {STALL:?}; is the path between the two ports open (GID, VLAN, MTU, UDP 4791), and is NCCL_IB_TIMEOUT not too long?",
            self.adapter.name(),
            control.peer()
        );
        Error::new(ErrorKind::Timeout, text)
    }
}

/// Looks at the clock and the other side now and then, while nothing comes.
pub(super) struct Watch {
    /// Misses until the processor is offered to others: few processors run both sides, and perhaps
    /// the device itself.
    spin: u32,
    misses: u32,
    /// When it was first looked at.
    since: Option<Instant>,
    /// Whether nothing has come for [`STILL`].
    is_still: bool,
}

impl Watch {
    const LOOK: u32 = 1 << 14;
    /// Misses from one look at the clock to the next, past the spinning.
    const TICK: u32 = 64;

    pub(super) fn new(spin: u32) -> Self {
        Self { spin, misses: 0, since: None, is_still: false }
    }

    /// Something came.
    #[inline]
    pub(super) fn hit(&mut self) {
        *self = Self::new(self.spin);
    }

    /// Nothing came.
    #[inline]
    pub(super) fn miss(&mut self, endpoint: &Endpoint, control: &Control) -> Result<()> {
        self.misses = self.misses.wrapping_add(1).max(1);
        if self.misses > self.spin {
            if self.misses.is_multiple_of(YIELD) {
                std::thread::yield_now();
            }
            if self.misses.is_multiple_of(Self::TICK) && !self.is_still {
                self.is_still = self.since.get_or_insert_with(Instant::now).elapsed() > STILL;
            }
        }
        if self.misses.is_multiple_of(Self::LOOK) { self.look(endpoint, control) } else { Ok(()) }
    }

    /// Nothing came, and this side may sleep: it asks to be told of the next completion, looks once more, and
    /// sleeps. `is_asked` remembers the asking.
    pub(super) fn miss_or_sleep(
        &mut self,
        endpoint: &Endpoint,
        control: &Control,
        is_asked: &mut bool,
    ) -> Result<()> {
        if !self.is_still {
            return self.miss(endpoint, control);
        }
        if !*is_asked {
            *is_asked = true;
            return endpoint.cq.notify(false).map_err(failed);
        }
        *is_asked = false;
        endpoint.sleep()?;
        self.look(endpoint, control)
    }

    fn look(&mut self, endpoint: &Endpoint, control: &Control) -> Result<()> {
        control.check()?;
        if self.since.get_or_insert_with(Instant::now).elapsed() > STALL {
            return Err(endpoint.stalled(control));
        }
        Ok(())
    }
}

fn queue_pair(pd: &Arc<Pd>, cq: &Arc<Cq>, depth: u32) -> Result<Qp> {
    let mut outcome = None;
    for inline_bytes in INLINE_WISHES {
        let capacity = Capacity { sends: depth, receives: depth, inline_bytes };
        match Qp::new(pd, cq, cq, None, capacity) {
            Ok(made) => return Ok(made),
            Err(error) => outcome = Some(error),
        }
    }
    Err(outcome.map_or_else(|| Error::internal("no queue pair was tried"), failed))
}

/// The port that is named, or the first that can be used; an error that says of each why not.
fn find(settings: &RdmaSettings, name: Option<&PortName>) -> Result<Arc<Adapter>> {
    let is_asked = |device: &str, port: Option<u8>| {
        name.is_none_or(|name| {
            name.device == device && (port.is_none() || name.port.is_none() || name.port == port)
        })
    };
    let found = adapter::survey_of(settings, &is_asked, 1).map_err(failed)?;
    if let Some(first) = found.adapters.into_iter().next() {
        return Ok(first);
    }
    if found.refused.is_empty() {
        let named = name.map_or_else(String::new, ToString::to_string);
        let known = found.devices.join(", ");
        return Err(Error::argument(format!("there is no port {named}; devices are {known}")));
    }
    let whys = found.refused.join("; ");
    Err(Error::new(ErrorKind::System, format!("no RDMA port can be used: {whys}")))
}

/// Bytes that tell places and sizes apart.
pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    let seed = bytes.wrapping_mul(0x9e37_79b9);
    (0..bytes).map(|at| (at.wrapping_mul(167) ^ (at >> 8) ^ seed).to_le_bytes()[0]).collect()
}

/// A number that nobody can guess.
pub(super) fn random() -> u32 {
    let mut bytes = [0; 4];
    let _left_as_it_is = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}

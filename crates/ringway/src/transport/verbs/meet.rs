//! Two ranks make a stream over RDMA: each offers its ports, those are paired in their order, queue pairs are
//! connected, and what both could connect is used.
//!
//! ```text
//! Offer (ports, addresses, queue pairs)  ◄─►  Offer
//! … connect, post receives …
//! Outcome (for every path, or why not)   ◄─►  Outcome
//! ```
//!
//! *Invariant:* the same messages in the same order at both ends, whatever fails in between, and no wait past the
//! deadline.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::adapter::{Adapter, RemoteEnd};
use super::flow::SLOTS;
use super::stream::{Parts, PathEnd, RING_BYTES, Rail, State, VerbsStream};
use crate::config::RdmaSettings;
use crate::ffi::verbs::{
    Access, Capacity, CompletionChannel, Cq, Gid, Memory, Qp, Remote, VerbsError,
};

/// Bytes of a message of the meeting, at most.
const MESSAGE_MOST: usize = 64 << 10;
/// Bytes to post inline, if the device can.
const INLINE_WISHES: [u32; 3] = [220, 64, 0];
/// Paths of a stream, at most.
const PATHS_MOST: usize = 256;

/// What one side brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Offer {
    rails: Vec<RailOffer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RailOffer {
    name: String,
    infiniband: bool,
    gid: [u8; 16],
    lid: u16,
    mtu: i32,
    address: u64,
    key: u32,
    /// Numbers of queue pairs, and of their first packets.
    queue_pairs: Vec<(u32, u32)>,
}

/// For every path of the pairing, why it could not be connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Outcome {
    paths: Vec<Option<String>>,
}

/// A rail of this side, not connected yet.
struct Ready {
    adapter: Arc<Adapter>,
    cq: Arc<Cq>,
    channel: Arc<CompletionChannel>,
    out: crate::ffi::verbs::Mr,
    into: crate::ffi::verbs::Mr,
    queue_pairs: Vec<(Qp, u32)>,
}

/// What is asked of a meeting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) adapters: &'a [Arc<Adapter>],
    pub(crate) settings: &'a RdmaSettings,
    /// Queue pairs of each rail.
    pub(crate) queue_pairs: usize,
    /// The peer, for people.
    pub(crate) peer: &'a str,
    pub(crate) deadline: Instant,
}

/// Makes a stream with the rank at the other end of the socket, which does the same. With it, what it goes by.
///
/// # Errors
/// When no rail of the two can be connected, with the reasons, or the peer does not answer in time.
pub(crate) fn meet(
    mut socket: TcpStream,
    wish: &Wish<'_>,
) -> Result<(VerbsStream, String), String> {
    let lost = |error: std::io::Error| format!("{}: {error}", wish.peer);
    let memory = || Memory::new(RING_BYTES).map(Arc::new).map_err(|error| error.to_string());
    let (memory_out, memory_into) = (memory()?, memory()?);
    let mut refused = Vec::new();
    let mut ready = Vec::new();
    for adapter in wish.adapters {
        match prepare(adapter, &memory_out, &memory_into, wish.queue_pairs) {
            Ok(rail) => ready.push(rail),
            Err(error) => refused.push(format!("{}: {error}", adapter.name())),
        }
    }
    let offer = Offer { rails: ready.iter().map(Ready::offer).collect() };
    say(&mut socket, &offer, wish.deadline).map_err(lost)?;
    let theirs: Offer = hear(&mut socket, wish.deadline).map_err(lost)?;
    let (mut rails, mut paths, mut ways) = (Vec::new(), Vec::new(), Vec::new());
    let mut outcome = Outcome { paths: Vec::new() };
    for (mine, other) in ready.into_iter().zip(&theirs.rails) {
        if mine.adapter.is_infiniband() != other.infiniband {
            let why = "InfiniBand cannot talk to Ethernet";
            refused.push(format!("{} to {}: {why}", mine.adapter.name(), other.name));
            continue;
        }
        let remote = Remote { address: other.address, key: other.key };
        let rail = rails.len();
        ways.push(format!("{} to {}", mine.adapter.name(), other.name));
        let Ready { adapter, cq, channel, out, into, queue_pairs } = mine;
        for ((qp, psn), (number, remote_psn)) in queue_pairs.into_iter().zip(&other.queue_pairs) {
            if paths.len() == PATHS_MOST {
                break;
            }
            let to = RemoteEnd {
                gid: Gid(other.gid),
                lid: other.lid,
                mtu: other.mtu,
                number: *number,
                psn: *remote_psn,
            };
            outcome
                .paths
                .push(connect(&adapter, wish.settings, (&qp, psn, paths.len()), &to).err());
            let moved = Instant::now();
            paths.push(PathEnd { rail, qp, state: State::Up, under_way: 0, moved });
        }
        rails.push(Rail { adapter, cq, channel, out, into, remote });
    }
    say(&mut socket, &outcome, wish.deadline).map_err(lost)?;
    let other: Outcome = hear(&mut socket, wish.deadline).map_err(lost)?;
    if other.paths.len() != outcome.paths.len() {
        return Err(format!("{}: it pairs rails in another way", wish.peer));
    }
    for (end, (mine, theirs)) in paths.iter_mut().zip(outcome.paths.iter().zip(&other.paths)) {
        if let Some(why) = mine.as_ref().or(theirs.as_ref()) {
            refused.push(why.clone());
            end.state = State::Down { why: why.clone() };
        }
    }
    if !paths.iter().any(|end| end.state == State::Up) {
        let why =
            if refused.is_empty() { "it offers no port".to_owned() } else { refused.join("; ") };
        return Err(format!("no RDMA connection to {}: {why}", wish.peer));
    }
    let up = paths.iter().filter(|end| end.state == State::Up).count();
    let way = format!("{up} queue pairs, {}", ways.join(", "));
    socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map_err(lost)?;
    let peer = wish.peer.to_owned();
    let patience = patience(wish.settings);
    let parts = Parts { rails, paths, memory_out, memory_into, socket, patience, peer };
    Ok((VerbsStream::new(parts).map_err(lost)?, way))
}

/// How long a write may stand still: as long as an adapter tries, within bounds, as some never give up.
fn patience(settings: &RdmaSettings) -> Duration {
    let once = Duration::from_nanos(4096_u64 << settings.timeout.min(31));
    (once * (u32::from(settings.retries) + 1))
        .clamp(Duration::from_millis(500), Duration::from_secs(10))
}

fn prepare(
    adapter: &Arc<Adapter>,
    out: &Arc<Memory>,
    into: &Arc<Memory>,
    count: usize,
) -> Result<Ready, VerbsError> {
    let channel = CompletionChannel::new(&adapter.context)?;
    let slots = u32::try_from(SLOTS).unwrap_or(u32::MAX);
    let each = 4 * slots * u32::try_from(count).unwrap_or(1);
    let cq = Cq::new(&adapter.context, each, Some((&channel, 0)))?;
    let out = out.register(&adapter.pd, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
    let into = into.register(&adapter.pd, access)?;
    let queue_pairs = (0..count).map(|_| Ok((queue_pair(adapter, &cq, slots)?, psn())));
    let queue_pairs = queue_pairs.collect::<Result<_, VerbsError>>()?;
    Ok(Ready { adapter: Arc::clone(adapter), cq, channel, out, into, queue_pairs })
}

fn queue_pair(adapter: &Adapter, cq: &Arc<Cq>, slots: u32) -> Result<Qp, VerbsError> {
    let make = |inline_bytes| {
        let capacity = Capacity { sends: 2 * slots, receives: 2 * slots, inline_bytes };
        Qp::new(&adapter.pd, cq, cq, None, capacity)
    };
    let [first, others @ ..] = INLINE_WISHES;
    others.into_iter().fold(make(first), |made, wish| made.or_else(|_| make(wish)))
}

fn connect(
    adapter: &Adapter,
    settings: &RdmaSettings,
    (qp, psn, path): (&Qp, u32, usize),
    to: &RemoteEnd,
) -> Result<(), String> {
    let Some(way) = adapter.path(settings, psn, to) else {
        return Err(format!("{}: no MTU fits both sides", adapter.name()));
    };
    let connected = qp.connect(&way).and_then(|()| VerbsStream::prepare(qp, path));
    connected.map_err(|error| error.to_string())
}

impl Ready {
    fn offer(&self) -> RailOffer {
        let adapter = &self.adapter;
        RailOffer {
            name: adapter.name(),
            infiniband: adapter.is_infiniband(),
            gid: adapter.chosen.gid.0,
            lid: adapter.port.lid,
            mtu: adapter.port.active_mtu,
            address: self.into.base(),
            key: self.into.remote_key(),
            queue_pairs: self.queue_pairs.iter().map(|(qp, psn)| (qp.number(), *psn)).collect(),
        }
    }
}

/// A number of a first packet, 24 bits.
fn psn() -> u32 {
    let mut bytes = [0; 4];
    let _left_as_it_is = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes) & 0xff_ffff
}

/// Says a message: its length in 4 bytes, then JSON.
fn say(socket: &mut TcpStream, message: &impl Serialize, deadline: Instant) -> std::io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(left(deadline)?))?;
    socket.write_all(&[&length.to_le_bytes()[..], &body].concat())
}

fn hear<T: for<'a> Deserialize<'a>>(
    socket: &mut TcpStream,
    deadline: Instant,
) -> std::io::Result<T> {
    let mut length = [0; 4];
    read(socket, &mut length, deadline)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_MOST {
        return Err(std::io::Error::other(format!(
            "it says {length} bytes where it should say little"
        )));
    }
    let mut body = vec![0; length];
    read(socket, &mut body, deadline)?;
    Ok(serde_json::from_slice(&body)?)
}

fn read(socket: &mut TcpStream, room: &mut [u8], deadline: Instant) -> std::io::Result<()> {
    let mut got = 0;
    while got < room.len() {
        socket.set_read_timeout(Some(left(deadline)?))?;
        match socket.read(&mut room[got..]) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

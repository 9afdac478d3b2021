//! The overlay of control connections, and the all-gather that runs over it.
//!
//! Rank r holds connections to r ± 2^i (mod n) for every 2^i < n: it dials r + 2^i and is dialled by
//! r − 2^i. Where both ranks of a pair would dial each other (n = 2^i + 2^j), only the lower does.
//! Over that circulant graph Bruck's all-gather needs ⌈log2 n⌉ rounds.
//!
//! *Invariant:* one thread drives everything through one poll loop: a rank that waits to be
//! dialled still dials, and one that sends still receives, so no cycle of waits can form.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::PeerInfo;
use super::auth::{Hello, Key, Purpose};
use super::dial::{Connected, Dialer};
use super::frame::{self, ControlStream, FrameError, Side};
use super::gate::Gate;
use super::rendezvous::{self, message};
use super::socket;
use crate::error::{Error, ErrorKind, RankIdentity, Result};
use crate::plan::types::Rank;

/// How long a rank tries a peer none of whose addresses answers.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_millis(100);
/// How long a rank that gives up waits for its peers to take note.
const FAREWELL: Duration = Duration::from_millis(200);

/// The connections of one rank in the overlay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overlay {
    /// Peers this rank dials.
    pub(crate) dials: Vec<Rank>,
    /// Peers that dial this rank.
    pub(crate) accepts: Vec<Rank>,
}

impl Overlay {
    pub(crate) fn of(rank: Rank, size: u32) -> Self {
        let n = u64::from(size);
        let r = u64::from(rank);
        let mut overlay = Self::default();
        let narrow = |rank: u64| u32::try_from(rank).expect("below the size, which is a u32");
        let mut offset = 1;
        while offset < n {
            let mutual = (n - offset).is_power_of_two();
            let (up, down) = (narrow((r + offset) % n), narrow((r + n - offset) % n));
            if !mutual || rank < up {
                overlay.dials.push(up);
            }
            if !mutual || down < rank {
                overlay.accepts.push(down);
            }
            offset *= 2;
        }
        overlay
    }

    /// All peers, in order, each once.
    pub(crate) fn peers(&self) -> Vec<Rank> {
        let mut peers: Vec<Rank> = self.dials.iter().chain(&self.accepts).copied().collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

/// What the overlay is built from.
pub(crate) struct Plan<'a> {
    pub(crate) me: &'a PeerInfo,
    pub(crate) size: u32,
    pub(crate) key: &'a Key,
    pub(crate) communicator: u64,
    /// At least the peers of this rank's overlay.
    pub(crate) peers: &'a BTreeMap<Rank, PeerInfo>,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
}

/// Connects this rank to its overlay peers. `root` is watched for news of others' failures.
pub(crate) fn connect(
    plan: &Plan<'_>,
    gate: &mut Gate,
    root: Option<&mut ControlStream>,
) -> Result<Vec<(Rank, ControlStream)>> {
    let mut control = BTreeMap::new();
    let outcome = connect_all(plan, gate, root, &mut control);
    let mut control: Vec<(Rank, ControlStream)> = control.into_iter().collect();
    match outcome {
        Ok(()) => Ok(control),
        Err(error) => {
            let mut streams = control.drain(..).map(|(_, stream)| stream).collect();
            let until = Instant::now() + FAREWELL;
            let body = rendezvous::encode(&error);
            frame::say_farewell(&mut streams, message::FAIL, &body, until);
            Err(error)
        }
    }
}

fn connect_all(
    plan: &Plan<'_>,
    gate: &mut Gate,
    mut root: Option<&mut ControlStream>,
    control: &mut BTreeMap<Rank, ControlStream>,
) -> Result<()> {
    let overlay = Overlay::of(plan.me.rank, plan.size);
    let mut dialers: Vec<(Rank, Dialer)> = Vec::new();
    for &peer in &overlay.dials {
        dialers.push((peer, dialer_for(plan, peer)?));
    }
    let wanted = overlay.peers().len();
    let mut admitted = Vec::new();
    loop {
        let mut at = 0;
        while at < dialers.len() {
            let (peer, dialer) = &mut dialers[at];
            if let Some(connected) = dialer.advance() {
                let info = known(plan, *peer)?;
                log_choice(plan.me.rank, info, dialer, &connected);
                control
                    .insert(*peer, framed(connected.stream, connected.session_key, Side::Dialer)?);
                dialers.swap_remove(at);
            } else if dialer.hopeless(UNREACHABLE_AFTER) {
                return Err(unreachable(plan, *peer, dialer));
            } else {
                at += 1;
            }
        }
        gate.advance(&mut admitted)?;
        for one in admitted.drain(..) {
            let hello = one.hello;
            let expected =
                hello.purpose == Purpose::Control && overlay.accepts.contains(&hello.from);
            if expected {
                control.insert(hello.from, framed(one.stream, one.session_key, Side::Acceptor)?);
            } else {
                tracing::debug!(
                    target: "ringway::BOOTSTRAP",
                    "dropped an unexpected connection from {}: {hello:?}", one.address
                );
            }
        }
        if let Some(root) = root.as_deref_mut() {
            rendezvous::check_for_failure(root)?;
        }
        if control.len() == wanted {
            return Ok(());
        }
        if Instant::now() >= plan.deadline {
            return Err(late(plan, &overlay, control, &dialers));
        }
        let mut fds = Vec::new();
        gate.register(&mut fds);
        dialers.iter().for_each(|(_, dialer)| dialer.register(&mut fds));
        if let Some(root) = root.as_deref() {
            root.register(&mut fds);
        }
        let wake = dialers.iter().map(|(_, dialer)| dialer.wake_at()).min();
        let wake = wake.map_or_else(|| gate.wake_at(), |wake| wake.min(gate.wake_at()));
        socket::wait(&mut fds, wake.min(plan.deadline))
            .map_err(|error| Error::system("wait for bootstrap connections", error))?;
    }
}

fn dialer_for(plan: &Plan<'_>, peer: Rank) -> Result<Dialer> {
    let hello = Hello {
        purpose: Purpose::Control,
        from: plan.me.rank,
        to: peer,
        communicator: plan.communicator,
        tag: 0,
    };
    let targets = known(plan, peer)?.targets_from(plan.me);
    Ok(Dialer::new(plan.key.clone(), hello, targets, RETRY_MAX))
}

fn known<'a>(plan: &Plan<'a>, peer: Rank) -> Result<&'a PeerInfo> {
    plan.peers.get(&peer).ok_or_else(|| {
        Error::internal(format!(
            "the rendezvous left out rank {peer}, which rank {} needs",
            plan.me.rank
        ))
    })
}

pub(crate) fn framed(
    stream: std::net::TcpStream,
    key: super::auth::SessionKey,
    side: Side,
) -> Result<ControlStream> {
    ControlStream::new(stream, key, side)
        .map_err(|error| Error::system("set up a control connection", error))
}

pub(crate) fn log_choice(rank: Rank, peer: &PeerInfo, dialer: &Dialer, taken: &Connected) {
    let target = &taken.target;
    let refused: Vec<String> = dialer
        .refused()
        .filter(|(other, _)| *other != target)
        .map(|(other, why)| format!("{} {}: {why}", other.label, other.address))
        .chain(peer.withheld.iter().map(|(name, why)| format!("{name}: not offered ({why})")))
        .collect();
    let refused = if refused.is_empty() {
        String::new()
    } else {
        format!("; refused {}", refused.join("; "))
    };
    tracing::info!(
        target: "ringway::BOOTSTRAP",
        "rank {rank} reaches {} by {} {}{refused}", peer.identity(), target.label, target.address
    );
}

pub(crate) fn reasons(peer: &PeerInfo, dialer: &Dialer) -> String {
    let mut text = dialer.report();
    for (name, why) in &peer.withheld {
        text = format!("{text}; {name}: not offered ({why})");
    }
    text
}

fn unreachable(plan: &Plan<'_>, peer: Rank, dialer: &Dialer) -> Error {
    let Some(info) = plan.peers.get(&peer) else {
        return Error::internal("a peer got lost");
    };
    Error::new(
        ErrorKind::Remote,
        format!(
            "{} cannot reach {}: {}; check routes and firewalls between the two hosts, or name the \
             interface with NCCL_SOCKET_IFNAME",
            plan.me.identity(),
            info.identity(),
            reasons(info, dialer)
        ),
    )
    .with_culprits(vec![info.identity()])
}

fn late(
    plan: &Plan<'_>,
    overlay: &Overlay,
    control: &BTreeMap<Rank, ControlStream>,
    dialers: &[(Rank, Dialer)],
) -> Error {
    let mut reasons_of = Vec::new();
    let mut culprits: Vec<RankIdentity> = Vec::new();
    for rank in overlay.peers().into_iter().filter(|rank| !control.contains_key(rank)) {
        let Some(info) = plan.peers.get(&rank) else {
            continue;
        };
        culprits.push(info.identity());
        reasons_of.push(match dialers.iter().find(|(peer, _)| *peer == rank) {
            Some((_, dialer)) => format!("{} ({})", info.identity(), reasons(info, dialer)),
            None => format!("{} (did not connect)", info.identity()),
        });
    }
    Error::new(
        ErrorKind::Timeout,
        format!(
            "{} has no control connection after {:.1} s to {}",
            plan.me.identity(),
            plan.timeout.as_secs_f64(),
            reasons_of.join("; ")
        ),
    )
    .with_culprits(culprits)
}

/// Tells every peer why this rank gives up, as far as the sockets take it.
pub(crate) fn tell_all(control: &mut [(Rank, ControlStream)], error: &Error) {
    let body = rendezvous::encode(error);
    for (_, stream) in control {
        if !stream.has_queued() && stream.queue(message::FAIL, &body).is_ok() {
            let _ = stream.try_flush();
        }
    }
}

/// Bruck's all-gather: every rank's block, in rank order.
pub(crate) fn all_gather(
    rank: Rank,
    size: u32,
    control: &mut [(Rank, ControlStream)],
    block: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>> {
    let n = size as usize;
    let mut blocks: Vec<Vec<u8>> = Vec::with_capacity(n.min(1 << 16));
    blocks.push(block.to_vec());
    let mut distance = 1_u32;
    while distance < size {
        let back = wrapped(rank, size - distance, size);
        let ahead = wrapped(rank, distance, size);
        let count = (distance.min(size - distance)) as usize;
        let stream = stream_to(control, back)?;
        for block in &blocks[..count] {
            stream.queue(message::GATHER, block).map_err(|error| broken(rank, back, &error))?;
        }
        round(rank, control, (back, ahead), count, &mut blocks, deadline)?;
        distance = distance.saturating_mul(2);
    }
    blocks.rotate_right(rank as usize % n);
    Ok(blocks)
}

fn wrapped(rank: Rank, offset: u32, size: u32) -> Rank {
    let sum = (u64::from(rank) + u64::from(offset)) % u64::from(size);
    u32::try_from(sum).expect("below the size, which is a u32")
}

/// Flushes to `to` while `count` blocks come in from `from`.
fn round(
    rank: Rank,
    control: &mut [(Rank, ControlStream)],
    (to, from): (Rank, Rank),
    count: usize,
    blocks: &mut Vec<Vec<u8>>,
    deadline: Instant,
) -> Result<()> {
    let mut missing = count;
    loop {
        let lost = |peer: Rank| move |error: FrameError| broken(rank, peer, &error);
        let flushed = stream_to(control, to)?.try_flush();
        while missing > 0 {
            let Some(frame) = stream_to(control, from)?.try_receive().map_err(lost(from))? else {
                break;
            };
            match frame.kind {
                message::GATHER => blocks.push(frame.body),
                message::FAIL => return Err(rendezvous::decode_failure(&frame.body)),
                kind => {
                    return Err(Error::internal(format!(
                        "rank {from} sent message kind {kind} in an all-gather"
                    )));
                }
            }
            missing -= 1;
        }
        let flushed = match flushed {
            Ok(flushed) => flushed,
            // A peer that failed said why before it closed.
            Err(why) => {
                return Err(match stream_to(control, to)?.try_receive() {
                    Ok(Some(frame)) if frame.kind == message::FAIL => {
                        rendezvous::decode_failure(&frame.body)
                    }
                    _ => broken(rank, to, &why),
                });
            }
        };
        if flushed && missing == 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let late = if missing > 0 { from } else { to };
            return Err(broken(rank, late, &FrameError::Timeout));
        }
        let mut fds = Vec::with_capacity(2);
        for (peer, stream) in &*control {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, *peer == to && stream.has_queued());
            flags.set(PollFlags::IN, *peer == from && missing > 0);
            if !flags.is_empty() {
                fds.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
            }
        }
        socket::wait(&mut fds, deadline)
            .map_err(|error| Error::system("wait for an all-gather", error))?;
    }
}

fn stream_to(control: &mut [(Rank, ControlStream)], peer: Rank) -> Result<&mut ControlStream> {
    let found = control.iter_mut().find(|(rank, _)| *rank == peer);
    found
        .map(|(_, stream)| stream)
        .ok_or_else(|| Error::internal(format!("no control connection to rank {peer}")))
}

fn broken(rank: Rank, peer: Rank, why: &FrameError) -> Error {
    let kind = match why {
        FrameError::Timeout => ErrorKind::Timeout,
        FrameError::TooLong { .. } => ErrorKind::InvalidArgument,
        _ => ErrorKind::Remote,
    };
    Error::new(kind, format!("control connection of rank {rank} to rank {peer}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_agree_on_who_dials() {
        for size in 1..=70 {
            for rank in 0..size {
                let mine = Overlay::of(rank, size);
                let mut all = mine.dials.clone();
                all.extend(&mine.accepts);
                assert_eq!(all.len(), mine.peers().len(), "no pair twice: {rank} of {size}");
                assert!(!all.contains(&rank));
                for &peer in &mine.dials {
                    assert!(
                        Overlay::of(peer, size).accepts.contains(&rank),
                        "{rank} {peer} {size}"
                    );
                }
                for &peer in &mine.accepts {
                    assert!(Overlay::of(peer, size).dials.contains(&rank), "{rank} {peer} {size}");
                }
            }
        }
    }

    #[test]
    fn peers_are_the_powers_of_two_both_ways() {
        assert_eq!(Overlay::of(0, 1).peers(), Vec::<Rank>::new());
        assert_eq!(Overlay::of(0, 2).peers(), [1]);
        assert_eq!(Overlay::of(5, 16).peers(), [1, 3, 4, 6, 7, 9, 13]);
    }
}

//! The root: waits for all ranks, introduces neighbours, and passes the first failure to everybody.
//!
//! It is one thread with one poll loop in the process of rank 0, or of whoever made the unique id.
//!
//! *Invariant:* it ends: by the deadline of the first rank that came, or, if none came, by the end of
//! its own lifetime. It never answers one who does not hold the key.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::{ROOT, Welcome, decode_failure, decode_join, encode, message};
use crate::bootstrap::PeerInfo;
use crate::bootstrap::auth::{Key, Purpose};
use crate::bootstrap::exchange::{self, Overlay};
use crate::bootstrap::frame::{self, ControlStream, Side};
use crate::bootstrap::gate::{Gate, Rejections};
use crate::bootstrap::socket;
use crate::error::{Error, ErrorKind, RankIdentity, Result};
use crate::plan::types::Rank;

/// How long somebody who got in may take to say its JOIN.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);
/// How long the root waits for ranks to take note of a failure.
const FAREWELL: Duration = Duration::from_secs(1);
/// The longest any rank may ask to wait.
const TIMEOUT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a root is started with.
#[derive(Debug)]
pub(crate) struct RootOptions {
    pub(crate) key: Key,
    /// The number joiners name.
    pub(crate) knock: u64,
    /// The number of the communicator that results.
    pub(crate) communicator: u64,
    /// How long to wait for the first rank.
    pub(crate) lifetime: Duration,
    /// How long a failed root stays to tell those who come later.
    pub(crate) linger: Duration,
    /// Where ranks were told to come, for messages.
    pub(crate) asked_at: String,
    /// By which the root is told that nobody will come.
    pub(crate) dismissal: Arc<Dismissal>,
}

/// Ends a root before anybody has come: an eventfd, so that its poll wakes.
#[derive(Debug)]
pub(crate) struct Dismissal(OwnedFd);

impl Dismissal {
    pub(crate) fn new() -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Error::system("make an eventfd for the root", error))?;
        Ok(Self(bell))
    }

    /// Nobody will come.
    pub(crate) fn give(&self) {
        // It fails only if the counter is full: then it is given already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn is_given(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

/// Starts the root's thread.
pub(crate) fn spawn(listener: TcpListener, options: RootOptions) -> Result<JoinHandle<()>> {
    let rejections = Arc::new(Rejections::default());
    let gate =
        Gate::new(listener, options.key.clone(), (options.knock, ROOT), Arc::clone(&rejections))?;
    let root = Root {
        deadline: Instant::now() + options.lifetime.min(TIMEOUT_MAX),
        options,
        gate: Some(gate),
        rejections,
        size: None,
        timeout: None,
        guests: Vec::new(),
        members: BTreeMap::new(),
        gone: 0,
    };
    std::thread::Builder::new()
        .name("ringway-root".into())
        .spawn(move || root.run())
        .map_err(|error| Error::system("start the root's thread", error))
}

struct Member {
    info: PeerInfo,
    tag: u64,
    stream: ControlStream,
    connected: bool,
}

/// One who holds the key but has not said its JOIN yet.
struct Guest {
    tag: u64,
    from: Rank,
    stream: ControlStream,
    since: Instant,
}

struct Root {
    options: RootOptions,
    gate: Option<Gate>,
    rejections: Arc<Rejections>,
    /// Said by the first rank that came.
    size: Option<u32>,
    timeout: Option<Duration>,
    deadline: Instant,
    guests: Vec<Guest>,
    members: BTreeMap<Rank, Member>,
    /// Ranks that were told of a failure and left.
    gone: usize,
}

impl Root {
    fn run(mut self) {
        if let Err(error) = self.serve() {
            tracing::warn!(target: "ringway::BOOTSTRAP", "{error}");
            self.fail(&error);
        }
    }

    fn serve(&mut self) -> Result<()> {
        if !self.gather()? {
            return Ok(());
        }
        // All are here: nobody has business at the door any more.
        self.gate = None;
        self.guests.clear();
        self.welcome();
        self.await_connections()?;
        for member in self.members.values_mut() {
            // One that is gone now will be missed by its peers, who can name it.
            let _ = member.stream.send(message::GO, &[], self.deadline);
        }
        Ok(())
    }

    /// Waits until all are here; not where it is told that nobody will be.
    fn gather(&mut self) -> Result<bool> {
        loop {
            self.take_in()?;
            self.hear_guests()?;
            if self.complete() {
                return Ok(true);
            }
            if self.members.is_empty() && self.options.dismissal.is_given() {
                return Ok(false);
            }
            self.hear_members(|_| None)?;
            if Instant::now() >= self.deadline {
                return Err(self.late());
            }
            self.wait()?;
        }
    }

    fn complete(&self) -> bool {
        self.size.is_some_and(|size| self.members.len() == size as usize)
    }

    /// Lets in who has proved the key.
    fn take_in(&mut self) -> Result<()> {
        let Some(gate) = &mut self.gate else {
            return Ok(());
        };
        let mut admitted = Vec::new();
        gate.advance(&mut admitted)?;
        for one in admitted {
            if one.hello.purpose == Purpose::Join {
                let stream = exchange::framed(one.stream, one.session_key, Side::Acceptor)?;
                let (tag, from) = (one.hello.tag, one.hello.from);
                self.guests.push(Guest { tag, from, stream, since: Instant::now() });
            }
        }
        Ok(())
    }

    /// Reads the JOIN of those whose is whole.
    fn hear_guests(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.guests.len() {
            let guest = &mut self.guests[at];
            match guest.stream.try_receive() {
                Ok(Some(frame)) if frame.kind == message::JOIN => {
                    self.enlist(at, &frame.body)?;
                }
                Ok(None) if guest.since.elapsed() < JOIN_PATIENCE => at += 1,
                _ => {
                    self.guests.swap_remove(at);
                }
            }
        }
        Ok(())
    }

    /// Makes a guest a member, or fails the rendezvous: then the guest stays, to be told.
    fn enlist(&mut self, at: usize, body: &[u8]) -> Result<()> {
        let request = decode_join(body)?;
        let (info, tag) = (request.peer, self.guests[at].tag);
        let size = *self.size.get_or_insert(request.size);
        if self.timeout.is_none() {
            let timeout = Duration::from_millis(request.timeout_ms).min(TIMEOUT_MAX);
            self.timeout = Some(timeout);
            self.deadline = Instant::now() + timeout;
        }
        if request.size != size {
            let first = self.members.values().next();
            let first = first.map_or_else(
                || "the first rank that came".to_owned(),
                |member| member.info.identity().to_string(),
            );
            return Err(Error::usage(format!(
                "the ranks disagree on their number: {} says {}, {first} says {size}; give all \
                 ranks the same size",
                info.identity(),
                request.size
            ))
            .with_culprits(vec![info.identity()]));
        }
        if info.rank >= size || info.rank != self.guests[at].from {
            return Err(Error::argument(format!(
                "{} does not exist among {size} ranks (0 to {})",
                info.identity(),
                size.saturating_sub(1)
            ))
            .with_culprits(vec![info.identity()]));
        }
        if let Some(known) = self.members.get(&info.rank)
            && known.tag != tag
        {
            let (first, second) = (known.info.identity(), info.identity());
            return Err(Error::usage(format!(
                "two processes claim rank {}: host {}, pid {} and host {}, pid {}; give each process \
                 its own rank",
                info.rank, first.host, first.pid, second.host, second.pid
            ))
            .with_culprits(vec![first, second]));
        }
        let Guest { stream, .. } = self.guests.swap_remove(at);
        self.members.insert(info.rank, Member { info, tag, stream, connected: false });
        Ok(())
    }

    /// Reads what members say; `on` may turn a frame kind into a state.
    fn hear_members(&mut self, on: impl Fn(u16) -> Option<bool>) -> Result<()> {
        let mut impatient = false;
        for member in self.members.values_mut() {
            loop {
                match member.stream.try_receive() {
                    Ok(None) => break,
                    Ok(Some(frame)) if frame.kind == message::FAIL => {
                        let error = decode_failure(&frame.body);
                        if error.kind() != ErrorKind::Timeout || self.gate.is_none() {
                            return Err(error);
                        }
                        // Its own deadline is over: only the root can say who is missing.
                        impatient = true;
                        break;
                    }
                    Ok(Some(frame)) => {
                        if let Some(connected) = on(frame.kind) {
                            member.connected = connected;
                        }
                    }
                    Err(why) => {
                        let who = member.info.identity();
                        return Err(Error::new(
                            ErrorKind::Remote,
                            format!(
                                "{who} left before the rendezvous was complete ({why}); look at \
                                 its messages"
                            ),
                        )
                        .with_culprits(vec![who]));
                    }
                }
            }
        }
        if impatient { Err(self.late()) } else { Ok(()) }
    }

    /// Tells each rank of the peers it connects to.
    fn welcome(&mut self) {
        let size = self.size.unwrap_or(0);
        let mut answers = Vec::with_capacity(self.members.len());
        for &rank in self.members.keys() {
            let peers = Overlay::of(rank, size).peers();
            let peers = peers.iter().filter_map(|peer| self.members.get(peer));
            let peers = peers.map(|member| member.info.clone()).collect();
            answers.push(encode(&Welcome { communicator: self.options.communicator, peers }));
        }
        for (member, answer) in self.members.values_mut().zip(&answers) {
            // A failure shows when the member is heard next.
            let _ = member.stream.send(message::WELCOME, answer, self.deadline);
        }
    }

    fn await_connections(&mut self) -> Result<()> {
        loop {
            self.hear_members(|kind| (kind == message::CONNECTED).then_some(true))?;
            if self.members.values().all(|member| member.connected) {
                return Ok(());
            }
            if Instant::now() >= self.deadline {
                let late = self.members.values().filter(|member| !member.connected);
                let late: Vec<RankIdentity> = late.map(|member| member.info.identity()).collect();
                let names: Vec<String> = late.iter().map(ToString::to_string).collect();
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "all ranks came, but these did not connect to their peers in time: {}",
                        names.join(", ")
                    ),
                )
                .with_culprits(late));
            }
            self.wait()?;
        }
    }

    fn wait(&self) -> Result<()> {
        let mut fds = Vec::with_capacity(self.members.len() + self.guests.len() + 8);
        let mut until = self.deadline;
        if let Some(gate) = &self.gate {
            gate.register(&mut fds);
            until = until.min(gate.wake_at());
        }
        if self.members.is_empty() {
            fds.push(PollFd::from_borrowed_fd(self.options.dismissal.0.as_fd(), PollFlags::IN));
        }
        for guest in &self.guests {
            guest.stream.register(&mut fds);
            until = until.min(guest.since + JOIN_PATIENCE);
        }
        self.members.values().for_each(|member| member.stream.register(&mut fds));
        socket::wait(&mut fds, until).map_err(|error| Error::system("wait for ranks", error))?;
        Ok(())
    }

    /// The error of a rendezvous to which not all came.
    fn late(&self) -> Error {
        let asked = &self.options.asked_at;
        let Some(size) = self.size else {
            return Error::new(
                ErrorKind::Timeout,
                format!("no rank ever came to the rendezvous at {asked}; {}", self.rejections),
            );
        };
        let missing: Vec<Rank> =
            (0..size).filter(|rank| !self.members.contains_key(rank)).collect();
        let seconds = self.timeout.unwrap_or_default().as_secs_f64();
        let mut text = format!(
            "rendezvous of {size} ranks timed out after {seconds:.1} s: {} never came (asked at \
             {asked}); {} of {size} came; check that the missing processes were started and can \
             reach that address",
            ranks_text(&missing),
            self.members.len()
        );
        if self.rejections.total() > 0 {
            let _ = write!(text, "; {}", self.rejections);
        }
        Error::new(ErrorKind::Timeout, text)
    }

    /// Tells all who came, and for a while those who still come.
    fn fail(&mut self, error: &Error) {
        let body = encode(error);
        self.tell(&body);
        if error.kind() == ErrorKind::Timeout {
            return;
        }
        let until = self.deadline.min(Instant::now() + self.options.linger);
        let wanted = self.size.map_or(usize::MAX, |size| size as usize);
        while self.gate.is_some() && self.gone < wanted && Instant::now() < until {
            if self.take_in().is_err() {
                return;
            }
            self.tell(&body);
            self.deadline = until;
            if self.wait().is_err() {
                return;
            }
        }
    }

    fn tell(&mut self, body: &[u8]) {
        let members = std::mem::take(&mut self.members).into_values().map(|member| member.stream);
        let guests = self.guests.drain(..).map(|guest| guest.stream);
        let mut streams: Vec<ControlStream> = members.chain(guests).collect();
        self.gone += streams.len();
        frame::say_farewell(&mut streams, message::FAIL, body, Instant::now() + FAREWELL);
    }
}

/// `rank 3` · `ranks 3, 5–7`.
pub(crate) fn ranks_text(ranks: &[Rank]) -> String {
    let mut runs: Vec<(Rank, Rank)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let words = runs.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    });
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::ranks_text;

    #[test]
    fn runs_of_ranks_are_short() {
        assert_eq!(ranks_text(&[3]), "rank 3");
        assert_eq!(ranks_text(&[3, 5, 6, 7]), "ranks 3, 5–7");
        assert_eq!(ranks_text(&[0, 1, 4]), "ranks 0, 1, 4");
    }
}

//! The engine of a communicator: begins operations, polls them to their end, and knows what to
//! say when one does not end.

mod messages;

use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use messages::MessagePart;

use super::clock::Clock;
use super::connect::{self, Arrivals, Connections};
use super::idle::{Idle, Next, Patience};
use super::metrics::Metered;
use super::scratch::ScratchUse;
use crate::bootstrap::Session;
use crate::control::{Health, Journal, Report, Signature, VERDICT_WAIT};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{Execution, Fabric as _, Links, Progress};
use crate::interrupt;
use crate::plan::algorithm::Algorithm;
use crate::plan::types::Rank;
use crate::recorder::{Entry, Watched};
use crate::transport::framed::{AHEAD, FramedLink};
use crate::transport::shm::{self, GENERATIONS, Segment};
use crate::transport::{Area, Context, Link, LinkDescription, OperationTag, Pair, Trouble};

/// How long a wait stands before the peers compare what they are doing.
const COMPARE_AFTER: Duration = Duration::from_millis(1);

/// How long a wait stands before links are asked, each time, whether what was sent on them was acknowledged.
const SILENT_AFTER: Duration = Duration::from_millis(250);

/// How long a wait stands before the control plane compares what neighbours are doing: links compare only with their peers.
pub(super) const ASK_AFTER: Duration = Duration::from_millis(50);

/// How long a wait for a rank that has left stands: what it sent before may have to be sent again by the kernel, which
/// waits 200 ms before that, and 400 more before it tries once again.
pub(super) const LEFT_AFTER: Duration = Duration::from_millis(700);

/// How long the goodbye of a rank whose connection has ended may be on its way.
const GOODBYE_AFTER: Duration = Duration::from_millis(100);

/// What the others are told when this rank's caller wants out of a wait.
pub(super) const INTERRUPTED: &str = "it was interrupted while it waited";

/// When calls of at most so many bytes began is noted after their first steps: these take a microsecond or two.
const NOTED_LATER: usize = 8 << 10;

/// A brief call that ends after fewer looks for the others takes well under two microseconds; its end is counted
/// in looks. A look at the clock would take longer than all else that is noted of it.
const LOOKS_COUNTED: u32 = 64;

/// What a look takes, roughly, in ticks of the recorder's clock: 10 to 20 ns.
const LOOK_TICKS: u64 = 32;

/// Everything an operation needs while it runs. One thread at a time.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) session: Session,
    pub(crate) links: Links,
    pub(crate) own: Arc<Segment>,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) health: Arc<Health>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) patience: Patience,
    pub(crate) connections: Connections,
    pub(crate) rdma: super::rdma::Rdma,
    /// Whether payloads between hosts carry checksums.
    pub(crate) checks: bool,
    /// The other ranks of this host.
    pub(crate) neighbours: Arc<[Rank]>,
    /// Why each peer is not reached by shared memory.
    pub(crate) refusals: Vec<String>,
    /// When the call that is about to run was queued, by the recorder's clock; 0 where it was not.
    pub(crate) queued: u64,
    /// Of how many values the call is that the one about to run is a part of; nothing where it is no part.
    pub(crate) whole: Option<u64>,
    /// What the journal is yet to be told.
    pub(crate) entering: Entering,
    /// What those who watch are told.
    pub(crate) metered: Option<Arc<Metered>>,
    /// Collectives completed, and the number of the one that is under way or next.
    pub(crate) sequence: u64,
    /// The hash of their calls.
    pub(crate) history: u32,
    pub(crate) scratch: ScratchUse,
    /// Collectives that all neighbours are known to have completed.
    pub(crate) cleared: u64,
    /// Messages sent to and received from each rank.
    pub(crate) messages: Vec<(u64, u64)>,
}

/// A call that has been entered.
///
/// The journal knows it before anything goes out: whoever meets it with another call asks what this one is. The clock
/// is read while what the others send is on its way ([`Links::timed`]). Whoever waits, fails or ends sees to it that it has been.
#[derive(Debug, Default)]
pub(crate) struct Entering {
    /// Its sequence, as long as the clock has not been read.
    untimed: Option<u64>,
    /// When it began, by the recorder's clock.
    start: u64,
    /// How often one then looked for the others in vain.
    looks: u32,
}

/// What ranks must agree on before they can work together, and what is noted of it.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    /// All of them.
    pub(crate) signature: Signature,
    /// Each with each, where the counts are known to two ranks alone.
    pub(crate) pairs: Option<Arc<[Pair]>>,
    /// How it is done, where one call is.
    pub(crate) algorithm: Option<Algorithm>,
    /// Calls in it.
    pub(crate) parts: usize,
    /// Whether ranks have counts of their own.
    pub(crate) uneven: bool,
}

/// An operation that is being run.
#[derive(Debug)]
struct Running<'a> {
    execution: &'a mut Execution,
    /// The recorder's number of it, where it is a message.
    message: Option<u64>,
    pairs: Option<&'a [Pair]>,
    /// Where the operation's scratch begins at its peers.
    remote_scratch: u64,
    /// Whether the links know of it. Not before the gate is open: what a peer on another host
    /// sends would land in scratch that a rank of this host may still read.
    begun: bool,
    done: bool,
    /// Whether something else begins when it is done: then the others are left for a moment.
    is_followed: bool,
}

impl Running<'_> {
    fn peers(&self) -> &[Rank] {
        &self.execution.prepared().peers
    }

    fn context(&self) -> Context {
        self.execution.operation().0
    }
}

impl Engine {
    /// Runs one (perhaps fused) collective.
    ///
    /// # Safety
    /// As for [`Execution::begin`].
    #[expect(unsafe_code, reason = "passes the caller's promise on")]
    pub(crate) unsafe fn collective(
        &mut self,
        execution: &mut Execution,
        areas: (&[Area], &[Area]),
        agreement: &Agreement,
        deadline: Duration,
    ) -> Result<()> {
        let count = self.whole.take().unwrap_or(agreement.signature.count);
        let signature = Signature { sequence: self.sequence, count, ..agreement.signature };
        let queued = std::mem::take(&mut self.queued);
        let Agreement { algorithm, parts, uneven, .. } = *agreement;
        let bytes = |areas: &[Area]| areas.iter().map(|area| area.bytes).sum::<usize>();
        let (into, out) = (bytes(areas.0), bytes(areas.1));
        let later = into + out <= NOTED_LATER && queued == 0;
        let start = if later { 0 } else { self.journal.recorder().now() };
        self.journal.enter(&signature, &Entry { start, queued, algorithm, parts, uneven });
        let untimed = later.then_some(signature.sequence);
        self.entering = Entering { untimed, start, looks: 0 };
        let is_brief = execution.prepared().plan.cards > 0;
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.operate(execution, areas, &signature, (agreement, deadline)) };
        self.note_start();
        let Entering { start, looks, .. } = self.entering;
        let took = match outcome {
            Ok(()) if is_brief && looks < LOOKS_COUNTED => {
                let took = if start == 0 { 0 } else { LOOK_TICKS * u64::from(looks + 1) };
                self.journal.end_about(signature.sequence, start + took);
                took
            }
            Ok(()) => {
                let now = self.journal.recorder().now();
                self.journal.end_at(signature.sequence, now);
                now.saturating_sub(start)
            }
            Err(_) => {
                self.journal.fail(signature.sequence);
                return outcome;
            }
        };
        if let Some(metered) = &self.metered {
            metered.meter.of(signature.collective).add(into.max(out) as u64, took);
        }
        outcome
    }

    /// # Safety
    /// As for [`Execution::begin`].
    #[expect(unsafe_code, reason = "passes the caller's promise on")]
    unsafe fn operate(
        &mut self,
        execution: &mut Execution,
        areas: (&[Area], &[Area]),
        signature: &Signature,
        (agreement, deadline): (&Agreement, Duration),
    ) -> Result<()> {
        self.history = signature.tag_after(self.history);
        let tag = OperationTag { sequence: self.sequence, tag: self.history };
        shm::announce(&self.own, tag);
        let mut clock = Clock::new(deadline);
        self.connect(&execution.prepared().peers, &mut clock)?;
        let plan = &execution.prepared().plan;
        let bytes = plan.scratch_bytes;
        let (base, mut operations) = self.scratch.assign(&self.own, bytes, self.sequence);
        if plan.cards > 0 {
            // Its cards were last used so many operations ago.
            operations = operations.max((self.sequence + 1).saturating_sub(GENERATIONS as u64));
        }
        if operations <= self.cleared {
            operations = 0;
        }
        let scratch = (self.own_area(base, bytes), base);
        let regions = self.rdma.regions();
        let is_foreign = |area: &Area| area.bytes > 0 && regions.is_foreign(area.address);
        let foreign = areas.0.iter().chain(areas.1).any(is_foreign);
        if foreign && !execution.prepared().only_moves {
            return Err(Error::internal("a plan that computes, on GPU memory"));
        }
        // SAFETY: the caller's promise.
        unsafe { execution.begin(areas, scratch, (Context::Collective, tag), operations) };
        if foreign {
            execution.leave_copies();
        }
        let running = Running {
            execution,
            message: None,
            pairs: agreement.pairs.as_deref(),
            remote_scratch: base,
            begun: false,
            done: false,
            is_followed: false,
        };
        self.run(&mut [running], &mut clock)?;
        self.sequence += 1;
        shm::flags::complete(self.own.done(), self.sequence);
        Ok(())
    }

    fn own_area(&self, base: u64, bytes: u64) -> Area {
        let address = self.own.area().at(base, bytes).expect("the layout holds its own parts");
        Area { address, bytes: usize::try_from(bytes).expect("mapped") }
    }

    /// Notes when the call began, if that has not been done.
    #[inline]
    fn note_start(&mut self) {
        if let Some(sequence) = self.entering.untimed.take() {
            let now = || self.journal.recorder().now();
            let shown_at = self.links.shown_at();
            self.entering.start = if shown_at == 0 { now() } else { shown_at };
            self.journal.started(sequence, self.entering.start);
        }
    }

    /// Makes the links that are missing.
    fn connect(&mut self, peers: &[Rank], clock: &mut Clock) -> Result<()> {
        for peer in peers {
            if self.links.contains(*peer) {
                continue;
            }
            self.note_start();
            // The verdict on a job that is stuck here is read off who waits for whom.
            self.journal.wait_begin(*peer, self.health.now_ms());
            let mut connections = self.connections;
            let by_rdma = self.rdma.reaches(*peer).is_ok();
            if by_rdma {
                (connections.least, connections.most) = (1, 1);
            }
            let wanted = (*peer, connections);
            let found =
                connect::connect(&self.session, &self.arrivals, wanted, &self.health, clock);
            let mut lanes = match found {
                Ok(Some(lanes)) => lanes,
                Ok(None) if interrupt::wanted() => return Err(self.interrupted()),
                Ok(None) => return Err(self.verdict()),
                Err(error) => {
                    self.health.report(match error.kind() {
                        // The peer has not come; that is no fault of the link.
                        ErrorKind::Timeout => Report::Deadline {
                            sequence: self.sequence,
                            waited_ms: millis(clock.waited(Duration::ZERO)),
                            waiting_on: Some(*peer),
                        },
                        _ => Report::LinkBroken { peer: *peer, cause: error.to_string() },
                    });
                    return Err(self.verdict());
                }
            };
            let unmade =
                |e| Error::system(format_args!("cannot set up the link to rank {peer}"), e);
            let link = match by_rdma.then(|| lanes.pop()).flatten() {
                Some(lane) => self.rdma_link(*peer, lane.socket),
                None => {
                    let reason = self.refusals[*peer as usize].clone();
                    let encrypts = self.connections.tls;
                    connect::link(&self.session, (*peer, reason), lanes, (encrypts, self.checks))
                }
            };
            self.add(*peer, link.map_err(unmade)?);
            self.journal.wait_end();
        }
        Ok(())
    }

    /// From now on `link` leads to a peer.
    fn add(&mut self, peer: Rank, link: Box<dyn Link>) {
        if let Some(traffic) = link.traffic() {
            let transport = link.description().transport;
            self.journal.recorder().watch(Watched { peer, transport, traffic });
        }
        self.links.insert(peer, link);
    }

    fn rdma_link(&self, peer: Rank, socket: TcpStream) -> std::io::Result<Box<dyn Link>> {
        let rank = self.session.rank;
        let name = self.session.peers[peer as usize].identity().to_string();
        let (stream, detail) = self.rdma.stream(socket, (rank, peer), name)?;
        let reason = self.refusals[peer as usize].clone();
        let direct = if self.rdma.regions().has_foreign() { "/GDRDMA" } else { "" };
        tracing::info!(
            target: crate::log::INIT_NET,
            rank = u64::from(rank),
            "Channel 00/0 : {rank}[{rank}] -> {peer}[{peer}] [send] via NET/IB/0{direct} ({detail}; {reason})"
        );
        let description = LinkDescription { peer, transport: "NET/IB", detail, reason };
        let link = FramedLink::over(peer, vec![stream], AHEAD, description);
        Ok(Box::new(link.checking(self.checks)))
    }

    /// Polls operations to their end, or until one is done that is followed, or fails.
    fn run(&mut self, running: &mut [Running<'_>], clock: &mut Clock) -> Result<()> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.poll(running, clock)));
        let outcome = polled.unwrap_or_else(|panic| {
            // The caller's memory goes while this unwinds.
            self.links.disarm();
            resume_unwind(panic)
        });
        if outcome.is_err() {
            self.note_standing(running, None);
        }
        outcome
    }

    /// Notes how far the lanes of a collective have come, and whom operations wait for.
    fn note_standing(&self, running: &[Running<'_>], waits: Option<(Rank, Duration)>) {
        let waits = waits.map(|(rank, waited)| (rank, micros(waited)));
        for one in running.iter().filter(|one| !one.done) {
            match (one.message, waits) {
                (None, _) => {
                    let sequence = one.execution.operation().1.sequence;
                    self.journal.stand(sequence, waits, one.execution.lanes());
                }
                (Some(number), Some((_, waited_us))) => {
                    if let [peer, ..] = one.peers() {
                        self.journal.recorder().wait_message(number, *peer, waited_us);
                    }
                }
                (Some(_), None) => {}
            }
        }
    }

    fn poll(&mut self, running: &mut [Running<'_>], clock: &mut Clock) -> Result<()> {
        let mut idle = Idle::new(self.patience);
        let mut lying = false;
        let mut compared = Duration::ZERO;
        let mut looked = Duration::ZERO;
        let mut gone = None;
        let mut slept_for = None;
        let mut looks = 0_u32;
        loop {
            let turned = self.turn(running);
            if looks == 0 {
                self.note_start();
            }
            self.links.settle();
            let (moved, blocked) = match turned {
                Ok(outcome) => outcome,
                Err(trouble) => return Err(self.fail(trouble, running)),
            };
            let Some(peer) = blocked else { break };
            looks = looks.saturating_add(1);
            if moved {
                if running.iter().any(|one| one.done && one.is_followed) {
                    break;
                }
                if std::mem::take(&mut lying) {
                    self.links.get_up();
                }
                let waited = idle.reset();
                self.count_wait(slept_for.take(), waited);
                clock.add(waited);
                compared = Duration::ZERO;
                if !std::mem::take(&mut looked).is_zero() {
                    self.journal.note_silent(None);
                }
                gone = None;
                continue;
            }
            if self.health.is_raised() {
                return Err(self.verdict());
            }
            match idle.pass() {
                Next::Look => {}
                Next::Sleep(limit) if lying => {
                    if interrupt::wanted() {
                        return Err(self.interrupted());
                    }
                    let waited = idle.waited();
                    let Some(left) = clock.left(waited) else {
                        self.count_wait(slept_for, waited);
                        return Err(self.late(peer, clock.waited(waited), running));
                    };
                    if waited > COMPARE_AFTER && waited > compared + compared {
                        compared = waited;
                        if let Err(trouble) = self.compare(running) {
                            return Err(self.fail(trouble, running));
                        }
                        self.note_standing(running, Some((peer, waited)));
                        self.watch(peer, waited, &mut gone);
                    }
                    if waited > looked + SILENT_AFTER {
                        looked = waited;
                        self.note_silence(waited);
                    }
                    let limit = limit.min(left);
                    let limit = if compared.is_zero() { limit.min(COMPARE_AFTER) } else { limit };
                    let peers = running.iter().flat_map(|one| one.peers());
                    slept_for = Some(peer);
                    idle.asleep(limit, || self.links.sleep(peers, limit));
                    lying = false;
                }
                Next::Sleep(_) => {
                    self.links.lie_down();
                    lying = true;
                }
            }
        }
        if lying {
            self.links.get_up();
        }
        let waited = idle.reset();
        self.count_wait(slept_for, waited);
        clock.add(waited);
        self.entering.looks = if idle.was_brief() { looks } else { LOOKS_COUNTED };
        self.journal.wait_end();
        Ok(())
    }

    /// Counts a wait for a rank, where this thread slept for it.
    #[inline]
    fn count_wait(&self, slept_for: Option<Rank>, waited: Duration) {
        if let (Some(peer), Some(metered)) = (slept_for, &self.metered) {
            metered.meter.wait(peer, micros(waited));
        }
    }

    /// One look at everything: whether something moved, and whom one of the operations waits for.
    fn turn(
        &mut self,
        running: &mut [Running<'_>],
    ) -> std::result::Result<(bool, Option<Rank>), Trouble> {
        let (mut moved, mut blocked) = (false, None);
        for one in running.iter_mut().filter(|one| !one.done) {
            if !one.begun {
                if let Some(peer) = one.execution.gate(&mut self.links) {
                    blocked = Some(peer);
                    continue;
                }
                self.begin(one);
            }
            match one.execution.poll(&mut self.links)? {
                Progress::Done => {
                    one.done = true;
                    moved = true;
                    let context = one.context();
                    for (peer, received) in &one.execution.prepared().received {
                        if *peer != self.session.rank {
                            self.links.link(*peer).end(context, received);
                        }
                    }
                }
                Progress::Moved(peer) => {
                    moved = true;
                    blocked = Some(peer);
                }
                Progress::Blocked(peer) => blocked = Some(peer),
            }
        }
        // Bytes move also where no lane looks: a put may wait for the peer to read its own.
        if blocked.is_some() && !moved {
            for one in running {
                moved |= self.links.poll(one.peers())?;
            }
        }
        Ok((moved, blocked))
    }

    /// The gate is open: tells the links.
    fn begin(&mut self, one: &mut Running<'_>) {
        one.begun = true;
        let (peers, context, beginning) = one.execution.beginning(one.remote_scratch, one.pairs);
        for peer in peers {
            self.links.link(*peer).begin(context, &beginning);
        }
        if one.execution.is_gated() {
            let links = &mut self.links;
            let known = self.neighbours.iter().map(|peer| links.link(*peer).completed()).min();
            self.cleared = known.unwrap_or(self.cleared);
        }
    }

    /// A wait stands for long: is somebody in the same operation with another call?
    fn compare(&mut self, running: &[Running<'_>]) -> std::result::Result<(), Trouble> {
        for one in running.iter().filter(|one| one.context() == Context::Collective) {
            for link in self.links.iter_mut() {
                link.compare(Context::Collective, one.execution.operation().1, one.pairs)?;
            }
        }
        Ok(())
    }

    /// Notes whom this rank waits for, and whether that rank is still there. One that has left may have sent before
    /// what this rank has not looked at since: `gone` is when it was first found so, with nothing having moved.
    fn watch(&self, peer: Rank, waited: Duration, gone: &mut Option<(Rank, Duration)>) {
        let since_ms = self.health.now_ms().saturating_sub(millis(waited));
        self.journal.wait_begin(peer, since_ms);
        if waited > ASK_AFTER {
            self.health.compare();
        }
        if !self.health.is_gone(peer) {
            *gone = None;
            return;
        }
        let since = match *gone {
            Some((rank, since)) if rank == peer => since,
            _ => gone.insert((peer, waited)).1,
        };
        if waited.saturating_sub(since) > LEFT_AFTER {
            self.health.report(Report::Left { rank: peer });
        }
    }

    /// Notes which link is silent, if one is, where nothing has moved for `waited`.
    fn note_silence(&self, waited: Duration) {
        let silent = self.links.silent();
        self.journal.note_silent(silent.map(|(peer, ms)| (peer, ms.min(millis(waited)))));
    }

    /// The caller wants out: the communicator is given up, as there is no way to take back what was sent.
    fn interrupted(&self) -> Error {
        self.health
            .report(Report::Aborted { rank: self.session.rank, reason: INTERRUPTED.to_owned() });
        self.verdict()
    }

    fn late(&self, peer: Rank, waited: Duration, running: &[Running<'_>]) -> Error {
        self.note_silence(waited);
        let sequence = running
            .iter()
            .find(|one| one.context() == Context::Collective)
            .map_or(self.sequence, |one| one.execution.operation().1.sequence);
        let waited_ms = millis(waited);
        let waiting_on = Some(peer);
        self.health.report(Report::Deadline { sequence, waited_ms, waiting_on });
        self.verdict()
    }

    fn fail(&self, trouble: Trouble, running: &[Running<'_>]) -> Error {
        let collective = running.iter().any(|one| one.context() == Context::Collective);
        self.health.report(match trouble {
            Trouble::Mismatch { peer, sequence } if collective => {
                Report::Mismatch { sequence, with: peer }
            }
            Trouble::Mismatch { peer, .. } => Report::LinkBroken {
                peer,
                cause: "a send and the recv it meets have different sizes".to_owned(),
            },
            Trouble::Broken { peer, .. } if self.says_goodbye(peer) => Report::Left { rank: peer },
            Trouble::Broken { peer, cause } => Report::LinkBroken { peer, cause },
        });
        self.verdict()
    }

    /// Whether a rank whose connection has ended is leaving: its goodbye takes another way, and
    /// may come a moment later.
    fn says_goodbye(&self, peer: Rank) -> bool {
        let started = Instant::now();
        while !self.health.is_gone(peer) {
            if self.health.is_raised() || started.elapsed() > GOODBYE_AFTER {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// The error all ranks agree on.
    pub(crate) fn verdict(&self) -> Error {
        self.links.get_up();
        let verdict = self.health.wait_verdict(VERDICT_WAIT);
        // The caller gets its memory back.
        self.links.disarm();
        verdict
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

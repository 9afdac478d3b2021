//! One rank: what the communicator's engine does with an execution, under the virtual clock.

use std::sync::Arc;

use super::fabric::{Mutation, Rough};
use super::memory::Memory;
use super::scenario::Scenario;
use crate::communicator::ScratchUse;
use crate::control::{Journal, Report};
use crate::error::Error;
use crate::executor::{Execution, Fabric as _, Links, Prepared, Progress};
use crate::plan::rng::Random;
use crate::plan::types::Rank;
use crate::transport::shm::{self, GENERATIONS, LARGES, Segment, flags};
use crate::transport::{Area, Context, OperationTag, Pair, Trouble};

/// As in the engine.
const COMPARE_AFTER_US: u64 = 1_000;
pub(super) const ASK_AFTER_US: u64 = 50_000;
const NAP_US: u64 = 50_000;

/// Where a rank is.
#[derive(Debug)]
pub(super) enum Phase {
    /// In its own code, until it enters the next operation.
    Outside {
        until_us: u64,
    },
    /// Making links: the next peer, and when a dial to it succeeds.
    Connecting {
        index: usize,
        dialed_us: Option<u64>,
    },
    Inside,
    /// Waiting for the verdict.
    Judging {
        since_us: u64,
    },
    Over,
    Dead,
}

/// What a turn came to.
#[derive(Debug)]
pub(super) enum Next {
    /// Look again soon.
    Soon,
    /// Look again at this time, or when something comes.
    Sleep(u64),
    /// The operation is complete.
    Complete,
    /// Something is wrong.
    Fail(Report),
    /// Somebody else said that something is wrong.
    Raised,
}

/// An operation at work.
#[derive(Debug)]
struct Running {
    execution: Execution,
    pairs: Option<Arc<[Pair]>>,
    base: u64,
    /// Whether the links know of it.
    begun: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) rank: Rank,
    pub(super) links: Links,
    pub(super) own: Arc<Segment>,
    pub(super) journal: Arc<Journal>,
    pub(super) prepared: Vec<Arc<Prepared>>,
    pub(super) memories: Vec<Vec<Memory>>,
    pub(super) phase: Phase,
    /// The operation it is in, or enters next.
    pub(super) operation: usize,
    pub(super) outcome: Option<Result<(), Error>>,
    /// Turns inside this operation.
    pub(super) turns: u64,
    pub(super) asleep: bool,
    /// It wants its neighbours to compare what they are doing.
    pub(super) asks: bool,
    pub(super) next_us: u64,
    pub(super) started_us: u64,
    /// Bytes used of each generation of small scratch, and of the large areas.
    pub(super) used: [u64; GENERATIONS + LARGES],
    neighbours: Arc<[Rank]>,
    /// The hash of the calls made so far.
    history: u32,
    scratch: ScratchUse,
    running: Option<Running>,
    idle_since_us: Option<u64>,
    compared_us: u64,
    lying: bool,
}

/// What a turn happens in.
pub(super) struct Moment<'a> {
    pub(super) now_us: u64,
    /// This rank's clock, as its control plane reads it.
    pub(super) local_ms: u64,
    pub(super) scenario: &'a Scenario,
    pub(super) random: &'a mut Random,
    pub(super) mutation: Option<Mutation>,
    pub(super) raised: bool,
}

impl Player {
    pub(super) fn new(
        rank: Rank,
        (links, own): (Links, Arc<Segment>),
        neighbours: Arc<[Rank]>,
        journal: Arc<Journal>,
        prepared: Vec<Arc<Prepared>>,
        memories: Vec<Vec<Memory>>,
    ) -> Self {
        Self {
            rank,
            links,
            own,
            journal,
            prepared,
            memories,
            phase: Phase::Outside { until_us: 0 },
            operation: 0,
            outcome: None,
            turns: 0,
            asleep: false,
            asks: false,
            next_us: u64::MAX,
            started_us: 0,
            used: [0; GENERATIONS + LARGES],
            neighbours,
            history: 0,
            scratch: ScratchUse::default(),
            running: None,
            idle_since_us: None,
            compared_us: 0,
            lying: false,
        }
    }

    fn tag(&self) -> OperationTag {
        OperationTag { sequence: self.operation as u64, tag: self.history }
    }

    /// Enters an operation: says so, before links are made.
    pub(super) fn enter(&mut self, moment: &Moment<'_>) {
        let mut signature =
            moment.scenario.operation(self.rank, self.operation).signature(self.rank);
        signature.sequence = self.operation as u64;
        self.started_us = moment.now_us;
        self.turns = 0;
        self.journal.begin(&signature);
        self.history = signature.tag_after(self.history);
        shm::announce(&self.own, self.tag());
    }

    /// Begins an operation on its links.
    #[expect(unsafe_code, reason = "the buffers live as long as the player")]
    pub(super) fn begin(&mut self, scenario: &Scenario) {
        let prepared = Arc::clone(&self.prepared[self.operation]);
        let bytes = prepared.plan.scratch_bytes;
        let sequence = self.operation as u64;
        let (base, mut operations) = self.scratch.assign(&self.own, bytes, sequence);
        if prepared.plan.cards > 0 {
            operations = operations.max((sequence + 1).saturating_sub(GENERATIONS as u64));
        }
        self.note_use(base, bytes);
        let address = self.own.area().at(base, bytes).expect("the layout holds its own parts");
        let scratch = Area { address, bytes: usize::try_from(bytes).expect("mapped") };
        let (inputs, outputs): (Vec<Area>, Vec<Area>) =
            self.memories[self.operation].iter_mut().map(Memory::areas).unzip();
        let tag = self.tag();
        let pairs = scenario.operation(self.rank, self.operation).pairs(self.rank);
        let parts = scenario.operation(self.rank, self.operation).parts(self.rank);
        let mut execution = Execution::new(prepared, parts, Arc::clone(&self.neighbours));
        let context = (Context::Collective, tag);
        // SAFETY: the memories are not touched, moved or dropped before the world ends, and the
        // plan was made for their sizes.
        unsafe { execution.begin((&inputs, &outputs), (scratch, base), context, operations) };
        self.running = Some(Running { execution, pairs, base, begun: false });
        (self.idle_since_us, self.compared_us) = (None, 0);
    }

    fn note_use(&mut self, base: u64, bytes: u64) {
        let layout = self.own.layout();
        let small = (0..GENERATIONS).map(|index| layout.small(index as u64));
        let large = (0..LARGES).map(|index| layout.large(index as u64));
        let slot = small.chain(large).position(|place| place == base).expect("it was assigned");
        self.used[slot] = self.used[slot].max(bytes);
    }

    /// One pass of the engine's loop.
    pub(super) fn turn(&mut self, moment: &mut Moment<'_>) -> Next {
        if std::mem::take(&mut self.asleep) {
            self.links.get_up();
        }
        let (moved, stalled, blocked) = match self.look(moment) {
            Ok(outcome) => outcome,
            Err(trouble) => return Next::Fail(Self::report(trouble)),
        };
        let Some(peer) = blocked else {
            self.end();
            return Next::Complete;
        };
        if moved {
            if std::mem::take(&mut self.lying) {
                self.links.get_up();
            }
            (self.idle_since_us, self.compared_us) = (None, 0);
            return Next::Soon;
        }
        if moment.raised {
            return Next::Raised;
        }
        let since = *self.idle_since_us.get_or_insert(moment.now_us);
        if stalled {
            return Next::Soon;
        }
        if !std::mem::take(&mut self.lying) {
            self.links.lie_down();
            self.lying = true;
            return Next::Soon;
        }
        self.wait(moment, peer, moment.now_us - since)
    }

    /// Nothing moves: compares, looks at the clock, and goes to sleep.
    fn wait(&mut self, moment: &Moment<'_>, peer: Rank, waited_us: u64) -> Next {
        let left = (self.started_us + moment.scenario.deadline_us).saturating_sub(moment.now_us);
        if left == 0 {
            return Next::Fail(self.late(moment, peer));
        }
        if waited_us > COMPARE_AFTER_US && waited_us > 2 * self.compared_us {
            self.compared_us = waited_us;
            let running = self.running.as_ref().expect("inside");
            let (context, tag) = running.execution.operation();
            let pairs = running.pairs.as_deref();
            let compared =
                self.links.iter_mut().try_for_each(|link| link.compare(context, tag, pairs));
            if let Err(trouble) = compared {
                return Next::Fail(Self::report(trouble));
            }
            self.journal.wait_begin(peer, moment.local_ms.saturating_sub(waited_us / 1000));
            self.asks |= waited_us > ASK_AFTER_US;
        }
        let limit = if self.compared_us == 0 { COMPARE_AFTER_US } else { NAP_US };
        self.asleep = true;
        Next::Sleep(moment.now_us + limit.min(left))
    }

    pub(super) fn late(&self, moment: &Moment<'_>, peer: Rank) -> Report {
        Report::Deadline {
            sequence: self.operation as u64,
            waited_ms: (moment.now_us - self.started_us) / 1000,
            waiting_on: Some(peer),
        }
    }

    /// One look at everything: whether something moved, whether looking again helps, and whom
    /// the operation waits for.
    fn look(&mut self, moment: &mut Moment<'_>) -> Result<(bool, bool, Option<Rank>), Trouble> {
        let running = self.running.as_mut().expect("inside");
        let mut fabric = Rough {
            links: &mut self.links,
            random: moment.random,
            stall: moment.scenario.stall,
            mutation: moment.mutation,
            stalled: false,
        };
        let peers = &self.prepared[self.operation].peers;
        if !running.begun {
            if let Some(peer) = running.execution.gate(&mut fabric) {
                return Ok((self.links.poll(peers)?, false, Some(peer)));
            }
            running.begun = true;
            let (told, context, beginning) =
                running.execution.beginning(running.base, running.pairs.as_deref());
            for peer in told {
                fabric.links.link(*peer).begin(context, &beginning);
            }
        }
        let progress = running.execution.poll(&mut fabric)?;
        fabric.settle();
        let stalled = fabric.stalled;
        Ok(match progress {
            Progress::Done => (true, stalled, None),
            Progress::Moved(peer) => (true, stalled, Some(peer)),
            Progress::Blocked(peer) => (self.links.poll(peers)?, stalled, Some(peer)),
        })
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.lying) {
            self.links.get_up();
        }
        let prepared = Arc::clone(&self.prepared[self.operation]);
        for (peer, received) in &prepared.received {
            self.links.link(*peer).end(Context::Collective, received);
        }
        self.running = None;
        let sequence = self.operation as u64;
        self.operation += 1;
        flags::complete(self.own.done(), sequence + 1);
        self.journal.wait_end();
        self.journal.end(sequence);
    }

    fn report(trouble: Trouble) -> Report {
        match trouble {
            Trouble::Mismatch { peer, sequence } => Report::Mismatch { sequence, with: peer },
            Trouble::Broken { peer, cause } => Report::LinkBroken { peer, cause },
        }
    }
}

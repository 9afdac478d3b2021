//! The plan: for each rank a few lanes of steps over regions of memory.
//!
//! ```text
//! plan ── rank 0 ── lane 0: copy · put+signal · wait · reduce …
//!      │         └─ lane 1: …
//!      └─ rank 1 ── …
//! ```
//!
//! # What the steps mean
//!
//! * Lanes are independent; a lane runs its steps in order. A rank's part is done when all its
//!   lanes are.
//! * `Copy` of memory onto itself, as in-place calls have it, does nothing.
//! * `Put` ends when its source may be reused. What it wrote is visible at the peer once the
//!   peer has waited for a later signal of the same lane to that peer (its own, if it has one).
//!   Nothing else orders it: not a signal to a third rank, not another lane.
//! * `Get` reads a peer's input or output where it lies, with no copy between: only inside a host, once
//!   the peer is known to have begun, and only if the peer waits until it is over.
//! * `Signal` raises a counter at the peer, `Wait` stands until the counter of `(peer, flag)` has
//!   been raised `count` times in this operation. All signals of one `(peer, flag)` come from one
//!   lane, so that "the third signal" means one thing.
//! * `Show` turns up a card: values and the word that says they are there in one cache line, for all
//!   ranks that map this rank's memory. `See` stands until a peer has turned up a card; it may
//!   then read `Card(peer)`. A card is turned up once in an operation.
//! * `Window(peer)` is the peer's scratch, mapped: only where the transport maps peer memory.
//! * `PeerInput(peer)` and `PeerOutput(peer)` are the peer's own buffers, mapped: only where users' buffers
//!   are, as those of GPUs of a host, once the peer is known to have begun, and only if it waits until
//!   nobody uses them any more.
//! * Values in memory have a [`Form`]; operands say whether they are a rank's untouched input
//!   (`fresh`), which pre-multiplied sums scale, or a partial result.
//!
//! **Invariant:** a plan says nothing of time, threads, sockets or addresses, and running it
//! needs no decision that is not written in it.

use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::types::{DataType, Form, Rank};

/// A number that names one counter between two ranks.
pub type Flag = u16;

/// Most flags a plan may use towards one peer.
pub const FLAGS_MAX: usize = 128;

/// Most cards a plan may use.
pub const CARDS_MAX: usize = 32;

/// Bytes of values on a card: a cache line, less the word that says whose they are.
pub const CARD_BYTES: u64 = 56;

/// Offsets from one card to the next in [`Region::Card`].
pub const CARD_STRIDE: u64 = 64;

/// Most lanes a rank may have.
pub const LANES_MAX: usize = 64;

/// A region of memory a step may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Region {
    /// A user's input buffer (fused operations have several).
    Input(u16),
    /// A user's output buffer.
    Output(u16),
    /// This rank's scratch memory.
    Scratch,
    /// The scratch memory of a peer, mapped.
    Window(Rank),
    /// The cards of a peer, mapped: card `i` begins at byte `i * CARD_STRIDE`, and has `CARD_BYTES`.
    Card(Rank),
    /// The input of a peer, mapped.
    PeerInput(Rank),
    /// The output of a peer, mapped.
    PeerOutput(Rank),
}

impl Region {
    /// The rank whose memory it is, where that is not the rank that names it.
    #[must_use]
    pub const fn owner(self) -> Option<Rank> {
        match self {
            Self::Window(peer)
            | Self::Card(peer)
            | Self::PeerInput(peer)
            | Self::PeerOutput(peer) => Some(peer),
            Self::Input(_) | Self::Output(_) | Self::Scratch => None,
        }
    }
}

/// A run of values in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Where.
    pub region: Region,
    /// First byte.
    pub offset: u64,
    /// Number of values.
    pub count: u64,
    /// What kind of values.
    pub form: Form,
}

impl Span {
    /// Bytes of the span.
    #[must_use]
    pub fn bytes(&self, data_type: DataType) -> u64 {
        self.count * self.form.size(data_type) as u64
    }

    /// The `count` values from value `start` of this span.
    #[must_use]
    pub fn slice(&self, start: u64, count: u64, data_type: DataType) -> Self {
        debug_assert!(start + count <= self.count);
        Self { offset: self.offset + start * self.form.size(data_type) as u64, count, ..*self }
    }
}

/// One input of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operand {
    /// The values.
    pub span: Span,
    /// The rank whose untouched input this is; `None` for partial results.
    pub fresh: Option<Rank>,
}

/// A place in a peer's memory: where a put lands, or a get reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Of the peer: [`Region::Scratch`] or [`Region::Output`] for puts, [`Region::Input`] or
    /// [`Region::Output`] for gets.
    pub region: Region,
    /// First byte.
    pub offset: u64,
}

/// One step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Copies values; source and target have the same form.
    Copy {
        /// From.
        source: Span,
        /// To.
        target: Span,
    },
    /// Folds operands from left to right into the target.
    Reduce {
        /// Index of the first operand in [`RankPlan::operands`].
        first: u32,
        /// Number of operands.
        operands: u32,
        /// To.
        target: Span,
        /// Whether this is the last reduction of these values: averages divide, narrow floats
        /// round.
        finish: bool,
    },
    /// Writes to a peer's memory, then raises a counter there.
    Put {
        /// To whom.
        peer: Rank,
        /// From.
        source: Span,
        /// To, at the peer.
        target: Remote,
        /// The counter to raise once the values are visible there.
        signal: Option<Flag>,
    },
    /// Reads a peer's input or output where it lies.
    Get {
        /// From whom.
        peer: Rank,
        /// From, at the peer.
        source: Remote,
        /// To.
        target: Span,
    },
    /// Raises a counter at a peer, after everything this lane put there.
    Signal {
        /// At whom.
        peer: Rank,
        /// Which.
        flag: Flag,
    },
    /// Stands until a peer has raised a counter here `count` times.
    Wait {
        /// By whom.
        peer: Rank,
        /// Which.
        flag: Flag,
        /// How often, since the operation began.
        count: u32,
    },
    /// Turns up a card for all ranks that map this rank's memory.
    Show {
        /// What is on it: at most [`CARD_BYTES`].
        source: Span,
        /// Which.
        card: u16,
    },
    /// Stands until a peer has turned up a card.
    See {
        /// Whose.
        peer: Rank,
        /// Which.
        card: u16,
    },
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankPlan {
    /// Independent lists of steps.
    pub lanes: Vec<Vec<Step>>,
    /// Operands of all reductions.
    pub operands: Vec<Operand>,
    /// Bytes of scratch used, at this rank and by peers that write to it. The same on all ranks.
    pub scratch_bytes: u64,
    /// Flags used are below this number. The same on all ranks.
    #[serde(default)]
    pub flags: Flag,
    /// Cards used are below this number. The same on all ranks.
    #[serde(default)]
    pub cards: u16,
    /// Whether peers use this rank's inputs or outputs where they lie.
    #[serde(default)]
    pub exposed: bool,
    /// Bytes of values on a card where cards are larger than [`CARD_BYTES`], as those of GPUs, else 0.
    /// The same on all ranks.
    #[serde(default)]
    pub wide_card_bytes: u64,
}

impl RankPlan {
    /// Bytes of values on a card.
    #[must_use]
    pub fn card_bytes(&self) -> u64 {
        self.wide_card_bytes.max(CARD_BYTES)
    }

    /// Offsets from one card to the next: values, and the word that says whose they are.
    #[must_use]
    pub fn card_stride(&self) -> u64 {
        self.card_bytes().saturating_add(8).next_multiple_of(CARD_STRIDE)
    }

    /// The operands of a reduction.
    #[must_use]
    pub fn operands(&self, first: u32, count: u32) -> &[Operand] {
        let first = first as usize;
        first
            .checked_add(count as usize)
            .and_then(|end| self.operands.get(first..end))
            .unwrap_or(&[])
    }

    /// Several calls as one operation: their lanes run side by side, on flags and scratch of
    /// their own. Buffer 0 of part `i` becomes buffer `i`. Also says whose part each lane is.
    #[must_use]
    pub fn fuse(parts: &[Self]) -> (Self, Vec<usize>) {
        let mut fused = Self::default();
        let mut lane_parts = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let shift = Shift {
                buffer: u16::try_from(index).expect("a group is split long before"),
                scratch: fused.scratch_bytes,
                flag: fused.flags,
                card: fused.cards,
                operand: u32::try_from(fused.operands.len()).expect("operands fit in 32 bits"),
            };
            for lane in &part.lanes {
                fused.lanes.push(lane.iter().map(|step| shift.step(*step)).collect());
                lane_parts.push(index);
            }
            fused.operands.extend(
                part.operands.iter().map(|o| Operand { span: shift.span(o.span), fresh: o.fresh }),
            );
            fused.scratch_bytes += part.scratch_bytes.next_multiple_of(64);
            fused.flags += part.flags;
            fused.cards += part.cards;
            fused.exposed |= part.exposed;
        }
        (fused, lane_parts)
    }

    /// Number of steps in all lanes.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.lanes.iter().map(Vec::len).sum()
    }

    /// The peers this rank signals, waits for, writes to or reads from.
    #[must_use]
    pub fn peers(&self) -> Vec<Rank> {
        let mut peers: Vec<Rank> = Vec::new();
        for step in self.lanes.iter().flatten() {
            match *step {
                Step::Put { peer, .. }
                | Step::Get { peer, .. }
                | Step::Signal { peer, .. }
                | Step::Wait { peer, .. }
                | Step::See { peer, .. } => peers.push(peer),
                Step::Copy { source, target } => {
                    peers.extend(source.region.owner());
                    peers.extend(target.region.owner());
                }
                Step::Reduce { target, .. } => peers.extend(target.region.owner()),
                Step::Show { .. } => {}
            }
        }
        peers.extend(self.operands.iter().filter_map(|operand| operand.span.region.owner()));
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

/// Where a part of a fused plan goes.
#[derive(Clone, Copy)]
struct Shift {
    buffer: u16,
    scratch: u64,
    flag: Flag,
    card: u16,
    operand: u32,
}

impl Shift {
    fn region(self, region: Region, offset: u64) -> (Region, u64) {
        match region {
            Region::Input(index) => (Region::Input(index + self.buffer), offset),
            Region::Output(index) => (Region::Output(index + self.buffer), offset),
            Region::Card(_) => (region, offset + u64::from(self.card) * CARD_STRIDE),
            Region::Scratch | Region::Window(_) => (region, offset + self.scratch),
            // Buffers of peers have no number: such plans are not fused.
            Region::PeerInput(_) | Region::PeerOutput(_) => (region, offset),
        }
    }

    fn span(self, span: Span) -> Span {
        let (region, offset) = self.region(span.region, span.offset);
        Span { region, offset, ..span }
    }

    fn step(self, step: Step) -> Step {
        match step {
            Step::Copy { source, target } => {
                Step::Copy { source: self.span(source), target: self.span(target) }
            }
            Step::Reduce { first, operands, target, finish } => Step::Reduce {
                first: first + self.operand,
                operands,
                target: self.span(target),
                finish,
            },
            Step::Put { peer, source, target, signal } => {
                let (region, offset) = self.region(target.region, target.offset);
                Step::Put {
                    peer,
                    source: self.span(source),
                    target: Remote { region, offset },
                    signal: signal.map(|flag| flag + self.flag),
                }
            }
            Step::Get { peer, source, target } => {
                let (region, offset) = self.region(source.region, source.offset);
                let source = Remote { region, offset };
                Step::Get { peer, source, target: self.span(target) }
            }
            Step::Signal { peer, flag } => Step::Signal { peer, flag: flag + self.flag },
            Step::Wait { peer, flag, count } => Step::Wait { peer, flag: flag + self.flag, count },
            Step::Show { source, card } => {
                Step::Show { source: self.span(source), card: card + self.card }
            }
            Step::See { peer, card } => Step::See { peer, card: card + self.card },
        }
    }
}

/// A whole plan: every rank's part. Verifier, explainer and simulator use it; a running rank
/// holds only its own [`RankPlan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the algorithm that made it.
    pub algorithm: String,
    /// What it does, as each rank sees it (they differ only for all_to_all_v).
    pub problems: Vec<Problem>,
    /// Which ranks map each other's memory: those with the same number here.
    pub hosts: Vec<u32>,
    /// What each rank does.
    pub ranks: Vec<RankPlan>,
}

/// The place of a step, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Rank.
    pub rank: Rank,
    /// Lane of the rank.
    pub lane: usize,
    /// Step of the lane.
    pub step: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} lane {} step {}", self.rank, self.lane, self.step)
    }
}

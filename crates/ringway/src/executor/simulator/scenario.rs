//! What a seed stands for: ranks, hosts, operations, delays and what goes wrong.

use std::sync::Arc;

use crate::call::Call;
use crate::communicator::{pairs, signature};
use crate::control::Signature;
use crate::executor::{Part, Prepared};
use crate::plan::algorithm::Algorithm;
use crate::plan::build::{Context, Tuning};
use crate::plan::plan::{FLAGS_MAX, LANES_MAX, RankPlan};
use crate::plan::problem::{Counts, Problem};
use crate::plan::rng::Random;
use crate::plan::types::{Collective, DataType, Level, Rank, ReduceOp};
use crate::reduce::{Kernel, Scalar};
use crate::transport::Pair;

/// For operations that come to an end by themselves, or by the news of a death: far more than the slowest network needs.
const PATIENT_US: u64 = 20_000_000;

/// Where nothing but the deadline tells that something is wrong.
const BRIEF_US: u64 = 1_000_000;

/// What goes wrong.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    Nothing,
    /// A rank dies after so many turns inside an operation, or at its end.
    Death {
        rank: Rank,
        operation: usize,
        turns: u64,
    },
    /// Bytes between the hosts below and from `border` stand still for a while; `control` says
    /// whether the control plane's do too.
    Partition {
        border: u32,
        from_us: u64,
        control: bool,
    },
    /// A rank makes another call.
    Mismatch {
        rank: Rank,
        operation: usize,
        instead: Operation,
    },
    /// A rank stays outside.
    Absence {
        rank: Rank,
        operation: usize,
    },
}

/// One call of a (perhaps fused) operation, as each rank makes it.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) algorithm: Algorithm,
    pub(super) calls: Vec<Call>,
    pub(super) problems: Vec<Problem>,
    pub(super) in_place: Vec<bool>,
    /// Floats whose sums are rounded, so that the order matters.
    pub(super) rough: bool,
}

/// One operation: pieces that run side by side.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) pieces: Vec<Piece>,
}

/// Everything a seed stands for.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) ranks: u32,
    pub(super) hosts: Vec<u32>,
    pub(super) tuning: Tuning,
    pub(super) small_bytes: u64,
    pub(super) operations: Vec<Operation>,
    pub(super) fault: Fault,
    /// Connections between two ranks, bytes they read ahead, bytes on their way at most.
    pub(super) connections: usize,
    pub(super) ahead: usize,
    pub(super) capacity: usize,
    pub(super) delay_us_max: u64,
    pub(super) control_us_max: u64,
    /// How often a step must be tried again for no reason, in percent.
    pub(super) stall: u64,
    /// Microseconds between two turns of each rank, at most.
    pub(super) pace_us: Vec<u64>,
    /// How late ranks enter operations, at most.
    pub(super) late_us_max: u64,
    pub(super) deadline_us: u64,
}

impl Scenario {
    /// Two ranks broadcast, and a third, which they do not wait for, gathers: what it sends lands in
    /// the scratch from which the value is read.
    pub(super) fn intrusion(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (ranks, hosts) = (3, vec![0; 3]);
        let pieces = |collective| vec![Piece::direct(collective, ranks)];
        Self {
            ranks,
            hosts,
            tuning: Tuning { lanes: 1, slot_bytes: 256, slots: 2, scratch_bytes: 1 << 15 },
            small_bytes: 1 << 13,
            operations: vec![Operation { pieces: pieces(Collective::Broadcast) }],
            fault: Fault::Mismatch {
                rank: 1,
                operation: 0,
                instead: Operation { pieces: pieces(Collective::Gather) },
            },
            pace_us: (0..3).map(|_| 1 + random.below(30)).collect(),
            stall: 0,
            late_us_max: random.pick(&[1, 20, 100]),
            deadline_us: BRIEF_US,
            // Whatever else a seed stands for has no part in this.
            ..Self::new(seed)
        }
    }

    /// The scenario of a seed: every fifth has a fault.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ranks = draw_ranks(&mut random);
        let hosts = draw_hosts(&mut random, ranks);
        Self::draw(random, seed, hosts)
    }

    /// What a seed stands for otherwise, with a rank on each of these hosts.
    pub(super) fn on(seed: u64, hosts: Vec<u32>) -> Self {
        Self::draw(Random::new(seed), seed, hosts)
    }

    /// The same with the death of a rank, if there are others.
    pub(super) fn with_a_death(self, random: &mut Random) -> Self {
        if self.ranks == 1 {
            return self.with(Fault::Nothing);
        }
        let death = Fault::Death {
            rank: u32::try_from(random.below(u64::from(self.ranks))).expect("below"),
            operation: usize::try_from(random.below(self.operations.len() as u64)).expect("below"),
            turns: random.pick(&[0, 1, 3, 10, 40, 200]),
        };
        self.with(death)
    }

    /// The same with this fault, and the deadline that goes with it.
    pub(super) fn with(self, fault: Fault) -> Self {
        Self { deadline_us: fault.deadline_us(), fault, ..self }
    }

    fn draw(mut random: Random, seed: u64, hosts: Vec<u32>) -> Self {
        let ranks = u32::try_from(hosts.len()).expect("few");
        let tuning = Tuning {
            lanes: random.pick(&[1, 1, 2, 3]),
            slot_bytes: random.pick(&[64, 192, 256, 1024, 4096]),
            slots: random.pick(&[1, 2, 2, 3]),
            scratch_bytes: random.pick(&[1 << 15, 1 << 16, 1 << 17]),
        };
        let many = ranks <= 8 && random.percent(15);
        let count = match ranks {
            17.. => 1 + random.below(2),
            _ if many => 9 + random.below(16),
            _ => 1 + random.below(6),
        };
        let most = if many || ranks > 16 { 40 } else { 600 };
        let operations: Vec<_> =
            (0..count).map(|_| Operation::draw(&mut random, ranks, &hosts, most)).collect();
        let fault = if seed % 5 == 4 {
            Fault::draw(&mut random, &hosts, &operations)
        } else {
            Fault::Nothing
        };
        let slow = random.percent(40);
        Self {
            seed,
            ranks,
            tuning,
            small_bytes: random.pick(&[512, 2048, 1 << 13]),
            deadline_us: fault.deadline_us(),
            operations,
            fault,
            connections: random.pick(&[1, 1, 2, 3]),
            ahead: random.pick(&[40, 100, 512, 4096]),
            capacity: random.pick(&[48, 300, 5000, 1 << 20]),
            delay_us_max: random.pick(&[5, 40, 300, 2000]),
            control_us_max: random.pick(&[50, 500, 2000]),
            stall: if ranks > 16 { 0 } else { random.pick(&[0, 0, 5, 30]) },
            pace_us: (0..ranks)
                .map(|_| if slow { random.pick(&[2, 20, 20, 400]) } else { 10 })
                .collect(),
            late_us_max: random.pick(&[1, 1, 300, 20_000]),
            hosts,
        }
    }

    /// Operation `index` as `rank` calls it.
    pub(super) fn operation(&self, rank: Rank, index: usize) -> &Operation {
        match &self.fault {
            Fault::Mismatch { rank: odd, operation, instead }
                if *odd == rank && *operation == index =>
            {
                instead
            }
            _ => &self.operations[index],
        }
    }

    /// The plan of operation `index` for `rank`.
    pub(super) fn prepared(&self, rank: Rank, index: usize) -> Prepared {
        self.operation(rank, index).prepared(rank, &self.hosts, self.tuning)
    }
}

fn draw_ranks(random: &mut Random) -> u32 {
    let most = match random.below(100) {
        0..45 => 4,
        45..80 => 8,
        80..98 => 16,
        _ => 64,
    };
    1 + u32::try_from(random.below(most)).expect("small")
}

fn draw_hosts(random: &mut Random, ranks: u32) -> Vec<u32> {
    let each = random.pick(&[1, 2, 3, 4]);
    match random.below(5) {
        0 => vec![0; ranks as usize],
        1 => (0..ranks).collect(),
        2 => (0..ranks).map(|rank| rank / each).collect(),
        3 => (0..ranks).map(|rank| rank % each).collect(),
        _ => (0..ranks).map(|_| u32::try_from(random.below(3)).expect("small")).collect(),
    }
}

impl Fault {
    /// How long operations may take.
    fn deadline_us(&self) -> u64 {
        match self {
            Self::Nothing | Self::Death { .. } => PATIENT_US,
            Self::Partition { .. } | Self::Mismatch { .. } | Self::Absence { .. } => BRIEF_US,
        }
    }

    fn draw(random: &mut Random, hosts: &[u32], operations: &[Operation]) -> Self {
        let ranks = u32::try_from(hosts.len()).expect("few");
        if ranks == 1 {
            return Self::Nothing;
        }
        let rank = u32::try_from(random.below(u64::from(ranks))).expect("below");
        let operation = usize::try_from(random.below(operations.len() as u64)).expect("below");
        let last = hosts.iter().copied().max().unwrap_or(0);
        match random.below(4) {
            0 => Self::Death { rank, operation, turns: random.pick(&[0, 1, 3, 10, 40, 200]) },
            1 if last > 0 => Self::Partition {
                border: 1 + u32::try_from(random.below(u64::from(last))).expect("below"),
                from_us: random.below(2_000),
                control: random.percent(30),
            },
            2 => {
                let instead = operations[operation].altered(random, ranks, hosts);
                Self::Mismatch { rank, operation, instead }
            }
            _ => Self::Absence { rank, operation },
        }
    }
}

impl Operation {
    fn draw(random: &mut Random, ranks: u32, hosts: &[u32], most: u64) -> Self {
        let pieces = if random.percent(10) { 2 + random.below(2) } else { 1 };
        loop {
            let pieces = (0..pieces).map(|_| Piece::draw(random, ranks, hosts, most)).collect();
            let drawn = Self { pieces };
            if drawn.fits() {
                return drawn;
            }
        }
    }

    /// Whether there are cards for all pieces, as for one there surely are.
    fn fits(&self) -> bool {
        let has_cards = |piece: &&Piece| piece.algorithm.stays_on_a_host();
        self.pieces.iter().filter(has_cards).count() < 2
    }

    /// The same operation with something else in its first piece.
    fn altered(&self, random: &mut Random, ranks: u32, hosts: &[u32]) -> Self {
        loop {
            let mut other = self.clone();
            other.pieces[0] = Piece::draw(random, ranks, hosts, 100);
            if other.fits() && self.signature(0).tag() != other.signature(0).tag() {
                return other;
            }
        }
    }

    /// What all ranks must agree on.
    pub(super) fn signature(&self, rank: Rank) -> Signature {
        let rank = rank as usize;
        let mut all =
            self.pieces.iter().map(|piece| signature(&piece.calls[rank], &piece.problems[rank]));
        let mut first = all.next().expect("an operation has a piece");
        for other in all {
            first.extra = first.extra.rotate_left(7) ^ u64::from(other.tag());
        }
        first
    }

    /// What each rank must agree on with each other alone.
    pub(super) fn pairs(&self, rank: Rank) -> Option<Arc<[Pair]>> {
        pairs(self.pieces.iter().map(|piece| &piece.problems[rank as usize]))
    }

    fn prepared(&self, rank: Rank, hosts: &[u32], tuning: Tuning) -> Prepared {
        let plans: Vec<RankPlan> = self
            .pieces
            .iter()
            .map(|piece| {
                let problem = &piece.problems[rank as usize];
                piece.algorithm.build(Context { problem, rank, hosts, tuning })
            })
            .collect();
        // As a group does: what does not fit side by side is not fused.
        let flags: usize = plans.iter().map(|plan| usize::from(plan.flags)).sum();
        let lanes: usize = plans.iter().map(|plan| plan.lanes.len()).sum();
        assert!(flags <= FLAGS_MAX && lanes <= LANES_MAX, "{flags} flags and {lanes} lanes");
        if plans.len() == 1 {
            return Prepared::new(plans.into_iter().next().expect("one"));
        }
        let (fused, lane_parts) = RankPlan::fuse(&plans);
        Prepared::fused(fused, lane_parts)
    }

    /// What the executor computes with.
    pub(super) fn parts(&self, rank: Rank) -> Vec<Part> {
        self.pieces.iter().map(|piece| piece.part(rank)).collect()
    }
}

impl Piece {
    fn draw(random: &mut Random, ranks: u32, hosts: &[u32], most: u64) -> Self {
        loop {
            let collective = Collective::ALL[usize::try_from(random.below(9)).expect("below")];
            let mut call = Call::new(collective, random.pick(&DataType::ALL), 0);
            call.op = random.pick(&ReduceOp::ALL);
            call.root = u32::try_from(random.below(u64::from(ranks))).expect("below");
            call.level = Some(random.pick(&[Level::Run, Level::Shape]));
            let blocks = match collective {
                Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
                _ => u64::from(ranks),
            };
            let most = (most / blocks).max(3);
            call.count = random.pick(&[0, 1, 1 + most / 20, most / 3, most]);
            call.count += random.below(3);
            let mut calls = vec![call; ranks as usize];
            draw_counts(random, &mut calls, most);
            for call in &mut calls {
                call.scalar = random.pick(&[1.0, 2.0, 0.5, -1.0]);
            }
            let problems: Vec<Problem> = calls
                .iter()
                .map(|call| call.problem(ranks, call.level.expect("set")).expect("a good call"))
                .collect();
            let able: Vec<Algorithm> = Algorithm::ALL
                .into_iter()
                .filter(|algorithm| algorithm.supports(&problems[0], hosts).is_ok())
                .collect();
            if able.is_empty() {
                continue;
            }
            let rough = random.percent(50);
            let in_place = random.percent(25);
            return Self {
                algorithm: random.pick(&able),
                in_place: (0..ranks)
                    .map(|rank| in_place && problems[0].in_place(rank).is_some())
                    .collect(),
                calls,
                problems,
                rough,
            };
        }
    }

    /// Forty values with root 0, straight from rank to rank.
    fn direct(collective: Collective, ranks: u32) -> Self {
        let mut call = Call::new(collective, DataType::F32, 40);
        call.level = Some(Level::Run);
        let problem = call.problem(ranks, Level::Run).expect("a good call");
        let each = ranks as usize;
        Self {
            algorithm: Algorithm::Direct,
            calls: vec![call; each],
            problems: vec![problem; each],
            in_place: vec![false; each],
            rough: false,
        }
    }

    fn part(&self, rank: Rank) -> Part {
        let call = &self.calls[rank as usize];
        let reduces = call.collective.reduces();
        let ranks = u32::try_from(self.calls.len()).expect("few");
        Part {
            data_type: call.data_type,
            kernel: reduces.then(|| Kernel::new(call.data_type, call.op, ranks)),
            scales: self.scales(),
        }
    }

    /// Each rank's factor, where there is one.
    pub(super) fn scales(&self) -> Vec<Scalar> {
        if !self.calls[0].collective.reduces() || self.calls[0].op != ReduceOp::PreMulSum {
            return Vec::new();
        }
        self.calls.iter().map(|call| Scalar::from_f64(call.data_type, call.scalar)).collect()
    }
}

/// Unequal counts, for some of the collectives that know them.
fn draw_counts(random: &mut Random, calls: &mut [Call], most: u64) {
    let ranks = calls.len();
    if !random.percent(30) {
        return;
    }
    match calls[0].collective {
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Gather
        | Collective::Scatter => {
            let counts: Arc<[u64]> = (0..ranks)
                .map(|_| if random.percent(25) { 0 } else { random.below(2 * most) })
                .collect();
            for call in calls {
                call.counts = Some(Counts::PerRank(Arc::clone(&counts)));
            }
        }
        Collective::AllToAll => {
            let table: Vec<u64> = (0..ranks * ranks)
                .map(|_| if random.percent(25) { 0 } else { random.below(2 * most) })
                .collect();
            for (rank, call) in calls.iter_mut().enumerate() {
                let send = table[rank * ranks..][..ranks].into();
                let receive = (0..ranks).map(|from| table[from * ranks + rank]).collect();
                call.counts = Some(Counts::Pairwise { send, receive });
            }
        }
        _ => {}
    }
}

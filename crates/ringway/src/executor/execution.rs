//! One plan on one set of buffers.

#![allow(
    unsafe_code,
    reason = "copies between user buffers, scratch and mapped peer memory are raw by nature"
)]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{Fabric, Progress};
use crate::plan::plan::{CARD_STRIDE, Flag, Operand, RankPlan, Region, Span, Step};
use crate::plan::types::{DataType, Rank};
use crate::reduce::{self, Kernel, Scalar};
use crate::transport::{Area, Beginning, Context, OperationTag, Pair, PutRequest, Trouble};

/// The memory an execution may use.
#[derive(Debug)]
struct Buffers {
    inputs: Vec<Area>,
    outputs: Vec<Area>,
    /// This rank's scratch, from the operation's base on.
    scratch: Area,
    /// Where the operation's scratch begins, in every rank's window.
    scratch_base: u64,
}

/// A plan with what can be computed once from it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: RankPlan,
    /// The part of a fused plan each lane belongs to.
    lane_parts: Vec<usize>,
    pub(crate) peers: Vec<Rank>,
    /// For each peer how often each flag is raised here, as waited for.
    pub(crate) received: Vec<(Rank, Vec<(Flag, u32)>)>,
    operands_most: usize,
    /// Whether all it does with buffers is to put them to other ranks and to copy from the input to the output.
    pub(crate) only_moves: bool,
}

impl Prepared {
    /// Whether this rank cannot be done before `peer` has told it something.
    fn waits_for(&self, peer: Rank) -> bool {
        self.plan.lanes.iter().flatten().any(|step| {
            matches!(*step, Step::Wait { peer: p, .. } | Step::See { peer: p, .. } if p == peer)
        })
    }

    /// A plan of one call.
    pub(crate) fn new(plan: RankPlan) -> Self {
        let lane_parts = vec![0; plan.lanes.len()];
        Self::fused(plan, lane_parts)
    }

    /// A plan fused of several calls; `lane_parts` says whose each lane is.
    pub(crate) fn fused(plan: RankPlan, lane_parts: Vec<usize>) -> Self {
        let peers = plan.peers();
        let mut received: Vec<(Rank, Vec<(Flag, u32)>)> =
            peers.iter().map(|peer| (*peer, Vec::new())).collect();
        for step in plan.lanes.iter().flatten() {
            if let Step::Wait { peer, flag, count } = *step {
                let Ok(index) = received.binary_search_by_key(&peer, |entry| entry.0) else {
                    continue;
                };
                let flags = &mut received[index].1;
                match flags.iter_mut().find(|entry| entry.0 == flag) {
                    Some(entry) => entry.1 = entry.1.max(count),
                    None => flags.push((flag, count)),
                }
            }
        }
        let operands_most = plan
            .lanes
            .iter()
            .flatten()
            .map(|step| match step {
                Step::Reduce { operands, .. } => *operands as usize,
                _ => 0,
            })
            .max()
            .unwrap_or(0);
        let only_moves = plan.lanes.iter().flatten().all(only_moves);
        Self { plan, lane_parts, peers, received, operands_most, only_moves }
    }
}

fn only_moves(step: &Step) -> bool {
    let is_buffer = |region: Region| matches!(region, Region::Input(_) | Region::Output(_));
    match *step {
        Step::Put { source, target, .. } => is_buffer(source.region) && is_buffer(target.region),
        Step::Copy { source, target } => {
            matches!((source.region, target.region), (Region::Input(_), Region::Output(_)))
        }
        Step::Signal { .. } | Step::Wait { .. } => true,
        Step::Reduce { .. } | Step::Get { .. } | Step::Show { .. } | Step::See { .. } => false,
    }
}

/// Bytes of an operand that are asked for before it is read.
const FETCHED: usize = 1024;

/// Bytes from which a step takes longer than waking somebody.
const LONG: usize = 4096;

#[derive(Clone, Copy, Debug, Default)]
struct LaneState {
    step: usize,
    /// Bytes of the current put that are already out.
    cursor: usize,
}

/// What one call of a (perhaps fused) plan computes with.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) data_type: DataType,
    pub(crate) kernel: Option<Kernel>,
    /// Factor of each rank's input (pre-multiplied sums), or empty.
    pub(crate) scales: Vec<Scalar>,
}

/// A plan at work, again and again: what it needs is allocated once. See the module's text.
#[derive(Debug)]
pub(crate) struct Execution {
    prepared: Arc<Prepared>,
    /// The other ranks of this host. Scratch is used again by later operations, and a rank that is
    /// still in an earlier one may be reading any rank's scratch: all of them must have left it behind.
    neighbours: Arc<[Rank]>,
    /// Those that this plan does not wait for.
    unmet: Vec<Rank>,
    /// Collectives that the neighbours must have completed before scratch may be touched.
    operations: u64,
    /// Neighbours that are known to have.
    ready: usize,
    state: State,
}

#[derive(Debug)]
struct State {
    buffers: Buffers,
    parts: Vec<Part>,
    context: Context,
    tag: OperationTag,
    lanes: Vec<LaneState>,
    operands: Vec<reduce::Operand>,
    /// Whether peers were told where the buffers are.
    exposed: bool,
    /// Whether the buffers are a device's.
    foreign: bool,
}

// SAFETY: the operand list holds addresses of the buffers the execution was begun on; they stay
// valid wherever it is polled, and it is polled by one thread at a time.
unsafe impl Send for Execution {}

impl Execution {
    /// An execution that has not begun.
    pub(crate) fn new(prepared: Arc<Prepared>, parts: Vec<Part>, neighbours: Arc<[Rank]>) -> Self {
        let lanes = vec![LaneState::default(); prepared.plan.lanes.len()];
        let operands = Vec::with_capacity(prepared.operands_most);
        // Cards are written by their owner only: nobody else's call can have touched them.
        let exposed = prepared.plan.scratch_bytes > 0;
        let unmet = neighbours.iter().copied();
        let unmet = unmet.filter(|peer| exposed && !prepared.waits_for(*peer)).collect();
        let nothing = Area { address: std::ptr::null_mut(), bytes: 0 };
        let buffers =
            Buffers { inputs: Vec::new(), outputs: Vec::new(), scratch: nothing, scratch_base: 0 };
        let tag = OperationTag { sequence: 0, tag: 0 };
        let context = Context::Collective;
        let exposed = false;
        let foreign = false;
        let state = State { buffers, parts, context, tag, lanes, operands, exposed, foreign };
        Self { prepared, neighbours, unmet, operations: 0, ready: 0, state }
    }

    /// Begins on these inputs and outputs, with scratch at `base` of every rank's window, which may
    /// be touched once the neighbours have completed `operations` collectives.
    ///
    /// # Safety
    /// The areas must stay valid, and unshared with writers other than the plan's, until the
    /// execution is done, begun again or dropped. The plan must be verified, or made by an
    /// algorithm, for buffers of these sizes.
    pub(crate) unsafe fn begin(
        &mut self,
        (inputs, outputs): (&[Area], &[Area]),
        (scratch, scratch_base): (Area, u64),
        (context, tag): (Context, OperationTag),
        operations: u64,
    ) {
        let state = &mut self.state;
        state.buffers.inputs.clear();
        state.buffers.inputs.extend_from_slice(inputs);
        state.buffers.outputs.clear();
        state.buffers.outputs.extend_from_slice(outputs);
        (state.buffers.scratch, state.buffers.scratch_base) = (scratch, scratch_base);
        (state.context, state.tag) = (context, tag);
        state.lanes.fill(LaneState::default());
        (state.exposed, state.foreign) = (false, false);
        (self.operations, self.ready) = (operations, 0);
    }

    /// Says of what was begun that its buffers are a device's, which the processor does not reach: what the plan
    /// copies from this rank's input to its output is there already.
    pub(crate) fn leave_copies(&mut self) {
        assert!(self.prepared.only_moves, "a plan that computes, on a device's memory");
        self.state.foreign = true;
    }

    /// The factor of each rank's input in a part that is a pre-multiplied sum.
    pub(crate) fn set_scales(&mut self, part: usize, scales: Vec<Scalar>) {
        self.state.parts[part].scales = scales;
    }

    /// Which operation it is in.
    pub(crate) fn operation(&self) -> (Context, OperationTag) {
        (self.state.context, self.state.tag)
    }

    /// How far each lane has come: steps done, of all.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.prepared.plan.lanes.iter().map(Vec::len);
        self.state.lanes.iter().map(|lane| lane.step).zip(all)
    }

    /// Whether neighbours must have completed something before it may touch scratch.
    pub(crate) fn is_gated(&self) -> bool {
        self.operations > 0
    }

    /// What it runs.
    pub(crate) fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Whom to tell that it begins, as what, and what they must know.
    pub(crate) fn beginning<'a>(
        &'a self,
        remote_scratch: u64,
        pairs: Option<&'a [Pair]>,
    ) -> (&'a [Rank], Context, Beginning<'a>) {
        let State { buffers, context, tag, .. } = &self.state;
        let beginning = Beginning {
            tag: *tag,
            scratch: buffers.scratch,
            outputs: &buffers.outputs,
            inputs: &buffers.inputs,
            remote_scratch,
            pairs,
        };
        (&self.prepared.peers, *context, beginning)
    }

    /// The rank that must leave earlier operations behind before this one may touch scratch;
    /// none when the gate is open.
    pub(crate) fn gate(&mut self, fabric: &mut dyn Fabric) -> Option<Rank> {
        if self.operations == 0 {
            return None;
        }
        while let Some(peer) = self.neighbours.get(self.ready) {
            if !fabric.has_completed(*peer, self.operations) {
                return Some(*peer);
            }
            self.ready += 1;
        }
        None
    }

    /// Runs every lane as far as it goes. Whoever calls this calls [`Fabric::settle`] soon after: peers may sleep that could go on.
    pub(crate) fn poll(&mut self, fabric: &mut dyn Fabric) -> Result<Progress, Trouble> {
        if let Some(peer) = self.gate(fabric) {
            return Ok(Progress::Blocked(peer));
        }
        let Self { prepared, neighbours, state, .. } = self;
        if !state.exposed && prepared.plan.exposed {
            fabric.expose(state.tag, (&state.buffers.inputs, &state.buffers.outputs));
            state.exposed = true;
        }
        let (mut moved, mut blocked) = (false, None);
        for lane in 0..state.lanes.len() {
            let steps = &prepared.plan.lanes[lane];
            let mut looked = false;
            while let Some(step) = steps.get(state.lanes[lane].step) {
                let cursor = state.lanes[lane].cursor;
                match state.step(prepared, (lane, step), neighbours, fabric)? {
                    None => {
                        state.lanes[lane].step += 1;
                        moved = true;
                        if !looked && matches!(step, Step::See { .. }) {
                            looked = true;
                            state.fetch_cards(&steps[state.lanes[lane].step..], fabric);
                        }
                    }
                    Some(peer) => {
                        // A part of a put is something too.
                        moved |= state.lanes[lane].cursor != cursor;
                        blocked = blocked.or(Some(peer));
                        break;
                    }
                }
            }
        }
        if blocked.is_none() {
            for peer in &prepared.peers {
                if !fabric.flush(*peer)? {
                    blocked = Some(*peer);
                }
            }
            // Whom the plan waits for is known to have made the same call.
            state.undisputed(&self.unmet, fabric)?;
        }
        Ok(match blocked {
            None => Progress::Done,
            Some(peer) if moved => Progress::Moved(peer),
            Some(peer) => Progress::Blocked(peer),
        })
    }
}

impl State {
    /// Fails if one of `ranks`, which map this rank's memory, made another call: what was read
    /// there may be anything.
    fn undisputed(&self, ranks: &[Rank], fabric: &mut dyn Fabric) -> Result<(), Trouble> {
        // The partner of the fence in `post`: what was read comes before the look at the posts.
        fence(Ordering::Acquire);
        ranks.iter().try_for_each(|peer| fabric.undisputed(*peer, self.tag))
    }

    /// One card was up: so may the next ones be. All are asked for before the first is looked at, as
    /// each comes from another core.
    fn fetch_cards(&self, steps: &[Step], fabric: &dyn Fabric) {
        for step in steps {
            let Step::See { peer, card } = *step else { break };
            if let Some(area) = fabric.cards(peer, self.tag)
                && let Some(line) = area.at(u64::from(card) * CARD_STRIDE, 1)
            {
                prefetch(line);
            }
        }
    }

    /// One step; the peer it must wait for, if it must.
    fn step(
        &mut self,
        prepared: &Prepared,
        (lane, step): (usize, &Step),
        neighbours: &[Rank],
        fabric: &mut dyn Fabric,
    ) -> Result<Option<Rank>, Trouble> {
        let part = prepared.lane_parts[lane];
        match *step {
            Step::Wait { peer, flag, count } => {
                let reached = fabric.reached(peer, (self.context, lane), flag, count)?;
                return Ok((!reached).then_some(peer));
            }
            Step::Signal { peer, flag } => {
                if fabric.window(peer).is_none() {
                    self.undisputed(neighbours, fabric)?;
                }
                let done = fabric.signal(peer, self.context, lane, flag)?;
                return Ok((!done).then_some(peer));
            }
            Step::Put { peer, source, target, signal } => {
                if fabric.window(peer).is_none() {
                    self.undisputed(neighbours, fabric)?;
                }
                self.settle_before(part, &source, fabric);
                let request = PutRequest {
                    context: self.context,
                    lane,
                    source: self.address(part, &source, fabric),
                    bytes: self.bytes(part, &source),
                    target,
                    signal,
                };
                let cursor = &mut self.lanes[lane].cursor;
                if !fabric.put(peer, &request, cursor)? {
                    return Ok(Some(peer));
                }
                *cursor = 0;
            }
            Step::Get { peer, source, target } => {
                self.settle_before(part, &target, fabric);
                let to = self.address(part, &target, fabric);
                fabric.get(peer, self.tag, source, (to, self.bytes(part, &target)))?;
            }
            // Whoever wrote the input has written these to the output too.
            Step::Copy { .. } if self.foreign => {}
            Step::Copy { source, target } => {
                self.settle_before(part, &source, fabric);
                let from = self.address(part, &source, fabric);
                let to = self.address(part, &target, fabric);
                if !std::ptr::eq(from, to) {
                    // SAFETY:
                    // * both spans lie inside their areas: `address` checked it;
                    // * a verified plan orders this copy against all other accesses to them;
                    // * `copy` (not `copy_nonoverlapping`): user buffers of an in-place call may
                    //   overlap, and no reference to the bytes is made.
                    unsafe { std::ptr::copy(from, to, self.bytes(part, &source)) };
                }
            }
            Step::Reduce { first, operands, target, finish } => {
                self.settle_before(part, &target, fabric);
                let operands = prepared.plan.operands(first, operands);
                self.reduce(part, operands, (&target, finish), fabric);
            }
            Step::Show { source, card } => {
                let from = self.address(part, &source, fabric).cast_const();
                fabric.show(self.tag, card, (from, self.bytes(part, &source)));
            }
            Step::See { peer, card } => {
                let seen = fabric.seen(peer, self.tag, card)?;
                return Ok((!seen).then_some(peer));
            }
        }
        Ok(None)
    }

    /// Before a step that takes long: nobody shall sleep meanwhile who could go on.
    fn settle_before(&self, part: usize, span: &Span, fabric: &mut dyn Fabric) {
        if self.bytes(part, span) >= LONG {
            fabric.settle();
        }
    }

    fn reduce(
        &mut self,
        part: usize,
        operands: &[Operand],
        (target, finish): (&Span, bool),
        fabric: &mut dyn Fabric,
    ) {
        self.operands.clear();
        for operand in operands {
            let address = self.address(part, &operand.span, fabric).cast_const();
            if matches!(operand.span.region, Region::Window(_)) {
                // It comes from another core: the first lines are asked for at once, before the
                // processor has seen in which order they will be read.
                for line in (0..self.bytes(part, &operand.span).min(FETCHED)).step_by(64) {
                    prefetch(address.wrapping_add(line));
                }
            }
            let scales = &self.parts[part].scales;
            let scale = operand.fresh.and_then(|rank| scales.get(rank as usize)).copied();
            self.operands.push(reduce::Operand { address, form: operand.span.form, scale });
        }
        let to = self.address(part, target, fabric);
        let count = usize::try_from(target.count).expect("counts fit the address space");
        let kernel = self.parts[part].kernel.as_ref().expect("a call that reduces has a kernel");
        // SAFETY:
        // * every span lies inside its area: `address` checked it;
        // * a verified plan orders the reads and the write against all other accesses;
        // * target and operands are disjoint or, in place, the same address.
        unsafe { kernel.reduce(to, target.form, finish, &self.operands, count) };
    }

    fn bytes(&self, part: usize, span: &Span) -> usize {
        usize::try_from(span.bytes(self.parts[part].data_type))
            .expect("spans fit the address space")
    }

    /// The address of a span. Plans are proved before they run, so a span outside its area is a
    /// broken invariant, not bad input.
    fn address(&self, part: usize, span: &Span, fabric: &dyn Fabric) -> *mut u8 {
        let (area, base) = match span.region {
            Region::Input(index) => (self.buffers.inputs[usize::from(index)], 0),
            Region::Output(index) => (self.buffers.outputs[usize::from(index)], 0),
            Region::Scratch => (self.buffers.scratch, 0),
            Region::Window(peer) => (
                fabric.window(peer).expect("plans use windows of mapped peers only"),
                self.buffers.scratch_base,
            ),
            Region::Card(peer) => {
                (fabric.cards(peer, self.tag).expect("plans see cards of mapped peers only"), 0)
            }
            Region::PeerInput(_) | Region::PeerOutput(_) => {
                panic!("{span:?}: buffers of peers are not mapped on host memory")
            }
        };
        area.at(base + span.offset, span.bytes(self.parts[part].data_type))
            .unwrap_or_else(|| panic!("{span:?} lies outside its area of {} bytes", area.bytes))
    }
}

/// Asks for a cache line, without waiting for it.
#[cfg(target_arch = "x86_64")]
fn prefetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing: it is a hint, for any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

/// Asks for a cache line, where the processor can be asked.
#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_line: *const u8) {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::plan::algorithm::Algorithm;
    use crate::plan::build::{Context, Tuning};
    use crate::plan::problem::Problem;
    use crate::plan::types::Collective;

    #[test]
    fn direct_plans_between_hosts_only_move() {
        let plan = |algorithm: Algorithm, collective, hosts: &[u32]| {
            let problem = Problem::new(collective, 3, 50_000, DataType::F32);
            let context = Context { problem: &problem, rank: 1, hosts, tuning: Tuning::default() };
            Prepared::new(algorithm.build(context))
        };
        let (apart, together) = ([0, 1, 2], [0, 1, 1]);
        for collective in [
            Collective::AllGather,
            Collective::AllToAll,
            Collective::Broadcast,
            Collective::Gather,
            Collective::Scatter,
        ] {
            assert!(plan(Algorithm::Direct, collective, &apart).only_moves, "{collective}");
        }
        assert!(!plan(Algorithm::Direct, Collective::AllGather, &together).only_moves);
        assert!(!plan(Algorithm::TwoShot, Collective::AllReduce, &apart).only_moves);
    }
}

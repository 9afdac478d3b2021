//! One plan on one set of buffers.

#![allow(
    unsafe_code,
    reason = "copies between user buffers, scratch and mapped peer memory are raw by nature"
)]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{Fabric, Progress};
use crate::plan::plan::{Flag, Operand, RankPlan, Region, Span, Step};
use crate::plan::types::{DataType, Rank};
use crate::reduce::{self, Kernel, Scalar};
use crate::transport::{Area, Context, OperationTag, PutRequest, Trouble};

/// The memory an execution may use.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    pub(crate) inputs: Vec<Area>,
    pub(crate) outputs: Vec<Area>,
    /// This rank's scratch, from the operation's base on.
    pub(crate) scratch: Area,
    /// Where the operation's scratch begins, in every rank's window.
    pub(crate) scratch_base: u64,
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
}

impl Prepared {
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
        Self { plan, lane_parts, peers, received, operands_most }
    }
}

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

/// What must be over before an execution may touch scratch.
///
/// Scratch is used again by later operations. A rank that is still in an earlier one may be reading
/// any rank's scratch, so all ranks that map each other's memory must have left it behind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    /// The ranks of this host.
    pub(crate) ranks: Arc<[Rank]>,
    /// Collectives that each of them must have completed.
    pub(crate) operations: u64,
}

/// A plan at work. See the module's text.
#[derive(Debug)]
pub(crate) struct Execution {
    prepared: Arc<Prepared>,
    buffers: Buffers,
    parts: Vec<Part>,
    context: Context,
    tag: OperationTag,
    gate: Gate,
    /// Ranks of the gate that are known to be ready.
    ready: usize,
    lanes: Vec<LaneState>,
    operands: Vec<reduce::Operand>,
}

// SAFETY: the operand list holds addresses of the buffers the execution was built on; they stay
// valid wherever it is polled, and it is polled by one thread at a time.
unsafe impl Send for Execution {}

impl Execution {
    /// # Safety
    /// The areas in `buffers` must stay valid, and unshared with writers other than the plan's,
    /// until the execution is done or dropped. `prepared` must be verified, or made by an
    /// algorithm, for buffers of these sizes.
    pub(crate) unsafe fn new(
        prepared: Arc<Prepared>,
        buffers: Buffers,
        parts: Vec<Part>,
        (context, tag): (Context, OperationTag),
        gate: Gate,
    ) -> Self {
        let lanes = vec![LaneState::default(); prepared.plan.lanes.len()];
        let operands = Vec::with_capacity(prepared.operands_most);
        Self { prepared, buffers, parts, context, tag, gate, ready: 0, lanes, operands }
    }

    /// The rank that must leave earlier operations behind before this one may touch scratch;
    /// none when the gate is open.
    pub(crate) fn gate(&mut self, fabric: &mut dyn Fabric) -> Option<Rank> {
        while let Some(peer) = self.gate.ranks.get(self.ready) {
            if !fabric.has_completed(*peer, self.gate.operations) {
                return Some(*peer);
            }
            self.ready += 1;
        }
        None
    }

    /// Runs every lane as far as it goes.
    pub(crate) fn poll(&mut self, fabric: &mut dyn Fabric) -> Result<Progress, Trouble> {
        if let Some(peer) = self.gate(fabric) {
            return Ok(Progress::Blocked(peer));
        }
        let prepared = Arc::clone(&self.prepared);
        let (mut moved, mut blocked) = (false, None);
        for lane in 0..self.lanes.len() {
            let steps = &prepared.plan.lanes[lane];
            while let Some(step) = steps.get(self.lanes[lane].step) {
                match self.step(&prepared.plan, lane, step, fabric)? {
                    None => {
                        self.lanes[lane].step += 1;
                        moved = true;
                    }
                    Some(peer) => {
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
            self.undisputed(fabric)?;
        }
        Ok(match blocked {
            None => Progress::Done,
            Some(peer) if moved => Progress::Moved(peer),
            Some(peer) => Progress::Blocked(peer),
        })
    }

    /// Fails if a rank that maps this rank's memory made another call: what was read there may be
    /// anything.
    fn undisputed(&self, fabric: &mut dyn Fabric) -> Result<(), Trouble> {
        // The partner of the fence in `post`: what was read comes before the look at the posts.
        fence(Ordering::Acquire);
        self.gate.ranks.iter().try_for_each(|peer| fabric.undisputed(*peer, self.tag))
    }

    /// One step; the peer it must wait for, if it must.
    fn step(
        &mut self,
        plan: &RankPlan,
        lane: usize,
        step: &Step,
        fabric: &mut dyn Fabric,
    ) -> Result<Option<Rank>, Trouble> {
        match *step {
            Step::Wait { peer, flag, count } => {
                let reached = fabric.reached(peer, (self.context, lane), flag, count)?;
                return Ok((!reached).then_some(peer));
            }
            Step::Signal { peer, flag } => {
                if fabric.window(peer).is_none() {
                    self.undisputed(fabric)?;
                }
                let done = fabric.signal(peer, self.context, lane, flag)?;
                return Ok((!done).then_some(peer));
            }
            Step::Put { peer, source, target, signal } => {
                if fabric.window(peer).is_none() {
                    self.undisputed(fabric)?;
                }
                let request = PutRequest {
                    context: self.context,
                    lane,
                    source: self.address(lane, &source, fabric),
                    bytes: self.bytes(lane, &source),
                    target,
                    signal,
                };
                let cursor = &mut self.lanes[lane].cursor;
                if !fabric.put(peer, &request, cursor)? {
                    return Ok(Some(peer));
                }
                *cursor = 0;
            }
            Step::Copy { source, target } => {
                let from = self.address(lane, &source, fabric);
                let to = self.address(lane, &target, fabric);
                if !std::ptr::eq(from, to) {
                    // SAFETY:
                    // * both spans lie inside their areas: `address` checked it;
                    // * a verified plan orders this copy against all other accesses to them;
                    // * `copy` (not `copy_nonoverlapping`): user buffers of an in-place call may
                    //   overlap, and no reference to the bytes is made.
                    unsafe { std::ptr::copy(from, to, self.bytes(lane, &source)) };
                }
            }
            Step::Reduce { first, operands, target, finish } => {
                self.reduce(lane, plan.operands(first, operands), (&target, finish), fabric);
            }
        }
        Ok(None)
    }

    fn reduce(
        &mut self,
        lane: usize,
        operands: &[Operand],
        (target, finish): (&Span, bool),
        fabric: &mut dyn Fabric,
    ) {
        self.operands.clear();
        for operand in operands {
            let address = self.address(lane, &operand.span, fabric).cast_const();
            let scales = &self.part(lane).scales;
            let scale = operand.fresh.and_then(|rank| scales.get(rank as usize)).copied();
            self.operands.push(reduce::Operand { address, form: operand.span.form, scale });
        }
        let to = self.address(lane, target, fabric);
        let count = usize::try_from(target.count).expect("counts fit the address space");
        let kernel = self.part(lane).kernel.as_ref().expect("a call that reduces has a kernel");
        // SAFETY:
        // * every span lies inside its area: `address` checked it;
        // * a verified plan orders the reads and the write against all other accesses;
        // * target and operands are disjoint or, in place, the same address.
        unsafe { kernel.reduce(to, target.form, finish, &self.operands, count) };
    }

    fn part(&self, lane: usize) -> &Part {
        &self.parts[self.prepared.lane_parts[lane]]
    }

    fn bytes(&self, lane: usize, span: &Span) -> usize {
        usize::try_from(span.bytes(self.part(lane).data_type)).expect("spans fit the address space")
    }

    /// The address of a span. Plans are proved before they run, so a span outside its area is a
    /// broken invariant, not bad input.
    fn address(&self, lane: usize, span: &Span, fabric: &dyn Fabric) -> *mut u8 {
        let (area, base) = match span.region {
            Region::Input(index) => (self.buffers.inputs[usize::from(index)], 0),
            Region::Output(index) => (self.buffers.outputs[usize::from(index)], 0),
            Region::Scratch => (self.buffers.scratch, 0),
            Region::Window(peer) => (
                fabric.window(peer).expect("plans use windows of mapped peers only"),
                self.buffers.scratch_base,
            ),
        };
        area.at(base + span.offset, span.bytes(self.part(lane).data_type))
            .unwrap_or_else(|| panic!("{span:?} lies outside its area of {} bytes", area.bytes))
    }
}

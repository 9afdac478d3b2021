//! Groups: several calls and messages as one operation.
//!
//! All calls of a group are fused: their plans run side by side. Messages of a group run at once,
//! so that ranks may send to and receive from each other without a deadlock.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::engine::{Agreement, MessagePart};
use super::work::Afterwards;
use super::{Communicator, Desk, Inner, Request, pairs, signature, wrong_size};
use crate::call::Call;
use crate::control::Signature;
use crate::error::{Error, Result};
use crate::executor::{Execution, Prepared};
use crate::plan::plan::{CARDS_MAX, FLAGS_MAX, LANES_MAX, RankPlan};
use crate::plan::problem::Problem;
use crate::plan::types::{Level, Rank};
use crate::transport::Area;

/// Calls and messages that will run as one operation. See the module's text.
///
/// ```
/// ringway::testing::world(3, |comm| {
///     let (rank, size) = (comm.rank(), comm.size());
///     let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
///     let (mine, mut theirs) = ([rank as u8; 4], [0; 4]);
///     let mut group = comm.group();
///     group.send(&mine, next).unwrap();
///     group.recv(&mut theirs, previous).unwrap();
///     group.run().unwrap();
///     assert_eq!(theirs, [previous as u8; 4]);
/// });
/// ```
#[derive(Debug)]
#[must_use = "a group does nothing until it is run"]
pub struct Group<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) requests: Vec<Request>,
    pub(super) messages: Vec<MessagePart>,
    /// Which calls, by their number, are in place though no plan can do them so: their inputs are copied when it runs.
    pub(super) copied: Vec<usize>,
    deadline: Option<Duration>,
    buffers: PhantomData<&'a mut [u8]>,
}

impl Communicator {
    /// An empty group.
    pub fn group(&self) -> Group<'_> {
        Group {
            communicator: self,
            requests: Vec::new(),
            messages: Vec::new(),
            copied: Vec::new(),
            deadline: None,
            buffers: PhantomData,
        }
    }
}

impl<'a> Group<'a> {
    /// Adds a collective.
    ///
    /// # Errors
    /// A buffer has the wrong size.
    pub fn call(&mut self, call: &Call, input: &'a [u8], output: &'a mut [u8]) -> Result<()> {
        self.communicator.check_bytes(call, input.len(), output.len())?;
        self.requests.push(Request {
            call: call.clone(),
            input: Area { address: input.as_ptr().cast_mut(), bytes: input.len() },
            output: Area { address: output.as_mut_ptr(), bytes: output.len() },
        });
        Ok(())
    }

    /// Adds a message to `to`.
    ///
    /// # Errors
    /// The rank does not exist.
    pub fn send(&mut self, bytes: &'a [u8], to: Rank) -> Result<()> {
        self.check_peer(to)?;
        let area = Area { address: bytes.as_ptr().cast_mut(), bytes: bytes.len() };
        self.messages.push(MessagePart { peer: to, area, sends: true, mark: 0 });
        Ok(())
    }

    /// Adds a message from `from`.
    ///
    /// # Errors
    /// The rank does not exist.
    pub fn recv(&mut self, bytes: &'a mut [u8], from: Rank) -> Result<()> {
        self.check_peer(from)?;
        let area = Area { address: bytes.as_mut_ptr(), bytes: bytes.len() };
        self.messages.push(MessagePart { peer: from, area, sends: false, mark: 0 });
        Ok(())
    }

    /// Gives its messages so long, instead of what the settings say; calls have deadlines of their own.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    pub(super) fn check_peer(&self, peer: Rank) -> Result<()> {
        let size = self.communicator.size();
        if peer < size {
            return Ok(());
        }
        Err(Error::argument(format!("rank {peer} does not exist; ranks are 0 to {}", size - 1)))
    }

    /// Refuses what [`Group::run`] refuses, and runs nothing: before parts of several communicators are run together, say.
    ///
    /// # Errors
    /// A call cannot be done, or messages to the own rank do not meet.
    pub fn check(&self) -> Result<()> {
        let own = self.communicator.rank();
        meetings(&self.messages.iter().filter(|part| part.peer == own).collect::<Vec<_>>())?;
        let inner = &self.communicator.inner;
        self.requests.iter().try_for_each(|request| inner.problem(&request.call).map(drop))
    }

    /// Runs everything and waits for it.
    ///
    /// # Errors
    /// The ranks' calls differ, a rank died, or the deadline passed.
    pub fn run(mut self) -> Result<()> {
        let messages = self.split_messages();
        let _until_it_is_over = self.copy_inputs();
        copy_to_self(&messages.0)?;
        self.communicator.run_now(&self.requests, &messages.1, self.deadline)
    }

    /// Messages to the own rank, and all others.
    fn split_messages(&mut self) -> (Vec<MessagePart>, Vec<MessagePart>) {
        let own = self.communicator.rank();
        self.messages.drain(..).partition(|part| part.peer == own)
    }

    /// Starts everything, behind all that was called before, and returns; `done` is told how it ended, as with
    /// [`Communicator::start_at`].
    ///
    /// # Errors
    /// The background thread cannot be started; then `done` is not called.
    ///
    /// # Safety
    /// Until `done` is called, all buffers of the group stay where they are and nobody else touches them.
    #[expect(unsafe_code, reason = "the buffers are used after this returns")]
    pub unsafe fn start(
        mut self,
        done: impl FnOnce(Result<()>) -> Option<Afterwards> + Send + 'static,
    ) -> Result<()> {
        let (to_self, messages) = self.split_messages();
        let copies = self.copy_inputs();
        let requests = std::mem::take(&mut self.requests);
        let deadline = self.deadline;
        let job = move |inner: &Inner| {
            let _until_it_is_over = copies;
            copy_to_self(&to_self)?;
            inner.run(&requests, &messages, deadline)
        };
        self.communicator.submit(Box::new(job), Box::new(done))
    }
}

/// Messages of a rank to itself, each send with its receive: the first of one and of the other, and so on.
fn meetings<'a>(parts: &[&'a MessagePart]) -> Result<Vec<(&'a Area, &'a Area)>> {
    let (sends, receives): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.sends);
    if sends.len() != receives.len() {
        return Err(Error::usage(format!(
            "a group sends {} messages to its own rank and receives {}; they must meet in one group",
            sends.len(),
            receives.len()
        )));
    }
    let meet = |(send, receive): (&'a MessagePart, &'a MessagePart)| {
        if send.area.bytes == receive.area.bytes {
            return Ok((&send.area, &receive.area));
        }
        Err(Error::usage(format!(
            "a message of {} bytes to the own rank meets a receive of {}",
            send.area.bytes, receive.area.bytes
        )))
    };
    sends.into_iter().zip(receives).map(meet).collect()
}

/// Does the messages of a rank to itself.
fn copy_to_self(parts: &[MessagePart]) -> Result<()> {
    for (from, to) in meetings(&parts.iter().collect::<Vec<_>>())? {
        // SAFETY: both areas stand for borrows that the group holds, or for what its caller promises: valid.
        // Given by address, they may be the same.
        #[expect(unsafe_code, reason = "the areas stand for borrows the group holds")]
        unsafe {
            std::ptr::copy(from.address, to.address, from.bytes);
        }
    }
    Ok(())
}

impl Inner {
    /// Runs several calls, as few fused operations as flags, lanes and scratch allow.
    pub(super) fn run_fused(&self, desk: &mut Desk, requests: &[Request]) -> Result<()> {
        let (mut problems, mut plans) = (Vec::new(), Vec::new());
        for request in requests {
            let problem = self.problem(&request.call)?;
            plans.push(desk.planning.draft(self.rank, &problem, request.call.algorithm)?.0);
            problems.push(problem);
        }
        let most = desk.planning.scratch_bytes();
        let mut first = 0;
        while first < plans.len() {
            let mut end = first + 1;
            while end < plans.len() && fits(&plans[first..=end], most) {
                end += 1;
            }
            let batch = first..end;
            let (requests, problems) = (&requests[batch.clone()], &problems[batch.clone()]);
            self.run_batch(desk, requests, problems, &plans[batch])?;
            first = end;
        }
        Ok(())
    }

    fn run_batch(
        &self,
        desk: &mut Desk,
        requests: &[Request],
        problems: &[Problem],
        plans: &[RankPlan],
    ) -> Result<()> {
        let parts = requests.iter().map(|request| self.part(&request.call)).collect();
        let (fused, lane_parts) = RankPlan::fuse(plans);
        let prepared = Arc::new(Prepared::fused(fused, lane_parts));
        let mut execution = Execution::new(prepared, parts, Arc::clone(&desk.engine.neighbours));
        for (part, request) in requests.iter().enumerate() {
            if let Some(scales) = self.scales(desk, &request.call)? {
                execution.set_scales(part, scales);
            }
        }
        let inputs: Vec<Area> = requests.iter().map(|request| request.input).collect();
        let outputs: Vec<Area> = requests.iter().map(|request| request.output).collect();
        let deadline = requests
            .iter()
            .map(|request| request.call.deadline.unwrap_or(self.config.timeout))
            .max()
            .unwrap_or(self.config.timeout);
        let agreement = Agreement {
            signature: fused_signature(requests, problems),
            pairs: pairs(problems.iter()),
            algorithm: None,
            parts: requests.len(),
            uneven: problems.iter().any(Problem::is_uneven),
        };
        // SAFETY: the group holds the borrows of all areas until this returns, and every part
        // was planned for exactly these sizes.
        #[expect(unsafe_code, reason = "the areas stand for borrows the caller holds")]
        unsafe {
            desk.engine.collective(&mut execution, (&inputs, &outputs), &agreement, deadline)
        }
    }
}

/// Whether plans may run side by side. Depends only on what is equal on all ranks.
fn fits(plans: &[RankPlan], scratch_most: u64) -> bool {
    let sum = |of: fn(&RankPlan) -> u64| plans.iter().map(of).sum::<u64>();
    sum(|plan| plan.scratch_bytes.next_multiple_of(64)) <= scratch_most
        && sum(|plan| u64::from(plan.flags)) <= FLAGS_MAX as u64
        && sum(|plan| u64::from(plan.cards)) <= CARDS_MAX as u64
        && sum(|plan| plan.lanes.len() as u64) <= LANES_MAX as u64
}

/// The signature of a fused operation: the first call's, with a hash of all the others.
fn fused_signature(requests: &[Request], problems: &[Problem]) -> Signature {
    let mut all = requests.iter().zip(problems).map(|(r, p)| signature(&r.call, p));
    let mut first = all.next().expect("a batch has at least one call");
    for other in all {
        first.extra =
            first.extra.rotate_left(7) ^ u64::from(other.tag()).wrapping_mul(0x0100_0000_01b3);
    }
    first
}

impl Communicator {
    /// Sends `bytes` to `to`. Returns when the buffer may be reused, which may be only after
    /// `to` has entered its `recv`; sends that cross belong in a [`Group`].
    ///
    /// # Errors
    /// The rank does not exist, the sizes do not meet, a rank died, or the deadline passed.
    pub fn send(&self, bytes: &[u8], to: Rank) -> Result<()> {
        if to == self.rank() {
            return Err(Error::usage("a message to the own rank needs its recv in the same group"));
        }
        let mut group = self.group();
        group.send(bytes, to)?;
        group.run()
    }

    /// Receives a message of exactly `bytes.len()` bytes from `from`.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn recv(&self, bytes: &mut [u8], from: Rank) -> Result<()> {
        if from == self.rank() {
            return Err(Error::usage(
                "a message from the own rank needs its send in the same group",
            ));
        }
        let mut group = self.group();
        group.recv(bytes, from)?;
        group.run()
    }

    /// Gathers blobs of different lengths from all ranks.
    pub(super) fn all_gather_blobs(&self, blob: &[u8]) -> Result<Vec<Vec<u8>>> {
        use crate::plan::problem::Counts;
        use crate::plan::types::{Collective, DataType};
        let mut lengths = vec![0_u64; self.size() as usize];
        self.all_gather(&[blob.len() as u64], &mut lengths)?;
        let whole: u64 = lengths.iter().sum();
        let whole = usize::try_from(whole).map_err(|_| Error::internal("blobs too long"))?;
        let call = Call::new(Collective::AllGather, DataType::U8, 0)
            .counts(Counts::PerRank(lengths.clone().into()));
        let mut joined = vec![0; whole];
        if call.output_bytes(self.rank(), self.size())? != whole {
            return Err(wrong_size("blobs", &call, whole, 0));
        }
        self.call(&call, blob, &mut joined)?;
        let mut rest = &joined[..];
        Ok(lengths
            .iter()
            .map(|length| {
                let (one, after) = rest.split_at(usize::try_from(*length).unwrap_or(rest.len()));
                rest = after;
                one.to_vec()
            })
            .collect())
    }

    /// The level a call would run at.
    #[must_use]
    pub fn level(&self) -> Level {
        self.inner.config.level
    }
}

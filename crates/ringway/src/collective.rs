//! The collectives on typed slices.
//!
//! Every method is called by all ranks with matching arguments. Each has an untyped twin in
//! [`Communicator::call`], which also takes a level, an algorithm and a deadline.

use crate::call::Call;
use crate::communicator::Communicator;
use crate::element::{Element, as_bytes, as_bytes_mut};
use crate::error::Result;
use crate::plan::problem::Counts;
use crate::plan::types::{Collective, DataType, Rank, ReduceOp};

fn call<T: Element>(collective: Collective, count: usize) -> Call {
    Call::new(collective, T::DATA_TYPE, count as u64)
}

fn per_rank(counts: &[usize]) -> Counts {
    Counts::PerRank(counts.iter().map(|count| *count as u64).collect())
}

/// Everything below fails if a buffer has the wrong size, the ranks' calls differ, a rank dies or
/// the deadline passes; the error names the ranks at fault.
impl Communicator {
    /// `output = input[0] ⊕ input[1] ⊕ …` on every rank.
    ///
    /// ```
    /// # use ringway::ReduceOp;
    /// ringway::testing::world(3, |comm| {
    ///     let mut most = [0.0_f32; 2];
    ///     comm.all_reduce(&[comm.rank() as f32, 7.0], &mut most, ReduceOp::Max).unwrap();
    ///     assert_eq!(most, [2.0, 7.0]);
    /// });
    /// ```
    ///
    /// # Errors
    /// See above.
    pub fn all_reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let call = call::<T>(Collective::AllReduce, input.len()).op(op);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// As [`Communicator::all_reduce`], in place.
    ///
    /// # Errors
    /// See above.
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = call::<T>(Collective::AllReduce, buffer.len()).op(op);
        self.call_in_place(&call, as_bytes_mut(buffer))
    }

    /// `output` is every rank's `input`, in rank order.
    ///
    /// ```
    /// ringway::testing::world(3, |comm| {
    ///     let mut all = [0_u64; 3];
    ///     comm.all_gather(&[u64::from(comm.rank()) * 10], &mut all).unwrap();
    ///     assert_eq!(all, [0, 10, 20]);
    /// });
    /// ```
    ///
    /// # Errors
    /// See above.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let call = call::<T>(Collective::AllGather, input.len());
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// As [`Communicator::all_gather`]; rank `i` contributes `counts[i]` elements.
    ///
    /// # Errors
    /// See above.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<()> {
        let call = call::<T>(Collective::AllGather, 0).counts(per_rank(counts));
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// Rank `i` gets block `i` of the reduction of all inputs; blocks have `output.len()` elements.
    ///
    /// ```
    /// # use ringway::ReduceOp;
    /// ringway::testing::world(2, |comm| {
    ///     let mut mine = [0_i32; 1];
    ///     comm.reduce_scatter(&[1, 2], &mut mine, ReduceOp::Sum).unwrap();
    ///     assert_eq!(mine, [2 * (comm.rank() as i32 + 1)]);
    /// });
    /// ```
    ///
    /// # Errors
    /// See above.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let call = call::<T>(Collective::ReduceScatter, output.len()).op(op);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// As [`Communicator::reduce_scatter`]; rank `i` gets `counts[i]` elements.
    ///
    /// # Errors
    /// See above.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        let call = call::<T>(Collective::ReduceScatter, 0).counts(per_rank(counts)).op(op);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// Every rank gets the root's `buffer`, in place.
    ///
    /// ```
    /// ringway::testing::world(3, |comm| {
    ///     let mut word = [if comm.rank() == 1 { 42_u8 } else { 0 }];
    ///     comm.broadcast(&mut word, 1).unwrap();
    ///     assert_eq!(word, [42]);
    /// });
    /// ```
    ///
    /// # Errors
    /// See above.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let call = call::<T>(Collective::Broadcast, buffer.len()).root(root);
        self.call_in_place(&call, as_bytes_mut(buffer))
    }

    /// The root gets the reduction of all inputs; `output` is empty elsewhere.
    ///
    /// ```
    /// # use ringway::ReduceOp;
    /// ringway::testing::world(3, |comm| {
    ///     let mut product = vec![0_i64; if comm.rank() == 0 { 1 } else { 0 }];
    ///     comm.reduce(&[2], &mut product, ReduceOp::Prod, 0).unwrap();
    ///     assert!(product.is_empty() || product == [8]);
    /// });
    /// ```
    ///
    /// # Errors
    /// See above.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let call = call::<T>(Collective::Reduce, input.len()).op(op).root(root);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// The root gets every rank's `input`, in rank order; `output` is empty elsewhere.
    ///
    /// # Errors
    /// See above.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        let call = call::<T>(Collective::Gather, input.len()).root(root);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// As [`Communicator::gather`]; rank `i` contributes `counts[i]` elements.
    ///
    /// # Errors
    /// See above.
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: Rank,
    ) -> Result<()> {
        let call = call::<T>(Collective::Gather, 0).counts(per_rank(counts)).root(root);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// Rank `i` gets block `i` of the root's `input`, which is empty elsewhere.
    ///
    /// # Errors
    /// See above.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        let call = call::<T>(Collective::Scatter, output.len()).root(root);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// As [`Communicator::scatter`]; rank `i` gets `counts[i]` elements.
    ///
    /// # Errors
    /// See above.
    pub fn scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: Rank,
    ) -> Result<()> {
        let call = call::<T>(Collective::Scatter, 0).counts(per_rank(counts)).root(root);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// Rank `i` gets block `i` of every rank's `input`, in rank order.
    ///
    /// ```
    /// ringway::testing::world(2, |comm| {
    ///     let rank = comm.rank() as u8;
    ///     let mut theirs = [0_u8; 2];
    ///     comm.all_to_all(&[10 * rank, 10 * rank + 1], &mut theirs).unwrap();
    ///     assert_eq!(theirs, [rank, 10 + rank]);
    /// });
    /// ```
    ///
    /// # Errors
    /// See above.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let call = call::<T>(Collective::AllToAll, input.len() / self.size() as usize);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// As [`Communicator::all_to_all`], with what this rank sends to and receives from each rank.
    ///
    /// # Errors
    /// See above.
    pub fn all_to_all_v<T: Element>(
        &self,
        (input, send_counts): (&[T], &[usize]),
        (output, receive_counts): (&mut [T], &[usize]),
    ) -> Result<()> {
        let list = |counts: &[usize]| counts.iter().map(|count| *count as u64).collect();
        let counts = Counts::Pairwise { send: list(send_counts), receive: list(receive_counts) };
        let call = call::<T>(Collective::AllToAll, 0).counts(counts);
        self.call(&call, as_bytes(input), as_bytes_mut(output))
    }

    /// Returns when every rank has entered.
    ///
    /// # Errors
    /// See above.
    pub fn barrier(&self) -> Result<()> {
        self.call(&Call::new(Collective::Barrier, DataType::U8, 0), &[], &mut [])
    }
}

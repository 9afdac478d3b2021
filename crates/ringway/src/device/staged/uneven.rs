//! Counts for each rank, as calls of equal counts: the blocks of a chunk are of one length, so what is of several
//! becomes several calls.
//!
//! | call | becomes |
//! |---|---|
//! | all_gather | a broadcast of each rank's block |
//! | reduce_scatter | a reduce of each rank's block |
//! | gather, scatter | messages with the root |
//!
//! *Invariant:* all ranks make the same calls in the same order: they follow from what is equal on all.

use crate::call::Call;
use crate::device::Work;
use crate::error::{Error, Result};
use crate::ffi::cuda::Address;
use crate::plan::problem::{Counts, Extent};
use crate::plan::types::{Collective, Level, Rank};

/// One of the calls.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A collective of equal counts, with its input and output.
    Call(Call, Address, Address),
    /// Messages that meet in one group; there may be none.
    Messages(Vec<Work<'static>>),
}

/// The calls that a call stands for, which was checked.
pub(super) fn steps(
    call: &Call,
    rank: Rank,
    ranks: u32,
    (input, output): (Address, Address),
) -> Result<Vec<Step>> {
    let with = |collective: Collective, root: Rank, count: u64| {
        let mut part = call.clone();
        (part.collective, part.root, part.count, part.counts) = (collective, root, count, None);
        part
    };
    match &call.counts {
        None => return Ok(vec![Step::Call(call.clone(), input, output)]),
        Some(Counts::Equal(count)) => {
            let part = with(call.collective, call.root, *count);
            return Ok(vec![Step::Call(part, input, output)]);
        }
        Some(_) => {}
    }
    let problem = call.problem(ranks, Level::Run)?;
    let size = call.data_type.size() as u64;
    let at = |base: Address, block: Extent| base + block.start * size;
    let blocks = (0..ranks).map(|owner| (owner, problem.block(owner)));
    let blocks = blocks.filter(|(_, block)| block.count > 0);
    let one = |collective, owner, block: Extent| {
        let mut part = with(collective, owner, block.count);
        // An algorithm of the whole may be none of its parts.
        part.algorithm = None;
        part
    };
    let bytes = |block: Extent| usize::try_from(block.count * size).unwrap_or(usize::MAX);
    let (is_root, own) = (rank == call.root, problem.block(rank));
    let mut messages = Vec::new();
    match call.collective {
        Collective::AllGather => {
            let part = |(owner, block)| {
                Step::Call(one(Collective::Broadcast, owner, block), input, at(output, block))
            };
            return Ok(blocks.map(part).collect());
        }
        Collective::ReduceScatter => {
            let part = |(owner, block)| {
                Step::Call(one(Collective::Reduce, owner, block), at(input, block), output)
            };
            return Ok(blocks.map(part).collect());
        }
        Collective::Gather => {
            if own.count > 0 {
                let bytes = bytes(own);
                messages.push(Work::Send { peer: call.root, address: input, bytes });
            }
            for (peer, block) in blocks.filter(|_| is_root) {
                let (address, bytes) = (at(output, block), bytes(block));
                messages.push(Work::Receive { peer, address, bytes });
            }
        }
        Collective::Scatter => {
            for (peer, block) in blocks.filter(|_| is_root) {
                let (address, bytes) = (at(input, block), bytes(block));
                messages.push(Work::Send { peer, address, bytes });
            }
            if own.count > 0 {
                let bytes = bytes(own);
                messages.push(Work::Receive { peer: call.root, address: output, bytes });
            }
        }
        other => {
            return Err(Error::usage(format!(
                "{other} with counts for each pair of ranks is not possible on GPU memory: send and receive \
                 them as messages in a group"
            )));
        }
    }
    Ok(vec![Step::Messages(messages)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::types::DataType;

    fn call(collective: Collective) -> Call {
        Call::new(collective, DataType::F32, 0).counts(Counts::PerRank([2, 0, 5].into())).root(2)
    }

    fn told(collective: Collective, rank: Rank) -> Vec<String> {
        let steps = steps(&call(collective), rank, 3, (1000, 2000)).unwrap();
        let text = |step: &Step| match step {
            Step::Call(call, input, output) => {
                assert_eq!(call.counts, None);
                format!("{} {} {} {input} {output}", call.collective, call.root, call.count)
            }
            Step::Messages(all) => format!("{all:?}"),
        };
        steps.iter().map(text).collect()
    }

    #[test]
    fn gathering_is_a_broadcast_of_every_block_that_is_not_empty() {
        for rank in 0..3 {
            let expected = ["broadcast 0 2 1000 2000", "broadcast 2 5 1000 2008"];
            assert_eq!(told(Collective::AllGather, rank), expected);
            let expected = ["reduce 0 2 1000 2000", "reduce 2 5 1008 2000"];
            assert_eq!(told(Collective::ReduceScatter, rank), expected);
        }
    }

    #[test]
    fn what_one_end_sends_the_other_receives() {
        for collective in [Collective::Gather, Collective::Scatter] {
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            for rank in 0..3 {
                for step in steps(&call(collective), rank, 3, (1000, 2000)).unwrap() {
                    let Step::Messages(all) = step else { panic!("{collective}: {step:?}") };
                    for one in all {
                        match one {
                            Work::Send { peer, bytes, .. } => sent.push((rank, peer, bytes)),
                            Work::Receive { peer, bytes, .. } => received.push((peer, rank, bytes)),
                            Work::Collective { .. } => panic!("{collective}"),
                        }
                    }
                }
            }
            sent.sort_unstable();
            received.sort_unstable();
            assert_eq!(sent, received);
            assert_eq!(sent.len(), 2);
        }
    }

    #[test]
    fn equal_counts_are_one_call_and_pairs_are_refused() {
        let equal = Call::new(Collective::AllToAll, DataType::U8, 0).counts(Counts::Equal(7));
        let all = steps(&equal, 0, 2, (1, 2)).unwrap();
        assert!(matches!(&all[..], [Step::Call(call, 1, 2)] if call.count == 7), "{all:?}");
        let (send, receive) = ([1, 2].into(), [1, 2].into());
        let pairs = Call::new(Collective::AllToAll, DataType::U8, 0)
            .counts(Counts::Pairwise { send, receive });
        let error = steps(&pairs, 0, 2, (1, 2)).unwrap_err().to_string();
        assert!(error.contains("pair of ranks"), "{error}");
    }
}

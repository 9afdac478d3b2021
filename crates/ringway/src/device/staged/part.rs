//! What a group comes to, checked as a whole before anything of it is done: else the others would be left with calls
//! of which this rank has made a part.

use super::layout::{Piece, Shape};
use super::uneven::{self, Step};
use super::waves;
use crate::call::Call;
use crate::device::messages::Messages;
use crate::device::work::{Extents, Work};
use crate::error::Result;
use crate::ffi::cuda::Address;
use crate::plan::types::Rank;

/// One of the things to do, in their order.
#[derive(Debug)]
pub(super) enum Part {
    /// A collective of equal counts.
    Call {
        call: Call,
        shape: Shape,
        /// Which block is this rank's own, where adapters could make the call from GPU memory.
        own: Option<u32>,
        input: Address,
        output: Address,
        factor: Option<Address>,
    },
    /// Messages that meet in one group: to this rank itself (to, from, bytes), and with others.
    Messages { own: Vec<(Address, Address, usize)>, pieces: Vec<Piece> },
}

/// What a group comes to: collectives in the order given, then messages.
pub(super) fn parts(
    work: &[Work<'_>],
    (rank, ranks, slots): (Rank, u32, u64),
) -> Result<Vec<Part>> {
    let messages = |work: &[Work<'_>]| -> Result<Part> {
        let messages = Messages::of(work, ranks);
        let (own, pieces) = (messages.own(rank)?, waves::parts(&messages, rank));
        Ok(Part::Messages { own, pieces })
    };
    let mut parts = Vec::with_capacity(work.len());
    for one in work {
        let Work::Collective { call, input, output, scalar } = one else { continue };
        Extents::of(call, rank, ranks)?.check(*input, *output)?;
        for step in uneven::steps(call, rank, ranks, (*input, *output))? {
            parts.push(match step {
                Step::Call(call, input, output) => {
                    let shape = Shape::of(&call, rank, ranks, slots)?;
                    let own = shape.suits_adapters(&call, ranks).then(|| Shape::own(&call, rank));
                    Part::Call { call, shape, own, input, output, factor: *scalar }
                }
                Step::Messages(work) => messages(&work)?,
            });
        }
    }
    if work.iter().any(|one| !matches!(one, Work::Collective { .. })) {
        parts.push(messages(work)?);
    }
    Ok(parts)
}

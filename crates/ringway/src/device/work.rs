//! What a rank is asked to enqueue.

use crate::call::Call;
use crate::error::{Error, Result};
use crate::ffi::cuda::Address;
use crate::plan::types::{Collective, Rank};

/// Something to enqueue.
#[derive(Clone, Debug)]
pub(crate) enum Work<'a> {
    /// A collective: input and output, and where the factor of a pre-multiplied sum is, if not in the call.
    Collective { call: &'a Call, input: Address, output: Address, scalar: Option<Address> },
    /// A message to a peer.
    Send { peer: Rank, address: Address, bytes: usize },
    /// A message from a peer.
    Receive { peer: Rank, address: Address, bytes: usize },
}

/// What a call has at its addresses on this rank.
#[derive(Debug)]
pub(super) struct Extents {
    collective: Collective,
    pub(super) input_bytes: usize,
    pub(super) output_bytes: usize,
    /// Where both are in one buffer, if they can be.
    in_place: Option<(usize, usize)>,
}

impl Extents {
    pub(super) fn of(call: &Call, rank: Rank, ranks: u32) -> Result<Self> {
        Ok(Self {
            collective: call.collective,
            input_bytes: call.input_bytes(rank, ranks)?,
            output_bytes: call.output_bytes(rank, ranks)?,
            in_place: call.in_place(rank, ranks)?,
        })
    }

    /// Refuses input and output that are NULL, or that lie over each other in another way than in place.
    pub(super) fn check(&self, input: Address, output: Address) -> Result<()> {
        let collective = self.collective;
        let both = [("input", input, self.input_bytes), ("output", output, self.output_bytes)];
        for (what, address, bytes) in both {
            if address == 0 && bytes > 0 {
                return Err(Error::argument(format!("{what} of {collective} is NULL")));
            }
        }
        // Of an all_to_all at one address nobody promises the values, but programs that measure make it.
        let is_usual = collective == Collective::AllToAll && input == output;
        if !is_usual && self.collide(input, output) {
            return Err(Error::argument(format!(
                "input and output of {collective} overlap, but are not in place: input at {input:#x}, output at {output:#x}"
            )));
        }
        Ok(())
    }

    /// Whether input and output lie over each other in another way than that in which each is used before it is written.
    fn collide(&self, input: Address, output: Address) -> bool {
        let (to_input, to_output) = (self.input_bytes as u64, self.output_bytes as u64);
        let overlaps = to_input > 0
            && to_output > 0
            && input < output.saturating_add(to_output)
            && output < input.saturating_add(to_input);
        let fits = |(of_input, of_output): (usize, usize)| {
            input.checked_sub(of_input as u64) == output.checked_sub(of_output as u64)
        };
        overlaps && !self.in_place.is_some_and(fits)
    }
}

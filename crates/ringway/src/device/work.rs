//! What a rank is asked to enqueue.

use crate::call::Call;
use crate::ffi::cuda::Address;
use crate::plan::types::Rank;

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

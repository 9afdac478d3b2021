//! A rank without a GPU in a communicator with some: takes part from its own memory, at once.
//!
//! Its chunks are those of the others, on the same channels; it goes through them in order, which on every
//! channel is the order of the others.

#![allow(unsafe_code, reason = "memory of the caller's, by address")]

use super::layout::{Piece, Shape};
use super::part::Part;
use super::{Channel, Channels, MessagePiece, waves};
use crate::call::Call;
use crate::error::{Error, Result};
use crate::ffi::cuda::Address;

/// Makes calls and waits for them, in the order given.
///
/// # Safety
/// Addresses are of host memory of the sizes the calls need, which nobody else touches meanwhile.
pub(super) unsafe fn run(channels: &Channels, parts: &[Part]) -> Result<()> {
    if parts.iter().any(|part| matches!(part, Part::Call { factor: Some(_), .. })) {
        return Err(Error::usage("a rank without a GPU has its factor in the call"));
    }
    for part in parts {
        match part {
            Part::Call { call, shape, input, output, .. } => {
                for chunk in 0..shape.chunks {
                    let channel = &*channels[chunk as usize % channels.len()];
                    // SAFETY: the caller's promise; a part's buffers are of the call's.
                    unsafe { run_chunk(channel, call, shape, chunk, (*input, *output)) }?;
                }
            }
            // SAFETY: as above.
            Part::Messages { own, pieces } => unsafe { messages(channels, own, pieces) }?,
        }
    }
    Ok(())
}

/// # Safety
/// As [`run`].
unsafe fn messages(
    channels: &Channels,
    own: &[(Address, Address, usize)],
    pieces: &[Piece],
) -> Result<()> {
    for (to, from, bytes) in own {
        // SAFETY: the caller's promise; the two may be the same place.
        unsafe { std::ptr::copy(pointer(*from), pointer(*to), *bytes) };
    }
    let pieces: Vec<MessagePiece> = pieces
        .iter()
        .map(|piece| MessagePiece {
            peer: piece.end.peer(),
            address: pointer(piece.address),
            bytes: usize::try_from(piece.bytes).unwrap_or(usize::MAX),
            sends: piece.sends == 1,
            mark: piece.end.mark(),
        })
        .collect();
    for run in waves::runs(&pieces, |piece| (piece.peer, piece.sends)) {
        // SAFETY: the caller's promise.
        unsafe { channels[0].exchange(run) }?;
    }
    Ok(())
}

/// # Safety
/// As [`run`].
unsafe fn run_chunk(
    channel: &dyn Channel,
    call: &Call,
    shape: &Shape,
    chunk: u32,
    (input, output): (Address, Address),
) -> Result<()> {
    let (offset, bytes) = shape.chunk(chunk);
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut part = call.clone();
    part.count = bytes / call.data_type.size() as u64;
    // Also where they are of one piece: in place, the input must not be the output of the host's call.
    let mut from = vec![0_u8; length * shape.input_pieces as usize];
    let mut to = vec![0_u8; length * shape.output_pieces as usize];
    let piece = |base: Address, at: usize| pointer(base + at as u64 * shape.block_bytes + offset);
    if length > 0 {
        for (at, target) in from.chunks_exact_mut(length).enumerate() {
            // SAFETY: a piece of the input, as `Shape` cuts it, of the length of the target.
            unsafe { std::ptr::copy(piece(input, at), target.as_mut_ptr(), length) };
        }
    }
    let (source, target) = ((from.as_mut_ptr(), from.len()), (to.as_mut_ptr(), to.len()));
    // SAFETY: two vectors of the sizes of the chunk.
    unsafe { channel.collective(&part, call.count, source, target) }?;
    if length > 0 {
        for (at, source) in to.chunks_exact(length).enumerate() {
            // SAFETY: a piece of the output, as `Shape` cuts it, of the length of the source.
            unsafe { std::ptr::copy(source.as_ptr(), piece(output, at), length) };
        }
    }
    Ok(())
}

fn pointer(address: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

#![allow(unsafe_code, reason = "passes on what callers promise of memory by address")]
//! GPU memory that ranks do not map from each other: the communicators that move it by the host.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::Communicator;
use super::engine::MessagePart;
use super::gpu::Attached;
use super::known::Buffers;
use crate::call::Call;
use crate::device::{Channel, Gpu, MessagePiece, StagedRank, StagedSetup};
use crate::error::{Error, Result};
use crate::transport::Area;

/// What ranks tell each other before they make channels.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Introduction {
    has_gpu: bool,
    channels: u32,
}

impl Communicator {
    /// Meets the other ranks of which some have GPUs that are not reached directly, and why. All ranks call
    /// it together.
    pub(super) fn attach_staged(&self, gpu: Option<Arc<Gpu>>, why: &str) -> Result<Attached> {
        let inner = &self.inner;
        let own =
            Introduction { has_gpu: gpu.is_some(), channels: inner.config.gpu_channels.max(1) };
        let all: Vec<Introduction> = self.tell_all(&own)?;
        if all.iter().all(|one| !one.has_gpu) {
            return Ok(Attached::Not(why.to_owned()));
        }
        let without = all.iter().filter(|one| !one.has_gpu).count();
        let count = all.iter().map(|one| one.channels).min().unwrap_or(1);
        let mut channels: Vec<Box<dyn Channel>> = Vec::new();
        for _ in 0..count {
            channels.push(Box::new(self.dup()?));
        }
        let made = StagedRank::new(StagedSetup {
            config: &inner.config,
            rank: self.rank(),
            ranks: self.size(),
            gpu,
            without: u32::try_from(without).unwrap_or(u32::MAX),
            health: inner.control.health(),
            channels,
            why,
        });
        let refusal = made.as_ref().err().map(ToString::to_string);
        let refusals: Vec<Option<String>> = self.tell_all(&refusal)?;
        let first = (0_u32..).zip(refusals).find_map(|(rank, cause)| Some((rank, cause?)));
        Ok(match (first, made) {
            (None, Ok(rank)) => {
                let alarm = rank.alarm().clone();
                Attached::Staged { rank: Box::new(Mutex::new(rank)), alarm }
            }
            (Some((rank, cause)), _) => {
                Attached::Not(format!("{why}; and not by the host: rank {rank}: {cause}"))
            }
            (None, Err(fault)) => Attached::Not(format!("{why}; and not by the host: {fault}")),
        })
    }

    fn tell_all<T: Serialize + for<'de> Deserialize<'de>>(&self, own: &T) -> Result<Vec<T>> {
        let unreadable = |error: serde_json::Error| {
            Error::internal(format!("cannot tell other ranks of a GPU: {error}"))
        };
        let blob = serde_json::to_vec(own).map_err(unreadable)?;
        let all = self.all_gather_blobs(&blob)?;
        all.iter().map(|blob| serde_json::from_slice(blob).map_err(unreadable)).collect()
    }
}

impl Channel for Communicator {
    unsafe fn collective(
        &self,
        call: &Call,
        (input, input_room): (*mut u8, usize),
        (output, output_room): (*mut u8, usize),
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let (from, to) = (call.input_bytes(rank, size)?, call.output_bytes(rank, size)?);
        if from > input_room || to > output_room {
            return Err(Error::internal("a chunk that does not fit its memory"));
        }
        let input = Area { address: input, bytes: from };
        let output = Area { address: output, bytes: to };
        // The caller promises both areas until this returns.
        self.call_now(call, Buffers::Apart(input, output))
    }

    unsafe fn exchange(&self, pieces: &[MessagePiece]) -> Result<()> {
        let part = |piece: &MessagePiece| {
            if piece.peer >= self.size() || piece.peer == self.rank() {
                return Err(Error::internal(format!("a message with rank {}", piece.peer)));
            }
            let area = Area { address: piece.address, bytes: piece.bytes };
            Ok(MessagePart { peer: piece.peer, area, sends: piece.sends })
        };
        let parts: Vec<MessagePart> = pieces.iter().map(part).collect::<Result<_>>()?;
        // The caller promises all areas until this returns.
        self.run_now(&[], &parts, None)
    }

    fn keep(&self, address: *mut u8, bytes: usize) {
        self.inner.regions.own(Area { address, bytes });
    }

    fn abort(&self, reason: &str) {
        Self::abort(self, reason);
    }
}

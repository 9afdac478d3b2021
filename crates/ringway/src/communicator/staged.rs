#![allow(unsafe_code, reason = "passes on what callers promise of memory by address")]
//! GPU memory that ranks do not map from each other: the communicators that move it by the host.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::Communicator;
use super::engine::MessagePart;
use super::gpu::Attached;
use super::known::Buffers;
use super::near;
use crate::call::Call;
use crate::device::{Channel, DirectMemory, Gpu, MessagePiece, StagedRank, StagedSetup};
use crate::error::{Error, Result};
use crate::transport::Area;

/// What ranks tell each other before they make channels.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Introduction {
    has_gpu: bool,
    channels: u32,
    /// Whether adapters are to reach GPU memory, and what stands against it.
    wants_direct: bool,
    against_direct: Option<String>,
}

/// What a rank came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Outcome {
    refused: Option<String>,
    not_direct: Option<String>,
}

impl Communicator {
    /// Meets the other ranks of which some have GPUs that are not reached directly, and why. All ranks call
    /// it together.
    pub(super) fn attach_staged(&self, gpu: Option<Arc<Gpu>>, why: &str) -> Result<Attached> {
        let inner = &self.inner;
        let (wants_direct, insists) = inner.config.wants_gpu_direct();
        let own = Introduction {
            has_gpu: gpu.is_some(),
            channels: inner.config.gpu_channels.max(1),
            wants_direct,
            // Where nobody asks the machine is not searched for what is near.
            against_direct: wants_direct.then(|| self.against_direct(gpu.as_deref())).flatten(),
        };
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
            direct: may_be_direct(&all),
        });
        let outcome = match &made {
            Ok(rank) => Outcome { refused: None, not_direct: rank.direct_refusal() },
            Err(fault) => Outcome { refused: Some(fault.to_string()), not_direct: None },
        };
        let outcomes: Vec<Outcome> = self.tell_all(&outcome)?;
        let first = |of: fn(&Outcome) -> &Option<String>| {
            let mut all = (0_u32..).zip(&outcomes);
            all.find_map(|(rank, one)| Some((rank, of(one).clone()?)))
        };
        let direct = match (may_be_direct(&all), first(|one| &one.not_direct)) {
            (Ok(()), Some((rank, why))) => Err(format!("rank {rank}: {why}")),
            (Err(none), _) if none.is_empty() && inner.config.rdma.gpu_level.is_some() => {
                Err("NCCL_NET_GDR_LEVEL alone does not ask for it, RINGWAY_GPUDIRECT=1 does"
                    .to_owned())
            }
            (settled, _) => settled,
        };
        if let (true, Err(why)) = (insists, &direct) {
            return Err(Error::usage(format!("RINGWAY_REQUIRE=gdr is not met: {why}")));
        }
        Ok(match (first(|one| &one.refused), made) {
            (None, Ok(mut rank)) => {
                rank.settle_direct(direct);
                let (alarm, is_mixed) = (rank.alarm().clone(), rank.is_mixed());
                Attached::Staged { rank: Box::new(Mutex::new(rank)), is_mixed, alarm }
            }
            (Some((rank, cause)), _) => {
                Attached::Not(format!("{why}; and not by the host: rank {rank}: {cause}"))
            }
            (None, Err(fault)) => Attached::Not(format!("{why}; and not by the host: {fault}")),
        })
    }

    /// What stands against it that adapters reach this rank's GPU memory, as far as is known before it is tried.
    fn against_direct(&self, gpu: Option<&Gpu>) -> Option<String> {
        let inner = &self.inner;
        let Some(gpu) = gpu else { return Some("it has no GPU".to_owned()) };
        if inner.config.checksum {
            return Some("RINGWAY_CHECKSUM=1 has the processor read all that is sent".to_owned());
        }
        let others = (0..self.size()).filter(|peer| *peer != self.rank());
        let desk = self.desk();
        for peer in others {
            if inner.hosts[peer as usize] == inner.hosts[self.rank() as usize] {
                return Some(format!(
                    "it shares memory with rank {peer}; RINGWAY_TRANSPORT=verbs has adapters go inside hosts too"
                ));
            }
            if let Err(why) = desk.engine.rdma.reaches(peer) {
                return Some(format!("it does not reach rank {peer} by RDMA: {why}"));
            }
        }
        let devices = desk.engine.rdma.devices();
        near::judge(&near::of(gpu.bus_address()), &devices, inner.config.rdma.gpu_level).err()
    }

    /// Sees to it that what came is there for kernels, where it is in GPU memory.
    fn flush(&self, outputs: &[Area]) -> Result<()> {
        for area in outputs.iter().filter(|area| area.bytes > 0) {
            let flushed = self.inner.regions.flush(area.address);
            flushed.map_err(|why| Error::system("what came to GPU memory", why))?;
        }
        Ok(())
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

/// Whether adapters may be tried on GPU memory, by what all ranks say; an empty reason where nobody asks for it.
fn may_be_direct(all: &[Introduction]) -> std::result::Result<(), String> {
    if all.iter().all(|one| !one.wants_direct) {
        return Err(String::new());
    }
    for (rank, one) in all.iter().enumerate() {
        if !one.wants_direct {
            return Err(format!("RINGWAY_GPUDIRECT is not set for rank {rank}"));
        }
        if let Some(why) = &one.against_direct {
            return Err(format!("rank {rank}: {why}"));
        }
    }
    Ok(())
}

impl Channel for Communicator {
    unsafe fn collective(
        &self,
        call: &Call,
        whole: u64,
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
        let _turn = self.inner.turn();
        self.inner.call_part(call, whole, Buffers::Apart(input, output))?;
        self.flush(&[output])
    }

    unsafe fn exchange(&self, pieces: &[MessagePiece]) -> Result<()> {
        let part = |piece: &MessagePiece| {
            if piece.peer >= self.size() || piece.peer == self.rank() {
                return Err(Error::internal(format!("a message with rank {}", piece.peer)));
            }
            let area = Area { address: piece.address, bytes: piece.bytes };
            Ok(MessagePart { peer: piece.peer, area, sends: piece.sends, mark: piece.mark })
        };
        let parts: Vec<MessagePart> = pieces.iter().map(part).collect::<Result<_>>()?;
        // The caller promises all areas until this returns.
        self.run_now(&[], &parts, None)?;
        // One look through each adapter is enough for all that came; nothing came with no bytes.
        let received = parts.iter().filter(|part| !part.sends && part.area.bytes > 0);
        self.flush(&received.take(1).map(|part| part.area).collect::<Vec<_>>())
    }

    fn keep(&self, address: *mut u8, bytes: usize) {
        self.inner.regions.own(Area { address, bytes });
    }

    fn adopt(&self, memory: &Arc<DirectMemory>) -> std::result::Result<String, String> {
        let near = near::of(memory.bus_address());
        let class = |device: &str| near.get(device).copied();
        self.inner.regions.adopt(memory, &|| memory.dmabuf(), &self.inner.config.rdma, &class)
    }

    fn disown(&self) {
        self.inner.regions.disown();
    }

    fn has_failed(&self) -> bool {
        self.inner.control.health().is_raised()
    }

    fn abort(&self, reason: &str) {
        Self::abort(self, reason);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_tried_where_all_ranks_ask_and_nothing_stands_against_it() {
        let rank = |wants_direct, against: Option<&str>| Introduction {
            has_gpu: true,
            channels: 1,
            wants_direct,
            against_direct: against.map(str::to_owned),
        };
        let may = |all: &[Introduction]| may_be_direct(all);
        assert_eq!(may(&[rank(true, None), rank(true, None)]), Ok(()));
        // Nobody asked: there is nothing to say.
        assert_eq!(may(&[rank(false, None), rank(false, Some("x"))]), Err(String::new()));
        let error = may(&[rank(true, None), rank(false, None)]).unwrap_err();
        assert_eq!(error, "RINGWAY_GPUDIRECT is not set for rank 1");
        let error = may(&[rank(true, None), rank(true, Some("it has no GPU"))]).unwrap_err();
        assert_eq!(error, "rank 1: it has no GPU");
    }
}

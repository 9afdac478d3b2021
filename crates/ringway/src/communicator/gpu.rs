//! Calls on GPU memory: enqueued on a stream, and done when the stream comes to them.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Communicator, Inner};
use crate::call::Call;
use crate::device::{Alarm, DeviceRank, Gpu, Setup, StagedRank, Stop, Stream, Work};
use crate::error::{Error, Result};
use crate::plan::types::{Collective, Rank};
use crate::recorder::Meter;

/// Longer than ranks take to agree on an error.
const AGREEMENT: Duration = Duration::from_secs(10);

/// How the ranks of a communicator reach each other's GPU memory.
#[derive(Debug)]
pub(super) enum Attached {
    /// Kernels use it where it is.
    Direct {
        /// Ends kernels, and knows whether they were ended, while another thread has the rank.
        stop: Stop,
        rank: Box<Mutex<DeviceRank>>,
    },
    /// The host moves it.
    Staged {
        rank: Box<Mutex<StagedRank>>,
        /// Whether ranks without a GPU take part.
        is_mixed: bool,
        /// Ends calls under way while another thread has the rank.
        alarm: Alarm,
    },
    /// They do not, and why.
    Not(String),
}

/// A call on device memory, or a message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DeviceWork {
    /// A collective from `input` to `output`; in place where they are what NCCL's convention says.
    Collective {
        /// The call.
        call: Call,
        /// Device address of the input, null where the rank has none.
        input: *const c_void,
        /// Device address of the output.
        output: *mut c_void,
        /// Device address of this rank's factor in a pre-multiplied sum, where the call does not hold it.
        scalar: Option<*const c_void>,
    },
    /// A message to a rank.
    Send {
        /// To whom.
        peer: Rank,
        /// From where.
        address: *const c_void,
        /// How much.
        bytes: usize,
    },
    /// A message from a rank.
    Receive {
        /// From whom.
        peer: Rank,
        /// To where.
        address: *mut c_void,
        /// How much.
        bytes: usize,
    },
}

impl Communicator {
    /// Lets calls be made on GPU memory. All ranks call it, each with the number of its GPU, or `None` for
    /// the one that is current in this thread. Where ranks cannot reach each other's memory, or some have no
    /// GPU, what is in GPU memory goes by the host. [`Communicator::gpu_path`] says which way was taken and
    /// why; where no rank has a GPU, [`Communicator::gpu_refusal`] does.
    ///
    /// # Errors
    /// The communicator fails.
    pub fn attach_gpu(&self, ordinal: Option<i32>) -> Result<()> {
        if self.inner.gpu.get().is_some() {
            return Ok(());
        }
        let met = DeviceRank::meet(&Setup {
            config: &self.inner.config,
            rank: self.rank(),
            ordinal,
            hosts: self.hosts(),
            health: self.inner.control.health(),
            journal: self.inner.recording.journal(),
            exchange: &|blob| self.all_gather_blobs(blob),
        })?;
        let attached = match met {
            Ok(rank) => {
                tracing::info!(target: crate::log::INIT, "GPU : {}", rank.description());
                Attached::Direct { stop: rank.stop(), rank: Box::new(Mutex::new(rank)) }
            }
            Err(why) => {
                tracing::info!(target: crate::log::INIT, "GPU : not used directly: {why}");
                let gpu = ordinal.map_or_else(|| Gpu::current(&self.inner.config), Ok);
                let gpu = gpu.and_then(|ordinal| Gpu::at(&self.inner.config, ordinal)).ok();
                let attached = self.attach_staged(gpu, &why)?;
                if let Attached::Staged { rank, .. } = &attached {
                    let rank = rank.lock().unwrap_or_else(PoisonError::into_inner);
                    tracing::info!(target: crate::log::INIT, "GPU : {}", rank.description());
                }
                attached
            }
        };
        // Whoever came first has met the same ranks.
        let _second = self.inner.gpu.set(attached);
        Ok(())
    }

    /// The GPU of this rank, where its communicator uses one.
    #[must_use]
    pub fn gpu(&self) -> Option<Arc<Gpu>> {
        match self.inner.gpu.get()? {
            Attached::Direct { rank, .. } => {
                let rank = rank.lock().unwrap_or_else(PoisonError::into_inner);
                Some(Arc::clone(rank.gpu()))
            }
            Attached::Staged { rank, .. } => {
                rank.lock().unwrap_or_else(PoisonError::into_inner).gpu().cloned()
            }
            Attached::Not(_) => None,
        }
    }

    /// Why calls on GPU memory are not possible, after [`Communicator::attach_gpu`].
    #[must_use]
    pub fn gpu_refusal(&self) -> Option<String> {
        match self.inner.gpu.get()? {
            Attached::Direct { .. } | Attached::Staged { .. } => None,
            Attached::Not(why) => Some(why.clone()),
        }
    }

    /// How the ranks reach each other's GPU memory, in words, after [`Communicator::attach_gpu`]; nothing
    /// where they do not.
    #[must_use]
    pub fn gpu_path(&self) -> Option<String> {
        match self.inner.gpu.get()? {
            Attached::Direct { rank, .. } => {
                Some(rank.lock().unwrap_or_else(PoisonError::into_inner).description())
            }
            Attached::Staged { rank, .. } => {
                Some(rank.lock().unwrap_or_else(PoisonError::into_inner).description())
            }
            Attached::Not(_) => None,
        }
    }

    /// Whether some ranks take part in calls on GPU memory from host memory: then this rank's calls go by
    /// [`Communicator::enqueue`] wherever its memory is.
    #[must_use]
    pub fn has_ranks_without_gpu(&self) -> bool {
        matches!(self.inner.gpu.get(), Some(Attached::Staged { is_mixed: true, .. }))
    }

    /// Whether kernels use the GPU memory of all ranks where it lies, after [`Communicator::attach_gpu`]. Then no
    /// algorithm decides who talks to whom.
    #[must_use]
    pub fn is_gpu_direct(&self) -> bool {
        matches!(self.inner.gpu.get(), Some(Attached::Direct { .. }))
    }

    /// Bytes of device memory the communicator takes on this rank.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        match self.inner.gpu.get() {
            Some(Attached::Direct { rank, .. }) => {
                rank.lock().unwrap_or_else(PoisonError::into_inner).memory_bytes()
            }
            Some(Attached::Staged { rank, .. }) => {
                rank.lock().unwrap_or_else(PoisonError::into_inner).memory_bytes()
            }
            _ => 0,
        }
    }

    /// Enqueues calls on the first of some streams, collectives in the order given and messages behind
    /// them, and returns: they are done when the stream has come past them. What the other streams have
    /// to do before comes before the calls, and what they get later after them. Errors of other ranks are told by later
    /// calls, and by [`Communicator::check`].
    ///
    /// A rank without a GPU, in a communicator in which others have one, calls it with no stream and with
    /// host memory; there it returns when the calls are done.
    ///
    /// # Errors
    /// The communicator has no GPU or has failed, an argument is wrong, or the driver refuses.
    ///
    /// # Safety
    /// Buffers are device memory of the sizes the calls need, valid until the stream has come past them,
    /// and touched by nobody else meanwhile; host memory on a rank without a GPU. The stream is alive.
    #[expect(unsafe_code, reason = "kernels use the addresses later")]
    pub unsafe fn enqueue(&self, streams: &[Stream], work: &[DeviceWork]) -> Result<()> {
        self.inner.check_health().inspect_err(|error| self.inner.failed(error))?;
        let translated = self.translate_all(work)?;
        let outcome = match self.inner.attached()? {
            Attached::Direct { rank, .. } => {
                rank.lock().unwrap_or_else(PoisonError::into_inner).enqueue(streams, &translated)
            }
            Attached::Staged { rank, .. } => {
                rank.lock().unwrap_or_else(PoisonError::into_inner).enqueue(streams, &translated)
            }
            Attached::Not(why) => Err(no_calls(why)),
        };
        match (&outcome, &self.inner.metered) {
            (Ok(()), Some(metered)) => self.count(work, &metered.meter),
            (Err(error), _) => self.inner.failed(error),
            (Ok(()), None) => {}
        }
        outcome
    }

    /// Refuses work that [`Communicator::enqueue`] refuses, and enqueues nothing: before parts of several communicators are
    /// enqueued together, say.
    ///
    /// # Errors
    /// The communicator has no GPU, or an argument is wrong.
    ///
    /// # Safety
    /// The streams are alive.
    #[expect(unsafe_code, reason = "as enqueue: the driver is asked about the streams")]
    pub unsafe fn check_enqueue(&self, streams: &[Stream], work: &[DeviceWork]) -> Result<()> {
        let translated = self.translate_all(work)?;
        match self.inner.attached()? {
            Attached::Direct { rank, .. } => {
                rank.lock().unwrap_or_else(PoisonError::into_inner).check(streams, &translated)
            }
            Attached::Staged { rank, .. } => {
                rank.lock().unwrap_or_else(PoisonError::into_inner).check(streams, &translated)
            }
            Attached::Not(why) => Err(no_calls(why)),
        }
    }

    fn count(&self, work: &[DeviceWork], meter: &Meter) {
        for one in work {
            let (kind, bytes) = match one {
                DeviceWork::Collective { call, .. } => {
                    let (rank, size) = (self.rank(), self.size());
                    let (input, output) =
                        (call.input_bytes(rank, size), call.output_bytes(rank, size));
                    (call.collective, input.unwrap_or(0).max(output.unwrap_or(0)))
                }
                DeviceWork::Send { bytes, .. } | DeviceWork::Receive { bytes, .. } => {
                    (Collective::SendRecv, *bytes)
                }
            };
            meter.enqueue(kind, bytes as u64);
        }
    }

    /// Whether the communicator still works; else the error all ranks agreed on. Where kernels have ended without having
    /// done their work it waits for that: a stream that was waited for has done its work if this says so.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<()> {
        self.inner.check_health()?;
        self.inner.gpu_failure().map_or(Ok(()), Err)
    }

    fn translate_all<'a>(&self, work: &'a [DeviceWork]) -> Result<Translated<'a>> {
        Ok(match work {
            [one] => Translated::One([self.translate(one)?]),
            _ => {
                Translated::Many(work.iter().map(|one| self.translate(one)).collect::<Result<_>>()?)
            }
        })
    }

    fn translate<'a>(&self, work: &'a DeviceWork) -> Result<Work<'a>> {
        let exists = |peer: Rank| match peer < self.size() {
            true => Ok(peer),
            false => Err(Error::argument(format!(
                "rank {peer} does not exist; ranks are 0 to {}",
                self.size() - 1
            ))),
        };
        let there = |address: usize, bytes: usize| match address == 0 && bytes > 0 {
            true => {
                Err(Error::argument(format!("the buffer of a message of {bytes} bytes is NULL")))
            }
            false => Ok(address as u64),
        };
        Ok(match work {
            DeviceWork::Collective { call, input, output, scalar } => Work::Collective {
                call,
                input: input.expose_provenance() as u64,
                output: output.expose_provenance() as u64,
                scalar: scalar.map(|scalar| scalar.expose_provenance() as u64),
            },
            DeviceWork::Send { peer, address, bytes } => Work::Send {
                peer: exists(*peer)?,
                address: there(address.expose_provenance(), *bytes)?,
                bytes: *bytes,
            },
            DeviceWork::Receive { peer, address, bytes } => Work::Receive {
                peer: exists(*peer)?,
                address: there(address.expose_provenance(), *bytes)?,
                bytes: *bytes,
            },
        })
    }
}

/// Work for the device layer. Most often it is one call, for which no memory is taken.
enum Translated<'a> {
    One([Work<'a>; 1]),
    Many(Vec<Work<'a>>),
}

impl<'a> std::ops::Deref for Translated<'a> {
    type Target = [Work<'a>];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(work) => work,
            Self::Many(work) => work,
        }
    }
}

fn no_calls(why: &impl std::fmt::Display) -> Error {
    Error::usage(format!("this communicator has no calls on GPU memory: {why}"))
}

impl Inner {
    fn attached(&self) -> Result<&Attached> {
        self.gpu.get().ok_or_else(|| {
            Error::usage("this communicator has no GPU: all ranks call attach_gpu first")
        })
    }

    /// Why kernels have ended without having done their work, where they have: they may have before the ranks agree.
    pub(super) fn gpu_failure(&self) -> Option<Error> {
        let since = Instant::now();
        while self.is_gpu_aborted() {
            if let Err(error) = self.check_health() {
                return Some(error);
            }
            if since.elapsed() > AGREEMENT {
                return Some(Error::internal("kernels were ended, and no rank says why"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Whether kernels end without having done their work.
    fn is_gpu_aborted(&self) -> bool {
        match self.gpu.get() {
            Some(Attached::Direct { stop, .. }) => stop.is_raised(),
            Some(Attached::Staged { alarm, .. }) => alarm.is_raised(),
            Some(Attached::Not(_)) | None => false,
        }
    }

    /// Ends kernels that wait, and what they wait for.
    pub(super) fn abort_gpu(&self, reason: &str) {
        match self.gpu.get() {
            Some(Attached::Direct { stop, .. }) => stop.abort(),
            Some(Attached::Staged { alarm, .. }) => alarm.abort(reason),
            Some(Attached::Not(_)) | None => {}
        }
    }
}

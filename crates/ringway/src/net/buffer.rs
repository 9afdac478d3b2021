//! The memory of one end of a measurement: the host's, or a GPU's, reached by the adapter itself or copied through the
//! host's.
//!
//! *Invariant:* what is measured as GPU memory is GPU memory: what the adapter cannot reach is copied within the times
//! that are told, where this side knows of the message at all.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use crate::config::RdmaSettings;
use crate::device::{DirectMemory, Gpu};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::verbs::{Access, Memory, Mr};
use crate::transport::verbs::adapter::Adapter;
use crate::transport::verbs::register::{self, Flush, Way};

/// Where the buffer of a side is.
#[derive(Clone, Debug, Default)]
pub enum BufferPlace {
    /// In the host's memory.
    #[default]
    Host,
    /// On a GPU.
    Gpu(Arc<Gpu>, GpuDirectChoice),
}

/// How an adapter may reach a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuDirectChoice {
    /// By a dma-buf, else by nvidia_peermem, else not: then bytes are copied through host memory.
    #[default]
    Auto,
    /// By a dma-buf, or there is an error.
    DmaBuf,
    /// By nvidia_peermem, or there is an error.
    PeerMemory,
    /// Not at all: bytes are copied through host memory.
    Off,
}

impl GpuDirectChoice {
    fn ways(self) -> &'static [Way] {
        match self {
            Self::Auto => Way::ALL,
            Self::DmaBuf => &[Way::DmaBuf],
            Self::PeerMemory => &[Way::PeerMemory],
            Self::Off => &[],
        }
    }
}

impl FromStr for GpuDirectChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "dmabuf" => Ok(Self::DmaBuf),
            "peermem" => Ok(Self::PeerMemory),
            "off" => Ok(Self::Off),
            _ => Err(format!("{text:?} is none of auto, dmabuf, peermem, off")),
        }
    }
}

impl fmt::Display for GpuDirectChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::DmaBuf => "dmabuf",
            Self::PeerMemory => "peermem",
            Self::Off => "off",
        })
    }
}

/// A buffer, registered.
pub(super) struct Buffer {
    pub(super) mr: Mr,
    kind: Kind,
    /// What it is, and why it is no better: `GPU 0 by peer memory; not by dma-buf: …`. Empty for the host's.
    pub(super) words: String,
}

enum Kind {
    Host(Arc<Memory>),
    Direct(Arc<DirectMemory>, Flush),
    Staged(Arc<Memory>, Arc<DirectMemory>),
}

impl Buffer {
    /// Takes memory and registers it.
    pub(super) fn new(
        adapter: &Adapter,
        settings: &RdmaSettings,
        place: &BufferPlace,
        bytes: usize,
        access: Access,
    ) -> Result<Self> {
        let BufferPlace::Gpu(gpu, choice) = place else {
            let (memory, mr) = host(adapter, bytes, access)?;
            return Ok(Self { mr, kind: Kind::Host(memory), words: String::new() });
        };
        let memory = DirectMemory::new(gpu, bytes)?;
        let name = memory.name();
        let made =
            register::register(&adapter.pd, &memory, &|| memory.dmabuf(), access, choice.ways());
        let refused = match made {
            Ok(made) => {
                let flush = Flush::new(adapter, settings)
                    .map_err(|why| Error::system("the queue pair for flushes", why))?;
                let mut words = format!("{name} by {}", made.way.name());
                for why in made.refused {
                    words += &format!("; not by {why}");
                }
                return Ok(Self { mr: made.mr, kind: Kind::Direct(memory, flush), words });
            }
            Err(refused) => refused,
        };
        if matches!(choice, GpuDirectChoice::DmaBuf | GpuDirectChoice::PeerMemory) {
            let text = format!("{} cannot reach {name} by {}", adapter.name(), refused.join("; "));
            return Err(Error::new(ErrorKind::System, text));
        }
        let mut words = format!("{name}, copied through host memory");
        for why in &refused {
            words += &format!("; not by {why}");
        }
        if refused.is_empty() {
            words += ", as asked";
        }
        let (staging, mr) = host(adapter, bytes, access)?;
        Ok(Self { mr, kind: Kind::Staged(staging, memory), words })
    }

    /// Writes bytes where they are sent from or received.
    pub(super) fn fill(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        match &self.kind {
            Kind::Host(memory) => memory.write(offset, bytes),
            Kind::Direct(gpu, _) => gpu.write(offset, bytes)?,
            Kind::Staged(memory, gpu) => {
                // What was not copied is wrong bytes.
                let other: Vec<u8> = bytes.iter().map(|byte| byte ^ 0xa5).collect();
                memory.write(offset, &other);
                gpu.write(offset, bytes)?;
            }
        }
        Ok(())
    }

    /// Reads bytes that came, when all of them have.
    pub(super) fn fetch(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        match &self.kind {
            Kind::Host(memory) => memory.read(offset, bytes),
            Kind::Direct(gpu, flush) => {
                flush.flush(&self.mr).map_err(|why| Error::new(ErrorKind::System, why))?;
                gpu.read(offset, bytes)?;
            }
            Kind::Staged(_, gpu) => gpu.read(offset, bytes)?,
        }
        Ok(())
    }

    /// Brings what is about to be sent where the adapter reaches it, once for each of `count` messages.
    pub(super) fn stage_out(&self, offset: usize, bytes: usize, count: usize) -> Result<()> {
        let Kind::Staged(memory, gpu) = &self.kind else { return Ok(()) };
        let mut copied = vec![0; bytes];
        for _ in 0..count {
            gpu.read(offset, &mut copied)?;
            memory.write(offset, &copied);
        }
        Ok(())
    }

    /// Brings what came to the GPU, once for each of `count` messages.
    pub(super) fn stage_in(&self, offset: usize, bytes: usize, count: usize) -> Result<()> {
        let Kind::Staged(memory, gpu) = &self.kind else { return Ok(()) };
        let mut copied = vec![0; bytes];
        for _ in 0..count {
            memory.read(offset, &mut copied);
            gpu.write(offset, &copied)?;
        }
        Ok(())
    }

    /// A byte that this side can watch; none of a GPU's memory.
    pub(super) fn byte(&self, offset: usize) -> Option<&AtomicU8> {
        match &self.kind {
            Kind::Host(memory) | Kind::Staged(memory, _) => Some(memory.byte(offset)),
            Kind::Direct(..) => None,
        }
    }

    /// Whether the processor can watch bytes that come.
    pub(super) fn can_be_watched(&self) -> bool {
        !matches!(self.kind, Kind::Direct(..))
    }
}

fn host(adapter: &Adapter, bytes: usize, access: Access) -> Result<(Arc<Memory>, Mr)> {
    let memory = Memory::new(bytes)
        .map_err(|error| Error::system(format!("a buffer of {bytes} bytes"), error))?;
    let memory = Arc::new(memory);
    let mr = memory.register(&adapter.pd, access).map_err(super::device::failed)?;
    Ok((memory, mr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for word in ["auto", "dmabuf", "peermem", "off"] {
            assert_eq!(word.parse::<GpuDirectChoice>().unwrap().to_string(), word);
        }
        assert!("on".parse::<GpuDirectChoice>().unwrap_err().contains("dmabuf"));
        assert_eq!(GpuDirectChoice::Auto.ways(), [Way::DmaBuf, Way::PeerMemory]);
        assert!(GpuDirectChoice::Off.ways().is_empty());
    }
}

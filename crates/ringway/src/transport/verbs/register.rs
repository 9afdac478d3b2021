//! Memory of GPUs, registered with an adapter (GPUDirect RDMA): one way after the other, each refusal with its reason.
//!
//! ```text
//! dma-buf     the GPU's driver makes a descriptor of the memory, the adapter's takes it             ibv_reg_dmabuf_mr
//! peer memory nvidia_peermem (or amdkfd) tells the adapter's driver where the GPU's addresses lie   ibv_reg_mr
//! ```
//!
//! Where neither works the caller stages: it copies through host memory.
//!
//! What an adapter wrote to a GPU's memory may still be on its way through the PCI tree when its completion is seen.
//! [`Flush`] reads a byte of that memory back through the adapter; what was written before is then there.
//!
//! *Invariant:* a way that is not allowed is never tried, and no refusal is lost.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adapter::{Adapter, End};
use crate::config::RdmaSettings;
use crate::ffi::verbs::{
    Access, Capacity, Completion, Cq, Flags, ForeignMemory, Memory, Mr, Operation, Path, Pd, Qp,
    Remote, Request, VerbsError,
};

/// The longest that reading one byte back may take.
const FLUSH_MOST: Duration = Duration::from_secs(10);

/// How an adapter reaches memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a descriptor of the memory.
    DmaBuf,
    /// By a module of the kernel that knows the GPU's addresses.
    PeerMemory,
}

impl Way {
    /// Both, the better first.
    pub(crate) const ALL: &[Self] = &[Self::DmaBuf, Self::PeerMemory];

    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DmaBuf => "dma-buf",
            Self::PeerMemory => "peer memory",
        }
    }
}

/// Registered memory of a GPU.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) mr: Mr,
    pub(crate) way: Way,
    /// Ways that were tried before: `dma-buf: …`.
    pub(crate) refused: Vec<String>,
}

/// Registers memory by the first way that works; `dmabuf` makes a descriptor of it, or says why there is none.
///
/// # Errors
/// Why each way was refused.
pub(crate) fn register(
    pd: &Arc<Pd>,
    memory: &Arc<impl ForeignMemory>,
    dmabuf: &dyn Fn() -> Result<OwnedFd, String>,
    access: Access,
    ways: &[Way],
) -> Result<Registration, Vec<String>> {
    let mut refused = Vec::new();
    for way in ways {
        let made = match way {
            Way::DmaBuf => dmabuf().and_then(|descriptor| {
                let made = pd.register_foreign_dmabuf(memory, descriptor.as_fd(), access);
                made.map_err(|error| format!("{error}{}", dmabuf_advice(&error)))
            }),
            Way::PeerMemory => pd
                .register_foreign(memory, access)
                .map_err(|error| format!("{error}{}", peer_advice(has_peer_module()))),
        };
        match made {
            Ok(mr) => return Ok(Registration { mr, way: *way, refused }),
            Err(why) => refused.push(format!("{}: {why}", way.name())),
        }
    }
    Err(refused)
}

/// What mostly is the matter when an adapter does not take a dma-buf.
fn dmabuf_advice(error: &VerbsError) -> &'static str {
    match error.code() {
        Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS | libc::EINVAL) => {
            "; it takes Linux 5.12 and an adapter whose driver imports dma-bufs (mlx5, irdma, bnxt_re, efa)"
        }
        Some(libc::EIO | libc::ENXIO | libc::EREMOTEIO | libc::EFAULT) => {
            "; adapter and GPU may not reach each other: see the IOMMU (iommu=pt) and ACS on the bridges between them, `ringway topo` and `ringway doctor`"
        }
        _ => "",
    }
}

/// What mostly is the matter when an adapter does not take a GPU's address.
fn peer_advice(is_loaded: bool) -> &'static str {
    if is_loaded {
        "; a peer memory module is loaded: it may be of another build than the adapter's driver, or the IOMMU or ACS may keep adapter and GPU apart"
    } else {
        "; nvidia_peermem is not loaded: modprobe nvidia_peermem (it takes an adapter's driver with peer memory: MLNX_OFED, DOCA, or a kernel that has it)"
    }
}

/// Whether a module that knows addresses of GPUs is loaded.
fn has_peer_module() -> bool {
    ["/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem", "/sys/kernel/mm/memory_peers"]
        .iter()
        .any(|path| FilePath::new(path).exists())
}

/// A queue pair of a port with itself, by which memory is read back.
#[derive(Debug)]
pub(crate) struct Flush {
    qp: Qp,
    cq: Arc<Cq>,
    into: Mr,
    name: String,
}

impl Flush {
    /// Connects a port with itself.
    ///
    /// # Errors
    /// When a call fails.
    pub(crate) fn new(adapter: &Adapter, settings: &RdmaSettings) -> Result<Self, String> {
        let words = |error: VerbsError| error.to_string();
        let memory = Memory::new(1).map_err(|error| format!("a page of memory: {error}"))?;
        let into = Arc::new(memory).register(&adapter.pd, Access::LOCAL_WRITE).map_err(words)?;
        let cq = Cq::new(&adapter.context, 4, None).map_err(words)?;
        let capacity = Capacity { sends: 2, receives: 1, inline_bytes: 0 };
        let qp = Qp::new(&adapter.pd, &cq, &cq, None, capacity).map_err(words)?;
        let itself = End {
            gid: adapter.chosen.gid.0,
            lid: adapter.port.lid,
            mtu: adapter.port.active_mtu,
            number: qp.number(),
            psn: 0,
        };
        let path = adapter.path(settings, 0, &itself);
        let path = path.ok_or_else(|| format!("{} has no MTU", adapter.name()))?;
        let access = Access::REMOTE_READ;
        qp.connect(&Path { reads_asked: 1, reads_answered: 1, access, ..path }).map_err(words)?;
        Ok(Self { qp, cq, into, name: adapter.name() })
    }

    /// Returns when all that the adapter wrote to the memory before is there for the GPU and its driver. The memory
    /// is registered for reading by peers.
    ///
    /// # Errors
    /// When the read fails or does not end.
    pub(crate) fn flush(&self, mr: &Mr) -> Result<(), String> {
        let remote = Remote { address: mr.base(), key: mr.remote_key() };
        let request = Request {
            id: 0,
            operation: Operation::Read(remote),
            local: self.into.part(0, 1),
            flags: Flags::SIGNALLED,
        };
        self.qp.post(request).map_err(|error| error.to_string())?;
        let start = Instant::now();
        let mut found = [Completion::default(); 1];
        loop {
            if self.cq.poll(&mut found).map_err(|error| error.to_string())? > 0 {
                let status = found[0].status();
                return match found[0].is_success() {
                    true => Ok(()),
                    false => Err(format!(
                        "{}: reading back what was written: {status}; {}",
                        self.name,
                        status.cause()
                    )),
                };
            }
            if start.elapsed() > FLUSH_MOST {
                let name = &self.name;
                return Err(format!("{name}: a byte was not read back within {FLUSH_MOST:?}"));
            }
            std::thread::yield_now();
        }
    }
}

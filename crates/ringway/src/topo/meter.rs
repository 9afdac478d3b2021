//! What GPUs measure of themselves, by NVML on the live machine.

use crate::ffi::nvml::{NvLink, Nvml, Readings};
use crate::plan::topology::bus::BusId;

/// NVML, started, to be asked again and again.
#[derive(Debug)]
pub struct GpuMeter(Nvml);

/// One GPU at one moment; what its driver does not tell is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReading {
    /// Where it is.
    pub bus: Option<BusId>,
    /// The driver's name for exactly this GPU.
    pub uuid: String,
    /// Temperature.
    pub celsius: Option<u32>,
    /// Power it takes.
    pub milliwatts: Option<u32>,
    /// Energy it took since the driver was loaded.
    pub millijoules: Option<u64>,
    /// Bytes of memory in use.
    pub memory_used: Option<u64>,
    /// Bytes of memory it has.
    pub memory: Option<u64>,
    /// Share of the driver's last period in which a kernel ran.
    pub busy_percent: Option<u32>,
    /// Clock of its processors.
    pub sm_megahertz: Option<u32>,
    /// Why its clock is held down, in NVML's bits.
    pub slowed_by: Option<u64>,
    /// Memory errors that were corrected, since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Those that were not.
    pub ecc_uncorrected: Option<u64>,
    /// Packets sent again over PCIe.
    pub pcie_replays: Option<u32>,
    /// The NVLinks it has.
    pub links: Vec<NvLinkReading>,
    /// Bytes sent over all of them.
    pub nvlink_sent: Option<u64>,
    /// Bytes received over all of them.
    pub nvlink_received: Option<u64>,
}

/// One NVLink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvLinkReading {
    /// Its number.
    pub number: u32,
    /// Whether it is up.
    pub up: bool,
    /// Replays, recoveries, CRC errors of flits and of data.
    pub errors: [Option<u64>; 4],
}

impl GpuMeter {
    /// Starts NVML. It may wait for a driver that hangs: not on a thread that others wait for.
    ///
    /// # Errors
    /// There is no NVML here, or it does not start; the text says why.
    pub fn open() -> Result<Self, String> {
        Nvml::open().map(Self).map_err(|error| error.to_string())
    }

    /// What every GPU measures now; those that do not answer are left out.
    ///
    /// # Errors
    /// NVML does not say how many there are.
    pub fn read(&self) -> Result<Vec<GpuReading>, String> {
        let all = self.0.readings().map_err(|error| error.to_string())?;
        Ok(all.into_iter().map(GpuReading::from).collect())
    }
}

impl From<Readings> for GpuReading {
    fn from(one: Readings) -> Self {
        let bytes = |kib: Option<u64>| kib.map(|kib| kib.saturating_mul(1024));
        let link = |NvLink { number, up, errors }: NvLink| NvLinkReading { number, up, errors };
        Self {
            bus: one.bus.parse().ok(),
            uuid: one.uuid,
            celsius: one.celsius,
            milliwatts: one.milliwatts,
            millijoules: one.millijoules,
            memory_used: one.memory_used,
            memory: one.memory,
            busy_percent: one.busy_percent,
            sm_megahertz: one.sm_megahertz,
            slowed_by: one.slowed_by,
            ecc_corrected: one.ecc[0],
            ecc_uncorrected: one.ecc[1],
            pcie_replays: one.pcie_replays,
            links: one.links.into_iter().map(link).collect(),
            nvlink_sent: bytes(one.nvlink_kib[0]),
            nvlink_received: bytes(one.nvlink_kib[1]),
        }
    }
}

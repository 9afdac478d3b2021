//! NVML, the library of NVIDIA's driver: names, capabilities and NVLinks of GPUs.
//!
//! *Invariant:* NVML is started when [`Nvml`] is made and stopped when it is dropped; every buffer
//! given to it has the size its documentation asks for.

#![allow(unsafe_code, reason = "calls into NVML by pointers")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::{FfiError, function, open};

mod readings;
#[cfg(test)]
mod tests;

use readings::Meters;
pub(crate) use readings::{NvLink, Readings};

const NAME: &str = "NVML";
/// Bytes of a device's name.
const NAME_BYTES: usize = 96;
/// Bytes of the older and the newer bus id in [`PciInfo`].
const BUS_LEGACY_BYTES: usize = 16;
const BUS_BYTES: usize = 32;
/// NVLinks NVML counts on a GPU.
const LINKS_MOST: c_uint = 18;
/// GPUs of a machine.
const GPUS_MOST: c_uint = 256;

type Device = *mut c_void;
type Code = c_int;

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PciInfo {
    bus_id_legacy: [c_char; BUS_LEGACY_BYTES],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; BUS_BYTES],
}

impl PciInfo {
    fn empty() -> Self {
        Self {
            bus_id_legacy: [0; BUS_LEGACY_BYTES],
            domain: 0,
            bus: 0,
            device: 0,
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id: [0; BUS_BYTES],
        }
    }
}

type FnPlain = unsafe extern "C" fn() -> Code;
type FnCount = unsafe extern "C" fn(*mut c_uint) -> Code;
type FnHandle = unsafe extern "C" fn(c_uint, *mut Device) -> Code;
type FnName = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Code;
type FnPci = unsafe extern "C" fn(Device, *mut PciInfo) -> Code;
type FnCapability = unsafe extern "C" fn(Device, *mut c_int, *mut c_int) -> Code;
type FnLinkNumber = unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> Code;
type FnLinkPci = unsafe extern "C" fn(Device, c_uint, *mut PciInfo) -> Code;

/// What is at the other end of an NVLink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// A GPU, by bus id.
    Gpu(String),
    /// An NVSwitch.
    Switch,
    /// A CPU, or what this driver has no name for.
    Other,
}

/// A GPU as NVML knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NvmlGpu {
    pub(crate) bus: String,
    pub(crate) name: String,
    pub(crate) sm: Option<u32>,
    /// One for each NVLink that is up.
    pub(crate) links: Vec<LinkEnd>,
}

/// NVML, started.
#[derive(Debug)]
pub(crate) struct Nvml {
    shutdown: FnPlain,
    count: FnCount,
    handle: FnHandle,
    name: FnName,
    pci: FnPci,
    capability: FnCapability,
    /// Links are newer than the rest; without these functions there are none.
    link_state: Option<FnLinkNumber>,
    link_kind: Option<FnLinkNumber>,
    link_pci: Option<FnLinkPci>,
    meters: Meters,
    /// Last: dropped after [`Drop`] has run, so that the pointers stay good until then.
    _library: Library,
}

fn checked(call: &'static str, code: Code) -> Result<(), FfiError> {
    if code == 0 { Ok(()) } else { Err(FfiError::Call { call, code }) }
}

impl Nvml {
    /// Opens and starts NVML.
    pub(crate) fn open() -> Result<Self, FfiError> {
        Self::from_library(open(NAME, &["libnvidia-ml.so.1", "libnvidia-ml.so"])?)
    }

    fn from_library(library: Library) -> Result<Self, FfiError> {
        // SAFETY: here and below, the types are those of nvml.h for these symbols, which NVIDIA
        // keeps as they are (a change gets a new suffix); the library is kept as long as they are.
        let init: FnPlain = unsafe { function(&library, NAME, "nvmlInit_v2")? };
        // SAFETY: as above.
        let shutdown = unsafe { function(&library, NAME, "nvmlShutdown")? };
        // SAFETY: as above.
        let count = unsafe { function(&library, NAME, "nvmlDeviceGetCount_v2")? };
        // SAFETY: as above.
        let handle = unsafe { function(&library, NAME, "nvmlDeviceGetHandleByIndex_v2")? };
        // SAFETY: as above.
        let name = unsafe { function(&library, NAME, "nvmlDeviceGetName")? };
        // SAFETY: as above.
        let pci = unsafe { function(&library, NAME, "nvmlDeviceGetPciInfo_v3")? };
        // SAFETY: as above.
        let capability = unsafe { function(&library, NAME, "nvmlDeviceGetCudaComputeCapability")? };
        // SAFETY: as above.
        let link_state = unsafe { function(&library, NAME, "nvmlDeviceGetNvLinkState").ok() };
        // SAFETY: as above.
        let link_kind =
            unsafe { function(&library, NAME, "nvmlDeviceGetNvLinkRemoteDeviceType").ok() };
        // SAFETY: as above.
        let link_pci =
            unsafe { function(&library, NAME, "nvmlDeviceGetNvLinkRemotePciInfo_v2").ok() };
        let meters = Meters::of(&library);
        // SAFETY: nvmlInit_v2 takes nothing and may be called any number of times.
        checked("nvmlInit", unsafe { init() })?;
        Ok(Self {
            shutdown,
            count,
            handle,
            name,
            pci,
            capability,
            link_state,
            link_kind,
            link_pci,
            meters,
            _library: library,
        })
    }

    /// Every GPU this process may see; one that does not answer does not hide the others.
    pub(crate) fn gpus(&self) -> Result<Vec<Result<NvmlGpu, FfiError>>, FfiError> {
        Ok((0..self.count()?).map(|index| self.gpu(index)).collect())
    }

    /// How many GPUs there are.
    fn count(&self) -> Result<c_uint, FfiError> {
        let mut count = 0;
        // SAFETY: NVML is started; `count` is a place for one number.
        checked("nvmlDeviceGetCount", unsafe { (self.count)(&raw mut count) })?;
        Ok(count.min(GPUS_MOST))
    }

    /// A GPU's handle, and where it is.
    fn device(&self, index: c_uint) -> Result<(Device, String), FfiError> {
        let mut device: Device = std::ptr::null_mut();
        // SAFETY: NVML is started; `device` is a place for one handle.
        let code = unsafe { (self.handle)(index, &raw mut device) };
        checked("nvmlDeviceGetHandleByIndex", code)?;
        let mut place = PciInfo::empty();
        // SAFETY: the handle is NVML's own; `place` is a whole nvmlPciInfo_t.
        checked("nvmlDeviceGetPciInfo", unsafe { (self.pci)(device, &raw mut place) })?;
        Ok((device, text(&place.bus_id)))
    }

    fn gpu(&self, index: c_uint) -> Result<NvmlGpu, FfiError> {
        let (device, bus) = self.device(index)?;
        let mut name = [0; NAME_BYTES];
        let room = c_uint::try_from(NAME_BYTES).unwrap_or(0);
        // SAFETY: the handle is NVML's own; the buffer has the size that is said.
        let code = unsafe { (self.name)(device, name.as_mut_ptr(), room) };
        checked("nvmlDeviceGetName", code)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the handle is NVML's own; both are places for one number.
        let code = unsafe { (self.capability)(device, &raw mut major, &raw mut minor) };
        let sm = (code == 0).then(|| u32::try_from(10 * major + minor).ok()).flatten();
        let links = (0..LINKS_MOST).filter_map(|link| self.link(device, link)).collect();
        Ok(NvmlGpu { bus, name: text(&name), sm, links })
    }

    /// The other end of a link; nothing where the link is not there or not up.
    fn link(&self, device: Device, link: c_uint) -> Option<LinkEnd> {
        let mut up = 0;
        // SAFETY: the handle is NVML's own; a link that does not exist gives an error code.
        let code = unsafe { (self.link_state?)(device, link, &raw mut up) };
        if code != 0 || up != 1 {
            return None;
        }
        let mut kind = c_uint::MAX;
        if let Some(link_kind) = self.link_kind {
            // SAFETY: the handle is NVML's own; `kind` is a place for one number.
            let code = unsafe { link_kind(device, link, &raw mut kind) };
            kind = if code == 0 { kind } else { c_uint::MAX };
        }
        match kind {
            0 => {
                let mut place = PciInfo::empty();
                // SAFETY: the handle is NVML's own; `place` is a whole nvmlPciInfo_t.
                let code = unsafe { (self.link_pci?)(device, link, &raw mut place) };
                Some(if code == 0 { LinkEnd::Gpu(text(&place.bus_id)) } else { LinkEnd::Other })
            }
            2 => Some(LinkEnd::Switch),
            _ => Some(LinkEnd::Other),
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: NVML was started in `from_library`, and no handle outlives this value.
        let _code = unsafe { (self.shutdown)() };
    }
}

/// A C string in a buffer of ours, ended by a zero or by the buffer.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> =
        buffer.iter().take_while(|byte| **byte != 0).map(|byte| byte.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

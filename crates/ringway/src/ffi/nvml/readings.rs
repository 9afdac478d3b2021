//! What NVML measures: temperature, power, memory, errors, NVLinks.
//!
//! Every function is optional: a driver that lacks one, or a GPU that does not support it, has that number not.

#![allow(unsafe_code, reason = "calls into NVML by pointers")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use libloading::Library;

use super::{Code, Device, FfiError, FnLinkNumber, LINKS_MOST, NAME, Nvml, function, text};

/// Bytes of a UUID.
const UUID_BYTES: usize = 96;
/// `NVML_TEMPERATURE_GPU`.
const SENSOR_GPU: c_int = 0;
/// `NVML_CLOCK_SM`.
const CLOCK_SM: c_int = 1;
/// `NVML_MEMORY_ERROR_TYPE_CORRECTED`, `…_UNCORRECTED`; `NVML_VOLATILE_ECC`.
const ECC_KINDS: [c_int; 2] = [0, 1];
const ECC_VOLATILE: c_int = 0;
/// `NVML_NVLINK_ERROR_DL_REPLAY`, `…_RECOVERY`, `…_CRC_FLIT`, `…_CRC_DATA`.
const LINK_ERRORS: [c_int; 4] = [0, 1, 2, 3];
/// `NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX`, `…_RX`: KiB over the links of the scope.
const FIELDS: [c_uint; 2] = [138, 139];
/// The scope of all links.
const ALL_LINKS: c_uint = c_uint::MAX;
/// `NVML_VALUE_TYPE_UNSIGNED_LONG_LONG`.
const UNSIGNED_LONG_LONG: c_int = 3;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlFieldValue_t`; its value is a union of numbers of up to eight bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Field {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_int,
    code: Code,
    value: u64,
}

type FnNumber = unsafe extern "C" fn(Device, *mut c_uint) -> Code;
type FnLong = unsafe extern "C" fn(Device, *mut c_ulonglong) -> Code;
type FnChosen = unsafe extern "C" fn(Device, c_int, *mut c_uint) -> Code;
type FnMemory = unsafe extern "C" fn(Device, *mut Memory) -> Code;
type FnUtilization = unsafe extern "C" fn(Device, *mut Utilization) -> Code;
type FnEcc = unsafe extern "C" fn(Device, c_int, c_int, *mut c_ulonglong) -> Code;
type FnLinkError = unsafe extern "C" fn(Device, c_uint, c_int, *mut c_ulonglong) -> Code;
type FnText = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Code;
type FnFields = unsafe extern "C" fn(Device, c_int, *mut Field) -> Code;

/// The functions.
#[derive(Debug)]
pub(super) struct Meters {
    uuid: Option<FnText>,
    temperature: Option<FnChosen>,
    power: Option<FnNumber>,
    energy: Option<FnLong>,
    memory: Option<FnMemory>,
    utilization: Option<FnUtilization>,
    clock: Option<FnChosen>,
    slowed: Option<FnLong>,
    ecc: Option<FnEcc>,
    replays: Option<FnNumber>,
    link_state: Option<FnLinkNumber>,
    link_error: Option<FnLinkError>,
    fields: Option<FnFields>,
}

/// What was read of one GPU; what it does not have is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readings {
    pub(crate) bus: String,
    pub(crate) uuid: String,
    pub(crate) celsius: Option<u32>,
    pub(crate) milliwatts: Option<u32>,
    pub(crate) millijoules: Option<u64>,
    pub(crate) memory_used: Option<u64>,
    pub(crate) memory: Option<u64>,
    pub(crate) busy_percent: Option<u32>,
    pub(crate) sm_megahertz: Option<u32>,
    pub(crate) slowed_by: Option<u64>,
    pub(crate) ecc: [Option<u64>; 2],
    pub(crate) pcie_replays: Option<u32>,
    pub(crate) links: Vec<NvLink>,
    /// KiB sent and received over all NVLinks.
    pub(crate) nvlink_kib: [Option<u64>; 2],
}

/// An NVLink the GPU has, up or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NvLink {
    pub(crate) number: u32,
    pub(crate) up: bool,
    pub(crate) errors: [Option<u64>; 4],
}

impl Meters {
    pub(super) fn of(library: &Library) -> Self {
        // SAFETY: here and below, the types are those of nvml.h for these symbols, which NVIDIA keeps as they are (a
        // change gets a new suffix); the library is kept as long as they are.
        let uuid = unsafe { function(library, NAME, "nvmlDeviceGetUUID").ok() };
        // SAFETY: as above.
        let temperature = unsafe { function(library, NAME, "nvmlDeviceGetTemperature").ok() };
        // SAFETY: as above.
        let power = unsafe { function(library, NAME, "nvmlDeviceGetPowerUsage").ok() };
        // SAFETY: as above.
        let energy = unsafe { function(library, NAME, "nvmlDeviceGetTotalEnergyConsumption").ok() };
        // SAFETY: as above.
        let memory = unsafe { function(library, NAME, "nvmlDeviceGetMemoryInfo").ok() };
        // SAFETY: as above.
        let utilization = unsafe { function(library, NAME, "nvmlDeviceGetUtilizationRates").ok() };
        // SAFETY: as above.
        let clock = unsafe { function(library, NAME, "nvmlDeviceGetClockInfo").ok() };
        let reasons = "nvmlDeviceGetCurrentClocksThrottleReasons";
        // SAFETY: as above.
        let slowed = unsafe { function(library, NAME, reasons).ok() };
        // SAFETY: as above.
        let ecc = unsafe { function(library, NAME, "nvmlDeviceGetTotalEccErrors").ok() };
        // SAFETY: as above.
        let replays = unsafe { function(library, NAME, "nvmlDeviceGetPcieReplayCounter").ok() };
        // SAFETY: as above.
        let link_state = unsafe { function(library, NAME, "nvmlDeviceGetNvLinkState").ok() };
        // SAFETY: as above.
        let link_error = unsafe { function(library, NAME, "nvmlDeviceGetNvLinkErrorCounter").ok() };
        // SAFETY: as above.
        let fields = unsafe { function(library, NAME, "nvmlDeviceGetFieldValues").ok() };
        Self {
            uuid,
            temperature,
            power,
            energy,
            memory,
            utilization,
            clock,
            slowed,
            ecc,
            replays,
            link_state,
            link_error,
            fields,
        }
    }

    fn uuid(&self, device: Device) -> Option<String> {
        let mut buffer = [0; UUID_BYTES];
        let room = c_uint::try_from(UUID_BYTES).unwrap_or(0);
        // SAFETY: the handle is NVML's own; the buffer has the size that is said.
        let code = unsafe { self.uuid?(device, buffer.as_mut_ptr(), room) };
        (code == 0).then(|| text(&buffer))
    }

    fn memory(&self, device: Device) -> Option<Memory> {
        let mut memory = Memory::default();
        // SAFETY: the handle is NVML's own; `memory` is a whole nvmlMemory_t.
        let code = unsafe { self.memory?(device, &raw mut memory) };
        (code == 0).then_some(memory)
    }

    fn busy(&self, device: Device) -> Option<u32> {
        let mut busy = Utilization::default();
        // SAFETY: the handle is NVML's own; `busy` is a whole nvmlUtilization_t.
        let code = unsafe { self.utilization?(device, &raw mut busy) };
        (code == 0).then_some(busy.gpu)
    }

    fn ecc(&self, device: Device, kind: c_int) -> Option<u64> {
        let mut count = 0;
        // SAFETY: the handle is NVML's own; `count` is a place for one long number.
        let code = unsafe { self.ecc?(device, kind, ECC_VOLATILE, &raw mut count) };
        (code == 0).then_some(count)
    }

    /// The link, where the GPU has it.
    fn link(&self, device: Device, number: c_uint) -> Option<NvLink> {
        let mut up = 0;
        // SAFETY: the handle is NVML's own; a link that does not exist gives an error code.
        let code = unsafe { self.link_state?(device, number, &raw mut up) };
        if code != 0 {
            return None;
        }
        let errors = LINK_ERRORS.map(|kind| self.link_errors(device, number, kind));
        Some(NvLink { number, up: up == 1, errors })
    }

    fn link_errors(&self, device: Device, link: c_uint, kind: c_int) -> Option<u64> {
        let mut count = 0;
        // SAFETY: the handle is NVML's own; `count` is a place for one long number.
        let code = unsafe { self.link_error?(device, link, kind, &raw mut count) };
        (code == 0).then_some(count)
    }

    fn fields(&self, device: Device) -> [Option<u64>; 2] {
        let mut fields =
            FIELDS.map(|field| Field { field, scope: ALL_LINKS, code: -1, ..Field::default() });
        let Some(ask) = self.fields else { return [None; 2] };
        let count = c_int::try_from(fields.len()).unwrap_or(0);
        // SAFETY: the handle is NVML's own; there are as many whole nvmlFieldValue_t as is said.
        let code = unsafe { ask(device, count, fields.as_mut_ptr()) };
        fields.map(|field| {
            let is_good = code == 0 && field.code == 0 && field.kind == UNSIGNED_LONG_LONG;
            is_good.then_some(field.value)
        })
    }
}

/// The number such a function gives for a device.
fn number(ask: Option<FnNumber>, device: Device) -> Option<u32> {
    let mut value = 0;
    // SAFETY: the handle is NVML's own; `value` is a place for one number.
    let code = unsafe { ask?(device, &raw mut value) };
    (code == 0).then_some(value)
}

fn long(ask: Option<FnLong>, device: Device) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the handle is NVML's own; `value` is a place for one long number.
    let code = unsafe { ask?(device, &raw mut value) };
    (code == 0).then_some(value)
}

fn chosen(ask: Option<FnChosen>, device: Device, which: c_int) -> Option<u32> {
    let mut value = 0;
    // SAFETY: the handle is NVML's own; `value` is a place for one number.
    let code = unsafe { ask?(device, which, &raw mut value) };
    (code == 0).then_some(value)
}

impl Nvml {
    /// What every GPU measures; one that does not answer is left out.
    pub(crate) fn readings(&self) -> Result<Vec<Readings>, FfiError> {
        let meters = &self.meters;
        let count = self.count()?;
        let devices = (0..count).filter_map(|index| self.device(index).ok());
        let read = |(device, bus): (Device, String)| {
            let memory = meters.memory(device);
            Readings {
                bus,
                uuid: meters.uuid(device).unwrap_or_default(),
                celsius: chosen(meters.temperature, device, SENSOR_GPU),
                milliwatts: number(meters.power, device),
                millijoules: long(meters.energy, device),
                memory_used: memory.map(|memory| memory.used),
                memory: memory.map(|memory| memory.total),
                busy_percent: meters.busy(device),
                sm_megahertz: chosen(meters.clock, device, CLOCK_SM),
                slowed_by: long(meters.slowed, device),
                ecc: ECC_KINDS.map(|kind| meters.ecc(device, kind)),
                pcie_replays: number(meters.replays, device),
                links: (0..LINKS_MOST).filter_map(|link| meters.link(device, link)).collect(),
                nvlink_kib: meters.fields(device),
            }
        };
        Ok(devices.map(read).collect())
    }
}

#[cfg(test)]
pub(super) fn sizes() -> [usize; 3] {
    [size_of::<Memory>(), size_of::<Utilization>(), size_of::<Field>()]
}

//! GPUs by NVML, read in the background: a driver that hangs must not hold up an answer.
//!
//! *Invariant*: what is older than a few readings is not told; a GPU is numbered as everywhere here, by its place on the
//! PCI bus.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringway::topo::{GpuMeter, GpuReading};

use super::metric::{self, Samples};
use super::node::Inventory;

/// How long it is left alone where it could not be started.
const REST: Duration = Duration::from_secs(60);

/// What NVML said last.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The GPUs, or why they are not known; nothing before the first reading.
    outcome: Option<Result<Vec<GpuReading>, String>>,
    when: Option<Instant>,
}

/// For whoever asks.
pub(crate) type Last = Arc<Mutex<Known>>;

/// Reads again and again; nobody waits for it.
pub(crate) fn keep_reading(every: Duration) -> std::io::Result<Last> {
    let last = Last::default();
    let told = Arc::clone(&last);
    let work = move || {
        let mut meter = None;
        // For as long as somebody may ask.
        while Arc::strong_count(&told) > 1 {
            let outcome = read(&mut meter);
            let rest = if outcome.is_ok() { every } else { REST.max(every) };
            let known = Known { outcome: Some(outcome), when: Some(Instant::now()) };
            *told.lock().unwrap_or_else(PoisonError::into_inner) = known;
            std::thread::sleep(rest);
        }
    };
    std::thread::Builder::new().name("ringway-nvml".to_owned()).spawn(work)?;
    Ok(last)
}

/// Reads once, now.
pub(crate) fn once() -> Last {
    let outcome = read(&mut None);
    Arc::new(Mutex::new(Known { outcome: Some(outcome), when: Some(Instant::now()) }))
}

/// Reads once; NVML is started where it is not, and again after it failed.
fn read(meter: &mut Option<GpuMeter>) -> Result<Vec<GpuReading>, String> {
    let open = match meter.take() {
        Some(open) => open,
        None => GpuMeter::open()?,
    };
    let readings = open.read()?;
    *meter = Some(open);
    Ok(readings)
}

/// What was read last, where that is not too long ago; else why nothing is told.
pub(crate) fn fresh(last: &Last, every: Duration) -> Result<Vec<GpuReading>, Option<String>> {
    let known = last.lock().unwrap_or_else(PoisonError::into_inner);
    match (&known.outcome, known.when) {
        (None, _) | (_, None) => Err(None),
        (Some(Err(why)), _) => Err(Some(why.clone())),
        (Some(Ok(readings)), Some(when)) => {
            if when.elapsed() > every * 3 + Duration::from_secs(2) {
                return Err(Some("NVML does not answer; see the kernel log for Xid".to_owned()));
            }
            Ok(readings.clone())
        }
    }
}

/// Bits of `nvmlDeviceGetCurrentClocksEventReasons` that mean that something is wrong, not that nothing is to be done.
const REASONS: [(u64, &str); 6] = [
    (0x4, "power_cap"),
    (0x8, "hw_slowdown"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
    (0x10, "sync_boost"),
];

/// Samples of these readings; GPUs that the PCI bus does not have are left out.
pub(crate) fn samples(readings: &[GpuReading], inventory: &Inventory, samples: &mut Samples) {
    for reading in readings {
        let Some(bus) = reading.bus else { continue };
        let Some(gpu) = inventory.gpu_at(bus) else { continue };
        let of: [&dyn Display; 1] = [&gpu];
        if !reading.uuid.is_empty() {
            samples.add(&metric::GPU_UUID, &[&gpu, &bus, &reading.uuid], 1);
        }
        samples.add_known(&metric::GPU_TEMPERATURE, &of, reading.celsius);
        let thousandth = |number: u32| f64::from(number) / 1e3;
        samples.add_known(&metric::GPU_POWER, &of, reading.milliwatts.map(thousandth));
        #[expect(clippy::cast_precision_loss, reason = "a statistic")]
        let joules = reading.millijoules.map(|number| number as f64 / 1e3);
        samples.add_known(&metric::GPU_ENERGY, &of, joules);
        samples.add_known(&metric::GPU_MEMORY_USED, &of, reading.memory_used);
        samples.add_known(&metric::GPU_MEMORY, &of, reading.memory);
        let ratio = reading.busy_percent.map(|percent| f64::from(percent) / 100.0);
        samples.add_known(&metric::GPU_BUSY, &of, ratio);
        let hertz = reading.sm_megahertz.map(|megahertz| u64::from(megahertz) * 1_000_000);
        samples.add_known(&metric::GPU_CLOCK, &of, hertz);
        if let Some(bits) = reading.slowed_by {
            for (bit, reason) in REASONS {
                samples.add(&metric::GPU_SLOWED, &[&gpu, &reason], u8::from(bits & bit != 0));
            }
        }
        samples.add_known(&metric::GPU_ECC, &[&gpu, &"corrected"], reading.ecc_corrected);
        samples.add_known(&metric::GPU_ECC, &[&gpu, &"uncorrected"], reading.ecc_uncorrected);
        samples.add_known(&metric::GPU_REPLAYS, &of, reading.pcie_replays);
        for link in &reading.links {
            samples.add(&metric::NVLINK_UP, &[&gpu, &link.number], u8::from(link.up));
            let kinds = ["replay", "recovery", "crc_flit", "crc_data"];
            for (kind, count) in kinds.iter().zip(link.errors) {
                samples.add_known(&metric::NVLINK_ERRORS, &[&gpu, &link.number, kind], count);
            }
        }
        let ways = [("receive", reading.nvlink_received), ("transmit", reading.nvlink_sent)];
        for (way, bytes) in ways {
            samples.add_known(&metric::NVLINK_BYTES, &[&gpu, &way], bytes);
        }
    }
}

//! Tables of perftest (`ib_write_bw` and its kin): what one card carries.
//!
//! *Invariant*: state is one table and a bounded list of verdicts.

use super::conclude::Ranked;
use super::sight::{Place, at};
use crate::doctor::finding::{Finding, Verdict};

/// Verdicts kept.
const MOST: usize = 64;
/// Sizes from which the rate is the link's.
const LARGE: u64 = 64 << 10;
/// Rates of ports in Gb/s.
const RATES: [f64; 10] = [10.0, 25.0, 40.0, 50.0, 56.0, 100.0, 200.0, 400.0, 800.0, 1600.0];

/// The tables of a run.
#[derive(Debug, Default)]
pub(crate) struct Perftest {
    /// What turns a figure of the table into Gb/s, while one is open.
    scale: Option<f64>,
    device: String,
    best: Option<(u64, f64, Place)>,
    pub(crate) tables: u64,
    slow: Vec<(String, u64, f64, f64, Place)>,
}

impl Perftest {
    /// Looks at a line that is none of NCCL's.
    pub(crate) fn read(&mut self, line: &str, place: Place) {
        if let Some((_, device)) = line.split_once("Device         :") {
            self.device = device.trim().chars().take(40).collect();
        } else if line.contains("#bytes") && line.contains("BW average") {
            self.end();
            self.tables += 1;
            self.scale = Some(if line.contains("Gb/sec") { 1.0 } else { 8.0 * 1_048_576.0 / 1e9 });
        } else if let Some(scale) = self.scale {
            let numbers: Option<Vec<f64>> =
                line.split_whitespace().take(6).map(|word| word.parse().ok()).collect();
            match numbers.as_deref() {
                Some([size, _, _, average, ..]) if *size >= 1.0 && average.is_finite() => {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a size"
                    )]
                    let size = *size as u64;
                    let rate = average * scale;
                    if size >= LARGE && self.best.is_none_or(|(_, best, _)| rate > best) {
                        self.best = Some((size, rate, place));
                    }
                }
                _ => self.end(),
            }
        }
    }

    /// Whether a table is open.
    pub(crate) fn is_open(&self) -> bool {
        self.scale.is_some()
    }

    fn end(&mut self) {
        self.scale = None;
        let Some((size, rate, place)) = self.best.take() else { return };
        let port = RATES.into_iter().find(|port| port * 1.03 >= rate);
        if let Some(port) = port
            && rate < 0.9 * port
            && self.slow.len() < MOST
        {
            self.slow.push((self.device.clone(), size, rate, port, place));
        }
    }

    /// What was found.
    pub(crate) fn judge(&mut self, files: &[String]) -> Vec<Ranked> {
        self.end();
        let slow = self.slow.iter().map(|(device, size, rate, port, place)| {
            let device = if device.is_empty() { "the card" } else { device };
            let finding = Finding::new(
                "measurement",
                "nic-slow",
                Verdict::Warn,
                format!("{device} carries {rate:.0} Gb/s, {:.0} % of a {port} Gb/s port", 100.0 * rate / port),
            )
            .seen(format!("{}: {size} bytes", at(*place, files)))
            .costs("collectives run at the pace of the slowest card; a sound one reaches 95 %")
            .fixed_by(
                "check the card's PCIe width and speed (lspci -vvv, LnkSta), MaxReadReq 4096, NUMA node of the \
                 process and MTU 4096; with --use_cuda a rate of half means no GPUDirect or ACS.",
            );
            let cause = "One network card carries less than its port: mostly its PCIe link, the NUMA node, or, \
                         with GPU memory, access control between GPU and NIC.";
            Ranked::new(710, finding, cause, *place)
        });
        slow.collect()
    }
}

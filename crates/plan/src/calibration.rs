//! What one topology was measured to do: its links, and the times of algorithms at some sizes.
//!
//! ```text
//! { "format": "ringway tuning 1", "model": 2,
//!   "topology": { "cpu": "…", "cores": 2, "ranks": 2, "machines": 1, "hosts": 1 },
//!   "links": { … },
//!   "measured": [ { "collective": "all_reduce", "algorithm": "one_shot",
//!                   "points": [ [bytes, measured µs, predicted µs], … ] }, … ] }
//! ```
//!
//! A time is kept beside what the model said, with these links, of the same call. The ratio of the two,
//! taken between the nearest sizes, corrects the prices of calls like it.
//!
//! **Invariant:** reading is total: any text gives a calibration whose numbers are sound, or an
//! error. Corrections use only arithmetic that is exact to the bit on every processor (no
//! logarithms), so that ranks on different machines choose alike.

use serde::{Deserialize, Serialize};

use crate::algorithm::Algorithm;
use crate::cost::{Link, Links, MODEL};
use crate::types::Collective;

const FORMAT: &str = "ringway tuning 1";
/// Longer texts are not looked at.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
const SERIES_MAX: usize = 256;
const POINTS_MAX: usize = 256;

/// Where ranks are, as far as their speed depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The processor's name.
    pub cpu: String,
    /// Cores that ranks of a machine share.
    pub cores: u32,
    /// Ranks in all.
    pub ranks: u32,
    /// Machines they are on.
    pub machines: u32,
    /// Groups of ranks that map each other's memory; as many as ranks where all use TCP.
    pub hosts: u32,
}

impl Topology {
    /// The name of the file for this topology: readable, and safe in any file system.
    #[must_use]
    pub fn file_name(&self) -> String {
        let mut cpu = String::new();
        for c in self.cpu.chars().take(80) {
            match c.is_ascii_alphanumeric() {
                true => cpu.push(c.to_ascii_lowercase()),
                false if cpu.is_empty() || cpu.ends_with('-') => {}
                false => cpu.push('-'),
            }
        }
        let cpu = if cpu.is_empty() { "cpu" } else { cpu.trim_end_matches('-') };
        let each = self.ranks.div_ceil(self.machines.max(1));
        let transport = match self.hosts {
            1 => "shm",
            hosts if hosts == self.ranks => "tcp",
            _ => "mixed",
        };
        format!("{cpu}-{}c-{}x{each}-{transport}.json", self.cores, self.machines)
    }
}

/// One algorithm's times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The collective.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// By size, without doubles.
    pub points: Vec<Point>,
}

/// One time: (bytes of a rank's larger buffer, measured µs, predicted µs).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point(pub u64, pub f64, pub f64);

impl Point {
    fn ratio(&self) -> f64 {
        self.1 / self.2
    }
}

/// What was measured of one topology.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    format: String,
    model: u32,
    /// Where.
    pub topology: Topology,
    /// What links and cores cost there.
    pub links: Links,
    /// Times of algorithms.
    pub measured: Vec<Series>,
}

/// What an algorithm was seen to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The time.
    pub us: f64,
    /// Whether this very size was timed; else it is taken from sizes beside it.
    pub exact: bool,
}

/// The factors by which predictions for one call are off.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corrections {
    ratios: Vec<(Algorithm, f64, Option<f64>)>,
}

impl Corrections {
    /// The factor for `algorithm`, one of those `admitted`. One that was never timed is taken to be
    /// off by as much as the worst of the others: else it would be chosen for what is not known
    /// of it.
    #[must_use]
    pub fn ratio(&self, algorithm: Algorithm, admitted: &[Algorithm]) -> f64 {
        let own = self.ratios.iter().find(|(timed, ..)| *timed == algorithm);
        own.map_or_else(
            || {
                let others = self.ratios.iter().filter(|(timed, ..)| admitted.contains(timed));
                others.map(|(_, ratio, _)| *ratio).fold(1.0, f64::max)
            },
            |(_, ratio, _)| *ratio,
        )
    }

    /// What `algorithm`, predicted to take so long, was seen to take.
    #[must_use]
    pub fn measured(&self, algorithm: Algorithm, predicted_us: f64) -> Option<Measured> {
        let (_, ratio, raw) = self.ratios.iter().find(|(timed, ..)| *timed == algorithm)?;
        Some(Measured { us: predicted_us * raw.unwrap_or(*ratio), exact: raw.is_some() })
    }
}

impl Calibration {
    /// Nothing but the defaults.
    #[must_use]
    pub fn new(topology: Topology, links: Links) -> Self {
        Self { format: FORMAT.to_owned(), model: MODEL, topology, links, measured: Vec::new() }
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("it is longer than {TEXT_BYTES_MAX} bytes"));
        }
        /// What says whether the rest can be read.
        #[derive(Deserialize)]
        struct Head {
            format: String,
            model: u32,
        }
        let head: Head =
            serde_json::from_slice(text).map_err(|error| format!("not a tuning file: {error}"))?;
        if head.format != FORMAT || head.model != MODEL {
            return Err("it was made by another version of ringway".to_owned());
        }
        let mut read: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        read.check()?;
        for series in &mut read.measured {
            series.points.sort_by_key(|point| point.0);
            series.points.dedup_by_key(|point| point.0);
        }
        Ok(read)
    }

    /// The text form.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    fn check(&self) -> Result<(), String> {
        let sound = |what: &str, value: f64| match value.is_finite() && value >= 1e-6 {
            true if value <= 1e12 => Ok(()),
            _ => Err(format!("{what} is {value}, which cannot be")),
        };
        let Links { shm, net, reduce_gbs, copy_gbs, stage_gbs, get_gbs, get_us, per_step_us } =
            self.links;
        for (name, link) in [("shm", shm), ("net", net)] {
            let Link { latency_us, overhead_us, bandwidth_gbs } = link;
            sound(&format!("{name}.latency_us"), latency_us)?;
            sound(&format!("{name}.overhead_us"), overhead_us)?;
            sound(&format!("{name}.bandwidth_gbs"), bandwidth_gbs)?;
        }
        sound("reduce_gbs", reduce_gbs)?;
        sound("copy_gbs", copy_gbs)?;
        sound("stage_gbs", stage_gbs)?;
        sound("get_gbs", get_gbs)?;
        sound("get_us", get_us)?;
        sound("per_step_us", per_step_us)?;
        if self.measured.len() > SERIES_MAX {
            return Err(format!("it has more than {SERIES_MAX} series"));
        }
        for series in &self.measured {
            if series.points.len() > POINTS_MAX {
                return Err(format!("a series has more than {POINTS_MAX} points"));
            }
            for point in &series.points {
                sound("a measured time", point.1)?;
                sound("a predicted time", point.2)?;
            }
        }
        Ok(())
    }

    /// Takes in one time, in place of an older one of the same size.
    pub fn learn(&mut self, collective: Collective, algorithm: Algorithm, point: Point) {
        let known =
            |series: &&mut Series| (series.collective, series.algorithm) == (collective, algorithm);
        let points = match self.measured.iter_mut().find(known) {
            Some(series) => &mut series.points,
            None => {
                self.measured.push(Series { collective, algorithm, points: Vec::new() });
                match self.measured.last_mut() {
                    Some(series) => &mut series.points,
                    None => return,
                }
            }
        };
        match points.binary_search_by_key(&point.0, |known| known.0) {
            Ok(at) => points[at] = point,
            Err(at) if points.len() < POINTS_MAX => points.insert(at, point),
            Err(_) => {}
        }
    }

    /// The corrections for calls of `bytes` by these ranks; none where others were measured.
    #[must_use]
    pub fn corrections(&self, collective: Collective, hosts: &[u32], bytes: u64) -> Corrections {
        let domains = hosts.iter().max().map_or(1, |most| most.saturating_add(1));
        if (hosts.len() as u64, domains) != (self.topology.ranks.into(), self.topology.hosts) {
            return Corrections::default();
        }
        let ratios = self
            .measured
            .iter()
            .filter(|series| series.collective == collective)
            .filter_map(|series| {
                let ratio = ratio_at(&series.points, bytes)?;
                let raw = series.points.iter().find(|point| point.0 == bytes).map(Point::ratio);
                Some((series.algorithm, ratio, raw))
            })
            .collect();
        Corrections { ratios }
    }
}

/// The ratio at `bytes`, between those of the sizes beside it; past the ends, that of the end.
fn ratio_at(points: &[Point], bytes: u64) -> Option<f64> {
    let above = points.partition_point(|point| point.0 < bytes);
    let below = above.checked_sub(1);
    match (below.and_then(|below| points.get(below)), points.get(above)) {
        (_, Some(at)) if at.0 == bytes => Some(steady_ratio(points, above)),
        (Some(low), Some(high)) => {
            let (from, to) = (steady_ratio(points, above - 1), steady_ratio(points, above));
            let part = (position(bytes) - position(low.0)) / (position(high.0) - position(low.0));
            Some(from + (to - from) * part)
        }
        (Some(_), None) => Some(steady_ratio(points, above - 1)),
        (None, Some(_)) => Some(steady_ratio(points, above)),
        (None, None) => None,
    }
}

/// The ratio of one point, or of the middle one of it and its neighbours: what happened to run beside
/// one size must not decide, while a step from one size to the next stays where it is.
fn steady_ratio(points: &[Point], at: usize) -> f64 {
    let own = points[at].ratio();
    match (at.checked_sub(1).and_then(|before| points.get(before)), points.get(at + 1)) {
        (Some(before), Some(after)) => {
            let (low, high) =
                (before.ratio().min(after.ratio()), before.ratio().max(after.ratio()));
            own.clamp(low, high)
        }
        _ => own,
    }
}

/// Where a size stands on a scale of doublings. Straight between powers of two, since a logarithm
/// need not be the same to the last bit on every machine.
#[expect(clippy::cast_precision_loss, reason = "sizes beside each other need not be told apart")]
fn position(bytes: u64) -> f64 {
    match bytes.checked_ilog2() {
        None => 0.0,
        Some(doublings) => {
            let below = 1_u64 << doublings;
            f64::from(doublings) + bytes as f64 / below as f64
        }
    }
}

#[cfg(test)]
mod tests;

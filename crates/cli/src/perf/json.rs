//! The results in nccl-tests' JSON layout (`-J`, version 3).
//!
//! Keys and kinds of values are nccl-tests', also where they are odd: booleans are the words
//! "true" and "false", `root` is a padded string. Unlike there, only the variables named
//! `NCCL_*` and `RINGWAY_*` are written, secrets are not, and the file is always complete:
//! it is written beside its place and moved there when it is whole.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::expect::Verdict;
use super::settings::{ITERATIONS, Settings, Step};
use super::stats::IterationStats;
use super::table::{Cell, Device, Row, Summary};
use crate::this;

const VERSION: u32 = 3;

/// Everything a file holds.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    version: u32,
    start_time: String,
    args: Vec<String>,
    env: Vec<String>,
    nccl_version: u32,
    config: Config,
    results: Vec<ResultRow>,
    out_of_bounds: OutOfBounds,
    average_bus_bandwidth: AverageBusBandwidth,
    errors: Vec<String>,
    end_time: String,
    /// Ours; readers of nccl-tests' layout do not look at it.
    ringway: Ours,
}

#[derive(Debug, Serialize)]
struct Config {
    nthreads: u32,
    ngpus: u32,
    minimum_bytes: u64,
    maximum_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_factor: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_bytes: Option<u64>,
    warmup_iters: u32,
    iterations: u32,
    aggregated_iterations: u32,
    validation: u32,
    graph: u32,
    blocking_collectives: &'static str,
    per_iter_timing: &'static str,
    per_iter_skip: u32,
    parallel_init: &'static str,
    devices: Vec<DeviceEntry>,
}

#[derive(Debug, Serialize)]
struct DeviceEntry {
    rank: u32,
    group: u32,
    pid: u32,
    hostname: String,
    device: u32,
    device_hex: String,
    device_info: String,
}

#[derive(Debug, Serialize)]
struct ResultRow {
    size: usize,
    count: usize,
    #[serde(rename = "type")]
    data_type: &'static str,
    redop: &'static str,
    root: String,
    out_of_place: Measurement,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_place_per_iter: Option<PerIteration>,
    in_place: Measurement,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place_per_iter: Option<PerIteration>,
    actual_iterations: u32,
    experiment_name: &'static str,
}

#[derive(Debug, Serialize)]
struct Measurement {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_time: Option<f64>,
    alg_bw: f64,
    bus_bw: f64,
    nwrong: Option<f64>,
}

#[derive(Debug, Serialize)]
struct PerIteration {
    skipped_iterations: u32,
    #[serde(flatten)]
    stats: IterationStats,
    times_us: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    per_process_max_times_us: Vec<Vec<f64>>,
}

#[derive(Debug, Serialize)]
struct OutOfBounds {
    count: u64,
    okay: &'static str,
}

#[derive(Debug, Serialize)]
struct AverageBusBandwidth {
    bandwidth: f64,
    okay: &'static str,
}

#[derive(Debug, Serialize)]
struct Ours {
    version: &'static str,
    collective: &'static str,
    ranks: usize,
    connection: String,
    /// For each row what the planner reckoned with, in microseconds; empty where it was not asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    expected_us: Vec<Option<f64>>,
    /// For each row which rank was slowest in each iteration (`-I 1`); where several are, the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slowest_ranks: Vec<Slowest>,
    /// What the links permit (`--expect`).
    #[serde(skip_serializing_if = "Option::is_none")]
    expectation: Option<Verdict>,
    /// How ranks reach each other's GPU memory, where the buffers are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_path: Option<String>,
}

#[derive(Debug, Serialize)]
struct Slowest {
    out_of_place: Vec<u32>,
    in_place: Vec<u32>,
}

/// What the document is made from.
#[derive(Debug)]
pub(crate) struct Results<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) devices: &'a [Device],
    pub(crate) rows: &'a [Row],
    pub(crate) summary: Summary,
    pub(crate) connection: String,
    pub(crate) gpu_path: Option<String>,
    /// For each row, where the planner was asked.
    pub(crate) expected_us: Vec<Option<f64>>,
    pub(crate) expectation: Option<Verdict>,
    pub(crate) start_time: String,
    pub(crate) end_time: String,
}

impl Document {
    /// The document of a finished run by this process.
    pub(crate) fn new(results: &Results<'_>) -> Self {
        let args = this::words().iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let variables = std::env::vars_os().map(|(name, value)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        });
        Self::with(results, args, environment(variables))
    }

    fn with(results: &Results<'_>, args: Vec<String>, env: Vec<String>) -> Self {
        let summary = &results.summary;
        let cpu_time = results.settings.columns.cpu_time;
        Self {
            version: VERSION,
            start_time: results.start_time.clone(),
            args,
            env,
            nccl_version: version_code(),
            config: config(results.settings, results.devices),
            results: results.rows.iter().map(|row| result_row(row, cpu_time)).collect(),
            out_of_bounds: OutOfBounds {
                count: summary.out_of_bounds,
                okay: word(summary.out_of_bounds == 0),
            },
            average_bus_bandwidth: AverageBusBandwidth {
                bandwidth: finite(summary.average_bus_bandwidth),
                okay: summary.bandwidth_passes().map_or("unchecked", word),
            },
            errors: Vec::new(),
            end_time: results.end_time.clone(),
            ringway: Ours {
                version: env!("CARGO_PKG_VERSION"),
                collective: results.settings.collective.name(),
                ranks: results.devices.len(),
                connection: results.connection.clone(),
                expected_us: results.expected_us.clone(),
                slowest_ranks: results.rows.iter().filter_map(slowest).collect(),
                expectation: results.expectation.clone(),
                gpu_path: results.gpu_path.clone(),
            },
        }
    }
}

/// Puts a document in its place, whole or not at all.
pub(crate) fn write(document: &impl Serialize, path: &Path) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(document).context("writing the results as JSON")?;
    text.push('\n');
    let temporary = temporary_path(path, std::process::id())?;
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        discard_temporary(path, std::process::id());
        anyhow::Error::new(error).context(format!("cannot write {}", path.display()))
    })
}

/// Fails when a file could not be written at `path`; says whether one is there already.
pub(crate) fn check_path(path: &Path) -> anyhow::Result<bool> {
    let shown = path.display();
    if path.is_dir() {
        bail!("-J {shown}: is a folder; name a file in it");
    }
    let temporary = temporary_path(path, std::process::id())?;
    fs::File::create(&temporary)
        .and_then(|_| fs::remove_file(&temporary))
        .with_context(|| format!("-J {shown}: no file can be written there"))?;
    Ok(path.exists())
}

/// Removes what a writer with process id `pid` may have left.
pub(crate) fn discard_temporary(path: &Path, pid: u32) {
    if let Ok(temporary) = temporary_path(path, pid) {
        let _usually_absent = fs::remove_file(temporary);
    }
}

fn temporary_path(path: &Path, pid: u32) -> anyhow::Result<PathBuf> {
    let name = path.file_name().with_context(|| format!("-J {}: names no file", path.display()))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{pid}.tmp"));
    Ok(path.with_file_name(hidden))
}

/// The variables that matter and are nobody's secret, as `NAME=VALUE`, sorted.
fn environment(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    const SECRET: [&str; 5] = ["SECRET", "TOKEN", "PASSWORD", "KEY", "CREDENTIAL"];
    let mut shown: Vec<String> = variables
        .filter(|(name, _)| name.starts_with("NCCL_") || name.starts_with("RINGWAY_"))
        .filter(|(name, _)| !SECRET.iter().any(|word| name.to_ascii_uppercase().contains(word)))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    shown.sort();
    shown
}

/// This version as NCCL codes versions: 0.1.0 is 100.
fn version_code() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + part(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

fn config(settings: &Settings, devices: &[Device]) -> Config {
    let (step_factor, step_bytes) = match settings.sweep.step {
        Step::Factor(factor) => (Some(factor), None),
        Step::Bytes(bytes) => (None, Some(bytes)),
    };
    Config {
        nthreads: 1,
        ngpus: settings.ranks_per_process,
        minimum_bytes: settings.sweep.min_bytes,
        maximum_bytes: settings.sweep.max_bytes,
        step_factor,
        step_bytes,
        warmup_iters: settings.warmup,
        iterations: settings.iterations.unwrap_or(ITERATIONS),
        aggregated_iterations: settings.aggregate,
        validation: settings.check,
        graph: 0,
        blocking_collectives: word(settings.blocking != super::settings::Blocking::Queue),
        per_iter_timing: word(settings.columns.iterations),
        per_iter_skip: settings.per_iteration_skip,
        parallel_init: word(settings.parallel_init),
        devices: devices
            .iter()
            .map(|device| DeviceEntry {
                rank: device.rank,
                group: 0,
                pid: device.pid,
                hostname: device.host.clone(),
                device: device.device,
                device_hex: device.address.clone(),
                device_info: device.name.clone(),
            })
            .collect(),
    }
}

fn result_row(row: &Row, cpu_time: bool) -> ResultRow {
    ResultRow {
        size: row.bytes,
        count: row.count,
        data_type: row.data_type,
        redop: row.op,
        root: format!("{:6}", row.root),
        out_of_place: measurement(&row.out_of_place, cpu_time),
        out_of_place_per_iter: per_iteration(&row.out_of_place),
        in_place: measurement(&row.in_place, cpu_time),
        in_place_per_iter: per_iteration(&row.in_place),
        actual_iterations: row.actual_iterations,
        experiment_name: "",
    }
}

#[expect(clippy::cast_precision_loss, reason = "the layout's own kind of number")]
fn measurement(cell: &Cell, cpu_time: bool) -> Measurement {
    let time = finite(cell.time_us);
    Measurement {
        time: (!cpu_time).then_some(time),
        cpu_time: cpu_time.then_some(time),
        alg_bw: finite(cell.alg_bw),
        bus_bw: finite(cell.bus_bw),
        nwrong: cell.wrong.map(|wrong| wrong as f64),
    }
}

fn per_iteration(cell: &Cell) -> Option<PerIteration> {
    let iterations = cell.iterations.as_ref()?;
    // To the nanosecond: more digits are the clock's noise, and half of the file.
    let one = |seconds: &f64| (seconds * 1e9).round() / 1e3;
    let micros = |seconds: &Vec<f64>| seconds.iter().map(one).collect::<Vec<_>>();
    let ranks = &iterations.seconds_of_ranks;
    Some(PerIteration {
        skipped_iterations: iterations.skipped,
        stats: iterations.stats.clone(),
        times_us: micros(&iterations.seconds),
        per_process_max_times_us: if ranks.len() > 1 {
            ranks.iter().map(micros).collect()
        } else {
            Vec::new()
        },
    })
}

fn slowest(row: &Row) -> Option<Slowest> {
    let ranks = |cell: &Cell| Some(cell.iterations.as_ref()?.slowest.clone());
    Some(Slowest { out_of_place: ranks(&row.out_of_place)?, in_place: ranks(&row.in_place)? })
}

fn word(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// JSON has no infinities.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

#[cfg(test)]
mod tests;

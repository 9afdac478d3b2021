//! Reading results: nccl-tests' JSON, as `ringway perf -J` writes it too.

use std::collections::BTreeMap;

use ringway_plan::types::Collective;
use serde::Deserialize;
use serde_json::Value;

use super::spread::{Iterations, Limit};
use crate::doctor::log::curve::expect::{LARGE, usual};
use crate::fabric::show::many;

/// One file of results.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) collective: String,
    pub(crate) ranks: usize,
    pub(super) hosts: usize,
    /// Whether all of them have names, so that they were counted.
    hosts_named: bool,
    pub(super) devices: Vec<String>,
    pub(super) began: String,
    pub(super) connection: String,
    pub(super) rows: Vec<Row>,
    pub(super) wrong: usize,
    pub(super) average: f64,
    /// Whether the average was enough, where somebody said what is.
    pub(super) average_passes: Option<bool>,
    pub(super) errors: Vec<String>,
}

/// Where a run was measured, as far as its file says.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Place<'a> {
    hosts: Option<usize>,
    connection: Option<&'a str>,
}

impl Place<'_> {
    /// Whether what both files tell is the same.
    pub(super) fn is_like(&self, other: &Place<'_>) -> bool {
        let hosts = self.hosts.zip(other.hosts).is_none_or(|(own, other)| own == other);
        let connections = self.connection.zip(other.connection);
        hosts && connections.is_none_or(|(own, other)| own == other)
    }
}

/// One row of its table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) bytes: u64,
    /// Type, reduction and root: what rows must have in common to be compared.
    pub(super) what: String,
    pub(super) out_of_place: Measured,
    pub(super) in_place: Measured,
    /// What the planner had reckoned with.
    pub(super) expected_us: Option<f64>,
    /// Its single iterations out of place, where they were timed.
    pub(super) iterations: Option<Iterations>,
    /// What the links permit, where that was asked.
    pub(super) limit: Option<Limit>,
}

/// Time and bandwidth of a row, in place or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) us: f64,
    pub(super) busbw: f64,
    pub(super) wrong: bool,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    start_time: String,
    #[serde(default)]
    args: Vec<String>,
    config: FileConfig,
    results: Vec<FileRow>,
    #[serde(default)]
    average_bus_bandwidth: Value,
    #[serde(default)]
    errors: Vec<Value>,
    #[serde(default)]
    ringway: FileOurs,
}

#[derive(Deserialize)]
struct FileConfig {
    #[serde(default)]
    devices: Vec<FileDevice>,
}

#[derive(Deserialize)]
struct FileDevice {
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    device_info: String,
}

#[derive(Deserialize)]
struct FileRow {
    size: u64,
    #[serde(default, rename = "type")]
    data_type: String,
    #[serde(default)]
    redop: String,
    #[serde(default)]
    root: Value,
    out_of_place: FileMeasured,
    in_place: FileMeasured,
    #[serde(default)]
    out_of_place_per_iter: Option<Iterations>,
}

#[derive(Deserialize)]
struct FileMeasured {
    #[serde(default)]
    time: Option<f64>,
    #[serde(default)]
    cpu_time: Option<f64>,
    #[serde(default)]
    bus_bw: f64,
    #[serde(default)]
    nwrong: Option<f64>,
}

#[derive(Default, Deserialize)]
struct FileOurs {
    #[serde(default)]
    collective: Option<String>,
    #[serde(default)]
    ranks: Option<usize>,
    #[serde(default)]
    connection: String,
    #[serde(default)]
    expected_us: Vec<Option<f64>>,
    #[serde(default)]
    expectation: FileExpectation,
}

#[derive(Default, Deserialize)]
struct FileExpectation {
    #[serde(default)]
    rows: Vec<Limit>,
}

impl Run {
    /// Reads the JSON of a run.
    pub(crate) fn parse(name: &str, value: Value) -> Result<Self, String> {
        let file: File = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let measured = |one: &FileMeasured| Measured {
            us: one.time.or(one.cpu_time).unwrap_or(0.0),
            busbw: one.bus_bw,
            wrong: one.nwrong.is_some_and(|wrong| wrong > 0.0),
        };
        let row = |(at, row): (usize, &FileRow)| Row {
            bytes: row.size,
            what: what(row),
            out_of_place: measured(&row.out_of_place),
            in_place: measured(&row.in_place),
            expected_us: file.ringway.expected_us.get(at).copied().flatten(),
            iterations: row.out_of_place_per_iter.clone(),
            limit: file.ringway.expectation.rows.get(at).cloned(),
        };
        let rows: Vec<Row> = file.results.iter().enumerate().map(row).collect();
        let sides = rows.iter().flat_map(|row| [row.out_of_place, row.in_place]);
        let mut hosts: Vec<&str> =
            file.config.devices.iter().map(|d| d.hostname.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let mut devices: Vec<String> =
            file.config.devices.iter().map(|device| device.device_info.trim().to_owned()).collect();
        devices.sort_unstable();
        devices.dedup();
        let okay = file.average_bus_bandwidth["okay"].as_str();
        Ok(Self {
            name: name.to_owned(),
            collective: file.ringway.collective.clone().unwrap_or_else(|| named(&file.args)),
            ranks: file.ringway.ranks.unwrap_or(file.config.devices.len()),
            hosts: hosts.len(),
            hosts_named: !hosts.is_empty() && !hosts.contains(&""),
            devices,
            began: file.start_time,
            connection: file.ringway.connection,
            wrong: sides.filter(|side| side.wrong).count(),
            average: file.average_bus_bandwidth["bandwidth"].as_f64().unwrap_or(0.0),
            average_passes: okay.and_then(|word| word.parse().ok()),
            errors: file.errors.iter().map(quoted).collect(),
            rows,
        })
    }

    /// What is usual for its GPUs, in GB/s of bus bandwidth at large sizes, where that is known.
    pub(super) fn usual(&self) -> Option<(&str, f64)> {
        let [model] = &self.devices[..] else { return None };
        Some((model, usual(model, &self.collective, self.ranks, self.hosts)?))
    }

    /// The best bus bandwidth of large sizes.
    pub(super) fn peak(&self) -> Option<f64> {
        let large = self.rows.iter().filter(|row| row.bytes >= LARGE);
        large.map(|row| row.out_of_place.busbw.max(row.in_place.busbw)).reduce(f64::max)
    }

    pub(super) fn place(&self) -> Place<'_> {
        Place {
            hosts: self.hosts_named.then_some(self.hosts),
            connection: Some(self.connection.as_str()).filter(|text| !text.is_empty()),
        }
    }

    /// Its rows by kind, the kinds in their order.
    pub(super) fn kinds(&self) -> Vec<(&str, Vec<&Row>)> {
        let mut kinds: Vec<(&str, Vec<&Row>)> = Vec::new();
        let mut places = BTreeMap::new();
        for row in &self.rows {
            let place = *places.entry(row.what.as_str()).or_insert(kinds.len());
            match kinds.get_mut(place) {
                Some((_, rows)) => rows.push(row),
                None => kinds.push((&row.what, vec![row])),
            }
        }
        kinds
    }

    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.collective, many(self.ranks, "rank", "ranks"))
    }
}

fn quoted(error: &Value) -> String {
    error.as_str().map_or_else(|| error.to_string(), str::to_owned)
}

/// The collective, as the command that was run names it.
fn named(args: &[String]) -> String {
    let word = |arg: &String| {
        let program = arg.rsplit('/').next().unwrap_or_default();
        let name = program.strip_suffix("_perf").unwrap_or(program);
        let known = name.parse::<Collective>().ok().map(|one| one.name().to_owned());
        known.or_else(|| program.ends_with("_perf").then(|| name.to_owned()))
    };
    args.iter().find_map(word).unwrap_or_else(|| "a collective".to_owned())
}

fn what(row: &FileRow) -> String {
    let root =
        row.root.as_str().map_or_else(|| row.root.to_string(), |text| text.trim().to_owned());
    let mut words: Vec<&str> = vec![&row.data_type];
    if !["", "none"].contains(&row.redop.as_str()) {
        words.push(&row.redop);
    }
    let root = format!("root {root}");
    if !["root -1", "root null", "root "].contains(&root.as_str()) {
        words.push(&root);
    }
    words.join(" ")
}

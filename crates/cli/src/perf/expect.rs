//! `--expect`: what the links under a collective permit, and whether a run reaches enough of it.
//!
//! ```text
//!   each rank's links (link) ──► told to all ──► ceilings of rows (ringway_plan::bound) ──► verdict
//! ```
//!
//! *Invariant*: a rate that nobody knows is never guessed. Without it, or without a row that is large enough, there is no verdict
//! but an error that says what to do.

mod link;

use std::collections::BTreeMap;
use std::fmt;

use anyhow::bail;
use ringway::Communicator;
use ringway_fabric::rate::Rate;
use ringway_plan::bound;
use ringway_plan::types::{Collective, Rank};
use serde::Serialize;

use self::link::{Own, Port};
use super::args::Memory;
use super::measure::{Bench, Subject};
use super::ranks;
use super::settings::Settings;
use super::table::{Device, NO_ADDRESS, Row};
use crate::size;

/// How much of a link's rate is enough, in percent, unless somebody says; and of memory's, whose rate is a plain copy's. That is a
/// guess on the safe side: it was not compared with copies on an idle machine.
const LINK_PERCENT: f64 = 80.0;
const MEMORY_PERCENT: f64 = 25.0;
/// Rows that would take less at the ceiling are latency's, and are not judged.
const JUDGED_S: f64 = 1e-3;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// The floor, as a percentage of the ceiling.
    pub(crate) percent: Option<f64>,
    /// The rate of the link that limits, in GB/s, where somebody knows better than the machine.
    pub(crate) rate_gbs: Option<f64>,
}

/// Reads a percentage of 1 to 100.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    number
        .filter(|number| (1.0..=100.0).contains(number))
        .ok_or_else(|| "not a percentage of 1 to 100, as 90".to_owned())
}

/// Reads a rate: `100G`, `NDR`, `12.5GB/s`; the value is in GB/s.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let bytes = text.strip_suffix("GB/s").and_then(|number| number.trim().parse::<f64>().ok());
    let bits = || Rate::wanted(text).map(|rate| rate.gbps() / 8.0);
    bytes
        .or_else(bits)
        .filter(|rate| (0.001..=1e5).contains(rate))
        .ok_or_else(|| "not a rate, as 100G (Gb/s), NDR or 12.5GB/s".to_owned())
}

/// A link, and the ranks behind it.
#[derive(Clone, Debug, PartialEq)]
struct Cut {
    name: String,
    gbs: f64,
    behind: Vec<Rank>,
}

/// The most that one row can reach.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ceiling {
    gbs: f64,
    percent: f64,
    link: String,
}

/// The ceilings of the rows of one cycle.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    ceilings: Vec<Ceiling>,
    factor: f64,
}

/// One row beside its ceiling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Judged {
    size: usize,
    ceiling_gbs: f64,
    floor_gbs: f64,
    /// The better of out of place and in place.
    reached_gbs: f64,
    percent: f64,
    /// What limits.
    link: String,
    /// Whether it reached the floor; nothing where the row is too small to tell.
    okay: Option<bool>,
}

/// All rows beside their ceilings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) rows: Vec<Judged>,
    pub(crate) okay: bool,
}

impl Expectation {
    /// Finds the ceilings. All ranks call it, and get the same or the same error.
    pub(crate) fn find(
        wanted: Wanted,
        settings: &Settings,
        comm: &Communicator,
        bench: &mut Bench<'_>,
        devices: &[Device],
        subjects: &[Subject],
    ) -> anyhow::Result<Self> {
        let collective = settings.collective;
        let factor = collective.bus_factor(comm.size());
        let own = Own::find(comm, devices, settings.memory == Memory::Cuda);
        let all = ranks::all_gather_texts(comm, &own.encode()?)?;
        let all: Vec<Own> = all.iter().map(|text| Own::decode(text)).collect::<Result<_, _>>()?;
        let cuts = cuts(wanted, devices, &all)?;
        let shares_memory = settings.memory == Memory::Host && wanted.rate_gbs.is_none();
        let near = all.iter().map(|one| one.near).min().unwrap_or(1);
        let mut ceilings = Vec::new();
        for subject in subjects {
            let root = subject.root.unwrap_or(0);
            let mut found = over_links(&cuts, collective, comm.size(), root, wanted);
            let inside = memory_factor(collective, comm.size(), near);
            match inside.filter(|_| shares_memory && near > 1) {
                Some(factor) => {
                    let memory = in_memory(bench, subject.bytes, wanted)?;
                    let memory = Ceiling { gbs: memory.gbs * factor, ..memory };
                    let is_less = found.as_ref().is_none_or(|link| memory.gbs < link.gbs);
                    found = if is_less { Some(memory) } else { found };
                }
                None if found.is_none() && near > 1 => bail!(
                    "--expect: what memory permits {collective} is not known; say it: --expect-rate 10GB/s (of each rank)"
                ),
                None => {}
            }
            let Some(ceiling) = found else {
                bail!(
                    "--expect: no byte of {collective} goes over a link here; there is nothing to judge"
                );
            };
            ceilings.push(ceiling);
        }
        let expectation = Self { ceilings, factor };
        expectation.check_sizes(subjects)?;
        Ok(expectation)
    }

    /// Fails where no row is large enough to be judged.
    fn check_sizes(&self, subjects: &[Subject]) -> anyhow::Result<()> {
        let mut rows = subjects.iter().zip(&self.ceilings);
        if rows.any(|(subject, ceiling)| self.is_judged(subject.bytes as f64, ceiling)) {
            return Ok(());
        }
        let most = self.ceilings.iter().map(|one| one.gbs).fold(0.0, f64::max);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes of a row"
        )]
        let bytes = (JUDGED_S * most * 1e9 / self.factor.max(0.01)) as u64;
        bail!(
            "--expect: rows this small are a matter of latency, which is not judged; raise -e to {} or more",
            size::display(bytes.next_power_of_two())
        )
    }

    fn is_judged(&self, bytes: f64, ceiling: &Ceiling) -> bool {
        bytes * self.factor / (ceiling.gbs * 1e9) >= JUDGED_S
    }

    /// The lines above the table.
    pub(crate) fn header(&self) -> Vec<String> {
        let most = self.ceilings.iter().max_by(|a, b| a.gbs.total_cmp(&b.gbs));
        let text = |one: &Ceiling| {
            format!("# Expected: {:.0} % of what limits, {}", one.percent, one.link)
        };
        most.map(text).into_iter().collect()
    }

    /// Rows of whole cycles beside their ceilings.
    pub(crate) fn judge(&self, rows: &[Row]) -> Verdict {
        let judge = |(row, ceiling): (&Row, &Ceiling)| {
            let reached = row.out_of_place.bus_bw.max(row.in_place.bus_bw);
            let floor = ceiling.gbs * ceiling.percent / 100.0;
            #[expect(clippy::cast_precision_loss, reason = "sizes of buffers")]
            let judged = self.is_judged(row.bytes as f64, ceiling);
            Judged {
                size: row.bytes,
                ceiling_gbs: ceiling.gbs,
                floor_gbs: floor,
                reached_gbs: reached,
                percent: reached / ceiling.gbs * 100.0,
                link: ceiling.link.clone(),
                okay: judged.then_some(reached >= floor),
            }
        };
        let rows: Vec<Judged> = rows.iter().zip(self.ceilings.iter().cycle()).map(judge).collect();
        let judged = || rows.iter().filter_map(|row| row.okay);
        let okay = judged().count() > 0 && judged().all(|okay| okay);
        Verdict { rows, okay }
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.okay {
            Some(true) => "OK",
            Some(false) => "FAILED",
            None => "small",
        };
        write!(
            f,
            "# {:>10}  {:>8.2}  {:>8.2}  {:>8.2}  {:>6.1}  {verdict:<6}  {}",
            self.size, self.ceiling_gbs, self.floor_gbs, self.reached_gbs, self.percent, self.link
        )
    }
}

impl Verdict {
    /// The lines below the table.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            "#".to_owned(),
            "# What the links permit, of bus bandwidth (GB/s):".to_owned(),
            format!(
                "# {:>10}  {:>8}  {:>8}  {:>8}  {:>6}  {:<6}  limited by",
                "size", "ceiling", "floor", "reached", "%", ""
            ),
        ];
        lines.extend(self.rows.iter().map(Judged::to_string));
        let judged = self.rows.iter().filter(|row| row.okay.is_some()).count();
        let below = self.rows.iter().filter(|row| row.okay == Some(false)).count();
        let word = if self.okay { "OK" } else { "FAILED" };
        lines.push(format!(
            "# {:<20} : {below} of {judged} rows below the floor {word}",
            "Expectation"
        ));
        lines
    }

    /// What is said where it is not reached.
    pub(crate) fn complaint(&self) -> Option<String> {
        let below = self.rows.iter().filter(|row| row.okay == Some(false));
        let worst = below.min_by(|a, b| a.percent.total_cmp(&b.percent))?;
        Some(format!(
            "ringway perf: {:.2} GB/s at {} is {:.1} % of what {} permits, and {:.2} were expected",
            worst.reached_gbs,
            size::display(worst.size as u64),
            worst.percent,
            worst.link,
            worst.floor_gbs
        ))
    }
}

/// The lowest ceiling of all links.
fn over_links(
    cuts: &[Cut],
    collective: Collective,
    ranks: u32,
    root: Rank,
    wanted: Wanted,
) -> Option<Ceiling> {
    let ceiling = |cut: &Cut| {
        let factor = bound::over_link(collective, ranks, root, &cut.behind)?;
        Some(Ceiling {
            gbs: cut.gbs * factor,
            percent: wanted.percent.unwrap_or(LINK_PERCENT),
            link: cut.name.clone(),
        })
    };
    cuts.iter().filter_map(ceiling).min_by(|a, b| a.gbs.total_cmp(&b.gbs))
}

/// What memory permits, of the rate at which all ranks copy, where `near` ranks of a host share it.
fn memory_factor(collective: Collective, ranks: u32, near: u32) -> Option<f64> {
    let inside = bound::in_memory(collective, near)?;
    match collective {
        _ if near == ranks => Some(inside),
        // Inside a host the same is done, however many hosts there are.
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => {
            Some(inside * collective.bus_factor(ranks) / collective.bus_factor(near))
        }
        _ => None,
    }
}

/// The rate at which all ranks copy memory at the same time, as much as a row has.
fn in_memory(bench: &mut Bench<'_>, bytes: u64, wanted: Wanted) -> anyhow::Result<Ceiling> {
    let gbs = bench.copy_gbs(bytes)?;
    Ok(Ceiling {
        gbs,
        percent: wanted.percent.unwrap_or(MEMORY_PERCENT),
        link: format!("memory (each rank copies at {gbs:.2} GB/s)"),
    })
}

/// All links with the ranks behind them.
fn cuts(wanted: Wanted, devices: &[Device], all: &[Own]) -> anyhow::Result<Vec<Cut>> {
    let mut machines: BTreeMap<&str, Vec<Rank>> = BTreeMap::new();
    for device in devices {
        machines.entry(&device.host).or_default().push(device.rank);
    }
    if let Some(gbs) = wanted.rate_gbs {
        return Ok(given(gbs, devices, &machines));
    }
    let mut cuts = Vec::new();
    if let Some(rank) = all.iter().position(|one| one.loops) {
        bail!(
            "--expect: rank {rank} reaches ranks of its own machine over the network stack, which has no rate; say what to \
             expect of each {}: --expect-rate 20G",
            if machines.len() > 1 { "machine" } else { "rank" }
        );
    }
    if machines.len() > 1 {
        for (machine, behind) in &machines {
            let mut ports: Vec<&Port> =
                behind.iter().flat_map(|rank| &all[*rank as usize].ports).collect();
            ports.sort_by(|a, b| a.name.cmp(&b.name));
            ports.dedup_by(|a, b| a.name == b.name);
            cuts.push(of_ports(machine, &ports, behind)?);
        }
    }
    for (device, own) in devices.iter().zip(all) {
        let Some(port) = &own.gpu else { continue };
        let shared = |other: &&Device| {
            (&other.host, &other.address) == (&device.host, &device.address)
                && device.address != NO_ADDRESS
        };
        let Some(gbs) = port.gbs.filter(|_| devices.iter().filter(shared).count() == 1) else {
            bail!(
                "--expect: what rank {} can move is not known ({}: several ranks on it, or its links are not told); say what to \
                 expect of each {}: --expect-rate 100GB/s",
                device.rank,
                port.name,
                if machines.len() > 1 { "machine" } else { "rank" }
            );
        };
        let name = format!("{} of {} ({gbs:.1} GB/s)", port.name, device.host);
        cuts.push(Cut { name, gbs, behind: vec![device.rank] });
    }
    Ok(cuts)
}

/// The links that were given: of each machine, or of each rank where there is one machine.
fn given(gbs: f64, devices: &[Device], machines: &BTreeMap<&str, Vec<Rank>>) -> Vec<Cut> {
    let rate = format!("{gbs:.2} GB/s, as --expect-rate says");
    if machines.len() > 1 {
        let cut = |(machine, behind): (&&str, &Vec<Rank>)| Cut {
            name: format!("the link of {machine} ({rate})"),
            gbs,
            behind: behind.clone(),
        };
        return machines.iter().map(cut).collect();
    }
    let cut = |device: &Device| Cut {
        name: format!("the link of rank {} ({rate})", device.rank),
        gbs,
        behind: vec![device.rank],
    };
    devices.iter().map(cut).collect()
}

/// All ports of a machine as one link.
fn of_ports(machine: &str, ports: &[&Port], behind: &[Rank]) -> anyhow::Result<Cut> {
    let unknown: Vec<&str> =
        ports.iter().filter(|port| port.gbs.is_none()).map(|port| port.name.as_str()).collect();
    if ports.is_empty() || !unknown.is_empty() {
        let what = if ports.is_empty() { "its ports".to_owned() } else { unknown.join(", ") };
        bail!(
            "--expect: the rate of {what} of {machine} is not known (the driver does not tell it); say what each machine's \
             link carries: --expect-rate 100G"
        );
    }
    let gbs = ports.iter().filter_map(|port| port.gbs).sum();
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    let rate = ringway_fabric::rate::bandwidth(gbs * 8.0);
    let name = format!("{} of {machine} ({rate})", names.join(", "));
    Ok(Cut { name, gbs, behind: behind.to_vec() })
}

#[cfg(test)]
mod tests;

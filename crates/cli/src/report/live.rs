//! Jobs while they run: what the communicators of this machine tell of themselves.
//!
//! *Invariant*: anybody who may write to the folder of sockets may tell anything; numbers that are none are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::heat::heat;
use super::model::{Block, Cell, Section, Table};
use super::perf::{micros, short};
use crate::doctor::finding::{Finding, Verdict};
use crate::fabric::show::many;
use ringway::exposition::Sample;

/// Communicators that are shown.
const COMMUNICATORS: usize = 12;
/// Ranks of a communicator that are listed.
const RANKS: usize = 64;
/// A call that has stood still for so long is worth a look.
const STANDS_S: f64 = 5.0;

/// Counters of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rank {
    host: String,
    pid: String,
    size: u32,
    operations: f64,
    bytes: f64,
    bus_bytes: f64,
    seconds: f64,
    standing_s: f64,
    failed: bool,
    culprit: Option<String>,
    waited_s: BTreeMap<u32, f64>,
}

/// All ranks by communicator.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Live {
    communicators: BTreeMap<String, BTreeMap<u32, Rank>>,
}

impl Live {
    /// Puts samples together.
    pub(crate) fn of<'a>(samples: impl Iterator<Item = &'a Sample>) -> Self {
        let mut live = Self::default();
        for sample in samples {
            let label = |name: &str| {
                sample.labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
            };
            let (Some(communicator), Some(rank)) = (label("communicator"), label("rank")) else {
                continue;
            };
            let Ok(rank) = rank.parse::<u32>() else { continue };
            let Some(value) = sample.value.parse::<f64>().ok().filter(|value| value.is_finite())
            else {
                continue;
            };
            let ranks = live.communicators.entry(communicator.to_owned()).or_default();
            let one = ranks.entry(rank).or_default();
            match sample.name.as_str() {
                "ringway_communicator_info" => {
                    one.host = label("host").unwrap_or_default().to_owned();
                    one.pid = label("pid").unwrap_or_default().to_owned();
                    one.size = label("size").and_then(|size| size.parse().ok()).unwrap_or(0);
                }
                "ringway_failed" => {
                    one.failed = value > 0.0;
                    one.culprit = label("culprit").map(str::to_owned);
                }
                "ringway_operations_total" => one.operations += value,
                "ringway_bytes_total" => one.bytes += value,
                "ringway_bus_bytes_total" => one.bus_bytes += value,
                "ringway_operation_seconds_sum" => one.seconds += value,
                // On the host or on the GPU: whichever has stood still for longer.
                "ringway_operation_running_seconds" | "ringway_device_waiting_seconds" => {
                    one.standing_s = one.standing_s.max(value);
                }
                "ringway_waiting_seconds_total" => {
                    if let Some(peer) = label("peer").and_then(|peer| peer.parse().ok()) {
                        *one.waited_s.entry(peer).or_default() += value;
                    }
                }
                _ => {}
            }
        }
        live
    }

    fn rank(&self, communicator: &str, rank: u32) -> Option<&Rank> {
        self.communicators.get(communicator)?.get(&rank)
    }
}

/// The section of all jobs; `before` is what they told `seconds` ago.
pub(crate) fn section(live: &Live, before: Option<(&Live, f64)>, troubles: &[String]) -> Section {
    let mut section = Section::new("jobs", "Running jobs");
    for trouble in troubles.iter().take(RANKS) {
        let finding = Finding::new("jobs", "job-silent", Verdict::Unknown, trouble.clone());
        section.findings.push(finding);
    }
    if live.communicators.is_empty() {
        section.blocks.push(Block::Text(
            "No job tells of itself now. One that is started with RINGWAY_METRICS=exporter does."
                .to_owned(),
        ));
        return section;
    }
    let mut all: Vec<(&String, &BTreeMap<u32, Rank>)> = live.communicators.iter().collect();
    all.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    for (name, ranks) in all.iter().take(COMMUNICATORS).copied() {
        let size = ranks.values().map(|rank| rank.size).max().unwrap_or(0);
        section.blocks.push(Block::Heading(format!(
            "communicator {name}: {} here of {size}",
            many(ranks.len(), "rank", "ranks")
        )));
        judge(&mut section, name, ranks);
        section.blocks.push(Block::Table(table(name, ranks, before)));
        if let Some(more @ 1..) = ranks.len().checked_sub(RANKS) {
            section
                .blocks
                .push(Block::Note(format!("Not listed: {}.", many(more, "rank", "ranks"))));
        }
        let waits: BTreeMap<(u32, u32), f64> = ranks
            .iter()
            .flat_map(|(rank, one)| one.waited_s.iter().map(|(peer, s)| ((*rank, *peer), *s)))
            .collect();
        let labels: BTreeSet<u32> =
            ranks.keys().copied().chain(waits.keys().map(|(_, peer)| *peer)).collect();
        let labels: Vec<u32> = labels.into_iter().collect();
        let title = "Waiting rank (down) and the rank it waited for (across), time in all";
        let picture = heat(title, &labels, &waits, |seconds| micros(seconds * 1e6));
        section.blocks.extend(picture.map(Block::Picture));
    }
    if let Some(more @ 1..) = all.len().checked_sub(COMMUNICATORS) {
        let note = format!("Not shown: {}.", many(more, "communicator", "communicators"));
        section.blocks.push(Block::Note(note));
    }
    section
}

fn judge(section: &mut Section, name: &str, ranks: &BTreeMap<u32, Rank>) {
    let failed = ranks.values().find(|rank| rank.failed);
    if let Some(rank) = failed {
        let blamed =
            rank.culprit.as_ref().map_or_else(String::new, |who| format!("; rank {who} is blamed"));
        let title = format!("communicator {name} has failed{blamed}");
        let finding = Finding::new("jobs", "job-failed", Verdict::Fail, title);
        section.findings.push(
            finding
                .fixed_by("the log of that rank says why; ringway trace shows what all did last"),
        );
    }
    let standing = ranks.iter().max_by(|a, b| a.1.standing_s.total_cmp(&b.1.standing_s));
    if let Some((rank, one)) =
        standing.filter(|(_, one)| one.standing_s >= STANDS_S && failed.is_none())
    {
        let title = format!(
            "communicator {name}: rank {rank} has stood still in a call for {}",
            micros(one.standing_s * 1e6)
        );
        let finding = Finding::new("jobs", "job-stands", Verdict::Warn, title);
        section.findings.push(finding.fixed_by("ringway why says who holds it up"));
    } else if failed.is_none() {
        let title = format!("no call of communicator {name} stands still");
        section.findings.push(Finding::new("jobs", "job-moves", Verdict::Pass, title));
    }
}

fn table(name: &str, ranks: &BTreeMap<u32, Rank>, before: Option<(&Live, f64)>) -> Table {
    let mut table = Table::new(&[
        "#rank",
        "host",
        "pid",
        "#calls",
        "#GB",
        "#busbw GB/s",
        "#calls/s now",
        "#GB/s now",
        "#stands still",
        "#waited",
    ]);
    for (rank, one) in ranks.iter().take(RANKS) {
        let rate =
            |bytes: f64, seconds: f64| if seconds > 0.0 { bytes / seconds / 1e9 } else { 0.0 };
        let old = before.and_then(|(live, apart)| Some((live.rank(name, *rank)?, apart)));
        let now = old.filter(|(old, apart)| *apart > 0.0 && one.operations >= old.operations);
        let (often, fast) = match now {
            None => (Cell::text("-"), Cell::text("-")),
            Some((old, apart)) => {
                let often = (one.operations - old.operations) / apart;
                let fast = rate(one.bus_bytes - old.bus_bytes, one.seconds - old.seconds);
                (Cell::number(short(often), often), Cell::number(short(fast), fast))
            }
        };
        let mean = rate(one.bus_bytes, one.seconds);
        let waited: f64 = one.waited_s.values().sum();
        let stands = Cell::number(micros(one.standing_s * 1e6), one.standing_s);
        table.rows.push(vec![
            Cell::number(rank.to_string(), f64::from(*rank)),
            Cell::text(one.host.clone()),
            Cell::text(one.pid.clone()),
            Cell::number(format!("{:.0}", one.operations), one.operations),
            Cell::number(short(one.bytes / 1e9), one.bytes),
            Cell::number(short(mean), mean),
            often,
            fast,
            if one.standing_s >= STANDS_S { stands.marked(Verdict::Warn) } else { stands },
            Cell::number(micros(waited * 1e6), waited),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, labels: &[(&str, &str)], value: &str) -> Sample {
        let mut all = vec![("communicator", "0x1"), ("rank", "0")];
        all.extend_from_slice(labels);
        let labels = all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Sample { name: name.to_owned(), labels: labels.collect(), value: value.to_owned() }
    }

    #[test]
    fn rates_are_of_what_was_told_since() {
        let told = |operations: &str, bytes: &str, seconds: &str| {
            Live::of(
                [
                    sample("ringway_communicator_info", &[("size", "2"), ("host", "a")], "1"),
                    sample("ringway_operations_total", &[("collective", "all_reduce")], operations),
                    sample("ringway_bus_bytes_total", &[("collective", "all_reduce")], bytes),
                    sample(
                        "ringway_operation_seconds_sum",
                        &[("collective", "all_reduce")],
                        seconds,
                    ),
                    sample("ringway_waiting_seconds_total", &[("peer", "1")], "0.5"),
                    sample("ringway_waiting_seconds_total", &[("peer", "2")], "NaN"),
                ]
                .iter(),
            )
        };
        let (old, new) = (told("10", "1e9", "1"), told("30", "5e9", "2"));
        let table = table("0x1", &new.communicators["0x1"], Some((&old, 4.0)));
        let texts: Vec<&str> = table.rows[0].iter().map(|cell| cell.text.as_str()).collect();
        assert_eq!(texts, ["0", "a", "", "30", "0", "2.50", "5.00", "4.00", "0 us", "500 ms"]);
        // A new job under an old name has counted less.
        let fresh = super::table("0x1", &old.communicators["0x1"], Some((&new, 4.0)));
        assert_eq!(fresh.rows[0][6].text, "-");
    }

    #[test]
    fn what_stands_still_or_failed_is_a_finding() {
        let verdicts = |samples: &[Sample]| -> Vec<Verdict> {
            let section = section(&Live::of(samples.iter()), None, &[]);
            section.findings.iter().map(|one| one.verdict).collect()
        };
        let running = |seconds: &str| sample("ringway_operation_running_seconds", &[], seconds);
        assert_eq!(verdicts(&[running("0.1")]), [Verdict::Pass]);
        assert_eq!(verdicts(&[running("31")]), [Verdict::Warn]);
        let on_gpu = sample("ringway_device_waiting_seconds", &[], "31");
        assert_eq!(verdicts(&[on_gpu.clone(), running("0")]), [Verdict::Warn]);
        assert_eq!(verdicts(&[running("0"), on_gpu]), [Verdict::Warn]);
        let failed = sample("ringway_failed", &[("culprit", "3")], "1");
        assert_eq!(verdicts(&[running("31"), failed]), [Verdict::Fail]);
        assert_eq!(section(&Live::default(), None, &["x: no answer".to_owned()]).findings.len(), 1);
    }
}

//! `ringway doctor --log`: reads logs of jobs and machines and says what went wrong.
//!
//! ```text
//! lines ─► rules (words) · nccl (forms) · device (codes) · curve, perftest (tables) ─► conclude ─► Report
//! ```
//!
//! Files are read one after another as if they were one job's. *Invariant*: one pass, in memory that grows
//! with ranks and distinct facts, each part with a limit; no input makes it panic.

mod conclude;
pub(crate) mod curve;
mod device;
mod job;
mod lines;
mod nccl;
mod packed;
mod pairs;
mod perftest;
mod rules;
mod sight;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use memchr::{memchr, memmem};

use self::curve::Tables;
use self::device::Devices;
use self::job::Job;
use self::lines::Totals;
pub(crate) use self::pairs::Pairs;
use self::perftest::Perftest;
use self::rules::{In, Rules};
use self::sight::{Place, Sight};
use super::finding::Report;

/// Reads the files one after another: what is wrong, and which way each pair of ranks took.
pub(crate) fn examine(paths: &[PathBuf]) -> anyhow::Result<(Report, Pairs)> {
    let mut reader = Reader::new()?;
    for path in paths {
        if path == Path::new("-") {
            reader.read("stdin", &mut io::stdin().lock())?;
        } else {
            let name = path.display().to_string();
            let mut file = File::open(path).with_context(|| name.clone())?;
            reader.read(&name, &mut file)?;
        }
    }
    Ok(reader.report())
}

/// All that was read so far.
pub(crate) struct Reader {
    rules: Rules,
    marker: memmem::Finder<'static>,
    files: Vec<String>,
    totals: Vec<Totals>,
    seen: Seen,
}

/// What the lines said.
pub(crate) struct Seen {
    pub(crate) job: Job,
    pub(crate) devices: Devices,
    pub(crate) tables: Tables,
    pub(crate) perftest: Perftest,
    /// Rules that fitted, by number.
    pub(crate) hits: BTreeMap<usize, Sight>,
}

impl Reader {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            rules: Rules::new()?,
            marker: memmem::Finder::new(b"CCL "),
            files: Vec::new(),
            totals: Vec::new(),
            seen: Seen {
                job: Job::new(),
                devices: Devices::new(),
                tables: Tables::default(),
                perftest: Perftest::default(),
                hits: BTreeMap::new(),
            },
        })
    }

    /// Reads one file.
    pub(crate) fn read(&mut self, name: &str, source: &mut dyn Read) -> anyhow::Result<()> {
        let mut magic = [0_u8; packed::MAGIC];
        let got = read_some(source, &mut magic).with_context(|| name.to_owned())?;
        let mut whole = packed::open(name, &magic[..got], source)?;
        let file = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        self.files.push(name.to_owned());
        let Self { rules, marker, seen, .. } = self;
        let mut totals = lines::each(&mut whole, |line, bytes| {
            see(seen, rules, marker, Place { file, line }, bytes);
        })
        .with_context(|| name.to_owned())?;
        seen.tables.end_row();
        totals.fault = whole.fault.take();
        self.totals.push(totals);
        Ok(())
    }

    /// What it comes to.
    pub(crate) fn report(mut self) -> (Report, Pairs) {
        let report = conclude::report(&mut self.seen, &self.files, &self.totals);
        (report, self.seen.job.pairs)
    }
}

fn read_some(source: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match source.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(many) => got += many,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Looks at one line.
fn see(seen: &mut Seen, rules: &Rules, marker: &memmem::Finder<'_>, place: Place, bytes: &[u8]) {
    let line = &*plain(bytes);
    let parts = nccl::parts(line, marker);
    // Two processes may write into one line.
    let second = parts.as_ref().and_then(|parts| nccl::parts(parts.message, marker));
    let second = second.filter(|second| second.word != b"version"); // that is the first's message
    let harmless = second.is_none() && parts.as_ref().is_some_and(nccl::Parts::is_harmless);
    let warning = parts.iter().chain(&second).find(|parts| parts.word == b"WARN");
    let touched = !harmless && rules.touches(line);
    let place_of = match (warning, &parts) {
        (Some(_), _) => In::Warn,
        (None, Some(_)) => In::Nccl,
        (None, None) => In::Any,
    };
    let speaker = warning.or(parts.as_ref());
    if touched && seen.devices.read(line, speaker, place) {
        // Counted there.
    } else if let Some((number, rule)) = touched.then(|| rules.find(line, place_of)).flatten() {
        // `[PG 0 Rank 3] Watchdog caught …`, `[Rank 3] …`
        let rank = nccl::number_after(line, "Rank ").and_then(nccl::to_u32);
        if let Some(rank) = rank.filter(|_| rule.id == "watchdog") {
            seen.job.waits(rank);
        }
        let host = speaker.and_then(nccl::Parts::host);
        seen.hits.entry(number).or_default().add(place, line, host);
    } else if let Some(warning) = warning {
        other_warning(seen, line, warning, place);
    }
    let Some(parts) = parts else { return outside(seen, line, touched, place) };
    seen.job.nccl_lines += 1;
    if seen.tables.is_open()
        && parts.head.first().is_some_and(|byte| *byte == b' ' || byte.is_ascii_digit())
        && let Some(piece) = std::str::from_utf8(parts.head).ok().and_then(curve::cut_row)
    {
        seen.tables.row(&piece, place);
    }
    for parts in std::iter::once(parts).chain(second) {
        match parts.word {
            b"version" => nccl::version(&mut seen.job, &parts, place, line),
            b"INFO" => nccl::learn(&mut seen.job, &parts, place, line),
            _ => {}
        }
    }
}

fn other_warning(seen: &mut Seen, line: &[u8], parts: &nccl::Parts<'_>, place: Place) {
    if parts.message.starts_with(b"Failed to open libibverbs") {
        seen.job.no_verbs.add(place, line, parts.host());
        return;
    }
    // Alike but for numbers is the same.
    let start = &parts.message[..parts.message.len().min(60)];
    let kind: String = String::from_utf8_lossy(start)
        .chars()
        .filter(|c| !c.is_ascii_digit() && !c.is_control())
        .collect();
    seen.job.other_warnings.add(kind.trim(), place, line, parts.host());
}

/// A line that is none of NCCL's: a table of nccl-tests or perftest, perhaps.
fn outside(seen: &mut Seen, line: &[u8], touched: bool, place: Place) {
    let is_comment = memchr(b'#', &line[..line.len().min(64)]).is_some();
    let names_test = touched && line.len() < 4096 && nccl::find(line, b"_perf").is_some();
    let is_row = line.len() < 1024 && (seen.tables.is_open() || curve::begins_row(line)) && {
        let last = line.trim_ascii_end().last();
        last.is_some_and(|byte| byte.is_ascii_digit() || *byte == b'A')
    };
    let names_device = touched && nccl::find(line, b"Device         :").is_some();
    if !(is_comment || names_test || is_row || names_device || seen.perftest.is_open()) {
        return;
    }
    let text = String::from_utf8_lossy(&line[..line.len().min(4096)]);
    if is_comment || names_test {
        seen.tables.comment(&text, place);
    } else if is_row {
        seen.tables.row(&text, place);
    }
    if seen.perftest.is_open() || is_comment || names_device {
        seen.perftest.read(&text, place);
    }
}

/// The line without colours.
fn plain(line: &[u8]) -> Cow<'_, [u8]> {
    if memchr(0x1b, line).is_none() {
        return Cow::Borrowed(line);
    }
    let mut kept = Vec::with_capacity(line.len());
    let mut at = 0;
    while at < line.len() {
        if line[at] == 0x1b {
            at += 1;
            if line.get(at) == Some(&b'[') {
                at += 1;
                while line.get(at).is_some_and(|byte| !(0x40..=0x7e).contains(byte)) {
                    at += 1;
                }
            }
        } else {
            kept.push(line[at]);
        }
        at += 1;
    }
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests;

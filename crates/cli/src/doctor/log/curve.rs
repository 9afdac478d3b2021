//! Tables of nccl-tests and rccl-tests: reading them, also where the log of NCCL has cut their rows.
//!
//! A row is `size count type [redop] [root]` and twice `time algbw busbw wrong`. Launchers put words before
//! it; NCCL may write between its pieces.
//!
//! *Invariant*: a curve has at most [`ROWS`] sizes, and there are at most [`CURVES`]; others are counted.

pub(crate) mod expect;

use std::collections::{BTreeMap, BTreeSet};

use super::sight::Place;

/// Sizes of one curve.
const ROWS: usize = 256;
/// Curves of one run.
const CURVES: usize = 512;
/// Devices of a table kept by model and host.
const NAMES: usize = 4096;

/// One size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// Best time, µs.
    pub(crate) best_us: f64,
    /// Worst time, µs.
    pub(crate) worst_us: f64,
    /// Best bus bandwidth, GB/s.
    pub(crate) busbw: f64,
    /// Worst bus bandwidth, GB/s.
    pub(crate) worst_busbw: f64,
    /// Bus bandwidth over bandwidth of that.
    pub(crate) ratio: f64,
    pub(crate) place: Place,
}

/// Who took part.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Setup {
    pub(crate) collective: Option<String>,
    /// Models of GPUs and how many.
    pub(crate) models: BTreeMap<String, u32>,
    pub(crate) hosts: BTreeSet<String>,
}

impl Setup {
    pub(crate) fn ranks(&self) -> u32 {
        self.models.values().sum()
    }
}

/// One collective measured over sizes.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) setup: Setup,
    pub(crate) rows: BTreeMap<u64, Row>,
    pub(crate) redop: bool,
}

/// Wrong results.
#[derive(Clone, Debug)]
pub(crate) struct Wrong {
    pub(crate) place: Place,
    pub(crate) line: String,
}

/// All tables of a run.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) curves: Vec<Curve>,
    pub(crate) wrong: Vec<Wrong>,
    pub(crate) wrong_count: u64,
    pub(crate) left_out: u64,
    setup: Setup,
    /// A row whose end has not come yet: its size and the values so far.
    open: Option<(u64, Vec<f64>, bool, Place)>,
    counts_wrong: bool,
    in_table: bool,
}

const TYPES: &[&str] = &[
    "float",
    "half",
    "double",
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bfloat16",
    "int",
    "uint",
    "char",
    "f8e4m3",
    "f8e5m2",
    "fp8_e4m3",
    "fp8_e5m2",
    "float8_e4m3",
    "float8_e5m2",
];

impl Tables {
    /// A comment line of nccl-tests.
    pub(crate) fn comment(&mut self, line: &str, place: Place) {
        if let Some(at) = line.find("_perf") {
            let start = line[..at]
                .rfind(|c: char| !c.is_ascii_lowercase() && c != '_')
                .map_or(0, |i| i + 1);
            self.setup.collective = Some(line[start..at].to_owned());
        }
        if line.contains("Using devices") || line.contains("nThread") {
            self.end_row();
            self.setup.models.clear();
            self.setup.hosts.clear();
        } else if line.contains("Rank") && line.contains(" device ") {
            self.device(line);
        } else if line.contains("busbw") {
            self.counts_wrong = line.contains("#wrong");
            self.in_table = true;
        } else if line.contains("Out of bounds values") {
            self.end_row();
            let number = line.split(':').next_back().unwrap_or("").split_whitespace().next();
            if number.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > 0) {
                self.note_wrong(line, place);
            }
            self.in_table = false;
        }
    }

    /// `#  Rank  0 Group  0 Pid 19 on host device  0 [0x0f] NVIDIA H100 80GB HBM3`
    fn device(&mut self, line: &str) {
        let Some((before, after)) = line.split_once(" device ") else { return };
        let host = before.split_whitespace().next_back().unwrap_or("");
        let model = after.split_once(']').map_or("", |(_, model)| model.trim());
        let setup = &mut self.setup;
        if model.len() < 80 && (setup.models.len() < NAMES || setup.models.contains_key(model)) {
            *setup.models.entry(model.to_owned()).or_default() += 1;
        }
        if host.len() < 80 && setup.hosts.len() < NAMES {
            setup.hosts.insert(host.to_owned());
        }
    }

    /// Whether a line might be a row or a piece of one.
    pub(crate) fn is_open(&self) -> bool {
        self.in_table || self.open.is_some()
    }

    /// A row or a piece of one; other lines are left alone.
    pub(crate) fn row(&mut self, line: &str, place: Place) {
        let mut tokens = [""; 24];
        let mut many = 0;
        for token in line.split_whitespace() {
            if many == tokens.len() {
                return;
            }
            tokens[many] = token;
            many += 1;
        }
        let tokens = &tokens[..many];
        let at = tokens.iter().position(|token| TYPES.contains(token)).filter(|at| *at >= 2);
        if let Some(at) = at {
            let size = trailing_number(tokens[at - 2]);
            if let (Some(size), Ok(_)) = (size, tokens[at - 1].parse::<u64>()) {
                self.end_row();
                let rest = &tokens[at + 1..];
                let redop = rest
                    .first()
                    .is_some_and(|word| word.parse::<f64>().is_err() && *word != "none");
                let values = match rest.len() {
                    8.. => &rest[rest.len() - 8..],
                    5..=6 => &rest[rest.len() - 4..], // out of place only
                    _ => &[],
                };
                self.open = Some((size, Vec::with_capacity(8), redop, place));
                self.values(values, line, place);
            }
        } else if self.open.is_some() && tokens.len() == 4 {
            self.values(tokens, line, place);
        }
    }

    fn values(&mut self, tokens: &[&str], line: &str, place: Place) {
        let Some((_, values, ..)) = &mut self.open else { return };
        let numbers: Vec<f64> = tokens
            .iter()
            .map(|token| if *token == "N/A" { Ok(0.0) } else { token.parse::<f64>() })
            .collect::<Result<_, _>>()
            .unwrap_or_default();
        if numbers.len() != tokens.len() || numbers.iter().any(|n| !n.is_finite() || *n < 0.0) {
            return;
        }
        values.extend(&numbers);
        let is_wrong = numbers.chunks(4).any(|four| four.len() == 4 && four[3] > 0.0);
        let is_full = values.len() >= 8;
        if self.counts_wrong && is_wrong {
            self.note_wrong(line, place);
        }
        if is_full {
            self.end_row();
        }
    }

    fn note_wrong(&mut self, line: &str, place: Place) {
        self.wrong_count += 1;
        if self.wrong.len() < 3 {
            self.wrong.push(Wrong { place, line: super::sight::shown(line.as_bytes()) });
        }
    }

    /// Takes the open row into its curve.
    pub(crate) fn end_row(&mut self) {
        let Some((size, values, redop, place)) = self.open.take() else { return };
        let mut row: Option<Row> = None;
        for four in values.chunks_exact(4) {
            let [time, algbw, busbw, _] = four else { continue };
            let ratio = if *algbw > 0.5 { busbw / algbw } else { 0.0 };
            let so_far = row.get_or_insert(Row {
                best_us: *time,
                worst_us: *time,
                busbw: *busbw,
                worst_busbw: *busbw,
                ratio,
                place,
            });
            so_far.merge(*time, *busbw, ratio);
        }
        let Some(row) = row else { return };
        let is_same = |curve: &Curve| curve.setup == self.setup && curve.redop == redop;
        if !self.curves.last().is_some_and(is_same) {
            if self.curves.len() >= CURVES {
                self.left_out += 1;
                return;
            }
            let (setup, rows) = (self.setup.clone(), BTreeMap::new());
            self.curves.push(Curve { setup, rows, redop });
        }
        let curve = self.curves.last_mut().expect("there is one: it was just made if not");
        if curve.rows.len() >= ROWS && !curve.rows.contains_key(&size) {
            self.left_out += 1;
            return;
        }
        let known = curve.rows.entry(size).or_insert(row);
        known.merge(row.best_us, row.busbw, row.ratio);
        known.merge(row.worst_us, row.worst_busbw, row.ratio);
    }
}

impl Row {
    fn merge(&mut self, time: f64, busbw: f64, ratio: f64) {
        self.best_us = self.best_us.min(time);
        self.worst_us = self.worst_us.max(time);
        self.busbw = self.busbw.max(busbw);
        self.worst_busbw = self.worst_busbw.min(busbw);
        self.ratio = self.ratio.max(ratio);
    }
}

/// `[1,0]<stdout>:1048576` and `1048576`: the number at the end.
fn trailing_number(token: &str) -> Option<u64> {
    let start = token.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    token.get(start..)?.parse().ok()
}

/// Whether a line begins with two whole numbers, as a row does.
pub(crate) fn begins_row(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let first = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = &line[first..];
    let second = rest.trim_ascii_start();
    first > 0 && second.len() < rest.len() && second.first().is_some_and(u8::is_ascii_digit)
}

/// The part of a table row before a line of NCCL that was written into it: what comes before `host:pid:tid`,
/// with the number that is glued to the host.
pub(crate) fn cut_row(head: &str) -> Option<String> {
    let mut tokens: Vec<&str> = head.split_whitespace().collect();
    let last = tokens.pop()?;
    let glued = if last.starts_with('[') { tokens.pop()? } else { last };
    if tokens.len() < 3 || !tokens[0].starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let digits = glued.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(0);
    Some(format!("{} {}", tokens.join(" "), &glued[..digits]))
}

#[cfg(test)]
mod tests;

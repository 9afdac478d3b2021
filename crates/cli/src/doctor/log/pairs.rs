//! Which way each pair of ranks took: the channels, the transport, and on which side the network card reaches GPU
//! memory.
//!
//! NCCL's line of a channel does not name its communicator, so pairs are those of rank numbers: of a job whose
//! communicators were split they may be of several. *Invariant*: at most [`MOST`] pairs are kept, of 40 bytes each;
//! the others are counted.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use serde::Serialize;

use super::job::Path;

/// Pairs kept.
const MOST: usize = 1 << 20;

/// Rows of the summary that are shown.
const SHOWN: usize = 20;

/// Pairs named in a row of the summary.
const NAMED: usize = 3;

/// One side's use of GPUDirect.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    /// Every line of it has it.
    Yes,
    /// Some have.
    Some,
    /// None has.
    No,
    /// The side's lines are not in the log.
    #[default]
    Unknown,
}

impl Side {
    fn and(self, has: bool) -> Self {
        match (self, has) {
            (Self::Unknown | Self::Yes, true) => Self::Yes,
            (Self::Unknown | Self::No, false) => Self::No,
            _ => Self::Some,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Some => "some",
            Self::No => "no",
            Self::Unknown => "?",
        }
    }
}

/// What one line of a channel says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) path: Path,
    pub(crate) channel: u32,
    /// Whether it is the sender's line, and has GPUDirect; nothing where it is not of a network.
    pub(crate) gdr: Option<(bool, bool)>,
}

/// A pair of ranks over one transport.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// A bit for each; those from 63 on share one.
    channels: u64,
    send: Side,
    receive: Side,
}

/// All pairs.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    seen: HashMap<(u32, u32, Path), Pair>,
    /// Lines of pairs that found no place.
    pub(crate) left_out: u64,
}

/// A pair, or pairs that are alike, as programs read it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Row {
    transport: &'static str,
    channels: u32,
    /// Of transports over a network.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpudirect: Option<Gpudirect>,
    /// How many pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<usize>,
    /// The first of them, `[from, to]`; the pair itself in a list of all.
    #[serde(rename = "ranks")]
    named: Vec<[u32; 2]>,
}

/// Sides of a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct Gpudirect {
    send: Side,
    receive: Side,
}

/// What `--json` says of pairs.
#[derive(Debug, Serialize)]
pub(crate) struct Listing {
    summary: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<Vec<Row>>,
    left_out: u64,
}

impl Pairs {
    pub(crate) fn add(&mut self, line: Line) {
        let key = (line.from, line.to, line.path);
        if self.seen.len() >= MOST && !self.seen.contains_key(&key) {
            self.left_out += 1;
            return;
        }
        let pair = self.seen.entry(key).or_default();
        pair.channels |= 1 << line.channel.min(63);
        match line.gdr {
            Some((true, has)) => pair.send = pair.send.and(has),
            Some((false, has)) => pair.receive = pair.receive.and(has),
            None => {}
        }
    }

    /// Pairs over a transport.
    pub(crate) fn over(&self, path: Path) -> usize {
        self.seen.keys().filter(|(.., one)| *one == path).count()
    }

    /// Pairs that are alike, the most frequent first.
    pub(crate) fn summary(&self) -> Vec<Row> {
        let mut kinds = BTreeMap::<(Path, u32, Option<Gpudirect>), (usize, Vec<[u32; 2]>)>::new();
        for (&(from, to, path), pair) in &self.seen {
            let entry =
                kinds.entry((path, pair.channels.count_ones(), pair.sides(path))).or_default();
            entry.0 += 1;
            // The lowest few, in whatever order they come.
            let at = entry.1.partition_point(|known| *known < [from, to]);
            if at < NAMED {
                entry.1.insert(at, [from, to]);
                entry.1.truncate(NAMED);
            }
        }
        let mut rows: Vec<Row> = kinds
            .into_iter()
            .map(|((path, channels, gpudirect), (pairs, named))| Row {
                transport: path.name(),
                channels,
                gpudirect,
                pairs: Some(pairs),
                named,
            })
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.pairs));
        rows
    }

    /// Every pair, by rank.
    pub(crate) fn all(&self) -> Vec<Row> {
        let mut keys: Vec<_> = self.seen.iter().collect();
        keys.sort_unstable_by_key(|(key, _)| **key);
        keys.into_iter()
            .map(|(&(from, to, path), pair)| Row {
                transport: path.name(),
                channels: pair.channels.count_ones(),
                gpudirect: pair.sides(path),
                pairs: None,
                named: vec![[from, to]],
            })
            .collect()
    }

    /// For programs.
    pub(crate) fn listing(&self, all: bool) -> Listing {
        Listing { summary: self.summary(), all: all.then(|| self.all()), left_out: self.left_out }
    }

    /// For people; nothing where no pair is known.
    pub(crate) fn text(&self, all: bool) -> String {
        if self.seen.is_empty() {
            return String::new();
        }
        let mut page = String::new();
        let rows = if all { self.all() } else { self.summary() };
        let first = |row: &Row| match row.pairs {
            Some(pairs) => pairs.to_string(),
            None => row.names(),
        };
        let head = if all { "from -> to" } else { "pairs" };
        let widest = rows.iter().map(|row| first(row).len()).max().unwrap_or(0).max(head.len());
        let _ = writeln!(page, "pairs of ranks");
        let (send, receive) = ("GPUDirect send", "receive");
        let _ = writeln!(
            page,
            "  {head:>widest$}  channels  {:<18}  {send}  {receive}{}",
            "transport",
            if all { "" } else { "  ranks" }
        );
        let shown = if all { rows.len() } else { SHOWN };
        for row in rows.iter().take(shown) {
            let side =
                |of: fn(&Gpudirect) -> Side| row.gpudirect.as_ref().map_or("-", |g| of(g).word());
            let names = match row.pairs {
                Some(pairs) if pairs > row.named.len() => format!("  {}, …", row.names()),
                Some(_) => format!("  {}", row.names()),
                None => String::new(),
            };
            let line = format!(
                "  {:>widest$}  {:>8}  {:<18}  {:<14}  {:<7}{names}",
                first(row),
                row.channels,
                row.transport,
                side(|sides| sides.send),
                side(|sides| sides.receive),
            );
            let _ = writeln!(page, "{}", line.trim_end());
        }
        if rows.len() > shown {
            let _ = writeln!(page, "  and {} more kinds; --pairs lists all", rows.len() - shown);
        }
        if self.left_out > 0 {
            let _ = writeln!(page, "  and {} lines of more pairs than are kept", self.left_out);
        }
        page
    }
}

impl Pair {
    fn sides(&self, path: Path) -> Option<Gpudirect> {
        path.is_net().then_some(Gpudirect { send: self.send, receive: self.receive })
    }
}

impl Row {
    fn names(&self) -> String {
        let names: Vec<String> =
            self.named.iter().map(|[from, to]| format!("{from} -> {to}")).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(from: u32, to: u32, path: Path, channel: u32, gdr: Option<(bool, bool)>) -> Line {
        Line { from, to, path, channel, gdr }
    }

    #[test]
    fn alike_pairs_are_one_row_and_sides_are_told_apart() {
        let mut pairs = Pairs::default();
        for from in 0..8 {
            for channel in 0..4 {
                pairs.add(line(from, (from + 1) % 8, Path::P2pCumem, channel, None));
            }
        }
        for channel in 0..2 {
            pairs.add(line(0, 8, Path::NetRdma, channel, Some((true, true))));
            pairs.add(line(0, 8, Path::NetRdma, channel, Some((false, false))));
            pairs.add(line(8, 0, Path::NetRdma, channel, Some((true, channel == 0))));
        }
        let summary = pairs.summary();
        assert_eq!(summary.len(), 3);
        assert_eq!((summary[0].pairs, summary[0].channels), (Some(8), 4));
        let sides = |row: &Row| row.gpudirect.map(|sides| (sides.send, sides.receive));
        let of =
            |from: u32| summary.iter().find(|row| row.named[0][0] == from && row.pairs == Some(1));
        assert_eq!(sides(of(0).unwrap()), Some((Side::Yes, Side::No)));
        assert_eq!(sides(of(8).unwrap()), Some((Side::Some, Side::Unknown)));
        let text = pairs.text(true);
        assert_eq!(text.lines().count(), 12, "{text}");
        assert!(
            text.lines().any(|line| {
                line.split_whitespace().eq(["0", "->", "8", "2", "NET/IB", "yes", "no"])
            }),
            "{text}"
        );
        assert_eq!(Pairs::default().text(false), "");
    }

    #[test]
    fn more_pairs_than_are_kept_are_counted() {
        let mut pairs = Pairs::default();
        for from in 0..1100 {
            for to in 0..1000 {
                pairs.add(line(from, to, Path::Shm, 0, None));
            }
        }
        assert_eq!((pairs.over(Path::Shm), pairs.left_out), (MOST, 1_100_000 - MOST as u64));
        assert!(pairs.text(false).contains("lines of more pairs than are kept"));
    }
}

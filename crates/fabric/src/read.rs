//! Reading what operators save.
//!
//! Each tool's text has one reader; which it is, is seen from the text. Several dumps may stand in one input, one
//! after the other, and several inputs make one fabric: the topology of one, the counters of another.
//!
//! *Invariant:* reading is total and bounded: arbitrary bytes give a fabric or an error with a line. A line that is
//! not understood is an error, never left out: what is missing from a fabric is what one looks for.

mod ethtool;
mod ibstat;
mod json;
mod linkinfo;
mod netfile;
mod perfquery;
mod portlist;
mod queryerrors;
mod swinfo;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::draft::{Draft, FinishOptions, Place, ReadError};
use crate::model::{Fabric, Source};

/// The most bytes of one input.
pub const INPUT_BYTES_MOST: usize = 512 << 20;
/// The most bytes of one JSON input, which takes many times its length while it is read.
pub const JSON_BYTES_MOST: usize = 128 << 20;
/// The most lines of one input that are not blank: a million ports with thirty counters each.
pub const LINES_MOST: usize = 30 << 20;

/// What a text is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Format {
    /// `ibnetdiscover`, or a net file of `ibsim`.
    Netfile,
    /// `ibnetdiscover -p`.
    PortList,
    /// `iblinkinfo`, with or without `-l`.
    LinkInfo,
    /// `ibqueryerrors`.
    QueryErrors,
    /// `perfquery`, also `-x` and its details.
    Perfquery,
    /// `ibstat`.
    Ibstat,
    /// `ibswinfo`.
    SwitchInfo,
    /// `ethtool -S`.
    Ethtool,
    /// JSON: `lldpcli -f json`, or NetQ's topology.
    Json,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Netfile => "ibnetdiscover",
            Self::PortList => "ibnetdiscover -p",
            Self::LinkInfo => "iblinkinfo",
            Self::QueryErrors => "ibqueryerrors",
            Self::Perfquery => "perfquery",
            Self::Ibstat => "ibstat",
            Self::SwitchInfo => "ibswinfo",
            Self::Ethtool => "ethtool -S",
            Self::Json => "LLDP JSON",
        })
    }
}

/// Takes inputs one by one, and makes a fabric of them.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    draft: Draft,
    /// `iblinkinfo`'s parts, which know less of adapters than others tell: laid over those at the end.
    held: Vec<Held>,
}

/// Lines that are read at the end.
#[derive(Clone, Debug)]
struct Held {
    source: usize,
    text: String,
    /// The number of each line.
    numbers: Vec<u32>,
}

/// One line of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) number: u32,
    pub(crate) text: &'a str,
    pub(crate) place: Place,
}

impl Reading {
    /// Nothing read yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads one input; `name` is what errors call it, and, for dumps of one machine, the machine's name.
    ///
    /// # Errors
    ///
    /// When the text is of no known tool, was cut short or contradicts what was read before.
    pub fn read(&mut self, name: &str, bytes: &[u8]) -> Result<Vec<Format>, ReadError> {
        let source = self.draft.sources.len();
        self.draft.sources.push(Source { name: name.to_owned(), format: String::new() });
        let wrong = |line, what: &str| ReadError {
            source_name: name.to_owned(),
            line,
            what: what.to_owned(),
        };
        if bytes.len() > INPUT_BYTES_MOST {
            return Err(wrong(1, "more than 512 MiB: no dump of a fabric is that long"));
        }
        if bytes.contains(&0) {
            let line = bytes.iter().take_while(|byte| **byte != 0).filter(|b| **b == b'\n').count();
            return Err(wrong(
                u32::try_from(line + 1).unwrap_or(u32::MAX),
                "not text: give what the tool printed, unpacked",
            ));
        }
        let text = String::from_utf8_lossy(bytes);
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let formats =
            if text.trim_start().starts_with(['{', '[']) && !text.trim_start().starts_with("[1]") {
                if text.len() > JSON_BYTES_MOST {
                    return Err(wrong(1, "more than 128 MiB of JSON: give it in several files"));
                }
                json::read(&mut self.draft, source, text)?;
                vec![Format::Json]
            } else {
                let lines = lines(text, source, LINES_MOST)
                    .map_err(|line| wrong(line, "too many lines: give them in several files"))?;
                self.sections(&lines, name)?
            };
        let names: Vec<String> = formats.iter().map(ToString::to_string).collect();
        self.draft.sources[source].format = names.join(", ");
        Ok(formats)
    }

    /// The fabric of all that was read.
    ///
    /// # Errors
    ///
    /// When the dumps do not fit together, or show only a part of the fabric.
    pub fn finish(mut self, options: FinishOptions) -> Result<Fabric, ReadError> {
        for held in std::mem::take(&mut self.held) {
            let lines: Vec<Line<'_>> = held
                .text
                .lines()
                .zip(&held.numbers)
                .map(|(text, number)| Line {
                    number: *number,
                    text,
                    place: Place { source: held.source, line: *number },
                })
                .collect();
            linkinfo::read(&mut self.draft, &lines)?;
        }
        self.draft.finish(options)
    }

    /// Reads dumps that stand one after the other.
    fn sections(&mut self, lines: &[Line<'_>], name: &str) -> Result<Vec<Format>, ReadError> {
        let mut starts: Vec<(usize, Format)> = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            if let Some(format) = begins(line.text)
                && starts.last().is_none_or(|(_, last)| *last != format)
            {
                starts.push((at, format));
            }
        }
        let Some((first, _)) = starts.first_mut() else {
            let blank = lines.iter().find(|line| !line.text.trim().is_empty());
            let (line, what) = match blank {
                None => (1, "empty: the tool printed nothing".to_owned()),
                Some(line) => {
                    let shown: String = line.text.trim().chars().take(60).collect();
                    let known = "known are ibnetdiscover, iblinkinfo, ibqueryerrors, perfquery, ibstat, ibswinfo, \
                                 ibsim, ethtool -S, and JSON of lldpcli and NetQ";
                    (line.number, format!("{shown:?} begins no dump that is known; {known}"))
                }
            };
            return Err(ReadError { source_name: name.to_owned(), line, what });
        };
        *first = 0;
        let mut formats: Vec<Format> = Vec::new();
        for (index, (from, format)) in starts.iter().enumerate() {
            let to = starts.get(index + 1).map_or(lines.len(), |(next, _)| *next);
            let part = &lines[*from..to];
            let draft = &mut self.draft;
            match format {
                Format::Netfile => netfile::read(draft, part)?,
                Format::PortList => portlist::read(draft, part)?,
                Format::LinkInfo => self.held.push(Held::of(part)),
                Format::QueryErrors => queryerrors::read(draft, part)?,
                Format::Perfquery => perfquery::read(draft, part)?,
                Format::Ibstat => ibstat::read(draft, part)?,
                Format::SwitchInfo => swinfo::read(draft, part)?,
                Format::Ethtool => ethtool::read(draft, part)?,
                Format::Json => {}
            }
            if !formats.contains(format) {
                formats.push(*format);
            }
        }
        Ok(formats)
    }
}

impl Held {
    fn of(part: &[Line<'_>]) -> Self {
        let mut text = String::with_capacity(part.iter().map(|line| line.text.len() + 1).sum());
        for line in part {
            text.push_str(line.text);
            text.push('\n');
        }
        let source = part.first().map_or(0, |line| line.place.source);
        Self { source, text, numbers: part.iter().map(|line| line.number).collect() }
    }
}

/// The lines that are not blank, at most so many; else the line that is one too many.
fn lines(text: &str, source: usize, most: usize) -> Result<Vec<Line<'_>>, u32> {
    let mut lines = Vec::new();
    for (number, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        if lines.len() == most {
            return Err(number);
        }
        lines.push(Line { number, text, place: Place { source, line: number } });
    }
    Ok(lines)
}

/// What a line is the beginning of, where it can be of one tool only.
fn begins(line: &str) -> Option<Format> {
    let words = || line.split_whitespace();
    let first = words().next()?;
    let second = words().nth(1).unwrap_or_default();
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
    match first {
        "CA" if second.starts_with('\'') => Some(Format::Ibstat),
        "CA" | "SW" | "RT" if number(second) => Some(Format::PortList),
        "Switch:" | "CA:" | "Router:" => Some(Format::LinkInfo),
        "Switch" | "Ca" | "Hca" | "Rt" if number(second) => Some(Format::Netfile),
        "Errors" if second == "for" => Some(Format::QueryErrors),
        "Data" if line.starts_with("Data Counters for") => Some(Format::QueryErrors),
        "##" if second == "Summary:" => Some(Format::QueryErrors),
        "#" if second.starts_with("Port") && line.contains("counters: Lid") => {
            Some(Format::Perfquery)
        }
        _ if first.starts_with("======") => Some(Format::SwitchInfo),
        "NIC" if second == "statistics:" => Some(Format::Ethtool),
        "part" | "uptime" if line.contains(['|', ':']) && !line.contains("==") => {
            Some(Format::SwitchInfo)
        }
        "Link" => None,
        _ if first.starts_with("vendid=") || first.starts_with("switchguid=") => {
            Some(Format::Netfile)
        }
        _ if first.starts_with("caguid=") || first.starts_with("rtguid=") => Some(Format::Netfile),
        _ if line.contains("==(") && line.contains(")==>") => Some(Format::LinkInfo),
        _ => None,
    }
}

/// A GUID as tools write it, with or without `0x`.
pub(crate) fn guid(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let fits = (1..=16).contains(&digits.len());
    fits.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// The quoted text and what follows it. The last mark ends it: names may hold marks.
pub(crate) fn quoted(text: &str, mark: char) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once(mark)?;
    rest.rsplit_once(mark)
}

/// A text for an error, cut to what a line can show.
pub(crate) fn shown(text: &str) -> String {
    format!("{:?}", text.trim().chars().take(60).collect::<String>())
}

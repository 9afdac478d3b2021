//! `perfquery`: counters of one port a block.
//!
//! ```text
//! # Port extended counters: Lid 2052 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
//! PortXmitData:....................178791657177235
//! ```

use super::{Line, shown};
use crate::counter::{self, Counters, Form};
use crate::draft::{Counted, CounterBlock, Draft, ReadError};

struct Block<'a> {
    kind: &'a str,
    whose: Counted,
    port: u32,
    values: Counters,
    /// Lines of values.
    lines: usize,
    last: &'a str,
    begin: Line<'a>,
}

/// What the usual kinds of blocks may end with.
const ENDS: [&str; 8] = [
    "QP1Dropped",
    "PortXmitWait",
    "PortRcvPkts",
    "PortUnicastRcvPkts",
    "PortMulticastRcvPkts",
    "VL15Dropped",
    "PortLoopingErrors",
    "CounterSelect2",
];

pub(super) fn read<'a>(draft: &mut Draft, lines: &[Line<'a>]) -> Result<(), ReadError> {
    let mut blocks: Vec<Block<'a>> = Vec::new();
    for line in lines {
        let text = line.text.trim();
        if text.is_empty() {
            continue;
        }
        if let Some(head) = text.strip_prefix('#') {
            if head.contains("counters:") {
                blocks.push(header(draft, line, head)?);
            }
            continue;
        }
        let (Some(block), Some((name, value))) = (blocks.last_mut(), text.split_once(':')) else {
            let what = format!("{} is no line of perfquery: cut or damaged", shown(text));
            return Err(draft.error(line.place, what));
        };
        let value = value.trim().trim_start_matches('.');
        let number = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        };
        let Some(number) = number else {
            let what = format!("{} holds no number: the line is cut or damaged", shown(text));
            return Err(draft.error(line.place, what));
        };
        block.lines += 1;
        block.last = name;
        if let Some(place) = counter::place(name) {
            block.values.set(place, number);
        }
    }
    last_is_whole(draft, &blocks, lines)?;
    for block in blocks {
        let Block { whose, port, values, .. } = block;
        draft.counters.push(CounterBlock { whose, port, values });
    }
    Ok(())
}

/// ` Port counters: Lid 2052 port 1 (CapMask: 0x5300)`
fn header<'a>(draft: &Draft, line: &Line<'a>, head: &'a str) -> Result<Block<'a>, ReadError> {
    let (kind, rest) = head.split_once("counters:").unwrap_or((head, ""));
    let words: Vec<&str> = rest.split_whitespace().take(4).collect();
    let told = match words[..] {
        ["Lid", lid, "port", port] | ["Lid", lid, "port", port, ..] => {
            lid.parse().ok().zip(port.parse().ok())
        }
        _ => None,
    };
    let Some((lid, port)) = told else {
        let what =
            format!("{} does not tell whose counters they are: cut or damaged", shown(line.text));
        return Err(draft.error(line.place, what));
    };
    let kind = kind.trim();
    let values = Counters::of(if kind == "Port" { Form::Narrow } else { Form::Wide });
    Ok(Block { kind, whose: Counted::Lid(lid), port, values, lines: 0, last: "", begin: *line })
}

/// A dump that was cut short ends in the middle of a block.
fn last_is_whole(draft: &Draft, blocks: &[Block<'_>], lines: &[Line<'_>]) -> Result<(), ReadError> {
    let Some(last) = blocks.last() else { return Ok(()) };
    // Those who tell two masks tell all counters that there are.
    let ends = if last.begin.text.contains("CapMask2") { &ENDS[..2] } else { &ENDS[..] };
    let usual = ends.contains(&last.last) || !matches!(last.kind, "Port" | "Port extended");
    if last.lines == 0 || !usual {
        let end = lines.last().map_or(last.begin.place, |line| line.place);
        let what = format!(
            "the block of line {} ends after {}: the dump was cut short; take it again",
            last.begin.number,
            if last.last.is_empty() { "its heading" } else { last.last },
        );
        return Err(draft.error(end, what));
    }
    Ok(())
}

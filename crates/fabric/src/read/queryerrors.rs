//! `ibqueryerrors`: ports over the thresholds, or with `--data` all, and a summary at the end.
//!
//! ```text
//! Errors for 0x2c5e "leaf-1"
//!    GUID 0x2c5e port 7: [SymbolErrorCounter == 12] [PortXmitWait == 1034 (1.010K)]
//! ## Summary: 16 nodes checked, 1 bad nodes found
//! ```

use super::{Line, guid, shown};
use crate::counter::{self, Counters, Form};
use crate::draft::{Counted, CounterBlock, Draft, ReadError};

pub(super) fn read(draft: &mut Draft, lines: &[Line<'_>]) -> Result<(), ReadError> {
    draft.errors_listed = true;
    let mut whole = false;
    for line in lines {
        let text = line.text.trim();
        if text.is_empty() || text.starts_with("Link info:") {
            continue;
        }
        if text.starts_with('#') {
            whole |= text.starts_with("## Summary");
            continue;
        }
        if text.starts_with("Errors for ") || text.starts_with("Data Counters for ") {
            if !text.ends_with('"') {
                let what = format!("{} does not end the name: the line is cut", shown(text));
                return Err(draft.error(line.place, what));
            }
            continue;
        }
        let Some(rest) = text.strip_prefix("GUID ") else {
            let what = format!("{} is no line of ibqueryerrors: cut or damaged", shown(text));
            return Err(draft.error(line.place, what));
        };
        port(draft, line, rest)?;
    }
    if !whole {
        let last = lines.last().map_or_else(Default::default, |line| line.place);
        let what = "the summary that ibqueryerrors ends with is missing: the dump was cut short; take it again";
        return Err(draft.error(last, what));
    }
    Ok(())
}

/// `0x2c5e port 7: [SymbolErrorCounter == 12]`
fn port(draft: &mut Draft, line: &Line<'_>, rest: &str) -> Result<(), ReadError> {
    let cut =
        |draft: &Draft| draft.error(line.place, format!("{} is cut or damaged", shown(line.text)));
    let Some((head, body)) = rest.split_once(':') else { return Err(cut(draft)) };
    let words: Vec<&str> = head.split_whitespace().collect();
    let [id, "port", number] = words[..] else { return Err(cut(draft)) };
    let Some(id) = guid(id) else { return Err(cut(draft)) };
    let mut values = Counters::of(Form::Listed);
    for part in body.split('[').skip(1) {
        let Some((inside, _)) = part.split_once(']') else { return Err(cut(draft)) };
        let Some((name, value)) = inside.split_once("==") else { return Err(cut(draft)) };
        let value = value.split_whitespace().next().and_then(|value| value.parse().ok());
        let Some(value) = value else { return Err(cut(draft)) };
        if let Some(place) = counter::place(name.trim()) {
            values.set(place, value);
        }
    }
    // The sum of a switch's ports says nothing of any of them.
    if number == "ALL" {
        return Ok(());
    }
    let Ok(port) = number.parse() else { return Err(cut(draft)) };
    draft.counters.push(CounterBlock { whose: Counted::Guid(id), port, values });
    Ok(())
}

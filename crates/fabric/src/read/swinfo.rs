//! `ibswinfo`: what a switch without management tells of itself: firmware, fans, power supplies.

use super::{Line, guid, shown};
use crate::describe;
use crate::draft::{Draft, ReadError, Vitals};

pub(super) fn read(draft: &mut Draft, lines: &[Line<'_>]) -> Result<(), ReadError> {
    let mut all: Vec<Vitals> = Vec::new();
    let mut title: Option<String> = None;
    let mut supply = String::new();
    let (mut table, mut closed, mut fans) = (false, true, false);
    for line in lines {
        let text = line.text.trim();
        if text.is_empty() || text.starts_with('#') || text.starts_with("===") {
            continue;
        }
        if text.starts_with("---") {
            closed = true;
            continue;
        }
        let Some((key, value)) = text.split_once('|').or_else(|| text.split_once(" :")) else {
            // The heading between two rules.
            if !closed {
                let what = format!("{} is no line of ibswinfo: cut or damaged", shown(text));
                return Err(draft.error(line.place, what));
            }
            title = Some(describe::tidied(text));
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        table |= text.contains('|');
        if key == "part number" || all.is_empty() {
            let description = title.take().unwrap_or_default();
            all.push(Vitals { description, place: line.place, ..Vitals::default() });
            fans = false;
        }
        fans |= key.starts_with("fan") && !line.text.starts_with(' ');
        closed = false;
        let Some(vitals) = all.last_mut() else { continue };
        match key {
            "part number" => vitals.part = Some(describe::tidied(value)),
            "firmware version" => vitals.firmware = Some(describe::tidied(value)),
            "GUID" => match guid(value).filter(|id| *id != 0) {
                Some(id) => vitals.guid = Some(id),
                None => {
                    return Err(draft.error(line.place, format!("{} is no GUID", shown(value))));
                }
            },
            _ if key.starts_with("PSU") => key.clone_into(&mut supply),
            _ => {}
        }
        let judged = key.ends_with("status") || key == "DC power";
        if judged && !matches!(value, "OK" | "") {
            let of = if key.starts_with("PSU")
                || supply.is_empty()
                || key == "fan status" && !text.starts_with(' ') && !line.text.starts_with(' ')
            {
                String::new()
            } else {
                format!("{} ", supply.trim_end_matches(" status"))
            };
            vitals.faults.push(format!("{of}{key}: {}", describe::tidied(value)));
        }
    }
    // Fans come last, then a rule.
    if all.is_empty() || (table && !(closed && fans)) {
        let last = lines.last().map_or_else(Default::default, |line| line.place);
        return Err(draft.error(
            last,
            "the rule that ends ibswinfo's table is missing: the dump was cut short",
        ));
    }
    draft.vitals.extend(all);
    Ok(())
}

//! `ethtool -S`: what one Ethernet port has counted, pause frames among it.
//!
//! The text does not tell whose it is: a line `# HOST INTERFACE` before it does, or the file's name,
//! `HOST.INTERFACE.txt`.

use super::{Line, shown};
use crate::counter::{self, Counters};
use crate::draft::{Counted, CounterBlock, Draft, ReadError, stem};

pub(super) fn read(draft: &mut Draft, lines: &[Line<'_>]) -> Result<(), ReadError> {
    let mut told: Option<(String, String)> = None;
    let mut block: Option<CounterBlock> = None;
    let mut values = 0;
    let mut end = Default::default();
    for line in lines {
        let text = line.text.trim();
        end = line.place;
        if let Some(comment) = text.strip_prefix('#') {
            let mut words = comment.split_whitespace();
            if let (Some(host), Some(interface), None) = (words.next(), words.next(), words.next())
            {
                told = Some((host.to_owned(), interface.trim_end_matches(':').to_owned()));
            }
            continue;
        }
        if text.is_empty() {
            continue;
        }
        if text == "NIC statistics:" {
            finished(draft, block.take(), values, line.place)?;
            values = 0;
            let Some((host, interface)) = told.take().or_else(|| by_file(draft, line)) else {
                let what = "whose statistics are these? write # HOST INTERFACE before them, or name the file \
                            HOST.INTERFACE.txt";
                return Err(draft.error(line.place, what));
            };
            let whose = Counted::Interface { host, interface };
            block = Some(CounterBlock { whose, port: 1, values: Counters::default() });
            continue;
        }
        let (Some(block), Some((name, value))) = (block.as_mut(), text.split_once(':')) else {
            let what = format!("{} is no line of ethtool -S: cut or damaged", shown(text));
            return Err(draft.error(line.place, what));
        };
        let Ok(number) = value.trim().parse::<u64>() else {
            let what = format!("{} holds no number: cut or damaged", shown(text));
            return Err(draft.error(line.place, what));
        };
        values += 1;
        if let Some(place) = counter::place(name.trim()) {
            block.values.set(place, number);
        }
    }
    finished(draft, block, values, end)
}

fn finished(
    draft: &mut Draft,
    block: Option<CounterBlock>,
    values: usize,
    place: crate::draft::Place,
) -> Result<(), ReadError> {
    if block.is_some() && values == 0 {
        return Err(draft.error(place, "the statistics have no value: the dump was cut short"));
    }
    draft.counters.extend(block);
    Ok(())
}

/// `HOST.INTERFACE.txt`
fn by_file(draft: &Draft, line: &Line<'_>) -> Option<(String, String)> {
    let name = &draft.sources.get(line.place.source)?.name;
    let file = name.rsplit('/').next()?;
    let interface = file.split('.').nth(1).filter(|part| *part != "txt")?;
    Some((stem(file).to_owned(), interface.to_owned()))
}

//! Names out of node descriptions.
//!
//! InfiniBand nodes carry one text of 64 bytes: `MF0;leaf-04:MQM9701/U1` for a switch, `node17 mlx5_3` or
//! `node17 HCA-4` for an adapter, and the maker's name where nobody set it.

use std::collections::BTreeMap;

/// The most characters of a description that are kept.
pub const DESCRIPTION_CHARS: usize = 128;

/// Cuts a text from outside to what is kept, without control characters.
#[must_use]
pub fn tidied(text: &str) -> String {
    let plain = text.trim().chars().take(DESCRIPTION_CHARS);
    plain.map(|c| if c.is_control() { '·' } else { c }).collect()
}

/// A switch's name and model: `MF0;leaf-04:MQM9701/U1` is `leaf-04`, `MQM9701`. Boards of a chassis keep
/// their place: `MF0;core1:MCS8500/L01/U1` is `core1/L01`.
#[must_use]
pub fn switch(description: &str) -> (String, Option<String>) {
    let text = tidied(description);
    let Some((_, rest)) = text.split_once(';').filter(|(prefix, _)| prefix.starts_with("MF"))
    else {
        return (text, None);
    };
    let Some((name, place)) = rest.rsplit_once(':') else {
        return (rest.to_owned(), None);
    };
    let mut parts = place.split('/');
    let model = parts.next().filter(|model| !model.is_empty()).map(ToOwned::to_owned);
    let board = parts.find(|part| part.starts_with(['L', 'S']) && part.len() > 1);
    let name = match board {
        Some(board) => format!("{name}/{board}"),
        None => name.to_owned(),
    };
    (name, model)
}

/// Whose adapter it is: the host and the adapter's name in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Owner {
    /// The host, or the whole description where it names none.
    pub host: String,
    /// `mlx5_3`, `HCA-4`; empty where it is not told.
    pub label: String,
    /// Whether a host is named at all.
    pub named: bool,
}

/// Whether the description is a switch's own end for reductions in the network.
#[must_use]
pub fn is_aggregation(description: &str) -> bool {
    description.contains("Aggregation Node")
}

/// Reads an adapter's description.
#[must_use]
pub fn adapter(description: &str) -> Owner {
    let text = tidied(description);
    let makers = ["Mellanox Technologies", "ConnectX", "Infiniscale", "InfiniHost", "NVIDIA "];
    if text.is_empty() || makers.iter().any(|maker| text.contains(maker)) {
        let host = text.split_whitespace().collect::<Vec<_>>().join(" ");
        return Owner { host, label: String::new(), named: false };
    }
    match text.split_once(char::is_whitespace) {
        Some((host, label)) => {
            Owner { host: host.to_owned(), label: label.trim().to_owned(), named: true }
        }
        None => Owner { host: text, label: String::new(), named: true },
    }
}

/// Order in which people count: `HCA-2` before `HCA-10`, `leaf9` before `leaf10`.
#[must_use]
pub fn natural(text: &str) -> Vec<(u8, u64, String)> {
    let mut parts: Vec<(u8, u64, String)> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            // Longer than any number that is counted by: by its text.
            let number = rest[..digits].parse().unwrap_or(u64::MAX);
            parts.push((0, number, rest[..digits].to_owned()));
            rest = &rest[digits..];
            continue;
        }
        let words = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        parts.push((1, 0, rest[..words].to_owned()));
        rest = &rest[words..];
    }
    parts
}

/// `1 link`, `2 links`.
pub(crate) fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A name with its numbers taken out: hosts of one kind are called alike.
#[must_use]
pub fn likeness(name: &str) -> String {
    let mut shape = String::new();
    for c in name.chars() {
        if !c.is_ascii_digit() {
            shape.push(c);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape
}

/// Names as Slurm writes them: `n[1-3,5],login`. Only the last number of a name is folded, and only among
/// names of the same number of digits.
#[must_use]
pub fn folded<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_cached_key(|name| natural(name));
    names.dedup();
    // One entry for each shape of name, in the order of its first.
    let mut shapes: BTreeMap<(&str, usize, &str), usize> = BTreeMap::new();
    let mut entries: Vec<(&str, Vec<u64>)> = Vec::new();
    for name in names {
        let shape = last_number(name);
        let number = shape.and_then(|(_, digits, _)| digits.parse().ok());
        if let (Some((head, digits, tail)), Some(number)) = (shape, number) {
            let next = entries.len();
            let at = *shapes.entry((head, digits.len(), tail)).or_insert(next);
            if at == next {
                entries.push((name, Vec::new()));
            }
            entries[at].1.push(number);
        } else {
            entries.push((name, Vec::new()));
        }
    }
    let written = entries.iter().map(|(name, numbers)| match (last_number(name), numbers.len()) {
        (Some((head, digits, tail)), 2..) => {
            format!("{head}[{}]{tail}", ranges(numbers, digits.len()))
        }
        _ => (*name).to_owned(),
    });
    written.collect::<Vec<_>>().join(",")
}

fn ranges(numbers: &[u64], width: usize) -> String {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < numbers.len() {
        let mut end = at;
        while numbers.get(end + 1) == Some(&(numbers[end] + 1)) {
            end += 1;
        }
        let first = numbers[at];
        parts.push(match end - at {
            0 => format!("{first:0width$}"),
            _ => format!("{first:0width$}-{:0width$}", numbers[end]),
        });
        at = end + 1;
    }
    parts.join(",")
}

/// The last number of a name with what is around it; at most 9 digits.
fn last_number(name: &str) -> Option<(&str, &str, &str)> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8));
    (end - start <= 9).then(|| (&name[..start], &name[start..end], &name[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_called_by_their_names() {
        let name = |text| switch(text).0;
        assert_eq!(name("MF0;leaf-04:MQM9701/U1"), "leaf-04");
        assert_eq!(name("MF0;core1-A:MCS8500/L01/U1"), "core1-A/L01");
        assert_eq!(name(" spine-IB02 "), "spine-IB02");
        assert_eq!(switch("MF0;leaf-04:MQM9701/U1").1.as_deref(), Some("MQM9701"));
        assert_eq!(name("a;b"), "a;b");
    }

    #[test]
    fn adapters_know_their_host_unless_nobody_told_them() {
        assert_eq!(
            adapter("node17 mlx5_3"),
            Owner { host: "node17".into(), label: "mlx5_3".into(), named: true }
        );
        assert!(!adapter("MT4129 ConnectX7   Mellanox Technologies").named);
        assert!(adapter("node17").named);
        assert!(!adapter("").named);
    }

    #[test]
    fn names_are_counted_as_people_do() {
        let mut names = ["HCA-10", "HCA-2", "HCA-1", "b", "a"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["HCA-1", "HCA-2", "HCA-10", "a", "b"]);
    }

    #[test]
    fn host_lists_fold() {
        assert_eq!(folded(["n1", "n2", "n3", "n5"]), "n[1-3,5]");
        assert_eq!(folded(["n08", "n09", "n10", "login"]), "login,n[08-10]");
        assert_eq!(folded(["n9", "n10", "n11"]), "n9,n[10-11]");
        assert_eq!(folded(["a1b", "a2b", "a1c"]), "a[1-2]b,a1c");
        assert_eq!(folded(["x"]), "x");
    }
}

//! `NCCL_IB_HCA`: which network ports may be used, with NCCL's exact meaning.
//!
//! `mlx5` takes every device whose name begins so, `=mlx5_0,mlx5_1:1` exactly these (the second
//! with its port 1 only), `^mlx5_2` all but those beginning so, `^=mlx5_2` all but exactly that.
//! The marks stand once, in front, `^` first: `=^mlx5_0` asks for a device named `^mlx5_0`.

use std::fmt;

/// Devices of a list; NCCL reads no more.
const DEVICES_MOST: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    port: Option<i64>,
}

/// A filter over network ports. The default lets everything through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HcaFilter {
    text: String,
    excludes: bool,
    exact: bool,
    entries: Vec<Entry>,
}

impl HcaFilter {
    /// Reads the variable's value. There is no wrong one, but see [`Self::remarks`].
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let excludes = text.starts_with('^');
        let rest = text.strip_prefix('^').unwrap_or(text);
        let exact = rest.starts_with('=');
        let rest = rest.strip_prefix('=').unwrap_or(rest);
        let entries = rest
            .split(',')
            .filter_map(|entry| {
                let mut parts = entry.split(':');
                let name = parts.next().filter(|name| !name.is_empty())?;
                let port = parts.next().filter(|port| !port.is_empty());
                Some(Entry { name: name.to_owned(), port: port.map(leading_number) })
            })
            .take(DEVICES_MOST)
            .collect();
        Self { text: text.to_owned(), excludes, exact, entries }
    }

    /// Whether a port of a device may be used; a port that is not known is any.
    #[must_use]
    pub fn allows(&self, name: &str, port: Option<i64>) -> bool {
        let matches = |entry: &Entry| {
            let named = match self.exact {
                true => name == entry.name,
                false => name.starts_with(entry.name.as_str()),
            };
            let ported = match (port, entry.port) {
                (Some(-1) | None, _) | (_, Some(-1) | None) => true,
                (Some(ours), Some(theirs)) => ours == theirs,
            };
            named && ported
        };
        let listed = self.entries.is_empty() || self.entries.iter().any(matches);
        listed != self.excludes
    }

    /// What is odd about the value.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let text = &self.text;
        if self.excludes && self.entries.is_empty() {
            remarks.push(format!("NCCL_IB_HCA={text} names nothing and so excludes every device"));
        }
        if let Some(entry) = self.entries.iter().find(|entry| entry.name.starts_with(['^', '='])) {
            let name = &entry.name;
            remarks.push(format!(
                "NCCL_IB_HCA={text}: {name} is taken as a name; write ^= or = once, in front"
            ));
        }
        if let Some(entry) = self.entries.iter().find(|entry| entry.name.contains(' ')) {
            let name = &entry.name;
            remarks.push(format!("NCCL_IB_HCA={text}: the space in {name:?} is part of the name"));
        }
        remarks
    }
}

impl fmt::Display for HcaFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// As C's `atoi`: what is no number is 0.
fn leading_number(text: &str) -> i64 {
    let text = text.trim_start();
    let end = text
        .char_indices()
        .find(|(at, letter)| !(letter.is_ascii_digit() || (*at == 0 && "+-".contains(*letter))))
        .map_or(text.len(), |(at, _)| at);
    text[..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hcas_match_as_in_nccl() {
        type Ports = &'static [(&'static str, i64)];
        let cases: [(&str, Ports, Ports); 14] = [
            ("", &[("mlx5_0", 1)], &[]),
            ("mlx5", &[("mlx5_0", 1), ("mlx5_11", 2)], &[("bnxt_re0", 1)]),
            ("mlx5_1", &[("mlx5_1", 1), ("mlx5_10", 1)], &[("mlx5_0", 1)]),
            ("=mlx5_1", &[("mlx5_1", 1), ("mlx5_1", 2)], &[("mlx5_10", 1), ("mlx5_", 1)]),
            ("=mlx5_0:1,mlx5_1", &[("mlx5_0", 1), ("mlx5_1", 2)], &[("mlx5_0", 2)]),
            ("^mlx5_1", &[("mlx5_0", 1)], &[("mlx5_1", 1), ("mlx5_10", 1)]),
            ("^=mlx5_1", &[("mlx5_10", 1)], &[("mlx5_1", 1)]),
            ("^mlx5_0:2", &[("mlx5_0", 1)], &[("mlx5_0", 2)]),
            ("=^mlx5_1", &[("^mlx5_1", 1)], &[("mlx5_1", 1), ("mlx5_0", 1)]),
            ("^", &[], &[("mlx5_0", 1)]),
            ("mlx5_0:", &[("mlx5_0", 1), ("mlx5_0", 2)], &[]),
            ("mlx5_0:x", &[("mlx5_0", 0)], &[("mlx5_0", 1)]),
            ("mlx5_0:1:3:0", &[("mlx5_0", 1)], &[("mlx5_0", 2)]),
            (",,mlx5_0,", &[("mlx5_0", 1)], &[("mlx5_1", 1)]),
        ];
        for (text, taken, refused) in cases {
            let filter = HcaFilter::parse(text);
            for (name, port) in taken {
                assert!(filter.allows(name, Some(*port)), "{text} {name}:{port}");
            }
            for (name, port) in refused {
                assert!(!filter.allows(name, Some(*port)), "{text} {name}:{port}");
            }
        }
        assert!(HcaFilter::parse("mlx5_0:2").allows("mlx5_0", None));
        assert_eq!(HcaFilter::parse("^").remarks().len(), 1);
        assert_eq!(HcaFilter::parse("=^mlx5_0").remarks().len(), 1);
        assert!(HcaFilter::parse("^=mlx5_0,mlx5_1:1").remarks().is_empty());
    }
}

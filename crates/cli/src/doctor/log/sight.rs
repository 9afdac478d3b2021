//! How often something was seen, where, and on which hosts: all bounded.
//!
//! *Invariant*: a [`Sight`] keeps at most [`SAMPLES`] lines and [`HOSTS`] names, a [`Tally`] at most as many
//! keys as it was given; what is over is counted and never silently dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Lines kept as evidence of one thing.
const SAMPLES: usize = 3;
/// Hosts kept by name for one thing.
const HOSTS: usize = 16;
/// Bytes of a line shown as evidence.
const SHOWN: usize = 220;

/// A line of a file.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Place {
    /// Which of the files that were given.
    pub(crate) file: u32,
    /// Its line, from 1.
    pub(crate) line: u64,
}

/// Something seen, perhaps many times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    /// How often.
    pub(crate) count: u64,
    /// The first lines of it.
    pub(crate) samples: Vec<(Place, String)>,
    /// On which hosts.
    pub(crate) hosts: BTreeSet<String>,
    /// Whether there were more hosts than are kept.
    pub(crate) more_hosts: bool,
}

impl Sight {
    /// Counts one more.
    pub(crate) fn add(&mut self, place: Place, line: &[u8], host: Option<&str>) {
        self.count += 1;
        let is_new_host = host.is_some_and(|host| !self.hosts.contains(host));
        if self.samples.len() < SAMPLES {
            self.samples.push((place, shown(line)));
        }
        if is_new_host && let Some(host) = host {
            if self.hosts.len() < HOSTS {
                self.hosts.insert(host.to_owned());
            } else {
                self.more_hosts = true;
            }
        }
    }

    /// The evidence as findings show it.
    pub(crate) fn evidence(&self, files: &[String]) -> Vec<String> {
        let mut lines: Vec<String> = self
            .samples
            .iter()
            .map(|(place, text)| format!("{}: {text}", at(*place, files)))
            .collect();
        let more = self.count.saturating_sub(self.samples.len() as u64);
        if more > 0 {
            let hosts = self.hosts.len();
            let plus = if self.more_hosts { "+" } else { "" };
            let on =
                if hosts > 1 { format!(", {hosts}{plus} hosts in all") } else { String::new() };
            lines.push(format!("and {more} more{on}"));
        }
        lines
    }

    /// Where it was first seen.
    pub(crate) fn first(&self) -> Place {
        self.samples.first().map(|(place, _)| *place).unwrap_or_default()
    }
}

/// Things of one kind, counted apart.
#[derive(Clone, Debug)]
pub(crate) struct Tally<K> {
    most: usize,
    /// What was seen.
    pub(crate) seen: BTreeMap<K, Sight>,
    /// Sightings of keys that found no place.
    pub(crate) left_out: u64,
}

impl<K: Ord + Clone> Tally<K> {
    /// A tally of at most this many keys.
    pub(crate) fn of(most: usize) -> Self {
        Self { most, seen: BTreeMap::new(), left_out: 0 }
    }

    /// Counts one more of `key`.
    pub(crate) fn add<Q>(&mut self, key: &Q, place: Place, line: &[u8], host: Option<&str>)
    where
        Q: Ord + ToOwned<Owned = K> + ?Sized,
        K: std::borrow::Borrow<Q>,
    {
        if let Some(sight) = self.seen.get_mut(key) {
            sight.add(place, line, host);
        } else if self.seen.len() < self.most {
            self.seen.entry(key.to_owned()).or_default().add(place, line, host);
        } else {
            self.left_out += 1;
        }
    }

    /// Whether nothing was seen.
    pub(crate) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

impl<K: fmt::Display> Tally<K> {
    /// `a (3), b (1)`, the most frequent first.
    pub(crate) fn list(&self, most: usize) -> String {
        let mut sorted: Vec<(&K, u64)> = self.seen.iter().map(|(key, s)| (key, s.count)).collect();
        sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut words: Vec<String> =
            sorted.iter().take(most).map(|(key, count)| format!("{key} ({count})")).collect();
        let over = sorted.len().saturating_sub(most) as u64 + self.left_out;
        if over > 0 {
            words.push(format!("{over} more left out"));
        }
        words.join(", ")
    }
}

/// `file:line`.
pub(crate) fn at(place: Place, files: &[String]) -> String {
    let name = files.get(place.file as usize).map_or("?", String::as_str);
    format!("{name}:{}", place.line)
}

/// The start of a line as text.
pub(crate) fn shown(line: &[u8]) -> String {
    let line = line.trim_ascii();
    let mut text = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]).into_owned();
    if line.len() > SHOWN {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_hosts_and_keys_are_bounded_and_counted() {
        let mut tally = Tally::<String>::of(2);
        for number in 0..100_u64 {
            let place = Place { file: 0, line: number + 1 };
            tally.add("a", place, b"a line", Some(&format!("host{number}")));
        }
        tally.add("b", Place::default(), b"", None);
        tally.add("c", Place::default(), b"", None);
        let sight = &tally.seen["a"];
        assert_eq!((sight.count, sight.samples.len(), sight.hosts.len()), (100, SAMPLES, HOSTS));
        assert_eq!(tally.left_out, 1);
        assert_eq!(tally.list(1), "a (100), 2 more left out");
        let evidence = sight.evidence(&["x.log".to_owned()]);
        assert_eq!(evidence[0], "x.log:1: a line");
        assert_eq!(evidence[3], "and 97 more, 16+ hosts in all");
    }

    #[test]
    fn long_lines_are_shown_by_their_start() {
        assert_eq!(shown(&[b'x'; 1000]).chars().count(), SHOWN + 1);
        assert_eq!(shown(b"  a\xff  "), "a\u{fffd}");
    }
}

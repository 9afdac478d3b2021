//! Counters: what they have come to since boot, or what they grew by since an earlier look at the same machine.
//!
//! *Invariant*: every counter that a check asks for is noted, so what one look noted is all that a later one needs
//! of it. A counter that shrank was cleared: it counts from there.

use std::collections::BTreeMap;
use std::fmt;

use super::Host;

/// Counters by their places: `mlx5_0/ports/1/counters/symbol_error`.
pub(crate) type Totals = BTreeMap<String, u64>;

/// An earlier look at the same machine, in the same run of its kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Earlier {
    /// What its counters had come to.
    pub(crate) totals: Totals,
    /// How long before.
    pub(crate) seconds: f64,
}

/// One counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Count {
    /// What is to be judged: the growth between two looks, else the total.
    pub(crate) value: u64,
    /// Seconds between the looks; nothing where there was one.
    pub(crate) seconds: Option<f64>,
    total: u64,
}

impl Count {
    /// Whether it is of two looks.
    pub(crate) fn is_rate(&self) -> bool {
        self.seconds.is_some()
    }

    /// `since boot`, `in 10.0 s`.
    pub(crate) fn span(&self) -> String {
        self.seconds.map_or_else(|| "since boot".to_owned(), |seconds| format!("in {seconds:.1} s"))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.value, self.span())?;
        match self.seconds {
            Some(_) if self.total != self.value => write!(out, " ({} since boot)", self.total),
            _ => Ok(()),
        }
    }
}

impl Host {
    /// A counter that stands at `total`.
    pub(crate) fn count(&self, place: &str, total: u64) -> Count {
        self.counted.borrow_mut().insert(place.to_owned(), total);
        let before = self
            .earlier
            .as_ref()
            .and_then(|earlier| Some((*earlier.totals.get(place)?, earlier.seconds)));
        match before {
            Some((before, seconds)) => {
                let value = total.checked_sub(before).unwrap_or(total);
                Count { value, seconds: Some(seconds), total }
            }
            None => Count { value: total, seconds: None, total },
        }
    }

    /// What the checks have counted so far.
    pub(crate) fn counted(&self) -> Totals {
        self.counted.borrow().clone()
    }

    /// The same machine, some time after a look at it.
    #[must_use]
    pub(crate) fn after(mut self, earlier: Earlier) -> Self {
        self.earlier = Some(earlier);
        self
    }

    /// Seconds between the looks.
    pub(crate) fn interval(&self) -> Option<f64> {
        self.earlier.as_ref().map(|earlier| earlier.seconds)
    }

    /// Seconds since boot.
    pub(crate) fn uptime(&self) -> Option<f64> {
        self.text("/proc/uptime")?.split_whitespace().next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use ringway::topo::Root;

    use super::*;

    #[test]
    fn growth_is_counted_and_a_cleared_counter_counts_from_there() {
        let host = Host::new(Root::at("/nonexistent"));
        assert_eq!(host.count("a", 7).to_string(), "7 since boot");
        assert_eq!(host.counted(), Totals::from([("a".to_owned(), 7)]));
        let totals = Totals::from([("a".to_owned(), 7), ("b".to_owned(), 100)]);
        let host = host.after(Earlier { totals, seconds: 10.0 });
        assert_eq!(host.count("a", 9).to_string(), "2 in 10.0 s (9 since boot)");
        assert_eq!(host.count("b", 3).value, 3);
        assert_eq!(host.count("c", 4).to_string(), "4 since boot");
    }
}

//! This run beside the last: which rows are the same, and which take longer now.

use std::collections::BTreeMap;

use super::results::{Measured, Place, Row, Run};

/// The rows of a size and kind beside those of the last run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compared {
    /// How many times as long both ways take, the better of the two.
    pub(super) ratio: f64,
    pub(super) slower: bool,
}

/// Size and kind of a row.
type Key<'a> = (u64, &'a str);

/// The least times of rows that repeat, out of place and in place.
type Best = [Option<f64>; 2];

/// All rows of some runs that the last run has too, by where they were measured.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    places: BTreeMap<Place<'a>, BTreeMap<Key<'a>, Compared>>,
}

impl<'a> Comparison<'a> {
    /// Compares runs of one collective by as many ranks.
    pub(super) fn of(runs: &[&'a Run], before: &[&'a Run], threshold_percent: f64) -> Self {
        let (new, old) = (fastest(runs), fastest(before));
        let mut places = BTreeMap::new();
        for (place, rows) in new {
            let alike = || old.iter().filter(|(other, _)| place.is_like(other));
            let mut compared = BTreeMap::new();
            for (key, best) in rows {
                let last = alike().filter_map(|(_, rows)| rows.get(&key)).copied().reduce(faster);
                let Some(last) = last else { continue };
                let sides = best.into_iter().zip(last);
                let ratios = sides.filter_map(|(new, old)| Some(new? / old?));
                let Some(ratio) = ratios.reduce(f64::min) else { continue };
                let slower = ratio > 1.0 + threshold_percent / 100.0;
                compared.insert(key, Compared { ratio, slower });
            }
            places.insert(place, compared);
        }
        Self { places }
    }

    /// How the rows like this one stand.
    pub(super) fn row(&self, run: &Run, row: &Row) -> Option<Compared> {
        self.places.get(&run.place())?.get(&(row.bytes, row.what.as_str())).copied()
    }

    /// Each place with its rows: their bytes, and how they stand.
    pub(super) fn places(&self) -> impl Iterator<Item = (&Place<'a>, Vec<(u64, Compared)>)> {
        self.places.iter().map(|(place, rows)| {
            (place, rows.iter().map(|((bytes, _), one)| (*bytes, *one)).collect())
        })
    }
}

fn fastest<'a>(runs: &[&'a Run]) -> BTreeMap<Place<'a>, BTreeMap<Key<'a>, Best>> {
    let mut places: BTreeMap<Place<'a>, BTreeMap<Key<'a>, Best>> = BTreeMap::new();
    let time = |one: Measured| (one.us > 0.0 && one.us.is_finite()).then_some(one.us);
    for run in runs {
        let rows = places.entry(run.place()).or_default();
        for row in &run.rows {
            let best = rows.entry((row.bytes, &row.what)).or_default();
            *best = faster(*best, [time(row.out_of_place), time(row.in_place)]);
        }
    }
    places
}

fn faster(a: Best, b: Best) -> Best {
    let least = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::min);
    [least(a[0], b[0]), least(a[1], b[1])]
}

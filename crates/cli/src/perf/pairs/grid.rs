//! A value for each ordered pair, and what stands out among them.
//!
//! A cell is the time from its row to its column. A row that is slow everywhere is a slow sender, a column that is slow
//! everywhere a slow receiver, a cell that is slow in a quick row and a quick column a slow path. *Everywhere* is meant: a row's
//! time is that of its quickest cell, so that nobody is blamed for those it talks to, nor for some of them being farther away.

use crate::perf::slow::robust::{Bar, Usual};

/// A square of values; of single ranks the diagonal is empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid {
    side: usize,
    cells: Vec<Option<f64>>,
}

/// What stands out: who, and by how many times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outliers {
    pub(crate) rows: Vec<(usize, f64)>,
    pub(crate) columns: Vec<(usize, f64)>,
    pub(crate) cells: Vec<((usize, usize), f64)>,
}

impl Grid {
    pub(crate) fn new(side: usize) -> Self {
        Self { side, cells: vec![None; side * side] }
    }

    pub(crate) fn side(&self) -> usize {
        self.side
    }

    pub(crate) fn at(&self, row: usize, column: usize) -> Option<f64> {
        self.cells.get(row * self.side + column).copied().flatten()
    }

    /// Sets a cell to a time; what is none leaves it empty.
    pub(crate) fn set(&mut self, row: usize, column: usize, value: f64) {
        if value.is_finite()
            && value > 0.0
            && let Some(cell) = self.cells.get_mut(row * self.side + column)
        {
            *cell = Some(value);
        }
    }

    /// All values.
    pub(crate) fn values(&self) -> Vec<f64> {
        self.cells.iter().flatten().copied().collect()
    }

    /// All cells that have a value.
    pub(crate) fn cells(&self) -> impl Iterator<Item = ((usize, usize), f64)> + '_ {
        let places = (0..self.side).flat_map(|row| (0..self.side).map(move |column| (row, column)));
        places.filter_map(|(row, column)| Some(((row, column), self.at(row, column)?)))
    }

    /// What is too much, and far from what is usual.
    pub(crate) fn outliers(&self, bar: Bar) -> Outliers {
        let rows: Vec<Option<f64>> =
            (0..self.side).map(|row| least((0..self.side).map(|at| self.at(row, at)))).collect();
        let columns: Vec<Option<f64>> = (0..self.side)
            .map(|column| least((0..self.side).map(|at| self.at(at, column))))
            .collect();
        Outliers {
            rows: beyond(&rows, bar),
            columns: beyond(&columns, bar),
            cells: self.slow_cells(&rows, &columns, bar),
        }
    }

    fn slow_cells(
        &self,
        rows: &[Option<f64>],
        columns: &[Option<f64>],
        bar: Bar,
    ) -> Vec<((usize, usize), f64)> {
        let values = self.values();
        // Of two, each other is all that one can be compared with.
        let floor = if values.len() == 2 { values[0].min(values[1]) } else { f64::INFINITY };
        let expected = |(row, column): (usize, usize), value: f64| {
            rows[row].unwrap_or(value).max(columns[column].unwrap_or(value)).min(floor)
        };
        let rests: Vec<((usize, usize), f64)> =
            self.cells().map(|(at, value)| (at, value / expected(at, value))).collect();
        let usual = Usual::of(&rests.iter().map(|(_, rest)| *rest).collect::<Vec<_>>());
        // Where much is far, that is how it is there, not one path.
        let farther = rests.iter().filter(|(_, rest)| *rest >= bar.times).count();
        if farther > (rests.len() / 6).max(3) {
            return Vec::new();
        }
        let by_times = Bar { more: 0.0, ..bar };
        let far = |(at, rest): &((usize, usize), f64)| {
            let value = self.at(at.0, at.1)?;
            bar.exceeded(value, expected(*at, value))?;
            Some((*at, usual.exceeded(*rest, by_times)?))
        };
        rests.iter().filter_map(far).collect()
    }
}

fn least(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().reduce(f64::min)
}

/// Those that are too much; of fewer than three nobody is usual.
pub(crate) fn beyond(values: &[Option<f64>], bar: Bar) -> Vec<(usize, f64)> {
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    if known.len() < 3 {
        return Vec::new();
    }
    let usual = Usual::of(&known);
    let one = |(at, value): (usize, &Option<f64>)| Some((at, usual.exceeded((*value)?, bar)?));
    values.iter().enumerate().filter_map(one).collect()
}

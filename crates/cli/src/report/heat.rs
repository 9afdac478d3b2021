//! A map of pairs of ranks: the warmer, the more.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::output::escaped;

/// Cells on a side; of more ranks several share one.
const SIDE: usize = 48;

/// How values become warmth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// What two values of one cell make.
    pub(super) join: fn(f64, f64) -> f64,
    /// What is warmest where no value is more.
    pub(super) full: f64,
}

/// The picture of values by (row, column), which add up; `labels` are the ranks. Nothing where there is no value.
pub(super) fn heat(
    title: &str,
    labels: &[u32],
    values: &BTreeMap<(u32, u32), f64>,
    shown: fn(f64) -> String,
) -> Option<String> {
    scaled(title, labels, values, shown, Scale { join: |a, b| a + b, full: 0.0 })
}

/// The same on a scale of one's own.
pub(super) fn scaled(
    title: &str,
    labels: &[u32],
    values: &BTreeMap<(u32, u32), f64>,
    shown: fn(f64) -> String,
    scale: Scale,
) -> Option<String> {
    let each = labels.len().div_ceil(SIDE).max(1);
    let side = labels.len().div_ceil(each);
    let place = |rank: u32| labels.binary_search(&rank).ok().map(|at| at / each);
    let mut cells: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for ((row, column), value) in values.iter().filter(|(_, value)| **value > 0.0) {
        if let (Some(row), Some(column)) = (place(*row), place(*column)) {
            let cell = cells.entry((row, column));
            cell.and_modify(|known| *known = (scale.join)(*known, *value)).or_insert(*value);
        }
    }
    let most = cells.values().copied().fold(0.0, f64::max);
    if cells.is_empty() || !most.is_finite() {
        return None;
    }
    let each_wide = (420.0 / side as f64).clamp(9.0, 34.0);
    let (left, top) = (58.0, 30.0);
    let (width, height) =
        ((left + each_wide * side as f64 + 12.0).max(320.0), top + each_wide * side as f64 + 12.0);
    let name = |at: usize| {
        let first = labels.get(at * each).copied().unwrap_or(0);
        let last = labels.get((at * each + each).min(labels.len()) - 1).copied().unwrap_or(first);
        if first == last { first.to_string() } else { format!("{first}–{last}") }
    };
    let mut svg = format!(
        "<figure class=\"heat\"><svg viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
         role=\"img\">\n<title>{}</title>\n<rect class=\"h0\" x=\"{left}\" y=\"{top}\" width=\"{square:.1}\" height=\"{square:.1}\"/>\n",
        escaped(title),
        square = each_wide * side as f64,
    );
    let every = side.div_ceil(12).max(1);
    for at in (0..side).step_by(every) {
        let middle = (at as f64 + 0.5) * each_wide;
        let first = labels.get(at * each).copied().unwrap_or(0);
        let _ = writeln!(
            svg,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{first}</text>\
             <text class=\"soft\" x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{first}</text>",
            left - 6.0,
            top + middle + 4.0,
            left + middle,
            top - 8.0,
        );
    }
    for ((row, column), value) in &cells {
        // Steps of a square root: small values are still told apart.
        let part = (value / most.max(scale.full)).sqrt();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 5")]
        let step = (part * 5.0).ceil().clamp(1.0, 5.0) as u32;
        let _ = writeln!(
            svg,
            "<rect class=\"h{step}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"{wide:.1}\"><title>{} → {}: {}</title></rect>",
            left + *column as f64 * each_wide,
            top + *row as f64 * each_wide,
            name(*row),
            name(*column),
            escaped(&shown(*value)),
            wide = each_wide - 1.0,
        );
    }
    let share = if each > 1 { format!("; {each} ranks share a cell") } else { String::new() };
    let _ = write!(
        svg,
        "</svg>\n<figcaption>{}; at most {}{share}</figcaption></figure>",
        escaped(title),
        escaped(&shown(most))
    );
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_ranks_share_cells_and_pairs_keep_their_place() {
        let labels: Vec<u32> = (0..1000).collect();
        let values: BTreeMap<(u32, u32), f64> = (0..1000)
            .flat_map(|a| (0..1000).step_by(7).map(move |b| ((a, b), f64::from(a + b + 1))))
            .collect();
        let svg = heat("t", &labels, &values, |value| format!("{value:.0}")).unwrap();
        assert!(svg.len() < 400_000, "{}", svg.len());
        assert!(
            svg.contains("21 ranks share a cell") && svg.contains("<title>0–20 → 0–20: "),
            "{svg}"
        );
        let one = heat("t", &[0, 1], &BTreeMap::from([((1, 0), 2.0)]), |value| format!("{value}"));
        assert!(one.unwrap().contains("<title>1 → 0: 2</title>"));
        assert!(heat("t", &labels, &BTreeMap::new(), |_| String::new()).is_none());
    }
}

//! Curves over sizes, both axes logarithmic, as SVG with what each point is in its tooltip.
//!
//! *Invariant*: points that a logarithm has no place for are left out; whatever numbers are given, the picture has a bound.

use std::fmt::Write as _;

use crate::output::escaped;
use crate::size;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 34.0;

/// Points of one curve that are drawn.
const POINTS_MOST: usize = 400;

/// What a curve is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// What was measured.
    Measured,
    /// The same in place.
    InPlace,
    /// What the last run measured.
    Last,
    /// What was expected.
    Expected,
}

/// One curve.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) label: String,
    pub(super) kind: Kind,
    /// Which of the six colours.
    pub(super) colour: usize,
    /// Bytes, value, and whether the point is marked as slower.
    pub(super) points: Vec<(u64, f64, bool)>,
}

/// How values are shown.
pub(super) type Shown = fn(f64) -> String;

/// The picture with its legend; nothing where no point can be drawn.
pub(super) fn chart(title: &str, curves: &[Curve], shown: Shown) -> Option<String> {
    let curves: Vec<Curve> = curves.iter().filter_map(drawable).collect();
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let (first, last) = (all().map(|p| p.0).min()?, all().map(|p| p.0).max()?);
    let least = all().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let most = all().map(|p| p.1).fold(0.0, f64::max);
    let sizes = Scale::new(log2(first), log2(last), LEFT, WIDTH - RIGHT);
    let values = Scale::new(least.log10(), most.log10(), HEIGHT - BOTTOM, TOP);
    let mut svg = format!(
        "<figure class=\"chart\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>{0}</title><text x=\"8\" y=\"18\">{0}</text>\n",
        escaped(title)
    );
    for value in value_ticks(values.low, values.high) {
        let y = values.at(value.log10());
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{:.0}\"/><text class=\"soft\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            escaped(&shown(value))
        );
    }
    for power in size_ticks(log2(first), log2(last)) {
        let x = sizes.at(f64::from(power));
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{x:.1} {TOP:.0}V{:.0}\"/><text class=\"soft\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0,
            size::display(1 << power)
        );
    }
    for curve in &curves {
        draw(&mut svg, curve, &sizes, &values, shown);
    }
    svg.push_str("</svg>\n<ul class=\"legend\">");
    for curve in &curves {
        let _ = write!(
            svg,
            "<li><svg viewBox=\"0 0 28 10\" aria-hidden=\"true\"><path class=\"{}\" d=\"M0 5H28\"/></svg>{}</li>",
            classes(curve),
            escaped(&curve.label)
        );
    }
    svg.push_str("</ul></figure>");
    Some(svg)
}

/// A curve without the points that have no place, thinned where there are very many.
fn drawable(curve: &Curve) -> Option<Curve> {
    let has_place = |(bytes, value, _): &&(u64, f64, bool)| {
        *bytes > 0 && value.is_finite() && (1e-12..1e18).contains(value)
    };
    let points: Vec<_> = curve.points.iter().filter(has_place).copied().collect();
    let every = points.len().div_ceil(POINTS_MOST).max(1);
    let mut points: Vec<_> = points.into_iter().step_by(every).collect();
    points.sort_by_key(|point| point.0);
    (!points.is_empty()).then(|| Curve { points, ..curve.clone() })
}

fn classes(curve: &Curve) -> String {
    let kind = match curve.kind {
        Kind::Measured => "",
        Kind::InPlace => " thin",
        Kind::Last => " last",
        Kind::Expected => " expected",
    };
    format!("line s{}{kind}", curve.colour % 6)
}

fn draw(svg: &mut String, curve: &Curve, sizes: &Scale, values: &Scale, shown: Shown) {
    let places: Vec<(f64, f64)> = curve
        .points
        .iter()
        .map(|(bytes, value, _)| (sizes.at(log2(*bytes)), values.at(value.log10())))
        .collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let _ = writeln!(svg, "<path class=\"{}\" d=\"M{}\"/>", classes(curve), path.join("L"));
    let radius = if curve.kind == Kind::Measured { 3.5 } else { 2.5 };
    for ((bytes, value, slower), (x, y)) in curve.points.iter().zip(&places) {
        let _ = write!(
            svg,
            "<circle class=\"dot d{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"><title>{}, {}: {}</title></circle>",
            curve.colour % 6,
            escaped(&curve.label),
            size::display(*bytes),
            escaped(&shown(*value))
        );
        if *slower {
            let _ = write!(svg, "<circle class=\"slower\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7\"/>");
        }
    }
    svg.push('\n');
}

/// From logarithms to places.
#[derive(Clone, Copy, Debug)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(low: f64, high: f64, from: f64, to: f64) -> Self {
        // One value alone stands in the middle; curves keep off the frame.
        let room = ((high - low) * 0.04).max(if high - low < 0.1 { 0.2 } else { 0.0 });
        Self { low: low - room, high: high + room, from, to }
    }

    fn at(&self, place: f64) -> f64 {
        self.from + (place - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// Whole powers of ten; where there are few, steps between them too.
fn value_ticks(low: f64, high: f64) -> Vec<f64> {
    let digits: &[f64] = match high - low {
        span if span > 2.5 => &[1.0],
        span if span > 1.2 => &[1.0, 3.0],
        _ => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
    };
    #[expect(clippy::cast_possible_truncation, reason = "a logarithm of what is drawn")]
    let decades = (low.floor() as i32)..=(high.ceil() as i32);
    let all = decades.flat_map(|decade| digits.iter().map(move |one| one * 10_f64.powi(decade)));
    let inside: Vec<f64> = all.filter(|value| (low..=high).contains(&value.log10())).collect();
    let every = inside.len().div_ceil(9).max(1);
    inside.into_iter().step_by(every).collect()
}

/// Powers of two, as many as have room.
fn size_ticks(low: f64, high: f64) -> Vec<u32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 64")]
    let (first, last) = (low.ceil().max(0.0) as u32, high.floor().clamp(0.0, 63.0) as u32);
    let every = last.saturating_sub(first).div_ceil(5).max(1) as usize;
    (first..=last).step_by(every).collect()
}

fn log2(bytes: u64) -> f64 {
    (bytes as f64).log2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u64, f64)]) -> Curve {
        Curve {
            label: "<b>".to_owned(),
            kind: Kind::Measured,
            colour: 7,
            points: points.iter().map(|(bytes, value)| (*bytes, *value, true)).collect(),
        }
    }

    #[test]
    fn whatever_was_measured_every_place_is_inside() {
        let shown: Shown = |value| format!("{value}");
        for points in [
            &[(8, 1.0)][..],
            &[(8, 0.0), (64, f64::NAN), (1 << 30, f64::INFINITY), (16, 5.0)],
            &[(u64::MAX, 1e17), (1, 1e-11)],
            &[(5, 1.0), (6, 1.0), (7, 1.01)],
        ] {
            let svg = chart("t", &[curve(points)], shown).expect("a point has a place");
            assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<b>"), "{svg}");
            for part in svg.split("cx=\"").skip(1) {
                let x: f64 = part.split('"').next().unwrap().parse().unwrap();
                assert!((LEFT - 1.0..=WIDTH).contains(&x), "{svg}");
            }
            for part in svg.split("cy=\"").skip(1) {
                let y: f64 = part.split('"').next().unwrap().parse().unwrap();
                assert!((TOP - 1.0..=HEIGHT - BOTTOM + 1.0).contains(&y), "{svg}");
            }
        }
        assert!(chart("t", &[curve(&[(0, 3.0), (8, 0.0)])], shown).is_none());
        assert!(chart("t", &[], shown).is_none());
    }

    #[test]
    fn many_points_are_thinned() {
        let many: Vec<(u64, f64)> = (1..100_000).map(|n| (n, 1.0)).collect();
        let svg = chart("t", &[curve(&many)], |value| format!("{value}")).unwrap();
        assert!(svg.len() < 200_000, "{}", svg.len());
    }
}

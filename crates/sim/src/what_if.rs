//! What if: the same work with one or two things changed, over lists.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// What may be changed.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// What hosts can send over what leaves can pass on.
    Oversubscription,
    /// What adapters and links carry.
    Rate,
    /// Ports of a switch.
    Radix,
    /// How adapters are spread.
    Layout,
    /// Adapters of a host.
    Nics,
    /// How a way is chosen.
    Routing,
    /// Queue pairs of a connection.
    Qps,
    /// Rings side by side.
    Channels,
    /// How a collective is done.
    Algorithm,
    /// Bytes of a call.
    Size,
}

impl Knob {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Oversubscription,
        Self::Rate,
        Self::Radix,
        Self::Layout,
        Self::Nics,
        Self::Routing,
        Self::Qps,
        Self::Channels,
        Self::Algorithm,
        Self::Size,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Oversubscription => "oversubscription",
            Self::Rate => "rate",
            Self::Radix => "radix",
            Self::Layout => "layout",
            Self::Nics => "nics",
            Self::Routing => "routing",
            Self::Qps => "qps",
            Self::Channels => "channels",
            Self::Algorithm => "algorithm",
            Self::Size => "size",
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One thing and the values it takes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Axis {
    /// What is changed.
    pub knob: Knob,
    /// To what.
    pub values: Vec<String>,
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Knob::ALL.map(Knob::name).join(", ");
        let Some((name, list)) = text.split_once('=') else {
            return Err(format!("wanted is NAME=a,b,c with one of {}", names()));
        };
        let knob = Knob::ALL.into_iter().find(|knob| knob.name() == name.trim());
        let Some(knob) = knob else {
            return Err(format!("{} cannot be varied; these can: {}", name.trim(), names()));
        };
        let mut values: Vec<String> = Vec::new();
        for value in list.split(',').map(str::trim) {
            if value.is_empty() {
                return Err(format!("{name}: a value is missing between commas"));
            }
            if values.iter().any(|known| known == value) {
                return Err(format!("{name}: {value} is there twice"));
            }
            values.push(value.to_owned());
        }
        Ok(Self { knob, values })
    }
}

/// One of all ways to set the things that are changed.
pub type Point<'a> = Vec<(Knob, &'a str)>;

/// Every value of the first with every value of the second.
#[must_use]
pub fn grid(axes: &[Axis]) -> Vec<Point<'_>> {
    let mut points: Vec<Point<'_>> = vec![Vec::new()];
    for axis in axes {
        points = points
            .into_iter()
            .flat_map(|point| {
                axis.values.iter().map(move |value| {
                    let mut longer = point.clone();
                    longer.push((axis.knob, value.as_str()));
                    longer
                })
            })
            .collect();
    }
    points
}

/// What came out at one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// The values of the things that were changed, in the order of the axes.
    pub values: Vec<String>,
    /// What was measured.
    #[serde(flatten)]
    pub measure: Option<Measure>,
    /// Why nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether nothing was quicker.
    pub best: bool,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// Microseconds of all of it.
    pub time_us: f64,
    /// GB/s of the busiest collective's links, where there is one collective; tokens a second of a training step.
    pub rate: f64,
    /// The hottest link's use between switches, as a part.
    pub hottest: f64,
    /// The worst imbalance between switches.
    pub imbalance: f64,
}

/// Tries every point; the quickest are marked. Those within a thousandth of the best are as good.
pub fn try_all(
    axes: &[Axis],
    mut measure: impl FnMut(&Point<'_>) -> Result<Measure, String>,
) -> Vec<Tried> {
    let mut all: Vec<Tried> = Vec::new();
    for point in grid(axes) {
        let values = point.iter().map(|(_, value)| (*value).to_owned()).collect();
        let (measured, why) = match measure(&point) {
            Ok(measured) => (Some(measured), None),
            Err(why) => (None, Some(why)),
        };
        all.push(Tried { values, measure: measured, why, best: false });
    }
    let times = all.iter().filter_map(|tried| tried.measure.map(|measured| measured.time_us));
    let best = times.fold(f64::INFINITY, f64::min);
    for tried in &mut all {
        tried.best = tried.measure.is_some_and(|measured| measured.time_us <= best * 1.001);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_crossed() {
        let axes: Vec<Axis> =
            ["qps=1,4", "routing=ecmp,adaptive"].map(|text| text.parse().unwrap()).into();
        let points = grid(&axes);
        assert_eq!(points.len(), 4);
        assert_eq!(points[1], [(Knob::Qps, "1"), (Knob::Routing, "adaptive")]);
        assert_eq!(grid(&[]), [Point::new()]);
    }

    #[test]
    fn wrong_lists_are_told() {
        let table = [
            ("qps", "NAME=a,b,c"),
            ("colour=red", "colour cannot be varied; these can: oversubscription"),
            ("qps=1,,2", "missing"),
            ("qps=1,1", "1 is there twice"),
        ];
        for (text, part) in table {
            let error = text.parse::<Axis>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_best_is_marked_and_failures_are_kept() {
        let axes = ["qps=1,2,3".parse().unwrap()];
        let tried = try_all(&axes, |point| match point[0].1 {
            "1" => Err("too few".to_owned()),
            "2" => Ok(Measure { time_us: 10.0, rate: 1.0, hottest: 0.5, imbalance: 0.0 }),
            _ => Ok(Measure { time_us: 12.0, rate: 1.0, hottest: 0.5, imbalance: 0.0 }),
        });
        let best: Vec<bool> = tried.iter().map(|one| one.best).collect();
        assert_eq!(best, [false, true, false]);
        assert_eq!(tried[0].why.as_deref(), Some("too few"));
        let json = serde_json::to_value(&tried).unwrap();
        assert_eq!((&json[0]["why"], &json[1]["time_us"]), (&"too few".into(), &10.0.into()));
    }
}

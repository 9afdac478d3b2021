//! What it costs and draws, by a price file that the reader brings: no price is built in.

use serde::{Deserialize, Serialize};

use super::Design;

/// Prices and watts of one of each; what is left out costs nothing and is said to be missing.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The money's name.
    #[serde(default)]
    pub currency: String,
    /// A switch.
    pub switch: Option<f64>,
    /// An adapter.
    pub adapter: Option<f64>,
    /// A cable to a host, with what is at its ends.
    pub host_cable: Option<f64>,
    /// A cable between switches, with what is at its ends.
    pub switch_cable: Option<f64>,
    /// Watts of a switch.
    pub switch_watts: Option<f64>,
    /// Watts of an adapter.
    pub adapter_watts: Option<f64>,
    /// Watts of the ends of a cable to a host.
    pub host_cable_watts: Option<f64>,
    /// Watts of the ends of a cable between switches.
    pub switch_cable_watts: Option<f64>,
}

/// Why a price file cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct PriceError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// One line of the bill.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BillLine {
    /// What it is.
    pub what: &'static str,
    /// How many.
    pub count: u64,
    /// What all of them cost.
    pub cost: Option<f64>,
    /// What all of them draw.
    pub watts: Option<f64>,
}

/// What all costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bill {
    /// The money's name.
    pub currency: String,
    /// Line by line.
    pub lines: Vec<BillLine>,
    /// The sum of what has a price.
    pub cost: f64,
    /// The sum of what is known to draw power.
    pub watts: f64,
    /// What has no price.
    pub unpriced: Vec<&'static str>,
    /// What has no watts in the file: its power is not in the sum.
    pub unmeasured: Vec<&'static str>,
}

impl Prices {
    /// Reads a price file: JSON with the fields above.
    ///
    /// # Errors
    ///
    /// When it is no such JSON, or a price is negative or no number.
    pub fn from_json(bytes: &[u8]) -> Result<Self, PriceError> {
        let read: Self = serde_json::from_slice(bytes)
            .map_err(|error| PriceError { line: error.line(), what: error.to_string() })?;
        let all = [
            read.switch,
            read.adapter,
            read.host_cable,
            read.switch_cable,
            read.switch_watts,
            read.adapter_watts,
            read.host_cable_watts,
            read.switch_cable_watts,
        ];
        if all.iter().flatten().any(|price| !price.is_finite() || *price < 0.0) {
            return Err(PriceError {
                line: 1,
                what: "a price or a number of watts is negative".to_owned(),
            });
        }
        if read.currency.chars().count() > 12 {
            return Err(PriceError {
                line: 1,
                what: "a currency's name has at most 12 characters".to_owned(),
            });
        }
        Ok(read)
    }

    /// The bill for a design.
    #[must_use]
    pub fn bill(&self, design: &Design) -> Bill {
        let line = |what, count: u64, price: Option<f64>, watts: Option<f64>| BillLine {
            what,
            count,
            cost: price.map(|price| price * count as f64),
            watts: watts.map(|watts| watts * count as f64),
        };
        let lines = vec![
            line("switches", design.switches, self.switch, self.switch_watts),
            line("adapters", design.endpoints, self.adapter, self.adapter_watts),
            line("cables to hosts", design.host_cables, self.host_cable, self.host_cable_watts),
            line(
                "cables between switches",
                design.switch_cables,
                self.switch_cable,
                self.switch_cable_watts,
            ),
        ];
        Bill {
            currency: self.currency.clone(),
            cost: lines.iter().filter_map(|line| line.cost).sum(),
            watts: lines.iter().filter_map(|line| line.watts).sum(),
            unpriced: lines
                .iter()
                .filter(|line| line.cost.is_none())
                .map(|line| line.what)
                .collect(),
            unmeasured: lines
                .iter()
                .filter(|line| line.watts.is_none())
                .map(|line| line.what)
                .collect(),
            lines,
        }
    }
}

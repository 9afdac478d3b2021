//! Quality of service of a RoCE interface, as mlnx_qos prints it.
//!
//! *Invariant*: any text gives a value; what is not understood is nothing.

use super::Host;

/// What mlnx_qos says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Qos {
    /// `dscp` or `pcp`.
    pub(crate) trust: Option<String>,
    /// Priorities with flow control.
    pub(crate) pfc: Option<Vec<usize>>,
    /// Priority of each code point that is listed.
    pub(crate) priorities: Vec<(u32, usize)>,
}

impl Qos {
    /// Reads the output.
    pub(crate) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        let mut in_pfc = false;
        for line in text.lines() {
            let line = line.trim();
            if let Some(word) = line.strip_prefix("Priority trust state:") {
                found.trust = Some(word.trim().to_lowercase());
            } else if line.starts_with("PFC configuration") {
                in_pfc = true;
            } else if in_pfc && let Some(row) = line.strip_prefix("enabled") {
                let on = |(priority, word): (usize, &str)| (word == "1").then_some(priority);
                found.pfc = Some(row.split_whitespace().enumerate().filter_map(on).collect());
                in_pfc = false;
            } else if let Some(row) = line.strip_prefix("prio:") {
                found.row(row);
            }
        }
        found
    }

    /// `3 dscp:31,30,29,` after `prio:`.
    fn row(&mut self, row: &str) {
        let mut parts = row.split_whitespace();
        let (Some(Ok(priority)), Some(points)) = (parts.next().map(str::parse), parts.next())
        else {
            return;
        };
        let points = points.trim_start_matches("dscp:");
        let points = points.split(',').filter_map(|point| point.parse::<u32>().ok());
        self.priorities.extend(points.map(|point| (point, priority)));
    }

    /// The priority of a code point: as listed, else its upper three bits.
    pub(crate) fn priority(&self, point: u32) -> usize {
        let listed = self.priorities.iter().find(|(one, _)| *one == point);
        listed.map_or((point >> 3 & 7) as usize, |(_, priority)| *priority)
    }
}

impl Host {
    /// Quality of service of an interface: trust from sysfs where it is there, the rest from mlnx_qos.
    pub(crate) fn qos(&self, interface: &str) -> Result<Qos, String> {
        let from_file = self.text(&format!("/sys/class/net/{interface}/qos/trust"));
        let mut found = match self.output(&format!("mlnx_qos-{interface}")) {
            Ok(text) => Qos::parse(&text),
            Err(why) if from_file.is_none() => return Err(why),
            Err(_) => Qos::default(),
        };
        found.trust = found.trust.or(from_file);
        Ok(found)
    }
}

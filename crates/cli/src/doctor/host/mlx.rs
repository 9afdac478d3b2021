//! What NVIDIA's tools for network cards print: `mlxlink -c` and `mlxreg --get`, both only asked to show.
//!
//! *Invariant*: any text gives a value or nothing.

/// Bit error rates of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct BitErrors {
    /// Before errors are corrected.
    pub(crate) raw: Option<f64>,
    /// After.
    pub(crate) effective: Option<f64>,
}

impl BitErrors {
    /// Reads lines `Raw Physical BER : 2E-10`; nothing where there is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rate = |name: &str| {
            let value = text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (without_colours(key).trim() == name).then(|| without_colours(value))
            })?;
            value.trim().parse::<f64>().ok().filter(|rate| (0.0..=1.0).contains(rate))
        };
        let found =
            Self { raw: rate("Raw Physical BER"), effective: rate("Effective Physical BER") };
        (found != Self::default()).then_some(found)
    }
}

/// Whether the card asks the fabric to spread RoCE packets over paths: `adaptive_routing_forced_en` of the
/// register ROCE_ACCL.
pub(crate) fn adaptive_routing(text: &str) -> Option<bool> {
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once('|')?;
        (name.trim() == "adaptive_routing_forced_en").then(|| value.trim())
    })?;
    match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
    .map(|number| number != 0)
}

/// The text without the terminal's colours.
fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_colours_and_without() {
        let text = "Operational Info\nState : Active\n\nSymbol BER : 15E-255\n\
                    Effective Physical BER             : 15E-255\n\
                    \u{1b}[32mRaw Physical BER                   \u{1b}[0m: \u{1b}[31m3E-7\u{1b}[0m\n";
        let found = BitErrors::parse(text).unwrap();
        assert_eq!(found.raw, Some(3e-7));
        assert!(found.effective.is_some_and(|rate| rate < 1e-200));
        assert_eq!(BitErrors::parse("Raw Physical BER : N/A"), None);
    }

    #[test]
    fn the_register_is_read_in_both_bases() {
        let line = |value: &str| {
            format!("Field Name | Data\n====\nadaptive_routing_forced_en | {value}\n")
        };
        assert_eq!(adaptive_routing(&line("0x00000001")), Some(true));
        assert_eq!(adaptive_routing(&line("0")), Some(false));
        assert_eq!(adaptive_routing("adaptive_routing_forced_en_field_select | 0x1"), None);
    }
}

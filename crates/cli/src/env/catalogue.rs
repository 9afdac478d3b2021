//! What every variable of NCCL and its kin is: values, default, versions, fate, meaning.
//!
//! The data is `names.txt`; what Ringway itself reads comes from its own table of settings. *Invariant*: a
//! line of the data that does not have its form is a failing test, never a panic.

use ringway::config::{Config, Environment, Setting};
use ringway_plan::topology::level::parse_level;

const DATA: &str = include_str!("names.txt");

/// Prefixes whose names are looked at.
pub(crate) const PREFIXES: [&str; 4] = ["NCCL_", "RCCL_", "CCL_", "RINGWAY_"];

/// Names under NCCL's prefix that belong to others, by prefix or whole.
const OF_OTHERS: [&str; 11] = [
    "NCCL_TESTS_",
    "NCCL_OFI_",
    "NCCL_FASTRAK_",
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_IBEXT_",
    "NCCL_SHARP_",
    "NCCL_VERSION",
    "NCCL_ROOT",
    "NCCL_LIB",
    "NCCL_INCLUDE_DIR",
    "NCCL_PLUGIN_P2P",
];

/// What has become of a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate<'a> {
    Lives,
    /// Not read since this version, or `some` version that is not known here.
    Removed(&'a str),
    /// Another name is read in its place.
    Renamed(&'a str),
    /// Still read; this one is better.
    Deprecated(&'a str),
    /// Declared, and read by nothing.
    Dead,
    /// Read by a plugin or by software beside the library.
    Beside,
}

/// One variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) name: &'a str,
    pub(crate) values: &'a str,
    pub(crate) default: &'a str,
    pub(crate) since: &'a str,
    pub(crate) fate: Fate<'a>,
    pub(crate) meaning: &'a str,
}

/// All of them, in the order of the data.
pub(crate) fn all() -> impl Iterator<Item = Variable<'static>> {
    DATA.lines().filter(|line| !line.starts_with('#')).filter_map(parse)
}

/// One of them.
pub(crate) fn find(name: &str) -> Option<Variable<'static>> {
    all().find(|variable| variable.name == name)
}

/// Ringway's own settings, at their defaults.
pub(crate) fn own() -> Vec<Setting> {
    Config::load(&Environment::new(std::iter::empty::<(String, String)>())).settings()
}

/// Whether a name is somebody else's under a prefix of ours.
pub(crate) fn is_of_others(name: &str) -> bool {
    OF_OTHERS.iter().any(|other| name.starts_with(other))
}

fn parse(line: &str) -> Option<Variable<'_>> {
    let mut fields = line.split('|');
    let mut next = || fields.next();
    let (name, values, default) = (next()?, next()?, next()?);
    let (since, fate, meaning) = (next()?, next()?, next()?);
    let fate = match fate.split_once(' ') {
        Some(("removed", version)) => Fate::Removed(version),
        Some(("renamed", name)) => Fate::Renamed(name),
        Some(("deprecated", name)) => Fate::Deprecated(name),
        _ if fate == "dead" => Fate::Dead,
        _ if fate == "plugin" || fate == "contrib" => Fate::Beside,
        _ => Fate::Lives,
    };
    Some(Variable { name, values, default, since, fate, meaning })
}

impl Variable<'_> {
    /// What is wrong with a value, if anything.
    pub(crate) fn fault(&self, value: &str) -> Option<String> {
        match self.values {
            "bool" => (!matches!(value, "0" | "1")).then(|| "0 or 1".to_owned()),
            "bytes" => parse_whole(value).is_none().then(|| "a whole number of bytes".to_owned()),
            "text" | "path" | "list" => None,
            "level" => parse_level(value).is_none().then(|| {
                "one of LOC, NVL, PIX, PXB, P2C, PXN, PHB, SYS in capitals, or 0 to 5".to_owned()
            }),
            "int" => parse_whole(value).is_none().then(|| "a whole number".to_owned()),
            range if range.starts_with("int ") => {
                let (low, high) = range["int ".len()..].split_once("..").unwrap_or(("", ""));
                let low: Option<i64> = low.parse().ok();
                let high: Option<i64> = high.parse().ok();
                let number = parse_whole(value);
                let fits = number.is_some_and(|number| {
                    low.is_none_or(|low| number >= low) && high.is_none_or(|high| number <= high)
                });
                (!fits).then(|| match (low, high) {
                    (Some(low), Some(high)) => format!("a whole number from {low} to {high}"),
                    (Some(low), None) => format!("a whole number from {low}"),
                    _ => "a whole number".to_owned(),
                })
            }
            words => {
                let fits = words.split('/').any(|word| word.eq_ignore_ascii_case(value));
                (!fits).then(|| format!("one of {}", words.replace('/', ", ")))
            }
        }
    }
}

/// NCCL reads numbers by strtoll with base 0: `0x10` is 16 and `010` is 8. What is no number to its end is
/// none here, where strtoll takes what it can.
pub(crate) fn parse_whole(value: &str) -> Option<i64> {
    let (sign, digits) = match value.strip_prefix(['-', '+']) {
        Some(rest) if value.starts_with('-') => ("-", rest),
        Some(rest) => ("", rest),
        None => ("", value),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = match hex {
        Some(hex) => (hex, 16),
        None if digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    // One sign only.
    let bare = digits.starts_with(|digit: char| digit.is_ascii_hexdigit());
    bare.then(|| i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()).flatten()
}

/// The known name nearest to a wrong one.
pub(crate) fn nearest(name: &str) -> Option<String> {
    if name.len() > 80 {
        return None;
    }
    let own = own();
    let names = all().map(|variable| variable.name).chain(own.iter().map(|setting| setting.name));
    let limit = (name.len() / 6).clamp(1, 3);
    let near = names.filter_map(|known| Some((distance(name, known, limit)?, known)));
    near.min_by_key(|(distance, known)| (*distance, known.len().abs_diff(name.len())))
        .map(|(_, known)| known.to_owned())
}

/// Damerau–Levenshtein distance, if at most `limit`.
pub(crate) fn distance(left: &str, right: &str, limit: usize) -> Option<usize> {
    if left.len().abs_diff(right.len()) > limit {
        return None;
    }
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.iter().enumerate() {
        let mut now = vec![row + 1; right.len() + 1];
        for (column, b) in right.iter().enumerate() {
            let change = above[column] + usize::from(a != b);
            now[column + 1] = change.min(above[column + 1] + 1).min(now[column] + 1);
            if row > 0 && column > 0 && *a == right[column - 1] && left[row - 1] == *b {
                now[column + 1] = now[column + 1].min(before[column - 1] + 1);
            }
        }
        before = std::mem::replace(&mut above, now);
    }
    above.last().copied().filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_of_the_data_has_its_form() {
        let lines: Vec<&str> = DATA.lines().filter(|line| !line.starts_with('#')).collect();
        let names: BTreeSet<&str> = all().map(|variable| variable.name).collect();
        assert_eq!(names.len(), lines.len(), "a name twice, or a line without form");
        assert!(lines.len() >= 340, "{}", lines.len());
        for variable in all() {
            assert!(lines.iter().all(|line| line.split('|').count() == 6), "{}", variable.name);
            assert!(
                variable.meaning.len() >= 7 && !variable.meaning.ends_with('.'),
                "{}",
                variable.name
            );
            if let Fate::Renamed(to) = variable.fate {
                assert!(find(to).is_some() || to.starts_with("TORCH_"), "{to}");
            }
            // A default is a value.
            if variable.default.parse::<i64>().is_ok() {
                assert_eq!(variable.fault(variable.default), None, "{}", variable.name);
            }
        }
    }

    #[test]
    fn what_ringway_reads_is_in_the_data_too() {
        for setting in own().iter().filter(|setting| setting.name.starts_with("NCCL_")) {
            assert!(find(setting.name).is_some(), "{}", setting.name);
        }
    }

    #[test]
    fn every_name_of_the_reference_is_known() {
        let folder = std::env::var("RINGWAY_FIXTURES").unwrap_or_default();
        let Ok(text) = std::fs::read_to_string(format!("{folder}/../reference/nccl-env.tsv"))
        else {
            let why =
                b"SKIPPED names of the reference: RINGWAY_FIXTURES/../reference is not there\n";
            let _closed = std::io::Write::write_all(&mut std::io::stderr(), why);
            return;
        };
        for name in text.lines().skip(1).filter_map(|line| line.split('\t').next()) {
            assert!(find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn values_are_judged_by_their_kind() {
        let fault = |name: &str, value: &str| find(name).unwrap().fault(value);
        for (name, value) in [
            ("NCCL_IB_DISABLE", "1"),
            ("NCCL_IB_TIMEOUT", "22"),
            ("NCCL_IB_TC", "0x6a"),
            ("NCCL_DEBUG", "info"),
            ("NCCL_NET_GDR_LEVEL", "PHB"),
            ("NCCL_NET_GDR_LEVEL", "6"),
            ("NCCL_P2P_LEVEL", "NVL"),
            ("NCCL_NET_MERGE_LEVEL", "PORT"),
            ("NCCL_IB_TIMEOUT", "026"),
            ("NCCL_BUFFSIZE", "8388608"),
            ("NCCL_ALGO", "allreduce:tree;allgather:ring"),
        ] {
            assert_eq!(fault(name, value), None, "{name}={value}");
        }
        for (name, value, wanted) in [
            ("NCCL_IB_DISABLE", "yes", "0 or 1"),
            ("NCCL_IB_TIMEOUT", "32", "from 0 to 31"),
            ("NCCL_NTHREADS", "100", "64, 128"),
            ("NCCL_DEBUG", "VERBOSE", "INFO"),
            ("NCCL_NET_GDR_LEVEL", "NEAR", "PHB"),
            ("NCCL_NET_GDR_LEVEL", "phb", "in capitals"),
            ("NCCL_NET_GDR_LEVEL", "-1", "in capitals"),
            ("NCCL_NET_MERGE_LEVEL", "near", "PORT"),
            ("NCCL_IB_TIMEOUT", "040", "from 0 to 31"),
            ("NCCL_IB_TIMEOUT", "08", "from 0 to 31"),
            ("NCCL_BUFFSIZE", "8M", "bytes"),
        ] {
            assert!(fault(name, value).unwrap().contains(wanted), "{name}={value}");
        }
    }

    #[test]
    fn numbers_are_read_as_strtoll_reads_them() {
        for (text, number) in [
            ("10", Some(10)),
            ("010", Some(8)),
            ("0", Some(0)),
            ("-0", Some(0)),
            ("0x10", Some(16)),
            ("-0X10", Some(-16)),
            ("+7", Some(7)),
            ("-1", Some(-1)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("08", None),
            ("0x", None),
            ("0x-1", None),
            ("--1", None),
            ("8M", None),
            ("", None),
            ("-", None),
        ] {
            assert_eq!(parse_whole(text), number, "{text}");
        }
    }

    #[test]
    fn near_names_are_found() {
        assert_eq!(nearest("NCCL_IB_GID_INDX").as_deref(), Some("NCCL_IB_GID_INDEX"));
        assert_eq!(nearest("NCCL_SOCKET_IFNAMES").as_deref(), Some("NCCL_SOCKET_IFNAME"));
        assert_eq!(nearest("NCLL_IB_HCA").as_deref(), Some("NCCL_IB_HCA"));
        assert_eq!(nearest("NCCL_QQQQQQQQ_ZZZZ"), None);
    }
}

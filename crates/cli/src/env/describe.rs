//! `ringway env list` and `ringway env explain`: the variables in words.

use std::fmt::Write as _;

use ringway::config::Setting;
use serde::Serialize;

use super::catalogue::{self, Fate, Variable};
use crate::doctor::finding::folded;

/// One variable as both forms show it.
#[derive(Debug, Serialize)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) values: String,
    pub(crate) default: String,
    pub(crate) since: Option<String>,
    pub(crate) fate: String,
    /// Whether Ringway itself reads it.
    pub(crate) ringway: bool,
    pub(crate) meaning: String,
}

/// Those whose name holds the pattern, whatever its case; a pattern of words must all be in name or meaning.
pub(crate) fn matching(pattern: &str) -> Vec<Described> {
    let words: Vec<String> = pattern.split_whitespace().map(str::to_ascii_uppercase).collect();
    let fits = |described: &Described| {
        let text = format!("{} {}", described.name, described.meaning).to_ascii_uppercase();
        words.iter().all(|word| text.contains(word.trim_matches('*')))
    };
    let mut all = everything();
    all.retain(fits);
    all
}

/// One of them by name.
pub(crate) fn named(name: &str) -> Option<Described> {
    let name = name.to_ascii_uppercase();
    everything().into_iter().find(|described| described.name == name)
}

fn everything() -> Vec<Described> {
    let own = catalogue::own();
    let is_own = |name: &str| own.iter().any(|setting| setting.name == name);
    let mut all: Vec<Described> =
        catalogue::all().map(|variable| from_nccl(&variable, is_own(variable.name))).collect();
    let rest = own.iter().filter(|setting| catalogue::find(setting.name).is_none());
    all.extend(rest.map(from_own));
    all
}

fn from_nccl(variable: &Variable<'_>, ringway: bool) -> Described {
    let fate = match variable.fate {
        Fate::Lives => String::new(),
        Fate::Removed("some") => "no longer read".to_owned(),
        Fate::Removed(version) => format!("not read since {version}"),
        Fate::Renamed(to) => format!("now {to}"),
        Fate::Deprecated("nothing") => "out of date".to_owned(),
        Fate::Deprecated(to) => format!("out of date, use {to}"),
        Fate::Dead => "read by nothing".to_owned(),
        Fate::Beside => "of a plugin or a tool, not of the library".to_owned(),
    };
    Described {
        name: variable.name.to_owned(),
        values: values_in_words(variable.values),
        default: variable.default.to_owned(),
        since: (!variable.since.is_empty()).then(|| variable.since.to_owned()),
        fate,
        ringway,
        meaning: variable.meaning.to_owned(),
    }
}

fn values_in_words(values: &str) -> String {
    match values {
        "bool" => "0 or 1".to_owned(),
        "int" => "whole number".to_owned(),
        "bytes" => "bytes, a whole number".to_owned(),
        "level" => {
            "LOC (never), NVL, PIX, PXB, P2C, PXN, PHB or SYS (always): the farthest path allowed"
                .to_owned()
        }
        _ => match values.strip_prefix("int ").and_then(|range| range.split_once("..")) {
            Some((low, "")) => format!("whole number from {low}"),
            Some((low, high)) => format!("whole number from {low} to {high}"),
            None => values.replace('/', ", "),
        },
    }
}

fn from_own(setting: &Setting) -> Described {
    Described {
        name: setting.name.to_owned(),
        values: setting.kind.to_owned(),
        default: setting.default.clone(),
        since: None,
        fate: String::new(),
        ringway: true,
        meaning: setting.meaning.to_owned(),
    }
}

/// The list: a name and its meaning.
pub(crate) fn list(all: &[Described], columns: usize) -> String {
    let mut page = String::new();
    for one in all {
        let mark = if one.ringway { "  (ringway reads it)" } else { "" };
        let _ = writeln!(page, "{}{mark}", one.name);
        let fate = if one.fate.is_empty() { String::new() } else { format!(" [{}]", one.fate) };
        for line in folded(&format!("{}{fate}", one.meaning), columns.saturating_sub(4)) {
            let _ = writeln!(page, "    {line}");
        }
    }
    page
}

/// All about one.
pub(crate) fn explain(one: &Described, columns: usize) -> String {
    let mut page = format!("{}\n", one.name);
    for line in folded(&one.meaning, columns.saturating_sub(2)) {
        let _ = writeln!(page, "  {line}");
    }
    let since = one.since.as_deref().map(|version| format!("NCCL {version}"));
    let own = catalogue::own();
    let setting = own.iter().find(|setting| setting.name == one.name);
    let ringway = match setting {
        Some(setting) if setting.meaning != one.meaning => setting.meaning.to_owned(),
        Some(_) => "reads it".to_owned(),
        None => "does not read it".to_owned(),
    };
    let rows = [
        ("values", Some(one.values.clone())),
        ("default", Some(one.default.clone())),
        ("since", since),
        ("fate", (!one.fate.is_empty()).then(|| one.fate.clone())),
        ("Ringway", Some(ringway)),
    ];
    for (label, text) in rows {
        let Some(text) = text else { continue };
        for (number, line) in folded(&text, columns.saturating_sub(12)).iter().enumerate() {
            let _ = writeln!(page, "  {:<8}  {line}", if number == 0 { label } else { "" });
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_look_in_names_and_meanings() {
        let names =
            |pattern: &str| matching(pattern).into_iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(names("gid_index"), ["NCCL_IB_GID_INDEX", "NCCL_IB_ROUTABLE_FLID_GID_INDEX"]);
        assert!(names("NCCL_IB_*").len() > 40);
        assert!(names("traffic class").contains(&"NCCL_IB_TC".to_owned()));
        assert!(names("").len() > 340);
        assert!(names("ringway_level").len() == 1);
    }

    #[test]
    fn one_is_explained_whatever_its_case() {
        let text = explain(&named("nccl_ib_mqp_retry_cnt").unwrap(), 80);
        assert!(text.contains("34") && text.contains("does not read it"), "{text}");
        let text = explain(&named("NCCL_SOCKET_IFNAME").unwrap(), 80);
        assert!(text.contains("Network interfaces for sockets"), "{text}");
        assert!(named("NCCL_NOPE").is_none());
    }
}

//! What is wrong with settings: names, values, and combinations that cost speed or stability.
//!
//! *Invariant*: a rule that needs to know this machine (interfaces, address tables) speaks only when it was
//! given the machine; a value that only a shell knows is never judged.

mod rules;

use std::collections::BTreeMap;

use ringway::config::{Config, Source};

use super::catalogue::{self, Fate};
use super::host::Host;
use super::source::Setting;
use crate::doctor::finding::{Finding, Report, Verdict};

/// What is looked at.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) settings: &'a [Setting],
    /// The machine the settings are for, where it is this one.
    pub(crate) host: Option<&'a Host>,
    /// The DSCP the network gives collectives, where the operator says.
    pub(crate) dscp: Option<u8>,
}

/// One value that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'a> {
    pub(crate) text: &'a str,
    pub(crate) place: &'a str,
    pub(crate) name: &'a str,
}

impl Value<'_> {
    /// As evidence.
    pub(crate) fn shown(self) -> String {
        let text = if is_secret(self.name) { "…" } else { self.text };
        format!("{}: {}={text}", self.place, self.name)
    }

    pub(crate) fn number(self) -> Option<i64> {
        catalogue::parse_whole(self.text)
    }
}

/// Whether the value must not be shown.
fn is_secret(name: &str) -> bool {
    name.contains("SECRET")
}

impl<'a> Input<'a> {
    /// The value that counts: the last one.
    pub(crate) fn get(&self, name: &str) -> Option<Value<'a>> {
        let setting = self.settings.iter().rfind(|setting| setting.name == name)?;
        Some(Value { text: setting.value.as_deref()?, place: &setting.place, name: &setting.name })
    }

    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.number()
    }
}

/// Looks at all settings.
pub(crate) fn lint(input: &Input<'_>) -> Report {
    let mut report = Report::new("env");
    report.fact("settings", input.settings.len().to_string());
    for setting in input.settings {
        report.findings.extend(one(setting));
    }
    report.findings.extend(twice(input));
    for rule in rules::ALL {
        report.findings.extend(rule(input));
    }
    report
}

/// What one name and value are worth by themselves.
fn one(setting: &Setting) -> Option<Finding> {
    let name = setting.name.as_str();
    let text = setting.value.as_deref().unwrap_or("");
    let seen = Value { text, place: &setting.place, name }.shown();
    let Some(variable) = catalogue::find(name) else {
        return unknown(name, setting, seen);
    };
    let gone = |id: &str, verdict: Verdict, title: String, fix: String| {
        let finding = Finding::new("names", id, verdict, title).seen(seen.clone());
        Some(finding.costs("the setting has no effect, without a word").fixed_by(fix))
    };
    match variable.fate {
        Fate::Removed(version) => {
            return gone(
                "env-removed",
                Verdict::Warn,
                match version {
                    "some" => format!("{name} is no longer read by NCCL"),
                    _ => format!("{name} is not read since NCCL {version}"),
                },
                "take it out.".to_owned(),
            );
        }
        Fate::Renamed(to) => {
            return gone(
                "env-renamed",
                Verdict::Warn,
                format!("{name} is now {to}"),
                format!("set {to} in its place."),
            );
        }
        Fate::Dead => {
            return gone(
                "env-dead",
                Verdict::Warn,
                format!("{name} is declared by NCCL and read by nothing"),
                "take it out.".to_owned(),
            );
        }
        Fate::Deprecated(to) => {
            let instead =
                if to == "nothing" { "take it out.".to_owned() } else { format!("use {to}.") };
            return Some(
                Finding::new(
                    "names",
                    "env-deprecated",
                    Verdict::Warn,
                    format!("{name} is out of date"),
                )
                .seen(seen)
                .costs("it may go with the next release")
                .fixed_by(instead),
            );
        }
        Fate::Lives | Fate::Beside => {}
    }
    let value = setting.value.as_deref()?;
    if value.trim() != value {
        return Some(bad(
            name,
            "blanks around the value count as part of it",
            "take them out.",
            seen,
        ));
    }
    if value.is_empty() {
        return None; // the same as unset
    }
    if let Some(fault) = own_fault(name, value) {
        return Some(bad(name, &fault, "see `ringway env --all`.", seen));
    }
    let wanted = variable.fault(value)?;
    if catalogue::own().iter().any(|own| own.name == name)
        && own_fault(name, value).is_none()
        && variable.values == "bytes"
    {
        return Some(bad(
            name,
            &format!("NCCL takes {wanted}; Ringway also takes {value}"),
            "write it out, so that both read the same.",
            seen,
        ));
    }
    let finding = bad(
        name,
        &format!("it takes {wanted}"),
        &format!("see `ringway env explain {name}`."),
        seen,
    );
    Some(match variable.values {
        "level" => finding.costs("NCCL ignores it without a word and takes its default"),
        _ => finding,
    })
}

fn bad(name: &str, why: &str, fix: &str, seen: String) -> Finding {
    Finding::new("values", "env-value", Verdict::Fail, format!("{name}: {why}"))
        .seen(seen)
        .costs("NCCL reads what it can (often 0) and goes on without a word")
        .fixed_by(fix)
}

/// What Ringway itself says about a value of a setting it reads.
fn own_fault(name: &str, value: &str) -> Option<String> {
    if !name.starts_with("RINGWAY_") {
        return None;
    }
    let mut config =
        Config::load(&ringway::config::Environment::new(std::iter::empty::<(String, String)>()));
    // Its errors do not show secrets.
    config.set(name, value, Source::Environment).err().map(|error| error.to_string())
}

fn unknown(name: &str, setting: &Setting, seen: String) -> Option<Finding> {
    if catalogue::own().iter().any(|own| own.name == name) {
        let fault = own_fault(name, setting.value.as_deref()?)?;
        return Some(bad(name, &fault, "see `ringway env --all`.", seen));
    }
    if catalogue::is_of_others(name) {
        return None;
    }
    let near = catalogue::nearest(name);
    let complete = name.starts_with("NCCL_") || name.starts_with("RINGWAY_");
    if near.is_none() && !complete && !name.starts_with("NC") {
        return None; // the table of the others' names is not whole
    }
    let finding = Finding::new(
        "names",
        "env-unknown",
        Verdict::Fail,
        match &near {
            Some(near) => format!("{name} is read by nothing; did you mean {near}?"),
            None => format!("{name} is read by nothing that is known here"),
        },
    );
    let fix = match near {
        Some(near) => format!("write {near}."),
        None => "take it out, or see `ringway env list`.".to_owned(),
    };
    Some(finding.seen(seen).costs("the setting has no effect, without a word").fixed_by(fix))
}

/// Names set twice to different values in one source.
fn twice(input: &Input<'_>) -> Vec<Finding> {
    let mut known = BTreeMap::<(&str, &str), &Setting>::new();
    let mut found = Vec::new();
    let shown = |setting: &Setting| {
        let text = setting.value.as_deref().unwrap_or("?");
        Value { text, place: &setting.place, name: &setting.name }.shown()
    };
    for setting in input.settings {
        let file = setting.place.rsplit_once(':').map_or(setting.place.as_str(), |(file, _)| file);
        let before = known.insert((file, &setting.name), setting);
        if let Some(before) = before.filter(|before| before.value != setting.value) {
            found.push(
                Finding::new(
                    "names",
                    "env-twice",
                    Verdict::Warn,
                    format!("{} is set twice", setting.name),
                )
                .seen(shown(before))
                .seen(shown(setting))
                .costs("the later one counts, which may not be the one that was meant")
                .fixed_by("keep one."),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests;

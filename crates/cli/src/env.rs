//! `ringway env`: the settings, where each comes from, and what is wrong with them.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringway::config::{Config, Setting, Source};
use serde::Serialize;

use crate::output;

/// Columns a meaning may take before it is folded.
const COLUMNS: usize = 80;

/// Show the settings: what is set, by whom, and what is wrong with it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway env              what is set, and warnings
  ringway env --all        every setting with its meaning
  ringway env --json       for programs

Exits with 1 when a name or a value is not understood.")]
pub(crate) struct EnvArgs {
    /// Show every setting, not only those that are set
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    settings: &'a [Setting],
    warnings: Vec<&'a str>,
    notes: Vec<&'a str>,
}

/// Prints the settings of this process's environment.
pub(crate) fn run(args: &EnvArgs) -> anyhow::Result<ExitCode> {
    let config = Config::from_env();
    let settings: Vec<Setting> = config
        .settings()
        .into_iter()
        .filter(|setting| args.all || setting.source != Source::Default)
        .collect();
    let contradiction = config.check().err();
    let mut warnings: Vec<&str> = config.warnings.iter().map(|w| w.text.as_str()).collect();
    let text = contradiction.as_ref().map(ToString::to_string);
    warnings.extend(text.as_deref());
    let report = Report {
        settings: &settings,
        notes: config.notes.iter().map(|note| note.text.as_str()).collect(),
        warnings,
    };
    if args.json {
        output::line(&serde_json::to_string_pretty(&report)?)?;
    } else {
        output::stdout_bytes(page(&report, args.all).as_bytes())?;
    }
    Ok(if report.warnings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn page(report: &Report<'_>, all: bool) -> String {
    let mut page = String::new();
    let mut section = "";
    for setting in report.settings {
        if all && setting.section != section {
            section = setting.section;
            let _ = writeln!(page, "{}# {section}", if page.is_empty() { "" } else { "\n" });
        }
        let _ = writeln!(page, "{}={}  ({})", setting.name, setting.value, setting.source);
        if all {
            for line in folded(setting.meaning, COLUMNS - 4) {
                let _ = writeln!(page, "    {line}");
            }
        }
    }
    if report.settings.is_empty() {
        page.push_str("nothing is set; `ringway env --all` lists what could be\n");
    }
    for note in &report.notes {
        let _ = writeln!(page, "note: {note}");
    }
    for warning in &report.warnings {
        let _ = writeln!(page, "warning: {warning}");
    }
    page
}

/// The words of `text` in lines of at most `columns`.
fn folded(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway::config::Environment;

    fn shown(variables: &[(&str, &str)], all: bool) -> String {
        let config = Config::load(&Environment::new(variables.iter().copied()));
        let settings: Vec<Setting> = config
            .settings()
            .into_iter()
            .filter(|setting| all || setting.source != Source::Default)
            .collect();
        let warnings = config.warnings.iter().map(|w| w.text.as_str()).collect();
        page(&Report { settings: &settings, warnings, notes: Vec::new() }, all)
    }

    #[test]
    fn what_is_set_is_shown_and_typos_are_named() {
        let page = shown(&[("RINGWAY_LEVEL", "shape"), ("NCCL_IB_GID_INDX", "3")], false);
        assert!(page.starts_with("RINGWAY_LEVEL=shape"), "{page}");
        assert!(page.contains("did you mean NCCL_IB_GID_INDEX?"), "{page}");
    }

    #[test]
    fn secrets_stay_secret() {
        assert!(!shown(&[("RINGWAY_SECRET", "swordfish")], false).contains("swordfish"));
    }

    #[test]
    fn everything_fits_a_narrow_terminal() {
        let page = shown(&[], true);
        assert!(page.contains("NCCL_SOCKET_IFNAME") && page.contains("# "));
        for line in page.lines().filter(|line| line.starts_with("    ")) {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
    }
}

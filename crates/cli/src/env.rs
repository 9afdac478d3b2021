//! `ringway env`: the settings, where each comes from, and what is wrong with them.
//!
//! Alone it shows Ringway's own settings in force. Its subcommands know all variables of NCCL and its kin:
//! [`describe`] lists and explains them, [`lint`] says what is wrong with a set of them, [`suggest`] writes the
//! block for a machine. *Invariant*: nothing here changes an environment or a file.

pub(crate) mod catalogue;
mod describe;
pub(crate) mod host;
pub(crate) mod lint;
#[cfg(test)]
mod properties;
pub(crate) mod source;
pub(crate) mod suggest;

use crate::exit::ExitCode;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use ringway::config::{Config, Setting, Source};
use ringway::topo::Root;
use serde::Serialize;

use self::host::Host;
use self::suggest::Fabric;
use crate::doctor::finding::{EXIT_CANNOT, Style};
use crate::output;
use crate::snapshot::unpack::Copied;

/// Columns a meaning may take before it is folded.
const COLUMNS: usize = 80;

/// Show the settings: what is set, by whom, and what is wrong with it
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    max_term_width = 80,
    after_help = "Examples:
  ringway env                             what is set, and warnings
  ringway env --all                       every setting with its meaning
  ringway env --json                      for programs
  ringway env list IB                     variables of NCCL and its kin
  ringway env explain NCCL_IB_TIMEOUT     one of them
  ringway env lint job.sh                 what is wrong, and the fix
  ringway env suggest                     the block for this machine

Without a subcommand it exits with 1 when a name or a value is not understood."
)]
pub(crate) struct EnvArgs {
    /// Show every setting, not only those that are set
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// What else to do.
    #[command(subcommand)]
    command: Option<EnvCommand>,
}

/// What can be done with variables.
#[derive(Debug, Subcommand)]
enum EnvCommand {
    List(ListArgs),
    Explain(ExplainArgs),
    Lint(LintArgs),
    Suggest(SuggestArgs),
}

/// List the variables of NCCL, RCCL, oneCCL and Ringway
#[derive(Debug, Args)]
struct ListArgs {
    /// Only those with these words in name or meaning
    #[arg(value_name = "PATTERN")]
    pattern: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Explain one variable: values, default, versions, whether Ringway reads it
#[derive(Debug, Args)]
struct ExplainArgs {
    /// The variable
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Say what is wrong with settings: names, values, harmful combinations
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Reads files of NAME=value lines (nccl.conf), shell scripts (export, mpirun -x,
env), and manifests (YAML name/value pairs and maps). Without a file it looks at
this process's environment, and at this machine's interfaces and RDMA ports; with
--root at those of another machine, and at the variables its snapshot holds.

Examples:
  ringway env lint
  ringway env lint job.sh manifest.yaml
  ringway env lint --dscp 26 /etc/nccl.conf
  ringway env lint --root node17.tar.zst

Exits with 0 when nothing is wrong, 1 for warnings, 2 for failures, and 3 when
it could not look."
)]
struct LintArgs {
    /// Files to read; - is standard input [default: the environment]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// DSCP that the network gives to RDMA, which NCCL_IB_TC must match
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: Option<u8>,
    /// Compare files with this machine, too
    #[arg(long)]
    this_machine: bool,
    /// Take this machine: a snapshot, or a folder laid out as / is
    #[arg(long, value_name = "PATH", default_value = "/", hide_default_value = true)]
    root: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Write the block of settings that fits this machine, with reasons
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "The fabric is that of the active RDMA ports: InfiniBand, RoCE or EFA, or TCP
where there are none.

Examples:
  ringway env suggest > nccl.conf
  ringway env suggest --dscp 26
  ringway env suggest --fabric tcp"
)]
struct SuggestArgs {
    /// Take this fabric, whatever the machine has: ib, roce, efa or tcp
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    fabric: Option<Fabric>,
    /// DSCP that the network gives to RDMA
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: Option<u8>,
    /// Take this machine: a snapshot, or a folder laid out as / is
    #[arg(long, value_name = "PATH", default_value = "/", hide_default_value = true)]
    root: PathBuf,
}

/// Bytes of a file that are read: settings are never as large.
const FILE_MOST: u64 = 16 << 20;

#[derive(Serialize)]
struct Report<'a> {
    settings: &'a [Setting],
    warnings: Vec<&'a str>,
    notes: Vec<&'a str>,
}

/// Does what was asked.
pub(crate) fn run(args: &EnvArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => show(args),
        Some(EnvCommand::List(args)) => list(args),
        Some(EnvCommand::Explain(args)) => explain(args),
        Some(EnvCommand::Lint(args)) => check(args).or_else(|error| {
            if output::is_broken_pipe(&error) {
                return Err(error);
            }
            output::failure("env lint", &error);
            Ok(ExitCode::from(EXIT_CANNOT))
        }),
        Some(EnvCommand::Suggest(args)) => {
            let host = Host::read(&Machine::open(&args.root)?.root());
            let fabric = args.fabric.unwrap_or_else(|| Fabric::of(&host));
            output::stdout_bytes(suggest::block(&host, fabric, args.dscp).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let pattern = args.pattern.join(" ");
    let found = describe::matching(&pattern);
    if found.is_empty() {
        bail!("no variable has {pattern:?} in its name or meaning");
    }
    if args.json {
        output::line(&serde_json::to_string_pretty(&found)?)?;
    } else {
        output::stdout_bytes(describe::list(&found, output::columns()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let Some(one) = describe::named(&args.name) else {
        match catalogue::nearest(&args.name.to_ascii_uppercase()) {
            Some(near) => bail!("{} is not known; did you mean {near}?", args.name),
            None => bail!("{} is not known; `ringway env list` shows what is", args.name),
        }
    };
    if args.json {
        output::line(&serde_json::to_string_pretty(&one)?)?;
    } else {
        output::stdout_bytes(describe::explain(&one, output::columns()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(args: &LintArgs) -> anyhow::Result<ExitCode> {
    let machine = Machine::open(&args.root)?;
    let compares = args.files.is_empty() || args.this_machine || machine.copied.is_some();
    let host = compares.then(|| Host::read(&machine.root()));
    let mut settings = Vec::new();
    if args.files.is_empty()
        && let Some(variables) = machine.variables()?
    {
        settings = source::from_environment(variables.into_iter());
    } else if args.files.is_empty() {
        let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        settings = source::from_environment(variables);
    }
    for path in &args.files {
        let name = if path == Path::new("-") { "stdin".into() } else { path.display().to_string() };
        settings.extend(source::from_text(&name, &read(path)?));
    }
    let input = lint::Input { settings: &settings, host: host.as_ref(), dscp: args.dscp };
    let report = lint::lint(&input);
    if args.json {
        output::line(&report.json()?)?;
    } else {
        let style =
            Style { columns: output::columns(), colour: output::stdout_has_colour(), all: false };
        output::stdout_bytes(report.text(style).as_bytes())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// Which machine settings must fit: this one, or a copy of another.
struct Machine {
    copied: Option<Copied>,
}

impl Machine {
    /// `/`, a folder laid out as it is, or a snapshot.
    fn open(root: &Path) -> anyhow::Result<Self> {
        let copied = (root != Path::new("/")).then(|| Copied::open(root)).transpose()?;
        Ok(Self { copied })
    }

    fn root(&self) -> Root {
        self.copied.as_ref().map_or_else(Root::live, Copied::root)
    }

    /// The variables that a snapshot holds; nothing where a copy holds none.
    fn variables(&self) -> anyhow::Result<Option<Vec<(String, String)>>> {
        let Some(copied) = &self.copied else { return Ok(None) };
        let text = copied.root().command_output("environment")?;
        let pair = |line: &str| {
            line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        Ok(text.map(|text| text.lines().filter_map(pair).collect()))
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let got = if path == Path::new("-") {
        std::io::stdin().lock().take(FILE_MOST + 1).read_to_end(&mut bytes)
    } else {
        let file = std::fs::File::open(path).with_context(|| name.clone())?;
        file.take(FILE_MOST + 1).read_to_end(&mut bytes)
    };
    if got.with_context(|| name.clone())? as u64 > FILE_MOST {
        bail!("{name} is larger than {} MiB: no file of settings is", FILE_MOST >> 20);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints the settings of this process's environment.
fn show(args: &EnvArgs) -> anyhow::Result<ExitCode> {
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
            for line in crate::doctor::finding::folded(setting.meaning, COLUMNS - 4) {
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

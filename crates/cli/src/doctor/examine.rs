//! `ringway doctor` for machines: this one, one in a snapshot or folder, or a fleet of them.
//!
//! *Invariant*: nothing of the machine is changed.

use crate::exit::ExitCode;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use ringway::topo::Root;

use super::checks::{self, Check};
use super::finding::{Finding, Report, Style, Verdict, folded};
use super::host::{Earlier, Host};
use super::moment::Moment;
use super::{fleet, html};
use crate::output;
use crate::snapshot::unpack::{Copied, interrupted};

/// Arguments for machines.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Snapshots or folders to look at; none is this machine
    #[arg(value_name = "MACHINE", conflicts_with = "log")]
    machines: Vec<PathBuf>,
    /// Run only these checks: ids or groups, separated by commas
    #[arg(long, value_name = "ID|GROUP", value_delimiter = ',', conflicts_with = "log")]
    only: Vec<String>,
    /// Read counters twice, so many seconds apart, and judge how they grew
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400),
        conflicts_with_all = ["log", "machines"]
    )]
    interval: Option<u64>,
    /// Write the report as a page for a browser, too
    #[arg(long, value_name = "FILE", conflicts_with = "log")]
    html: Option<PathBuf>,
    /// List all checks
    #[arg(long, conflicts_with_all = ["log", "machines", "explain"])]
    list: bool,
    /// Explain one check
    #[arg(long, value_name = "ID", conflicts_with_all = ["log", "machines"])]
    explain: Option<String>,
}

/// Unknown things that are shown one by one.
pub(super) const UNKNOWN_SHOWN: usize = 8;

/// How to print.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// JSON instead of text.
    pub(crate) json: bool,
    /// What is well, too.
    pub(crate) all: bool,
}

/// What was found on one machine.
#[derive(Debug)]
pub(crate) struct Examined {
    /// The machine's name.
    pub(crate) name: String,
    /// What the checks say.
    pub(crate) report: Report,
    /// What root would see besides.
    pub(crate) denied: Vec<String>,
    /// Facts to compare with those of other machines.
    pub(crate) traits: fleet::Traits,
    /// The machine drawn, where that is wanted and there is something to draw.
    pub(crate) picture: Option<String>,
    /// When that was, and what its counters had come to.
    pub(crate) moment: Moment,
}

/// Looks, and prints.
pub(crate) fn run(args: &HostArgs, form: Form) -> anyhow::Result<ExitCode> {
    if args.list {
        output::stdout_bytes(list(&checks::chosen(&args.only)?, form.json)?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(id) = &args.explain {
        output::stdout_bytes(explain(id)?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let checks = checks::chosen(&args.only)?;
    let look = |host: &Host| {
        let mut found = examine(host, &checks);
        found.picture = args.html.as_ref().and_then(|_| host.picture());
        found
    };
    let found = examine_all(&args.machines, &look)?;
    let mut found = with_rates(found, &args.machines, &look)?;
    if found.is_empty() {
        found.push(look(&live(&checks, args.interval)));
    }
    let fleet = (found.len() > 1).then(|| fleet::compare(&mut found));
    let style =
        Style { columns: output::columns(), colour: output::stdout_has_colour(), all: form.all };
    if let Some(path) = &args.html {
        let page = html::page(&found, fleet.as_ref());
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let code = match (&fleet, &found[..]) {
        (Some(fleet), _) => {
            let text = if form.json { fleet.json(&found)? } else { fleet.text(&found, style) };
            output::stdout_bytes(text.as_bytes())?;
            fleet.exit_code(&found)
        }
        (None, [one]) => {
            let text = if form.json { one.report.json()? + "\n" } else { one.text(style) };
            output::stdout_bytes(text.as_bytes())?;
            one.report.exit_code()
        }
        (None, _) => super::finding::EXIT_CANNOT,
    };
    Ok(ExitCode::from(code))
}

/// This machine; with an interval, that time after a first look.
fn live(checks: &[&'static Check], interval: Option<u64>) -> Host {
    let host = Host::new(Root::live());
    let Some(seconds) = interval else { return host };
    let begin = Instant::now();
    let totals = examine(&host, checks).moment.totals;
    output::remark(&format!("reading counters for {seconds} s"));
    // What the first look took the second takes, too: counters are that far apart.
    std::thread::sleep(Duration::from_secs(seconds));
    Host::new(Root::live()).after(Earlier { totals, seconds: begin.elapsed().as_secs_f64() })
}

/// Of looks at one machine only the last is kept, with its counters as they grew since the one before.
fn with_rates(
    found: Vec<Examined>,
    paths: &[PathBuf],
    look: &(dyn Fn(&Host) -> Examined + Sync),
) -> anyhow::Result<Vec<Examined>> {
    // For each the latest of those before it, and whether it is before another itself.
    let earlier = |one: &Examined| {
        found
            .iter()
            .filter_map(|other| one.moment.since(&other.moment))
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    };
    let is_last =
        |one: &Examined| found.iter().all(|other| other.moment.since(&one.moment).is_none());
    let plan: Vec<(bool, Option<Earlier>)> =
        found.iter().map(|one| (is_last(one), earlier(one))).collect();
    let mut kept = Vec::new();
    for ((one, path), (last, earlier)) in found.into_iter().zip(paths).zip(plan) {
        match earlier {
            _ if !last => {}
            None => kept.push(one),
            Some(earlier) => {
                let copied = Copied::open(path)?;
                kept.push(look(&Host::new(copied.root()).after(earlier)));
            }
        }
    }
    Ok(kept)
}

/// Looks at several folders or snapshots, some at a time: most of it is waiting for files.
fn examine_all(
    paths: &[PathBuf],
    look: &(dyn Fn(&Host) -> Examined + Sync),
) -> anyhow::Result<Vec<Examined>> {
    const SIDE_BY_SIDE: usize = 8;
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let work = || {
        let mut done = Vec::new();
        while !interrupted() && !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = paths.get(index) else { break };
            let found = examine_path(path, look);
            failed.fetch_or(found.is_err(), Ordering::Relaxed);
            done.push((index, found));
        }
        done
    };
    let mut all: Vec<(usize, anyhow::Result<Examined>)> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..SIDE_BY_SIDE.min(paths.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
    anyhow::ensure!(!interrupted(), "interrupted");
    all.sort_by_key(|(index, _)| *index);
    let found = all.into_iter().map(|(_, found)| found).collect::<anyhow::Result<Vec<_>>>()?;
    anyhow::ensure!(found.len() == paths.len(), "a check stopped; please report it");
    Ok(found)
}

/// Looks at a folder or snapshot.
fn examine_path(path: &Path, look: &dyn Fn(&Host) -> Examined) -> anyhow::Result<Examined> {
    let copied = Copied::open(path)?;
    anyhow::ensure!(
        copied.holds(&["sys", "proc", "commands"]),
        "{} holds none of sys, proc and commands; give a snapshot, or a folder laid out as / is",
        path.display()
    );
    Ok(look(&Host::new(copied.root())))
}

/// Runs the checks.
pub(crate) fn examine(host: &Host, checks: &[&'static Check]) -> Examined {
    let mut report = Report::new("host");
    let mut absent = 0_usize;
    for check in checks {
        match check.finding(host) {
            Ok(finding) => report.findings.push(finding),
            Err(_) => absent += 1,
        }
    }
    report.fact("machine", host.name());
    for (name, path) in [
        ("kernel", "/proc/sys/kernel/osrelease"),
        ("product", "/sys/class/dmi/id/product_name"),
        ("NVIDIA driver", "/sys/module/nvidia/version"),
    ] {
        if let Some(text) = host.text(path) {
            report.fact(name, super::host::shown(&text));
        }
    }
    report.fact("GPUs", host.gpus().len().to_string());
    report.fact("RDMA devices", host.hcas().len().to_string());
    let counters = match host.interval() {
        Some(seconds) => format!("as they grew in {seconds:.1} s"),
        None => "totals since boot".to_owned(),
    };
    report.fact("counters", counters);
    report.fact("checks", checks.len().to_string());
    report.fact("checks that do not apply here", absent.to_string());
    let denied = host.denied();
    if !denied.is_empty() {
        report.fact("only root could read", denied.join(", "));
    }
    let traits = fleet::traits(host);
    let moment = Moment::of(host);
    Examined { name: host.name(), report, denied, traits, picture: None, moment }
}

impl Examined {
    /// The report, and what root would see.
    pub(crate) fn text(&self, style: Style) -> String {
        let mut page = if style.all { self.report.text(style) } else { self.brief().text(style) };
        let unseen: Vec<&str> = self
            .report
            .findings
            .iter()
            .filter(|finding| finding.verdict == Verdict::Unknown)
            .filter(|finding| {
                checks::all().iter().any(|check| check.id == finding.id && check.root)
            })
            .map(|finding| finding.id.as_str())
            .collect();
        if !self.denied.is_empty() && !unseen.is_empty() {
            let text = format!("as root it could also look at: {}", unseen.join(", "));
            for line in folded(&text, style.columns) {
                let _ = writeln!(page, "{line}");
            }
        }
        page
    }
}

impl Examined {
    /// The report with many unknown things folded into one: a tree that holds little is no news.
    fn brief(&self) -> Report {
        let mut report = self.report.clone();
        let is_unknown = |finding: &Finding| finding.verdict == Verdict::Unknown;
        let ids: Vec<String> =
            report.findings.iter().filter(|f| is_unknown(f)).map(|f| f.id.clone()).collect();
        if ids.len() > UNKNOWN_SHOWN {
            report.findings.retain(|finding| !is_unknown(finding));
            let title = format!("{} checks could not look; --all shows why", ids.len());
            let folded = Finding::new("not known", "unknown", Verdict::Unknown, title);
            report.findings.push(folded.seen(ids.join(" ")));
        }
        report
    }
}

/// All checks with a line each.
fn list(checks: &[&Check], json: bool) -> anyhow::Result<String> {
    if json {
        let rows: Vec<serde_json::Value> = checks.iter().map(|check| as_json(check)).collect();
        return Ok(serde_json::to_string_pretty(&rows)? + "\n");
    }
    let mut page = String::new();
    let widest = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let mut group = "";
    for check in checks {
        if check.group != group {
            group = check.group;
            let _ = writeln!(page, "{}{group}", if page.is_empty() { "" } else { "\n" });
        }
        let _ = writeln!(page, "  {:widest$}  {}", check.id, check.about);
    }
    Ok(page)
}

fn as_json(check: &Check) -> serde_json::Value {
    serde_json::json!({
        "id": check.id,
        "group": check.group,
        "about": check.about,
        "reads": check.reads,
        "cost": check.cost,
        "fix": check.fix,
        "root": check.root,
    })
}

/// All that is known of one check.
fn explain(id: &str) -> anyhow::Result<String> {
    let checks = checks::all();
    let check = checks
        .iter()
        .find(|check| check.id == id)
        .with_context(|| format!("no check is called {id:?}; `ringway doctor --list` shows all"))?;
    let mut page = format!("{} ({})\n", check.id, check.group);
    let root = if check.root { "usually" } else { "no" };
    let rows = [
        ("well", check.about),
        ("reads", check.reads),
        ("costs", check.cost),
        ("fix", check.fix),
        ("root", root),
    ];
    for (label, text) in rows {
        for (number, line) in folded(text, 70).iter().enumerate() {
            let _ = writeln!(page, "  {:<6}{line}", if number == 0 { label } else { "" });
        }
    }
    Ok(page)
}

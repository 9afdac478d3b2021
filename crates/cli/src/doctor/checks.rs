//! The checks of a machine: one table, and what a check may answer.
//!
//! *Invariant*: a check is a function of a [`Host`] and nothing else. It answers that it does not apply, that
//! all is well, that it could not look (and why), or what is wrong; every answer but the first has evidence.

mod cloud;
mod container;
mod counters;
mod cpu;
mod environment;
mod gdr;
mod gpu;
mod kernel;
mod limits;
mod net;
mod numa;
mod nvlink;
mod pci;
mod rdma;
mod roce;

use super::finding::{Finding, Verdict};
use super::host::Host;

/// Lines of evidence of one finding.
const EVIDENCE: usize = 10;

/// One check.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    /// What scripts match on: `pci-01`.
    pub(crate) id: &'static str,
    /// The heading it stands under.
    pub(crate) group: &'static str,
    /// What is looked at, in one line.
    pub(crate) about: &'static str,
    /// What is read.
    pub(crate) reads: &'static str,
    /// What a fault costs, with a number.
    pub(crate) cost: &'static str,
    /// What to do.
    pub(crate) fix: &'static str,
    /// Whether most of it needs root.
    pub(crate) root: bool,
    /// Looks.
    pub(crate) look: fn(&Host) -> Seen,
}

/// What a check answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    /// How it stands; nothing where the check does not apply.
    pub(crate) verdict: Option<Verdict>,
    /// One sentence.
    pub(crate) title: String,
    /// What was read.
    pub(crate) evidence: Vec<String>,
    /// The fix, where the check's own can be made more exact.
    pub(crate) fix: Option<String>,
}

impl Seen {
    fn with(verdict: Option<Verdict>, title: impl Into<String>) -> Self {
        Self { verdict, title: title.into(), evidence: Vec::new(), fix: None }
    }

    /// There is nothing here that the check is about.
    pub(crate) fn absent(why: &str) -> Self {
        Self::with(None, why)
    }

    /// All is well.
    pub(crate) fn well(title: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::with(Some(Verdict::Pass), title).and(evidence)
    }

    /// It could not be looked at, and why.
    pub(crate) fn unknown(title: impl Into<String>, why: impl Into<String>) -> Self {
        Self::with(Some(Verdict::Unknown), title).and(why)
    }

    /// It could be better.
    pub(crate) fn warn(title: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::with(Some(Verdict::Warn), title).and(evidence)
    }

    /// It is broken.
    pub(crate) fn fail(title: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::with(Some(Verdict::Fail), title).and(evidence)
    }

    /// One more line of evidence.
    #[must_use]
    pub(crate) fn and(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    /// A more exact fix.
    #[must_use]
    pub(crate) fn fixed_by(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Answers for many things of one kind, gathered into one.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    seen: Vec<(Verdict, String)>,
}

impl Tally {
    /// One more.
    pub(crate) fn add(&mut self, verdict: Verdict, evidence: impl Into<String>) {
        self.seen.push((verdict, evidence.into()));
    }

    /// This one is well.
    pub(crate) fn well(&mut self, evidence: impl Into<String>) {
        self.add(Verdict::Pass, evidence);
    }

    /// This one could be better.
    pub(crate) fn warn(&mut self, evidence: impl Into<String>) {
        self.add(Verdict::Warn, evidence);
    }

    /// This one is broken.
    pub(crate) fn fail(&mut self, evidence: impl Into<String>) {
        self.add(Verdict::Fail, evidence);
    }

    /// This one could not be looked at.
    pub(crate) fn unknown(&mut self, why: impl Into<String>) {
        self.add(Verdict::Unknown, why);
    }

    /// The worst of them: `good` when all are well, `bad` (with `N of M` before it) when some are not. Where
    /// nothing was looked at the check does not apply, for the reason `none`.
    pub(crate) fn seen(mut self, none: &str, good: &str, bad: &str) -> Seen {
        let Some(worst) = self.seen.iter().map(|(verdict, _)| *verdict).max() else {
            return Seen::absent(none);
        };
        let all = self.seen.len();
        self.seen.sort_by_key(|(verdict, _)| std::cmp::Reverse(*verdict));
        if worst > Verdict::Pass {
            let floor = if worst == Verdict::Unknown { Verdict::Unknown } else { Verdict::Warn };
            self.seen.retain(|(verdict, _)| *verdict >= floor);
        }
        let count = self.seen.len();
        let title = match worst {
            Verdict::Pass => good.to_owned(),
            Verdict::Unknown => format!("could not look whether {good}"),
            _ if all == 1 => bad.to_owned(),
            _ => format!("{count} of {all}: {bad}"),
        };
        let mut seen = Seen::with(Some(worst), title);
        seen.evidence.extend(self.seen.iter().take(EVIDENCE).map(|(_, line)| line.clone()));
        if count > EVIDENCE {
            seen.evidence.push(format!("and {} more", count - EVIDENCE));
        }
        seen
    }
}

/// All checks, by group.
pub(crate) fn all() -> Vec<&'static Check> {
    let groups = [
        gpu::CHECKS,
        nvlink::CHECKS,
        gdr::CHECKS,
        pci::CHECKS,
        rdma::CHECKS,
        roce::CHECKS,
        counters::CHECKS,
        net::CHECKS,
        numa::CHECKS,
        cpu::CHECKS,
        kernel::CHECKS,
        limits::CHECKS,
        container::CHECKS,
        cloud::CHECKS,
        environment::CHECKS,
    ];
    groups.into_iter().flatten().collect()
}

/// The checks that `--only` names, by id or group.
pub(crate) fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Check>> {
    let checks = all();
    for name in names {
        if !checks.iter().any(|check| check.id == name || check.group == name) {
            let mut groups: Vec<&str> = checks.iter().map(|check| check.group).collect();
            groups.dedup();
            anyhow::bail!(
                "no check or group is called {name:?}; the groups are {}; `ringway doctor --list` \
                 shows all",
                groups.join(", ")
            );
        }
    }
    let is_named =
        |check: &&Check| names.iter().any(|name| name == check.id || name == check.group);
    Ok(checks.into_iter().filter(|check| names.is_empty() || is_named(check)).collect())
}

impl Check {
    /// Looks, and says it in the doctor's words; nothing where it does not apply.
    pub(crate) fn finding(&self, host: &Host) -> Result<Finding, String> {
        let seen = (self.look)(host);
        let Some(verdict) = seen.verdict else { return Err(seen.title) };
        let mut finding = Finding::new(self.group, self.id, verdict, seen.title);
        finding.evidence = seen.evidence.iter().map(|line| super::host::shown(line)).collect();
        match verdict {
            Verdict::Pass | Verdict::Unknown => {}
            Verdict::Warn | Verdict::Fail => {
                finding.cost = Some(self.cost.to_owned());
                finding.fix = Some(seen.fix.unwrap_or_else(|| self.fix.to_owned()));
            }
        }
        Ok(finding)
    }
}

/// Bytes as people write them.
fn bytes(number: u64) -> String {
    match number {
        u64::MAX => "unlimited".to_owned(),
        0..=0xf_ffff => format!("{} KiB", number >> 10),
        0x10_0000..=0x3fff_ffff => format!("{} MiB", number >> 20),
        _ => format!("{} GiB", number >> 30),
    }
}

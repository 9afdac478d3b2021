//! What `ringway perf soak -J` saw: the median and the slowest calls over the hours, drift, and who was waited for.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use super::model::{Block, Cell, Section, Table};
use super::perf::{micros, short};
use crate::doctor::finding::{Finding, Verdict};
use crate::fabric::show::many;
use crate::output::escaped;
use crate::size;

/// Windows of a picture; of more, each is the worst of some.
const POINTS: usize = 400;
/// Ranks that are listed, those first that held up others most.
const LISTED: usize = 64;
/// Errors that are quoted.
const ERRORS: usize = 5;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 34.0;

/// What a curve shows of a window.
type Figure = fn(&Window) -> f64;

/// One file.
#[derive(Clone, Debug)]
pub(crate) struct Soaked {
    name: String,
    file: File,
}

#[derive(Clone, Debug, Deserialize)]
struct File {
    #[serde(default)]
    start_time: String,
    #[serde(default)]
    finished: bool,
    collective: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    connection: String,
    #[serde(default)]
    ranks: Vec<OfRank>,
    windows: Vec<Window>,
    summary: Summary,
    #[serde(default)]
    errors: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct OfRank {
    rank: u64,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    last: u64,
    #[serde(default)]
    longest: u64,
    #[serde(default)]
    late_s: f64,
    #[serde(default)]
    waited_for_s: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Window {
    at_s: f64,
    p50_us: f64,
    p99_us: f64,
    #[serde(default)]
    max_us: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Summary {
    #[serde(default)]
    calls: u64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    #[serde(default)]
    drift: Option<Drift>,
    #[serde(default)]
    drift_limit_percent: f64,
    #[serde(default)]
    late: Option<Late>,
    #[serde(default)]
    hiccups: u64,
    #[serde(default)]
    hiccup_period_s: Option<f64>,
    #[serde(default)]
    wrong: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Drift {
    percent: f64,
    quarters_percent: f64,
    certain: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Late {
    rank: u64,
    last: u64,
    calls: u64,
    late_us: f64,
    percent: f64,
}

impl Soaked {
    /// Reads the JSON of a run.
    pub(super) fn parse(name: &str, value: Value) -> Result<Self, String> {
        let file: File = serde_json::from_value(value).map_err(|error| error.to_string())?;
        Ok(Self { name: name.to_owned(), file })
    }

    fn title(&self) -> String {
        let File { collective, size, r#type, ranks, .. } = &self.file;
        format!(
            "{collective} of {} {type}, {}",
            size::display(*size),
            many(ranks.len(), "rank", "ranks")
        )
    }

    fn findings(&self) -> Vec<Finding> {
        let title = self.title();
        let summary = &self.file.summary;
        let finding = |id: &str, verdict, text: String| {
            Finding::new("soak", id, verdict, format!("{title}: {text}")).seen(self.name.clone())
        };
        let mut found = Vec::new();
        if summary.wrong > 0 {
            found.push(
                finding("soak-wrong", Verdict::Fail, format!("{} values are wrong", summary.wrong))
                    .costs("silent corruption of gradients or weights")
                    .fixed_by("run it again on fewer hosts until one remains; then ringway doctor on that host"),
            );
        }
        for error in self.file.errors.iter().take(ERRORS) {
            found.push(finding("soak-error", Verdict::Fail, error.clone()));
        }
        found.extend(match summary.drift {
            None => Some(finding(
                "soak-drift",
                Verdict::Unknown,
                "too few windows to say whether it became slower".to_owned(),
            )),
            Some(drift) => {
                let limit = summary.drift_limit_percent;
                let slower =
                    drift.certain && drift.percent > limit && drift.quarters_percent > limit;
                let text = format!(
                    "{:+.1} % of time by the slope, {:+.1} % from the first quarter to the last",
                    drift.percent, drift.quarters_percent
                );
                Some(if slower {
                    finding("soak-drift", Verdict::Fail, format!("becomes slower: {text}")).fixed_by(
                        "look for heat (clocks, throttling), memory that fills, links that are trained down: ringway doctor before and after",
                    )
                } else {
                    finding("soak-drift", Verdict::Pass, format!("stays as fast: {text}"))
                })
            }
        });
        if let Some(late) = summary.late {
            let host = self.file.ranks.iter().find(|one| one.rank == late.rank);
            let host = host.map_or("", |one| one.hostname.as_str());
            let text = format!(
                "rank {} ({host}) came last to {} of {} calls to which ranks came apart",
                late.rank, late.last, late.calls
            );
            found.push(
                finding("soak-late", Verdict::Fail, text)
                    .costs(format!(
                        "{} a call, {:.1} % of the time",
                        micros(late.late_us),
                        late.percent
                    ))
                    .fixed_by("ringway doctor on its host; ringway why while the job runs"),
            );
        }
        if let Some(period) = summary.hiccup_period_s {
            let text = format!(
                "{} calls took five times the median or more, about every {} s",
                summary.hiccups,
                short(period)
            );
            let found_by =
                "look for what runs that often on the hosts: timers, monitoring, checkpoints";
            found.push(finding("soak-hiccups", Verdict::Warn, text).fixed_by(found_by));
        }
        found
    }

    /// The windows that are drawn: of neighbours the worst.
    fn drawn(&self) -> Vec<Window> {
        let all: Vec<Window> =
            self.file.windows.iter().copied().filter(Window::has_place).collect();
        let worst =
            |group: &[Window]| group.iter().copied().max_by(|a, b| a.p50_us.total_cmp(&b.p50_us));
        all.chunks(all.len().div_ceil(POINTS).max(1)).filter_map(worst).collect()
    }

    fn picture(&self) -> Option<String> {
        let windows = self.drawn();
        let (first, last) = (windows.first()?.at_s, windows.last()?.at_s);
        let least = windows.iter().map(|one| one.p50_us).fold(f64::INFINITY, f64::min).log10();
        let most = windows.iter().map(Window::most).fold(0.0, f64::max).log10();
        let (least, most) = (least - 0.05, (most + 0.05).max(least + 0.2));
        let x = |at: f64| {
            let part = if last > first { (at - first) / (last - first) } else { 0.5 };
            LEFT + part * (WIDTH - LEFT - RIGHT)
        };
        let y = |us: f64| {
            HEIGHT - BOTTOM - (us.log10() - least) / (most - least) * (HEIGHT - TOP - BOTTOM)
        };
        let mut svg = format!(
            "<figure class=\"chart wide\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
             <title>{0}</title><text x=\"8\" y=\"18\">{0}</text>\n",
            escaped("time of calls, window by window")
        );
        for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let us = 10_f64.powf(least + part * (most - least));
            let at = first + part * (last - first);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {0:.1}H{1:.0}\"/><text class=\"soft\" x=\"{2:.0}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>\
                 <text class=\"soft\" x=\"{5:.1}\" y=\"{6:.0}\" text-anchor=\"middle\">{7}</text>",
                y(us),
                WIDTH - RIGHT,
                LEFT - 6.0,
                y(us) + 4.0,
                escaped(&micros(us)),
                x(at).min(WIDTH - RIGHT - 20.0),
                HEIGHT - BOTTOM + 18.0,
                escaped(&hours(at))
            );
        }
        let curves: [(&str, usize, Figure); 3] = [
            ("median", 0, |one| one.p50_us),
            ("99 of 100 are below", 1, |one| one.p99_us),
            ("slowest", 3, Window::most),
        ];
        for (label, colour, value) in curves {
            let place = |one: &Window| format!("{:.1} {:.1}", x(one.at_s), y(value(one)));
            let path: Vec<String> = windows.iter().map(place).collect();
            let _ = writeln!(
                svg,
                "<path class=\"line s{colour}\" d=\"M{}\"><title>{label}</title></path>",
                path.join("L")
            );
        }
        svg.push_str("</svg>\n<ul class=\"legend\">");
        for (label, colour, _) in curves {
            let _ = write!(
                svg,
                "<li><svg viewBox=\"0 0 28 10\" aria-hidden=\"true\"><path class=\"line s{colour}\" d=\"M0 5H28\"/></svg>{label}</li>"
            );
        }
        svg.push_str("</ul></figure>");
        Some(svg)
    }

    fn stragglers(&self) -> Option<Table> {
        let mut ranks: Vec<&OfRank> = self.file.ranks.iter().collect();
        let weight = |one: &OfRank| one.late_s + one.waited_for_s;
        if ranks.iter().all(|one| weight(one) <= 0.0) {
            return None;
        }
        ranks.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let mut table = Table::new(&[
            "#rank",
            "host",
            "#came last",
            "#late",
            "#in calls longest",
            "#others slept for it",
        ]);
        #[expect(clippy::cast_precision_loss, reason = "for sorting")]
        let count = |count: u64| Cell::number(count.to_string(), count as f64);
        let seconds = |seconds: f64| Cell::number(micros(seconds * 1e6), seconds);
        for one in ranks.into_iter().take(LISTED) {
            table.rows.push(vec![
                count(one.rank),
                Cell::text(one.hostname.clone()),
                count(one.last),
                seconds(one.late_s),
                count(one.longest),
                seconds(one.waited_for_s),
            ]);
        }
        Some(table)
    }
}

impl Window {
    /// The slowest call; a histogram's percentile may be rounded past it.
    fn most(&self) -> f64 {
        self.max_us.max(self.p99_us).max(self.p50_us)
    }

    fn has_place(&self) -> bool {
        let fits = |us: f64| (1e-6..1e15).contains(&us);
        let in_time = (0.0..1e10).contains(&self.at_s);
        in_time && fits(self.p50_us) && fits(self.p99_us) && fits(self.most())
    }
}

/// The section of all runs.
pub(super) fn section(runs: &[Soaked]) -> Section {
    let mut section = Section::new("soak", "Long runs");
    for run in runs {
        let File { summary, windows, ranks, .. } = &run.file;
        section.blocks.push(Block::Heading(run.title()));
        section.findings.extend(run.findings());
        let times = |us: f64| if summary.p50_us > 0.0 { us / summary.p50_us } else { 0.0 };
        section.blocks.push(Block::Text(format!(
            "{} calls in {}: the median takes {}, 99 of 100 at most {} ({} times), 999 of 1000 {} ({} times), the slowest {} ({} times).",
            summary.calls,
            many(windows.len(), "window", "windows"),
            micros(summary.p50_us),
            micros(summary.p99_us),
            short(times(summary.p99_us)),
            micros(summary.p999_us),
            short(times(summary.p999_us)),
            micros(summary.max_us),
            short(times(summary.max_us))
        )));
        section.blocks.extend(run.picture().map(Block::Picture));
        if let Some(table) = run.stragglers() {
            section.blocks.push(Block::Table(table));
            if let Some(more @ 1..) = ranks.len().checked_sub(LISTED) {
                section
                    .blocks
                    .push(Block::Note(format!("Not listed: {more} of {} ranks.", ranks.len())));
            }
        }
        let how = if run.file.finished { "" } else { "; it ended before its time" };
        let connection = match run.file.connection.as_str() {
            "" => String::new(),
            text => format!("; {text}"),
        };
        section.blocks.push(Block::Note(format!(
            "{}: begun {}{connection}{how}",
            run.name, run.file.start_time
        )));
    }
    section
}

/// Seconds of a run for an axis.
fn hours(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 7200.0 => format!("{} h", short(seconds / 3600.0)),
        seconds if seconds >= 120.0 => format!("{} min", short(seconds / 60.0)),
        seconds => format!("{seconds:.1} s"),
    }
}

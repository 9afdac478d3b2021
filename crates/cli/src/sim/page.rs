//! What people see of a simulation, in 80 columns.

use std::fmt::Write as _;

use ringway_fabric::rate::{Rate, bandwidth};
use ringway_sim::network::Network;
use ringway_sim::report::heat::duration;
use ringway_sim::report::summary::{Summary, Timed};
use ringway_sim::what_if::{Axis, Tried};
use ringway_sim::workload::{StepTime, Training};
use serde::Serialize;

use super::args::CommonArgs;
use crate::fabric::show::{many, table};
use crate::size;

/// Columns of every line.
const COLUMNS: usize = 80;

/// What is simulated on.
pub(super) fn head(network: &Network, args: &CommonArgs) -> String {
    let fabric = &network.fabric;
    let mut page = String::new();
    let mut line = |name: &str, text: String| {
        let _ = writeln!(page, "{name:<10} {text}");
    };
    let rate = fabric.links.iter().filter_map(|link| link.rate).max().map_or(0.0, Rate::gbps);
    line(
        "fabric",
        format!(
            "{} GPUs, {}, {} in {}, links of {}",
            network.ranks(),
            many(fabric.hosts.len(), "host", "hosts"),
            many(fabric.switches().count(), "switch", "switches"),
            many(usize::from(fabric.tiers), "tier", "tiers"),
            bandwidth(rate)
        ),
    );
    let machine = &network.machine;
    line(
        "machine",
        format!(
            "{}, NVLink {} GB/s, PCIe {} GB/s",
            many(machine.gpus, "GPU", "GPUs"),
            machine.inside_gbytes,
            machine.bus_gbytes
        ),
    );
    let routing = &args.routing;
    line(
        "routing",
        format!(
            "{}, seed {}, {}",
            routing.routing.name(),
            routing.first_seed(),
            many(routing.qps as usize, "queue pair a connection", "queue pairs a connection")
        ),
    );
    page.push('\n');
    page
}

/// Collectives as nccl-tests shows them.
pub(super) fn timed(calls: &[Timed]) -> String {
    let mut rows = vec![
        ["collective", "ranks", "size", "time", "algbw GB/s", "busbw GB/s"].map(str::to_owned),
    ];
    for call in calls {
        rows.push([
            call.name.clone(),
            call.ranks.to_string(),
            size::display(call.bytes),
            duration(call.end_us - call.start_us),
            format!("{:.2}", call.algbw()),
            format!("{:.2}", call.busbw()),
        ]);
    }
    table(&rows)
}

/// A training step.
pub(super) fn step(training: &Training, time: &StepTime) -> String {
    let mut page = String::new();
    let mut line = |name: &str, text: String| {
        let _ = writeln!(page, "{name:<10} {text}");
    };
    let expert = match training.experts {
        0 => String::new(),
        experts => format!(", {experts} experts over {}", training.expert),
    };
    let fsdp = if training.fsdp { " (fsdp)" } else { "" };
    line(
        "model",
        format!(
            "{} parameters, {} layers; data {}{fsdp}, tensor {}, pipeline {}{expert}",
            count(training.parameters),
            training.layers,
            training.data,
            training.tensor,
            training.pipeline
        ),
    );
    let percent = |us: f64| format!("{:.1} %", us / time.step_us.max(f64::MIN_POSITIVE) * 100.0);
    line("step", duration(time.step_us));
    line(
        "computing",
        format!("{} ({} of the step)", duration(time.compute_us), percent(time.compute_us)),
    );
    if time.bubble_us > 0.0 {
        line(
            "bubble",
            format!(
                "{} ({}): stages wait for each other",
                duration(time.bubble_us),
                percent(time.bubble_us)
            ),
        );
    }
    line(
        "exposed",
        format!(
            "{} ({}); communication was under way for {}",
            duration(time.exposed_us),
            percent(time.exposed_us),
            duration(time.communication_us)
        ),
    );
    line("tokens/s", format!("{:.0}", time.tokens_per_s));
    if !time.kinds.is_empty() {
        page.push('\n');
        let mut rows = vec![
            ["kind", "collective", "ranks", "calls", "sent by a GPU", "busy"].map(str::to_owned),
        ];
        for one in &time.kinds {
            rows.push([
                one.traffic.kind.name().to_owned(),
                one.traffic.kind.collective().to_string(),
                one.traffic.ranks.to_string(),
                format!("{:.0}", one.traffic.calls),
                bytes(one.traffic.sent_bytes),
                duration(one.busy_us),
            ]);
        }
        page.push_str(&table(&rows));
    }
    page
}

/// Links by what they join, the hottest, and what happened.
pub(super) fn links(summary: &Summary) -> String {
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let mut rows =
        vec![["links", "number", "used", "mean use", "hottest", "imbalance"].map(str::to_owned)];
    for group in summary.groups.iter().filter(|group| group.used > 0) {
        rows.push([
            group.group.to_string(),
            group.links.to_string(),
            group.used.to_string(),
            percent(group.mean),
            percent(group.most),
            percent(group.imbalance),
        ]);
    }
    let mut page = format!("\n{}", table(&rows));
    if !summary.hottest.is_empty() {
        page.push_str("\nHottest links:\n");
    }
    for hot in &summary.hottest {
        let text = format!("  {:>7}  {}", percent(hot.part), hot.name);
        let _ = writeln!(page, "{}", cut(&text));
    }
    if !summary.incidents.is_empty() {
        page.push_str("\nIncidents:\n");
    }
    for incident in &summary.incidents {
        let _ = writeln!(
            page,
            "{}",
            wrapped(&format!("{:>10}  ", duration(incident.us)), &incident.what)
        );
    }
    page
}

/// How far apart seeds are.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Spread {
    seeds: usize,
    time_us: [f64; 3],
    rate: [f64; 3],
}

impl Spread {
    pub(super) fn of(times: &[f64], rates: &[f64]) -> Self {
        let three = |values: &[f64]| {
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
            [at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1))]
        };
        Self { seeds: times.len(), time_us: three(times), rate: three(rates) }
    }

    pub(super) fn text(&self, rate_name: &str) -> String {
        let [best, median, worst] = self.time_us.map(duration);
        let [least, usual, most] = self.rate.map(|rate| format!("{rate:.2}"));
        let rows = [
            [format!("{} seeds", self.seeds), "least".into(), "median".into(), "most".into()],
            ["time".into(), best, median, worst],
            [rate_name.to_owned(), least, usual, most],
        ];
        format!("\n{}", table(&rows))
    }
}

/// What if: a row for each try.
pub(super) fn varied(axes: &[Axis], tried: &[Tried], rate_name: &str, title: &str) -> String {
    let mut head: Vec<String> = axes.iter().map(|axis| axis.knob.to_string()).collect();
    head.extend(["time", rate_name, "hottest link", "imbalance", ""].map(str::to_owned));
    let mut rows = vec![head];
    let mut failed = Vec::new();
    for one in tried {
        let mut row = one.values.clone();
        match &one.measure {
            Some(measure) => row.extend([
                duration(measure.time_us),
                format!("{:.2}", measure.rate),
                format!("{:.1} %", measure.hottest * 100.0),
                format!("{:.1} %", measure.imbalance * 100.0),
                if one.best { "best".to_owned() } else { String::new() },
            ]),
            None => {
                row.push("-".to_owned());
                let why = one.why.clone().unwrap_or_default();
                failed.push(wrapped(&format!("{}: ", one.values.join(", ")), &why));
            }
        }
        rows.push(row);
    }
    let mut page = format!("{title}\n\n{}", table(&rows));
    if !failed.is_empty() {
        let _ = write!(page, "\n{}\n", failed.join("\n"));
    }
    page
}

/// A text in lines that fit, the later ones set in by two.
fn wrapped(head: &str, text: &str) -> String {
    let mut lines = vec![head.to_owned()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { continue };
        let fits = line.chars().count() + word.chars().count() < COLUMNS;
        if fits || line.trim().is_empty() {
            if !line.ends_with(' ') {
                line.push(' ');
            }
            line.push_str(word);
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines.join("\n")
}

fn cut(line: &str) -> String {
    if line.chars().count() <= COLUMNS {
        return line.to_owned();
    }
    line.chars().take(COLUMNS - 1).chain(['…']).collect()
}

/// Bytes as makers of links count them.
fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1e12 => format!("{:.2} TB", bytes / 1e12),
        bytes if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        bytes => format!("{:.2} MB", bytes / 1e6),
    }
}

/// A number of parameters.
pub(super) fn count(number: f64) -> String {
    match number {
        number if number >= 1e12 => format!("{} T", number / 1e12),
        number if number >= 1e9 => format!("{} B", number / 1e9),
        number => format!("{} M", number / 1e6),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count that is positive, and less than 2^64"
)]
pub(super) fn whole(number: f64) -> u64 {
    number.max(0.0) as u64
}

//! `ringway perf soak`: one collective for hours; does it become slower, does it jitter, who is waited for?
//!
//! ```text
//!   batch (a fifth of a second of calls, each timed) ──► all ranks' samples, who wants to stop ──► …
//!   window (many batches) ──► histogram of all ranks · check of a result ──► line, file ──► …
//! ```
//!
//! *Invariant*: ranks stop after the same batch, since all of them see the same votes; what was seen until then is reported, however the
//! run ends. Nothing is kept that grows with the number of calls.

mod args;
mod document;
mod drift;
mod histogram;
mod record;

use std::io;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ringway::Communicator;

pub(crate) use self::args::SoakArgs;
pub(crate) use self::document::FORMAT;
use self::document::{Called, Document};
use self::histogram::{BUCKETS, Histogram};
use self::record::{Record, Window};
use super::check::Case;
use super::clock;
use super::json;
use super::launch::EXIT_NOT_PASSED;
use super::measure::{Bench, Subject};
use super::progress::Progress;
use super::ranks::{self, Collectives as _};
use super::settings::Settings;
use super::table::Device;
use crate::exit::ExitCode;
use crate::launch::children::code_of_signal;
use crate::launch::signals::Signals;
use crate::{output, size};

/// For how long ranks call before they vote on going on, and so within which time they stop.
const BATCH_S: f64 = 0.2;
/// Calls of a batch, at most, and how many more there may be than in the last.
const CALLS_MOST: u32 = 100_000;
const GROWTH: u32 = 10;
/// Calls of a batch that are compared between ranks.
const SAMPLES: usize = 64;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Soak {
    pub(crate) length: Duration,
    pub(crate) window: Duration,
    /// How much slower it may become, in percent.
    pub(crate) drift_percent: f64,
}

/// What the ranks are to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Vote {
    GoOn = 0,
    /// A window is over.
    Window = 1,
    /// It is time.
    End = 2,
    /// Somebody wants it to end.
    Stop = 3,
}

/// What a rank has seen since the window began.
#[derive(Debug)]
struct Turn {
    began: Instant,
    times: Histogram,
    calls: u64,
    total_s: f64,
    max_s: f64,
    /// For how long this rank slept waiting for each.
    waited_ns: Vec<u64>,
}

/// A rank's part in a run.
struct Run<'a, 'b> {
    settings: &'a Settings,
    soak: Soak,
    comm: &'a Communicator,
    bench: &'a mut Bench<'b>,
    case: Case,
    signals: Signals,
    began: Instant,
    turn: Turn,
    /// The first operation whose record was not looked at yet.
    sequence: u64,
    record: Record,
    /// At rank 0, which alone reports.
    desk: Option<Desk<'a>>,
}

/// Where rank 0 reports.
struct Desk<'a> {
    devices: &'a [Device],
    progress: Progress,
    /// Whether windows are printed; on a terminal the bar shows the last.
    prints: bool,
    /// That of the last line.
    printed: io::Result<()>,
    start_time: String,
}

/// Runs it at one rank; all ranks call it alike.
pub(super) fn run(
    settings: &Settings,
    soak: Soak,
    comm: &Communicator,
    bench: &mut Bench<'_>,
    subject: &Subject,
    devices: &[Device],
    replaces: bool,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::catch().context("catching SIGINT and SIGTERM")?;
    let case = bench.begin(subject)?;
    let windows = soak.length.as_secs_f64() / soak.window.as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "thousands")]
    let desk = (comm.rank() == 0).then(|| Desk {
        devices,
        progress: Progress::new(Some(windows.ceil() as u64)),
        prints: !output::is_on_a_terminal(),
        printed: Ok(()),
        start_time: clock::now(),
    });
    let ranks = comm.size() as usize;
    let mut run = Run {
        settings,
        soak,
        comm,
        bench,
        case,
        signals,
        began: Instant::now(),
        turn: Turn::new(ranks),
        sequence: 0,
        record: Record::new(ranks),
        desk,
    };
    run.announce(replaces);
    let ended = run.windows();
    if let Err(error) = &ended {
        run.record.errors.push(format!("{error:#}"));
    }
    run.report(ended)
}

impl Turn {
    fn new(ranks: usize) -> Self {
        Self {
            began: Instant::now(),
            times: Histogram::default(),
            calls: 0,
            total_s: 0.0,
            max_s: 0.0,
            waited_ns: vec![0; ranks],
        }
    }
}

impl Run<'_, '_> {
    /// Calls until it is time, or somebody wants it to end: which of the two.
    fn windows(&mut self) -> anyhow::Result<Vote> {
        let mut calls = 1;
        self.comm.barrier()?;
        self.began = Instant::now();
        self.turn = Turn::new(self.comm.size() as usize);
        loop {
            let (vote, batch_s) = self.batch(calls)?;
            if vote != Vote::GoOn {
                self.end_window(vote)?;
            }
            if matches!(vote, Vote::End | Vote::Stop) {
                return Ok(vote);
            }
            calls = next_calls(calls, batch_s);
        }
    }

    /// Makes so many calls; then all ranks vote, and tell each other how some of the calls went.
    fn batch(&mut self, calls: u32) -> anyhow::Result<(Vote, f64)> {
        let at_s = self.began.elapsed().as_secs_f64();
        let seconds = self.bench.timed(&self.case, calls)?;
        let batch_s: f64 = seconds.iter().sum();
        let hiccup_from = self.record.hiccup_from();
        let mut passed_s = at_s;
        for one in &seconds {
            self.turn.times.add(*one);
            self.turn.max_s = self.turn.max_s.max(*one);
            passed_s += one;
            if hiccup_from.is_some_and(|from| *one >= from) {
                self.record.hiccup(passed_s);
            }
        }
        self.turn.calls += u64::from(calls);
        self.turn.total_s += batch_s;
        self.note_waits();
        let samples = samples(&seconds);
        let own = [&[f64::from(self.vote() as u8), batch_s], &samples[..]].concat();
        let all = ranks::all_gather_numbers(self.comm, &own)?;
        if self.settings.collective.waits_for_all() {
            for at in 2..own.len() {
                let call: Vec<f64> = all.iter().filter_map(|rank| rank.get(at).copied()).collect();
                self.record.tally.add(&call);
            }
        }
        let slowest = all.iter().map(|rank| rank[1]).fold(0.0, f64::max);
        Ok((decided(&all), slowest))
    }

    fn vote(&self) -> Vote {
        let gone = self.desk.as_ref().is_some_and(|desk| desk.printed.is_err());
        if self.signals.caught().is_some() || gone {
            return Vote::Stop;
        }
        // One clock decides, since no two agree.
        match self.comm.rank() {
            0 if self.began.elapsed() >= self.soak.length => Vote::End,
            0 if self.turn.began.elapsed() >= self.soak.window => Vote::Window,
            _ => Vote::GoOn,
        }
    }

    /// Adds up whom this rank stood still for in the calls that its recorder still knows.
    fn note_waits(&mut self) {
        let trace = self.comm.trace();
        for call in trace.calls.iter().filter(|call| call.sequence >= self.sequence) {
            // What ranks tell each other in between is not what is measured.
            let is_measured = call.collective == self.case.collective
                && call.data_type.is_none_or(|kind| kind == self.case.data_type)
                && call.count == self.case.layout.count as u64;
            if let Some(waited) = call.waited.filter(|_| is_measured)
                && let Some(sum) = self.turn.waited_ns.get_mut(waited.rank as usize)
            {
                *sum = sum.saturating_add(waited.waited_ns);
            }
        }
        self.sequence = trace.calls_begun;
    }

    /// Adds up what all ranks saw, checks a result, and tells of the window.
    fn end_window(&mut self, vote: Vote) -> anyhow::Result<()> {
        let ranks = self.comm.size() as usize;
        let seconds = self.turn.began.elapsed().as_secs_f64();
        let own = [self.turn.times.counts(), &self.turn.waited_ns].concat();
        let all = ranks::sum(self.comm, &own)?;
        let (counts, waited) = all.split_at(BUCKETS);
        let extremes = ranks::all_gather_numbers(self.comm, &[self.turn.max_s, self.turn.total_s])?;
        let most = |at: usize| extremes.iter().map(|rank| rank[at]).fold(0.0, f64::max);
        // Who wants to stop does not wait for a check.
        let wrong = if vote == Vote::Stop { None } else { self.bench.check(&self.case, false)? };
        let times = Histogram::from_counts(counts);
        let max_s = most(0);
        // The middle of a bucket may be past the greatest time in it.
        let us = |millionths| times.per_million(millionths).min(max_s) * 1e6;
        let calls = self.turn.calls;
        let bytes = self.case.layout.table_bytes();
        let factor = self.case.collective.bus_factor(self.case.size);
        #[expect(clippy::cast_precision_loss, reason = "numbers of calls")]
        let call_s = most(1) / (calls.max(1) as f64);
        let window = Window {
            at_s: (self.turn.began - self.began).as_secs_f64(),
            seconds,
            calls,
            p50_us: us(500_000),
            p99_us: us(990_000),
            p999_us: us(999_000),
            max_us: max_s * 1e6,
            busbw_gbs: super::stats::gigabytes_per_second(bytes, call_s) * factor,
            wrong,
        };
        self.record.times.merge(&times);
        self.record.max_s = self.record.max_s.max(max_s);
        for (sum, ns) in self.record.waited_s.iter_mut().zip(waited) {
            *sum += Duration::from_nanos(*ns).as_secs_f64();
        }
        self.tell(window)?;
        // Rank 0 has written a file meanwhile; that is nobody's lateness.
        self.comm.barrier()?;
        self.sequence = self.comm.trace().calls_begun;
        self.turn = Turn::new(ranks);
        Ok(())
    }

    fn tell(&mut self, window: Window) -> anyhow::Result<()> {
        let Some(desk) = &mut self.desk else { return Ok(()) };
        if desk.prints {
            desk.printed = desk.progress.row(&window.line());
        } else {
            let Window { p50_us, max_us, busbw_gbs, .. } = window;
            desk.progress.step();
            desk.progress.at(format!("p50 {p50_us:.0} us, max {max_us:.0}, {busbw_gbs:.2} GB/s"));
        }
        self.record.windows.push(window);
        self.write(false)
    }

    fn announce(&mut self, replaces: bool) {
        let Some(desk) = &mut self.desk else { return };
        let older = if replaces { " (in place of the older file)" } else { "" };
        let check = if self.settings.check > 0 { "each window" } else { "never" };
        let mut lines = vec![
            format!(
                "# ringway {} {} ranks {}",
                env!("CARGO_PKG_VERSION"),
                self.comm.describe(),
                self.comm.size()
            ),
            format!(
                "# soak: {} of {} {} for {} in windows of {}, results checked {check}; Ctrl-C ends it with the report",
                self.settings.collective,
                size::display(self.case.layout.table_bytes() as u64),
                self.case.data_type,
                ringway::config::format_duration(self.soak.length),
                ringway::config::format_duration(self.soak.window)
            ),
        ];
        lines.extend(
            self.settings
                .json
                .as_ref()
                .map(|path| format!("# Writing {} after each window{older}", path.display())),
        );
        lines.extend(desk.prints.then(Window::header));
        desk.printed = lines.iter().try_for_each(|line| desk.progress.line(line));
    }

    /// The end, however it came.
    fn report(mut self, ended: anyhow::Result<Vote>) -> anyhow::Result<ExitCode> {
        let finished = matches!(ended, Ok(Vote::End));
        let summary = self.record.summary(self.soak.drift_percent);
        let written = self.write(finished);
        if let Some(desk) = self.desk.take() {
            let Desk { devices, progress, printed, .. } = desk;
            drop(progress);
            printed?;
            let ranks: Vec<String> = devices
                .iter()
                .map(|device| format!("{}, pid {}", device.host, device.pid))
                .collect();
            let waits = self.settings.collective.waits_for_all();
            let lines = summary.lines(&self.record, &ranks, waits);
            lines.iter().try_for_each(|line| output::line(line))?;
        }
        ended?;
        written?;
        if let Some(signal) = self.signals.caught() {
            return Ok(ExitCode::from(code_of_signal(signal)));
        }
        // Rank 0's verdict is the job's.
        let fails = self.comm.rank() == 0 && !summary.okay;
        Ok(if fails { ExitCode::from(EXIT_NOT_PASSED) } else { ExitCode::SUCCESS })
    }

    /// Puts what is known into the file, whole.
    fn write(&self, finished: bool) -> anyhow::Result<()> {
        let (Some(desk), Some(path)) = (&self.desk, &self.settings.json) else { return Ok(()) };
        let called = Called {
            case: &self.case,
            connection: self.comm.describe(),
            start_time: &desk.start_time,
            finished,
        };
        let summary = self.record.summary(self.soak.drift_percent);
        json::write(&Document::new(called, desk.devices, &self.record, summary), path)
    }
}

/// Times of some calls, spread over a batch. To the first one ranks come from what they told each other.
fn samples(seconds: &[f64]) -> Vec<f64> {
    let later = seconds.get(1..).unwrap_or_default();
    let every = later.len().div_ceil(SAMPLES).max(1);
    later.iter().copied().step_by(every).collect()
}

/// What all ranks do, by everybody's vote: the strongest counts.
fn decided(all: &[Vec<f64>]) -> Vote {
    let strongest = all.iter().filter_map(|rank| rank.first().copied()).fold(0.0, f64::max);
    match strongest {
        vote if vote >= 3.0 => Vote::Stop,
        vote if vote >= 2.0 => Vote::End,
        vote if vote >= 1.0 => Vote::Window,
        _ => Vote::GoOn,
    }
}

/// Calls of the next batch, given what the last took at the slowest rank.
fn next_calls(calls: u32, batch_s: f64) -> u32 {
    let call_s = (batch_s / f64::from(calls)).max(1e-9);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let wanted = (BATCH_S / call_s).clamp(1.0, f64::from(CALLS_MOST)) as u32;
    wanted.min(calls.saturating_mul(GROWTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_vote_counts() {
        let votes =
            |votes: &[f64]| decided(&votes.iter().map(|vote| vec![*vote]).collect::<Vec<_>>());
        assert_eq!(votes(&[0.0, 0.0]), Vote::GoOn);
        assert_eq!(votes(&[1.0, 0.0]), Vote::Window);
        assert_eq!(votes(&[2.0, 0.0]), Vote::End);
        assert_eq!(votes(&[2.0, 3.0]), Vote::Stop);
        assert_eq!(decided(&[]), Vote::GoOn);
    }

    #[test]
    fn batches_take_a_fifth_of_a_second() {
        assert_eq!(next_calls(1, 1e-3), 10, "not more than ten times the last");
        assert_eq!(next_calls(100, 0.1), 200);
        assert_eq!(next_calls(10, 20.0), 1);
        assert_eq!(next_calls(CALLS_MOST, 0.0), CALLS_MOST);
    }

    #[test]
    fn samples_are_few_and_leave_out_the_first() {
        assert_eq!(samples(&[9.0]), Vec::<f64>::new());
        assert_eq!(samples(&[9.0, 1.0, 2.0]), [1.0, 2.0]);
        let many = samples(&vec![1.0; 10_000]);
        assert!(many.len() <= SAMPLES && many.len() > SAMPLES / 2, "{}", many.len());
        assert!(!samples(&[9.0; 65]).contains(&0.0));
    }
}

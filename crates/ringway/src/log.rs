//! The log: a small subscriber of `tracing` that prints NCCL's lines.
//!
//! ```text
//! host:pid:tid [rank] NCCL INFO message
//!
//! [2026-01-31 23:59:59] host:pid:tid [rank] file.rs:42 NCCL WARN message
//! ```
//!
//! Modules log with `tracing`'s macros and one of the targets below, which name the subsystems of
//! `NCCL_DEBUG_SUBSYS`. A target such as `ringway::INIT|SHM` belongs to each it names, as NCCL's
//! lines do: operators find `via SHM` in the log without asking for `SHM`.
//!
//! The filter is fixed when the subscriber is made, so `tracing` caches its answer at each place
//! that logs: a line that is not wanted costs one or two relaxed loads.
//!
//! *Invariant:* the library itself never calls [`install`]; the command and the C and Python faces
//! do, and an application with its own subscriber keeps it.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::config::{Config, DebugLevel, LogFile, Source, Subsystem, Subsystems};
use crate::plan::types::Rank;

/// Target of lines about communicators that start.
pub const INIT: &str = "ringway::INIT";
/// Target of lines about shared memory that belong to a communicator's start.
pub const INIT_SHM: &str = "ringway::INIT|SHM";
/// Target of lines about the network that belong to a communicator's start.
pub const INIT_NET: &str = "ringway::INIT|NET";
/// Target of lines about collectives.
pub const COLL: &str = "ringway::COLL";
/// Target of lines about shared memory.
pub const SHM: &str = "ringway::SHM";
/// Target of lines about the network.
pub const NET: &str = "ringway::NET";
/// Target of lines about settings.
pub const ENV: &str = "ringway::ENV";
/// Target of lines about how ranks find each other.
pub const BOOTSTRAP: &str = "ringway::BOOTSTRAP";
/// Target of lines about the choice of algorithms.
pub const TUNING: &str = "ringway::TUNING";
/// Target of lines about communicators that go away.
pub const DESTROY: &str = "ringway::DESTROY";
/// Target of the version line, which has no prefix.
pub const VERSION: &str = "ringway::VERSION";

thread_local! {
    static THREAD_RANK: Cell<Option<Rank>> = const { Cell::new(None) };
}

/// Names the rank in this thread's lines, for processes whose threads are ranks.
pub fn set_thread_rank(rank: Rank) {
    THREAD_RANK.set(Some(rank));
}

/// Makes the log of `config` the global subscriber. Returns whether it did: a subscriber that is
/// already there stays.
pub fn install(config: &Config) -> bool {
    !tracing::dispatcher::has_been_set()
        && tracing::subscriber::set_global_default(Logger::new(config)).is_ok()
}

/// Prints the version, where `NCCL_DEBUG` asks for any line. Rank 0 calls this at start.
pub fn version(config: &Config) {
    if config.source("NCCL_DEBUG") != Source::Default {
        tracing::warn!(target: VERSION, "ringway version {}", env!("CARGO_PKG_VERSION"));
    }
}

/// Logs which settings are set and by whom, then the notes and warnings about them. Each line is
/// logged once in a process, however many communicators start. Secrets are redacted.
pub fn warn_settings(config: &Config) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = said.get_or_insert_default();
    log_settings(config, &mut |line| said.insert(line.to_owned()));
}

fn log_settings(config: &Config, is_new: &mut dyn FnMut(&str) -> bool) {
    for setting in config.settings() {
        let by = match &setting.source {
            Source::Default => continue,
            source => source.to_string(),
        };
        let line = format!("{} set by {by} to {}.", setting.name, setting.value);
        if is_new(&line) {
            tracing::info!(target: ENV, "{line}");
        }
    }
    for note in config.notes.iter().filter(|note| is_new(&note.text)) {
        tracing::info!(target: ENV, "{}", note.text);
    }
    for warning in config.warnings.iter().filter(|warning| is_new(&warning.text)) {
        tracing::warn!(target: ENV, "{}", warning.text);
    }
}

/// The subscriber.
pub struct Logger {
    level: DebugLevel,
    subsystems: Subsystems,
    rank: Option<Rank>,
    host: String,
    now: fn() -> SystemTime,
    sink: Mutex<Sink>,
}

impl Logger {
    /// A logger with the level, subsystems and file of `config`.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let sink = match &config.debug_file {
            LogFile::Stderr => Sink::Writer(Box::new(io::stderr())),
            LogFile::Stdout => Sink::Writer(Box::new(io::stdout())),
            LogFile::Pattern(pattern) => Sink::Unopened(expanded(pattern)),
        };
        Self { sink: Mutex::new(sink), ..Self::with_writer(config, io::sink()) }
    }

    /// The same, but lines go to `writer`.
    #[must_use]
    pub fn with_writer(config: &Config, writer: impl Write + Send + 'static) -> Self {
        Self {
            level: config.debug,
            subsystems: config.debug_subsystems,
            rank: config.rank,
            host: host_name(),
            now: SystemTime::now,
            sink: Mutex::new(Sink::Writer(Box::new(writer))),
        }
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let ours = target == "ringway" || target.starts_with("ringway_");
        if metadata.is_span() || !(ours || target.starts_with("ringway::")) {
            return false;
        }
        let needed = match *metadata.level() {
            _ if target == VERSION => return self.level >= DebugLevel::Version,
            Level::ERROR | Level::WARN => return self.level >= DebugLevel::Warn,
            Level::INFO => DebugLevel::Info,
            _ => DebugLevel::Trace,
        };
        self.level >= needed && of_subsystem(target, self.subsystems)
    }

    fn line(&self, metadata: &Metadata<'_>, fields: &Fields) -> String {
        let Fields { message, rank, rest } = fields;
        if metadata.target() == VERSION {
            return format!("{message}\n");
        }
        let ours = THREAD_RANK.get().or(self.rank).unwrap_or(0);
        let rank = rank.unwrap_or_else(|| ours.into());
        let (pid, tid) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero());
        let place = format!("{}:{pid}:{tid} [{rank}]", self.host);
        match *metadata.level() {
            Level::ERROR | Level::WARN => {
                let file = metadata.file().unwrap_or("?");
                let file = file.rsplit('/').next().unwrap_or(file);
                let line = metadata.line().unwrap_or(0);
                let time = stamp((self.now)());
                format!("\n[{time}] {place} {file}:{line} NCCL WARN {message}{rest}\n")
            }
            Level::INFO => format!("{place} NCCL INFO {message}{rest}\n"),
            _ => format!("{place} NCCL TRACE {message}{rest}\n"),
        }
    }
}

impl fmt::Debug for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logger")
            .field("level", &self.level)
            .field("subsystems", &self.subsystems)
            .finish_non_exhaustive()
    }
}

impl Subscriber for Logger {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.level {
            DebugLevel::None => LevelFilter::OFF,
            DebugLevel::Version | DebugLevel::Warn => LevelFilter::WARN,
            DebugLevel::Info | DebugLevel::Abort => LevelFilter::INFO,
            DebugLevel::Trace => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = self.line(event.metadata(), &fields);
        self.sink.lock().unwrap_or_else(PoisonError::into_inner).write(&line);
    }

    // Spans are never wanted.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Where lines go. A file is opened by its first line: no line, no file.
enum Sink {
    Writer(Box<dyn Write + Send>),
    Unopened(String),
}

impl Sink {
    /// One write a line, so that lines of several ranks in one file stay whole. A log that cannot
    /// be written must not stop the job: errors are dropped.
    fn write(&mut self, line: &str) {
        if let Self::Unopened(path) = self {
            let opened: io::Result<File> =
                OpenOptions::new().create(true).append(true).open(&*path);
            let mut writer: Box<dyn Write + Send> = match opened {
                Ok(file) => Box::new(file),
                Err(error) => {
                    let text = format!("NCCL_DEBUG_FILE={path}: {error}; using stderr\n");
                    io::stderr().write_all(text.as_bytes()).ok();
                    Box::new(io::stderr())
                }
            };
            writer.write_all(line.as_bytes()).ok();
            *self = Self::Writer(writer);
        } else if let Self::Writer(writer) = self {
            writer.write_all(line.as_bytes()).and_then(|()| writer.flush()).ok();
        }
    }
}

/// The fields of an event: the message, the rank if it names one, and the others as ` name=value`.
#[derive(Default)]
struct Fields {
    message: String,
    rank: Option<u64>,
    rest: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.rest, " {name}={value:?}"),
        };
        written.ok();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rank" {
            self.rank = Some(value);
        } else {
            self.record_debug(field, &value);
        }
    }
}

/// Whether one of the subsystems a target names is in the set. A target that names none, such as
/// a module's path, is in every set.
fn of_subsystem(target: &str, subsystems: Subsystems) -> bool {
    let words = target.strip_prefix("ringway::").unwrap_or("").split('|');
    let mut named = words.filter_map(|word| word.parse::<Subsystem>().ok()).peekable();
    named.peek().is_none() || named.any(|subsystem| subsystems.contains(subsystem))
}

fn host_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// A file's name from its pattern, in this process.
pub(crate) fn expanded(pattern: &str) -> String {
    expand(pattern, &host_name(), std::process::id())
}

/// A file's name from its pattern: `%h` host, `%p` process, `%%` percent.
fn expand(pattern: &str, host: &str, pid: u32) -> String {
    let mut path = String::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match (c, rest.as_str().chars().next()) {
            ('%', Some('h')) => path.push_str(host),
            ('%', Some('p')) => path.push_str(&pid.to_string()),
            ('%', Some('%')) => path.push('%'),
            _ => {
                path.push(c);
                continue;
            }
        }
        rest.next();
    }
    path
}

/// `2026-01-31 23:59:59`, in UTC.
fn stamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01 fall into eras of 400 years; a year that starts in March ends with
    // its leap day.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let day = day - (153 * march_month + 2) / 5 + 1;
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

#[cfg(test)]
mod tests;

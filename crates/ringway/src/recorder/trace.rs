//! What a recorder held at one moment, as a value and as a file: `ringway-trace`, version 1.
//!
//! One JSON object for each rank of each communicator; docs/trace.md describes every field. Times are
//! nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
//!
//! *Invariant*: reading a trace is total: any text gives a trace or an error that says what is wrong where.

use serde::{Deserialize, Serialize};

use super::clock::Span;
use super::ring::Record;
use crate::error::Error;
use crate::plan::algorithm::Algorithm;
use crate::plan::types::{Collective, DataType, Rank, ReduceOp};

/// What the file calls itself.
pub const FORMAT: &str = "ringway-trace";

/// Raised when a reader of the old form would misread the new.
pub const VERSION: u32 = 1;

/// Ranks of a communicator, at most.
const RANKS_MAX: u32 = 1 << 20;

/// Why a trace was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The communicator failed.
    Error,
    /// The communicator ended.
    End,
    /// The process was sent a signal.
    Signal,
    /// The program asked.
    Request,
}

impl Reason {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::End => "end",
            Self::Signal => "signal",
            Self::Request => "request",
        }
    }
}

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Begun, and not over.
    Running,
    /// Over, well.
    Done,
    /// Over, with an error.
    Failed,
}

/// The clock of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockInfo {
    /// Traces with the same id are on the same clock: the boot id of the machine.
    pub id: String,
    /// What was read: `tsc` (the processor's counter), `monotonic`, or `none` where the recorder was off.
    pub source: String,
    /// Nanoseconds since 1970 when the clock was 0, as the machine had it when the communicator began.
    pub realtime_offset_ns: i64,
}

/// A rank that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waited {
    /// The rank.
    pub rank: Rank,
    /// For how long, as far as was looked: waits are noted from a millisecond on, each time they have doubled.
    pub waited_ns: u64,
}

/// One collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// Its place in the communicator's sequence of operations, from 0; the same on all ranks.
    pub sequence: u64,
    /// Which collective; the first one's of a group.
    pub collective: Collective,
    /// Element type, where data moves.
    #[serde(default, rename = "type")]
    pub data_type: Option<DataType>,
    /// Reduction, where values are combined.
    #[serde(default)]
    pub op: Option<ReduceOp>,
    /// The special rank, where there is one.
    #[serde(default)]
    pub root: Option<Rank>,
    /// Elements, as the caller gave them.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// By which algorithm, where one did it.
    #[serde(default)]
    pub algorithm: Option<Algorithm>,
    /// Calls in it: more than one in a group.
    #[serde(default)]
    pub parts: u64,
    /// Whether ranks have counts of their own; then `count` is what all of them have, or 0.
    #[serde(default)]
    pub uneven: bool,
    /// When it was queued, where it ran in the background.
    #[serde(default)]
    pub queued_ns: Option<u64>,
    /// When this rank entered it; 0 where the recorder was off.
    pub start_ns: u64,
    /// When this rank left it.
    #[serde(default)]
    pub end_ns: Option<u64>,
    /// Whether that was counted in looks for the others, not read from a clock: true to about a microsecond.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_about: bool,
    /// How far it has come.
    pub outcome: Outcome,
    /// Whom it stood still for longest, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
    /// Steps done and steps in all of each lane, where it stood still last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<(u32, u32)>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageRecord {
    /// Its place among this rank's messages, from 0.
    pub number: u64,
    /// Whom to, or whom from.
    pub peer: Rank,
    /// Whether this rank sends it.
    pub sends: bool,
    /// Its place among the messages to, or from, that rank; the same at both ends.
    pub sequence: u64,
    /// Its bytes.
    pub bytes: u64,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    #[serde(default)]
    pub end_ns: Option<u64>,
    /// How far it has come.
    pub outcome: Outcome,
    /// Whom it stood still for longest, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
}

impl MessageRecord {
    pub(super) fn of(number: u64, record: &Record, span: &Span) -> Self {
        let [bytes, sequence, who] = record.what();
        let (start_ns, end_ns, outcome) = times(record, span);
        Self {
            number,
            peer: Rank::try_from(who >> 32).unwrap_or_default(),
            sends: who & 1 == 1,
            sequence,
            bytes,
            start_ns,
            end_ns,
            outcome,
            waited: waited(record),
        }
    }
}

/// One launch on a GPU: one call, or several of a group. When it began and ended only the device knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    /// Its place among this rank's launches, from 1. Those of a captured graph count once, when it was captured: kernels count
    /// them with every replay, so that from then on what is noted by their count stands at another launch, or at none.
    pub number: u64,
    /// The first call in it; of messages `send_recv`.
    pub collective: Collective,
    /// Its element type.
    #[serde(default, rename = "type")]
    pub data_type: Option<DataType>,
    /// Its reduction, where values are combined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<ReduceOp>,
    /// Its root, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Rank>,
    /// Its elements, as the caller gave them.
    pub count: u64,
    /// The bytes of as many elements; of messages, those of all of them.
    pub bytes: u64,
    /// Calls or messages in it.
    pub parts: u64,
    /// When it was enqueued.
    pub enqueued_ns: u64,
    /// Whom it stood still for longest, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
}

/// When a record began and ended, and how.
pub(crate) fn times(record: &Record, span: &Span) -> (u64, Option<u64>, Outcome) {
    let start = record.start();
    let start_ns = if start == 0 { 0 } else { span.nanoseconds(start) };
    // Two processors' counters may differ by a few ticks.
    let end_ns = record.end().map(|end| span.nanoseconds(end).max(start_ns));
    let outcome = match (record.end(), record.failed()) {
        (_, true) => Outcome::Failed,
        (Some(_), false) => Outcome::Done,
        (None, false) => Outcome::Running,
    };
    (start_ns, end_ns, outcome)
}

/// Whom a record stood still for.
pub(crate) fn waited(record: &Record) -> Option<Waited> {
    let (rank, us) = record.waited()?;
    Some(Waited { rank, waited_ns: us.saturating_mul(1_000) })
}

/// What a recorder held. See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Why it was taken.
    pub reason: Reason,
    /// The communicator's id, in hexadecimal; the same on all ranks.
    pub communicator: String,
    /// Whose it is.
    pub rank: Rank,
    /// Ranks of the communicator.
    pub size: u32,
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// The clock.
    pub clock: ClockInfo,
    /// When it was taken.
    pub taken_ns: u64,
    /// The error all ranks agreed on, where there was one.
    #[serde(default)]
    pub verdict: Option<Error>,
    /// Operations that were begun, kept or not.
    pub calls_begun: u64,
    /// Messages that were begun, kept or not.
    #[serde(default)]
    pub messages_begun: u64,
    /// Launches on a GPU that were enqueued, kept or not.
    #[serde(default)]
    pub launches_begun: u64,
    /// The last operations, the oldest first.
    pub calls: Vec<CallRecord>,
    /// The last messages, the oldest first.
    #[serde(default)]
    pub messages: Vec<MessageRecord>,
    /// The last launches on a GPU, the oldest first.
    #[serde(default)]
    pub launches: Vec<LaunchRecord>,
}

/// What every version of the file has.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: u64,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// What is wrong, with the line and column or the field.
    pub fn parse(text: &str) -> Result<Self, String> {
        let head: Head =
            serde_json::from_str(text).map_err(|error| format!("is no trace: {error}"))?;
        if head.format != FORMAT {
            return Err(format!("is no trace: \"format\" is {:?}, not {FORMAT:?}", head.format));
        }
        if head.version != u64::from(VERSION) {
            return Err(format!(
                "\"version\" is {}, and this ringway reads version {VERSION}; use the ringway that wrote it",
                head.version
            ));
        }
        let trace: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        trace.check()?;
        Ok(trace)
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=RANKS_MAX).contains(&self.size) {
            return Err(format!("\"size\" is {}; it is 1 to {RANKS_MAX}", self.size));
        }
        if self.rank >= self.size {
            return Err(format!("\"rank\" is {}, but \"size\" is {}", self.rank, self.size));
        }
        let span = |list: &str, at: usize, start: u64, end: Option<u64>| match end {
            Some(end) if end < start => {
                Err(format!("{list}[{at}]: \"end_ns\" {end} comes before \"start_ns\" {start}"))
            }
            _ => Ok(()),
        };
        for (at, call) in self.calls.iter().enumerate() {
            span("calls", at, call.start_ns, call.end_ns)?;
            if at > 0 && self.calls[at - 1].sequence >= call.sequence {
                return Err(format!("calls[{at}]: \"sequence\" {} is out of order", call.sequence));
            }
        }
        for (at, message) in self.messages.iter().enumerate() {
            span("messages", at, message.start_ns, message.end_ns)?;
            if message.peer >= self.size {
                return Err(format!(
                    "messages[{at}]: \"peer\" is {}, but \"size\" is {}",
                    message.peer, self.size
                ));
            }
        }
        Ok(())
    }

    /// The trace as a file holds it: an operation a line.
    #[must_use]
    pub fn text(&self) -> String {
        // Only what cannot be written down fails, such as maps without text keys; there is none.
        let json = |value: &dyn Fn() -> serde_json::Result<String>| value().unwrap_or_default();
        let (calls, messages, launches) = (Vec::new(), Vec::new(), Vec::new());
        let head = Self { calls, messages, launches, ..self.clone() };
        let head = json(&|| serde_json::to_string(&head));
        // The three lists stand last.
        let lists = "\"calls\":[],\"messages\":[],\"launches\":[]}";
        let head = head.strip_suffix(lists).unwrap_or(&head);
        let calls: Vec<String> =
            self.calls.iter().map(|call| json(&|| serde_json::to_string(call))).collect();
        let messages: Vec<String> =
            self.messages.iter().map(|one| json(&|| serde_json::to_string(one))).collect();
        let launches: Vec<String> =
            self.launches.iter().map(|one| json(&|| serde_json::to_string(one))).collect();
        format!(
            "{head}\"calls\":[\n{}\n],\"messages\":[\n{}\n],\"launches\":[\n{}\n]}}\n",
            calls.join(",\n"),
            messages.join(",\n"),
            launches.join(",\n")
        )
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    fn call(sequence: u64) -> CallRecord {
        CallRecord {
            sequence,
            collective: Collective::AllReduce,
            data_type: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            root: None,
            count: 2,
            bytes: 8,
            algorithm: Some(Algorithm::Tiny),
            parts: 1,
            uneven: false,
            queued_ns: None,
            start_ns: 1_000 * sequence,
            end_ns: Some(1_000 * sequence + 7),
            end_about: sequence % 2 == 1,
            outcome: Outcome::Done,
            waited: None,
            lanes: Vec::new(),
        }
    }

    pub(in crate::recorder) fn trace() -> Trace {
        let message = MessageRecord {
            number: 0,
            peer: 1,
            sends: true,
            sequence: 4,
            bytes: 9,
            start_ns: 5,
            end_ns: None,
            outcome: Outcome::Running,
            waited: Some(Waited { rank: 1, waited_ns: 2_000_000 }),
        };
        let launch = LaunchRecord {
            number: 5,
            collective: Collective::Broadcast,
            data_type: Some(DataType::F32),
            op: None,
            root: Some(1),
            count: 7,
            bytes: 28,
            parts: 1,
            enqueued_ns: 60,
            waited: None,
        };
        Trace {
            format: FORMAT.to_owned(),
            version: VERSION,
            reason: Reason::Error,
            communicator: "0x1f".to_owned(),
            rank: 0,
            size: 2,
            host: "a".to_owned(),
            pid: 7,
            clock: ClockInfo { id: "boot".into(), source: "tsc".into(), realtime_offset_ns: -3 },
            taken_ns: 99,
            verdict: Some(Error::new(ErrorKind::Remote, "rank 1 died")),
            calls_begun: 3,
            messages_begun: 1,
            launches_begun: 5,
            calls: vec![call(1), CallRecord { lanes: vec![(1, 4)], ..call(2) }],
            messages: vec![message],
            launches: vec![launch],
        }
    }

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let (calls, messages, launches) = (vec![], vec![], vec![]);
        let empty = Trace { calls, messages, launches, verdict: None, ..trace() };
        for one in [trace(), empty] {
            assert_eq!(Trace::parse(&one.text()), Ok(one));
        }
    }

    #[test]
    fn errors_name_the_place() {
        type Change<'a> = &'a dyn Fn(&mut Trace);
        let parse = |change: Change<'_>| {
            let mut trace = trace();
            change(&mut trace);
            Trace::parse(&trace.text()).unwrap_err()
        };
        let table: [(Change<'_>, &str); 7] = [
            (&|t| t.format = "perfetto".into(), "\"format\" is \"perfetto\""),
            (&|t| t.version = 2, "\"version\" is 2, and this ringway reads version 1"),
            (&|t| t.rank = 2, "\"rank\" is 2, but \"size\" is 2"),
            (&|t| t.size = 0, "\"size\" is 0"),
            (&|t| t.calls[1].end_ns = Some(0), "calls[1]: \"end_ns\" 0 comes before"),
            (&|t| t.calls[1].sequence = 1, "calls[1]: \"sequence\" 1 is out of order"),
            (&|t| t.messages[0].peer = 2, "messages[0]: \"peer\" is 2"),
        ];
        for (change, wanted) in table {
            let found = parse(change);
            assert!(found.contains(wanted), "{found}");
        }
        let text = trace().text().replace("\"sequence\":2", "\"sequence\":\"two\"");
        let error = Trace::parse(&text).unwrap_err();
        assert!(error.contains("line 3 column"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(cut in 0_usize..1200, at in 0_usize..1200, with: char) {
            let text = trace().text();
            let _ = Trace::parse(text.get(..cut.min(text.len())).unwrap_or_default());
            let mut changed: Vec<char> = text.chars().collect();
            let at = at % changed.len();
            changed[at] = with;
            let _ = Trace::parse(&changed.into_iter().collect::<String>());
        }
    }
}

//! Traces of a communicator: taken on request, and written where settings say.
//!
//! *Invariant*: taking a trace waits for nobody: it reads the recorder while calls run. One that cannot be written
//! is a warning.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Communicator;
use crate::bootstrap::Session;
use crate::config::{Config, TraceEvent};
use crate::control::{Health, Journal};
use crate::error::{Error, Result};
use crate::os;
use crate::plan::types::Rank;
use crate::recorder::{ClockInfo, FORMAT, Folder, Reason, Trace, VERSION, write_file};

impl Communicator {
    /// What the flight recorder holds: this rank's last operations and messages. Any thread may ask at any time, also
    /// while a call hangs in another.
    ///
    /// ```
    /// use ringway::recorder::Outcome;
    /// ringway::testing::world(2, |comm| {
    ///     comm.barrier().unwrap();
    ///     let trace = comm.trace();
    ///     let last = trace.calls.last().unwrap();
    ///     assert_eq!((last.outcome, last.collective.name()), (Outcome::Done, "barrier"));
    /// });
    /// ```
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.inner.recording.trace(Reason::Request)
    }

    /// Writes [`Communicator::trace`] to a file, for `ringway trace`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_trace(&self, path: &Path) -> Result<()> {
        write_file(path, &self.trace())
            .map_err(|e| Error::system(format_args!("cannot write {}", path.display()), e))
    }
}

/// What the traces of one communicator are made of.
#[derive(Debug)]
pub(super) struct Recording {
    rank: Rank,
    size: u32,
    host: String,
    pid: u32,
    communicator: u64,
    clock: String,
    journal: Arc<Journal>,
    health: Arc<Health>,
    folder: Option<Folder>,
    on: Vec<TraceEvent>,
    /// Whether the trace of the error has been taken.
    failed: AtomicBool,
    /// Traces written by signals.
    signals: AtomicU32,
}

impl Recording {
    /// Those of the communicator that `session` becomes. From now on signals write them, where they shall.
    pub(super) fn start(
        session: &Session,
        config: &Config,
        (journal, health): (&Arc<Journal>, &Arc<Health>),
    ) -> Kept {
        let own = &session.peers[session.rank as usize];
        let identity = own.identity();
        let recording = Arc::new(Self {
            rank: session.rank,
            size: session.size,
            host: identity.host,
            pid: identity.pid,
            communicator: session.comm_id,
            clock: own.boot_id.clone(),
            journal: Arc::clone(journal),
            health: Arc::clone(health),
            folder: config.trace_dir.clone().map(Folder::new),
            on: config.trace_on.clone(),
            failed: AtomicBool::new(false),
            signals: AtomicU32::new(0),
        });
        if recording.folder.is_some() {
            for event in &recording.on {
                let (signal, caught) = match event {
                    TraceEvent::Usr1 => (libc::SIGUSR1, &USR1),
                    TraceEvent::Usr2 => (libc::SIGUSR2, &USR2),
                    TraceEvent::Error | TraceEvent::End => continue,
                };
                caught.write_on(signal, &recording);
            }
        }
        Kept(recording)
    }

    /// Where calls are written down.
    pub(super) fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// The time, by the recorder's clock.
    pub(super) fn now(&self) -> u64 {
        self.journal.recorder().now()
    }

    /// A call has failed: writes the trace where that has broken the communicator, once.
    #[cold]
    pub(super) fn failed(&self, error: Option<&Error>) {
        // An argument that was refused has broken nothing.
        let wanted = self.health.is_raised() && self.on.contains(&TraceEvent::Error);
        if wanted && !self.failed.swap(true, Ordering::Relaxed) {
            let mut trace = self.trace(Reason::Error);
            // Ranks that cannot agree each have an error of their own.
            trace.verdict = trace.verdict.or_else(|| error.cloned());
            self.write(trace, 0);
        }
    }

    fn write(&self, trace: Trace, number: u32) {
        if let Some(folder) = &self.folder {
            folder.write(trace, number);
        }
    }

    fn trace(&self, reason: Reason) -> Trace {
        let (calls_begun, calls) = self.journal.calls();
        let (messages_begun, messages) = self.journal.messages();
        let (launches_begun, launches) = self.journal.launches();
        let (source, realtime_offset_ns) = self.journal.recorder().clock_info();
        Trace {
            format: FORMAT.to_owned(),
            version: VERSION,
            reason,
            communicator: format!("{:#x}", self.communicator),
            rank: self.rank,
            size: self.size,
            host: self.host.clone(),
            pid: self.pid,
            clock: ClockInfo {
                id: self.clock.clone(),
                source: source.to_owned(),
                realtime_offset_ns,
            },
            taken_ns: os::monotonic_ns(),
            verdict: self.health.verdict(),
            calls_begun,
            messages_begun,
            launches_begun,
            calls,
            messages,
            launches,
        }
    }
}

/// A communicator's hold on its traces. A signal's thread may have another for a moment; the last words are written by
/// whoever lets go of the communicator, and waits for them.
#[derive(Debug)]
pub(super) struct Kept(Arc<Recording>);

impl std::ops::Deref for Kept {
    type Target = Recording;

    fn deref(&self) -> &Recording {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A rank may never have called again after the others failed.
        self.failed(None);
        if self.on.contains(&TraceEvent::End) {
            self.write(self.trace(Reason::End), 0);
        }
    }
}

/// A signal that writes traces.
struct Caught {
    recordings: Mutex<Vec<Weak<Recording>>>,
    /// Whether a thread waits for it, or cannot.
    asked: AtomicBool,
}

static USR1: Caught = Caught::nobody();
static USR2: Caught = Caught::nobody();

impl Caught {
    const fn nobody() -> Self {
        Self { recordings: Mutex::new(Vec::new()), asked: AtomicBool::new(false) }
    }

    /// From now on the signal writes a trace of `recording` too.
    fn write_on(&'static self, signal: i32, recording: &Arc<Recording>) {
        let mut all = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(recording));
        drop(all);
        if self.asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let waits = os::catch_signal(signal).and_then(|event| {
            let thread = std::thread::Builder::new().name("ringway-trace".to_owned());
            os::without_signals(|| thread.spawn(move || self.serve(&event)))
        });
        if let Err(error) = waits {
            tracing::warn!(
                target: crate::log::COLL,
                rank = u64::from(recording.rank),
                "signal {signal} will write no traces: {error}; see RINGWAY_TRACE_ON"
            );
        }
    }

    fn serve(&self, event: &OwnedFd) {
        let mut times = [0; 8];
        // Ends with the process: the event is never closed.
        while rustix::io::retry_on_intr(|| rustix::io::read(event, &mut times)).is_ok() {
            let all = self.recordings.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for recording in all.iter().filter_map(Weak::upgrade) {
                let number = recording.signals.fetch_add(1, Ordering::Relaxed);
                recording.write(recording.trace(Reason::Signal), number);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::path::PathBuf;
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::Environment;
    use crate::plan::types::{Collective, ReduceOp};
    use crate::recorder::Outcome;
    use crate::testing::{world, world_with};

    /// A folder of one test's own, removed when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ringway-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Self(path)
        }

        fn traces(&self) -> Vec<Trace> {
            let entries = std::fs::read_dir(&self.0).expect("a folder of traces");
            let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            paths.sort();
            let text = |path| std::fs::read_to_string(path).expect("just written");
            paths.iter().map(|path| Trace::parse(&text(path)).expect("a trace")).collect()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn with(settings: &[(&str, &str)]) -> Config {
        let config = Config::load(&Environment::new(settings.iter().copied()));
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        config
    }

    #[test]
    fn calls_and_messages_are_recorded_in_order() {
        world(2, |comm| {
            let other = 1 - comm.rank();
            comm.all_reduce(&[1_f32; 3], &mut [0.0; 3], ReduceOp::Sum).unwrap();
            comm.send_recv(&[1, 2, 3], other, &mut [0; 3], other).unwrap();
            comm.start_all_reduce(vec![1_i32; 5], ReduceOp::Max).unwrap().wait().unwrap();
            let trace = comm.trace();
            assert_eq!((trace.calls_begun, trace.messages_begun), (2, 2));
            let [first, second] = &trace.calls[..] else { panic!("{:?}", trace.calls) };
            assert_eq!(
                (first.collective, first.count, first.bytes),
                (Collective::AllReduce, 3, 12)
            );
            assert_eq!((first.outcome, first.parts, first.queued_ns), (Outcome::Done, 1, None));
            assert!(first.algorithm.is_some());
            let queued = second.queued_ns.unwrap();
            assert!(first.end_ns.unwrap() <= queued && queued <= second.start_ns, "{second:?}");
            assert!(second.end_ns.unwrap() <= trace.taken_ns);
            for message in &trace.messages {
                assert_eq!((message.peer, message.bytes, message.sequence), (other, 3, 0));
                assert!(first.end_ns <= Some(message.start_ns) && message.end_ns <= Some(queued));
            }
            assert_eq!(trace.messages.iter().filter(|message| message.sends).count(), 1);
            assert_eq!(Trace::parse(&trace.text()), Ok(trace));
        });
    }

    #[test]
    fn only_the_last_are_kept_and_without_a_clock_they_have_no_times() {
        for recorder in [0, 100] {
            let config = with(&[("RINGWAY_RECORDER", &recorder.to_string())]);
            world_with(2, &config, |comm| {
                (0..200).for_each(|_| comm.barrier().unwrap());
                let trace = comm.trace();
                let kept = if recorder == 0 { 64 } else { 128 };
                assert_eq!((trace.calls_begun, trace.calls.len()), (200, kept));
                assert_eq!(trace.calls[0].sequence, 200 - kept as u64);
                assert!(trace.calls.iter().all(|call| call.outcome == Outcome::Done));
                assert!(trace.calls.iter().all(|call| (call.start_ns == 0) == (recorder == 0)));
            });
        }
    }

    #[test]
    fn a_call_that_hangs_is_seen_from_another_thread() {
        let meet = Barrier::new(2);
        world(2, |comm| {
            if comm.rank() == 1 {
                meet.wait();
                comm.barrier().unwrap();
                return;
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let limit = Instant::now() + Duration::from_secs(30);
                    let call = loop {
                        let found = comm.trace().calls.pop();
                        if let Some(call) = found.filter(|call| call.waited.is_some()) {
                            break call;
                        }
                        assert!(Instant::now() < limit, "no wait was noted");
                        std::thread::sleep(Duration::from_millis(1));
                    };
                    assert_eq!((call.outcome, call.end_ns), (Outcome::Running, None));
                    assert_eq!(call.waited.unwrap().rank, 1);
                    assert!(call.lanes.iter().any(|(done, all)| done < all), "{call:?}");
                    meet.wait();
                });
                comm.barrier().unwrap();
            });
        });
    }

    #[test]
    fn a_communicator_that_fails_leaves_a_trace_on_every_rank() {
        let place = Place::new("trace-error");
        let config = with(&[("RINGWAY_TRACE_DIR", &place.0.to_string_lossy())]);
        world_with(3, &config, |comm| {
            comm.barrier().unwrap();
            // Refused here, and nothing to write about.
            assert!(comm.all_gather(&[1_u8], &mut [0; 2]).is_err());
            assert!(!place.0.exists(), "a wrong argument breaks nothing");
            comm.barrier().unwrap();
            if comm.rank() == 2 {
                comm.abort("enough");
            }
            let error = comm.barrier().unwrap_err();
            assert_eq!(comm.barrier().unwrap_err(), error);
        });
        let traces = place.traces();
        assert_eq!(traces.iter().map(|trace| trace.rank).collect::<Vec<_>>(), [0, 1, 2]);
        for trace in traces {
            assert_eq!(trace.reason, Reason::Error);
            let verdict = trace.verdict.unwrap();
            assert!(verdict.to_string().contains("enough"), "{verdict}");
            assert_eq!(verdict.culprits()[0].rank, 2);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_changes_nothing() {
        let place = Place::new("trace-file");
        std::fs::write(&place.0, "not a folder").unwrap();
        let inside = place.0.join("in").to_string_lossy().into_owned();
        let config = with(&[("RINGWAY_TRACE_DIR", &inside), ("RINGWAY_TRACE_ON", "error,end")]);
        world_with(2, &config, |comm| {
            comm.barrier().unwrap();
            if comm.rank() == 0 {
                comm.abort("enough");
            }
            let error = comm.barrier().unwrap_err();
            assert!(error.to_string().contains("enough"), "{error}");
            assert!(comm.write_trace(&place.0.join("in")).is_err());
        });
        std::fs::remove_file(&place.0).unwrap();
    }

    #[test]
    fn the_end_of_a_communicator_leaves_a_trace_where_that_is_wished_for() {
        let place = Place::new("trace-end");
        let folder = place.0.to_string_lossy();
        let config = with(&[("RINGWAY_TRACE_DIR", &folder), ("RINGWAY_TRACE_ON", "end")]);
        world_with(2, &config, |comm| comm.barrier().unwrap());
        let traces = place.traces();
        assert_eq!(traces.len(), 2);
        assert!(traces.iter().all(|trace| trace.reason == Reason::End && trace.calls.len() == 1));
        assert_eq!(traces[0].communicator, traces[1].communicator);
    }
}

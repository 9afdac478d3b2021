//! Traces as files. A trace that cannot be written is a warning: it never fails a call, and never holds
//! one up for longer than [`WRITE_WAIT`], however slow or dead the disk is.
//!
//! *Invariant*: a communicator has at most one trace under way, so that a disk that never answers costs one thread.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::trace::Trace;
use crate::os;

/// How long a call that failed waits for its trace to be written.
const WRITE_WAIT: Duration = Duration::from_secs(2);

/// The folder that the traces of a communicator go to.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    turn: Arc<Turn>,
}

impl Folder {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, turn: Arc::default() }
    }

    /// The file of a trace: `number` counts those that this communicator has written before for the
    /// same reason.
    fn file(&self, trace: &Trace, number: u32) -> PathBuf {
        let id = trace.communicator.trim_start_matches("0x");
        let again = if number == 0 { String::new() } else { format!("-{number}") };
        let Trace { rank, reason, .. } = trace;
        self.path.join(format!("ringway-{id}-rank{rank}-{}{again}.json", reason.name()))
    }

    /// Writes a trace in a thread of its own, and waits for it a while. Says where it is, or why not.
    pub(crate) fn write(&self, trace: Trace, number: u32) {
        let path = self.file(&trace, number);
        let (rank, reason) = (trace.rank, trace.reason.name());
        let target = path.clone();
        let written = self.apart(rank, WRITE_WAIT, move || write_file(&target, &trace));
        match written {
            Ok(()) => tracing::info!(
                target: crate::log::COLL,
                rank = u64::from(rank),
                "trace ({reason}) written to {}",
                path.display()
            ),
            Err(why) => tracing::warn!(
                target: crate::log::COLL,
                rank = u64::from(rank),
                "the trace ({reason}) could not be written to {}: {why}; see RINGWAY_TRACE_DIR",
                path.display()
            ),
        }
    }

    /// Does `work` in a thread of its own, when its turn has come, and waits for it: at most `limit` altogether.
    fn apart(
        &self,
        rank: u32,
        limit: Duration,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let began = Instant::now();
        let Some(taken) = Turn::take(&self.turn, limit) else {
            return Err("an earlier one is still being written".to_owned());
        };
        let (sender, receiver) = channel();
        let writer = std::thread::Builder::new().name(format!("ringway-dump-{rank}"));
        let started = os::without_signals(|| {
            writer.spawn(move || {
                let done = work();
                drop(taken);
                // Nobody listens any more where the disk was too slow.
                let _ = sender.send(done);
            })
        });
        started.map_err(|error| error.to_string())?;
        match receiver.recv_timeout(limit.saturating_sub(began.elapsed())) {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("not done within {} s, it may still come", limit.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => Err("the thread that wrote it ended".to_owned()),
        }
    }
}

/// Whose turn it is to write: one trace at a time.
#[derive(Debug, Default)]
struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

/// A turn; over when dropped.
struct Taken(Arc<Turn>);

impl Turn {
    fn take(this: &Arc<Self>, limit: Duration) -> Option<Taken> {
        let taken = this.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = this.free.wait_timeout_while(taken, limit, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken {
            return None;
        }
        *taken = true;
        Some(Taken(Arc::clone(this)))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}

/// Writes a trace to `path`, for its owner's eyes: whole, or not at all. Until then it has a name that nobody else
/// has, and that no link of somebody else's stands for.
pub(crate) fn write_file(path: &Path, trace: &Trace) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut partial = path.as_os_str().to_owned();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    partial.push(format!(".{}-{number}.part", std::process::id()));
    let partial = PathBuf::from(partial);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    let written = file.write_all(trace.text().as_bytes()).and_then(|()| {
        // A full disk may say so only here.
        file.sync_all()
    });
    let written = written.and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&partial);
    }
    written
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn what_a_writer_says_is_passed_on() {
        let folder = Folder::new(PathBuf::new());
        assert_eq!(folder.apart(0, LONG, || Ok(())), Ok(()));
        let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
        let why = folder.apart(0, LONG, full).unwrap_err();
        assert!(why.contains("storage"), "{why}");
        assert_eq!(folder.apart(0, LONG, || Ok(())), Ok(()), "a failure is over");
        let why = folder.apart(0, LONG, || panic!("on purpose")).unwrap_err();
        assert!(why.contains("ended"), "{why}");
        assert_eq!(folder.apart(0, LONG, || Ok(())), Ok(()), "a panic is over");
    }

    #[test]
    fn a_disk_that_never_answers_holds_up_one_trace_for_a_while() {
        let folder = Folder::new(PathBuf::new());
        let (answer, answered) = channel::<()>();
        let late =
            folder.apart(0, SHORT, move || answered.recv_timeout(LONG).map_err(io::Error::other));
        assert!(late.unwrap_err().contains("may still come"));
        // Others are not even begun: each would take a thread for ever.
        let next = folder.apart(0, SHORT, || panic!("begun"));
        assert!(next.unwrap_err().contains("an earlier one"));
        answer.send(()).unwrap();
        assert_eq!(folder.apart(0, LONG, || Ok(())), Ok(()), "its turn comes");
    }

    #[test]
    fn nobody_elses_file_is_written_to() {
        let folder = std::env::temp_dir().join(format!("ringway-dump-{}", std::process::id()));
        let path = folder.join("trace.json");
        let trace = crate::recorder::trace::tests::trace();
        std::thread::scope(|scope| {
            let writers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| write_file(&path, &trace))).collect();
            for writer in writers {
                writer.join().unwrap().expect("each has a name of its own until it is whole");
            }
        });
        assert_eq!(Trace::parse(&fs::read_to_string(&path).unwrap()), Ok(trace));
        let left = fs::read_dir(&folder).unwrap().count();
        let modes = [&folder, &path].map(|path| fs::metadata(path).unwrap().mode() & 0o777);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(left, 1, "nothing is left lying around");
        assert_eq!(modes, [0o700, 0o600], "others read nothing");
    }
}

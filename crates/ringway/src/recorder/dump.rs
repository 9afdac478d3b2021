//! Traces as files. A trace that cannot be written is a warning: it never fails a call, and never holds
//! one up for longer than [`WRITE_WAIT`], however slow or dead the disk is.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::trace::Trace;

/// How long a call that failed waits for its trace to be written.
const WRITE_WAIT: Duration = Duration::from_secs(2);

/// The folder that traces go to.
#[derive(Clone, Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// The file of a trace: `number` counts those that this communicator has written before for the
    /// same reason.
    fn file(&self, trace: &Trace, number: u32) -> PathBuf {
        let id = trace.communicator.trim_start_matches("0x");
        let again = if number == 0 { String::new() } else { format!("-{number}") };
        let Trace { rank, reason, .. } = trace;
        self.0.join(format!("ringway-{id}-rank{rank}-{}{again}.json", reason.name()))
    }

    /// Writes a trace in a thread of its own, and waits for it a while. Says where it is, or why not.
    pub(crate) fn write(&self, trace: Trace, number: u32) {
        let path = self.file(&trace, number);
        let (rank, reason) = (trace.rank, trace.reason.name());
        let (sender, receiver) = channel();
        let target = path.clone();
        let writer = std::thread::Builder::new().name(format!("ringway-dump-{rank}"));
        let started = writer.spawn(move || {
            // Nobody listens any more where the disk was too slow.
            let _ = sender.send(write_file(&target, &trace));
        });
        let outcome = match started {
            Ok(_) => receiver.recv_timeout(WRITE_WAIT),
            Err(error) => Ok(Err(error)),
        };
        let why = match outcome {
            Ok(Ok(())) => {
                tracing::info!(
                    target: crate::log::COLL,
                    rank = u64::from(rank),
                    "trace ({reason}) written to {}",
                    path.display()
                );
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(RecvTimeoutError::Timeout) => {
                format!("not done within {} s, it may still come", WRITE_WAIT.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => "the thread that wrote it ended".to_owned(),
        };
        tracing::warn!(
            target: crate::log::COLL,
            rank = u64::from(rank),
            "the trace ({reason}) could not be written to {}: {why}; see RINGWAY_TRACE_DIR",
            path.display()
        );
    }
}

/// Writes a trace to `path`: whole, or not at all.
pub(crate) fn write_file(path: &Path, trace: &Trace) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.part", std::process::id()));
    let partial = PathBuf::from(partial);
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(trace.text().as_bytes())?;
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

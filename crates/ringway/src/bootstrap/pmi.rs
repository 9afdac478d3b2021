//! The PMI-1 wire protocol, as far as the bootstrap needs it.
//!
//! MPICH's Hydra (and others that set `PMI_FD`) leave each process a socket on which it can publish
//! short texts for the whole job. Rank 0 publishes a [`UniqueId`](super::UniqueId) there, so the job
//! has a random key and finds its root on any host. Lines are `cmd=name key=value …\n`.
//!
//! A process that also starts MPI must leave the socket to MPI: set `RINGWAY_ROOT` there, and
//! it is not touched.
//!
//! *Invariant:* a line longer than [`LINE_MAX_BYTES`] or a wait past the deadline is an error.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::socket;
use crate::error::{Error, ErrorKind, Result};

/// The longest line that is read.
pub const LINE_MAX_BYTES: usize = 8 << 10;
const KEY: &str = "ringway-root";

/// A client of one PMI server.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    pending: Vec<u8>,
    deadline: Instant,
}

impl Client {
    pub(crate) fn new(socket: OwnedFd, deadline: Instant) -> Self {
        Self { socket, pending: Vec::new(), deadline }
    }

    /// Publishes `mine` (rank 0) or fetches what rank 0 published; all ranks must call it.
    pub(crate) fn share(mut self, mine: Option<&str>) -> Result<String> {
        self.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let maxes = self.ask("cmd=get_maxes", "maxes")?;
        let space = self.ask("cmd=get_my_kvsname", "my_kvsname")?;
        let space = value(&space, "kvsname").unwrap_or_default().to_owned();
        if let Some(mine) = mine {
            let longest = value(&maxes, "vallen_max").and_then(|text| text.parse::<usize>().ok());
            if longest.is_some_and(|longest| mine.len() >= longest) {
                return Err(Error::usage(format!(
                    "the PMI server takes values of {} bytes at most, {} are needed; set \
                     RINGWAY_ROOT=host:port instead",
                    longest.unwrap_or_default(),
                    mine.len()
                )));
            }
            let line = format!("cmd=put kvsname={space} key={KEY} value={mine}");
            self.ask(&line, "put_result")?;
        }
        self.ask("cmd=barrier_in", "barrier_out")?;
        let text = match mine {
            Some(mine) => mine.to_owned(),
            None => {
                let answer =
                    self.ask(&format!("cmd=get kvsname={space} key={KEY}"), "get_result")?;
                value(&answer, "value").unwrap_or_default().to_owned()
            }
        };
        // Without this the launcher takes our exit for a crash.
        self.ask("cmd=finalize", "finalize_ack")?;
        Ok(text)
    }

    /// Sends a line and reads the answer, which must be `cmd=expected` with `rc=0` or none.
    fn ask(&mut self, line: &str, expected: &str) -> Result<String> {
        self.send(line)?;
        let answer = self.receive(line)?;
        let failed = value(&answer, "rc").is_some_and(|code| code != "0");
        if failed || value(&answer, "cmd") != Some(expected) {
            return Err(Error::new(
                ErrorKind::Remote,
                format!(
                    "the PMI server answered {answer:?} to {:?}; set RINGWAY_ROOT=host:port to do \
                     without it",
                    line.split(" value=").next().unwrap_or_default()
                ),
            ));
        }
        Ok(answer)
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let text = format!("{line}\n");
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            self.wait(PollFlags::OUT, line)?;
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, bytes, flags) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(lost(errno.into())),
            }
        }
        Ok(())
    }

    fn receive(&mut self, asked: &str) -> Result<String> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.pending.len() > LINE_MAX_BYTES {
                return Err(Error::new(ErrorKind::Remote, "the PMI server sent an endless line"));
            }
            self.wait(PollFlags::IN, asked)?;
            let mut piece = [0; 1024];
            match rustix::io::read(&self.socket, &mut piece) {
                Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.pending.extend_from_slice(&piece[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(lost(errno.into())),
            }
        }
    }

    fn wait(&self, flags: PollFlags, asked: &str) -> Result<()> {
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
        let ready = socket::wait(&mut fds, self.deadline).map_err(lost)?;
        if ready {
            return Ok(());
        }
        let asked = asked.split(' ').next().unwrap_or_default();
        Err(Error::new(
            ErrorKind::Timeout,
            format!("the PMI server did not answer {asked:?} in time; did all ranks start?"),
        ))
    }
}

fn lost(error: io::Error) -> Error {
    Error::system(
        "talk to the PMI server at PMI_FD (is it in use by MPI, or was it closed by an earlier \
         communicator of this process? RINGWAY_ROOT=host:port does without it)",
        error,
    )
}

/// The value of `key=` in a line; pure, and total over arbitrary text.
#[must_use]
pub fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .find_map(|(name, value)| (name == key).then_some(value))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::{Arc, Barrier, Mutex};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A server for one rank; the store and the barrier are shared.
    fn serve(stream: UnixStream, store: &Mutex<Option<String>>, barrier: &Barrier) {
        let mut writer = stream.try_clone().unwrap();
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            let answer = match value(&line, "cmd").unwrap() {
                "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
                "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
                "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_4711_0".into(),
                "put" => {
                    assert_eq!(value(&line, "kvsname"), Some("kvs_4711_0"));
                    *store.lock().unwrap() = value(&line, "value").map(str::to_owned);
                    "cmd=put_result rc=0 msg=success".into()
                }
                "barrier_in" => {
                    barrier.wait();
                    "cmd=barrier_out".into()
                }
                "get" => match &*store.lock().unwrap() {
                    Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                    None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
                },
                "finalize" => "cmd=finalize_ack".into(),
                other => panic!("unexpected {other}"),
            };
            writer.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    }

    fn share(publish: Option<&'static str>) -> Vec<Result<String>> {
        let (store, barrier) = (Arc::new(Mutex::new(None)), Arc::new(Barrier::new(3)));
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let (store, barrier) = (Arc::clone(&store), Arc::clone(&barrier));
                let server = thread::spawn(move || serve(theirs, &store, &barrier));
                let client = thread::spawn(move || {
                    let deadline = Instant::now() + Duration::from_secs(20);
                    let mine = if rank == 0 { publish } else { None };
                    Client::new(ours.into(), deadline).share(mine)
                });
                (server, client)
            })
            .collect();
        ranks
            .into_iter()
            .map(|(server, client)| {
                let outcome = client.join().unwrap();
                server.join().unwrap();
                outcome
            })
            .collect()
    }

    #[test]
    fn all_ranks_get_what_rank_0_published() {
        for text in share(Some("0a1b")) {
            assert_eq!(text.unwrap(), "0a1b");
        }
    }

    #[test]
    fn a_missing_value_is_the_servers_word() {
        let error = share(None).remove(1).unwrap_err();
        assert!(error.to_string().contains("key_not_found"), "{error}");
    }

    #[test]
    fn a_silent_server_is_a_timeout() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = Client::new(ours.into(), deadline).share(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }
}

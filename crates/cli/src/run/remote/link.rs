//! The launcher's connection to the agent of one host: the process of ssh, its pipes and the threads that read them.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::ssh;
use super::wire::{Frame, GREETING, Order, PROTOCOL, Report, Stream, VERSION, decode};
use crate::output;
use crate::run::args::RunArgs;
use crate::run::forward::Label;
use crate::run::hosts::Share;
use crate::this;

/// A login shell may print so much before the agent greets.
const PREAMBLE_BYTES_MAX: u64 = 64 * 1024;
/// So much of what ssh said is kept.
const SAID_BYTES_MAX: usize = 4096;
/// How long ssh may take to end when it was hung up on.
const HANG_UP_PATIENCE: Duration = Duration::from_secs(3);

/// How far a host is.
#[derive(Debug)]
pub(super) enum Phase {
    Connecting,
    Preparing,
    Ready {
        addresses: Vec<IpAddr>,
        port: u16,
    },
    Failed(String),
    /// No rank of it is left, or it is out of reach.
    Ended,
}

impl Phase {
    /// Whether an answer is still to come.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Connecting | Self::Preparing)
    }
}

/// Something that was heard from a host.
pub(super) struct Event {
    /// Its place among the hosts.
    pub(super) host: usize,
    pub(super) what: What,
}

pub(super) enum What {
    Greeted {
        protocol: u32,
        version: String,
    },
    Report(Report),
    /// The connection ended, with the reason where it is no plain end.
    Closed(String),
    /// This process's own output cannot be written.
    OutputGone(io::Error),
}

/// Orders to an agent; closed for all who hold them.
#[derive(Clone, Debug)]
pub(super) struct Orders(Arc<Mutex<Option<ChildStdin>>>);

impl Orders {
    pub(super) fn send(&self, order: &Order) -> io::Result<()> {
        self.write(&Frame::control(order)?)
    }

    /// Input for rank 0; none is the end.
    pub(super) fn input(&self, bytes: &[u8]) -> io::Result<()> {
        self.write(&Frame::Input(bytes.to_vec()))
    }

    fn write(&self, frame: &Frame) -> io::Result<()> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(pipe) => frame.write(pipe),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// One host. Dropping it hangs up.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) share: Share,
    pub(super) orders: Orders,
    pub(super) phase: Phase,
    child: Child,
    /// What ssh and the agent wrote to standard error.
    said: Arc<Mutex<String>>,
    /// The agent's program, for messages.
    path: String,
}

impl Link {
    /// Starts the agent; `tell` hears of host number `at`.
    pub(super) fn open(
        args: &RunArgs,
        share: &Share,
        size: u32,
        at: usize,
        tell: Sender<Event>,
    ) -> anyhow::Result<Self> {
        let path = match &args.remote_path {
            Some(path) => path.clone(),
            None => this::again()?.0,
        };
        let mut command = ssh::command(args, &share.host)?;
        let mut child = command.spawn().with_context(|| {
            let program = command.get_program().display();
            format!("cannot start {program}; install openssh-client, or name another: --ssh")
        })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let link = Self {
            share: share.clone(),
            orders: Orders(Arc::new(Mutex::new(pipes.0))),
            phase: Phase::Connecting,
            child,
            said: Arc::default(),
            path: path.display().to_string(),
        };
        if let Some(stderr) = pipes.2 {
            let said = Arc::clone(&link.said);
            let keep = move || keep_last(stderr, &said);
            thread::Builder::new()
                .name("ssh".to_owned())
                .spawn(keep)
                .context("starting a thread")?;
        }
        if let Some(stdout) = pipes.1 {
            let ear = Ear { at, tell, labels: labels(args, share, size) };
            let read = move || ear.read(stdout);
            thread::Builder::new()
                .name("host".to_owned())
                .spawn(read)
                .context("starting a thread")?;
        }
        Ok(link)
    }

    /// Whether the agent speaks as this program does.
    pub(super) fn agrees(&self, protocol: u32, version: &str) -> Result<(), String> {
        if protocol == PROTOCOL && version == VERSION {
            return Ok(());
        }
        Err(format!(
            "host {}: {} is ringway {version} there, this is {VERSION}; install the same version there, or name it: \
             --remote-path",
            self.share.host, self.path
        ))
    }

    /// Why the agent did not answer.
    pub(super) fn explain(&mut self) -> String {
        let status = self.end_of_ssh();
        ssh::explain(&self.share.host, &self.path, status, &self.what_was_said())
    }

    /// What is known of a host that was lost while its ranks ran.
    pub(super) fn lost(&mut self, why: &str) -> String {
        let status = self.end_of_ssh();
        let said = ssh::last_lines(&self.what_was_said());
        let how =
            status.map_or_else(|| why.to_owned(), |status| format!("ssh ended with {status}"));
        let how = if said.is_empty() { how } else { format!("{how}: {said}") };
        let Share { host, first, ranks } = &self.share;
        let ranks = match ranks {
            1 => format!("rank {first}"),
            _ => format!("ranks {first} to {}", first + ranks - 1),
        };
        format!("lost host {host} with {ranks} ({how}); see whether it is up")
    }

    fn what_was_said(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How ssh ended, where it does soon.
    fn end_of_ssh(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + Duration::from_millis(500);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    // Its last words may still be on their way through the thread.
                    thread::sleep(Duration::from_millis(20));
                    return Some(status);
                }
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
                _ => return None,
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.orders.close();
        let deadline = Instant::now() + HANG_UP_PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _already_gone = self.child.kill();
                let _reaped = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What stands before the lines of each rank of a host, on standard output and on standard error.
fn labels(args: &RunArgs, share: &Share, size: u32) -> BTreeMap<u32, [String; 2]> {
    let colours = [output::stdout_has_colour(), output::stderr_has_colour()];
    // Without the user's name.
    let host = share.host.rsplit('@').next().unwrap_or_default();
    let of = |rank| {
        let label = Label::with_host(rank, size, host);
        let texts = colours.map(|colour| label.text(colour).to_owned());
        (rank, if args.no_prefix { [String::new(), String::new()] } else { texts })
    };
    (share.first..share.first + share.ranks).map(of).collect()
}

/// Reads what an agent says.
struct Ear {
    at: usize,
    tell: Sender<Event>,
    labels: BTreeMap<u32, [String; 2]>,
}

impl Ear {
    fn read(self, stdout: ChildStdout) {
        let what = match self.listen(BufReader::new(stdout)) {
            Ok(()) => What::Closed("its agent ended".to_owned()),
            Err(Deaf::Read(error)) => What::Closed(error.to_string()),
            Err(Deaf::Write(error)) => What::OutputGone(error),
        };
        self.say(what);
    }

    fn say(&self, what: What) {
        // The launcher may be done.
        let _ = self.tell.send(Event { host: self.at, what });
    }

    fn listen(&self, mut from: BufReader<ChildStdout>) -> Result<(), Deaf> {
        let Some((protocol, version)) = greeting(&mut from).map_err(Deaf::Read)? else {
            return Ok(());
        };
        self.say(What::Greeted { protocol, version });
        while let Some(frame) = Frame::read(&mut from).map_err(Deaf::Read)? {
            match frame {
                Frame::Control(body) => self.say(What::Report(decode(&body).map_err(Deaf::Read)?)),
                Frame::Output { stream, rank, bytes } => {
                    let labels = self.labels.get(&rank);
                    let [out, err] = labels.ok_or_else(|| {
                        Deaf::Read(io::Error::other(format!(
                            "output of rank {rank}, which is not there"
                        )))
                    })?;
                    let written = match stream {
                        Stream::Out => output::stdout_bytes(&[out.as_bytes(), &bytes].concat()),
                        Stream::Err => output::stderr_bytes(&[err.as_bytes(), &bytes].concat()),
                    };
                    written.map_err(Deaf::Write)?;
                }
                Frame::Input(_) => {
                    return Err(Deaf::Read(io::Error::other("an agent sends no input")));
                }
            }
        }
        Ok(())
    }
}

/// Why reading ended before the end.
enum Deaf {
    Read(io::Error),
    Write(io::Error),
}

/// Protocol and version of the agent; `None` when it never greets.
fn greeting(from: &mut impl io::BufRead) -> io::Result<Option<(u32, String)>> {
    let mut preamble = from.take(PREAMBLE_BYTES_MAX);
    let mut line = Vec::new();
    while preamble.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        let words = text.find(GREETING).and_then(|at| text[at..].strip_suffix('\n'));
        let mut words = words.unwrap_or_default().split_whitespace().skip(1);
        if let Some((protocol, version)) = words.next().zip(words.next())
            && let Ok(protocol) = protocol.parse()
        {
            return Ok(Some((protocol, version.to_owned())));
        }
        line.clear();
    }
    Ok(None)
}

/// Keeps the last of what a stream says.
fn keep_last(mut stream: impl Read, said: &Mutex<String>) {
    let mut piece = [0; 1024];
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.push_str(&String::from_utf8_lossy(&piece[..length]));
        let mut cut = said.len().saturating_sub(SAID_BYTES_MAX);
        while !said.is_char_boundary(cut) {
            cut += 1;
        }
        said.drain(..cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_login_shell_prints_is_passed_over() {
        let text = format!("Welcome!\nno newline{GREETING} 1 0.1.0\nrest");
        let mut from = text.as_bytes();
        assert_eq!(greeting(&mut from).unwrap(), Some((1, "0.1.0".to_owned())));
        assert_eq!(from, b"rest");
        assert_eq!(greeting(&mut &b"nothing of the kind"[..]).unwrap(), None);
        let endless = vec![b'x'; 200_000];
        assert_eq!(greeting(&mut endless.as_slice()).unwrap(), None);
    }

    #[test]
    fn only_the_last_words_are_kept() {
        let said = Mutex::default();
        keep_last(&[b"x".repeat(9000), "ä end".into()].concat()[..], &said);
        let said = said.into_inner().unwrap();
        assert!(said.len() <= SAID_BYTES_MAX && said.ends_with("ä end"), "{said}");
    }
}

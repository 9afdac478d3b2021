//! Who answers: one thread, over HTTP.
//!
//! It takes nothing from an asker but the first line of a request. Askers are read from and written to as they are
//! ready, side by side: one that is slow, or says nothing, keeps nobody waiting.
//!
//! *Invariant*: an asker, whatever it sends or does not send, takes a bounded time and memory; when all places are
//! taken the oldest asker goes.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::os;

/// How long an asker may take to ask, and then to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest request.
const REQUEST_BYTES_MOST: usize = 8 << 10;

/// Askers at a time.
const ASKERS_MOST: usize = 64;

/// How long nobody is let in where that failed.
const REST: Duration = Duration::from_millis(100);

/// What metrics are, as HTTP has it.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Where askers come in.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// A thread that answers until it is dropped.
#[derive(Debug)]
pub struct Server {
    /// Rung when it is to end.
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers those who come in at `listener` with what `tell` says at that moment; while it thinks, nobody else is
    /// answered.
    ///
    /// # Errors
    /// The kernel has no thread or no descriptor left.
    pub fn open(
        listener: Listener,
        tell: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Self> {
        Self::open_as(listener, METRICS, tell)
    }

    /// The same with something else than metrics, which `kind` names as HTTP does: `text/html; charset=utf-8`.
    ///
    /// # Errors
    /// The kernel has no thread or no descriptor left.
    pub fn open_as(
        listener: Listener,
        kind: &'static str,
        tell: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Self> {
        match &listener {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let end = Arc::new(rustix::event::eventfd(0, flags)?);
        let rung = Arc::clone(&end);
        let builder = std::thread::Builder::new().name("ringway-metrics".to_owned());
        let told = Told { kind, tell: Box::new(tell) };
        let thread = os::without_signals(|| builder.spawn(move || serve(&listener, &rung, &told)))?;
        Ok(Self { end, thread: Some(thread) })
    }

    /// Whether it still answers; it does not after `tell` panicked.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only if the counter is full: then it has been rung.
        let _rung = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// What is told.
struct Told {
    kind: &'static str,
    tell: Box<dyn Fn() -> String + Send>,
}

/// A connection.
trait Stream: Read + Write + AsFd + Send + fmt::Debug {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// Somebody who asks.
#[derive(Debug)]
struct Asker {
    stream: Box<dyn Stream>,
    /// What it said so far.
    said: Vec<u8>,
    /// What it is told, once it has asked, and how much of that it took.
    reply: Option<(Vec<u8>, usize)>,
    until: Instant,
}

impl Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Asker> {
        let stream: Box<dyn Stream> = match self {
            Self::Tcp(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            Self::Unix(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        };
        Ok(Asker { stream, said: Vec::new(), reply: None, until: Instant::now() + PATIENCE })
    }
}

fn serve(listener: &Listener, end: &OwnedFd, told: &Told) {
    let mut askers: Vec<Asker> = Vec::new();
    loop {
        let now = Instant::now();
        askers.retain(|asker| asker.until > now);
        let mut fds = vec![
            PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        fds.extend(askers.iter().map(|asker| {
            let way = if asker.reply.is_some() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(asker.stream.as_fd(), way)
        }));
        let wait = askers.iter().map(|asker| asker.until.saturating_duration_since(now)).min();
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let woken = rustix::event::poll(&mut fds, wait.as_ref());
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        match woken {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            // No memory.
            Err(_) => {
                std::thread::sleep(REST);
                continue;
            }
        }
        let mut ready_askers = ready[2..].iter();
        // One that does not listen to the end is its own loss.
        askers.retain_mut(|asker| {
            let is_ready = ready_askers.next().copied().unwrap_or(false);
            !is_ready || asker.go_on(told).unwrap_or(false)
        });
        if ready[1] {
            match listener.accept() {
                Ok(asker) => {
                    if askers.len() == ASKERS_MOST {
                        askers.remove(0);
                    }
                    askers.push(asker);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // No descriptors, or no memory; or the asker is gone already.
                Err(_) => std::thread::sleep(REST),
            }
        }
    }
}

impl Asker {
    /// Reads or writes what is possible now; whether there is more to do.
    fn go_on(&mut self, told: &Told) -> io::Result<bool> {
        if self.reply.is_none() {
            let Some(line) = self.asked()? else { return Ok(true) };
            self.reply = Some((reply(&line, told), 0));
            self.until = Instant::now() + PATIENCE;
        }
        let Some((reply, sent)) = &mut self.reply else { return Ok(true) };
        while *sent < reply.len() {
            match self.stream.write(&reply[*sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(more) => *sent += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The first line of the request, once all of it is there.
    fn asked(&mut self) -> io::Result<Option<String>> {
        let mut room = [0; 1024];
        while !self.said.windows(4).any(|end| end == b"\r\n\r\n") {
            if self.said.len() > REQUEST_BYTES_MOST {
                return Err(ErrorKind::InvalidData.into());
            }
            match self.stream.read(&mut room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(got) => self.said.extend_from_slice(&room[..got]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let line = self.said.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8(line.to_vec());
        line.map(Some).map_err(|_| ErrorKind::InvalidData.into())
    }
}

fn reply(line: &str, told: &Told) -> Vec<u8> {
    let (status, kind, body) = match wanted(line) {
        Ok(()) => ("200 OK", told.kind, (told.tell)()),
        Err(status) => (status, "text/plain; charset=utf-8", format!("{status}\n")),
    };
    let bytes = body.len();
    let mut reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n"
    );
    if !line.starts_with("HEAD ") {
        reply.push_str(&body);
    }
    reply.into_bytes()
}

/// Whether a request is for what is told; else the status it gets.
fn wanted(line: &str) -> Result<(), &'static str> {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !matches!(method, "GET" | "HEAD") {
        return Err("405 Method Not Allowed");
    }
    match target.split('?').next() {
        Some("/metrics" | "/") => Ok(()),
        _ => Err("404 Not Found"),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn server(tell: impl Fn() -> String + Send + 'static) -> (Server, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        (Server::open(Listener::Tcp(listener), tell).expect("a thread"), address)
    }

    fn ask(address: std::net::SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).expect("somebody serves");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("somebody listens");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    }

    #[test]
    fn those_who_say_nothing_keep_nobody_waiting() {
        let (server, address) = server(|| "x 1\n".to_owned());
        // More than there are places, some with half a request.
        let mut silent: Vec<TcpStream> =
            (0..2 * ASKERS_MOST).map(|_| TcpStream::connect(address).unwrap()).collect();
        for half in silent.iter_mut().step_by(3) {
            let _sent_away = half.write_all(b"GET /metrics HT");
        }
        for _ in 0..10 {
            assert!(ask(address).ends_with("\r\n\r\nx 1\n"));
        }
        assert!(server.is_serving());
    }

    #[test]
    fn a_long_answer_reaches_who_reads_slowly_and_waits_for_none_who_does_not() {
        let long = "a".repeat(32 << 20);
        let (_server, address) = server(move || long.clone());
        let mut lazy = TcpStream::connect(address).unwrap();
        lazy.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(ask(address).len() > 32 << 20);
    }

    #[test]
    fn it_ends_while_somebody_asks() {
        let (server, address) = server(String::new);
        let _silent = TcpStream::connect(address).unwrap();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }
}

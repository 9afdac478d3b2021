//! Who answers: one thread, over HTTP.
//!
//! It takes nothing from an asker but the first line of a request and whom it asked for. Askers are read from and written to as they are
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

/// How long an asker may take to ask, and then to take more of the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long it may take the whole answer.
const LONGEST: Duration = Duration::from_secs(60);

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
        Self::start(listener, METRICS, false, tell)
    }

    /// The same with a page for browsers instead of metrics, of the `kind` that HTTP has a name for:
    /// `text/html; charset=utf-8`. Where only this machine reaches the port, it is told to those alone who asked for
    /// this machine: any site can send a browser here by a name of its own.
    ///
    /// # Errors
    /// The kernel has no thread or no descriptor left.
    pub fn open_as(
        listener: Listener,
        kind: &'static str,
        tell: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Self> {
        let is_local = match &listener {
            Listener::Tcp(listener) => listener.local_addr()?.ip().is_loopback(),
            Listener::Unix(_) => false,
        };
        Self::start(listener, kind, is_local, tell)
    }

    fn start(
        listener: Listener,
        kind: &'static str,
        is_local: bool,
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
        let told = Told { kind, is_local, tell: Box::new(tell) };
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
    /// Only for those who ask for this machine.
    is_local: bool,
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
    /// Whatever it does, it goes then.
    end: Instant,
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
        let until = Instant::now() + PATIENCE;
        Ok(Asker { stream, said: Vec::new(), reply: None, until, end: until })
    }
}

fn serve(listener: &Listener, end: &OwnedFd, told: &Told) {
    let mut askers: Vec<Asker> = Vec::new();
    loop {
        let now = Instant::now();
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
        // One that does not listen to the end is its own loss; one that is ready has not kept anybody waiting.
        askers.retain_mut(|asker| {
            if ready_askers.next().copied().unwrap_or(false) {
                asker.go_on(told).unwrap_or(false)
            } else {
                asker.until > Instant::now()
            }
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
            let Some(asked) = self.asked()? else { return Ok(Instant::now() < self.until) };
            self.reply = Some((reply(&asked, told), 0));
            self.end = Instant::now() + LONGEST;
        }
        let Some((reply, sent)) = &mut self.reply else { return Ok(true) };
        self.until = self.end.min(Instant::now() + PATIENCE);
        while *sent < reply.len() {
            match self.stream.write(&reply[*sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(more) => *sent += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Instant::now() < self.end);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// What is asked, once all of it is there.
    fn asked(&mut self) -> io::Result<Option<Asked>> {
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
        let said = std::str::from_utf8(&self.said).map_err(|_| ErrorKind::InvalidData)?;
        let mut lines = said.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let mut fields = lines.filter_map(|line| line.split_once(':'));
        let host = fields.find(|(name, _)| name.eq_ignore_ascii_case("host"));
        Ok(Some(Asked { line, host: host.map(|(_, host)| host.trim().to_owned()) }))
    }
}

/// A request, as far as it matters.
struct Asked {
    /// `GET / HTTP/1.1`.
    line: String,
    /// Whom it asked for.
    host: Option<String>,
}

/// Whether this machine was asked for, by no name that somebody else may have given it.
fn is_here(host: &str) -> bool {
    let bare = |host: &str| host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    let name = host.rsplit_once(':').filter(|(name, _)| !bare(host) || name.ends_with(']'));
    let name = name.map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost") || bare(name)
}

fn reply(asked: &Asked, told: &Told) -> Vec<u8> {
    let line = asked.line.as_str();
    let foreign = told.is_local && asked.host.as_deref().is_some_and(|host| !is_here(host));
    let wanted = if foreign { Err("403 Forbidden") } else { wanted(line, told.kind) };
    let (status, kind, body) = match wanted {
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
fn wanted(line: &str, kind: &str) -> Result<(), &'static str> {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !matches!(method, "GET" | "HEAD") {
        return Err("405 Method Not Allowed");
    }
    match target.split('?').next() {
        Some("/") => Ok(()),
        Some("/metrics") if kind == METRICS => Ok(()),
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
        say(address, "GET /metrics HTTP/1.1\r\n\r\n")
    }

    fn say(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("somebody serves");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream.write_all(request.as_bytes()).expect("somebody listens");
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
    fn who_takes_an_answer_bit_by_bit_gets_all_of_it() {
        let bytes = 24 << 20;
        let long = "a".repeat(bytes);
        let (_server, address) = server(move || long.clone());
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let (mut room, mut got) = (vec![0; 256 << 10], 0);
        let began = Instant::now();
        loop {
            let more = stream.read(&mut room).expect("it goes on");
            got += more;
            if more == 0 {
                break;
            }
            // In all longer than one pause may be.
            if began.elapsed() < PATIENCE + PATIENCE / 2 {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        assert!(got > bytes);
    }

    #[test]
    fn a_page_is_told_to_those_who_ask_for_this_machine() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tell = || "page".to_owned();
        let _server = Server::open_as(Listener::Tcp(listener), "text/html", tell).unwrap();
        for (host, status) in [
            (String::new(), "200"),
            (format!("Host: {address}\r\n"), "200"),
            ("hOST: localhost:1\r\n".to_owned(), "200"),
            ("Host: [::1]:80\r\n".to_owned(), "200"),
            ("Host: evil.example\r\n".to_owned(), "403"),
            ("Accept: a:b\r\nHost: 127.0.0.1.evil.example:80\r\n".to_owned(), "403"),
        ] {
            let text = say(address, &format!("GET / HTTP/1.1\r\n{host}\r\n"));
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {text}");
        }
        assert!(say(address, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        for host in ["localhost", "LocalHost:1", "127.0.0.1", "[::1]", "::1", "10.0.0.1:80"] {
            assert!(is_here(host), "{host}");
        }
        for host in ["localhost.evil.example", "evil", "evil:80", "[evil]:80", ""] {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    fn it_ends_while_somebody_asks() {
        let (server, address) = server(String::new);
        let _silent = TcpStream::connect(address).unwrap();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }
}

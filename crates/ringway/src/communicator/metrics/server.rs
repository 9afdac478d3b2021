//! Who tells it: one thread of the process, which answers one asker at a time, over HTTP.
//!
//! It is there for as long as communicators are, and takes nothing from an asker but the first line of a request.
//!
//! *Invariant*: an asker, whatever it sends or does not send, takes a bounded time and memory, and nothing of the job's.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::{Metered, text};
use crate::config::MetricsPlace;
use crate::os;

/// Ports that are tried, from the one asked for on: as many processes of a host can be watched.
const PORTS: u16 = 256;

/// How long an asker may take, to ask and to be answered.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest request.
const REQUEST_BYTES_MOST: usize = 8 << 10;

/// How long nobody is let in where that failed.
const REST: Duration = Duration::from_millis(100);

/// The servers of this process, by the place asked for.
static SERVERS: Mutex<Vec<(MetricsPlace, Weak<Server>)>> = Mutex::new(Vec::new());

/// A place at which metrics are served.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
    address: String,
    /// What is left of it in the file system.
    path: Option<PathBuf>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    all: Mutex<Vec<Weak<Metered>>>,
    /// Who is being answered.
    asker: Mutex<Option<Box<dyn Asker>>>,
    /// Rung when the server ends.
    end: OwnedFd,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Somebody who asks.
trait Asker: Read + Write + Send + fmt::Debug {
    fn limit(&self, left: Duration) -> io::Result<()>;

    /// Another handle of the same connection.
    fn again(&self) -> io::Result<Box<dyn Asker>>;

    /// Ends the connection, also while another thread reads or writes.
    fn end(&self);
}

impl Asker for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }

    fn again(&self) -> io::Result<Box<dyn Asker>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn end(&self) {
        let _ended_already = self.shutdown(Shutdown::Both);
    }
}

impl Asker for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }

    fn again(&self) -> io::Result<Box<dyn Asker>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn end(&self) {
        let _ended_already = self.shutdown(Shutdown::Both);
    }
}

impl Server {
    /// The one at this place, which is made where there is none.
    pub(super) fn at(place: &MetricsPlace) -> io::Result<Arc<Self>> {
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|(_, server)| server.strong_count() > 0);
        let there = servers.iter().filter(|(other, _)| other == place);
        if let Some(server) = there.filter_map(|(_, server)| server.upgrade()).next() {
            return Ok(server);
        }
        let server = Arc::new(Self::open(place)?);
        servers.push((place.clone(), Arc::downgrade(&server)));
        Ok(server)
    }

    fn open(place: &MetricsPlace) -> io::Result<Self> {
        let (listener, address, path) = match place {
            MetricsPlace::Tcp(address) => {
                let listener = listen(address.ip(), address.port())?;
                let address: SocketAddr = listener.local_addr()?;
                (Listener::Tcp(listener), format!("http://{address}/metrics"), None)
            }
            MetricsPlace::Unix(pattern) => {
                let path = PathBuf::from(crate::log::expanded(pattern));
                let address = format!("unix:{}", path.display());
                (Listener::Unix(listen_unix(&path)?), address, Some(path))
            }
        };
        let end = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { all: Mutex::default(), asker: Mutex::default(), end });
        let served = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("ringway-metrics".to_owned());
        let thread = os::without_signals(|| builder.spawn(move || served.serve(&listener)))?;
        Ok(Self { shared, address, path, thread: Some(thread) })
    }

    /// Where it is, for people.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Tells also of this communicator.
    pub(super) fn add(&self, metered: &Arc<Metered>) {
        let mut all = self.shared.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(metered));
    }
}

/// Lets go of a server; nobody opens the same place before it has ended, if this was the last to need it.
pub(super) fn release(server: Arc<Server>) {
    let _servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    drop(server);
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only if the counter is full: then it has been rung.
        let _rung = rustix::io::write(&self.shared.end, &1_u64.to_ne_bytes());
        let asker = self.shared.asker.lock().unwrap_or_else(PoisonError::into_inner);
        asker.iter().for_each(|asker| asker.end());
        drop(asker);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
        if let Some(path) = &self.path {
            let _gone = std::fs::remove_file(path);
        }
    }
}

/// Listens at the first port that is free.
fn listen(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let mut taken = None;
    for port in (port..=u16::MAX).take(usize::from(PORTS)) {
        match TcpListener::bind((address, port)) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => taken = Some(error),
            Err(error) => return Err(error),
        }
    }
    let why = format!("{PORTS} ports of {address} from {port} on are taken");
    Err(taken
        .map_or_else(|| io::Error::other(why.clone()), |e| io::Error::new(e.kind(), why.clone())))
}

/// Listens at a socket that this user alone may open.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let listener = match UnixListener::bind(path) {
        // One that nobody listens at was left by a process that is gone.
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path) => {
            std::fs::remove_file(path).map_err(named)?;
            UnixListener::bind(path).map_err(named)?
        }
        outcome => outcome.map_err(named)?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(named)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether a socket has nobody behind it.
fn is_left(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

impl Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Asker>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept()?.0),
            Self::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }
}

impl Shared {
    fn serve(&self, listener: &Listener) {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.end.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            ];
            let woken = rustix::event::poll(&mut fds, None);
            if !fds[0].revents().is_empty() {
                return;
            }
            if woken.is_err() {
                continue;
            }
            match listener.accept() {
                // One that does not listen to the end is its own loss.
                Ok(asker) => {
                    let _lost = self.answer(asker);
                    self.keep(None);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // No descriptors, or no memory.
                Err(_) => std::thread::sleep(REST),
            }
        }
    }

    /// Who can be sent away when the server ends.
    fn keep(&self, asker: Option<Box<dyn Asker>>) {
        *self.asker.lock().unwrap_or_else(PoisonError::into_inner) = asker;
    }

    fn is_over(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.end.as_fd(), PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn answer(&self, mut asker: Box<dyn Asker>) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        self.keep(Some(asker.again()?));
        // Whoever ends the server rings first, and then looks whom to send away.
        if self.is_over() {
            return Ok(());
        }
        let Some(line) = request(&mut *asker, until)? else { return Ok(()) };
        let (status, kind, body) = match wanted(&line) {
            Ok(()) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", self.text()),
            Err(status) => (status, "text/plain; charset=utf-8", format!("{status}\n")),
        };
        let bytes = body.len();
        let mut reply = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n"
        );
        if !line.starts_with("HEAD ") {
            reply.push_str(&body);
        }
        let mut rest = reply.as_bytes();
        while !rest.is_empty() {
            asker.limit(left(until)?)?;
            match asker.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn text(&self) -> String {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all: Vec<Arc<Metered>> = all.iter().filter_map(Weak::upgrade).collect();
        text::text(&all)
    }
}

/// The first line of a request, once all of it is there; nothing of one that is none.
fn request(asker: &mut dyn Asker, until: Instant) -> io::Result<Option<String>> {
    let mut said = Vec::new();
    let mut room = [0; 1024];
    while !said.windows(4).any(|end| end == b"\r\n\r\n") {
        if said.len() > REQUEST_BYTES_MOST {
            return Ok(None);
        }
        asker.limit(left(until)?)?;
        match asker.read(&mut room) {
            Ok(0) => return Ok(None),
            Ok(got) => said.extend_from_slice(&room[..got]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let line = said.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8(line.to_vec()).ok())
}

/// Whether a request is for the metrics; else the status it gets.
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

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

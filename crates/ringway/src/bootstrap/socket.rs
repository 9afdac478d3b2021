//! Sockets as the bootstrap uses them: non-blocking, close-on-exec, waited for with a deadline.
//!
//! *Invariant:* no function here blocks without a deadline.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::interrupt;

/// Connections the kernel queues for us: every rank of a large job may knock at the same moment.
const BACKLOG: i32 = 4096;

/// Waits until one of `fds` is ready (`true`) or the deadline passes (`false`). An error where the caller wants out.
pub(crate) fn wait(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<bool> {
    let mut left = deadline.saturating_duration_since(Instant::now());
    if interrupt::is_asked() {
        while left > interrupt::EVERY {
            if interrupt::wanted() {
                return Err(io::Error::other("interrupted"));
            }
            if poll_for(fds, interrupt::EVERY)? {
                return Ok(true);
            }
            left = deadline.saturating_duration_since(Instant::now());
        }
        // Also where waits are short, but many.
        if interrupt::wanted() {
            return Err(io::Error::other("interrupted"));
        }
    }
    poll_for(fds, left)
}

fn poll_for(fds: &mut [PollFd<'_>], left: Duration) -> io::Result<bool> {
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Binds a listener on `port` (0: any) of one address, or of every interface: IPv6 and IPv4 through
/// one dual-stack socket where the kernel has IPv6, plain IPv4 otherwise.
pub(crate) fn listen(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    if let Some(address) = address {
        return listen_at(SocketAddr::new(address, port));
    }
    match listen_at(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            listen_at(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
        }
        outcome => outcome,
    }
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = open(&address)?;
    if let SocketAddr::V6(v6) = &address {
        sockopt::set_ipv6_v6only(&socket, !v6.ip().is_unspecified())?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Starts to connect, from an address of this host if one is given; the socket is writable once
/// the connection is up or has failed.
pub(crate) fn start_connect(address: &SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = open(address)?;
    if let Some(from) = from {
        rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    }
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno.into()),
    }
}

/// How a connection that was started ended: `None` while it is still under way.
pub(crate) fn connect_outcome(stream: &TcpStream) -> Option<io::Result<()>> {
    match sockopt::socket_error(stream) {
        Ok(Ok(())) => match stream.peer_addr() {
            Ok(_) => Some(Ok(())),
            Err(_) => None,
        },
        Ok(Err(errno)) | Err(errno) => Some(Err(errno.into())),
    }
}

/// Settings of every established bootstrap connection.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    // A host that disappears without a word is noticed within about two minutes.
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    // While something is on its way TCP does not ask: then it is noticed by that not being acknowledged.
    sockopt::set_tcp_user_timeout(stream, 120_000)?;
    Ok(())
}

fn open(address: &SocketAddr) -> io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(ipproto::TCP),
    )?)
}

/// Words for a connection error, as an operator reads them in a log.
pub(crate) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::TimedOut => "timed out".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        _ => error.to_string(),
    }
}

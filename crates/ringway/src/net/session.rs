//! Both sides of a measurement, from the first word to the last.
//!
//! ```text
//! client                                     server
//! Hello (the test)                      ──►
//!                                       ◄──  Welcome (its end)          or Refused
//! Connect (its end)                     ──►
//!                                       ◄──  Connected
//! Start (bytes, count)                  ──►                             a few times for each size
//!                                       ◄──  Started
//! … messages …                          ◄─►  … messages …
//! Finished                              ──►
//!                                       ◄──  Measured (what came is right)
//! ```

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::bandwidth::{Flow, Running};
use super::buffer::BufferPlace;
use super::control::{ANSWER, Control, End, Message, VERSION};
use super::latency::Player;
use super::port::{Endpoint, Peer, random};
use super::stream::Streams;
use super::test::{Bandwidth, Kind, Latency, Operation, Row, Side, Test, Transport};
use crate::config::RdmaSettings;
use crate::error::{Error, ErrorKind, Result};

/// The longest measurement; a host that dies in it is noticed by the kernel.
const LONG: Duration = Duration::from_secs(4 * 3600);
/// Messages of the first try of a size, on every lane.
const FIRST: u64 = 8;
/// Rounds before those that count.
const WARM_UP: u64 = 20;

/// A port where clients come.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
}

impl Server {
    /// Listens on every address of this host; port 0 takes one that is free.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn bind(port: u16) -> Result<Self> {
        let both =
            TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
        let listener = both.map_err(|error| {
            Error::system(
                format!("listening on port {port}"),
                format!("{error}; choose another by --port"),
            )
        })?;
        Ok(Self { listener })
    }

    /// The port.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn port(&self) -> Result<u16> {
        let address = self.listener.local_addr();
        Ok(address.map_err(|error| Error::system("the listener's port", error))?.port())
    }
}

/// Serves one client, to its end. `tell` hears who came and what is measured.
///
/// # Errors
/// When the client goes away, asks for what this side cannot, or a connection breaks.
pub fn serve(
    server: &Server,
    settings: &RdmaSettings,
    side: &Side,
    tell: &mut dyn FnMut(&str),
) -> Result<()> {
    let accepted = server.listener.accept();
    let (stream, _) = accepted.map_err(|error| Error::system("accepting a client", error))?;
    keep_alive(&stream);
    let mut control = Control::new(stream)?;
    let peer = control.peer();
    let test = match control.hear(ANSWER)? {
        Message::Hello { version: VERSION, test } => test,
        Message::Hello { version, .. } => {
            let why = format!(
                "it speaks version {VERSION} of `ringway net`, not {version}; use one release on both hosts"
            );
            return refuse(&mut control, why);
        }
        other => return Err(control.unexpected(&other)),
    };
    if let Err(why) = test.check() {
        return refuse(&mut control, why);
    }
    tell(&format!("{peer}: {}", describe(&test)));
    if let Err(why) = fits(&test, side) {
        return refuse(&mut control, why);
    }
    let endpoint = match test.transport {
        Transport::Tcp => None,
        Transport::Rdma => match Endpoint::open(settings, side, &test) {
            Ok(endpoint) => Some(endpoint),
            Err(error) => return refuse(&mut control, error.to_string()),
        },
    };
    let token = u64::from(random()) << 32 | u64::from(random());
    let (place, end) = match &endpoint {
        Some(endpoint) => (endpoint.place(), endpoint.end()),
        None => ("TCP".to_owned(), End::Tcp { token }),
    };
    control.tell(&Message::Welcome { place, end })?;
    let (place, end) = match control.hear(ANSWER)? {
        Message::Connect { place, end } => (place, end),
        other => return Err(control.unexpected(&other)),
    };
    tell(&format!("{peer}: {place}"));
    let link = match endpoint {
        Some(endpoint) => match endpoint.connect(&end) {
            Ok(peer) => Link::Rdma(Box::new(endpoint), peer),
            Err(error) => return refuse(&mut control, error.to_string()),
        },
        None => Link::Tcp(Streams::accept(&server.listener, token, test.lanes)?),
    };
    control.tell(&Message::Connected)?;
    answer(&mut control, &link, &test).inspect_err(|error| {
        let _gone_anyway = control.tell(&Message::Refused { why: error.to_string() });
    })
}

/// Measures with the server at `host`. `tell` hears both ends' places, `row` each size as it is done.
///
/// # Errors
/// When there is no server, one of the two cannot do it, a connection breaks, or bytes came wrong.
pub fn measure(
    (host, port): (&str, u16),
    test: &Test,
    settings: &RdmaSettings,
    side: &Side,
    tell: &mut dyn FnMut(&str),
    row: &mut dyn FnMut(&Row),
) -> Result<()> {
    test.check().and_then(|()| fits(test, side)).map_err(Error::argument)?;
    let (stream, address) = dial(host, port)?;
    keep_alive(&stream);
    let mut control = Control::new(stream)?;
    control.tell(&Message::Hello { version: VERSION, test: test.clone() })?;
    // This side is looked at while the other answers; its own trouble comes first.
    let endpoint = match test.transport {
        Transport::Tcp => None,
        Transport::Rdma => Some(Endpoint::open(settings, side, test)?),
    };
    let (place, end) = match control.hear(ANSWER)? {
        Message::Welcome { place, end } => (place, end),
        other => return Err(control.unexpected(&other)),
    };
    let own = endpoint.as_ref().map_or_else(|| "TCP".to_owned(), Endpoint::place);
    tell(&format!("client {own}"));
    tell(&format!("server {place}"));
    let token = match &end {
        End::Tcp { token } => *token,
        End::Rdma { .. } => 0,
    };
    let link = match endpoint {
        Some(endpoint) => {
            let peer = endpoint.connect(&end)?;
            control.tell(&Message::Connect { place: own, end: endpoint.end() })?;
            Link::Rdma(Box::new(endpoint), peer)
        }
        None => {
            control.tell(&Message::Connect { place: own, end: End::Tcp { token } })?;
            Link::Tcp(Streams::dial(address, token, test.lanes)?)
        }
    };
    match control.hear(ANSWER)? {
        Message::Connected => {}
        other => return Err(control.unexpected(&other)),
    }
    let mut client = Client { control, link, test };
    for bytes in &test.sizes {
        row(&client.size(*bytes)?);
    }
    Ok(())
}

/// What connects the two.
enum Link {
    Rdma(Box<Endpoint>, Peer),
    Tcp(Streams),
}

/// The server's part, until the client goes.
fn answer(control: &mut Control, link: &Link, test: &Test) -> Result<()> {
    loop {
        let (bytes, count) = match control.hear(LONG) {
            Ok(Message::Start { bytes, count }) if test.sizes.contains(&bytes) => (bytes, count),
            Ok(other) => return Err(control.unexpected(&other)),
            // Between measurements the client may go.
            Err(error) if control.check().is_err() => {
                let done = error.to_string().ends_with("it closed the connection");
                return if done { Ok(()) } else { Err(error) };
            }
            Err(error) => return Err(error),
        };
        let bytes = usize::try_from(bytes).unwrap_or(0);
        let receives = test.operation == Operation::Send;
        let start = Instant::now();
        let (seconds, wrong) = match (link, test.kind) {
            (Link::Rdma(endpoint, peer), Kind::Bandwidth) => {
                endpoint.prepare(bytes, test.operation)?;
                let send = if test.bidirectional { count } else { 0 };
                let receive = if receives { count } else { 0 };
                let flow = Flow { operation: test.operation, bytes, send, receive };
                let running = Running::new(endpoint, *peer, flow)?;
                control.tell(&Message::Started)?;
                let seconds = running.run(control)?;
                finished(control)?;
                let gets = test.operation != Operation::Read || test.bidirectional;
                (seconds, if gets { endpoint.verify(bytes, test.operation)? } else { None })
            }
            (Link::Rdma(endpoint, peer), Kind::Latency) => {
                let mut player = Player::new(endpoint, *peer, test.operation, bytes, count)?;
                control.tell(&Message::Started)?;
                player.answer(control)?;
                finished(control)?;
                (start.elapsed().as_secs_f64(), None)
            }
            (Link::Tcp(streams), Kind::Bandwidth) => {
                control.tell(&Message::Started)?;
                let send = if test.bidirectional { count } else { 0 };
                let wrong = streams.run(bytes, send, count)?;
                finished(control)?;
                (start.elapsed().as_secs_f64(), wrong)
            }
            (Link::Tcp(streams), Kind::Latency) => {
                control.tell(&Message::Started)?;
                streams.rounds(bytes, count, false)?;
                finished(control)?;
                (start.elapsed().as_secs_f64(), None)
            }
        };
        control.tell(&Message::Measured { seconds, wrong })?;
    }
}

fn finished(control: &mut Control) -> Result<()> {
    match control.hear(LONG)? {
        Message::Finished => Ok(()),
        other => Err(control.unexpected(&other)),
    }
}

/// The client's part.
struct Client<'a> {
    control: Control,
    link: Link,
    test: &'a Test,
}

impl Client<'_> {
    /// Measures one size.
    fn size(&mut self, bytes: u64) -> Result<Row> {
        match self.test.kind {
            Kind::Bandwidth => self.bandwidth(bytes).map(Row::Bandwidth),
            Kind::Latency => self.latency(bytes).map(Row::Latency),
        }
    }

    fn bandwidth(&mut self, bytes: u64) -> Result<Bandwidth> {
        let mut count = FIRST;
        if let Some(iterations) = self.test.iterations {
            self.pushed(bytes, FIRST.min(iterations))?;
            count = iterations;
        } else {
            // More, until a try is long enough to tell how many fill the time.
            loop {
                let (seconds, _) = self.pushed(bytes, count)?;
                let fill = self.test.seconds / seconds.max(1e-6);
                if fill <= 8.0 || count >= 1 << 24 {
                    count = scaled(count, fill).max(1);
                    break;
                }
                count = scaled(count, (fill / 4.0).min(16.0));
            }
        }
        let (seconds, back) = self.pushed(bytes, count)?;
        let messages = count * u64::from(self.test.lanes);
        let one_way = exact(messages) / seconds;
        let messages_per_second = match (self.test.bidirectional, back) {
            (false, _) => one_way,
            (true, Some(back)) => one_way + exact(messages) / back,
            (true, None) => 2.0 * one_way,
        };
        let bytes_per_second = messages_per_second * exact(bytes);
        Ok(Bandwidth { bytes, messages, seconds, bytes_per_second, messages_per_second })
    }

    /// Moves `count` messages on every lane; the seconds they took, and those of the server's own where it
    /// sent on its own clock.
    fn pushed(&mut self, bytes: u64, count: u64) -> Result<(f64, Option<f64>)> {
        let size = usize::try_from(bytes).unwrap_or(0);
        let test = self.test;
        if let Link::Rdma(endpoint, _) = &self.link {
            endpoint.prepare(size, test.operation)?;
        }
        let receives = test.bidirectional && test.operation == Operation::Send;
        let receive = if receives { count } else { 0 };
        let running = match &self.link {
            Link::Rdma(endpoint, peer) => {
                let flow = Flow { operation: test.operation, bytes: size, send: count, receive };
                Some(Running::new(endpoint, *peer, flow)?)
            }
            Link::Tcp(_) => None,
        };
        start(&mut self.control, bytes, count)?;
        let begun = Instant::now();
        match (&self.link, running) {
            (Link::Rdma(endpoint, _), Some(running)) => {
                let seconds = running.run(&self.control)?;
                let back = measured(&mut self.control)?;
                let gets = test.bidirectional || test.operation == Operation::Read;
                let wrong = if gets { endpoint.verify(size, test.operation)? } else { None };
                if let Some(wrong) = wrong {
                    return Err(wrong_bytes("the client", &wrong));
                }
                Ok((seconds, Some(back)))
            }
            (Link::Tcp(streams), _) => {
                let back = if test.bidirectional { count } else { 0 };
                if let Some(wrong) = streams.run(size, count, back)? {
                    return Err(wrong_bytes("the client", &wrong));
                }
                // What was sent has arrived when the server says so.
                measured(&mut self.control)?;
                Ok((begun.elapsed().as_secs_f64(), None))
            }
            (Link::Rdma(..), None) => Err(Error::internal("no flow")),
        }
    }

    fn latency(&mut self, bytes: u64) -> Result<Latency> {
        let mut samples = self.played(bytes, WARM_UP)?;
        let typical = Latency::of(bytes, &mut samples).typical_us;
        let fill = self.test.seconds * 1e6 / (2.0 * typical).max(0.001);
        let count = self.test.iterations.unwrap_or_else(|| scaled(1, fill).clamp(100, 10_000));
        let mut samples = self.played(bytes, count)?;
        Ok(Latency::of(bytes, &mut samples))
    }

    fn played(&mut self, bytes: u64, count: u64) -> Result<Vec<f64>> {
        let size = usize::try_from(bytes).unwrap_or(0);
        let samples = match &self.link {
            Link::Rdma(endpoint, peer) => {
                let operation = self.test.operation;
                let mut player = Player::new(endpoint, *peer, operation, size, count)?;
                start(&mut self.control, bytes, count)?;
                player.serve(&self.control)?
            }
            Link::Tcp(streams) => {
                start(&mut self.control, bytes, count)?;
                streams.rounds(size, count, true)?
            }
        };
        measured(&mut self.control)?;
        Ok(samples)
    }
}

/// Tells the server that all is sent; the seconds its own sending took.
fn measured(control: &mut Control) -> Result<f64> {
    control.tell(&Message::Finished)?;
    match control.hear(LONG)? {
        Message::Measured { seconds, wrong: None } => Ok(seconds),
        Message::Measured { wrong: Some(wrong), .. } => Err(wrong_bytes("the server", &wrong)),
        other => Err(control.unexpected(&other)),
    }
}

fn start(control: &mut Control, bytes: u64, count: u64) -> Result<()> {
    control.tell(&Message::Start { bytes, count })?;
    match control.hear(ANSWER)? {
        Message::Started => Ok(()),
        other => Err(control.unexpected(&other)),
    }
}

/// What of a test one side cannot do with its buffer.
fn fits(test: &Test, side: &Side) -> std::result::Result<(), String> {
    match (test.transport, &side.buffer) {
        (Transport::Tcp, BufferPlace::Gpu(..)) => {
            Err("TCP is measured with buffers in host memory; leave --memory out".to_owned())
        }
        _ => Ok(()),
    }
}

fn refuse(control: &mut Control, why: String) -> Result<()> {
    let _gone_anyway = control.tell(&Message::Refused { why: why.clone() });
    Err(Error::usage(format!("{}: {why}", control.peer())))
}

fn wrong_bytes(side: &str, wrong: &str) -> Error {
    Error::new(ErrorKind::Remote, format!("{side} got wrong bytes: {wrong}"))
}

/// `bandwidth of write over rdma, 2 queue pairs`.
fn describe(test: &Test) -> String {
    let kind = match test.kind {
        Kind::Bandwidth => "bandwidth",
        Kind::Latency => "latency",
    };
    let lanes = if test.lanes == 1 { String::new() } else { format!(", {} lanes", test.lanes) };
    let both = if test.bidirectional { ", both ways" } else { "" };
    format!("{kind} of {} over {}{lanes}{both}", test.operation, test.transport)
}

fn dial(host: &str, port: u16) -> Result<(TcpStream, SocketAddr)> {
    let place = format!("{host}:{port}");
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|error| Error::argument(format!("{host}: {error}")))?;
    let mut why = "it has no address".to_owned();
    for address in found {
        match TcpStream::connect_timeout(&address, Duration::from_secs(10)) {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => why = error.to_string(),
        }
    }
    let text = format!("{place}: {why}; start `ringway net bw --server` there first");
    Err(Error::new(ErrorKind::Remote, text))
}

/// So that a host that dies silently is noticed. A kernel that refuses loses only that.
fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _refused = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, Duration::from_secs(10)))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10)));
}

/// A count times a factor, as a count.
fn scaled(count: u64, factor: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what a count can be"
    )]
    let scaled = (exact(count) * factor).clamp(1.0, 4e9) as u64;
    scaled
}

/// A count as a real number; counts here are far below 2^52.
fn exact(count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let exact = count as f64;
    exact
}

//! The same over TCP: connections side by side, each with a thread for either direction.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::port::pattern;
use crate::error::{Error, ErrorKind, Result};

/// No read or write waits longer.
const STALL: Duration = Duration::from_secs(60);
/// How long data connections may take to come.
const MEETING: Duration = Duration::from_secs(20);
/// Bytes handed to the kernel at once.
const PIECE: usize = 1 << 20;

/// The connections of a test.
pub(super) struct Streams {
    streams: Vec<TcpStream>,
}

impl Streams {
    /// The client's: made, each saying the token.
    pub(super) fn dial(server: SocketAddr, token: u64, lanes: u32) -> Result<Self> {
        let dial = || {
            let mut stream = TcpStream::connect_timeout(&server, MEETING)?;
            stream.write_all(&token.to_be_bytes())?;
            prepare(stream)
        };
        let streams: std::io::Result<Vec<TcpStream>> = (0..lanes).map(|_| dial()).collect();
        let streams =
            streams.map_err(|error| broken(&format!("connecting to {server}"), &error))?;
        Ok(Self { streams })
    }

    /// The server's: as they come; who does not know the token is turned away.
    pub(super) fn accept(listener: &TcpListener, token: u64, lanes: u32) -> Result<Self> {
        let wait = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        let start = Instant::now();
        let mut streams = Vec::new();
        listener.set_nonblocking(true).map_err(|error| broken("the listener", &error))?;
        while streams.len() < usize::try_from(lanes).unwrap_or(0) {
            if start.elapsed() > MEETING {
                let text = format!("{} of {lanes} connections came in {MEETING:?}", streams.len());
                return Err(Error::new(ErrorKind::Timeout, text));
            }
            match listener.accept() {
                Ok((mut stream, _)) => {
                    let mut said = [0; 8];
                    let heard = stream
                        .set_nonblocking(false)
                        .and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(2))))
                        .and_then(|()| stream.read_exact(&mut said));
                    if heard.is_ok() && u64::from_be_bytes(said) == token {
                        let ready = prepare(stream).map_err(|error| broken("a connection", &error));
                        streams.push(ready?);
                    }
                }
                Err(error) if wait(&error) => thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(broken("accepting connections", &error)),
            }
        }
        listener.set_nonblocking(false).map_err(|error| broken("the listener", &error))?;
        Ok(Self { streams })
    }

    /// Sends `send` messages and receives `receive` on every connection; what is wrong with what came.
    pub(super) fn run(&self, bytes: usize, send: u64, receive: u64) -> Result<Option<String>> {
        let wanted = pattern(bytes);
        let wanted = &wanted;
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for stream in &self.streams {
                if send > 0 {
                    let mut out = stream;
                    workers.push(scope.spawn(move || {
                        (0..send).try_for_each(|_| out.write_all(wanted)).map(|()| None)
                    }));
                }
                if receive > 0 {
                    workers.push(scope.spawn(move || take(stream, wanted, receive)));
                }
            }
            let mut wrong = None;
            for worker in workers {
                let outcome = worker.join();
                let outcome =
                    outcome.map_err(|_| Error::internal("a thread of the test panicked"))?;
                wrong = wrong.or(outcome.map_err(|error| broken("the test", &error))?);
            }
            Ok(wrong)
        })
    }

    /// Plays rounds on the first connection; microseconds one way of each, where this side begins.
    pub(super) fn rounds(&self, bytes: usize, count: u64, begins: bool) -> Result<Vec<f64>> {
        let mut stream = self.streams.first().ok_or_else(|| Error::internal("no connection"))?;
        let wanted = pattern(bytes);
        let mut found = vec![0; bytes];
        let mut samples = Vec::new();
        let mut play = || {
            for _ in 0..count {
                let start = Instant::now();
                if begins {
                    stream.write_all(&wanted)?;
                }
                stream.read_exact(&mut found)?;
                if !begins {
                    stream.write_all(&wanted)?;
                }
                samples.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
            }
            Ok(())
        };
        play().map_err(|error: std::io::Error| broken("the test", &error))?;
        if found != wanted {
            return Err(Error::new(ErrorKind::Remote, "the bytes that came are not those sent"));
        }
        Ok(samples)
    }
}

/// Reads messages; what is wrong with the last, if anything.
fn take(mut stream: &TcpStream, wanted: &[u8], count: u64) -> std::io::Result<Option<String>> {
    let mut found = vec![0; wanted.len()];
    for _ in 0..count {
        for piece in found.chunks_mut(PIECE) {
            stream.read_exact(piece)?;
        }
    }
    let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    Ok(at.map(|at| {
        format!("byte {at} of {} is {:#04x}, not {:#04x}", found.len(), found[at], wanted[at])
    }))
}

fn prepare(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    Ok(stream)
}

fn broken(what: &str, error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            Error::new(ErrorKind::Timeout, format!("{what}: nothing moved for {STALL:?}"))
        }
        _ => Error::new(ErrorKind::Remote, format!("{what}: {error}")),
    }
}

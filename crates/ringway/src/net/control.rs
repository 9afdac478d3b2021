//! The connection by which both sides of a measurement agree: one JSON object a line, over TCP.
//!
//! *Invariant:* a line is at most [`LINE_MOST`] bytes, and no wait is longer than its limit. Nobody proves who
//! they are: whoever reaches the port of a server can measure with it, and read and write nothing but
//! the buffer of the measurement.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::test::Test;
use crate::error::{Error, ErrorKind, Result};

/// Of this form of the messages.
pub(super) const VERSION: u32 = 1;
const LINE_MOST: u64 = 64 << 10;
/// How long the other side may take to answer what needs no measuring.
pub(super) const ANSWER: Duration = Duration::from_secs(60);

/// What one side tells the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Message {
    /// The client: what to measure.
    Hello { version: u32, test: Test },
    /// The server: it cannot.
    Refused { why: String },
    /// The server: its end, by name and as the client must know it.
    Welcome { place: String, end: End },
    /// The client: its end.
    Connect { place: String, end: End },
    /// The server: connected.
    Connected,
    /// The client: get ready for so many messages on each lane.
    Start { bytes: u64, count: u64 },
    /// The server: ready.
    Started,
    /// The client: all that it sent is done.
    Finished,
    /// The server: so long its own sending took, and whether what it got is right.
    Measured { seconds: f64, wrong: Option<String> },
}

/// One end, as the other must know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "snake_case")]
pub(super) enum End {
    /// Queue pairs of a port, and the buffer they may reach.
    Rdma {
        gid: [u8; 16],
        lid: u16,
        infiniband: bool,
        mtu: i32,
        reads_answered: u8,
        /// Numbers and first sequence numbers.
        queue_pairs: Vec<(u32, u32)>,
        address: u64,
        key: u32,
    },
    /// TCP connections, which say this when they come.
    Tcp { token: u64 },
}

/// The connection.
pub(super) struct Control {
    reader: BufReader<TcpStream>,
    peer: SocketAddr,
}

impl Control {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        let prepare = |stream: &TcpStream| {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(ANSWER))?;
            stream.peer_addr()
        };
        let peer = prepare(&stream).map_err(|error| Error::system("control connection", error))?;
        // An IPv4 peer of a socket for both is shown as one.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        Ok(Self { reader: BufReader::new(stream), peer })
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Tells the other side.
    pub(super) fn tell(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message)
            .map_err(|error| Error::internal(format!("message to {}: {error}", self.peer)))?;
        line.push(b'\n');
        let written = self.reader.get_mut().write_all(&line);
        written.map_err(|error| self.lost(&error.to_string()))
    }

    /// What the other side tells within a time.
    pub(super) fn hear(&mut self, limit: Duration) -> Result<Message> {
        let limited = self.reader.get_ref().set_read_timeout(Some(limit));
        limited.map_err(|error| self.lost(&error.to_string()))?;
        let mut line = Vec::new();
        match (&mut self.reader).take(LINE_MOST).read_until(b'\n', &mut line) {
            Ok(0) => return Err(self.lost("it closed the connection")),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(self.lost(&format!("nothing came in {limit:?}")));
            }
            Err(error) => return Err(self.lost(&error.to_string())),
        }
        let message = serde_json::from_slice(&line).map_err(|error| {
            self.lost(&format!("it does not speak as `ringway net` of this version does ({error})"))
        })?;
        match message {
            Message::Refused { why } => {
                Err(Error::new(ErrorKind::Remote, format!("{} refused: {why}", self.peer)))
            }
            message => Ok(message),
        }
    }

    /// An error if the other side has gone; never waits.
    pub(super) fn check(&self) -> Result<()> {
        let mut fds = [PollFd::from_borrowed_fd(self.reader.get_ref().as_fd(), PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&now)) {
            Ok(0) | Err(_) => Ok(()),
            Ok(_) => Err(self.lost("it closed the connection")),
        }
    }

    /// The error for a message that does not belong here.
    pub(super) fn unexpected(&self, message: &Message) -> Error {
        self.lost(&format!("it said {message:?} out of turn"))
    }

    fn lost(&self, why: &str) -> Error {
        let text = format!("the other side of the measurement, {}: {why}", self.peer);
        Error::new(ErrorKind::Remote, text)
    }
}

/// A line as anybody may send it, for fuzzing: what is understood is said again alike, and a test is judged.
#[cfg(fuzzing)]
pub(crate) fn line(bytes: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Message>(bytes) else { return };
    if let Message::Hello { test, .. } = &message {
        let _either = test.check();
    }
    let said = serde_json::to_vec(&message).expect("what was read can be written");
    let again: Message = serde_json::from_slice(&said).expect("what was written can be read");
    // A number that is none is not equal to itself.
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Control, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Control::new(listener.accept().unwrap().0).unwrap(), stream)
    }

    #[test]
    fn strangers_and_silence_are_errors() {
        let short = Duration::from_millis(50);
        let cases: [(&[u8], &str); 4] = [
            (b"GET / HTTP/1.1\r\n", "does not speak"),
            (b"{\"message\":\"started\"", "nothing came"),
            (b"{\"message\":\"refused\",\"why\":\"no device\"}\n", "refused: no device"),
            (b"\xff\xfe\n", "does not speak"),
        ];
        for (bytes, word) in cases {
            let (mut control, mut stream) = pair();
            stream.write_all(bytes).unwrap();
            let error = control.hear(short).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let (mut control, mut stream) = pair();
        stream.write_all(&vec![b'x'; 100 << 10]).unwrap();
        assert!(control.hear(short).unwrap_err().to_string().contains("does not speak"));
        let (mut control, stream) = pair();
        assert!(control.check().is_ok());
        drop(stream);
        let gone = std::time::Instant::now();
        while control.check().is_ok() {
            assert!(gone.elapsed() < ANSWER);
        }
        assert!(control.hear(short).unwrap_err().to_string().contains("closed"));
    }
}

//! What the launcher and the agent on a host say to each other, over the pipes of ssh.
//!
//! ```text
//! agent                                        launcher
//!   │ a line: GREETING PROTOCOL VERSION          │   whatever a login shell prints before it is passed over
//!   ├────────────────────────────────────────────►
//!   │ Prepare   variables, directory, program    │
//!   ◄────────────────────────────────────────────┤
//!   │ Ready     addresses, a free port           │   or Refused
//!   ├────────────────────────────────────────────►   waits for all hosts
//!   │ Start     the job and its root             │
//!   ◄────────────────────────────────────────────┤
//!   │ output, Died, Ended     Beat, input, End   │
//!
//! frame   │ bytes that follow, u32 │ kind, u8 │ …      all numbers little-endian
//! control │ 0 │ JSON
//! output  │ 1: standard output, 2: standard error │ rank, u32 │ bytes
//! input   │ 3 │ bytes; none: the end
//! ```
//!
//! *Invariant:* reading is total: arbitrary bytes give frames or an error, and never more memory than one frame's.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Before the agent's first words.
pub(crate) const GREETING: &str = "ringway-host-agent";
/// Both sides must have the same.
pub(crate) const PROTOCOL: u32 = 1;
/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// No frame is longer; an environment has at most 2 MiB, and bytes are written as numbers.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// Text that need not be UTF-8.
pub(crate) type Bytes = Vec<u8>;

/// What the launcher tells the agent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// See whether the job can run here.
    Prepare(Box<Prepare>),
    /// Start the ranks.
    Start(Start),
    /// End them.
    End,
    /// The launcher is there.
    Beat,
}

/// What is the same on all hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepare {
    /// Variables of the launcher.
    pub(crate) variables: Vec<(Bytes, Bytes)>,
    /// Variables of the command line, which win over all.
    pub(crate) chosen: Vec<(String, String)>,
    pub(crate) directory: Bytes,
    /// The program and its arguments.
    pub(crate) command: Vec<Bytes>,
}

/// What a host starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) root: String,
    pub(crate) secret: String,
    pub(crate) size: u32,
    pub(crate) first: u32,
    pub(crate) ranks: u32,
}

/// What the agent answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The job can run here; where its root would be met.
    Ready {
        /// Addresses, best first; the loopback last.
        addresses: Vec<std::net::IpAddr>,
        port: u16,
    },
    /// It cannot.
    Refused { why: String },
    /// A rank failed.
    Died { rank: u32, pid: u32, status: i32, ran_ms: u64 },
    /// The last input was handed on.
    Taken,
    /// No rank is left.
    Ended,
}

/// A stream of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Control(Bytes),
    Output { stream: Stream, rank: u32, bytes: Bytes },
    Input(Bytes),
}

impl Frame {
    /// A control frame.
    pub(crate) fn control(message: &impl Serialize) -> io::Result<Self> {
        Ok(Self::Control(serde_json::to_vec(message)?))
    }

    /// Writes the frame by one call.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (kind, rank, bytes) = match self {
            Self::Control(bytes) => (0, None, bytes),
            Self::Output { stream: Stream::Out, rank, bytes } => (1, Some(rank), bytes),
            Self::Output { stream: Stream::Err, rank, bytes } => (2, Some(rank), bytes),
            Self::Input(bytes) => (3, None, bytes),
        };
        let rank = rank.map_or(Vec::new(), |rank| rank.to_le_bytes().to_vec());
        let length = 1 + rank.len() + bytes.len();
        if length > FRAME_BYTES_MAX {
            return Err(io::Error::other(format!("a message of {length} bytes is too long")));
        }
        let length = u32::try_from(length).map_err(io::Error::other)?;
        let parts = [&length.to_le_bytes()[..], &[kind], &rank, bytes];
        to.write_all(&parts.concat())?;
        to.flush()
    }

    /// Reads a frame; `None` at the end of the stream.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut length = [0; 4];
        if from.read(&mut length[..1])? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut length[1..])?;
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?;
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(io::Error::other(format!("a message of {length} bytes cannot be")));
        }
        let mut bytes = Vec::new();
        // Grows with what comes: a length is not believed.
        if from.take(u64::try_from(length).map_err(io::Error::other)?).read_to_end(&mut bytes)?
            < length
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let rest = bytes.split_off(1);
        let of_rank = |stream| match rest.split_first_chunk::<4>() {
            Some((rank, bytes)) => {
                let rank = u32::from_le_bytes(*rank);
                Ok(Self::Output { stream, rank, bytes: bytes.to_vec() })
            }
            None => Err(io::Error::other("output without a rank")),
        };
        match bytes.first() {
            Some(1) => of_rank(Stream::Out).map(Some),
            Some(2) => of_rank(Stream::Err).map(Some),
            Some(3) => Ok(Some(Self::Input(rest))),
            Some(0) => Ok(Some(Self::Control(rest))),
            other => Err(io::Error::other(format!("an unknown message ({other:?})"))),
        }
    }
}

/// Decodes a control frame's body.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    serde_json::from_slice(body).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(frame: &Frame) -> Frame {
        let mut wire = Vec::new();
        frame.write(&mut wire).unwrap();
        let mut rest = wire.as_slice();
        let read = Frame::read(&mut rest).unwrap().unwrap();
        assert!(rest.is_empty() && Frame::read(&mut rest).unwrap().is_none());
        read
    }

    #[test]
    fn frames_come_through() {
        let order = Order::Start(Start {
            root: "10.0.0.1:7000".to_owned(),
            secret: "x".to_owned(),
            size: 4,
            first: 2,
            ranks: 2,
        });
        let Frame::Control(body) = through(&Frame::control(&order).unwrap()) else {
            panic!("not a control frame")
        };
        assert_eq!(decode::<Order>(&body).unwrap(), order);
        for stream in [Stream::Out, Stream::Err] {
            let frame = Frame::Output { stream, rank: 70_000, bytes: b"\xff\n".to_vec() };
            assert_eq!(through(&frame), frame);
        }
        assert_eq!(through(&Frame::Input(Vec::new())), Frame::Input(Vec::new()));
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_an_error() {
        for bytes in [&[1, 0][..], &[0; 4], &[2, 0, 0, 0, 1], &[0xff; 9], &[1, 0, 0, 0, 9]] {
            assert!(Frame::read(&mut &bytes[..]).is_err(), "{bytes:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_end(bytes: Vec<u8>) {
            let mut rest = bytes.as_slice();
            while let Ok(Some(frame)) = Frame::read(&mut rest) {
                if let Frame::Control(body) = frame {
                    let _garbage = (decode::<Order>(&body).is_ok(), decode::<Report>(&body).is_ok());
                }
            }
        }
    }
}

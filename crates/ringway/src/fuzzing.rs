//! Doors through which the fuzz targets (`fuzz/`) reach what is private here.
//!
//! Each function takes arbitrary bytes, as a peer or a stranger might send them, and panics when
//! a promise is broken. *Invariant:* compiled with `--cfg fuzzing` only; nothing else calls it.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::bootstrap::auth::SessionKey;
use crate::bootstrap::frame::{self, Decoder, FrameError, Side};
use crate::bootstrap::{UNIQUE_ID_BYTES, UniqueId};
use crate::plan::plan::{Region, Remote};
use crate::transport::framed::frame::{HEADER_BYTES, Header, Kind};
use crate::transport::tcp::TcpLink;
use crate::transport::{Area, Beginning, Context, Link, LinkDescription, OperationTag, Trouble};

/// Bytes on an authenticated control connection, in pieces of any length: first as they are, then
/// as the bodies of frames with a right MAC, of which one is damaged.
pub fn control_connection(bytes: &[u8]) {
    let key = SessionKey([7; 32]);
    let outcome = decode(&key, bytes, 1 + bytes.len() % 13);
    assert!(outcome.0.is_empty() || bytes.len() >= 24, "a frame from nothing");

    let bodies: Vec<&[u8]> = bytes.chunks(97).take(4).collect();
    let mut wire = Vec::new();
    for (number, body) in (0..).zip(&bodies) {
        let kind = 256 + u16::from(body[0]);
        let from = (&key, Side::Dialer, number);
        frame::append(&mut wire, from, kind, body).expect("the bodies are short");
    }
    let (frames, error) = decode(&key, &wire, 1 + bytes.len() % 31);
    assert_eq!(error, None);
    assert!(frames.iter().map(|frame| &frame.body[..]).eq(bodies.iter().copied()));

    if let (Some(first), false) = (bytes.first(), wire.is_empty()) {
        let at = (usize::from(*first) * 31 + bytes.len()) % wire.len();
        wire[at] ^= 1 << (first % 8);
        let (frames, _) = decode(&key, &wire, 64);
        assert!(frames.len() < bodies.len(), "a damaged frame was taken");
    }
}

fn decode(
    key: &SessionKey,
    mut bytes: &[u8],
    piece: usize,
) -> (Vec<frame::Frame>, Option<FrameError>) {
    let mut decoder = Decoder::new(key.clone(), Side::Acceptor);
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let space = decoder.space();
        assert!(!space.is_empty(), "a decoder that takes nothing stands still");
        let count = space.len().min(piece).min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        match decoder.advance(count) {
            Ok(frame) => frames.extend(frame),
            Err(error) => return (frames, Some(error)),
        }
    }
    (frames, None)
}

/// A unique id: as it is, and with the checksum it should have.
pub fn unique_id(bytes: &[u8]) {
    let _ = UniqueId::from_bytes(bytes);
    let Some(whole) = bytes.first_chunk::<UNIQUE_ID_BYTES>() else { return };
    if let Ok(id) = UniqueId::from_bytes(&UniqueId::sealed(*whole)) {
        assert!(!id.targets().is_empty() && id.targets().len() <= 4);
        assert_eq!(id.to_string().parse::<UniqueId>().ok(), Some(id));
        assert!(!format!("{id:?}").contains(&id.to_string()[16..80]), "the key is shown");
    }
}

/// Where a peer's puts may land, between guards that nothing may touch.
struct Memory {
    bytes: Vec<u8>,
}

const GUARD: usize = 64;
const GUARDED: u8 = 0xa5;
const SIZES: [usize; 3] = [4096, 1000, 1];

impl Memory {
    fn new() -> Self {
        let mut bytes = vec![GUARDED; GUARD];
        for size in SIZES {
            bytes.resize(bytes.len() + size, 0);
            bytes.resize(bytes.len() + GUARD, GUARDED);
        }
        Self { bytes }
    }

    fn areas(&mut self) -> [Area; 3] {
        let mut at = GUARD;
        SIZES.map(|bytes| {
            let address = self.bytes.as_mut_ptr().wrapping_add(at);
            at += bytes + GUARD;
            Area { address, bytes }
        })
    }

    fn check(&self) {
        let mut at = 0;
        for size in [0, SIZES[0], SIZES[1], SIZES[2]] {
            at += size;
            let guard = &self.bytes[at..at + GUARD];
            assert!(guard.iter().all(|byte| *byte == GUARDED), "a put left its area");
            at += GUARD;
        }
    }
}

/// Frames of a peer on a data connection: headers, payloads and nonsense, in pieces.
pub fn data_connection(bytes: &[u8]) {
    let mut memory = Memory::new();
    let [scratch, first, second] = memory.areas();
    let (mut peer, stream) = connection();
    let description = LinkDescription {
        peer: 1,
        transport: "NET/Socket",
        detail: String::new(),
        reason: String::new(),
    };
    let mut link =
        crate::transport::tcp::link(1, vec![stream], description).expect("a fresh socket");
    let tag = OperationTag { sequence: 5, tag: 7 };
    let both = [first, second];
    let inputs = &[];
    let beginning =
        Beginning { tag, scratch, outputs: &both, inputs, remote_scratch: 0, pairs: None };
    link.begin(Context::Collective, &beginning);
    let one = [second];
    let message = Beginning { outputs: &one, ..beginning };
    link.begin(Context::Receive, &message);

    let wire = frames(bytes);
    for piece in wire.chunks(1 + bytes.first().map_or(0, |byte| usize::from(*byte) * 64)) {
        if peer.write_all(piece).is_err() || !receive(&mut link) {
            break;
        }
        memory.check();
    }
    let _ = link.compare(Context::Collective, tag, None);
    link.end(Context::Collective, &[]);
    let _ = link.compare(Context::Collective, OperationTag { sequence: 6, tag: 9 }, None);
    receive(&mut link);
    memory.check();
}

fn receive(link: &mut TcpLink) -> bool {
    for _ in 0..4 {
        match link.poll() {
            Ok(true) => {}
            Ok(false) => break,
            Err(Trouble::Mismatch { .. } | Trouble::Broken { .. }) => return false,
        }
    }
    let _ = link.reached(Context::Collective, 0, 0, 1);
    true
}

/// Turns bytes into frames: every tenth byte or so decides whether what follows is a header with
/// likely fields and a payload, or goes out as it is.
fn frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<10>() {
        let [choice, kind, context, flag, region, o0, o1, b0, b1, tag] = *head;
        bytes = rest;
        if choice % 4 == 0 {
            wire.extend_from_slice(head);
            continue;
        }
        let length = u64::from(u16::from_le_bytes([b0, b1])) % 5000;
        let is_checked = kind & 0x40 != 0;
        let kinds = [Kind::Put, Kind::Signal, Kind::Announce, Kind::Expose];
        let kind = kinds[usize::from(kind % 4)];
        let header = Header {
            kind,
            context: Context::ALL[usize::from(context % 3)],
            tag: OperationTag { sequence: 5 + u64::from(tag / 100), tag: 7 + u32::from(tag % 2) },
            flag: (flag < 200).then_some(u16::from(flag)),
            target: Remote {
                region: if region % 4 == 0 {
                    Region::Scratch
                } else {
                    Region::Output(u16::from(region % 4) - 1)
                },
                offset: u64::from(u16::from_le_bytes([o0, o1])) % 5000,
            },
            bytes: match kind {
                Kind::Put => length,
                Kind::Expose => length % 600,
                _ => u64::from(choice / 128),
            },
            check: (is_checked && kind == Kind::Put).then_some(u32::from(choice) << 24),
        };
        wire.extend_from_slice(&header.encode());
        let payload = usize::try_from(length).expect("below 5000").min(3 * rest.len());
        wire.resize(wire.len() + payload, choice);
    }
    wire.extend_from_slice(bytes);
    wire.truncate(HEADER_BYTES * 1500);
    wire
}

/// Two ends of a connection on this machine; closing them leaves no trace in the kernel.
fn connection() -> (TcpStream, TcpStream) {
    thread_local! {
        static LISTENER: TcpListener =
            TcpListener::bind("127.0.0.1:0").expect("loopback is always there");
    }
    LISTENER.with(|listener| {
        let address = listener.local_addr().expect("it is bound");
        let dialled = TcpStream::connect(address).expect("loopback is always there");
        let (accepted, _) = listener.accept().expect("somebody dialled");
        for stream in [&dialled, &accepted] {
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))
                .expect("a socket takes the option");
        }
        (dialled, accepted)
    })
}

/// Words of the socket beside RDMA.
pub fn rdma_words(bytes: &[u8]) {
    crate::transport::verbs::words(bytes);
}

/// A line of the connection by which `ringway net` agrees with its other side.
pub fn net_message(bytes: &[u8]) {
    crate::net::line(bytes);
}

//! What connections read and write, over streams that count, keep and bend.

use super::super::super::OperationTag;
use super::*;
use crate::plan::plan::{Region, Remote};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Mutex;

/// A socket that counts how it is read.
#[derive(Debug)]
struct Counted {
    bytes: Mutex<VecDeque<u8>>,
    rooms: Mutex<Vec<usize>>,
    descriptor: std::fs::File,
}

impl Stream for Counted {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn receive(&self, room: &mut [u8]) -> Arrival {
        let mut bytes = self.bytes.lock().unwrap();
        self.rooms.lock().unwrap().push(room.len());
        let got = bytes.len().min(room.len());
        room.iter_mut().zip(bytes.drain(..got)).for_each(|(to, from)| *to = from);
        if got == 0 { Arrival::Nothing } else { Arrival::Bytes(got) }
    }

    fn wakes(&self) -> bool {
        true
    }

    fn interest(&self, wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)> {
        Some((self.descriptor.as_fd(), wanted))
    }
}

/// Takes every payload into one buffer.
struct Taker {
    buffer: Vec<u8>,
    landed: usize,
}

impl Receiver for Taker {
    fn admit(&self, _header: &Header) -> Result<Admission, Failure> {
        Ok(Admission::Payload(self.buffer.as_ptr().cast_mut()))
    }

    fn land(&mut self, _header: &Header) {
        self.landed += 1;
    }

    fn expose(&mut self, _header: &Header, _exposure: Exposure) {}
}

fn connection(payloads: &[usize]) -> Connection<Counted> {
    let mut bytes = VecDeque::new();
    for payload in payloads {
        let header = Header {
            kind: Kind::Put,
            context: Context::Collective,
            tag: OperationTag { sequence: 1, tag: 1 },
            flag: Some(0),
            target: Remote { region: Region::Scratch, offset: 0 },
            bytes: *payload as u64,
            check: None,
        };
        bytes.extend(header.encode());
        bytes.extend(std::iter::repeat_n(7, *payload));
    }
    let descriptor = std::fs::File::open("/dev/null").unwrap();
    let stream = Counted { bytes: Mutex::new(bytes), rooms: Mutex::default(), descriptor };
    Connection::new(1, stream, AHEAD)
}

fn rooms(connection: &Connection<Counted>) -> Vec<usize> {
    std::mem::take(&mut connection.stream.rooms.lock().unwrap())
}

#[test]
fn what_came_alone_costs_one_read() {
    let mut one = connection(&[8]);
    let mut taker = Taker { buffer: vec![0; 8], landed: 0 };
    assert!(one.receive(&mut taker).unwrap());
    assert_eq!((taker.landed, rooms(&one).len()), (1, 1));
    assert_eq!(taker.buffer, [7; 8]);
}

#[test]
fn behind_a_long_payload_the_next_lands_in_place() {
    const LONG: usize = 256 << 10;
    let mut one = connection(&[LONG, LONG, LONG, 8, 8]);
    let mut taker = Taker { buffer: vec![0; LONG], landed: 0 };
    while one.receive(&mut taker).unwrap() {}
    assert_eq!(taker.landed, 5);
    let rooms = rooms(&one);
    // Only the first, which nobody could foresee, goes by way of the read-ahead buffer.
    assert_eq!(rooms.iter().filter(|room| **room == AHEAD).count(), 2, "{rooms:?}");
    assert!(rooms.contains(&AHEAD_LONG) && rooms.len() <= 8, "{rooms:?}");
}

#[test]
fn a_silent_connection_is_mostly_left_alone() {
    let mut one = connection(&[]);
    let mut taker = Taker { buffer: Vec::new(), landed: 0 };
    for _ in 0..1000 {
        assert!(!one.poll(&mut taker).unwrap());
    }
    let reads = rooms(&one).len();
    assert!((100..200).contains(&reads), "{reads}");
    // What a lane has looked at is not looked at again in the same turn.
    one.receive(&mut taker).unwrap();
    one.silent = 0;
    assert_eq!(rooms(&one).len(), 1);
    one.poll(&mut taker).unwrap();
    assert_eq!(rooms(&one).len(), 0);
    one.poll(&mut taker).unwrap();
    assert_eq!(rooms(&one).len(), 1);
}

/// A stream that keeps what is sent, some bytes at a time.
#[derive(Debug)]
struct Kept(Mutex<Vec<u8>>);

impl Stream for Kept {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let now = all.len().min(7);
        self.0.lock().unwrap().extend(&all[..now]);
        Ok(now)
    }

    fn receive(&self, _room: &mut [u8]) -> Arrival {
        Arrival::Nothing
    }

    fn wakes(&self) -> bool {
        false
    }

    fn interest(&self, _wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)> {
        None
    }
}

/// What a put of `payload` is on the wire, with a checksum.
fn checked(payload: &[u8]) -> Vec<u8> {
    let mut sender = Connection::new(0, Kept(Mutex::default()), AHEAD);
    sender.set_checks(true);
    let header = Header {
        kind: Kind::Put,
        context: Context::Collective,
        tag: OperationTag { sequence: 5, tag: 1 },
        flag: Some(0),
        target: Remote { region: Region::Scratch, offset: 0 },
        bytes: payload.len() as u64,
        check: None,
    };
    let owner = (Context::Collective, 0);
    let (source, bytes) = (payload.as_ptr(), payload.len());
    let put = Put { owner, header: &header, source, bytes, direct: None };
    let mut cursor = 0;
    while !sender.put(&put, &mut cursor).unwrap() {}
    assert!(sender.checksums.is_empty());
    sender.stream.0.into_inner().unwrap()
}

#[test]
fn a_bit_that_changes_on_the_way_is_found() {
    let payload: Vec<u8> = (0..=u8::MAX).cycle().take(1000).collect();
    let wire = checked(&payload);
    assert_eq!(wire.len(), HEADER_BYTES + payload.len());
    for damaged in [None, Some(HEADER_BYTES), Some(wire.len() - 1), Some(12)] {
        let mut one = connection(&[]);
        let mut bytes: VecDeque<u8> = wire.iter().copied().collect();
        if let Some(at) = damaged {
            bytes[at] ^= 0x10;
        }
        *one.stream.bytes.lock().unwrap() = bytes;
        let mut taker = Taker { buffer: vec![0; 1000], landed: 0 };
        match (damaged, one.receive(&mut taker)) {
            (None, outcome) => {
                assert!(outcome.unwrap());
                assert_eq!((taker.buffer, taker.landed), (payload.clone(), 1));
            }
            (Some(_), Err(Failure::Broken(cause))) => {
                assert!(cause.contains("rank 1 sent in operation 5 came damaged"), "{cause}");
                assert_eq!(taker.landed, 0);
            }
            (Some(at), other) => panic!("byte {at}: {other:?}"),
        }
    }
}

/// A stream beside a device's memory: addresses that end the process when the processor touches them, and what is there.
#[derive(Debug)]
struct Beside {
    inside: Mutex<Vec<u8>>,
    sent: Mutex<Vec<u8>>,
    comes: Mutex<VecDeque<u8>>,
}

const INSIDE: usize = 1 << 20;
/// No process has memory here.
const NOWHERE: usize = 1 << 63;

impl Beside {
    fn new() -> Self {
        let inside = (0..=u8::MAX).cycle().take(INSIDE).collect();
        Self { inside: Mutex::new(inside), sent: Mutex::default(), comes: Mutex::default() }
    }

    fn place(at: usize) -> *mut u8 {
        std::ptr::without_provenance_mut(NOWHERE + at)
    }
}

impl Stream for Beside {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let now = all.len().min(100_001);
        self.sent.lock().unwrap().extend(&all[..now]);
        Ok(now)
    }

    fn receive(&self, room: &mut [u8]) -> Arrival {
        let mut comes = self.comes.lock().unwrap();
        let got = comes.len().min(room.len()).min(50_001);
        room.iter_mut().zip(comes.drain(..got)).for_each(|(to, from)| *to = from);
        if got == 0 { Arrival::Nothing } else { Arrival::Bytes(got) }
    }

    fn wakes(&self) -> bool {
        false
    }

    fn interest(&self, _wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)> {
        None
    }

    fn is_foreign(&self, address: *const u8) -> bool {
        (NOWHERE..NOWHERE + INSIDE).contains(&address.addr())
    }

    fn fetch(&self, from: *const u8, into: &mut [u8]) -> io::Result<()> {
        let at = from.addr() - NOWHERE;
        into.copy_from_slice(&self.inside.lock().unwrap()[at..at + into.len()]);
        Ok(())
    }

    fn store(&self, to: *mut u8, from: &[u8]) -> io::Result<()> {
        let at = to.addr() - NOWHERE;
        self.inside.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
}

/// Takes every payload into a device's memory.
struct Far(*mut u8, usize);

impl Receiver for Far {
    fn admit(&self, _header: &Header) -> Result<Admission, Failure> {
        Ok(Admission::Payload(self.0))
    }

    fn land(&mut self, _header: &Header) {
        self.1 += 1;
    }

    fn expose(&mut self, _header: &Header, _exposure: Exposure) {}
}

#[test]
fn a_devices_memory_is_copied_by_the_device() {
    // Also where checksums are asked for: there are none of such memory.
    for (bytes, checks) in [(1, false), (5000, true), (900_000, false)] {
        let mut sender = Connection::new(0, Beside::new(), AHEAD);
        sender.set_checks(checks);
        let header = Header {
            kind: Kind::Put,
            context: Context::Collective,
            tag: OperationTag { sequence: 5, tag: 1 },
            flag: Some(0),
            target: Remote { region: Region::Scratch, offset: 0 },
            bytes: bytes as u64,
            check: None,
        };
        let (owner, source) = ((Context::Collective, 0), Beside::place(77));
        let put = Put { owner, header: &header, source, bytes, direct: None };
        let mut cursor = 0;
        while !sender.put(&put, &mut cursor).unwrap() {}
        let wire = sender.stream.sent.lock().unwrap().clone();
        assert_eq!(wire.len(), HEADER_BYTES + bytes);

        let mut receiver = Connection::new(1, Beside::new(), AHEAD);
        receiver.stream.inside.lock().unwrap().fill(0);
        receiver.stream.comes.lock().unwrap().extend(&wire);
        let mut far = Far(Beside::place(1000), 0);
        while receiver.receive(&mut far).unwrap() {}
        assert_eq!(far.1, 1);
        let (from, to) = (sender.stream.inside, receiver.stream.inside);
        let (from, to) = (from.into_inner().unwrap(), to.into_inner().unwrap());
        assert!(to[1000..1000 + bytes] == from[77..77 + bytes], "{bytes} bytes");
        assert!(to[..1000].iter().chain(&to[1000 + bytes..]).all(|byte| *byte == 0));
    }
}

#[test]
fn a_checksum_of_a_devices_memory_is_refused() {
    let mut receiver = Connection::new(1, Beside::new(), AHEAD);
    receiver.stream.comes.lock().unwrap().extend(checked(&[7; 1000]));
    let mut far = Far(Beside::place(0), 0);
    let failure = receiver.receive(&mut far).unwrap_err();
    assert!(matches!(failure, Failure::Broken(cause) if cause.contains("device's memory")));
    assert_eq!(far.1, 0);
}

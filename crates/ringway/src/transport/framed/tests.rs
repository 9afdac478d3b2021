//! Puts from a device's memory: to where the peer says, or by the device's copies where its word cannot come.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Mutex;

use super::stream::Arrival;
use super::*;

/// Addresses of a device's memory, which no process has.
const NOWHERE: usize = 1 << 63;
const INSIDE: usize = 1 << 20;

fn inside(at: usize) -> *mut u8 {
    std::ptr::without_provenance_mut(NOWHERE + at)
}

#[derive(Debug, Default)]
struct Seen {
    sent: Vec<u8>,
    comes: VecDeque<u8>,
    over: bool,
    /// How often something was sent.
    sends: usize,
}

#[derive(Clone, Debug, Default)]
struct Beside(Arc<Mutex<Seen>>);

impl Stream for Beside {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let seen = &mut *self.0.lock().unwrap();
        seen.sends += 1;
        parts.iter().for_each(|part| seen.sent.extend_from_slice(part));
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn receive(&self, room: &mut [u8]) -> Arrival {
        let seen = &mut *self.0.lock().unwrap();
        let got = seen.comes.len().min(room.len());
        room.iter_mut().zip(seen.comes.drain(..got)).for_each(|(to, from)| *to = from);
        match (got, seen.over) {
            (0, true) => Arrival::End("it is over".to_owned()),
            (0, false) => Arrival::Nothing,
            _ => Arrival::Bytes(got),
        }
    }

    fn interest(&self, _wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)> {
        None
    }

    fn wakes(&self) -> bool {
        false
    }

    fn places(&self) -> bool {
        true
    }

    fn expose(&self, area: Area) -> Option<Exposure> {
        let (address, bytes) = (area.address.addr() as u64, area.bytes as u64);
        Some(Exposure { address, bytes, keys: Vec::new() })
    }

    fn is_foreign(&self, address: *const u8) -> bool {
        (NOWHERE..NOWHERE + INSIDE).contains(&address.addr())
    }

    fn fetch(&self, _from: *const u8, into: &mut [u8]) -> io::Result<()> {
        into.fill(0xd1);
        Ok(())
    }
}

const TAG: OperationTag = OperationTag { sequence: 3, tag: 77 };
const BYTES: usize = 100;

/// A link in an operation whose input is a device's, and what its stream sees.
fn link() -> (FramedLink<Beside>, Beside) {
    let stream = Beside::default();
    let (detail, reason) = (String::new(), String::new());
    let description = LinkDescription { peer: 1, transport: "NET/IB", detail, reason };
    let mut link = FramedLink::over(1, vec![stream.clone()], AHEAD, description);
    let input = Area { address: inside(0), bytes: BYTES };
    let scratch = Area { address: std::ptr::null_mut(), bytes: 0 };
    let (outputs, inputs, pairs) = (&[][..], &[input][..], None);
    let beginning = Beginning { tag: TAG, scratch, outputs, inputs, remote_scratch: 0, pairs };
    link.begin(Context::Collective, &beginning);
    (link, stream)
}

fn put(link: &mut FramedLink<Beside>, cursor: &mut usize) -> Result<bool, Trouble> {
    let request = PutRequest {
        context: Context::Collective,
        lane: 0,
        source: inside(0),
        bytes: BYTES,
        target: Remote { region: Region::Output(0), offset: 8 },
        signal: Some(0),
    };
    link.put(&request, cursor)
}

/// A frame of the peer's.
fn frame(kind: Kind, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let target = Remote { region: Region::Output(0), offset: 0 };
    let tag = OperationTag { sequence, ..TAG };
    let (context, bytes) = (Context::Collective, payload.len() as u64);
    let header = Header { kind, context, tag, flag: None, target, bytes, check: None };
    [&header.encode()[..], payload].concat()
}

#[test]
fn a_devices_memory_waits_for_the_word_where_it_goes() {
    let ((mut link, stream), mut cursor) = (link(), 0);
    for _ in 0..3 {
        assert_eq!(put(&mut link, &mut cursor), Ok(false));
        link.poll().unwrap();
    }
    assert!(stream.0.lock().unwrap().sent.is_empty());
    let theirs = Exposure { address: 5000, bytes: 1000, keys: Vec::new() };
    let word = frame(Kind::Expose, TAG.sequence, &theirs.encode());
    stream.0.lock().unwrap().comes.extend(word);
    link.poll().unwrap();
    assert_eq!(put(&mut link, &mut cursor), Ok(true));
    // The header by itself, then what this stream cannot place.
    let seen = stream.0.lock().unwrap();
    assert_eq!(seen.sends, 2);
    assert_eq!(seen.sent[frame::HEADER_BYTES..], [0xd1; BYTES]);
}

/// The word stands behind a frame that nobody takes before this operation is over.
#[test]
fn it_does_not_wait_behind_what_is_held() {
    let ((mut link, stream), mut cursor) = (link(), 0);
    let later = frame(Kind::Signal, TAG.sequence + 1, &[]);
    stream.0.lock().unwrap().comes.extend(later);
    link.poll().unwrap();
    assert_eq!(put(&mut link, &mut cursor), Ok(true));
    let seen = stream.0.lock().unwrap();
    assert_eq!(seen.sends, 1);
    assert_eq!(seen.sent[frame::HEADER_BYTES..], [0xd1; BYTES]);
}

#[test]
fn it_does_not_wait_for_who_is_gone() {
    let ((mut link, stream), mut cursor) = (link(), 0);
    assert_eq!(put(&mut link, &mut cursor), Ok(false));
    stream.0.lock().unwrap().over = true;
    link.poll().unwrap();
    let cause = "it is over".to_owned();
    assert_eq!(put(&mut link, &mut cursor), Err(Trouble::Broken { peer: 1, cause }));
}

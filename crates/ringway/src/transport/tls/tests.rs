//! Streams over loopback, whole and disturbed.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustls::crypto::CryptoProvider;

use super::handshake::{LaneSecrets, Refusal, Role, provider, secure, secure_by};
use super::*;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn secrets(seed: u8) -> LaneSecrets {
    LaneSecrets { dialer: [seed; 32], acceptor: [seed ^ 0x55; 32] }
}

/// Two ends of a connection, neither of which blocks.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dialer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (acceptor, _) = listener.accept().unwrap();
    for socket in [&dialer, &acceptor] {
        socket.set_nonblocking(true).unwrap();
    }
    (dialer, acceptor)
}

type Outcome = Result<Secured, Refusal>;

/// Both handshakes at once.
fn meet(
    (dialer, acceptor): (&TcpStream, &TcpStream),
    (of_dialer, of_acceptor): (&LaneSecrets, &LaneSecrets),
) -> (Outcome, Outcome) {
    thread::scope(|scope| {
        let other = scope.spawn(|| secure(acceptor, Role::Acceptor, of_acceptor, soon()));
        let own = secure(dialer, Role::Dialer, of_dialer, soon());
        (own, other.join().unwrap())
    })
}

fn streams((dialer, acceptor): (TcpStream, TcpStream)) -> (TlsStream, TlsStream) {
    let secrets = secrets(7);
    let (own, other) = meet((&dialer, &acceptor), (&secrets, &secrets));
    (
        TlsStream::new(dialer, own.unwrap()).unwrap(),
        TlsStream::new(acceptor, other.unwrap()).unwrap(),
    )
}

fn pair() -> (TlsStream, TlsStream) {
    streams(sockets())
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        usize::try_from((mixed ^ (mixed >> 29)) % end as u64).unwrap()
    }

    /// Mostly small, sometimes past a record, seldom past all that is encrypted at once.
    fn length(&mut self) -> usize {
        match self.below(8) {
            0 => self.below(600 << 10),
            1 | 2 => self.below(40 << 10),
            _ => self.below(200),
        }
    }
}

fn data(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..bytes).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
}

/// One direction of a conversation: what is to come, and how far it has.
struct Talk<'a> {
    ends: (&'a TlsStream, &'a TlsStream),
    whole: Vec<u8>,
    sent: usize,
    came: Vec<u8>,
}

impl<'a> Talk<'a> {
    fn new(ends: (&'a TlsStream, &'a TlsStream), bytes: usize, seed: u64) -> Self {
        Self { ends, whole: data(bytes, seed), sent: 0, came: Vec::new() }
    }

    fn is_over(&self) -> bool {
        self.came.len() == self.whole.len()
    }

    /// Sends up to three parts and reads once, of random lengths. Whether something moved.
    fn step(&mut self, random: &mut Random) -> bool {
        let rest = &self.whole[self.sent..];
        let (first, rest) = rest.split_at(random.length().min(rest.len()));
        let (second, rest) = rest.split_at(random.length().min(rest.len()));
        let third = &rest[..random.length().min(rest.len())];
        let parts = [first, second, third].map(IoSlice::new);
        let sent = self.ends.0.send(&parts).unwrap();
        self.sent += sent;
        let mut room = vec![0; random.length() + 1];
        let got = match self.ends.1.receive(&mut room) {
            Arrival::Bytes(got) => got,
            Arrival::Nothing => 0,
            other => panic!("{other:?}"),
        };
        self.came.extend_from_slice(&room[..got]);
        sent + got > 0
    }

    fn check(&self) {
        assert!(self.came == self.whole, "other bytes came");
    }
}

fn converse(ends: (&TlsStream, &TlsStream), bytes: usize, seed: u64) {
    let mut random = Random(seed);
    let mut there = Talk::new(ends, bytes, seed + 1);
    let mut back = Talk::new((ends.1, ends.0), bytes / 2, seed + 2);
    let limit = soon();
    while !(there.is_over() && back.is_over()) {
        there.step(&mut random);
        back.step(&mut random);
        assert!(Instant::now() < limit, "{} and {}", there.came.len(), back.came.len());
    }
    there.check();
    back.check();
}

/// Whether something can be done at once.
fn is_ready(stream: &TlsStream, wanted: PollFlags) -> bool {
    let (descriptor, flags) = stream.interest(wanted).unwrap();
    let mut fds = [PollFd::from_borrowed_fd(descriptor, flags)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

/// Reads until the stream has ended: what came, and why.
fn drain(stream: &TlsStream) -> (Vec<u8>, String) {
    let (mut came, mut room) = (Vec::new(), vec![0; 100_000]);
    let limit = soon();
    loop {
        match stream.receive(&mut room) {
            Arrival::Bytes(got) => came.extend_from_slice(&room[..got]),
            Arrival::Nothing => thread::sleep(Duration::from_millis(1)),
            Arrival::End(why) => return (came, why),
            Arrival::Placed(_) => panic!("nothing is placed here"),
        }
        assert!(Instant::now() < limit, "it does not end");
    }
}

#[test]
fn random_splits_come_out_as_they_went_in() {
    for seed in 1..6 {
        let (dialer, acceptor) = pair();
        converse((&dialer, &acceptor), 4 << 20, seed * 100);
    }
}

#[test]
fn a_full_socket_holds_the_sender_back_and_loses_nothing() {
    let (dialer, acceptor) = pair();
    let whole = data(64 << 20, 3);
    let mut sent = 0;
    loop {
        match dialer.send(&[IoSlice::new(&whole[sent..])]).unwrap() {
            0 => break,
            more => sent += more,
        }
    }
    assert!(sent > 0 && sent < whole.len(), "{sent} bytes went where nobody reads");
    // What waits here is not out, and who sleeps is woken when it can go.
    assert!(!dialer.settled().unwrap());
    let (_, flags) = dialer.interest(PollFlags::empty()).unwrap();
    assert_eq!(flags, PollFlags::OUT);
    assert!(!is_ready(&dialer, PollFlags::empty()));
    let (mut came, mut room) = (Vec::new(), vec![0; 300_000]);
    let limit = soon();
    // Asked each time: whoever waits looks after what waits here.
    while !dialer.settled().unwrap() || came.len() < sent {
        if let Arrival::Bytes(got) = acceptor.receive(&mut room) {
            came.extend_from_slice(&room[..got]);
        }
        assert!(Instant::now() < limit, "{} of {sent} came", came.len());
    }
    assert!(came == whole[..sent], "other bytes came");
    assert!(!is_ready(&dialer, PollFlags::IN), "it is settled, and nothing is to be read");
}

#[test]
fn nobody_sleeps_on_bytes_that_are_decrypted() {
    let (dialer, acceptor) = pair();
    assert!(!is_ready(&acceptor, PollFlags::IN), "nothing has come yet");
    assert_eq!(dialer.send(&[IoSlice::new(b"abc")]).unwrap(), 3);
    let mut room = [0];
    let limit = soon();
    while !matches!(acceptor.receive(&mut room), Arrival::Bytes(1)) {
        assert!(Instant::now() < limit);
    }
    // The socket is empty: all of the record is inside.
    let mut fds = [PollFd::new(&acceptor.socket, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())).unwrap(), 0);
    for letter in [b'b', b'c'] {
        assert!(is_ready(&acceptor, PollFlags::IN));
        assert!(matches!(acceptor.receive(&mut room), Arrival::Bytes(1)));
        assert_eq!(room, [letter]);
    }
    assert!(!is_ready(&acceptor, PollFlags::IN));
    assert!(matches!(acceptor.receive(&mut room), Arrival::Nothing));
}

#[test]
fn what_is_closed_and_what_is_cut_differ() {
    let (dialer, acceptor) = pair();
    dialer.send(&[IoSlice::new(b"all of it")]).unwrap();
    drop(dialer);
    assert_eq!(drain(&acceptor), (b"all of it".to_vec(), CLOSED.to_owned()));

    let (dialer, acceptor) = pair();
    dialer.send(&[IoSlice::new(b"a part")]).unwrap();
    dialer.socket.shutdown(Shutdown::Write).unwrap();
    let (came, why) = drain(&acceptor);
    assert_eq!(came, b"a part");
    assert!(why.contains("was cut"), "{why}");
    assert!(is_ready(&acceptor, PollFlags::IN), "an end is something to look at");
}

/// Hands bytes on from one connection to another; keeps them, and changes one when told to.
#[derive(Clone, Default)]
struct Relay {
    seen: Arc<Mutex<Vec<u8>>>,
    spoil: Arc<AtomicBool>,
}

impl Relay {
    /// The ends of a connection through the relay; what the dialer sends is kept, or spoilt.
    fn sockets(&self) -> (TcpStream, TcpStream) {
        let (dialer, near) = sockets();
        let (far, acceptor) = sockets();
        for socket in [&near, &far] {
            socket.set_nonblocking(false).unwrap();
        }
        let (back, forth) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let relay = self.clone();
        thread::spawn(move || relay.pass(near, far));
        thread::spawn(move || Self::default().pass(forth, back));
        (dialer, acceptor)
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(got @ 1..) = from.read(&mut bytes) {
            if self.spoil.load(Ordering::SeqCst) {
                bytes[got - 1] ^= 1;
            }
            self.seen.lock().unwrap().extend_from_slice(&bytes[..got]);
            if to.write_all(&bytes[..got]).is_err() {
                break;
            }
        }
        let _already_closed = to.shutdown(Shutdown::Write);
    }
}

fn holds(bytes: &[u8], pattern: &[u8]) -> bool {
    bytes.windows(pattern.len()).any(|window| window == pattern)
}

#[test]
fn what_passes_by_is_not_what_was_said() {
    let relay = Relay::default();
    let (dialer, acceptor) = streams(relay.sockets());
    let said = b"nobody on the path reads these words".repeat(1000);
    dialer.send(&[IoSlice::new(&said)]).unwrap();
    drop(dialer);
    assert_eq!(drain(&acceptor), (said.clone(), CLOSED.to_owned()));
    let seen = relay.seen.lock().unwrap();
    assert!(seen.len() > said.len());
    assert!(!holds(&seen, b"these words"));
}

#[test]
fn a_bit_that_is_changed_ends_the_stream_at_both_ends() {
    let relay = Relay::default();
    let (dialer, acceptor) = streams(relay.sockets());
    relay.spoil.store(true, Ordering::SeqCst);
    dialer.send(&[IoSlice::new(b"pay 100")]).unwrap();
    let (came, why) = drain(&acceptor);
    assert_eq!(came, b"", "nothing of a record comes out that does not authenticate");
    assert!(why.contains("changed on the way"), "{why}");
    acceptor.send(&[IoSlice::new(b"more")]).unwrap_err();
    let (came, why) = drain(&dialer);
    assert_eq!(came, b"");
    assert!(why.contains("BadRecordMac"), "{why}");
}

#[test]
fn who_holds_another_key_is_refused_by_both() {
    let right = secrets(1);
    let wrong =
        |dialer: u8, acceptor: u8| LaneSecrets { dialer: [dialer; 32], acceptor: [acceptor; 32] };
    // Another secret; only one of the keys; both exchanged, as by who reflects what it is sent.
    for other in [
        secrets(2),
        LaneSecrets { dialer: [9; 32], ..right.clone() },
        LaneSecrets { acceptor: [9; 32], ..right.clone() },
        wrong(right.acceptor[0], right.dialer[0]),
    ] {
        for ends in [(&right, &other), (&other, &right)] {
            let (dialer, acceptor) = sockets();
            let (own, theirs) = meet((&dialer, &acceptor), ends);
            assert_eq!(own.err(), Some(Refusal::OtherKey));
            assert_eq!(theirs.err(), Some(Refusal::OtherKey));
        }
    }
}

#[test]
fn silence_garbage_and_a_close_are_refused_in_words() {
    let (dialer, _silent) = sockets();
    let limit = Instant::now() + Duration::from_millis(50);
    let refused = secure(&dialer, Role::Dialer, &secrets(1), limit).unwrap_err();
    assert_eq!(refused, Refusal::Timeout);

    let (dialer, mut other) = sockets();
    other.write_all(&[b'x'; 64]).unwrap();
    let refused = secure(&dialer, Role::Dialer, &secrets(1), soon()).unwrap_err();
    assert!(matches!(refused, Refusal::Failed(_)), "{refused}");

    let (other, acceptor) = sockets();
    drop(other);
    let refused = secure(&acceptor, Role::Acceptor, &secrets(1), soon()).unwrap_err();
    assert_eq!(refused, Refusal::Closed);
}

/// The provider, with keys that are good for so many records only.
fn short_lived(records: u64) -> CryptoProvider {
    let own = provider();
    let suites = own.cipher_suites.iter().filter_map(|suite| suite.tls13());
    let suites = suites.map(|suite| {
        let common =
            rustls::crypto::CipherSuiteCommon { confidentiality_limit: records, ..suite.common };
        let short = rustls::Tls13CipherSuite { common, ..*suite };
        rustls::SupportedCipherSuite::Tls13(Box::leak(Box::new(short)))
    });
    CryptoProvider { cipher_suites: suites.collect(), ..own }
}

#[test]
fn keys_are_renewed_under_way() {
    let secrets = secrets(5);
    let (dialer, acceptor) = sockets();
    let meet =
        |socket: &TcpStream, role| secure_by(socket, role, (&secrets, short_lived(6)), soon());
    let (own, other) = thread::scope(|scope| {
        let other = scope.spawn(|| meet(&acceptor, Role::Acceptor));
        (meet(&dialer, Role::Dialer).unwrap(), other.join().unwrap().unwrap())
    });
    let dialer = TlsStream::new(dialer, own).unwrap();
    let acceptor = TlsStream::new(acceptor, other).unwrap();
    converse((&dialer, &acceptor), 2 << 20, 77);
}

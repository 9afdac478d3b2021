//! What passes between hosts, seen from the switch: numbers that can be read, or none.

use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::hosts::{Family, Network, lines};
use crate::need;
use crate::process::{finish, ringway};

/// `ETH_P_ALL`.
const ALL_FRAMES: u16 = 3;

/// Packets that pass a network namespace, looked at until told to stop.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    bytes: u64,
    /// Packets with a row of small numbers in them.
    numbers: u64,
}

impl Watch {
    fn over(namespace: &str) -> Self {
        let file = File::open(format!("/run/netns/{namespace}")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        // The socket is opened by a thread that goes there and ends; it watches where it was opened.
        let socket = std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            open()
        });
        let socket = socket.join().unwrap();
        let thread = std::thread::spawn(move || look(&socket, &told));
        Self { stop, thread }
    }

    fn end(self) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

fn open() -> OwnedFd {
    let protocol = Protocol::from_raw(NonZeroU32::new(ALL_FRAMES.to_be().into()).unwrap());
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(protocol))
            .unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 8 << 20).unwrap();
    let wait = Some(std::time::Duration::from_millis(100));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, wait).unwrap();
    socket
}

fn look(socket: &OwnedFd, stop: &AtomicBool) -> Seen {
    let (mut seen, mut packet) = (Seen::default(), vec![0; 256 << 10]);
    loop {
        match rustix::net::recv(socket, &mut packet[..], RecvFlags::empty()) {
            Ok((got, _)) => {
                seen.bytes += got as u64;
                seen.numbers += u64::from(holds_numbers(&packet[..got]));
            }
            // What has come is looked at before the end.
            Err(_nothing) if stop.load(Ordering::SeqCst) => return seen,
            Err(_nothing) => {}
        }
    }
}

/// Whether 64 numbers of 32 bits stand in a row of which all are small, of either sign, and some differ.
fn holds_numbers(packet: &[u8]) -> bool {
    packet.windows(256).any(|window| {
        let (words, _) = window.as_chunks::<4>();
        words.iter().all(|word| word[1..] == [0; 3] || word[1..] == [0xff; 3])
            && words.iter().filter(|word| word[0] != words[0][0]).count() >= 8
    })
}

#[test]
fn rows_of_numbers_are_told_from_noise() {
    let numbers: Vec<u8> = (0..80_i32).flat_map(|n| (n % 7 - 3).to_le_bytes()).collect();
    assert!(holds_numbers(&[&[1, 2, 3], &numbers[..]].concat()));
    assert!(!holds_numbers(&numbers[..200]));
    assert!(!holds_numbers(&[0; 4096]));
    let noise: Vec<u8> =
        (0..4096_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    assert!(!holds_numbers(&noise));
}

/// Sums of small numbers, so that those on the wire are small too.
const SUMS: [&str; 12] =
    ["all_reduce", "-b", "256K", "-e", "256K", "-d", "int32", "-o", "sum", "-n2", "-c", "1"];

#[test]
fn numbers_between_hosts_can_be_read_without_tls_and_not_with_it() {
    if !need::namespaces() {
        return;
    }
    let network = Network::new(2, Family::V4);
    let watch = Watch::over(&network.switch());
    let ends = network.run(&SUMS, &[]);
    let plain = watch.end();
    assert!(plain.numbers > 0, "the test sees nothing: {plain:?}\n{}", ends[0].stderr);

    let watch = Watch::over(&network.switch());
    let ends = network.run(&SUMS, &[("RINGWAY_TLS", "1")]);
    let hidden = watch.end();
    assert_eq!(hidden.numbers, 0, "{hidden:?}");
    assert!(hidden.bytes > 256 << 10, "{hidden:?} against {plain:?}");
    // Inside a host nothing has changed, and the log says what goes between.
    assert_eq!(lines(&ends[0], &["0[0] -> 1[1]", "via SHM"]).len(), 1, "{}", ends[0].stderr);
    let sockets: Vec<&str> =
        ends.iter().flat_map(|end| lines(end, &["via NET/Socket/0"])).collect();
    assert!(!sockets.is_empty());
    for line in sockets {
        assert!(line.contains("via NET/Socket/0/TLS ("), "{line}");
    }
    assert_eq!(lines(&ends[0], &["2 over sockets with TLS ("]).len(), 1, "{}", ends[0].stderr);
    assert_eq!(lines(&ends[0], &["uses no RDMA port: RINGWAY_TLS=1"]).len(), 1);
    assert!(ends[0].stdout.contains("tcp with TLS between them"), "{}", ends[0].stdout);
}

#[test]
fn who_asks_for_rdma_and_tls_is_told_that_both_cannot_be() {
    let mut command = ringway(&["perf", "all_reduce", "--ranks", "2", "-b", "8", "-e", "8"]);
    let end = finish(command.envs([("RINGWAY_TLS", "1"), ("RINGWAY_REQUIRE", "rdma")]));
    assert_ne!(end.status.code(), Some(0));
    let text = "RINGWAY_REQUIRE=rdma contradicts RINGWAY_TLS=1";
    assert!(end.stderr.contains(text), "{}", end.stderr);
}

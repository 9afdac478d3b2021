//! Verbs on real devices: those of the RDMA machine (`.ci/rdma`), rxea0 and rxeb0 being the two ends
//! of one cable.

use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::*;

/// No wait here is longer.
const LIMIT: Duration = Duration::from_secs(60);

/// Says that a test needs the machine, unless it is there.
fn machine() -> bool {
    let here = std::env::var_os("RINGWAY_TEST_RDMA").is_some();
    if !here {
        eprintln!("needs the RDMA machine: run .ci/rdma");
    }
    here
}

fn rail(arguments: &[&str]) {
    let status = Command::new("rail").args(arguments).status().unwrap();
    assert!(status.success(), "rail {arguments:?}: {status}");
}

/// Takes until there is something, or fails.
fn within<T>(what: &str, mut take: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = take() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "no {what} in {LIMIT:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// One end of a connection, and memory for it.
struct End {
    context: Arc<Context>,
    port: Port,
    gid: GidEntry,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    memory: Arc<Memory>,
    mr: Mr,
    qp: Qp,
}

const CAPACITY: Capacity = Capacity { sends: 32, receives: 32, inline_bytes: 64 };

impl End {
    fn open(name: &str) -> Self {
        let devices = Verbs::open().unwrap().devices().unwrap();
        let device = devices.iter().find(|device| device.name() == name).unwrap();
        let context = device.open().unwrap();
        let port = context.port(1).unwrap();
        let gids = context.gids(&port).unwrap();
        let gid = gids.into_iter().find(|entry| entry.gid.ipv4().is_some()).unwrap();
        let pd = Pd::new(&context).unwrap();
        let cq = Cq::new(&context, 64, None).unwrap();
        let memory = Arc::new(Memory::new(1 << 20).unwrap());
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::RELAXED_ORDERING;
        let mr = memory.register(&pd, access).unwrap();
        let qp = Qp::new(&pd, &cq, &cq, None, CAPACITY).unwrap();
        Self { context, port, gid, pd, cq, memory, mr, qp }
    }

    fn path_to(&self, peer: &Self) -> Path {
        Path {
            port: 1,
            gid_index: u8::try_from(self.gid.index).unwrap(),
            pkey_index: 0,
            remote_gid: peer.gid.gid,
            remote_lid: peer.port.lid,
            remote_qp: peer.qp.number(),
            global: true,
            receive_psn: peer.qp.number() ^ 0x55,
            send_psn: self.qp.number() ^ 0x55,
            mtu: Mtu::from_number(self.port.active_mtu.min(peer.port.active_mtu)).unwrap(),
            service_level: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            timeout: 14,
            retries: 6,
            rnr_retries: 1,
            rnr_timer: 12,
            reads_asked: 4,
            reads_answered: 4,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        }
    }

    fn remote(&self, offset: u64) -> Remote {
        Remote { address: self.mr.base() + offset, key: self.mr.remote_key() }
    }

    fn request(&self, id: u64, operation: Operation, offset: usize, bytes: usize) -> Request<'_> {
        Request { id, operation, local: self.mr.part(offset, bytes), flags: Flags::SIGNALLED }
    }

    fn completion(&self) -> Completion {
        let mut found = [Completion::default(); 1];
        within("completion", || (self.cq.poll(&mut found).unwrap() == 1).then_some(found[0]))
    }

    fn has(&self, offset: usize, expected: &[u8]) -> bool {
        let mut found = vec![0; expected.len()];
        self.memory.read(offset, &mut found);
        found == expected
    }
}

/// The two ends of rail 0, connected.
fn pair() -> (End, End) {
    let (a, b) = (End::open("rxea0"), End::open("rxeb0"));
    a.qp.connect(&a.path_to(&b)).unwrap();
    b.qp.connect(&b.path_to(&a)).unwrap();
    assert_eq!(a.qp.state().unwrap(), QpState::ReadyToSend);
    (a, b)
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|index| u8::try_from((index * 7 + index / 251 + seed) % 256).unwrap()).collect()
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn devices_ports_and_addresses_are_seen() {
    if !machine() {
        return;
    }
    let devices = Verbs::open().unwrap().devices().unwrap();
    let mut names: Vec<_> = devices.iter().map(Device::name).collect();
    names.sort_unstable();
    assert!(names.contains(&"rxea0") && names.contains(&"rxeb1"), "{names:?}");
    let guids: std::collections::BTreeSet<_> = devices.iter().map(Device::guid).collect();
    assert_eq!(guids.len(), devices.len());
    let device = devices.iter().find(|device| device.name() == "rxea0").unwrap();
    assert_eq!((device.transport(), device.node_type()), (Transport::InfiniBand, 1));
    let context = device.open().unwrap();
    let limits = context.limits().unwrap();
    assert!(limits.ports == 1 && limits.requests >= 128 && limits.reads_answered > 0, "{limits:?}");
    let port = context.port(1).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert!(port.global_route_needed && port.active_mtu == 5, "{port:?}");
    let gids = context.gids(&port).unwrap();
    let ipv4 = gids.iter().find(|entry| entry.gid.ipv4() == Some([10, 77, 0, 1].into())).unwrap();
    assert_eq!((ipv4.kind, ipv4.interface.as_deref()), (GidKind::RoceV2, Some("ra0")));
    assert!(gids.iter().any(|entry| entry.gid.to_string() == "fd77::1"), "{gids:?}");
    assert_eq!(context.gids_one_by_one(&port).unwrap(), gids);
    assert_eq!(context.gid(1, ipv4.index).unwrap(), ipv4.gid);
    assert_eq!(context.pkey(1, 0).unwrap(), 0xffff);
    assert!(context.completion_vectors() >= 1);
    let error = context.port(9).unwrap_err().to_string();
    assert!(error.contains("rxea0:9"), "{error}");
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn bytes_written_read_and_sent_are_the_right_ones() {
    if !machine() {
        return;
    }
    let (a, b) = pair();
    let data = pattern(300_000, 1);
    a.memory.write(100, &data);
    a.qp.post(a.request(1, Operation::Write(b.remote(5000)), 100, data.len())).unwrap();
    let done = a.completion();
    assert!((done.id(), done.is_success()) == (1, true), "{done:?}");
    assert!(b.has(5000, &data) && b.has(4999, &[0]) && b.has(5000 + data.len(), &[0]));

    // With immediate, inline and with no byte: the receive says what came.
    b.qp.post_receive(70, None).unwrap();
    b.qp.post_receive(71, None).unwrap();
    a.memory.write(0, &pattern(64, 3));
    let imm = Operation::WriteWithImmediate(b.remote(0), 0x1234_5678);
    let inline = Flags { inline: true, ..Flags::SIGNALLED };
    a.qp.post(Request { flags: inline, ..a.request(2, imm, 0, 64) }).unwrap();
    a.memory.write(0, &[0; 64]);
    let bare = Operation::WriteWithImmediate(b.remote(0), 7);
    a.qp.post(Request { local: Part::NONE, ..a.request(3, bare, 0, 0) }).unwrap();
    let first = b.completion();
    assert_eq!((first.id(), first.immediate(), first.bytes()), (70, Some(0x1234_5678), 64));
    assert!(first.is_receive() && b.has(0, &pattern(64, 3)));
    assert_eq!(b.memory.byte(63).load(Ordering::Acquire), pattern(64, 3)[63]);
    let second = b.completion();
    assert_eq!((second.id(), second.immediate()), (71, Some(7)));
    assert_eq!([a.completion().id(), a.completion().id()], [2, 3]);

    let data = pattern(70_000, 9);
    b.memory.write(1000, &data);
    a.qp.post(a.request(4, Operation::Read(b.remote(1000)), 200_000, data.len())).unwrap();
    assert!(a.completion().is_success() && a.has(200_000, &data));

    b.qp.post_receive(72, Some(b.mr.part(500_000, 1 << 17))).unwrap();
    a.qp.post(a.request(5, Operation::SendWithImmediate(11), 200_000, data.len())).unwrap();
    let got = b.completion();
    assert_eq!((got.id(), got.bytes(), got.immediate()), (72, 70_000, Some(11)));
    assert!(got.queue_pair() == b.qp.number() && b.has(500_000, &data));
    assert!(a.completion().is_success());

    // A chain longer than one call takes, of which the last alone completes.
    let quiet = |id: u64| Request {
        flags: Flags { signalled: id == 119, ..Flags::default() },
        ..a.request(id, Operation::Write(b.remote(id * 64)), 200_000, 64)
    };
    a.qp.post_chain(&(100..120).map(quiet).collect::<Vec<_>>()).unwrap();
    assert_eq!(a.completion().id(), 119);
    assert!((100..120).all(|id| b.has(id * 64, &data[..64])));
    // More than the queue holds: as many as fit are posted, and the error says how many.
    let long = a.request(200, Operation::Write(b.remote(0)), 0, 1 << 20);
    let (posted, error) = a.qp.post_chain(&[long; 256]).unwrap_err();
    assert!((16..256).contains(&posted) && error.code() == Some(libc::ENOMEM), "{posted} {error}");
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_shared_queue_and_a_channel_serve_several_pairs() {
    if !machine() {
        return;
    }
    let (mut a, mut b) = (End::open("rxea0"), End::open("rxeb0"));
    let channel = CompletionChannel::new(&b.context).unwrap();
    let cq = Cq::new(&b.context, 64, Some((&channel, 42))).unwrap();
    let shared = Srq::new(&b.pd, 16).unwrap();
    b.qp = Qp::new(&b.pd, &cq, &cq, Some(&shared), CAPACITY).unwrap();
    a.qp = Qp::new(&a.pd, &a.cq, &a.cq, None, CAPACITY).unwrap();
    a.qp.connect(&a.path_to(&b)).unwrap();
    b.qp.connect(&b.path_to(&a)).unwrap();
    assert!(channel.take_event().unwrap().is_none());
    cq.notify(false).unwrap();
    shared.post_receive(5, None).unwrap();
    let imm = Operation::WriteWithImmediate(b.remote(0), 1);
    a.qp.post(a.request(1, imm, 0, 8)).unwrap();
    assert_eq!(within("event", || channel.take_event().unwrap()), 42);
    let mut found = [Completion::default(); 4];
    assert_eq!(within("receive", || Some(cq.poll(&mut found).unwrap()).filter(|n| *n > 0)), 1);
    assert_eq!(found[0].id(), 5);
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn failures_say_what_they_are() {
    if !machine() {
        return;
    }
    let (a, b) = pair();
    let wrong = Remote { key: b.mr.remote_key() ^ 0x55, ..b.remote(0) };
    a.qp.post(a.request(1, Operation::Write(wrong), 0, 4096)).unwrap();
    a.qp.post(a.request(2, Operation::Write(b.remote(0)), 0, 4096)).unwrap();
    let failed = a.completion();
    assert_eq!((failed.id(), failed.status()), (1, Status::REMOTE_ACCESS), "{failed:?}");
    assert_eq!(failed.queue_pair(), a.qp.number());
    assert!(
        failed.status().to_string().contains("REM_ACCESS_ERR (remote access error, status 10)")
    );
    let flushed = a.completion();
    assert_eq!((flushed.id(), flushed.status()), (2, Status::FLUSHED));
    assert_eq!(a.qp.state().unwrap(), QpState::Error);

    let (a, b) = pair();
    a.qp.post(a.request(1, Operation::WriteWithImmediate(b.remote(0), 0), 0, 8)).unwrap();
    assert_eq!(a.completion().status(), Status::RECEIVER_NOT_READY);

    // One that is failed on purpose gives its receives back.
    b.qp.post_receive(9, None).unwrap();
    b.qp.fail().unwrap();
    assert_eq!(
        within("flush", || Some(b.completion()).filter(|c| c.id() == 9)).status(),
        Status::FLUSHED
    );

    let (a, b) = (End::open("rxea0"), End::open("rxeb0"));
    let empty = Path { gid_index: 200, ..a.path_to(&b) };
    let error = a.qp.connect(&empty).unwrap_err().to_string();
    assert!(error.contains("rxea0:1 (GID index 200, peer ::ffff:10.77.0.2"), "{error}");
    let error = a.context.gid(1, 5000).unwrap_err().to_string();
    assert!(error.contains("GID index 5000"), "{error}");
    if !a.pd.context().verbs().has_dmabuf() {
        return;
    }
    // The devices of the machine have no dma-buf; the refusal says so.
    let pipe = rustix::pipe::pipe().unwrap().0;
    // SAFETY: nothing maps what is no memory at all.
    let refused = unsafe { a.pd.register_dmabuf(pipe.as_fd(), 0, 4096, 0, Access::LOCAL_WRITE) };
    let error = refused.unwrap_err().to_string();
    assert!(error.starts_with("ibv_reg_dmabuf_mr on rxea0 (4096 bytes) failed"), "{error}");
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_port_tells_when_its_cable_goes_and_comes_back() {
    if !machine() {
        return;
    }
    let devices = Verbs::open().unwrap().devices().unwrap();
    let device = devices.iter().find(|device| device.name() == "rxea1").unwrap();
    let context = device.open().unwrap();
    while context.take_event().unwrap().is_some() {}
    rail(&["cut", "1"]);
    let down =
        within("event", || context.take_event().unwrap().filter(|e| e.kind == EventKind::PortDown));
    assert_eq!(down.port, Some(1));
    assert_eq!(context.port(1).unwrap().state, PortState::Down);
    rail(&["restore", "1"]);
    let up = within("event", || {
        context.take_event().unwrap().filter(|e| e.kind == EventKind::PortActive)
    });
    assert_eq!((up.port, up.queue_pair), (Some(1), None));
    assert_eq!(context.port(1).unwrap().state, PortState::Active);
}

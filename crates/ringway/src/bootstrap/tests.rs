//! Joins over real sockets, with ranks as threads or processes; strangers included.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::thread;

use proptest::prelude::*;

use super::auth::Rejected;
use super::frame::{Decoder, Side};
use super::rendezvous::message;
use super::*;

fn options(seconds: f64) -> Options {
    Options { init_timeout: Duration::from_secs_f64(seconds), ..Options::default() }
}

/// Runs `body` once per entry, each on its own thread; the results in order.
fn together<A: Send, T: Send>(
    ranks: impl IntoIterator<Item = A>,
    body: impl Fn(A) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            ranks.into_iter().map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A port that nobody listens on at the moment.
fn free_port() -> u16 {
    socket::listen(None, 0).unwrap().local_addr().unwrap().port()
}

fn check(session: &mut Session, size: u32) {
    let rank = session.rank;
    assert_eq!(session.size, size);
    assert_eq!(session.peers.len(), size as usize);
    for (peer, at) in session.peers.iter().zip(0..) {
        assert_eq!(peer.rank, at);
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.blob, format!("blob of {at}").into_bytes());
    }
    let connected: Vec<Rank> = session.control.iter().map(|(peer, _)| *peer).collect();
    assert_eq!(connected, exchange::Overlay::of(rank, size).peers());
    // Blocks of different lengths, some larger than any socket buffer.
    for round in 0..3_usize {
        let block = |rank: Rank| vec![rank.to_le_bytes()[0]; (rank as usize * 35_000 + 1) * round];
        let gathered = session.all_gather(&block(rank)).unwrap();
        for (at, got) in (0..).zip(gathered) {
            assert!(got == block(at), "rank {rank} round {round} block {at}");
        }
    }
}

fn with_blob(rank: Rank, seconds: f64) -> Options {
    Options { blob: format!("blob of {rank}").into_bytes(), ..options(seconds) }
}

#[test]
fn ranks_join_by_unique_id() {
    for size in [1, 2, 3, 5, 8, 16] {
        let id = UniqueId::generate(&options(20.0)).unwrap();
        together(0..size, |rank| {
            let mut session = join_unique_id(&id, rank, size, &with_blob(rank, 20.0)).unwrap();
            check(&mut session, size);
        });
    }
}

#[test]
fn ranks_join_by_placement() {
    for size in [1, 2, 3, 5, 8, 16] {
        let root = format!("127.0.0.1:{}", free_port());
        together(0..size, |rank| {
            let place = Placement::explicit(rank, size, &root, "sesame").unwrap();
            // Twice over the same place: the second join does not meet the first.
            for _ in 0..2 {
                let mut session = join(&place, &with_blob(rank, 20.0)).unwrap();
                check(&mut session, size);
            }
        });
    }
}

#[test]
fn ranks_join_by_candidate_ports() {
    let environment = |rank: Rank| {
        let pairs = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "3".to_owned()),
            ("LOCAL_WORLD_SIZE", "3".to_owned()),
            ("MASTER_ADDR", "localhost".to_owned()),
            ("MASTER_PORT", "29500".to_owned()),
            ("TORCHELASTIC_RUN_ID", format!("test {}", std::process::id())),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    };
    let first = Placement::from_environment(&environment(0)).unwrap();
    let RootHint::Candidates { ports, .. } = &first.root else { panic!("{first:?}") };
    // Somebody else sits on the first port, and says nothing.
    let _squatter = socket::listen(None, ports[0]);
    together(0..3, |rank| {
        let place = Placement::from_environment(&environment(rank)).unwrap();
        let mut session = join(&place, &with_blob(rank, 20.0)).unwrap();
        check(&mut session, 3);
    });
}

#[test]
fn a_child_joins_through_its_parent() {
    let id = UniqueId::generate(&options(20.0)).unwrap();
    together(0..5, |rank| {
        let mut parent = join_unique_id(&id, rank, 5, &options(20.0)).unwrap();
        let key = Key::derive(parent.key.as_bytes(), b"child 1");
        // The ranks 0, 2, 4 in reverse order; 1 and 3 only help.
        let place = (rank % 2 == 0).then(|| (2 - rank / 2, 3));
        let mut exchange = |mine: Vec<u8>| {
            let all = parent.all_gather(&mine)?;
            Ok(vec![all[4].clone(), all[2].clone(), all[0].clone()])
        };
        match place {
            Some(place) => {
                let options = with_blob(place.0, 20.0);
                let mut child = join_through(&mut exchange, place, key, 77, &options).unwrap();
                assert_eq!(child.comm_id, 77);
                check(&mut child, 3);
            }
            None => drop(exchange(Vec::new()).unwrap()),
        }
    });
}

#[test]
fn a_data_connection_reaches_its_gate() {
    let id = UniqueId::generate(&options(20.0)).unwrap();
    together(0..2, |rank| {
        let mut session = join_unique_id(&id, rank, 2, &options(20.0)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        if rank == 0 {
            let purpose = Purpose::Data { connection: 3 };
            let (mut stream, _) = session.dial(1, purpose, 9, deadline).unwrap();
            stream.write_all(b"payload").unwrap();
            session.all_gather(&[]).unwrap();
        } else {
            let listener = session.listener.take().unwrap();
            let (key, refused) = (session.key.clone(), Arc::clone(&session.rejections));
            let mut gate = Gate::new(listener, key, (session.comm_id, 1), refused).unwrap();
            let admitted = gate.accept(deadline).unwrap().unwrap();
            assert_eq!(admitted.hello.purpose, Purpose::Data { connection: 3 });
            assert_eq!((admitted.hello.from, admitted.hello.tag), (0, 9));
            session.all_gather(&[]).unwrap();
            let mut text = [0; 7];
            admitted.stream.set_nonblocking(false).unwrap();
            (&admitted.stream).read_exact(&mut text).unwrap();
            assert_eq!(&text, b"payload");
        }
    });
}

/// The peer takes a connection once it has seen the proof: a dialer whose time is over just then still holds it.
#[test]
fn a_dialer_that_has_proved_itself_waits_for_the_verdict() {
    let id = UniqueId::generate(&options(20.0)).unwrap();
    together(0..2, |rank| {
        let mut session = join_unique_id(&id, rank, 2, &options(20.0)).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        if rank == 0 {
            let purpose = Purpose::Data { connection: 0 };
            let soon = Instant::now() + Duration::from_millis(300);
            let (mut stream, _) = session.dial(1, purpose, 1, soon).unwrap();
            stream.write_all(b"held").unwrap();
            session.all_gather(&[]).unwrap();
        } else {
            let listener = session.listener.take().unwrap();
            listener.set_nonblocking(false).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            let mut acceptor = auth::Acceptor::new(&session.key, None).unwrap();
            // Answers the hello; the proof is on its way then, and not looked at.
            stream.set_nonblocking(false).unwrap();
            stream.peek(&mut [0; auth::HELLO_BYTES]).unwrap();
            stream.set_nonblocking(true).unwrap();
            assert!(acceptor.advance(&stream).unwrap().is_none());
            // The proof comes meanwhile, and the dialer's time passes.
            thread::sleep(Duration::from_millis(700));
            while acceptor.advance(&stream).unwrap().is_none() {
                assert!(Instant::now() < end, "no proof");
                thread::sleep(Duration::from_millis(1));
            }
            session.all_gather(&[]).unwrap();
            let mut text = [0; 4];
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            (&stream).read_exact(&mut text).unwrap();
            assert_eq!(&text, b"held");
        }
    });
}

#[test]
fn missing_ranks_are_named_to_all() {
    let id = UniqueId::generate(&options(1.0)).unwrap();
    let start = Instant::now();
    let errors =
        together([0, 2, 4], |rank| join_unique_id(&id, rank, 8, &options(1.0)).unwrap_err());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let text = error.to_string();
        assert!(text.starts_with("rendezvous of 8 ranks timed out after 1.0 s: "), "{text}");
        assert!(text.contains("ranks 1, 3, 5–7 never came (asked at "), "{text}");
        assert!(text.contains("3 of 8 came"), "{text}");
    }
}

#[test]
fn a_missing_root_is_a_timeout_with_reasons() {
    let root = format!("127.0.0.1:{}", free_port());
    let place = Placement::explicit(1, 2, &root, "sesame").unwrap();
    let error = join(&place, &options(0.4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let text = error.to_string();
    assert!(text.contains(&root) && text.contains("connection refused"), "{text}");
}

#[test]
fn two_processes_with_one_rank_fail_everybody() {
    let id = UniqueId::generate(&options(20.0)).unwrap();
    let start = Instant::now();
    for error in together([0, 1, 1], |rank| join_unique_id(&id, rank, 3, &options(20.0))) {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("two processes claim rank 1"), "{text}");
        assert!(text.matches("pid").count() == 2, "{text}");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_different_size_fails_everybody() {
    let root = format!("127.0.0.1:{}", free_port());
    let errors = together([(0, 2), (1, 3)], |(rank, size)| {
        let place = Placement::explicit(rank, size, &root, "sesame").unwrap();
        join(&place, &options(20.0)).unwrap_err().to_string()
    });
    for text in errors {
        assert!(text.contains("disagree on their number"), "{text}");
        assert!(text.contains("rank 0 (host") && text.contains("rank 1 (host"), "{text}");
    }
}

#[test]
fn a_wrong_secret_is_told_from_a_missing_root() {
    let root = format!("127.0.0.1:{}", free_port());
    let errors = together([(0, "sesame"), (1, "simsim")], |(rank, secret)| {
        let place = Placement::explicit(rank, 2, &root, secret).unwrap();
        join(&place, &options(4.0)).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1 never came"), "{}", errors[0]);
    assert!(errors[0].contains("another secret: "), "counted: {}", errors[0]);
    assert!(errors[1].contains("holds another secret"), "{}", errors[1]);
}

#[test]
fn a_rank_that_dies_in_the_rendezvous_is_named() {
    let id = UniqueId::generate(&options(20.0)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let outcome = thread::scope(|scope| {
        let waiting = scope.spawn(|| join_unique_id(&id, 0, 2, &options(20.0)));
        // Rank 1 of 3 would be another error; this one says its JOIN and goes.
        let attempt_options = options(20.0);
        let attempt = Attempt::new(1, 2, &attempt_options).unwrap();
        let (me, _, _) = attempt.listen(&id.key(), id.communicator()).unwrap();
        let hello = Hello {
            purpose: Purpose::Join,
            from: 1,
            to: rendezvous::ROOT,
            communicator: id.communicator(),
            tag: 5,
        };
        let mut stream = TcpStream::connect(id.targets()[0].address).unwrap();
        let key = auth::dial(&mut stream, &id.key(), &hello, deadline).unwrap();
        let mut stream = ControlStream::new(stream, key, Side::Dialer).unwrap();
        let request = rendezvous::JoinRequest { size: 2, timeout_ms: 20_000, peer: me };
        stream.send(message::JOIN, &rendezvous::encode(&request), deadline).unwrap();
        drop(stream);
        waiting.join().unwrap()
    });
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Remote);
    assert_eq!(error.culprits().len(), 1);
    assert_eq!(error.culprits()[0].rank, 1, "{error}");
}

#[test]
fn strangers_do_not_delay_a_join_and_are_counted() {
    let key = Key::random().unwrap();
    let listener = socket::listen(None, 0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let refused = Arc::new(Rejections::default());
    let mut gate = Gate::new(listener, key.clone(), (1, 0), Arc::clone(&refused)).unwrap();
    let hello = Hello { purpose: Purpose::Control, from: 1, to: 0, communicator: 1, tag: 0 };
    let deadline = Instant::now() + Duration::from_secs(20);

    drop(connect()); // a port scanner
    connect().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let silent: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    let mut slow = connect(); // the beginning of a hello, and never its end
    slow.write_all(&auth::encode_hello(&hello, [0; 16])[..20]).unwrap();
    let mut forger = connect();
    forger.write_all(&auth::encode_hello(&hello, [0; 16])).unwrap();
    forger.write_all(&[7; 32]).unwrap();

    let start = Instant::now();
    let dialer = thread::spawn({
        let (key, mut stream, hello) = (key.clone(), connect(), hello);
        move || {
            let outcome = auth::dial(&mut stream, &key, &hello, deadline);
            (stream, outcome.map(drop))
        }
    });
    let admitted = gate.accept(deadline).unwrap().unwrap();
    assert_eq!(admitted.hello, hello);
    let (_kept, outcome) = dialer.join().unwrap();
    assert_eq!(outcome, Ok(()));
    assert!(start.elapsed() < Duration::from_secs(4), "nobody waited for the silent ones");

    let mut other = connect();
    let wrong = thread::spawn(move || {
        auth::dial(&mut other, &Key::from_bytes([0; 32]), &hello, deadline).map(drop)
    });
    let foreign = thread::spawn({
        let (mut stream, hello) = (connect(), Hello { communicator: 2, ..hello });
        let key = key.clone();
        move || auth::dial(&mut stream, &key, &hello, deadline).map(drop)
    });
    // A peer of the same job whose address this host shares.
    let neighbour = thread::spawn({
        let (mut stream, hello) = (connect(), Hello { to: 5, ..hello });
        move || auth::dial(&mut stream, &key, &hello, deadline).map(drop)
    });
    // Until the silent ones have had their five seconds.
    assert!(gate.accept(Instant::now() + Duration::from_millis(5500)).unwrap().is_none());
    assert_eq!(wrong.join().unwrap(), Err(Rejected::BadMac));
    assert_eq!(foreign.join().unwrap(), Err(Rejected::WrongPeer));
    assert_eq!(neighbour.join().unwrap(), Err(Rejected::WrongPeer));
    drop((silent, slow));

    assert_eq!(refused.of(&Rejected::Closed), 1, "{refused}");
    assert_eq!(refused.of(&Rejected::BadMagic), 1, "{refused}");
    assert_eq!(refused.of(&Rejected::Timeout), 41, "{refused}");
    assert_eq!(refused.of(&Rejected::BadMac), 2, "{refused}");
    assert_eq!(refused.of(&Rejected::WrongPeer), 2, "{refused}");
    assert!(refused.to_string().starts_with("47 connections were refused (not ringway: 1"));
}

#[test]
fn a_join_under_fire_succeeds() {
    let root_port = free_port();
    let root = format!("127.0.0.1:{root_port}");
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                if let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, root_port)) {
                    let garbage = [held.len().to_le_bytes()[0]; 100];
                    let _ = stream.write(&garbage[..held.len() % 100]);
                    if held.len() < 300 {
                        held.push(stream);
                    }
                }
            }
        });
        together(0..4, |rank| {
            if rank == 0 {
                thread::sleep(Duration::from_millis(100));
            }
            let place = Placement::explicit(rank, 4, &root, "sesame").unwrap();
            let mut session = join(&place, &with_blob(rank, 20.0)).unwrap();
            check(&mut session, 4);
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn frames_cannot_be_changed_replayed_or_reflected() {
    let key = SessionKey([9; 32]);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let mut sender = ControlStream::new(near, key.clone(), Side::Dialer).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    sender.send(300, b"first", deadline).unwrap();
    let mut wire = vec![0; 8 + 5 + 16];
    (&far).read_exact(&mut wire).unwrap();

    let feed = |side: Side, bytes: &[u8]| {
        let mut decoder = Decoder::new(key.clone(), side);
        let mut outcomes = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = rest.len().min(decoder.space().len());
            if count == 0 {
                break;
            }
            decoder.space()[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            match decoder.advance(count) {
                Ok(None) => {}
                Ok(Some(frame)) => outcomes.push(Ok(frame.body)),
                Err(why) => {
                    outcomes.push(Err(why));
                    break;
                }
            }
        }
        outcomes
    };
    assert_eq!(feed(Side::Acceptor, &wire), [Ok(b"first".to_vec())]);
    assert_eq!(feed(Side::Dialer, &wire), [Err(frame::FrameError::BadMac)], "reflected");
    let twice = [wire.clone(), wire.clone()].concat();
    assert_eq!(feed(Side::Acceptor, &twice)[1], Err(frame::FrameError::BadMac), "replayed");
    for at in 0..wire.len() {
        let mut changed = wire.clone();
        changed[at] ^= 1;
        assert!(!feed(Side::Acceptor, &changed).contains(&Ok(b"first".to_vec())), "byte {at}");
    }
    let huge = [0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0];
    assert!(matches!(feed(Side::Acceptor, &huge)[0], Err(frame::FrameError::Malformed { .. })));
    assert!(matches!(
        sender.queue(1, &vec![0; frame::BODY_MAX_BYTES + 1]),
        Err(frame::FrameError::TooLong { .. })
    ));
}

/// One rank of [`sixty_four_processes_join`]; does nothing unless started by it.
#[test]
fn child_rank() {
    let environment: launcher::Environment = std::env::vars().collect();
    if !environment.contains_key("RINGWAY_TEST_CHILD") {
        return;
    }
    let place = Placement::from_environment(&environment).unwrap();
    let mut session = join(&place, &options(30.0)).unwrap();
    let pids = session.all_gather(&std::process::id().to_le_bytes()).unwrap();
    assert_eq!(pids.len(), place.size as usize);
}

#[test]
fn sixty_four_processes_join() {
    let root = format!("127.0.0.1:{}", free_port());
    let start = Instant::now();
    let children: Vec<_> = (0..64)
        .map(|rank| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "bootstrap::tests::child_rank", "--test-threads=1"])
                .env("RINGWAY_TEST_CHILD", "1")
                .env("RINGWAY_RANK", rank.to_string())
                .env("RINGWAY_SIZE", "64")
                .env("RINGWAY_ROOT", &root)
                .env("RINGWAY_SECRET", "sesame")
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    println!("64 processes started, joined and ended in {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

proptest! {
    #[test]
    fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = auth::decode_hello(&bytes);
        let _ = UniqueId::from_bytes(&bytes);
        let _ = PeerInfo::decode(&bytes);
        let _ = rendezvous::decode_join(&bytes);
        let _ = rendezvous::decode_welcome(&bytes);
        let _ = rendezvous::decode_failure(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        let _ = text.parse::<UniqueId>();
        let _ = launcher::first_host(&text);
        let _ = launcher::uri_hosts(&text);
        let _ = pmi::value(&text, "cmd");
        let mut decoder = Decoder::new(SessionKey([0; 32]), Side::Acceptor);
        for &byte in &bytes {
            let Some(slot) = decoder.space().first_mut() else { break };
            *slot = byte;
            if decoder.advance(1).is_err() {
                break;
            }
        }
    }

    #[test]
    fn damaged_ids_and_hellos_are_refused_or_sound(at in 0_usize..128, bit in 0_u32..8) {
        let hello =
            Hello { purpose: Purpose::Join, from: 1, to: 2, communicator: 3, tag: 4 };
        let mut bytes = auth::encode_hello(&hello, [5; 16]);
        prop_assert_eq!(auth::decode_hello(&bytes), Ok((hello, [5; 16])));
        bytes[at % auth::HELLO_BYTES] ^= 1 << bit;
        prop_assert_ne!(auth::decode_hello(&bytes), Ok((hello, [5; 16])));
        let info = PeerInfo::here(3, 99, Survey::default(), vec![1, 2, 254]);
        prop_assert_eq!(PeerInfo::decode(&rendezvous::encode(&info)).unwrap(), info);
    }

    #[test]
    fn environments_never_panic(
        values in prop::collection::vec(("[A-Z_]{0,4}", "[0-9a-z:\\[\\],;/.-]{0,12}"), 0..6),
        rank in "[0-9x]{0,3}", size in "[0-9x]{0,3}", list in "\\PC{0,20}",
    ) {
        let mut environment: launcher::Environment = values.into_iter().collect();
        environment.insert("SLURM_PROCID".into(), rank);
        environment.insert("SLURM_NTASKS".into(), size);
        environment.insert("SLURM_JOB_NODELIST".into(), list);
        let _ = Placement::from_environment(&environment);
    }
}

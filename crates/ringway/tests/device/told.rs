//! What those who watch a job are told of calls on GPU memory.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringway::config::Source;
use ringway::control::{Condition, Standing, askable};
use ringway::testing::world_with;
use ringway::{Call, Collective, Communicator, DataType, DeviceQueue, Place};

use crate::{staged, world};

/// A socket of one test's own, and the setting that serves metrics there.
fn place(name: &str) -> (PathBuf, String) {
    let name = format!("ringway-told-{name}-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let setting = format!("unix:{}", path.display());
    (path, setting)
}

/// Samples of a metric with this end of its labels: rank 0's, those of `comm` first.
fn samples(path: &Path, comm: &Communicator, name: &str, end: &str) -> [Vec<f64>; 2] {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let own = format!("communicator=\"{}\",", comm.trace().communicator);
    let mut found = [Vec::new(), Vec::new()];
    for line in reply.lines().filter(|line| line.starts_with(&format!("{name}{{"))) {
        let (labels, value) = line.rsplit_once(' ').unwrap();
        if labels.contains("rank=\"0\"") && labels.ends_with(end) {
            found[usize::from(!labels.contains(&own))].push(value.parse().unwrap());
        }
    }
    found
}

/// Three sums of 1000 floats, and a message there and back of 100 bytes.
fn calls(comm: &Communicator) {
    let queue = DeviceQueue::new(comm, &[4000, 4000]).unwrap();
    let (from, to) = (Place { area: 0, offset: 0 }, Place { area: 1, offset: 0 });
    let other = 1 - comm.rank();
    comm.barrier().unwrap();
    for _ in 0..3 {
        let call = Call::new(Collective::AllReduce, DataType::F32, 1000);
        queue.collective(&call, from, to).unwrap();
        queue.finish().unwrap();
        comm.barrier().unwrap();
    }
    queue.send_recv(100, (other, from), (other, to)).unwrap();
    queue.finish().unwrap();
    comm.barrier().unwrap();
}

/// What rank 0 of a communicator says of all.
fn standing(comm: &Communicator) -> Standing {
    let number = comm.trace().communicator;
    let number = u64::from_str_radix(number.trim_start_matches("0x"), 16).unwrap();
    let mut all = askable().into_iter();
    let own = all.find(|one| one.communicator == number && one.rank == 0).unwrap();
    own.ask(Duration::from_secs(5)).unwrap()
}

const SUMS: &str = "collective=\"all_reduce\"}";
const MESSAGES: &str = "collective=\"send_recv\"}";

#[test]
fn calls_are_counted_when_they_are_enqueued() {
    let Some(mut config) = world::config() else { return };
    let (path, setting) = place("direct");
    config.set("RINGWAY_METRICS", &setting, Source::Default).unwrap();
    world_with(2, &config, |comm| {
        comm.attach_gpu(None).unwrap();
        calls(comm);
        if comm.rank() == 0 {
            let of = |name, end| samples(&path, comm, name, end);
            assert_eq!(of("ringway_device_operations_total", SUMS), [vec![3.0], vec![]]);
            assert_eq!(of("ringway_device_bytes_total", SUMS), [vec![12_000.0], vec![]]);
            assert_eq!(of("ringway_device_operations_total", MESSAGES), [vec![2.0], vec![]]);
            assert_eq!(of("ringway_device_bytes_total", MESSAGES), [vec![200.0], vec![]]);
            // When they ended nobody knows: they are no operations with a time.
            assert!(of("ringway_operations_total", SUMS).concat().is_empty());
            let trace = comm.trace();
            let launches: Vec<_> = trace.launches.iter().map(|one| one.collective).collect();
            let expected = [[Collective::AllReduce; 3].as_slice(), &[Collective::SendRecv]];
            assert_eq!(launches, expected.concat());
            assert!(trace.calls.iter().all(|call| call.collective != Collective::AllReduce));
        }
        comm.barrier().unwrap();
    });
}

/// A rank that does not come is named while the kernel of another waits for it, before any deadline.
#[test]
fn who_waits_in_a_kernel_is_told_while_it_waits() {
    let Some(mut config) = world::config() else { return };
    // Where it fails, what a kernel waits for does not come.
    config.timeout = world::patience(60);
    let (path, setting) = place("waits");
    config.set("RINGWAY_METRICS", &setting, Source::Default).unwrap();
    let asked = AtomicBool::new(false);
    let wait_until = |what: &str, done: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < world::patience(30), "not in time: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    world_with(2, &config, |comm| {
        comm.attach_gpu(None).unwrap();
        let queue = DeviceQueue::new(comm, &[4000]).unwrap();
        let at = Place { area: 0, offset: 0 };
        let call = |count| Call::new(Collective::AllReduce, DataType::F32, count);
        queue.collective_in_place(&call(9), at).unwrap();
        queue.finish().unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            let waiting = || samples(&path, comm, "ringway_device_waiting_seconds", "}")[0].clone();
            assert_eq!(waiting(), [0.0]);
            queue.collective_in_place(&call(1000), at).unwrap();
            wait_until("why", &|| standing(comm).condition != Condition::Healthy);
            let told = standing(comm);
            assert_eq!(told.culprits, [1], "{}", told.text);
            let late = "has put no more than launch 1 (all_reduce of 9 float sum) on its GPU, while rank 0 waits for it";
            assert!(told.text.contains(late), "{}", told.text);
            let kernel = told.seats[0].state.unwrap().kernel.unwrap();
            assert_eq!((kernel.launch, kernel.waiting_on), (2, 1));
            assert_eq!(kernel.call.map(|call| call.count), Some(1000));
            assert!(waiting()[0] >= 1.0, "{:?}", waiting());
            asked.store(true, Ordering::Release);
        } else {
            // Away in code of its own, of which the communicator knows nothing.
            wait_until("rank 0", &|| asked.load(Ordering::Acquire));
            queue.collective_in_place(&call(1000), at).unwrap();
        }
        queue.finish().unwrap();
        wait_until("the kernel goes on", &|| {
            standing(comm).seats.iter().all(|seat| seat.state.unwrap().kernel.is_none())
        });
        comm.barrier().unwrap();
    });
}

#[test]
fn staged_calls_are_operations_of_communicators_of_the_library_too() {
    let (path, setting) = place("staged");
    let settings = [("RINGWAY_METRICS", setting.as_str())];
    staged::hosts_with(&[0, 1], &[], &settings, move |comm| {
        calls(comm);
        if comm.rank() == 0 {
            let of = |name, end| samples(&path, comm, name, end);
            assert_eq!(of("ringway_device_operations_total", SUMS), [vec![3.0], vec![]]);
            let [own, others] = of("ringway_operations_total", SUMS);
            assert_eq!((own.len(), others.iter().sum::<f64>()), (0, 3.0), "one chunk each");
            let trace = comm.trace();
            assert_eq!((trace.launches_begun, trace.launches.len()), (0, 0));
        }
        comm.barrier().unwrap();
    });
}

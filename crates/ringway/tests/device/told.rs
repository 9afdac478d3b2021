//! What those who watch a job are told of calls on GPU memory.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use ringway::config::Source;
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

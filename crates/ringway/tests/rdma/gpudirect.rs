//! Adapters that read and write GPU memory in collectives. The fake driver's GPU memory is host memory, which soft-RoCE
//! takes as if a peer memory module were there; it takes no dma-buf.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringway::config::{Config, Source};
use ringway::plan::problem::{Counts, Problem};
use ringway::{
    Call, Collective, Communicator, DataType, DeviceQueue, Level, Place, ReduceOp, Result,
};

use crate::direct::carried;
use crate::fakes;
use crate::faults::Mended;
use crate::gpu::with_gpu;
use crate::harness::{Random, seed, settings, watchdog, world_each};
use crate::machine::{Log, is_here, rail, sent};
use crate::sweep::{Hosts, Rails};

const BOTH: Rails = Rails { both: true, family: "AF_INET", queue_pairs: "1" };

fn config(rank: u32, rails: Rails, more: &[(&str, &str)]) -> Config {
    let cuda = fakes::cuda().unwrap();
    let mut config = with_gpu(&cuda, Hosts::Rdma(rails).config(rank, settings(&[])));
    let usual =
        [("RINGWAY_GPUDIRECT", "1"), ("RINGWAY_TIMEOUT", "100s"), ("RINGWAY_GPU_CHANNELS", "1")];
    for (name, value) in usual.iter().chain(more) {
        config.set(name, value, Source::Default).unwrap();
    }
    config
}

/// Bytes of each of a queue's two areas.
const AREA: usize = 5 << 20;

fn queue(comm: &Communicator) -> DeviceQueue<'_> {
    DeviceQueue::new(comm, &[AREA, AREA]).unwrap()
}

const FROM: Place = Place { area: 0, offset: 0 };
const TO: Place = Place { area: 1, offset: 0 };

fn values(bytes: usize, stream: u64) -> Vec<u8> {
    let mut random = Random::new(seed(), stream);
    (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(bytes).collect()
}

/// What a rank gives to a call.
fn given(call: &Call, rank: u32, size: u32) -> Vec<u8> {
    let mut data = values(call.input_bytes(rank, size).unwrap(), u64::from(rank) << 40);
    // Fractions where they are added up as floats: none of them is no number.
    if call.data_type == DataType::F32 {
        for value in data.chunks_exact_mut(4) {
            let small = f32::from(i16::from_le_bytes([value[0], value[1]])) / 7.0;
            value.copy_from_slice(&small.to_le_bytes());
        }
    }
    data
}

/// What a rank gets; of what is computed, as the host computes it.
fn expected(comm: &Communicator, call: &Call) -> Vec<u8> {
    let (me, size) = (comm.rank(), comm.size());
    let block = |rank: u32| {
        let count = match &call.counts {
            Some(Counts::PerRank(counts)) => counts[rank as usize],
            _ => call.count,
        };
        usize::try_from(count).unwrap() * call.data_type.size()
    };
    let before = |rank: u32| (0..rank).map(block).sum::<usize>();
    let part = |of: u32, rank: u32| {
        given(call, of, size)[before(rank)..before(rank) + block(rank)].to_vec()
    };
    let is_root = me == call.root;
    match call.collective {
        Collective::Gather if !is_root => Vec::new(),
        Collective::AllGather | Collective::Gather => {
            (0..size).flat_map(|rank| given(call, rank, size)).collect()
        }
        Collective::AllToAll => (0..size).flat_map(|rank| part(rank, me)).collect(),
        Collective::Broadcast => given(call, call.root, size),
        Collective::Scatter => part(call.root, me),
        _ => {
            let mut folded = vec![0; call.output_bytes(me, size).unwrap()];
            comm.call(call, &given(call, me, size), &mut folded).unwrap();
            folded
        }
    }
}

/// A call on GPU memory, apart; and in place where it is asked for and the call has such a form.
fn compare(comm: &Communicator, queue: &DeviceQueue<'_>, call: &Call, in_place: bool) {
    let (rank, size) = (comm.rank(), comm.size());
    let (data, expected) = (given(call, rank, size), expected(comm, call));
    let read = |place: Place| {
        let mut found = vec![0; expected.len()];
        queue.read(place, &mut found).unwrap();
        found
    };
    let is_right = |found: &[u8], how: &str| {
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        let bytes = expected.len();
        assert_eq!(wrong, None, "{call:?} {how}, rank {rank} of {size}, {bytes} bytes");
    };
    queue.write(FROM, &data).unwrap();
    queue.write(TO, &vec![0xa5; expected.len()]).unwrap();
    comm.barrier().unwrap();
    queue.collective(call, FROM, TO).unwrap();
    is_right(&read(TO), "apart");
    let mut problem = Problem::new(call.collective, size, call.count, call.data_type);
    problem.root = call.root;
    if let Some(counts) = &call.counts {
        problem.counts = counts.clone();
    }
    if in_place && (0..size).any(|any| problem.in_place(any).is_some()) {
        let (of_input, of_output) = problem.in_place(rank).unwrap_or((0, 0));
        let place = |values: u64| Place {
            offset: usize::try_from(values).unwrap() * call.data_type.size(),
            ..TO
        };
        queue.write(place(of_output.saturating_sub(of_input)), &data).unwrap();
        comm.barrier().unwrap();
        queue.collective_in_place(call, TO).unwrap();
        is_right(&read(place(of_input.saturating_sub(of_output))), "in place");
    }
}

/// Messages in a circle, of lengths that make no whole lines; also few bytes, which look like nothing.
fn messages(comm: &Communicator, queue: &DeviceQueue<'_>) {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    for bytes in [0, 1, 7, 8, 9, 63, 64, 65, 5000, 300_001] {
        let of = |rank: u32| values(bytes, u64::from(rank) << 32 | bytes as u64);
        let (from, to) = (Place { offset: 3, ..FROM }, Place { offset: 5, ..TO });
        queue.write(from, &of(rank)).unwrap();
        queue.write(to, &vec![0x5a; bytes + 1]).unwrap();
        comm.barrier().unwrap();
        queue.send_recv(bytes, (next, from), (before, to)).unwrap();
        let mut came = vec![0; bytes + 1];
        queue.read(to, &mut came).unwrap();
        assert!(came[..bytes] == of(before) && came[bytes] == 0x5a, "{bytes} bytes");
    }
}

/// All collectives: blocks that no lines fit, more chunks than there are slots, and small ones, which go through pinned
/// memory, as all that is computed.
fn every_call(comm: &Communicator, queue: &DeviceQueue<'_>) {
    let root = comm.size() - 1;
    // The machine is slow with many more ranks than processors.
    let few = comm.size() < 4;
    let call = |collective: Collective, data_type, count| {
        let root = if collective.has_root() { root } else { 0 };
        Call::new(collective, data_type, count).root(root).level(Level::Shape).op(ReduceOp::Sum)
    };
    for collective in [
        Collective::AllToAll,
        Collective::Scatter,
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
    ] {
        compare(comm, queue, &call(collective, DataType::F32, 5003), few);
    }
    compare(comm, queue, &call(Collective::AllToAll, DataType::F32, 1000), false);
    let many = if comm.size() == 2 { 210_011 } else { 150_011 };
    for collective in [Collective::AllToAll, Collective::Scatter, Collective::AllGather] {
        if few {
            compare(comm, queue, &call(collective, DataType::F32, many), false);
        }
    }
    // Blocks of lengths of their own, empty ones among them.
    let mut counts = vec![70_001, 0, 17, 5000];
    counts.truncate(comm.size() as usize);
    for collective in
        [Collective::AllGather, Collective::ReduceScatter, Collective::Gather, Collective::Scatter]
    {
        let counts = Counts::PerRank(counts.clone().into());
        compare(comm, queue, &call(collective, DataType::U8, 0).counts(counts), few);
    }
    messages(comm, queue);
    // Calls that stand in the stream one behind the other use the same slots.
    let (size, bytes) = (comm.size() as usize, 40_000);
    let own = values(size * bytes, comm.rank().into());
    queue.write(FROM, &own).unwrap();
    comm.barrier().unwrap();
    let all_to_all = Call::new(Collective::AllToAll, DataType::U8, bytes as u64);
    for _ in 0..3 {
        // There and back again.
        queue.collective(&all_to_all, FROM, TO).unwrap();
        queue.collective(&all_to_all, TO, FROM).unwrap();
    }
    let mut back = vec![0; size * bytes];
    queue.read(FROM, &mut back).unwrap();
    assert!(back == own);
    comm.barrier().unwrap();
}

fn has_every_call(name: &'static str, ranks: u32, rails: Rails) {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog(name);
    let log = Log::begin();
    world_each(
        ranks,
        |rank| config(rank, rails, &[]),
        |comm| {
            let comm = comm.unwrap();
            comm.attach_gpu(Some(0)).unwrap();
            let path = comm.gpu_path().unwrap();
            assert!(path.contains(SAYS), "{path}");
            assert!(
                path.contains(":1 by peer memory, not by dma-buf: ibv_reg_dmabuf_mr"),
                "{path}"
            );
            assert!(comm.device_bytes() > 16 << 20);
            every_call(&comm, &queue(&comm));
        },
    );
    log.expect(&["0[0] -> 1[1] [send] via NET/IB/0/GDRDMA"]);
    log.expect(&["GPU : GPU 0", SAYS]);
}

/// How a communicator says that it is so.
const SAYS: &str = "what is only moved goes by adapters from GPU memory to GPU memory";

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn two_ranks_by_one_rail() {
    has_every_call("gpudirect::two_ranks_by_one_rail", 2, Rails { both: false, ..BOTH });
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn three_ranks_by_two_rails() {
    has_every_call("gpudirect::three_ranks_by_two_rails", 3, BOTH);
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn four_ranks_by_two_rails() {
    has_every_call("gpudirect::four_ranks_by_two_rails", 4, BOTH);
}

/// What is only moved is copied by nobody on the host: next to nothing of it goes through slots.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn values_are_copied_by_nobody() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("gpudirect::values_are_copied_by_nobody");
    let log = Log::begin();
    world_each(
        2,
        |rank| config(rank, BOTH, &[]),
        |comm| {
            let comm = comm.unwrap();
            comm.attach_gpu(Some(0)).unwrap();
            let queue = queue(&comm);
            let gather = Call::new(Collective::AllGather, DataType::U8, 1 << 20);
            let messages = 100_003;
            for _ in 0..3 {
                queue.collective(&gather, FROM, TO).unwrap();
                let other = 1 - comm.rank();
                queue.send_recv(messages, (other, FROM), (other, TO)).unwrap();
            }
            queue.finish().unwrap();
            comm.barrier().unwrap();
        },
    );
    // Links of the channel, and those of the communicator itself, by which ranks meet.
    let links = carried(&log);
    let moved = 3 * ((1 << 20) + 100_003);
    let found: Vec<_> = links.iter().filter(|(placed, _)| *placed > 0).collect();
    assert_eq!(found.len(), 2, "{links:?}");
    for (placed, copied) in found {
        assert!(*placed == moved && *copied < 64 << 10, "{links:?}");
    }
}

/// Three all_gathers of so many bytes a rank on GPU memory.
fn gathers(comm: &Communicator, bytes: usize) {
    comm.attach_gpu(Some(0)).unwrap();
    let queue = queue(comm);
    let gather = Call::new(Collective::AllGather, DataType::U8, bytes as u64);
    let of = |rank: u32| values(bytes, u64::from(rank));
    for _ in 0..3 {
        queue.write(FROM, &of(comm.rank())).unwrap();
        queue.collective(&gather, FROM, TO).unwrap();
        let mut all = vec![0; 2 * bytes];
        queue.read(TO, &mut all).unwrap();
        assert!(all[..bytes] == of(0) && all[bytes..] == of(1));
        queue.write(TO, &vec![0; 2 * bytes]).unwrap();
    }
    queue.finish().unwrap();
    comm.barrier().unwrap();
}

/// Adapters may write GPU memory and not read it: what rank 0 sends its driver copies first, what rank 1 sends goes by itself.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn what_is_sent_may_be_copied_first() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("gpudirect::what_is_sent_may_be_copied_first");
    let log = Log::begin();
    let bytes = 600_001;
    world_each(
        2,
        |rank| {
            let reads = if rank == 0 { "0" } else { "1" };
            config(rank, BOTH, &[("NCCL_NET_GDR_READ", reads)])
        },
        |comm| gathers(&comm.unwrap(), bytes),
    );
    let placed: Vec<_> = carried(&log).into_iter().filter(|(placed, _)| *placed > 0).collect();
    assert_eq!(placed.len(), 2, "{placed:?}");
    assert!(placed.iter().all(|(placed, _)| *placed == 3 * bytes as u64), "{placed:?}");
    let text = log.text();
    let copied = format!(
        "to rank 1 (host rdma-vm, pid {}): {} bytes were copied from GPU memory",
        std::process::id(),
        3 * bytes
    );
    let lines = text.lines().filter(|line| line.contains("were copied from GPU memory"));
    let lines: Vec<&str> = lines.collect();
    assert!(lines.len() == 1 && lines[0].contains(&copied), "{lines:?}, not {copied}");
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn adapters_stay_away_where_none_is_near_enough() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("gpudirect::adapters_stay_away_where_none_is_near_enough");
    world_each(
        2,
        |rank| config(rank, BOTH, &[("NCCL_NET_GDR_LEVEL", if rank == 1 { "LOC" } else { "PXB" })]),
        |comm| {
            let comm = comm.unwrap();
            gathers(&comm, 100_000);
            let path = comm.gpu_path().unwrap();
            assert!(path.contains("no GPUDirect RDMA: rank 1: NCCL_NET_GDR_LEVEL=LOC"), "{path}");
        },
    );
}

/// Runs calls on GPU memory until told to stop; all ranks agree on when.
fn calls_until(comm: &Communicator, queue: &DeviceQueue<'_>, stop: &AtomicBool) -> u32 {
    let gather = Call::new(Collective::AllGather, DataType::U8, 200_001);
    let bytes = usize::try_from(gather.count).unwrap();
    let mut rounds = 0;
    loop {
        let of = |rank: u32| values(bytes, u64::from(rounds * 2 + rank));
        queue.write(FROM, &of(comm.rank())).unwrap();
        queue.collective(&gather, FROM, TO).unwrap();
        let mut all = vec![0; 2 * bytes];
        queue.read(TO, &mut all).unwrap();
        assert!(all[..bytes] == of(0) && all[bytes..] == of(1), "round {rounds}");
        rounds += 1;
        let mut over = [u8::from(stop.load(Ordering::Acquire))];
        comm.broadcast(&mut over, 0).unwrap();
        if over[0] == 1 {
            return rounds;
        }
    }
}

/// While calls run: `harm`, some more of them, `mend`, some more.
fn disturbed(more: &[(&str, &str)], harm: &[&str], mend: &[&str]) {
    let (_mended, stop) = (Mended, AtomicBool::new(false));
    world_each(
        2,
        |rank| config(rank, BOTH, more),
        |comm| {
            let comm = comm.unwrap();
            comm.attach_gpu(Some(0)).unwrap();
            let queue = queue(&comm);
            std::thread::scope(|scope| {
                if comm.rank() == 0 {
                    scope.spawn(|| {
                        let moved = |bytes: u64| {
                            let (before, start) = (sent("ra0"), Instant::now());
                            while sent("ra0") - before < bytes {
                                if start.elapsed() > Duration::from_secs(5) {
                                    return; // by the socket nothing goes there
                                }
                                std::thread::sleep(Duration::from_millis(1));
                            }
                        };
                        moved(300_000);
                        harm.iter().for_each(|words| rail(words));
                        moved(600_000);
                        mend.iter().for_each(|words| rail(words));
                        moved(600_000);
                        stop.store(true, Ordering::Release);
                    });
                }
                calls_until(&comm, &queue, &stop);
            });
            comm.barrier().unwrap();
        },
    );
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_rail_is_cut_and_mended() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("gpudirect::a_rail_is_cut_and_mended");
    let log = Log::begin();
    disturbed(&[], &["cut 1"], &["restore 1"]);
    log.expect(&["rxea1:1", "link is down"]);
}

/// All goes by the socket meanwhile: the driver copies.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn both_rails_are_cut_and_mended() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("gpudirect::both_rails_are_cut_and_mended");
    let free = [("RINGWAY_TRANSPORT", "auto"), ("NCCL_SHM_DISABLE", "1")];
    disturbed(&free, &["cut 0", "cut 1"], &["restore 0", "restore 1"]);
}

/// What a rank does; nothing where it only leaves.
type Body = fn(&Communicator, &DeviceQueue<'_>) -> Option<Result<()>>;

/// Whoever waits for the other's word where its values go hears that there is none to come.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn different_calls_and_ranks_that_leave_are_told() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("gpudirect::different_calls_and_ranks_that_leave_are_told");
    let failed = |body: Body| {
        let outcomes = world_each(
            2,
            |rank| config(rank, BOTH, &[]),
            |comm| {
                let comm = comm.unwrap();
                comm.attach_gpu(Some(0)).unwrap();
                let queue = queue(&comm);
                let outcome = body(&comm, &queue)?;
                Some(outcome.and_then(|()| queue.finish()).unwrap_err().to_string())
            },
        );
        outcomes.into_iter().flatten().collect::<Vec<String>>()
    };
    let errors = failed(|comm, queue| {
        let count = if comm.rank() == 1 { 30_000 } else { 100_000 };
        let gather = Call::new(Collective::AllGather, DataType::U8, count);
        Some(queue.collective(&gather, FROM, TO))
    });
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|error| error.contains("mismatch")), "{errors:?}");
    // Too much is sent, too little, and where nothing is wanted.
    let sizes: [Body; 3] = [
        |comm, queue| Some(met(comm, queue, 200_000, 100)),
        |comm, queue| Some(met(comm, queue, 100, 200_000)),
        |comm, queue| Some(met(comm, queue, 100, 0)),
    ];
    for body in sizes {
        let errors = failed(body);
        assert!(errors.len() == 2, "{errors:?}");
        assert!(errors.iter().any(|error| error.contains("different sizes")), "{errors:?}");
    }
    // Rank 1 says goodbye; rank 0 only sends.
    let errors = failed(|comm, queue| {
        let gather = Call::new(Collective::Gather, DataType::U8, 100_000).root(1);
        (comm.rank() == 0).then(|| queue.collective(&gather, FROM, TO))
    });
    assert!(errors.len() == 1 && errors[0].contains("rank 1"), "{errors:?}");
}

/// Rank 0 sends so many bytes, and rank 1 receives so many.
fn met(comm: &Communicator, queue: &DeviceQueue<'_>, sent: usize, received: usize) -> Result<()> {
    match comm.rank() {
        0 => queue.send(sent, 1, FROM),
        _ => queue.recv(received, 0, TO),
    }
}

/// Memory of the fake's second GPU can be pinned by nobody: both ranks go through pinned memory, and say why.
#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn memory_that_adapters_do_not_reach_is_staged() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("gpudirect::memory_that_adapters_do_not_reach_is_staged");
    let attached = |more: &'static [(&str, &str)], body: fn(&Communicator, Result<()>)| {
        world_each(
            2,
            |rank| config(rank, BOTH, more),
            |comm| {
                let comm = comm.unwrap();
                let done = comm.attach_gpu(Some(comm.rank() as i32));
                body(&comm, done);
                comm.barrier().unwrap();
            },
        );
    };
    attached(&[], |comm, done| {
        done.unwrap();
        refusal(&comm.gpu_path().unwrap());
        let queue = queue(comm);
        compare(comm, &queue, &Call::new(Collective::AllGather, DataType::U8, 100_000), true);
        messages(comm, &queue);
    });
    attached(&[("RINGWAY_REQUIRE", "gdr")], |_, done| {
        let error = done.unwrap_err().to_string();
        assert!(error.contains("RINGWAY_REQUIRE=gdr is not met"), "{error}");
        refusal(&error);
    });
}

fn refusal(text: &str) {
    let words = [
        "rank 1: GPU 1 (",
        "rxeb0:1 does not reach it: dma-buf: cuMemGetHandleForAddressRange",
        "; peer memory: ibv_reg_mr on rxeb0",
        "modprobe nvidia_peermem",
    ];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

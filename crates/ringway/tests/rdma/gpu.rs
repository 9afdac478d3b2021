//! GPU memory and RDMA, with the fake CUDA driver. Calls go through pinned memory. `ringway net`: what is device memory to it is host memory to soft-RoCE,
//! which so takes it as if a peer memory module were there. It takes no dma-buf. Memory of the fake's GPU 1 can be pinned by
//! nobody (`FAKE_CUDA_SECRET`).

use std::sync::Arc;

use ringway::config::{Config, Source};
use ringway::device::Gpu;
use ringway::element::{as_bytes, as_bytes_mut};
use ringway::net::{BufferPlace, GpuDirectChoice, Kind, Operation, Row, Side};

use ringway::{Call, Collective, Communicator, DataType, DeviceQueue, Place, ReduceOp};

use crate::direct::carried;
use crate::fakes;
use crate::harness::{self, watchdog, world_each};
use crate::machine::{Log, is_here};
use crate::net::{run_sides, settings, test};
use crate::sweep::{Hosts, Rails};

/// Compiled where this runs first, with its kernels; the RDMA machine is slow at that.
#[test]
fn the_fake_driver_compiles() {
    if let Some(cuda) = fakes::cuda() {
        assert!(cuda.driver.exists());
        let config = with_gpu(&cuda, Hosts::Each.config(0, harness::settings(&[])));
        world_each(2, |_| config.clone(), |comm| called(&comm.unwrap(), 1000));
    }
}

pub(crate) fn with_gpu(cuda: &fakes::Cuda, mut config: Config) -> Config {
    config.cuda_library = Some(cuda.driver.clone());
    config.nvrtc_library = Some(cuda.nvrtc.clone());
    config
}

/// An all_reduce, an all_gather and messages of so many values on GPU memory.
fn called(comm: &Communicator, count: usize) {
    comm.attach_gpu(None).unwrap();
    let (rank, size) = (comm.rank(), comm.size());
    let bytes = 4 * count;
    let queue = DeviceQueue::new(comm, &[bytes, size as usize * bytes]).unwrap();
    let (from, to) = (Place { area: 0, offset: 0 }, Place { area: 1, offset: 0 });
    let value = |rank: u32, at: usize| at as i32 ^ rank as i32;
    let own: Vec<i32> = (0..count).map(|at| value(rank, at)).collect();
    queue.write(from, as_bytes(&own)).unwrap();
    let read = |count: usize| {
        let mut values = vec![0_i32; count];
        queue.read(to, as_bytes_mut(&mut values)).unwrap();
        values
    };
    let call = |collective| Call::new(collective, DataType::I32, count as u64);
    let sum = call(Collective::AllReduce).op(ReduceOp::Sum);
    queue.collective(&sum, from, to).unwrap();
    let sums = read(count);
    assert!((0..count).all(|at| sums[at] == (0..size).map(|rank| value(rank, at)).sum::<i32>()));
    queue.collective(&call(Collective::AllGather), from, to).unwrap();
    let all = read(size as usize * count);
    assert!((0..all.len()).all(|at| all[at] == value((at / count) as u32, at % count)));
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    queue.send_recv(bytes, (next, from), (before, to)).unwrap();
    let message = read(count);
    assert!((0..count).all(|at| message[at] == value(before, at)));
    comm.barrier().unwrap();
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn calls_go_by_rdma_through_pinned_memory() {
    if !is_here() {
        return;
    }
    let _watchdog = watchdog("gpu::calls_go_by_rdma_through_pinned_memory");
    let (cuda, log) = (fakes::cuda().unwrap(), Log::begin());
    let rails = Rails { both: true, family: "AF_INET", queue_pairs: "1" };
    let config = |rank| {
        let mut config = Hosts::Rdma(rails).config(rank, harness::settings(&[]));
        config.set("RINGWAY_TIMEOUT", "100s", Source::Default).unwrap();
        with_gpu(&cuda, config)
    };
    world_each(2, config, |comm| {
        let comm = comm.unwrap();
        called(&comm, 1 << 20);
        let path = comm.gpu_path().unwrap_or_default();
        assert!(path.contains("staged through pinned memory"), "{path}");
        assert_eq!(comm.carrier(1 - comm.rank()), "NET/IB");
    });
    // Adapters read and write the pinned memory itself.
    let links = carried(&log);
    let placed: u64 = links.iter().map(|(placed, _)| placed).sum();
    assert!(placed > 4 << 20, "{links:?}");
}

fn gpu(number: i32) -> Arc<Gpu> {
    let driver = fakes::cuda().unwrap().driver;
    let mut config = Config::default();
    config.cuda_library = Some(driver);
    Gpu::at(&config, number).unwrap()
}

fn side(device: &str, buffer: BufferPlace) -> Side {
    Side { device: Some(device.parse().unwrap()), buffer }
}

/// What the client hears of both sides' places, and its rows; both sides end well.
fn measured(kind: Kind, operation: Operation, client: BufferPlace, server: BufferPlace) -> String {
    let (mut places, mut rows) = (Vec::new(), 0);
    let sides = (side("rxea0", client), side("rxeb0", server));
    let test = test(kind, operation);
    let outcome = run_sides(
        &sides,
        &test,
        &settings(),
        &mut |place| places.push(place.to_owned()),
        &mut |row: &Row| {
            rows += 1;
            assert!(matches!(
                (kind, row),
                (Kind::Bandwidth, Row::Bandwidth(_)) | (Kind::Latency, Row::Latency(_))
            ));
        },
    );
    assert_eq!(outcome, (Ok(()), Ok(())), "{places:?}");
    assert_eq!(rows, test.sizes.len());
    places.join("\n")
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn gpu_memory_is_registered_or_the_reasons_are_told() {
    if !is_here() {
        return;
    }
    let direct = || BufferPlace::Gpu(gpu(0), GpuDirectChoice::Auto);
    for operation in [Operation::Write, Operation::Read, Operation::Send] {
        let places = measured(Kind::Bandwidth, operation, direct(), direct());
        for place in places.lines() {
            assert!(
                place.contains("GPU 0")
                    && place.contains("by peer memory; not by dma-buf: ibv_reg_dmabuf_mr"),
                "{place}"
            );
            assert!(place.contains("Linux 5.12"), "{place}");
        }
        if operation != Operation::Write {
            measured(Kind::Latency, operation, direct(), direct());
        }
    }
    let mixed = measured(Kind::Bandwidth, Operation::Write, BufferPlace::Host, direct());
    assert!(!mixed.lines().next().unwrap().contains("GPU"), "{mixed}");
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn memory_that_adapters_do_not_reach_is_copied() {
    if !is_here() {
        return;
    }
    let staged = || BufferPlace::Gpu(gpu(1), GpuDirectChoice::Auto);
    let asked = || BufferPlace::Gpu(gpu(0), GpuDirectChoice::Off);
    for operation in [Operation::Write, Operation::Read, Operation::Send] {
        for kind in [Kind::Bandwidth, Kind::Latency] {
            let places = measured(kind, operation, staged(), asked());
            let lines: Vec<&str> = places.lines().collect();
            let [client, server] = lines[..] else { panic!("{places}") };
            assert!(
                client.contains("GPU 1")
                    && client.contains(
                        "copied through host memory; not by dma-buf: cuMemGetHandleForAddressRange"
                    ),
                "{client}"
            );
            assert!(
                client.contains("; not by peer memory: ibv_reg_mr")
                    && client.contains("modprobe nvidia_peermem"),
                "{client}"
            );
            assert!(server.contains("copied through host memory, as asked"), "{server}");
        }
    }
}

#[test]
#[ignore = "needs the RDMA machine: .ci/rdma"]
fn a_strict_choice_is_kept_to() {
    if !is_here() {
        return;
    }
    let refused = |choice, number, kind, operation| {
        let sides = (
            side("rxea0", BufferPlace::Gpu(gpu(number), choice)),
            side("rxeb0", BufferPlace::Host),
        );
        let outcome =
            run_sides(&sides, &test(kind, operation), &settings(), &mut |_| {}, &mut |_| {});
        outcome.0.unwrap_err()
    };
    let error = refused(GpuDirectChoice::DmaBuf, 0, Kind::Bandwidth, Operation::Write);
    assert!(
        error.contains("rxea0:1 cannot reach GPU 0")
            && error.contains("by dma-buf: ibv_reg_dmabuf_mr on rxea0"),
        "{error}"
    );
    let error = refused(GpuDirectChoice::PeerMemory, 1, Kind::Bandwidth, Operation::Write);
    assert!(error.contains("by peer memory: ibv_reg_mr on rxea0"), "{error}");
    let error = refused(GpuDirectChoice::PeerMemory, 0, Kind::Latency, Operation::Write);
    assert!(error.contains("-o send or -o read"), "{error}");
}

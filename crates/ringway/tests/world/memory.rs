//! Limits and settings that all ranks must share.

use ringway::ErrorKind;
use ringway::config::Config;

use crate::harness::{settings, watchdog, world_each};

fn refusals(config: impl Fn(u32) -> Config + Sync) -> Vec<String> {
    world_each(3, config, |comm| {
        let error = comm.map(|comm| comm.rank()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        error.to_string()
    })
}

#[test]
fn a_communicator_keeps_to_its_memory() {
    let _watchdog = watchdog("memory::a_communicator_keeps_to_its_memory");
    let texts = refusals(|_| settings(&[("RINGWAY_MAX_BYTES", "64K")]));
    for text in texts {
        assert!(text.contains("RINGWAY_MAX_BYTES allows 65536"), "{text}");
    }
    for most in ["1M", "3M", "100M"] {
        let frugal = settings(&[("RINGWAY_MAX_BYTES", most)]);
        let limit = most.trim_end_matches('M').parse::<u64>().unwrap() << 20;
        ringway::testing::world_with(2, &frugal, |comm| {
            assert!(comm.memory_bytes() <= limit, "{} of {most}", comm.memory_bytes());
            let mut values = vec![1.0_f32; 1 << 20];
            comm.all_reduce_in_place(&mut values, ringway::ReduceOp::Sum).unwrap();
            assert!(values.iter().all(|value| *value == 2.0));
        });
    }
}

#[test]
fn a_communicator_takes_little_by_default() {
    let _watchdog = watchdog("memory::a_communicator_takes_little_by_default");
    for ranks in [1, 2, 16, 32] {
        ringway::testing::world(ranks, |comm| {
            assert!(comm.memory_bytes() <= 16 << 20, "{ranks} ranks: {}", comm.memory_bytes());
        });
    }
}

#[test]
fn ranks_with_other_settings_are_named() {
    let _watchdog = watchdog("memory::ranks_with_other_settings_are_named");
    for (name, usual, other) in [
        ("NCCL_BUFFSIZE", "1M", "2M"),
        ("RINGWAY_LANES", "1", "2"),
        ("RINGWAY_CHUNK_BYTES", "4096", "8192"),
        ("RINGWAY_LEVEL", "run", "shape"),
        ("NCCL_NSOCKS_PERTHREAD", "1", "4"),
        ("RINGWAY_TLS", "0", "1"),
    ] {
        let value = |rank| if rank == 1 { other } else { usual };
        let texts = refusals(|rank| settings(&[(name, value(rank))]));
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:#?}");
        assert!(texts[0].contains(name), "{}", texts[0]);
        assert!(texts[0].contains("rank 1 (host "), "{}", texts[0]);
    }
}

/// What one rank alone is refused, the others hear of at once.
#[test]
fn a_limit_of_one_rank_is_known_to_all() {
    let _watchdog = watchdog("memory::a_limit_of_one_rank_is_known_to_all");
    let started = std::time::Instant::now();
    let texts = world_each(
        3,
        |rank| {
            if rank == 1 { settings(&[("RINGWAY_MAX_BYTES", "64K")]) } else { Config::default() }
        },
        |comm| comm.map(|comm| comm.rank()).unwrap_err().to_string(),
    );
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{texts:#?}");
    for (rank, text) in texts.iter().enumerate() {
        assert!(rank == 1 || text.contains("rank 1"), "rank {rank}: {text}");
    }
    assert!(texts[1].contains("RINGWAY_MAX_BYTES"), "{texts:#?}");
}

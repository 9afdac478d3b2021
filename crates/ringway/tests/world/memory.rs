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
        assert!(text.contains("NCCL_BUFFSIZE"), "{text}");
    }
    let frugal = settings(&[("RINGWAY_MAX_BYTES", "1M"), ("NCCL_BUFFSIZE", "64K")]);
    ringway::testing::world_with(2, &frugal, |comm| comm.barrier().unwrap());
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

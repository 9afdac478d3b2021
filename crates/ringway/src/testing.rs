//! Ranks as threads of one process, for tests, examples and documentation.

pub mod machine;

use crate::bootstrap::{Options, UniqueId};
use crate::communicator::Communicator;
use crate::config::Config;

/// Runs `body` on `ranks` ranks, each a thread of this process, and returns what each returned.
///
/// ```
/// use ringway::ReduceOp;
/// let sums = ringway::testing::world(4, |comm| {
///     let mut sum = [0_i32];
///     comm.all_reduce(&[comm.rank() as i32], &mut sum, ReduceOp::Sum).unwrap();
///     sum[0]
/// });
/// assert_eq!(sums, [6, 6, 6, 6]);
/// ```
///
/// # Panics
/// If the ranks cannot be started, or `body` panics on one of them.
pub fn world<R: Send>(ranks: u32, body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    world_with(ranks, &Config::default(), body)
}

/// As [`world`], with settings.
///
/// # Panics
/// As [`world`].
pub fn world_with<R: Send>(
    ranks: u32,
    config: &Config,
    body: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let id = UniqueId::generate(&Options::default()).expect("this host has a loopback address");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (body, id) = (&body, &id);
                std::thread::Builder::new()
                    .name(format!("rank-{rank}"))
                    .spawn_scoped(scope, move || {
                        let comm = Communicator::from_unique_id(id, rank, ranks, config.clone())
                            .unwrap_or_else(|error| panic!("rank {rank} cannot join: {error}"));
                        body(&comm)
                    })
                    .expect("a thread for every rank")
            })
            .collect();
        threads
            .into_iter()
            .enumerate()
            .map(|(rank, thread)| {
                thread.join().unwrap_or_else(|panic| {
                    let text = panic
                        .downcast_ref::<String>()
                        .cloned()
                        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                        .unwrap_or_default();
                    panic!("rank {rank} panicked: {text}")
                })
            })
            .collect()
    })
}

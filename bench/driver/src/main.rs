//! One rank of ringway's side of `bench/run`: measures what the environment asks for.
//!
//! Started as `ringway run -n N --no-prefix -- ringway-bench`. Rank 0 prints one JSON line that
//! names the library, then one per point. The drivers of the other libraries (`bench/drivers`)
//! read the same variables, measure with the same loop and print the same lines.
//!
//! | variable | meaning |
//! |---|---|
//! | `BENCH_COLLS` | collectives, each with an optional `:bf16` |
//! | `BENCH_SIZES` | bytes, as nccl-tests counts them |
//! | `BENCH_BUFFERS` | `hot` (one buffer), `cold` (many, in turn), or both |
//! | `BENCH_SECONDS` | time for the samples of one point |
//! | `BENCH_CPUS` | the CPU of each rank; unset: the kernel's choice |
#![forbid(unsafe_code)]

mod arena;
mod collective;
mod measure;
mod request;

use std::io::Write as _;

use anyhow::Context as _;
use ringway::Communicator;
use rustix::thread::{CpuSet, sched_setaffinity};

use self::collective::Type;
use self::request::Request;

fn main() -> anyhow::Result<()> {
    let request = Request::from_variables(|name| std::env::var(name).ok())?;
    // Before the communicator exists, so that its threads inherit the place, as those of MPI do.
    if let Some(cpus) = &request.cpus {
        pin(cpus)?;
    }
    let comm = Communicator::from_env()?;
    if comm.rank() == 0 {
        let version = concat!("ringway ", env!("CARGO_PKG_VERSION"));
        line(&serde_json::json!({ "version": version }))?;
    }
    for cold in request.cold.iter().copied() {
        for (collective, data_type) in request.subjects.iter().copied() {
            let sizes = match (collective.has_size(), cold) {
                (true, _) => request.sizes.as_slice(),
                (false, false) => &[0],
                (false, true) => &[], // no buffer that could be cold
            };
            for bytes in sizes.iter().copied() {
                let point = measure::Point { collective, bytes, cold, seconds: request.seconds };
                let measured = match data_type {
                    Type::F32 => measure::point::<f32>(&comm, &point)?,
                    Type::Bf16 => measure::point::<half::bf16>(&comm, &point)?,
                };
                if comm.rank() == 0 {
                    line(&measured)?;
                }
            }
        }
    }
    Ok(())
}

/// Ties this process to the CPU of its rank.
fn pin(cpus: &[usize]) -> anyhow::Result<()> {
    let rank: usize = std::env::var("RINGWAY_LOCAL_RANK")
        .context("the launcher did not say which rank this is")?
        .parse()
        .context("the launcher's rank is no number")?;
    let cpu = cpus.get(rank).with_context(|| format!("BENCH_CPUS has no entry for {rank}"))?;
    let mut set = CpuSet::new();
    set.set(*cpu);
    sched_setaffinity(None, &set).with_context(|| format!("rank {rank} cannot run on CPU {cpu}"))
}

/// Prints one line at once: other ranks may share the pipe.
fn line(value: &serde_json::Value) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(format!("{value}\n").as_bytes())?;
    Ok(stdout.flush()?)
}

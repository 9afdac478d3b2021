//! What the two searches for the slow one share: how they start, who the ranks are, what counts as slow, whom they name.
//!
//! *Invariant*: nobody is accused by one look. Whoever stands out is measured again, alone, beside others that do not.

pub(crate) mod area;
pub(crate) mod culprit;
pub(crate) mod head;
pub(crate) mod places;
pub(crate) mod robust;
pub(crate) mod work;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use ringway::Communicator;

use self::places::Places;
use self::robust::Bar;
use super::args::{Memory, Transport};
use super::{device, json, launch, ranks};
use crate::exit::ExitCode;
use crate::launch::environment;
use crate::size;

/// What files say of themselves; the numbers grow when a field changes its meaning or goes away.
pub(crate) const PAIRS_FORMAT: &str = "ringway-pairs-1";
pub(crate) const BISECT_FORMAT: &str = "ringway-bisect-1";

/// Ranks that are started at least where nobody says how many: of fewer hardly any can be told from the rest.
const RANKS_USUAL: u32 = 4;
/// And at most, where there are GPUs for more.
const RANKS_USUAL_MOST: u32 = 8;
/// Messages longer than this are a slip of the keyboard.
const BYTES_MAX: u64 = 1 << 30;

/// Options that both have.
#[derive(Clone, Debug, Args)]
pub(crate) struct SlowArgs {
    /// Ranks to start [default: one per core, or one per GPU with --memory cuda;
    /// at least 4, at most 8]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) ranks: Option<u32>,
    /// How bytes travel between ranks: shm, tcp or auto
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    pub(crate) transport: Option<Transport>,
    /// Where the buffers are: host, or cuda for GPU memory
    #[arg(long, value_name = "WHERE", default_value = "host", hide_possible_values = true)]
    pub(crate) memory: Memory,
    /// Size of what is sent to see bandwidth
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "1M", value_parser = size::parse)]
    pub(crate) bytes: u64,
    /// How much longer than elsewhere is slow, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 35.0, value_parser = percent)]
    pub(crate) threshold: f64,
    /// Write what was measured and found as JSON; replaces FILE
    #[arg(short = 'J', long = "json", value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl SlowArgs {
    /// So many times as long is slow.
    pub(crate) fn limit(&self) -> f64 {
        1.0 + self.threshold / 100.0
    }

    /// What is too long on these machines.
    pub(crate) fn bars(&self, places: &Places) -> Bars {
        let times = self.limit();
        Bars {
            work: Bar { times, more: 0.0 },
            round_trips: Bar { times, more: places.waking_us() },
        }
    }
}

/// What is too long: messages and work, round trips.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bars {
    pub(crate) work: Bar,
    pub(crate) round_trips: Bar,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim_end().parse::<f64>().ok();
    let number = number.filter(|number| (10.0..=1000.0).contains(number));
    number.ok_or_else(|| "not a percentage of 10 to 1000, as 35".to_owned())
}

/// Joins the job of a launcher and searches, or starts ranks that do.
pub(crate) fn run(
    word: &str,
    args: &SlowArgs,
    search: impl Fn(&Communicator) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    if !(1..=BYTES_MAX).contains(&args.bytes) {
        bail!("{word} --bytes {}: give 1 byte to 1 GiB", args.bytes);
    }
    let transport = args.transport.map(|transport| transport.name().to_owned());
    let variables: Vec<(&'static str, String)> =
        transport.map(|transport| ("RINGWAY_TRANSPORT", transport)).into_iter().collect();
    let Some(place) = environment::place()? else {
        let usual = match args.memory {
            Memory::Host => crate::launch::default_ranks().max(RANKS_USUAL),
            // That there is none is told once, before any rank is there to tell it.
            Memory::Cuda => ranks::gpus()?.clamp(RANKS_USUAL, RANKS_USUAL_MOST),
        };
        let size = crate::launch::ranks("--ranks", args.ranks.or(Some(usual)))?;
        enough(word, size)?;
        check_json(args)?;
        return launch::start_copies("perf", &variables, size, |children| {
            if let (Some(path), Some(pid)) = (&args.json, children.pid(0)) {
                json::discard_temporary(path, pid);
            }
        });
    };
    place.check_ranks(args.ranks)?;
    enough(word, place.size)?;
    launch::adopt_variables(&variables)?;
    let one_rank = || {
        if place.rank == 0 {
            check_json(args)?;
        }
        let comm = ranks::connect()?;
        let searched = search(&comm);
        if args.memory == Memory::Cuda { device::over(&comm, searched) } else { searched }
    };
    let searched = one_rank().with_context(|| format!("rank {}", place.rank));
    searched.or_else(|error| match place.rank {
        0 if ranks::port_was_taken(&error) => Ok(ExitCode::from(launch::EXIT_PORT_TAKEN)),
        _ => Err(error),
    })
}

fn enough(word: &str, size: u32) -> anyhow::Result<()> {
    anyhow::ensure!(
        size >= 3,
        "{word} compares ranks with each other, and of {size} none can be told from the rest; start 3 or more: --ranks 4"
    );
    Ok(())
}

fn check_json(args: &SlowArgs) -> anyhow::Result<()> {
    args.json.as_deref().map_or(Ok(()), |path| json::check_path(path).map(|_| ()))
}

/// How often one call of a batch is to be made, that a batch is long enough to be told from noise.
pub(crate) fn calls_of_batch(one_call: Duration, batch: Duration, most: u64) -> u64 {
    let fits = batch.as_nanos().checked_div(one_call.as_nanos()).unwrap_or_else(|| most.into());
    u64::try_from(fits).unwrap_or(most).clamp(1, most)
}

/// Seconds that something took.
pub(crate) fn seconds(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_at_least_one_call_and_an_end() {
        let calls =
            |us: u64| calls_of_batch(Duration::from_micros(us), Duration::from_millis(10), 1000);
        assert_eq!((calls(100), calls(20_000), calls(0)), (100, 1, 1000));
    }

    #[test]
    fn thresholds_are_percentages() {
        assert_eq!(percent("35 %"), Ok(35.0));
        assert!(percent("5").is_err() && percent("nan").is_err() && percent("x").is_err());
    }
}

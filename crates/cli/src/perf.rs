//! `ringway perf`: measure a collective and print nccl-tests' table.
//!
//! Without a launcher this process starts the ranks ([`launch`]), each a copy of itself; under
//! one it is a rank, or several on GPU memory ([`rank`]). Only [`ranks`] and [`device`] know the library.

pub(crate) mod args;
mod check;
mod clock;
mod compare;
mod data;
mod device;
mod element;
mod identity;
mod json;
pub(crate) mod launch;
pub(crate) mod layout;
mod measure;
pub(crate) mod memory;
mod number;
pub(crate) mod progress;
mod rank;
pub(crate) mod ranks;
mod settings;
mod stats;
mod table;

use crate::exit::ExitCode;

use anyhow::bail;

use self::args::{Memory, PerfArgs};
use self::settings::Settings;
use crate::launch::environment::{self, Place};

/// Measures, as a rank of the job this process belongs to or by starting one.
pub(crate) fn run(args: &PerfArgs) -> anyhow::Result<ExitCode> {
    let mut settings = Settings::new(args)?;
    if let Some(place) = environment::place()? {
        if let Some(asked) = args.ranks.filter(|asked| *asked != place.size) {
            bail!(
                "--ranks {asked}: this is rank {} of a job of {} that {} started; drop --ranks, \
                 or run it outside of that job",
                place.rank,
                place.size,
                place.launcher
            );
        }
        launch::adopt_variables(&settings.variables)?;
        return rank::run(settings, &place);
    }
    let processes = match settings.memory {
        Memory::Host => crate::launch::ranks("--ranks", args.ranks)?,
        Memory::Cuda => {
            // Told once, before any rank is there to tell it.
            let gpus = ranks::gpus()?;
            let alone = args.gpus.map_or_else(|| gpus.clamp(2, 8), |_| 1);
            crate::launch::ranks("--ranks", Some(args.ranks.unwrap_or(alone)))?
        }
    };
    let size = processes * settings.ranks_per_process;
    settings.roots(size)?;
    memory::fit(&mut settings, size, size)?;
    if let Some(path) = &settings.json {
        json::check_path(path)?;
    }
    if settings.memory == Memory::Cuda && processes == 1 {
        launch::adopt_variables(&settings.variables)?;
        return rank::run(settings, &Place::alone());
    }
    launch::start(&settings, processes)
}

//! `ringway perf`: measure a collective and print nccl-tests' table.
//!
//! Without a launcher this process starts the ranks ([`launch`]), each a copy of itself; under
//! one it is a rank ([`rank`]). Only [`ranks`] knows the library.

pub(crate) mod args;
mod check;
mod clock;
mod compare;
mod data;
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

use std::process::ExitCode;

use anyhow::bail;

use self::args::PerfArgs;
use self::settings::Settings;
use crate::launch::environment;

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
    let size = crate::launch::ranks("--ranks", args.ranks)?;
    settings.roots(size)?;
    memory::fit(&mut settings, size, size)?;
    if let Some(path) = &settings.json {
        json::check_path(path)?;
    }
    launch::start(&settings, size)
}

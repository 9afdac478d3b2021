//! The `ringway` command: measure, start and explain collectives. As a library, since Python's package brings the command
//! along without a second program.
//!
//! One file per subcommand: [`perf`] measures collectives, [`tune`] keeps what they take,
//! [`run`] starts a local job, [`doctor`] says what is wrong, [`why`] what a job waits for. All start their ranks through [`launch`]. Everything printed goes through [`output`].
#![forbid(unsafe_code)]

mod args;
mod completions;
mod doctor;
mod env;
mod exit;
mod exporter;
mod fabric;
mod k8s;
mod launch;
mod manual;
mod net;
mod output;
mod perf;
mod plan;
mod report;
mod run;
mod serve;
mod sim;
mod size;
mod snapshot;
mod this;
mod timing;
mod topo;
mod trace;
mod tune;
mod why;
use std::ffi::OsString;

use clap::Parser as _;

/// Runs the command whose arguments are `words`, the first of which is its own name. Returns its exit code.
///
/// It starts itself again to be the ranks of a job: by the words in `again`, or as this process's own program where there
/// are none. Of all calls in one process the first decides on that.
#[must_use]
pub fn run(words: Vec<OsString>, again: Option<Vec<OsString>>) -> u8 {
    this::set(words, again);
    let command = match args::Cli::try_parse_from(this::words()) {
        Ok(cli) => cli.command,
        Err(error) => return usage(&error),
    };
    match command.run() {
        Ok(code) => code.into(),
        Err(error) if output::is_broken_pipe(&error) => output::EXIT_BROKEN_PIPE,
        Err(error) => {
            output::failure(command.name(), &error);
            2
        }
    }
}

/// Shows help, or what is wrong with the arguments. For the commands whose exit code is a verdict a wrong
/// argument is none.
fn usage(error: &clap::Error) -> u8 {
    let _nobody_to_tell = error.print();
    let words: Vec<_> = this::args().iter().take(2).map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match (error.exit_code(), &words[..]) {
        (0, _) => 0,
        (
            _,
            ["doctor" | "why", ..]
            | ["env", "lint"]
            | ["fabric", "check" | "diff"]
            | ["k8s", "lint"],
        ) => doctor::finding::EXIT_CANNOT,
        (code, _) => u8::try_from(code).unwrap_or(2),
    }
}

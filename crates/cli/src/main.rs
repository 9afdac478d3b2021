//! The `ringway` command: measure, start and explain collectives.
//!
//! One file per subcommand: [`perf`] measures collectives, [`tune`] keeps what they take,
//! [`run`] starts a local job, [`doctor`] says what is wrong, [`why`] what a job waits for. All start their ranks through [`launch`]. Everything printed goes through [`output`].
#![forbid(unsafe_code)]

mod args;
mod doctor;
mod env;
mod fabric;
mod launch;
mod net;
mod output;
mod perf;
mod plan;
mod run;
mod size;
mod snapshot;
mod timing;
mod topo;
mod trace;
mod tune;
mod why;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let command = match args::Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return usage(&error),
    };
    match command.run() {
        Ok(code) => code,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::from(output::EXIT_BROKEN_PIPE),
        Err(error) => {
            output::failure(command.name(), &error);
            ExitCode::from(2)
        }
    }
}

/// Shows help, or what is wrong with the arguments. For the commands whose exit code is a verdict a wrong
/// argument is none.
fn usage(error: &clap::Error) -> ExitCode {
    let _nobody_to_tell = error.print();
    let words: Vec<String> = std::env::args().skip(1).take(2).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match (error.exit_code(), &words[..]) {
        (0, _) => ExitCode::SUCCESS,
        (_, ["doctor" | "why", ..] | ["env", "lint"] | ["fabric", "check" | "diff"]) => {
            ExitCode::from(doctor::finding::EXIT_CANNOT)
        }
        (code, _) => ExitCode::from(u8::try_from(code).unwrap_or(2)),
    }
}

//! The `ringway` command: measure, start and explain collectives.
//!
//! One file per subcommand: [`perf`] measures collectives, [`tune`] keeps what they take,
//! [`run`] starts a local job. All start their ranks through [`launch`]. Everything printed goes through [`output`].
#![forbid(unsafe_code)]

mod args;
mod env;
mod launch;
mod output;
mod perf;
mod plan;
mod run;
mod size;
mod timing;
mod topo;
mod tune;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let command = args::Cli::parse().command;
    match command.run() {
        Ok(code) => code,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::from(output::EXIT_BROKEN_PIPE),
        Err(error) => {
            output::failure(command.name(), &error);
            ExitCode::from(2)
        }
    }
}

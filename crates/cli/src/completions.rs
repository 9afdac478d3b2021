//! `ringway completions`: what shells complete, from the tables that arguments are read by.

use clap::Args;
use clap_complete::Shell;

use crate::args::visible;
use crate::exit::ExitCode;
use crate::output;

/// Print a script by which a shell completes this command
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "The script goes where the shell looks for it.

Examples:
  ringway completions bash > /usr/share/bash-completion/completions/ringway
  ringway completions zsh > /usr/local/share/zsh/site-functions/_ringway
  ringway completions fish > ~/.config/fish/completions/ringway.fish
  source <(ringway completions bash)            for this shell alone"
)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    shell: Shell,
}

/// Runs the subcommand.
pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(), "ringway", &mut script);
    output::stdout_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}

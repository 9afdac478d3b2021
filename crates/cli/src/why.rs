//! `ringway why`: asks the jobs on this host where their ranks stand, and says who holds them up.
//!
//! Every rank of a job answers for all of them, so one host is enough; nothing runs on it for that but the
//! job itself. This file takes the arguments and asks; [`table`] lays the answers out.

mod table;

use crate::exit::ExitCode;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use ringway::control::{Askable, Condition, Standing, askable};
use serde::Serialize;

use crate::doctor::finding::EXIT_CANNOT;
use crate::output;

/// Longer than a rank that runs takes to answer for ranks that do not.
const PATIENCE: Duration = Duration::from_secs(3);

/// Say why a job stands still: who is waited for, and since when
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Asks one rank of every job that runs here; it answers for all ranks, those on
other hosts too. Works while the job hangs, disturbs nothing, needs no daemon
and no launcher. One line says what is wrong, the table where each rank is:

  waits     inside an operation, waiting for another rank
  works     inside an operation, waiting for nobody
  kernel    in no operation, but a kernel on its GPU waits for another rank
  outside   in no operation: the program computes, or does not come
  message   waits for a message
  silent    does not answer
  left      has closed its communicator

Of a job that goes on, a line that begins with \"late:\" says which rank comes
late to its calls, or which link is slow.

Only jobs of the same user are told of; root sees all, in containers too.

Examples:
  ringway why                 all jobs on this host
  ringway why 4711            the job of one process
  ringway why --watch         once a second, until Ctrl-C
  ringway why --json

Exits with 0 when nobody waits for long, 1 when somebody has waited for a second
or a rank does not answer, 2 when a job is stuck or has failed, and 3 when there
is nobody to ask."
)]
pub(crate) struct WhyArgs {
    /// Only jobs that these processes belong to
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// Ask again and again, so many seconds apart
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=86_400), require_equals = true)]
    watch: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show the table of every communicator, with every rank
    #[arg(short, long)]
    all: bool,
}

/// What one communicator came to.
#[derive(Debug, Serialize)]
struct Case {
    /// The communicator's number, in hexadecimal as logs show it.
    communicator: String,
    /// Processes here that belong to it.
    pids: Vec<u32>,
    /// The answer.
    #[serde(flatten)]
    standing: Standing,
}

/// Asks, and shows what comes back.
pub(crate) fn run(args: &WhyArgs) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::from(EXIT_CANNOT);
    loop {
        let (cases, remarks) = ask(args);
        if cases.is_empty() {
            remarks.iter().for_each(|remark| output::remark(&format!("ringway why: {remark}")));
            return Ok(code);
        }
        code = ExitCode::from(severity(&cases));
        show(args, &cases)?;
        remarks.iter().for_each(|remark| output::remark(&format!("ringway why: {remark}")));
        match args.watch {
            Some(seconds) => std::thread::sleep(Duration::from_secs(seconds)),
            None => return Ok(code),
        }
    }
}

fn show(args: &WhyArgs, cases: &[Case]) -> anyhow::Result<()> {
    if args.json {
        output::line(&serde_json::to_string(cases)?)?;
        return Ok(());
    }
    let style = table::Style {
        columns: output::columns(),
        colour: output::stdout_has_colour(),
        all: args.all,
    };
    let mut text = table::render(cases, &style);
    if args.watch.is_some() {
        // On a terminal each answer takes the place of the one before.
        let (before, after) =
            if std::io::stdout().is_terminal() { ("\x1b[H\x1b[J", "") } else { ("", "\n") };
        text = format!("{before}{text}{after}");
    }
    output::stdout_bytes(text.as_bytes())?;
    Ok(())
}

/// The exit code for these answers.
fn severity(cases: &[Case]) -> u8 {
    match cases.iter().map(|case| case.standing.condition).max() {
        None => EXIT_CANNOT,
        Some(Condition::Healthy) => 0,
        Some(Condition::Slow) => 1,
        Some(Condition::Stuck | Condition::Failed) => 2,
    }
}

/// The answers of all jobs asked for, the worst first, and what could not be asked.
fn ask(args: &WhyArgs) -> (Vec<Case>, Vec<String>) {
    let mut communicators: BTreeMap<u64, Vec<Askable>> = BTreeMap::new();
    for one in askable() {
        communicators.entry(one.communicator).or_default().push(one);
    }
    let wanted = |one: &Askable| args.pids.is_empty() || args.pids.contains(&one.pid);
    communicators.retain(|_, ranks| ranks.iter().any(wanted));
    let mut remarks: Vec<String> = Vec::new();
    let known = |pid: &&u32| communicators.values().flatten().any(|one| one.pid == **pid);
    for pid in args.pids.iter().filter(|pid| !known(pid)) {
        remarks.push(format!("process {pid} has no communicator that can be asked"));
    }
    if communicators.is_empty() && remarks.is_empty() {
        remarks.push("no process on this host has a communicator that can be asked".to_owned());
    }
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = communicators
            .values()
            .map(|ranks| scope.spawn(|| ask_any(ranks, &args.pids)))
            .collect();
        asked.into_iter().map(|thread| thread.join()).collect()
    });
    let mut cases = Vec::new();
    for ((communicator, ranks), answer) in communicators.iter().zip(answers) {
        match answer {
            Ok(Ok(standing)) => cases.push(Case {
                communicator: format!("{communicator:#x}"),
                pids: ranks.iter().map(|one| one.pid).collect(),
                standing,
            }),
            Ok(Err(reasons)) => remarks.extend(reasons),
            Err(_) => remarks.push(format!("asking communicator {communicator:#x} panicked")),
        }
    }
    cases.sort_by_key(|case| std::cmp::Reverse(case.standing.condition));
    (cases, remarks)
}

/// Asks one rank after the other until one answers: those asked for first.
fn ask_any(ranks: &[Askable], pids: &[u32]) -> Result<Standing, Vec<String>> {
    let mut order: Vec<&Askable> = ranks.iter().collect();
    order.sort_by_key(|one| !pids.contains(&one.pid));
    let mut reasons = Vec::new();
    for one in order {
        match one.ask(PATIENCE) {
            Ok(standing) => return Ok(standing),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(reasons)
}

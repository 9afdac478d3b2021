//! `ringway serve`: the page of `ringway report`, drawn anew at each request, with the jobs that run on this machine.
//!
//! *Invariant*: a file that cannot be read now (it is being written, or not there yet) is a finding on the page and no end of
//! the service. Without `--listen` nobody but this machine reaches it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use ringway::exposition::{Listener, Server};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::doctor::finding::{Finding, Verdict};
use crate::exit::ExitCode;
use crate::exporter::jobs::Jobs;
use crate::exporter::{JOBS, address};
use crate::launch::signals::Signals;
use crate::output;
use crate::report::input::Inputs;
use crate::report::live::{self, Live};
use crate::report::model::{Report, Section};
use crate::report::page::{Kind, page};
use crate::report::{self, WhatArgs, assemble};
use crate::trace;

/// Serve that page live, with the jobs that run on this machine
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "The page is that of `ringway report`, drawn anew from the files at each request.
While it is open it asks again every few seconds. Jobs that were started with
RINGWAY_METRICS=exporter are on it: operations, bandwidth now, who stands still
and who is waited for. A file may be a job's socket, too.

Examples:
  ringway serve                             the jobs of this machine
  ringway serve traces/ perf.json           and what they wrote so far
  ringway serve --port 8080 /tmp/job.sock   at http://127.0.0.1:8080/
  ringway serve --listen 0.0.0.0:8080       for browsers elsewhere
  RINGWAY_METRICS=exporter ringway run -n 8 -- python train.py

Without --listen only this machine reaches it; with it, anybody who reaches the
address can read: there is no password. SIGTERM and Ctrl-C end it with 0."
)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    what: WhatArgs,
    /// Port of this machine; 0 is any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0, conflicts_with = "listen")]
    port: u16,
    /// Serve at this address, for others too
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Where jobs have their sockets
    #[arg(long, value_name = "DIR", default_value = JOBS)]
    jobs: PathBuf,
}

/// Serves until somebody ends it.
pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let source =
        Source { what: args.what.clone(), jobs: args.jobs.clone(), before: Mutex::default() };
    // A file may be whole at the next request; whoever named a wrong one sees it here.
    for finding in source.read().troubles {
        output::remark(&format!("ringway serve: {}", finding.title));
    }
    let place = args.listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)));
    let signals = Signals::catch()?;
    let listener = TcpListener::bind(place).with_context(|| {
        format!("cannot listen at {place}; --port takes another port, --listen an address too")
    })?;
    let place = listener.local_addr()?;
    let kind = "text/html; charset=utf-8";
    let server = Server::open_as(Listener::Tcp(listener), kind, move || source.page())?;
    output::line(&format!("serving http://{place}/"))?;
    while signals.caught().is_none() {
        let mut fds = [PollFd::new(&signals, PollFlags::IN)];
        let _woken = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 }));
        if !server.is_serving() {
            bail!("the thread that answers has stopped; please report it");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Rates are over so long at least.
const BETWEEN: Duration = Duration::from_secs(1);

/// What is looked at for each page.
struct Source {
    what: WhatArgs,
    jobs: PathBuf,
    /// What jobs told the last two times, the earlier first, and when.
    before: Mutex<Vec<(Live, Instant)>>,
}

/// What can be read now, and what cannot.
#[derive(Default)]
struct Found {
    inputs: Inputs,
    /// Those of `--against` that can be read.
    against: Vec<PathBuf>,
    sockets: Vec<PathBuf>,
    troubles: Vec<Finding>,
}

impl Source {
    /// One answer.
    fn page(&self) -> String {
        let Found { mut inputs, against, sockets, mut troubles } = self.read();
        // Traces of two jobs make no timeline; the rest of the page needs none.
        match trace::read::latest(std::mem::take(&mut inputs.traces)) {
            Ok(traces) => inputs.traces = traces,
            Err(error) => troubles.push(trouble(&format!("{error:#}"))),
        }
        let mut what = WhatArgs { against, ..self.what.clone() };
        let title = what.title.get_or_insert_with(|| "Ringway, live".to_owned()).clone();
        // The last run is compared with only while there is something to compare.
        if inputs.runs.is_empty() {
            what.against.clear();
        }
        let mut report = assemble(inputs, &what).unwrap_or_else(|error| {
            troubles.push(trouble(&format!("{error:#}")));
            Report { title, ..Report::default() }
        });
        report.sections.insert(0, self.jobs(&sockets));
        if !troubles.is_empty() {
            let mut section = Section::new("files", "Files");
            section.findings = troubles;
            report.sections.push(section);
        }
        page(&report, Kind::Served)
    }

    fn read(&self) -> Found {
        let mut found = Found::default();
        for path in &self.what.files {
            if std::fs::metadata(path).is_ok_and(|about| about.file_type().is_socket()) {
                found.sockets.push(path.clone());
            } else if let Err(error) = found.inputs.read(path) {
                found.troubles.push(trouble(&Self::told(path, &error)));
            }
        }
        for path in &self.what.against {
            match report::input::runs(std::slice::from_ref(path)) {
                Ok(_) => found.against.push(path.clone()),
                Err(error) => found.troubles.push(trouble(&Self::told(path, &error))),
            }
        }
        found
    }

    fn told(path: &Path, error: &anyhow::Error) -> String {
        match path.exists() {
            true => format!("{error:#}"),
            false => format!("{} is not there", path.display()),
        }
    }

    fn jobs(&self, sockets: &[PathBuf]) -> Section {
        let mut jobs = Jobs::ask(&self.jobs);
        jobs.ask_all(sockets);
        let live = Live::of(jobs.samples());
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        // Several may look at once: a rate wants some time between two looks.
        let is_old = |(_, when): &&(Live, Instant)| when.elapsed() >= BETWEEN;
        let compared = before.iter().rev().find(is_old);
        let compared = compared.map(|(live, when)| (live, when.elapsed().as_secs_f64()));
        let section = live::section(&live, compared, &jobs.failed);
        if before.last().is_none_or(|last| is_old(&last)) {
            before.push((live, Instant::now()));
            let too_many = before.len().saturating_sub(2);
            before.drain(..too_many);
        }
        section
    }
}

/// What could not be read now may be whole at the next request.
fn trouble(text: &str) -> Finding {
    Finding::new("files", "file-unread", Verdict::Unknown, text)
}

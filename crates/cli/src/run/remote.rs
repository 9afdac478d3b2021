//! `ringway run --hosts`: a job over several hosts, each served by an agent that ssh starts.
//!
//! Nothing starts before every host has said that it can: the program and the directory are there, and the versions are the
//! same. Rank 0's host says by which addresses it can be met, by the same rules by which ranks offer theirs.
//!
//! *Invariant:* when the launcher returns, for whatever reason, the agents have ended their ranks or have been hung up on,
//! which makes them do so.

pub(crate) mod agent;
mod carry;
mod link;
mod ssh;
mod wire;

use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use self::link::{Event, Link, Orders, Phase, What};
use self::wire::{Order, Prepare, Report, Start};
use super::args::RunArgs;
use super::hosts::Share;
use crate::exit::ExitCode;
use crate::launch;
use crate::launch::children::{Death, code_of_signal};
use crate::launch::signals::Signals;
use crate::output;

/// How long hosts may take to answer; ssh itself gives up on a silent one after 20 seconds.
const ANSWER_PATIENCE: Duration = Duration::from_secs(90);
/// How long the agents may take to end their ranks: twice two seconds, and what they left behind.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How often the agents hear from the launcher.
const BEAT: Duration = Duration::from_secs(5);
/// How often signals are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Starts the job and stays until it ends.
pub(crate) fn run(args: &RunArgs, shares: &[Share]) -> anyhow::Result<ExitCode> {
    let prepare = carry::prepare(args)?;
    let mut job = Job::open(args, shares)?;
    match job.conduct(prepare) {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(Stopped::Signal(signal)) => {
            job.end();
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
            job.say(&format!("{name}: all {} ranks ended", job.size));
            Ok(ExitCode::from(code_of_signal(signal)))
        }
        Err(Stopped::Error(error)) => Err(error),
    }
}

/// Why a job was given up.
enum Stopped {
    Signal(i32),
    Error(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

struct Job<'a> {
    args: &'a RunArgs,
    size: u32,
    links: Vec<Link>,
    events: Receiver<Event>,
    signals: Signals,
}

impl<'a> Job<'a> {
    fn open(args: &'a RunArgs, shares: &[Share]) -> anyhow::Result<Self> {
        let signals = Signals::catch().context("catching SIGINT and SIGTERM")?;
        let size = shares.iter().map(|share| share.ranks).sum();
        let (tell, events) = channel();
        let mut job = Self { args, size, links: Vec::new(), events, signals };
        for share in shares {
            let at = job.links.len();
            job.links.push(Link::open(args, share, size, at, tell.clone())?);
        }
        Ok(job)
    }

    fn say(&self, text: &str) {
        if !self.args.quiet {
            output::remark(&format!("ringway run: {text}"));
        }
    }

    /// From the first word to the last; the exit code.
    fn conduct(&mut self, prepare: Prepare) -> Result<u8, Stopped> {
        let root = self.gather(prepare)?;
        let secret = launch::fresh_secret()?;
        for link in &self.links {
            let Share { first, ranks, .. } = link.share;
            let (root, secret) = (root.clone(), secret.clone());
            // Who is gone is noticed by the reading thread.
            let _ = link.orders.send(&Order::Start(Start {
                root,
                secret,
                size: self.size,
                first,
                ranks,
            }));
        }
        let acknowledge = self.feed()?;
        self.beat()?;
        self.watch(&acknowledge)
    }

    /// Waits for all hosts to be ready; where the root is to be met.
    fn gather(&mut self, prepare: Prepare) -> Result<String, Stopped> {
        let order = Order::Prepare(Box::new(prepare));
        let deadline = Instant::now() + ANSWER_PATIENCE;
        while self.links.iter().any(|link| link.phase.is_open()) && Instant::now() < deadline {
            let Some(Event { host, what }) = self.next()? else { continue };
            let link = &mut self.links[host];
            link.phase = match what {
                What::Greeted { protocol, version } => match link.agrees(protocol, &version) {
                    Ok(()) => {
                        let _ = link.orders.send(&order);
                        Phase::Preparing
                    }
                    Err(why) => Phase::Failed(why),
                },
                What::Report(Report::Ready { addresses, port }) => Phase::Ready { addresses, port },
                What::Report(Report::Refused { why }) => {
                    Phase::Failed(format!("host {}: {why}", link.share.host))
                }
                What::Report(other) => {
                    Phase::Failed(format!("host {}: unexpected answer {other:?}", link.share.host))
                }
                What::Closed(_) if matches!(link.phase, Phase::Failed(_)) => continue,
                What::Closed(_) => Phase::Failed(link.explain()),
                What::OutputGone(error) => return Err(error.into()),
            };
        }
        let failures: Vec<String> = self
            .links
            .iter()
            .filter_map(|link| match &link.phase {
                Phase::Failed(why) => Some(why.clone()),
                phase if phase.is_open() => Some(format!(
                    "host {}: no answer within {} s; try: ssh {0}",
                    link.share.host,
                    ANSWER_PATIENCE.as_secs()
                )),
                _ => None,
            })
            .collect();
        if !failures.is_empty() {
            return Err(anyhow::Error::msg(failures.join("\n  ")).into());
        }
        Ok(self.root()?)
    }

    /// Where rank 0's host can be met by the others.
    fn root(&self) -> anyhow::Result<String> {
        let first = self.links.first().context("no host")?;
        let Phase::Ready { addresses, port } = &first.phase else { bail!("no host is ready") };
        let alone = self.links.len() == 1;
        let places: Vec<String> = addresses
            .iter()
            .filter(|address| alone || !address.is_loopback())
            .map(|address| SocketAddr::new(*address, *port).to_string())
            .collect();
        if places.is_empty() {
            bail!(
                "host {}: it has no address by which the others could meet its ranks; check its network, and \
                 NCCL_SOCKET_IFNAME",
                first.share.host
            );
        }
        Ok(places.join(","))
    }

    /// Stays until all ranks have ended, or must.
    fn watch(&mut self, acknowledge: &Sender<()>) -> Result<u8, Stopped> {
        let mut failed: Option<(u8, Instant)> = None;
        loop {
            if self.links.iter().all(|link| matches!(link.phase, Phase::Ended)) {
                return Ok(failed.map_or(0, |(code, _)| code));
            }
            if let Some((code, end_at)) = failed
                && Instant::now() >= end_at
            {
                self.end();
                return Ok(code);
            }
            let Some(Event { host, what }) = self.next()? else { continue };
            let link = &mut self.links[host];
            let name = link.share.host.clone();
            let (code, text) = match what {
                What::Report(Report::Taken) => {
                    let _ = acknowledge.send(());
                    continue;
                }
                What::Report(Report::Ended) => {
                    link.phase = Phase::Ended;
                    continue;
                }
                What::Closed(_) if matches!(link.phase, Phase::Ended) => continue,
                What::Report(Report::Died { rank, pid, status, ran_ms }) => {
                    let (status, ran) =
                        (ExitStatus::from_raw(status), Duration::from_millis(ran_ms));
                    let death = Death { host: Some(name), rank, pid, status, ran };
                    (death.exit_code(), death.to_string())
                }
                What::Report(Report::Refused { why }) => {
                    link.phase = Phase::Ended;
                    (2, format!("host {name}: {why}"))
                }
                What::Closed(why) => {
                    link.phase = Phase::Ended;
                    (2, link.lost(&why))
                }
                What::OutputGone(error) => {
                    self.end();
                    return Err(error.into());
                }
                What::Greeted { .. } | What::Report(Report::Ready { .. }) => continue,
            };
            if failed.is_none() {
                let others = if self.size > 1 { "; ending the other ranks" } else { "" };
                self.say(&format!("{text}{others}"));
                failed = Some((code, Instant::now() + self.args.grace));
            }
        }
    }

    /// The next event, if one comes soon.
    fn next(&self) -> Result<Option<Event>, Stopped> {
        if let Some(signal) = self.signals.caught() {
            return Err(Stopped::Signal(signal));
        }
        match self.events.recv_timeout(TICK) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(TICK);
                Ok(None)
            }
        }
    }

    /// Tells all agents to end their ranks, and waits until they have.
    fn end(&mut self) {
        for link in &self.links {
            let _ = link.orders.send(&Order::End);
        }
        let deadline = Instant::now() + END_PATIENCE;
        while self.links.iter().any(|link| !matches!(link.phase, Phase::Ended | Phase::Failed(_))) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(Event { host, what }) = self.events.recv_timeout(left) else { break };
            if matches!(what, What::Report(Report::Ended) | What::Closed(_)) {
                self.links[host].phase = Phase::Ended;
            }
        }
        for link in &self.links {
            if !matches!(link.phase, Phase::Ended | Phase::Failed(_)) {
                let text = "did not say that its ranks have ended; it ends them when it hears nothing for a minute";
                self.say(&format!("host {}: {text}", link.share.host));
            }
        }
    }

    /// Passes standard input on to rank 0; each piece is acknowledged.
    fn feed(&self) -> anyhow::Result<Sender<()>> {
        let (acknowledge, taken) = channel();
        let Some(orders) = self.links.first().map(|link| link.orders.clone()) else {
            return Ok(acknowledge);
        };
        let read = move || {
            let mut piece = vec![0; 32 * 1024];
            loop {
                let length = std::io::stdin().read(&mut piece).unwrap_or(0);
                if orders.input(&piece[..length]).is_err() || length == 0 || taken.recv().is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("input".to_owned()).spawn(read).context("starting a thread")?;
        Ok(acknowledge)
    }

    /// Lets the agents hear from this process now and then.
    fn beat(&self) -> anyhow::Result<()> {
        let all: Vec<Orders> = self.links.iter().map(|link| link.orders.clone()).collect();
        let beat = move || {
            loop {
                thread::sleep(BEAT);
                if all.iter().filter(|orders| orders.send(&Order::Beat).is_ok()).count() == 0 {
                    return;
                }
            }
        };
        thread::Builder::new().name("beat".to_owned()).spawn(beat).context("starting a thread")?;
        Ok(())
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // All at once; each link then waits for its own ssh.
        self.links.iter().for_each(|link| link.orders.close());
    }
}

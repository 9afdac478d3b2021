//! The running ranks of a local job: wait for them, notice the first death, end the rest.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::low_level::signal_name;

use super::signals::Signals;
use super::strays::Strays;

/// How long a rank asked to end (SIGTERM) may take before it is killed.
const TERM_PATIENCE: Duration = Duration::from_secs(2);
/// How long to look for a Ctrl-C when a rank died as if by one.
const SIGNAL_SETTLE: Duration = Duration::from_millis(200);
/// How often to look at the ranks where the kernel cannot wake us.
const TICK: Duration = Duration::from_millis(20);

/// How a job ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// Every rank exited with 0.
    Finished,
    /// A rank failed; the others have been ended.
    Failed(Death),
    /// This process got the signal; all ranks have been ended.
    Interrupted(i32),
}

impl Outcome {
    /// The exit code a launcher reports: that of the first failed rank, 128 + signal.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Finished => 0,
            Self::Failed(death) => death.exit_code(),
            Self::Interrupted(signal) => code_of_signal(*signal),
        }
    }
}

pub(crate) fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}

/// What [`Children::attend`] saw.
#[derive(Debug)]
pub(crate) enum Attended {
    /// A rank failed; the others run on.
    Failed(Death),
    /// No rank is left.
    AllEnded,
    /// This process got a signal to end.
    Signal,
    /// The bell rang, or time is up.
    Woken,
}

/// The end of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Death {
    /// Its host, where that is another.
    pub(crate) host: Option<String>,
    pub(crate) rank: u32,
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    pub(crate) ran: Duration,
}

impl Death {
    pub(crate) fn exit_code(&self) -> u8 {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => u8::try_from(code).unwrap_or(1),
            (None, Some(signal)) => code_of_signal(signal),
            (None, None) => 1,
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "rank {} (host {host}, pid {}) ", self.rank, self.pid)?,
            None => write!(f, "rank {} (pid {}) ", self.rank, self.pid)?,
        }
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => write!(f, "exited with code {code}")?,
            (None, Some(signal)) => {
                let name = signal_name(signal).unwrap_or("an unnamed signal");
                write!(f, "was ended by {name} (signal {signal})")?;
                if self.status.core_dumped() {
                    f.write_str(" and dumped core")?;
                }
            }
            (None, None) => f.write_str("ended in an unknown way")?,
        }
        write!(f, " after {:.2} s", self.ran.as_secs_f64())
    }
}

struct RunningRank {
    rank: u32,
    child: Child,
    started: Instant,
    /// Wakes the waiter when the rank ends; `None` where the kernel has no such thing.
    pidfd: Option<OwnedFd>,
    ended: bool,
}

impl RunningRank {
    /// The rank's end, once.
    fn reap(&mut self) -> Option<Death> {
        if self.ended {
            return None;
        }
        let status = self.child.try_wait().ok().flatten()?;
        self.ended = true;
        let (rank, pid, ran) = (self.rank, self.child.id(), self.started.elapsed());
        Some(Death { host: None, rank, pid, status, ran })
    }

    fn signal(&self, signal: Signal) {
        // Not reaped yet, so the process id still is the rank's.
        if !self.ended {
            let _already_gone = kill_process(Pid::from_child(&self.child), signal);
        }
    }
}

/// The ranks of one job. Dropping it ends those that still run.
pub(crate) struct Children {
    ranks: Vec<RunningRank>,
    signals: Signals,
    strays: Strays,
}

impl Children {
    /// An empty job; from here on SIGINT and SIGTERM are noticed by [`Children::wait`].
    pub(crate) fn new() -> anyhow::Result<Self> {
        let strays = Strays::adopt();
        let signals = Signals::catch().context("catching SIGINT and SIGTERM")?;
        Ok(Self { ranks: Vec::new(), signals, strays })
    }

    /// Starts the next rank and returns its process, whose pipes may be taken.
    pub(crate) fn start(&mut self, command: &mut Command) -> io::Result<&mut Child> {
        let child = command.spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        let rank = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let at = self.ranks.len();
        self.ranks.push(RunningRank { rank, child, started: Instant::now(), pidfd, ended: false });
        Ok(&mut self.ranks[at].child)
    }

    /// Process id of a rank.
    pub(crate) fn pid(&self, rank: u32) -> Option<u32> {
        let at = usize::try_from(rank).ok()?;
        self.ranks.get(at).map(|running| running.child.id())
    }

    /// Waits for the job's end. After a rank's failure the others get `grace` to report what
    /// they saw and leave by themselves; `on_death` hears of the failure at once.
    pub(crate) fn wait(&mut self, grace: Duration, on_death: impl FnOnce(&Death)) -> Outcome {
        loop {
            let first = self.reap_all();
            if let Some(signal) = self.signals.caught() {
                return self.interrupt(signal);
            }
            if let Some(death) = first {
                // Ctrl-C reaches the ranks as well and may end one before it is noticed here.
                if let Some(signal) = self.settle(&death) {
                    return self.interrupt(signal);
                }
                on_death(&death);
                self.await_all(grace, true);
                if let Some(signal) = self.signals.caught() {
                    return self.interrupt(signal);
                }
                self.end_all();
                return Outcome::Failed(death);
            }
            if self.all_ended() {
                return Outcome::Finished;
            }
            self.sleep(None, None);
        }
    }

    /// Waits until something happens, `bell` is readable or `limit` passes; ends nobody.
    pub(crate) fn attend(&mut self, bell: BorrowedFd<'_>, limit: Duration) -> Attended {
        for slept in [false, true] {
            if let Some(death) = self.reap_all() {
                return Attended::Failed(death);
            }
            if self.all_ended() {
                return Attended::AllEnded;
            }
            if self.signals.caught().is_some() {
                return Attended::Signal;
            }
            if !slept {
                self.sleep(Some(limit), Some(bell));
            }
        }
        Attended::Woken
    }

    fn interrupt(&mut self, signal: i32) -> Outcome {
        self.end_all();
        Outcome::Interrupted(signal)
    }

    /// Ends every rank and what they left behind.
    pub(crate) fn end_all(&mut self) {
        for signal in [Signal::TERM, Signal::KILL] {
            if self.all_ended() {
                break;
            }
            self.ranks.iter().for_each(|rank| rank.signal(signal));
            self.await_all(TERM_PATIENCE, false);
        }
        self.strays.end(TERM_PATIENCE);
    }

    /// Waits until every rank has ended, at most `patience`; also returns on a signal when
    /// `interruptible`.
    fn await_all(&mut self, patience: Duration, interruptible: bool) {
        let deadline = Instant::now() + patience;
        loop {
            self.reap_all();
            let left = deadline.saturating_duration_since(Instant::now());
            let interrupted = interruptible && self.signals.caught().is_some();
            if self.all_ended() || left.is_zero() || interrupted {
                return;
            }
            if interruptible {
                self.sleep(Some(left), None);
            } else {
                std::thread::sleep(left.min(TICK));
            }
        }
    }

    /// The signal that explains `death`, if this process was sent one too.
    fn settle(&self, death: &Death) -> Option<i32> {
        let suspicious = death.status.signal().is_some_and(|signal| {
            signal == signal_hook::consts::SIGINT || signal == signal_hook::consts::SIGTERM
        }) || death.status.code() == Some(130);
        let deadline = Instant::now() + SIGNAL_SETTLE;
        while suspicious && self.signals.caught().is_none() && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        self.signals.caught()
    }

    /// Notes all ends; returns the first failure among them.
    fn reap_all(&mut self) -> Option<Death> {
        let deaths: Vec<Death> = self.ranks.iter_mut().filter_map(RunningRank::reap).collect();
        deaths.into_iter().find(|death| !death.status.success())
    }

    fn all_ended(&self) -> bool {
        self.ranks.iter().all(|rank| rank.ended)
    }

    /// Sleeps until a rank ends, a signal comes, `bell` is readable or `limit` passes.
    fn sleep(&self, limit: Option<Duration>, bell: Option<BorrowedFd<'_>>) {
        let running = || self.ranks.iter().filter(|rank| !rank.ended);
        let limit = if running().all(|rank| rank.pidfd.is_some()) {
            limit
        } else {
            Some(limit.map_or(TICK, |limit| limit.min(TICK)))
        };
        let mut watched: Vec<PollFd<'_>> = running()
            .filter_map(|rank| rank.pidfd.as_ref())
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
            .chain([PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)])
            .chain(bell.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)))
            .collect();
        let timeout = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // Every reason to wake, also an interrupted call, leads to a fresh look by the caller.
        let _woken = poll(&mut watched, timeout.as_ref());
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        if !self.all_ended() {
            self.end_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(raw_status: i32) -> Death {
        let status = ExitStatus::from_raw(raw_status);
        Death { host: None, rank: 1, pid: 42, status, ran: Duration::from_millis(1500) }
    }

    #[test]
    fn a_death_names_rank_pid_cause_and_time() {
        assert_eq!(death(3 << 8).to_string(), "rank 1 (pid 42) exited with code 3 after 1.50 s");
        assert_eq!(
            death(9).to_string(),
            "rank 1 (pid 42) was ended by SIGKILL (signal 9) after 1.50 s"
        );
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(Outcome::Finished.exit_code(), 0);
        assert_eq!(Outcome::Failed(death(3 << 8)).exit_code(), 3);
        assert_eq!(Outcome::Failed(death(9)).exit_code(), 137);
        assert_eq!(Outcome::Interrupted(2).exit_code(), 130);
        assert_eq!(Outcome::Interrupted(15).exit_code(), 143);
    }
}

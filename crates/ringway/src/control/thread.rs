//! The thread that runs a board over real connections. It sleeps in `poll` until a neighbour
//! speaks, a local report rings, or somebody connects; it is the only part with a clock.
//!
//! *Invariant*: nothing may block it but `poll`: neither links nor acceptors wait.
//!
//! A host that vanishes without a word (power, cable) closes no connection: whoever makes the
//! links sets keep-alive and a user timeout on them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ask::Askers;
use super::board::Board;
use super::health::{Health, Wish};
use super::journal::Journal;
use super::link::{Acceptor, ControlLink, Line};
use super::message::Report;
use super::stall::counted;
use crate::error::{Error, RankIdentity, Result};
use crate::os;
use crate::plan::types::Rank;

/// How long the goodbye may take.
const FLUSH_MS_MAX: u64 = 200;

/// What a control thread is made of.
pub struct ControlSetup {
    /// This rank.
    pub rank: Rank,
    /// All ranks, in order.
    pub identities: Vec<RankIdentity>,
    /// The connections to the neighbours ([`neighbours`](super::neighbours)).
    pub streams: Vec<(Rank, Box<dyn ControlLink>)>,
    /// Where this rank's executing thread writes what it does.
    pub journal: Arc<Journal>,
    /// Called when the communicator is raised or a rank has left, to make sleepers look up.
    pub wake: Vec<Box<dyn Fn() + Send>>,
    /// Listeners to serve on the way.
    pub acceptors: Vec<Box<dyn Acceptor>>,
    /// Where others may ask how the ranks are.
    pub askers: Option<Askers>,
}

impl fmt::Debug for ControlSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlSetup").field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// The control plane of one communicator on one rank.
#[derive(Debug)]
pub struct Control {
    rank: Rank,
    health: Arc<Health>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts the control thread.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub fn start(setup: ControlSetup) -> Result<Self> {
        let health = Arc::new(Health::new(setup.identities.len(), Instant::now())?);
        let near: Vec<_> = setup.streams.iter().map(|(rank, _)| *rank).collect();
        let rank = setup.rank;
        let worker = Worker {
            health: Arc::clone(&health),
            board: Board::new(rank, setup.identities.into(), &near, setup.journal),
            lines: setup.streams.into_iter().map(|(rank, link)| Line::new(rank, link)).collect(),
            acceptors: setup.acceptors,
            askers: setup.askers,
            alarm: Alarm { health: Arc::clone(&health), wake: setup.wake },
            clock: Clock::default(),
        };
        let builder = std::thread::Builder::new().name(format!("ringway-ctl-{rank}"));
        let thread = builder
            .spawn(move || worker.run())
            .map_err(|e| Error::system("cannot start the control thread", e))?;
        Ok(Self { rank, health, thread: Some(thread) })
    }

    /// What the data path holds.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// See [`Health::report`].
    pub fn report(&self, report: Report) {
        self.health.report(report);
    }

    /// See [`Health::verdict`].
    #[must_use]
    pub fn verdict(&self) -> Option<Error> {
        self.health.verdict()
    }

    /// See [`Health::wait_verdict`].
    #[must_use]
    pub fn wait_verdict(&self, limit: Duration) -> Error {
        self.health.wait_verdict(limit)
    }

    /// Says goodbye to the neighbours (within 200 ms) and ends the thread. Dropping does the same.
    pub fn shutdown(self) {}

    /// Ends the thread as the death of the process would: no goodbye.
    #[cfg(test)]
    fn kill(mut self) {
        self.stop(Wish::Die);
    }

    fn stop(&mut self, wish: Wish) {
        if let Some(thread) = self.thread.take() {
            self.health.wish(wish);
            // A panic of the thread has already become this communicator's verdict.
            let _ = thread.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.thread.is_some() && std::thread::panicking() {
            self.health.report(Report::Panicked { rank: self.rank });
        }
        self.stop(Wish::Leave);
    }
}

/// What became ready.
#[derive(Default)]
struct Ready {
    lines: Vec<(usize, bool)>,
    acceptors: Vec<usize>,
}

/// The board's time: milliseconds less those for which this thread stood still against its will. Only waits with
/// a limit count. The journal goes by the real clock: see [`Board::stood_still`].
#[derive(Debug, Default)]
struct Clock {
    now_ms: u64,
    lost_ms: u64,
}

impl Clock {
    /// The thread is back at `real_ms`, having asked to be woken after `asked_ms`.
    fn wake(&mut self, asked_ms: Option<u64>, real_ms: u64) {
        let slept_ms = real_ms.saturating_sub(self.now_ms + self.lost_ms);
        if let Some(asked_ms) = asked_ms {
            let ms = Duration::from_millis;
            let lost = ms(slept_ms) - counted(ms(slept_ms), ms(asked_ms));
            self.lost_ms += u64::try_from(lost.as_millis()).unwrap_or(u64::MAX);
        }
        self.now_ms = real_ms.saturating_sub(self.lost_ms);
    }
}

struct Worker {
    health: Arc<Health>,
    board: Board,
    lines: Vec<Line>,
    acceptors: Vec<Box<dyn Acceptor>>,
    askers: Option<Askers>,
    alarm: Alarm,
    clock: Clock,
}

impl Worker {
    fn run(mut self) {
        loop {
            let now = self.clock.now_ms;
            let (reports, compare, wish) = {
                let mut inbox = self.health.inbox();
                (std::mem::take(&mut inbox.reports), std::mem::take(&mut inbox.compare), inbox.wish)
            };
            if compare && !self.board.is_raised() {
                self.board.compare(now);
            }
            for report in reports {
                self.board.local(report, now);
            }
            match wish {
                Wish::Serve => {}
                Wish::Leave => return self.leave(),
                #[cfg(test)]
                Wish::Die => return,
            }
            self.board.tick(now);
            self.answer(now);
            self.publish();
            let due = self.board.next_tick(now);
            let looks = self.board.next_look();
            let answers = self.askers.as_ref().and_then(|askers| askers.next_answer(&self.board));
            let next = [due, looks, answers].into_iter().flatten().min();
            let wait = |at: Option<u64>| at.map(|at| at.saturating_sub(now));
            let ready = self.sleep(wait(next));
            self.clock.wake(wait(next), self.health.now_ms());
            self.board.stood_still(self.clock.lost_ms);
            self.serve(&ready);
        }
    }

    /// Serves those who ask how the ranks are.
    fn answer(&mut self, now: u64) {
        let silent = |rank| {
            let line = self.lines.iter().find(|line| line.rank == rank)?;
            os::silent_ms(line.link.as_fd())
        };
        self.board.look(silent, now);
        if let Some(askers) = &mut self.askers {
            askers.serve(&mut self.board, now);
        }
    }

    /// Sends what the board wants sent, and shows what it came to.
    fn publish(&mut self) {
        loop {
            let outgoing = self.board.take_outgoing();
            if outgoing.is_empty() {
                break;
            }
            let mut lost = Vec::new();
            for message in outgoing {
                // Every message the board makes is bounded well below the limit.
                let Ok(frame) = message.message.encode() else {
                    continue;
                };
                let frame: Arc<[u8]> = frame.into();
                // A neighbour that is stopped must not be given up because somebody asks again and again.
                let optional = message.message.is_inquiry();
                for line in self.lines.iter_mut().filter(|line| message.to.contains(&line.rank)) {
                    if optional && line.is_clogged() {
                        continue;
                    }
                    if !lost.contains(&line.rank) && line.push(Arc::clone(&frame)).is_err() {
                        lost.push(line.rank);
                    }
                }
            }
            for rank in lost {
                self.lose(rank);
            }
        }
        let mut look_up = self.board.is_raised() && self.health.raise();
        for rank in self.board.gone() {
            look_up |= self.health.set_gone(rank);
        }
        if let Some(error) = self.board.verdict() {
            self.health.set_verdict(error);
        }
        if look_up {
            self.alarm.look_up();
        }
    }

    /// Waits until something is ready, `limit_ms` at most.
    fn sleep(&self, limit_ms: Option<u64>) -> Ready {
        let mut fds = vec![PollFd::from_borrowed_fd(self.health.bell(), PollFlags::IN)];
        for line in &self.lines {
            let writing = if line.is_idle() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(line.link.as_fd(), PollFlags::IN | writing));
        }
        for acceptor in &self.acceptors {
            fds.push(PollFd::from_borrowed_fd(acceptor.as_fd(), PollFlags::IN));
        }
        let asked = self.askers.as_ref().into_iter().flat_map(Askers::wanted);
        fds.extend(asked.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
        let backlog = self.lines.iter().any(|line| line.backlog);
        let limit = if backlog { Some(0) } else { limit_ms }.map(|ms| Timespec {
            tv_sec: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ms % 1000 * 1_000_000).unwrap_or_default(),
        });
        if poll(&mut fds, limit.as_ref()).is_err() {
            // Interrupted, or the kernel is short of memory: look again.
            return Ready::default();
        }
        let woken: Vec<_> = fds.iter().map(PollFd::revents).collect();
        let (bell, rest) = woken.split_at(1);
        let (lines, acceptors) = rest.split_at(self.lines.len());
        if !bell[0].is_empty() {
            self.health.silence();
        }
        let lines = lines.iter().zip(&self.lines).enumerate().filter_map(|(i, (flags, line))| {
            let readable = line.backlog || !(*flags - PollFlags::OUT).is_empty();
            (readable || !flags.is_empty()).then_some((i, readable))
        });
        let acceptors = acceptors.iter().take(self.acceptors.len()).enumerate();
        let acceptors = acceptors.filter(|(_, flags)| !flags.is_empty());
        Ready { lines: lines.collect(), acceptors: acceptors.map(|(i, _)| i).collect() }
    }

    fn serve(&mut self, ready: &Ready) {
        for &index in &ready.acceptors {
            self.acceptors[index].ready();
        }
        let now = self.clock.now_ms;
        let mut lost = Vec::new();
        for &(index, readable) in &ready.lines {
            let line = &mut self.lines[index];
            let written = if line.is_idle() { Ok(()) } else { line.write() };
            let read = if readable { line.receive(&mut self.board, now) } else { Ok(()) };
            if written.and(read).is_err() {
                lost.push(line.rank);
            }
        }
        for rank in lost {
            self.lose(rank);
        }
    }

    /// Gives up a neighbour's connection; its last words, perhaps a goodbye, still count.
    fn lose(&mut self, rank: Rank) {
        let now = self.clock.now_ms;
        if let Some(index) = self.lines.iter().position(|line| line.rank == rank) {
            let mut line = self.lines.swap_remove(index);
            while line.receive(&mut self.board, now).is_ok() && line.backlog {}
            self.board.neighbour_lost(rank, line.polite, now);
        }
    }

    fn leave(mut self) {
        self.askers = None;
        self.board.leave();
        self.publish();
        let end = self.health.now_ms() + FLUSH_MS_MAX;
        while self.lines.iter().any(|line| !line.is_idle()) {
            let left = end.saturating_sub(self.health.now_ms());
            if left == 0 {
                break;
            }
            let ready = self.sleep(Some(left.min(10)));
            self.serve(&ready);
            self.publish();
        }
        // A connection that is closed with unread data is reset, and what the kernel has not
        // delivered by then, our goodbye too, is lost: read on until all of it has arrived.
        loop {
            let ready = self.sleep(Some(0));
            self.serve(&ready);
            self.publish();
            let delivered = |line: &Line| os::unacknowledged_bytes(line.link.as_fd()) == 0;
            if self.lines.iter().all(delivered) || self.health.now_ms() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Makes sleepers look up; also when the control thread panics, as its communicator must not wait
/// for it for ever.
struct Alarm {
    health: Arc<Health>,
    wake: Vec<Box<dyn Fn() + Send>>,
}

impl Alarm {
    fn look_up(&self) {
        self.wake.iter().for_each(|wake| wake());
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.health.set_verdict(&Error::internal("the control thread of this rank panicked"));
            self.health.raise();
            // The panic may have come from one of these.
            let _ = catch_unwind(AssertUnwindSafe(|| self.look_up()));
        }
    }
}

#[cfg(test)]
mod tests;

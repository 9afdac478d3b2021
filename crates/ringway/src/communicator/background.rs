//! The threads that run background calls.
//!
//! One does: it takes the calls in the order in which they were made, tells whoever wants to know how each ended, and takes
//! the next. What it does afterwards may wait for calls that come behind; [`hand_over`] first puts another thread in its place.
//!
//! ```text
//! queue:   2 3 4
//! thread a   call 1 ── told ── hand_over ── afterwards (waits for 2) ─────────── back, or ends
//! thread b                        └── call 2 ── told ── call 3 …
//! ```
//!
//! *Invariant:* while calls are queued at least one thread that waits for nothing but its turn is there to run them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::{Error, Result};

/// Threads that are kept for the next call. With two, one that hands over need not start the other each time.
const KEPT: usize = 2;

/// Something to run, and then perhaps something that may wait.
pub(super) type Task = Box<dyn FnOnce() + Send>;

thread_local! {
    /// What this thread runs calls for; its own handle, while another has its place.
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Place {
    line: Arc<Line>,
    away: Option<JoinHandle<()>>,
}

/// The background of a communicator; its threads are started by the first task.
#[derive(Debug, Default)]
pub(super) struct Background {
    line: Option<Arc<Line>>,
}

#[derive(Debug)]
struct Line {
    name: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Task>,
    /// Whether a thread that has not handed over runs a task.
    is_running: bool,
    /// Until then threads wait for more.
    is_closed: bool,
    /// Those that have not handed over.
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (queued, threads) = (self.queue.len(), self.threads.len());
        write!(f, "{queued} queued, {threads} threads, closed: {}", self.is_closed)
    }
}

impl Background {
    /// A place to queue tasks at, with a thread behind it. Threads are named `name`.
    ///
    /// # Errors
    /// The first thread cannot be started.
    pub(super) fn open(&mut self, name: impl Fn() -> String) -> Result<Opened<'_>> {
        let line = self.line.get_or_insert_with(|| {
            let (state, changed) = (Mutex::default(), Condvar::new());
            Arc::new(Line { name: name(), state, changed })
        });
        let mut state = line.lock();
        if state.threads.is_empty() {
            let thread = line.start()?;
            state.threads.push(thread);
        }
        drop(state);
        Ok(Opened { line })
    }

    /// Whether this thread is one of its own.
    pub(super) fn is_of_this_thread(&self) -> bool {
        let is_its =
            |place: &Place| self.line.as_ref().is_some_and(|line| Arc::ptr_eq(line, &place.line));
        PLACE.with_borrow(|place| place.as_ref().is_some_and(is_its))
    }

    /// Waits until the queue is empty and the threads that have not handed over have ended.
    pub(super) fn end(self) {
        let Some(line) = &self.line else { return };
        for thread in line.close() {
            // They contain the panics of all they run.
            let _ended = thread.join();
        }
    }
}

/// Where tasks are queued.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    line: &'a Line,
}

impl Opened<'_> {
    /// Queues a task behind the others.
    pub(super) fn submit(&self, task: Task) {
        let mut state = self.line.lock();
        state.queue.push_back(task);
        let nobody_comes = !state.is_running;
        drop(state);
        if nobody_comes {
            self.line.changed.notify_one();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Those who run the rest end by themselves.
        if let Some(line) = &self.line {
            drop(line.close());
        }
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.lock();
        state.is_closed = true;
        let threads = mem::take(&mut state.threads);
        drop(state);
        self.changed.notify_all();
        threads
    }

    fn start(self: &Arc<Self>) -> Result<JoinHandle<()>> {
        let line = Arc::clone(self);
        thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || line.work())
            .map_err(|e| Error::system("cannot start a background thread", e))
    }

    fn work(self: Arc<Self>) {
        PLACE.set(Some(Place { line: Arc::clone(&self), away: None }));
        while let Some(task) = self.next() {
            task();
            let away = PLACE.with_borrow_mut(|place| place.as_mut().and_then(|p| p.away.take()));
            let goes_on = match away {
                Some(handle) => self.returns(handle),
                None => {
                    self.lock().is_running = false;
                    true
                }
            };
            if !goes_on {
                break;
            }
        }
        PLACE.set(None);
    }

    /// The next task, as soon as there is one and nobody else runs one; none once it is closed, and the queue empty or
    /// somebody else at it.
    fn next(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if !state.is_running
                && let Some(task) = state.queue.pop_front()
            {
                state.is_running = true;
                return Some(task);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a thread that had handed over goes on.
    fn returns(&self, handle: JoinHandle<()>) -> bool {
        let mut state = self.lock();
        let goes_on = !state.is_closed && state.threads.len() < KEPT;
        if goes_on {
            state.threads.push(handle);
        }
        goes_on
    }
}

/// Lets this thread wait for any call, in what it does after a background call (see [`crate::Afterwards`]): from now on
/// until that returns another thread runs the calls behind it.
///
/// Returns whether this thread is one that runs background calls and could hand over.
#[must_use = "where it is false, waiting here for another call may wait for ever"]
pub fn hand_over() -> bool {
    PLACE.with_borrow_mut(|place| {
        let Some(Place { line, away }) = place else { return false };
        if away.is_some() {
            return true;
        }
        let this = thread::current().id();
        let mut state = line.lock();
        let Some(at) = state.threads.iter().position(|thread| thread.thread().id() == this) else {
            // Closed: somebody waits for this thread, and with it for what it does.
            return false;
        };
        let own = state.threads.swap_remove(at);
        if state.threads.is_empty() {
            match line.start() {
                Ok(other) => state.threads.push(other),
                Err(_) => {
                    state.threads.push(own);
                    return false;
                }
            }
        }
        *away = Some(own);
        state.is_running = false;
        drop(state);
        line.changed.notify_one();
        true
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn name() -> String {
        "test".to_owned()
    }

    /// A task that hands over, says so, and waits until it is told to end.
    fn waiting(background: &mut Background) -> (Receiver<bool>, std::sync::mpsc::Sender<()>) {
        let (says, said) = channel();
        let (tells, told) = channel::<()>();
        let task = move || {
            says.send(hand_over()).unwrap();
            let _released = told.recv_timeout(LIMIT);
            says.send(true).unwrap();
        };
        background.open(name).unwrap().submit(Box::new(task));
        (said, tells)
    }

    #[test]
    fn tasks_run_in_order_in_one_thread() {
        let mut background = Background::default();
        let (sender, done) = channel();
        for number in 0..100 {
            let sender = sender.clone();
            let task = move || sender.send((number, thread::current().id())).unwrap();
            background.open(name).unwrap().submit(Box::new(task));
        }
        background.end();
        let seen: Vec<_> = done.try_iter().collect();
        assert_eq!(seen.len(), 100);
        assert!(seen.iter().enumerate().all(|(at, (number, _))| at == *number));
        assert!(seen.iter().all(|(_, thread)| *thread == seen[0].1));
    }

    #[test]
    fn one_that_handed_over_may_wait_for_those_behind_it() {
        let mut background = Background::default();
        let mut waiters = Vec::new();
        for _ in 0..4 {
            waiters.push(waiting(&mut background));
        }
        let (sender, done) = channel();
        background.open(name).unwrap().submit(Box::new(move || sender.send(()).unwrap()));
        done.recv_timeout(LIMIT).expect("the last runs while all before it wait");
        for (said, tells) in &waiters {
            assert!(said.recv_timeout(LIMIT).unwrap());
            assert_eq!(said.try_recv().ok(), None, "it waits");
            tells.send(()).unwrap();
            assert!(said.recv_timeout(LIMIT).unwrap());
        }
        let line = Arc::clone(background.line.as_ref().unwrap());
        background.end();
        assert_eq!(line.lock().threads.len(), 0);
    }

    #[test]
    fn threads_are_used_again() {
        let mut background = Background::default();
        let (sender, seen) = channel();
        for _ in 0..50 {
            let sender = sender.clone();
            let task = move || {
                assert!(hand_over());
                assert!(hand_over(), "twice is once");
                sender.send(thread::current().id()).unwrap();
            };
            background.open(name).unwrap().submit(Box::new(task));
            seen.recv_timeout(LIMIT).unwrap();
        }
        let threads = background.line.as_ref().unwrap().lock().threads.len();
        assert!((1..=KEPT).contains(&threads), "{threads}");
        background.end();
    }

    #[test]
    fn the_end_waits_for_tasks_but_not_for_those_that_handed_over() {
        let mut background = Background::default();
        let (said, tells) = waiting(&mut background);
        assert!(said.recv_timeout(LIMIT).unwrap());
        let (sender, done) = channel();
        background.open(name).unwrap().submit(Box::new(move || sender.send(()).unwrap()));
        background.end();
        assert_eq!(done.try_recv(), Ok(()));
        assert_eq!(said.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
        tells.send(()).unwrap();
        assert!(said.recv_timeout(LIMIT).unwrap());
    }

    #[test]
    fn only_a_background_thread_hands_over() {
        assert!(!hand_over());
        let mut background = Background::default();
        let (sender, done) = channel();
        let task = move || sender.send(PLACE.with_borrow(Option::is_some)).unwrap();
        background.open(name).unwrap().submit(Box::new(task));
        assert_eq!(done.recv_timeout(LIMIT), Ok(true));
        drop(background);
    }
}

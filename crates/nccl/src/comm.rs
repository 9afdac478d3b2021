//! What an `ncclComm_t` stands for, and the list of all of them.
//!
//! A handle is the address of a token that is never given back, so no two communicators of a process
//! ever have the same, and a handle that was destroyed, or never was one, is always told from one
//! that lives: by this list, without looking at the memory it points to.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ringway::{Communicator, Error, Result};

use crate::boundary;
use crate::config::Settings;
use crate::operator::Operators;
use crate::registered::Registered;
use crate::types::{Code, UniqueIdBytes};

/// What a handle points to: something a debugger can recognise.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Token {
    magic: [u8; 8],
}

const TOKEN_MAGIC: [u8; 8] = *b"ringway\0";

#[derive(Debug)]
enum Entry {
    Live(Arc<Comm>),
    /// Given up, but not yet destroyed.
    Aborted,
    Destroyed,
}

static HANDLES: LazyLock<RwLock<HashMap<usize, Entry>>> = LazyLock::new(RwLock::default);

/// One rank's communicator.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) handle: usize,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) device: c_int,
    pub(crate) settings: Settings,
    pub(crate) operators: Mutex<Operators>,
    pub(crate) registered: Mutex<Registered>,
    /// The id by which new ranks come, from when the program asked for it until the communicator grows.
    pub(crate) growth: Mutex<Option<UniqueIdBytes>>,
    state: Mutex<State>,
    changed: Condvar,
}

/// How far a communicator's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its ranks are coming together.
    Starting,
    Ready,
    /// No calls any more; waits to be destroyed.
    Finalized,
    /// As finalized, and what was under way has been stopped.
    Revoked,
    /// As revoked, for some of its ranks to go on without the others (`NCCL_SHRINK_ABORT`).
    Shrunk,
    Aborted,
}

impl Phase {
    /// Whether it was stopped so that its ranks can go on.
    pub(crate) fn is_stopped(self) -> bool {
        matches!(self, Self::Revoked | Self::Shrunk)
    }
}

#[derive(Debug)]
struct State {
    phase: Phase,
    communicator: Option<Communicator>,
    /// Threads that are inside a call.
    inside: usize,
    /// Threads that wait for a change; to tell nobody costs a system call too.
    waiting: usize,
    /// What runs in the background: calls on a communicator that does not block.
    in_progress: usize,
    /// It was stopped so that its ranks can go on: that it has failed, with what had begun before, is no error.
    stopped: bool,
    /// The first error of what ran in the background.
    error: Option<Error>,
    /// Whether the error that `ncclCommGetAsyncError` tells has been written down.
    told: bool,
}

impl State {
    /// It stops: what is known of it until now is of no interest any more.
    fn stop(&mut self) {
        self.stopped = true;
        (self.error, self.told) = (None, false);
    }

    fn communicator(&self) -> Result<Communicator> {
        self.communicator.clone().ok_or_else(|| match self.phase {
            Phase::Starting => Error::usage("the communicator has not been initialized yet"),
            _ => Error::usage("the communicator was taken down"),
        })
    }
}

impl Comm {
    /// A new communicator without ranks yet, and its handle.
    pub(crate) fn register(
        (rank, size): (u32, u32),
        device: c_int,
        settings: Settings,
    ) -> Arc<Self> {
        let token: &'static Token = Box::leak(Box::new(Token { magic: TOKEN_MAGIC }));
        let handle = std::ptr::from_ref(token).expose_provenance();
        let comm = Arc::new(Self {
            handle,
            rank,
            size,
            device,
            settings,
            operators: Mutex::default(),
            registered: Mutex::default(),
            growth: Mutex::default(),
            state: Mutex::new(State {
                phase: Phase::Starting,
                communicator: None,
                inside: 0,
                waiting: 0,
                in_progress: 0,
                stopped: false,
                error: None,
                told: false,
            }),
            changed: Condvar::new(),
        });
        handles_mut().insert(handle, Entry::Live(Arc::clone(&comm)));
        comm
    }

    /// The communicator of a handle.
    pub(crate) fn find(handle: *const Token) -> Result<Arc<Self>> {
        if handle.is_null() {
            return Err(Error::argument("the communicator is NULL"));
        }
        let handles = HANDLES.read().unwrap_or_else(PoisonError::into_inner);
        match handles.get(&handle.addr()) {
            Some(Entry::Live(comm)) => Ok(Arc::clone(comm)),
            Some(Entry::Aborted) => Err(Error::argument(format!(
                "the communicator {handle:p} was aborted; only ncclCommDestroy takes it"
            ))),
            Some(Entry::Destroyed) => {
                Err(Error::argument(format!("the communicator {handle:p} was destroyed before")))
            }
            None => Err(Error::argument(format!(
                "{handle:p} is not a communicator of this library; was it made by another?"
            ))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ranks have come together. Whether that still matters: not where it was given up meanwhile.
    pub(crate) fn start(&self, communicator: Communicator) -> bool {
        let mut state = self.state();
        if state.phase != Phase::Starting {
            return false;
        }
        state.phase = Phase::Ready;
        state.communicator = Some(communicator);
        true
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Refuses calls that may not be made now. A communicator whose ranks are still coming together
    /// takes calls in the same group: they run after that.
    pub(crate) fn check_callable(&self) -> Result<()> {
        let state = self.state();
        match state.phase {
            Phase::Finalized => {
                return Err(Error::usage("the communicator is finalized: it takes no more calls"));
            }
            Phase::Revoked => {
                return Err(Error::usage("the communicator is revoked: it takes no more calls"));
            }
            Phase::Shrunk => {
                return Err(Error::usage(
                    "the communicator was stopped by ncclCommShrink with NCCL_SHRINK_ABORT: it takes no more calls",
                ));
            }
            Phase::Aborted => return Err(Error::usage("the communicator was aborted")),
            Phase::Starting | Phase::Ready => {}
        }
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        if state.in_progress > 0 {
            return Err(Error::argument(
                "the communicator does not block, and what was called before is still in progress: \
                 ask ncclCommGetAsyncError until it says ncclSuccess",
            ));
        }
        Ok(())
    }

    /// The ranks.
    pub(crate) fn communicator(&self) -> Result<Communicator> {
        self.state().communicator()
    }

    /// The ranks, for one call, which ends when the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Inside> {
        let mut state = self.state();
        let communicator = state.communicator()?;
        state.inside += 1;
        Ok(Inside { communicator, _counted: Counted(Arc::clone(self)) })
    }

    /// Something begins in the background: a shrink, which goes on where the communicator is stopped, or something else.
    pub(crate) fn begin(self: &Arc<Self>, shrinks: bool) -> Progress {
        let mut state = self.state();
        state.in_progress += 1;
        let outcome = Err(Error::internal("what ran in the background did not come to its end"));
        let outlives_stop = shrinks || state.stopped;
        Progress { comm: Arc::clone(self), outlives_stop, outcome }
    }

    /// What `ncclCommGetAsyncError` says. An error is written down the first time.
    pub(crate) fn async_error(self: &Arc<Self>) -> Code {
        let state = self.state();
        let (known, is_stopped) = (state.error.clone(), state.stopped);
        let in_progress = state.in_progress > 0 || is_stopped && state.inside > 0;
        drop(state);
        // Nobody is kept out meanwhile: it may wait for the ranks to agree.
        let failure = || match is_stopped {
            true => None,
            false => self.enter().ok()?.communicator.failure(),
        };
        let of_ranks = if known.is_none() { failure() } else { None };
        let mut state = self.state();
        // It may have been stopped meanwhile, or told.
        let of_ranks = of_ranks.filter(|_| !state.stopped);
        let Some(error) = known.or(of_ranks) else {
            return if in_progress { Code::InProgress } else { Code::Success };
        };
        let told = std::mem::replace(&mut state.told, true);
        drop(state);
        if !told {
            boundary::report(&error);
        }
        Code::from(&error)
    }

    /// It is about to be shrunk, and stopped for that where the program says so.
    pub(crate) fn begin_shrink(&self, stops: bool) {
        let mut state = self.state();
        if stops && state.phase == Phase::Ready {
            state.phase = Phase::Shrunk;
        }
        if state.phase.is_stopped() {
            state.stop();
        }
    }

    /// Does something unless it was given up; nobody gives it up meanwhile.
    pub(crate) fn unless_aborted(&self, body: impl FnOnce() -> Result<()>) -> Result<()> {
        let state = self.state();
        if state.phase == Phase::Aborted {
            return Err(Error::usage("the communicator was aborted"));
        }
        body()
    }

    /// Takes no more calls from now on.
    pub(crate) fn enter_phase(&self, phase: Phase) -> Option<Communicator> {
        let mut state = self.state();
        state.phase = phase;
        if phase.is_stopped() {
            state.stop();
        }
        let communicator = state.communicator.clone();
        self.tell(state);
        communicator
    }

    /// Wakes whoever waits for a change.
    fn tell(&self, state: MutexGuard<'_, State>) {
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// Waits until no call is inside and nothing runs in the background.
    pub(crate) fn wait_idle(&self, limit: Duration) {
        self.wait_until(limit, |state| state.inside == 0 && state.in_progress == 0);
    }

    /// Waits until no call is inside; whether that came in time.
    pub(crate) fn wait_calls(&self, limit: Duration) -> bool {
        self.wait_until(limit, |state| state.inside == 0)
    }

    fn wait_until(&self, limit: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.state();
        state.waiting += 1;
        while !is_so(&state) {
            let Some(rest) = until.checked_duration_since(Instant::now()) else { break };
            let waited = self.changed.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting -= 1;
        is_so(&state)
    }

    /// Lets go of the ranks; the last to do so says goodbye to the others.
    pub(crate) fn release(&self) {
        let communicator = self.state().communicator.take();
        drop(communicator);
    }

    /// As [`Comm::release`], but waits no longer than that: it goes on in a thread of its own.
    pub(crate) fn release_within(&self, limit: Duration) {
        let communicator = self.state().communicator.take();
        let (over, is_over) = mpsc::sync_channel(1);
        let release = move || {
            drop(communicator);
            let _sent = over.send(());
        };
        // Where no thread can be had it is dropped here.
        let _thread = thread::Builder::new().name("ringway-release".to_owned()).spawn(release);
        let _over = is_over.recv_timeout(limit);
    }

    /// The handle is no longer one.
    pub(crate) fn forget(&self, aborted: bool) {
        let entry = if aborted { Entry::Aborted } else { Entry::Destroyed };
        handles_mut().insert(self.handle, entry);
    }
}

/// Destroys a handle that was aborted before; whether it was one.
pub(crate) fn bury(handle: *const Token) -> bool {
    let mut handles = handles_mut();
    match handles.get_mut(&handle.addr()) {
        Some(entry @ Entry::Aborted) => {
            *entry = Entry::Destroyed;
            true
        }
        _ => false,
    }
}

fn handles_mut() -> std::sync::RwLockWriteGuard<'static, HashMap<usize, Entry>> {
    HANDLES.write().unwrap_or_else(PoisonError::into_inner)
}

/// A handle as C holds it.
pub(crate) fn pointer(handle: usize) -> *const Token {
    std::ptr::with_exposed_provenance(handle)
}

/// A call that is inside a communicator.
#[derive(Debug)]
pub(crate) struct Inside {
    // Let go of before it is counted out: whoever waits for that lets go of the ranks last.
    pub(crate) communicator: Communicator,
    _counted: Counted,
}

/// Something that runs in the background of a communicator, until this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    comm: Arc<Comm>,
    /// Whether it fails for reasons of its own even where the communicator was stopped.
    outlives_stop: bool,
    outcome: Result<()>,
}

impl Progress {
    /// Whether it is that communicator's.
    pub(crate) fn is_of(&self, comm: &Arc<Comm>) -> bool {
        Arc::ptr_eq(&self.comm, comm)
    }

    /// Whether anybody is told that it failed.
    pub(crate) fn is_told(&self) -> bool {
        self.outlives_stop || !self.comm.state().stopped
    }

    /// It is over, and this became of it.
    pub(crate) fn end(mut self, outcome: Result<()>) {
        self.outcome = outcome;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut state = self.comm.state();
        state.in_progress -= 1;
        // What the stop ended is no error.
        if let Err(error) = &self.outcome
            && (self.outlives_stop || !state.stopped)
        {
            state.error.get_or_insert_with(|| error.clone());
        }
        self.comm.tell(state);
    }
}

#[derive(Debug)]
struct Counted(Arc<Comm>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.inside -= 1;
        self.0.tell(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told() {
        let comm = Comm::register((0, 1), 0, Settings::default());
        let progress = comm.begin(false);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| comm.wait_idle(Duration::from_secs(60)));
            let end = Instant::now() + Duration::from_secs(30);
            while comm.state().waiting == 0 && Instant::now() < end {
                thread::yield_now();
            }
            progress.end(Ok(()));
            while !waiting.is_finished() && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(waiting.is_finished(), "it waits though nothing runs");
        });
        assert_eq!(comm.state().waiting, 0);
    }
}

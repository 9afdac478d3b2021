//! Groups: what a thread calls between `ncclGroupStart` and `ncclGroupEnd` is collected, and happens
//! when the outermost group ends. A call outside any group is a group of its own.
//!
//! At the end, first communicators are made, each in a thread of its own; then operations run; then
//! communicators go. The first error ends the group: what comes after it does not happen.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use ringway::{Call, Collective, Error, Result};

use crate::boundary::{contain, report};
use crate::comm::{Comm, Phase, Progress};
use crate::operation::{Kind, Operation};
use crate::submit::{Batch, submit};
use crate::types::Code;

/// A communicator to be made.
pub(crate) struct Task {
    /// The communicator that says how far it is, and whether anybody waits: the new one, or the
    /// one it comes from.
    pub(crate) watched: Arc<Comm>,
    /// The new one, where it comes from another and has its handle already.
    pub(crate) new: Option<Arc<Comm>>,
    /// Where it shrinks the watched one: whether that is stopped for it when the group happens.
    pub(crate) shrinks: Option<bool>,
    /// Makes it.
    pub(crate) work: Box<dyn FnOnce() -> Result<()> + Send>,
    /// Takes back what was promised for it.
    pub(crate) undo: Box<dyn FnOnce() + Send>,
}

impl Task {
    fn run(self) -> Result<()> {
        let outcome = contain("the making of a communicator", self.work);
        if outcome.is_err() && self.watched.settings.blocking {
            (self.undo)();
        }
        outcome
    }

    /// What it comes after has failed.
    fn fail(self, before: &Error) -> Result<()> {
        if self.watched.settings.blocking {
            (self.undo)();
        }
        Err(before.clone())
    }
}

/// What became of a task.
struct Made {
    watched: Arc<Comm>,
    new: Option<Arc<Comm>>,
    outcome: Result<()>,
}

/// A communicator to be taken down.
pub(crate) type Ending = Box<dyn FnOnce() -> Result<()> + Send>;

/// What a thread has collected.
#[derive(Default)]
struct Pending {
    depth: u32,
    error: Option<Error>,
    tasks: Vec<Task>,
    batches: Vec<Batch>,
    endings: Vec<Ending>,
}

thread_local! {
    /// Never dropped, so that it is there to a thread's very end: destructors of a program and what it gave to
    /// `atexit` take communicators down after the thread's own values are gone. Outside a group there is nothing in it.
    static PENDING: ManuallyDrop<RefCell<Pending>> = ManuallyDrop::default();
}

fn with_pending<T>(body: impl FnOnce(&mut Pending) -> T) -> T {
    PENDING.with(|pending| body(&mut pending.borrow_mut()))
}

/// Begins a group, perhaps within another.
pub(crate) fn start() {
    with_pending(|pending| pending.depth += 1);
}

/// Ends a group; the outermost does what was collected.
pub(crate) fn end() -> Result<Code> {
    match leave()? {
        None => Ok(Code::Success),
        Some(Pending { error: Some(error), tasks, .. }) => {
            tasks.into_iter().for_each(|task| (task.undo)());
            Err(error)
        }
        Some(pending) => happen(pending),
    }
}

/// Leaves a group; what was collected, if it is the outermost.
fn leave() -> Result<Option<Pending>> {
    with_pending(|pending| {
        if pending.depth == 0 {
            return Err(Error::usage(
                "ncclGroupEnd: not in a group call; call ncclGroupStart first",
            ));
        }
        pending.depth -= 1;
        Ok((pending.depth == 0).then(|| std::mem::take(pending)))
    })
}

/// Ends a group without doing anything; what its collectives are thought to take, in microseconds.
/// Nothing where an outer group goes on.
pub(crate) fn simulate_end() -> Result<Option<f64>> {
    let Some(pending) = leave()? else { return Ok(None) };
    pending.tasks.into_iter().for_each(|task| (task.undo)());
    if let Some(error) = pending.error {
        return Err(error);
    }
    // Communicators work side by side, a communicator's operations one after another.
    let mut longest: f64 = 0.0;
    for batch in &pending.batches {
        let inside = batch.comm.enter()?;
        let mut whole = 0.0;
        for operation in &batch.operations {
            if let Kind::Collective { call, .. } = &operation.kind {
                whole += expected_us(&inside.communicator, call)?;
            }
        }
        longest = longest.max(whole);
    }
    Ok(Some(longest))
}

fn expected_us(communicator: &ringway::Communicator, call: &Call) -> Result<f64> {
    if communicator.size() == 1 || call.collective == Collective::Barrier {
        return Ok(0.0);
    }
    let choice = communicator.candidates(call)?;
    let chosen = choice.candidates.iter().find(|one| one.algorithm == choice.algorithm);
    Ok(chosen.and_then(|one| one.expected_us).unwrap_or_default())
}

/// A call: collects what `body` adds, and does it now if no group is open.
pub(crate) fn scope(body: impl FnOnce() -> Result<()>) -> Result<Code> {
    start();
    let outcome = contain("a call", body);
    if let Err(error) = &outcome {
        with_pending(|pending| {
            pending.error.get_or_insert_with(|| error.clone());
        });
    }
    let ended = end();
    outcome?;
    ended
}

/// Adds an operation on a communicator.
pub(crate) fn add(comm: Arc<Comm>, operation: Operation) {
    with_pending(|pending| {
        let known = pending.batches.iter_mut().find(|batch| Arc::ptr_eq(&batch.comm, &comm));
        match known {
            Some(batch) => batch.operations.push(operation),
            None => pending.batches.push(Batch::new(comm, operation)),
        }
    });
}

/// Adds a communicator to be made.
pub(crate) fn add_task(task: Task) {
    with_pending(|pending| pending.tasks.push(task));
}

/// Adds a communicator to be taken down.
pub(crate) fn add_ending(ending: Ending) {
    with_pending(|pending| pending.endings.push(ending));
}

/// Drops the operations of a communicator that was given up.
pub(crate) fn drop_operations(comm: &Arc<Comm>) {
    with_pending(|pending| {
        pending.batches.retain(|batch| !Arc::ptr_eq(&batch.comm, comm));
    });
}

/// What is in the background of the communicators of a group.
#[derive(Default)]
struct Background {
    progress: Vec<Progress>,
    /// Whether an error of it has been written down.
    is_reported: bool,
}

impl Background {
    /// A communicator has something of the group there.
    fn begin(&mut self, comm: &Arc<Comm>, shrinks: bool) {
        if !self.progress.iter().any(|known| known.is_of(comm)) {
            self.progress.push(comm.begin(shrinks));
        }
    }

    /// What a communicator has there is over.
    fn end(&mut self, comm: &Arc<Comm>, outcome: &Result<()>) {
        if let Some(at) = self.progress.iter().position(|one| one.is_of(comm)) {
            let one = self.progress.swap_remove(at);
            self.end_one(one, outcome);
        }
    }

    /// All is over. Those whose own part was before keep what became of it.
    fn end_all(&mut self, outcome: &Result<()>) {
        for one in std::mem::take(&mut self.progress) {
            self.end_one(one, outcome);
        }
    }

    /// An error is written down before the communicator tells it: it must not come behind what the program is told next.
    fn end_one(&mut self, one: Progress, outcome: &Result<()>) {
        if let Err(error) = outcome
            && !self.is_reported
            && one.is_told()
        {
            report(error);
            self.is_reported = true;
        }
        one.end(outcome.clone());
    }
}

/// Does what was collected: now, or in the background where the communicators do not block.
fn happen(pending: Pending) -> Result<Code> {
    let watched = pending.tasks.iter().map(|task| &task.watched);
    let mut all = watched.chain(pending.batches.iter().map(|batch| &batch.comm));
    let Some(blocking) = all.next().map(|comm| comm.settings.blocking) else {
        return carry_out(pending, &mut Background::default()).map(|()| Code::Success);
    };
    if all.any(|comm| comm.settings.blocking != blocking) {
        pending.tasks.into_iter().for_each(|task| (task.undo)());
        return Err(Error::argument(
            "communicators that block and such that do not are in one group; make two groups of it",
        ));
    }
    if !blocking && pending.batches.iter().any(Batch::is_for_this_thread) {
        pending.tasks.into_iter().for_each(|task| (task.undo)());
        return Err(Error::argument(
            "cudaStreamPerThread is another stream in the thread that works for communicators which do not block; \
             give them a stream of your own",
        ));
    }
    for task in &pending.tasks {
        if let Some(stops) = task.shrinks {
            task.watched.begin_shrink(stops);
        }
    }
    let mut background = Background::default();
    if blocking {
        return carry_out(pending, &mut background).map(|()| Code::Success);
    }
    let watched = pending.tasks.iter().flat_map(|task| task.new.iter().chain([&task.watched]));
    for comm in watched.chain(pending.batches.iter().map(|batch| &batch.comm)) {
        let shrinks = |task: &Task| task.shrinks.is_some() && Arc::ptr_eq(&task.watched, comm);
        background.begin(comm, pending.tasks.iter().any(shrinks));
    }
    let work = move || {
        let outcome = contain("a group in the background", || carry_out(pending, &mut background));
        background.end_all(&outcome);
    };
    let builder = std::thread::Builder::new().name("ringway-async".to_owned());
    let started = builder.spawn(work);
    started.map_err(|error| Error::system("cannot start the thread of a group", error))?;
    Ok(Code::InProgress)
}

/// Does everything and waits for it; the first error. Each communicator that has something in the background is told what
/// became of it.
fn carry_out(pending: Pending, background: &mut Background) -> Result<()> {
    let Pending { tasks, mut batches, endings, .. } = pending;
    let outcomes = run_all(tasks);
    let mut first = Ok(());
    for (at, Made { watched, new, outcome }) in outcomes.iter().enumerate() {
        first = first.and_then(|()| outcome.clone());
        let has_calls = |comm| batches.iter().any(|batch| Arc::ptr_eq(&batch.comm, comm));
        let has_tasks = outcomes[at + 1..].iter().any(|later| Arc::ptr_eq(&later.watched, watched));
        let goes_on = has_tasks || has_calls(watched);
        let is_failed = outcome.is_err();
        if let Some(new) = new.as_ref().filter(|new| is_failed || !has_calls(new)) {
            background.end(new, outcome);
        }
        let is_given_up = |new: &Arc<Comm>| new.phase() != Phase::Starting;
        if is_failed && !goes_on && new.as_ref().is_some_and(is_given_up) {
            // That is no error of the old one, which has nothing else in the group.
            background.end(watched, &Ok(()));
        } else if is_failed || !goes_on {
            background.end(watched, outcome);
        }
    }
    first?;
    let mut first = Ok(());
    let outcomes = submit(&mut batches);
    for (batch, outcome) in batches.iter().zip(outcomes) {
        background.end(&batch.comm, &outcome);
        first = first.and(outcome);
    }
    first?;
    endings.into_iter().try_for_each(|ending| ending())
}

/// Makes communicators side by side; those that come from the same one one after another, since all ranks must make
/// them in the same order.
fn run_all(tasks: Vec<Task>) -> Vec<Made> {
    let mut lines: Vec<Vec<Task>> = Vec::new();
    for task in tasks {
        let is_its = |line: &&mut Vec<Task>| Arc::ptr_eq(&line[0].watched, &task.watched);
        match lines.iter_mut().find(is_its) {
            Some(line) => line.push(task),
            None => lines.push(vec![task]),
        }
    }
    if lines.len() <= 1 {
        return lines.pop().map(run_line).unwrap_or_default();
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = lines
            .into_iter()
            .map(|line| {
                let comm = Arc::clone(&line[0].watched);
                let builder =
                    std::thread::Builder::new().name(format!("ringway-init-{}", comm.rank));
                (comm, builder.spawn_scoped(scope, move || run_line(line)))
            })
            .collect();
        let ended = threads.into_iter().flat_map(|(watched, thread)| {
            let error = match thread.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(made)) => return made,
                Ok(Err(_)) => Error::internal("a thread died"),
                Err(error) => Error::system("cannot start a thread for a rank", error),
            };
            vec![Made { watched, new: None, outcome: Err(error) }]
        });
        ended.collect()
    })
}

/// Makes communicators one after another; none after one that fails.
fn run_line(line: Vec<Task>) -> Vec<Made> {
    let mut made: Vec<Made> = Vec::with_capacity(line.len());
    for task in line {
        let (watched, new) = (Arc::clone(&task.watched), task.new.clone());
        let outcome = match made.last() {
            Some(Made { outcome: Err(before), .. }) => task.fail(before),
            _ => task.run(),
        };
        made.push(Made { watched, new, outcome });
    }
    made
}

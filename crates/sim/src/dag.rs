//! Tasks in their order: each begins when those before it are over.

use crate::engine::{Engine, Event, Options};
use crate::error::SimError;
use crate::network::{Network, Place};
use crate::outcome::{Outcome, Span};
use crate::work::{Stream, Task, TaskId, What};

/// What a timer is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// A task that waits is over.
    Over(TaskId),
    /// A task may begin: everybody has come.
    Begin(TaskId),
}

/// Runs tasks to their end.
///
/// # Errors
///
/// When tasks wait for each other or for what is not there, or a flow has no way.
pub fn run(network: &Network, tasks: &[Task], options: &Options) -> Result<Outcome, SimError> {
    check(network, tasks, options)?;
    let mut run = Run {
        tasks,
        options,
        engine: Engine::new(network, options)?,
        missing: tasks.iter().map(|task| task.after.len()).collect(),
        followers: followers(tasks),
        pending: vec![0; tasks.len()],
        owners: Vec::new(),
        purposes: Vec::new(),
        spans: vec![None; tasks.len()],
        order: Vec::new(),
        ready: Vec::new(),
        end_us: 0.0,
    };
    run.ready = (0..tasks.len()).rev().filter(|task| run.missing[*task] == 0).collect();
    run.begin_ready()?;
    while let Some((now_us, event)) = run.engine.next()? {
        match event {
            Event::Done(stream) => run.part_over(run.owners[stream], now_us),
            Event::Timer(id) => match run.purposes[usize::try_from(id).unwrap_or(0)] {
                Purpose::Over(task) => run.over(task, now_us),
                Purpose::Begin(task) => run.begin_stream(task)?,
            },
        }
        run.begin_ready()?;
    }
    run.outcome()
}

struct Run<'a> {
    tasks: &'a [Task],
    options: &'a Options,
    engine: Engine<'a>,
    /// How many tasks each one still waits for.
    missing: Vec<usize>,
    followers: Vec<Vec<TaskId>>,
    /// Streams of each task that are under way.
    pending: Vec<usize>,
    /// The task of each stream.
    owners: Vec<TaskId>,
    purposes: Vec<Purpose>,
    spans: Vec<Option<(f64, f64)>>,
    order: Vec<TaskId>,
    ready: Vec<TaskId>,
    end_us: f64,
}

impl Run<'_> {
    fn begin_ready(&mut self) -> Result<(), SimError> {
        while let Some(task) = self.ready.pop() {
            let now_us = self.engine.now_us();
            match &self.tasks[task].what {
                What::Wait { us } => {
                    self.note_start(task, now_us);
                    self.timer(*us, Purpose::Over(task));
                }
                What::Stream(stream) | What::Flows(stream) => {
                    let late_us = self.late_us(stream);
                    if late_us > now_us {
                        self.timer(late_us - now_us, Purpose::Begin(task));
                    } else {
                        self.begin_stream(task)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn timer(&mut self, us: f64, purpose: Purpose) {
        self.engine.after(us);
        self.purposes.push(purpose);
    }

    /// When the last rank of a stream has come.
    fn late_us(&self, stream: &Stream) -> f64 {
        let takes_part = |rank: u32| {
            let is = |place: Place| place == Place::Rank(rank);
            stream.flows.iter().any(|flow| is(flow.from) || is(flow.to))
        };
        let late = self.options.late.iter().filter(|(rank, _)| takes_part(*rank));
        late.map(|(_, us)| *us).fold(0.0, f64::max)
    }

    fn begin_stream(&mut self, task: TaskId) -> Result<(), SimError> {
        self.note_start(task, self.engine.now_us());
        let owners = &mut self.owners;
        let mut own = |stream: usize| {
            owners.resize(owners.len().max(stream + 1), task);
            owners[stream] = task;
            self.pending[task] += 1;
        };
        match &self.tasks[task].what {
            What::Wait { .. } => {}
            What::Stream(stream) => own(self.engine.start(stream)?),
            What::Flows(stream) => self.engine.start_each(stream, own)?,
        }
        if self.pending[task] == 0 {
            self.over(task, self.engine.now_us());
        }
        Ok(())
    }

    fn note_start(&mut self, task: TaskId, now_us: f64) {
        self.spans[task] = Some((now_us, now_us));
        self.order.push(task);
    }

    fn part_over(&mut self, task: TaskId, now_us: f64) {
        self.pending[task] -= 1;
        if self.pending[task] == 0 {
            self.over(task, now_us);
        }
    }

    fn over(&mut self, task: TaskId, now_us: f64) {
        if let Some(span) = &mut self.spans[task] {
            span.1 = now_us;
        }
        self.end_us = self.end_us.max(now_us);
        for follower in &self.followers[task] {
            self.missing[*follower] -= 1;
            if self.missing[*follower] == 0 {
                self.ready.push(*follower);
            }
        }
    }

    fn outcome(mut self) -> Result<Outcome, SimError> {
        if let Some(task) = self.missing.iter().position(|missing| *missing > 0) {
            let why = "it waits for itself, by way of others".to_owned();
            return Err(SimError::Task { task, name: self.tasks[task].name.clone(), why });
        }
        let span = |task: &TaskId| {
            let (start_us, end_us) = self.spans[*task]?;
            let Task { name, row, .. } = &self.tasks[*task];
            Some(Span { name: name.clone(), row: row.clone(), start_us, end_us })
        };
        Ok(Outcome {
            end_us: self.end_us,
            spans: self.order.iter().filter_map(span).collect(),
            links: self.engine.link_uses(),
            incidents: self.engine.take_incidents(),
            flows: self.engine.flows(),
            solves: self.engine.solves(),
        })
    }
}

fn followers(tasks: &[Task]) -> Vec<Vec<TaskId>> {
    let mut followers = vec![Vec::new(); tasks.len()];
    for (index, task) in tasks.iter().enumerate() {
        for before in &task.after {
            followers[*before].push(index);
        }
    }
    followers
}

fn check(network: &Network, tasks: &[Task], options: &Options) -> Result<(), SimError> {
    for (index, task) in tasks.iter().enumerate() {
        let wrong = |why: String| Err(SimError::Task { task: index, name: task.name.clone(), why });
        if let Some(before) = task.after.iter().find(|before| **before >= tasks.len()) {
            return wrong(format!("it waits for task {before}, and there are {}", tasks.len()));
        }
        match &task.what {
            What::Wait { us } if !(us.is_finite() && *us >= 0.0) => {
                return wrong(format!("{us} µs is no time to wait"));
            }
            What::Wait { .. } => {}
            What::Stream(stream) | What::Flows(stream) => {
                let fine = |value: f64| value.is_finite() && value >= 0.0;
                if !fine(stream.bytes) || !fine(stream.latency_us) {
                    return wrong("its bytes or latency are no number".to_owned());
                }
                for flow in &stream.flows {
                    if !fine(flow.share) {
                        return wrong(format!("{} is no share", flow.share));
                    }
                    if let Some(place) =
                        [flow.from, flow.to].iter().find(|p| !is_there(network, **p))
                    {
                        return wrong(format!("there is no {place:?} in this network"));
                    }
                }
            }
        }
    }
    for (rank, us) in &options.late {
        if *rank as usize >= network.ranks() || !(us.is_finite() && *us >= 0.0) {
            return Err(SimError::Fault {
                us: *us,
                why: format!("rank {rank} cannot be late by {us} µs"),
            });
        }
    }
    Ok(())
}

fn is_there(network: &Network, place: Place) -> bool {
    match place {
        Place::Rank(rank) => (rank as usize) < network.ranks(),
        Place::Switch(node) => network.switch_of.get(node).is_some_and(|at| *at != u32::MAX),
    }
}

#[cfg(test)]
mod tests;

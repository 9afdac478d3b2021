//! What is simulated: a collective, a plan or a training step, each as a [`Job`].

use anyhow::{Context as _, bail};
use clap::ValueEnum as _;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::json;
use ringway_plan::plan::Plan;
use ringway_plan::planner;
use ringway_plan::problem::Problem;
use ringway_plan::types::{Collective, DataType};
use ringway_sim::engine::Options;
use ringway_sim::network::Network;
use ringway_sim::outcome::Outcome;
use ringway_sim::pattern::{self, Pattern};
use ringway_sim::report::summary::{Timed, extent};
use ringway_sim::what_if::Knob;
use ringway_sim::workload::{self, Compute, StepTime, Style, Training};
use ringway_sim::{dag, steps};
use serde_json::{Value, json};

use super::args::{CallArg, CollectiveArgs, CommonArgs, PatternArg, PlanArgs, TrainArgs};
use super::{page, world};
use crate::plan::call::unsupported;
use crate::size;

/// Most steps of a plan that is simulated.
const STEPS_MOST: u64 = 20_000_000;

/// What came out of one run.
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    /// For people.
    pub(super) page: String,
    /// For tools.
    pub(super) result: Value,
    /// GB/s of links, or tokens a second.
    pub(super) rate: f64,
}

/// Something that can be simulated, and varied.
pub(super) trait Job: Clone {
    /// What all jobs are told.
    fn common(&self) -> &CommonArgs;
    /// The same, to be changed.
    fn common_mut(&mut self) -> &mut CommonArgs;
    /// What a picture of it is called.
    fn title(&self) -> String;
    /// What [`Ran::rate`] is.
    fn rate_name(&self) -> &'static str {
        "busbw GB/s"
    }
    /// Changes what is the job's own.
    fn set(&mut self, knob: Knob, value: &str) -> Result<(), String>;
    /// Runs it once.
    fn run(&self, network: &Network, options: &Options) -> anyhow::Result<Ran>;
}

fn pattern_arg(value: &str) -> Result<PatternArg, String> {
    PatternArg::from_str(value, true).map_err(|_| {
        format!("algorithm {value}: auto, ring, tree, hierarchical, chain, direct, sharp")
    })
}

/// Whether there are channels to be told the number of.
fn channels(asked: Option<u32>, pattern: Option<Pattern>) -> anyhow::Result<()> {
    if asked.is_none() || matches!(pattern, Some(Pattern::Ring | Pattern::Tree)) {
        return Ok(());
    }
    let name = pattern.map_or("what is chosen by itself", Pattern::name);
    bail!("--channels is for --algorithm ring and tree; {name} goes by rails or by pairs")
}

fn not_here(knob: Knob) -> Result<(), String> {
    Err(format!("{knob} cannot be varied here"))
}

/// A collective and its size, unless sizes are varied.
fn sized(common: &CommonArgs, collective: Collective, bytes: u64) -> String {
    match common.output.vary.iter().any(|axis| axis.knob == Knob::Size) {
        true => collective.to_string(),
        false => format!("{collective} {}", size::display(bytes)),
    }
}

impl CollectiveArgs {
    fn bytes_of(&self, call: &CallArg) -> u64 {
        call.bytes.or(self.bytes).unwrap_or(1 << 30)
    }

    /// Whether all that was told is of use.
    fn check(&self) -> anyhow::Result<()> {
        if let Some(root) = self.root
            && !self.calls.iter().any(|call| call.collective.has_root())
        {
            bail!("--root {root}: none of the collectives has a root");
        }
        if self.bytes.is_some() && self.calls.iter().all(|call| call.bytes.is_some()) {
            bail!("--bytes: every collective has a size of its own");
        }
        if self.together && self.calls.len() == 1 {
            bail!(
                "--together: there is one collective; give several: all_reduce:256M,all_gather:1G"
            );
        }
        Ok(())
    }
}

impl Job for CollectiveArgs {
    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn common_mut(&mut self) -> &mut CommonArgs {
        &mut self.common
    }

    fn title(&self) -> String {
        let names: Vec<String> = self
            .calls
            .iter()
            .map(|call| sized(&self.common, call.collective, self.bytes_of(call)))
            .collect();
        names.join(", ")
    }

    fn set(&mut self, knob: Knob, value: &str) -> Result<(), String> {
        match knob {
            Knob::Algorithm => self.algorithm = pattern_arg(value)?,
            Knob::Size => {
                self.bytes = Some(size::parse(value)?);
                self.calls.iter_mut().for_each(|call| call.bytes = None);
            }
            other => return not_here(other),
        }
        Ok(())
    }

    fn run(&self, network: &Network, options: &Options) -> anyhow::Result<Ran> {
        self.check()?;
        let ranks = world::ranks(self.ranks.as_deref(), network)?;
        let style = Style {
            algorithm: self.algorithm.pattern(),
            channels: self.common.routing.channels,
            qps: self.common.routing.qps,
        };
        let mut tasks = Vec::new();
        let mut before = Vec::new();
        let mut calls = Vec::new();
        for (number, wanted) in self.calls.iter().enumerate() {
            let bytes = match wanted.collective {
                Collective::Barrier => 0,
                _ => self.bytes_of(wanted),
            };
            let mut call = style.call(network, (wanted.collective, bytes), ranks.clone());
            if let Some(asked) = style.algorithm {
                // What was asked for and cannot be is an error, not something else.
                call.algorithm = asked;
            }
            channels(style.channels, Some(call.algorithm))?;
            if wanted.collective.has_root() {
                let root = self.root.unwrap_or(0);
                let place = ranks.iter().position(|rank| *rank == root);
                let Some(place) = place.and_then(|place| u32::try_from(place).ok()) else {
                    bail!("--root {root}: it is not one of the ranks that take part");
                };
                call.root = place;
            }
            call.name = format!("{} {}", wanted.collective, size::display(bytes));
            call.row = match self.calls.len() {
                1 => call.name.clone(),
                _ => format!("{} {}", number + 1, call.name),
            };
            let end = pattern::tasks(network, &call, &before, &mut tasks)?;
            if !self.together {
                before = vec![end];
            }
            calls.push(call);
        }
        let outcome = dag::run(network, &tasks, options)?;
        let mut timed = Vec::new();
        for call in &calls {
            // Whoever is late is waited for: the clock runs from the moment when all are asked.
            let first = timed.last().map_or(0.0, |last: &Timed| last.end_us);
            let from_us = if self.together { 0.0 } else { first };
            let (_, end_us) = extent(&outcome.spans, &call.row).unwrap_or((0.0, from_us));
            timed.push(Timed {
                name: format!("{} {}", call.collective, call.algorithm),
                collective: call.collective,
                bytes: call.bytes,
                ranks: u32::try_from(call.ranks.len())?,
                start_us: from_us,
                end_us,
            });
        }
        let rate = match &timed[..] {
            [one] => one.busbw(),
            // Of several: bytes on links of all over the time of all.
            all => {
                all.iter().map(|one| one.busbw() * (one.end_us - one.start_us)).sum::<f64>()
                    / outcome.end_us.max(f64::MIN_POSITIVE)
            }
        };
        let rows: Vec<Value> = timed
            .iter()
            .map(|one| {
                let mut row = serde_json::to_value(one).unwrap_or_default();
                row["algbw_gbytes"] = one.algbw().into();
                row["busbw_gbytes"] = one.busbw().into();
                row
            })
            .collect();
        Ok(Ran { page: page::timed(&timed), result: json!({ "calls": rows }), rate, outcome })
    }
}

impl PlanArgs {
    fn plan(&self, network: &Network) -> anyhow::Result<Plan> {
        if let Some(path) = &self.file {
            let name = || path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(name)?;
            return json::from_json(&text).with_context(name);
        }
        let Some(collective) = self.collective else { bail!("which collective?") };
        let ranks = u32::try_from(network.ranks())?;
        let root = self.root.unwrap_or(0);
        anyhow::ensure!(root < ranks, "--root {root}: ranks are 0 to {}", ranks - 1);
        anyhow::ensure!(
            self.root.is_none() || collective.has_root(),
            "--root {root}: {collective} has no root"
        );
        let blocks = if collective.deals_blocks() { u64::from(ranks) } else { 1 };
        let data_type = DataType::F32;
        let count = match collective {
            Collective::Barrier => 0,
            _ => self.bytes / blocks / data_type.size() as u64,
        };
        anyhow::ensure!(
            count > 0 || collective == Collective::Barrier,
            "--bytes {}: less than one value of {} bytes for each of {blocks} blocks",
            self.bytes,
            data_type.size()
        );
        let mut problem = Problem::new(collective, ranks, count, data_type);
        problem.root = root;
        let hosts: Vec<u32> =
            network.hosts.iter().map(|host| u32::try_from(*host)).collect::<Result<_, _>>()?;
        let wanted = self.algorithm.as_deref().map(str::parse::<Algorithm>).transpose()?;
        if let Some(Err(reason)) = wanted.map(|algorithm| algorithm.supports(&problem, &hosts)) {
            return Err(unsupported(&reason, &problem, &hosts));
        }
        let only = |other: Algorithm| match wanted {
            Some(wanted) if wanted != other => Err(format!("{other} was not asked for")),
            _ => Ok(()),
        };
        let request = planner::Request {
            allow: &only,
            lanes: self.lanes,
            slot_bytes: self.chunk,
            ..planner::Request::default()
        };
        let (algorithm, tuning) = planner::choose_algorithm(&problem, &hosts, &request)?;
        let first = algorithm.build(ringway_plan::build::Context {
            problem: &problem,
            rank: 0,
            hosts: &hosts,
            tuning,
        });
        let steps = first.steps() as u64 * u64::from(ranks);
        anyhow::ensure!(
            steps <= STEPS_MOST,
            "a plan of about {steps} steps; at most {STEPS_MOST} are simulated: fewer --bytes or --gpus, or \
             ringway sim collective, which counts flows and not steps"
        );
        Ok(algorithm.plan(&problem, &hosts, tuning))
    }
}

impl Job for PlanArgs {
    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn common_mut(&mut self) -> &mut CommonArgs {
        &mut self.common
    }

    fn title(&self) -> String {
        match (&self.file, self.collective) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(collective)) => sized(&self.common, collective, self.bytes),
            (None, None) => "plan".to_owned(),
        }
    }

    fn set(&mut self, knob: Knob, value: &str) -> Result<(), String> {
        match knob {
            Knob::Algorithm if self.file.is_none() => self.algorithm = Some(value.to_owned()),
            Knob::Size if self.file.is_none() => self.bytes = size::parse(value)?,
            other => return not_here(other),
        }
        Ok(())
    }

    fn run(&self, network: &Network, options: &Options) -> anyhow::Result<Ran> {
        let routing = &self.common.routing;
        if routing.qps > 1 || routing.channels.is_some() {
            bail!(
                "a plan has lanes of its own: leave out --qps and --channels, which are for whole collectives, \
                 or cut it otherwise (ringway plan show --lanes N --json FILE) and give the file"
            );
        }
        let plan = self.plan(network)?;
        let outcome = steps::run_plan(network, &plan, options, &steps::Work::default())?;
        let Some(problem) = plan.problems.first() else { bail!("the plan is of no collective") };
        let ranks = u32::try_from(plan.ranks.len())?;
        let counted = match &problem.counts {
            ringway_plan::problem::Counts::Equal(values) => *values,
            _ => 0,
        };
        let blocks = if problem.collective.deals_blocks() { u64::from(ranks) } else { 1 };
        let timed = Timed {
            name: format!("{} {}", problem.collective, plan.algorithm),
            collective: problem.collective,
            bytes: counted * blocks * problem.data_type.size() as u64,
            ranks,
            start_us: 0.0,
            end_us: outcome.end_us,
        };
        let steps: usize = plan.ranks.iter().map(|part| part.steps()).sum();
        let mut page = page::timed(std::slice::from_ref(&timed));
        page.push_str(&format!("\n{steps} steps of {ranks} ranks were run one by one\n"));
        let mut row = serde_json::to_value(&timed)?;
        row["algbw_gbytes"] = timed.algbw().into();
        row["busbw_gbytes"] = timed.busbw().into();
        row["steps"] = steps.into();
        Ok(Ran { page, result: json!({ "calls": [row] }), rate: timed.busbw(), outcome })
    }
}

impl TrainArgs {
    fn training(&self, network: &Network) -> anyhow::Result<Training> {
        let gpus = u32::try_from(network.ranks())?;
        let shared = u64::from(self.tensor) * u64::from(self.pipeline);
        if shared == 0 || !u64::from(gpus).is_multiple_of(shared) {
            bail!(
                "{gpus} GPUs cannot be divided by tensor {} x pipeline {}",
                self.tensor,
                self.pipeline
            );
        }
        let pieces = (self.layers / self.pipeline.max(1)).clamp(1, 16);
        let usual = if self.pipeline > 1 { 4 * self.pipeline } else { 1 };
        Ok(Training {
            parameters: self.params,
            bytes: self.param_bytes,
            layers: self.layers,
            hidden: self.hidden,
            tokens: self.tokens,
            compute: match self.compute {
                Some(us) => Compute::Us(us),
                None => Compute::Rate { tflops: self.tflops, part: self.reached },
            },
            data: gpus / u32::try_from(shared)?,
            tensor: self.tensor,
            pipeline: self.pipeline,
            expert: self.expert,
            experts: self.experts,
            top_k: self.top_k,
            fsdp: self.fsdp,
            buckets: self.buckets.unwrap_or(pieces),
            microbatches: self.microbatches.unwrap_or(usual),
        })
    }
}

impl Job for TrainArgs {
    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn common_mut(&mut self) -> &mut CommonArgs {
        &mut self.common
    }

    fn title(&self) -> String {
        format!("a training step of {} parameters", page::count(self.params))
    }

    fn rate_name(&self) -> &'static str {
        "tokens/s"
    }

    fn set(&mut self, knob: Knob, value: &str) -> Result<(), String> {
        match knob {
            Knob::Algorithm => self.algorithm = pattern_arg(value)?,
            other => return not_here(other),
        }
        Ok(())
    }

    fn run(&self, network: &Network, options: &Options) -> anyhow::Result<Ran> {
        let training = self.training(network)?;
        let style = Style {
            algorithm: self.algorithm.pattern(),
            channels: self.common.routing.channels,
            qps: self.common.routing.qps,
        };
        channels(style.channels, style.algorithm)?;
        if let Some(pattern) = style.algorithm {
            let wanted: &[Collective] = match training.fsdp {
                true => &[Collective::AllGather, Collective::ReduceScatter],
                false => &[Collective::AllReduce],
            };
            if let Some(other) = wanted.iter().find(|one| !pattern.collectives().contains(one)) {
                bail!("--algorithm {pattern}: it has no {other}, which this step is made of");
            }
        }
        if !options.late.is_empty() {
            bail!(
                "--straggler: of a training step it is not modelled who computes late; slow a link (--slow), or try \
                 one collective (ringway sim collective --straggler)"
            );
        }
        let tasks = workload::tasks(network, &training, &style)?;
        let outcome = dag::run(network, &tasks, options)?;
        let time = StepTime::of(&training, &outcome);
        Ok(Ran {
            page: page::step(&training, &time),
            result: json!({ "training": training, "step": time }),
            rate: time.tokens_per_s,
            outcome,
        })
    }
}

//! The layout of PyTorch's flight recorder: a pickle for each rank of the job, which `torchfrtrace` reads.
//!
//! Process groups are communicators. The largest is taken for the job: its ranks number the files, and the members of the
//! others are found by their processes. Names are those that PyTorch gives NCCL's calls. Messages are left out: the
//! analyser wants every rank of a group in each.

use std::collections::BTreeMap;

use anyhow::bail;
use ringway::recorder::{CallRecord, Outcome, Trace};
use ringway::{Collective, DataType};

use super::clocks::Clocks;
use super::pickle::{Value, dict};
use super::show::shown;

/// The version of the layout that is written.
const VERSION: &str = "2.10";

/// A process of a host.
type Process<'a> = (&'a str, u32);

/// The pickles, by rank of the job.
pub(super) fn documents(traces: &[Trace], clocks: &Clocks) -> anyhow::Result<BTreeMap<u32, Value>> {
    let mut communicators: BTreeMap<&str, Vec<&Trace>> = BTreeMap::new();
    for trace in traces {
        communicators.entry(&trace.communicator).or_default().push(trace);
    }
    let most = |one: &&Vec<&Trace>| one.iter().map(|trace| (trace.size, trace.calls_begun)).max();
    let Some(job) = communicators.values().max_by_key(most) else { bail!("there are no traces") };
    let mut ranks: BTreeMap<Process<'_>, u32> = BTreeMap::new();
    for trace in job {
        if ranks.insert((&trace.host, trace.pid), trace.rank).is_some() && communicators.len() > 1 {
            bail!(
                "process {} on {} has several ranks of communicator {}, so whose its other communicators are cannot \
                 be told; give the traces of one communicator",
                trace.pid,
                shown(&trace.host),
                shown(&trace.communicator)
            );
        }
    }
    let mut groups = Vec::new();
    for members in communicators.values() {
        groups.push(Group::new(members, job, &ranks)?);
    }
    groups.sort_by_key(|group| !group.is_job);
    let mut found = BTreeMap::new();
    for trace in job {
        let mine: Vec<(&Group<'_>, &Trace)> = groups
            .iter()
            .flat_map(|group| group.traces.iter().map(move |(rank, one)| (*rank, group, *one)))
            .filter(|(rank, ..)| *rank == trace.rank)
            .map(|(_, group, one)| (group, one))
            .collect();
        found.insert(trace.rank, document(&mine, clocks));
    }
    Ok(found)
}

/// A communicator as a process group.
struct Group<'a> {
    is_job: bool,
    name: String,
    description: &'static str,
    /// Members, by rank of the job.
    ranks: Vec<u32>,
    /// Their traces, with the rank of the job.
    traces: Vec<(u32, &'a Trace)>,
}

impl<'a> Group<'a> {
    fn new(
        members: &[&'a Trace],
        job: &[&Trace],
        ranks: &BTreeMap<Process<'_>, u32>,
    ) -> anyhow::Result<Self> {
        let communicator = members[0].communicator.clone();
        let is_job = job.first().is_some_and(|one| one.communicator == communicator);
        let mut traces = Vec::new();
        for trace in members {
            let rank =
                if is_job { Some(&trace.rank) } else { ranks.get(&(&trace.host, trace.pid)) };
            let Some(rank) = rank else {
                bail!(
                    "process {} on {} has a trace of communicator {}, but none of {}, the largest; give all of them",
                    trace.pid,
                    shown(&trace.host),
                    shown(&communicator),
                    shown(job.first().map_or("", |one| &one.communicator))
                );
            };
            traces.push((*rank, *trace));
        }
        let known: Vec<u32> = traces.iter().map(|(rank, _)| *rank).collect();
        let ranks = if is_job { (0..members[0].size).collect() } else { known };
        let description = if is_job { "default_pg" } else { "undefined" };
        Ok(Self { is_job, name: communicator, description, ranks, traces })
    }
}

/// The pickle of one rank, with its part in each group.
fn document(groups: &[(&Group<'_>, &Trace)], clocks: &Clocks) -> Value {
    let (mut config, mut status, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (group, trace)) in groups.iter().enumerate() {
        let ranks: Vec<String> = group.ranks.iter().map(ToString::to_string).collect();
        let about = dict([
            ("name", group.name.as_str().into()),
            ("desc", group.description.into()),
            ("ranks", format!("[{}]", ranks.join(", ")).into()),
        ]);
        config.push((group.name.as_str().into(), about));
        let done = trace.calls.iter().rev().find(|call| call.outcome == Outcome::Done);
        let last = dict([
            ("last_enqueued_collective", trace.calls_begun.into()),
            ("last_started_collective", trace.calls_begun.into()),
            (
                "last_completed_collective",
                done.map_or(0, |call| call.sequence.saturating_add(1)).into(),
            ),
        ]);
        status.push((at.to_string().into(), last));
        let id = at as u64;
        let all = trace.calls.iter().map(|call| Entry::new(call, trace));
        entries.extend(
            all.map(|entry| (clocks.moment(trace, entry.start_ns), id, *group, *trace, entry)),
        );
    }
    entries.sort_by_key(|(start, ..)| *start);
    let entries = (0..).zip(&entries).map(|(record, (_, id, group, trace, entry))| {
        entry.value(record, *id, group, (trace, clocks))
    });
    dict([
        ("version", VERSION.into()),
        ("pg_config", Value::Dict(config)),
        ("pg_status", Value::Dict(status)),
        ("entries", Value::List(entries.collect())),
    ])
}

/// An operation, as the analyser wants it.
struct Entry {
    name: String,
    sequence: u64,
    input: u64,
    output: u64,
    data_type: Option<DataType>,
    queued_ns: Option<u64>,
    start_ns: u64,
    end_ns: Option<u64>,
    outcome: Outcome,
}

impl Entry {
    fn new(call: &CallRecord, trace: &Trace) -> Self {
        let name = match call.collective {
            Collective::AllGather => "_all_gather_base",
            Collective::ReduceScatter => "_reduce_scatter_base",
            Collective::Barrier => "all_reduce_barrier",
            other => other.name(),
        };
        let (input, output) = sizes(call, trace);
        Self {
            name: format!("nccl:{name}"),
            sequence: call.sequence,
            input,
            output,
            data_type: call.data_type,
            queued_ns: call.queued_ns,
            start_ns: call.start_ns,
            end_ns: call.end_ns,
            outcome: call.outcome,
        }
    }

    fn value(
        &self,
        record: u64,
        group_id: u64,
        group: &Group<'_>,
        (trace, clocks): (&Trace, &Clocks),
    ) -> Value {
        let moment = |ns: u64| Value::Int(clocks.moment(trace, ns));
        // Its end may be known without a time, where the recorder is off.
        let is_done = self.outcome == Outcome::Done;
        let done = self.end_ns.filter(|_| is_done);
        let sequence = self.sequence.saturating_add(1);
        let sizes = |count: u64| Value::List(vec![Value::List(vec![count.into()])]);
        let types = || Value::List(vec![self.data_type.map_or("Byte", scalar).into()]);
        let took = done.map(|end| end.saturating_sub(self.start_ns) as f64 / 1e6);
        let about = Value::Pair(Box::new((group.name.as_str().into(), group.description.into())));
        dict([
            ("record_id", record.into()),
            ("pg_id", group_id.into()),
            ("process_group", about),
            ("collective_seq_id", sequence.into()),
            ("p2p_seq_id", Value::Int(0)),
            ("op_id", record.into()),
            ("profiling_name", self.name.as_str().into()),
            ("time_created_ns", moment(self.queued_ns.unwrap_or(self.start_ns))),
            ("time_discovered_started_ns", moment(self.start_ns)),
            ("time_discovered_completed_ns", done.map_or(Value::None, moment)),
            ("duration_ms", took.map_or(Value::None, Value::Float)),
            ("input_sizes", sizes(self.input)),
            ("input_dtypes", types()),
            ("output_sizes", sizes(self.output)),
            ("output_dtypes", types()),
            ("state", if is_done { "completed" } else { "started" }.into()),
            ("retired", is_done.into()),
            ("timeout_ms", Value::Int(0)),
            ("is_p2p", false.into()),
            ("frames", Value::List(Vec::new())),
        ])
    }
}

/// Elements that go in and come out; of every rank those of the root, as the analyser compares them.
fn sizes(call: &CallRecord, trace: &Trace) -> (u64, u64) {
    let one = call.count;
    let all = if call.uneven { one } else { one.saturating_mul(u64::from(trace.size)) };
    match call.collective {
        Collective::AllGather | Collective::Gather => (one, all),
        Collective::ReduceScatter | Collective::Scatter => (all, one),
        Collective::AllToAll => (all, all),
        _ => (one, one),
    }
}

/// PyTorch's name of a type.
fn scalar(data_type: DataType) -> &'static str {
    match data_type {
        DataType::F32 => "Float",
        DataType::F64 => "Double",
        DataType::F16 => "Half",
        DataType::Bf16 => "BFloat16",
        DataType::I8 => "Char",
        DataType::U8 => "Byte",
        DataType::I32 => "Int",
        DataType::U32 => "UInt32",
        DataType::I64 => "Long",
        DataType::U64 => "UInt64",
        DataType::F8e4m3 => "Float8_e4m3fn",
        DataType::F8e5m2 => "Float8_e5m2",
    }
}

#[cfg(test)]
mod tests {
    use super::super::{clocks, synthetic};
    use super::*;

    fn get<'a>(value: &'a Value, key: &str) -> &'a Value {
        let Value::Dict(entries) = value else { panic!("{value:?}") };
        &entries.iter().find(|(name, _)| *name == key.into()).unwrap().1
    }

    #[test]
    fn a_rank_that_hangs_has_started_what_the_others_completed() {
        let mut traces = vec![synthetic::trace(0, 2), synthetic::trace(1, 2)];
        traces[0].calls = vec![synthetic::call(0, 10, Some(20)), synthetic::call(1, 30, None)];
        traces[1].calls = vec![synthetic::call(0, 10, Some(20))];
        let found = documents(&traces, &clocks::align(&traces)).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&0, &1]);
        let Value::List(entries) = get(&found[&0], "entries") else { panic!() };
        let states: Vec<_> = entries.iter().map(|entry| get(entry, "state")).collect();
        assert_eq!(states, [&"completed".into(), &"started".into()]);
        assert_eq!(*get(&entries[1], "collective_seq_id"), Value::Int(2));
        assert_eq!(*get(&entries[0], "profiling_name"), "nccl:all_reduce".into());
        let group = get(get(&found[&1], "pg_config"), "0x1f");
        assert_eq!(*get(group, "ranks"), "[0, 1]".into());
    }

    #[test]
    fn a_call_without_times_may_have_completed() {
        let mut traces = vec![synthetic::trace(0, 1)];
        traces[0].calls = vec![synthetic::call(0, 0, None)];
        traces[0].calls[0].outcome = Outcome::Done;
        let found = documents(&traces, &clocks::align(&traces)).unwrap();
        let Value::List(entries) = get(&found[&0], "entries") else { panic!() };
        assert_eq!(*get(&entries[0], "state"), "completed".into());
        assert_eq!(*get(&entries[0], "retired"), true.into());
        assert_eq!(*get(&entries[0], "time_discovered_completed_ns"), Value::None);
    }

    #[test]
    fn groups_of_some_ranks_have_the_numbers_of_the_job() {
        let mut traces: Vec<Trace> = (0..3).map(|rank| synthetic::trace(rank, 3)).collect();
        let pair = |rank: u32, of: &Trace| Trace {
            communicator: "0x2".to_owned(),
            rank,
            size: 2,
            calls: vec![synthetic::call(0, 1, Some(2))],
            ..of.clone()
        };
        traces.extend([pair(0, &traces[2]), pair(1, &traces[1])]);
        let found = documents(&traces, &clocks::align(&traces)).unwrap();
        assert_eq!(*get(get(get(&found[&1], "pg_config"), "0x2"), "ranks"), "[2, 1]".into());
        let Value::Dict(groups) = get(&found[&0], "pg_config") else { panic!() };
        assert_eq!(groups.len(), 1, "rank 0 is in the job alone");
        traces[0].pid = traces[1].pid;
        traces[0].host = traces[1].host.clone();
        let error = documents(&traces, &clocks::align(&traces)).unwrap_err().to_string();
        assert!(error.contains("several ranks of communicator 0x1f"), "{error}");
    }
}

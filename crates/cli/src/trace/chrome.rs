//! Chrome's trace events, which Perfetto and chrome://tracing read: a process for each rank, in it a track for its
//! operations, one for each lane of an operation that stood still, one for each way that messages took, and one on which stands
//! when calls were put on a GPU.

use std::collections::BTreeMap;

use ringway::recorder::{CallRecord, LaunchRecord, MessageRecord, Outcome, Trace};
use serde_json::{Value, json};

use super::clocks::Clocks;

/// Tracks of one communicator in a process: operations, queue, launches, lanes, messages.
const TRACKS: u64 = 1 << 32;
const QUEUE: u64 = 1;
const LAUNCHES: u64 = 2;
const LANES: u64 = 16;
const MESSAGES: u64 = 1 << 16;

/// The document.
pub(super) fn document(traces: &[Trace], clocks: &Clocks) -> Value {
    let starts = traces.iter().flat_map(|trace| {
        let calls = trace.calls.iter().map(|call| call.queued_ns.unwrap_or(call.start_ns));
        let all = calls.chain(trace.messages.iter().map(|one| one.start_ns));
        let all = all.chain(trace.launches.iter().map(|one| one.enqueued_ns));
        all.map(|ns| clocks.moment(trace, ns))
    });
    let origin = starts.min().unwrap_or(0);
    let mut page = Page { events: Vec::new(), origin, clocks, tracks: BTreeMap::new() };
    let mut communicators: Vec<&str> = Vec::new();
    let mut processes: Vec<(&str, u32, u32)> = Vec::new();
    for trace in traces {
        let which = place(&mut communicators, trace.communicator.as_str());
        // Threads of one process may be ranks: those of one communicator are told apart.
        let twins = traces.iter().filter(|other| {
            other.communicator == trace.communicator
                && (&other.host, other.pid) == (&trace.host, trace.pid)
        });
        let thread = if twins.count() > 1 { trace.rank } else { u32::MAX };
        let process = place(&mut processes, (trace.host.as_str(), trace.pid, thread));
        page.add(trace, process, which * TRACKS);
    }
    json!({
        "traceEvents": page.events,
        "displayTimeUnit": "ns",
        "otherData": {
            "made by": "ringway trace merge",
            "0 us is": format!("{origin} ns since 1970"),
            "clocks": super::clocks::describe(clocks),
        },
    })
}

/// Where something stands in a list; at its end, if it is new.
fn place<T: PartialEq>(list: &mut Vec<T>, one: T) -> u64 {
    let at = list.iter().position(|other| *other == one).unwrap_or_else(|| {
        list.push(one);
        list.len() - 1
    });
    at as u64
}

struct Page<'a> {
    events: Vec<Value>,
    origin: i128,
    clocks: &'a Clocks,
    /// Names of processes' tracks that were told.
    tracks: BTreeMap<(u64, u64), ()>,
}

impl Page<'_> {
    fn add(&mut self, trace: &Trace, process: u64, first: u64) {
        let name = format!("rank {} ({}, pid {})", trace.rank, trace.host, trace.pid);
        self.meta("process_name", (process, first), &json!({ "name": name }));
        self.meta("process_sort_index", (process, first), &json!({ "sort_index": trace.rank }));
        let communicator = &trace.communicator;
        for call in &trace.calls {
            self.track((process, first), || format!("operations of {communicator}"));
            self.call(trace, call, (process, first));
        }
        for message in &trace.messages {
            self.message(trace, message, (process, first));
        }
        for launch in &trace.launches {
            self.launch(trace, launch, (process, first + LAUNCHES));
        }
        if let Some(verdict) = &trace.verdict {
            let at = self.us(trace, trace.taken_ns);
            self.events.push(json!({
                "ph": "i", "s": "p", "name": "error", "pid": process, "tid": first, "ts": at,
                "args": { "message": verdict.to_string() },
            }));
        }
    }

    fn call(&mut self, trace: &Trace, call: &CallRecord, (process, first): (u64, u64)) {
        let name = call.collective.name();
        let args = json!({
            "sequence": call.sequence,
            "bytes": call.bytes,
            "count": call.count,
            "type": call.data_type,
            "op": call.op,
            "root": call.root,
            "algorithm": call.algorithm,
            "calls": call.parts,
            "outcome": call.outcome,
            "waited": call.waited,
            "end_about": call.end_about,
        });
        let end_ns = end(trace, call.start_ns, call.end_ns, call.outcome);
        self.span(trace, (process, first), name, (call.start_ns, end_ns), args);
        if let Some(queued_ns) = call.queued_ns {
            let track = (process, first + QUEUE);
            self.track(track, || "queued".to_owned());
            let args = json!({ "sequence": call.sequence });
            self.span(trace, track, name, (queued_ns, call.start_ns), args);
        }
        for (lane, (done, all)) in (0..).zip(&call.lanes) {
            let track = (process, first + LANES + lane);
            self.track(track, || format!("lane {lane}"));
            // Those of an operation that was finished later were noted while it stood.
            let done = if call.outcome == Outcome::Done { all } else { done };
            let args = json!({ "sequence": call.sequence, "steps": done, "of": all });
            let label = format!("{name}: {done} of {all} steps");
            self.span(trace, track, &label, (call.start_ns, end_ns), args);
        }
    }

    fn message(&mut self, trace: &Trace, message: &MessageRecord, (process, first): (u64, u64)) {
        let peer = message.peer;
        let name =
            if message.sends { format!("send to {peer}") } else { format!("recv from {peer}") };
        let track = (process, first + MESSAGES + 2 * u64::from(peer) + u64::from(message.sends));
        self.track(track, || name.clone());
        let args = json!({
            "sequence": message.sequence,
            "bytes": message.bytes,
            "outcome": message.outcome,
            "waited": message.waited,
        });
        let end_ns = end(trace, message.start_ns, message.end_ns, message.outcome);
        self.span(trace, track, &name, (message.start_ns, end_ns), args);
    }

    /// A moment: when it begins and ends only the device knows.
    fn launch(&mut self, trace: &Trace, launch: &LaunchRecord, track: (u64, u64)) {
        self.track(track, || "enqueued on a GPU".to_owned());
        let at = self.us(trace, launch.enqueued_ns);
        self.events.push(json!({
            "ph": "i", "s": "t", "name": launch.collective.name(), "pid": track.0, "tid": track.1, "ts": at,
            "args": {
                "number": launch.number,
                "bytes": launch.bytes,
                "count": launch.count,
                "type": launch.data_type,
                "op": launch.op,
                "root": launch.root,
                "calls": launch.parts,
                "waited": launch.waited,
            },
        }));
    }

    fn span(
        &mut self,
        trace: &Trace,
        (process, track): (u64, u64),
        name: &str,
        (start_ns, end_ns): (u64, u64),
        args: Value,
    ) {
        let ts = self.us(trace, start_ns);
        let dur = end_ns.saturating_sub(start_ns) as f64 / 1e3;
        self.events.push(json!({
            "ph": "X", "name": name, "pid": process, "tid": track, "ts": ts, "dur": dur, "args": args,
        }));
    }

    /// Names a track, the first time it is used.
    fn track(&mut self, track: (u64, u64), name: impl Fn() -> String) {
        if self.tracks.insert(track, ()).is_none() {
            self.meta("thread_name", track, &json!({ "name": name() }));
        }
    }

    fn meta(&mut self, what: &str, (process, track): (u64, u64), args: &Value) {
        self.events
            .push(json!({ "ph": "M", "name": what, "pid": process, "tid": track, "args": args }));
    }

    fn us(&self, trace: &Trace, ns: u64) -> f64 {
        (self.clocks.moment(trace, ns) - self.origin) as f64 / 1e3
    }
}

/// When a span ends; what runs ends where the trace does.
fn end(trace: &Trace, start_ns: u64, end_ns: Option<u64>, outcome: Outcome) -> u64 {
    match (end_ns, outcome) {
        (Some(end), _) => end,
        (None, Outcome::Running) => trace.taken_ns.max(start_ns),
        (None, _) => start_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{clocks, synthetic};
    use super::*;

    #[test]
    fn ranks_are_processes_and_lanes_are_tracks() {
        let mut traces = vec![synthetic::trace(0, 2), synthetic::trace(1, 2)];
        for trace in &mut traces {
            trace.calls =
                vec![synthetic::call(0, 1_000, Some(3_000)), synthetic::call(1, 5_000, None)];
            trace.calls[1].lanes = vec![(1, 3)];
            trace.calls[1].queued_ns = Some(4_000);
            trace.launches = vec![synthetic::launch(3, 2_000)];
            trace.taken_ns = 9_000;
        }
        let page = document(&traces, &clocks::align(&traces));
        let events = page["traceEvents"].as_array().unwrap();
        let spans = |pid: u64| {
            let of = move |e: &&Value| e["ph"] == "X" && e["pid"] == pid;
            events.iter().filter(of).map(|e| (e["tid"].as_u64().unwrap(), &e["ts"], &e["dur"]))
        };
        for pid in [0, 1] {
            let found: Vec<_> = spans(pid).map(|(t, s, d)| (t, s.as_f64(), d.as_f64())).collect();
            let span = |tid, ts, dur| (tid, Some(ts), Some(dur));
            let wanted =
                [span(0, 0.0, 2.0), span(0, 4.0, 4.0), span(1, 3.0, 1.0), span(16, 4.0, 4.0)];
            assert_eq!(found, wanted);
        }
        let launches: Vec<&Value> = events.iter().filter(|e| e["ph"] == "i").collect();
        assert_eq!(launches.len(), 2);
        let launch = launches[1];
        assert_eq!(
            (launch["ts"].as_f64(), &launch["pid"], &launch["tid"]),
            (Some(1.0), &json!(1), &json!(2))
        );
        let names: Vec<&Value> = events.iter().filter(|e| e["name"] == "process_name").collect();
        assert_eq!(names[1]["args"]["name"], "rank 1 (host1, pid 101)");
    }
}

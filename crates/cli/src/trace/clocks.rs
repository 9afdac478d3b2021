//! One clock for all ranks.
//!
//! Traces of one machine share its monotonic clock. Between machines the offset is estimated: ranks leave a collective
//! nearly together, so the median over many operations of the difference of their ends is near it. Causality bounds it:
//! nobody leaves an all_reduce before the last rank has entered, so each operation gives a least and a most, and the
//! median is moved between the tightest of them. Of short calls the clock is read after their first steps, so they give none. Clocks drift apart; over the few seconds that a recorder holds that
//! is microseconds, and the spread shows it.

use std::collections::BTreeMap;

use ringway::Collective;
use ringway::recorder::{CallRecord, Outcome, Trace};

/// How a clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The others are set by it.
    Reference,
    /// By so many operations; the middle half of them lie within `spread_ns`, and the offset is in `bounds_ns`,
    /// where operations bound it.
    Estimated { operations: usize, spread_ns: u64, bounds_ns: Option<(i128, i128)> },
    /// The operations contradict each other by so much: the clock has drifted.
    Contradicted { operations: usize, spread_ns: u64, by_ns: u64 },
    /// No operation is shared with a clock that is set: the machine's own date.
    Date,
}

/// The clock of one machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// The clock's id.
    pub(crate) id: String,
    /// Its host, as the first of its ranks names it.
    pub(crate) host: String,
    pub(crate) how: How,
    /// What is added to its times to get nanoseconds since 1970 by the reference.
    pub(crate) shift_ns: i128,
    /// How far its date is from the reference's.
    pub(crate) date_off_ns: i128,
}

/// All clocks.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    pub(crate) machines: Vec<Machine>,
}

impl Clocks {
    /// When something happened, in nanoseconds since 1970 by the reference clock.
    pub(crate) fn moment(&self, trace: &Trace, ns: u64) -> i128 {
        let machine = self.machines.iter().find(|machine| machine.id == trace.clock.id);
        i128::from(ns) + machine.map_or(0, |machine| machine.shift_ns)
    }
}

/// The clock may be read after the first steps of calls of at most so many bytes.
const NOTED_LATER: u64 = 8 << 10;

/// One machine's part in one operation, by its own clock.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Where all have noted it before they did anything else.
    last_start: Option<i128>,
    first_end: i128,
    last_end: i128,
}

/// The parts of every operation, by machine.
type Shared = BTreeMap<(String, u64), BTreeMap<usize, Part>>;

/// Sets the clocks of all traces by that of the first.
pub(crate) fn align(traces: &[Trace]) -> Clocks {
    let mut machines: Vec<Machine> = Vec::new();
    let mut of_trace = Vec::new();
    for trace in traces {
        let known = machines.iter().position(|machine| machine.id == trace.clock.id);
        of_trace.push(known.unwrap_or(machines.len()));
        if known.is_none() {
            machines.push(Machine {
                id: trace.clock.id.clone(),
                host: trace.host.clone(),
                how: How::Date,
                shift_ns: i128::from(trace.clock.realtime_offset_ns),
                date_off_ns: 0,
            });
        }
    }
    let Some(first) = machines.first_mut() else { return Clocks { machines } };
    first.how = How::Reference;
    let mut shared = Shared::new();
    for (trace, machine) in traces.iter().zip(&of_trace) {
        for call in &trace.calls {
            add(&mut shared, (&trace.communicator, *machine), call);
        }
    }
    let mut set = vec![0];
    let mut at = 0;
    while let Some(by) = set.get(at).copied().filter(|_| set.len() < machines.len()) {
        for (machine, pairs) in pairs(&shared, by, &set) {
            let Some((how, offset)) = estimate(&pairs) else { continue };
            let shift_ns = machines[by].shift_ns - offset;
            let date_off_ns = machines[machine].shift_ns - shift_ns;
            machines[machine] = Machine { how, shift_ns, date_off_ns, ..machines[machine].clone() };
            set.push(machine);
        }
        at += 1;
    }
    Clocks { machines }
}

/// What each machine that is not set yet shares with `by`.
fn pairs(shared: &Shared, by: usize, set: &[usize]) -> BTreeMap<usize, Vec<(Part, Part)>> {
    let mut found: BTreeMap<usize, Vec<(Part, Part)>> = BTreeMap::new();
    for parts in shared.values() {
        let Some(reference) = parts.get(&by) else { continue };
        for (machine, part) in parts.iter().filter(|(machine, _)| !set.contains(machine)) {
            found.entry(*machine).or_default().push((*part, *reference));
        }
    }
    found
}

fn add(shared: &mut Shared, (communicator, machine): (&str, usize), call: &CallRecord) {
    let whole =
        call.outcome == Outcome::Done && call.start_ns > 0 && !call.end_about && is_mutual(call);
    let Some(end) = call.end_ns.filter(|_| whole) else { return };
    let end = i128::from(end);
    let start = (call.bytes > NOTED_LATER).then(|| i128::from(call.start_ns));
    let parts = shared.entry((communicator.to_owned(), call.sequence)).or_default();
    let part =
        parts.entry(machine).or_insert(Part { last_start: start, first_end: end, last_end: end });
    part.last_start = part.last_start.zip(start).map(|(one, other)| one.max(other));
    part.first_end = part.first_end.min(end);
    part.last_end = part.last_end.max(end);
}

/// Whether every rank needs something of every other to leave it.
fn is_mutual(call: &CallRecord) -> bool {
    let moves = call.count > 0 && !call.uneven;
    match call.collective {
        Collective::Barrier => true,
        Collective::AllReduce
        | Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll => moves,
        _ => false,
    }
}

/// How far the first clock of each pair is ahead of the second.
fn estimate(pairs: &[(Part, Part)]) -> Option<(How, i128)> {
    let (mut differences, mut least, mut most) = (Vec::new(), i128::MIN, i128::MAX);
    for (one, other) in pairs {
        differences.push((one.first_end + one.last_end - other.first_end - other.last_end) / 2);
        if let Some((one_start, other_start)) = one.last_start.zip(other.last_start) {
            least = least.max(one_start - other.first_end);
            most = most.min(one.first_end - other_start);
        }
    }
    differences.sort_unstable();
    let operations = differences.len();
    let at = |quarter: usize| differences.get(operations.checked_sub(1)? * quarter / 4).copied();
    let (median, low, high) = (at(2)?, at(1)?, at(3)?);
    let spread_ns = u64::try_from(high - low).unwrap_or(u64::MAX);
    if least > most {
        let by_ns = u64::try_from(least - most).unwrap_or(u64::MAX);
        return Some((How::Contradicted { operations, spread_ns, by_ns }, median));
    }
    let bounds_ns = (least > i128::MIN).then_some((least, most));
    let how = How::Estimated { operations, spread_ns, bounds_ns };
    Some((how, median.clamp(least, most)))
}

/// The clocks in words, a line each.
pub(crate) fn describe(clocks: &Clocks) -> Vec<String> {
    let us = |ns: i128| format!("{:+.3} us", ns as f64 / 1e3);
    let line = |machine: &Machine| {
        let host = super::show::shown(&machine.host);
        match machine.how {
            How::Reference => format!("{host}: the reference"),
            How::Estimated { operations, spread_ns, bounds_ns } => {
                let bounds = bounds_ns.map_or_else(String::new, |(least, most)| {
                    format!(", certain to {:.3} us", (most - least) as f64 / 1e3)
                });
                format!(
                    "{host}: date is {} off, by {operations} operations, spread {:.3} us{bounds}",
                    us(machine.date_off_ns),
                    spread_ns as f64 / 1e3
                )
            }
            How::Contradicted { operations, spread_ns, by_ns } => format!(
                "{host}: date is {} off, by {operations} operations, spread {:.3} us; they contradict each \
                 other by {:.3} us: the clock drifts",
                us(machine.date_off_ns),
                spread_ns as f64 / 1e3,
                by_ns as f64 / 1e3
            ),
            How::Date => format!("{host}: set by its date alone, no operation is shared"),
        }
    };
    clocks.machines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::synthetic;
    use super::*;

    /// Ranks that enter and leave operations, each with its clock off by `offsets`; `noise` is how long after the last
    /// has entered each leaves, and how late each enters.
    fn traces(offsets: &[i64], noise: &[(u64, u64)], operations: u64) -> Vec<Trace> {
        let ranks = u32::try_from(offsets.len()).unwrap();
        let noise =
            |rank: usize, n: u64| noise[(rank + 7 * usize::try_from(n).unwrap()) % noise.len()];
        let mut traces: Vec<Trace> = (0..ranks).map(|rank| synthetic::trace(rank, ranks)).collect();
        for n in 0..operations {
            let begin = 10_000_000_000 + n * 1_000_000;
            let enter = |rank: usize| begin + noise(rank, n).0;
            let last = (0..offsets.len()).map(enter).max().unwrap();
            for (rank, trace) in traces.iter_mut().enumerate() {
                let off = |ns: u64| ns.checked_add_signed(offsets[rank]).unwrap();
                let end = off(last + 1 + noise(rank, n).1);
                // Short calls may be noted only when they are over.
                let is_short = n % 5 == 4;
                let start = if is_short { end } else { off(enter(rank)) };
                let mut call = synthetic::call(n, start, Some(end));
                call.bytes = if is_short { 8 } else { 64 << 10 };
                trace.calls.push(call);
            }
        }
        traces
    }

    proptest! {
        #[test]
        fn planted_offsets_are_found(
            offsets in proptest::collection::vec(-9_000_000_000_i64..9_000_000_000, 2..6),
            noise in proptest::collection::vec((0_u64..50_000, 0_u64..4_000), 3..40),
            operations in 20_u64..200,
        ) {
            let clocks = align(&traces(&offsets, &noise, operations));
            for (machine, offset) in clocks.machines.iter().zip(&offsets) {
                let found = clocks.machines[0].shift_ns - machine.shift_ns;
                let error = found - i128::from(offset - offsets[0]);
                // Ends lie within 4 us of each other.
                prop_assert!(error.abs() <= 4_000, "{error} ns off: {:?}", machine);
            }
            for machine in &clocks.machines[1..] {
                let How::Estimated { operations: by, spread_ns, bounds_ns } = machine.how else {
                    panic!("{machine:?}");
                };
                let (least, most) = bounds_ns.unwrap();
                prop_assert!(by as u64 == operations && spread_ns <= 8_000 && least <= most);
            }
        }

        #[test]
        fn aligned_ranks_keep_cause_before_effect(
            offsets in proptest::collection::vec(-1_000_000_i64..1_000_000, 2..5),
            // One rank always leaves late: the median alone would be off by that.
            late in 0_u64..500_000,
        ) {
            let mut planted = traces(&offsets, &[(0, 10), (300, 20), (70, 0)], 50);
            for call in &mut planted[1].calls {
                call.end_ns = call.end_ns.map(|end| end + late);
            }
            let clocks = align(&planted);
            for n in (0..50).filter(|n| n % 5 != 4) {
                let moment = |trace: &Trace, ns| clocks.moment(trace, ns);
                let entered = planted.iter().map(|t| moment(t, t.calls[n].start_ns)).max();
                let left = planted.iter().map(|t| moment(t, t.calls[n].end_ns.unwrap())).min();
                // Each clock is set by the first alone, so two others may be off by what both leave open.
                prop_assert!(moment(&planted[0], planted[0].calls[n].start_ns) <= left.unwrap());
                prop_assert!(entered.unwrap() - left.unwrap() <= 1_000);
            }
        }
    }

    #[test]
    fn ranks_of_one_machine_are_on_one_clock() {
        let mut both = traces(&[0, 5_000], &[(0, 0)], 10);
        both[1].clock.id = "boot0".to_owned();
        let clocks = align(&both);
        assert_eq!(clocks.machines.len(), 1);
        assert_eq!(clocks.moment(&both[1], 77), 77);
    }

    #[test]
    fn machines_are_set_by_way_of_others() {
        // 0 and 1 share one communicator, 1 and 2 another.
        let planted = traces(&[0, 40_000, -70_000], &[(0, 0)], 30);
        let [zero, one, two] = &planted[..] else { panic!() };
        let mut other = one.clone();
        other.communicator = "0x2".to_owned();
        let two = Trace { communicator: "0x2".to_owned(), ..two.clone() };
        let clocks = align(&[zero.clone(), one.clone(), other, two]);
        let shifts: Vec<i128> = clocks.machines.iter().map(|machine| machine.shift_ns).collect();
        assert_eq!(shifts, [0, -40_000, 70_000]);
    }

    #[test]
    fn without_a_shared_operation_the_date_counts() {
        let mut apart = traces(&[0, 0], &[(0, 0)], 3);
        apart[1].communicator = "0x2".to_owned();
        apart[1].clock.realtime_offset_ns = 900;
        let clocks = align(&apart);
        assert_eq!((clocks.machines[1].how, clocks.machines[1].shift_ns), (How::Date, 900));
        assert!(describe(&clocks)[1].contains("no operation is shared"));
        assert!(align(&[]).machines.is_empty());
    }

    #[test]
    fn clocks_that_contradict_are_told() {
        let mut drifting = traces(&[0, 0], &[(0, 0)], 3);
        for (n, call) in drifting[1].calls.iter_mut().enumerate() {
            call.start_ns += 10_000 * n as u64;
            call.end_ns = call.end_ns.map(|end| end + 10_000 * n as u64);
        }
        let clocks = align(&drifting);
        assert!(matches!(clocks.machines[1].how, How::Contradicted { operations: 3, .. }));
        assert!(describe(&clocks)[1].contains("the clock drifts"));
    }
}

//! What a plan may be at most, checked before anything is believed, and counted while it runs.

use super::Refusal;
use crate::plan::{CARDS_MAX, FLAGS_MAX, LANES_MAX, Plan};
use crate::problem::{Counts, Problem};
use crate::types::Collective;

/// Most ranks of a plan.
pub const RANKS_MAX: usize = 4096;

/// Most steps of all ranks together.
pub const STEPS_MAX: usize = 16 << 20;

/// Most operands of all ranks together.
pub const OPERANDS_MAX: usize = 64 << 20;

/// Buffers and scratch are smaller than this, so that no sum of two offsets overflows.
pub const BYTES_MAX: u64 = 1 << 56;

/// Checks that the tables of a plan fit together and that no size is absurd.
///
/// # Errors
/// [`Refusal::Malformed`].
pub(crate) fn check(plan: &Plan) -> Result<(), Refusal> {
    let ranks = plan.ranks.len();
    let agree = plan.problems.len() == ranks && plan.hosts.len() == ranks;
    ensure(agree && ranks > 0, || {
        format!(
            "{ranks} ranks, {} problems and {} hosts: the three must be equal and not 0",
            plan.problems.len(),
            plan.hosts.len()
        )
    })?;
    ensure(ranks <= RANKS_MAX, || format!("{ranks} ranks; the most is {RANKS_MAX}"))?;
    let steps: usize = plan.ranks.iter().map(|part| part.steps()).sum();
    ensure(steps <= STEPS_MAX, || format!("{steps} steps; the most is {STEPS_MAX}"))?;
    let operands: usize = plan.ranks.iter().map(|part| part.operands.len()).sum();
    ensure(operands <= OPERANDS_MAX, || {
        format!("{operands} operands; the most is {OPERANDS_MAX}")
    })?;
    for (rank, part) in plan.ranks.iter().enumerate() {
        ensure(part.lanes.len() <= LANES_MAX, || {
            let lanes = part.lanes.len();
            format!("rank {rank} has {lanes} lanes; the most is {LANES_MAX}")
        })?;
        let first = &plan.ranks[0];
        let alike = (part.flags, part.scratch_bytes) == (first.flags, first.scratch_bytes);
        ensure(part.cards == first.cards && usize::from(part.cards) <= CARDS_MAX, || {
            let cards = part.cards;
            format!(
                "rank {rank} has {cards} cards, rank 0 has {}; the most are {CARDS_MAX}",
                first.cards
            )
        })?;
        ensure(alike && usize::from(part.flags) <= FLAGS_MAX, || {
            format!(
                "rank {rank} has {} flags and {} bytes of scratch, rank 0 has {} and {}; the most flags are {FLAGS_MAX}",
                part.flags, part.scratch_bytes, first.flags, first.scratch_bytes
            )
        })?;
        ensure(part.wide_card_bytes == first.wide_card_bytes, || {
            format!(
                "rank {rank} has cards of {} bytes, rank 0 of {}",
                part.wide_card_bytes, first.wide_card_bytes
            )
        })?;
        ensure(part.wide_card_bytes < BYTES_MAX >> 16, || {
            format!("rank {rank} has cards of {} bytes", part.wide_card_bytes)
        })?;
        ensure(part.scratch_bytes < BYTES_MAX, || {
            let bytes = part.scratch_bytes;
            format!("rank {rank} has {bytes} bytes of scratch; the most is {BYTES_MAX}")
        })?;
    }
    check_problems(&plan.problems)
}

fn check_problems(problems: &[Problem]) -> Result<(), Refusal> {
    let first = &problems[0];
    check_counts(first, problems.len())?;
    let pairwise = matches!(first.counts, Counts::Pairwise { .. });
    for (rank, problem) in problems.iter().enumerate() {
        let fits = if pairwise {
            matches!(problem.counts, Counts::Pairwise { .. })
                && Problem { counts: first.counts.clone(), ..problem.clone() } == *first
        } else {
            problem == first
        };
        ensure(
            fits && problem.ranks as usize == problems.len() && problem.root < problem.ranks,
            || format!("the problem of rank {rank} does not fit the plan"),
        )?;
        if pairwise {
            check_counts(problem, problems.len())?;
        }
    }
    if pairwise {
        check_pairs(problems)?;
    }
    Ok(())
}

/// Counts are as many as ranks, of a kind the collective has, and not absurd.
fn check_counts(problem: &Problem, ranks: usize) -> Result<(), Refusal> {
    use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter, SendRecv};
    let collective = problem.collective;
    let (kind, known, lists): (_, _, [&[u64]; 2]) = match &problem.counts {
        Counts::Equal(count) => {
            let values = u128::from(*count) * ranks as u128;
            return check_size(problem, values);
        }
        Counts::PerRank(counts) => (
            "a count per rank",
            matches!(collective, AllGather | Gather | Scatter | ReduceScatter),
            [counts, &[]],
        ),
        Counts::Pairwise { send, receive } => {
            ("pairwise counts", matches!(collective, AllToAll), [send, receive])
        }
    };
    ensure(known || collective == SendRecv, || format!("{collective} has no form with {kind}"))?;
    for list in lists {
        ensure(list.is_empty() || list.len() == ranks, || {
            format!("{} counts for {ranks} ranks", list.len())
        })?;
        check_size(problem, list.iter().map(|count| u128::from(*count)).sum())?;
    }
    ensure(!lists[0].is_empty(), || "no counts".to_owned())?;
    ensure(!matches!(problem.counts, Counts::Pairwise { .. }) || !lists[1].is_empty(), || {
        "no counts to receive".to_owned()
    })
}

fn check_size(problem: &Problem, values: u128) -> Result<(), Refusal> {
    let bytes = values * problem.data_type.size() as u128;
    ensure(bytes < u128::from(BYTES_MAX), || {
        format!("buffers of {bytes} bytes; the most is {BYTES_MAX}")
    })
}

/// What one sends the other receives.
fn check_pairs(problems: &[Problem]) -> Result<(), Refusal> {
    for (from, sender) in (0..).zip(problems) {
        for (to, receiver) in (0..).zip(problems) {
            let Counts::Pairwise { send, .. } = &sender.counts else {
                continue;
            };
            let Counts::Pairwise { receive, .. } = &receiver.counts else {
                continue;
            };
            let (sent, received): (u64, u64) = (send[to], receive[from]);
            ensure(sent == received, || {
                format!("rank {from} sends {sent} values to rank {to}, which expects {received}")
            })?;
        }
    }
    Ok(())
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(Refusal::Malformed(what())) }
}

/// What a proof has spent.
pub(super) struct Work {
    pub(super) cells: u64,
    pub(super) marks: u64,
    pub(super) compared: u64,
    pub(super) clock_entries: u64,
}

/// What has run out, if something has: some minutes of time, or some gigabytes of memory.
pub(super) fn exhausted(work: Work) -> Option<&'static str> {
    if work.cells > 1 << 32 {
        Some("its memory is in too many pieces")
    } else if work.marks > 1 << 28 {
        Some("too many lanes read the same memory")
    } else if work.compared > 1 << 37 {
        Some("too many waits for so many lanes")
    } else if work.clock_entries > 1 << 29 {
        Some("too many signals are under way at once")
    } else {
        None
    }
}

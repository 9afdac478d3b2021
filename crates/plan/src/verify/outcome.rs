//! What each collective promises to leave in the outputs.

use super::expression::{State, Value};
use super::{Refusal, Run};
use crate::plan::Region;
use crate::problem::Extent;
use crate::types::{Collective, Level, Rank};

/// Checks every output (or, for a barrier, who knows of whom).
pub(super) fn check(run: &mut Run<'_>) -> Result<(), Refusal> {
    let ranks = run.plan.problems[0].ranks;
    match run.plan.problems[0].collective {
        Collective::Barrier => return check_barrier(run, ranks),
        Collective::SendRecv => return Ok(()),
        _ => {}
    }
    let mut reference: Option<Vec<(u64, Value)>> = None;
    for rank in 0..ranks {
        let problem = run.plan.problems[rank as usize].clone();
        let whole = Extent::new(0, problem.output_count(rank));
        match problem.collective {
            Collective::AllReduce | Collective::Reduce => {
                let found = check_folded(run, rank, whole, 0)?;
                match &reference {
                    _ if whole.count == 0 => {}
                    Some(first) => same_fold(run, rank, first, &found)?,
                    None => reference = Some(found),
                }
            }
            Collective::ReduceScatter => {
                check_folded(run, rank, whole, problem.block(rank).start)?;
            }
            Collective::Broadcast => check_moved(run, rank, whole, problem.root, 0)?,
            Collective::Scatter => {
                check_moved(run, rank, whole, problem.root, problem.block(rank).start)?;
            }
            Collective::AllGather | Collective::Gather if whole.count > 0 => {
                for source in 0..ranks {
                    check_moved(run, rank, problem.block(source), source, 0)?;
                }
            }
            Collective::AllToAll => {
                for source in 0..ranks {
                    let sent = run.plan.problems[source as usize].send_block(rank);
                    check_moved(run, rank, problem.receive_block(source), source, sent.start)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_barrier(run: &Run<'_>, ranks: Rank) -> Result<(), Refusal> {
    for rank in 0..ranks {
        let knows = run.final_knowledge(rank);
        for other in 0..ranks {
            let entered = run
                .lanes
                .iter()
                .zip(&knows)
                .any(|(lane, step)| lane.place.rank == other && *step > 0);
            if !entered && other != rank {
                return Err(Refusal::WrongResult {
                    rank,
                    writer: None,
                    index: 0,
                    found: format!("left without knowing that rank {other} entered"),
                    expected: "a barrier".to_owned(),
                });
            }
        }
    }
    Ok(())
}

fn output(run: &mut Run<'_>, rank: Rank, extent: Extent) -> Vec<(u64, Value)> {
    let size = run.data_type.size() as u64;
    run.memory
        .locate(rank, Region::Output(0), extent.start * size, extent.count * size, true)
        .map(|bytes| run.memory.look(bytes))
        .unwrap_or_default()
}

fn check_moved(
    run: &mut Run<'_>,
    rank: Rank,
    extent: Extent,
    source: Rank,
    index: u64,
) -> Result<(), Refusal> {
    if extent.count == 0 {
        return Ok(());
    }
    let size = run.data_type.size() as u64;
    let expression = run.expressions.leaf(source);
    let expected = Value { state: State::Raw, expression, index, size, skew: 0 };
    let found = output(run, rank, extent);
    match found.iter().find(|(at, value)| *value != expected.after(*at)) {
        None => Ok(()),
        Some((at, value)) => Err(wrong(run, rank, extent.start + at / size, *value, |_| {
            format!("input r{source} of value {}", index + at / size)
        })),
    }
}

/// Every value is a finished fold of all ranks, of the right value, in the promised order.
fn check_folded(
    run: &mut Run<'_>,
    rank: Rank,
    extent: Extent,
    index: u64,
) -> Result<Vec<(u64, Value)>, Refusal> {
    let problem = &run.plan.problems[0];
    let (ranks, level) = (problem.ranks, problem.level);
    let canonical = run.expressions.left_fold(ranks);
    let size = run.data_type.size() as u64;
    let found = output(run, rank, extent);
    for (at, value) in &found {
        let right = value.state == State::Final
            && value.aligned()
            && value.size == size
            && value.index == index + at / size
            && run.expressions.covers_all(value.expression, ranks)
            && (level == Level::Run || value.expression == canonical);
        if !right {
            return Err(wrong(run, rank, extent.start + at / size, *value, |_| {
                let order = if level == Level::Shape { "in rank order " } else { "" };
                format!("the fold of all {ranks} inputs {order}of value {}", index + at / size)
            }));
        }
    }
    Ok(found)
}

/// Two ranks that hold the same result fold it the same way: the same runs, as long runs of the
/// same values are never cut.
fn same_fold(
    run: &mut Run<'_>,
    rank: Rank,
    first: &[(u64, Value)],
    found: &[(u64, Value)],
) -> Result<(), Refusal> {
    let size = run.data_type.size() as u64;
    let differ = (0..first.len().max(found.len())).find(|i| first.get(*i) != found.get(*i));
    let Some(index) = differ else {
        return Ok(());
    };
    // Where one list ends, or cuts later, its last run goes on.
    let at = [first, found]
        .iter()
        .filter_map(|runs| runs.get(index).map(|run| run.0))
        .min()
        .unwrap_or(0);
    let standing = |runs: &[(u64, Value)]| {
        runs.iter().rfind(|run| run.0 <= at).map_or(Value::UNWRITTEN, |run| run.1.after(at - run.0))
    };
    let (mine, theirs) = (standing(found), standing(first));
    Err(wrong(run, rank, at / size, mine, |run| {
        format!("{} as on other ranks", run.expressions.describe(theirs))
    }))
}

fn wrong(
    run: &mut Run<'_>,
    rank: Rank,
    index: u64,
    found: Value,
    expected: impl FnOnce(&Run<'_>) -> String,
) -> Refusal {
    let size = run.data_type.size() as u64;
    let writer = run
        .memory
        .locate(rank, Region::Output(0), index * size, size, true)
        .ok()
        .and_then(|bytes| run.memory.witness(bytes))
        .map(|event| run.place(event));
    Refusal::WrongResult {
        rank,
        writer,
        index,
        found: run.expressions.describe(found),
        expected: expected(run),
    }
}

//! What must hold when a world has ended.

use std::collections::BTreeSet;

use super::memory::{Memory, check_output};
use super::player::{Phase, Player};
use super::scenario::{Fault, Piece};
use super::world::{UNUSED, World};
use crate::error::{Error, ErrorKind};
use crate::plan::types::{Collective, Rank};
use crate::transport::shm::{GENERATIONS, LARGES};

/// Checks everything.
pub(super) fn check(world: &World<'_>) -> Result<(), String> {
    // All ranks use the same places; one that has not entered does not know it yet.
    let most = |slot: usize| world.players.iter().map(|player| player.used[slot]).max();
    let used = std::array::from_fn(|slot| most(slot).unwrap_or(0));
    for player in &world.players {
        buffers(player)?;
        // Where calls differ, so do the places.
        if !matches!(world.scenario.fault, Fault::Mismatch { .. }) {
            scratch(player, used)?;
        }
    }
    for index in 0..world.scenario.operations.len() {
        for piece in 0..world.scenario.operations[index].pieces.len() {
            results(world, index, piece)
                .map_err(|what| format!("operation {index} part {piece}: {what}"))?;
        }
    }
    errors(world)
}

/// Nobody wrote to guards and inputs.
fn buffers(player: &Player) -> Result<(), String> {
    let at = |what: String| format!("rank {}: {what}", player.rank);
    for (index, memories) in player.memories.iter().enumerate() {
        for memory in memories {
            memory.check_unharmed().map_err(|what| at(format!("operation {index}: {what}")))?;
        }
    }
    Ok(())
}

/// Nobody wrote to scratch that no operation was given.
fn scratch(player: &Player, used: [u64; GENERATIONS + LARGES]) -> Result<(), String> {
    let layout = player.own.layout();
    for (slot, used) in used.into_iter().enumerate() {
        let (base, bytes) = match slot.checked_sub(GENERATIONS) {
            Some(large) => (layout.large(large as u64), layout.large_bytes),
            None => (layout.small(slot as u64), layout.small_bytes),
        };
        if let Some(offset) = super::first_other(&player.own, (base + used, bytes - used), UNUSED) {
            let at = used + offset;
            let rank = player.rank;
            return Err(format!("rank {rank}: scratch {slot} was written at {at} of {used}"));
        }
    }
    Ok(())
}

/// Ranks that have completed a call have what it promises, whatever happened after.
fn results(world: &World<'_>, index: usize, piece: usize) -> Result<(), String> {
    let call: &Piece = &world.scenario.operations[index].pieces[piece];
    let odd = match world.scenario.fault {
        Fault::Mismatch { rank, operation, .. } if operation == index => Some(rank),
        _ => None,
    };
    let replaced: Vec<Vec<u8>> = world
        .players
        .iter()
        .map(|player| match odd {
            // What the odd rank would have given to the right call: nobody can have it.
            Some(odd) if odd == player.rank => {
                let values = call.problems[odd as usize].input_count(odd);
                let bytes = usize::try_from(values).expect("small");
                vec![0x99; bytes * call.calls[0].data_type.size()]
            }
            _ => player.memories[index][piece].given().to_vec(),
        })
        .collect();
    let given: Vec<&[u8]> = replaced.iter().map(Vec::as_slice).collect();
    let mut same: Option<(Rank, &Memory)> = None;
    for player in &world.players {
        if player.operation <= index || Some(player.rank) == odd {
            continue;
        }
        let memory = &player.memories[index][piece];
        check_output(call, player.rank, &given, memory.output())
            .map_err(|what| format!("rank {}: {what}", player.rank))?;
        if call.calls[0].collective == Collective::AllReduce {
            let (first, output) = *same.get_or_insert((player.rank, memory));
            if output.output() != memory.output() {
                return Err(format!("ranks {first} and {} have different bits", player.rank));
            }
        }
    }
    Ok(())
}

/// All survivors say the same, and it is true.
fn errors(world: &World<'_>) -> Result<(), String> {
    let fault = &world.scenario.fault;
    let parted = matches!(fault, Fault::Partition { control: true, .. });
    let alive = world.players.iter().filter(|player| !matches!(player.phase, Phase::Dead));
    let mut first: Option<&Error> = None;
    let mut failed = false;
    for player in alive {
        let verdict = world.boards[player.rank as usize].verdict();
        let outcome = player.outcome.as_ref().and_then(|outcome| outcome.as_ref().err());
        failed |= outcome.is_some();
        if parted {
            continue; // the two sides may differ; that they ended is all there is to say
        }
        if outcome.is_some() && outcome != verdict {
            return Err(format!("rank {} returns {outcome:?}, not {verdict:?}", player.rank));
        }
        if let Some(verdict) = verdict {
            let first = *first.get_or_insert(verdict);
            if first != verdict {
                return Err(format!("rank {}: {verdict:?}, others {first:?}", player.rank));
            }
        }
    }
    if !failed {
        return unnoticed(world);
    }
    match first {
        Some(error) => guilty(world, error).map_err(|what| format!("{what}: {error:?}")),
        None => Ok(()),
    }
}

/// Nothing was noticed: then there was nothing to notice.
fn unnoticed(world: &World<'_>) -> Result<(), String> {
    let Fault::Mismatch { rank: odd, operation, .. } = world.scenario.fault else {
        return Ok(());
    };
    let waits = world.players.iter().any(|player| {
        let received = &player.prepared[operation].received;
        received
            .iter()
            .any(|(peer, flags)| !flags.is_empty() && (*peer == odd || player.rank == odd))
    });
    if waits { Err("a mismatch was not noticed".to_owned()) } else { Ok(()) }
}

fn guilty(world: &World<'_>, error: &Error) -> Result<(), String> {
    let named: BTreeSet<Rank> = error.culprits().iter().map(|culprit| culprit.rank).collect();
    let (kind, wanted) = match world.scenario.fault {
        Fault::Nothing => return Err("nothing went wrong".to_owned()),
        Fault::Death { rank, .. } => (ErrorKind::Remote, rank),
        Fault::Absence { rank, .. } => (ErrorKind::Timeout, rank),
        // Of two, the one with the lower rank is right.
        Fault::Mismatch { rank, .. } => {
            (ErrorKind::InvalidUsage, if world.scenario.ranks == 2 { 1 } else { rank })
        }
        Fault::Partition { .. } => {
            let known = error.kind() == ErrorKind::Timeout && !named.is_empty();
            return if known { Ok(()) } else { Err("a partition is a timeout".to_owned()) };
        }
    };
    // Where most have not entered yet when two calls meet, nobody can tell which is the odd one.
    if kind == ErrorKind::InvalidUsage
        && error.kind() == kind
        && error.to_string().contains("not entered it")
    {
        return Ok(());
    }
    // Where nobody waited for anybody in the call that differed, the next one that joins two ranks
    // tells: by then only the pair is known.
    if kind == ErrorKind::InvalidUsage
        && error.to_string().contains("made different calls before it")
        && named.contains(&wanted)
    {
        return Ok(());
    }
    // What passed unseen may come out as a deadline, of another operation.
    let late = matches!(world.scenario.fault, Fault::Mismatch { .. })
        && error.kind() == ErrorKind::Timeout;
    if (error.kind() != kind && !late) || named != BTreeSet::from([wanted]) {
        return Err(format!("names {named:?}, not {wanted} ({kind:?})"));
    }
    Ok(())
}

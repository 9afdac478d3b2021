//! Messages in pinned memory: cut into parts, and the parts into waves that fit.
//!
//! *Invariant:* a message is cut by its size alone, so that both ends cut alike; and every rank goes through
//! its parts in the order of (nth message of the two ranks, nth part, distance, sender), which is that of all ranks, wherever a
//! wave or a run ends: the least part that is not through is always offered by both its ends, so nobody waits for a later one.

use super::layout::{End, PIECES, Piece};
use crate::device::messages::Messages;
use crate::plan::types::Rank;

/// Bytes of a part.
const PART_BYTES: u64 = 4 << 20;
/// Bytes of a wave, at most: in pinned memory, which is taken when it is needed, and in GPU memory.
pub(super) const WAVE_BYTES_MOST: u64 = 64 << 20;
pub(super) const IN_GPU_BYTES_MOST: u64 = 16 << 20;

/// All parts of a rank's messages to and from others, in their order; offsets are not set.
pub(super) fn parts(messages: &Messages, rank: Rank) -> Vec<Piece> {
    let ranks = Rank::try_from(messages.sends.len()).unwrap_or(Rank::MAX);
    let mut all = Vec::new();
    let both = [(1, &messages.sends), (0, &messages.receives)];
    for (sends, lists) in both {
        for (peer, list) in (0..).zip(lists).filter(|(peer, _)| *peer != rank) {
            let (from, to) = if sends == 1 { (rank, peer) } else { (peer, rank) };
            let distance = (to + ranks - from) % ranks;
            for (layer, (address, bytes)) in list.iter().enumerate() {
                let whole = *bytes as u64;
                let parts = whole.div_ceil(PART_BYTES).max(1);
                let end = End::new(peer, parts);
                for part in 0..parts {
                    let start = part * PART_BYTES;
                    let bytes = PART_BYTES.min(whole - start);
                    let piece = Piece { address: address + start, offset: 0, bytes, end, sends };
                    all.push(((layer, part, distance, from), piece));
                }
            }
        }
    }
    all.sort_unstable_by_key(|(key, _)| *key);
    all.into_iter().map(|(_, piece)| piece).collect()
}

/// The parts in waves of at most so many bytes, each with those that it takes. An offset has the same place in a
/// line of 16 bytes as its address, so that copies go by lines.
pub(super) fn waves(parts: Vec<Piece>, most: u64) -> Vec<(Vec<Piece>, u64)> {
    let mut waves: Vec<(Vec<Piece>, u64)> = Vec::new();
    for mut piece in parts {
        let place = |taken: u64| taken.next_multiple_of(16) + piece.address % 16;
        let fits = |wave: &&mut (Vec<Piece>, u64)| {
            wave.0.len() < PIECES && place(wave.1) + piece.bytes <= most
        };
        match waves.last_mut().filter(|wave| fits(wave)) {
            Some((list, taken)) => {
                piece.offset = place(*taken);
                *taken = piece.offset + piece.bytes;
                list.push(piece);
            }
            None => {
                piece.offset = piece.address % 16;
                waves.push((vec![piece], piece.offset + piece.bytes));
            }
        }
    }
    waves
}

/// Pieces, in their order, in runs without a second one of the same peer and direction: those go at once. What is behind one
/// that has to wait waits too, or two ranks may wait for what the other has put off.
pub(super) fn runs<T>(pieces: &[T], end: impl Fn(&T) -> (Rank, bool)) -> Vec<&[T]> {
    let mut runs = Vec::new();
    let mut first = 0;
    for at in 0..pieces.len() {
        if pieces[first..at].iter().any(|before| end(before) == end(&pieces[at])) {
            runs.push(&pieces[first..at]);
            first = at;
        }
    }
    if first < pieces.len() {
        runs.push(&pieces[first..]);
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::device::Work;

    fn group(ranks: u32, rank: Rank, bytes: impl Fn(Rank, Rank) -> usize) -> Vec<Piece> {
        let mut work = Vec::new();
        for peer in 0..ranks {
            work.push(Work::Send { peer, address: 0x1003, bytes: bytes(rank, peer) });
            work.push(Work::Receive { peer, address: 0x2000, bytes: bytes(peer, rank) });
        }
        parts(&Messages::of(&work, ranks), rank)
    }

    #[test]
    fn both_ends_cut_a_message_alike() {
        let bytes = |from: Rank, to: Rank| (from * 7 + to) as usize * 1_300_001;
        for (one, other) in [(0, 1), (2, 4), (3, 0)] {
            let list = |rank: Rank, peer: Rank, sends: u32| -> Vec<u64> {
                let all = group(5, rank, bytes).into_iter();
                all.filter(|p| p.end.peer() == peer && p.sends == sends).map(|p| p.bytes).collect()
            };
            let sent = list(one, other, 1);
            assert_eq!(sent, list(other, one, 0));
            assert_eq!(sent.iter().sum::<u64>(), bytes(one, other) as u64);
        }
    }

    #[test]
    fn waves_fit_and_do_not_overlap() {
        let all = group(70, 3, |from, to| (from + to) as usize * 100_001);
        let count = all.len();
        let (wide, waves) = (waves(all.clone(), WAVE_BYTES_MOST), waves(all, IN_GPU_BYTES_MOST));
        assert!(waves.len() > wide.len() && wide.len() > 1);
        let mut seen = 0;
        for (list, bytes) in &waves {
            assert!(list.len() <= PIECES && *bytes <= IN_GPU_BYTES_MOST);
            let mut end = 0;
            for piece in list {
                assert!(piece.offset >= end && piece.offset % 16 == piece.address % 16);
                end = piece.offset + piece.bytes;
            }
            assert!(end <= *bytes);
            seen += list.len();
        }
        assert_eq!(seen, count);
    }

    /// A part, by its ends, which message between them it is of, and which part.
    type Name = (Rank, Rank, usize, usize);

    /// What a rank offers at once, one batch after the other.
    fn batches(
        group: &[(Rank, Rank, usize)],
        ranks: u32,
        rank: Rank,
        most: u64,
    ) -> Vec<BTreeSet<Name>> {
        let mut work = Vec::new();
        for (at, (from, to, bytes)) in group.iter().enumerate() {
            // Addresses tell messages apart, and lie anywhere in a line.
            let address = ((at as u64 + 1) << 32) | ((at as u64 * 5) % 16);
            if *from == rank {
                work.push(Work::Send { peer: *to, address, bytes: *bytes });
            }
            if *to == rank {
                work.push(Work::Receive { peer: *from, address, bytes: *bytes });
            }
        }
        let mut all = Vec::new();
        for (wave, _) in waves(parts(&Messages::of(&work, ranks), rank), most) {
            for run in runs(&wave, |piece| (piece.end.peer(), piece.sends == 1)) {
                let name = |piece: &Piece| {
                    let peer = piece.end.peer();
                    let (from, to) = if piece.sends == 1 { (rank, peer) } else { (peer, rank) };
                    let message = usize::try_from(piece.address >> 32).unwrap();
                    let start = piece.address & 0xffff_ffff;
                    (from, to, message, usize::try_from(start / PART_BYTES).unwrap())
                };
                all.push(run.iter().map(name).collect());
            }
        }
        all
    }

    /// Whether ranks that wait for all of a batch before the next come to the end.
    fn ends(group: &[(Rank, Rank, usize)], ranks: u32, most: u64) -> bool {
        let mut left: Vec<Vec<BTreeSet<Name>>> =
            (0..ranks).map(|rank| batches(group, ranks, rank, most)).collect();
        loop {
            let now = |rank: Rank| left[rank as usize].first().cloned().unwrap_or_default();
            let through: BTreeSet<Name> = (0..ranks)
                .flat_map(now)
                .filter(|one| now(one.0).contains(one) && now(one.1).contains(one))
                .collect();
            if through.is_empty() {
                return left.iter().all(Vec::is_empty);
            }
            for batches in &mut left {
                if let Some(first) = batches.first_mut() {
                    first.retain(|one| !through.contains(one));
                }
                if batches.first().is_some_and(BTreeSet::is_empty) {
                    batches.remove(0);
                }
            }
        }
    }

    #[test]
    fn every_group_of_messages_comes_to_its_end() {
        const MIB: usize = 1 << 20;
        let known: [&[(Rank, Rank, usize)]; 3] = [
            &[(0, 1, 4096), (1, 0, 4096), (0, 1, 8 * MIB), (1, 0, 8 * MIB)],
            &[(0, 1, 4096), (1, 0, 4096), (0, 1, 32 * MIB), (1, 0, 32 * MIB)],
            &[(0, 1, 20 * MIB), (1, 2, 28 * MIB), (2, 0, 4096), (2, 0, 4096)],
        ];
        for most in [IN_GPU_BYTES_MOST, WAVE_BYTES_MOST] {
            for group in known {
                assert!(ends(group, 3, most), "{group:?} in waves of {most}");
            }
            let mut state = 0x5eed_u64;
            let mut below = |most: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                usize::try_from(state >> 33).unwrap() % most
            };
            for round in 0..300 {
                let ranks = u32::try_from(2 + below(3)).unwrap();
                let group: Vec<_> = (0..2 + below(7))
                    .map(|_| {
                        let from = u32::try_from(below(ranks as usize)).unwrap();
                        let step = u32::try_from(1 + below(ranks as usize - 1)).unwrap();
                        let bytes = [0, 4096, 5 * MIB, 12 * MIB, 30 * MIB, 70 * MIB][below(6)];
                        (from, (from + step) % ranks, bytes)
                    })
                    .collect();
                assert!(ends(&group, ranks, most), "round {round}: {group:?} in waves of {most}");
            }
        }
    }
}

//! A hypercube inside any number of ranks.
//!
//! The corners are as many as the largest power of two allows. The ranks that are left over join
//! the first corners as their second ranks: such a corner has a *head*, which goes along the edges,
//! and a *guest*, which hands its values to the head first and has the result from it at the end.
//!
//! ```text
//! 11 ranks   0 1 · 2 3 · 4 5 · 6 · 7 · 8 · 9 · 10
//! 8 corners   0     1     2    3   4   5   6   7
//! ```
//!
//! **Invariant:** a run of corners is a run of ranks, so that what a face of the cube holds is
//! contiguous in rank order.

use std::ops::Range;

use crate::types::Rank;

#[derive(Clone, Copy, Debug)]
pub(super) struct Cube {
    ranks: u32,
    dimensions: u32,
}

impl Cube {
    pub(super) fn new(ranks: u32) -> Self {
        Self { ranks, dimensions: ranks.ilog2() }
    }

    pub(super) fn dimensions(self) -> u32 {
        self.dimensions
    }

    pub(super) fn corners(self) -> u32 {
        1 << self.dimensions
    }

    /// How many corners have a guest.
    pub(super) fn guests(self) -> u32 {
        self.ranks - self.corners()
    }

    pub(super) fn corner(self, rank: Rank) -> u32 {
        if rank < 2 * self.guests() { rank / 2 } else { rank - self.guests() }
    }

    pub(super) fn head(self, corner: u32) -> Rank {
        corner + corner.min(self.guests())
    }

    pub(super) fn guest(self, corner: u32) -> Option<Rank> {
        (corner < self.guests()).then(|| self.head(corner) + 1)
    }

    /// The ranks of a run of corners.
    pub(super) fn members(self, corners: Range<u32>) -> Range<Rank> {
        self.head(corners.start)..self.head(corners.end)
    }

    /// The most ranks that so many corners have.
    pub(super) fn crowd(self, corners: u32) -> u32 {
        corners + corners.min(self.guests())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_at_one_corner() {
        for ranks in 1..70 {
            let cube = Cube::new(ranks);
            assert_eq!(cube.members(0..cube.corners()), 0..ranks);
            for corner in 0..cube.corners() {
                let members = cube.members(corner..corner + 1);
                let named = [Some(cube.head(corner)), cube.guest(corner)];
                assert!(members.clone().eq(named.into_iter().flatten()));
                assert!(members.clone().all(|rank| cube.corner(rank) == corner));
                assert!(members.len() <= cube.crowd(1) as usize);
            }
        }
    }
}

//! Whose turn it is to use which scratch.

use crate::transport::shm::{GENERATIONS, LARGES, Segment};

/// Which operation used which scratch last: the same on all ranks.
#[derive(Debug, Default)]
pub(crate) struct ScratchUse {
    small: u64,
    large: u64,
    /// For each generation, one more than the sequence of its last user.
    generations: [u64; GENERATIONS],
    /// For each large area likewise.
    larges: [u64; LARGES],
}

impl ScratchUse {
    /// Where the scratch of operation `sequence` begins, and how many collectives must be over
    /// before it may be written.
    pub(crate) fn assign(&mut self, own: &Segment, bytes: u64, sequence: u64) -> (u64, u64) {
        let layout = own.layout();
        let (place, last) = if bytes > layout.small_bytes {
            self.large += 1;
            let index = self.large % LARGES as u64;
            (layout.large(index), &mut self.larges[usize::try_from(index).expect("few")])
        } else {
            self.small += 1;
            let index = self.small % GENERATIONS as u64;
            (layout.small(index), &mut self.generations[usize::try_from(index).expect("few")])
        };
        (place, std::mem::replace(last, sequence + 1))
    }
}

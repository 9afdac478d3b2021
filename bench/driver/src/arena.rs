//! Memory of a point: one buffer, or so many that none is still in a near cache when its turn comes.

use ringway::element::Element;

/// Memory the cold buffers of one side (sent or received) take together.
const COLD_BYTES: usize = 256 << 20;
/// Cold buffers lie at least this far apart, which bounds their number.
const COLD_STRIDE_BYTES: usize = 4096;
/// Every buffer starts at a page, as those of the other drivers do.
const PAGE_BYTES: usize = 4096;

/// Equal buffers of `count` elements, at page boundaries or at least lines apart.
pub(crate) struct Arena<T> {
    memory: Vec<T>,
    first: usize,
    stride: usize,
    count: usize,
    slots: usize,
}

impl<T: Element + Default> Arena<T> {
    /// Room for buffers of `count` elements, touched.
    pub(crate) fn new(count: usize, cold: bool) -> Self {
        let size = size_of::<T>();
        let stride = (count * size).max(1).next_multiple_of(COLD_STRIDE_BYTES) / size;
        let slots = slots(count * size, cold);
        let mut memory = vec![T::default(); stride * slots + PAGE_BYTES / size];
        // A zeroed vector may be untouched pages; written ones are what a user has.
        memory.fill(T::default());
        let first = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES / size);
        Self { memory, first, stride, count, slots }
    }

    /// The buffer of a turn.
    pub(crate) fn slot(&mut self, turn: usize) -> &mut [T] {
        let at = self.first + turn % self.slots * self.stride;
        &mut self.memory[at..at + self.count]
    }
}

/// How many buffers of a size take turns; the same in every driver.
pub(crate) fn slots(bytes: usize, cold: bool) -> usize {
    let stride = bytes.max(1).next_multiple_of(COLD_STRIDE_BYTES);
    if cold && bytes > 0 { (COLD_BYTES / stride).max(2) } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_buffers_are_many_but_bounded() {
        assert_eq!(slots(64 << 20, false), 1);
        assert_eq!(slots(0, true), 1);
        assert_eq!(slots(8, true), 65536);
        assert_eq!(slots(64 << 20, true), 4);
        assert_eq!(slots(1 << 30, true), 2);
    }

    #[test]
    fn buffers_take_turns_and_start_at_pages() {
        let mut arena = Arena::<f32>::new(3, true);
        let start = arena.slot(0).as_ptr();
        assert_eq!(start.align_offset(PAGE_BYTES), 0);
        arena.slot(1).fill(1.0);
        assert_eq!(arena.slot(0), [0.0; 3]);
        assert_eq!(arena.slot(65537), [1.0; 3]);
    }
}

//! Places of a GPU: how many blocks a launch may have, so that those of all launches at work run at once.
//!
//! A kernel that waits keeps its multiprocessors. Where those of several communicators wait for a rank that is late, and no
//! place is left for what that rank launches, all of them wait for ever. So a launch takes places when it is enqueued, one
//! for each block, as a multiprocessor runs one block of any of our kernels for certain, and has them until it is over.
//! A launch makes do with fewer blocks than it would like, one at least.
//!
//! *Invariant:* while a process makes no communicator, and has no more on a GPU than the GPU has multiprocessors, places taken are
//! no more than there are. Who comes while all are taken has one place in any case, which may be none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::gpu::{Event, Gpu};

/// Of places that communicators share, so many times as few are left for each that has not launched as would be its
/// equal share: who is alone at work has half of them.
const IDLE: u32 = 2;
/// One of so many places is left to kernels of others, and to communicators that come.
const SPARE: u32 = 8;

/// The places of a GPU.
#[derive(Debug)]
pub(super) struct Seats(Mutex<Table<Arc<Event>>>);

/// Who holds how many of them. A mark `M` comes behind launches.
#[derive(Debug)]
struct Table<M> {
    processors: u32,
    next: u64,
    holders: Vec<Holder<M>>,
}

/// A communicator's rank.
#[derive(Debug)]
struct Holder<M> {
    number: u64,
    /// Blocks of a launch at most.
    most: u32,
    /// Processes that have ranks of its communicator there.
    processes: u32,
    /// Places of launches that may be at work: they come one after another, so those of the largest.
    held: u32,
    /// Places of captured launches, which may be replayed at any time.
    kept: u32,
    /// Whether `done` comes behind all launches.
    is_marked: bool,
    done: M,
}

impl Seats {
    pub(super) fn new(processors: u32) -> Self {
        Self(Mutex::new(Table::new(processors)))
    }

    fn table(&self) -> MutexGuard<'_, Table<Arc<Event>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Table<M> {
    fn new(processors: u32) -> Self {
        Self { processors, next: 0, holders: Vec::new() }
    }

    /// Adds a holder; says its number.
    fn add(&mut self, most: u32, processes: u32, done: M) -> u64 {
        let number = self.next;
        self.next += 1;
        self.holders.push(Holder {
            number,
            most,
            processes,
            held: 0,
            kept: 0,
            is_marked: true,
            done,
        });
        number
    }

    fn holder(&mut self, number: u64) -> Option<&mut Holder<M>> {
        self.holders.iter_mut().find(|holder| holder.number == number)
    }

    /// Places for a launch of a holder.
    fn take(
        &mut self,
        number: u64,
        blocks: u32,
        is_captured: bool,
        is_over: impl Fn(&M) -> bool,
    ) -> u32 {
        let processes = self.holders.iter().map(|holder| holder.processes).max().unwrap_or(1);
        let places = (self.processors / processes.max(1)).max(1);
        let all: u32 = self.holders.iter().map(|holder| holder.most).sum();
        // What is captured keeps its places: it leaves some to communicators that come.
        let taken = if all <= places && !is_captured {
            blocks
        } else {
            self.left(number, places, is_over).min(blocks)
        };
        let taken = taken.max(1);
        if let Some(holder) = self.holder(number) {
            holder.held = holder.held.max(taken);
            if is_captured {
                holder.kept = holder.kept.max(taken);
            } else {
                holder.is_marked = false;
            }
        }
        taken
    }

    /// What others leave to a holder, where not all can have what they would like.
    fn left(&mut self, number: u64, places: u32, is_over: impl Fn(&M) -> bool) -> u32 {
        for holder in &mut self.holders {
            if holder.held > holder.kept && holder.is_marked && is_over(&holder.done) {
                holder.held = holder.kept;
            }
        }
        let holders = u32::try_from(self.holders.len()).unwrap_or(u32::MAX).max(1);
        let shared = places - places / SPARE;
        let least = (shared / holders.saturating_mul(IDLE)).max(1);
        let others = || self.holders.iter().filter(|holder| holder.number != number);
        let held: u32 = others().map(|holder| holder.held).sum();
        let promised: u32 = others().map(|holder| holder.held.max(least.min(holder.most))).sum();
        // Nobody who is here gets less than one.
        let idle = others().map(|holder| u32::from(holder.held == 0)).sum::<u32>();
        let free = places.saturating_sub(held).saturating_sub(idle);
        shared.saturating_sub(promised).max(least.min(free))
    }
}

/// A communicator's rank among those that have launches on a GPU.
#[derive(Debug)]
pub(super) struct Seat {
    gpu: Arc<Gpu>,
    number: u64,
}

impl Seat {
    /// For launches of so many blocks at most, behind which `done` is recorded.
    pub(super) fn new(gpu: &Arc<Gpu>, most: u32, processes: u32, done: &Arc<Event>) -> Self {
        let number = gpu.seats.table().add(most, processes, Arc::clone(done));
        Self { gpu: Arc::clone(gpu), number }
    }

    /// Places for a launch of so many blocks that follows at once: as many, or what is left.
    pub(super) fn take(&self, blocks: u32, is_captured: bool) -> u32 {
        let is_over = |done: &Arc<Event>| done.is_over();
        self.gpu.seats.table().take(self.number, blocks, is_captured, is_over)
    }

    /// The mark was recorded behind all launches.
    pub(super) fn mark(&self) {
        if let Some(holder) = self.gpu.seats.table().holder(self.number) {
            holder.is_marked = true;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.gpu.seats.table().holders.retain(|holder| holder.number != self.number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    type Mark = Rc<Cell<bool>>;

    fn take(table: &mut Table<Mark>, number: u64, blocks: u32) -> u32 {
        let taken = table.take(number, blocks, false, |is_over| is_over.get());
        table.holders.iter_mut().for_each(|holder| holder.is_marked |= holder.number == number);
        taken
    }

    fn held(table: &Table<Mark>) -> u32 {
        table.holders.iter().map(|holder| holder.held).sum()
    }

    #[test]
    fn who_has_room_has_all_that_is_wanted() {
        let mut table = Table::new(132);
        let numbers = [64, 64].map(|most| table.add(most, 1, Mark::default()));
        assert_eq!(numbers.map(|number| take(&mut table, number, 64)), [64, 64]);
    }

    #[test]
    fn who_is_alone_at_work_has_half_of_what_is_shared() {
        let mut table = Table::new(132);
        let marks: [Mark; 30] = std::array::from_fn(|_| Mark::default());
        let numbers = marks.clone().map(|mark| table.add(116, 1, mark));
        for (number, mark) in numbers.iter().zip(&marks) {
            mark.set(false);
            assert!(take(&mut table, *number, 116) > 116 / 2, "{table:?}");
            mark.set(true);
        }
    }

    #[test]
    fn launches_at_work_never_have_more_than_there_are() {
        // Every order of taking and ending, drawn: 4 ranks of 3 communicators that want a quarter or half each.
        let mut draw = 7_u64;
        let mut below = |most: usize| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(draw >> 33).unwrap_or(0) % most
        };
        for processors in [16, 24, 108, 132, 148] {
            let mut table = Table::new(processors);
            let marks: Vec<Mark> = (0..12).map(|_| Mark::default()).collect();
            let most = |i: usize| processors / if i < 8 { 4 } else { 2 };
            let numbers: Vec<u64> =
                (0..12).map(|i| table.add(most(i), 1, marks[i].clone())).collect();
            let (mut fewer, mut gone) = (0, None);
            for round in 0..20_000 {
                let (i, all_stay) = (below(12), round < 10_000);
                if let Some(holder) = gone.take_if(|_| below(4) == 0) {
                    table.holders.push(holder);
                } else if gone.as_ref().is_some_and(|one: &Holder<Mark>| one.number == numbers[i]) {
                    continue;
                } else if !all_stay && gone.is_none() && below(20) == 0 {
                    // One goes, and comes again with nothing at work.
                    let place = table.holders.iter().position(|one| one.number == numbers[i]);
                    let holder = place.map(|place| table.holders.swap_remove(place));
                    gone = holder.map(|holder| Holder { held: 0, ..holder });
                } else if below(3) == 0 {
                    marks[i].set(true);
                } else {
                    marks[i].set(false);
                    let blocks = 1 + u32::try_from(below(most(i) as usize)).unwrap_or(0);
                    let taken = take(&mut table, numbers[i], blocks);
                    assert!((1..=blocks).contains(&taken));
                    fewer += u32::from(taken < blocks);
                }
                // One that comes back while all is taken may be one too many.
                let most = if all_stay { processors } else { processors + 1 };
                assert!(held(&table) <= most, "{table:?}");
            }
            assert!(fewer > 1000, "{fewer}");
        }
    }

    #[test]
    fn those_that_come_while_all_is_taken_have_what_is_left() {
        let mut table = Table::new(132);
        let first = [64, 64].map(|most| table.add(most, 1, Mark::default()));
        assert_eq!(first.map(|number| take(&mut table, number, 64)), [64, 64]);
        let third = table.add(64, 1, Mark::default());
        let fourth = table.add(64, 1, Mark::default());
        assert_eq!((take(&mut table, third, 64), take(&mut table, fourth, 64)), (3, 1));
        assert_eq!(held(&table), 132);
    }

    #[test]
    fn a_launch_whose_mark_is_not_recorded_yet_is_at_work() {
        let mut table = Table::new(8);
        let (first, second) = (table.add(8, 1, Mark::default()), table.add(8, 1, Mark::default()));
        // The mark of the launch before it is over.
        table.holders[0].done.set(true);
        let taken = table.take(first, 8, false, |is_over| is_over.get());
        assert_eq!((taken, take(&mut table, second, 8)), (6, 1));
        table.holders[0].is_marked = true;
        table.holders[1].done.set(true);
        assert_eq!(take(&mut table, second, 8), 6);
    }

    #[test]
    fn captured_launches_keep_their_places() {
        let mut table = Table::new(8);
        let (first, second) = (table.add(8, 1, Mark::default()), table.add(8, 1, Mark::default()));
        table.holders[0].done.set(true);
        assert_eq!(table.take(first, 4, true, |is_over| is_over.get()), 4);
        assert_eq!(take(&mut table, second, 8), 3);
        // Also where there was room for all.
        let mut table = Table::new(8);
        let first = table.add(8, 1, Mark::default());
        assert_eq!(table.take(first, 8, true, |is_over| is_over.get()), 7);
    }

    #[test]
    fn processes_share() {
        let mut table = Table::new(132);
        let alone = table.add(64, 1, Mark::default());
        assert_eq!(take(&mut table, alone, 64), 64);
        let number = table.add(64, 4, Mark::default());
        assert!(take(&mut table, number, 64) <= 33);
    }
}

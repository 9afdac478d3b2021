//! The collectives of the comparison: how each is called, and what it must give.
//!
//! Values are whole numbers small enough to be exact in every type, so results are compared for
//! equality. The other drivers use the same.

use anyhow::ensure;
use half::bf16;
use ringway::element::Element;
use ringway::{Communicator, ReduceOp};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    AllToAll,
    Barrier,
}

/// The type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    F32,
    Bf16,
}

/// Types that hold the small whole numbers of the check.
pub(crate) trait Value: Element + Default {
    const NAME: &'static str;

    fn from_small(number: u16) -> Self;
}

impl Value for f32 {
    const NAME: &'static str = "f32";

    fn from_small(number: u16) -> Self {
        Self::from(number)
    }
}

impl Value for bf16 {
    const NAME: &'static str = "bf16";

    fn from_small(number: u16) -> Self {
        Self::from_f32(f32::from(number))
    }
}

/// Where this rank stands, and the elements of the whole buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) count: usize,
}

impl Place {
    fn block(&self) -> usize {
        self.count / self.ranks
    }
}

impl Collective {
    const ALL: [Self; 6] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::AllToAll,
        Self::Barrier,
    ];

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
        }
    }

    pub(crate) fn has_size(self) -> bool {
        self != Self::Barrier
    }

    /// Elements this rank sends; all of them where the call is in place.
    pub(crate) fn sends(self, place: &Place) -> usize {
        match self {
            Self::AllGather => place.block(),
            Self::Barrier => 0,
            _ => place.count,
        }
    }

    /// Elements this rank receives in a buffer of its own; none where the call is in place.
    pub(crate) fn receives(self, place: &Place) -> usize {
        match self {
            Self::AllGather | Self::AllToAll => place.count,
            Self::ReduceScatter => place.block(),
            Self::AllReduce | Self::Broadcast | Self::Barrier => 0,
        }
    }

    /// One call.
    pub(crate) fn call<T: Element>(
        self,
        comm: &Communicator,
        send: &mut [T],
        receive: &mut [T],
    ) -> ringway::Result<()> {
        match self {
            Self::AllReduce => comm.all_reduce_in_place(send, ReduceOp::Sum),
            Self::AllGather => comm.all_gather(send, receive),
            Self::ReduceScatter => comm.reduce_scatter(send, receive, ReduceOp::Sum),
            Self::Broadcast => comm.broadcast(send, 0),
            Self::AllToAll => comm.all_to_all(send, receive),
            Self::Barrier => comm.barrier(),
        }
    }

    /// One call whose every element is checked; leaves zeros, which stay zeros however often they
    /// are summed in place.
    pub(crate) fn verify<T: Value>(
        self,
        comm: &Communicator,
        place: &Place,
        send: &mut [T],
        receive: &mut [T],
    ) -> anyhow::Result<()> {
        for (at, value) in send.iter_mut().enumerate() {
            *value = T::from_small(self.sent(place, at));
        }
        receive.fill(T::from_small(255));
        self.call(comm, send, receive)?;
        let result = if self.receives(place) == 0 { &*send } else { &*receive };
        for (at, got) in result.iter().enumerate() {
            let wanted = T::from_small(self.wanted(place, at));
            ensure!(
                *got == wanted,
                "WRONG: {} {} of {} elements, rank {}, element {at}: {got:?}, not {wanted:?}",
                self.name(),
                T::NAME,
                place.count,
                place.rank,
            );
        }
        send.fill(T::default());
        receive.fill(T::default());
        Ok(())
    }

    /// What this rank has at a place before the call.
    fn sent(self, place: &Place, at: usize) -> u16 {
        let Place { rank, ranks, .. } = *place;
        match self {
            Self::Broadcast if rank == 0 => small(at % 7 + 1),
            Self::Broadcast => 0,
            Self::AllToAll => pair(rank, at / place.block(), ranks, at % place.block()),
            _ => small(at % 7 + rank % 8),
        }
    }

    /// What it must have there afterwards.
    fn wanted(self, place: &Place, at: usize) -> u16 {
        let Place { rank, ranks, .. } = *place;
        let block = place.block();
        let sum =
            |at: usize| small(ranks * (at % 7) + (0..ranks).map(|rank| rank % 8).sum::<usize>());
        match self {
            Self::AllReduce => sum(at),
            Self::ReduceScatter => sum(rank * block + at),
            Self::AllGather => small(at % block % 7 + at / block % 8),
            Self::Broadcast => small(at % 7 + 1),
            Self::AllToAll => pair(at / block, rank, ranks, at % block),
            Self::Barrier => 0,
        }
    }
}

/// The value that one rank sends another: below 256, so that bf16 holds it.
fn pair(from: usize, to: usize, ranks: usize, at: usize) -> u16 {
    small((from * ranks + to) % 249 + at % 7)
}

fn small(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_gives_what_is_wanted() {
        ringway::testing::world(3, |comm| {
            for collective in Collective::ALL {
                let count = if collective.has_size() { 30 } else { 0 };
                let place = Place { rank: comm.rank() as usize, ranks: 3, count };
                let mut send = vec![0.0_f32; collective.sends(&place)];
                let mut receive = vec![0.0_f32; collective.receives(&place)];
                collective.verify(comm, &place, &mut send, &mut receive).unwrap();
            }
        });
    }

    #[test]
    fn sums_of_sixteen_ranks_are_exact_in_bf16() {
        let place = Place { rank: 0, ranks: 16, count: 112 };
        for at in 0..112 {
            let sum = Collective::AllReduce.wanted(&place, at);
            assert_eq!(bf16::from_small(sum).to_f32(), f32::from(sum));
        }
    }
}

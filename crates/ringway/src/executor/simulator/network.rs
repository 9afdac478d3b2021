//! Streams of bytes with delays: what the production TCP link runs over.
//!
//! Bytes of a stream arrive in order and in random pieces; two streams know nothing of each
//! other. A stream takes so many bytes and no more until the other end has read.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::PollFlags;

use crate::plan::rng::Random;
use crate::plan::types::Rank;
use crate::transport::framed::stream::{Arrival, Stream};

/// One direction of a stream.
#[derive(Debug)]
struct Pipe {
    from: Rank,
    to: Rank,
    /// When each piece arrives, and what is left of it.
    pieces: VecDeque<(u64, VecDeque<u8>)>,
    bytes: usize,
    last_us: u64,
    /// When the end of the stream arrives.
    end_us: Option<u64>,
}

/// All streams of a world, and its clock.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) now_us: u64,
    random: Random,
    delay_us_max: u64,
    capacity: usize,
    /// Which side of the partition each rank is on, and when it begins and ends.
    partition: Option<(Vec<bool>, u64, u64)>,
    pipes: Vec<Pipe>,
    /// Who has something to look at, and when.
    wakes: Vec<(u64, Rank)>,
}

/// The network, as its streams share it.
pub(super) type Shared = Arc<Mutex<Network>>;

impl Network {
    pub(super) fn new(seed: u64, delay_us_max: u64, capacity: usize) -> Self {
        Self {
            now_us: 0,
            random: Random::new(seed ^ 0x6e65_7477_6f72_6b73),
            delay_us_max,
            capacity,
            partition: None,
            pipes: Vec::new(),
            wakes: Vec::new(),
        }
    }

    /// Nothing passes between the two sides from one time to the other; it comes late.
    pub(super) fn part(&mut self, sides: Vec<bool>, from_us: u64, until_us: u64) {
        self.partition = Some((sides, from_us, until_us));
    }

    pub(super) fn take_wakes(&mut self) -> Vec<(u64, Rank)> {
        std::mem::take(&mut self.wakes)
    }

    /// When something sent now from one rank to another arrives, `most` later at the latest
    /// unless they are parted.
    pub(super) fn arrival(&mut self, from: Rank, to: Rank, most: u64) -> u64 {
        let time = self.prompt(most);
        match &self.partition {
            Some((sides, begin, end))
                if sides[from as usize] != sides[to as usize]
                    && (*begin..*end).contains(&self.now_us) =>
            {
                time + end - self.now_us
            }
            _ => time,
        }
    }

    /// As [`Network::arrival`], for what no partition holds up.
    pub(super) fn prompt(&mut self, most: u64) -> u64 {
        self.now_us + 1 + self.random.below(most)
    }

    /// The streams of a rank end; a random rest of what it sent is lost.
    pub(super) fn kill(&mut self, rank: Rank) {
        for index in 0..self.pipes.len() {
            let (from, to) = (self.pipes[index].from, self.pipes[index].to);
            if from != rank && to != rank {
                continue;
            }
            let end = self.arrival(from, to, self.delay_us_max);
            let pipe = &mut self.pipes[index];
            if from == rank {
                pipe.pieces.retain(|(time, _)| *time <= end);
                self.wakes.push((end, to));
            } else {
                self.wakes.push((end, from));
            }
            pipe.end_us = Some(end);
        }
    }
}

/// One end of a stream.
#[derive(Debug)]
pub(super) struct End {
    network: Shared,
    outgoing: usize,
    incoming: usize,
}

/// A new stream between two ranks: the ends of `one` and of `other`.
pub(super) fn stream(network: &Shared, one: Rank, other: Rank) -> (End, End) {
    let mut inner = network.lock().expect("nobody panicked");
    let mut pipe = |from, to| {
        inner.pipes.push(Pipe {
            from,
            to,
            pieces: VecDeque::new(),
            bytes: 0,
            last_us: 0,
            end_us: None,
        });
        inner.pipes.len() - 1
    };
    let (there, back) = (pipe(one, other), pipe(other, one));
    let end = |outgoing, incoming| End { network: Arc::clone(network), outgoing, incoming };
    (end(there, back), end(back, there))
}

impl End {
    fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().expect("nobody panicked")
    }
}

impl Stream for End {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut guard = self.lock();
        let network = &mut *guard;
        let pipe = &network.pipes[self.outgoing];
        let (from, to) = (pipe.from, pipe.to);
        if pipe.end_us.is_some_and(|end| end <= network.now_us) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        let room = whole.min(network.capacity.saturating_sub(pipe.bytes));
        if room == 0 {
            return Ok(0);
        }
        let taken = if network.random.percent(60) {
            room
        } else {
            1 + usize::try_from(network.random.below(room as u64)).expect("below")
        };
        let piece: VecDeque<u8> =
            parts.iter().flat_map(|part| part.iter().copied()).take(taken).collect();
        let time = network.arrival(from, to, network.delay_us_max);
        let pipe = &mut network.pipes[self.outgoing];
        pipe.last_us = pipe.last_us.max(time);
        pipe.bytes += taken;
        pipe.pieces.push_back((pipe.last_us, piece));
        network.wakes.push((pipe.last_us, to));
        Ok(taken)
    }

    fn receive(&self, room: &mut [u8]) -> Arrival {
        let mut guard = self.lock();
        let network = &mut *guard;
        let now = network.now_us;
        let pipe = &mut network.pipes[self.incoming];
        let mut got = 0;
        while let Some((time, piece)) = pipe.pieces.front_mut() {
            if *time > now || got == room.len() {
                break;
            }
            while got < room.len()
                && let Some(byte) = piece.pop_front()
            {
                room[got] = byte;
                got += 1;
            }
            if piece.is_empty() {
                pipe.pieces.pop_front();
            }
        }
        pipe.bytes -= got;
        if got > 0 {
            network.wakes.push((now + 1, pipe.from)); // there is room again
            return Arrival::Bytes(got);
        }
        match pipe.end_us {
            Some(end) if end <= now && pipe.pieces.is_empty() => {
                Arrival::End("the peer closed the connection".to_owned())
            }
            _ => Arrival::Nothing,
        }
    }

    fn interest(&self, _wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)> {
        None
    }

    fn wakes(&self) -> bool {
        false
    }
}

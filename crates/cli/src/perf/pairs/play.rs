//! One match: round trips between two ranks, then large messages one way and the other, then each works while the other waits:
//! its processor, and its GPU where messages are in GPU memory. What is counted and told besides goes by host memory.
//!
//! Times are of batches, long enough to hold whatever a rank does now and then, and of some batches one of the quicker ones
//! counts: what else runs on a machine only makes them longer.

use std::time::Duration;

use ringway::Communicator;

use super::schedule::Pair;
use crate::perf::args::Memory;
use crate::perf::memory::Buffer;
use crate::perf::slow::area::Area;
use crate::perf::slow::work::{self, Copies};
use crate::perf::slow::{calls_of_batch, robust, seconds};

/// How long a batch takes, at least.
const BATCH: Duration = Duration::from_millis(10);
/// Calls of a batch, at most.
const ROUND_TRIPS_MOST: u64 = 100;
const MESSAGES_MOST: u64 = 1_000;
/// Bytes of a round trip's messages.
const SMALL: usize = 8;
/// Batches of each kind.
const BATCHES: usize = 3;
/// The part of batches that were quicker than the one that counts.
const COUNTS: f64 = 0.25;

/// What one rank of a match saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Microseconds of a round trip; seen by the lower rank.
    pub(crate) round_trip_us: Option<f64>,
    /// Microseconds of a large message from this rank to the other.
    pub(crate) message_us: f64,
    /// Microseconds of a piece of work, while the other rank waits.
    pub(crate) work_us: f64,
    /// Microseconds of a copy in its GPU's memory, likewise.
    pub(crate) copy_us: Option<f64>,
}

/// A rank's side of all its matches.
pub(crate) struct Player<'a> {
    comm: &'a Communicator,
    own: usize,
    bytes: usize,
    area: Area<'a>,
    copies: Copies<'a>,
}

impl<'a> Player<'a> {
    /// With messages of `bytes`, in a buffer that is made here.
    pub(crate) fn new(
        comm: &'a Communicator,
        memory: Memory,
        bytes: u64,
        buffer: &'a mut Option<Buffer>,
    ) -> anyhow::Result<Self> {
        let bytes = usize::try_from(bytes)?;
        let room = bytes.max(SMALL);
        let buffer = buffer.insert(Area::buffer(memory, room));
        Ok(Self {
            comm,
            own: comm.rank() as usize,
            bytes,
            area: Area::new(comm, memory, room, buffer)?,
            copies: Copies::new(comm, memory)?,
        })
    }

    /// Plays this rank's match of a wave, if it has one; nobody begins before all are there. Every rank calls it.
    pub(crate) fn wave(&mut self, wave: &[Pair]) -> anyhow::Result<Option<(usize, Seen)>> {
        self.comm.barrier()?;
        let own = wave.iter().find(|(a, b)| *a == self.own || *b == self.own);
        own.map(|pair| self.play(*pair)).transpose()
    }

    fn play(&mut self, (low, high): Pair) -> anyhow::Result<(usize, Seen)> {
        let leads = self.own == low;
        let other = if leads { high } else { low };
        let peer = u32::try_from(other)?;
        let round_trip = if leads {
            Some(self.lead(peer, ROUND_TRIPS_MOST, Self::ask)?)
        } else {
            self.follow(peer, Self::answer)?;
            None
        };
        let mut message = 0.0;
        for sends in [leads, !leads] {
            if sends {
                message = self.lead(peer, MESSAGES_MOST, Self::send)?;
            } else {
                self.follow(peer, Self::receive)?;
            }
        }
        let (mut work_us, mut copy_us) = (0.0, None);
        for works in [leads, !leads] {
            if works {
                work_us = work::piece_us();
                copy_us = self.copies.copy_us()?;
                self.comm.send(&[0; 8], peer)?;
            } else {
                self.comm.recv(&mut [0; 8], peer)?;
            }
        }
        let round_trip_us = round_trip.map(|time| time * 1e6);
        Ok((other, Seen { round_trip_us, message_us: message * 1e6, work_us, copy_us }))
    }

    /// Seconds of a call, as the rank sees it that makes the batches.
    fn lead(
        &mut self,
        peer: u32,
        most: u64,
        batch: fn(&mut Self, u32, u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        // The first one also makes the connection.
        batch(self, peer, 1)?;
        let once = seconds(|| batch(self, peer, 1))?;
        let calls = calls_of_batch(Duration::from_secs_f64(once), BATCH, most).max(2);
        self.comm.send(&calls.to_le_bytes(), peer)?;
        let mut times = Vec::new();
        for _ in 0..BATCHES {
            times.push(seconds(|| batch(self, peer, calls))? / calls as f64);
        }
        Ok(robust::quantile(&times, COUNTS))
    }

    /// The other side of [`Self::lead`].
    fn follow(
        &mut self,
        peer: u32,
        batch: fn(&mut Self, u32, u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        batch(self, peer, 1)?;
        batch(self, peer, 1)?;
        let mut calls = [0; 8];
        self.comm.recv(&mut calls, peer)?;
        (0..BATCHES).try_for_each(|_| batch(self, peer, u64::from_le_bytes(calls)))
    }

    fn ask(&mut self, peer: u32, calls: u64) -> anyhow::Result<()> {
        (0..calls).try_for_each(|_| {
            self.area.send(SMALL, peer)?;
            self.area.receive(SMALL, peer)
        })?;
        self.area.finish()
    }

    fn answer(&mut self, peer: u32, calls: u64) -> anyhow::Result<()> {
        (0..calls).try_for_each(|_| {
            self.area.receive(SMALL, peer)?;
            self.area.send(SMALL, peer)
        })?;
        self.area.finish()
    }

    /// Sends messages; the other rank says when it has all of them.
    fn send(&mut self, peer: u32, calls: u64) -> anyhow::Result<()> {
        (0..calls).try_for_each(|_| self.area.send(self.bytes, peer))?;
        self.area.finish()?;
        Ok(self.comm.recv(&mut [0; 8], peer)?)
    }

    fn receive(&mut self, peer: u32, calls: u64) -> anyhow::Result<()> {
        (0..calls).try_for_each(|_| self.area.receive(self.bytes, peer))?;
        self.area.finish()?;
        Ok(self.comm.send(&[0; 8], peer)?)
    }
}

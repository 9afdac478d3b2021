//! Messages between ranks: those of a group meet in the same launches on both ends.

use zerocopy::FromZeros;

use super::{DeviceRank, Work, fold, launch, share_parts, used};
use crate::device::export::{self, Named};
use crate::device::gpu::Stream;
use crate::device::kernels::Kind;
use crate::device::messages::Messages;
use crate::device::program::{self, Buffers, Part, Program};
use crate::device::recent::What;
use crate::error::{Error, Result};
use crate::ffi::cuda::Address;
use crate::plan::mapped::{self, OPEN};
use crate::plan::plan::{RankPlan, Step};
use crate::plan::types::{DataType, Rank};

/// A message between this rank and another: its address and how long it is.
type Message = (Rank, Address, usize);

impl DeviceRank {
    /// Messages of a group: the first between each two ranks, then the second, and so on; of each such
    /// layer, those between ranks of so many distances in one launch. Both ends put a message into the
    /// same launch, and all go through the launches in the same order, so that none waits for a later one.
    pub(super) fn messages(&mut self, stream: Stream, work: &[Work<'_>]) -> Result<()> {
        let messages = Messages::of(work, self.ranks);
        for (to, from, bytes) in messages.own(self.rank)? {
            export::copy(&self.gpu, to, from, bytes, stream)?;
        }
        self.exchanges(&messages, |rank, out, into| rank.exchange(stream, out, into))
    }

    /// Refuses what cannot be done of the messages of a group.
    pub(super) fn check_messages(&mut self, work: &[Work<'_>]) -> Result<()> {
        let messages = Messages::of(work, self.ranks);
        messages.own(self.rank)?;
        self.kernels.get(Kind::Copy)?;
        self.exchanges(&messages, |rank, out, _| {
            for message in out {
                rank.name_message(*message, out.len())?;
            }
            Ok(())
        })
    }

    /// Where others find a message that goes in one launch with so many in all.
    fn name_message(&mut self, (_, address, bytes): Message, all: usize) -> Result<Named> {
        let address = used((address, bytes));
        let (named, _) = self.name((address, bytes), (0, 0))?;
        if named.address != address && all > 1 {
            return Err(Error::usage(
                "a message of a group is in memory that other processes cannot map: send it by \
                 itself, or from memory of cudaMalloc",
            ));
        }
        Ok(named)
    }

    /// Says which messages go in each launch: those out, and those in.
    fn exchanges(
        &mut self,
        messages: &Messages,
        mut each: impl FnMut(&mut Self, &[Message], &[Message]) -> Result<()>,
    ) -> Result<()> {
        let Messages { sends, receives } = messages;
        let rounds = program::messages(self.ranks);
        for layer in 0..messages.layers() {
            let mut first = 1;
            while first < self.ranks {
                let distances = first..(first + rounds).min(self.ranks);
                let to = |distance| (self.rank + distance) % self.ranks;
                let from = |distance| (self.rank + self.ranks - distance) % self.ranks;
                let pick = |all: &[Vec<(Address, usize)>], peer: Rank| {
                    let one = all[peer as usize].get(layer)?;
                    Some((peer, one.0, one.1))
                };
                let out: Vec<_> = distances.clone().filter_map(|d| pick(sends, to(d))).collect();
                let into: Vec<_> =
                    distances.clone().filter_map(|d| pick(receives, from(d))).collect();
                if !out.is_empty() || !into.is_empty() {
                    each(self, &out, &into)?;
                }
                first += rounds;
            }
        }
        Ok(())
    }

    /// Messages that go in one launch: all are offered before any is waited for.
    fn exchange(&mut self, stream: Stream, out: &[Message], into: &[Message]) -> Result<()> {
        let parts = |bytes: usize| share_parts(bytes as u64, self.shared.station.layout.parts);
        let full = || Error::internal("messages do not fit a launch");
        let opens = |step: &Step| matches!(step, Step::Signal { flag: OPEN, .. });
        let mut program = Program::new(Kind::Copy, self.ranks);
        let mut fits = true;
        let offered: Vec<_> =
            out.iter().map(|(peer, _, bytes)| (mapped::send(*peer), parts(*bytes))).collect();
        for (plan, parts) in &offered {
            let call = program.begin();
            fits &= program.add_some(&message(plan, *parts), call, opens);
        }
        for (peer, _, bytes) in into {
            let plan = mapped::receive(*peer, *bytes as u64);
            fits &= program.add(&message(&plan, parts(*bytes)));
        }
        for (call, (plan, parts)) in offered.iter().enumerate() {
            fits &= program.add_some(&message(plan, *parts), call, |step| !opens(step));
        }
        if !fits {
            return Err(full());
        }
        let mut calls = Vec::with_capacity(out.len() + into.len());
        for message in out {
            let (_, address, bytes) = message;
            let named = self.name_message(*message, out.len())?;
            let address = used((*address, *bytes));
            export::copy(&self.gpu, named.address, address, *bytes, stream)?;
            calls.push(Buffers {
                input: named.address,
                input_token: named.token,
                tag: message_tag(*bytes),
                ..Buffers::new_zeroed()
            });
        }
        calls.extend(into.iter().map(|(_, address, bytes)| Buffers {
            output: *address,
            tag: message_tag(*bytes),
            ..Buffers::new_zeroed()
        }));
        let mut argument = self.template.clone();
        program.write(&mut argument);
        argument.set_calls(&calls);
        let bytes = out.iter().chain(into).map(|(_, _, bytes)| bytes).sum();
        (argument.named, argument.names) = self.exports.fresh();
        let function = self.kernels.get(Kind::Copy)?;
        let shape = (self.order.take(program.parts), self.kernels.threads(Kind::Copy));
        self.shared.recent.note(What::messages(out.len(), into.len(), bytes));
        let launched = launch(&self.gpu, function, shape, stream, &argument);
        Ok(self.launched(launched)?)
    }
}

/// A message as part of a program.
fn message(plan: &RankPlan, parts: u32) -> Part<'_> {
    Part { plan, data_type: DataType::U8, parts, is_message: true }
}

fn message_tag(bytes: usize) -> u32 {
    fold(&[99, bytes as u64])
}

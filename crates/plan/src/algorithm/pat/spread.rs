//! The all_gather half: from far to near, each rank passes on all blocks it has.

use super::{Cutting, distances, messages};
use crate::build::{Builder, Port};
use crate::plan::Span;
use crate::problem::Extent;
use crate::types::{Form, Rank};

/// Spreads the blocks that stand in the owners' outputs to all outputs.
pub(super) struct Spread {
    port: Port,
    lane: usize,
    message: u64,
    /// Room for a message.
    aside: u64,
}

impl Spread {
    pub(super) fn new(builder: &mut Builder<'_>, lane: usize, cutting: Cutting) -> Self {
        Self {
            port: builder.port(lane, cutting.port),
            lane,
            message: cutting.message,
            aside: builder.private(cutting.port.slot_bytes),
        }
    }

    pub(super) fn run(&self, builder: &mut Builder<'_>, cut: &dyn Fn(Rank) -> Extent) {
        let (rank, ranks) = (builder.context().rank, builder.context().ranks());
        for (inbox, distance) in distances(ranks).rev() {
            let next = (rank + distance) % ranks;
            let previous = (rank + ranks - distance) % ranks;
            // A sender has the blocks of owners at every even multiple of the distance before it.
            let blocks = |sender: Rank| {
                let list = (0..ranks - distance)
                    .step_by(2 * distance as usize)
                    .map(|before| cut(sender + ranks - before))
                    .collect();
                messages(list, self.message, |extent: &Extent| extent.count)
            };
            let (sent, received) = (blocks(rank), blocks(previous));
            // One out, one in: nobody fills a neighbour's slots while its own are full.
            for index in 0..sent.len().max(received.len()) {
                if let Some(extents) = sent.get(index) {
                    self.send(builder, (next, inbox), extents);
                }
                if let Some(extents) = received.get(index) {
                    self.receive(builder, (previous, inbox), extents);
                }
            }
        }
    }

    fn send(&self, builder: &mut Builder<'_>, (peer, inbox): (Rank, u32), extents: &[Extent]) {
        if let [alone] = extents {
            builder.send_into(self.port, peer, inbox, builder.output(*alone), alone.start);
        } else {
            let parts: Vec<Span> = extents.iter().map(|e| builder.output(*e)).collect();
            builder.send_joined(self.port, peer, inbox, &parts, self.aside);
        }
    }

    fn receive(&self, builder: &mut Builder<'_>, (peer, inbox): (Rank, u32), extents: &[Extent]) {
        if let [alone] = extents {
            return builder.receive_into(self.port, peer, inbox, *alone);
        }
        let data_type = builder.context().problem.data_type;
        let total = extents.iter().map(|extent| extent.count).sum();
        let message = builder.receive(self.port, peer, inbox, total, Form::Element);
        let mut start = 0;
        for extent in extents {
            let source = message.slice(start, extent.count, data_type);
            builder.copy(self.lane, source, builder.output(*extent));
            start += extent.count;
        }
        builder.release(self.port, peer);
    }
}

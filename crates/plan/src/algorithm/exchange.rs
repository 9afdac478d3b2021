//! Parts of the outputs traded between ranks, sending and receiving in turns.
//!
//! A lane that first sent all it has would stand with its slots full while its peer does the same.
//! In turns the `i`th message waits only for messages before the `i`th, so somebody can always
//! go on.

use crate::build::{Builder, Port};
use crate::problem::Extent;
use crate::types::{Form, Rank};

/// One direction of an exchange.
#[derive(Debug)]
pub(super) struct Flow {
    /// The other end.
    pub(super) peer: Rank,
    /// The box at the receiver.
    pub(super) inbox: u32,
    /// Which values, at the same place in both outputs.
    pub(super) extents: Vec<Extent>,
}

impl Flow {
    pub(super) fn new(peer: Rank, inbox: u32, extents: Vec<Extent>) -> Self {
        Self { peer, inbox, extents }
    }

    /// Sends it all, to a rank that does nothing but receive.
    pub(super) fn send(&self, builder: &mut Builder<'_>, port: Port) {
        for extent in &self.extents {
            let source = builder.output(*extent);
            builder.send_into(port, self.peer, self.inbox, source, extent.start);
        }
    }

    /// Receives it all, from a rank that does nothing but send.
    pub(super) fn receive(&self, builder: &mut Builder<'_>, port: Port) {
        for extent in &self.extents {
            builder.receive_into(port, self.peer, self.inbox, *extent);
        }
    }
}

/// Sends one flow and receives another, in turns.
pub(super) fn exchange(builder: &mut Builder<'_>, port: Port, sent: &Flow, received: &Flow) {
    let mut outward = messages(builder, port, sent).into_iter();
    let mut inward = messages(builder, port, received).into_iter();
    loop {
        let (out, back) = (outward.next(), inward.next());
        if let Some(extent) = out {
            let source = builder.output(extent);
            builder.send_into(port, sent.peer, sent.inbox, source, extent.start);
        }
        if let Some(extent) = back {
            builder.receive_into(port, received.peer, received.inbox, extent);
        }
        if out.is_none() && back.is_none() {
            return;
        }
    }
}

/// What goes in one message each: all that is contiguous, or, through boxes, what fits a slot.
fn messages(builder: &Builder<'_>, port: Port, flow: &Flow) -> Vec<Extent> {
    let most = if builder.context().mapped(flow.peer) {
        builder.message_values(port, Form::Element)
    } else {
        u64::MAX
    };
    flow.extents.iter().flat_map(|extent| extent.pieces(most)).collect()
}

/// Extents with those that go on into each other joined, and without empty ones.
pub(super) fn joined(extents: impl Iterator<Item = Extent>) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    for extent in extents.filter(|extent| extent.count > 0) {
        match runs.last_mut() {
            Some(last) if last.end() == extent.start => last.count += extent.count,
            _ => runs.push(extent),
        }
    }
    runs
}

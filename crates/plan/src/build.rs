//! The drafting table: channels with slots and credits, from which algorithms make plans.
//!
//! An algorithm thinks in messages: send this to that peer, publish that to everybody, receive,
//! reduce, release. The builder writes them down as puts, signals and waits over scratch
//! memory, with a credit for every slot that is used again.
//!
//! ```text
//! scratch of every rank, the same offsets everywhere
//! ┌──────────── port 0 ────────────┬──────────── port 1 ─────────┐
//! │ box 0: slot 0 │ slot 1         │                             │
//! │ box 1: slot 0 │ slot 1         │  …                          │
//! │ stage: slot 0 │ slot 1         │                             │
//! └────────────────────────────────┴─────────────────────────────┘
//! ```
//!
//! A *port* is a set of channels of one lane with two flags (data and credit). Messages to a
//! peer land in one of the peer's *boxes*; what a rank publishes to peers that map its memory
//! stands in its own *stage*, once, and they read it there.
//!
//! **Invariant:** all ranks open the same ports in the same order with the same sizes, and both ends
//! of a channel make the same sequence of calls. The verifier proves that they did.

mod cards;

use std::collections::BTreeMap;

use crate::plan::{Flag, Operand, RankPlan, Region, Remote, Span, Step};
use crate::problem::{Extent, Problem};
use crate::types::{DataType, Form, Rank};

/// How a plan is cut: all ranks must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Lanes that share the data.
    pub lanes: u32,
    /// Bytes of one message through a slot, at most.
    pub slot_bytes: u64,
    /// Messages in flight per channel: at least 2, as a ring that holds the one it reads while it
    /// sends the next would stand for ever with 1.
    pub slots: u32,
    /// Scratch a plan may use.
    pub scratch_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { lanes: 1, slot_bytes: 256 << 10, slots: 2, scratch_bytes: 4 << 20 }
    }
}

/// The world in which a rank drafts its part.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// What is to be done.
    pub problem: &'a Problem,
    /// Who drafts.
    pub rank: Rank,
    /// Ranks with the same number map each other's memory.
    pub hosts: &'a [u32],
    /// How to cut.
    pub tuning: Tuning,
}

impl Context<'_> {
    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.problem.ranks
    }

    /// Whether this rank and `peer` map each other's scratch.
    #[must_use]
    pub fn mapped(&self, peer: Rank) -> bool {
        peer != self.rank && self.hosts[peer as usize] == self.hosts[self.rank as usize]
    }

    /// Whether all ranks map each other's scratch.
    #[must_use]
    pub fn all_mapped(&self) -> bool {
        self.hosts.iter().all(|host| *host == self.hosts[0])
    }

    /// Values that keep lanes and chunks on separate cache lines.
    #[must_use]
    pub fn grain(&self) -> u64 {
        (64 / self.problem.data_type.size()) as u64
    }

    /// Values of `form` that fit into `bytes` (at least one), in whole cache lines where possible.
    #[must_use]
    pub fn values(&self, bytes: u64, form: Form) -> u64 {
        let size = form.size(self.problem.data_type) as u64;
        let values = (bytes / size).max(1);
        if values > self.grain() { values - values % self.grain() } else { values }
    }

    /// The ranks other than this one that map its memory, and those that do not, each nearest
    /// following first, so that not everybody begins with rank 0.
    #[must_use]
    pub fn peers(&self) -> (Vec<Rank>, Vec<Rank>) {
        (1..self.ranks())
            .map(|distance| (self.rank + distance) % self.ranks())
            .partition(|peer| self.mapped(*peer))
    }

    /// Bytes of `count` elements.
    #[must_use]
    pub fn element_bytes(&self, count: u64) -> u64 {
        count * self.problem.data_type.size() as u64
    }
}

/// A set of channels of one lane. See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(u16);

#[derive(Clone, Copy, Debug)]
struct PortLayout {
    lanes: Lanes,
    base: u64,
    boxes: u32,
    slot_bytes: u64,
    stage_bytes: u64,
    slots: u32,
}

/// The lanes in which this rank sends and receives on a port: mostly the same one, two where
/// sending must not wait for receiving.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// Sends, announces, and waits for credits.
    pub outgoing: usize,
    /// Receives, observes, and gives credits.
    pub incoming: usize,
}

impl From<usize> for Lanes {
    fn from(lane: usize) -> Self {
        Self { outgoing: lane, incoming: lane }
    }
}

/// What a port needs.
#[derive(Clone, Copy, Debug)]
pub struct PortSize {
    /// Boxes into which peers send.
    pub boxes: u32,
    /// Bytes of a message in a box.
    pub slot_bytes: u64,
    /// Bytes of a publication in the stage; 0 if nothing is published.
    pub stage_bytes: u64,
    /// Messages in flight.
    pub slots: u32,
}

impl PortSize {
    /// Bytes of scratch the port takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let slots = u64::from(self.slots.max(1));
        slots * (u64::from(self.boxes) * lines(self.slot_bytes) + lines(self.stage_bytes))
    }
}

/// Where in the boxes of a port a message lands: mostly at the start of a slot, further in where
/// several peers fill one box together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inbox {
    /// Which box.
    pub index: u32,
    /// Bytes of the slot before the message.
    pub skip: u64,
}

impl From<u32> for Inbox {
    fn from(index: u32) -> Self {
        Self { index, skip: 0 }
    }
}

#[derive(Debug, Default)]
struct Outgoing {
    messages: u32,
    slotted: u32,
}

#[derive(Debug, Default)]
struct Incoming {
    messages: u32,
    slotted: u32,
    slots: u32,
    credits: Vec<(usize, usize)>,
}

/// Drafts one rank's part of a plan.
#[derive(Debug)]
pub struct Builder<'a> {
    context: Context<'a>,
    lanes: Vec<Vec<Option<Step>>>,
    operands: Vec<Operand>,
    ports: Vec<PortLayout>,
    outgoing: BTreeMap<(Port, Rank), Outgoing>,
    incoming: BTreeMap<(Port, Rank), Incoming>,
    published: BTreeMap<Port, u32>,
    scratch_bytes: u64,
    cards: u16,
    wide_card_bytes: u64,
    exposed: bool,
}

impl<'a> Builder<'a> {
    /// An empty draft.
    #[must_use]
    pub fn new(context: Context<'a>) -> Self {
        Self {
            context,
            lanes: Vec::new(),
            operands: Vec::new(),
            ports: Vec::new(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            published: BTreeMap::new(),
            scratch_bytes: 0,
            cards: 0,
            wide_card_bytes: 0,
            exposed: false,
        }
    }

    /// The world in which this rank drafts.
    #[must_use]
    pub fn context(&self) -> Context<'a> {
        self.context
    }

    fn data_type(&self) -> DataType {
        self.context.problem.data_type
    }

    /// Opens the next port. All ranks open the same ports in the same order with the same sizes;
    /// the lanes are each rank's own affair.
    pub fn port(&mut self, lanes: impl Into<Lanes>, size: PortSize) -> Port {
        let lanes = lanes.into();
        self.lane(lanes.outgoing.max(lanes.incoming));
        let layout = PortLayout {
            lanes,
            base: self.scratch_bytes,
            boxes: size.boxes,
            slot_bytes: lines(size.slot_bytes),
            stage_bytes: lines(size.stage_bytes),
            slots: size.slots.max(1),
        };
        self.scratch_bytes += size.bytes();
        self.ports.push(layout);
        Port(u16::try_from(self.ports.len() - 1).expect("a plan has few ports"))
    }

    /// Private scratch: `bytes` at the same offset on every rank.
    pub fn private(&mut self, bytes: u64) -> u64 {
        let offset = self.scratch_bytes;
        self.scratch_bytes += lines(bytes);
        offset
    }

    /// Makes sure that there is a lane with this number.
    pub fn lane(&mut self, lane: usize) {
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, Vec::new);
        }
    }

    /// Values of the input.
    #[must_use]
    pub fn input(&self, extent: Extent) -> Span {
        self.user(Region::Input(0), extent)
    }

    /// Values of the output.
    #[must_use]
    pub fn output(&self, extent: Extent) -> Span {
        self.user(Region::Output(0), extent)
    }

    fn user(&self, region: Region, extent: Extent) -> Span {
        Span {
            region,
            offset: self.context.element_bytes(extent.start),
            count: extent.count,
            form: Form::Element,
        }
    }

    /// This rank's own input as an operand.
    #[must_use]
    pub fn own(&self, extent: Extent) -> Operand {
        Operand { span: self.input(extent), fresh: Some(self.context.rank) }
    }

    /// Copies within this rank's reach; a copy of nothing is not written down.
    pub fn copy(&mut self, lane: usize, source: Span, target: Span) {
        if source.count > 0 && source != target {
            self.step(lane, Step::Copy { source, target });
        }
    }

    /// Folds `operands` from left to right into `target`.
    pub fn reduce(&mut self, lane: usize, operands: &[Operand], target: Span, finish: bool) {
        if target.count == 0 {
            return;
        }
        let first = u32::try_from(self.operands.len()).expect("operands fit in 32 bits");
        let count = u32::try_from(operands.len()).expect("operands fit in 32 bits");
        self.operands.extend_from_slice(operands);
        self.step(lane, Step::Reduce { first, operands: count, target, finish });
    }

    /// Sends through a slot of box `inbox` at `peer`.
    pub fn send(&mut self, port: Port, peer: Rank, inbox: impl Into<Inbox>, source: Span) {
        self.send_runs(port, peer, inbox.into(), &[source]);
    }

    /// Sends several runs of values as one message, in which they stand side by side: straight
    /// into the peer's memory where that is mapped, else by way of private scratch at `bounce`.
    pub fn send_joined(
        &mut self,
        port: Port,
        peer: Rank,
        inbox: impl Into<Inbox>,
        sources: &[Span],
        bounce: u64,
    ) {
        let runs = self.join(sources);
        if self.context.mapped(peer) || runs.len() < 2 {
            self.send_runs(port, peer, inbox.into(), &runs);
            return;
        }
        let packed = Span {
            region: Region::Scratch,
            offset: bounce,
            count: runs.iter().map(|run| run.count).sum(),
            form: runs[0].form,
        };
        let lane = self.layout(port).lanes.outgoing;
        let mut start = 0;
        for run in runs {
            self.copy(lane, run, packed.slice(start, run.count, self.data_type()));
            start += run.count;
        }
        self.send(port, peer, inbox, packed);
    }

    /// Joins runs that go on into each other, and leaves out empty ones.
    fn join(&self, sources: &[Span]) -> Vec<Span> {
        let mut runs: Vec<Span> = Vec::with_capacity(sources.len());
        for source in sources.iter().filter(|source| source.count > 0) {
            match runs.last_mut() {
                Some(last)
                    if last.region == source.region
                        && last.form == source.form
                        && last.offset + last.bytes(self.data_type()) == source.offset =>
                {
                    last.count += source.count;
                }
                _ => runs.push(*source),
            }
        }
        runs
    }

    /// One message of several puts, the last of which says that all are there.
    fn send_runs(&mut self, port: Port, peer: Rank, inbox: Inbox, runs: &[Span]) {
        let bytes: u64 = runs.iter().map(|run| run.bytes(self.data_type())).sum();
        if bytes == 0 {
            return;
        }
        let layout = self.layout(port);
        assert!(
            inbox.skip + bytes <= layout.slot_bytes && inbox.index < layout.boxes,
            "message of {bytes} bytes to {inbox:?} does not fit {layout:?}",
        );
        let slot = self.take_slot(port, peer);
        let mut offset = box_offset(&layout, inbox.index, slot) + inbox.skip;
        for (index, run) in runs.iter().enumerate() {
            let target = Remote { region: Region::Scratch, offset };
            let signal = (index + 1 == runs.len()).then_some(data_flag(port));
            self.put(port, peer, *run, target, signal);
            offset += run.bytes(self.data_type());
        }
    }

    /// Waits for the next message of `peer` in box `inbox` and says where it stands. Must be
    /// followed by [`Builder::release`] once it has been read.
    pub fn receive(
        &mut self,
        port: Port,
        peer: Rank,
        inbox: impl Into<Inbox>,
        count: u64,
        form: Form,
    ) -> Span {
        let layout = self.layout(port);
        let inbox = inbox.into();
        let offset = if count == 0 {
            0
        } else {
            let slot = self.await_slot(port, peer);
            box_offset(&layout, inbox.index, slot) + inbox.skip
        };
        Span { region: Region::Scratch, offset, count, form }
    }

    /// The slot of box `inbox` here in which message `index` of every channel lands: a box that all
    /// peers fill together has room for this rank's own values too.
    #[must_use]
    pub fn slot(&self, port: Port, inbox: u32, index: u64, count: u64, form: Form) -> Span {
        let layout = self.layout(port);
        let slots = u64::from(layout.slots);
        Span {
            region: Region::Scratch,
            offset: box_offset(&layout, inbox, 0) + index % slots * layout.slot_bytes,
            count,
            form,
        }
    }

    /// Values of one message through a slot of `port`, at most.
    #[must_use]
    pub fn message_values(&self, port: Port, form: Form) -> u64 {
        self.context.values(self.layout(port).slot_bytes, form)
    }

    /// Gives the slot of the oldest unreleased message of `peer` back.
    pub fn release(&mut self, port: Port, peer: Rank) {
        let layout = self.layout(port);
        let lane = layout.lanes.incoming;
        let place = (lane, self.lanes[lane].len());
        let channel = self.incoming.entry((port, peer)).or_default();
        if channel.credits.len() >= channel.slotted as usize {
            return; // the message was empty: nothing was sent
        }
        channel.slots = layout.slots;
        channel.credits.push(place);
        self.step(lane, Step::Signal { peer, flag: credit_flag(port) });
    }

    /// Puts straight into the output of `peer`, at value `start`: only where the two do not map
    /// each other's memory (the transport then delivers into the user's buffer).
    pub fn deliver(&mut self, port: Port, peer: Rank, source: Span, start: u64) {
        if source.count > 0 {
            let offset = self.context.element_bytes(start);
            self.outgoing.entry((port, peer)).or_default().messages += 1;
            self.put(
                port,
                peer,
                source,
                Remote { region: Region::Output(0), offset },
                Some(data_flag(port)),
            );
        }
    }

    /// Waits for the next message of `peer` that was delivered straight into the output.
    pub fn accept(&mut self, port: Port, peer: Rank, count: u64) {
        if count > 0 {
            self.await_message(port, peer);
        }
    }

    /// Folds `operands` and sends the result through a slot: straight into the peer's memory
    /// where that is mapped, else by way of private scratch at `bounce`.
    pub fn reduce_send(
        &mut self,
        port: Port,
        (peer, inbox): (Rank, u32),
        operands: &[Operand],
        (count, form): (u64, Form),
        bounce: u64,
    ) {
        if count == 0 {
            return;
        }
        let finish = form == Form::Element;
        let layout = self.layout(port);
        let lane = layout.lanes.outgoing;
        if self.context.mapped(peer) {
            let slot = self.take_slot(port, peer);
            let offset = box_offset(&layout, inbox, slot);
            let target = Span { region: Region::Window(peer), offset, count, form };
            assert!(
                target.bytes(self.data_type()) <= layout.slot_bytes,
                "{target:?} in {layout:?}"
            );
            self.reduce(lane, operands, target, finish);
            self.step(lane, Step::Signal { peer, flag: data_flag(port) });
        } else {
            let target = Span { region: Region::Scratch, offset: bounce, count, form };
            self.reduce(lane, operands, target, finish);
            self.send(port, peer, inbox, target);
        }
    }

    /// Sends any number of values in messages through box `inbox`. Partner of
    /// [`Builder::receive_pieces`].
    pub fn send_pieces(&mut self, port: Port, peer: Rank, inbox: u32, source: Span) {
        let most = self.message_values(port, source.form);
        for piece in Extent::new(0, source.count).pieces(most) {
            let part = source.slice(piece.start, piece.count, self.data_type());
            self.send(port, peer, inbox, part);
        }
    }

    /// Receives messages of box `inbox` into the output.
    pub fn receive_pieces(&mut self, port: Port, peer: Rank, inbox: u32, extent: Extent) {
        let layout = self.layout(port);
        let most = self.message_values(port, Form::Element);
        for piece in extent.pieces(most) {
            let source = self.receive(port, peer, inbox, piece.count, Form::Element);
            self.copy(layout.lanes.incoming, source, self.output(piece));
            self.release(port, peer);
        }
    }

    /// Sends values that belong at value `start` of the peer's output: straight into it, or,
    /// where only scratch is mapped, in messages through box `inbox`. Partner of
    /// [`Builder::receive_into`].
    pub fn send_into(&mut self, port: Port, peer: Rank, inbox: u32, source: Span, start: u64) {
        if self.context.mapped(peer) {
            self.send_pieces(port, peer, inbox, source);
        } else {
            self.deliver(port, peer, source, start);
        }
    }

    /// Receives values of `peer` into the output. Partner of [`Builder::send_into`].
    pub fn receive_into(&mut self, port: Port, peer: Rank, inbox: u32, extent: Extent) {
        if self.context.mapped(peer) {
            self.receive_pieces(port, peer, inbox, extent);
        } else {
            self.accept(port, peer, extent.count);
        }
    }

    /// The next free stage of `port`, for `count` values, once every reader has released the
    /// publication that stood there before. Followed by [`Builder::announce`].
    ///
    /// `readers` map this rank's memory, and are the same for all publications of a port.
    pub fn stage(&mut self, port: Port, readers: &[Rank], count: u64, form: Form) -> Span {
        let layout = self.layout(port);
        let index = *self.published.entry(port).or_insert(0);
        if index >= layout.slots {
            for reader in readers {
                let credits = index - layout.slots + 1;
                self.wait(layout.lanes.outgoing, *reader, credit_flag(port), credits);
            }
        }
        let offset = stage_offset(&layout, index % layout.slots);
        let span = Span { region: Region::Scratch, offset, count, form };
        assert!(span.bytes(self.data_type()) <= layout.stage_bytes, "{span:?} in {layout:?}");
        span
    }

    /// Tells the readers that the stage is ready to be read.
    pub fn announce(&mut self, port: Port, readers: &[Rank]) {
        let lane = self.layout(port).lanes.outgoing;
        *self.published.entry(port).or_insert(0) += 1;
        for reader in readers {
            self.step(lane, Step::Signal { peer: *reader, flag: data_flag(port) });
        }
    }

    /// Waits for what `peer` shows next and says where this rank's part of it stands: in the
    /// peer's stage (`part` of it) where that is mapped, else, sent, in box `inbox` here. Must be
    /// followed by [`Builder::release`].
    pub fn observe(
        &mut self,
        port: Port,
        peer: Rank,
        inbox: u32,
        part: Extent,
        form: Form,
    ) -> Span {
        if !self.context.mapped(peer) {
            return self.receive(port, peer, inbox, part.count, form);
        }
        let layout = self.layout(port);
        let slot = self.await_slot(port, peer);
        let size = form.size(self.data_type()) as u64;
        let offset = stage_offset(&layout, slot) + part.start * size;
        Span { region: Region::Window(peer), offset, count: part.count, form }
    }

    /// A bare signal on the data flag of `port`.
    pub fn notify(&mut self, port: Port, peer: Rank) {
        let lane = self.layout(port).lanes.outgoing;
        self.outgoing.entry((port, peer)).or_default().messages += 1;
        self.step(lane, Step::Signal { peer, flag: data_flag(port) });
    }

    /// Waits for a bare signal on the data flag of `port`.
    pub fn await_notice(&mut self, port: Port, peer: Rank) {
        self.await_message(port, peer);
    }

    /// The rank's part, with the credits nobody waits for left out.
    #[must_use]
    pub fn finish(mut self) -> RankPlan {
        for channel in self.incoming.values() {
            let needed = channel.slotted.saturating_sub(channel.slots) as usize;
            for (lane, step) in channel.credits.iter().skip(needed) {
                self.lanes[*lane][*step] = None;
            }
        }
        RankPlan {
            cards: self.cards,
            wide_card_bytes: self.wide_card_bytes,
            exposed: self.exposed,
            lanes: self
                .lanes
                .into_iter()
                .map(|lane| lane.into_iter().flatten().collect())
                .collect(),
            operands: self.operands,
            scratch_bytes: self.scratch_bytes,
            flags: u16::try_from(self.ports.len() * 2).expect("a plan has few ports"),
        }
    }

    fn layout(&self, port: Port) -> PortLayout {
        self.ports[usize::from(port.0)]
    }

    fn step(&mut self, lane: usize, step: Step) {
        self.lanes[lane].push(Some(step));
    }

    fn wait(&mut self, lane: usize, peer: Rank, flag: Flag, count: u32) {
        self.step(lane, Step::Wait { peer, flag, count });
    }

    fn put(&mut self, port: Port, peer: Rank, source: Span, target: Remote, signal: Option<Flag>) {
        let lane = self.layout(port).lanes.outgoing;
        self.step(lane, Step::Put { peer, source, target, signal });
    }

    fn take_slot(&mut self, port: Port, peer: Rank) -> u32 {
        let layout = self.layout(port);
        let channel = self.outgoing.entry((port, peer)).or_default();
        let index = channel.slotted;
        channel.slotted += 1;
        channel.messages += 1;
        if index >= layout.slots {
            let credits = index - layout.slots + 1;
            self.wait(layout.lanes.outgoing, peer, credit_flag(port), credits);
        }
        index % layout.slots
    }

    fn await_slot(&mut self, port: Port, peer: Rank) -> u32 {
        let layout = self.layout(port);
        self.await_message(port, peer);
        let channel = self.incoming.entry((port, peer)).or_default();
        channel.slotted += 1;
        (channel.slotted - 1) % layout.slots
    }

    fn await_message(&mut self, port: Port, peer: Rank) {
        let lane = self.layout(port).lanes.incoming;
        let channel = self.incoming.entry((port, peer)).or_default();
        channel.messages += 1;
        let count = channel.messages;
        self.wait(lane, peer, data_flag(port), count);
    }
}

/// `bytes` in whole cache lines.
fn lines(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
}

fn data_flag(port: Port) -> Flag {
    port.0 * 2
}

fn credit_flag(port: Port) -> Flag {
    port.0 * 2 + 1
}

fn box_offset(layout: &PortLayout, index: u32, slot: u32) -> u64 {
    layout.base + (u64::from(index) * u64::from(layout.slots) + u64::from(slot)) * layout.slot_bytes
}

fn stage_offset(layout: &PortLayout, slot: u32) -> u64 {
    box_offset(layout, layout.boxes, 0) + u64::from(slot) * layout.stage_bytes
}

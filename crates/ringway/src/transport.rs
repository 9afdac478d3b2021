//! Transports: how bytes and signals reach a peer.
//!
//! A [`Link`] is one end of the connection between two ranks of a communicator. Every transport
//! must give:
//!
//! * `begin` / `end`: an operation starts and ends; puts of a later operation wait for its `begin`;
//! * `put`: write to the peer's scratch or output, then perhaps raise a counter there;
//! * `get`: read the peer's input or output where it lies, where the kernel allows that;
//! * `signal` and `reached`: raise a counter at the peer, look at one of ours;
//! * `window` and `cards`: the peer's scratch and cards, where the transport maps them; `seen` and
//!   `wake` go with cards;
//! * `has_completed`: whether the peer is done with scratch that is about to be used again;
//! * `poll` and `interest`: move bytes in the background, and say what to sleep on;
//! * `description`: what was chosen and why.
//!
//! **Invariant:** nothing above this module knows which transport is in use, and no transport imports
//! another, the executor or the planner. What arrives from a peer is checked (sequence, tag,
//! bounds) before a byte of it is stored.

pub(crate) mod framed;
pub(crate) mod shm;
pub(crate) mod tcp;
pub(crate) mod tls;
pub(crate) mod verbs;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::PollFlags;

use crate::plan::plan::{Flag, Remote};
use crate::plan::types::Rank;
use crate::recorder::Traffic;

/// The independent sequences of operations on a link.
///
/// Collectives are numbered over the communicator. Messages are numbered per pair and direction;
/// what the sender calls `Send` the receiver calls `Receive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Context {
    Collective = 0,
    Send = 1,
    Receive = 2,
}

impl Context {
    pub(crate) const ALL: [Self; 3] = [Self::Collective, Self::Send, Self::Receive];

    /// What the peer calls this context.
    pub(crate) fn at_peer(self) -> Self {
        match self {
            Self::Collective => Self::Collective,
            Self::Send => Self::Receive,
            Self::Receive => Self::Send,
        }
    }
}

/// What makes two ranks' calls one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationTag {
    /// Position in the context's sequence.
    pub(crate) sequence: u64,
    /// Hash of the call's signature and, for collectives, of all calls before it.
    pub(crate) tag: u32,
}

/// What goes between this rank and a peer, where that is known to the two of them only: hashes of
/// what is sent and what is received; 0 stands for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) sent: u32,
    pub(crate) received: u32,
}

impl Pair {
    /// What goes between this rank and `peer`.
    pub(crate) fn of(pairs: Option<&[Self]>, peer: Rank) -> Self {
        pairs.map_or_else(Self::default, |pairs| pairs[peer as usize])
    }

    /// What the peer should say of it.
    pub(crate) fn seen_from_peer(self) -> Self {
        Self { sent: self.received, received: self.sent }
    }

    pub(crate) fn word(self) -> u64 {
        u64::from(self.sent) << 32 | u64::from(self.received)
    }
}

/// A piece of this process's memory that peers may write during an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) address: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: an `Area` is an address and a length; whoever dereferences it proves its right to.
#[allow(unsafe_code, reason = "the address crosses threads with the engine that owns it")]
unsafe impl Send for Area {}

impl Area {
    /// The address of `bytes` bytes at `offset`, or `None` if they are outside.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes as u64)
            .then(|| self.address.wrapping_add(usize::try_from(offset).unwrap_or(usize::MAX)))
    }
}

/// What a link must know of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning<'a> {
    pub(crate) tag: OperationTag,
    /// Where puts may land here.
    pub(crate) scratch: Area,
    /// Where puts may land here.
    pub(crate) outputs: &'a [Area],
    /// What puts may come from besides.
    pub(crate) inputs: &'a [Area],
    /// Where the operation's scratch begins in the peer's window.
    pub(crate) remote_scratch: u64,
    /// For every rank, what must agree with it alone.
    pub(crate) pairs: Option<&'a [Pair]>,
}

/// A put: a step of a lane, with its source resolved to an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutRequest {
    pub(crate) context: Context,
    pub(crate) lane: usize,
    pub(crate) source: *const u8,
    pub(crate) bytes: usize,
    pub(crate) target: Remote,
    pub(crate) signal: Option<Flag>,
}

/// What can go wrong on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The peer made another call in this operation (or message) of the sequence.
    Mismatch { peer: Rank, sequence: u64 },
    /// The connection is gone or spoke nonsense.
    Broken { peer: Rank, cause: String },
}

/// What a link is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDescription {
    /// The peer.
    pub peer: Rank,
    /// `SHM` or `NET/Socket`, as operators grep for it.
    pub transport: &'static str,
    /// Addresses or names of the two ends.
    pub detail: String,
    /// Why this transport, and why not a better one.
    pub reason: String,
}

/// One end of the connection to a peer. See the module's text.
pub(crate) trait Link: Send + std::fmt::Debug {
    /// An operation of `context` starts here: what was put for it may land now.
    fn begin(&mut self, context: Context, beginning: &Beginning<'_>);

    /// The operation is over; `received` lists how often each flag was raised here.
    fn end(&mut self, context: Context, received: &[(Flag, u32)]);

    /// Goes on with a put, from byte `cursor` of it. `true` when its source may be reused.
    fn put(&mut self, request: &PutRequest, cursor: &mut usize) -> Result<bool, Trouble>;

    /// Copies values of the peer's input or output to `target`, so many bytes, where the peer's memory can
    /// be read.
    fn get(
        &mut self,
        _tag: OperationTag,
        _source: Remote,
        _target: (*mut u8, usize),
    ) -> Result<(), Trouble> {
        let cause = "its memory cannot be read over this link".to_owned();
        Err(Trouble::Broken { peer: self.description().peer, cause })
    }

    /// Raises a counter at the peer. `false`: try again. Whoever signals calls [`Link::wake`] soon
    /// after, here and after a put that signals.
    fn signal(&mut self, context: Context, lane: usize, flag: Flag) -> Result<bool, Trouble>;

    /// Whether the peer has raised `flag` `count` times in this operation.
    fn reached(
        &mut self,
        context: Context,
        lane: usize,
        flag: Flag,
        count: u32,
    ) -> Result<bool, Trouble>;

    /// The peer's scratch, where it is mapped.
    fn window(&self) -> Option<Area> {
        None
    }

    /// Whether the peer, whose memory is mapped, has turned up a card in this collective.
    fn seen(&mut self, _tag: OperationTag, _card: u16) -> Result<bool, Trouble> {
        Ok(false)
    }

    /// Asks for the cache line of a card that the peer turns up, so that it is on its way while this rank does other things.
    fn fetch_card(&self, _sequence: u64, _card: u16) {}

    /// The peer's cards of collective `sequence`, where they are mapped, from the first value on.
    fn cards(&self, _sequence: u64) -> Option<Area> {
        None
    }

    /// Wakes the peer if it sleeps. The caller has fenced since it wrote what the peer may sleep on.
    fn wake(&mut self) {}

    /// How many collectives the peer is known to have completed, where memory is mapped.
    fn completed(&self) -> u64 {
        u64::MAX
    }

    /// Whether the peer has completed so many collectives. Asked only where memory is mapped:
    /// elsewhere a peer takes nothing of an operation it has not entered.
    fn has_completed(&mut self, _operations: u64) -> bool {
        true
    }

    /// Whether everything that was put and signalled is out of this process's hands; moves it on
    /// if not. Nobody looks after an operation that is over.
    fn flush(&mut self) -> Result<bool, Trouble> {
        Ok(true)
    }

    /// Moves what can be moved without being asked. `true` if something moved.
    fn poll(&mut self) -> Result<bool, Trouble>;

    /// Looks whether the peer, whose memory is mapped, has entered this collective or one before
    /// it with another call. Asked before anything that may rest on this rank's scratch is
    /// believed or leaves the host: such a peer may have written there.
    fn undisputed(&mut self, _tag: OperationTag) -> Result<(), Trouble> {
        Ok(())
    }

    /// Looks whether the peer is in operation `tag` with another call (the slow path of a wait
    /// that stands for long), and tells the peer what this rank is in.
    fn compare(
        &mut self,
        context: Context,
        tag: OperationTag,
        pairs: Option<&[Pair]>,
    ) -> Result<(), Trouble>;

    /// What to sleep on, besides the communicator's doorbell.
    fn interest<'a>(&'a self, wanted: &mut Vec<(BorrowedFd<'a>, PollFlags)>);

    /// Ends the link after a failure: when this returns, nobody reaches the memory of its operations by it.
    fn disarm(&self) {}

    /// For how long nothing that was sent on it has been acknowledged, where it had to be sent again.
    fn silent_ms(&self) -> Option<u64> {
        None
    }

    /// What has gone over it, where that is counted.
    fn traffic(&self) -> Option<Arc<Traffic>> {
        None
    }

    /// What this link is and why.
    fn description(&self) -> &LinkDescription;
}

//! Rails: ports with memory registered at them, and the queue pairs that go by them.

use std::sync::Arc;

use super::adapter::Adapter;
use super::flow::SLOTS;
use super::wire::{End, RailOffer};
use crate::config::RdmaSettings;
use crate::ffi::verbs::{
    Access, Capacity, CompletionChannel, Cq, Gid, Memory, Mr, Qp, Remote, VerbsError,
};

/// Bytes of a slot: consumed messages and length in front, then what is sent.
pub(super) const SLOT_BYTES: usize = 64 << 10;
/// Bytes of all slots of a direction.
pub(super) const RING_BYTES: usize = SLOT_BYTES * SLOTS;

/// Receives that stand ready on a queue pair: for every slot, and for credits beside them.
const RECEIVES: u32 = 64;
const _: () = assert!(RECEIVES as usize == 2 * SLOTS);
/// Bytes to post inline, if the device can.
const INLINE_WISHES: [u32; 3] = [220, 64, 0];

/// Marks receives in the numbers of requests.
pub(super) const RECEIVE: u64 = 1 << 63;

/// A port with memory registered at it, and a queue of completions.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) adapter: Arc<Adapter>,
    pub(super) cq: Arc<Cq>,
    pub(super) channel: Arc<CompletionChannel>,
    pub(super) out: Mr,
    into: Mr,
    /// How far it is from this side's memory.
    pub(super) distance: u32,
    /// The peer's port, and its slots.
    pub(super) to: String,
    pub(super) remote: Remote,
    /// The place of the peer's port, by which its keys are told.
    pub(super) remote_place: u32,
}

/// A queue pair, and the number of its first packet.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) qp: Qp,
    pub(super) psn: u32,
}

/// The two rings of a stream: slots that are sent, slots that the peer writes.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) out: Arc<Memory>,
    pub(super) into: Arc<Memory>,
}

impl Rings {
    pub(super) fn new() -> std::io::Result<Self> {
        let ring = || Memory::new(RING_BYTES).map(Arc::new);
        Ok(Self { out: ring()?, into: ring()? })
    }
}

impl Rail {
    /// Registers the rings at a port.
    pub(super) fn new(
        adapter: &Arc<Adapter>,
        rings: &Rings,
        count: usize,
        distance: u32,
    ) -> Result<Self, VerbsError> {
        let channel = CompletionChannel::new(&adapter.context)?;
        let each = 2 * RECEIVES * u32::try_from(count).unwrap_or(1);
        let cq = Cq::new(&adapter.context, each, Some((&channel, 0)))?;
        let out = rings.out.register(&adapter.pd, Access::LOCAL_WRITE)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let into = rings.into.register(&adapter.pd, access)?;
        Ok(Self {
            adapter: Arc::clone(adapter),
            cq,
            channel,
            out,
            into,
            distance,
            to: String::new(),
            remote: Remote { address: 0, key: 0 },
            remote_place: u32::MAX,
        })
    }

    /// Makes a queue pair, not connected yet.
    pub(super) fn queue_pair(&self) -> Result<Made, VerbsError> {
        let make = |inline_bytes| {
            let capacity = Capacity { sends: RECEIVES, receives: RECEIVES, inline_bytes };
            Qp::new(&self.adapter.pd, &self.cq, &self.cq, None, capacity)
        };
        let [first, others @ ..] = INLINE_WISHES;
        let qp = others.into_iter().fold(make(first), |made, wish| made.or_else(|_| make(wish)))?;
        Ok(Made { qp, psn: psn() })
    }

    /// What the peer must know of a queue pair.
    pub(super) fn end(&self, made: &Made) -> End {
        let adapter = &self.adapter;
        End {
            gid: adapter.chosen.gid.0,
            lid: adapter.port.lid,
            mtu: adapter.port.active_mtu,
            number: made.qp.number(),
            psn: made.psn,
        }
    }

    pub(super) fn offer(&self, made: &[Made]) -> RailOffer {
        RailOffer {
            name: self.adapter.name(),
            place: self.adapter.place,
            infiniband: self.adapter.is_infiniband(),
            distance: self.distance,
            address: self.into.base(),
            key: self.into.remote_key(),
            ends: made.iter().map(|one| self.end(one)).collect(),
        }
    }

    /// Connects a queue pair to one of the peer's, with receives posted under this number.
    ///
    /// # Errors
    /// In words, with the device and the peer's address.
    pub(super) fn connect(
        &self,
        settings: &RdmaSettings,
        made: &Made,
        to: &End,
        receive: u64,
    ) -> Result<(), String> {
        let Some(path) = self.adapter.path(settings, made.psn, to) else {
            let mtu = to.mtu;
            return Err(format!("{}: the peer's MTU has number {mtu}", self.adapter.name()));
        };
        let posted = made.qp.connect(&path).and_then(|()| {
            (0..RECEIVES).try_for_each(|_| made.qp.post_receive(RECEIVE | receive, None))
        });
        posted.map_err(|error| error.to_string())
    }

    /// `mlx5_0:1 to mlx5_0:1`.
    pub(super) fn way(&self) -> String {
        format!("{} to {}", self.adapter.name(), self.to)
    }
}

/// Which rails of two ranks go together: those at the same place, and where there is none, the first with the first
/// and so on; with `cross` also those that are left over. The same for both, as each says what the other does.
pub(super) fn pairs(leader: &[u32], other: &[u32], cross: bool) -> Vec<(usize, usize)> {
    let mut taken = vec![false; other.len()];
    let mut pairs = Vec::new();
    let mut rest = Vec::new();
    for (at, place) in leader.iter().enumerate() {
        match (0..other.len()).find(|to| !taken[*to] && other[*to] == *place) {
            Some(to) => {
                taken[to] = true;
                pairs.push((at, to));
            }
            None => rest.push(at),
        }
    }
    if pairs.is_empty() || cross {
        let free = (0..other.len()).filter(|to| !taken[*to]);
        pairs.extend(rest.into_iter().zip(free));
    }
    pairs
}

/// The addresses of two ends that differ in their packets' size, for people.
pub(super) fn unlike(mine: &Adapter, name: &str, other: &End) -> Option<String> {
    let bytes = |number: i32| crate::ffi::verbs::Mtu::from_number(number).map(|mtu| mtu.bytes());
    let (own, theirs) = (bytes(mine.port.active_mtu)?, bytes(other.mtu)?);
    (own != theirs).then(|| {
        format!(
            "{} has MTU {own}, {name} of {} has MTU {theirs}: both use {}; give their network interfaces the same MTU for full speed",
            mine.name(),
            Gid(other.gid),
            own.min(theirs),
        )
    })
}

/// A number of a first packet, 24 bits.
fn psn() -> u32 {
    let mut bytes = [0; 4];
    let _left_as_it_is = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes) & 0xff_ffff
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rails_at_the_same_place_go_together() {
        assert_eq!(pairs(&[0, 1], &[0, 1], false), [(0, 0), (1, 1)]);
        // A port of one side is down: the others stay with their own.
        assert_eq!(pairs(&[1, 2], &[0, 1, 2], false), [(0, 1), (1, 2)]);
        assert_eq!(pairs(&[1, 2], &[0, 1, 2], true), [(0, 1), (1, 2)]);
        assert_eq!(pairs(&[0, 1], &[0], false), [(0, 0)]);
        assert_eq!(pairs(&[0, 1], &[0, 0], true), [(0, 0), (1, 1)]);
        assert_eq!(pairs(&[3], &[0], false), [(0, 0)]);
        assert_eq!(pairs(&[], &[0], true), []);
    }

    proptest::proptest! {
        /// Each rail once, and the other side, which has the lists the other way round, finds the same.
        #[test]
        fn nobody_is_paired_twice(
            a in proptest::collection::vec(0_u32..5, 0..6),
            b in proptest::collection::vec(0_u32..5, 0..6),
            cross: bool,
        ) {
            let found = pairs(&a, &b, cross);
            let mut ends: Vec<_> = found.iter().map(|pair| pair.1).collect();
            ends.sort_unstable();
            ends.dedup();
            proptest::prop_assert_eq!(ends.len(), found.len());
            proptest::prop_assert!(found.is_empty() == (a.is_empty() || b.is_empty()));
        }
    }
}

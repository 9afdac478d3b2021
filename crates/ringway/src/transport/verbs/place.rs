//! Bytes that go from where they are to where they belong, and are copied by nobody.
//!
//! Where the peer has exposed memory, and the source is registered too, the bytes of a message are written straight there; the message has
//! its number and its slot all the same, so that it counts in its turn. What is sent again, because a path had it
//! that failed, goes to its slot: the first write may have come through, and the peer may have used the memory for
//! something else since.
//!
//! *Invariant:* a source is given back to its owner only once its write has come through, its bytes were copied, or the stream was
//! disarmed.

#![allow(unsafe_code, reason = "sends from memory that is known by its address")]

use std::sync::Arc;

use super::flow::{Mark, low};
use super::paths::{PathEnd, State};
use super::rail::SLOT_BYTES;
use super::region::Region;
use super::stream::{HEAD_BYTES, Inner, SILENT};
use crate::ffi::verbs::{Flags, Operation, Remote, Request};
use crate::transport::Area;
use crate::transport::framed::stream::{Exposure, Placing};

/// Least bytes of a message that is placed by one write: more than a head has, which tells of one.
const LEAST: usize = 64;
const _: () = assert!(LEAST > HEAD_BYTES);

/// A message whose bytes go from where they are to where they belong.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) number: u64,
    source: usize,
    region: Arc<Region>,
    target: Remote,
    keys: Arc<Exposure>,
    /// Whether it was posted: it is not placed again.
    posted: bool,
}

impl Inner {
    /// Makes memory known, as it is now.
    pub(super) fn expose(&mut self, area: Area) -> Option<Exposure> {
        // What is remembered of this memory may be of what it was before.
        self.known.retain(|region| !region.overlaps(area));
        let region = self.wish.regions.find(area)?;
        let exposure = region.exposure(area);
        self.known.insert(0, region);
        Some(exposure)
    }

    /// Takes as many messages as there is room for.
    pub(super) fn place(
        &mut self,
        (source, bytes): (*const u8, usize),
        (target, offset): (&Arc<Exposure>, u64),
    ) -> Placing {
        let source = source.expose_provenance();
        let region = self.known.iter().find(|region| region.holds(source, bytes)).cloned();
        let address = target.at(offset, bytes as u64);
        let is_up = self.paths.iter().any(|end| end.state == State::Up);
        let (Some(region), Some(address), true) = (region, address, is_up && bytes > 0) else {
            return Placing::Unable;
        };
        let most = self.message_bytes(bytes);
        let (mut sent, mut ticket) = (0, 0);
        while let Some(slot) = self.outbox.room().filter(|_| sent < bytes) {
            let left = bytes - sent;
            let count = if left <= most { left } else { most.min(left - LEAST) };
            ticket = self.outbox.push(u32::try_from(count).unwrap_or(0));
            self.placements[slot] = Some(Placement {
                number: ticket,
                source: source + sent,
                region: Arc::clone(&region),
                target: Remote { address: address + sent as u64, key: 0 },
                keys: Arc::clone(target),
                posted: false,
            });
            sent += count;
        }
        self.post();
        if sent == 0 { Placing::Full } else { Placing::Bytes(sent, ticket) }
    }

    /// Whether the source of a message up to this one may still be read.
    pub(super) fn is_held(&mut self, ticket: u64) -> bool {
        for placement in &mut self.placements {
            if placement.as_ref().is_some_and(|one| self.outbox.is_over(one.number)) {
                *placement = None;
            }
        }
        self.placements.iter().flatten().any(|one| one.number <= ticket)
    }

    /// Lets nobody reach memory by this stream any more.
    pub(super) fn disarm(&mut self) {
        self.end("the communicator has failed".to_owned());
        self.paths.iter_mut().for_each(PathEnd::disarm);
        self.side.flush();
    }

    /// Posts a message whose bytes go to where they belong; nothing where it is none, or cannot go so by this path.
    pub(super) fn post_placed(
        &mut self,
        path: usize,
        number: u64,
        slot: usize,
        bytes: u32,
    ) -> Option<bool> {
        let placement = self.placements[slot].as_ref().filter(|one| !one.posted)?;
        let fetched = !self.wish.settings.gpu_reads && placement.region.device().is_some();
        if fetched && !self.load(slot, bytes) {
            return None;
        }
        let placement = self.placements[slot].as_ref()?;
        let rail = &self.rails[self.paths[path].rail];
        let (_, key) = placement.keys.keys.iter().find(|(at, _)| *at == rail.remote_place)?;
        let remote = Remote { key: *key, ..placement.target };
        let count = bytes as usize;
        let local = if fetched {
            rail.out.part(slot * SLOT_BYTES + HEAD_BYTES, count)
        } else {
            placement.region.part(rail.adapter.place, placement.source, count)?
        };
        let made = self.paths[path].made.as_ref()?;
        let id = self.number(path, slot as u64);
        let flags = Flags::SIGNALLED;
        let scattered = count > self.wish.settings.scattered_from(rail.adapter.is_infiniband());
        let posted = if scattered || count < LEAST {
            // Packets that each take a way of their own, or bytes so few that they look like a head: what is told comes
            // behind all of them, and in the slot.
            let base = slot * SLOT_BYTES;
            self.write_head(slot, self.inbox.hint(), bytes);
            let silent = self.number(path, SILENT);
            let operation = Operation::Write(remote);
            let first = Request { id: silent, operation, local, flags: Flags::default() };
            let address = rail.remote.address.wrapping_add(base as u64);
            let operation = Operation::WriteWithImmediate(
                Remote { address, ..rail.remote },
                Mark::Placed(low(number)).encode(),
            );
            let last = Request { id, operation, local: rail.out.part(base, HEAD_BYTES), flags };
            made.qp.post_chain(&[first, last])
        } else {
            let mark = Mark::Placed(low(number)).encode();
            let operation = Operation::WriteWithImmediate(remote, mark);
            made.qp.post(Request { id, operation, local, flags }).map_err(|error| (0, error))
        };
        let posted = self.account(path, id, count, posted);
        if posted {
            self.carried.0 += u64::from(bytes);
            self.fetched += if fetched { u64::from(bytes) } else { 0 };
            if let Some(placement) = &mut self.placements[slot] {
                placement.posted = true;
            }
        }
        Some(posted)
    }

    /// Copies what was to be placed into its slot, from where it is sent as any other; whether it is there.
    pub(super) fn fill(&mut self, slot: usize, bytes: u32) -> bool {
        if !self.load(slot, bytes) {
            return false;
        }
        if self.placements[slot].take().is_some() {
            self.carried.1 += u64::from(bytes);
        }
        true
    }

    /// Copies the bytes of a message into its slot, where they are not there anyway. What cannot be read is the end.
    fn load(&mut self, slot: usize, bytes: u32) -> bool {
        let Some(placement) = &self.placements[slot] else { return true };
        let mut body = vec![0; bytes as usize];
        // SAFETY: the source is as it was, and mapped, until it is released, which it is when its write is over or the
        // placement gone.
        if let Err(why) = unsafe { placement.region.read(placement.source, &mut body) } {
            self.end(format!("what is to be sent cannot be read: {why}"));
            return false;
        }
        self.rings.out.write(slot * SLOT_BYTES + HEAD_BYTES, &body);
        true
    }
}

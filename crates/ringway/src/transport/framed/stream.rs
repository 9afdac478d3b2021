//! The bytes under a connection: a socket, queue pairs, or the simulator's model of a socket.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::PollFlags;

use super::super::Area;
use crate::recorder::Flow;

/// A stream of bytes that never blocks.
pub(crate) trait Stream: Send + std::fmt::Debug {
    /// Sends what goes out now, of all parts in their order; 0 when nothing does.
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Receives what is there.
    fn receive(&self, room: &mut [u8]) -> Arrival;

    /// What to sleep on until bytes come or there is room, as wanted; asked right before the sleep.
    fn interest(&self, wanted: PollFlags) -> Option<(BorrowedFd<'_>, PollFlags)>;

    /// Whether there is something to sleep on.
    fn wakes(&self) -> bool;

    /// Whether what was sent reaches the peer also if nobody looks after it any more; an error where it will not.
    fn settled(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Whether bytes may be placed at all.
    fn places(&self) -> bool {
        false
    }

    /// Makes memory known to what carries the stream: bytes of it can be placed from now on, and with what is returned the peer
    /// can place bytes there. Nothing where the stream does not do that, or not with this memory.
    fn expose(&self, _area: Area) -> Option<Exposure> {
        None
    }

    /// Whether an address is in memory of a device, which the processor does not reach: only [`Stream::fetch`] and
    /// [`Stream::store`] do, and what is placed.
    fn is_foreign(&self, _address: *const u8) -> bool {
        false
    }

    /// Has the device copy bytes of its memory here, and waits for it.
    fn fetch(&self, _from: *const u8, _into: &mut [u8]) -> io::Result<()> {
        Err(io::Error::other("memory of a device on a stream that reaches none"))
    }

    /// Has the device copy bytes into its memory, and waits for it.
    fn store(&self, _to: *mut u8, _from: &[u8]) -> io::Result<()> {
        Err(io::Error::other("memory of a device on a stream that reaches none"))
    }

    /// No operation is under way: what was made known may be forgotten.
    fn forget(&self) {}

    /// Sends bytes straight to where the peer exposed memory for them: as many as go now, in their order among all that is sent.
    ///
    /// # Safety
    /// The source is in memory that was made known since it was last mapped, and stays as it is until it is released, or
    /// the stream disarmed.
    #[expect(unsafe_code, reason = "memory by address")]
    unsafe fn place(
        &self,
        _source: (*const u8, usize),
        _target: (&Arc<Exposure>, u64),
    ) -> io::Result<Placing> {
        Ok(Placing::Unable)
    }

    /// Whether what was placed up to this ticket is out of this process's hands.
    fn is_released(&self, _ticket: u64) -> io::Result<bool> {
        Ok(true)
    }

    /// Ends the stream: when this returns nothing is read or written any more of the memory that was made known.
    fn disarm(&self) {}

    /// For how long nothing that was sent has been acknowledged, where it had to be sent again.
    fn silent_ms(&self) -> Option<u64> {
        None
    }

    /// How what was sent has fared, as far as that is known.
    fn flow(&self) -> Flow {
        Flow::default()
    }
}

/// Memory that the peer lets be written from afar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exposure {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// For every port of the peer's, by its place, the key that goes with it.
    pub(crate) keys: Vec<(u32, u32)>,
}

/// Keys of an exposure, at most.
const KEYS_MOST: usize = 64;

/// Bytes of an exposure in a frame, at most.
pub(crate) const EXPOSURE_BYTES_MOST: usize = 16 + 8 * KEYS_MOST;

impl Exposure {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let keys = self.keys.iter().take(KEYS_MOST);
        let keys = keys.flat_map(|(place, key)| [place.to_le_bytes(), key.to_le_bytes()]);
        let head = [self.address.to_le_bytes(), self.bytes.to_le_bytes()];
        head.into_iter().flatten().chain(keys.flatten()).collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (address, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (pairs, []) = rest.as_chunks::<8>() else { return None };
        let number = |pair: &[u8; 8], at: usize| {
            u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]])
        };
        let keys = pairs.iter().map(|pair| (number(pair, 0), number(pair, 4)));
        Some(Self {
            address: u64::from_le_bytes(*address),
            bytes: u64::from_le_bytes(*length),
            keys: keys.collect(),
        })
    }

    /// Where so many bytes at an offset lie; nothing where they are not all in it.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> Option<u64> {
        let end = offset.checked_add(bytes)?;
        self.address.checked_add(end)?;
        (end <= self.bytes).then(|| self.address + offset)
    }
}

/// What became of an attempt to place bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placing {
    /// So many are on their way; their source is released with this ticket.
    Bytes(usize, u64),
    /// Not now.
    Full,
    /// Not so: they are to be sent.
    Unable,
}

/// What a read brought.
#[derive(Debug)]
pub(crate) enum Arrival {
    Bytes(usize),
    /// So many of the payload that is arriving lie where they belong already.
    Placed(usize),
    Nothing,
    End(String),
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exposures_come_back(
            address: u64, bytes: u64, keys in proptest::collection::vec(any::<(u32, u32)>(), 0..KEYS_MOST),
        ) {
            let exposure = Exposure { address, bytes, keys };
            let encoded = exposure.encode();
            prop_assert!(encoded.len() <= EXPOSURE_BYTES_MOST);
            prop_assert_eq!(Exposure::decode(&encoded), Some(exposure));
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Some(exposure) = Exposure::decode(&bytes) {
                prop_assert_eq!(exposure.encode()[..16.min(bytes.len())].to_vec(), bytes[..16].to_vec());
            }
        }
    }

    #[test]
    fn what_lies_outside_is_nowhere() {
        let exposure = Exposure { address: 1 << 20, bytes: 100, keys: Vec::new() };
        assert_eq!(exposure.at(90, 10), Some((1 << 20) + 90));
        assert_eq!(exposure.at(91, 10), None);
        assert_eq!(exposure.at(u64::MAX, 1), None);
        let last = Exposure { address: u64::MAX - 10, bytes: 100, keys: Vec::new() };
        assert_eq!((last.at(0, 10), last.at(0, 11)), (Some(u64::MAX - 10), None));
    }
}

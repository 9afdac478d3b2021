//! A token of 128 bytes that one process makes and hands to all ranks, as `ncclUniqueId` is.
//!
//! It holds a fresh random key and the addresses of a rendezvous that the maker's process serves
//! from a background thread. Whoever holds the token can join; pass it on as you would a password.
//!
//! ```text
//!  0      4         6      8        40              48      49    52          120        124    128
//!  ┌──────┬─────────┬──────┬────────┬───────────────┬───────┬─────┬───────────┬──────────┬──────┐
//!  │ RNGU │ version │ port │ key 32 │ communicator 8│ count │ 0   │ 4 × 17    │ checksum │ 0    │
//!  └──────┴─────────┴──────┴────────┴───────────────┴───────┴─────┴───────────┴──────────┴──────┘
//!                                     an address: family 4 or 6, then 16 bytes
//! ```
//!
//! *Invariant:* the serving thread is bounded: it ends with the rendezvous, or when nobody has come
//! for [`Options::unique_id_lifetime`](super::Options::unique_id_lifetime).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Options;
use super::auth::{Key, digest_of, random_bytes};
use super::dial::Target;
use super::interfaces;
use super::rendezvous::root::{self, Dismissal, RootOptions};
use super::socket;
use crate::error::{Error, Result};

/// Bytes of a unique id.
pub const UNIQUE_ID_BYTES: usize = 128;

/// Behind an id that counts where no rank has another.
const KEPT: u8 = 1;
const MAGIC: [u8; 4] = *b"RNGU";
const VERSION: u16 = 1;
const ADDRESSES_MAX: usize = 4;

/// The threads that serve the rendezvous of ids made in this process. A process that was forked
/// finds its parent's here: those are no threads of its own, and left alone.
static ROOTS: Mutex<Vec<Root>> = Mutex::new(Vec::new());

struct Root {
    communicator: u64,
    process: u32,
    thread: JoinHandle<()>,
    dismissal: Arc<Dismissal>,
}

impl Root {
    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    fn serves(&self, communicator: u64) -> bool {
        self.communicator == communicator && self.is_own()
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct IdFrame {
    magic: [u8; 4],
    version: U16,
    port: U16,
    key: [u8; 32],
    communicator: U64,
    count: u8,
    reserved: [u8; 3],
    addresses: [AddressFrame; ADDRESSES_MAX],
    checksum: [u8; 4],
    reserved_end: [u8; 4],
}
const _: () = assert!(size_of::<IdFrame>() == UNIQUE_ID_BYTES);

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AddressFrame {
    family: u8,
    bytes: [u8; 16],
}

impl AddressFrame {
    fn new(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self { family: 4, bytes: v4.to_ipv6_mapped().octets() },
            IpAddr::V6(v6) => Self { family: 6, bytes: v6.octets() },
        }
    }

    fn address(self) -> Option<IpAddr> {
        let v6 = Ipv6Addr::from(self.bytes);
        match self.family {
            4 => v6.to_ipv4_mapped().map(Ipv4Addr::into),
            6 => Some(v6.into()),
            _ => None,
        }
    }
}

/// The token of a communicator that is about to be made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; UNIQUE_ID_BYTES],
}

impl UniqueId {
    /// Makes an id: binds a listener and serves the rendezvous from a background thread.
    pub fn generate(options: &Options) -> Result<Self> {
        let survey = interfaces::survey(&*options.interface, options.family)?;
        let listener = socket::listen(None, 0)
            .map_err(|error| Error::system("bind the listener of a unique id", error))?;
        let port = listener
            .local_addr()
            .map_err(|error| Error::system("read the listener's port", error))?
            .port();
        let key = Key::random()?;
        let communicator = u64::from_le_bytes(random_bytes()?);
        // A scope means something on this machine only, so link-local addresses stay out.
        let portable = survey.offered.iter().filter(|(_, address)| match address {
            SocketAddr::V4(_) => true,
            SocketAddr::V6(v6) => v6.scope_id() == 0,
        });
        let mut addresses: Vec<IpAddr> = portable.map(|(_, address)| address.ip()).collect();
        addresses.truncate(ADDRESSES_MAX);
        let id = Self::encode(&key, communicator, port, &addresses);
        let dismissal = Arc::new(Dismissal::new()?);
        let options = RootOptions {
            key,
            knock: communicator,
            communicator,
            lifetime: options.unique_id_lifetime,
            linger: super::TIMEOUT_MAX,
            asked_at: id.asked_at(),
            dismissal: Arc::clone(&dismissal),
        };
        let thread = root::spawn(listener, options)?;
        let mut roots = ROOTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for done in roots.extract_if(.., |root| root.is_own() && root.thread.is_finished()) {
            // A root reports its failures to the ranks; a panic was printed by the runtime.
            let _ = done.thread.join();
        }
        roots.push(Root { communicator, process: std::process::id(), thread, dismissal });
        Ok(id)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; UNIQUE_ID_BYTES] {
        &self.bytes
    }

    /// What a rank brings for others: an id, or one that counts where no rank has another, or nothing.
    pub(crate) fn brought(id: Option<&Self>, kept: Option<&Self>) -> Vec<u8> {
        match (id, kept) {
            (Some(id), _) => id.bytes.to_vec(),
            (None, Some(kept)) => [&kept.bytes[..], &[KEPT]].concat(),
            (None, None) => Vec::new(),
        }
    }

    /// The one id among what all ranks bring.
    pub(crate) fn only(brought: &[Vec<u8>]) -> Result<Self> {
        let given = brought.iter().map(Vec::as_slice).filter(|id| !id.is_empty());
        let (kept, mut ids): (Vec<_>, Vec<_>) =
            given.partition(|id| id.len() == UNIQUE_ID_BYTES + 1 && id.ends_with(&[KEPT]));
        if ids.is_empty() {
            ids = kept.into_iter().map(|id| &id[..UNIQUE_ID_BYTES]).collect();
        }
        ids.sort_unstable();
        ids.dedup();
        match ids[..] {
            [id] => Self::from_bytes(id),
            [] => Err(Error::usage("no rank brings an id for the new ranks to join by; one must")),
            _ => Err(Error::usage(format!(
                "ranks bring {} different ids for the new ranks to join by; there must be one",
                ids.len()
            ))),
        }
    }

    /// An id from its bytes; total over arbitrary bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |why: &str| Err(Error::argument(format!("not a ringway unique id: {why}")));
        let Ok(bytes) = <[u8; UNIQUE_ID_BYTES]>::try_from(bytes) else {
            return bad(&format!("{} bytes instead of {UNIQUE_ID_BYTES}", bytes.len()));
        };
        let frame: IdFrame = zerocopy::transmute!(bytes);
        if frame.magic != MAGIC {
            return bad("it does not start with RNGU");
        }
        if frame.version.get() != VERSION {
            return bad(&format!("version {} instead of {VERSION}", frame.version.get()));
        }
        if frame.checksum != checksum(&frame) {
            return bad("its checksum does not match, so it was cut or changed on the way");
        }
        let count = usize::from(frame.count);
        let known = frame.addresses.iter().take(count).all(|one| one.address().is_some());
        if count == 0 || count > ADDRESSES_MAX || !known {
            return bad("it holds no usable address");
        }
        Ok(Self { bytes })
    }

    /// The bytes with the checksum they should have: a fuzzer cannot guess it.
    #[cfg(fuzzing)]
    pub(crate) fn sealed(bytes: [u8; UNIQUE_ID_BYTES]) -> [u8; UNIQUE_ID_BYTES] {
        let mut frame: IdFrame = zerocopy::transmute!(bytes);
        frame.checksum = checksum(&frame);
        zerocopy::transmute!(frame)
    }

    pub(crate) fn key(&self) -> Key {
        Key::from_bytes(self.frame().key)
    }

    pub(crate) fn communicator(&self) -> u64 {
        self.frame().communicator.get()
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        let frame = self.frame();
        let known = frame.addresses.iter().take(usize::from(frame.count));
        known
            .filter_map(|one| one.address())
            .map(|address| Target {
                label: String::new(),
                address: SocketAddr::new(address, frame.port.get()),
                from: None,
            })
            .collect()
    }

    pub(crate) fn asked_at(&self) -> String {
        let words = self.targets().into_iter().map(|target| target.address.to_string());
        words.collect::<Vec<_>>().join(" or ")
    }

    fn frame(&self) -> IdFrame {
        zerocopy::transmute!(self.bytes)
    }

    fn encode(key: &Key, communicator: u64, port: u16, addresses: &[IpAddr]) -> Self {
        let mut frame = IdFrame {
            magic: MAGIC,
            version: U16::new(VERSION),
            port: U16::new(port),
            key: *key.as_bytes(),
            communicator: U64::new(communicator),
            count: u8::try_from(addresses.len()).expect("at most four addresses"),
            reserved: [0; 3],
            addresses: [AddressFrame::default(); ADDRESSES_MAX],
            checksum: [0; 4],
            reserved_end: [0; 4],
        };
        for (slot, address) in frame.addresses.iter_mut().zip(addresses) {
            *slot = AddressFrame::new(*address);
        }
        frame.checksum = checksum(&frame);
        Self { bytes: zerocopy::transmute!(frame) }
    }
}

/// Waits for the root's thread, if this process serves it and nobody else has waited.
pub(crate) fn finish_root(communicator: u64) {
    let mut roots = ROOTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let place = roots.iter().position(|root| root.serves(communicator));
    let root = place.map(|place| roots.swap_remove(place));
    drop(roots);
    if let Some(root) = root {
        let _ = root.thread.join();
    }
}

/// Ends the root's thread, if this process serves it and nobody has come: its one rank needs no
/// meeting.
pub(crate) fn dismiss_root(communicator: u64) {
    let roots = ROOTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = roots.iter().find(|root| root.serves(communicator));
    let Some(dismissal) = known.map(|root| Arc::clone(&root.dismissal)) else { return };
    drop(roots);
    dismissal.give();
    finish_root(communicator);
}

fn checksum(frame: &IdFrame) -> [u8; 4] {
    let zeroed = IdFrame { checksum: [0; 4], ..*frame };
    let digest = digest_of(&[zeroed.as_bytes()]);
    [digest[0], digest[1], digest[2], digest[3]]
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The bytes hold the key; a debug print must not.
        write!(f, "UniqueId({:016x} at {})", self.communicator(), self.asked_at())
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::from_bytes(&super::hex::decode(text.trim()).ok_or_else(|| {
            Error::argument(format!(
                "not a ringway unique id: expected {} hexadecimal digits, got {} characters",
                2 * UNIQUE_ID_BYTES,
                text.trim().len()
            ))
        })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_that_ranks_bring_one_id_counts() {
        let id = |number| {
            let address = "192.0.2.2".parse().unwrap();
            UniqueId::encode(&Key::from_bytes([number; 32]), 42, 4711, &[address])
        };
        let (one, other) = (id(1), id(2));
        let only = |all: &[(Option<&UniqueId>, Option<&UniqueId>)]| {
            let brought: Vec<_> =
                all.iter().map(|(id, kept)| UniqueId::brought(*id, *kept)).collect();
            UniqueId::only(&brought).map_err(|error| error.to_string())
        };
        assert_eq!(only(&[(None, None), (Some(&one), None)]), Ok(one));
        assert_eq!(only(&[(Some(&one), Some(&other)), (Some(&one), None)]), Ok(one));
        assert_eq!(only(&[(None, Some(&other)), (Some(&one), None), (None, None)]), Ok(one));
        assert_eq!(only(&[(None, Some(&other)), (None, None)]), Ok(other));
        let none = only(&[(None, None), (None, None)]).unwrap_err();
        assert!(none.contains("no rank brings an id"), "{none}");
        for two in
            [[(Some(&one), None), (Some(&other), None)], [(None, Some(&one)), (None, Some(&other))]]
        {
            let error = only(&two).unwrap_err();
            assert!(error.contains("2 different ids"), "{error}");
        }
    }

    #[test]
    fn survives_text_and_notices_damage() {
        let addresses = ["192.0.2.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let id = UniqueId::encode(&Key::from_bytes([7; 32]), 42, 4711, &addresses);
        let text = id.to_string();
        assert_eq!(text.len(), 256);
        assert_eq!(text.parse::<UniqueId>().unwrap(), id);
        assert_eq!(id.asked_at(), "192.0.2.2:4711 or [fd00::2]:4711");
        assert!(!format!("{id:?}").contains("0707"), "a debug print hides the key");
        let damaged = text.replacen("07", "17", 1).parse::<UniqueId>().unwrap_err();
        assert!(damaged.to_string().contains("checksum"), "{damaged}");
        assert!(text[..200].parse::<UniqueId>().unwrap_err().to_string().contains("100 bytes"));
        assert!("zz".parse::<UniqueId>().is_err());
    }
}

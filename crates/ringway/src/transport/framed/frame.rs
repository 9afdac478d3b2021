//! The frames on a data connection.
//!
//! ```text
//!  0        2      3         4      6        8     12          16         24       32      40
//!  ├─magic──┼─kind─┼─context─┼─flag─┼─region─┼─tag─┼───check───┼─sequence─┼─offset─┼─bytes─┤ payload…
//! ```
//!
//! All numbers are little-endian. `region` is 0xffff for scratch, else the number of an output;
//! `flag` is 0xffff for none.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Context, OperationTag};
use super::stream::EXPOSURE_BYTES_MOST;
use crate::plan::plan::{FLAGS_MAX, Flag, Region, Remote};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 40;

const MAGIC: u16 = 0x5752;
const NOTHING: u16 = 0xffff;
/// In the place of the kind: a put whose payload has this CRC32C.
const CHECKED_PUT: u8 = 4;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes for the peer's memory, perhaps with a signal.
    Put = 0,
    /// A signal alone.
    Signal = 1,
    /// Which operation the sender is in, when it has waited for long.
    Announce = 2,
    /// The payload says how the region can be written from afar in this operation.
    Expose = 3,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
    magic: U16,
    kind: u8,
    context: u8,
    flag: U16,
    region: U16,
    tag: U32,
    check: U32,
    sequence: U64,
    offset: U64,
    bytes: U64,
}

const _: () = assert!(size_of::<Wire>() == HEADER_BYTES);

/// A decoded header. `context` is as the sender names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) context: Context,
    pub(crate) tag: OperationTag,
    pub(crate) flag: Option<Flag>,
    pub(crate) target: Remote,
    pub(crate) bytes: u64,
    /// CRC32C of a put's payload, where it is to be checked.
    pub(crate) check: Option<u32>,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let region = match self.target.region {
            Region::Output(index) => index,
            _ => NOTHING,
        };
        let wire = Wire {
            magic: MAGIC.into(),
            kind: if self.check.is_some() { CHECKED_PUT } else { self.kind as u8 },
            context: self.context as u8,
            flag: self.flag.unwrap_or(NOTHING).into(),
            region: region.into(),
            tag: self.tag.tag.into(),
            check: self.check.unwrap_or(0).into(),
            sequence: self.tag.sequence.into(),
            offset: self.target.offset.into(),
            bytes: self.bytes.into(),
        };
        let mut encoded = [0; HEADER_BYTES];
        encoded.copy_from_slice(wire.as_bytes());
        encoded
    }

    /// Decodes a header, refusing everything this version would not have sent.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let wire = Wire::read_from_bytes(bytes).map_err(|_| "a header is cut short".to_owned())?;
        if wire.magic.get() != MAGIC {
            return Err(format!("a frame begins with {:#06x}, not {MAGIC:#06x}", wire.magic.get()));
        }
        let kind = match wire.kind {
            0 | CHECKED_PUT => Kind::Put,
            1 => Kind::Signal,
            2 => Kind::Announce,
            3 => Kind::Expose,
            other => return Err(format!("a frame of kind {other}")),
        };
        let context = *Context::ALL
            .get(usize::from(wire.context))
            .ok_or_else(|| format!("a frame of context {}", wire.context))?;
        let flag = match wire.flag.get() {
            NOTHING => None,
            flag if usize::from(flag) < FLAGS_MAX => Some(flag),
            flag => return Err(format!("a frame with flag {flag}")),
        };
        match (kind, wire.bytes.get()) {
            (Kind::Put, _) | (_, 0) => {}
            (Kind::Expose, bytes) if bytes <= EXPOSURE_BYTES_MOST as u64 => {}
            (kind, bytes) => return Err(format!("a frame of {kind:?} with {bytes} bytes")),
        }
        let region = match wire.region.get() {
            NOTHING => Region::Scratch,
            index => Region::Output(index),
        };
        Ok(Self {
            kind,
            context,
            tag: OperationTag { sequence: wire.sequence.get(), tag: wire.tag.get() },
            flag,
            target: Remote { region, offset: wire.offset.get() },
            bytes: wire.bytes.get(),
            check: (wire.kind == CHECKED_PUT).then(|| wire.check.get()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in prop::array::uniform32(any::<u8>()), rest in any::<u64>()) {
            let mut header = [0; HEADER_BYTES];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&rest.to_le_bytes());
            let _ = Header::decode(&header);
            header[..2].copy_from_slice(&MAGIC.to_le_bytes());
            header[2] %= 6;
            header[3] %= 4;
            if let Ok(decoded) = Header::decode(&header) {
                prop_assert_eq!(Header::decode(&decoded.encode()), Ok(decoded));
            }
        }
    }
}

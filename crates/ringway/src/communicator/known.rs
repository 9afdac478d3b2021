//! Calls that have been made before: what about them does not change from one time to the next.
//!
//! A program makes the same few calls over and over. The first time, a call is planned and everything
//! is allocated that running it needs; after that, making it again allocates nothing.

use super::engine::Agreement;
use super::usual::Usual;
use super::wrong_size;
use crate::call::Call;
use crate::error::Result;
use crate::executor::Execution;
use crate::transport::Area;

/// Calls remembered: so many shelves, with so many places each.
const SHELVES: usize = 128;
const PLACES: usize = 8;

/// The memory of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Buffers {
    /// Input and output.
    Apart(Area, Area),
    /// Both in one, by NCCL's convention.
    InPlace(Area),
}

/// A call and all that does not depend on its buffers.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) call: Call,
    pub(super) execution: Execution,
    pub(super) agreement: Agreement,
    pub(super) input_bytes: usize,
    pub(super) output_bytes: usize,
    /// Where input and output begin in a buffer that is both, where they can be.
    pub(super) in_place: Option<(usize, usize)>,
    /// How long it usually takes, where deadlines follow from that.
    pub(super) usual: Usual,
}

impl Known {
    /// The input and the output in `buffers`, checked; `None` where the call cannot be in place.
    pub(super) fn areas(&self, buffers: Buffers) -> Result<Option<(Area, Area)>> {
        let check = |what: &str, area: Area, wanted: usize| {
            let right = area.bytes == wanted;
            if right { Ok(()) } else { Err(wrong_size(what, &self.call, area.bytes, wanted)) }
        };
        match buffers {
            Buffers::Apart(input, output) => {
                check("input", input, self.input_bytes)?;
                check("output", output, self.output_bytes)?;
                Ok(Some((input, output)))
            }
            Buffers::InPlace(whole) => {
                check("in-place buffer", whole, self.input_bytes.max(self.output_bytes))?;
                let part = |offset: usize, bytes: usize| Area {
                    address: whole.address.wrapping_add(offset),
                    bytes,
                };
                Ok(self.in_place.map(|(input, output)| {
                    (part(input, self.input_bytes), part(output, self.output_bytes))
                }))
            }
        }
    }
}

/// The calls that are remembered. A shelf that is full loses the one that was made longest ago: it
/// will be planned again, which costs time, no more.
#[derive(Debug)]
pub(super) struct Calls {
    shelves: Vec<Shelf>,
}

/// Boxed, as a known call is large and moved at every call.
type Shelf = Vec<Box<Known>>;

impl Default for Calls {
    fn default() -> Self {
        Self { shelves: (0..SHELVES).map(|_| Vec::new()).collect() }
    }
}

impl Calls {
    fn shelf(&mut self, call: &Call) -> &mut Shelf {
        let small = (call.collective as u64) << 16
            | (call.data_type as u64) << 8
            | call.op as u64
            | u64::from(call.root) << 24;
        let mixed = (call.count ^ small.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.shelves[usize::try_from(mixed >> 32).unwrap_or_default() % SHELVES]
    }

    /// Takes a call out, to run it; [`Calls::put`] puts it back.
    pub(super) fn take(&mut self, call: &Call) -> Option<Box<Known>> {
        let shelf = self.shelf(call);
        let place = shelf.iter().position(|known| known.call.is_like(call))?;
        Some(shelf.remove(place))
    }

    /// At the front of its shelf.
    pub(super) fn put(&mut self, known: Box<Known>) {
        let shelf = self.shelf(&known.call);
        shelf.truncate(PLACES - 1);
        if shelf.is_empty() {
            shelf.reserve_exact(PLACES);
        }
        shelf.insert(0, known);
    }
}

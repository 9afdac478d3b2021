//! What kernels and proxies tell each other, and how a call is cut into chunks.
//!
//! The structures are those of `kernels/staged.cu`, to the byte. A request holds the whole call, so that the
//! host need remember nothing, and a captured launch can be replayed at any time.
//!
//! *Invariant:* chunks follow from what is equal on all ranks; words are read back totally: any bits give a
//! call or nothing.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::call::Call;
use crate::error::{Error, Result};
use crate::plan::algorithm::Algorithm;
use crate::plan::types::{Collective, DataType, Level, Rank, ReduceOp};
use crate::reduce::Scalar;

/// Messages of a launch; `RW_PIECES`.
pub(super) const PIECES: usize = 96;
/// Slots at most: numbers of `rw_desk`.
pub(super) const SLOTS_MOST: usize = 60;
/// Bytes of `rw_desk`.
pub(super) const DESK_BYTES: usize = 16 + 4 * SLOTS_MOST;

/// Bytes of a slot's input, and of its output.
pub(super) const SLOT_BYTES: u64 = 512 << 10;
/// Less than this is not worth a chunk of its own.
const CHUNK_BYTES_LEAST: u64 = 128 << 10;

/// In place of a collective's number: messages.
const MESSAGES: u64 = 0xff;
/// The factor is the bits of a value, not those of a double.
const FACTOR_IS_VALUE: u64 = 1 << 40;
/// The slot's values are in GPU memory.
const IN_GPU: u64 = 1 << 41;

/// In place of the pieces that go from a rank to itself: the host copies them; `RW_NOBODY`.
pub(super) const NOBODY: u32 = u32::MAX;

/// Least bytes of a block that go by GPU memory: for fewer, adapters take longer to tell each other where than the host
/// to copy them.
const IN_GPU_LEAST: u64 = 16 << 10;

/// A slot's words: `rw_slot`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SlotWords {
    pub(super) told: [AtomicU64; 7],
    pub(super) request: AtomicU64,
    pub(super) reply: AtomicU64,
    unused: [u64; 7],
}

/// Where things are: `rw_place`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) report: u64,
    pub(super) desk: u64,
    pub(super) slots: u64,
    pub(super) data: u64,
    pub(super) slot_bytes: u64,
}

/// The argument of a collective's launch: `rw_staged`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CollectiveLaunch {
    pub(super) place: Place,
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) factor: u64,
    pub(super) told: [u64; 5],
    pub(super) block_bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) input_pieces: u32,
    pub(super) output_pieces: u32,
    pub(super) chunks: u32,
    pub(super) slot_count: u32,
    pub(super) value_bytes: u32,
    /// Of what goes from this rank to itself, the piece of the output << 16 and that of the input.
    pub(super) own: u32,
}

/// The other end of a part, in a word that kernels only pass on: the rank, and above it how many parts the message has,
/// so that no end takes a part of a longer message for its own.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct End(u32);

/// Bits that a rank takes: there are no more ranks.
const RANK_BITS: u32 = 20;

impl End {
    /// Counts of parts are told apart up to 16 GiB.
    pub(super) fn new(peer: Rank, parts: u64) -> Self {
        let most = u64::from(u32::MAX >> RANK_BITS);
        Self(peer | u32::try_from(parts & most).unwrap_or(0) << RANK_BITS)
    }

    pub(super) fn peer(self) -> Rank {
        self.0 & ((1 << RANK_BITS) - 1)
    }

    pub(super) fn mark(self) -> u32 {
        self.0 >> RANK_BITS
    }
}

/// A message, or a part of one: `rw_piece`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) end: End,
    pub(super) sends: u32,
}

/// What the host reads of it: `rw_part`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartWords {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) end: End,
    pub(super) sends: u32,
}

/// The argument of a launch of messages: `rw_messages`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagesLaunch {
    pub(super) place: Place,
    pub(super) parts: u64,
    pub(super) told: u64,
    pub(super) staging: u64,
    pub(super) pieces: u32,
    pub(super) unused: u32,
    pub(super) list: [Piece; PIECES],
}

/// How a call is cut: chunk `c` is bytes `c * chunk_bytes` and on of every piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes that belong to one rank, or of the whole buffer where it is of one piece.
    pub(super) block_bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) chunks: u32,
    /// Pieces of this rank's buffers: one for each rank, one, or none.
    pub(super) input_pieces: u32,
    pub(super) output_pieces: u32,
}

impl Shape {
    /// The shape of a call for a rank, with so many slots to fill.
    pub(super) fn of(call: &Call, rank: Rank, ranks: u32, slots: u64) -> Result<Self> {
        if call.counts.is_some() {
            return Err(Error::internal("a call of several counts was not cut into others"));
        }
        // What overflows is refused here.
        let (input, output) = (call.input_bytes(rank, ranks)?, call.output_bytes(rank, ranks)?);
        let problem = call.problem(ranks, Level::Run)?;
        let is_root = rank == problem.root;
        let (input_pieces, output_pieces) = match call.collective {
            Collective::AllReduce => (1, 1),
            Collective::Broadcast => (u32::from(is_root), 1),
            Collective::Reduce => (1, u32::from(is_root)),
            Collective::AllGather => (1, ranks),
            Collective::Gather => (1, if is_root { ranks } else { 0 }),
            Collective::ReduceScatter => (ranks, 1),
            Collective::Scatter => (if is_root { ranks } else { 0 }, 1),
            Collective::AllToAll => (ranks, ranks),
            Collective::Barrier | Collective::SendRecv => (0, 0),
        };
        let has_blocks = matches!(
            call.collective,
            Collective::AllGather
                | Collective::Gather
                | Collective::ReduceScatter
                | Collective::Scatter
                | Collective::AllToAll
        );
        let widest = if has_blocks { u64::from(ranks) } else { 1 };
        let most = SLOT_BYTES / widest / 16 * 16;
        if most == 0 {
            return Err(Error::usage(format!(
                "{} of {ranks} ranks does not fit the {SLOT_BYTES} bytes of pinned memory that a chunk has",
                call.collective
            )));
        }
        let block_bytes = match call.collective {
            Collective::Barrier | Collective::SendRecv => 0,
            _ => call.count * call.data_type.size() as u64,
        };
        debug_assert!(input as u64 == block_bytes * u64::from(input_pieces));
        debug_assert!(output as u64 == block_bytes * u64::from(output_pieces));
        let least = (CHUNK_BYTES_LEAST / widest).next_multiple_of(16).min(most);
        let fair = block_bytes.div_ceil(slots.max(1)).next_multiple_of(16);
        let chunk_bytes = fair.clamp(least, most);
        let chunks = u32::try_from(block_bytes.div_ceil(chunk_bytes).max(1))
            .map_err(|_| Error::argument(format!("{block_bytes} bytes are too many")))?;
        Ok(Self { block_bytes, chunk_bytes, chunks, input_pieces, output_pieces })
    }

    /// Whether adapters may move the values of a call from GPU memory to GPU memory: nobody computes with them, and
    /// there are enough. The same on all ranks.
    pub(super) fn suits_adapters(&self, call: &Call, ranks: u32) -> bool {
        let only_moves = matches!(
            call.collective,
            Collective::AllGather
                | Collective::AllToAll
                | Collective::Broadcast
                | Collective::Gather
                | Collective::Scatter
        );
        let free = matches!(call.algorithm, None | Some(Algorithm::Direct));
        only_moves && free && ranks > 1 && self.block_bytes >= IN_GPU_LEAST
    }

    /// What goes from a rank to itself, as a launch tells it.
    pub(super) fn own(call: &Call, rank: Rank) -> u32 {
        let is_root = rank == call.root;
        let (input, output) = match call.collective {
            Collective::AllGather => (0, rank),
            Collective::AllToAll => (rank, rank),
            Collective::Broadcast if is_root => (0, 0),
            Collective::Gather if is_root => (0, rank),
            Collective::Scatter if is_root => (rank, 0),
            _ => return NOBODY,
        };
        output << 16 | input
    }

    /// Where a chunk begins in a piece, and its bytes.
    pub(super) fn chunk(&self, chunk: u32) -> (u64, u64) {
        let offset = u64::from(chunk) * self.chunk_bytes;
        (offset, self.chunk_bytes.min(self.block_bytes.saturating_sub(offset)))
    }
}

/// A call as words. `by_address` says that the kernel will put the factor's bits in place.
pub(super) fn tell(call: &Call, by_address: bool) -> [u64; 5] {
    let level = match call.level {
        None => 0_u64,
        Some(level) => level as u64 + 1,
    };
    let algorithm = call.algorithm.and_then(|one| Algorithm::ALL.iter().position(|a| *a == one));
    let algorithm = algorithm.map_or(0, |at| at as u64 + 1);
    let deadline = call.deadline.map_or(0, |deadline| {
        u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX - 1).saturating_add(1)
    });
    let what = call.collective as u64
        | (call.data_type as u64) << 8
        | (call.op as u64) << 16
        | level << 24
        | algorithm << 32
        | if by_address { FACTOR_IS_VALUE } else { 0 };
    [what, u64::from(call.root), deadline, call.count, call.scalar.to_bits()]
}

/// A call as words whose values are in GPU memory: by the algorithm that puts them where they belong and does nothing else.
pub(super) fn tell_in_gpu(call: &Call) -> [u64; 5] {
    let mut call = call.clone();
    call.algorithm = Some(Algorithm::Direct);
    let mut words = tell(&call, false);
    words[0] |= IN_GPU;
    words
}

/// The word of messages.
pub(super) const fn tell_messages() -> u64 {
    MESSAGES
}

/// In place of the number of a staging: messages are in GPU memory.
pub(super) const STAGED_IN_GPU: u64 = u64::MAX;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Asked {
    /// A chunk of a collective of `whole` values, in pinned or in GPU memory.
    Chunk { call: Call, whole: u64, chunk: u32, chunks: u32, in_gpu: bool },
    /// Messages in some pinned memory, or in GPU memory.
    Messages { staging: u64, parts: usize },
}

/// Reads a request; nothing where the words make no sense.
pub(super) fn read(told: &[u64; 7]) -> Option<Asked> {
    let byte = |at: u32| usize::try_from(told[0] >> at & 0xff).ok();
    if told[0] == MESSAGES {
        let parts = usize::try_from(told[5]).ok().filter(|parts| *parts <= PIECES)?;
        return Some(Asked::Messages { staging: told[1], parts });
    }
    let collective = *Collective::ALL.get(byte(0)?)?;
    let code = u8::try_from(byte(8)?).ok()?;
    let data_type = DataType::ALL.into_iter().find(|one| *one as u8 == code)?;
    let mut call = Call::new(collective, data_type, told[5]);
    call.op = *ReduceOp::ALL.get(byte(16)?)?;
    call.level = match byte(24)? {
        0 => None,
        1 => Some(Level::Run),
        2 => Some(Level::Shape),
        _ => return None,
    };
    call.algorithm = match byte(32)? {
        0 => None,
        at => Some(*Algorithm::ALL.get(at - 1)?),
    };
    call.root = Rank::try_from(told[1]).ok()?;
    call.deadline = told[2].checked_sub(1).map(Duration::from_millis);
    call.scalar = match told[0] & FACTOR_IS_VALUE {
        0 => f64::from_bits(told[4]),
        _ => factor(data_type, told[4])?,
    };
    let chunk = u32::try_from(told[6] >> 32).ok()?;
    let chunks = u32::try_from(told[6] & 0xffff_ffff).ok()?;
    Some(Asked::Chunk { call, whole: told[3], chunk, chunks, in_gpu: told[0] & IN_GPU != 0 })
}

/// A factor from the bits of a value; nothing for a whole number that a double cannot hold.
#[expect(clippy::cast_precision_loss, reason = "looked at before")]
fn factor(data_type: DataType, bits: u64) -> Option<f64> {
    const EXACT: u64 = 1 << 53;
    let bytes = bits.to_le_bytes();
    let scalar = Scalar::from_bytes(data_type, &bytes[..data_type.size()])?;
    let bytes = scalar.bits().to_le_bytes();
    let low = [bytes[0], bytes[1], bytes[2], bytes[3]];
    Some(match scalar.data_type() {
        DataType::F32 => f32::from_le_bytes(low).into(),
        DataType::F64 => f64::from_le_bytes(bytes),
        DataType::I8 => i8::from_le_bytes([bytes[0]]).into(),
        DataType::U8 => bytes[0].into(),
        DataType::I32 => i32::from_le_bytes(low).into(),
        DataType::U32 => u32::from_le_bytes(low).into(),
        DataType::I64 => {
            let value = i64::from_le_bytes(bytes);
            (value.unsigned_abs() <= EXACT).then_some(value as f64)?
        }
        _ => {
            let value = u64::from_le_bytes(bytes);
            (value <= EXACT).then_some(value as f64)?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_those_of_the_kernel() {
        assert_eq!(size_of::<SlotWords>(), 128);
        assert_eq!(std::mem::offset_of!(SlotWords, reply), 64);
        assert_eq!(size_of::<Place>(), 40);
        assert_eq!(size_of::<CollectiveLaunch>(), 144);
        assert_eq!(size_of::<Piece>(), 32);
        assert_eq!(size_of::<PartWords>(), 24);
        assert_eq!(size_of::<MessagesLaunch>(), 72 + 32 * PIECES);
        assert!(size_of::<MessagesLaunch>() <= 4096);
        assert_eq!(DESK_BYTES, 256);
    }

    #[test]
    fn a_call_is_read_as_it_was_told() {
        for collective in Collective::ALL {
            let mut call = Call::new(collective, DataType::Bf16, 1000).op(ReduceOp::Max).root(3);
            for level in [None, Some(Level::Run), Some(Level::Shape)] {
                call.level = level;
                call.deadline = level.map(|_| Duration::from_millis(5));
                call.algorithm = level.map(|_| Algorithm::Ring);
                let words = tell(&call, false);
                let told = [words[0], words[1], words[2], words[3], words[4], 7, 2 << 32 | 5];
                let mut expected = call.clone();
                expected.count = 7;
                let chunk =
                    |call, in_gpu| Asked::Chunk { call, whole: 1000, chunk: 2, chunks: 5, in_gpu };
                assert_eq!(read(&told), Some(chunk(expected.clone(), false)));
                let words = tell_in_gpu(&call);
                let told = [words[0], words[1], words[2], words[3], words[4], 7, 2 << 32 | 5];
                expected.algorithm = Some(Algorithm::Direct);
                assert_eq!(read(&told), Some(chunk(expected, true)));
            }
        }
        let told = [tell_messages(), 4, 0, 0, 0, 9, 1];
        assert_eq!(read(&told), Some(Asked::Messages { staging: 4, parts: 9 }));
        assert_eq!(read(&[77; 7]), None);
    }

    #[test]
    fn adapters_move_what_nobody_computes_with() {
        let suits =
            |call: &Call, ranks| Shape::of(call, 0, ranks, 12).unwrap().suits_adapters(call, ranks);
        for collective in Collective::ALL.into_iter().filter(|one| *one != Collective::SendRecv) {
            let call = Call::new(collective, DataType::F32, 4096).root(1);
            let moves =
                Algorithm::Direct.supports(&call.problem(3, Level::Run).unwrap(), &[0, 1, 2]);
            assert_eq!(suits(&call, 3), moves.is_ok(), "{collective}");
            assert!(!suits(&Call { root: 0, ..call.clone() }, 1), "{collective} of one rank");
            assert!(!suits(&Call { count: 4095, ..call.clone() }, 3));
            assert!(!suits(&Call { algorithm: Some(Algorithm::Ring), ..call.clone() }, 3));
            // Who has both has something to keep, at one place of its input and one of its output.
            for rank in 0..3 {
                let shape = Shape::of(&call, rank, 3, 12).unwrap();
                let own = Shape::own(&call, rank);
                let (input, output) = (own & 0xffff, own >> 16);
                let keeps = moves.is_ok() && shape.input_pieces > 0 && shape.output_pieces > 0;
                assert_eq!(own != NOBODY, keeps, "{collective}, rank {rank}");
                if keeps {
                    assert!(input < shape.input_pieces && output < shape.output_pieces);
                }
            }
        }
    }

    #[test]
    fn a_factor_is_read_by_its_type() {
        assert_eq!(factor(DataType::F32, 0.5_f32.to_bits().into()), Some(0.5));
        assert_eq!(factor(DataType::I8, 0xfe), Some(-2.0));
        assert_eq!(factor(DataType::U64, u64::MAX), None);
    }

    #[test]
    fn chunks_cover_a_call_and_fit_their_slots() {
        for collective in Collective::ALL {
            for ranks in [1_u32, 3, 64] {
                for count in [0_u64, 1, 1000, 300_001, 9_000_000] {
                    let call = Call::new(collective, DataType::F32, count);
                    if collective == Collective::SendRecv {
                        continue;
                    }
                    let shape = Shape::of(&call, 0, ranks, 12).unwrap();
                    let mut next = 0;
                    for chunk in 0..shape.chunks {
                        let (offset, bytes) = shape.chunk(chunk);
                        assert_eq!(offset, next);
                        let widest = u64::from(shape.input_pieces.max(shape.output_pieces));
                        assert!(bytes * widest <= SLOT_BYTES && bytes % 4 == 0);
                        next += bytes;
                    }
                    assert_eq!(next, shape.block_bytes);
                    let other = Shape::of(&call, ranks - 1, ranks, 12).unwrap();
                    assert_eq!(
                        (other.chunks, other.chunk_bytes),
                        (shape.chunks, shape.chunk_bytes)
                    );
                }
            }
        }
    }
}

//! How many bytes each rank sends and receives for a size in the table.
//!
//! The rules are nccl-tests': a size is the greater of what a rank sends and receives; the
//! collectives that deal out blocks give each rank the same block, a multiple of 16 bytes.

use ringway_plan::types::{Collective, DataType};

/// Bytes to which blocks are rounded down.
const BLOCK_BYTES: usize = 16;

/// The sizes of one call, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The count of the call, in NCCL's meaning: elements per block, or in all.
    pub(crate) count: usize,
    /// Bytes of one block.
    pub(crate) block_bytes: usize,
    /// Blocks in the input of a rank (of the root, where there is one).
    pub(crate) input_blocks: usize,
    /// Blocks in the output of a rank (of the root, where there is one).
    pub(crate) output_blocks: usize,
}

impl Layout {
    /// The layout of `collective` for a size asked for.
    pub(crate) fn new(collective: Collective, data_type: DataType, size: u32, bytes: u64) -> Self {
        let ranks = size as usize;
        let element_bytes = data_type.size();
        let elements = usize::try_from(bytes).unwrap_or(usize::MAX) / element_bytes;
        let (input_blocks, output_blocks) = match collective {
            Collective::AllGather | Collective::Gather => (1, ranks),
            Collective::ReduceScatter | Collective::Scatter => (ranks, 1),
            Collective::AllToAll => (ranks, ranks),
            _ => (1, 1),
        };
        let count = match collective {
            Collective::Barrier => 0,
            collective if !collective.deals_blocks() => elements,
            _ => (elements / ranks) & !(BLOCK_BYTES / element_bytes - 1),
        };
        Self { count, block_bytes: count * element_bytes, input_blocks, output_blocks }
    }

    /// The size the table shows.
    pub(crate) fn table_bytes(&self) -> usize {
        self.input_bytes().max(self.output_bytes())
    }

    /// Bytes of the input, at the root where there is one.
    pub(crate) fn input_bytes(&self) -> usize {
        self.block_bytes * self.input_blocks
    }

    /// Bytes of the output, at the root where there is one.
    pub(crate) fn output_bytes(&self) -> usize {
        self.block_bytes * self.output_blocks
    }

    /// Bytes of the buffer of `rank` for a call in place.
    pub(crate) fn in_place_bytes(&self, collective: Collective, rank: u32, root: u32) -> usize {
        match collective {
            Collective::Gather | Collective::Scatter if rank != root => self.block_bytes,
            _ => self.table_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(collective: Collective, data_type: DataType, size: u32, bytes: u64) -> Layout {
        Layout::new(collective, data_type, size, bytes)
    }

    #[test]
    fn sizes_follow_nccl_tests() {
        use Collective as C;
        // collective, type, ranks, asked, shown in the table, count
        let table = [
            (C::AllReduce, DataType::F32, 8, 1 << 20, 1 << 20, 262_144),
            (C::AllGather, DataType::F32, 8, 1 << 20, 1 << 20, 32_768),
            (C::ReduceScatter, DataType::F32, 8, 64, 0, 0),
            (C::ReduceScatter, DataType::F32, 8, 128, 128, 4),
            (C::AllToAll, DataType::F16, 3, 1000, 960, 160),
            (C::Broadcast, DataType::F64, 3, 1000, 1000, 125),
            (C::Gather, DataType::U8, 4, 100, 64, 16),
            (C::Scatter, DataType::U8, 1, 100, 96, 96),
            (C::SendRecv, DataType::F32, 2, 10, 8, 2),
            (C::Barrier, DataType::F32, 2, 1 << 20, 0, 0),
        ];
        for (collective, data_type, size, asked, shown, count) in table {
            let layout = layout(collective, data_type, size, asked);
            assert_eq!((layout.table_bytes(), layout.count), (shown, count), "{collective}");
        }
    }

    #[test]
    fn root_and_others_differ_in_place() {
        let gather = layout(Collective::Gather, DataType::U8, 4, 64);
        assert_eq!(gather.in_place_bytes(Collective::Gather, 1, 1), 64);
        assert_eq!(gather.in_place_bytes(Collective::Gather, 0, 1), 16);
        let all = layout(Collective::AllGather, DataType::U8, 4, 64);
        assert_eq!(all.in_place_bytes(Collective::AllGather, 0, 0), 64);
    }

    #[test]
    fn bus_factors_follow_nccl_tests() {
        use Collective as C;
        let table = [
            (C::AllReduce, 8, 1.75),
            (C::AllReduce, 16, 1.875),
            (C::ReduceScatter, 8, 0.875),
            (C::AllGather, 16, 0.9375),
            (C::AllToAll, 4, 0.75),
            (C::Gather, 4, 0.75),
            (C::Scatter, 2, 0.5),
            (C::Broadcast, 8, 1.0),
            (C::Reduce, 8, 1.0),
            (C::SendRecv, 8, 1.0),
            (C::AllReduce, 1, 0.0),
        ];
        for (collective, size, factor) in table {
            assert!((collective.bus_factor(size) - factor).abs() < 1e-12, "{collective} {size}");
        }
    }
}

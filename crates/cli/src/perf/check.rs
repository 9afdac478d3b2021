//! What each rank must hold before and after a call, for every collective.

use ringway_plan::types::{Collective, DataType, ReduceOp};

use super::data::Values;
use super::layout::Layout;

/// Stands in every byte that the call must write.
const POISON: u8 = 0xa5;

/// One call as one rank sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    /// `None` where nothing is reduced.
    pub(crate) op: Option<ReduceOp>,
    /// 0 where there is no root.
    pub(crate) root: u32,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) layout: Layout,
    pub(crate) round: u64,
}

impl Case {
    /// The values of this call.
    pub(crate) fn values(&self) -> Values {
        let Self { data_type, op, size, round, .. } = *self;
        Values { data_type, op, size, round }
    }

    /// The rank that `rank`'s ring neighbour data comes from, in send/recv.
    pub(crate) fn previous(&self) -> u32 {
        (self.rank + self.size - 1) % self.size
    }

    /// The rank that send/recv sends to.
    pub(crate) fn next(&self) -> u32 {
        (self.rank + 1) % self.size
    }

    /// Prepares the buffers of an out-of-place call.
    pub(crate) fn prepare(&self, input: &mut [u8], output: &mut [u8]) {
        self.own_input().fill(input, 0);
        output.fill(POISON);
    }

    /// Prepares the buffer of an in-place call.
    pub(crate) fn prepare_in_place(&self, buffer: &mut [u8]) {
        match self.collective {
            Collective::AllGather => self.prepare_own_block(buffer),
            Collective::Gather if self.is_root() => self.prepare_own_block(buffer),
            Collective::Scatter if !self.is_root() => buffer.fill(POISON),
            _ => self.own_input().fill(buffer, 0),
        }
    }

    fn prepare_own_block(&self, buffer: &mut [u8]) {
        buffer.fill(POISON);
        let own = self.block(self.rank);
        self.own_input().fill(&mut buffer[own], 0);
    }

    /// The part of an in-place buffer that holds the result.
    pub(crate) fn in_place_result<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        match self.collective {
            Collective::ReduceScatter => &buffer[self.block(self.rank)],
            Collective::Scatter if self.is_root() => &buffer[self.block(self.rank)],
            _ => buffer,
        }
    }

    /// Counts the wrong elements of this rank's result.
    pub(crate) fn wrong(&self, result: &[u8]) -> u64 {
        let values = self.values();
        let count = self.layout.count;
        let elements = self.input_elements();
        let block_of_rank = self.rank as usize * count;
        match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                if self.collective == Collective::Reduce && !self.is_root() {
                    return 0;
                }
                let first =
                    if self.collective == Collective::ReduceScatter { block_of_rank } else { 0 };
                let op = self.op.unwrap_or(ReduceOp::Sum);
                values.reduced(op, elements).wrong(result, first)
            }
            Collective::Gather if !self.is_root() => 0,
            Collective::AllGather | Collective::Gather => self.wrong_blocks(result, 0),
            Collective::AllToAll => self.wrong_blocks(result, block_of_rank),
            Collective::Scatter => values.input(self.root, elements).wrong(result, block_of_rank),
            Collective::Broadcast => values.input(self.root, elements).wrong(result, 0),
            Collective::SendRecv => values.input(self.previous(), elements).wrong(result, 0),
            Collective::Barrier => 0,
        }
    }

    /// Block `i` must be what rank `i` put in, from element `first` on.
    fn wrong_blocks(&self, result: &[u8], first: usize) -> u64 {
        let (values, elements) = (self.values(), self.input_elements());
        (0..self.size)
            .map(|rank| values.input(rank, elements).wrong(&result[self.block(rank)], first))
            .sum()
    }

    fn own_input(&self) -> super::data::Pattern {
        self.values().input(self.rank, self.input_elements())
    }

    fn input_elements(&self) -> u64 {
        (self.layout.count * self.layout.input_blocks) as u64
    }

    fn block(&self, rank: u32) -> std::ops::Range<usize> {
        let start = rank as usize * self.layout.block_bytes;
        start..start + self.layout.block_bytes
    }

    fn is_root(&self) -> bool {
        self.rank == self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(collective: Collective, rank: u32, size: u32) -> Case {
        let data_type = DataType::F32;
        let op = collective.reduces().then_some(ReduceOp::Sum);
        let layout = Layout::new(collective, data_type, size, 4096);
        Case { collective, data_type, op, root: 1, rank, size, layout, round: 3 }
    }

    /// All-gather by hand, so that the check itself is checked.
    fn gathered(case: &Case) -> Vec<u8> {
        let mut all = Vec::new();
        for rank in 0..case.size {
            let other = Case { rank, ..*case };
            let mut input = vec![0; case.layout.input_bytes()];
            other.prepare(&mut input, &mut []);
            all.extend(input);
        }
        all
    }

    #[test]
    fn one_wrong_byte_is_one_wrong_element() {
        let case = case(Collective::AllGather, 0, 4);
        let mut result = gathered(&case);
        assert_eq!(case.wrong(&result), 0);
        result[2050] ^= 0x10;
        assert_eq!(case.wrong(&result), 1);
        result[2051] ^= 0x10;
        assert_eq!(case.wrong(&result), 1);
        result[0] ^= 1;
        assert_eq!(case.wrong(&result), 2);
    }

    #[test]
    fn swapped_blocks_are_wrong() {
        let case = case(Collective::AllGather, 0, 2);
        let mut result = gathered(&case);
        let half = result.len() / 2;
        result.rotate_left(half);
        assert_eq!(case.wrong(&result), 1024);
    }

    #[test]
    fn a_call_that_does_nothing_is_wrong_in_place_and_out_of_place() {
        for collective in Collective::ALL {
            if collective == Collective::Barrier {
                continue;
            }
            let root_case = case(collective, 1, 4);
            let mut input = vec![0; root_case.layout.input_bytes()];
            let mut output = vec![0; root_case.layout.output_bytes()];
            root_case.prepare(&mut input, &mut output);
            assert!(root_case.wrong(&output) > 0, "{collective}");

            // The root of a broadcast or scatter already holds its result in place.
            let rank = if collective == Collective::Reduce { 1 } else { 2 };
            let case = case(collective, rank, 4);
            let bytes = case.layout.in_place_bytes(collective, rank, case.root);
            let mut buffer = vec![0; bytes];
            case.prepare_in_place(&mut buffer);
            let wrong = case.wrong(case.in_place_result(&buffer));
            assert!(wrong > 0 || collective == Collective::Gather, "{collective}");
        }
    }

    #[test]
    fn ranks_without_a_result_are_not_checked() {
        assert_eq!(case(Collective::Reduce, 0, 4).wrong(&[POISON; 64]), 0);
        assert_eq!(case(Collective::Gather, 0, 4).wrong(&[POISON; 64]), 0);
    }
}

//! What the ranks put in, and what must come out.
//!
//! Inputs are a function of rank, element index, type, reduction and round. For data movement
//! they are arbitrary bit patterns, which must arrive unchanged. For reductions they are small
//! numbers whose exact result is known without rounding before the end: every order of
//! reduction gives the same, so results are compared bit by bit, without a tolerance. Sums
//! are of small whole numbers; products of ±1, 2 and ½ that cancel (odd integers, which never
//! become zero by overflow); averages of numbers whose sum is a multiple of the ranks.
//!
//! Values repeat after [`PERIOD`] elements, a prime that no chunk size divides, so that buffers
//! are filled and compared at the speed of memory.

use ringway_plan::types::{DataType, ReduceOp};

use super::element::{Number, encode};

/// Elements after which values repeat.
const PERIOD: u64 = 65_521;

/// Ranks past this many get a factor of 1 in products, which keeps partial products finite.
const PROD_RANKS: u64 = 128;

/// One period of elements.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    bytes: Vec<u8>,
    element_bytes: usize,
}

impl Pattern {
    /// `value` at every index, for buffers of up to `elements`.
    fn new(data_type: DataType, elements: u64, value: impl Fn(u64) -> [u8; 8]) -> Self {
        let element_bytes = data_type.size();
        let bytes = (0..elements.min(PERIOD))
            .flat_map(|index| value(index).into_iter().take(element_bytes))
            .collect();
        Self { bytes, element_bytes }
    }

    /// Writes the pattern from element `first` on.
    pub(crate) fn fill(&self, target: &mut [u8], first: usize) {
        let mut rest = target;
        let mut at = self.offset(first);
        while !rest.is_empty() {
            let take = rest.len().min(self.bytes.len() - at);
            let (head, tail) = rest.split_at_mut(take);
            head.copy_from_slice(&self.bytes[at..at + take]);
            rest = tail;
            at = 0;
        }
    }

    /// Counts the elements that differ from the pattern from element `first` on.
    pub(crate) fn wrong(&self, found: &[u8], first: usize) -> u64 {
        let mut rest = found;
        let mut at = self.offset(first);
        let mut wrong = 0;
        while !rest.is_empty() {
            let take = rest.len().min(self.bytes.len() - at);
            let (head, tail) = rest.split_at(take);
            let expected = &self.bytes[at..at + take];
            if head != expected {
                let pairs = head
                    .chunks_exact(self.element_bytes)
                    .zip(expected.chunks_exact(self.element_bytes));
                wrong += pairs.map(|(a, b)| u64::from(a != b)).sum::<u64>();
            }
            rest = tail;
            at = 0;
        }
        wrong
    }

    fn offset(&self, first: usize) -> usize {
        if self.bytes.is_empty() { 0 } else { first * self.element_bytes % self.bytes.len() }
    }
}

/// The values of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values {
    pub(crate) data_type: DataType,
    /// `None` for data movement.
    pub(crate) op: Option<ReduceOp>,
    /// Ranks taking part.
    pub(crate) size: u32,
    /// Tells one check from the next.
    pub(crate) round: u64,
}

impl Values {
    /// What `rank` puts in.
    pub(crate) fn input(&self, rank: u32, elements: u64) -> Pattern {
        let Some(op) = self.op else {
            return Pattern::new(self.data_type, elements, |index| {
                self.hash(rank, index).to_le_bytes()
            });
        };
        Pattern::new(self.data_type, elements, |index| {
            encode(self.data_type, self.operand(op, rank, index))
        })
    }

    /// The reduction of all ranks' inputs.
    pub(crate) fn reduced(&self, op: ReduceOp, elements: u64) -> Pattern {
        Pattern::new(self.data_type, elements, |index| {
            encode(self.data_type, self.result(op, index))
        })
    }

    /// The factor of `rank` in a pre-multiplied sum.
    pub(crate) fn scalar(&self, rank: u32) -> f64 {
        match (rank % 3, self.data_type.is_float()) {
            (0, _) => 1.0,
            (1, _) => 2.0,
            (_, true) => 0.5,
            (_, false) => 3.0,
        }
    }

    fn operand(&self, op: ReduceOp, rank: u32, index: u64) -> Number {
        if self.data_type.is_float() {
            Number::Float(self.float(op, rank, index))
        } else {
            Number::Integer(self.integer(op, rank, index))
        }
    }

    fn result(&self, op: ReduceOp, index: u64) -> Number {
        if self.data_type.is_float() {
            let values = (0..self.size).map(|rank| (rank, self.float(op, rank, index)));
            let values = values.map(|(rank, value)| match op {
                ReduceOp::PreMulSum => value * self.scalar(rank),
                _ => value,
            });
            Number::Float(match op {
                ReduceOp::Sum | ReduceOp::PreMulSum => values.sum(),
                ReduceOp::Avg => values.sum::<f64>() / f64::from(self.size),
                ReduceOp::Prod => values.product(),
                ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
                ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            })
        } else {
            let values = (0..self.size).map(|rank| (rank, self.integer(op, rank, index)));
            let values = values.map(|(rank, value)| match op {
                ReduceOp::PreMulSum => value * [1, 2, 3][rank as usize % 3],
                _ => value,
            });
            Number::Integer(match op {
                ReduceOp::Sum | ReduceOp::PreMulSum => values.sum(),
                ReduceOp::Avg => values.sum::<i64>() / i64::from(self.size),
                ReduceOp::Prod => values.fold(1, i64::wrapping_mul),
                ReduceOp::Max => values.max().unwrap_or(0),
                ReduceOp::Min => values.min().unwrap_or(0),
            })
        }
    }

    fn float(&self, op: ReduceOp, rank: u32, index: u64) -> f64 {
        let hash = self.hash(rank, index);
        let narrow = matches!(self.data_type, DataType::F8e4m3 | DataType::F8e5m2);
        let whole = match op {
            ReduceOp::Sum => centred(hash, if narrow { 2 } else { 4 }),
            ReduceOp::PreMulSum => centred(hash, if narrow { 1 } else { 4 }),
            ReduceOp::Max | ReduceOp::Min => centred(
                hash,
                match self.data_type {
                    DataType::F8e5m2 => 8,
                    DataType::F8e4m3 => 16,
                    DataType::F16 | DataType::Bf16 => 128,
                    _ => 1000,
                },
            ),
            ReduceOp::Avg => self.balanced(rank, index, 3),
            ReduceOp::Prod => return self.factor(rank, index, hash),
        };
        f64::from(whole)
    }

    /// ±2 and ±½ that cancel in pairs of ranks, and now and then a 2 that does not.
    fn factor(&self, rank: u32, index: u64, hash: u64) -> f64 {
        let position = self.position(rank, index);
        let paired = (position | 1) < u64::from(self.size).min(PROD_RANKS);
        let magnitude = match (paired, position % 2) {
            (false, _) => 1.0,
            (true, 0) => 2.0,
            (true, _) => 0.5,
        };
        let extra = if position == 0 && index % 3 == 1 { 2.0 } else { 1.0 };
        let sign = if hash & 1 == 0 { 1.0 } else { -1.0 };
        sign * magnitude * extra
    }

    fn integer(&self, op: ReduceOp, rank: u32, index: u64) -> i64 {
        let hash = self.hash(rank, index);
        let signed = matches!(self.data_type, DataType::I8 | DataType::I32 | DataType::I64);
        let value = match op {
            ReduceOp::Sum | ReduceOp::PreMulSum if signed => centred(hash, 4),
            ReduceOp::Sum | ReduceOp::PreMulSum => below(hash, 8),
            ReduceOp::Max | ReduceOp::Min => match (self.data_type.size(), signed) {
                (1, true) => centred(hash, 127),
                (1, false) => below(hash, 256),
                (_, true) => centred(hash, 100_000),
                (_, false) => below(hash, 200_000),
            },
            ReduceOp::Prod => {
                let odd = 1 + 2 * below(hash, 4);
                let even = self.position(rank, index) == 0 && index % 3 == 1;
                let sign = if signed && hash & 1 << 40 != 0 { -1 } else { 1 };
                sign * odd * if even { 2 } else { 1 }
            }
            ReduceOp::Avg => {
                // The sum must not overflow, since what an overflowed average is nobody says.
                let limit: u32 = match (self.data_type.size(), signed) {
                    (1, true) => 127,
                    (1, false) => 255,
                    _ => u32::MAX,
                };
                let middle = (limit / self.size).min(3);
                if middle == 0 && !signed { 0 } else { self.balanced(rank, index, middle) }
            }
        };
        i64::from(value)
    }

    /// Values whose average over the ranks is a whole number in 1..=`greatest` (0 if that is 0).
    fn balanced(&self, rank: u32, index: u64, greatest: u32) -> i32 {
        let middle =
            if greatest == 0 { 0 } else { 1 + below(self.hash(u32::MAX, index), greatest) };
        let position = self.position(rank, index);
        let paired = (position | 1) < u64::from(self.size);
        match (paired, position % 2) {
            (false, _) => middle,
            (true, 0) => middle + 1,
            (true, _) => middle - 1,
        }
    }

    /// The rank's place in a row that turns with the index.
    fn position(&self, rank: u32, index: u64) -> u64 {
        (u64::from(rank) + index) % u64::from(self.size)
    }

    fn hash(&self, rank: u32, index: u64) -> u64 {
        let seed = index
            .wrapping_add(u64::from(rank) << 20)
            .wrapping_add(self.round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A number in 0..`bound`.
fn below(hash: u64, bound: u32) -> i32 {
    i32::try_from((hash >> 8) % u64::from(bound)).unwrap_or(0)
}

/// A number in -`greatest`..=`greatest`.
fn centred(hash: u64, greatest: u32) -> i32 {
    below(hash, 2 * greatest + 1) - i32::try_from(greatest).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::element::decode;
    use super::*;

    fn values(data_type: DataType, op: Option<ReduceOp>, size: u32) -> Values {
        Values { data_type, op, size, round: 7 }
    }

    #[test]
    fn inputs_are_exact_in_every_type_for_every_reduction() {
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                for size in [1, 2, 3, 8, 64, 300] {
                    let values = values(data_type, Some(op), size);
                    for (rank, index) in [(0, 0), (size - 1, 1), (size / 2, 4), (0, 65_000)] {
                        let exact = values.operand(op, rank, index);
                        let bytes = encode(data_type, exact);
                        let read = decode(data_type, &bytes[..data_type.size()]);
                        assert_eq!(read, exact, "{data_type} {op} {size} {rank} {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn averages_are_whole_and_products_stay_in_range() {
        for size in [1, 2, 3, 5, 8, 64, 300] {
            for index in 0..100 {
                for data_type in DataType::ALL {
                    let values = values(data_type, None, size);
                    match values.result(ReduceOp::Avg, index) {
                        Number::Float(mean) => assert!((1.0..=3.0).contains(&mean)),
                        Number::Integer(mean) => assert!((0..=3).contains(&mean)),
                    }
                    if let Number::Float(product) = values.result(ReduceOp::Prod, index) {
                        assert!(product.abs() == 1.0 || product.abs() == 2.0);
                    }
                }
            }
        }
    }

    #[test]
    fn every_rank_matters() {
        // Leaving out one rank's input changes a good part of the sums.
        let values = values(DataType::F8e4m3, Some(ReduceOp::Sum), 4);
        for rank in 0..4 {
            let changed = (0..100).filter(|i| values.float(ReduceOp::Sum, rank, *i) != 0.0).count();
            assert!(changed > 50, "rank {rank}: {changed}");
        }
    }

    #[test]
    fn patterns_fill_and_compare_over_the_seam() {
        let values = values(DataType::U32, None, 2);
        let pattern = values.input(1, 200_000);
        let mut buffer = vec![0_u8; 4 * 200_000];
        pattern.fill(&mut buffer, 0);
        assert_eq!(pattern.wrong(&buffer, 0), 0);
        assert_eq!(pattern.wrong(&buffer[4 * 70_000..], 70_000), 0);
        buffer[4 * 65_521 + 2] ^= 1;
        buffer[3] ^= 1;
        assert_eq!(pattern.wrong(&buffer, 0), 2);
        assert!(pattern.wrong(&buffer[4..], 0) > 199_000);
    }

    #[test]
    fn rounds_and_ranks_differ() {
        let one = values(DataType::U64, None, 2);
        let other = Values { round: 8, ..one };
        let mut buffer = vec![0_u8; 800];
        one.input(0, 100).fill(&mut buffer, 0);
        assert_eq!(other.input(0, 100).wrong(&buffer, 0), 100);
        assert_eq!(one.input(1, 100).wrong(&buffer, 0), 100);
    }
}

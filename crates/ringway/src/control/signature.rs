//! What a call is: the fields on which all ranks must agree.
//!
//! The 32-bit [`Signature::tag`] rides in the first control word of every operation; the whole
//! signature is kept in the journal and travels only when tags differ.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::OperationName;
use crate::plan::types::{Collective, DataType, Level, Rank, ReduceOp};

/// One call of a communicator, as every rank must have made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signature {
    /// Position in the communicator's sequence of operations, from 0.
    pub sequence: u64,
    /// Which collective.
    pub collective: Collective,
    /// Elements, as the caller gave them.
    pub count: u64,
    /// Element type, where data moves.
    pub data_type: Option<DataType>,
    /// Reduction, where values are combined.
    pub op: Option<ReduceOp>,
    /// The special rank, where there is one.
    pub root: Option<Rank>,
    /// What the bits of the result may depend on.
    pub level: Level,
    /// Hash of whatever else must agree: per-rank counts, layout.
    pub extra: u64,
}

/// The code of an absent field inside a packed word.
const ABSENT: u8 = u8::MAX;

impl Signature {
    /// A hash of every field, sequence included; never 0, so that 0 can mean "nothing written".
    ///
    /// The four packed words go through a multiply-and-fold round each (the constants are
    /// xxHash's primes), then through the finaliser of MurmurHash3; the halves are folded.
    /// The same on every machine: it does not depend on byte order or pointer width.
    #[must_use]
    pub fn tag(&self) -> u32 {
        let mut hash = 0x27d4_eb2f_1656_67c5_u64;
        for word in self.words() {
            hash = (hash ^ word).wrapping_mul(0x9e37_79b1_85eb_ca87);
            hash ^= hash >> 32;
        }
        hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
        let folded = u32::try_from((hash ^ (hash >> 32)) & 0xffff_ffff).unwrap_or(1);
        folded.max(1)
    }

    /// A hash of this call and all before it, of which `history` is the hash; never 0.
    #[must_use]
    pub fn tag_after(&self, history: u32) -> u32 {
        let mixed =
            (u64::from(history) << 32 | u64::from(self.tag())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        u32::try_from((mixed ^ (mixed >> 29)) >> 32).map_or(1, |tag| tag.max(1))
    }

    /// The call without its size in bytes: `all_reduce of 1024 float sum`.
    #[must_use]
    pub fn call(&self) -> String {
        let mut text = self.collective.name().to_owned();
        if let Some(data_type) = self.data_type {
            text += &format!(" of {} {data_type}", self.count);
        }
        if let Some(op) = self.op {
            text += &format!(" {op}");
        }
        if let Some(root) = self.root {
            text += &format!(" with root {root}");
        }
        text
    }

    /// The operation, as errors name it.
    #[must_use]
    pub fn operation(&self) -> OperationName {
        OperationName { sequence: self.sequence, call: self.to_string() }
    }

    /// The fields in which this call differs from `other`: `count 1000 instead of 1024`.
    /// Empty when the two are equal.
    #[must_use]
    pub fn difference(&self, other: &Self) -> String {
        fn word<T: fmt::Display>(value: Option<T>) -> String {
            value.map_or_else(|| "none".to_owned(), |v| v.to_string())
        }
        let fields = [
            ("sequence", self.sequence.to_string(), other.sequence.to_string()),
            ("collective", self.collective.to_string(), other.collective.to_string()),
            ("count", self.count.to_string(), other.count.to_string()),
            ("type", word(self.data_type), word(other.data_type)),
            ("reduction", word(self.op), word(other.op)),
            ("root", word(self.root), word(other.root)),
            ("level", self.level.to_string(), other.level.to_string()),
            ("layout", format!("{:#x}", self.extra), format!("{:#x}", other.extra)),
        ];
        let differing = fields.iter().filter(|(_, mine, theirs)| mine != theirs);
        let parts: Vec<_> = differing.map(|(f, m, t)| format!("{f} {m} instead of {t}")).collect();
        parts.join(", ")
    }

    /// The signature as four words: sequence, count, extra, and
    /// `collective | type << 8 | op << 16 | level << 24 | root << 32`.
    pub(super) fn words(&self) -> [u64; 4] {
        let small = [
            self.collective as u8,
            self.data_type.map_or(ABSENT, |t| t as u8),
            self.op.map_or(ABSENT, |o| o as u8),
            self.level as u8,
        ];
        let root = u64::from(self.root.unwrap_or(Rank::MAX));
        [self.sequence, self.count, self.extra, u64::from(u32::from_le_bytes(small)) | root << 32]
    }

    /// The inverse of [`Signature::words`]; `None` for words that no signature has.
    pub(super) fn from_words([sequence, count, extra, packed]: [u64; 4]) -> Option<Self> {
        let [collective, data_type, op, level, r0, r1, r2, r3] = packed.to_le_bytes();
        let root = Rank::from_le_bytes([r0, r1, r2, r3]);
        Some(Self {
            sequence,
            collective: *Collective::ALL.get(usize::from(collective))?,
            count,
            data_type: match data_type {
                ABSENT => None,
                code => Some(*DataType::ALL.get(usize::from(code))?),
            },
            op: match op {
                ABSENT => None,
                code => Some(*ReduceOp::ALL.get(usize::from(code))?),
            },
            root: (root != Rank::MAX).then_some(root),
            level: *[Level::Run, Level::Shape].get(usize::from(level))?,
            extra,
        })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.call())?;
        match self.data_type {
            Some(t) => write!(f, " ({} bytes)", self.count.saturating_mul(t.size() as u64)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The call most tests make.
    pub(in crate::control) fn all_reduce(sequence: u64, count: u64) -> Signature {
        Signature {
            sequence,
            collective: Collective::AllReduce,
            count,
            data_type: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            root: None,
            level: Level::Run,
            extra: 0,
        }
    }

    #[test]
    fn says_what_was_called() {
        let call = all_reduce(7, 262_144);
        assert_eq!(call.to_string(), "all_reduce of 262144 float sum (1048576 bytes)");
        let barrier = Signature {
            collective: Collective::Barrier,
            count: 0,
            data_type: None,
            op: None,
            ..call
        };
        assert_eq!(barrier.to_string(), "barrier");
        let broadcast = Signature {
            collective: Collective::Broadcast,
            op: None,
            root: Some(3),
            count: 2,
            ..call
        };
        assert_eq!(broadcast.to_string(), "broadcast of 2 float with root 3 (8 bytes)");
    }

    #[test]
    fn names_each_differing_field() {
        let one = all_reduce(7, 1000);
        assert_eq!(one.difference(&one), "");
        assert_eq!(one.difference(&all_reduce(7, 1024)), "count 1000 instead of 1024");
        let other = Signature { op: None, root: Some(2), level: Level::Shape, extra: 9, ..one };
        assert_eq!(
            other.difference(&one),
            "reduction none instead of sum, root 2 instead of none, \
             level shape instead of run, layout 0x9 instead of 0x0"
        );
    }

    #[test]
    fn tags_of_neighbouring_calls_differ() {
        let mut tags = BTreeSet::new();
        for sequence in 0..200 {
            for count in 0..200 {
                tags.insert(all_reduce(sequence, count).tag());
            }
        }
        assert!(!tags.contains(&0));
        // 40,000 values in 2^32: about 0.2 collisions are expected of a perfect hash.
        assert!(tags.len() >= 40_000 - 4, "{} distinct tags", tags.len());
    }

    proptest! {
        #[test]
        fn words_hold_every_field(
            sequence: u64, count: u64, extra: u64, kind in 0usize..10, t in 0usize..13,
            op in 0usize..7, root in proptest::option::of(0u32..u32::MAX), shape: bool,
        ) {
            let call = Signature {
                sequence, count, extra, root,
                collective: Collective::ALL[kind],
                data_type: DataType::ALL.get(t).copied(),
                op: ReduceOp::ALL.get(op).copied(),
                level: if shape { Level::Shape } else { Level::Run },
            };
            prop_assert_eq!(Signature::from_words(call.words()), Some(call));
            let text = serde_json::to_string(&call).unwrap();
            prop_assert_eq!(serde_json::from_str::<Signature>(&text).unwrap(), call);
        }

        #[test]
        fn any_words_are_read_without_panic(words: [u64; 4]) {
            let _ = Signature::from_words(words);
        }
    }
}

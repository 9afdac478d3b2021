//! The shared vocabulary: ranks, element types, reductions, collectives, levels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A process (or thread) of a communicator, numbered from 0.
pub type Rank = u32;

/// Element types, numbered as `ncclDataType_t` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DataType {
    /// Signed 8-bit integer.
    I8 = 0,
    /// Unsigned 8-bit integer.
    U8 = 1,
    /// Signed 32-bit integer.
    I32 = 2,
    /// Unsigned 32-bit integer.
    U32 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Unsigned 64-bit integer.
    U64 = 5,
    /// IEEE half precision.
    F16 = 6,
    /// IEEE single precision.
    F32 = 7,
    /// IEEE double precision.
    F64 = 8,
    /// Brain float: the upper half of an `F32`.
    Bf16 = 9,
    /// 8-bit float, 4 exponent bits, no infinities (`e4m3fn`).
    F8e4m3 = 10,
    /// 8-bit float, 5 exponent bits, IEEE-like.
    F8e5m2 = 11,
}

impl DataType {
    /// Every type, in numeric order.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F8e4m3,
        Self::F8e5m2,
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8e4m3 | Self::F8e5m2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The type in which reductions of this type accumulate: 16- and 8-bit floats widen to
    /// [`DataType::F32`] and are rounded once, at the end; every other type is its own.
    #[must_use]
    pub const fn accumulator(self) -> Self {
        match self {
            Self::F16 | Self::Bf16 | Self::F8e4m3 | Self::F8e5m2 => Self::F32,
            other => other,
        }
    }

    /// The name nccl-tests prints and takes (`-d`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
            Self::F16 => "half",
            Self::F32 => "float",
            Self::F64 => "double",
            Self::Bf16 => "bfloat16",
            Self::F8e4m3 => "f8e4m3",
            Self::F8e5m2 => "f8e5m2",
        }
    }

    /// Whether the type is a floating-point type.
    #[must_use]
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::I8 | Self::U8 | Self::I32 | Self::U32 | Self::I64 | Self::U64)
    }
}

/// A word that names no known thing of its kind.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{kind} {given:?} is not known; choose one of {choices}")]
pub struct UnknownName {
    /// What was looked for: "data type", "reduction", …
    pub kind: &'static str,
    /// The word that was given.
    pub given: String,
    /// The words that would have been taken.
    pub choices: String,
}

fn unknown<'a>(
    kind: &'static str,
    given: &str,
    choices: impl Iterator<Item = &'a str>,
) -> UnknownName {
    UnknownName { kind, given: given.to_owned(), choices: choices.collect::<Vec<_>>().join(", ") }
}

impl FromStr for DataType {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        Ok(match word.to_ascii_lowercase().as_str() {
            "int8" | "char" | "i8" => Self::I8,
            "uint8" | "u8" => Self::U8,
            "int32" | "int" | "i32" => Self::I32,
            "uint32" | "u32" => Self::U32,
            "int64" | "i64" => Self::I64,
            "uint64" | "u64" => Self::U64,
            "half" | "float16" | "fp16" | "f16" => Self::F16,
            "float" | "float32" | "fp32" | "f32" => Self::F32,
            "double" | "float64" | "fp64" | "f64" => Self::F64,
            "bfloat16" | "bf16" => Self::Bf16,
            "f8e4m3" | "fp8e4m3" | "float8e4m3" => Self::F8e4m3,
            "f8e5m2" | "fp8e5m2" | "float8e5m2" => Self::F8e5m2,
            _ => {
                return Err(unknown("data type", word, Self::ALL.iter().map(|t| t.name())));
            }
        })
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reductions, numbered as `ncclRedOp_t` numbers them (`PreMulSum` is a dynamic value there).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum.
    Sum = 0,
    /// Product.
    Prod = 1,
    /// Greatest.
    Max = 2,
    /// Least.
    Min = 3,
    /// Sum divided by the number of ranks, once, at the end.
    Avg = 4,
    /// Sum of the ranks' values, each multiplied by that rank's scalar as it is read.
    PreMulSum = 5,
}

impl ReduceOp {
    /// Every reduction.
    pub const ALL: [Self; 6] =
        [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulSum];

    /// The name nccl-tests prints and takes (`-o`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::PreMulSum => "mulsum",
        }
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let lower = word.to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|op| op.name() == lower || (lower == "premulsum" && *op == Self::PreMulSum))
            .ok_or_else(|| unknown("reduction", word, Self::ALL.iter().map(|op| op.name())))
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The collectives. The `-v` forms are the same collectives with unequal counts
/// .
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Collective {
    /// Every rank gets the reduction of all inputs.
    AllReduce = 0,
    /// Every rank gets all inputs, in rank order.
    AllGather = 1,
    /// Rank `i` gets block `i` of the reduction.
    ReduceScatter = 2,
    /// Every rank gets the root's input.
    Broadcast = 3,
    /// The root gets the reduction of all inputs.
    Reduce = 4,
    /// The root gets all inputs, in rank order.
    Gather = 5,
    /// Rank `i` gets block `i` of the root's input.
    Scatter = 6,
    /// Rank `i` gets block `i` of every rank's input, in rank order.
    AllToAll = 7,
    /// Nobody leaves before everybody has entered.
    Barrier = 8,
    /// A batch of point-to-point sends and receives.
    SendRecv = 9,
}

impl Collective {
    /// Every collective.
    pub const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
        Self::SendRecv,
    ];

    /// Whether ranks have a block each of what the call is about.
    #[must_use]
    pub const fn deals_blocks(self) -> bool {
        matches!(
            self,
            Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter | Self::AllToAll
        )
    }

    /// Whether nobody leaves such a call before all have come.
    #[must_use]
    pub const fn waits_for_all(self) -> bool {
        matches!(
            self,
            Self::AllReduce
                | Self::AllGather
                | Self::ReduceScatter
                | Self::AllToAll
                | Self::Barrier
        )
    }

    /// The factor from algorithm bandwidth to bus bandwidth, as nccl-tests has it: with it the bandwidth of the links is
    /// compared, whatever the collective and however many ranks.
    #[must_use]
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            collective if collective.deals_blocks() => (ranks - 1.0) / ranks,
            _ => 1.0,
        }
    }

    /// The name used on the command line and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::SendRecv => "send_recv",
        }
    }

    /// Whether the collective combines values (and so has a [`ReduceOp`]).
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether one rank is special.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }
}

impl FromStr for Collective {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let lower = word.to_ascii_lowercase().replace('-', "_");
        let lower = lower.strip_suffix("_perf").unwrap_or(&lower);
        let plain = lower.replace('_', "");
        Self::ALL
            .into_iter()
            .find(|c| c.name().replace('_', "") == plain)
            .or(match plain.as_str() {
                "bcast" => Some(Self::Broadcast),
                _ => None,
            })
            .ok_or_else(|| unknown("collective", word, Self::ALL.iter().map(|c| c.name())))
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the bits of a reduction may depend on.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Level {
    /// Same job, same bits: the order is fixed by the plan, and the plan by the call.
    #[default]
    Run = 0,
    /// An element's bits depend only on the ranks' values in rank order: not on size, offset,
    /// algorithm, transport, lanes or placement. The reduction is the left fold
    /// `((v0 + v1) + v2) + …` in the accumulator type, rounded once.
    Shape = 1,
}

impl Level {
    /// The name used in settings and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Shape => "shape",
        }
    }
}

impl FromStr for Level {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        match word.to_ascii_lowercase().as_str() {
            "run" => Ok(Self::Run),
            "shape" => Ok(Self::Shape),
            _ => Err(unknown("determinism level", word, ["run", "shape"].into_iter())),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The type of the values in a span of memory, relative to the call's [`DataType`].
///
/// Reductions of narrow floats carry their partial results in the wider accumulator type, so
/// that rounding happens once. Partial results therefore stand in scratch memory as
/// [`Form::Accumulator`]; inputs and outputs are always [`Form::Element`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Values of the call's own type.
    Element,
    /// Partial results in [`DataType::accumulator`].
    Accumulator,
}

impl Form {
    /// The type of one value of this form.
    #[must_use]
    pub const fn data_type(self, element: DataType) -> DataType {
        match self {
            Self::Element => element,
            Self::Accumulator => element.accumulator(),
        }
    }

    /// Bytes of one value of this form.
    #[must_use]
    pub const fn size(self, element: DataType) -> usize {
        self.data_type(element).size()
    }
}

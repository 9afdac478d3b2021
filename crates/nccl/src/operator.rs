//! Reductions: those of NCCL, and those a program makes with `ncclRedOpCreatePreMulSum`.
//!
//! A program's own are numbers from 5 on, of one communicator; a number is never used twice, so that
//! one that was destroyed is told from those that live.

use std::collections::HashMap;
use std::ffi::c_int;

use ringway::reduce::Scalar;
use ringway::{DataType, Error, ReduceOp, Result};

use crate::memory::{Memory, memory_of};
use crate::raw::In;
use crate::types::NUM_OPS;

/// The greatest whole number up to which every one is a double, as which factors travel.
const EXACT_MAX: u64 = 1 << 53;

/// The factor of a premultiplied sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Factor {
    /// Known when the reduction was made.
    Given(f64),
    /// To be read when the reduction runs.
    At {
        /// Where.
        scalar: In<u8>,
        /// What is there.
        data_type: DataType,
    },
}

impl Factor {
    /// The factor, as this rank's call needs it now.
    pub(crate) fn value(self) -> Result<f64> {
        match self {
            Self::Given(value) => Ok(value),
            Self::At { scalar, data_type } => read(scalar, data_type),
        }
    }
}

/// The factor that stands somewhere.
pub(crate) fn read(scalar: In<u8>, data_type: DataType) -> Result<f64> {
    if memory_of(scalar.address()) == Memory::Device {
        return Err(Error::usage(
            "a scalar in GPU memory goes with buffers in GPU memory; use ncclScalarHostImmediate",
        ));
    }
    from_bytes(data_type, &scalar.read_many("scalar", data_type.size())?)
}

#[expect(clippy::cast_precision_loss, reason = "looked at before")]
fn from_bytes(data_type: DataType, bytes: &[u8]) -> Result<f64> {
    let scalar = Scalar::from_bytes(data_type, bytes)
        .ok_or_else(|| Error::internal("a scalar of the wrong size"))?;
    let bits = scalar.bits().to_le_bytes();
    let low = [bits[0], bits[1], bits[2], bits[3]];
    let whole = |value: i64| {
        if value.unsigned_abs() > EXACT_MAX {
            return Err(too_large(&value.to_string()));
        }
        Ok(value as f64)
    };
    match scalar.data_type() {
        DataType::F32 => Ok(f32::from_le_bytes(low).into()),
        DataType::F64 => Ok(f64::from_le_bytes(bits)),
        DataType::I8 => Ok(i8::from_le_bytes([bits[0]]).into()),
        DataType::U8 => Ok(bits[0].into()),
        DataType::I32 => Ok(i32::from_le_bytes(low).into()),
        DataType::U32 => Ok(u32::from_le_bytes(low).into()),
        DataType::I64 => whole(i64::from_le_bytes(bits)),
        _ => {
            let value = u64::from_le_bytes(bits);
            whole(i64::try_from(value).map_err(|_| too_large(&value.to_string()))?)
        }
    }
}

fn too_large(value: &str) -> Error {
    Error::argument(format!("the factor {value} is beyond 2^53, the largest this library takes"))
}

/// The reductions of one communicator that its program made.
#[derive(Debug)]
pub(crate) struct Operators {
    made: HashMap<c_int, (DataType, Factor)>,
    next: c_int,
}

impl Default for Operators {
    fn default() -> Self {
        Self { made: HashMap::new(), next: NUM_OPS }
    }
}

impl Operators {
    /// A new reduction of values of this type.
    pub(crate) fn make(&mut self, data_type: DataType, factor: Factor) -> Result<c_int> {
        let number = self.next;
        self.next =
            number.checked_add(1).ok_or_else(|| Error::usage("too many reductions made"))?;
        self.made.insert(number, (data_type, factor));
        Ok(number)
    }

    /// Destroys a reduction.
    pub(crate) fn destroy(&mut self, number: c_int) -> Result<()> {
        if (0..NUM_OPS).contains(&number) {
            return Err(Error::argument(format!(
                "reduction {number} is one of NCCL's own and cannot be destroyed"
            )));
        }
        self.made.remove(&number).map(|_| ()).ok_or_else(|| unknown(number))
    }

    /// What a number means in a call on this type.
    pub(crate) fn find(
        &self,
        number: c_int,
        data_type: DataType,
    ) -> Result<(ReduceOp, Option<Factor>)> {
        let own = usize::try_from(number).ok().and_then(|number| ReduceOp::ALL.get(number));
        if let Some(op) = own.filter(|op| **op != ReduceOp::PreMulSum) {
            return Ok((*op, None));
        }
        let (made_for, factor) = *self.made.get(&number).ok_or_else(|| unknown(number))?;
        if made_for != data_type {
            return Err(Error::argument(format!(
                "reduction {number} was made for {made_for}, not for {data_type}"
            )));
        }
        Ok((ReduceOp::PreMulSum, Some(factor)))
    }
}

fn unknown(number: c_int) -> Error {
    Error::argument(format!(
        "reduction {number} does not exist: 0 to 4 are sum, prod, max, min and avg, others are made \
         by ncclRedOpCreatePreMulSum for one communicator, until they are destroyed"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_used_twice() {
        let mut all = Operators::default();
        let first = all.make(DataType::F32, Factor::Given(0.5)).unwrap();
        assert_eq!(first, NUM_OPS);
        all.destroy(first).unwrap();
        assert!(all.destroy(first).is_err());
        assert!(all.find(first, DataType::F32).is_err());
        let second = all.make(DataType::F32, Factor::Given(0.5)).unwrap();
        assert_ne!(first, second);
        let found = all.find(second, DataType::F32).unwrap();
        assert_eq!(found, (ReduceOp::PreMulSum, Some(Factor::Given(0.5))));
        let other = all.find(second, DataType::F64).unwrap_err();
        assert!(other.to_string().contains("made for float"), "{other}");
        assert_eq!(all.find(4, DataType::I8).unwrap(), (ReduceOp::Avg, None));
        assert!(all.find(-1, DataType::I8).is_err() && all.destroy(2).is_err());
    }

    #[test]
    fn factors_of_every_type_are_read() {
        let three = |data_type: DataType| match data_type {
            DataType::F16 => 0x4200_u16.to_ne_bytes().to_vec(),
            DataType::Bf16 => 0x4040_u16.to_ne_bytes().to_vec(),
            DataType::F32 => 3.0_f32.to_ne_bytes().to_vec(),
            DataType::F64 => 3.0_f64.to_ne_bytes().to_vec(),
            DataType::F8e4m3 => vec![0x44],
            DataType::F8e5m2 => vec![0x42],
            DataType::I8 | DataType::U8 => vec![3],
            DataType::I32 | DataType::U32 => 3_u32.to_ne_bytes().to_vec(),
            DataType::I64 | DataType::U64 => 3_u64.to_ne_bytes().to_vec(),
        };
        for data_type in DataType::ALL {
            let value = from_bytes(data_type, &three(data_type)).unwrap();
            assert!((value - 3.0).abs() < 1e-9, "{data_type}: {value}");
        }
        assert!((from_bytes(DataType::I8, &[0xff]).unwrap() + 1.0).abs() < 1e-9);
        assert!(from_bytes(DataType::U64, &[0xff; 8]).is_err());
        assert!(from_bytes(DataType::I64, &(-(1_i64 << 60)).to_ne_bytes()).is_err());
    }
}

#![allow(unsafe_code, reason = "calls a library it has compiled, and reductions by address")]
//! The arithmetic of device kernels, compiled for the host, against the host's own: the same bits for
//! every type and operation, NaNs aside.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;
use ringway::plan::types::Form;
use ringway::reduce::{Kernel, Operand, Scalar};
use ringway::{DataType, ReduceOp};

use crate::fakes;

/// As `Job` in C.
#[repr(C)]
#[derive(Debug)]
struct Job {
    result: *mut u8,
    operand: *const *const u8,
    scale: *const u64,
    count: u64,
    operands: u32,
    ranks: u32,
    scales: u32,
    packs: u32,
}

const JOB: &str = "struct Job {
    unsigned char* result;
    const unsigned char* const* operand;
    const unsigned long long* scale;
    unsigned long count;
    unsigned operands, ranks, scales, packs;
};
";

/// The header's folds by type and operation, compiled once; nothing where there is no compiler.
fn folds() -> Option<&'static Library> {
    static FOLDS: OnceLock<Option<Library>> = OnceLock::new();
    FOLDS
        .get_or_init(|| {
            if !fakes::compiler() {
                return None;
            }
            let package = Path::new(env!("CARGO_MANIFEST_DIR"));
            let header = package.join("src/device/kernels/arithmetic.h");
            let fold = package.join("tests/device/fold.h");
            let read = [header.clone(), fold.clone()];
            let source = every_variant(&header, &fold);
            let library = fakes::shared_library(
                "libfolds.so",
                std::slice::from_ref(&source),
                &read,
                &["-O1", "-ffp-contract=off", "-DRW_HOST"],
            );
            std::fs::remove_file(source).unwrap();
            // SAFETY: the library was just compiled from our sources and has no constructors.
            Some(unsafe { Library::new(library) }.unwrap())
        })
        .as_ref()
}

/// A source that takes the header in once for every type and operation.
fn every_variant(header: &Path, fold: &Path) -> PathBuf {
    let mut text = JOB.to_owned();
    for type_code in 0..12 {
        for op_code in 0..6 {
            write!(
                text,
                "#define RW_TYPE {type_code}\n#define RW_OP {op_code}\n\
                 namespace type{type_code}_op{op_code} {{\n\
                 #include {header:?}\n#include {fold:?}\n}}\n\
                 extern \"C\" void fold_{type_code}_{op_code}(const Job* job) {{\n    \
                 type{type_code}_op{op_code}::fold(*job);\n}}\n\
                 #undef RW_TYPE\n#undef RW_OP\n"
            )
            .unwrap();
        }
    }
    // Its name tells processes apart, not its text: the library is kept by the latter.
    let source = fakes::cache().join(format!("folds-{}.cpp", std::process::id()));
    std::fs::create_dir_all(fakes::cache()).unwrap();
    std::fs::write(&source, text).unwrap();
    source
}

/// Folds operands both ways, by packs and one by one, and by the host, and compares.
fn compare(
    data_type: DataType,
    op: ReduceOp,
    ranks: u32,
    operands: &[Vec<u8>],
    scales: Option<&[u64]>,
) {
    let Some(folds) = folds() else { return };
    let count = operands[0].len() / data_type.size();
    let name = format!("fold_{}_{}", data_type as u32, op as u32);
    // SAFETY: every_variant wrote the functions of these names and of this type.
    let fold = unsafe { folds.get::<unsafe extern "C" fn(*const Job)>(name.as_bytes()) }.unwrap();

    let mut expected = vec![0_u8; operands[0].len()];
    let given: Vec<Operand> = operands
        .iter()
        .enumerate()
        .map(|(i, bytes)| Operand {
            address: bytes.as_ptr(),
            form: Form::Element,
            scale: scales.map(|scales| Scalar::from_bits(data_type, scales[i])),
        })
        .collect();
    let kernel = Kernel::new(data_type, op, ranks);
    // SAFETY: all operands and the result hold `count` elements, and nobody else has them.
    unsafe { kernel.reduce(expected.as_mut_ptr(), Form::Element, true, &given, count) };

    let addresses: Vec<*const u8> = operands.iter().map(|bytes| bytes.as_ptr()).collect();
    for packs in [0, 1] {
        let mut result = vec![0_u8; expected.len()];
        let job = Job {
            result: result.as_mut_ptr(),
            operand: addresses.as_ptr(),
            scale: scales.map_or(std::ptr::null(), <[u64]>::as_ptr),
            count: count as u64,
            operands: u32::try_from(operands.len()).unwrap(),
            ranks,
            scales: scales.is_some().into(),
            packs,
        };
        // SAFETY: all operands and the result hold `count` elements; there is a scale for each.
        unsafe { fold(&raw const job) };
        let size = data_type.size();
        for i in 0..count {
            let [ours, hosts] =
                [&result, &expected].map(|bytes| bits(&bytes[i * size..(i + 1) * size]));
            let nans = is_nan(data_type, ours) && is_nan(data_type, hosts);
            assert!(
                ours == hosts || nans,
                "{data_type} {op} of {:x?} (scales {scales:x?}, ranks {ranks}, packs {packs}): \
                 {ours:#x}, and on the host {hosts:#x}",
                operands.iter().map(|b| bits(&b[i * size..(i + 1) * size])).collect::<Vec<_>>()
            );
        }
    }
}

/// An element's bits, in the low bits.
fn bits(element: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(wide)
}

fn is_nan(data_type: DataType, bits: u64) -> bool {
    let beyond = |mask: u64, infinity: u64| bits & mask > infinity;
    match data_type {
        DataType::F16 => beyond(0x7fff, 0x7c00),
        DataType::Bf16 => beyond(0x7fff, 0x7f80),
        DataType::F8e4m3 => beyond(0x7f, 0x7e),
        DataType::F8e5m2 => beyond(0x7f, 0x7c),
        DataType::F32 => beyond(0x7fff_ffff, 0x7f80_0000),
        DataType::F64 => beyond(0x7fff_ffff_ffff_ffff, 0x7ff0_0000_0000_0000),
        _ => false,
    }
}

/// The bytes of elements given by their low bits.
fn elements(data_type: DataType, bits: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let size = data_type.size();
    bits.into_iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect()
}

/// A stream of bits that is the same every time (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Bit patterns at the edges of a type: zeros, subnormals, ends of the range, infinities, NaNs.
fn special(data_type: DataType) -> Vec<u64> {
    let width = 8 * u32::try_from(data_type.size()).unwrap();
    let sign = 1_u64 << (width - 1);
    let infinity = match data_type {
        DataType::F16 => 0x7c00,
        DataType::Bf16 => 0x7f80,
        DataType::F8e4m3 => 0x78,
        DataType::F8e5m2 => 0x7c,
        DataType::F32 => 0x7f80_0000,
        DataType::F64 => 0x7ff0_0000_0000_0000,
        _ => sign >> 1,
    };
    // The least normal number, as an element.
    let normal = infinity & infinity.wrapping_neg();
    let one = match data_type {
        DataType::F16 => 0x3c00,
        DataType::Bf16 => 0x3f80,
        DataType::F8e4m3 => 0x38,
        DataType::F8e5m2 => 0x3c,
        DataType::F32 => 0x3f80_0000,
        DataType::F64 => 0x3ff0_0000_0000_0000,
        _ => 3,
    };
    let positive = [0, 1, 2, 3, normal - 1, normal, normal + 1, one - 1, one, one + 1]
        .into_iter()
        .chain([infinity - 2, infinity - 1, infinity, infinity + 1, sign - 2, sign - 1]);
    positive.flat_map(|bits| [bits, bits | sign]).collect()
}

/// Scalars worth multiplying by, in the accumulator type.
fn scalars(data_type: DataType) -> Vec<u64> {
    let accumulator = data_type.accumulator();
    let values = [1.0, -1.0, 0.5, 3.0, 1.0 / 3.0, 1e-3, 12345.678, 1e-30];
    let mut scalars: Vec<u64> =
        values.iter().map(|value| Scalar::from_f64(data_type, *value).bits()).collect();
    scalars.extend(special(accumulator));
    scalars
}

fn is_float(data_type: DataType) -> bool {
    data_type as u32 >= DataType::F16 as u32
}

/// Folds columns of operands with every operation; premultiplied sums with these scalars.
fn every_operation(data_type: DataType, operands: &[Vec<u8>], random: &mut Random) {
    let scalars = scalars(data_type);
    for op in ReduceOp::ALL {
        match op {
            ReduceOp::Avg => {
                for ranks in [1, 2, 3, 7, 8, 1000, 1 << 24, (1 << 31) + 1, u32::MAX] {
                    compare(data_type, op, ranks, operands, None);
                }
            }
            ReduceOp::PreMulSum => {
                for _ in 0..8 {
                    let pick = |random: &mut Random| {
                        let among = usize::try_from(random.next() % 64).unwrap();
                        scalars.get(among).copied().unwrap_or_else(|| random.next())
                    };
                    let scales: Vec<u64> = operands.iter().map(|_| pick(random)).collect();
                    compare(data_type, op, 1, operands, Some(&scales));
                }
            }
            // One operand with nothing to do is copied, which is not the arithmetic's business.
            _ if operands.len() == 1 => {}
            _ => compare(data_type, op, 1, operands, None),
        }
    }
}

#[test]
fn special_values_in_all_pairs_and_many_triples() {
    let mut random = Random(1);
    for data_type in DataType::ALL {
        let special = special(data_type);
        let pairs = || special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b)));
        let first = elements(data_type, pairs().map(|(a, _)| a));
        let second = elements(data_type, pairs().map(|(_, b)| b));
        every_operation(data_type, &[first.clone(), second.clone()], &mut random);
        for shift in 0..special.len() {
            let third = pairs().enumerate().map(|(i, _)| special[(i / 7 + shift) % special.len()]);
            let third = elements(data_type, third);
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
                let operands = [first.clone(), second.clone(), third.clone()];
                compare(data_type, op, 1, &operands, None);
            }
        }
    }
}

#[test]
fn all_halves_and_brain_floats() {
    let mut random = Random(2);
    for data_type in [DataType::F16, DataType::Bf16] {
        let all = elements(data_type, 0..65536);
        every_operation(data_type, std::slice::from_ref(&all), &mut random);
        for _ in 0..16 {
            // Every value meets another of all values.
            let (factor, shift) = (random.next() | 1, random.next());
            let mixed = (0..65536_u64).map(|i| i.wrapping_mul(factor).wrapping_add(shift));
            let other = elements(data_type, mixed);
            every_operation(data_type, &[all.clone(), other], &mut random);
        }
        for special in special(data_type) {
            let other = elements(data_type, std::iter::repeat_n(special, 65536));
            every_operation(data_type, &[all.clone(), other], &mut random);
        }
    }
}

#[test]
fn all_pairs_of_8_bit_values() {
    let mut random = Random(3);
    for data_type in [DataType::F8e4m3, DataType::F8e5m2, DataType::I8, DataType::U8] {
        let first = elements(data_type, (0..65536).map(|i| i & 0xff));
        let second = elements(data_type, (0..65536).map(|i| i >> 8));
        every_operation(data_type, std::slice::from_ref(&first), &mut random);
        for _ in 0..4 {
            every_operation(data_type, &[first.clone(), second.clone()], &mut random);
        }
    }
}

#[test]
fn random_values_with_one_to_eight_operands() {
    let mut random = Random(4);
    for data_type in DataType::ALL {
        for operands in 1..=8 {
            // A count that leaves part of a pack.
            let column = |random: &mut Random| {
                elements(data_type, (0..1003).map(|_| random.next()).collect::<Vec<_>>())
            };
            let wild: Vec<Vec<u8>> = (0..operands).map(|_| column(&mut random)).collect();
            every_operation(data_type, &wild, &mut random);
            // Floats of like size, whose sums round and cancel rather than keep the largest.
            if is_float(data_type) {
                let near = |random: &mut Random| {
                    let values = (0..1003).map(|_| near_one(data_type, random.next()));
                    elements(data_type, values.collect::<Vec<_>>())
                };
                let near: Vec<Vec<u8>> = (0..operands).map(|_| near(&mut random)).collect();
                every_operation(data_type, &near, &mut random);
            }
        }
    }
}

/// A float between 1/16 and 16, of either sign, made of random bits.
fn near_one(data_type: DataType, random: u64) -> u64 {
    let (mantissa, bias, width) = match data_type {
        DataType::F16 => (10, 15, 16),
        DataType::Bf16 => (7, 127, 16),
        DataType::F8e4m3 => (3, 7, 8),
        DataType::F8e5m2 => (2, 15, 8),
        DataType::F32 => (23, 127, 32),
        _ => (52, 1023, 64),
    };
    let fraction = random & ((1 << mantissa) - 1);
    let exponent = bias - 4 + (random >> 56) % 8;
    fraction | exponent << mantissa | ((random >> 55) & 1) << (width - 1)
}

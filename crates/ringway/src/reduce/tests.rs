//! Kernels against a reference that folds one value at a time.

use proptest::prelude::*;

use super::*;

/// A value in some accumulator type.
#[derive(Clone, Copy, Debug)]
enum Value {
    Integer(i128),
    Single(f32),
    Double(f64),
}

fn wrap(data_type: DataType, value: i128) -> i128 {
    let bits = 8 * u32::try_from(data_type.size()).unwrap();
    let low = value.rem_euclid(1 << bits);
    let signed = matches!(data_type, DataType::I8 | DataType::I32 | DataType::I64);
    if signed && low >= 1 << (bits - 1) { low - (1 << bits) } else { low }
}

fn decode(data_type: DataType, bytes: &[u8]) -> Value {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    let half = u16::from_le_bytes([wide[0], wide[1]]);
    match data_type {
        DataType::F16 => Value::Single(f16::from_bits(half).to_f32()),
        DataType::Bf16 => Value::Single(bf16::from_bits(half).to_f32()),
        DataType::F8e4m3 => Value::Single(F8E4M3(wide[0]).to_f32()),
        DataType::F8e5m2 => Value::Single(F8E5M2(wide[0]).to_f32()),
        DataType::F32 => Value::Single(f32::from_bits(u32::try_from(bits).unwrap())),
        DataType::F64 => Value::Double(f64::from_bits(bits)),
        _ => Value::Integer(wrap(data_type, bits.into())),
    }
}

fn encode(data_type: DataType, value: Value) -> Vec<u8> {
    match (data_type, value) {
        (DataType::F16, Value::Single(v)) => f16::from_f32(v).to_le_bytes().to_vec(),
        (DataType::Bf16, Value::Single(v)) => bf16::from_f32(v).to_le_bytes().to_vec(),
        (DataType::F8e4m3, Value::Single(v)) => vec![F8E4M3::from_f32(v).0],
        (DataType::F8e5m2, Value::Single(v)) => vec![F8E5M2::from_f32(v).0],
        (_, Value::Single(v)) => v.to_le_bytes().to_vec(),
        (_, Value::Double(v)) => v.to_le_bytes().to_vec(),
        (_, Value::Integer(v)) => v.to_le_bytes()[..data_type.size()].to_vec(),
    }
}

macro_rules! extreme {
    ($a:expr, $b:expr, $wanted:path) => {
        if $a.is_nan() || $b.is_nan() {
            f32::NAN.into()
        } else if $a.total_cmp(&$b) == $wanted {
            $a
        } else {
            $b
        }
    };
}

fn combine(data_type: DataType, op: ReduceOp, a: Value, b: Value) -> Value {
    use std::cmp::Ordering::{Greater, Less};
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => Value::Integer(match op {
            ReduceOp::Prod => wrap(data_type, wrap(data_type, a.wrapping_mul(b))),
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
            _ => wrap(data_type, a + b),
        }),
        (Value::Single(a), Value::Single(b)) => Value::Single(match op {
            ReduceOp::Prod => a * b,
            ReduceOp::Max => extreme!(a, b, Greater),
            ReduceOp::Min => extreme!(a, b, Less),
            _ => a + b,
        }),
        (Value::Double(a), Value::Double(b)) => Value::Double(match op {
            ReduceOp::Prod => a * b,
            ReduceOp::Max => extreme!(a, b, Greater),
            ReduceOp::Min => extreme!(a, b, Less),
            _ => a + b,
        }),
        _ => unreachable!("operands have one accumulator type"),
    }
}

fn divide(value: Value, ranks: u32) -> Value {
    match value {
        Value::Integer(v) => Value::Integer(v / i128::from(ranks)),
        Value::Single(v) => Value::Single(v / ranks as f32),
        Value::Double(v) => Value::Double(v / f64::from(ranks)),
    }
}

/// One call, with its operands' values as bytes.
#[derive(Clone, Debug)]
struct Call {
    data_type: DataType,
    op: ReduceOp,
    ranks: u32,
    dst_form: Form,
    finish: bool,
    operands: Vec<(Form, Option<Scalar>, Vec<u8>)>,
    count: usize,
}

impl Call {
    fn reference(&self) -> Vec<u8> {
        let accumulator = self.data_type.accumulator();
        let dst_type = self.dst_form.data_type(self.data_type);
        if let [(form, None, bytes)] = &self.operands[..]
            && form.data_type(self.data_type) == dst_type
            && !(self.finish && self.op == ReduceOp::Avg)
        {
            return bytes.clone();
        }
        let mut result = Vec::new();
        for i in 0..self.count {
            let mut sum: Option<Value> = None;
            for (form, scale, bytes) in &self.operands {
                let size = form.size(self.data_type);
                let form = form.data_type(self.data_type);
                let mut value = decode(form, &bytes[i * size..(i + 1) * size]);
                if let Some(scale) = scale {
                    let bits = scale.bits().to_le_bytes();
                    let scale = decode(accumulator, &bits[..accumulator.size()]);
                    value = combine(accumulator, ReduceOp::Prod, value, scale);
                }
                sum = Some(sum.map_or(value, |sum| combine(accumulator, self.op, sum, value)));
            }
            let mut sum = sum.unwrap();
            if self.finish && self.op == ReduceOp::Avg {
                sum = divide(sum, self.ranks);
            }
            result.extend(encode(dst_type, sum));
        }
        result
    }

    /// Runs the kernel on buffers that start `shift` bytes off alignment, with the destination in
    /// place of operand `in_place`, and checks that nothing else was written.
    fn run(&self, isa: Isa, shift: usize, in_place: Option<usize>) -> Vec<u8> {
        const GUARD: usize = 64;
        let kernel = Kernel::with_isa(self.data_type, self.op, self.ranks, isa).unwrap();
        let guarded = |bytes: &[u8]| {
            let mut buffer = vec![0xa5; GUARD + shift];
            buffer.extend(bytes);
            buffer.resize(buffer.len() + GUARD, 0xa5);
            buffer
        };
        let bytes = self.count * self.dst_form.size(self.data_type);
        let sources: Vec<Vec<u8>> = self.operands.iter().map(|(_, _, b)| guarded(b)).collect();
        let before = in_place.map_or_else(|| guarded(&vec![0; bytes]), |j| sources[j].clone());
        let mut target = before.clone();
        let dst = target.as_mut_ptr().wrapping_add(GUARD + shift);
        let operands: Vec<Operand> = (0..)
            .zip(&self.operands)
            .map(|(j, (form, scale, _))| Operand {
                address: if in_place == Some(j) {
                    dst
                } else {
                    sources[j].as_ptr().wrapping_add(GUARD + shift)
                },
                form: *form,
                scale: *scale,
            })
            .collect();
        // SAFETY: every buffer has `count` values of its form between its guards.
        unsafe { kernel.reduce(dst, self.dst_form, self.finish, &operands, self.count) };
        let end = GUARD + shift + bytes;
        assert_eq!(target[..GUARD + shift], before[..GUARD + shift], "written before the target");
        assert_eq!(target[end..], before[end..], "written past the target");
        target[GUARD + shift..end].to_vec()
    }

    fn check(&self, shift: usize, in_place: Option<usize>) {
        let form = self.dst_form.data_type(self.data_type);
        let expected = self.reference();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let actual = self.run(isa, shift, in_place);
            assert_eq!(actual.len(), expected.len());
            let pairs = actual.chunks(form.size()).zip(expected.chunks(form.size()));
            for (i, (actual, expected)) in pairs.enumerate() {
                let nan = |bytes| match decode(form, bytes) {
                    Value::Single(v) => v.is_nan(),
                    Value::Double(v) => v.is_nan(),
                    Value::Integer(_) => false,
                };
                assert!(
                    actual == expected || (nan(actual) && nan(expected)),
                    "{isa} {} {} -> {:?}, {} operands: value {i} of {} is {:?}, not {:?}",
                    self.data_type,
                    self.op,
                    self.dst_form,
                    self.operands.len(),
                    self.count,
                    decode(form, actual),
                    decode(form, expected),
                );
            }
        }
    }
}

/// A stream of values that are often special: zeros, infinities, NaNs, extremes, subnormals.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        // The splitmix64 generator.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn value(&mut self, data_type: DataType) -> Vec<u8> {
        const SPECIAL: [f64; 12] = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            f64::MAX,
            448.0,
            65504.0,
            1e-40,
            f64::MIN_POSITIVE,
        ];
        let (kind, bits) = (self.next() % 8, self.next());
        let special = SPECIAL[usize::try_from(bits % 12).unwrap()];
        #[expect(clippy::cast_precision_loss, reason = "any value will do")]
        let modest = (bits % 4096) as f64 / 64.0 - 32.0;
        let float = if kind < 4 { modest } else { special };
        match data_type.accumulator() {
            DataType::F64 if kind < 6 => encode(data_type, Value::Double(float)),
            #[expect(clippy::cast_possible_truncation, reason = "any value will do")]
            DataType::F32 if kind < 6 => encode(data_type, Value::Single(float as f32)),
            _ => bits.to_le_bytes()[..data_type.size()].to_vec(),
        }
    }

    fn values(&mut self, data_type: DataType, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.value(data_type)).collect()
    }

    fn scalar(&mut self, data_type: DataType) -> Scalar {
        let bytes = self.value(data_type);
        Scalar::from_bytes(data_type, &bytes).unwrap()
    }

    fn call(&mut self, data_type: DataType, op: ReduceOp, forms: &[Form], count: usize) -> Call {
        let operands = forms
            .iter()
            .map(|form| {
                let scale = (op == ReduceOp::PreMulSum && *form == Form::Element)
                    .then(|| self.scalar(data_type));
                (*form, scale, self.values(form.data_type(data_type), count))
            })
            .collect();
        let (dst_form, finish) = (Form::Element, true);
        Call { data_type, op, ranks: 3, dst_form, finish, operands, count }
    }
}

#[test]
fn every_type_operation_and_form_matches_the_reference() {
    use Form::{Accumulator as Partial, Element as Fresh};
    let shapes: [&[Form]; 8] = [
        &[Fresh],
        &[Partial],
        &[Fresh, Fresh],
        &[Partial, Fresh],
        &[Fresh, Partial],
        &[Partial, Partial, Partial],
        &[Fresh; 5],
        &[Fresh; 16],
    ];
    let mut stream = Stream(1);
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            for (shift, shape) in shapes.iter().enumerate() {
                for count in [0, 1, 5, 63, 64, 65, 517] {
                    let call = stream.call(data_type, op, shape, count);
                    call.check(shift % 8, None);
                    let call = Call { dst_form: Form::Accumulator, ..call };
                    call.check(0, None);
                    Call { finish: false, ..call }.check(1, None);
                }
            }
        }
    }
}

#[test]
fn the_target_may_be_an_operand() {
    let mut stream = Stream(2);
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            for ways in [1, 2, 3] {
                let call = stream.call(data_type, op, &[Form::Element; 3][..ways], 333);
                for in_place in 0..ways {
                    call.check(in_place, Some(in_place));
                }
                let forms = [Form::Element, Form::Accumulator];
                let call = stream.call(data_type, op, &forms, 333);
                Call { dst_form: Form::Accumulator, finish: false, ..call }.check(0, Some(1));
            }
        }
    }
}

#[test]
fn averages_divide_by_any_number_of_ranks() {
    let mut stream = Stream(3);
    for data_type in DataType::ALL {
        for ranks in [1, 2, 7, 127, 128, 129, 255, 256, 1 << 20, (1 << 24) + 1, u32::MAX] {
            let call = stream.call(data_type, ReduceOp::Avg, &[Form::Element; 2], 300);
            Call { ranks, ..call }.check(0, None);
        }
    }
    for (low, ranks) in (i8::MIN..=i8::MAX).flat_map(|low| (1..=300).map(move |n| (low, n))) {
        let call = Call {
            data_type: DataType::I8,
            op: ReduceOp::Avg,
            ranks,
            dst_form: Form::Element,
            finish: true,
            operands: vec![(Form::Element, None, low.to_le_bytes().to_vec())],
            count: 1,
        };
        let expected = i32::from(low) / i32::try_from(ranks).unwrap();
        assert_eq!(call.run(Isa::best(), 0, None), [expected.to_le_bytes()[0]]);
    }
}

#[test]
fn zeros_are_ordered_and_nans_win() {
    let pick = |op, a: f32, b: f32| {
        let call = Call {
            data_type: DataType::F32,
            op,
            ranks: 2,
            dst_form: Form::Element,
            finish: true,
            operands: [a, b].map(|v| (Form::Element, None, v.to_le_bytes().to_vec())).to_vec(),
            count: 1,
        };
        call.check(0, None);
        f32::from_le_bytes(call.run(Isa::best(), 0, None).try_into().unwrap())
    };
    for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
        assert!(pick(ReduceOp::Max, a, b).is_sign_positive());
        assert!(pick(ReduceOp::Min, a, b).is_sign_negative());
    }
    for op in [ReduceOp::Max, ReduceOp::Min] {
        for other in [0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert!(pick(op, f32::NAN, other).is_nan() && pick(op, other, f32::NAN).is_nan());
        }
    }
}

/// Rounds `floats` to a narrow type on every processor path and compares with the definition.
fn check_rounding(data_type: DataType, floats: &[u32], expected: impl Fn(f32) -> u16) {
    let source: Vec<u8> = floats.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let call = Call {
        data_type,
        op: ReduceOp::Sum,
        ranks: 1,
        dst_form: Form::Element,
        finish: true,
        operands: vec![(Form::Accumulator, None, source)],
        count: floats.len(),
    };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let rounded = call.run(isa, 0, None);
        for (bits, actual) in floats.iter().zip(rounded.as_chunks::<2>().0) {
            // Here NaNs agree in their bits too: conversions keep sign and payload.
            let expected = expected(f32::from_bits(*bits));
            assert_eq!(u16::from_le_bytes(*actual), expected, "{isa} {data_type} {bits:#010x}");
        }
    }
}

fn check_rounding_of(step: usize) {
    let mut all = (0..=u32::MAX).step_by(step).peekable();
    while all.peek().is_some() {
        let floats: Vec<u32> = all.by_ref().take(1 << 16).collect();
        check_rounding(DataType::F16, &floats, float::f32_to_f16);
        check_rounding(DataType::Bf16, &floats, float::f32_to_bf16);
    }
}

#[test]
fn rounding_agrees_on_every_path() {
    check_rounding_of(2039);
    // Subnormals alone, and one among normals, take different ways through a vector.
    let subnormals: Vec<u32> = (0..0x0080_0000).step_by(257).collect();
    check_rounding(DataType::Bf16, &subnormals, float::f32_to_bf16);
    let mixed: Vec<u32> = (0..4096).map(|i| if i % 37 == 0 { i + 1 } else { i << 19 }).collect();
    check_rounding(DataType::Bf16, &mixed, float::f32_to_bf16);
}

#[test]
#[ignore = "all 2^32 floats: minutes"]
fn rounding_agrees_on_every_path_for_every_float() {
    check_rounding_of(1);
}

#[test]
fn widening_agrees_on_every_path() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    for data_type in [DataType::F16, DataType::Bf16, DataType::F8e4m3, DataType::F8e5m2] {
        let source = if data_type.size() == 2 { all.clone() } else { bytes.clone() };
        let call = Call {
            data_type,
            op: ReduceOp::Sum,
            ranks: 1,
            dst_form: Form::Accumulator,
            finish: false,
            count: source.len() / data_type.size(),
            operands: vec![(Form::Element, None, source)],
        };
        call.check(0, None);
    }
}

#[test]
fn scalars_widen_with_their_type() {
    assert_eq!(Scalar::new(bf16::from_f32(0.5)), Scalar::new(0.5_f32));
    assert_eq!(Scalar::new(F8E4M3::from_f32(-2.0)).bits(), u64::from((-2_f32).to_bits()));
    assert_eq!(Scalar::new(-1_i8).bits(), 0xff);
    assert_eq!(Scalar::new(0.1_f64).data_type(), DataType::F64);
    assert_eq!(Scalar::from_bytes(DataType::F32, &[0; 3]), None);
    let scalar = Scalar::new(f16::from_f32(3.0));
    assert_eq!(Scalar::from_bits(DataType::F16, scalar.bits()), scalar);
}

#[test]
fn kernels_can_be_shared() {
    fn shared<T: Copy + Send + Sync + fmt::Debug>() {}
    shared::<Kernel>();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_call_matches_the_reference(
        data_type in proptest::sample::select(&DataType::ALL[..]),
        op in proptest::sample::select(&ReduceOp::ALL[..]),
        partial in proptest::collection::vec(any::<bool>(), 1..20),
        count in 0_usize..700,
        ranks in 1_u32..5000,
        finish in any::<bool>(),
        shift in 0_usize..16,
        seed in any::<u64>(),
    ) {
        let forms: Vec<Form> = partial
            .iter()
            .map(|partial| if *partial { Form::Accumulator } else { Form::Element })
            .collect();
        let call = Stream(seed).call(data_type, op, &forms, count);
        let dst_form = if finish { Form::Element } else { Form::Accumulator };
        Call { ranks, finish, dst_form, ..call }.check(shift, None);
    }
}

//! Prints how fast the host reduction kernels run here.
//!
//! `cargo run --release --example reduce_speed [-- KIBIBYTES [TYPE]]`: bytes of the operands read,
//! per second, for buffers of that size (by default 64, which stay in the second-level cache).

#![allow(unsafe_code, reason = "kernels take addresses")]
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::time::{Duration, Instant};

use ringway::plan::types::{DataType, Form, ReduceOp};
use ringway::reduce::{Isa, Kernel, Operand, Scalar};

/// The least time of one reduction, over rounds that fill about 20 ms.
fn measure(kernel: &Kernel, target: &mut [u8], operands: &[Operand], count: usize) -> Duration {
    let started = Instant::now();
    let mut least = Duration::MAX;
    while started.elapsed() < Duration::from_millis(20) {
        let begin = Instant::now();
        // SAFETY: the target and every operand have `count` elements, and are distinct buffers.
        unsafe { kernel.reduce(target.as_mut_ptr(), Form::Element, true, operands, count) };
        least = least.min(begin.elapsed());
    }
    least
}

fn main() {
    let kibibytes: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(64);
    let only: Option<DataType> = std::env::args().nth(2).and_then(|name| name.parse().ok());
    let bytes = kibibytes * 1024;
    let sources: Vec<Vec<u8>> = (0..16).map(|_| vec![0x3a; bytes]).collect();
    let mut target = vec![0; bytes];
    println!("GB/s of operands read, {kibibytes} KiB each");
    println!("{:>9} {:>7} {:>12} {:>7} {:>7} {:>7} {:>7}", "type", "op", "isa", 1, 2, 4, 16);
    for data_type in DataType::ALL.into_iter().filter(|t| only.is_none_or(|o| o == *t)) {
        for op in ReduceOp::ALL {
            for isa in Isa::ALL {
                let Some(kernel) = Kernel::with_isa(data_type, op, 16, isa) else {
                    continue;
                };
                if isa == Isa::Avx512Bf16 && data_type != DataType::Bf16 {
                    continue;
                }
                print!("{data_type:>9} {op:>7} {isa:>12}");
                for ways in [1, 2, 4, 16] {
                    let scale = Scalar::from_bits(data_type, 0);
                    let operands: Vec<Operand> = sources[..ways]
                        .iter()
                        .map(|source| Operand {
                            address: source.as_ptr(),
                            form: Form::Element,
                            scale: (op == ReduceOp::PreMulSum).then_some(scale),
                        })
                        .collect();
                    let time = measure(&kernel, &mut target, &operands, bytes / data_type.size());
                    #[expect(clippy::cast_precision_loss, reason = "only to be printed")]
                    let rate = (ways * bytes) as f64 / time.as_secs_f64() / 1e9;
                    print!(" {rate:>7.1}");
                }
                println!();
            }
        }
    }
}

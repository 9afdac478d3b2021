//! A plain stand-in for the library: every rank gets every rank's input through rank 0 and
//! works out its own output. Slow, and independent of everything it is used to test.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use half::{bf16, f16};
use ringway_plan::types::{Collective, DataType, ReduceOp};

use super::{Call, Collectives, Pair};
use crate::launch::environment::Place;

const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(5);

pub(crate) struct StandIn {
    rank: u32,
    size: u32,
    /// At rank 0 one stream per other rank; elsewhere the one to rank 0.
    streams: Mutex<Vec<TcpStream>>,
}

impl StandIn {
    pub(crate) fn from_env(place: &Place) -> anyhow::Result<Self> {
        let root = std::env::var("RINGWAY_ROOT").context("RINGWAY_ROOT is not set")?;
        Self::connect(place.rank, place.size, &root)
    }

    pub(crate) fn connect(rank: u32, size: u32, root: &str) -> anyhow::Result<Self> {
        let mut streams = Vec::new();
        if rank == 0 && size > 1 {
            let listener = TcpListener::bind(root)
                .with_context(|| format!("rank 0 cannot listen on {root}"))?;
            let mut by_rank: Vec<Option<TcpStream>> = (1..size).map(|_| None).collect();
            for _ in 1..size {
                let (mut stream, _) = listener.accept()?;
                let mut who = [0; 4];
                stream.read_exact(&mut who)?;
                stream.set_nodelay(true)?;
                by_rank[u32::from_le_bytes(who) as usize - 1] = Some(stream);
            }
            streams = by_rank.into_iter().flatten().collect();
        } else if rank > 0 {
            let started = Instant::now();
            let mut stream = loop {
                match TcpStream::connect(root) {
                    Ok(stream) => break stream,
                    Err(error) if started.elapsed() > CONNECT_PATIENCE => {
                        return Err(error).context(format!("rank {rank} cannot reach {root}"));
                    }
                    Err(_) => std::thread::sleep(TICK),
                }
            };
            stream.set_nodelay(true)?;
            stream.write_all(&rank.to_le_bytes())?;
            streams.push(stream);
        }
        Ok(Self {
            rank,
            size,
            streams: Mutex::new(streams),
        })
    }

    /// Every rank's bytes (of any length) and scalar, in rank order.
    fn exchange(&self, own: &[u8], scalar: f64) -> anyhow::Result<Vec<(f64, Vec<u8>)>> {
        let Ok(mut streams) = self.streams.lock() else {
            bail!("a rank panicked")
        };
        let mut all = vec![(scalar, own.to_vec())];
        if self.rank == 0 {
            for stream in streams.iter_mut() {
                all.push(receive(stream)?);
            }
            for stream in streams.iter_mut() {
                for (scalar, bytes) in &all {
                    send(stream, *scalar, bytes)?;
                }
            }
        } else {
            let stream = &mut streams[0];
            send(stream, scalar, own)?;
            all = (0..self.size)
                .map(|_| receive(stream))
                .collect::<anyhow::Result<_>>()?;
        }
        Ok(all)
    }
}

fn send(stream: &mut TcpStream, scalar: f64, bytes: &[u8]) -> anyhow::Result<()> {
    stream.write_all(&scalar.to_le_bytes())?;
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)?;
    Ok(())
}

fn receive(stream: &mut TcpStream) -> anyhow::Result<(f64, Vec<u8>)> {
    let (mut scalar, mut length) = ([0; 8], [0; 8]);
    stream.read_exact(&mut scalar)?;
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; usize::try_from(u64::from_le_bytes(length))?];
    stream.read_exact(&mut bytes)?;
    Ok((f64::from_le_bytes(scalar), bytes))
}

impl Collectives for StandIn {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn describe(&self) -> String {
        "transport stand-in".to_owned()
    }

    fn call(&self, call: &Call, input: &[u8], output: &mut [u8]) -> anyhow::Result<()> {
        if let Ok(streams) = self.streams.lock() {
            for stream in streams.iter() {
                stream.set_read_timeout(call.deadline)?;
            }
        }
        let all = self.exchange(input, call.scalar)?;
        let bytes = call.count * call.data_type.size();
        let mine = self.rank as usize * bytes..(self.rank as usize + 1) * bytes;
        let is_root = self.rank == call.root;
        let result = match call.collective {
            Collective::AllReduce => reduce(call, &all),
            Collective::Reduce if is_root => reduce(call, &all),
            Collective::ReduceScatter => reduce(call, &all)[mine].to_vec(),
            Collective::Broadcast => all[call.root as usize].1.clone(),
            Collective::Scatter => all[call.root as usize].1[mine].to_vec(),
            Collective::AllGather => all.into_iter().flat_map(|(_, bytes)| bytes).collect(),
            Collective::Gather if is_root => all.into_iter().flat_map(|(_, b)| b).collect(),
            Collective::AllToAll => all
                .iter()
                .flat_map(|(_, b)| b[mine.clone()].to_vec())
                .collect(),
            _ => Vec::new(),
        };
        output[..result.len()].copy_from_slice(&result);
        Ok(())
    }

    fn call_in_place(&self, call: &Call, buffer: &mut [u8]) -> anyhow::Result<()> {
        let bytes = call.count * call.data_type.size();
        let mine = self.rank as usize * bytes..(self.rank as usize + 1) * bytes;
        let is_root = self.rank == call.root;
        match call.collective {
            Collective::AllGather => {
                let input = buffer[mine].to_vec();
                self.call(call, &input, buffer)
            }
            Collective::Gather if is_root => {
                let input = buffer[mine].to_vec();
                self.call(call, &input, buffer)
            }
            Collective::ReduceScatter => {
                let input = buffer.to_vec();
                self.call(call, &input, &mut buffer[mine])
            }
            Collective::Scatter if is_root => {
                let input = buffer.to_vec();
                self.call(call, &input, &mut buffer[mine])
            }
            _ => {
                let input = buffer.to_vec();
                self.call(call, &input, buffer)
            }
        }
    }

    fn send_recv(&self, _: &Call, pair: Pair<'_>) -> anyhow::Result<()> {
        let all = self.exchange(pair.send, f64::from(pair.to))?;
        let (to, bytes) = &all[pair.from as usize];
        if *to != f64::from(self.rank) {
            bail!(
                "rank {} sends to rank {to}, not to {}",
                pair.from,
                self.rank
            );
        }
        pair.receive.copy_from_slice(bytes);
        Ok(())
    }

    fn barrier(&self) -> anyhow::Result<()> {
        self.exchange(&[], 1.0).map(drop)
    }
}

fn reduce(call: &Call, all: &[(f64, Vec<u8>)]) -> Vec<u8> {
    match call.data_type {
        DataType::I8 => integers(call, all, |b| i8::from_le_bytes([b[0]]).into()),
        DataType::U8 => integers(call, all, |b| b[0].into()),
        DataType::I32 => integers(call, all, |b| i32::from_le_bytes(word(b)).into()),
        DataType::U32 => integers(call, all, |b| u32::from_le_bytes(word(b)).into()),
        DataType::I64 => integers(call, all, |b| i64::from_le_bytes(word(b))),
        DataType::U64 => integers(call, all, |b| u64::from_le_bytes(word(b)).cast_signed()),
        DataType::F64 => floats(
            call,
            all,
            |b| f64::from_le_bytes(word(b)),
            |v| v.to_le_bytes(),
        ),
        DataType::F32 => floats(
            call,
            all,
            |b| f32::from_le_bytes(word(b)).into(),
            |v| f32_of(v).to_le_bytes(),
        ),
        DataType::F16 => floats(
            call,
            all,
            |b| f16::from_le_bytes(word(b)).to_f64(),
            |v| f16::from_f64(v).to_le_bytes(),
        ),
        DataType::Bf16 => floats(
            call,
            all,
            |b| bf16::from_le_bytes(word(b)).to_f64(),
            |v| bf16::from_f64(v).to_le_bytes(),
        ),
        // e5m2 is the upper half of an f16; e4m3 is read and written by way of its table.
        DataType::F8e5m2 => floats(
            call,
            all,
            |b| f16::from_le_bytes([0, b[0]]).to_f64(),
            |v| {
                [nearest(
                    v,
                    |code| f16::from_le_bytes([0, code]).to_f64(),
                    0x7b,
                )]
            },
        ),
        DataType::F8e4m3 => floats(call, all, |b| e4m3(b[0]), |v| [nearest(v, e4m3, 0x7e)]),
    }
}

fn word<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(bytes);
    word
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding to the narrower type is the aim"
)]
fn f32_of(value: f64) -> f32 {
    value as f32
}

fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa * 2_f64.powi(-9),
        _ => (8.0 + mantissa) * 2_f64.powi(exponent - 10),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

fn nearest(value: f64, decode: impl Fn(u8) -> f64, greatest: u8) -> u8 {
    let distance = |code: &u8| (decode(*code) - value.abs()).abs();
    let best = (0..=greatest).min_by(|a, b| {
        distance(a)
            .total_cmp(&distance(b))
            .then((a % 2).cmp(&(b % 2)))
    });
    best.unwrap_or(0) | if value.is_sign_negative() { 0x80 } else { 0 }
}

fn integers(call: &Call, all: &[(f64, Vec<u8>)], decode: impl Fn(&[u8]) -> i64) -> Vec<u8> {
    let size = call.data_type.size();
    let ranks = i64::try_from(all.len()).unwrap_or(1);
    let elements = all[0].1.len() / size;
    (0..elements)
        .flat_map(|index| {
            let values = all.iter().map(|(scalar, bytes)| {
                let value = decode(&bytes[index * size..(index + 1) * size]);
                if call.op == ReduceOp::PreMulSum {
                    value * f64_to_int(*scalar)
                } else {
                    value
                }
            });
            let result = match call.op {
                ReduceOp::Sum | ReduceOp::PreMulSum => values.sum(),
                ReduceOp::Avg => values.sum::<i64>() / ranks,
                ReduceOp::Prod => values.fold(1, i64::wrapping_mul),
                ReduceOp::Max => values.max().unwrap_or(0),
                ReduceOp::Min => values.min().unwrap_or(0),
            };
            result.to_le_bytes().into_iter().take(size)
        })
        .collect()
}

fn f64_to_int(scalar: f64) -> i64 {
    (0_i32..10)
        .find(|value| f64::from(*value) >= scalar)
        .unwrap_or(1)
        .into()
}

fn floats<const N: usize>(
    call: &Call,
    all: &[(f64, Vec<u8>)],
    decode: impl Fn(&[u8]) -> f64,
    encode: impl Fn(f64) -> [u8; N],
) -> Vec<u8> {
    let ranks = f64::from(u32::try_from(all.len()).unwrap_or(1));
    let elements = all[0].1.len() / N;
    (0..elements)
        .flat_map(|index| {
            let values = all.iter().map(|(scalar, bytes)| {
                let value = decode(&bytes[index * N..(index + 1) * N]);
                if call.op == ReduceOp::PreMulSum {
                    value * scalar
                } else {
                    value
                }
            });
            encode(match call.op {
                ReduceOp::Sum | ReduceOp::PreMulSum => values.fold(0.0, |a, b| a + b),
                ReduceOp::Avg => values.fold(0.0, |a, b| a + b) / ranks,
                ReduceOp::Prod => values.product(),
                ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
                ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            })
        })
        .collect()
}

/// Runs `f` on `size` ranks as threads and returns their results in rank order.
#[cfg(test)]
pub(crate) fn world<T: Send>(size: u32, f: impl Fn(StandIn) -> T + Sync) -> Vec<T> {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = probe.local_addr().unwrap().to_string();
    drop(probe);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (f, root) = (&f, &root);
                scope.spawn(move || f(StandIn::connect(rank, size, root).unwrap()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

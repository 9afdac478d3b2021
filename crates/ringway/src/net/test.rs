//! What is measured, and what comes out.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::buffer::BufferPlace;

/// Queue pairs or connections of a test at the most.
pub(super) const LANES_MOST: u32 = 64;
/// Bytes of a message at the most.
pub(super) const BYTES_MOST: u64 = 1 << 30;

/// What is asked of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// How many bytes go over it in a second.
    Bandwidth,
    /// How long a message takes.
    Latency,
}

/// How bytes get to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// RDMA write: into memory of the other side, which is not told.
    Write,
    /// RDMA read: out of memory of the other side.
    Read,
    /// Messages that the other side receives.
    Send,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        })
    }
}

/// What carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reliable connections of RDMA devices.
    Rdma,
    /// Sockets.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        })
    }
}

/// A measurement, as both sides know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// What is asked.
    pub kind: Kind,
    /// How bytes get there.
    pub operation: Operation,
    /// What carries them.
    pub transport: Transport,
    /// Bytes of a message, one measurement each.
    pub sizes: Vec<u64>,
    /// Messages of a measurement; as many as fill `seconds` where unset.
    pub iterations: Option<u64>,
    /// How long a measurement should take.
    pub seconds: f64,
    /// Queue pairs or TCP connections, side by side.
    pub lanes: u32,
    /// Messages under way on each.
    pub depth: u32,
    /// Both sides send at once.
    pub bidirectional: bool,
}

impl Test {
    /// What is wrong with it, if anything: it may come from the network.
    pub(super) fn check(&self) -> Result<(), String> {
        let wrong = |text: String| Err(text);
        if self.sizes.is_empty() || self.sizes.len() > 256 {
            return wrong(format!("{} sizes; from 1 to 256 can be measured", self.sizes.len()));
        }
        if let Some(bytes) = self.sizes.iter().find(|bytes| !(1..=BYTES_MOST).contains(*bytes)) {
            return wrong(format!(
                "messages of {bytes} bytes; from 1 byte to 1 GiB can be measured"
            ));
        }
        if !(1..=LANES_MOST).contains(&self.lanes) {
            return wrong(format!(
                "{} queue pairs; from 1 to {LANES_MOST} can be used",
                self.lanes
            ));
        }
        if !(1..=8192).contains(&self.depth) {
            return wrong(format!("a depth of {}; from 1 to 8192 can be used", self.depth));
        }
        if !(0.001..=3600.0).contains(&self.seconds) {
            return wrong(format!("{} seconds; from 0.001 to 3600 can be asked", self.seconds));
        }
        if self.iterations.is_some_and(|many| !(1..=1 << 32).contains(&many)) {
            return wrong("iterations: from 1 to 2^32 can be asked".to_owned());
        }
        if self.kind == Kind::Latency && (self.lanes > 1 || self.bidirectional) {
            return wrong("latency is of one message on one queue pair at a time".to_owned());
        }
        if self.transport == Transport::Tcp && self.operation != Operation::Send {
            return wrong(format!("TCP sends; there is no {} over it", self.operation));
        }
        Ok(())
    }

    pub(super) fn bytes_most(&self) -> usize {
        let most = self.sizes.iter().copied().max().unwrap_or(1);
        usize::try_from(most).unwrap_or(usize::MAX)
    }
}

/// A port as people name it: `mlx5_0`, or `mlx5_0:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// The device.
    pub device: String,
    /// The port; the first that can be used where unset.
    pub port: Option<u8>,
}

impl FromStr for PortName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, port) = match text.split_once(':') {
            Some((device, port)) => (device, Some(port)),
            None => (text, None),
        };
        let wrong = || format!("{text:?} is no device; write mlx5_0, or mlx5_0:1 for its port 1");
        let port = port.map(|port| port.parse::<u8>().map_err(|_| wrong())).transpose()?;
        if device.is_empty() || port == Some(0) {
            return Err(wrong());
        }
        Ok(Self { device: device.to_owned(), port })
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.device),
            None => f.write_str(&self.device),
        }
    }
}

/// What is of one side alone.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// The RDMA port; the first that can be used where unset.
    pub device: Option<PortName>,
    /// Where its buffer is.
    pub buffer: BufferPlace,
}

/// One size, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Row {
    /// How many bytes went over.
    Bandwidth(Bandwidth),
    /// How long messages took.
    Latency(Latency),
}

/// How many bytes went over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages, of all lanes, in one direction.
    pub messages: u64,
    /// How long they took.
    pub seconds: f64,
    /// Bytes in a second, in both directions together where both were used.
    pub bytes_per_second: f64,
    /// Messages in a second, likewise.
    pub messages_per_second: f64,
}

/// How long messages took, in microseconds. A write or send counts half of there and back; a read all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages measured.
    pub iterations: u64,
    /// The shortest.
    pub min_us: f64,
    /// Half took less.
    pub typical_us: f64,
    /// The mean.
    pub average_us: f64,
    /// 99 of 100 took less.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// Sums samples up; there is at least one.
    pub(super) fn of(bytes: u64, samples: &mut [f64]) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |part: usize| samples[(samples.len() * part / 100).min(samples.len() - 1)];
        let sum: f64 = samples.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a mean of fewer than 2^52 samples")]
        let average = sum / samples.len() as f64;
        Self {
            bytes,
            iterations: samples.len() as u64,
            min_us: samples[0],
            typical_us: at(50),
            average_us: average,
            p99_us: at(99),
            max_us: samples[samples.len() - 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test() -> Test {
        Test {
            kind: Kind::Bandwidth,
            operation: Operation::Write,
            transport: Transport::Rdma,
            sizes: vec![8],
            iterations: None,
            seconds: 1.0,
            lanes: 1,
            depth: 128,
            bidirectional: false,
        }
    }

    #[test]
    fn what_comes_from_the_network_is_bounded() {
        assert_eq!(test().check(), Ok(()));
        let wrong = [
            Test { sizes: vec![], ..test() },
            Test { sizes: vec![0], ..test() },
            Test { sizes: vec![u64::MAX], ..test() },
            Test { sizes: vec![8; 300], ..test() },
            Test { lanes: 0, ..test() },
            Test { lanes: 1 << 20, ..test() },
            Test { depth: 0, ..test() },
            Test { seconds: f64::NAN, ..test() },
            Test { seconds: 1e9, ..test() },
            Test { iterations: Some(0), ..test() },
            Test { kind: Kind::Latency, lanes: 2, ..test() },
            Test { transport: Transport::Tcp, ..test() },
        ];
        for test in wrong {
            assert!(test.check().is_err(), "{test:?}");
        }
    }

    #[test]
    fn ports_are_named_as_people_do() {
        let named = |text: &str| text.parse::<PortName>().map(|name| name.to_string());
        assert_eq!(named("mlx5_0").unwrap(), "mlx5_0");
        assert_eq!(named("mlx5_0:2").unwrap(), "mlx5_0:2");
        for wrong in ["", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:x", "mlx5_0:300"] {
            assert!(named(wrong).unwrap_err().contains("mlx5_0:1"), "{wrong}");
        }
    }

    #[test]
    fn samples_are_summed_up() {
        let mut samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let found = Latency::of(8, &mut samples);
        assert_eq!(
            (found.min_us, found.typical_us, found.p99_us, found.max_us),
            (1.0, 101.0, 199.0, 200.0)
        );
        assert!((found.average_us - 100.5).abs() < 1e-9);
        assert_eq!(Latency::of(8, &mut [3.0]).p99_us, 3.0);
    }
}

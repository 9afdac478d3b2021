//! Arguments of `ringway net`.

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum, value_parser};
use ringway::config::Config;
use ringway::device::Gpu;
use ringway::net::{
    BufferPlace, GpuDirectChoice, Kind, Operation, PortName, Side, Test, Transport,
};

use crate::size;

/// Look at the network: RDMA devices, addresses, bandwidth, latency
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Devices and addresses are chosen by NCCL_IB_HCA, NCCL_IB_GID_INDEX,
NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE and NCCL_IB_ROCE_VERSION_NUM, as the
library does it; connections take NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT,
NCCL_IB_SL, NCCL_IB_TC and NCCL_IB_PKEY.

Examples:
  ringway net devices             ports, and which would be used
  ringway net gids                their addresses, and which would be used
  ringway net bw --server         on one host
  ringway net bw node1            on the other: bandwidth of RDMA writes
  ringway net lat node1 -o send   how long messages take
  ringway net bw node1 --transport tcp --qps 4"
)]
pub(crate) struct NetArgs {
    /// What to look at.
    #[command(subcommand)]
    pub(crate) command: NetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NetCommand {
    /// List RDMA devices and ports, and which would be used
    Devices(ListArgs),
    /// List the addresses of RDMA ports, and which would be used and why
    Gids(ListArgs),
    /// Measure the bandwidth between two hosts
    Bw(MeasureArgs),
    /// Measure the latency between two hosts
    Lat(MeasureArgs),
}

#[derive(Debug, Args)]
#[command(max_term_width = 80)]
pub(crate) struct ListArgs {
    /// Only this device
    #[arg(value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Start it with --server on one host, and with that host's name on the other. The
client says what is measured; the server serves one client and ends, unless
--keep. Nobody proves who they are: whoever reaches the port can measure.

Bandwidth counts payload; what arrived is compared with what was sent. Latency
of writes and sends is half of there and back, of reads the whole; a write is
seen by its last byte, which wants an adapter that delivers in order.

--device, --gid-index, --memory and --gpudirect are of the side they are given
to. GPU memory is reached by dma-buf, else by nvidia_peermem, else its bytes
are copied through host memory; the lines of both sides say which, and why no
better. GPUDirect is untested on hardware."
)]
pub(crate) struct MeasureArgs {
    /// Host of the server
    #[arg(value_name = "HOST", conflicts_with_all = ["server", "keep"])]
    pub(crate) host: Option<String>,
    /// Be the server
    #[arg(long)]
    pub(crate) server: bool,
    /// Serve one client after another
    #[arg(long, requires = "server")]
    pub(crate) keep: bool,
    /// TCP port by which the two agree
    #[arg(short = 'p', long, value_name = "N", default_value = "18515")]
    pub(crate) port: u16,
    /// RDMA device, or device:port [default: the first that can be used]
    #[arg(long, value_name = "NAME[:PORT]")]
    pub(crate) device: Option<PortName>,
    /// Address of the port [default: chosen; see ringway net gids]
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u8>,
    /// Where this side's buffer is: host, or cuda:N for memory of GPU N
    #[arg(long, value_name = "WHERE", default_value = "host", value_parser = memory)]
    memory: MemoryName,
    /// How the adapter may reach GPU memory: auto, dmabuf, peermem or off
    #[arg(long, value_name = "HOW", default_value = "auto")]
    gpudirect: GpuDirectChoice,

    /// write, read or send [default: write; over TCP send]
    #[arg(
        short = 'o',
        long = "op",
        value_name = "OP",
        help_heading = "What",
        hide_possible_values = true
    )]
    operation: Option<OperationName>,
    /// rdma or tcp
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "What",
        default_value = "rdma",
        hide_possible_values = true
    )]
    transport: TransportName,
    /// Queue pairs, or TCP connections, side by side
    #[arg(short = 'q', long, value_name = "N", help_heading = "What", default_value = "1",
          value_parser = value_parser!(u32).range(1..=64))]
    qps: u32,
    /// Messages under way on each
    #[arg(short = 't', long, value_name = "N", help_heading = "What", default_value = "128",
          value_parser = value_parser!(u32).range(1..=8192))]
    depth: u32,
    /// Both sides send at once
    #[arg(long, help_heading = "What")]
    bidirectional: bool,

    /// Least size [default: 1K; latency 8]
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", help_heading = "Sizes",
          value_parser = size::parse)]
    min_bytes: Option<u64>,
    /// Greatest size [default: 8M, or the least; latency 64K]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", help_heading = "Sizes",
          value_parser = size::parse)]
    max_bytes: Option<u64>,
    /// Factor from one size to the next
    #[arg(short = 'f', long = "stepfactor", value_name = "N", help_heading = "Sizes",
          default_value = "2", value_parser = value_parser!(u64).range(2..))]
    step_factor: u64,

    /// Messages of a measurement [default: as many as fill the time]
    #[arg(short = 'n', long = "iters", value_name = "N", help_heading = "Timing",
          value_parser = value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Seconds a measurement should take
    #[arg(short = 'D', long, value_name = "SECONDS", help_heading = "Timing", default_value = "1")]
    seconds: f64,

    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OperationName {
    Write,
    Read,
    Send,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportName {
    Rdma,
    Tcp,
}

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryName {
    Host,
    Cuda(i32),
}

fn memory(text: &str) -> Result<MemoryName, String> {
    let number = match text {
        "host" => return Ok(MemoryName::Host),
        "cuda" => Some(0),
        _ => text.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
    };
    let number = number.filter(|number| *number >= 0);
    number.map(MemoryName::Cuda).ok_or_else(|| format!("{text:?} is none of host, cuda, cuda:N"))
}

impl MeasureArgs {
    /// What is of this side alone. Opens the GPU.
    pub(crate) fn side(&self, config: &Config) -> anyhow::Result<Side> {
        let buffer = match (self.memory, self.gpudirect) {
            (MemoryName::Host, GpuDirectChoice::Auto) => BufferPlace::Host,
            (MemoryName::Host, how) => bail!("--gpudirect {how} is of GPU memory: --memory cuda"),
            (MemoryName::Cuda(number), how) => {
                let gpu = Gpu::at(config, number);
                BufferPlace::Gpu(gpu.context("--memory cuda needs a GPU")?, how)
            }
        };
        Ok(Side { device: self.device.clone(), buffer })
    }

    /// The test that is asked for.
    pub(crate) fn test(&self, kind: Kind) -> anyhow::Result<Test> {
        let transport = match self.transport {
            TransportName::Rdma => Transport::Rdma,
            TransportName::Tcp => Transport::Tcp,
        };
        let operation = match (self.operation, transport) {
            (Some(OperationName::Write), _) | (None, Transport::Rdma) => Operation::Write,
            (Some(OperationName::Read), _) => Operation::Read,
            (Some(OperationName::Send), _) | (None, Transport::Tcp) => Operation::Send,
        };
        let (least, most) = match kind {
            Kind::Bandwidth => (1 << 10, 8 << 20),
            Kind::Latency => (8, 64 << 10),
        };
        let (sizes, factor) = ((self.min_bytes, self.max_bytes), self.step_factor);
        let (least, most) = match sizes {
            (Some(least), Some(most)) => (least, most),
            (Some(one), None) => (one, one.max(most)),
            (None, Some(most)) => (least.min(most), most),
            (None, None) => (least, most),
        };
        if least == 0 || most < least {
            bail!("sizes from {least} to {most} bytes: -b must be at least 1 and not above -e");
        }
        let next = |bytes: &u64| bytes.checked_mul(factor).filter(|bytes| *bytes <= most);
        Ok(Test {
            kind,
            operation,
            transport,
            sizes: std::iter::successors(Some(least), next).collect(),
            iterations: self.iterations,
            seconds: self.seconds,
            lanes: self.qps,
            depth: self.depth,
            bidirectional: self.bidirectional,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn test(words: &str) -> anyhow::Result<Test> {
        let cli = Cli::try_parse_from(format!("ringway net {words}").split(' '))?;
        match cli.command {
            Command::Net(NetArgs { command: NetCommand::Bw(args) }) => args.test(Kind::Bandwidth),
            Command::Net(NetArgs { command: NetCommand::Lat(args) }) => args.test(Kind::Latency),
            other => bail!("{other:?}"),
        }
    }

    #[test]
    fn arguments_become_a_test() {
        let bw = test("bw node1 -b 64K -e 1M -f 4 -q 2").unwrap();
        assert_eq!((bw.sizes, bw.lanes), (vec![64 << 10, 256 << 10, 1 << 20], 2));
        assert_eq!((bw.operation, bw.transport), (Operation::Write, Transport::Rdma));
        assert_eq!(test("bw node1").unwrap().sizes.len(), 14);
        assert_eq!(test("lat node1").unwrap().sizes.first(), Some(&8));
        assert_eq!(test("lat node1 -e 8 -n 5").unwrap().sizes, [8]);
        assert_eq!(test("bw node1 --transport tcp").unwrap().operation, Operation::Send);
        for wrong in [
            "bw node1 -b 2 -e 1",
            "bw node1 -b 0",
            "bw node1 -f 1",
            "bw node1 -q 0",
            "bw node1 --server",
        ] {
            assert!(test(wrong).is_err(), "{wrong}");
        }
    }
}

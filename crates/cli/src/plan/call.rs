//! The call that a plan is for, as the command line gives it.

use anyhow::ensure;
use clap::{Args, ValueEnum};
use ringway_plan::algorithm::Algorithm;
use ringway_plan::problem::Problem;
use ringway_plan::types::{Collective, DataType, Level, Rank};
use ringway_plan::verify::RANKS_MAX;

use crate::size;

/// What connects the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// All ranks on one host
    Shm,
    /// Every rank on a host of its own
    Tcp,
}

/// A call, and where its ranks are.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// Collective: all_reduce, all_gather, reduce_scatter, broadcast, …
    #[arg(value_name = "COLLECTIVE")]
    pub(crate) collective: Collective,

    /// Ranks
    #[arg(short = 'n', long, value_name = "N", default_value = "8", value_parser = ranks)]
    pub(crate) ranks: u32,

    /// Bytes of the larger buffer of a rank (8, 4K, 16M, 1G)
    #[arg(short, long, value_name = "SIZE", default_value = "1M", value_parser = size::parse)]
    pub(crate) bytes: u64,

    /// Hosts over which the ranks are spread, in order
    #[arg(long, value_name = "N", default_value = "1", value_parser = ranks)]
    pub(crate) hosts: u32,

    /// What connects the ranks: one host (shm), or one each (tcp)
    #[arg(long, value_enum, conflicts_with = "hosts")]
    pub(crate) transport: Option<Transport>,

    /// Type of the elements
    #[arg(short = 'd', long = "type", value_name = "TYPE", default_value = "float")]
    pub(crate) data_type: DataType,

    /// Root of broadcast, reduce, gather and scatter
    #[arg(short, long, value_name = "RANK", default_value = "0")]
    pub(crate) root: Rank,

    /// What the bits of a reduction may depend on: run or shape
    #[arg(long, value_name = "LEVEL", default_value = "run")]
    pub(crate) level: Level,

    /// Lanes [default: by size and transport]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) lanes: Option<u32>,

    /// Bytes of a message, at most [default: by size and transport]
    #[arg(long, value_name = "SIZE", value_parser = message_bytes)]
    pub(crate) chunk: Option<u64>,
}

impl CallArgs {
    /// The call and the host of each rank.
    pub(crate) fn resolve(&self) -> anyhow::Result<(Problem, Vec<u32>)> {
        let (ranks, collective) = (self.ranks, self.collective);
        ensure!(
            self.root < ranks,
            "root {} is not one of {ranks} ranks; the last is {}",
            self.root,
            ranks - 1
        );
        ensure!(
            collective != Collective::SendRecv,
            "send_recv is planned for each pair of ranks; there is nothing to choose"
        );
        let hosts = match self.transport {
            Some(Transport::Shm) => 1,
            Some(Transport::Tcp) => ranks,
            None => self.hosts,
        };
        ensure!(hosts <= ranks, "{ranks} ranks cannot be spread over {hosts} hosts");
        let each = ranks.div_ceil(hosts);
        let blocks = match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
            _ => u64::from(ranks),
        };
        let count = match collective {
            Collective::Barrier => 0,
            _ => self.bytes / blocks / self.data_type.size() as u64,
        };
        let mut problem = Problem::new(collective, ranks, count, self.data_type);
        problem.root = if collective.has_root() { self.root } else { 0 };
        problem.level = self.level;
        Ok((problem, (0..ranks).map(|rank| rank / each).collect()))
    }
}

/// Why `algorithm` cannot do the call, and which can.
pub(crate) fn unsupported(reason: &str, problem: &Problem, hosts: &[u32]) -> anyhow::Error {
    let able: Vec<&str> = Algorithm::ALL
        .into_iter()
        .filter(|algorithm| algorithm.supports(problem, hosts).is_ok())
        .map(Algorithm::name)
        .collect();
    anyhow::anyhow!("{reason}; choose one of {}", able.join(", "))
}

/// A number of ranks or hosts.
pub(crate) fn ranks(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("there must be at least 1".to_owned()),
        Ok(ranks) if ranks as usize <= RANKS_MAX => Ok(ranks),
        Ok(_) => Err(format!("the most is {RANKS_MAX}")),
        Err(_) => Err(format!("not a number from 1 to {RANKS_MAX}")),
    }
}

/// How long a message may be, at most.
pub(crate) fn message_bytes(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes @ 64..=0x4000_0000 => Ok(bytes),
        _ => Err("a message has 64 bytes to 1G".to_owned()),
    }
}

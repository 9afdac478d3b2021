//! The seam between the measurement and the library: the only file that knows how a
//! communicator is made and called.

use std::time::Duration;

use anyhow::{Context as _, bail};
use ringway::config::Config;
use ringway::device::Gpu;
use ringway::{Communicator, UniqueId};
use ringway_plan::algorithm::Algorithm;
use ringway_plan::types::{Collective, DataType, Level, ReduceOp};

use super::identity;

/// How the error begins that ends a measurement on GPU memory before it begins.
const NO_GPU_MEMORY: &str = "--memory cuda: GPU memory cannot be used";

/// One call, with NCCL's meaning of `count`: per rank for all_gather and reduce_scatter, per
/// peer for all_to_all, gather and scatter, in all for the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: u32,
    pub(crate) count: usize,
    pub(crate) deadline: Option<Duration>,
    /// This rank's factor in a pre-multiplied sum.
    pub(crate) scalar: f64,
    /// `None`: the planner's choice.
    pub(crate) algorithm: Option<Algorithm>,
    /// `None`: that of the communicator.
    pub(crate) level: Option<Level>,
}

/// What the measurement asks of a communicator.
pub(crate) trait Collectives {
    fn rank(&self) -> u32;
    fn size(&self) -> u32;
    /// How the ranks are connected, for the header: `transport shm`.
    fn describe(&self) -> String;
    /// Out of place. Where only the root has an input or an output, the others' is empty.
    fn call(&self, call: &Call, input: &[u8], output: &mut [u8]) -> anyhow::Result<()>;
    /// In place, with NCCL's places for a rank's own block.
    fn call_in_place(&self, call: &Call, buffer: &mut [u8]) -> anyhow::Result<()>;
    /// Sends to one rank while receiving from another.
    fn send_recv(&self, call: &Call, pair: Pair<'_>) -> anyhow::Result<()>;
    fn barrier(&self) -> anyhow::Result<()>;
}

/// The two halves of a send/recv.
#[derive(Debug)]
pub(crate) struct Pair<'a> {
    pub(crate) send: &'a [u8],
    pub(crate) to: u32,
    pub(crate) receive: &'a mut [u8],
    pub(crate) from: u32,
}

impl Call {
    /// Of so many values, with nothing asked for: a sum where it reduces.
    fn new(collective: Collective, data_type: DataType, count: usize) -> Self {
        Self {
            collective,
            data_type,
            op: ReduceOp::Sum,
            root: 0,
            count,
            deadline: None,
            scalar: 1.0,
            algorithm: None,
            level: None,
        }
    }

    /// The call as the library knows it.
    pub(crate) fn of_library(&self) -> ringway::Call {
        let count = self.count as u64;
        let mut call =
            ringway::Call::new(self.collective, self.data_type, count).op(self.op).root(self.root);
        call.scalar = self.scalar;
        call.deadline = self.deadline;
        call.algorithm = self.algorithm;
        call.level = self.level;
        call
    }
}

impl Collectives for Communicator {
    fn rank(&self) -> u32 {
        Self::rank(self)
    }

    fn size(&self) -> u32 {
        Self::size(self)
    }

    fn describe(&self) -> String {
        let hosts = self.hosts();
        let domains = hosts.iter().max().map_or(1, |most| most + 1);
        let reaches = |name| (0..self.size()).any(|peer| self.carrier(peer) == name);
        let network = match (reaches("NET/IB"), reaches("NET/Socket")) {
            (true, true) => "RDMA and tcp",
            (true, false) => "RDMA",
            _ if reaches("NET/Socket/TLS") => "tcp with TLS",
            (false, _) => "tcp",
        };
        let transport = match (domains, self.size()) {
            (_, 1) => "none (one rank)".to_owned(),
            (1, _) => "shm".to_owned(),
            (domains, size) if domains == size => network.to_owned(),
            (domains, _) => format!("shm inside {domains} groups of ranks, {network} between them"),
        };
        format!("transport {transport}, level {}", self.level())
    }

    fn call(&self, call: &Call, input: &[u8], output: &mut [u8]) -> anyhow::Result<()> {
        Ok(Self::call(self, &call.of_library(), input, output)?)
    }

    fn call_in_place(&self, call: &Call, buffer: &mut [u8]) -> anyhow::Result<()> {
        Ok(Self::call_in_place(self, &call.of_library(), buffer)?)
    }

    fn send_recv(&self, _call: &Call, pair: Pair<'_>) -> anyhow::Result<()> {
        Ok(Self::send_recv(self, pair.send, pair.to, pair.receive, pair.from)?)
    }

    fn barrier(&self) -> anyhow::Result<()> {
        Ok(Self::barrier(self)?)
    }
}

/// Joins the job this process was made a rank of.
pub(crate) fn connect() -> anyhow::Result<Communicator> {
    settings_told();
    Ok(Communicator::from_env()?)
}

fn settings_told() -> Config {
    let config = Config::from_env();
    ringway::log::install(&config);
    ringway::log::version(&config);
    ringway::log::warn_settings(&config);
    config
}

/// How many GPUs this process sees.
pub(crate) fn gpus() -> anyhow::Result<u32> {
    Gpu::count(&Config::from_env()).context("--memory cuda needs a GPU")
}

/// The ranks of a process that has several: threads of it.
#[derive(Debug)]
pub(crate) struct Team {
    config: Config,
    id: UniqueId,
    first: u32,
    size: u32,
    /// By which the processes met; none where there is one.
    _processes: Option<Communicator>,
}

impl Team {
    /// The `ranks` ranks of this process, which is number `process` of `processes` that call this alike.
    pub(crate) fn meet(process: u32, processes: u32, ranks: u32) -> anyhow::Result<Self> {
        let met = if processes > 1 { Some(connect()?) } else { None };
        let config = match met {
            Some(_) => Config::from_env(),
            None => settings_told(),
        };
        let id = match &met {
            None => Communicator::unique_id(&config)?,
            Some(comm) => {
                let own = (process == 0).then(|| Communicator::unique_id(&config)).transpose()?;
                let none = vec![0; ringway::bootstrap::UNIQUE_ID_BYTES];
                let bytes = own.map_or(none, |id| id.as_bytes().to_vec());
                let all = all_gather(comm, &bytes)?;
                UniqueId::from_bytes(all.first().context("a job without ranks")?)?
            }
        };
        let (first, size) = (process * ranks, processes * ranks);
        Ok(Self { config, id, first, size, _processes: met })
    }

    /// The number of the process's first rank, and of all ranks.
    pub(crate) fn ranks(&self) -> (u32, u32) {
        (self.first, self.size)
    }

    /// The communicator of one of the process's ranks. All are made at the same time.
    pub(crate) fn join(&self, rank: u32) -> anyhow::Result<Communicator> {
        Ok(Communicator::from_unique_id(&self.id, rank, self.size, self.config.clone())?)
    }
}

/// Gives a rank its GPU: those that its process sees, in turn by the rank's number on its host. All ranks
/// call it; where some have none, all fail, and name them.
pub(crate) fn attach_gpu(comm: &Communicator, number: u32) -> anyhow::Result<identity::Gpu> {
    let config = Config::from_env();
    let ordinal = |count: u32| i32::try_from(number % count.max(1)).unwrap_or(0);
    let gpu = Gpu::count(&config).and_then(|count| Gpu::at(&config, ordinal(count)));
    let why = match &gpu {
        Ok(_) => String::new(),
        Err(why) => format!("rank {} on {}: {why}", comm.rank(), identity::host_name()),
    };
    let told = all_gather_texts(comm, &why)?;
    let without: Vec<&String> = told.iter().filter(|why| !why.is_empty()).collect();
    let gpu = match (&without[..], gpu) {
        ([], Ok(gpu)) => gpu,
        ([first], _) => bail!("{NO_GPU_MEMORY}: {first}"),
        ([first, more @ ..], _) => bail!("{NO_GPU_MEMORY}: {first}; and {} more ranks", more.len()),
        ([], Err(error)) => return Err(error.into()),
    };
    comm.attach_gpu(Some(gpu.ordinal()))?;
    if let Some(why) = comm.gpu_refusal() {
        bail!("{NO_GPU_MEMORY}: {why}");
    }
    Ok(identity::Gpu {
        index: u32::try_from(gpu.ordinal()).unwrap_or(0),
        address: gpu.bus_address().to_owned(),
        uuid: gpu.uuid(),
        name: gpu.name().to_owned(),
    })
}

/// Whether connecting failed because somebody took the port the ranks were to meet on.
pub(crate) fn port_was_taken(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<ringway::Error>()
        .is_some_and(|error| error.to_string().contains("Address already in use"))
}

/// Every rank's bytes, in rank order; all ranks give equally many.
pub(crate) fn all_gather(comm: &dyn Collectives, own: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
    let call = Call::new(Collective::AllGather, DataType::U8, own.len());
    let mut all = vec![0; own.len() * comm.size() as usize];
    comm.call(&call, own, &mut all)?;
    Ok(all.chunks(own.len().max(1)).map(<[u8]>::to_vec).collect())
}

/// The sums of all ranks' counts; all ranks give equally many.
pub(crate) fn sum(comm: &dyn Collectives, own: &[u64]) -> anyhow::Result<Vec<u64>> {
    let call = Call::new(Collective::AllReduce, DataType::U64, own.len());
    let bytes: Vec<u8> = own.iter().flat_map(|count| count.to_le_bytes()).collect();
    let mut sums = vec![0; bytes.len()];
    comm.call(&call, &bytes, &mut sums)?;
    let word = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().unwrap_or([0; 8]));
    Ok(sums.chunks_exact(8).map(word).collect())
}

/// Every rank's text, in rank order; they may differ in length.
pub(crate) fn all_gather_texts(comm: &dyn Collectives, own: &str) -> anyhow::Result<Vec<String>> {
    let length = u64::try_from(own.len()).unwrap_or(u64::MAX);
    let lengths = all_gather(comm, &length.to_le_bytes())?;
    let length = |bytes: &Vec<u8>| {
        usize::try_from(u64::from_le_bytes(bytes.as_slice().try_into().unwrap_or([0; 8]))).ok()
    };
    let lengths: Vec<usize> = lengths.iter().filter_map(length).collect();
    let mut padded = own.as_bytes().to_vec();
    padded.resize(lengths.iter().copied().max().unwrap_or(0).max(1), 0);
    let all = all_gather(comm, &padded)?;
    let text = |(bytes, length): (&Vec<u8>, &usize)| {
        String::from_utf8_lossy(bytes.get(..*length).unwrap_or_default()).into_owned()
    };
    Ok(all.iter().zip(&lengths).map(text).collect())
}

/// Every rank's numbers, in rank order.
pub(crate) fn all_gather_numbers(
    comm: &dyn Collectives,
    own: &[f64],
) -> anyhow::Result<Vec<Vec<f64>>> {
    let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
    let numbers = |bytes: &Vec<u8>| {
        bytes
            .chunks_exact(8)
            .map(|chunk| f64::from_le_bytes(chunk.try_into().unwrap_or([0; 8])))
            .collect()
    };
    Ok(all_gather(comm, &bytes)?.iter().map(numbers).collect())
}

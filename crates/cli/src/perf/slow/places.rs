//! Who the ranks are and what they share: hosts have names, machines have processors, GPUs have memory.
//!
//! Hosts are what people call so: containers and namespaces have names of their own. Machines are kernels: what runs under one
//! shares its processors, whatever its hosts are called.

use std::num::NonZero;

use ringway::Communicator;
use serde::Serialize;

use crate::perf::args::Memory;
use crate::perf::identity::{self, Gpu};
use crate::perf::ranks;

/// Bytes of a name that travel; longer ones are cut.
const NAME_BYTES: usize = 120;
/// Bytes of the number a kernel gives itself when it starts.
const KERNEL_BYTES: usize = 36;
/// So many processors may be slower together than one is alone: two threads of a core, two cores of a power budget.
const SHARED: usize = 4;
/// Microseconds by which round trips differ between ranks that wait to be woken up, that wait for a processor too, and
/// that wait for the GPU, which processes have in turns of some 2 ms.
const WOKEN_US: f64 = 20.0;
const CROWDED_US: f64 = 1000.0;
const SLICED_US: f64 = 4000.0;

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Network ports by which it reaches other hosts: `mlx5_0:1`, `eth0`.
    pub(crate) ports: Vec<String>,
    /// The GPU whose memory is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpu: Option<Gpu>,
    /// Ranks of one host have the same number.
    #[serde(skip)]
    pub(crate) node: usize,
    /// Ranks that share processors have the same number.
    #[serde(skip)]
    pub(crate) machine: usize,
    /// Processors that its machine lets it have.
    #[serde(skip)]
    pub(crate) cpus: u32,
}

/// The places of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Places(pub(crate) Vec<Place>);

impl Places {
    /// Tells all ranks where this one is, and learns of them; where GPU memory is measured each gets its GPU by this.
    /// Every rank calls it.
    pub(crate) fn exchange(comm: &Communicator, memory: Memory) -> anyhow::Result<Self> {
        let host = identity::host_name();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let own = record(
            std::process::id(),
            u32::try_from(cpus).unwrap_or(u32::MAX),
            kernel.unwrap_or_else(|_| host.clone()).trim(),
            &host,
        );
        let mut places = Self::of(&ranks::all_gather(comm, &own)?);
        let ports = ranks::all_gather_texts(comm, &comm.ports().join(" "))?;
        for (place, ports) in places.0.iter_mut().zip(ports) {
            place.ports = ports.split_whitespace().map(str::to_owned).collect();
        }
        if memory == Memory::Cuda {
            let own = comm.rank() as usize;
            let before = places.on(places.node(own)).iter().filter(|rank| **rank < own).count();
            let gpu = ranks::attach_gpu(comm, u32::try_from(before)?)?;
            for (place, gpu) in places.0.iter_mut().zip(identity::exchange_gpus(comm, &gpu)?) {
                place.gpu = Some(gpu);
            }
        }
        Ok(places)
    }

    fn of(records: &[Vec<u8>]) -> Self {
        let (mut nodes, mut machines) = (Vec::new(), Vec::new());
        let mut places = Vec::new();
        for (rank, record) in (0..).zip(records) {
            let (numbers, names) = record.split_at(8);
            let (kernel, host) = names.split_at(KERNEL_BYTES);
            let (kernel, host) = (text(kernel), text(host));
            let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap_or([0; 4]));
            places.push(Place {
                rank,
                pid: number(&numbers[..4]),
                cpus: number(&numbers[4..]),
                node: number_of((kernel.clone(), host.clone()), &mut nodes),
                machine: number_of(kernel, &mut machines),
                host,
                ports: Vec::new(),
                gpu: None,
            });
        }
        Self(places)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.0.len()
    }

    /// How many hosts there are.
    pub(crate) fn nodes(&self) -> usize {
        self.0.iter().map(|place| place.node + 1).max().unwrap_or(0)
    }

    pub(crate) fn node(&self, rank: usize) -> usize {
        self.0.get(rank).map_or(0, |place| place.node)
    }

    /// The ranks of a host.
    pub(crate) fn on(&self, node: usize) -> Vec<usize> {
        (0..self.ranks()).filter(|rank| self.node(*rank) == node).collect()
    }

    /// Whether two ranks have one GPU. Their processes may number it differently.
    pub(crate) fn shares_gpu(&self, a: usize, b: usize) -> bool {
        let [Some(a), Some(b)] = [a, b].map(|rank| self.0.get(rank)) else { return false };
        let [Some(one), Some(other)] = [&a.gpu, &b.gpu] else { return false };
        let is_known = !(one.uuid.is_empty() && one.address.is_empty());
        a.machine == b.machine
            && (&one.uuid, &one.address) == (&other.uuid, &other.address)
            && (is_known || one.index == other.index)
    }

    /// The ranks that have a rank's GPU, with it; nobody where it has none.
    pub(crate) fn on_gpu_of(&self, rank: usize) -> Vec<usize> {
        (0..self.ranks()).filter(|other| self.shares_gpu(rank, *other)).collect()
    }

    /// Whether what goes between two ranks stays in the memory of a GPU, on a host where it need not.
    pub(crate) fn stays_on_gpu(&self, a: usize, b: usize) -> bool {
        self.shares_gpu(a, b) && self.on_gpu_of(a).len() < self.on(self.node(a)).len()
    }

    /// The GPUs of some ranks, each once.
    pub(crate) fn gpus_of(&self, ranks: &[usize]) -> Vec<Gpu> {
        let is_first = |(at, rank): &(usize, &usize)| {
            !ranks[..*at].iter().any(|before| self.shares_gpu(**rank, *before))
        };
        let firsts = ranks.iter().enumerate().filter(is_first);
        firsts.filter_map(|(_, rank)| self.0.get(*rank)?.gpu.clone()).collect()
    }

    /// When a rank may have its GPU to itself: in which turn of [`Self::gpu_turns`].
    pub(crate) fn gpu_turn(&self, rank: usize) -> usize {
        self.on_gpu_of(rank).iter().filter(|other| **other < rank).count()
    }

    /// How many turns it takes until everybody has had its GPU to itself; none where nobody has one.
    pub(crate) fn gpu_turns(&self) -> usize {
        let with = (0..self.ranks()).filter(|rank| self.0[*rank].gpu.is_some());
        with.map(|rank| self.gpu_turn(rank) + 1).max().unwrap_or(0)
    }

    /// When a rank may work so that nobody is in its way: in which turn of [`Self::turns`].
    pub(crate) fn turn(&self, rank: usize) -> usize {
        let Some(place) = self.0.get(rank) else { return 0 };
        let before = self.0[..rank].iter().filter(|other| other.machine == place.machine);
        before.count() / (place.cpus as usize / SHARED).max(1)
    }

    /// How many turns it takes until everybody has worked.
    pub(crate) fn turns(&self) -> usize {
        (0..self.ranks()).map(|rank| self.turn(rank) + 1).max().unwrap_or(0)
    }

    /// Microseconds by which round trips differ for no reason of theirs. A rank that waits goes to sleep and has to be woken up;
    /// where ranks have to share processors, it has to get one of them too, and where processes share a GPU, that.
    pub(crate) fn waking_us(&self) -> f64 {
        let crowds = |place: &Place| {
            let there = self.0.iter().filter(|other| other.machine == place.machine).count();
            there > place.cpus as usize
        };
        match self.0.iter().any(crowds) {
            _ if self.gpu_turns() > 1 => SLICED_US,
            true => CROWDED_US,
            false => WOKEN_US,
        }
    }

    /// The network ports of some ranks, each once.
    pub(crate) fn ports(&self, ranks: &[usize]) -> Vec<String> {
        let places = ranks.iter().filter_map(|rank| self.0.get(*rank));
        let mut ports: Vec<String> = places.flat_map(|place| place.ports.clone()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// What people call some ranks: `node3 (ranks 6, 7)` where they are all of a host, `GPU 1 of node3 (rank 7)` where they are
    /// all of a GPU, else `rank 6 on node3`.
    pub(crate) fn name(&self, ranks: &[usize]) -> String {
        let Some((rank, place)) = ranks.first().and_then(|rank| Some((*rank, self.0.get(*rank)?)))
        else {
            return "nobody".to_owned();
        };
        let is_host = self.nodes() > 1 && self.on(place.node) == ranks;
        // What everybody has is nobody's in particular.
        let is_gpu = ranks.len() < self.ranks() && self.on_gpu_of(rank) == ranks;
        match &place.gpu {
            Some(gpu) if is_gpu && !is_host => {
                format!("GPU {} of {} ({})", gpu.index, place.host, numbers(ranks))
            }
            _ => self.name_of_ranks(ranks),
        }
    }

    /// The same, but for GPUs.
    pub(crate) fn name_of_ranks(&self, ranks: &[usize]) -> String {
        let Some(first) = ranks.first().and_then(|rank| self.0.get(*rank)) else {
            return "nobody".to_owned();
        };
        let numbers = numbers(ranks);
        if self.nodes() == 1 {
            return numbers;
        }
        match self.on(first.node) == ranks {
            true => format!("{} ({numbers})", first.host),
            false => format!("{numbers} on {}", first.host),
        }
    }
}

/// `rank 6`, `ranks 6, 7`.
fn numbers(ranks: &[usize]) -> String {
    let many = if ranks.len() == 1 { "rank" } else { "ranks" };
    let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("{many} {}", numbers.join(", "))
}

fn number_of<T: PartialEq>(one: T, known: &mut Vec<T>) -> usize {
    known.iter().position(|other| *other == one).unwrap_or_else(|| {
        known.push(one);
        known.len() - 1
    })
}

fn record(pid: u32, cpus: u32, kernel: &str, host: &str) -> Vec<u8> {
    let mut bytes = pid.to_le_bytes().to_vec();
    bytes.extend(cpus.to_le_bytes());
    bytes.extend(kernel.bytes().take(KERNEL_BYTES));
    bytes.resize(8 + KERNEL_BYTES, 0);
    bytes.extend(host.bytes().take(NAME_BYTES));
    bytes.resize(8 + KERNEL_BYTES + NAME_BYTES, 0);
    bytes
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Hosts `node0`, `node1`, … with so many ranks each, every one a machine of `cpus` processors.
    pub(crate) fn cluster(hosts: &[usize], cpus: u32) -> Places {
        let mut records = Vec::new();
        for (host, ranks) in hosts.iter().enumerate() {
            for rank in 0..*ranks {
                let pid = u32::try_from(100 + rank).unwrap();
                records.push(record(pid, cpus, &format!("kernel{host}"), &format!("node{host}")));
            }
        }
        Places::of(&records)
    }

    /// The same with so many GPUs on each host, which its ranks have in turn.
    pub(crate) fn with_gpus(mut places: Places, gpus: usize) -> Places {
        for rank in 0..places.ranks() {
            let node = places.node(rank);
            let before = places.on(node).iter().filter(|other| **other < rank).count();
            let index = u32::try_from(before % gpus).unwrap();
            places.0[rank].gpu = Some(Gpu {
                index,
                address: format!("0000:{:02x}:00.0", index + 1),
                uuid: format!("GPU-{node}-{index}"),
                name: "NVIDIA Test".to_owned(),
            });
        }
        places
    }

    #[test]
    fn gpus_stand_between_ranks_and_hosts() {
        let places = with_gpus(cluster(&[4, 2], 8), 2);
        assert_eq!((places.on_gpu_of(0), places.on_gpu_of(5)), (vec![0, 2], vec![5]));
        assert_eq!((places.gpu_turn(2), places.gpu_turn(5), places.gpu_turns()), (1, 0, 2));
        assert_eq!(places.gpus_of(&[0, 1, 2, 3]).len(), 2);
        assert!(places.stays_on_gpu(0, 2) && !places.stays_on_gpu(0, 1));
        assert_eq!(places.name(&[0, 2]), "GPU 0 of node0 (ranks 0, 2)");
        assert_eq!(places.name(&[2]), "rank 2 on node0");
        assert_eq!(places.name(&[5]), "GPU 1 of node1 (rank 5)");
        assert_eq!(places.name_of_ranks(&[5]), "rank 5 on node1");
        assert_eq!(places.name(&[4, 5]), "node1 (ranks 4, 5)");
        assert!(places.waking_us() > cluster(&[4, 2], 1).waking_us());

        // All on one GPU: it is nobody in particular.
        let one = with_gpus(cluster(&[3], 8), 1);
        assert_eq!(
            (one.name(&[0, 1, 2]), one.name(&[1])),
            ("ranks 0, 1, 2".into(), "rank 1".into())
        );
        assert!(!one.stays_on_gpu(0, 1) && one.gpu_turns() == 3);
        // On host memory nobody has one.
        let host = cluster(&[3], 8);
        assert!(host.on_gpu_of(1).is_empty() && host.gpus_of(&[0, 1]).is_empty());
        assert_eq!(host.gpu_turns(), 0);
        // What the driver does not name is told apart by its number.
        let mut silent = with_gpus(cluster(&[4], 8), 2);
        for place in &mut silent.0 {
            let gpu = place.gpu.as_mut().unwrap();
            (gpu.address, gpu.uuid) = (String::new(), String::new());
        }
        assert_eq!(silent.on_gpu_of(1), [1, 3]);
    }

    #[test]
    fn ranks_are_known_by_what_they_share() {
        let places = Places::of(&[
            record(1, 2, "k", "a"),
            record(2, 2, "k", "b"),
            record(3, 2, "k", "a"),
            record(4, 8, "l", "a"),
        ]);
        let numbers: Vec<_> = places.0.iter().map(|place| (place.node, place.machine)).collect();
        assert_eq!(numbers, [(0, 0), (1, 0), (0, 0), (2, 1)]);
        assert_eq!((places.nodes(), places.on(0), places.0[3].cpus), (3, vec![0, 2], 8));
    }

    #[test]
    fn nobody_is_in_the_way_of_another_in_its_turn() {
        let places = cluster(&[3, 5], 8);
        let turns: Vec<usize> = (0..8).map(|rank| places.turn(rank)).collect();
        assert_eq!((turns, places.turns()), (vec![0, 0, 1, 0, 0, 1, 1, 2], 3));
        assert_eq!(cluster(&[3], 0).turns(), 3);
        assert!(cluster(&[3, 5], 4).waking_us() > places.waking_us());
    }

    #[test]
    fn names_are_those_of_hosts_where_all_of_it_is_meant() {
        let places = cluster(&[2, 1], 4);
        assert_eq!(places.name(&[0, 1]), "node0 (ranks 0, 1)");
        assert_eq!(places.name(&[1]), "rank 1 on node0");
        assert_eq!(places.name(&[2]), "node1 (rank 2)");
        assert_eq!(cluster(&[4], 4).name(&[1]), "rank 1");
        assert_eq!(places.name(&[]), "nobody");
    }
}

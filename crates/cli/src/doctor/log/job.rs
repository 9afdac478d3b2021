//! What the lines of NCCL say about one job: versions, ranks, paths, settings.
//!
//! *Invariant*: the state grows with ranks and distinct facts, never with lines, and each part has a limit.
//! What found no place is counted in `left_out` and reported.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::pairs::Pairs;
use super::sight::{Place, Sight, Tally};

/// Communicators kept apart.
const COMMS: usize = 4096;
/// Ranks noted, over all communicators.
const RANKS: usize = 4 << 20;
/// Pairs of GPUs whose NVLink is kept.
const NVLINKS: usize = 1 << 16;
/// Hosts kept by name.
const HOSTS: usize = 1 << 16;
/// Kinds of anything else.
const KINDS: usize = 256;
/// Choices of algorithm and protocol kept.
const CHOICES: usize = 128;

/// How a pair of ranks is joined.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum Path {
    P2pDirect,
    P2pIpc,
    P2pCumem,
    P2pMnnvl,
    P2pIndirect,
    Shm,
    NetSocket,
    NetOther,
    NetRdma,
    CollNet,
}

impl Path {
    /// As NCCL writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::P2pDirect => "P2P/direct pointer",
            Self::P2pIpc => "P2P/IPC",
            Self::P2pCumem => "P2P/CUMEM",
            Self::P2pMnnvl => "P2P/MNNVL",
            Self::P2pIndirect => "P2P/indirect",
            Self::Shm => "SHM",
            Self::NetSocket => "NET/Socket",
            Self::NetOther => "NET/plugin",
            Self::NetRdma => "NET/IB",
            Self::CollNet => "COLLNET",
        }
    }

    pub(crate) fn is_net(self) -> bool {
        matches!(self, Self::NetSocket | Self::NetOther | Self::NetRdma)
    }
}

/// Connections over one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    /// All of them, by channel and direction.
    pub(crate) sight: Sight,
    /// `[send]` with GPUDirect and without.
    pub(crate) send: [u64; 2],
    /// `[receive]` with GPUDirect and without.
    pub(crate) receive: [u64; 2],
    /// Through the NIC of another GPU.
    pub(crate) pxn: u64,
    /// The first line without GPUDirect.
    pub(crate) without_gdr: Sight,
}

/// One communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comm {
    pub(crate) nranks: u32,
    pub(crate) nodes: Option<u32>,
    pub(crate) started: BTreeSet<u32>,
    pub(crate) complete: BTreeSet<u32>,
    pub(crate) first: Sight,
}

/// All of a job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) nccl_lines: u64,
    pub(crate) versions: Tally<String>,
    pub(crate) drivers: Tally<String>,
    pub(crate) comms: BTreeMap<u64, Comm>,
    pub(crate) hosts: BTreeSet<String>,
    pub(crate) paths: BTreeMap<Path, Connections>,
    pub(crate) pairs: Pairs,
    pub(crate) networks: Tally<String>,
    pub(crate) plugins: Tally<String>,
    pub(crate) bootstrap: Tally<String>,
    pub(crate) sockets: Tally<String>,
    pub(crate) adapters: Tally<String>,
    pub(crate) settings: BTreeMap<String, Tally<String>>,
    pub(crate) no_verbs: Sight,
    pub(crate) no_device: Sight,
    pub(crate) plugin_missing: Sight,
    pub(crate) gdr_on: Tally<String>,
    pub(crate) gdr_off: Tally<String>,
    pub(crate) nvls_absent: Sight,
    pub(crate) nvls_present: Sight,
    pub(crate) sharp: Sight,
    pub(crate) nvlinks: HashMap<(String, String, String), (f64, Place, String)>,
    /// Rates of cards in Mb/s, by host and name.
    pub(crate) nic_mbps: BTreeMap<(String, String), f64>,
    pub(crate) channels: Tally<String>,
    pub(crate) rings: Tally<String>,
    pub(crate) tuner: Tally<String>,
    /// Function, algorithm, protocol: how often, and the largest size in bytes.
    pub(crate) choices: Vec<(Vec<u8>, u64, u64)>,
    pub(crate) max_bw: Option<f64>,
    pub(crate) slowest_init: Option<(f64, u32, Place)>,
    pub(crate) other_warnings: Tally<String>,
    pub(crate) last_error: Tally<u32>,
    pub(crate) aborted: Sight,
    /// Ranks whose watchdog reported a collective that did not end.
    pub(crate) waiting: BTreeSet<u32>,
    ranks_noted: usize,
    pub(crate) left_out: u64,
}

impl Job {
    pub(crate) fn new() -> Self {
        let tally = || Tally::of(KINDS);
        Self {
            nccl_lines: 0,
            versions: tally(),
            drivers: tally(),
            comms: BTreeMap::new(),
            hosts: BTreeSet::new(),
            paths: BTreeMap::new(),
            pairs: Pairs::default(),
            networks: tally(),
            plugins: tally(),
            bootstrap: tally(),
            sockets: tally(),
            adapters: tally(),
            settings: BTreeMap::new(),
            no_verbs: Sight::default(),
            no_device: Sight::default(),
            plugin_missing: Sight::default(),
            gdr_on: tally(),
            gdr_off: tally(),
            nvls_absent: Sight::default(),
            nvls_present: Sight::default(),
            sharp: Sight::default(),
            nvlinks: HashMap::new(),
            nic_mbps: BTreeMap::new(),
            channels: tally(),
            rings: Tally::of(64),
            tuner: tally(),
            choices: Vec::new(),
            max_bw: None,
            slowest_init: None,
            other_warnings: Tally::of(64),
            last_error: Tally::of(16),
            aborted: Sight::default(),
            waiting: BTreeSet::new(),
            ranks_noted: 0,
            left_out: 0,
        }
    }

    /// The communicator of this id, unless there are too many.
    pub(crate) fn comm(&mut self, id: u64) -> Option<&mut Comm> {
        if self.comms.len() >= COMMS && !self.comms.contains_key(&id) {
            self.left_out += 1;
            return None;
        }
        Some(self.comms.entry(id).or_default())
    }

    /// Notes that a rank began (or ended) joining a communicator.
    pub(crate) fn joined(
        &mut self,
        id: u64,
        rank: u32,
        nranks: u32,
        done: bool,
    ) -> Option<&mut Comm> {
        if self.ranks_noted >= RANKS {
            self.left_out += 1;
            return None;
        }
        let comm = self.comm(id)?;
        comm.nranks = comm.nranks.max(nranks);
        let is_new = if done { comm.complete.insert(rank) } else { comm.started.insert(rank) };
        self.ranks_noted += usize::from(is_new);
        self.comms.get_mut(&id)
    }

    pub(crate) fn host(&mut self, host: &str) {
        if !self.hosts.contains(host) {
            if self.hosts.len() < HOSTS {
                self.hosts.insert(host.to_owned());
            } else {
                self.left_out += 1;
            }
        }
    }

    pub(crate) fn nvlink(
        &mut self,
        ends: (String, String, String),
        bw: f64,
        place: Place,
        line: String,
    ) {
        if self.nvlinks.len() < NVLINKS || self.nvlinks.contains_key(&ends) {
            self.nvlinks.insert(ends, (bw, place, line));
        } else {
            self.left_out += 1;
        }
    }

    pub(crate) fn nic(&mut self, host: &str, name: &str, mbps: f64) {
        if self.nic_mbps.len() < NVLINKS {
            self.nic_mbps.insert((host.to_owned(), name.to_owned()), mbps);
        } else {
            self.left_out += 1;
        }
    }

    pub(crate) fn setting(
        &mut self,
        name: &str,
        value: &str,
        place: Place,
        line: &[u8],
        host: Option<&str>,
    ) {
        if self.settings.len() >= KINDS && !self.settings.contains_key(name) {
            self.left_out += 1;
            return;
        }
        let values = self.settings.entry(name.to_owned()).or_insert_with(|| Tally::of(8));
        values.add(value, place, line, host);
    }

    pub(crate) fn choice(&mut self, what: &[u8], bytes: u64) {
        if let Some((_, count, most)) = self.choices.iter_mut().find(|(known, ..)| known == what) {
            *count += 1;
            *most = bytes.max(*most);
        } else if self.choices.len() < CHOICES {
            self.choices.push((what.to_vec(), 1, bytes));
        } else {
            self.left_out += 1;
        }
    }

    /// Notes a rank that waits for others.
    pub(crate) fn waits(&mut self, rank: u32) {
        if self.waiting.len() < HOSTS {
            self.waiting.insert(rank);
        }
    }

    /// Whether the job runs on several hosts: `None` where the log does not say.
    pub(crate) fn is_multi_node(&self) -> Option<bool> {
        let nodes = self.comms.values().filter_map(|comm| comm.nodes).max();
        if nodes > Some(1) || self.hosts.len() > 1 || self.paths.keys().any(|path| path.is_net()) {
            return Some(true);
        }
        nodes.map(|_| false)
    }

    /// All that was left out, in whatever part.
    pub(crate) fn all_left_out(&self) -> u64 {
        let tallies = [
            &self.versions,
            &self.networks,
            &self.bootstrap,
            &self.sockets,
            &self.adapters,
            &self.rings,
            &self.other_warnings,
        ];
        self.left_out
            + self.pairs.left_out
            + tallies.iter().map(|tally| tally.left_out).sum::<u64>()
    }
}

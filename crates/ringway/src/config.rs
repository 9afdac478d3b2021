//! Settings: environment variables and configuration files, read once into typed values.
//!
//! One table (`config/table.rs`) makes the reading, the list `ringway env` prints and
//! `docs/env.md`. Loading never fails: what cannot be understood is a [`Warning`] that names the
//! value, the valid ones and what is used instead. Only settings that contradict each other are
//! an error, from [`Config::check`], when a communicator starts.
//!
//! *Invariant:* nothing below a [`Config`] reads the environment; it is an argument everywhere.
//!
//! ```
//! use ringway::config::{Config, Environment, TransportChoice};
//!
//! let config = Config::load(&Environment::new([("RINGWAY_TRANSPORT", "tpc")]));
//! assert_eq!(config.transport, TransportChoice::Auto);
//! assert_eq!(
//!     config.warnings[0].text,
//!     "RINGWAY_TRANSPORT=tpc: not one of auto, shm, tcp, verbs (did you mean tcp?); using auto",
//! );
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::plan::types::{Level, Rank};

mod doc;
mod file;
mod filter;
mod load;
mod names;
mod parse;
mod rdma;
mod table;
#[cfg(test)]
mod tests;
mod value;

pub use doc::markdown;
pub use file::Environment;
pub use filter::{AlgorithmFilter, InterfaceFilter};
pub use parse::{format_bytes, format_duration, parse_bytes, parse_duration};
pub use rdma::{AddressRange, RdmaSettings};
pub use value::{
    AddressFamily, ColorChoice, DebugLevel, HostPort, LogFile, MetricsPlace, NetworkChoice,
    Requirement, Secret, Subsystem, Subsystems, TraceEvent, TransportChoice, TuningChoice,
};

use file::Files;
use table::{Entry, TABLE};

const SOCKETS_PER_PEER: u32 = 2;
const SOCKETS_PER_PEER_MAX: u32 = 64;

/// Where a setting's value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Nobody set it.
    #[default]
    Default,
    /// The process environment.
    Environment,
    /// A line of a configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An option of the command.
    CommandLine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::Environment => f.pad("environment"),
            Self::File { path, line } => f.pad(&format!("{}:{line}", path.display())),
            Self::CommandLine => f.pad("command line"),
        }
    }
}

/// A setting that was not understood, or not whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The variable, or the file and line.
    pub name: String,
    /// The whole message; it names the variable too.
    pub text: String,
}

/// Something worth knowing about a setting that was understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The variable.
    pub name: String,
    /// The whole message; it names the variable too.
    pub text: String,
}

/// One setting as `ringway env` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Name of the variable.
    pub name: &'static str,
    /// Heading it stands under.
    pub section: &'static str,
    /// What values look like.
    pub kind: &'static str,
    /// Value where nobody sets it.
    pub default: String,
    /// Value in force; a secret is redacted.
    pub value: String,
    /// Where the value comes from.
    pub source: Source,
    /// What it does.
    pub meaning: &'static str,
}

/// Every setting, typed. `docs/env.md` says what each does. Settings that count only together with
/// others are behind methods.
#[derive(Clone, Debug)]
pub struct Config {
    /// `RINGWAY_RANK`.
    pub rank: Option<Rank>,
    /// `RINGWAY_SIZE`.
    pub size: Option<u32>,
    /// `RINGWAY_LOCAL_RANK`.
    pub local_rank: Option<u32>,
    /// `RINGWAY_LOCAL_SIZE`.
    pub local_size: Option<u32>,
    /// `RINGWAY_ROOT`; see [`Self::root`].
    root: Vec<HostPort>,
    /// `NCCL_COMM_ID`; see [`Self::root`].
    comm_id: Option<HostPort>,
    /// `NCCL_HOSTID`.
    pub host_id: Option<String>,
    /// `RINGWAY_SECRET`, or the content of `RINGWAY_SECRET_FILE`.
    pub secret: Option<Secret>,
    /// `RINGWAY_SECRET_FILE`.
    pub secret_file: Option<PathBuf>,
    /// `RINGWAY_TRANSPORT`; see [`Self::allows_shm`].
    pub transport: TransportChoice,
    /// `NCCL_NET`: what carries bytes between hosts.
    pub network: NetworkChoice,
    /// `RINGWAY_REQUIRE`.
    pub require: Vec<Requirement>,
    /// `NCCL_SHM_DISABLE`; see [`Self::allows_shm`].
    shm_disable: bool,
    /// `RINGWAY_SINGLE_COPY`: whether ranks of one host read each other's buffers.
    pub single_copy: bool,
    /// `RINGWAY_CHECKSUM`: what is sent to other hosts carries checksums.
    pub checksum: bool,
    /// `RINGWAY_TLS`: what leaves this process for another host is encrypted.
    pub tls: bool,
    /// `RINGWAY_GPU`: whether communicators use a GPU where there is one.
    pub gpu: bool,
    /// `RINGWAY_GPU_OVERLAP`: whether a launch may begin before the kernel in front of it has ended.
    pub gpu_overlap: bool,
    /// `RINGWAY_GPU_CHANNELS`: communicators that move GPU memory by the host side by side.
    pub gpu_channels: u32,
    /// `RINGWAY_GPUDIRECT`; see [`Self::wants_gpu_direct`].
    gpu_direct: bool,
    /// `RINGWAY_CUDA_LIBRARY`.
    pub cuda_library: Option<PathBuf>,
    /// `RINGWAY_NVRTC_LIBRARY`.
    pub nvrtc_library: Option<PathBuf>,
    /// `CUDA_HOME`; see [`Self::cuda_toolkits`].
    cuda_home: Option<PathBuf>,
    /// `CUDA_PATH`; see [`Self::cuda_toolkits`].
    cuda_path: Option<PathBuf>,
    /// `RINGWAY_SHM_DIR`; see [`Self::shm_dir`].
    shm_dir: Option<PathBuf>,
    /// `NCCL_SOCKET_IFNAME`.
    pub interfaces: InterfaceFilter,
    /// `NCCL_SOCKET_FAMILY`; any where unset.
    pub family: Option<AddressFamily>,
    /// `NCCL_SOCKET_NTHREADS`; see [`Self::sockets_per_peer`].
    socket_threads: Option<u32>,
    /// `NCCL_NSOCKS_PERTHREAD`; see [`Self::sockets_per_peer`].
    sockets_per_thread: Option<u32>,
    /// `NCCL_IB_…`.
    pub rdma: RdmaSettings,
    /// `NCCL_BUFFSIZE`; see [`Self::scratch_bytes`].
    buffer_bytes: u64,
    /// `RINGWAY_MAX_BYTES`.
    pub max_bytes: Option<u64>,
    /// `RINGWAY_CHUNK_BYTES`; the planner chooses where unset.
    pub chunk_bytes: Option<u64>,
    /// `RINGWAY_LANES`; the planner chooses where unset.
    pub lanes: Option<u32>,
    /// `RINGWAY_SPIN_US`; the waiter chooses where unset.
    pub spin: Option<Duration>,
    /// `NCCL_ALGO`.
    pub algorithms: AlgorithmFilter,
    /// `RINGWAY_TUNING`.
    pub tuning: TuningChoice,
    /// `NCCL_PROTO`, kept only to be shown.
    pub protocols: Option<String>,
    /// `RINGWAY_LEVEL`.
    pub level: Level,
    /// `NCCL_COMM_BLOCKING`; the program chooses where unset.
    pub blocking: Option<bool>,
    /// `RINGWAY_TIMEOUT`.
    pub timeout: Duration,
    /// `RINGWAY_ADAPTIVE_TIMEOUT`: how many spreads above the median of a call's times its deadline is.
    pub adaptive_timeout: Option<u32>,
    /// `RINGWAY_INIT_TIMEOUT`.
    pub init_timeout: Duration,
    /// `NCCL_DEBUG`.
    pub debug: DebugLevel,
    /// `NCCL_DEBUG_SUBSYS`.
    pub debug_subsystems: Subsystems,
    /// `NCCL_DEBUG_FILE`.
    pub debug_file: LogFile,
    /// `RINGWAY_RECORDER`: operations the flight recorder keeps; 0 is off.
    pub recorder: u32,
    /// `RINGWAY_TRACE_DIR`: where traces go.
    pub trace_dir: Option<PathBuf>,
    /// `RINGWAY_TRACE_ON`: when they are written there.
    pub trace_on: Vec<TraceEvent>,
    /// `RINGWAY_METRICS`: where metrics are served.
    pub metrics: Option<MetricsPlace>,
    /// `NCCL_CONF_FILE`.
    pub conf_file: Option<PathBuf>,
    /// `RINGWAY_CACHE_DIR`; see [`Self::cache_dir`].
    cache_dir: Option<PathBuf>,
    /// `XDG_CACHE_HOME`; see [`Self::cache_dir`].
    xdg_cache: Option<PathBuf>,
    home: Option<PathBuf>,
    /// `RINGWAY_COLOR`; see [`Self::use_color`].
    color: ColorChoice,
    /// `NO_COLOR`; see [`Self::use_color`].
    no_color: bool,
    /// `RINGWAY_TEST_REQUIRE`.
    pub test_require: Vec<String>,
    /// `RINGWAY_BLESS`.
    pub bless: bool,
    /// What was not understood.
    pub warnings: Vec<Warning>,
    /// What is worth knowing.
    pub notes: Vec<Note>,
    /// Problems that [`Config::check`] must report.
    faults: Vec<String>,
    sources: BTreeMap<&'static str, Source>,
    files: Files,
}

impl Default for Config {
    /// The values where nobody sets anything.
    fn default() -> Self {
        Self {
            rank: None,
            size: None,
            local_rank: None,
            local_size: None,
            root: Vec::new(),
            comm_id: None,
            host_id: None,
            secret: None,
            secret_file: None,
            transport: TransportChoice::Auto,
            network: NetworkChoice::Auto,
            require: Vec::new(),
            shm_disable: false,
            single_copy: true,
            checksum: false,
            tls: false,
            gpu: true,
            gpu_overlap: true,
            gpu_channels: 4,
            gpu_direct: false,
            cuda_library: None,
            nvrtc_library: None,
            cuda_home: None,
            cuda_path: None,
            shm_dir: None,
            interfaces: InterfaceFilter::default(),
            family: None,
            socket_threads: None,
            sockets_per_thread: None,
            rdma: RdmaSettings::default(),
            buffer_bytes: 4 << 20,
            max_bytes: None,
            chunk_bytes: None,
            lanes: None,
            spin: None,
            algorithms: AlgorithmFilter::default(),
            tuning: TuningChoice::Auto,
            protocols: None,
            level: Level::Run,
            blocking: None,
            timeout: Duration::from_secs(600),
            adaptive_timeout: None,
            init_timeout: Duration::from_secs(60),
            debug: DebugLevel::Warn,
            debug_subsystems: Subsystems::default(),
            debug_file: LogFile::Stderr,
            recorder: 2048,
            trace_dir: None,
            trace_on: vec![TraceEvent::Error],
            metrics: None,
            conf_file: None,
            cache_dir: None,
            xdg_cache: None,
            home: None,
            color: ColorChoice::Auto,
            no_color: false,
            test_require: Vec::new(),
            bless: false,
            warnings: Vec::new(),
            notes: Vec::new(),
            faults: Vec::new(),
            sources: BTreeMap::new(),
            files: Files::default(),
        }
    }
}

impl Config {
    /// Every setting with its value and source, in the order of `docs/env.md`.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let defaults = Self::default();
        let setting = |entry: &Entry| Setting {
            name: entry.name,
            section: entry.section,
            kind: entry.kind,
            default: (entry.show)(&defaults),
            value: (entry.show)(self),
            source: self.source(entry.name),
            meaning: entry.meaning,
        };
        TABLE.iter().map(setting).collect()
    }

    /// Where a setting's value comes from.
    #[must_use]
    pub fn source(&self, name: &str) -> Source {
        self.sources.get(name).cloned().unwrap_or_default()
    }

    /// Whether the settings fit together.
    ///
    /// # Errors
    /// `InvalidUsage` with everything that contradicts itself, cannot be met, or would be unsafe
    /// to ignore.
    pub fn check(&self) -> Result<()> {
        let mut faults = self.faults.clone();
        let mut beyond = |what: &str, value: Option<u32>, of: &str, bound: Option<u32>, slack| {
            if let (Some(value), Some(bound)) = (value, bound)
                && value >= bound.saturating_add(slack)
            {
                faults.push(format!("{what}={value} does not fit {of}={bound}"));
            }
        };
        beyond("RINGWAY_RANK", self.rank, "RINGWAY_SIZE", self.size, 0);
        beyond("RINGWAY_LOCAL_RANK", self.local_rank, "RINGWAY_LOCAL_SIZE", self.local_size, 0);
        beyond("RINGWAY_LOCAL_SIZE", self.local_size, "RINGWAY_SIZE", self.size, 1);
        for requirement in &self.require {
            if let Some(why) = requirement.why_impossible() {
                faults.push(format!("RINGWAY_REQUIRE={requirement} cannot be met: {why}"));
            }
        }
        if self.transport == TransportChoice::Shm && self.shm_disable {
            faults.push("RINGWAY_TRANSPORT=shm contradicts NCCL_SHM_DISABLE=1".to_owned());
        } else if self.require.contains(&Requirement::Shm) && !self.allows_shm() {
            let by = if self.shm_disable { "NCCL_SHM_DISABLE=1" } else { "RINGWAY_TRANSPORT=tcp" };
            faults.push(format!("RINGWAY_REQUIRE=shm contradicts {by}"));
        }
        if let (Some(asks), Some(forbids)) = (self.insists_on_rdma(), self.forbids_rdma()) {
            faults.push(format!("{asks} contradicts {forbids}"));
        }
        if faults.is_empty() { Ok(()) } else { Err(Error::usage(faults.join("; "))) }
    }

    /// The setting by which nothing but RDMA will do between hosts, if there is one.
    #[must_use]
    pub fn insists_on_rdma(&self) -> Option<&'static str> {
        if self.require.contains(&Requirement::Rdma) {
            Some("RINGWAY_REQUIRE=rdma")
        } else if self.require.contains(&Requirement::Gdr) {
            Some("RINGWAY_REQUIRE=gdr")
        } else if self.transport == TransportChoice::Verbs {
            Some("RINGWAY_TRANSPORT=verbs")
        } else {
            (self.network == NetworkChoice::Ib).then_some("NCCL_NET=IB")
        }
    }

    /// Whether adapters are to read and write GPU memory themselves in collectives, and whether nothing else will do.
    #[must_use]
    pub fn wants_gpu_direct(&self) -> (bool, bool) {
        let insists = self.require.contains(&Requirement::Gdr);
        (self.gpu_direct || insists, insists)
    }

    /// The setting by which RDMA is not to be used, if there is one.
    #[must_use]
    pub fn forbids_rdma(&self) -> Option<&'static str> {
        match self.transport {
            TransportChoice::Tcp => Some("RINGWAY_TRANSPORT=tcp"),
            TransportChoice::Shm => Some("RINGWAY_TRANSPORT=shm"),
            _ if self.network == NetworkChoice::Socket => Some("NCCL_NET=Socket"),
            _ if self.rdma.disable => Some("NCCL_IB_DISABLE=1"),
            _ => self.tls.then_some("RINGWAY_TLS=1 (RDMA does not encrypt)"),
        }
    }

    /// Where rank 0 listens while ranks find each other: `RINGWAY_ROOT`, else `NCCL_COMM_ID`;
    /// empty where neither is set.
    #[must_use]
    pub fn root(&self) -> &[HostPort] {
        if self.root.is_empty() { self.comm_id.as_slice() } else { &self.root }
    }

    /// Whether ranks of one host may share memory.
    #[must_use]
    pub fn allows_shm(&self) -> bool {
        !matches!(self.transport, TransportChoice::Tcp | TransportChoice::Verbs)
            && !self.shm_disable
    }

    /// The directory of the Unix sockets by which ranks of one host meet, if there is to be one.
    #[must_use]
    pub fn shm_dir(&self) -> Option<&Path> {
        self.shm_dir.as_deref()
    }

    /// Folders of CUDA toolkits that the environment names, the first to look into first.
    #[must_use]
    pub fn cuda_toolkits(&self) -> Vec<PathBuf> {
        self.cuda_home.iter().chain(&self.cuda_path).cloned().collect()
    }

    /// The folder of tuning files; none where there is no home directory either.
    #[must_use]
    pub fn cache_dir(&self) -> Option<PathBuf> {
        let home = || self.home.as_ref().map(|home| home.join(".cache"));
        let folder = self.cache_dir.clone().or_else(|| self.xdg_cache.clone()).or_else(home)?;
        Some(folder.join("ringway"))
    }

    /// The content of a file of at most `bytes_max`; never waits for a pipe's other end.
    pub(crate) fn read_file(&self, path: &Path, bytes_max: u64) -> std::io::Result<Vec<u8>> {
        self.files.read(path, bytes_max)
    }

    /// TCP connections to each peer, 1 to 64.
    #[must_use]
    pub fn sockets_per_peer(&self) -> u32 {
        self.sockets_asked_for().clamp(1, SOCKETS_PER_PEER_MAX)
    }

    /// Sockets for each peer, at most: what was asked for, else as many as there may be.
    #[must_use]
    pub fn sockets_per_peer_most(&self) -> u32 {
        match (self.socket_threads, self.sockets_per_thread) {
            (None, None) => SOCKETS_PER_PEER_MAX,
            _ => self.sockets_per_peer(),
        }
    }

    /// Scratch memory of a rank: `NCCL_BUFFSIZE`, but no more than `RINGWAY_MAX_BYTES`.
    #[must_use]
    pub fn scratch_bytes(&self) -> u64 {
        self.max_bytes.map_or(self.buffer_bytes, |most| most.min(self.buffer_bytes))
    }

    /// Whether output to a terminal (or not) is coloured.
    #[must_use]
    pub fn use_color(&self, is_terminal: bool) -> bool {
        match self.color {
            ColorChoice::Auto => is_terminal && !self.no_color,
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        }
    }

    fn sockets_asked_for(&self) -> u32 {
        match (self.socket_threads, self.sockets_per_thread) {
            (None, None) => SOCKETS_PER_PEER,
            (threads, sockets) => threads.unwrap_or(1).saturating_mul(sockets.unwrap_or(1)),
        }
    }

    fn is_set(&self, name: &str) -> bool {
        self.sources.contains_key(name)
    }
}

//! The types of the settings: what their words mean.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use super::parse::{self, Problem, Remark};

/// An enum whose variants are words of a setting.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word for it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            pub(super) fn parse(text: &str) -> Result<Self, Problem> {
                parse::word(text, &[$(($word, Self::$variant),)+])
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::parse(text).map_err(|problem| problem.text)
            }
        }
    };
}

words! {
    /// Which transport may carry data between two ranks (`RINGWAY_TRANSPORT`).
    TransportChoice {
        /// The best each pair of ranks can use.
        Auto = "auto",
        /// Shared memory only.
        Shm = "shm",
        /// TCP only, also between ranks of one host.
        Tcp = "tcp",
        /// RDMA only, also between ranks of one host.
        Verbs = "verbs",
    }
}

words! {
    /// What carries bytes between hosts (`NCCL_NET`).
    NetworkChoice {
        /// RDMA where both ends have it, else sockets.
        Auto = "auto",
        /// RDMA.
        Ib = "IB",
        /// Sockets.
        Socket = "Socket",
    }
}

words! {
    /// When a trace is written (`RINGWAY_TRACE_ON`).
    TraceEvent {
        /// The communicator fails.
        Error = "error",
        /// The communicator ends.
        End = "end",
        /// The process gets SIGUSR1.
        Usr1 = "usr1",
        /// The process gets SIGUSR2.
        Usr2 = "usr2",
    }
}

words! {
    /// Whether the command colours its output (`RINGWAY_COLOR`).
    ColorChoice {
        /// On a terminal, unless `NO_COLOR` is set.
        Auto = "auto",
        /// Always.
        Always = "always",
        /// Never.
        Never = "never",
    }
}

words! {
    /// The address family sockets use (`NCCL_SOCKET_FAMILY`).
    AddressFamily {
        /// IPv4.
        V4 = "AF_INET",
        /// IPv6.
        V6 = "AF_INET6",
    }
}

words! {
    /// How much is logged (`NCCL_DEBUG`); each level includes those before it.
    DebugLevel {
        /// Nothing.
        None = "NONE",
        /// The version.
        Version = "VERSION",
        /// Warnings and errors.
        Warn = "WARN",
        /// What was chosen and why.
        Info = "INFO",
        /// The same as `INFO`; taken because NCCL has it.
        Abort = "ABORT",
        /// Every step.
        Trace = "TRACE",
    }
}

words! {
    /// A part of the library that logs (`NCCL_DEBUG_SUBSYS`).
    Subsystem {
        /// Start and end of communicators.
        Init = "INIT",
        /// Collectives.
        Coll = "COLL",
        /// Direct access between peers.
        P2p = "P2P",
        /// Shared memory.
        Shm = "SHM",
        /// Network.
        Net = "NET",
        /// Topology.
        Graph = "GRAPH",
        /// Choice of algorithms.
        Tuning = "TUNING",
        /// Settings.
        Env = "ENV",
        /// Memory.
        Alloc = "ALLOC",
        /// Host memory.
        AllocHost = "ALLOC_HOST",
        /// Calls of the API.
        Call = "CALL",
        /// Progress threads.
        Proxy = "PROXY",
        /// Switch multicast.
        Nvls = "NVLS",
        /// How ranks find each other.
        Bootstrap = "BOOTSTRAP",
        /// Memory registration.
        Reg = "REG",
        /// Profiling.
        Profile = "PROFILE",
        /// Reliability service.
        Ras = "RAS",
        /// Communicators going away.
        Destroy = "DESTROY",
    }
}

/// A set of [`Subsystem`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystems(u32);

impl Subsystems {
    /// All of them.
    pub const ALL: Self = Self(u32::MAX);
    /// None of them.
    pub const NONE: Self = Self(0);

    /// The set with `subsystem` in it.
    #[must_use]
    pub const fn with(self, subsystem: Subsystem) -> Self {
        Self(self.0 | (1 << subsystem as u32))
    }

    /// Whether `subsystem` is in the set.
    #[must_use]
    pub const fn contains(self, subsystem: Subsystem) -> bool {
        self.0 & (1 << subsystem as u32) != 0
    }

    /// Parses `INIT,NET`, `^COLL` or `ALL`.
    pub(super) fn parse(text: &str) -> Result<(Self, Vec<Remark>), Problem> {
        let mut remarks = Vec::new();
        let mut words = parse::words(text);
        let inverted = parse::take_mark('^', &mut words, &mut remarks);
        let mut named = Self::NONE;
        for word in words {
            if word.eq_ignore_ascii_case("ALL") {
                named = Self::ALL;
            } else if let Ok(subsystem) = Subsystem::parse(word) {
                named = named.with(subsystem);
            } else {
                let names = Subsystem::ALL.iter().map(|s| s.name()).chain(["ALL"]);
                let text = format!("{} is {}", parse::shown(word), parse::not_one_of(word, names));
                remarks.push(Remark::Warning(text));
            }
        }
        if named == Self::NONE {
            let names = Subsystem::ALL.iter().map(|s| s.name()).chain(["ALL"]);
            return Err(Problem::new(parse::not_one_of(text, names)));
        }
        Ok((if inverted { Self(!named.0) } else { named }, remarks))
    }
}

impl Default for Subsystems {
    /// NCCL's own default.
    fn default() -> Self {
        Self::NONE.with(Subsystem::Init).with(Subsystem::Bootstrap).with(Subsystem::Env)
    }
}

impl fmt::Display for Subsystems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (inside, outside): (Vec<Subsystem>, Vec<Subsystem>) =
            Subsystem::ALL.iter().partition(|s| self.contains(**s));
        let join = |list: &[Subsystem]| list.iter().map(|s| s.name()).collect::<Vec<_>>().join(",");
        match (inside.len(), outside.len()) {
            (_, 0) => f.write_str("ALL"),
            (0, _) => f.write_str("^ALL"),
            (inner, outer) if outer < inner => write!(f, "^{}", join(&outside)),
            _ => f.write_str(&join(&inside)),
        }
    }
}

/// Where log lines go (`NCCL_DEBUG_FILE`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogFile {
    /// Standard error: unlike NCCL, so that a command's standard output stays clean.
    #[default]
    Stderr,
    /// Standard output.
    Stdout,
    /// A file, appended to; `%h` stands for the host, `%p` for the process id, `%%` for `%`.
    Pattern(String),
}

impl LogFile {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "stderr" | "/dev/stderr" => Self::Stderr,
            "stdout" | "/dev/stdout" => Self::Stdout,
            pattern => Self::Pattern(pattern.to_owned()),
        }
    }
}

impl fmt::Display for LogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stderr => "stderr",
            Self::Stdout => "stdout",
            Self::Pattern(pattern) => pattern,
        })
    }
}

/// Where `ringway exporter` looks for the sockets of jobs. Processes of containers may share their numbers, not their
/// host's name.
const EXPORTER_SOCKET: &str = "/run/ringway/%h-%p.sock";

/// Where metrics are served (`RINGWAY_METRICS`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsPlace {
    /// The first port that is free from this one on.
    Tcp(SocketAddr),
    /// A Unix socket; `%p` stands for the process id, `%%` for `%`.
    Unix(String),
}

impl MetricsPlace {
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let wrong = || {
            Problem::new(
                "not a port, address:port, [ipv6]:port, unix:/path with %p (process) or exporter",
            )
        };
        if text == "exporter" {
            return Ok(Self::Unix(EXPORTER_SOCKET.to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.to_owned()))
            } else {
                Err(wrong())
            };
        }
        let address = match text.parse::<u16>() {
            Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Err(_) => text.parse().map_err(|_| wrong())?,
        };
        if address.port() == 0 { Err(wrong()) } else { Ok(Self::Tcp(address)) }
    }
}

impl fmt::Display for MetricsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// Which measurements the planner goes by (`RINGWAY_TUNING`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TuningChoice {
    /// The file for this topology in the cache folder, where there is one.
    #[default]
    Auto,
    /// None: defaults.
    Off,
    /// This file.
    File(PathBuf),
}

impl fmt::Display for TuningChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::File(path) => f.write_str(&parse::shown(&path.to_string_lossy())),
        }
    }
}

/// A host (name or address) and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Port, never 0.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{why}; write host:port or [ipv6]:port");
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(|| wrong("no ]: after the address"))?,
            None => text.rsplit_once(':').ok_or_else(|| wrong("no port"))?,
        };
        if host.contains(':') && !text.starts_with('[') {
            return Err(wrong("an IPv6 address without brackets"));
        }
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "[],".contains(c)) {
            return Err(wrong("no host"));
        }
        match port.parse::<u16>() {
            Ok(port) if port > 0 => Ok(Self { host: host.to_owned(), port }),
            _ => Err(wrong("the port is not a number from 1 to 65535")),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// What the job insists on (`RINGWAY_REQUIRE`): anything worse is an error at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Ranks of one host talk through shared memory.
    Shm,
    /// Ranks of different hosts talk through RDMA.
    Rdma,
    /// The network reads and writes GPU memory directly.
    Gdr,
    /// GPUs of one host access each other's memory.
    P2p,
    /// At least this many network rails are in use.
    Rails(u32),
    /// Not understood, and so never met.
    Unknown(String),
}

impl Requirement {
    pub(super) fn parse(word: &str) -> Self {
        match word.to_ascii_lowercase().as_str() {
            "shm" => Self::Shm,
            "rdma" => Self::Rdma,
            "gdr" => Self::Gdr,
            "p2p" => Self::P2p,
            lower => lower
                .strip_prefix("rails=")
                .and_then(|count| parse::number(count, 1..=64u32).ok())
                .map_or_else(|| Self::Unknown(word.to_owned()), Self::Rails),
        }
    }

    /// Why this version of ringway can never meet it; `None` where it can.
    #[must_use]
    pub fn why_impossible(&self) -> Option<String> {
        let missing = match self {
            Self::Shm | Self::Rdma | Self::Gdr | Self::Rails(_) => return None,
            Self::P2p => "does not compare how GPUs of a host reach each other",
            Self::Unknown(word) => {
                let names = ["shm", "rdma", "gdr", "p2p", "rails=N"].into_iter();
                return Some(parse::not_one_of(word, names));
            }
        };
        Some(format!("ringway {} {missing}", env!("CARGO_PKG_VERSION")))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm => f.write_str("shm"),
            Self::Rdma => f.write_str("rdma"),
            Self::Gdr => f.write_str("gdr"),
            Self::P2p => f.write_str("p2p"),
            Self::Rails(count) => write!(f, "rails={count}"),
            Self::Unknown(word) => f.write_str(&parse::shown(word)),
        }
    }
}

/// The secret the ranks of a job share. Never shown: its `Debug` and `Display` redact it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret of these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, for the authentication code only.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("(redacted)")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

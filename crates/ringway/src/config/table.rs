//! The one table of settings. Reading, `ringway env` and `docs/env.md` are all made from it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Config;
use super::filter::{self, AlgorithmFilter, InterfaceFilter};
use super::parse::{self, Problem, Remark};
use super::rdma::{self, AddressRange};
use super::value::{
    AddressFamily, ColorChoice, DebugLevel, HostPort, LogFile, MetricsPlace, NetworkChoice,
    Requirement, Secret, Subsystems, TraceEvent, TransportChoice, TuningChoice,
};
use crate::plan::types::Level;

/// One setting: its name, its words, and how it gets into and out of a [`Config`].
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) section: &'static str,
    /// What values look like.
    pub(super) kind: &'static str,
    pub(super) meaning: &'static str,
    /// Whether a bad value must stop the job (`Config::check`): only where running without the
    /// setting would be unsafe.
    pub(super) vital: bool,
    /// Whether the value must never be shown.
    pub(super) secret: bool,
    pub(super) assign: fn(&mut Config, &str) -> Outcome,
    /// The value in force, as `assign` would take it.
    pub(super) show: fn(&Config) -> String,
}

pub(super) type Outcome = Result<Vec<Remark>, Problem>;

const IDENTITY: &str = "Who this rank is and where the ranks meet";
const TRANSPORT: &str = "How bytes travel";
const RDMA: &str = "RDMA";
const MEMORY: &str = "Memory and speed";
const PROMISES: &str = "Promises";
const LOG: &str = "Log";
const COMMAND: &str = "Files, command and tests";

const MS: Duration = Duration::from_millis(1);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
const RANKS_MAX: u32 = 1 << 20;
/// A Unix socket's path has 107 bytes; the rest is for the name in the directory.
const SHM_DIR_BYTES_MAX: usize = 72;
const SECRET_BYTES_MAX: u64 = 4096;

const fn entry(
    section: &'static str,
    name: &'static str,
    kind: &'static str,
    meaning: &'static str,
    assign: fn(&mut Config, &str) -> Outcome,
    show: fn(&Config) -> String,
) -> Entry {
    Entry { name, section, kind, meaning, vital: false, secret: false, assign, show }
}

/// Every setting, by section.
#[rustfmt::skip] // one shape for all rows reads better than the shortest for each
pub(super) static TABLE: &[Entry] = &[
    entry(IDENTITY, "RINGWAY_RANK", "whole number from 0",
        "Rank of this process. A launcher's own variables are used where this is unset.",
        |c, v| put(&mut c.rank, exact(v, 0, RANKS_MAX - 1).map(Some)),
        |c| or_unset(c.rank.as_ref())),
    entry(IDENTITY, "RINGWAY_SIZE", "whole number from 1",
        "Number of ranks.",
        |c, v| put(&mut c.size, exact(v, 1, RANKS_MAX).map(Some)),
        |c| or_unset(c.size.as_ref())),
    entry(IDENTITY, "RINGWAY_LOCAL_RANK", "whole number from 0",
        "Rank of this process among those of its host.",
        |c, v| put(&mut c.local_rank, exact(v, 0, RANKS_MAX - 1).map(Some)),
        |c| or_unset(c.local_rank.as_ref())),
    entry(IDENTITY, "RINGWAY_LOCAL_SIZE", "whole number from 1",
        "Number of ranks on this host.",
        |c, v| put(&mut c.local_size, exact(v, 1, RANKS_MAX).map(Some)),
        |c| or_unset(c.local_size.as_ref())),
    entry(IDENTITY, "RINGWAY_ROOT", "host:port, a list",
        "Where rank 0 listens while the ranks find each other; the addresses are tried in order. \
         NCCL_COMM_ID is used where this is unset.",
        |c, v| put(&mut c.root, addresses(v)),
        |c| list_or(&c.root, "unset")),
    entry(IDENTITY, "NCCL_COMM_ID", "host:port or [ipv6]:port",
        "The same, in NCCL's words: one address.",
        |c, v| put(&mut c.comm_id, v.parse().map(Some).map_err(|why: String| why.into())),
        |c| or_unset(c.comm_id.as_ref())),
    entry(IDENTITY, "NCCL_HOSTID", "text",
        "Divides a host: ranks whose texts differ do not share memory. Ranks with the same text \
         still have to show that they can (boot id and a probe).",
        |c, v| put(&mut c.host_id, Ok(Some(v.to_owned()))),
        |c| c.host_id.as_deref().map_or_else(|| "unset".to_owned(), parse::shown)),
    Entry { vital: true, ..entry(IDENTITY, "RINGWAY_SECRET_FILE", "path",
        "File whose content, without blanks around it, is the secret. Safer than the variable, \
         which other processes of the same user can read. An unreadable or empty file stops the \
         job.",
        assign_secret_file,
        |c| path_or_unset(c.secret_file.as_deref())) },
    Entry { vital: true, secret: true, ..entry(IDENTITY, "RINGWAY_SECRET", "text",
        "Secret the ranks of a job share: a connection that does not prove to know it is \
         dropped. It is never shown. An empty one stops the job.",
        assign_secret,
        |c| or_unset(c.secret.as_ref())) },

    entry(TRANSPORT, "RINGWAY_TRANSPORT", "auto, shm, tcp or verbs",
        "Which transport may be used: the best for each pair of ranks, or only the named one.",
        |c, v| put(&mut c.transport, TransportChoice::parse(v)),
        |c| c.transport.to_string()),
    entry(TRANSPORT, "RINGWAY_REQUIRE", "list of shm, rdma, gdr, p2p, rails=N",
        "What the job insists on; anything worse, or a word that is not understood, is an error \
         at start. This version can meet shm, rdma, gdr (when ranks meet on their GPUs), and rails=N: so many network \
         interfaces, side by side, between any two hosts.",
        |c, v| put(&mut c.require, Ok(parse::words(v).into_iter().map(Requirement::parse).collect())),
        |c| list_or(&c.require, "nothing")),
    entry(TRANSPORT, "NCCL_SHM_DISABLE", "0 or 1",
        "1: ranks of one host do not share memory; they use TCP.",
        |c, v| put(&mut c.shm_disable, parse::boolean(v)),
        |c| u8::from(c.shm_disable).to_string()),
    entry(TRANSPORT, "RINGWAY_SINGLE_COPY", "0 or 1",
        "Ranks of one host read large messages where they lie in each other's buffers \
         (process_vm_readv), if the kernel lets them. 0: they always go through shared memory, and no \
         process is allowed to read another's memory.",
        |c, v| put(&mut c.single_copy, parse::boolean(v)),
        |c| u8::from(c.single_copy).to_string()),
    entry(TRANSPORT, "RINGWAY_CHECKSUM", "0 or 1",
        "1: every part of a message that this rank sends to another host carries its CRC32C, which the \
         receiver compares; a difference ends the call with an error that names the two ranks.",
        |c, v| put(&mut c.checksum, parse::boolean(v)),
        |c| u8::from(c.checksum).to_string()),
    Entry { vital: true, ..entry(TRANSPORT, "RINGWAY_TLS", "0 or 1",
        "1: data between ranks that do not share memory goes by TLS 1.3 over TCP, with keys made from the job's secret; \
         RDMA, which does not encrypt, is not used. Must be set alike on all ranks; a value that is not understood stops \
         the job.",
        |c, v| put(&mut c.tls, parse::boolean(v)),
        |c| u8::from(c.tls).to_string()) },
    entry(TRANSPORT, "RINGWAY_GPU", "0 or 1",
        "Whether communicators use the GPU that is current when they are made, where there is one. 0: host \
         memory only, and no driver is opened.",
        |c, v| put(&mut c.gpu, parse::boolean(v)),
        |c| u8::from(c.gpu).to_string()),
    entry(TRANSPORT, "RINGWAY_GPU_OVERLAP", "0 or 1",
        "Whether a launch may begin while the kernel in front of it in its stream ends, for whose end it waits by itself \
         (programmatic dependent launch): on NVIDIA's GPUs of compute capability 9.0 and later, with a driver of CUDA 12.3 or \
         later and kernels compiled on the machine.",
        |c, v| put(&mut c.gpu_overlap, parse::boolean(v)),
        |c| u8::from(c.gpu_overlap).to_string()),
    entry(TRANSPORT, "RINGWAY_GPU_CHANNELS", "whole number from 1 to 16",
        "Where ranks do not map each other's GPU memory it goes through pinned memory and the host: by so many \
         communicators side by side, each with a thread of its own; the least of all ranks counts.",
        |c, v| put(&mut c.gpu_channels, parse::number(v, 1..=16)),
        |c| c.gpu_channels.to_string()),
    entry(TRANSPORT, "RINGWAY_GPUDIRECT", "0 or 1",
        "1: where GPU memory goes between hosts, adapters read and write it themselves (GPUDirect RDMA) in calls that only \
         move values and in messages, if all ranks can; why not is in the log. Untested on hardware. RINGWAY_REQUIRE=gdr \
         sets it too, and makes a refusal an error.",
        |c, v| put(&mut c.gpu_direct, parse::boolean(v)),
        |c| u8::from(c.gpu_direct).to_string()),
    entry(TRANSPORT, "RINGWAY_CUDA_LIBRARY", "path",
        "The CUDA driver's library; where unset libcuda.so.1, else HIP's runtime, is looked for.",
        |c, v| put(&mut c.cuda_library, Ok(Some(PathBuf::from(v)))),
        |c| path_or_unset(c.cuda_library.as_deref())),
    entry(TRANSPORT, "RINGWAY_NVRTC_LIBRARY", "path",
        "The library that compiles kernels; where unset libnvrtc, or HIP's, is looked for: loaded already, beside \
         CUDA's libraries that are loaded, on the loader's path, in CUDA_HOME, CUDA_PATH and /usr/local/cuda*.",
        |c, v| put(&mut c.nvrtc_library, Ok(Some(PathBuf::from(v)))),
        |c| path_or_unset(c.nvrtc_library.as_deref())),
    entry(TRANSPORT, "CUDA_HOME", "path",
        "A CUDA toolkit; see RINGWAY_NVRTC_LIBRARY.",
        |c, v| put(&mut c.cuda_home, absolute(v)),
        |c| path_or_unset(c.cuda_home.as_deref())),
    entry(TRANSPORT, "CUDA_PATH", "path",
        "As CUDA_HOME.",
        |c, v| put(&mut c.cuda_path, absolute(v)),
        |c| path_or_unset(c.cuda_path.as_deref())),
    entry(TRANSPORT, "RINGWAY_SHM_DIR", "path",
        "Directory of the Unix sockets by which ranks of one host meet, for ranks in containers \
         with networks of their own; all of them need the same. Where unset they meet by \
         abstract sockets, which leave no file.",
        assign_shm_dir,
        |c| path_or_unset(c.shm_dir())),
    entry(TRANSPORT, "NCCL_NET", "auto, IB or Socket",
        "What carries bytes between hosts: IB is RDMA or an error, Socket is TCP. ringway loads no \
         plugins.",
        |c, v| put(&mut c.network, NetworkChoice::parse(v)),
        |c| c.network.to_string()),
    entry(TRANSPORT, "NCCL_SOCKET_IFNAME", "list of names; = exact, ^ exclude",
        "Network interfaces for sockets: `eth` is every name that starts so, `=eth0,eth1` \
         exactly these, `^docker,lo` all others. The mark counts for the whole list.",
        |c, v| put_remarked(&mut c.interfaces, InterfaceFilter::parse(v)),
        |c| c.interfaces.to_string()),
    entry(TRANSPORT, "NCCL_SOCKET_FAMILY", "AF_INET or AF_INET6",
        "Use only addresses of this family.",
        |c, v| put(&mut c.family, AddressFamily::parse(v).map(Some)),
        |c| c.family.map_or("any", AddressFamily::name).to_owned()),
    entry(TRANSPORT, "NCCL_SOCKET_NTHREADS", "0 to 16",
        "Times NCCL_NSOCKS_PERTHREAD: the TCP connections to each peer, at least 1, at most 64, \
         and where both are unset 2, or one for each rail. Unlike NCCL, ringway starts no helper \
         threads for them.",
        |c, v| put(&mut c.socket_threads, parse::number(v, 0..=16).map(Some)),
        |c| or_unset(c.socket_threads.as_ref())),
    entry(TRANSPORT, "NCCL_NSOCKS_PERTHREAD", "1 to 64",
        "See NCCL_SOCKET_NTHREADS.",
        |c, v| put(&mut c.sockets_per_thread, parse::number(v, 1..=64).map(Some)),
        |c| or_unset(c.sockets_per_thread.as_ref())),

    entry(RDMA, "NCCL_IB_HCA", "list of devices or devices:port; = exact, ^ exclude",
        "RDMA ports that may be used: `mlx5` is every device whose name starts so, `=mlx5_0:1,mlx5_1` \
         exactly these, `^mlx5_2` all others. The marks count for the whole list.",
        |c, v| put_remarked(&mut c.rdma.hca, rdma::hca(v)),
        |c| or_empty(&c.rdma.hca)),
    entry(RDMA, "NCCL_IB_GID_INDEX", "auto (or -1), or 0 to 255",
        "Which address of a port's table is used; `ringway net gids` shows them. auto: on RoCE one of the \
         version wanted, routable before link-local, IPv4 before IPv6; on InfiniBand the first, or one \
         that routers forward.",
        |c, v| put(&mut c.rdma.gid_index, rdma::gid_index(v)),
        |c| or_auto(c.rdma.gid_index.as_ref())),
    entry(RDMA, "NCCL_IB_ADDR_FAMILY", "AF_INET or AF_INET6",
        "Family of the address chosen on RoCE. Unlike NCCL, either is taken where unset, so that IPv6 \
         alone works; and where it is set nothing else is.",
        |c, v| put(&mut c.rdma.family, AddressFamily::parse(v).map(Some)),
        |c| c.rdma.family.map_or("any", AddressFamily::name).to_owned()),
    entry(RDMA, "NCCL_IB_ADDR_RANGE", "network such as 10.0.0.0/8",
        "The address chosen on RoCE is of this network.",
        |c, v| put(&mut c.rdma.range, AddressRange::parse(v).map(Some)),
        |c| or_unset(c.rdma.range.as_ref())),
    entry(RDMA, "NCCL_IB_ROCE_VERSION_NUM", "1 or 2",
        "Version of RoCE of the address chosen. Version 1 is not routed.",
        |c, v| put(&mut c.rdma.roce_version, parse::number(v, 1..=2)),
        |c| c.rdma.roce_version.to_string()),
    entry(RDMA, "NCCL_IB_TIMEOUT", "0 to 31",
        "An adapter sends a packet again that was not acknowledged in 4.096 µs · 2^n; 20 is 4.3 s, 0 waits \
         for ever.",
        |c, v| put(&mut c.rdma.timeout, parse::number(v, 0..=31)),
        |c| c.rdma.timeout.to_string()),
    entry(RDMA, "NCCL_IB_RETRY_CNT", "0 to 7",
        "How often an adapter sends a packet again before the connection fails.",
        |c, v| put(&mut c.rdma.retries, parse::number(v, 0..=7)),
        |c| c.rdma.retries.to_string()),
    entry(RDMA, "NCCL_IB_SL", "0 to 15",
        "Service level of connections, on InfiniBand.",
        |c, v| put(&mut c.rdma.service_level, parse::number(v, 0..=15)),
        |c| c.rdma.service_level.to_string()),
    entry(RDMA, "NCCL_IB_TC", "0 to 255",
        "Traffic class of connections: on RoCE v2 the byte with DSCP and ECN, so DSCP times 4.",
        |c, v| put(&mut c.rdma.traffic_class, parse::number(v, 0..=255)),
        |c| c.rdma.traffic_class.to_string()),
    entry(RDMA, "NCCL_IB_PKEY", "0 to 65535",
        "Index of the partition key in the port's table.",
        |c, v| put(&mut c.rdma.pkey_index, parse::number(v, 0..=65535)),
        |c| c.rdma.pkey_index.to_string()),
    entry(RDMA, "NCCL_IB_DISABLE", "0 or 1",
        "1: ranks of different hosts talk over sockets, whatever adapters there are.",
        |c, v| put(&mut c.rdma.disable, parse::boolean(v)),
        |c| u8::from(c.rdma.disable).to_string()),
    entry(RDMA, "NCCL_IB_QPS_PER_CONNECTION", "1 to 128",
        "Queue pairs between each two ports: switches that choose a way by its ends give each a way of \
         its own. The smaller number of the two ranks counts.",
        |c, v| put(&mut c.rdma.queue_pairs, parse::number(v, 1..=128)),
        |c| c.rdma.queue_pairs.to_string()),
    entry(RDMA, "NCCL_IB_SPLIT_DATA_ON_QPS", "0 or 1",
        "1: what is sent at once is cut into parts, one for each queue pair. 0: messages of 64 KiB go by \
         each in turn.",
        |c, v| put(&mut c.rdma.split, parse::boolean(v)),
        |c| u8::from(c.rdma.split).to_string()),
    entry(RDMA, "NCCL_IB_ADAPTIVE_ROUTING", "auto, 0 or 1",
        "1: switches may send each packet by a way of its own, so messages above NCCL_IB_AR_THRESHOLD are \
         told by a write behind them. auto: on InfiniBand.",
        |c, v| put(&mut c.rdma.adaptive_routing, parse::auto(v, parse::boolean)),
        |c| or_auto(c.rdma.adaptive_routing.map(u8::from).as_ref())),
    entry(RDMA, "NCCL_IB_AR_THRESHOLD", "bytes",
        "See NCCL_IB_ADAPTIVE_ROUTING.",
        |c, v| put(&mut c.rdma.adaptive_least, parse::bytes(v, 0..=1 << 40)),
        |c| c.rdma.adaptive_least.to_string()),
    entry(RDMA, "NCCL_NET_GDR_LEVEL", "LOC, PIX, PXB, PHB, SYS or 0 to 5",
        "With RINGWAY_GPUDIRECT=1: how far from its GPU a rank's nearest adapter may be to reach the memory there: behind one PCI \
         switch (PIX), several (PXB), across the host bridge (PHB), on another NUMA node (SYS); LOC for never. Unset \
         stands for PXB, and for chip to chip (P2C). Where the kernel does not know where they are, only LOC counts.",
        |c, v| put(&mut c.rdma.gpu_level, rdma::gpu_level(v)),
        |c| or_unset(c.rdma.gpu_level.as_ref())),
    entry(RDMA, "NCCL_NET_GDR_READ", "0 or 1",
        "With RINGWAY_GPUDIRECT=1: 0 has the GPU's driver copy what is sent to host memory first, from which adapters write it \
         into the GPU memory of others.",
        |c, v| put(&mut c.rdma.gpu_reads, parse::boolean(v)),
        |c| u8::from(c.rdma.gpu_reads).to_string()),
    entry(RDMA, "NCCL_CROSS_NIC", "0, 1 or 2",
        "Port i of a rank talks to port i of another. Where one has more ports, the rest are not used; 1 \
         lets them talk to the other's ports again from the first.",
        |c, v| put(&mut c.rdma.cross, parse::number(v, 0..=2)),
        |c| c.rdma.cross.to_string()),
    entry(RDMA, "RINGWAY_RDMA_REGISTER", "0 or 1",
        "1: large buffers of calls are registered with the adapters at their first use, and read and written \
         where they are; that is kept for the next call until the memory is freed. 0: they are copied.",
        |c, v| put(&mut c.rdma.register, parse::boolean(v)),
        |c| u8::from(c.rdma.register).to_string()),

    entry(MEMORY, "NCCL_BUFFSIZE", "bytes, 64K to 1G",
        "Scratch memory of a rank. Unlike NCCL's, it is not multiplied by connections and \
         channels.",
        |c, v| put(&mut c.buffer_bytes, parse::bytes(v, 64 << 10..=1 << 30)),
        |c| parse::format_bytes(c.buffer_bytes)),
    entry(MEMORY, "RINGWAY_MAX_BYTES", "bytes, from 64K",
        "Most memory a communicator may take.",
        |c, v| put(&mut c.max_bytes, parse::bytes(v, 64 << 10..=1 << 60).map(Some)),
        |c| c.max_bytes.map_or_else(|| "unset".to_owned(), parse::format_bytes)),
    entry(MEMORY, "RINGWAY_CHUNK_BYTES", "auto, or bytes, 64 to 1G",
        "Size of the pieces in which large messages travel.",
        |c, v| put(&mut c.chunk_bytes, parse::auto(v, |v| parse::bytes(v, 64..=1 << 30))),
        |c| c.chunk_bytes.map_or_else(|| "auto".to_owned(), parse::format_bytes)),
    entry(MEMORY, "RINGWAY_LANES", "auto, or 1 to 16",
        "Independent lists of steps a plan may have.",
        |c, v| put(&mut c.lanes, parse::auto(v, |v| parse::number(v, 1..=16))),
        |c| or_auto(c.lanes.as_ref())),
    entry(MEMORY, "RINGWAY_SPIN_US", "auto, or microseconds, 0 to 1000000",
        "How long a waiting rank spins before it sleeps in the kernel. 0 suits more ranks than \
         cores.",
        |c, v| put(&mut c.spin, parse::auto(v, |v| parse::number(v, 0..=1_000_000u32))
            .map(|us| us.map(|us| Duration::from_micros(us.into())))),
        |c| or_auto(c.spin.map(|spin| spin.as_micros()).as_ref())),
    entry(MEMORY, "NCCL_ALGO", "list; ^ exclude; per collective `allreduce:ring;allgather:^pat`",
        "Algorithms the planner may choose: tiny, one_shot, two_shot, ring, recursive_doubling (rd), \
         halving_doubling (hd), bruck, tree, pat, direct, single_copy, hierarchical. CollnetDirect, \
         CollnetChain, NVLS and NVLSTree are taken, and mean nothing on host memory.",
        |c, v| put_remarked(&mut c.algorithms, AlgorithmFilter::parse(v)),
        |c| c.algorithms.to_string()),
    entry(MEMORY, "RINGWAY_TUNING", "auto, off or path",
        "What calls were measured to take on this machine: the file that `ringway tune` has \
         written for this processor and these ranks, none, or this one. Rank 0's counts for all; \
         only off must be set alike.",
        assign_tuning,
        |c| c.tuning.to_string()),
    entry(MEMORY, "NCCL_PROTO", "list of LL, LL128, Simple; ^ exclude",
        "Taken, and means nothing on host memory.",
        |c, v| put_remarked(&mut c.protocols,
            filter::check_protocols(v).map(|remarks| (Some(parse::shown(v)), remarks))),
        |c| or_unset(c.protocols.as_ref())),

    entry(PROMISES, "NCCL_COMM_BLOCKING", "0, 1 or auto",
        "By NCCL's interface: 1, calls return when they are done; 0, at once, and \
         ncclCommGetAsyncError tells. Where unset each program chooses.",
        |c, v| put(&mut c.blocking, parse::auto(v, parse::boolean)),
        |c| or_auto(c.blocking.map(u8::from).as_ref())),
    entry(PROMISES, "RINGWAY_LEVEL", "run or shape",
        "What the bits of a reduction may depend on. run: same job, same bits. shape: only the \
         ranks' values in rank order, not size, algorithm, transport or placement.",
        |c, v| put(&mut c.level, parse::word(v, &[("run", Level::Run), ("shape", Level::Shape)])),
        |c| c.level.to_string()),
    entry(PROMISES, "RINGWAY_TIMEOUT", "duration such as 500ms, 30s, 10m; 1ms to 7d",
        "Deadline of an operation; a bare number is seconds. When it passes, every rank gets an \
         error that names who is late.",
        |c, v| put(&mut c.timeout, parse::duration(v, MS..=WEEK)),
        |c| parse::format_duration(c.timeout)),
    entry(PROMISES, "RINGWAY_ADAPTIVE_TIMEOUT", "whole number, 0 to 1000000",
        "Makes deadlines follow what each call usually takes: the median of its last 32 times, and so many times their spread \
         (the median distance from the median), from 1 s up to RINGWAY_TIMEOUT. 20 is a good start. 0 switches it off. Calls \
         with a deadline of their own, groups, messages and calls on GPU memory keep theirs.",
        |c, v| put(&mut c.adaptive_timeout, parse::number(v, 0..=1_000_000_u32).map(|spreads| Some(spreads).filter(|spreads| *spreads > 0))),
        |c| c.adaptive_timeout.unwrap_or(0).to_string()),
    entry(PROMISES, "RINGWAY_INIT_TIMEOUT", "duration, 1ms to 7d",
        "Deadline for the ranks to find each other.",
        |c, v| put(&mut c.init_timeout, parse::duration(v, MS..=WEEK)),
        |c| parse::format_duration(c.init_timeout)),

    entry(LOG, "NCCL_DEBUG", "NONE, VERSION, WARN, INFO, ABORT or TRACE",
        "How much is logged. Unlike NCCL, warnings are shown where this is unset; ABORT is the \
         same as INFO.",
        |c, v| put(&mut c.debug, DebugLevel::parse(v)),
        |c| c.debug.to_string()),
    entry(LOG, "NCCL_DEBUG_SUBSYS", "list; ^ exclude",
        "Whose INFO and TRACE lines are shown: INIT, COLL, P2P, SHM, NET, GRAPH, TUNING, ENV, \
         ALLOC, ALLOC_HOST, CALL, PROXY, NVLS, BOOTSTRAP, REG, PROFILE, RAS, DESTROY or ALL.",
        |c, v| put_remarked(&mut c.debug_subsystems, Subsystems::parse(v)),
        |c| c.debug_subsystems.to_string()),
    entry(LOG, "NCCL_DEBUG_FILE", "stderr, stdout, or path with %h (host), %p (process)",
        "Where the log goes. Unlike NCCL, standard error is the default, so that a command's \
         table stays clean, and a file is appended to.",
        |c, v| put(&mut c.debug_file, Ok(LogFile::parse(v))),
        |c| parse::shown(&c.debug_file.to_string())),
    entry(LOG, "RINGWAY_RECORDER", "whole number, 0 to 1048576",
        "Operations that the flight recorder of a communicator keeps, and as many messages and launches on GPUs: 64 bytes \
         each, rounded up to a power of two. 0 switches it off.",
        |c, v| put(&mut c.recorder, parse::number(v, 0..=1_u32 << 20)),
        |c| c.recorder.to_string()),
    entry(LOG, "RINGWAY_TRACE_DIR", "path",
        "Folder that traces of the flight recorder are written to, a file for each rank and communicator; it is made \
         where it is missing. Where unset none are written. `ringway trace` reads them.",
        |c, v| put(&mut c.trace_dir, Ok(Some(PathBuf::from(v)))),
        |c| path_or_unset(c.trace_dir.as_deref())),
    entry(LOG, "RINGWAY_TRACE_ON", "list of error, end, usr1, usr2",
        "When a trace is written: a communicator fails, a communicator ends, the process gets SIGUSR1 or SIGUSR2. A \
         signal that the program handles itself, or ignores, is left to it.",
        |c, v| put(&mut c.trace_on, parse::words(v).into_iter().map(TraceEvent::parse).collect()),
        |c| list_or(&c.trace_on, "nothing")),
    entry(LOG, "RINGWAY_METRICS", "port, address:port, unix:/path with %p (process), or exporter",
        "Where each process serves metrics of its communicators as Prometheus text, over HTTP: the first port that is free from \
         this one on, of the loopback interface unless an address is given, or a Unix socket that its user alone may open. \
         With exporter that is where `ringway exporter` looks, /run/ringway. Where unset there are none.",
        |c, v| put(&mut c.metrics, MetricsPlace::parse(v).map(Some)),
        |c| c.metrics.as_ref().map_or_else(|| "unset".to_owned(), |place| parse::shown(&place.to_string()))),

    entry(COMMAND, "NCCL_CONF_FILE", "path",
        "File of NAME=value lines, read in place of ~/.nccl.conf. It counts in the process \
         environment only.",
        |c, v| put(&mut c.conf_file, Ok(Some(PathBuf::from(v)))),
        |c| path_or_unset(c.conf_file.as_deref())),
    entry(COMMAND, "RINGWAY_CACHE_DIR", "path",
        "Folder under which `ringway/` holds tuning files and compiled GPU kernels. Where unset: \
         XDG_CACHE_HOME, then ~/.cache.",
        |c, v| put(&mut c.cache_dir, absolute(v)),
        |c| path_or_unset(c.cache_dir.as_deref())),
    entry(COMMAND, "XDG_CACHE_HOME", "path",
        "See RINGWAY_CACHE_DIR.",
        |c, v| put(&mut c.xdg_cache, absolute(v)),
        |c| path_or_unset(c.xdg_cache.as_deref())),
    entry(COMMAND, "RINGWAY_COLOR", "auto, always or never",
        "Whether the command colours its output; auto: on a terminal, unless NO_COLOR is set.",
        |c, v| put(&mut c.color, ColorChoice::parse(v)),
        |c| c.color.to_string()),
    entry(COMMAND, "NO_COLOR", "anything",
        "Set and not empty: no colours where RINGWAY_COLOR is auto.",
        |c, _| put(&mut c.no_color, Ok(true)),
        |c| if c.no_color { "1" } else { "unset" }.to_owned()),
    entry(COMMAND, "RINGWAY_TEST_REQUIRE", "list of words",
        "Tests only: what the machine must offer. A test that would be skipped for lack of it \
         fails.",
        |c, v| put(&mut c.test_require, Ok(parse::words(v).into_iter().map(parse::shown).collect())),
        |c| list_or(&c.test_require, "nothing")),
    entry(COMMAND, "RINGWAY_BLESS", "0 or 1",
        "Tests only: 1 rewrites files that are made from the code, such as this page, instead of \
         comparing them.",
        |c, v| put(&mut c.bless, parse::boolean(v)),
        |c| u8::from(c.bless).to_string()),
];

/// The row of a setting.
pub(super) fn find(name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.name == name)
}

fn put<T>(slot: &mut T, value: Result<T, Problem>) -> Outcome {
    *slot = value?;
    Ok(Vec::new())
}

fn put_remarked<T>(slot: &mut T, value: Result<(T, Vec<Remark>), Problem>) -> Outcome {
    let (value, remarks) = value?;
    *slot = value;
    Ok(remarks)
}

/// A number that must not be guessed at: a wrong rank is worse than none.
fn exact(text: &str, low: u32, high: u32) -> Result<u32, Problem> {
    parse::number(text, low..=high).map_err(Problem::unclamped)
}

fn addresses(text: &str) -> Result<Vec<HostPort>, Problem> {
    let parsed: Result<Vec<HostPort>, String> = parse::words(text)
        .into_iter()
        .map(|word| word.parse().map_err(|why| format!("{}: {why}", parse::shown(word))))
        .collect();
    match parsed {
        Ok(list) if list.is_empty() => Err(Problem::new("no address; write host:port")),
        other => other.map_err(Problem::new),
    }
}

fn assign_secret(config: &mut Config, value: &str) -> Outcome {
    config.secret = Some(Secret::new(value));
    Ok(short_secret(value.len()))
}

fn assign_secret_file(config: &mut Config, value: &str) -> Outcome {
    let path = PathBuf::from(value);
    let bytes = config
        .files
        .read(&path, SECRET_BYTES_MAX)
        .map_err(|error| Problem::new(format!("cannot be read: {error}")))?;
    let secret = bytes.trim_ascii();
    if secret.is_empty() {
        return Err(Problem::new("the file is empty"));
    }
    config.secret = Some(Secret::new(secret));
    config.secret_file = Some(path);
    Ok(short_secret(secret.len()))
}

fn short_secret(bytes: usize) -> Vec<Remark> {
    let short = bytes < 16;
    let text = "a secret of fewer than 16 bytes is easy to guess";
    short.then(|| Remark::Note(text.to_owned())).into_iter().collect()
}

fn assign_shm_dir(config: &mut Config, value: &str) -> Outcome {
    if !Path::new(value).is_absolute() {
        return Err(Problem::new("not an absolute path; ranks may start in different directories"));
    }
    if value.len() > SHM_DIR_BYTES_MAX {
        let text = format!("longer than {SHM_DIR_BYTES_MAX} bytes, too long for Unix sockets");
        return Err(Problem::new(text));
    }
    put(&mut config.shm_dir, Ok(Some(PathBuf::from(value))))
}

fn absolute(value: &str) -> Result<Option<PathBuf>, Problem> {
    match Path::new(value).is_absolute() {
        true => Ok(Some(PathBuf::from(value))),
        false => Err(Problem::new("not an absolute path")),
    }
}

fn assign_tuning(config: &mut Config, value: &str) -> Outcome {
    let tuning = match value.to_ascii_lowercase().as_str() {
        "auto" => TuningChoice::Auto,
        "off" => TuningChoice::Off,
        _ => TuningChoice::File(PathBuf::from(value)),
    };
    put(&mut config.tuning, Ok(tuning))
}

fn or_unset<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "unset".to_owned(), ToString::to_string)
}

fn or_empty<T: ToString>(value: &T) -> String {
    Some(value.to_string()).filter(|text| !text.is_empty()).unwrap_or_else(|| "unset".to_owned())
}

fn or_auto<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "auto".to_owned(), ToString::to_string)
}

fn path_or_unset(path: Option<&Path>) -> String {
    path.map_or_else(|| "unset".to_owned(), |path| parse::shown(&path.to_string_lossy()))
}

fn list_or<T: ToString>(values: &[T], empty: &str) -> String {
    match values {
        [] => empty.to_owned(),
        _ => values.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    }
}

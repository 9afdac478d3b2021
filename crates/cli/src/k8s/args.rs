//! Arguments of `ringway k8s`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ringway_k8s::generate;

/// Write Kubernetes manifests for collectives, and check them
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Examples:
  ringway k8s gen job --nodes 4 --network host --image ghcr.io/me/train:1.2
  ringway k8s lint job.yaml
  ringway k8s lint --fix manifests/"
)]
pub(crate) struct K8sArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: K8sCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum K8sCommand {
    /// Write a manifest from a few choices, ready for kubectl
    Gen(Box<GenArgs>),
    /// Say what is wrong with manifests, why, and how it is written right
    Lint(LintArgs),
}

/// In which form findings are printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
    Sarif,
    Junit,
}

#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "All files are looked at together, so that a pod finds its network in another file.
Charts are filled first: helm template CHART | ringway k8s lint -

A comment # ringway: allow K8S-16 REASON on the line of a finding, or right above
it, keeps that finding back.

Examples:
  ringway k8s lint job.yaml
  kubectl get mpijob -o yaml train | ringway k8s lint -
  ringway k8s lint --diff job.yaml            what --fix would change
  ringway k8s lint --fix job.yaml             write it
  ringway k8s lint --format sarif deploy/ > k8s.sarif

Exits with 0 when nothing is wrong (hints do not count), 1 for warnings, 2 for
failures, and 3 when it could not look."
)]
pub(crate) struct LintArgs {
    /// Manifests, folders of them, - for standard input
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// How to print: text, json, sarif or junit
    #[arg(long, value_name = "FORM", default_value = "text", hide_possible_values = true)]
    pub(crate) format: Format,
    /// Write what can be mended safely into the files
    #[arg(long)]
    pub(crate) fix: bool,
    /// Show what --fix changes; without --fix nothing is written
    #[arg(long)]
    pub(crate) diff: bool,
    /// Say also what was read
    #[arg(short = 'v', long = "all", visible_alias = "verbose")]
    pub(crate) all: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Kind {
    /// Indexed Job with its Service: no operator needed
    Job,
    /// JobSet
    Jobset,
    /// MPIJob of Kubeflow's MPI operator
    Mpijob,
    /// LeaderWorkerSet
    Lws,
    /// `ringway doctor` on every node
    Doctor,
    /// `ringway exporter` on every node, for Prometheus
    Exporter,
    /// Operators' policies, SR-IOV, OpenShift: applied once
    Cluster,
}

impl From<Kind> for generate::Kind {
    fn from(given: Kind) -> Self {
        match given {
            Kind::Job => Self::Job,
            Kind::Jobset => Self::JobSet,
            Kind::Mpijob => Self::MpiJob,
            Kind::Lws => Self::LeaderWorkerSet,
            Kind::Doctor => Self::Doctor,
            Kind::Exporter => Self::Exporter,
            Kind::Cluster => Self::Cluster,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Network {
    /// The host's network; RDMA by the shared device plugin
    Host,
    /// RDMA by the shared device plugin
    Rdma,
    /// Functions of their own
    Sriov,
    /// Shared RDMA devices, macvlan interfaces
    Macvlan,
    /// Shared RDMA devices, ipvlan interfaces
    Ipvlan,
    /// AWS's Elastic Fabric Adapter
    Efa,
    /// The pod's own: TCP
    Pod,
}

impl From<Network> for generate::Net {
    fn from(given: Network) -> Self {
        match given {
            Network::Host => Self::Host,
            Network::Rdma => Self::Rdma,
            Network::Sriov => Self::Sriov,
            Network::Macvlan => Self::Macvlan,
            Network::Ipvlan => Self::Ipvlan,
            Network::Efa => Self::Efa,
            Network::Pod => Self::Pod,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Gpu {
    Nvidia,
    Amd,
}

impl From<Gpu> for generate::Vendor {
    fn from(given: Gpu) -> Self {
        match given {
            Gpu::Nvidia => Self::Nvidia,
            Gpu::Amd => Self::Amd,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Link {
    Ib,
    Eth,
}

impl From<Link> for generate::Link {
    fn from(given: Link) -> Self {
        match given {
            Link::Ib => Self::Ib,
            Link::Eth => Self::Eth,
        }
    }
}

#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Without a program it is the benchmark, `ringway perf all_reduce`. Variables are those
of `ringway env suggest`, each with its reason.

Examples:
  ringway k8s gen job --nodes 4 --network host --image ghcr.io/me/bench:1.2
  ringway k8s gen jobset --network sriov --image ghcr.io/me/train:1.2 \\
      -- torchrun train.py
  ringway k8s gen mpijob --gpu amd --network rdma --image ghcr.io/me/rccl:7.2
  ringway k8s gen doctor --image ghcr.io/me/ringway:0.1
  ringway k8s gen exporter --image ghcr.io/me/ringway:0.1 --namespace monitor
  ringway k8s gen cluster --network sriov --link ib --openshift
  ringway k8s gen job --image i:1 | kubectl apply --dry-run=server -f -"
)]
pub(crate) struct GenArgs {
    /// What to make
    pub(crate) kind: Kind,
    /// How pods reach each other
    #[arg(long, default_value = "rdma")]
    pub(crate) network: Network,
    /// Whose GPUs: nvidia or amd
    #[arg(long, default_value = "nvidia", hide_possible_values = true)]
    pub(crate) gpu: Gpu,
    /// What links are: ib or eth [default: eth; ib with --network rdma]
    #[arg(long, hide_possible_values = true)]
    pub(crate) link: Option<Link>,
    /// The container image, with its version
    #[arg(long)]
    pub(crate) image: Option<String>,
    /// Name of the object
    #[arg(long, default_value = "ringway")]
    pub(crate) name: String,
    /// Namespace
    #[arg(long, default_value = "default")]
    pub(crate) namespace: String,
    /// Pods, one a node
    #[arg(long, default_value_t = 2)]
    pub(crate) nodes: u64,
    /// GPUs of a node
    #[arg(long, default_value_t = 8)]
    pub(crate) gpus: u64,
    /// NICs of a node for collectives [default: one for each GPU]
    #[arg(long)]
    pub(crate) nics: Option<u64>,
    /// The device plugin's resource, without its domain
    #[arg(long, default_value = "rdma_shared_device_a")]
    pub(crate) resource: String,
    /// Interfaces of a node that carry macvlan, ipvlan or SR-IOV
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) master: Vec<String>,
    /// MTU of Ethernet networks
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u64).range(4200..=9600))]
    pub(crate) mtu: u64,
    /// What /dev/shm may hold [default: 2Gi for each GPU]
    #[arg(long, value_name = "SIZE")]
    pub(crate) shm: Option<String>,
    /// Label whose value the nodes of a job should share
    #[arg(long, value_name = "LABEL")]
    pub(crate) topology: Option<String>,
    /// Only nodes with this label (may be repeated)
    #[arg(long, value_name = "LABEL=VALUE", value_parser = pair)]
    pub(crate) node: Vec<(String, String)>,
    /// DSCP that the network gives to RDMA
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..64))]
    pub(crate) dscp: Option<u8>,
    /// A node's snapshot (`ringway snapshot`): its cards by name
    #[arg(long, value_name = "PATH")]
    pub(crate) root: Option<PathBuf>,
    /// For OpenShift: account, constraints, machine configuration
    #[arg(long)]
    pub(crate) openshift: bool,
    /// GPUDirect Storage: cufile.json, nvidia-fs
    #[arg(long)]
    pub(crate) gds: bool,
    /// Write into this file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected LABEL=VALUE".to_owned()),
    }
}

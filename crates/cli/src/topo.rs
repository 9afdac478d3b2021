//! `ringway topo`: what is in a machine, and which NIC each GPU uses.
//!
//! The machine is this one, a copy of its files or a snapshot (`--root`), a topology file (`--file`), or
//! the saved text of `nvidia-smi topo -m` or `rocm-smi --showtopo`, which is recognised by what it holds.

mod page;
mod report;
mod settings;

use crate::exit::ExitCode;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use ringway::config::Environment;
use ringway::topo::{self, DocumentOptions, Machine, PciSelector, Root};
use ringway_plan::topology::document::Element;
use ringway_plan::topology::matrix::{self, Matrix};
use ringway_plan::topology::{Topology, picture, xml};

use crate::output;
use crate::snapshot::unpack::Copied;
use report::{Report, Rest};
use settings::Settings;

/// Show what is in this machine: GPUs, NICs, what is between them
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Prints the matrix of nvidia-smi topo -m, the NIC that NCCL's rules give to each
GPU, GPUDirect or the reason why not, and warnings. Without GPUs: processors,
NUMA nodes and network devices.

Goes by NCCL_TOPO_FILE, NCCL_IB_HCA, NCCL_NET_GDR_LEVEL, NCCL_P2P_LEVEL,
NCCL_PXN_DISABLE and NCCL_CROSS_NIC; writes NCCL_TOPO_DUMP_FILE.

Examples:
  ringway topo                         this machine
  ringway topo --svg machine.svg       as a picture
  ringway topo --xml > topo.xml        for NCCL_TOPO_FILE
  ringway topo --root node17.tar.zst   another machine's snapshot
  ringway topo --root /tmp/copied      a copy of another machine's /sys, /proc
  ringway topo --gpu 1da3:1060         with accelerators that are not known
  ringway topo --file topo.xml         a topology file
  ringway topo --file saved.txt        saved text of nvidia-smi topo -m

Exits with 0 when the machine was shown, warnings or not; with 2 when the
input cannot be read or an argument is wrong."
)]
pub(crate) struct TopoArgs {
    /// Read a snapshot, or a copy of a machine's files in a folder
    #[arg(long, value_name = "SNAPSHOT|DIR", conflicts_with = "file")]
    root: Option<PathBuf>,
    /// Read a topology file, or saved text of nvidia-smi or rocm-smi
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print the topology in NCCL's XML
    #[arg(long, conflicts_with = "json")]
    xml: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the machine into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Show the rings over the GPUs too
    #[arg(long)]
    rings: bool,
    /// Take more PCI functions for GPUs: bus id, vendor:device or vendor
    #[arg(long, value_name = "FUNCTION", value_delimiter = ',', conflicts_with = "file")]
    gpu: Vec<PciSelector>,
}

/// What was read.
enum Input {
    /// A machine or a topology file.
    Known { document: Element, rest: Box<Rest> },
    /// The matrix alone.
    Matrix(Matrix),
}

/// The picture of a machine, as `--svg` draws it, headed by what it is made of; nothing where there is neither
/// GPU nor NIC, or more than can be drawn.
pub(crate) fn drawn(root: &Root, machine: &Machine, environment: &Environment) -> Option<String> {
    let settings = Settings::read(environment);
    // A file named in a copied machine's environment is not in the copy.
    let named = environment.get("NCCL_TOPO_FILE").filter(|path| root.is_live() && !path.is_empty());
    let base = topo::load(root, named.map(Path::new)).ok().flatten();
    let options = DocumentOptions { hca: settings.hca.clone(), base };
    let topology = machine.topology(&options).ok()?;
    if topology.gpus().is_empty() && topology.nets().is_empty() {
        return None;
    }
    let rest = Rest { machine: None, source: None, name: None };
    let report = Report::new(&topology, &settings, rest);
    Some(picture::svg(&topology, report.affinities(), &report.parts()))
}

/// What is told of a topology file.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) picture: String,
    pub(crate) warnings: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// A topology file in NCCL's XML as a picture, whatever this machine's settings are. The picture is headed by what the
/// machine is made of, so that those of equal machines are equal.
pub(crate) fn drawn_file(bytes: &[u8]) -> anyhow::Result<Drawn> {
    let topology = Topology::from_document(&xml::read(bytes)?)?;
    let rest = Rest { machine: None, source: None, name: None };
    let report = Report::new(&topology, &Settings::default(), rest);
    let picture = picture::svg(&topology, report.affinities(), &report.parts());
    Ok(Drawn { picture, warnings: report.warnings, notes: report.notes })
}

/// Reads a machine and shows it.
pub(crate) fn run(args: &TopoArgs) -> anyhow::Result<ExitCode> {
    let environment = Environment::from_process();
    let settings = Settings::read(&environment);
    let (document, rest) = match input(args, &environment, &settings)? {
        Input::Known { document, rest } => (document, rest),
        Input::Matrix(matrix) => return show_matrix(args, &matrix),
    };
    let topology = Topology::from_document(&document)?;
    let report = Report::new(&topology, &settings, *rest);
    if let Some(path) = environment.get("NCCL_TOPO_DUMP_FILE").filter(|path| !path.is_empty()) {
        topo::save(Path::new(path), &document).context("NCCL_TOPO_DUMP_FILE")?;
    }
    if let Some(path) = &args.svg {
        let drawn = picture::svg(&topology, report.affinities(), &report.title());
        std::fs::write(path, drawn).with_context(|| format!("{}", path.display()))?;
    }
    if args.xml {
        output::stdout_bytes(xml::write(&document).as_bytes())?;
    } else if args.json {
        output::line(&serde_json::to_string_pretty(&report.json())?)?;
    } else if args.svg.is_none() {
        output::stdout_bytes(page::page(&report, args.rings).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn input(args: &TopoArgs, environment: &Environment, settings: &Settings) -> anyhow::Result<Input> {
    if let Some(path) = &args.file {
        return from_file(path);
    }
    // Lives until all is read: a snapshot's folder goes away with it.
    let copied = args.root.as_deref().map(Copied::open).transpose()?;
    if let (Some(copied), Some(path)) = (&copied, &args.root)
        && !copied.holds(&["sys", "proc"])
    {
        bail!("{} holds no copy of a machine: neither sys nor proc is in it", path.display());
    }
    let root = copied.as_ref().map_or_else(Root::live, Copied::root);
    let named = environment.get("NCCL_TOPO_FILE").filter(|path| !path.is_empty()).map(Path::new);
    let base = topo::load(&root, named).context("topology file")?;
    let source = match (&base, named) {
        (None, _) => None,
        (Some(_), Some(path)) => Some(path.display().to_string()),
        (Some(_), None) => Some(topo::VIRTUAL_TOPOLOGY.to_owned()),
    };
    let mut machine = Machine::discover(&root);
    for wanted in &args.gpu {
        if machine.count_as_gpus(wanted) == 0 {
            bail!("--gpu {wanted}: no PCI function that is neither bridge nor NIC; see lspci -nn");
        }
    }
    let options = DocumentOptions { hca: settings.hca.clone(), base };
    let document = machine.document(&options);
    let rest = Rest { machine: Some(machine), source, name: None };
    Ok(Input::Known { document, rest: Box::new(rest) })
}

fn from_file(path: &Path) -> anyhow::Result<Input> {
    let bytes = topo::read_file(path)?;
    let start = bytes.iter().position(|byte| !byte.is_ascii_whitespace());
    let xml_mark = b"\xef\xbb\xbf";
    if start.is_some_and(|start| bytes[start] == b'<' || bytes.starts_with(xml_mark)) {
        let document = xml::read(&bytes).with_context(|| path.display().to_string())?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let rest = Rest { machine: None, source: None, name };
        return Ok(Input::Known { document, rest: Box::new(rest) });
    }
    let text = String::from_utf8_lossy(&bytes);
    let matrix = matrix::read(&text).with_context(|| path.display().to_string())?;
    Ok(Input::Matrix(matrix))
}

fn show_matrix(args: &TopoArgs, matrix: &Matrix) -> anyhow::Result<ExitCode> {
    if args.xml || args.svg.is_some() || args.rings {
        let what = if args.xml {
            "--xml"
        } else if args.rings {
            "--rings"
        } else {
            "--svg"
        };
        bail!(
            "a saved matrix has no PCI tree, so {what} cannot be made from it; use --root or an XML file"
        );
    }
    if args.json {
        output::line(&serde_json::to_string_pretty(matrix)?)?;
    } else {
        output::stdout_bytes(page::matrix_page(matrix).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

//! `ringway exporter`: what a node's devices, its doctor and its jobs say, for Prometheus.
//!
//! ```text
//!   /sys, /proc ──► node ─────────┐ at every scrape
//!   sockets of jobs ──► jobs ─────┤
//!   NVML ──► gpus (a thread) ─────┼──► Page ──► ringway::exposition::Server
//!   checks ──► verdicts (a thread)┘
//! ```
//!
//! *Invariant*: a scrape reads files and asks sockets, no library and no program; it answers whatever cannot be read.

mod gpus;
pub(crate) mod jobs;
mod metric;
mod node;
mod reading;
mod verdicts;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use ringway::exposition::{Listener, Page, Server};
use ringway::topo::Root;
use rustix::event::{PollFd, PollFlags, Timespec};

use self::jobs::Jobs;
use self::metric::Samples;
use self::node::Inventory;
use self::reading::{Reading, Troubles, What};
use crate::exit::ExitCode;
use crate::launch::signals::Signals;
use crate::output;
use crate::snapshot::unpack::Copied;

/// Where jobs have their sockets with `RINGWAY_METRICS=exporter`.
pub(crate) const JOBS: &str = "/run/ringway";

/// How often it is looked what is in the machine.
const INVENTORY_EVERY: Duration = Duration::from_secs(60);

/// Serve numbers of this node, its NICs, GPUs and jobs for Prometheus
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Tells state and counters of RDMA ports, network interfaces and PCI links, which
GPU uses which NIC, GPUs and NVLinks by NVML, what `ringway doctor` says, and
the metrics of every job here that was started with RINGWAY_METRICS=exporter.
It changes nothing. As root it sees the jobs of all users.

Examples:
  ringway exporter                              http://127.0.0.1:9464/metrics
  ringway exporter --listen 0.0.0.0:9464        for a Prometheus elsewhere
  ringway exporter --once                       print it and end
  ringway exporter --once --root node1.tar.zst  of a snapshot
  RINGWAY_METRICS=exporter ringway run -n 8 -- python train.py

Anybody who reaches the address can read: there is no password. Metrics, alert
rules and dashboards: docs/exporter.md. SIGTERM and Ctrl-C end it with 0."
)]
pub(crate) struct ExporterArgs {
    /// Where to serve; without an address on this machine only
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:9464", value_parser = address)]
    listen: SocketAddr,
    /// Print the text once and end
    #[arg(long)]
    once: bool,
    /// Read a copied tree or a snapshot instead of this machine
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Where jobs have their sockets [default: /run/ringway; with --root none]
    #[arg(long, value_name = "DIR")]
    jobs: Option<PathBuf>,
    /// How often the doctor looks, as 5m or 30s; 0 is never
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    doctor_every: Duration,
    /// Whether to ask NVML; auto is yes, unless --root is given
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    nvml: Nvml,
    /// How often NVML is asked
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    gpu_every: Duration,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Nvml {
    Auto,
    On,
    Off,
}

/// `9464`, `0.0.0.0:9464`, `[::]:9464`.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        Err(_) => text.parse().map_err(|_| {
            "not a port, address:port or [ipv6]:port, as 9464 or 0.0.0.0:9464".to_owned()
        }),
    }
}

/// `30s`, `5m`, `1h`; a bare number is of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "not a time, as 30s, 5m or 1h (at most 1000h)".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "" | "s" => Some(number),
        "m" => number.checked_mul(60),
        "h" => number.checked_mul(3600),
        _ => None,
    };
    seconds.filter(|s| *s <= 3_600_000).map(Duration::from_secs).ok_or_else(wrong)
}

/// Serves until somebody ends it.
pub(crate) fn run(args: &ExporterArgs) -> anyhow::Result<ExitCode> {
    let copied = args.root.as_deref().map(Copied::open).transpose()?;
    if let (Some(copied), Some(path)) = (&copied, &args.root)
        && !copied.holds(&["sys", "proc"])
    {
        bail!(
            "{} holds neither sys nor proc; give a folder laid out as / is, or a snapshot",
            path.display()
        );
    }
    if args.gpu_every.is_zero() {
        bail!("--gpu-every 0: at least 1s; --nvml off asks for no GPU");
    }
    let root = copied.as_ref().map_or_else(Root::live, Copied::root);
    let asks_nvml = args.nvml == Nvml::On || args.nvml == Nvml::Auto && root.is_live();
    let exporter = if args.once {
        Exporter::looked(root, args, asks_nvml)
    } else {
        Exporter::looking(root, args, asks_nvml)?
    };
    if args.once {
        output::stdout_bytes(exporter.text().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = Signals::catch()?;
    let listener = TcpListener::bind(args.listen).with_context(|| {
        format!("cannot listen at {}; --listen takes another address and port", args.listen)
    })?;
    let place = listener.local_addr()?;
    let server = Server::open(Listener::Tcp(listener), move || exporter.text())?;
    output::remark(&format!("ringway exporter: serving http://{place}/metrics"));
    while signals.caught().is_none() {
        let mut fds = [PollFd::new(&signals, PollFlags::IN)];
        let _woken = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 }));
        if !server.is_serving() {
            bail!("the thread that answers has stopped; please report it");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything that is needed to answer.
struct Exporter {
    root: Root,
    jobs: Option<PathBuf>,
    doctor: verdicts::Last,
    gpus: Option<(gpus::Last, Duration)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    inventory: Option<(Inventory, Instant)>,
    troubles: Troubles,
    scrapes: u64,
}

impl Exporter {
    /// With what takes long done once.
    fn looked(root: Root, args: &ExporterArgs, asks_nvml: bool) -> Self {
        let doctor = verdicts::Last::default();
        if !args.doctor_every.is_zero() {
            *doctor.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(verdicts::look(&root, None).0);
        }
        let gpus = asks_nvml.then(|| (gpus::once(), args.gpu_every));
        Self { jobs: folder_of_jobs(&root, args), root, doctor, gpus, state: Mutex::default() }
    }

    /// With what takes long done in the background.
    fn looking(root: Root, args: &ExporterArgs, asks_nvml: bool) -> std::io::Result<Self> {
        let doctor = if args.doctor_every.is_zero() {
            verdicts::Last::default()
        } else {
            verdicts::keep_looking(root.clone(), args.doctor_every)?
        };
        let gpus = if asks_nvml { Some(gpus::keep_reading(args.gpu_every)?) } else { None };
        let gpus = gpus.map(|last| (last, args.gpu_every));
        let jobs = folder_of_jobs(&root, args);
        Ok(Self { root, jobs, doctor, gpus, state: Mutex::default() })
    }

    /// One answer.
    fn text(&self) -> String {
        let began = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let is_known = |(inventory, when): &(Inventory, Instant)| {
            when.elapsed() < INVENTORY_EVERY && inventory.is_of(&self.root)
        };
        if !state.inventory.as_ref().is_some_and(is_known) {
            state.inventory = None;
        }
        let (inventory, _) =
            state.inventory.get_or_insert_with(|| (Inventory::read(&self.root), Instant::now()));
        let reading = Reading::new(&self.root);
        let mut samples = node::samples(&reading, inventory);
        let mut troubles = reading.troubles();
        if let Some((last, every)) = &self.gpus {
            match gpus::fresh(last, *every) {
                Ok(readings) => gpus::samples(&readings, inventory, &mut samples),
                // A machine without NVIDIA's GPUs has no NVML, and nothing is wrong with it.
                Err(Some(why)) if inventory.has_nvidia() => troubles.push((What::Gpu, why)),
                Err(_) => {}
            }
        }
        if let Some(verdicts) = &*self.doctor.lock().unwrap_or_else(PoisonError::into_inner) {
            samples.append(verdicts);
        }
        let jobs = self.jobs.as_deref().map(Jobs::ask).unwrap_or_default();
        troubles.extend(jobs.failed.iter().map(|why| (What::Job, why.clone())));
        samples.add(&metric::EXPORTER_JOBS, &[&"answered"], jobs.answered);
        samples.add(&metric::EXPORTER_JOBS, &[&"failed"], jobs.failed.len());
        for (what, why) in troubles {
            if let Some(said) = state.troubles.note(what, why) {
                output::remark(&format!("ringway exporter: {said}"));
            }
        }
        state.troubles.samples(&mut samples);
        state.scrapes += 1;
        samples.add(&metric::EXPORTER_SCRAPES, &[], state.scrapes);
        own(&mut samples);
        samples.add(&metric::EXPORTER_DURATION, &[], began.elapsed().as_secs_f64());
        let mut page = Page::default();
        samples.write(&mut page);
        jobs.write(&mut page);
        page.into_text()
    }
}

/// Jobs here are no part of a machine that was copied, unless somebody says so.
fn folder_of_jobs(root: &Root, args: &ExporterArgs) -> Option<PathBuf> {
    args.jobs.clone().or_else(|| root.is_live().then(|| PathBuf::from(JOBS)))
}

/// What the exporter itself takes.
fn own(samples: &mut Samples) {
    let version = env!("CARGO_PKG_VERSION");
    samples.add(&metric::EXPORTER_INFO, &[&version], 1);
    let root = Root::live();
    let read = |path: &str| root.read(path).ok().flatten();
    // Behind the name, which may hold anything: state is the first field, times are the 12th to the 15th.
    let stat = read("/proc/self/stat");
    let fields = stat.as_deref().and_then(|text| text.rsplit_once(") ")).map(|(_, rest)| rest);
    let times = fields.map(|text| text.split(' ').skip(11).take(4).map(str::parse::<u64>));
    if let Some(Ok(ticks)) = times.map(Iterator::sum::<Result<u64, _>>) {
        #[expect(clippy::cast_precision_loss, reason = "a statistic")]
        let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        samples.add(&metric::EXPORTER_CPU, &[], seconds);
    }
    let pages = read("/proc/self/statm");
    let pages = pages.as_deref().and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    let bytes = pages.map(|pages| pages.saturating_mul(rustix::param::page_size()));
    samples.add_known(&metric::EXPORTER_MEMORY, &[], bytes);
}

#[cfg(test)]
mod tests;

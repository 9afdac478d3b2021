//! What the facts of a job mean together: mixed versions, missing ranks, paths worse than they could be.

use std::collections::BTreeSet;

use super::super::super::codes::{self, Meaning, Weight};
use super::super::super::finding::{Finding, Verdict};
use super::super::Seen;
use super::super::curve::expect::Nics;
use super::super::device::{Devices, Errors};
use super::super::job::{Comm, Job, Path};
use super::super::sight::{Sight, Tally, at};
use super::Ranked;
use crate::env::lint::{Input, lint};
use crate::env::source::Setting;

/// Ranks listed by number.
const LISTED: usize = 12;
/// Seconds a start may take.
const START_SECONDS: f64 = 60.0;

/// Errors of cards, GPUs and links.
pub(super) fn devices(devices: &Devices, files: &[String]) -> Vec<Ranked> {
    let mut found = Vec::new();
    for (status, errors) in &devices.completions {
        found.push(completion(*status, errors, files));
    }
    for (xid, errors) in &devices.xids {
        found.push(xid_of(*xid, errors, files));
    }
    for (sxid, errors) in &devices.sxids {
        found.push(sxid_of(*sxid, errors, files));
    }
    for (interface, sight) in &devices.flaps.seen {
        let many = sight.count;
        let verdict = if many >= 3 { Verdict::Fail } else { Verdict::Warn };
        let mut finding = Finding::new(
            "kernel",
            "link-flap",
            verdict,
            format!("the link of {interface} went down {many} time{}", if many == 1 { "" } else { "s" }),
        )
        .costs("a flap longer than 30 s (NCCL_IB_TIMEOUT 20) ends every job that uses the port")
        .fixed_by(
            "clean or replace cable and transceiver of that port (both ends), look at link_downed and symbol \
             errors there; drain the host until it is quiet. NCCL_IB_TIMEOUT=22 rides over 2 minutes.",
        );
        finding.evidence = sight.evidence(files);
        let cause = format!(
            "The port {interface} loses its link again and again: a cable, a transceiver or the switch port is \
             bad. Jobs see completion error 12 or lost peers."
        );
        found.push(Ranked::new(24, finding, cause, sight.first()));
    }
    found
}

fn completion(status: u32, errors: &Errors, files: &[String]) -> Ranked {
    let known = codes::known(codes::STATUSES, status);
    let name = known.map_or("unknown", |meaning| meaning.name);
    let mut on = Vec::new();
    let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
    if !errors.cards.is_empty() {
        on.push(format!("card {}", list(&errors.cards)));
    }
    if !errors.names.is_empty() {
        on.push(format!("peer {}", list(&errors.names)));
    }
    if !errors.vendor.is_empty() {
        let vendor: Vec<String> = errors.vendor.iter().map(u32::to_string).collect();
        on.push(format!("vendor error {}", vendor.join(", ")));
    }
    let secondary = known.is_some_and(|meaning| meaning.weight == Weight::Follows);
    let mut finding = Finding::new(
        "network",
        &format!("ib-completion-{status}"),
        if secondary { Verdict::Warn } else { Verdict::Fail },
        format!("a network card reports completion error {status}: {name}"),
    )
    .costs("the connection and with it the communicator are lost")
    .fixed_by(known.map_or("look the status up in ibv_wc_status(3).", |meaning| meaning.fix));
    finding.evidence = errors.sight.evidence(files);
    if !on.is_empty() {
        finding.evidence.push(on.join("; "));
    }
    let cause = known.map_or("A transfer of a network card failed.", |meaning| meaning.cause);
    let order = if secondary { 315 } else { 200 };
    Ranked::new(order, finding, format!("{cause} Here: {}.", on.join("; ")), errors.sight.first())
}

fn xid_of(xid: u32, errors: &Errors, files: &[String]) -> Ranked {
    let known: Option<&Meaning> = codes::known(codes::XIDS, xid);
    let weight = codes::xid_weight(xid, errors.fatal);
    let buses = errors.names.iter().cloned().collect::<Vec<_>>().join(", ");
    let mut finding = Finding::new(
        "kernel",
        &format!("xid-{xid}"),
        if weight == Weight::Fails { Verdict::Fail } else { Verdict::Warn },
        format!(
            "the driver reports Xid {xid} ({}) on the GPU at {buses}",
            known.map_or("not in this table", |m| m.name)
        ),
    )
    .costs("the rank on that GPU dies or stalls, and all others wait for it")
    .fixed_by(
        known.map_or("look it up in NVIDIA's list of Xids; drain the host meanwhile.", |m| m.fix),
    );
    finding.evidence = errors.sight.evidence(files);
    let cause = known.map_or("The driver reports a fault of a GPU.", |meaning| meaning.cause);
    let order = match weight {
        Weight::Fails => 12,
        Weight::Warns => 27,
        Weight::Follows => 28,
    };
    Ranked::new(order, finding, format!("{cause} The GPU is at {buses}."), errors.sight.first())
}

/// The driver itself says of each which it is.
fn sxid_of(sxid: u32, errors: &Errors, files: &[String]) -> Ranked {
    let buses = errors.names.iter().cloned().collect::<Vec<_>>().join(", ");
    let kind = if errors.fatal { "fatal" } else { "not fatal" };
    let mut finding = Finding::new(
        "kernel",
        &format!("sxid-{sxid}"),
        if errors.fatal { Verdict::Fail } else { Verdict::Warn },
        format!("the driver reports SXid {sxid} ({kind}) of the NVSwitch at {buses}"),
    );
    finding = if errors.fatal {
        finding
            .costs("part of the NVLink fabric is gone, and with it the jobs of this host")
            .fixed_by(
                "drain the host; reset the GPUs and restart the fabric manager; if it returns, the board is to be \
                 replaced.",
            )
    } else {
        finding
            .costs("nothing by itself: the switch went on")
            .fixed_by("note the link in the line; if the count grows, look at that link and the fabric manager's log.")
    };
    finding.evidence = errors.sight.evidence(files);
    let cause = if errors.fatal {
        format!("An NVSwitch of this host failed. It is at {buses}.")
    } else {
        format!("An NVSwitch of this host reported an error it recovered from. It is at {buses}.")
    };
    Ranked::new(if errors.fatal { 11 } else { 29 }, finding, cause, errors.sight.first())
}

/// What the job's own lines mean together.
pub(super) fn job(seen: &Seen, files: &[String]) -> Vec<Ranked> {
    let job = &seen.job;
    let parts = [
        versions(job, files),
        interface(job, files),
        socket(job, files),
        gpudirect(job, files),
        shared_memory(job, files),
        nvlink(job, files),
        differing(job, files),
        slow_start(job, files),
        aborted(job, files),
    ];
    let mut found: Vec<Ranked> = parts.into_iter().flatten().collect();
    found.extend(job.comms.values().filter_map(|comm| ranks(seen, comm, files)));
    found
}

fn versions(job: &Job, files: &[String]) -> Option<Ranked> {
    let bare = |key: &str| key.split(['+', '-']).next().unwrap_or(key).to_owned();
    let numbers: BTreeSet<String> = job.versions.seen.keys().map(|key| bare(key)).collect();
    let first = job.versions.seen.values().next()?;
    if job.versions.seen.len() < 2 {
        return None;
    }
    let is_same_number = numbers.len() == 1;
    let verdict = if is_same_number { Verdict::Warn } else { Verdict::Fail };
    let mut finding = Finding::new(
        "start",
        "versions-mixed",
        verdict,
        format!("the log holds different libraries: {}", job.versions.list(6)),
    )
    .costs("ranks of different versions refuse each other, or hang where an old one does not check")
    .fixed_by(
        "one container image for all ranks; check LD_LIBRARY_PATH and the framework's own wheel.",
    );
    for (version, sight) in job.versions.seen.iter().take(4) {
        let hosts: Vec<&str> = sight.hosts.iter().take(4).map(String::as_str).collect();
        finding.evidence.push(format!(
            "{}: {version} {}",
            at(sight.first(), files),
            hosts.join(", ")
        ));
    }
    let cause = "The ranks were started with different NCCL libraries.";
    Some(Ranked::new(101, finding, cause, first.first()))
}

const UNROUTABLE: [&str; 8] = ["docker", "virbr", "lo", "cni", "flannel", "br-", "veth", "podman"];

fn interface(job: &Job, files: &[String]) -> Option<Ranked> {
    if job.is_multi_node() == Some(false)
        || (job.is_multi_node().is_none() && job.networks.is_empty())
    {
        return None;
    }
    let wrong = |name: &&String| {
        UNROUTABLE
            .iter()
            .any(|prefix| name.starts_with(prefix) && (*prefix != "lo" || name.as_str() == "lo"))
    };
    let (name, sight) = job.bootstrap.seen.iter().find(|(name, _)| wrong(name))?;
    let mut finding = Finding::new(
        "network",
        "wrong-interface",
        Verdict::Fail,
        format!("ranks announce themselves on {name}, which other hosts cannot reach"),
    )
    .costs("the ranks cannot meet, or all traffic goes over a bridge")
    .fixed_by("set NCCL_SOCKET_IFNAME to the interface all hosts share, or exclude: NCCL_SOCKET_IFNAME=^docker,lo,virbr.");
    finding.evidence = sight.evidence(files);
    let cause =
        format!("NCCL took {name}, an interface of this host only, as the way to reach it.");
    Some(Ranked::new(125, finding, cause, sight.first()))
}

fn socket(job: &Job, files: &[String]) -> Option<Ranked> {
    let chosen = job.networks.seen.iter().find(|(name, _)| name.eq_ignore_ascii_case("socket"));
    let (_, sight) = chosen?;
    if job.is_multi_node() == Some(false) {
        return None;
    }
    let setting = |name: &str| {
        let values = job.settings.get(name)?;
        values.seen.iter().next().map(|(value, sight)| (value.clone(), sight.first()))
    };
    let disabled = setting("NCCL_IB_DISABLE").filter(|(value, _)| value != "0");
    let forced = setting("NCCL_NET").filter(|(value, _)| value.eq_ignore_ascii_case("socket"));
    let mut evidence = sight.evidence(files);
    let mut add = |sight: &Sight| evidence.extend(sight.evidence(files).into_iter().take(1));
    let (why, fix) = if let Some((value, place)) = disabled {
        evidence.push(format!("{}: NCCL_IB_DISABLE={value}", at(place, files)));
        ("NCCL_IB_DISABLE keeps RDMA off.", "unset NCCL_IB_DISABLE.")
    } else if let Some((_, place)) = forced {
        evidence.push(format!("{}: NCCL_NET=Socket", at(place, files)));
        (
            "NCCL_NET asks for sockets.",
            "unset NCCL_NET, or set it to IB: then a fallback is an error.",
        )
    } else if job.no_verbs.count > 0 {
        add(&job.no_verbs);
        (
            "libibverbs is not in this image, so RDMA cannot be used.",
            "install rdma-core (libibverbs1, \
          ibverbs-providers) in the image; set NCCL_NET=IB so that a fallback is an error.",
        )
    } else if job.no_device.count > 0 {
        add(&job.no_device);
        (
            "No RDMA device was found: the host has none, its ports are down, the container was not given \
          /dev/infiniband, or NCCL_IB_HCA matches none.",
            "check ibv_devinfo inside the container (state PORT_ACTIVE); give it the devices and the capability \
          IPC_LOCK; set NCCL_NET=IB so that a fallback is an error. If there are no RDMA cards this is as it \
          should be.",
        )
    } else {
        (
            "The log does not say why RDMA was not taken.",
            "run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET; \
          set NCCL_NET=IB so that a fallback is an error.",
        )
    };
    // Where the log shows no sign of RDMA hardware this may be as it should be.
    let has_rdma =
        !job.adapters.is_empty() || why.contains("NCCL_IB_DISABLE") || why.contains("asks for");
    let verdict = if has_rdma && job.no_device.count == 0 { Verdict::Fail } else { Verdict::Warn };
    let mut finding = Finding::new(
        "network",
        "net-socket",
        verdict,
        "traffic between hosts goes over TCP, not RDMA",
    )
    .costs("25 to 5 GB/s on one 200 Gb/s port: 1 GB of all-reduce takes 370 in place of 50 ms")
    .fixed_by(fix);
    finding.evidence = evidence;
    Some(Ranked::new(
        180,
        finding,
        format!("NCCL fell back to sockets without an error. {why}"),
        sight.first(),
    ))
}

fn gpudirect(job: &Job, files: &[String]) -> Option<Ranked> {
    let net = job.paths.get(&Path::NetRdma).or_else(|| job.paths.get(&Path::NetOther))?;
    let with = net.send[0] + net.receive[0];
    let without = net.send[1] + net.receive[1];
    if without == 0 {
        return None;
    }
    let (title, verdict) = if with == 0 {
        ("no connection between hosts uses GPUDirect RDMA".to_owned(), Verdict::Fail)
    } else {
        let sides = format!("{} sends and {} receives", net.send[1], net.receive[1]);
        (
            format!("{sides} of {} connections go without GPUDirect RDMA", with + without),
            Verdict::Warn,
        )
    };
    let mut finding = Finding::new("network", "gdr-off", verdict, title)
        .costs("data is staged in host memory: about half the rate (11 in place of 23 GB/s on one HDR port)")
        .fixed_by(
            "modprobe nvidia_peermem (or open kernel modules, kernel 5.12 and dma-buf); check that each GPU has a \
             NIC below the same PCIe switch (nvidia-smi topo -m: PIX or PXB) and that NCCL_NET_GDR_LEVEL is not set.",
        );
    finding.evidence = net.without_gdr.evidence(files);
    for (card, sight) in job.gdr_off.seen.iter().take(2) {
        finding.evidence.push(format!("{}: GPUDirect is off for {card}", at(sight.first(), files)));
    }
    let cause = if job.gdr_off.is_empty() {
        "Data between hosts goes through host memory: GPU and NIC are too far apart in the PCIe tree (another \
         socket), or the topology is hidden in a VM."
    } else {
        "Data between hosts goes through host memory, since GPUDirect RDMA is not available: neither \
         nvidia_peermem nor dma-buf works on these hosts."
    };
    Some(Ranked::new(600, finding, cause, net.without_gdr.first()))
}

fn shared_memory(job: &Job, files: &[String]) -> Option<Ranked> {
    let shm = job.paths.get(&Path::Shm)?;
    let has_nvlink = !job.nvlinks.is_empty();
    let off = job
        .settings
        .get("NCCL_P2P_DISABLE")
        .is_some_and(|v| v.seen.keys().any(|value| value != "0"));
    if !has_nvlink && !off {
        return None; // GPUs on PCIe alone use shared memory by default
    }
    let mut finding = Finding::new(
        "paths",
        "shm-not-p2p",
        if has_nvlink { Verdict::Fail } else { Verdict::Warn },
        "GPUs of one host exchange data through host memory in place of directly",
    )
    .costs("about 20 in place of 370 to 480 GB/s on an NVLink host")
    .fixed_by("unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; if that hangs, ACS or the IOMMU is the fault to mend.");
    finding.evidence = shm.sight.evidence(files);
    let cause = if off {
        "NCCL_P2P_DISABLE is set: direct transfers between GPUs are off."
    } else {
        "The GPUs are joined by NVLink but cannot reach each other's memory: containers apart, or P2P off."
    };
    Some(Ranked::new(610, finding, cause, shm.sight.first()))
}

fn nvlink(job: &Job, files: &[String]) -> Option<Ranked> {
    let mut worst = None::<(f64, f64)>;
    let mut found = None;
    let mut lines = Vec::new();
    for (ends, (bw, place, line)) in &job.nvlinks {
        let back = (ends.0.clone(), ends.2.clone(), ends.1.clone());
        let Some((other, other_place, other_line)) = job.nvlinks.get(&back) else { continue };
        if *bw < 0.7 * other && worst.is_none_or(|(low, high)| bw / other < low / high) {
            worst = Some((*bw, *other));
            found = Some((ends, *place));
            lines = vec![(*place, line.clone()), (*other_place, other_line.clone())];
        }
    }
    let (low, high) = worst?;
    let ((host, from, to), place) = found?;
    let mut finding = Finding::new(
        "topology",
        "nvlink-uneven",
        Verdict::Fail,
        format!("NVLink from {from} to {to} is taken for {low} GB/s, the way back for {high}"),
    )
    .costs(format!("rings go at the slower of the two: {:.0} % of what the links carry", 100.0 * low / high))
    .fixed_by(
        "compare with nvidia-smi nvlink -s: links that are down need a reset or a new bridge; a topology file \
         (NCCL_TOPO_FILE) that says so must be corrected or unset.",
    );
    finding.evidence =
        lines.iter().map(|(place, line)| format!("{}: {line}", at(*place, files))).collect();
    let file = job.settings.get("NCCL_TOPO_FILE").and_then(|values| values.seen.keys().next());
    let cause = match file {
        Some(file) => format!(
            "The topology file {file} (NCCL_TOPO_FILE) gives {from} fewer NVLinks to {to} than the way back has, so \
             NCCL plans for {low} GB/s with few channels. Either links of that GPU are really down, or the file is \
             wrong."
        ),
        None => format!(
            "One GPU of {} has fewer NVLinks up than its peer: links are down.",
            if host.is_empty() { "the host" } else { host.as_str() }
        ),
    };
    Some(Ranked::new(60, finding, cause, place))
}

fn differing(job: &Job, files: &[String]) -> Option<Ranked> {
    let per_rank = [
        "NCCL_DEBUG_FILE",
        "NCCL_HOSTID",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_GRAPH_DUMP_FILE",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_GID_INDEX",
        "NCCL_TOPO_FILE",
        "NCCL_GRAPH_FILE",
    ];
    let differs = |(name, values): &(&String, &Tally<String>)| {
        values.seen.len() > 1 && !per_rank.contains(&name.as_str())
    };
    let (name, values) = job.settings.iter().find(differs)?;
    let mut finding = Finding::new(
        "settings",
        "settings-differ",
        Verdict::Warn,
        format!("{name} is not the same on all ranks: {}", values.list(4)),
    )
    .costs("ranks that choose differently hang at the first collective")
    .fixed_by("set it in one place for all ranks (mpirun -x, srun --export, the job's manifest).");
    let lines =
        values.seen.values().take(3).flat_map(|sight| sight.evidence(files).into_iter().take(1));
    finding.evidence = lines.collect();
    let place = values.seen.values().next().map(Sight::first).unwrap_or_default();
    let cause = format!("The ranks were not started with the same environment: {name} differs.");
    Some(Ranked::new(170, finding, cause, place))
}

fn slow_start(job: &Job, files: &[String]) -> Option<Ranked> {
    let (seconds, rank, place) =
        job.slowest_init.filter(|(seconds, ..)| *seconds > START_SECONDS)?;
    let finding = Finding::new(
        "start",
        "start-slow",
        Verdict::Warn,
        format!("a communicator took {seconds:.0} s to start on rank {rank}"),
    )
    .seen(format!("{}: its timings", at(place, files)))
    .costs("that time at every start and for every new communicator")
    .fixed_by(
        "the same line splits it: \"bootstrap\" is the network of the hosts, \"kernels\" loading (CUDA_MODULE_LOADING), \
         \"topo\" and \"graphs\" the search, \"connections\" the transports.",
    );
    Some(Ranked::new(740, finding, "Starting a communicator takes long.", place))
}

fn aborted(job: &Job, files: &[String]) -> Option<Ranked> {
    (job.aborted.count > 0).then(|| {
        let mut finding = Finding::new(
            "errors",
            "comm-aborted",
            Verdict::Warn,
            "communicators were aborted by the program",
        )
        .costs("their work is lost")
        .fixed_by("look for what came before: a timeout of the framework or an error of a rank.");
        finding.evidence = job.aborted.evidence(files);
        let cause = "The framework gave up on a communicator and aborted it.";
        Ranked::new(350, finding, cause, job.aborted.first())
    })
}

fn ranks(seen: &Seen, comm: &Comm, files: &[String]) -> Option<Ranked> {
    let (started, complete) = (comm.started.len(), comm.complete.len());
    let all = comm.nranks as usize;
    // A log of few ranks (rank 0 only, one host only) says nothing of the others.
    if started * 2 < all || started == 0 {
        return None;
    }
    let list = |mut missing: Vec<u32>| {
        let more = missing.len() > LISTED;
        missing.truncate(LISTED);
        let words: Vec<String> = missing.iter().map(u32::to_string).collect();
        words.join(", ") + if more { ", …" } else { "" }
    };
    let place = comm.first.first();
    if started < all {
        let missing = list(
            (0..comm.nranks).filter(|rank| !comm.started.contains(rank)).take(LISTED + 1).collect(),
        );
        let many = all - started;
        let mut finding = Finding::new(
            "ranks",
            "ranks-missing",
            Verdict::Fail,
            format!("{many} of {all} ranks never began to join: {missing}"),
        )
        .costs("the others wait for them, without a limit of time in NCCL")
        .fixed_by("look for these ranks' own output: a crash before NCCL, a host that did not start, a wrong RANK.");
        finding.evidence = comm.first.evidence(files).into_iter().take(1).collect();
        if complete == started {
            // The communicator was made, so their lines are only missing here.
            finding.verdict = Verdict::Warn;
            finding.title = format!("the log lacks the lines of {many} of {all} ranks: {missing}");
            finding.cost =
                Some("faults that show only on those ranks are not seen here".to_owned());
            finding.fix = Some("give the logs of all ranks.".to_owned());
        }
        let cause = format!("These ranks did not come, and the others wait for them: {missing}.");
        return Some(Ranked::new(230, finding, cause, place));
    }
    if complete < started && (complete > 0 || seen.job.last_error.is_empty()) {
        let stuck =
            list(comm.started.difference(&comm.complete).copied().take(LISTED + 1).collect());
        let mut finding = Finding::new(
            "ranks",
            "start-unfinished",
            if complete > 0 { Verdict::Fail } else { Verdict::Warn },
            format!("{} of {all} ranks began to join but never finished: {stuck}", started - complete),
        )
        .costs("the job stands still here")
        .fixed_by("look at the last line of these ranks; if all wait, a connection between two hosts does not come up.");
        finding.evidence = comm.first.evidence(files).into_iter().take(1).collect();
        let cause = format!(
            "The start of the communicator never ended on these ranks: {stuck}; they hang there, or the log ends."
        );
        return Some(Ranked::new(240, finding, cause, place));
    }
    None
}

/// Who did not report, where all others wait: the sentence that names them.
pub(super) fn absent(job: &Job) -> Option<String> {
    let highest = job.waiting.last()? + 1;
    let size = job.comms.values().map(|comm| comm.nranks).max().unwrap_or(0).max(highest);
    let absent: Vec<u32> =
        (0..size).filter(|rank| !job.waiting.contains(rank)).take(LISTED + 1).collect();
    if absent.is_empty() || job.waiting.len() * 2 < size as usize {
        return None;
    }
    let words: Vec<String> = absent.iter().take(LISTED).map(u32::to_string).collect();
    let more = if absent.len() > LISTED { ", …" } else { "" };
    Some(format!("{} ranks wait; not among them: {}{more}.", job.waiting.len(), words.join(", ")))
}

/// What is wrong with the settings that NCCL says it took.
pub(super) fn settings(job: &Job, files: &[String]) -> Vec<Ranked> {
    // Those that a rule of this file names with more to go on, and what was set to get this log.
    const SAID_ELSEWHERE: [&str; 5] =
        ["env-rdma-off", "env-net-socket", "env-p2p-off", "env-debug", "env-twice"];
    let mut taken = Vec::new();
    for (name, values) in &job.settings {
        for (value, sight) in values.seen.iter().take(1) {
            let place = at(sight.first(), files);
            taken.push(Setting { name: name.clone(), value: Some(value.clone()), place });
        }
    }
    let report = lint(&Input { settings: &taken, host: None, dscp: None });
    let place_of = |finding: &Finding| {
        let of = |(name, _): &(&String, &Tally<String>)| {
            finding.evidence.iter().any(|line| line.contains(&format!(": {name}=")))
        };
        let values = job.settings.iter().find(of).map(|(_, values)| values);
        values.and_then(|v| v.seen.values().next()).map(Sight::first).unwrap_or_default()
    };
    let said = |finding: &Finding| SAID_ELSEWHERE.contains(&finding.id.as_str());
    let rest = report.findings.into_iter().filter(|finding| !said(finding));
    rest.map(|finding| {
        let place = place_of(&finding);
        let cause = format!("A setting of the job costs: {}.", finding.title);
        Ranked::new(650, finding, cause, place)
    })
    .collect()
}

/// What the cards of one host carry together, in GB/s.
pub(super) fn nics(job: &Job) -> Nics {
    let mut by_host = std::collections::BTreeMap::<&str, f64>::new();
    for ((host, _), mbps) in &job.nic_mbps {
        *by_host.entry(host).or_default() += mbps / 8000.0;
    }
    by_host.into_values().max_by(f64::total_cmp)
}

/// Warnings no rule knows, and errors nobody named.
pub(super) fn leftovers(seen: &Seen, files: &[String], found: &mut Vec<Ranked>) {
    let job = &seen.job;
    let others = &job.other_warnings;
    if let Some(first) = others.seen.values().min_by_key(|sight| sight.first()) {
        let total: u64 =
            others.seen.values().map(|sight| sight.count).sum::<u64>() + others.left_out;
        let mut finding = Finding::new(
            "errors",
            "other-warnings",
            Verdict::Warn,
            format!(
                "{total} warnings of NCCL that have no rule here, of {} kinds",
                others.seen.len()
            ),
        )
        .costs("unknown: each WARN is something NCCL did not expect")
        .fixed_by("read them from the first on.");
        let mut kinds: Vec<&Sight> = others.seen.values().collect();
        kinds.sort_by_key(|sight| sight.first());
        finding.evidence =
            kinds.iter().take(5).flat_map(|s| s.evidence(files).into_iter().take(1)).collect();
        found.push(Ranked::new(
            800,
            finding,
            "NCCL warned of something that is not in this table.",
            first.first(),
        ));
    }
    let has_failure = found.iter().any(|one| one.finding.verdict == Verdict::Fail);
    if let Some((code, sight)) = job.last_error.seen.iter().next().filter(|_| !has_failure) {
        let name = match code {
            1 => "a CUDA call failed",
            2 => "a call to the system failed",
            3 => "internal error",
            4 => "invalid argument",
            5 => "invalid usage",
            6 => "a peer ended, or the network failed",
            7 => "still in progress",
            8 => "timeout",
            _ => "unknown",
        };
        if *code == 7 {
            return;
        }
        let mut finding = Finding::new(
            "errors",
            "error-chain",
            Verdict::Fail,
            format!("a call of NCCL returned {code}: {name}"),
        )
        .costs("the communicator is lost")
        .fixed_by("the line above the first of these names the call; if there is none, run with NCCL_DEBUG=INFO.");
        finding.evidence = sight.evidence(files);
        found.push(Ranked::new(
            790,
            finding,
            "A call of NCCL failed; no line names the reason.",
            sight.first(),
        ));
    }
}

//! What was seen besides: versions, ranks, paths, choices; shown on request.

use super::super::super::finding::Report;
use super::super::Seen;
use super::super::job::{Connections, Path};
use super::super::lines::Totals;

/// Names shown of each kind.
const SHOWN: usize = 8;

/// Writes them.
pub(super) fn write(seen: &Seen, totals: &[Totals], report: &mut Report) {
    let (lines, bytes) = totals.iter().fold((0, 0), |(l, b), t| (l + t.lines, b + t.bytes));
    report
        .fact("read", format!("{} lines, {bytes} bytes in {}", lines, count(totals.len(), "file")));
    let job = &seen.job;
    let mut tally = |name: &str, list: String| {
        if !list.is_empty() {
            report.fact(name, list);
        }
    };
    tally("versions", job.versions.list(SHOWN));
    tally("CUDA driver", job.drivers.list(SHOWN));
    tally("network", job.networks.list(SHOWN));
    tally("adapters", job.adapters.list(SHOWN));
    tally("plugins", job.plugins.list(SHOWN));
    tally("tuner", job.tuner.list(SHOWN));
    tally("bootstrap over", job.bootstrap.list(SHOWN));
    tally("sockets over", job.sockets.list(SHOWN));
    tally("GPUDirect on for", job.gdr_on.list(SHOWN));
    tally("GPUDirect off for", job.gdr_off.list(SHOWN));
    if !job.hosts.is_empty() {
        report.fact("hosts", job.hosts.len().to_string());
    }
    let mut comms: Vec<_> = job.comms.values().filter(|comm| !comm.started.is_empty()).collect();
    comms.sort_by_key(|comm| std::cmp::Reverse(comm.nranks));
    for comm in comms.iter().take(SHOWN) {
        let nodes = comm
            .nodes
            .map_or(String::new(), |nodes| format!(" on {}", count(nodes as usize, "host")));
        report.fact(
            "communicator",
            format!(
                "{} of {} ranks{nodes} began, {} completed",
                comm.started.len(),
                comm.nranks,
                comm.complete.len()
            ),
        );
    }
    if comms.len() > SHOWN {
        report.fact("communicators", format!("{} more", comms.len() - SHOWN));
    }
    for (path, connections) in &job.paths {
        report.fact("path", path_text(*path, connections, job.pairs.over(*path)));
    }
    if job.nvls_present.count > 0 || job.nvls_absent.count > 0 {
        let (yes, no) = (job.nvls_present.count, job.nvls_absent.count);
        report.fact(
            "NVLS",
            if yes > 0 {
                format!("available ({yes} lines)")
            } else {
                format!("not available ({no} lines)")
            },
        );
    }
    if job.sharp.count > 0 {
        report.fact("CollNet/SHARP", format!("{} connections", job.sharp.count));
    }
    for (name, list) in [("channels", job.channels.list(2)), ("ring order", job.rings.list(2))] {
        if !list.is_empty() {
            report.fact(name, list);
        }
    }
    if let Some(bw) = job.max_bw {
        report.fact("topology", format!("fastest path {bw} GB/s"));
    }
    if let Some((seconds, rank, _)) = job.slowest_init {
        report.fact("slowest start", format!("{seconds:.2} s, rank {rank}"));
    }
    let mut choices = job.choices.clone();
    choices.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
    for (what, count, most) in choices.iter().take(SHOWN) {
        let what = String::from_utf8_lossy(what);
        report.fact("algorithm", format!("{what}, {count} times, up to {most} bytes"));
    }
    for curve in seen.tables.curves.iter().take(SHOWN) {
        if let Some((size, busbw)) = curve.peak() {
            let ranks = curve.ranks();
            let on = if ranks > 0 { format!(" on {ranks} ranks") } else { String::new() };
            report
                .fact("measured", format!("{}{on}: {busbw:.2} GB/s at {size} bytes", curve.name()));
        }
    }
    if seen.tables.curves.len() > SHOWN {
        report.fact("measured", format!("{} more tables", seen.tables.curves.len() - SHOWN));
    }
}

fn count(many: usize, what: &str) -> String {
    format!("{many} {what}{}", if many == 1 { "" } else { "s" })
}

fn path_text(path: Path, connections: &Connections, pairs: usize) -> String {
    let mut text =
        format!("{}: {} connections of {pairs} pairs", path.name(), connections.sight.count);
    if path.is_net() {
        let [send_with, send_without] = connections.send;
        let [receive_with, receive_without] = connections.receive;
        text.push_str(&format!(
            "; GPUDirect in {send_with} of {} sends, {receive_with} of {} receives",
            send_with + send_without,
            receive_with + receive_without
        ));
        if connections.pxn > 0 {
            text.push_str(&format!("; {} through another GPU's NIC (PXN)", connections.pxn));
        }
    }
    text
}

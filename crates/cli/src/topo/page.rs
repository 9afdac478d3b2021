//! A machine as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringway::topo::NetKind;
use ringway_plan::topology::matrix::{Cell, Matrix};
use ringway_plan::topology::nearest::Affinity;

use super::report::Report;

/// The page of a machine.
pub(super) fn page(report: &Report<'_>, rings: bool) -> String {
    let mut page = format!("{}\n", report.title());
    if let Some(source) = &report.rest.source {
        let _ = writeln!(page, "topology file: {source}");
    }
    if !report.matrix.rows.is_empty() && !report.affinities().is_empty() {
        let _ = write!(page, "\n{}\n{}", report.matrix.table(), report.matrix.legend());
        affinity_table(report, &mut page);
    }
    numa_table(report, &mut page);
    net_table(report, &mut page);
    if rings {
        ring_list(report, &mut page);
    }
    for note in &report.notes {
        let gap = gap(&page);
        let _ = writeln!(page, "{gap}note: {note}");
    }
    for (at, warning) in report.warnings.iter().enumerate() {
        let _ = writeln!(page, "{}warning: {warning}", if at == 0 { "\n" } else { "" });
    }
    page
}

/// An empty line before the first of a kind.
fn gap(page: &str) -> &'static str {
    let last = page.lines().last().unwrap_or_default();
    if last.starts_with("note: ") { "" } else { "\n" }
}

/// Which NIC each GPU uses, and whether directly.
fn affinity_table(report: &Report<'_>, page: &mut String) {
    let topology = report.topology;
    let mut rows = vec![
        ["GPU", "bus", "NUMA", "NIC", "class", "GB/s", "rail", "GPUDirect"].map(str::to_owned),
    ];
    // The same reason for many is said once.
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let shown = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    for one in report.affinities() {
        let mut nic = shown(one.net.map(|net| topology.name(net)));
        for other in &one.others {
            nic = format!("{nic},{}", topology.name(*other));
        }
        rows.push([
            topology.name(one.gpu),
            shown(topology.bus_of(one.gpu).map(|bus| bus.to_string())),
            shown(one.numa.map(|numa| numa.to_string())),
            nic,
            one.class.to_string(),
            // NCCL counts 10 Gb/s where a file says nothing; that is no speed to show.
            match one.net.and_then(|net| topology.net(net)?.speed) {
                Some(_) => format!("{:.1}", one.gb_per_s),
                None => "-".to_owned(),
            },
            shown(one.rail.map(|rail| rail.to_string())),
            if one.gdr.used { "yes" } else { "no" }.to_owned(),
        ]);
        reasons.entry(one.gdr.reason.as_str()).or_default().push(topology.name(one.gpu));
    }
    let _ = write!(page, "\n{}", table(&rows));
    let all = report.affinities().len();
    for (reason, gpus) in reasons {
        let word = |one: &Affinity| if one.gdr.used { "GPUDirect" } else { "no GPUDirect" };
        let first = report.affinities().iter().find(|one| one.gdr.reason == reason);
        let verdict = first.map_or("", word);
        let which = if gpus.len() == all { "all".to_owned() } else { gpus.join(", ") };
        let _ = writeln!(page, "{verdict} for {which}: {reason}");
    }
}

fn numa_table(report: &Report<'_>, page: &mut String) {
    let memory = |numa: i64| {
        let nodes = report.rest.machine.as_ref().map(|machine| machine.numa.as_slice());
        let node = nodes?.iter().find(|node| i64::from(node.id) == numa)?;
        Some(format!("{:.1} GiB", node.memory_kib? as f64 / f64::from(1 << 20)))
    };
    let mut rows = vec![["NUMA", "CPUs", "memory"].map(str::to_owned)];
    for index in report.topology.cpus() {
        let Some(cpu) = report.topology.cpu(index) else { continue };
        let cpus = match cpu.cpus.is_empty() {
            true => "-".to_owned(),
            false => cpu.cpus.to_string(),
        };
        rows.push([cpu.numa.to_string(), cpus, memory(cpu.numa).unwrap_or_default()]);
    }
    if rows.iter().skip(1).all(|row| row[2].is_empty()) {
        rows[0][2].clear(); // files know nothing of memory
    }
    let model = report.rest.machine.as_ref().map(|machine| machine.processor.model_name.as_str());
    let _ = write!(page, "\n{}", table(&rows));
    if let Some(model) = model.filter(|model| !model.is_empty()) {
        let _ = writeln!(page, "processor: {model}");
    }
}

fn net_table(report: &Report<'_>, page: &mut String) {
    let interfaces = report.interfaces();
    if !interfaces.is_empty() {
        let head = ["interface", "kind", "state", "Mb/s", "MTU", "driver", "bus"];
        let mut rows = vec![head.map(str::to_owned)];
        for net in interfaces {
            let kind = match net.kind {
                NetKind::Physical => "physical",
                NetKind::VirtualFunction => "virtual function",
                NetKind::Bond => "bond",
                NetKind::Vlan => "VLAN",
                NetKind::Bridge => "bridge",
                NetKind::Loopback => "loopback",
                NetKind::Virtual => "virtual",
            };
            let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            rows.push([
                net.name.clone(),
                kind.to_owned(),
                net.state.clone(),
                dash(net.mbit_per_s.map(|mbit| mbit.to_string())),
                dash(net.mtu.map(|mtu| mtu.to_string())),
                dash(net.driver.clone()),
                dash(net.bus.map(|bus| bus.to_string())),
            ]);
        }
        let _ = write!(page, "\n{}", table(&rows));
    }
    let rdma = report.rest.machine.as_ref().map(|machine| machine.rdma.as_slice());
    let rdma = rdma.unwrap_or_default();
    if !rdma.is_empty() {
        let head = ["RDMA", "port", "state", "rate", "link", "bus", "GIDs"];
        let mut rows = vec![head.map(str::to_owned)];
        for device in rdma {
            for port in &device.ports {
                rows.push([
                    device.name.clone(),
                    port.number.to_string(),
                    port.state.clone(),
                    port.rate.clone(),
                    port.link_layer.clone(),
                    device.bus.map_or_else(|| "-".to_owned(), |bus| bus.to_string()),
                    port.gids.len().to_string(),
                ]);
            }
        }
        let _ = write!(page, "\n{}", table(&rows));
    }
}

fn ring_list(report: &Report<'_>, page: &mut String) {
    let name = |node| report.topology.name(node);
    page.push_str("\nrings\n");
    for (number, ring) in report.channels.iter().enumerate() {
        let gpus: Vec<String> = ring.gpus.iter().map(|gpu| name(*gpu)).collect();
        let mut line = gpus.join(" ");
        if let (Some(enters), Some(leaves)) = (ring.enters, ring.leaves) {
            line = format!("{} > {line} > {}", name(enters), name(leaves));
        }
        let (inside, outside) = (ring.inside, ring.outside);
        let _ = writeln!(page, "  {number}: {line}  {inside}/{outside} {:.1} GB/s", ring.gb_per_s);
    }
    if report.channels.is_empty() {
        page.push_str("  none: there is no GPU\n");
    }
}

/// The page of a saved matrix.
pub(super) fn matrix_page(matrix: &Matrix) -> String {
    let mut page = format!("{}\n{}", matrix.table(), matrix.legend());
    let mut rows = vec![["GPU", "NUMA", "class", "nearest NICs"].map(str::to_owned)];
    let mut far: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (at, gpu) in matrix.gpus() {
        let Some((near, cell)) = matrix.nearest(at) else { continue };
        let own = |row: &&ringway_plan::topology::matrix::Row| {
            row.device.clone().unwrap_or_else(|| row.name.clone())
        };
        let names: Vec<String> = near.iter().map(own).collect();
        let numa = gpu.numa.clone().unwrap_or_else(|| "-".to_owned());
        rows.push([gpu.name.clone(), numa, cell.to_string(), names.join(", ")]);
        if cell.rank() >= Cell::Phb.rank() {
            far.entry(cell.to_string()).or_default().push(&gpu.name);
        }
    }
    if rows.len() > 1 {
        let _ = write!(page, "\n{}", table(&rows));
    }
    for (at, (cell, gpus)) in far.iter().enumerate() {
        let (gap, verb) =
            (if at == 0 { "\n" } else { "" }, if gpus.len() == 1 { "has" } else { "have" });
        let gpus = gpus.join(", ");
        let _ = writeln!(page, "{gap}warning: {gpus} {verb} no NIC nearer than {cell}");
    }
    page
}

/// Columns two blanks apart.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (word, width) in row.iter().zip(widths) {
            let _ = write!(line, "{word:<0$}", width + 2);
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

//! Is this curve normal? What a machine of this kind gives, and the shapes that mean something.
//!
//! The figures are what clouds and vendors gate their machines on, at the largest sizes, in GB/s of bus
//! bandwidth. *Invariant*: without a known model, a known count and a large enough size nothing is said.

use super::{Curve, Tables};
use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::log::conclude::Ranked;
use crate::doctor::log::sight::at;

/// Sizes from which a bandwidth is the link's and not the latency's.
pub(crate) const LARGE: u64 = 256 << 20;
/// Sizes up to which a time is the latency's.
const SMALL: u64 = 32 << 10;

/// What one host, and several, should give.
struct Expected {
    word: &'static str,
    not: &'static str,
    /// All-reduce on 8 GPUs of one host, and all-gather or reduce-scatter.
    one_host: [f64; 2],
    /// All-reduce over several hosts of 8 with 8 NICs of the usual rate, and that rate in Gb/s.
    many_hosts: f64,
    nic: &'static str,
}

const EXPECTED: &[Expected] = &[
    Expected { word: "V100-SXM", not: "PCIE", one_host: [110.0, 110.0], many_hosts: 0.0, nic: "" },
    Expected {
        word: "A100-SXM",
        not: "PCIe",
        one_host: [228.0, 222.0],
        many_hosts: 185.0,
        nic: "8 × 200 Gb/s",
    },
    Expected {
        word: "H100 80GB HBM3",
        not: "PCIe",
        one_host: [460.0, 350.0],
        many_hosts: 440.0,
        nic: "8 × 400 Gb/s",
    },
    Expected {
        word: "H100-SXM",
        not: "PCIe",
        one_host: [460.0, 350.0],
        many_hosts: 440.0,
        nic: "8 × 400 Gb/s",
    },
    Expected {
        word: "H200",
        not: "NVL",
        one_host: [431.0, 355.0],
        many_hosts: 440.0,
        nic: "8 × 400 Gb/s",
    },
    Expected {
        word: "B200",
        not: "GB200",
        one_host: [800.0, 650.0],
        many_hosts: 440.0,
        nic: "8 × 400 Gb/s",
    },
    Expected {
        word: "B300",
        not: "GB300",
        one_host: [800.0, 650.0],
        many_hosts: 700.0,
        nic: "16 × 400 Gb/s",
    },
    Expected { word: "MI300X", not: "?", one_host: [314.0, 310.0], many_hosts: 0.0, nic: "" },
];

/// Who is judged by what is usual: at less than the first part it is a finding, at less than the second a failure.
pub(crate) const USUAL_PARTS: [f64; 2] = [0.8, 0.55];

/// What is usual for such GPUs from [`LARGE`] sizes on, in GB/s of bus bandwidth: 8 ranks a host, NICs of the usual rate.
/// Nothing where that is not known.
pub(crate) fn usual(model: &str, collective: &str, ranks: usize, hosts: usize) -> Option<f64> {
    let reduces = collective == "all_reduce";
    if hosts == 0 || ranks != 8 * hosts {
        return None;
    }
    let expected = expected(model)?;
    let wanted = match (collective, hosts) {
        ("all_reduce" | "all_gather" | "reduce_scatter", 1) => {
            expected.one_host[usize::from(!reduces)]
        }
        ("all_reduce", _) => expected.many_hosts,
        _ => return None,
    };
    (wanted > 0.0).then_some(wanted)
}

fn expected(model: &str) -> Option<&'static Expected> {
    EXPECTED.iter().find(|one| model.contains(one.word) && !model.contains(one.not))
}

/// What the network cards of the log can carry together, in GB/s, where the log says.
pub(crate) type Nics = Option<f64>;

/// Judges all curves.
pub(crate) fn judge(tables: &Tables, nics: Nics, files: &[String]) -> Vec<Ranked> {
    let mut found = Vec::new();
    if let Some(first) = tables.wrong.first() {
        let mut finding = Finding::new(
            "measurement",
            "wrong-values",
            Verdict::Fail,
            format!("results are wrong: {} rows of nccl-tests hold wrong values", tables.wrong_count),
        )
        .costs("silent corruption of gradients or weights")
        .fixed_by(
            "drain the hosts and halve the set until one remains; test without P2P (NCCL_P2P_DISABLE=1) and \
             without GPUDirect (NCCL_NET_GDR_LEVEL=LOC) to tell memory, NVLink, PCIe (ACS, IOMMU) and NIC apart.",
        );
        let lines =
            tables.wrong.iter().map(|wrong| format!("{}: {}", at(wrong.place, files), wrong.line));
        finding.evidence = lines.collect();
        let cause = "Data arrives changed. With GPUs on PCIe it is mostly ACS or the IOMMU between them, else \
                     failing GPU memory or a broken link.";
        found.push(Ranked::new(15, finding, cause, first.place));
    }
    for curve in &tables.curves {
        let judged = [bandwidth(curve, nics, files), dip(curve, files), jitter(curve, files)];
        found.extend(judged.into_iter().flatten());
    }
    found
}

impl Curve {
    /// The collective: named, or told by the ratio of bus bandwidth to bandwidth.
    pub(crate) fn name(&self) -> String {
        if let Some(name) = &self.setup.collective {
            return name.clone();
        }
        match self.ratio() {
            Some(ratio) if ratio > 1.02 || (ratio > 0.98 && self.redop && self.ranks() == 2) => {
                "all_reduce"
            }
            Some(ratio) if ratio < 0.98 && self.redop => "reduce_scatter",
            Some(ratio) if ratio < 0.98 => "all_gather or alltoall",
            Some(_) if !self.redop => "broadcast",
            _ => "a collective",
        }
        .to_owned()
    }

    fn ratio(&self) -> Option<f64> {
        self.rows.values().next_back().map(|row| row.ratio).filter(|ratio| *ratio > 0.0)
    }

    /// Ranks: listed, or from the ratio 2(n-1)/n or (n-1)/n.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 2 and 4096"
    )]
    pub(crate) fn ranks(&self) -> u32 {
        let listed = self.setup.ranks();
        if listed > 0 {
            return listed;
        }
        let whole = match self.ratio() {
            Some(ratio) if ratio > 1.02 => 2.0,
            Some(_) => 1.0,
            None => return 0,
        };
        let ranks = whole / (whole - self.ratio().unwrap_or(0.0));
        if ranks.is_finite() && (1.5..4096.0).contains(&ranks) { ranks.round() as u32 } else { 0 }
    }

    /// The best of the large sizes.
    pub(crate) fn peak(&self) -> Option<(u64, f64)> {
        let all = self.rows.iter().map(|(size, row)| (*size, row.busbw));
        all.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

fn bandwidth(curve: &Curve, nics: Nics, files: &[String]) -> Option<Ranked> {
    let (size, row) = curve.rows.range(LARGE..).max_by(|a, b| a.1.busbw.total_cmp(&b.1.busbw))?;
    let name = curve.name();
    let reduces = name.starts_with("all_reduce");
    if !reduces && !name.starts_with("reduce_scatter") && !name.starts_with("all_gather") {
        return None;
    }
    let hosts = u32::try_from(curve.setup.hosts.len()).ok()?.max(1);
    let ranks = curve.setup.ranks();
    if ranks != 8 * hosts || curve.setup.models.len() != 1 {
        return None;
    }
    let model = curve.setup.models.keys().next()?;
    let expected = expected(model)?;
    let (wanted, by, sure) = match (hosts, nics) {
        (1, _) => (expected.one_host[usize::from(!reduces)], "NVLink of one host".to_owned(), true),
        (_, Some(nics)) if nics > 0.0 => {
            let limit = nics.min(expected.one_host[usize::from(!reduces)]) * 0.9;
            (limit, format!("NICs of {nics:.0} GB/s a host, as the log lists them"), true)
        }
        _ if reduces => (expected.many_hosts, format!("{} a host", expected.nic), false),
        _ => return None,
    };
    let share = row.busbw / wanted;
    if wanted <= 0.0 || share >= USUAL_PARTS[0] {
        return None;
    }
    let verdict = if share < USUAL_PARTS[1] && sure { Verdict::Fail } else { Verdict::Warn };
    let percent = 100.0 * share;
    let (cause, fix) = match hosts {
        1 if reduces && model.contains('H') && (0.7..0.8).contains(&share) => (
            "This is what rings over NVLink give: NVLink SHARP (NVLS) is not in use.",
            "look for \"NVLS multicast support\" in a log with NCCL_DEBUG=INFO; the fabric manager must run and \
             NCCL_NVLS_ENABLE must not be 0.",
        ),
        1 => (
            "Inside one host only NVLink counts: links are down, P2P is off (SHM in place of P2P), or clocks are low.",
            "run again with NCCL_DEBUG=INFO and look for \"via SHM\"; nvidia-smi nvlink -s; nvidia-smi -q -d \
             PERFORMANCE.",
        ),
        _ if (0.35..0.65).contains(&share) => (
            "About half of what the network carries: GPUDirect RDMA is inactive (data goes through host memory), \
             or half of the NICs are unused.",
            "run again with NCCL_DEBUG=INFO: every NET/IB line should end in /GDRDMA, and all NICs should be named.",
        ),
        _ => (
            "The network between the hosts carries far less than these machines usually have: TCP in place of \
             RDMA, few NICs in use, or a slow link.",
            "run again with NCCL_DEBUG=INFO and give that log here; measure each NIC alone (ib_write_bw).",
        ),
    };
    let finding = Finding::new(
        "measurement",
        "busbw-low",
        verdict,
        format!(
            "{name} reaches {:.0} GB/s, {percent:.0} % of the {wanted:.0} usual for {model}",
            row.busbw
        ),
    )
    .seen(format!("{}: {size} bytes, {:.2} GB/s of bus bandwidth", at(row.place, files), row.busbw))
    .costs(format!("collectives take {:.1} times as long ({by})", 1.0 / share))
    .fixed_by(fix);
    Some(Ranked::new(700, finding, cause, row.place))
}

/// A larger size that is slower than a smaller one.
fn dip(curve: &Curve, files: &[String]) -> Option<Ranked> {
    let mut best: Option<(u64, f64)> = None;
    let mut worst: Option<(u64, f64, u64, f64, super::Place)> = None;
    for (size, row) in &curve.rows {
        if let Some((before, busbw)) = best
            && busbw > 1.0
            && row.busbw < 0.6 * busbw
            && worst.is_none_or(|(_, low, _, high, _)| row.busbw / busbw < low / high)
        {
            worst = Some((*size, row.busbw, before, busbw, row.place));
        }
        if best.is_none_or(|(_, busbw)| row.busbw > busbw) {
            best = Some((*size, row.busbw));
        }
    }
    let (size, low, before, high, place) = worst?;
    let name = curve.name();
    let finding = Finding::new(
        "measurement",
        "curve-dip",
        Verdict::Warn,
        format!("{name}: {size} bytes run at {low:.1} GB/s although {before} bytes reach {high:.1}"),
    )
    .seen(format!("{}: the row of {size} bytes", at(place, files)))
    .costs(format!("{:.1} times the time at that size", high / low.max(0.01)))
    .fixed_by(
        "measure again: if it stays, compare NCCL_ALGO=Ring and Tree, NCCL_PROTO without LL at that size; on RoCE \
         look at pause and CNP counters.",
    );
    let cause = "At some sizes the choice of algorithm or protocol is poor, or the network drops packets under \
                 load (RoCE without PFC or ECN).";
    Some(Ranked::new(720, finding, cause, place))
}

/// Small messages whose time jumps, or is long.
fn jitter(curve: &Curve, files: &[String]) -> Option<Ranked> {
    // The first row holds what warms up.
    let rows: Vec<_> = curve.rows.iter().skip(1).take_while(|(size, _)| **size <= SMALL).collect();
    if rows.len() < 4 {
        return None;
    }
    let (best, worst) = rows.iter().fold((f64::MAX, 0.0_f64), |(best, worst), (_, row)| {
        (best.min(row.best_us), worst.max(row.worst_us))
    });
    let jumps = rows.iter().filter(|(_, row)| row.worst_us > 4.0 * best).count();
    let place = rows.iter().find(|(_, row)| row.worst_us > 4.0 * best).map(|(_, row)| row.place);
    let name = curve.name();
    if jumps >= 3
        && best > 0.0
        && let Some(place) = place
    {
        let finding = Finding::new(
            "measurement",
            "latency-jitter",
            Verdict::Warn,
            format!("{name}: small messages take between {best:.0} and {worst:.0} µs"),
        )
        .seen(format!("{}: the first of {jumps} slow rows", at(place, files)))
        .costs(format!("{:.0} times the latency in {jumps} of {} rows", worst / best, rows.len()))
        .fixed_by(
            "look for processors shared with other work (affinity, hyper-threads, cgroup quota), power saving \
             (C-states, governor), and lost packets on the network (retransmits, pause).",
        );
        let cause = "Some calls wait for a processor or for a packet sent again: the times jump by whole \
                     multiples although the sizes do not matter.";
        return Some(Ranked::new(730, finding, cause, place));
    }
    None
}

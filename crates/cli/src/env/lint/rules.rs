//! Combinations and values that are allowed and cost something: one function each.

use ringway_plan::topology::hca::HcaFilter;
use ringway_plan::topology::level::parse_level;
use ringway_plan::topology::path::PathClass;

use super::{Input, Value};
use crate::doctor::finding::{Finding, Verdict};
use crate::env::host::{Host, Interface, Link, Port};

/// A rule: what it finds, or nothing.
pub(super) type Rule = fn(&Input<'_>) -> Option<Finding>;

/// All of them.
pub(super) const ALL: &[Rule] = &[
    rdma_off,
    net_socket,
    p2p_off,
    shm_off,
    forced_algorithm,
    forced_protocol,
    gdr_level,
    gdr_read,
    dmabuf_off,
    nvls_off,
    cumem_off,
    pxn_off,
    cross_nic,
    sockets,
    channels,
    few_channels,
    interface_name,
    hca,
    gid_index,
    traffic_class,
    timeout,
    retries,
    debug,
    launch_blocking,
    buffer,
    topology_file,
    disabled_checks,
];

fn speed(
    id: &str,
    verdict: Verdict,
    title: &str,
    value: Value<'_>,
    cost: &str,
    fix: &str,
) -> Option<Finding> {
    Some(Finding::new("speed", id, verdict, title).seen(value.shown()).costs(cost).fixed_by(fix))
}

fn is_on(value: Value<'_>) -> bool {
    value.number().is_some_and(|number| number != 0)
}

fn is_off(value: Value<'_>) -> bool {
    value.number() == Some(0)
}

fn has_rdma(input: &Input<'_>) -> bool {
    input.host.is_some_and(|host| host.verbs().next().is_some())
}

fn rdma_off(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_IB_DISABLE").filter(|value| is_on(*value))?;
    let verdict = if has_rdma(input) { Verdict::Fail } else { Verdict::Warn };
    let fix = "unset it; where there is no RDMA card it is not needed.";
    speed(
        "env-rdma-off",
        verdict,
        "RDMA is switched off",
        value,
        "25 to 5 GB/s on one 200 Gb/s port",
        fix,
    )
}

fn net_socket(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_NET").filter(|value| value.text.eq_ignore_ascii_case("socket"))?;
    let verdict = if has_rdma(input) { Verdict::Fail } else { Verdict::Warn };
    let fix = "unset it, or NCCL_NET=IB, which makes a fallback to TCP an error.";
    speed(
        "env-net-socket",
        verdict,
        "TCP is asked for",
        value,
        "25 to 5 GB/s on one 200 Gb/s port",
        fix,
    )
}

fn p2p_off(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_P2P_DISABLE").filter(|value| is_on(*value))?;
    let fix = "unset it and mend what made it hang: ACS or the IOMMU (doctor checks both).";
    let cost = "NVLink 370 to 480 GB/s, through host memory about 20";
    speed("env-p2p-off", Verdict::Warn, "GPUs may not reach each other directly", value, cost, fix)
}

fn shm_off(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_SHM_DISABLE").filter(|value| is_on(*value))?;
    let fix = "unset it; if /dev/shm is too small make it larger (--shm-size, emptyDir of medium Memory).";
    let cost = "ranks of one host talk over the network: 10 to 20 GB/s become the NIC's or TCP's";
    speed("env-shm-off", Verdict::Warn, "shared memory within a host is off", value, cost, fix)
}

fn forced_algorithm(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_ALGO").filter(|value| !value.text.is_empty())?;
    let cost = "a pinned Tree gave 50 of 200 GB/s at large sizes; a pinned Ring costs latency at small ones";
    let fix = "unset it; keep such choices in a tuner plugin, by size.";
    speed(
        "env-forced-algo",
        Verdict::Warn,
        "the algorithm is pinned for all sizes",
        value,
        cost,
        fix,
    )
}

fn forced_protocol(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_PROTO").filter(|value| !value.text.is_empty())?;
    let words: Vec<String> =
        value.text.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
    let excludes = value.text.starts_with('^');
    if !excludes && words.iter().any(|word| word == "ll128") {
        let cost = "wrong results, silently, where 128-byte stores are not kept whole";
        let fix = "unset it: NCCL takes LL128 where the hardware can do it.";
        return speed(
            "env-forced-ll128",
            Verdict::Fail,
            "protocol LL128 is forced",
            value,
            cost,
            fix,
        );
    }
    let cost = "LL carries 4 bytes of data in 8: half the bandwidth; Simple alone costs latency";
    let fix = "unset it.";
    speed(
        "env-forced-proto",
        Verdict::Warn,
        "the protocol is pinned for all sizes",
        value,
        cost,
        fix,
    )
}

fn gdr_level(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_NET_GDR_LEVEL")?;
    match parse_level(value.text)? {
        PathClass::Loc | PathClass::Nvl | PathClass::Nvb | PathClass::C2c => {
            let cost = "data is staged in host memory: 11 in place of 23 GB/s on one HDR port";
            let fix = "unset it, or PXB.";
            speed(
                "env-gdr-off",
                Verdict::Fail,
                "this level turns GPUDirect RDMA off",
                value,
                cost,
                fix,
            )
        }
        PathClass::Sys => {
            let cost = "GPUDirect across sockets reads at a few GB/s on many platforms";
            let fix = "unset it; give each GPU a NIC of its own PCIe switch.";
            speed(
                "env-gdr-far",
                Verdict::Warn,
                "GPUDirect is asked for at any distance",
                value,
                cost,
                fix,
            )
        }
        _ => None,
    }
}

fn gdr_read(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_NET_GDR_READ").filter(|value| is_off(*value))?;
    let cost = "what is sent goes through host memory: up to half the rate in that direction";
    speed(
        "env-gdr-read-off",
        Verdict::Warn,
        "GPUDirect is off for sending",
        value,
        cost,
        "unset it.",
    )
}

fn dmabuf_off(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_DMABUF_ENABLE").filter(|value| is_off(*value))?;
    let cost = "GPUDirect RDMA then hangs on nvidia_peermem being loaded; without it half the rate";
    speed(
        "env-dmabuf-off",
        Verdict::Warn,
        "dma-buf is off",
        value,
        cost,
        "unset it, if driver and kernel (5.12) are new enough.",
    )
}

fn nvls_off(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_NVLS_ENABLE").filter(|value| is_off(*value))?;
    let cost = "all-reduce 367 in place of 480 GB/s on 8 H100, 682 in place of 838 on 8 B200";
    speed(
        "env-nvls-off",
        Verdict::Warn,
        "NVLink SHARP is off",
        value,
        cost,
        "unset it; mend the fabric manager if start fails.",
    )
}

fn cumem_off(input: &Input<'_>) -> Option<Finding> {
    // Off is RCCL's default.
    let is_rccl = |name: &str| name.starts_with("RCCL_") || name.starts_with("HSA_");
    if input.settings.iter().any(|setting| is_rccl(&setting.name)) {
        return None;
    }
    let value = input.get("NCCL_CUMEM_ENABLE").filter(|value| is_off(*value))?;
    let cost =
        "no connecting at first use, no NVLink between hosts, no registered buffers for NVLS";
    speed(
        "env-cumem-off",
        Verdict::Warn,
        "CUDA's virtual memory calls are off",
        value,
        cost,
        "unset it with NCCL 2.19 and later.",
    )
}

fn pxn_off(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_PXN_DISABLE").filter(|value| is_on(*value))?;
    let cost =
        "all-to-all leaves its rail: one switch hop becomes three, and messages are not gathered";
    speed(
        "env-pxn-off",
        Verdict::Warn,
        "sending through another GPU's NIC is off",
        value,
        cost,
        "unset it on rail-optimised fabrics.",
    )
}

fn cross_nic(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_CROSS_NIC").filter(|value| value.number() == Some(1))?;
    let cost =
        "rings change rails: more hops through spines, and no way at all on rail-only fabrics";
    let fix = "0 on rail-optimised and rail-only fabrics; unset (2) leaves the choice to NCCL.";
    speed("env-cross-nic", Verdict::Warn, "rings may change rails", value, cost, fix)
}

fn sockets(input: &Input<'_>) -> Option<Finding> {
    let threads = input.get("NCCL_SOCKET_NTHREADS")?;
    let each = input.get("NCCL_NSOCKS_PERTHREAD")?;
    let product = threads.number()?.checked_mul(each.number()?)?;
    (product > 64).then(|| {
        Finding::new(
            "values",
            "env-sockets",
            Verdict::Fail,
            format!("{product} sockets for a connection; the most is 64"),
        )
        .seen(threads.shown())
        .seen(each.shown())
        .costs("NCCL lowers the sockets of a thread, to another number than was asked for")
        .fixed_by("keep NCCL_SOCKET_NTHREADS × NCCL_NSOCKS_PERTHREAD at 64 or less, as 4 × 4.")
    })
}

fn channels(input: &Input<'_>) -> Option<Finding> {
    let pairs = [("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")];
    pairs.into_iter().find_map(|(low, high)| {
        let (low, high) = (input.get(low)?, input.get(high)?);
        (low.number()? > high.number()?).then(|| {
            Finding::new(
                "values",
                "env-channels",
                Verdict::Fail,
                format!("{} is above {}", low.name, high.name),
            )
            .seen(low.shown())
            .seen(high.shown())
            .costs("one of the two has no effect")
            .fixed_by("unset both: NCCL finds the number from the topology.")
        })
    })
}

fn few_channels(input: &Input<'_>) -> Option<Finding> {
    let names = ["NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"];
    let value = names.iter().find_map(|name| {
        input.get(name).filter(|v| v.number().is_some_and(|n| (1..8).contains(&n)))
    })?;
    let cost =
        "a channel carries about 20 GB/s over NVLink: 2 of 16 are an eighth of the bandwidth";
    let fix = "unset it; to leave SMs free use NCCL_CTA_POLICY=EFFICIENCY or CTAs of single communicators.";
    speed("env-few-channels", Verdict::Warn, "few channels are allowed", value, cost, fix)
}

fn interface_name(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_SOCKET_IFNAME").filter(|value| !value.text.is_empty())?;
    let bridge = ["lo", "docker", "virbr", "cni", "veth"];
    let names: Vec<&str> = value.text.trim_start_matches('=').split(',').collect();
    let finding = |id: &str, title: String, cost: &str, fix: &str| {
        let finding = Finding::new("network", id, Verdict::Fail, title);
        Some(finding.seen(value.shown()).costs(cost).fixed_by(fix))
    };
    if !value.text.starts_with('^')
        && names.iter().all(|name| bridge.iter().any(|b| name.starts_with(b)))
    {
        let cost = "other hosts cannot reach it: the ranks never meet";
        return finding(
            "env-ifname-bridge",
            format!("{} is of this host only", value.text),
            cost,
            "name the card the hosts share.",
        );
    }
    let host = input.host.filter(|host| !host.interfaces.is_empty())?;
    // NCCL reads this list as it reads that of the cards.
    let filter = HcaFilter::parse(value.text);
    let selected: Vec<&Interface> =
        host.interfaces.iter().filter(|i| filter.allows(&i.name, None)).collect();
    let up = selected.iter().filter(|interface| interface.is_up && interface.name != "lo").count();
    let there: Vec<&str> =
        host.interfaces.iter().filter(|i| i.is_up).map(|i| i.name.as_str()).take(8).collect();
    let fix = format!("this host has {}.", there.join(", "));
    if selected.is_empty() {
        let title = format!("no interface of this host fits NCCL_SOCKET_IFNAME={}", value.text);
        return finding("env-ifname-missing", title, "the ranks cannot meet; nothing runs", &fix);
    }
    (up == 0)
        .then(|| {
            finding(
                "env-ifname-down",
                "the interfaces it names are down".to_owned(),
                "the ranks cannot meet",
                &fix,
            )
        })
        .flatten()
}

fn hca(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_IB_HCA").filter(|value| !value.text.is_empty())?;
    if let Some(host) = input.host.filter(|host| host.ports.iter().any(Port::is_verbs)) {
        let filter = HcaFilter::parse(value.text);
        let some = host.verbs().any(|port| filter.allows(&port.device, Some(i64::from(port.port))));
        if !some {
            let there: Vec<String> =
                host.verbs().map(|p| format!("{}:{}", p.device, p.port)).take(8).collect();
            let title = format!("no active RDMA port of this host fits NCCL_IB_HCA={}", value.text);
            let finding = Finding::new("network", "env-hca-missing", Verdict::Fail, title)
                .seen(value.shown());
            let cost = "NCCL falls back to TCP without an error: 25 to 5 GB/s";
            return Some(
                finding.costs(cost).fixed_by(format!("this host has {}.", there.join(", "))),
            );
        }
    }
    // `mlx5_1` is a prefix: it takes mlx5_10 to mlx5_19 too, and `^mlx5_1` leaves them out.
    let list = value.text.strip_prefix('^').unwrap_or(value.text);
    let excludes = list != value.text;
    if list.starts_with('=') {
        return None;
    }
    let hits_others = |name: &&str| {
        let longer = |p: &Port| p.device.starts_with(name) && p.device != *name;
        name.contains('_')
            && name.ends_with(|c: char| c.is_ascii_digit())
            && input.host.is_none_or(|host| host.ports.iter().any(longer))
    };
    let name = list.split(',').filter_map(|word| word.split(':').next()).find(hits_others)?;
    let (also, cost) = if excludes {
        ("leaves out", "compute cards stay idle: each is its share of the bandwidth")
    } else {
        ("takes", "storage or management cards may carry collectives: the slowest sets the pace")
    };
    let title = format!("{name} is a prefix: it also {also} {name}0 to {name}9");
    let finding =
        Finding::new("network", "env-hca-prefix", Verdict::Warn, title).seen(value.shown());
    let mark = if excludes { "^=" } else { "=" };
    Some(finding.costs(cost).fixed_by(format!("NCCL_IB_HCA={mark}{list}")))
}

fn gid_index(input: &Input<'_>) -> Option<Finding> {
    let value =
        input.get("NCCL_IB_GID_INDEX").filter(|value| value.number().is_some_and(|n| n >= 0))?;
    let index = value.number()?;
    let fix = "unset it: NCCL 2.21 and later choose the RoCE v2 entry by themselves (NCCL_IB_ROCE_VERSION_NUM, \
               NCCL_IB_ADDR_FAMILY).";
    if let Some(wrong) = input.host.and_then(|host| wrong_gid(host, index)) {
        let title = format!("GID {index} is not a routable RoCE v2 address on {wrong}");
        let finding =
            Finding::new("network", "env-gid-wrong", Verdict::Fail, title).seen(value.shown());
        return Some(
            finding
                .costs("connections fail with \"Network is unreachable\" or completion error 12")
                .fixed_by(fix),
        );
    }
    let title = "the GID index is pinned";
    let cost = "indexes differ between hosts and pods (4 here, 6 there): connections then fail";
    let finding =
        Finding::new("network", "env-gid-pinned", Verdict::Warn, title).seen(value.shown());
    Some(finding.costs(cost).fixed_by(fix))
}

/// The first active Ethernet port on which the index is not what it should be, and what would be.
fn wrong_gid(host: &Host, index: i64) -> Option<String> {
    host.active().filter(|port| port.link == Link::Ethernet && !port.gids.is_empty()).find_map(
        |port| {
            let is = |gid: &&crate::env::host::Gid| i64::from(gid.index) == index;
            let right =
                port.gids.iter().find(is).is_some_and(crate::env::host::Gid::is_routable_v2);
            let good: Vec<String> = port
                .gids
                .iter()
                .filter(|gid| gid.is_routable_v2())
                .map(|gid| gid.index.to_string())
                .collect();
            (!right)
                .then(|| format!("{}:{} (RoCE v2: {})", port.device, port.port, good.join(", ")))
        },
    )
}

fn traffic_class(input: &Input<'_>) -> Option<Finding> {
    let value = input
        .get("NCCL_IB_TC")
        .filter(|value| value.number().is_some_and(|tc| (0..=255).contains(&tc)))?;
    let tc = value.number()?;
    let (dscp, ecn) = (tc >> 2, tc & 3);
    let finding = |id: &str, verdict: Verdict, title: String, fix: String| {
        let finding = Finding::new("network", id, verdict, title).seen(value.shown());
        let cost = "RDMA in a class without PFC or ECN loses packets: drops to tenths of a GB/s under load";
        Some(finding.costs(cost).fixed_by(fix))
    };
    if let Some(plan) = input.dscp.filter(|plan| i64::from(*plan) != dscp) {
        let title = format!("NCCL_IB_TC={tc} is DSCP {dscp}, the network's plan says {plan}");
        let wanted = i64::from(plan) << 2;
        return finding(
            "env-tc-plan",
            Verdict::Fail,
            title,
            format!("NCCL_IB_TC={wanted}, or {} with ECN.", wanted | 2),
        );
    }
    if ecn == 1 || ecn == 3 {
        let title = format!("NCCL_IB_TC={tc} has odd low bits: DSCP {dscp}, ECN bits {ecn}");
        let fix = format!("NCCL_IB_TC={} (ECN-capable) or {}.", tc & !3 | 2, tc & !3);
        return finding("env-tc-ecn", Verdict::Warn, title, fix);
    }
    // 26, 24, 46 …: a DSCP where a traffic class is wanted.
    if input.dscp.is_none() && [8, 10, 16, 18, 24, 26, 28, 30, 32, 34, 46, 48].contains(&tc) {
        let title = format!("NCCL_IB_TC={tc} is DSCP {dscp}; DSCP {tc} would be {}", tc << 2);
        let fix = format!(
            "if DSCP {tc} was meant: NCCL_IB_TC={} (or {} with ECN).",
            tc << 2,
            tc << 2 | 2
        );
        return finding("env-tc-dscp", Verdict::Warn, title, fix);
    }
    None
}

/// `4.096 µs × 2^20 × 7 = 30.1 s`.
pub(crate) fn timeout_text(exponent: i64, retries: i64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "at most 2^31 × 7")]
    let seconds = 4.096e-6 * (1_i64 << exponent.clamp(0, 31)) as f64 * retries as f64;
    let time = match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s => format!("{:.0} minutes", s / 60.0),
    };
    format!("4.096 µs × 2^{exponent} × {retries} retries = {time}")
}

fn timeout(input: &Input<'_>) -> Option<Finding> {
    let value = input
        .get("NCCL_IB_TIMEOUT")
        .filter(|value| value.number().is_some_and(|n| (0..=31).contains(&n)))?;
    let exponent = value.number()?;
    let retries = input.number("NCCL_IB_RETRY_CNT").filter(|n| (0..=7).contains(n)).unwrap_or(7);
    let (verdict, title) = match exponent {
        0 => (Verdict::Fail, "a NIC waits for ever for a lost peer"),
        1..14 => (Verdict::Fail, "a NIC gives its peer up within a second"),
        14..20 => (Verdict::Warn, "a NIC gives its peer up sooner than by default"),
        20..24 => return None,
        _ => (Verdict::Warn, "a NIC notices a lost peer very late"),
    };
    let cost = match exponent {
        0 => "a dead host hangs the job".to_owned(),
        24.. => format!("{}: a dead host hangs the job that long", timeout_text(exponent, retries)),
        _ => format!(
            "{}: a link that flaps for longer ends the job",
            timeout_text(exponent, retries)
        ),
    };
    let finding = Finding::new("network", "env-ib-timeout", verdict, title).seen(value.shown());
    Some(
        finding
            .costs(cost)
            .fixed_by(format!("unset it (20, 30 s), or 22: {}.", timeout_text(22, 7))),
    )
}

fn retries(input: &Input<'_>) -> Option<Finding> {
    let value = input
        .get("NCCL_IB_RETRY_CNT")
        .filter(|value| value.number().is_some_and(|n| (0..7).contains(&n)))?;
    let exponent = input.number("NCCL_IB_TIMEOUT").filter(|n| (1..=31).contains(n)).unwrap_or(20);
    let finding =
        Finding::new("network", "env-ib-retries", Verdict::Warn, "a NIC tries fewer than 7 times")
            .seen(value.shown());
    Some(finding.costs(timeout_text(exponent, value.number()?)).fixed_by("unset it (7)."))
}

fn debug(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_DEBUG")?;
    let level = value.text.to_ascii_uppercase();
    if level != "INFO" && level != "TRACE" {
        return None;
    }
    let to_file = input.get("NCCL_DEBUG_FILE").is_some();
    let everything = input.get("NCCL_DEBUG_SUBSYS").is_some_and(|s| {
        ["ALL", "COLL", "CALL"]
            .iter()
            .any(|word| s.text.to_ascii_uppercase().split(',').any(|w| w == *word))
    });
    if level == "INFO" && to_file && !everything {
        return None;
    }
    let cost = if level == "TRACE" || everything {
        "a line for every call of every rank: gigabytes an hour, and time in every launch"
    } else {
        "hundreds of lines a rank at start, mixed into the program's own output"
    };
    let finding =
        Finding::new("log", "env-debug", Verdict::Warn, format!("NCCL_DEBUG={level} is left on"))
            .seen(value.shown());
    Some(
        finding
            .costs(cost)
            .fixed_by("NCCL_DEBUG=WARN, or NCCL_DEBUG_FILE=/tmp/nccl.%h.%p to keep it apart."),
    )
}

fn launch_blocking(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("CUDA_LAUNCH_BLOCKING").filter(|value| is_on(*value))?;
    let cost = "no overlap of computing and communicating; with several communicators it may hang";
    speed(
        "env-launch-blocking",
        Verdict::Warn,
        "every launch waits for its end",
        value,
        cost,
        "unset it when done debugging.",
    )
}

fn buffer(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_BUFFSIZE")?;
    let bytes = value.number()?;
    let title = match bytes {
        ..=262_143 => "buffers are very small",
        67_108_865.. => "buffers are very large",
        _ if bytes.count_ones() != 1 => "the buffer is no power of two",
        _ => return None,
    };
    let cost =
        "GPU memory is this × channels × peers × 2; small ones cost bandwidth, odd ones alignment";
    speed(
        "env-buffer",
        Verdict::Warn,
        title,
        value,
        cost,
        "unset it (4194304), or a power of two up to 33554432.",
    )
}

fn topology_file(input: &Input<'_>) -> Option<Finding> {
    input.host?;
    let value = input.get("NCCL_TOPO_FILE").filter(|value| !value.text.is_empty())?;
    (!std::path::Path::new(value.text).exists()).then(|| {
        Finding::new("network", "env-topo-missing", Verdict::Fail, "the topology file is not there")
            .seen(value.shown())
            .costs("in virtual machines 25 to 56 % of bare metal without it")
            .fixed_by("correct the path: it is looked up inside the container.")
    })
}

fn disabled_checks(input: &Input<'_>) -> Option<Finding> {
    let value = input.get("NCCL_IGNORE_DISABLED_P2P").filter(|value| is_on(*value))?;
    let cost = "broken NVLink goes unseen: 20 in place of 370 GB/s";
    speed(
        "env-p2p-ignored",
        Verdict::Warn,
        "a broken NVLink is not reported",
        value,
        cost,
        "unset it and mend the link.",
    )
}

use ringway::topo::GidKind;

use super::super::host::{Gid, Interface, Link, Port};
use super::super::source::from_text;
use super::*;

fn ids_on(text: &str, host: Option<&Host>, dscp: Option<u8>) -> Vec<String> {
    let settings = from_text("f", text);
    let report = lint(&Input { settings: &settings, host, dscp });
    for finding in &report.findings {
        assert!(finding.evidence[0].starts_with("f:"), "{finding:?}");
        assert!(finding.cost.is_some() && finding.fix.is_some(), "{finding:?}");
    }
    report.findings.into_iter().map(|finding| finding.id).collect()
}

fn ids(text: &str) -> Vec<String> {
    ids_on(text, None, None)
}

/// Settings and the one finding each must lead to.
const CASES: &[(&str, &str)] = &[
    ("NCCL_IB_GID_INDX=3", "env-unknown"),
    ("NCLL_IB_HCA=mlx5", "env-unknown"),
    ("NCCL_ZZZ_QQQ_XXX=1", "env-unknown"),
    ("RINGWAY_LEVL=shape", "env-unknown"),
    ("RINGWAY_LEVEL=sharp", "env-value"),
    ("NCCL_IB_CUDA_SUPPORT=1", "env-removed"),
    ("NCCL_IB_GDR_LEVEL=3", "env-renamed"),
    ("NCCL_ASYNC_ERROR_HANDLING=1", "env-renamed"),
    ("NCCL_MAX_NRINGS=4", "env-renamed"),
    ("NCCL_GROUP_CUDA_STREAM=1", "env-dead"),
    ("NCCL_LAUNCH_MODE=GROUP", "env-deprecated"),
    ("NCCL_IB_DISABLE=true", "env-value"),
    ("NCCL_BUFFSIZE=8M", "env-value"),
    ("NCCL_DEBUG=\"WARN \"", "env-value"),
    ("NCCL_NET=IB\nNCCL_NET=AWS", "env-twice"),
    ("NCCL_IB_DISABLE=1", "env-rdma-off"),
    ("NCCL_NET=Socket", "env-net-socket"),
    ("NCCL_P2P_DISABLE=1", "env-p2p-off"),
    ("NCCL_SHM_DISABLE=1", "env-shm-off"),
    ("NCCL_ALGO=Ring", "env-forced-algo"),
    ("NCCL_PROTO=Simple", "env-forced-proto"),
    ("NCCL_PROTO=^LL128", "env-forced-proto"),
    ("NCCL_PROTO=LL,LL128", "env-forced-ll128"),
    ("NCCL_NET_GDR_LEVEL=LOC", "env-gdr-off"),
    ("NCCL_NET_GDR_LEVEL=0", "env-gdr-off"),
    ("NCCL_NET_GDR_LEVEL=SYS", "env-gdr-far"),
    ("NCCL_NET_GDR_LEVEL=6", "env-gdr-far"),
    ("NCCL_NET_GDR_LEVEL=phb", "env-value"),
    ("NCCL_NET_GDR_READ=0", "env-gdr-read-off"),
    ("NCCL_DMABUF_ENABLE=0", "env-dmabuf-off"),
    ("NCCL_NVLS_ENABLE=0", "env-nvls-off"),
    ("NCCL_CUMEM_ENABLE=0", "env-cumem-off"),
    ("NCCL_PXN_DISABLE=1", "env-pxn-off"),
    ("NCCL_CROSS_NIC=1", "env-cross-nic"),
    ("NCCL_SOCKET_NTHREADS=16\nNCCL_NSOCKS_PERTHREAD=8", "env-sockets"),
    ("NCCL_MIN_CTAS=32\nNCCL_MAX_CTAS=16", "env-channels"),
    ("NCCL_MAX_CTAS=2", "env-few-channels"),
    ("NCCL_SOCKET_IFNAME=docker0", "env-ifname-bridge"),
    ("NCCL_SOCKET_IFNAME=lo", "env-ifname-bridge"),
    ("NCCL_IB_HCA=mlx5_1", "env-hca-prefix"),
    ("NCCL_IB_HCA=^mlx5_1", "env-hca-prefix"),
    ("NCCL_IB_GID_INDEX=3", "env-gid-pinned"),
    ("NCCL_IB_TC=105", "env-tc-ecn"),
    ("NCCL_IB_TC=26", "env-tc-dscp"),
    ("NCCL_IB_TIMEOUT=12", "env-ib-timeout"),
    ("NCCL_IB_TIMEOUT=18", "env-ib-timeout"),
    ("NCCL_IB_TIMEOUT=30", "env-ib-timeout"),
    ("NCCL_IB_RETRY_CNT=3", "env-ib-retries"),
    ("NCCL_DEBUG=INFO", "env-debug"),
    ("NCCL_DEBUG=TRACE\nNCCL_DEBUG_FILE=/tmp/x.%h.%p", "env-debug"),
    ("NCCL_DEBUG=INFO\nNCCL_DEBUG_FILE=/tmp/x\nNCCL_DEBUG_SUBSYS=INIT,COLL", "env-debug"),
    ("CUDA_LAUNCH_BLOCKING=1", "env-launch-blocking"),
    ("NCCL_BUFFSIZE=5000000", "env-buffer"),
    ("NCCL_IGNORE_DISABLED_P2P=1", "env-p2p-ignored"),
];

#[test]
fn every_rule_finds_its_case_and_nothing_else() {
    for (text, id) in CASES {
        assert_eq!(ids(text), [*id], "{text}");
    }
}

#[test]
fn every_rule_is_in_the_documentation() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/environment.md");
    let text = std::fs::read_to_string(path).unwrap();
    for (_, id) in CASES {
        assert!(text.contains(&format!("`{id}`")), "docs/environment.md lacks {id}");
    }
    // Each rule of the table has a case above, or one of those with a machine or a plan below.
    let cases: std::collections::BTreeSet<&str> = CASES.iter().map(|(_, id)| *id).collect();
    assert!(cases.len() >= rules::ALL.len(), "{} {}", cases.len(), rules::ALL.len());
}

#[test]
fn sound_settings_are_left_alone() {
    for text in [
        "",
        "NCCL_IB_TC=106",
        "NCCL_IB_TC=104",
        "NCCL_IB_TIMEOUT=22",
        "NCCL_DEBUG=WARN",
        "NCCL_DEBUG=INFO\nNCCL_DEBUG_FILE=/tmp/nccl.%h.%p",
        "NCCL_SOCKET_IFNAME=^lo,docker",
        "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1",
        "NCCL_IB_HCA=mlx5",
        "NCCL_IB_HCA=^=mlx5_1",
        "NCCL_SOCKET_NTHREADS=4\nNCCL_NSOCKS_PERTHREAD=4",
        "NCCL_IB_DISABLE=0",
        "NCCL_TESTS_DEVICE=0",
        "NCCL_OFI_ANYTHING=1",
        "CCL_SOMETHING_NEW=1",
        "RINGWAY_LEVEL=shape",
        "NCCL_IB_HCA=$HCAS",
        "NCCL_IB_GID_INDEX=-1",
        "NCCL_NET_GDR_LEVEL=PXB",
        "NCCL_MIN_CTAS=112",
        "NCCL_CUMEM_ENABLE=0\nHSA_NO_SCRATCH_RECLAIM=1",
    ] {
        assert_eq!(ids(text), [""; 0], "{text}");
    }
}

fn machine() -> Host {
    let gid = |index, address: &str, kind| Gid { index, address: address.to_owned(), kind };
    let gids = vec![
        gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", GidKind::RoceV1),
        gid(1, "fe80:0000:0000:0000:0000:0000:0000:0001", GidKind::RoceV2),
        gid(2, "0000:0000:0000:0000:0000:ffff:0a00:0001", GidKind::RoceV1),
        gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", GidKind::RoceV2),
    ];
    let port = Port {
        device: "mlx5_1".to_owned(),
        port: 1,
        link: Link::Ethernet,
        is_active: true,
        rate: 400,
        gids,
    };
    let interface = |name: &str, is_up| Interface {
        name: name.to_owned(),
        is_up,
        is_useful: true,
        is_usb: false,
        speed: None,
        is_ipoib: false,
    };
    Host {
        ports: vec![port],
        interfaces: vec![interface("eth0", true), interface("eth1", false), interface("lo", true)],
    }
}

#[test]
fn this_machine_is_compared_where_it_is_known() {
    let host = machine();
    for (text, id) in [
        ("NCCL_SOCKET_IFNAME=ens", "env-ifname-missing"),
        ("NCCL_SOCKET_IFNAME==eth", "env-ifname-missing"),
        ("NCCL_SOCKET_IFNAME=eth1", "env-ifname-down"),
        ("NCCL_IB_HCA=bnxt", "env-hca-missing"),
        ("NCCL_IB_HCA==mlx5_1:2", "env-hca-missing"),
        ("NCCL_IB_GID_INDEX=0", "env-gid-wrong"),
        ("NCCL_IB_GID_INDEX=1", "env-gid-wrong"),
        ("NCCL_IB_GID_INDEX=2", "env-gid-wrong"),
        ("NCCL_IB_GID_INDEX=7", "env-gid-wrong"),
        ("NCCL_IB_GID_INDEX=3", "env-gid-pinned"),
        ("NCCL_TOPO_FILE=/no/such/file.xml", "env-topo-missing"),
    ] {
        assert_eq!(ids_on(text, Some(&host), None), [id], "{text}");
    }
    for text in ["NCCL_SOCKET_IFNAME=eth", "NCCL_SOCKET_IFNAME=^eth1", "NCCL_IB_HCA=mlx5_1"] {
        assert_eq!(ids_on(text, Some(&host), None), [""; 0], "{text}");
    }
    let settings = from_text("f", "NCCL_IB_DISABLE=1");
    let report = lint(&Input { settings: &settings, host: Some(&host), dscp: None });
    assert_eq!(report.verdict(), Verdict::Fail);
}

#[test]
fn the_fix_of_an_exclusion_stays_an_exclusion() {
    for (text, also, fix) in [
        ("NCCL_IB_HCA=^mlx5_1,mlx5_2", "leaves out mlx5_10", "NCCL_IB_HCA=^=mlx5_1,mlx5_2"),
        ("NCCL_IB_HCA=mlx5_1:1", "takes mlx5_10", "NCCL_IB_HCA==mlx5_1:1"),
    ] {
        let settings = from_text("f", text);
        let report = lint(&Input { settings: &settings, host: None, dscp: None });
        assert!(report.findings[0].title.contains(also), "{}", report.findings[0].title);
        assert_eq!(report.findings[0].fix.as_deref(), Some(fix));
    }
}

#[test]
fn settings_of_ib_are_not_judged_by_the_ports_of_efa() {
    let mut host = machine();
    host.ports[0].link = Link::Efa;
    assert_eq!(ids_on("NCCL_IB_HCA==mlx5_9", Some(&host), None), [""; 0]);
    let settings = from_text("f", "NCCL_IB_DISABLE=1");
    let report = lint(&Input { settings: &settings, host: Some(&host), dscp: None });
    assert_eq!(report.verdict(), Verdict::Warn);
}

#[test]
fn the_traffic_class_follows_the_plan() {
    assert_eq!(ids_on("NCCL_IB_TC=106", None, Some(26)), [""; 0]);
    assert_eq!(ids_on("NCCL_IB_TC=104", None, Some(26)), [""; 0]);
    let settings = from_text("f", "NCCL_IB_TC=96");
    let report = lint(&Input { settings: &settings, host: None, dscp: Some(26) });
    assert_eq!(report.findings[0].id, "env-tc-plan");
    assert!(report.findings[0].title.contains("DSCP 24"));
    assert!(report.findings[0].fix.as_ref().unwrap().contains("106 with ECN"));
}

#[test]
fn times_are_spelled_out() {
    assert_eq!(rules::timeout_text(20, 7), "4.096 µs × 2^20 × 7 retries = 30.1 s");
    assert_eq!(rules::timeout_text(14, 7), "4.096 µs × 2^14 × 7 retries = 470 ms");
    assert_eq!(rules::timeout_text(22, 7), "4.096 µs × 2^22 × 7 retries = 2 minutes");
}

#[test]
fn secrets_stay_secret() {
    let settings = from_text("f", "RINGWAY_SECRETT=swordfish");
    let report = lint(&Input { settings: &settings, host: None, dscp: None });
    assert_eq!(report.findings.len(), 1);
    assert!(!report.json().unwrap().contains("swordfish"));
    for text in
        ["RINGWAY_SECRET=swordfish\nRINGWAY_SECRET=swordfish2", "RINGWAY_SECRET=\"swordfish \""]
    {
        let settings = from_text("f", text);
        let report = lint(&Input { settings: &settings, host: None, dscp: None });
        assert!(!report.json().unwrap().contains("swordfish"), "{text}");
    }
    let settings = from_text("f", "RINGWAY_SECRET=one\nRINGWAY_SECRET=two");
    let report = lint(&Input { settings: &settings, host: None, dscp: None });
    assert!(report.findings.iter().any(|finding| finding.id == "env-twice"));
}

/// The blocks of docs/environment.md, by their headings, and what each leads to.
#[test]
fn the_blocks_of_the_documentation_are_sound() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/environment.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut seen = Vec::new();
    for part in text.split("\n### ").skip(1) {
        let heading = part.lines().next().unwrap();
        let block = part.split("```").nth(1).unwrap();
        let found = ids(block);
        let wanted: &[&str] = if heading.starts_with("What not") {
            &["env-rdma-off", "env-forced-algo", "env-gid-pinned"]
        } else {
            &[]
        };
        assert_eq!(found, wanted, "{heading}");
        assert!(from_text("f", block).len() >= 2, "{heading}");
        seen.push(heading.to_owned());
    }
    assert_eq!(seen, ["InfiniBand", "RoCE v2", "TCP on Ethernet", "Kubernetes", "What not to set"]);
}

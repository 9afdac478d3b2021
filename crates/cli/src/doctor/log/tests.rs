use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::finding::Verdict;
use super::*;

mod kernel;
mod plan;
mod properties;

fn read(text: &[u8]) -> Report {
    let mut reader = Reader::new().unwrap();
    reader.read("test.log", &mut &text[..]).unwrap();
    reader.report().0
}

fn fact<'a>(report: &'a Report, name: &str) -> Vec<&'a str> {
    report.facts.iter().filter(|fact| fact.name == name).map(|fact| fact.value.as_str()).collect()
}

/// Findings worse than unknown.
fn troubles(report: &Report) -> Vec<&str> {
    let bad = report.findings.iter().filter(|finding| finding.verdict > Verdict::Unknown);
    bad.map(|finding| finding.id.as_str()).collect()
}

/// One line for every recogniser, and the finding that must come first.
const LINES: &[(&str, &str)] = &[
    (
        "cumem-host",
        "a:1:2 [0] NCCL INFO cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation",
    ),
    ("ras-dead", "  1 job process is considered dead (unreachable via the RAS network)"),
    ("ras-mismatch", "  Communicator ranks have different status"),
    ("ras-incomplete", "  Missing communicator data from 1 rank"),
    ("oom-kill", "[12.3] Out of memory: Killed process 4711 (python) total-vm:1kB"),
    (
        "nccl-segfault",
        "kernel: pt_main[9]: segfault at 7f ip 00 sp 00 error 4 in libnccl.so.2[7f+d3]",
    ),
    (
        "peermem-error",
        "6,1,2,-;nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
    ),
    ("dma-fault", "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0x0"),
    (
        "pcie-uncorrected",
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
    ),
    ("pcie-corrected", "pcieport 0000:00:01.0: AER: Corrected error received: 0000:3b:00.0"),
    (
        "pcie-narrow",
        "mlx5_core: 126.028 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x8 link",
    ),
    ("nic-firmware", "mlx5_core 0000:3b:00.0: device's health compromised - reached miss count"),
    ("nvswitch-error", "[ERROR] [tid 1] detected NVSwitch non-fatal error 12028 on fid 0 port 61"),
    ("fabric-manager", "RuntimeError: CUDA error 802: system not yet initialized"),
    ("xid-79", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."),
    ("xid-45", "NVRM: Xid (PCI:0000:3b:00): 45, pid=1, Ch 00000008"),
    (
        "sxid-20034",
        "nvidia-nvswitch0: SXid (PCI:0000:a1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    ),
    ("link-flap", "mlx5_core 0000:3b:00.0 ens1f0np0: Link down"),
    (
        "version-mismatch",
        "h:1:2 [0] init.cc:9 NCCL WARN Mismatched NCCL version detected : rank 0 version 22304 rank 1 version 22203",
    ),
    (
        "duplicate-gpu",
        "h:1:2 [0] init.cc:9 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
    ),
    (
        "duplicate-gpu",
        "h:1:2 [0] init.cc:9 NCCL WARN Multiple Ranks are using the same GPU/Partition.",
    ),
    (
        "shm-full",
        "h:1:2 [0] shmutils.cc:9 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 9637888)",
    ),
    (
        "shm-full",
        "h:1:2 [0] misc/shmutils.cc:7 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 33030532 bytes",
    ),
    ("no-gpu", "h: Test CUDA failure common.cu:893 'no CUDA-capable device is detected'"),
    (
        "driver-old",
        "h:1:2 [0] enqueue.cc:9 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
    ),
    (
        "symbol-missing",
        "ImportError: libtorch.so: undefined symbol: ncclCommWindowRegister in nccl",
    ),
    (
        "memlock",
        "h:1:2 [0] ibvwrap.cc:9 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    ),
    ("ib-device-denied", "h:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Unable to open device mlx5_0"),
    ("no-interface", "h:1:2 [0] bootstrap.cc:9 NCCL WARN Bootstrap : no socket interface found"),
    (
        "rank-twice",
        "h:1:2 [0] bootstrap.cc:9 NCCL WARN Bootstrap Root : rank 3 of 8 ranks has already checked in",
    ),
    (
        "nvls-failed",
        "h:1:2 [0] transport/nvls.cc:9 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152",
    ),
    (
        "p2p-forbidden",
        "h:1:2 [0] paths.cc:9 NCCL WARN P2P is disabled between NVLINK connected GPUs 0 and 1",
    ),
    ("rccl-iommu", "h:1:2 [0] init.cc:9 NCCL WARN Missing \"iommu=pt\" from kernel command line"),
    (
        "rccl-fine-grain",
        "h:1:2 [0] init.cc:9 NCCL WARN Missing \"HSA_FORCE_FINE_GRAIN_PCIE=1\" from environment",
    ),
    (
        "numa-balancing",
        "h:1:2 [0] init.cc:9 NCCL WARN NUMA auto balancing enabled which can lead to variability",
    ),
    (
        "gid-wrong",
        "h:1:2 [0] ibvwrap.cc:9 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
    ),
    (
        "gid-wrong",
        "h:1:2 [0] ibvwrap.cc:9 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1",
    ),
    (
        "qp-timeout",
        "h:1:2 [0] ibvwrap.cc:9 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
    ),
    (
        "qp-failed",
        "h:1:2 [0] ibvwrap.cc:9 NCCL WARN Call to ibv_modify_qp failed with error Remote I/O error",
    ),
    (
        "connect-refused",
        "h:1:2 [0] socket.cc:9 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4> failed : Connection refused",
    ),
    (
        "no-route",
        "h:1:2 [0] socket.cc:9 NCCL WARN socketPollConnect: connect to 10.0.0.2<4> returned No route to host",
    ),
    (
        "connect-timeout",
        "h:1:2 [0] socket.cc:9 NCCL WARN connect to 10.0.0.2<4> returned Connection timed out",
    ),
    (
        "connect-retry",
        "h:1:2 [0] NCCL INFO Call to connect returned Connection timed out, retrying",
    ),
    (
        "proxy-follows",
        "h:1:2 [0] proxy.cc:9 NCCL WARN [Proxy Service 0] Failed to execute operation Connect from rank 0",
    ),
    (
        "connect-abort",
        "h:1:2 [0] socket.cc:9 NCCL WARN Connect to 10.0.0.2<4> failed : Software caused connection abort",
    ),
    (
        "message-truncated",
        "h:1:2 [0] bootstrap.cc:9 NCCL WARN Message truncated : received 1024 bytes instead of 256",
    ),
    (
        "plugin-broken",
        "libmlx5.so: version `IBVERBS_PRIVATE_34' not found (required by libnccl-net.so)",
    ),
    ("ib-async", "h:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"),
    (
        "ib-completion-12",
        "h:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status=12 opcode=1 len=0 vendor err 129 (Send)",
    ),
    (
        "ib-completion-13",
        "h:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 13, opcode 0, len 0, vendor err 135",
    ),
    (
        "ib-completion-10",
        "h:1:2 [0] p2p.cc:9 (f) NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=IBV_WC_REM_ACCESS_ERR(10) opcode=IBV_WC_SEND(0) vendor_err=136 hca mlx5_3",
    ),
    (
        "ib-completion-5",
        "h:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 249",
    ),
    (
        "speed-unknown",
        "h:1:2 [0] NCCL INFO NET/Socket : Could not get speed from /sys/class/net/ens3/speed. Defaulting to 10 Gbps.",
    ),
    (
        "topology-unreadable",
        "h:1:2 [0] graph/xml.cc:9 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:00/../../0000:00:1e.0",
    ),
    (
        "topology-file-missing",
        "h:1:2 [0] graph/xml.cc:9 NCCL WARN Could not open XML topology file /a.xml : No such file or directory",
    ),
    ("cuda-memory", "h:1:2 [0] include/alloc.h:9 NCCL WARN Cuda failure 2 'out of memory'"),
    (
        "cuda-illegal",
        "h:1:2 [0] enqueue.cc:9 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
    ),
    ("gpu-ipc", "h:1:2 [0] p2p.cc:256 NCCL WARN hipIpcGetMemHandle failed : invalid argument"),
    ("cuda-error", "h:1:2 [0] init.cc:9 NCCL WARN Cuda failure 'invalid device ordinal'"),
    (
        "watchdog",
        "[rank3]:[E1 ProcessGroupNCCL.cpp:1] [PG 0 Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    ),
    (
        "peer-closed",
        "h:1:2 [0] socket.cc:9 NCCL WARN socketProgress: Connection closed by remote peer n2<4>",
    ),
    ("unhandled-system", "RuntimeError: NCCL error: unhandled system error, NCCL version 2.19.3"),
    (
        "unhandled-cuda",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error",
    ),
    ("invalid-usage", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    ("internal-error", "ncclInternalError: Internal check failed."),
    ("test-failed", "h: Test NCCL failure common.cu:958 'something'"),
    ("rank-died", "srun: error: node7: tasks 2,5: Exited with exit code 2"),
    ("other-warnings", "h:1:2 [0] foo.cc:9 NCCL WARN Something nobody has seen 17 times"),
    ("error-chain", "h:1:2 [0] NCCL INFO transport/net.cc:1298 -> 6"),
    (
        "comm-aborted",
        "h:1:2 [0] NCCL INFO comm 0x55 rank 0 nranks 1 cudaDev 0 busId 17000 - Abort COMPLETE",
    ),
    (
        "start-slow",
        "h:1:2 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 8 total 152.20 (kernels 0.1, alloc 0.0)",
    ),
];

#[test]
fn every_recogniser_recognises() {
    for (id, line) in LINES {
        for text in [
            (*line).to_owned(),
            format!("noise\n[1,3]<stderr>:{line}\r\nnoise"),
            format!("(EngineCore pid=1) \x1b[31m{line}\x1b[0m"),
            format!("2026-01-01T00:00:00.000000Z {line}"),
        ] {
            let report = read(text.as_bytes());
            assert_eq!(troubles(&report).first(), Some(id), "{text}: {:?}", report.findings);
            let finding = report.findings.iter().find(|finding| finding.id == *id).unwrap();
            assert!(finding.evidence[0].starts_with("test.log:"), "{finding:?}");
            assert!(finding.fix.is_some() && finding.cost.is_some(), "{finding:?}");
            assert!(report.cause.is_some());
        }
    }
}

#[test]
fn every_rule_is_recognised_in_the_table_above() {
    let tried: BTreeSet<&str> = LINES.iter().map(|(id, _)| *id).collect();
    for (_, rule) in rules::all() {
        assert!(tried.contains(rule.id), "no line for {}", rule.id);
    }
}

#[test]
fn every_rule_is_in_the_documentation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/logs.md");
    let text = std::fs::read_to_string(path).unwrap();
    for (id, _) in LINES.iter().filter(|(id, _)| !id.contains("xid-") && !id.starts_with("ib-comp"))
    {
        assert!(text.contains(&format!("`{id}`")), "docs/logs.md lacks {id}");
    }
}

/// A sound job of two ranks on one host and of `hosts` hosts.
fn sound(ranks: u32, hosts: u32, via: &str) -> String {
    let mut log = String::from("NCCL version 2.27.7+cuda12.9\n");
    for rank in 0..ranks {
        let head = format!(
            "node{}:{}:{} [{}] NCCL INFO",
            rank % hosts,
            100 + rank,
            200 + rank,
            rank / hosts
        );
        let id = "commId 0xde843772bfa53d08";
        for line in [
            "Bootstrap: Using eth0:10.0.0.1<0>".to_owned(),
            "NET/Plugin: Could not find: libnccl-net.so.".to_owned(),
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>".to_owned(),
            "Using network IB".to_owned(),
            format!("ncclCommInitRank comm 0x5{rank} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1b000 {id} - Init START"),
            format!("comm 0x5{rank} rank {rank} nRanks {ranks} nNodes {hosts} localRanks 1 localRank 0 MNNVL 0"),
            format!("Channel 00/0 : {rank}[0] -> {}[0] {via}", (rank + 1) % ranks),
            "24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer".to_owned(),
            "Connected all rings, use ring PXN 0 GDR 1".to_owned(),
            format!("ncclCommInitRank comm 0x5{rank} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1b000 {id} - Init COMPLETE"),
            "AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 1024 datatype 7 op 0 root 0 comm 0x5 [nranks=8] stream 0x1".to_owned(),
            "AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}".to_owned(),
        ] {
            let _ = writeln!(log, "{head} {line}");
        }
    }
    log
}

#[test]
fn a_sound_log_yields_no_finding() {
    for (via, path) in [
        ("via P2P/CUMEM/read", "P2P/CUMEM"),
        ("via P2P/IPC", "P2P/IPC"),
        ("[send] via NET/IB/0(1)/GDRDMA/Shared", "NET/IB"),
        ("via SHM/direct/direct", "SHM"),
    ] {
        let report = read(sound(4, 2, via).as_bytes());
        assert_eq!(report.verdict(), Verdict::Pass, "{via}: {:?}", report.findings);
        assert_eq!(report.cause, None);
        assert!(fact(&report, "path")[0].starts_with(path), "{:?}", report.facts);
    }
}

#[test]
fn a_few_tries_to_connect_belong_to_a_sound_start() {
    let tries = "node0:1:2 [0] NCCL INFO connect to 10.0.0.2<4> returned Connection refused, retrying (1/34)\n";
    let report = read((tries.repeat(5) + &sound(4, 2, "via P2P/IPC")).as_bytes());
    assert_eq!(troubles(&report), [""; 0], "{:?}", report.findings);
}

#[test]
fn two_lines_written_into_one_are_both_read() {
    let report = read(
        b"a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPCb:3:4 [1] NCCL INFO Using network Socket\n\
          a:1:2 [0] NCCL INFO Connected all ringsb:3:4 [1] x.cc:9 NCCL WARN Connect to 10.0.0.2<4> failed : Connection refused\n",
    );
    assert_eq!(fact(&report, "network"), ["Socket (1)"]);
    assert_eq!(
        fact(&read(b"a:1:2 [0] NCCL INFO NCCL version 2.27.7+cuda13.0\n"), "versions"),
        ["NCCL 2.27.7+cuda13.0 (1)"]
    );
    assert!(fact(&report, "path")[0].starts_with("P2P/IPC: 1 connections"), "{:?}", report.facts);
    assert_eq!(troubles(&report)[0], "connect-refused");
}

#[test]
fn what_was_seen_is_told() {
    let report = read(sound(4, 2, "[send] via NET/IB/0(1)/GDRDMA/Shared").as_bytes());
    assert_eq!(fact(&report, "versions"), ["NCCL 2.27.7+cuda12.9 (1)"]);
    assert_eq!(fact(&report, "communicator"), ["4 of 4 ranks on 2 hosts began, 4 completed"]);
    assert_eq!(fact(&report, "network"), ["IB (4)"]);
    assert_eq!(fact(&report, "hosts"), ["2"]);
    let path = fact(&report, "path")[0];
    assert!(
        path.contains("4 of 4 sends") && path.contains("4 through another GPU's NIC"),
        "{path}"
    );
    assert_eq!(fact(&report, "algorithm"), ["AllReduce RING/SIMPLE, 4 times, up to 1048576 bytes"]);
}

/// What a change of one thing in a sound log must lead to.
#[test]
fn one_fault_in_a_sound_log_is_named() {
    let net = "[send] via NET/IB/0/GDRDMA";
    let cases: [(&str, String); 12] = [
        ("gdr-off", sound(4, 2, "[send] via NET/IB/0")),
        (
            "net-socket",
            sound(4, 2, "[send] via NET/Socket/0").replace("network IB", "network Socket"),
        ),
        ("wrong-interface", sound(4, 2, net).replace("Using eth0", "Using docker0")),
        ("versions-mixed", sound(4, 2, net) + "NCCL version 2.23.4+cuda12.6\n"),
        ("ranks-missing", without(&sound(4, 2, net), &["rank 3 "])),
        ("start-unfinished", without(&sound(4, 2, net), &["rank 3 ", "COMPLETE"])),
        (
            "settings-differ",
            sound(4, 2, net)
                + "a:1:2 [0] NCCL INFO NCCL_CROSS_NIC set by environment to 0\n\
               b:1:2 [0] NCCL INFO NCCL_CROSS_NIC set by environment to 2\n",
        ),
        (
            "nvlink-uneven",
            sound(2, 1, "via P2P/IPC")
                + "a:1:2 [0] NCCL INFO GPU/1000 :GPU/1000 (0/5000.0/LOC) GPU/2000 (1/240.0/NVL)\n\
               a:1:2 [0] NCCL INFO GPU/2000 :GPU/1000 (1/20.0/NVL) GPU/2000 (0/5000.0/LOC)\n",
        ),
        (
            "shm-not-p2p",
            sound(2, 1, "via SHM/direct/direct")
                + "a:1:2 [0] NCCL INFO GPU/1000 :GPU/2000 (1/240.0/NVL)\n",
        ),
        ("wrong-values", sound(2, 1, "via P2P/IPC") + "# Out of bounds values : 7 FAILED\n"),
        (
            "link-flap",
            sound(2, 1, "via P2P/IPC") + &"node1 networkd: ib6: lost carrier\n".repeat(4),
        ),
        (
            "nic-slow",
            "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n\
                      65536 5000 111.0 110.0 0.2\n--------\n"
                .to_owned(),
        ),
    ];
    for (id, log) in cases {
        let report = read(log.as_bytes());
        assert_eq!(troubles(&report), [id], "{:?}", report.findings);
    }
}

fn without(log: &str, words: &[&str]) -> String {
    let keep = |line: &&str| !words.iter().all(|word| line.contains(word));
    log.lines().filter(keep).fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn the_reason_of_the_fallback_is_named() {
    let socket = sound(4, 2, "[send] via NET/Socket/0").replace("network IB", "network Socket");
    let because = |line: &str| {
        let report = read(format!("{line}\n{socket}").as_bytes());
        (report.verdict(), report.cause.unwrap())
    };
    let (verdict, cause) = because("a:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.");
    assert!(
        verdict == Verdict::Fail && cause.contains("NCCL_IB_DISABLE keeps RDMA off"),
        "{cause}"
    );
    let (_, cause) = because("a:1:2 [0] NCCL INFO Failed to open libibverbs.so[.1]");
    assert!(cause.contains("libibverbs is not in this image"), "{cause}");
    let (verdict, cause) = because("a:1:2 [0] NCCL INFO NET/IB : No device found.");
    assert!(verdict == Verdict::Warn && cause.contains("No RDMA device was found"), "{cause}");
}

#[test]
fn the_root_comes_before_what_follows_from_it() {
    let closed =
        "h:1:2 [0] socket.cc:9 NCCL WARN Connection closed by remote peer n2<4>\n".repeat(1000);
    let log = format!(
        "{closed}NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n\
         h:1:2 [0] x.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4> with status=12 vendor err 129 hca mlx5_4\n"
    );
    let report = read(log.as_bytes());
    assert_eq!(troubles(&report)[..2], ["xid-79", "ib-completion-12"]);
    let cause = report.cause.unwrap();
    assert!(
        cause.contains("test.log:1001") && cause.contains("2 failures below may follow"),
        "{cause}"
    );
    let closed = report.findings.iter().find(|finding| finding.id == "peer-closed").unwrap();
    assert_eq!(closed.evidence.last().unwrap(), "and 997 more");
    let completion =
        report.findings.iter().find(|finding| finding.id == "ib-completion-12").unwrap();
    assert!(completion.evidence[1].contains("card mlx5_4; peer 10.0.0.9; vendor error 129"));
}

#[test]
fn the_rank_that_does_not_report_a_timeout_is_named() {
    let mut log = sound(8, 2, "via P2P/IPC");
    for rank in (0..8).filter(|rank| *rank != 5) {
        let _ = writeln!(
            log,
            "[rank{rank}]:[E1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0 Rank {rank}] Watchdog caught collective \
             operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"
        );
    }
    let report = read(log.as_bytes());
    assert_eq!(troubles(&report), ["watchdog"]);
    assert!(report.cause.unwrap().starts_with("7 ranks wait; not among them: 5."));
}

#[test]
fn settings_that_nccl_took_are_judged() {
    let log = sound(2, 1, "via P2P/IPC")
        + "a:1:2 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n\
           a:1:2 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 12.\n";
    let report = read(log.as_bytes());
    assert_eq!(troubles(&report), ["env-ib-timeout", "env-nvls-off"]);
    assert!(report.findings[0].evidence[0].starts_with("test.log:27: NCCL_IB_TIMEOUT=12"));
}

#[test]
fn half_the_bandwidth_asks_for_gpudirect() {
    let mut log = String::from("# Collective test starting: all_reduce_perf\n# Using devices\n");
    for rank in 0..16 {
        let host = ["a", "b"][rank / 8];
        let _ = writeln!(
            log,
            "#  Rank {rank:2} Group  0 Pid 1 on {host} device {} [0x0f] NVIDIA H100 80GB HBM3",
            rank % 8
        );
    }
    let row = |busbw: f64| {
        format!(
            "  8589934592 2147483648 float sum -1 34280 {0:.2} {1:.2} 0 34280 {0:.2} {1:.2} 0\n",
            busbw / 1.875,
            busbw
        )
    };
    let report = read((log.clone() + &row(231.0)).as_bytes());
    assert_eq!(troubles(&report), ["busbw-low"]);
    assert!(report.cause.unwrap().contains("GPUDirect RDMA is inactive"));
    assert_eq!(troubles(&read((log + &row(465.0)).as_bytes())), [""; 0]);
}

#[test]
fn curves_with_dips_and_jumps_are_named() {
    let table = |rows: &[(u64, f64, f64)]| {
        let header =
            "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
        rows.iter().fold(header.to_owned(), |text, (size, time, bw)| {
            text + &format!("{size} 1 float sum -1 {time} {bw} {bw} 0 {time} {bw} {bw} 0\n")
        })
    };
    let smooth: Vec<(u64, f64, f64)> = (3..30).map(|n| (1 << n, 30.0, f64::from(n))).collect();
    assert_eq!(troubles(&read(table(&smooth).as_bytes())), [""; 0]);
    let mut dip = smooth.clone();
    dip[20].2 = 2.0;
    assert_eq!(troubles(&read(table(&dip).as_bytes())), ["curve-dip"]);
    let mut jumps = smooth;
    for row in jumps.iter_mut().skip(2).step_by(2) {
        row.1 = 600.0;
    }
    assert_eq!(troubles(&read(table(&jumps).as_bytes())), ["latency-jitter"]);
}

#[test]
fn folders_and_forms_that_are_not_read_are_refused_with_the_way_out() {
    let mut reader = Reader::new().unwrap();
    let error = reader.read("a.xz", &mut &b"\xfd7zXZ\0\0\0"[..]).unwrap_err();
    assert!(error.to_string().contains("xzcat a.xz |"), "{error}");
    assert!(examine(&[PathBuf::from("/")]).is_err());
    assert!(
        format!("{:#}", examine(&[PathBuf::from("/no/such.log")]).unwrap_err())
            .contains("/no/such.log")
    );
}

#[test]
fn nothing_known_is_said_and_is_no_verdict() {
    let report = read(b"hello\nworld\n");
    assert_eq!(report.findings[0].id, "nothing-known");
    assert_eq!(report.exit_code(), 0);
    assert_eq!(read(b"").findings[0].id, "nothing-known");
}

#[test]
fn a_huge_line_is_cut_and_reported() {
    let mut log = b"x".repeat(3 << 20);
    log.extend_from_slice(b"\nh:1:2 [0] NCCL INFO Using network IB\n");
    let report = read(&log);
    assert_eq!(report.findings[0].id, "line-too-long");
    assert_eq!(fact(&report, "network"), ["IB (1)"]);
}

#[test]
fn many_ranks_and_hosts_are_counted_and_the_rest_is_said() {
    let mut log = String::new();
    for rank in 0..5000 {
        let _ = writeln!(
            log,
            "n{}:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} nranks 5001 cudaDev 0 busId 0 commId 0x9 - Init COMPLETE",
            rank / 8
        );
        let _ = writeln!(log, "n:1:2 [0] foo.cc:1 NCCL WARN kind {}", word(rank));
    }
    let report = read(log.as_bytes());
    let missing = report.findings.iter().find(|finding| finding.id == "ranks-missing").unwrap();
    assert!(missing.title.contains("1 of 5001 ranks: 5000"), "{missing:?}");
    assert!(report.findings.iter().any(|finding| finding.id == "left-out"));
}

/// A word without digits for each number.
fn word(number: u32) -> String {
    number.to_string().bytes().map(|byte| char::from(byte - b'0' + b'a')).collect()
}

/// Files of other projects, and the finding that must come first ("" for none).
const FIXTURES: &[(&str, &str)] = &[
    ("nccl_debug_log/timez-nccl.log", ""),
    ("nccl_debug_log/timez-nccl-fault.log", "nvlink-uneven"),
    ("nccl_debug_log/aws-fsdp.txt", ""),
    ("nccl_debug_log/aws-fsdp-2.txt", ""),
    ("nccl_debug_log/bagua-net.txt", ""),
    ("nccl_tests_output/aks-expected.txt", ""),
    ("nccl_tests_output/aws-batch.txt", ""),
    ("nccl_tests_output/deepops-roce.txt", "latency-jitter"),
    ("nccl_tests_output/deepops-slurm.txt", ""),
    ("nccl_tests_output/gcp-gke-a3-highgpu.txt", ""),
    ("nccl_tests_output/mlperf-oracle-24043023.log", "no-gpu"),
    ("nccl_tests_output/mlperf-oracle-24050102.log", ""),
    ("nccl_tests_output/mlperf-smc-h100-1.log", ""),
    ("nccl_tests_output/mlperf-smc-h100-2.log", ""),
    ("nccl_tests_output/oci-oke-slurm.txt", ""),
    ("nccl_tests_output/oci-troubleshooting.txt", ""),
    ("nccl_tests_output/superbench-nccl_alltoall.log", ""),
    ("kmsg/gpud-dmesg-with-xid-119.log", "xid-119"),
    ("kmsg/gpud-kmsg.2.peermem.log", "peermem-error"),
    ("kmsg/gpud-nccl-dmesg.decode.iso.log", "nccl-segfault"),
    ("syslog_linkflap/aznhc-0flap_syslog", ""),
    ("syslog_linkflap/aznhc-1dev_6flap_syslog", "link-flap"),
    ("perftest/aks-expected.txt", ""),
    ("perftest/oci-oke.txt", ""),
    ("perftest/superbench-ib_loopback_8M_size.log", ""),
    ("fabricmanager_log/gpud-fabricmanager.log", "nvswitch-error"),
    ("nccl_ras/ras-doc-00.txt", ""),
    ("nccl_ras/ras-doc-04.txt", "ras-mismatch"),
    ("nccl_ras/ras-doc-05.txt", "ras-incomplete"),
    ("nccl_ras/ras-doc-06.txt", "ras-dead"),
    ("nccl_ras/ras-doc-09.txt", "ras-dead"),
];

#[test]
fn real_logs_lead_to_what_was_found_in_them() {
    let Ok(folder) = std::env::var("RINGWAY_FIXTURES") else {
        let _closed = io::Write::write_all(
            &mut io::stderr(),
            b"SKIPPED real logs: RINGWAY_FIXTURES is not set\n",
        );
        return;
    };
    for (name, id) in FIXTURES {
        let (report, _) = examine(&[Path::new(&folder).join(name)]).unwrap();
        assert_eq!(
            troubles(&report).first().copied().unwrap_or(""),
            *id,
            "{name}: {:?}",
            report.findings
        );
    }
}

/// The rate of reading, by this process's own time;
/// `cargo test --release -p ringway-cli --bin ringway -- --ignored rate_of_reading`.
#[test]
#[ignore = "a measurement: only a release build says anything"]
fn rate_of_reading() {
    let started = sound(64, 8, "[send] via NET/IB/0/GDRDMA").repeat(400);
    let call = "n1:1:2 [0] NCCL INFO AllReduce: opCount 7 sendbuff 0x7f2a00000000 recvbuff 0x7f2a00000000 \
                count 2147483648 datatype 7 op 0 root 0 comm 0x55d5f5bca580 [nranks=8] stream 0x55d5f5ab57f0\n";
    let other = "2026-01-01 12:00:00 I [train.py:103] Batch 5 Loss: 11.61653, Speed: 4.88 samples/sec, lr: 0.0001\n";
    let logs = [
        ("starts", started),
        ("calls", call.repeat(200_000)),
        ("other lines", other.repeat(300_000)),
    ];
    read(b""); // builds the tables
    let mut slowest = f64::MAX;
    for (what, log) in logs {
        let own = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
        };
        let began = own();
        read(log.as_bytes());
        let rate = log.len() as f64 / (own() - began) / 1e6;
        let text = format!("{what}: {:.0} MB at {rate:.0} MB/s\n", log.len() as f64 / 1e6);
        let _closed = io::Write::write_all(&mut io::stderr(), text.as_bytes());
        slowest = slowest.min(rate);
    }
    assert!(slowest >= 200.0, "{slowest} MB/s");
}

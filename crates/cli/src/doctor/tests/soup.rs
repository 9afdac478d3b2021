//! Text made to confuse parsers: pieces of everything that is read, cut, mixed and damaged.

use std::sync::mpsc::channel;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;

/// Pieces of the outputs, files and settings that are read.
const PIECES: &[&str] = &[
    "GPU 00000000:1B:00.0",
    "GPU 00000000:1B:00.0\n    PCI\n        Replays Since Reset : 4",
    "    ECC Mode\n        Current                           : Enabled",
    "GPU 0: NVIDIA H100 (UUID: GPU-1)",
    "\t Link 0: 26.562 GB/s",
    "\t Link 3: Replay Errors: 0",
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity",
    "GPU0\t X \tNV18\tPIX\t0-3\t0",
    "Legend:\n\n  X    = Self",
    "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400",
    "Infiniband device 'mlx5_0' port 1 status:",
    "1b:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)",
    "\tLnkSta:\tSpeed 32GT/s (ok), Width x16 (ok)",
    "\tDevCtl:\tCorrErr+ NonFatalErr+\n\t\tRlxdOrd+ MaxPayload 256 bytes, MaxReadReq 512 bytes",
    "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+",
    "NIC statistics:\n     rx_prio3_pause_duration: 1000",
    "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t8192\nCurrent hardware settings:\nRX:\t\t1024",
    "DCBX mode: OS controlled\nPriority trust state: dscp",
    "dscp2prio mapping:\n\tprio:0 dscp:07,06,05,04,03,02,01,00,",
    "PFC configuration:\n\tpriority    0   1   2\n\tenabled     0   0   1",
    "PortXmitData:....................18446744073709551615",
    "Raw Physical BER                   : 15E-255",
    "adaptive_routing_forced_en | 0x00000001",
    "Domain State: UP\nNode #0   - 10.0.0.1 - READY - Version: 570",
    "[   99.0] NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:a1:00.0): 20034, Fatal, Link 30",
    "mlx5_core 0000:14:00.0 eth0: Link down",
    "252.056 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x8 link at 0000:12:01.0 (capable of 504.112 Gb/s",
    "Iface\tDestination\tGateway \tFlags\neth0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF",
    "Bonding Mode: IEEE 802.3ad\nTransmit Hash Policy: layer3+4 (1)\nSlave Interface: eth0",
    "Max locked memory         unlimited            unlimited            bytes",
    "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-7,16",
    "MemTotal:       2113929216 kB",
    "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor",
    "1 0 0:9 / / rw - overlay overlay rw,lowerdir=/var/lib/containerd/x",
    "0::/kubepods/x\n5:memory:/docker/1",
    "Reference ID    : 0A000001\nSystem time     : 0.000012345 seconds fast of NTP time",
    "NTP=no\nNTPSynchronized=yes",
    "export NCCL_IB_HCA='=mlx5_0:1,mlx5_1' NCCL_DEBUG=\"INFO\"",
    "  - name: NCCL_SOCKET_IFNAME\n    value: ^docker,lo",
    "NCCL_IB_TIMEOUT=0x16 # why\nRINGWAY_LEVEL=shape",
    "password=hunter2 token: abc https://user:pass@host/x",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "fe80:0000:0000:0000:a088:c2ff:fead:ea03 10.0.0.1 02:00:00:00:00:01",
    "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA/Shared",
    "#       size         count      type   redop    root     time   algbw   busbw #wrong",
    "     1048576        262144     float     sum      -1    100.0   10.49   19.66      0",
    "{\"time_unix_s\": 17, \"missing\": [{\"what\": \"commands/x.txt\", \"why\": \"y\"}]}",
    "18446744073709551616",
    "-9223372036854775808",
    "1e999",
    "0x",
    "GPU 000é000:1B:00.0",
    "é",
    "\u{1b}[31m",
    "\0",
    ":",
    "=",
    "'",
    "\"",
    "[",
    "(",
];

/// What stands between pieces.
const GAPS: &[&str] = &["", " ", "\n", "\n    ", "\t", ": ", "=", ",", "\r\n"];

/// Text of any kind: bytes, or pieces that are cut and damaged.
pub(crate) fn text() -> impl Strategy<Value = String> {
    let bytes = prop::collection::vec(any::<u8>(), 0..600)
        .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let piece = (select(PIECES), 0..80_usize, 0..80_usize, any::<char>(), 0..6_u8, select(GAPS));
    let piece = piece.prop_map(|(piece, from, count, letter, how, gap)| {
        let letters: Vec<char> = piece.chars().collect();
        let mut cut: String = match how {
            0 => letters.iter().skip(from).take(count).collect(),
            1 => letters.iter().take(count).collect(),
            _ => piece.to_owned(),
        };
        if how == 2 {
            let at = cut.char_indices().nth(from % letters.len().max(1)).map_or(0, |(at, _)| at);
            cut.insert(at, letter);
        }
        cut + gap
    });
    let soup = prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat());
    prop_oneof![bytes, soup.clone(), soup]
}

/// Many cases, and no files of them.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Gives every piece, repeated to 256 KiB in one line and in many, to `read`. It should take milliseconds; what has not
/// ended after a minute takes time that grows faster than the text.
pub(crate) fn long_texts_end(read: fn(&str)) {
    for piece in PIECES {
        for gap in ["", "\n"] {
            let one = format!("{piece}{gap}");
            let text = one.repeat((256 << 10) / one.len());
            let (done, ended) = channel();
            std::thread::spawn(move || {
                read(&text);
                done.send(()).expect("the test waits for it");
            });
            let waited = ended.recv_timeout(Duration::from_secs(60));
            assert!(waited.is_ok(), "{piece:?} many times: {waited:?}");
        }
    }
}

//! Trees made to hurt: no panic, no wait, no flood of memory.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ringway::topo::Root;

use super::tree::{Tree, gpu, nic, pci};
use super::{look, soup};
use crate::doctor::checks;
use crate::doctor::examine::examine;
use crate::doctor::host::{Earlier, Host};

/// A debug build on a busy machine must still be done by then.
const LIMIT: Duration = Duration::from_secs(10);

/// All files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Numbers that look random.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

#[test]
fn random_bytes_in_every_file_do_no_harm() {
    for seed in [1, 2, 3] {
        let tree = Tree::healthy();
        let mut noise = Noise(seed * 0x9e37_79b9);
        for file in files(tree.folder()) {
            let length = usize::try_from(noise.next() % 3000).unwrap();
            // Some random bytes, some random text, some numbers at the edge.
            let bytes = match noise.next() % 4 {
                0 => noise.bytes(length),
                1 => noise
                    .bytes(length)
                    .iter()
                    .map(|byte| b" :=/-[]{},.0123456789abcdefGPULink\n"[usize::from(byte % 35)])
                    .collect(),
                2 => b"18446744073709551615".to_vec(),
                _ => b"-9223372036854775808 0xffffffffffffffff".to_vec(),
            };
            fs::write(file, bytes).unwrap();
        }
        let begin = Instant::now();
        let found = look(&tree);
        assert!(begin.elapsed() < LIMIT, "seed {seed}: {:?}", begin.elapsed());
        assert!(found.report.json().unwrap().len() < 8 << 20);
    }
}

/// Files that hold text of the machine's own making.
const SPOILED: &[&str] = &[
    "/commands/dmesg.txt",
    "/commands/nvidia-smi-q.txt",
    "/commands/nvidia-smi-nvlink-s.txt",
    "/commands/nvidia-smi-nvlink-e.txt",
    "/commands/nvidia-smi-p2p.txt",
    "/commands/nvidia-smi-topo-m.txt",
    "/commands/nvidia-imex-ctl.txt",
    "/commands/rocm-smi-showtopo.txt",
    "/commands/fabricmanager.txt",
    "/commands/chronyc.txt",
    "/commands/timedatectl.txt",
    "/commands/ringway.txt",
    "/commands/environment.txt",
    "/commands/ethtool-S-eth3.txt",
    "/commands/ethtool-g-eth3.txt",
    "/commands/ethtool-k-eth3.txt",
    "/commands/ethtool-l-eth3.txt",
    "/commands/mlnx_qos-eth3.txt",
    "/commands/mlxlink-mlx5_3.txt",
    "/commands/mlxreg-roce-mlx5_3.txt",
    "/commands/lspci-vvv.txt",
    "/commands/ibstat.txt",
    "/commands/perfquery-mlx5_3-1.txt",
    "/manifest.json",
    "/etc/hosts",
    "/etc/nccl.conf",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/net/route",
    "/proc/net/bonding/bond0",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/self/cgroup",
    "/proc/driver/nvidia/version",
    "/sys/fs/cgroup/memory.stat",
    "/sys/fs/cgroup/cpu.stat",
    "/sys/fs/cgroup/devices/devices.list",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/node/node0/meminfo",
    "/sys/class/infiniband/mlx5_3/ports/1/rate",
    "/sys/class/infiniband/mlx5_3/ports/1/gids/1",
    "/sys/bus/pci/devices/0000:13:00.0/aer_dev_correctable",
    "/sys/bus/pci/devices/0000:13:00.0/config",
];

proptest! {
    #![proptest_config(soup::cases(24))]

    #[test]
    fn no_text_in_any_file_makes_a_check_panic(
        texts in prop::collection::vec(soup::text(), 6),
        from in 0..SPOILED.len(),
        step in 1..8_usize,
    ) {
        // One tree for all cases would keep what the last one spoiled.
        let mut tree = Tree::healthy();
        for (number, path) in SPOILED.iter().enumerate().skip(from % step).step_by(step) {
            tree.put(path, &texts[number % texts.len()]);
        }
        let found = look(&tree);
        prop_assert!(found.report.json().is_ok());
        let earlier = Earlier { totals: found.moment.totals.clone(), seconds: 10.0 };
        let host = Host::new(Root::at(tree.folder())).after(earlier);
        let _again = examine(&host, &checks::all());
    }
}

#[test]
fn links_in_circles_pipes_and_vast_files_do_no_harm() {
    let tree = Tree::healthy();
    let at = |path: &str| tree.folder().join(path.trim_start_matches('/'));
    let swap = |path: &str, make: &dyn Fn(&Path)| {
        let path = at(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        make(&path);
    };
    let circle = |path: &Path| symlink(path.file_name().unwrap(), path).unwrap();
    let pipe = |path: &Path| {
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            path,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
    };
    let vast = |path: &Path| File::create(path).unwrap().set_len(10 << 30).unwrap();
    let outside = |path: &Path| symlink("/etc/passwd", path).unwrap();
    swap("/proc/cmdline", &circle);
    swap("/sys/class/net/eth0", &circle);
    swap(&pci(&gpu(0), "driver"), &circle);
    swap("/proc/meminfo", &pipe);
    swap("/commands/dmesg.txt", &pipe);
    swap("/sys/devices/system/node/node0", &pipe);
    swap("/proc/cpuinfo", &vast);
    swap(&pci(&nic(0), "config"), &vast);
    swap("/commands/nvidia-smi-q.txt", &vast);
    swap("/proc/uptime", &outside);
    let deep = at("/sys/module").join("a/".repeat(100));
    fs::create_dir_all(deep).unwrap();
    let begin = Instant::now();
    let found = look(&tree);
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    let json = found.report.json().unwrap();
    assert!(!json.contains("root:x:0"), "a file outside the tree was read");
    let of = |id: &str| found.report.findings.iter().find(|finding| finding.id == id).unwrap();
    // What could not be read is not called well.
    for id in ["sys-swap", "sys-oom", "gpu-06", "pci-cmdline"] {
        assert_eq!(of(id).verdict, crate::doctor::finding::Verdict::Unknown, "{id}: {:?}", of(id));
    }
}

#[test]
fn a_page_of_a_hostile_machine_is_escaped() {
    let mut tree = Tree::healthy();
    tree.put("/proc/sys/kernel/hostname", "<script>alert(1)</script>");
    tree.append(
        "/commands/dmesg.txt",
        "NVRM: Xid (PCI:0000:13:00): 79, <img src=x onerror=alert(1)>\u{1b}[31m",
    );
    tree.link("/sys/class/infiniband/<script>", "/sys/class/infiniband/mlx5_0");
    let mut found = look(&tree);
    found.picture = Host::new(Root::at(tree.folder())).picture();
    let page = crate::doctor::html::page(std::slice::from_ref(&found), None);
    assert!(page.contains("<svg ") && page.contains("&lt;script&gt;</text>"), "{page}");
    assert!(page.contains("&lt;script&gt;") && page.contains("&lt;img"), "{page}");
    for bad in ["<script", "<img", "\u{1b}", "http://", "https://", "src="] {
        assert!(!page.replace("src=x", "").contains(bad), "{bad}");
    }
}

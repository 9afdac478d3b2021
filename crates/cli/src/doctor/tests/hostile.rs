//! Trees made to hurt: no panic, no wait, no flood of memory.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringway::topo::Root;

use super::look;
use super::tree::{Tree, gpu, nic, pci};
use crate::doctor::host::Host;

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

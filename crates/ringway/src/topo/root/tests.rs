//! Trees that are well, and trees that someone made to hurt.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// A folder of its own, gone when dropped.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringway-root-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(folder.join("sys")).unwrap();
        Self(folder)
    }

    fn root(&self) -> Root {
        Root::at(&self.0)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn small_files_are_read_and_missing_ones_are_no_error() {
    let tree = Tree::new();
    fs::write(tree.0.join("sys/speed"), "100000\n").unwrap();
    fs::write(tree.0.join("sys/node"), "-1\n").unwrap();
    fs::write(tree.0.join("sys/class"), "0x030200\n").unwrap();
    fs::write(tree.0.join("sys/odd"), b"a\xffb\n\n").unwrap();
    let root = tree.root();
    assert!(!root.is_live() && Root::live().is_live());
    assert_eq!(root.read("/sys/speed").unwrap().unwrap(), "100000");
    assert_eq!(root.read("sys/speed").unwrap().unwrap(), "100000");
    assert_eq!(root.read("/sys/odd").unwrap().unwrap(), "a\u{fffd}b");
    assert_eq!(root.number::<u64>("/sys/speed"), Ok(Some(100_000)));
    assert_eq!(root.number::<i32>("/sys/node"), Ok(Some(-1)));
    assert_eq!(root.number::<u32>("/sys/class"), Ok(Some(0x03_0200)));
    let error = root.number::<u32>("/sys/node").unwrap_err();
    assert_eq!(error.to_string(), "/sys/node holds \"-1\", not a number in range");
    for missing in ["/sys/none", "/none/at/all", "/sys/speed/below"] {
        assert_eq!(root.read(missing), Ok(None), "{missing}");
        assert_eq!(root.number::<u8>(missing), Ok(None), "{missing}");
        assert_eq!(root.list(missing), Ok(Vec::new()), "{missing}");
        assert_eq!(root.link(missing), Ok(None), "{missing}");
        assert!(!root.exists(missing), "{missing}");
    }
    assert_eq!(root.list("/sys").unwrap(), ["class", "node", "odd", "speed"]);
    assert_eq!(Root::at(tree.0.join("nowhere")).list("/"), Ok(Vec::new()));
    assert!(Root::live().exists("/proc/self/status"));
}

#[test]
fn what_is_no_file_is_named() {
    let tree = Tree::new();
    fs::write(tree.0.join("sys/file"), "x").unwrap();
    let root = tree.root();
    assert_eq!(root.read("/sys").unwrap_err().to_string(), "/sys is a folder, not a file");
    let error = root.list("/sys/file").unwrap_err();
    assert_eq!(error.to_string(), "/sys/file is a file, not a folder");
}

#[test]
fn a_pipe_is_refused_at_once() {
    let tree = Tree::new();
    let pipe = tree.0.join("sys/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let start = Instant::now();
    let error = tree.root().read("/sys/pipe").unwrap_err();
    assert_eq!(error.to_string(), "/sys/pipe is a pipe, not a file");
    assert!(matches!(Root::live().read("/dev/zero"), Err(RootError::NotAFile { .. })));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_huge_file_takes_no_more_than_the_limit() {
    let tree = Tree::new();
    let sparse = File::create(tree.0.join("sys/huge")).unwrap();
    sparse.set_len(10 << 30).unwrap();
    let start = Instant::now();
    let error = tree.root().read("/sys/huge").unwrap_err();
    assert_eq!(error, RootError::TooLong { path: "/sys/huge".into(), limit: FILE_BYTES });
    assert!(start.elapsed() < Duration::from_secs(1));
    fs::write(tree.0.join("sys/four"), "1234").unwrap();
    assert!(tree.root().read_at_most("/sys/four", 3).is_err());
    assert_eq!(tree.root().read_at_most("/sys/four", 4).unwrap().unwrap(), "1234");
}

#[test]
fn links_are_followed_inside_the_root_only() {
    let tree = Tree::new();
    fs::create_dir_all(tree.0.join("sys/devices/pci0000:00/0000:00:01.0/net/eth0")).unwrap();
    fs::create_dir_all(tree.0.join("sys/class/net")).unwrap();
    let below = "sys/devices/pci0000:00/0000:00:01.0";
    fs::write(tree.0.join(below).join("net/eth0/mtu"), "9000\n").unwrap();
    let net = tree.0.join("sys/class/net");
    symlink("../../devices/pci0000:00/0000:00:01.0/net/eth0", net.join("eth0")).unwrap();
    symlink("../..", tree.0.join(below).join("net/eth0/device")).unwrap();
    // An absolute link is one of the machine that was copied.
    symlink("/sys/class/net/eth0", tree.0.join("sys/again")).unwrap();
    symlink("/etc/passwd", tree.0.join("sys/passwd")).unwrap();
    symlink("../../../../../../../../etc/passwd", net.join("out")).unwrap();
    symlink("../../devices/not/copied/0000:41:00.0", net.join("dangling")).unwrap();
    let root = tree.root();
    assert_eq!(root.read("/sys/class/net/eth0/mtu").unwrap().unwrap(), "9000");
    assert_eq!(root.read("/sys/again/mtu").unwrap().unwrap(), "9000");
    assert_eq!(
        root.link("/sys/class/net/eth0/device").unwrap().unwrap(),
        "/sys/devices/pci0000:00/0000:00:01.0"
    );
    assert_eq!(root.read("/sys/passwd"), Ok(None));
    for outside in ["/sys/class/net/out", "/../etc/passwd"] {
        let error = root.read(outside).unwrap_err();
        assert!(matches!(error, RootError::Outside { .. }), "{error}");
        assert!(root.link(outside).is_err() && !root.exists(outside));
    }
    assert_eq!(
        root.link("/sys/class/net/dangling").unwrap().unwrap(),
        "/sys/devices/not/copied/0000:41:00.0"
    );
    assert!(!root.exists("/sys/class/net/dangling"));
    assert_eq!(root.link("/").unwrap().unwrap(), "/");
}

#[test]
fn circles_of_links_end() {
    let tree = Tree::new();
    symlink("b", tree.0.join("sys/a")).unwrap();
    symlink("a", tree.0.join("sys/b")).unwrap();
    symlink("self/self/self/self", tree.0.join("sys/self")).unwrap();
    fs::write(tree.0.join("sys/l0"), "end").unwrap();
    for number in 1..=50 {
        symlink(format!("l{}", number - 1), tree.0.join(format!("sys/l{number}"))).unwrap();
    }
    let root = tree.root();
    for path in ["/sys/a", "/sys/a/below", "/sys/self", "/sys/l41"] {
        assert!(matches!(root.read(path), Err(RootError::Loop { .. })), "{path}");
        assert!(matches!(root.link(path), Err(RootError::Loop { .. })), "{path}");
        assert!(!root.exists(path));
    }
    assert_eq!(root.read("/sys/l40").unwrap().unwrap(), "end");
}

#[test]
fn denied_is_not_missing() {
    let tree = Tree::new();
    let file = tree.0.join("sys/secret");
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    match tree.root().read("/sys/secret") {
        Err(RootError::Denied { path }) => assert_eq!(path, "/sys/secret"),
        // The superuser may read everything.
        Ok(Some(text)) => assert!(text == "x" && rustix::process::geteuid().is_root()),
        other => panic!("{other:?}"),
    }
    let error = refused(Path::new("/x"), &io::Error::from_raw_os_error(libc::EACCES));
    assert!(matches!(error, RootError::Denied { .. }));
    let error = refused(Path::new("/x"), &io::Error::from_raw_os_error(libc::EINVAL));
    assert!(matches!(error, RootError::Refused { errno: Some(libc::EINVAL), .. }));
}

#[test]
fn outputs_of_commands_come_with_the_tree() {
    let tree = Tree::new();
    fs::create_dir_all(tree.0.join("commands")).unwrap();
    fs::write(tree.0.join("commands/nvidia-smi-q.txt"), "GPU 0\n").unwrap();
    fs::write(tree.0.join("commands/dmesg"), "boot\n").unwrap();
    let root = tree.root();
    assert_eq!(root.command_output("nvidia-smi-q").unwrap().unwrap(), "GPU 0");
    assert_eq!(root.command_output("dmesg").unwrap().unwrap(), "boot");
    assert_eq!(root.command_output("lspci"), Ok(None));
    assert_eq!(Root::live().command_output("dmesg"), Ok(None));
    for bad in ["", "../etc/passwd", ".."] {
        assert!(root.command_output(bad).is_err(), "{bad}");
    }
}

#[test]
fn paths_no_file_can_have_are_refused() {
    let root = Tree::new().root();
    assert!(matches!(root.read("/sys/a\0b"), Err(RootError::BadPath { .. })));
    let long = "/x".repeat(1 << 20);
    assert!(matches!(root.read(long), Err(RootError::BadPath { .. })));
}

//! `ringway topo`: this machine, copied ones, files.

use ringway::testing::machine::{EIGHT_GPUS, MachineTree};

use crate::process::{Finished, Folder, finish, ringway};

/// The program without the variables that change what it shows.
fn topo(args: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = ringway(&[&["topo"], args].concat());
    for name in [
        "NCCL_TOPO_FILE",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_IB_HCA",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_IB_GDR_LEVEL",
        "NCCL_P2P_LEVEL",
        "NCCL_P2P_DISABLE",
        "NCCL_CROSS_NIC",
    ] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    finish(&mut command)
}

fn shown(args: &[&str], variables: &[(&str, &str)]) -> String {
    let done = topo(args, variables);
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{done:?}");
    done.stdout
}

fn refused(args: &[&str], expected: &str) {
    let done = topo(args, &[]);
    assert_eq!((done.status.code(), done.stdout.as_str()), (Some(2), ""), "{done:?}");
    assert!(done.stderr.contains(expected), "{expected}: {}", done.stderr);
}

#[test]
fn this_machine_is_shown_whatever_it_has() {
    let page = shown(&[], &[]);
    assert!(page.contains("NUMA") && page.contains("CPU"), "{page}");
    let json: serde_json::Value = serde_json::from_str(&shown(&["--json"], &[])).unwrap();
    assert!(json["machine"]["processor"]["count"].as_u64() > Some(0));
    assert!(json["machine"]["nets"].as_array().unwrap().iter().any(|net| net["name"] == "lo"));
    assert!(shown(&["--xml"], &[]).starts_with("<system version=\"1\">\n  <cpu numaid="));
}

#[test]
fn a_copied_machine_is_shown_with_matrix_affinities_and_rings() {
    let tree = MachineTree::eight_gpus().unwrap();
    let root = tree.folder().to_str().unwrap();
    let page = shown(&["--root", root, "--rings"], &[]);
    let title = "hgx-0 (Example Corp EX-8000): 2 NUMA nodes, 128 CPUs, 8 GPUs, 8 NIC ports\n";
    assert!(page.starts_with(title), "{page}");
    assert!(page.contains("\nGPU0  X     PIX   NODE"), "{page}");
    assert!(page.contains("NIC7  = mlx5_7"), "{page}");
    assert!(page.contains("GPU7  0000:b4:00.0  1     mlx5_7  PIX    48.0  7     yes"), "{page}");
    assert!(page.contains("GPUDirect for all: PIX is within P2C (default)"), "{page}");
    assert!(page.contains("\n  0: mlx5_0 > GPU0"), "{page}");
    assert!(!page.contains("warning:") && !page.contains("docker0"), "{page}");

    let page = shown(&["--root", root], &[("NCCL_NET_GDR_LEVEL", "0")]);
    assert!(page.contains("no GPUDirect for all: PHB is past LOC (NCCL_NET_GDR_LEVEL)"), "{page}");
    let page = shown(&["--root", root], &[("NCCL_IB_HCA", "=mlx5_0"), ("NCCL_P2P_LEVEL", "pix")]);
    assert!(page.contains("warning: mlx5_1 is left out by NCCL_IB_HCA"), "{page}");
    assert!(page.contains("warning: NCCL_P2P_LEVEL=pix is ignored"), "{page}");

    let json: serde_json::Value =
        serde_json::from_str(&shown(&["--root", root, "--json"], &[])).unwrap();
    assert_eq!(json["affinities"][3]["nic"], "mlx5_3");
    assert_eq!(json["matrix"]["rows"][0]["cells"][8], "PIX");
    assert_eq!(json["rings"].as_array().unwrap().len(), 8);

    // What is one already stays what it is.
    let page = shown(&["--root", root, "--gpu", "0000:13:00.0,10de:26b9"], &[]);
    assert!(page.contains("8 GPUs, 8 NIC ports"), "{page}");
    refused(&["--root", root, "--gpu", "1234:1111"], "--gpu 1234:1111: no PCI function");
    refused(&["--root", root, "--gpu", "15b3:1021"], "neither bridge nor NIC");
    refused(&["--root", root, "--gpu", "qemu"], "names no PCI function");
}

#[test]
fn a_snapshot_is_shown_as_the_machine_it_was_taken_of() {
    let tree = MachineTree::eight_gpus().unwrap();
    let folder = Folder::new("topo-snapshot");
    let at = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (packed, root) = (at("hgx-0.tar.zst"), tree.folder().to_str().unwrap());
    let done = finish(&mut ringway(&["snapshot", "--root", root, "-o", &packed]));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    for form in [&[][..], &["--xml"][..], &["--json"][..]] {
        let of = |root: &str| shown(&[&["--root", root][..], form].concat(), &[]);
        assert_eq!(of(&packed), of(root));
    }
    let left = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_string_lossy().starts_with("ringway-snapshot-")
    };
    let temporary = at("temporary");
    std::fs::create_dir(&temporary).unwrap();
    shown(&["--root", &packed], &[("TMPDIR", &temporary)]);
    assert!(!std::fs::read_dir(&temporary).unwrap().any(left), "an unpacked folder is left");
    std::fs::write(at("bad.tar.zst"), "no archive").unwrap();
    refused(&["--root", &at("bad.tar.zst")], "no snapshot: neither zstd, gzip nor tar");
}

#[test]
fn what_is_written_is_read_back_the_same() {
    let tree = MachineTree::eight_gpus().unwrap();
    let folder = Folder::new("topo");
    let at = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (dump, picture) = (at("dump.xml"), at("machine.svg"));
    let root = tree.folder().to_str().unwrap();
    let xml = shown(&["--root", root, "--xml"], &[("NCCL_TOPO_DUMP_FILE", &dump)]);
    assert_eq!(std::fs::read_to_string(&dump).unwrap(), xml);
    assert_eq!(shown(&["--file", &dump, "--xml"], &[]), xml);
    let printed = shown(&["--root", root, "--svg", &picture], &[]);
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(printed.is_empty() && drawn.starts_with("<svg ") && drawn.contains("mlx5_7"));
    // The file alone shows the same matrix as the machine.
    let matrix = |page: &str| -> String {
        page.lines().skip_while(|line| !line.starts_with("GPU0")).take(16).collect()
    };
    let whole = shown(&["--root", root], &[]);
    assert_eq!(matrix(&shown(&["--file", &dump], &[])), matrix(&whole));
    // And so does the text of nvidia-smi.
    let saved = at("saved.txt");
    std::fs::write(&saved, EIGHT_GPUS).unwrap();
    let page = shown(&["--file", &saved], &[]);
    assert_eq!(matrix(&page), matrix(&whole));
    assert!(page.contains("GPU2  0     PIX    mlx5_2, mlx5_3"), "{page}");
}

#[test]
fn a_file_named_for_nccl_decides_on_places() {
    let tree = MachineTree::eight_gpus().unwrap();
    let folder = Folder::new("topo-file");
    let path = folder.0.join("topo.xml");
    // Puts the last GPU next to the first NIC.
    std::fs::write(
        &path,
        "<system version=\"1\"><cpu numaid=\"0\" affinity=\"ff\" arch=\"x86_64\">\
         <pci busid=\"ffff:ff:01.0\" class=\"0x060400\"><pci busid=\"0000:b4:00.0\" \
         class=\"0x030200\"/><pci busid=\"0000:15:00.0\" class=\"0x020000\"/></pci></cpu></system>",
    )
    .unwrap();
    let root = tree.folder().to_str().unwrap();
    let page = shown(&["--root", root], &[("NCCL_TOPO_FILE", path.to_str().unwrap())]);
    assert!(page.contains(&format!("topology file: {}", path.display())), "{page}");
    let row = page.lines().find(|line| line.starts_with("GPU7  0000:b4:00.0")).unwrap();
    assert!(row.contains("mlx5_0") && row.contains("PIX"), "{row}");
}

#[test]
fn wrong_input_is_named_with_its_place() {
    let folder = Folder::new("topo-wrong");
    let file = |name: &str, text: &[u8]| {
        let path = folder.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    refused(&["--file", "/no/such/file.xml"], "/no/such/file.xml: no such file");
    refused(&["--root", "/no/such/folder"], "cannot read /no/such/folder");
    refused(&["--root", folder.0.to_str().unwrap()], "holds no copy of a machine");
    refused(&["--file", folder.0.to_str().unwrap()], "is a folder, not a file");
    refused(&["--file", &file("cut.xml", b"<system>\n <cpu")], "cut.xml: line 2, column");
    refused(&["--file", &file("text.txt", b"hello\n")], "no table found");
    refused(&["--file", &file("noise.xml", &[b'<', 0xff, 0xfe])], "not UTF-8");
    let deep = "<a>".repeat(1_000_000);
    refused(&["--file", &file("deep.xml", deep.as_bytes())], "more than 64 elements deep");
    let saved = file("saved.txt", EIGHT_GPUS.as_bytes());
    refused(&["--file", &saved, "--svg", "x.svg"], "a saved matrix has no PCI tree");
    let cut: String = EIGHT_GPUS.chars().take(400).collect();
    refused(&["--file", &file("cut.txt", cut.as_bytes())], "entries where the head names 16");
    refused(&["--xml", "--json"], "cannot be used with");
    refused(&["--root", "/", "--file", "x"], "cannot be used with");
}

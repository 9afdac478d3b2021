//! The parsers on outputs of real machines, where a folder of them is at hand.

use std::fs;
use std::path::PathBuf;

use ringway::topo::Root;

use super::tree::Tree;
use crate::doctor::checks;
use crate::doctor::examine::{Examined, examine};
use crate::doctor::finding::Verdict;
use crate::doctor::host::{Counters, Host, KernelLog, Qos, Smi, active_links, matrix};

/// A file of the fixtures; nothing, with a word, where there are none.
fn fixture(name: &str) -> Option<String> {
    let Some(folder) = std::env::var_os("RINGWAY_FIXTURES") else {
        println!("SKIPPED {name}: RINGWAY_FIXTURES is not set");
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    Some(
        String::from_utf8_lossy(
            &fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
        )
        .into_owned(),
    )
}

fn look_at(files: &[(&str, &str)]) -> Examined {
    let mut tree = Tree::empty();
    for (path, text) in files {
        tree.put(path, text);
    }
    examine(&Host::new(Root::at(tree.folder())), &checks::all())
}

fn verdict(found: &Examined, id: &str) -> Option<Verdict> {
    found.report.findings.iter().find(|finding| finding.id == id).map(|finding| finding.verdict)
}

#[test]
fn nvidia_smi_of_real_machines() {
    let Some(text) = fixture("nvidia_smi_q/gpud-nvidia-smi-query.535.129.03.out.0.valid.a10.txt")
    else {
        return;
    };
    let smi = Smi::parse(&text);
    assert_eq!(smi.gpus.len(), 1);
    let gpu = &smi.gpus[0];
    assert_eq!(gpu.address, "0000:07:00.0");
    assert_eq!(gpu.get("ECC Mode/Current"), Some("Enabled"));
    assert_eq!(gpu.get("PCI/GPU Link Info/Link Width/Current"), Some("16x"));
    assert_eq!(gpu.number("BAR1 Memory Usage/Total"), Some(32_768.0));
    assert_eq!(gpu.get("Fabric/State"), None);
    let found = look_at(&[("commands/nvidia-smi-q.txt", &text)]);
    // Rows wait to be remapped on this one.
    assert_eq!(verdict(&found, "gpu-03"), Some(Verdict::Warn));
    assert_eq!(verdict(&found, "pci-11"), Some(Verdict::Pass));
    let bad = fixture("nvidia_smi_q/aznhc-bad_nvsmi8_output.txt").unwrap();
    assert_eq!(Smi::parse(&bad).gpus.len(), 8);
    assert_eq!(
        verdict(&look_at(&[("commands/nvidia-smi-q.txt", &bad)]), "gpu-03"),
        Some(Verdict::Fail)
    );
    let none = fixture("nvidia_smi_nvlink/aznhc-bad_nvlink_status.txt").unwrap();
    assert_eq!(active_links(&none).len(), 1);
    let found = look_at(&[
        ("commands/nvidia-smi-nvlink-s.txt", &none),
        ("commands/nvidia-smi-q.txt", &text),
    ]);
    assert_eq!(verdict(&found, "nvl-01"), Some(Verdict::Fail));
}

#[test]
fn matrices_of_real_machines() {
    let Some(text) = fixture("nvidia_smi_topo/llmaction-a800.txt") else { return };
    let rows = matrix(&text);
    assert_eq!(rows.len(), 8);
    assert_eq!(rows[1].1[8], "PIX");
}

#[test]
fn kernel_logs_of_real_machines() {
    let Some(text) = fixture("kmsg/gpud-dmesg-with-xid-119.log") else { return };
    let log = KernelLog::parse(&text);
    assert!(log.xids("Xid").iter().any(|(number, _)| *number == 119));
    assert!(log.xids("SXid").is_empty());
    let smi = fixture("nvidia_smi_q/gpud-nvidia-smi-query.535.129.03.out.0.valid.a10.txt").unwrap();
    let found = look_at(&[("commands/dmesg.txt", &text), ("commands/nvidia-smi-q.txt", &smi)]);
    assert_eq!(verdict(&found, "gpu-01"), Some(Verdict::Fail));
    let flaps = fixture("syslog_linkflap/aznhc-1dev_6flap_syslog").unwrap();
    assert_eq!(KernelLog::parse(&flaps).flaps(), [("ib6".to_owned(), 6)]);
    let quiet = fixture("syslog_linkflap/aznhc-0flap_syslog").unwrap();
    assert!(KernelLog::parse(&quiet).flaps().is_empty());
    let peer = fixture("kmsg/gpud-kmsg.2.peermem.log").unwrap();
    assert_eq!(
        KernelLog::parse(&peer).with(&["nvidia-peermem", "ERROR detected invalid context"]).len(),
        7
    );
}

#[test]
fn rdma_tools_of_real_machines() {
    let Some(text) = fixture("ibstat/gpud-ibstat.47.0.h100.some.down.with.polling.1.txt") else {
        return;
    };
    let found = look_at(&[("commands/ibstat.txt", &text)]);
    assert_eq!(verdict(&found, "ibl-01"), Some(Verdict::Fail), "{:?}", found.report.findings);
    assert_eq!(verdict(&found, "ibl-06"), Some(Verdict::Pass));
    let text = fixture("ibstat/gpud-ibstat.47.0.a100.all.active.0.txt").unwrap();
    let found = look_at(&[("commands/ibstat.txt", &text)]);
    assert_eq!(verdict(&found, "ibl-01"), Some(Verdict::Pass), "{:?}", found.report.findings);
    assert_eq!(verdict(&found, "ibl-04"), Some(Verdict::Pass));
    let text = fixture("ibstatus/gpud-ibstatus.39.0.a100.all.active.0.txt").unwrap();
    let found = look_at(&[("commands/ibstat.txt", &text)]);
    assert_eq!(verdict(&found, "ibl-03"), Some(Verdict::Pass), "{:?}", found.report.findings);
    let text = fixture("perfquery/treydock-0x506b4b03005c2740.out").unwrap();
    let counters = Counters::parse(&text).0;
    assert_eq!((counters["port_xmit_discards"], counters["link_downed"]), (20_046, 1));
    let text = fixture("mlnx_qos/spiderpool-rdma-qos.txt").unwrap();
    let qos = Qos::parse(&text);
    assert_eq!((qos.trust.as_deref(), qos.pfc), (Some("dscp"), Some(vec![5])));
}

#[test]
fn sysfs_of_a_real_machine() {
    let Some(text) = fixture("sysfs_infiniband/gpud-h100.0-sys-class-infiniband.tsv") else {
        return;
    };
    let mut tree = Tree::empty();
    for line in text.lines() {
        if let Some((path, value)) = line.split_once('\t') {
            tree.put(&format!("/sys/class/infiniband/{path}"), value);
        }
    }
    let host = Host::new(Root::at(tree.folder()));
    let found = examine(&host, &checks::all());
    // One port has gone down more often than its counter can say; when is not known.
    assert_eq!(verdict(&found, "ctr-02"), Some(Verdict::Warn));
    assert!(host.hcas().len() >= 8);
}

#[test]
fn lspci_of_real_machines() {
    let Some(text) = fixture("lspci/stelline-puget-wrx90.txt") else { return };
    let mut tree = Tree::empty();
    tree.put("/commands/lspci-vvv.txt", &text);
    let host = Host::new(Root::at(tree.folder()));
    let gpus = host.gpus();
    assert_eq!(gpus.len(), 1, "{:?}", host.pci());
    let config = host.config(gpus[0].bus).unwrap();
    assert!(config.relaxed);
    assert_eq!((config.payload, config.read_request), (256, 512));
    let found = examine(&host, &checks::all());
    assert_eq!(verdict(&found, "pci-03"), Some(Verdict::Pass));
}

#[test]
fn fabric_manager_log_of_a_real_machine() {
    let Some(text) = fixture("fabricmanager_log/gpud-fabricmanager.log") else { return };
    let mut tree = Tree::healthy();
    let wanted = if text.contains("[ERROR]") { Verdict::Warn } else { Verdict::Pass };
    let found = tree.with(|tree| tree.put("/commands/fabricmanager.txt", &text), super::look);
    assert_eq!(verdict(&found, "nvl-03"), Some(wanted));
}

#[test]
fn links_of_amd_gpus_of_a_real_machine() {
    let Some(text) = fixture("rocm_smi_topo/ms-swift-mi308x.txt") else { return };
    let found = look_at(&[("commands/rocm-smi-showtopo.txt", &text)]);
    assert_eq!(verdict(&found, "amd-02"), Some(Verdict::Pass));
    let worn = text.replacen("XGMI", "PCIE", 1);
    let found = look_at(&[("commands/rocm-smi-showtopo.txt", &worn)]);
    assert_eq!(verdict(&found, "amd-02"), Some(Verdict::Fail));
}

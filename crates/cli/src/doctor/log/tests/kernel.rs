//! What the kernel says of GPUs and switches, and what follows from it.

use super::*;

/// What one line leads to.
fn judged(line: &str) -> (String, Verdict) {
    let report = read(format!("{line}\n").as_bytes());
    assert_eq!(report.findings.len(), 1, "{line}: {:?}", report.findings);
    (report.findings[0].id.clone(), report.findings[0].verdict)
}

#[test]
fn errors_of_switches_are_none_of_gpus_and_fatal_only_where_the_driver_says() {
    let head = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20009";
    let event = format!(
        "{head}, Non-fatal, Link 46 RX Short Error Rate\n\
         {head}, Severity 0 Engine instance 46 Sub-engine instance 00\n\
         {head}, Data {{0x00140004, 0x00100000}}"
    );
    assert_eq!(judged(&event), ("sxid-20009".to_owned(), Verdict::Warn));
    let report = read(event.as_bytes());
    assert_eq!(report.findings[0].evidence.len(), 1, "three lines are one event");
    assert!(report.findings[0].title.contains("not fatal"));
    let fatal = event.replace("Non-fatal", "Fatal");
    assert_eq!(judged(&fatal), ("sxid-20009".to_owned(), Verdict::Fail));
}

#[test]
fn xids_of_programs_and_contained_ones_do_not_drain_a_host() {
    let line = |rest: &str| judged(&format!("NVRM: Xid (PCI:0000:3b:00): {rest}"));
    for number in [13, 31, 94, 145, 149, 43, 45, 63, 92] {
        let (id, verdict) = line(&format!("{number}, pid=1, name=python"));
        assert_eq!((id, verdict), (format!("xid-{number}"), Verdict::Warn));
    }
    for number in [48, 64, 74, 79, 95, 119, 120, 140] {
        assert_eq!(line(&format!("{number}, pid=1")).1, Verdict::Fail, "{number}");
    }
    assert_eq!(line("147, TLW_TX Nonfatal XC0 i0 Link 02").1, Verdict::Warn);
    assert_eq!(line("145, RLW_REMAP Nonfatal XC0 i0 Link 02").1, Verdict::Warn);
    assert_eq!(line("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x0)").1, Verdict::Fail);
}

#[test]
fn a_crash_in_nccl_is_not_answered_with_an_unlimited_stack() {
    let line = "kernel: pt_main[9]: segfault at 7f ip 00 sp 00 error 4 in libnccl.so.2[7f+d3]\n";
    let fix = read(line.as_bytes()).findings[0].fix.clone().unwrap();
    assert!(fix.contains("8192") && !fix.contains("ulimit -s unlimited"), "{fix}");
}

#[test]
fn a_port_of_50_gbits_is_not_taken_for_one_of_56() {
    let table = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n\
                 65536 5000 49.0 48.5 0.2\n--------\n";
    assert_eq!(troubles(&read(table.as_bytes())), [""; 0]);
}

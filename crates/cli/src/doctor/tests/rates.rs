//! Two looks at one machine: what grew between them is judged, what is old is not.

use ringway::topo::Root;

use super::tree::{Tree, gpu, nic, pci, port};
use super::{look, troubles};
use crate::doctor::checks;
use crate::doctor::examine::{Examined, examine};
use crate::doctor::finding::Verdict::{self, Fail, Warn};
use crate::doctor::host::{Earlier, Host};

/// Words of four bytes that a rail sends in the ten seconds between the looks: 40 GB/s.
const WORDS: u64 = 100_000_000_000;

/// What a second look finds, ten seconds after a first.
fn again(tree: &Tree, first: &Examined) -> Examined {
    let earlier = Earlier { totals: first.moment.totals.clone(), seconds: 10.0 };
    examine(&Host::new(Root::at(tree.folder())).after(earlier), &checks::all())
}

fn sends(tree: &mut Tree, index: usize, words: u64) {
    tree.put(&port(index, "counters/port_xmit_data"), 230_442_669_431_839 + words);
}

/// Counters that are wrong on the first look, all of long ago.
fn scars(tree: &mut Tree) {
    for (name, count) in [
        ("counters/symbol_error", 1000),
        ("counters/link_downed", 4),
        ("counters/port_rcv_errors", 1000),
        ("counters/port_xmit_discards", 5000),
        ("hw_counters/local_ack_timeout_err", 7),
        ("hw_counters/packet_seq_err", 3_000_000),
        ("hw_counters/rnr_nak_retry_err", 7),
        ("hw_counters/rp_cnp_ignored", 7),
    ] {
        tree.put(&port(3, name), count);
    }
    tree.put(&pci(&nic(2), "aer_dev_correctable"), "RxErr 7\nTOTAL_ERR_COR 7");
    let errors = "/commands/nvidia-smi-nvlink-e.txt";
    tree.replace(errors, "Link 3: CRC Errors: 0", "Link 3: CRC Errors: 5");
    let counters = "/commands/ethtool-S-eth3.txt";
    tree.replace(
        counters,
        "rx_prio3_pause_duration: 1000",
        "rx_prio3_pause_duration: 900000000000",
    );
    tree.replace(counters, "rx_pause_ctrl_phy: 10", "rx_pause_ctrl_phy: 4000");
    tree.replace(counters, "rx_discards_phy: 0", "rx_discards_phy: 5000000");
}

#[test]
fn what_is_old_is_no_trouble_when_it_does_not_grow() {
    let mut tree = Tree::healthy();
    scars(&mut tree);
    let first = look(&tree);
    let old = ["ctr-01", "ctr-02", "ctr-03", "ctr-04", "ctr-06", "ctr-07", "ctr-08", "ctr-09"];
    for id in old.iter().chain(&["ctr-10", "ctr-11", "nvl-02", "pci-09"]) {
        assert!(troubles(&first).contains_key(id), "{id}");
        let evidence = &troubles(&first)[id].evidence[0];
        assert!(evidence.contains("since boot"), "{id}: {evidence}");
    }
    let second = again(&tree, &first);
    assert!(troubles(&second).is_empty(), "{:#?}", troubles(&second));
}

/// A check, how bad it is, and what happens between the looks.
type Growth = (&'static str, Verdict, fn(&mut Tree));

const GROWTH: &[Growth] = &[
    ("ctr-01", Fail, |t| t.put(&port(3, "counters/symbol_error"), 1011)),
    ("ctr-01", Warn, |t| t.put(&port(3, "counters/symbol_error"), 1001)),
    ("ctr-02", Warn, |t| t.put(&port(3, "counters/link_downed"), 5)),
    ("ctr-02", Fail, |t| t.put(&port(3, "counters/link_downed"), 6)),
    ("ctr-04", Warn, |t| t.put(&port(3, "counters/port_xmit_discards"), 5001)),
    ("ctr-05", Fail, |t| {
        sends(t, 8, WORDS);
        t.put(&port(8, "counters/port_xmit_wait"), WORDS);
    }),
    ("ctr-06", Fail, |t| t.put(&port(3, "hw_counters/local_ack_timeout_err"), 8)),
    ("ctr-07", Fail, |t| t.put(&port(3, "hw_counters/rnr_nak_retry_err"), 8)),
    ("ctr-08", Fail, |t| {
        let counters = "/commands/ethtool-S-eth3.txt";
        t.replace(counters, "_duration: 900000000000", "_duration: 900002000000");
    }),
    ("ctr-08", Warn, |t| {
        let counters = "/commands/ethtool-S-eth3.txt";
        t.replace(counters, "_duration: 900000000000", "_duration: 900000500000");
    }),
    ("ctr-09", Fail, |t| {
        t.replace("/commands/ethtool-S-eth3.txt", "ctrl_phy: 4000", "ctrl_phy: 4001");
    }),
    ("ctr-12", Fail, |t| {
        for index in 0..8 {
            sends(t, index, if index == 5 { 2 * WORDS } else { WORDS });
        }
    }),
    ("ctr-12", Warn, |t| {
        for index in 0..8 {
            sends(t, index, if index == 5 { WORDS / 4 } else { WORDS });
        }
    }),
    ("nvl-02", Fail, |t| {
        let errors = "/commands/nvidia-smi-nvlink-e.txt";
        t.replace(errors, "Link 3: CRC Errors: 5", "Link 3: CRC Errors: 6");
    }),
    ("pci-09", Warn, |t| {
        t.put(&pci(&nic(2), "aer_dev_correctable"), "RxErr 8\nTOTAL_ERR_COR 8");
    }),
    ("pci-09", Fail, |t| t.put(&pci(&gpu(2), "aer_dev_fatal"), "DLP 1\nTOTAL_ERR_FATAL 1")),
    ("gpu-replay", Warn, |t| {
        let line = |count: u32| format!("{:8}{:<34}: {count}", "", "Replays Since Reset");
        t.replace("/commands/nvidia-smi-q.txt", &line(0), &line(20));
    }),
];

#[test]
fn what_grows_is_seen_by_its_check_and_by_no_other() {
    let mut tree = Tree::healthy();
    scars(&mut tree);
    let first = look(&tree);
    let mut wrong = Vec::new();
    for (id, verdict, grow) in GROWTH {
        let found = tree.with(grow, |tree| again(tree, &first));
        let bad = troubles(&found);
        let seen: Vec<(&str, Verdict)> = bad.iter().map(|(id, one)| (*id, one.verdict)).collect();
        if seen != [(*id, *verdict)] {
            wrong.push(format!("{id} {verdict:?}: {bad:#?}"));
        }
    }
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

#[test]
fn rails_that_carry_alike_are_well_and_idle_ones_say_nothing() {
    let mut tree = Tree::healthy();
    let first = look(&tree);
    let of = |found: &Examined| {
        let mut all = found.report.findings.iter();
        all.find(|finding| finding.id == "ctr-12").map(|finding| finding.verdict)
    };
    assert_eq!(of(&first), None);
    assert_eq!(of(&again(&tree, &first)), None);
    for index in 0..8 {
        sends(&mut tree, index, WORDS);
    }
    assert_eq!(of(&again(&tree, &first)), Some(Verdict::Pass));
}

#[test]
fn two_looks_at_one_machine_are_told_from_looks_at_two() {
    let mut tree = Tree::healthy();
    let mut at = |time: u64, uptime: u64, guid: &str| {
        tree.put("/manifest.json", format!("{{\"time_unix_s\": {time}}}"));
        tree.put("/proc/uptime", format!("{uptime}.00 1.00"));
        tree.put("/sys/class/infiniband/mlx5_0/node_guid", guid);
        look(&tree).moment
    };
    let first = at(1_000_000, 5000, "1:2:3:4");
    let later = at(1_000_060, 5060, "1:2:3:4");
    assert_eq!(later.since(&first).map(|earlier| earlier.seconds), Some(60.0));
    assert!(first.since(&later).is_none() && first.since(&first).is_none());
    // Started again in between, and another machine of that name.
    assert!(at(1_000_060, 10, "1:2:3:4").since(&first).is_none());
    assert!(at(1_000_060, 5060, "1:2:3:5").since(&first).is_none());
}

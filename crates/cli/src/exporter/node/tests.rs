//! Trees in, samples out.

use super::super::metric::ALL;
use super::*;
use crate::doctor::tests::tree::{Tree, gpu, nic, pci, port};

fn read(tree: &Tree) -> (Samples, Vec<String>) {
    let root = Root::at(tree.folder());
    let inventory = Inventory::read(&root);
    let reading = Reading::new(&root);
    let samples = samples(&reading, &inventory);
    (samples, reading.troubles().into_iter().map(|(_, why)| why).collect())
}

#[test]
fn ports_links_and_pairs_of_a_machine_with_eight_gpus() {
    let mut tree = Tree::healthy();
    tree.put(&port(0, "counters/port_rcv_data"), u64::MAX);
    tree.put(&port(0, "counters/link_downed"), 3);
    tree.put(&port(0, "counters/made_up"), 4);
    tree.put(&port(0, "hw_counters/np_cnp_sent"), 5);
    tree.put(&port(0, "hw_counters/active_qps"), 6);
    tree.put(&port(0, "hw_counters/lifespan"), 12);
    tree.put(&port(1, "state"), "1: DOWN");
    tree.put(&pci(&nic(2), "current_link_width"), 8);
    let aer = "RxErr 1\nBadTLP 2\nTOTAL_ERR_COR 3";
    tree.put(&pci(&nic(2), "aer_dev_correctable"), aer);
    let (samples, troubles) = read(&tree);
    assert_eq!(troubles, [""; 0]);
    let get = |metric, labels: &[&str]| samples.get(metric, labels);
    // Four bytes each: more than 64 bits hold.
    let bytes = (u128::from(u64::MAX) * 4).to_string();
    assert_eq!(get(&metric::PORT_RECEIVED, &["mlx5_0", "1"]), Some(bytes.as_str()));
    assert_eq!(get(&metric::PORT_ERRORS, &["mlx5_0", "1", "link_downed"]), Some("3"));
    assert_eq!(get(&metric::PORT_COUNTERS, &["mlx5_0", "1", "made_up"]), Some("4"));
    assert_eq!(get(&metric::PORT_HARDWARE, &["mlx5_0", "1", "np_cnp_sent"]), Some("5"));
    assert_eq!(get(&metric::PORT_HARDWARE_NOW, &["mlx5_0", "1", "active_qps"]), Some("6"));
    assert_eq!(get(&metric::PORT_HARDWARE, &["mlx5_0", "1", "lifespan"]), None);
    assert_eq!(get(&metric::PORT_UP, &["mlx5_0", "1"]), Some("1"));
    assert_eq!(get(&metric::PORT_UP, &["mlx5_1", "1"]), Some("0"));
    assert_eq!(get(&metric::PORT_STATE, &["mlx5_1", "1"]), Some("1"));
    assert!(samples.count(&metric::PORT_INFO) >= 8);
    assert_eq!(get(&metric::PCI_WIDTH, &[&nic(2)]), Some("8"));
    assert_eq!(get(&metric::PCI_WIDTH_MOST, &[&nic(2)]), Some("16"));
    assert_eq!(get(&metric::PCI_ERRORS, &[&nic(2), "correctable"]), Some("3"));
    assert_eq!(samples.count(&metric::GPU_INFO), 8);
    assert_eq!(samples.count(&metric::GPU_PAIR), 8);
    let mut page = ringway::exposition::Page::default();
    samples.write(&mut page);
    let text = page.into_text();
    let told = ringway::exposition::families(&text).expect("what is written can be read");
    assert!(told.len() > 20 && told.len() <= ALL.len(), "{}", told.len());
    let (gpu, nic) = (gpu(3), nic(3));
    let pair =
        format!("gpu=\"3\",gpu_pci=\"{gpu}\",device=\"mlx5_3\",port=\"1\",nic_pci=\"{nic}\"");
    assert!(text.contains(&pair), "{text}");
    assert!(text.contains("device=\"mlx5_3\",port=\"1\",netdev=\""), "{text}");
}

#[test]
fn what_the_kernel_does_not_have_is_absent_and_what_cannot_be_read_is_said() {
    let mut tree = Tree::healthy();
    tree.put(&port(0, "counters/symbol_error"), "N/A (no PMA)");
    tree.put(&port(1, "counters/symbol_error"), "12monkeys");
    tree.put(&port(2, "counters/symbol_error"), "");
    tree.put(&port(3, "counters/deep/folder"), 1);
    let (samples, troubles) = read(&tree);
    for device in ["mlx5_0", "mlx5_1", "mlx5_2"] {
        assert_eq!(samples.get(&metric::PORT_ERRORS, &[device, "1", "symbol_error"]), None);
    }
    assert!(samples.get(&metric::PORT_UP, &["mlx5_1", "1"]).is_some());
    assert_eq!(troubles.len(), 2, "{troubles:?}");
    assert!(troubles.iter().any(|why| why.contains("12monkeys")), "{troubles:?}");
    assert!(troubles.iter().any(|why| why.contains("deep is a folder")), "{troubles:?}");
}

#[test]
fn an_empty_machine_has_little_to_tell_and_nothing_is_wrong() {
    let (samples, troubles) = read(&Tree::empty());
    assert_eq!(troubles, [""; 0]);
    assert_eq!(samples.count(&metric::NODE_INFO), 1);
    assert_eq!(samples.count(&metric::PORT_INFO), 0);
}

#[test]
fn devices_that_come_are_seen() {
    let mut tree = Tree::healthy();
    let root = Root::at(tree.folder());
    let inventory = Inventory::read(&root);
    assert!(inventory.is_of(&root));
    tree.put("/sys/class/infiniband/mlx5_99/ports/1/state", "4: ACTIVE");
    assert!(!inventory.is_of(&root));
}

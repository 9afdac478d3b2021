//! Machines out of topologies that are written here.

use ringway_plan::topology::xml;

use super::*;

fn machine(text: &str) -> Result<Machine, SimError> {
    let document = xml::read(text.as_bytes()).expect("a document");
    Machine::from_topology(&Topology::from_document(&document).expect("a topology"))
}

const PCI: &str = r#"link_speed="32.0 GT/s PCIe" link_width="16""#;

#[test]
fn nvlinks_are_added_up_and_pci_is_that_of_the_way_to_the_adapter() {
    let gpu = |number: u32| {
        format!(
            r#"<pci busid="0000:1{number}:00.0" class="0x030200" {PCI}>
                 <gpu dev="{number}" sm="90" rank="{number}" gdr="1">
                   <nvlink target="0000:90:00.0" count="18" tclass="0x068000"/>
                 </gpu>
               </pci>
               <pci busid="0000:2{number}:00.0" class="0x020700" {PCI}>
                 <nic><net name="mlx5_{number}" dev="{number}" speed="400000" port="1" gdr="1"/></nic>
               </pci>"#
        )
    };
    let text = format!(
        r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
             {}{}</cpu></system>"#,
        gpu(0),
        gpu(1)
    );
    let machine = machine(&text).expect("a machine");
    assert_eq!(machine.gpus, 2);
    // 18 links as NCCL counts them for this generation.
    assert!((300.0..500.0).contains(&machine.inside_gbytes), "{machine:?}");
    assert!((20.0..60.0).contains(&machine.bus_gbytes), "{machine:?}");
}

#[test]
fn a_machine_without_gpus_is_an_error() {
    let text = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel"
        familyid="6" modelid="143"></cpu></system>"#;
    assert!(machine(text).unwrap_err().to_string().contains("has no GPU"));
}

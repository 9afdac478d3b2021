//! Where RDMA devices are: the machine with two sockets, on each a PCI switch with a card that stands for a GPU
//! and both ends of a rail.

use ringway::plan::topology::level::Levels;
use ringway::plan::topology::nearest::affinities;
use ringway::plan::topology::path::{PathClass, Paths};
use ringway::topo::{DocumentOptions, Machine, Root};

use crate::machine::has_sockets;

/// QEMU's display card, which no maker of GPUs makes.
const CARD: &str = "1234:1111";

#[test]
#[ignore = "needs the RDMA machine with two sockets: .ci/rdma"]
fn each_gpu_uses_the_device_behind_its_own_switch() {
    if !has_sockets() {
        return;
    }
    let mut machine = Machine::discover(&Root::live());
    assert!(machine.gpus.is_empty(), "{:?}", machine.gpus);
    assert_eq!(machine.count_as_gpus(&CARD.parse().unwrap()), 2);
    let topology = machine.topology(&DocumentOptions::default()).unwrap();
    assert_eq!((topology.cpus().len(), topology.nets().len()), (2, 4));
    let levels = Levels::default();
    let chosen = affinities(&topology, &Paths::as_used(&topology, &levels), &levels);
    let bus = |name: &str| machine.rdma.iter().find(|device| device.name == name).unwrap().bus;
    for (rail, one) in chosen.iter().enumerate() {
        assert_eq!((one.class, one.numa), (PathClass::Pix, i64::try_from(rail).ok()), "{one:?}");
        let name = one.net.map(|net| topology.name(net)).unwrap();
        let ends = [format!("rxea{rail}"), format!("rxeb{rail}")];
        assert!(ends.contains(&name), "GPU {rail} uses {name}");
        assert_eq!(topology.bus_of(one.net.unwrap()), bus(&name));
    }
    assert_eq!(chosen.len(), 2);
}

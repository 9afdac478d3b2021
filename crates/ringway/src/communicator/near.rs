//! How far RDMA devices are from a GPU, and whether they may reach its memory from there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::plan::topology::bus::BusId;
use crate::plan::topology::level::Levels;
use crate::plan::topology::path::{PathClass, Paths};
use crate::topo::{DocumentOptions, Machine, Root};

/// What lies between a GPU and each RDMA device of the machine; nothing of those whose place is not known.
pub(super) type Near = HashMap<String, PathClass>;

/// The devices of this machine, seen from the GPU at a place on the PCI bus.
pub(super) fn of(bus: &str) -> Arc<Near> {
    /// Devices stay where they are: each GPU's are looked for once.
    static KNOWN: Mutex<Option<HashMap<String, Arc<Near>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    let look = || Arc::new(seen_from(bus, &Machine::from_files(&Root::live())));
    Arc::clone(known.entry(bus.to_owned()).or_insert_with(look))
}

fn seen_from(bus: &str, machine: &Machine) -> Near {
    let topology = machine.topology(&DocumentOptions::default());
    let (Ok(topology), Ok(bus)) = (topology, bus.parse::<BusId>()) else { return Near::new() };
    let gpu = topology.gpus().into_iter().find(|gpu| topology.bus_of(*gpu) == Some(bus));
    let Some(gpu) = gpu else { return Near::new() };
    let paths = Paths::physical(&topology);
    let mut near = Near::new();
    for index in topology.nets() {
        let class = paths.get(gpu, index).class;
        if let Some(net) = topology.net(index)
            && class <= PathClass::Sys
        {
            near.insert(net.name.clone(), class);
        }
    }
    near
}

/// Whether the nearest of some devices is near enough to the GPU. Where none has a known place it is.
///
/// # Errors
/// Why not, with what would let it.
pub(super) fn judge(near: &Near, devices: &[&str], level: Option<PathClass>) -> Result<(), String> {
    if level == Some(PathClass::Loc) {
        return Err("NCCL_NET_GDR_LEVEL=LOC".to_owned());
    }
    let known = devices.iter().filter_map(|device| Some((*near.get(*device)?, *device)));
    let Some((class, device)) = known.min() else { return Ok(()) };
    let (most, source) = Levels { gdr: level, ..Levels::default() }.gdr_level();
    if class <= most {
        return Ok(());
    }
    Err(format!(
        "{device}, its adapter that is nearest to the GPU, is {class} away, past {most} ({source}); set \
         NCCL_NET_GDR_LEVEL={class} to use it all the same"
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::machine::MachineTree;

    #[test]
    fn devices_are_as_far_as_what_lies_between() {
        let tree = MachineTree::eight_gpus().unwrap();
        let machine = Machine::from_files(&Root::at(tree.folder()));
        let gpu = machine.gpus.first().unwrap().bus.to_string();
        let near = seen_from(&gpu, &machine);
        assert_eq!(near.len(), 8, "{near:?}");
        let class = |device: &str| near[device];
        assert_eq!(class("mlx5_0"), PathClass::Pix, "{near:?}");
        assert_eq!(class("mlx5_7"), PathClass::Sys, "{near:?}");
        assert!(class("mlx5_2") > PathClass::Pxb && class("mlx5_2") < PathClass::Sys, "{near:?}");
        assert_eq!(seen_from("0000:ff:1f.0", &machine), Near::new());
        assert_eq!(seen_from("no place", &machine), Near::new());
    }

    #[test]
    fn the_nearest_must_be_near_enough() {
        let near = Near::from(
            [("a", PathClass::Pix), ("b", PathClass::Phb), ("c", PathClass::Sys)]
                .map(|(name, class)| (name.to_owned(), class)),
        );
        let judged = |devices: &[&str], level| judge(&near, devices, level);
        assert_eq!(judged(&["c", "a"], None), Ok(()));
        let error = judged(&["b", "c"], None).unwrap_err();
        assert!(error.starts_with("b, its adapter that is nearest"), "{error}");
        assert!(error.contains("NCCL_NET_GDR_LEVEL=PHB"), "{error}");
        assert_eq!(judged(&["b", "c"], Some(PathClass::Phb)), Ok(()));
        assert!(judged(&["a"], Some(PathClass::Loc)).is_err());
        // Where nothing is known there is nothing to say, but that it is not wanted.
        assert_eq!(judged(&["rxe0"], None), Ok(()));
        assert!(judged(&["rxe0"], Some(PathClass::Loc)).is_err());
    }
}

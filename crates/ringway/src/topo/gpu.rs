//! GPUs: on the PCI bus, in the drivers' own trees, and in NVML on the live machine.

use serde::Serialize;

use super::Root;
use super::pci::{PciDevice, PciSelector};
use crate::ffi::nvml::{LinkEnd, Nvml};
use crate::plan::topology::bus::BusId;
use crate::plan::topology::matrix::{self, Cell, Matrix};

const KFD: &str = "/sys/class/kfd/kfd/topology/nodes";
/// Kind of an `io_link` that is XGMI.
const KFD_XGMI: &str = "11";
/// NVLinks a GPU has at the most; more between all pairs means switches.
const NVLINKS_MOST: u32 = 18;

/// What [`Machine::add_outputs`](super::Machine::add_outputs) reads: names of outputs, and the
/// calls that print them.
pub const NVIDIA_OUTPUTS: [(&str, &[&str]); 2] = [
    (
        "nvidia-smi-gpus",
        &["nvidia-smi", "--query-gpu=pci.bus_id,compute_cap,name", "--format=csv,noheader"],
    ),
    ("nvidia-smi-topo-m", &["nvidia-smi", "topo", "-m"]),
];

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuDevice {
    /// Its number: in the order of the bus, as the drivers count.
    pub index: u32,
    /// Where it is.
    pub bus: BusId,
    /// Who makes it.
    pub maker: GpuMaker,
    /// Its product name, where a driver tells it.
    pub name: Option<String>,
    /// Compute capability: 90 for 9.0.
    pub sm: Option<u32>,
    /// Architecture of an AMD GPU: `gfx942`.
    pub gcn: Option<String>,
    /// Links to other GPUs and to switches.
    pub links: Vec<GpuLink>,
}

/// Makers of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuMaker {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Another, whose device was said to be one ([`Machine::count_as_gpus`](super::Machine::count_as_gpus)).
    Other,
}

/// Links of a GPU to one other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuLink {
    /// The other GPU; nothing for the switches.
    pub to: Option<BusId>,
    /// How many.
    pub count: u32,
}

/// Every GPU, as far as files tell.
pub(super) fn devices(root: &Root, pci: &[PciDevice]) -> Vec<GpuDevice> {
    let mut gpus: Vec<GpuDevice> = pci
        .iter()
        .filter(|device| device.physical_function.is_none())
        .filter_map(|device| Some((device, device.gpu_maker()?)))
        .map(|(device, maker)| {
            let name = match maker {
                GpuMaker::Nvidia => driver_name(root, device.bus),
                GpuMaker::Amd | GpuMaker::Other => None,
            };
            GpuDevice { name, ..GpuDevice::bare(device.bus, maker) }
        })
        .collect();
    add_kfd(root, &mut gpus);
    for (index, gpu) in (0..).zip(&mut gpus) {
        gpu.index = index;
    }
    gpus
}

impl GpuDevice {
    fn bare(bus: BusId, maker: GpuMaker) -> Self {
        Self { index: 0, bus, maker, name: None, sm: None, gcn: None, links: Vec::new() }
    }
}

/// Adds the functions that are meant; how many are.
pub(super) fn add_selected(
    gpus: &mut Vec<GpuDevice>,
    pci: &[PciDevice],
    wanted: &PciSelector,
) -> usize {
    let mut many = 0;
    for device in pci.iter().filter(|device| wanted.means(device)) {
        many += 1;
        if gpus.iter().all(|gpu| gpu.bus != device.bus) {
            let index = gpus.iter().map(|gpu| gpu.index + 1).max().unwrap_or(0);
            let maker = device.gpu_maker().unwrap_or(GpuMaker::Other);
            gpus.push(GpuDevice { index, ..GpuDevice::bare(device.bus, maker) });
        }
    }
    many
}

fn any_nvidia(gpus: &[GpuDevice]) -> bool {
    gpus.iter().any(|gpu| gpu.maker == GpuMaker::Nvidia)
}

/// The name in `/proc/driver/nvidia/gpus/0000:0f:00.0/information`.
fn driver_name(root: &Root, bus: BusId) -> Option<String> {
    let path = format!("/proc/driver/nvidia/gpus/{bus}/information");
    let text = root.read(path).ok().flatten()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(line.trim().to_owned())
}

/// Numbers in a KFD `properties` file: one name and one value a line.
fn property<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.trim().split_once(' ')?;
        (key == name).then(|| value.trim())
    })
}

/// Architectures and XGMI links of AMD GPUs.
fn add_kfd(root: &Root, gpus: &mut [GpuDevice]) {
    let mut nodes: Vec<(u32, BusId)> = Vec::new();
    let names = root.list(KFD).unwrap_or_default();
    let ids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    for &id in &ids {
        let text = root.read(format!("{KFD}/{id}/properties")).ok().flatten().unwrap_or_default();
        let number = |name| property(&text, name).and_then(|value| value.parse::<u32>().ok());
        if number("simd_count").unwrap_or(0) == 0 {
            continue; // a CPU
        }
        let Some(location) = number("location_id") else { continue };
        let byte = |value: u32| u8::try_from(value & 0xff).unwrap_or(0);
        let bus = BusId {
            domain: number("domain").unwrap_or(0),
            bus: byte(location >> 8),
            device: byte(location >> 3) & 0x1f,
            function: byte(location) & 0x07,
        };
        nodes.push((id, bus));
        if let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.bus == bus) {
            gpu.gcn = number("gfx_target_version").filter(|v| *v > 0).map(|version| {
                format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
            });
        }
    }
    for &(id, bus) in &nodes {
        let links = root.list(format!("{KFD}/{id}/io_links")).unwrap_or_default();
        for link in links {
            let path = format!("{KFD}/{id}/io_links/{link}/properties");
            let text = root.read(path).ok().flatten().unwrap_or_default();
            if property(&text, "type") != Some(KFD_XGMI) {
                continue;
            }
            let to = property(&text, "node_to").and_then(|value| value.parse::<u32>().ok());
            let peer = nodes.iter().find(|(node, _)| Some(*node) == to).map(|(_, bus)| *bus);
            let gpu = gpus.iter_mut().find(|gpu| gpu.bus == bus);
            if let (Some(gpu), Some(peer)) = (gpu, peer) {
                add_link(gpu, Some(peer), 1);
            }
        }
    }
}

fn add_link(gpu: &mut GpuDevice, to: Option<BusId>, count: u32) {
    match gpu.links.iter_mut().find(|link| link.to == to) {
        Some(link) => link.count = link.count.saturating_add(count),
        None => gpu.links.push(GpuLink { to, count }),
    }
}

/// Names, capabilities and NVLinks, from the driver's library.
pub(super) fn add_nvml(gpus: &mut [GpuDevice], notes: &mut Vec<String>) {
    if !any_nvidia(gpus) {
        return;
    }
    let nvml = match Nvml::open() {
        Ok(nvml) => nvml,
        Err(error) => {
            notes.push(format!("NVLinks are not known: {error}"));
            return;
        }
    };
    let known = match nvml.gpus() {
        Ok(known) => known,
        Err(error) => {
            notes.push(error.to_string());
            return;
        }
    };
    for (index, one) in known.into_iter().enumerate() {
        let one = match one {
            Ok(one) => one,
            Err(error) => {
                notes.push(format!("GPU {index} of the driver does not answer: {error}"));
                continue;
            }
        };
        let bus: Option<BusId> = one.bus.parse().ok();
        let Some(gpu) = gpus.iter_mut().find(|gpu| Some(gpu.bus) == bus) else {
            notes.push(format!("NVML has a GPU at {}, the PCI bus has none there", one.bus));
            continue;
        };
        gpu.name = Some(one.name).filter(|name| !name.is_empty()).or_else(|| gpu.name.take());
        gpu.sm = one.sm;
        for end in one.links {
            match end {
                LinkEnd::Gpu(bus) => {
                    if let Ok(bus) = bus.parse() {
                        add_link(gpu, Some(bus), 1);
                    }
                }
                LinkEnd::Switch => add_link(gpu, None, 1),
                LinkEnd::Other => {}
            }
        }
    }
}

/// Names and capabilities, and NVLinks, from what nvidia-smi printed.
pub(super) fn add_outputs(
    output: &dyn Fn(&str) -> Result<String, String>,
    gpus: &mut [GpuDevice],
    notes: &mut Vec<String>,
) {
    if !any_nvidia(gpus) {
        return;
    }
    let [(list, _), (topo, _)] = NVIDIA_OUTPUTS;
    add_saved_list(&output(list).unwrap_or_default(), gpus);
    match output(topo) {
        Ok(text) => match matrix::read_nvidia_smi(&text) {
            Ok(saved) => add_saved_matrix(&saved, gpus),
            Err(error) => notes.push(format!("{topo}: {error}")),
        },
        Err(why) => notes.push(format!("NVLinks are not known: {why}")),
    }
}

/// Lines `00000000:1B:00.0, 9.0, NVIDIA H100 80GB HBM3`.
fn add_saved_list(text: &str, gpus: &mut [GpuDevice]) {
    for line in text.lines() {
        let mut parts = line.splitn(3, ',').map(str::trim);
        let bus = parts.next().and_then(|bus| bus.parse::<BusId>().ok());
        let Some(gpu) = gpus.iter_mut().find(|gpu| Some(gpu.bus) == bus) else { continue };
        let version = parts.next().and_then(|version| version.split_once('.'));
        gpu.sm = version.and_then(|(major, minor)| {
            let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
            major.checked_mul(10)?.checked_add(minor)
        });
        let name = parts.next().filter(|name| !name.is_empty());
        gpu.name = name.map(str::to_owned).or_else(|| gpu.name.take());
    }
}

/// NVLinks of a matrix.
fn add_saved_matrix(saved: &Matrix, gpus: &mut [GpuDevice]) {
    let count = |one: usize, other: usize| match saved
        .between(&format!("GPU{one}"), &format!("GPU{other}"))
    {
        Some(Cell::NvLink(count)) => *count,
        _ => 0,
    };
    let buses: Vec<BusId> = gpus.iter().map(|gpu| gpu.bus).collect();
    for (one, gpu) in gpus.iter_mut().enumerate() {
        let counts: Vec<u32> = (0..buses.len()).map(|other| count(one, other)).collect();
        let total = counts.iter().copied().fold(0, u32::saturating_add);
        let most = counts.iter().copied().max().unwrap_or(0);
        if total > NVLINKS_MOST {
            // More than it has plugs for: the same links lead to all, through switches.
            add_link(gpu, None, most);
        } else {
            for (other, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
                add_link(gpu, Some(buses[other]), count);
            }
        }
    }
}

//! Everything discovery finds, in one value.

use serde::Serialize;

use super::Root;
use super::describe::GpuDirect;
use super::gpu::{self, GpuDevice};
use super::net::{self, NetDevice};
use super::numa::{self, NumaNode, Processor};
use super::pci::{self, PciDevice, PciSelector};
use super::rdma::{self, RdmaDevice};

/// A machine, as its files describe it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Who made it, and whether it is virtual.
    pub platform: Platform,
    /// Its processors.
    pub processor: Processor,
    /// Its NUMA nodes.
    pub numa: Vec<NumaNode>,
    /// Its PCI devices.
    pub pci: Vec<PciDevice>,
    /// Its GPUs.
    pub gpus: Vec<GpuDevice>,
    /// Its RDMA devices.
    pub rdma: Vec<RdmaDevice>,
    /// Its network interfaces.
    pub nets: Vec<NetDevice>,
    /// Whether NICs may reach GPU memory.
    pub gpu_direct: GpuDirect,
    /// What could not be read or asked.
    pub notes: Vec<String>,
}

/// What the firmware says of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Platform {
    /// The maker: `Amazon EC2`, `NVIDIA`, `QEMU`.
    pub vendor: Option<String>,
    /// The product: `p5.48xlarge`, `DGXH100`.
    pub product: Option<String>,
    /// Whether it is a virtual machine.
    pub virtual_machine: bool,
    /// Whose virtual machine, as far as names tell.
    pub hypervisor: Option<String>,
}

impl Machine {
    /// Reads a machine: its files, and what NVML tells on the live one, or nvidia-smi told when a
    /// copied one was copied.
    #[must_use]
    pub fn discover(root: &Root) -> Self {
        let mut machine = Self::from_files(root);
        if root.is_live() {
            gpu::add_nvml(&mut machine.gpus, &mut machine.notes);
        } else {
            machine.add_outputs(&|name| match root.command_output(name) {
                Ok(Some(text)) => Ok(text),
                Ok(None) => Err(format!("no commands/{name}.txt")),
                Err(error) => Err(error.to_string()),
            });
        }
        machine
    }

    /// Adds what files do not tell of NVIDIA's GPUs: names, capabilities and NVLinks, from what the
    /// programs named in [`NVIDIA_OUTPUTS`](super::NVIDIA_OUTPUTS) printed. `output` gives a
    /// program's output by its name, or says why there is none.
    pub fn add_outputs(&mut self, output: &dyn Fn(&str) -> Result<String, String>) {
        gpu::add_outputs(output, &mut self.gpus, &mut self.notes);
    }

    /// Takes more PCI functions for GPUs: accelerators of makers that are not known here. They are counted after
    /// the others, in the order of the bus. Says how many are meant, those that were GPUs before included.
    pub fn count_as_gpus(&mut self, wanted: &PciSelector) -> usize {
        gpu::add_selected(&mut self.gpus, &self.pci, wanted)
    }

    /// Reads a machine's files and nothing else: no library is asked, so no driver can keep the
    /// caller waiting.
    #[must_use]
    pub fn from_files(root: &Root) -> Self {
        let mut notes = Vec::new();
        let processor = numa::processor(root, &mut notes);
        let pci = pci::devices(root, &mut notes);
        let gpus = gpu::devices(root, &pci);
        let nets = net::devices(root, &mut notes);
        let host = root.read("/proc/sys/kernel/hostname").ok().flatten();
        let host = host.or_else(|| root.read("/etc/hostname").ok().flatten());
        Self {
            host: host.unwrap_or_default().trim().to_owned(),
            platform: platform(root, &processor),
            numa: numa::nodes(root, &mut notes),
            rdma: rdma::devices(root, &nets, &mut notes),
            nets,
            gpu_direct: GpuDirect::discover(root),
            processor,
            pci,
            gpus,
            notes,
        }
    }
}

/// What names in the firmware's tables stand for.
const HYPERVISORS: &[(&str, &str)] = &[
    ("Amazon EC2", "AWS"),
    ("Google", "Google Cloud"),
    ("Microsoft Corporation", "Hyper-V or Azure"),
    ("OracleCloud", "Oracle Cloud"),
    ("Alibaba Cloud", "Alibaba Cloud"),
    ("VMware", "VMware"),
    ("Xen", "Xen"),
    ("QEMU", "QEMU/KVM"),
    ("KVM", "KVM"),
    ("Firecracker", "Firecracker"),
    ("Cloud Hypervisor", "Cloud Hypervisor"),
];

fn platform(root: &Root, processor: &Processor) -> Platform {
    let text = |name: &str| {
        let text = root.read(format!("/sys/class/dmi/id/{name}")).ok().flatten();
        text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let (vendor, product) = (text("sys_vendor"), text("product_name"));
    let words = [&vendor, &product, &text("bios_vendor"), &text("chassis_asset_tag")];
    let known = HYPERVISORS.iter().find(|(word, _)| {
        words.iter().any(|text| text.as_ref().is_some_and(|text| text.contains(word)))
    });
    let below = root.read("/sys/hypervisor/type").ok().flatten();
    let virtual_machine = processor.hypervisor || below.is_some();
    let hypervisor = known.map(|(_, name)| (*name).to_owned()).or(below);
    let hypervisor = hypervisor.filter(|_| virtual_machine);
    Platform { vendor, product, virtual_machine, hypervisor }
}

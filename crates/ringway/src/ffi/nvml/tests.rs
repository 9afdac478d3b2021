//! A library in NVML's place, compiled by the test: two GPUs, one NVLink between them, one to a switch.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use super::*;

const FAKE: &str = r#"
#include <string.h>
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci_id, subsystem_id;
    char bus_id[32];
} pci_t;
static int started;
static pci_t at(unsigned bus) {
    pci_t info;
    memset(&info, 0, sizeof info);
    info.bus = bus;
    strcpy(info.bus_id, bus == 0x1b ? "00000000:1B:00.0" : "00000000:43:00.0");
    return info;
}
static unsigned bus_of(void *device) { return device == (void *)1 ? 0x1b : 0x43; }
int nvmlInit_v2(void) { started++; return 0; }
int nvmlShutdown(void) { started--; return 0; }
int fake_started(void) { return started; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return started > 0 ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { *device = (void *)(unsigned long)(i + 1); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned room) { (void)device; strncpy(name, "NVIDIA Fake", room); return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *info) { *info = at(bus_of(device)); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { (void)device; *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *value) { (void)device; *value = 40 + sensor; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *value) { (void)device; (void)value; return 3; }
#ifndef OLD
int nvmlDeviceGetUUID(void *device, char *name, unsigned room) { (void)device; strncpy(name, "GPU-1", room); return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *value) { (void)device; *value = 1ull << 40; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *three) { (void)device; three[0] = 80; three[1] = 50; three[2] = 30; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, unsigned *two) { (void)device; two[0] = 97; two[1] = 3; return 0; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *value) { (void)device; *value = 1900 + kind; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *value) { (void)device; *value = 0x40; return 0; }
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *value) { (void)device; *value = 5 + kind + 10 * counter; return 0; }
int nvmlDeviceGetPcieReplayCounter(void *device, unsigned *value) { (void)device; *value = 7; return 0; }
int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, int kind, unsigned long long *value) { (void)device; *value = 10 * link + kind; return kind == 3 ? 3 : 0; }
typedef struct { unsigned id, scope; long long when, latency; int kind, code; unsigned long long value; } field_t;
int nvmlDeviceGetFieldValues(void *device, int count, field_t *fields) {
    (void)device;
    for (int i = 0; i < count; i++) {
        fields[i].code = fields[i].id == 138 && fields[i].scope == ~0u ? 0 : 3;
        fields[i].kind = 3;
        fields[i].value = 4096;
    }
    return 0;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *up) { (void)device; *up = link < 2; return link < 4 ? 0 : 2; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *kind) { (void)device; *kind = link == 0 ? 0 : 2; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_t *info) { (void)link; *info = at(bus_of(device) == 0x1b ? 0x43 : 0x1b); return 0; }
#endif
"#;

/// Compiles the library; nothing where there is no C compiler.
fn compiled(folder: &Path, name: &str, flag: &str) -> Option<Library> {
    let source = folder.join(format!("{name}.c"));
    let output = folder.join(format!("lib{name}.so"));
    std::fs::write(&source, FAKE).unwrap();
    let outcome =
        Command::new("cc").args(["-shared", "-fPIC", flag, "-o"]).args([&output, &source]).output();
    match outcome {
        Ok(done) if done.status.success() => {
            // SAFETY: the library was just written by this test and has no constructors.
            Some(unsafe { Library::new(&output) }.unwrap())
        }
        Ok(done) => panic!("{}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => {
            let _closed = writeln!(std::io::stderr(), "SKIPPED a library like NVML: cc: {error}");
            None
        }
    }
}

#[test]
fn names_capabilities_and_links_are_asked_for_in_nvmls_way() {
    let folder = std::env::temp_dir().join(format!("ringway-nvml-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let whole = compiled(&folder, "whole", "-DNEW");
    let old = compiled(&folder, "old", "-DOLD");
    let _gone = std::fs::remove_dir_all(&folder);
    let (Some(whole), Some(old)) = (whole, old) else { return };

    let nvml = Nvml::from_library(whole).unwrap();
    let gpus: Vec<NvmlGpu> = nvml.gpus().unwrap().into_iter().map(Result::unwrap).collect();
    let links = |peer: &str| vec![LinkEnd::Gpu(peer.to_owned()), LinkEnd::Switch];
    let gpu = |bus: &str, peer: &str| NvmlGpu {
        bus: bus.to_owned(),
        name: "NVIDIA Fake".to_owned(),
        sm: Some(90),
        links: links(peer),
    };
    let (one, other) = ("00000000:1B:00.0", "00000000:43:00.0");
    assert_eq!(gpus, [gpu(one, other), gpu(other, one)]);

    let read = nvml.readings().unwrap();
    let errors = |link| [Some(10 * link), Some(10 * link + 1), Some(10 * link + 2), None];
    let link = |number: u32| NvLink { number, up: number < 2, errors: errors(u64::from(number)) };
    let one = Readings {
        bus: one.to_owned(),
        uuid: "GPU-1".to_owned(),
        celsius: Some(40),
        milliwatts: None,
        millijoules: Some(1 << 40),
        memory_used: Some(30),
        memory: Some(80),
        busy_percent: Some(97),
        sm_megahertz: Some(1901),
        slowed_by: Some(0x40),
        ecc: [Some(5), Some(6)],
        pcie_replays: Some(7),
        links: (0..4).map(link).collect(),
        nvlink_kib: [Some(4096), None],
    };
    assert_eq!(read, [one.clone(), Readings { bus: other.to_owned(), ..one }]);

    // A driver from before NVLink has GPUs all the same.
    let nvml = Nvml::from_library(old).unwrap();
    let gpus: Vec<NvmlGpu> = nvml.gpus().unwrap().into_iter().map(Result::unwrap).collect();
    assert!(gpus.len() == 2 && gpus.iter().all(|gpu| gpu.links.is_empty()));
    let read = nvml.readings().unwrap();
    assert!(read.len() == 2 && read[0].celsius == Some(40) && read[0].memory.is_none());
}

#[test]
fn a_library_that_is_not_nvml_is_named_as_too_old() {
    let error = Nvml::from_library(open("libc", &["libc.so.6"]).unwrap()).unwrap_err();
    assert_eq!(error, FfiError::NoSymbol { library: "NVML", symbol: "nvmlInit_v2" });
}

#[test]
fn buffers_have_the_sizes_nvml_asks_for() {
    assert_eq!(size_of::<PciInfo>(), 68);
    assert_eq!(std::mem::offset_of!(PciInfo, bus_id), 36);
    assert_eq!(readings::sizes(), [24, 8, 40]);
}

//! Limits of this process and of services, and shared memory.

use super::{Check, Seen, Tally, bytes};
use crate::doctor::host::Host;

const LIMITS: &str = "/proc/self/limits";
const GIB: u64 = 1 << 30;

/// Bits of capabilities.
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_NICE: u32 = 23;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "mem-01",
        group: "limits",
        about: "memory may be locked without limit",
        reads: "/proc/self/limits (of this shell: a job started by a service has the service's)",
        cost: "RDMA locks its buffers: ibv_reg_mr fails, the job falls back to TCP or ends",
        fix: "/etc/security/limits.d: * - memlock unlimited; services: LimitMEMLOCK=infinity; docker --ulimit memlock=-1",
        root: false,
        look: locked_memory,
    },
    Check {
        id: "mem-02",
        group: "limits",
        about: "a container may lock memory",
        reads: "/proc/self/status (CapEff), /proc/self/limits",
        cost: "\"unable to create QP\" although the port is active",
        fix: "securityContext.capabilities.add: [\"IPC_LOCK\"], docker --cap-add IPC_LOCK",
        root: false,
        look: lock_capability,
    },
    Check {
        id: "mem-03",
        group: "limits",
        about: "/dev/shm is large enough",
        reads: "statvfs of /dev/shm",
        cost: "each shared segment of NCCL takes 9.6 MB: 64 MiB hold 6 (nccl#342); ranks end with SIGBUS",
        fix: "docker --shm-size=1g; Kubernetes: emptyDir with medium: Memory at /dev/shm",
        root: false,
        look: shared_memory,
    },
    Check {
        id: "mem-04",
        group: "limits",
        about: "/dev/shm is not full, nor of segments left behind",
        reads: "/dev/shm/nccl-*, statvfs of /dev/shm",
        cost: "jobs that crash leave segments until no space is left (llm-d#352)",
        fix: "rm /dev/shm/nccl-* when no job runs",
        root: false,
        look: shared_memory_left,
    },
    Check {
        id: "mem-05",
        group: "limits",
        about: "enough files may be open",
        reads: "/proc/self/limits",
        cost: "144 ranks with 16 contexts need more than 32 Ki descriptors (NCCL docs)",
        fix: "ulimit -n 131072; /etc/security/limits.d: * - nofile 131072",
        root: false,
        look: open_files,
    },
    Check {
        id: "mem-06",
        group: "limits",
        about: "the stack is not unlimited",
        reads: "/proc/self/limits",
        cost: "glibc then gives threads 2 MiB: NCCL before 2.28 crashes in its search",
        fix: "ulimit -s 8192",
        root: false,
        look: stack,
    },
    Check {
        id: "mem-07",
        group: "limits",
        about: "systemd does not remove shared memory of running jobs",
        reads: "/etc/systemd/logind.conf, /etc/systemd/logind.conf.d",
        cost: "segments vanish when the user's last session ends: ranks end with ENOENT",
        fix: "RemoveIPC=no in /etc/systemd/logind.conf, systemctl restart systemd-logind",
        root: false,
        look: remove_ipc,
    },
    Check {
        id: "mem-08",
        group: "limits",
        about: "a container with GPUs may place memory (SYS_NICE)",
        reads: "/proc/self/status (CapEff)",
        cost: "NCCL 2.24 to 2.26.4 may hang or abort; later ones use /dev/shm instead",
        fix: "docker --cap-add SYS_NICE, or NCCL_CUMEM_HOST_ENABLE=0",
        root: false,
        look: nice_capability,
    },
    Check {
        id: "lim-nproc",
        group: "limits",
        about: "enough processes and threads may run",
        reads: "/proc/self/limits",
        cost: "thread creation fails in the middle of the start: resource temporarily unavailable",
        fix: "ulimit -u unlimited; /etc/security/limits.d: * - nproc unlimited",
        root: false,
        look: processes,
    },
    Check {
        id: "lim-pid-max",
        group: "limits",
        about: "the kernel has enough process numbers",
        reads: "/proc/sys/kernel/{pid_max,threads-max}",
        cost: "8 ranks with data loaders on 256 cores reach 32768 threads: fork fails",
        fix: "sysctl -w kernel.pid_max=4194304",
        root: false,
        look: process_numbers,
    },
    Check {
        id: "lim-maps",
        group: "limits",
        about: "a process may map enough regions",
        reads: "/proc/sys/vm/max_map_count",
        cost: "mmap fails with out of memory once a process has that many regions",
        fix: "sysctl -w vm.max_map_count=262144",
        root: false,
        look: map_count,
    },
    Check {
        id: "lim-units",
        group: "limits",
        about: "services that start jobs do not limit locked memory",
        reads: "/{etc,lib,usr/lib}/systemd/system/{slurmd,docker,containerd,kubelet,crio}.service and .d",
        cost: "the job has the service's limit, not the shell's: ibv_reg_mr fails under Slurm only",
        fix: "LimitMEMLOCK=infinity in a drop-in (systemctl edit SERVICE), restart it",
        root: false,
        look: units,
    },
];

fn no_limits() -> Seen {
    Seen::unknown("could not look at the limits", format!("{LIMITS} does not say"))
}

fn locked_memory(host: &Host) -> Seen {
    if host.hcas().is_empty() {
        return Seen::absent("no RDMA device");
    }
    if host.is_container() {
        return Seen::absent("a container with RDMA: mem-02 looks");
    }
    let Some(limit) = host.limit("Max locked memory") else { return no_limits() };
    let evidence = format!("{LIMITS}: Max locked memory = {}", bytes(limit));
    if host.has_capability(CAP_IPC_LOCK) == Some(true) && limit != u64::MAX {
        return Seen::well("this process may lock memory without limit (CAP_IPC_LOCK)", evidence);
    }
    match limit {
        u64::MAX => Seen::well("memory may be locked without limit", evidence),
        _ if limit < 8 * GIB => {
            Seen::fail(format!("only {} may be locked", bytes(limit)), evidence)
        }
        _ => Seen::warn(format!("only {} may be locked", bytes(limit)), evidence),
    }
}

fn lock_capability(host: &Host) -> Seen {
    if !host.is_container() || host.hcas().is_empty() {
        return Seen::absent("no container with an RDMA device");
    }
    let unlimited = host.limit("Max locked memory") == Some(u64::MAX);
    match host.has_capability(CAP_IPC_LOCK) {
        Some(true) => {
            Seen::well("the container may lock memory", "/proc/self/status: CapEff has IPC_LOCK")
        }
        Some(false) if unlimited => Seen::well(
            "the container may lock memory",
            format!("{LIMITS}: Max locked memory = unlimited"),
        ),
        Some(false) => Seen::fail(
            "the container may not lock memory",
            "/proc/self/status: CapEff lacks IPC_LOCK",
        ),
        None => Seen::unknown("could not look at capabilities", "/proc/self/status does not say"),
    }
}

fn shared_memory(host: &Host) -> Seen {
    let Some(size) = host.fact_number("shm_bytes") else {
        return Seen::unknown(
            "could not look at the size of /dev/shm",
            "statvfs of /dev/shm is not known",
        );
    };
    let wanted = GIB.max(host.gpus().len() as u64 * (64 << 20));
    let evidence = format!("/dev/shm = {}", bytes(size));
    if size >= wanted {
        Seen::well("/dev/shm is large enough", evidence)
    } else if size >= 256 << 20 {
        Seen::warn(format!("/dev/shm has only {}", bytes(size)), evidence)
    } else {
        Seen::fail(format!("/dev/shm has only {}", bytes(size)), evidence)
    }
}

fn shared_memory_left(host: &Host) -> Seen {
    let (Some(size), Some(free)) =
        (host.fact_number("shm_bytes"), host.fact_number("shm_free_bytes"))
    else {
        return Seen::unknown(
            "could not look how full /dev/shm is",
            "statvfs of /dev/shm is not known",
        );
    };
    let mut left = host.list("/dev/shm");
    left.retain(|name| name.starts_with("nccl-"));
    let evidence =
        format!("/dev/shm: {} of {} free, {} files nccl-*", bytes(free), bytes(size), left.len());
    if size > 0 && free < size / 10 {
        Seen::fail("/dev/shm is nearly full", evidence)
    } else if !left.is_empty() && size > 0 && free < size / 5 {
        Seen::warn("segments of NCCL fill /dev/shm", evidence)
    } else if left.len() > 64 {
        Seen::warn(format!("{} segments of NCCL lie in /dev/shm", left.len()), evidence)
    } else {
        Seen::well("/dev/shm has room", evidence)
    }
}

fn open_files(host: &Host) -> Seen {
    let Some(limit) = host.limit("Max open files") else { return no_limits() };
    let evidence = format!("{LIMITS}: Max open files = {limit}");
    match limit {
        65_536.. => Seen::well("enough files may be open", evidence),
        8192..65_536 => Seen::warn(format!("only {limit} files may be open"), evidence),
        _ => Seen::fail(format!("only {limit} files may be open"), evidence),
    }
}

fn stack(host: &Host) -> Seen {
    let Some(limit) = host.limit("Max stack size") else { return no_limits() };
    let evidence = format!("{LIMITS}: Max stack size = {}", bytes(limit));
    if limit == u64::MAX {
        Seen::warn("the stack is unlimited", evidence)
    } else {
        Seen::well("the stack has a limit", evidence)
    }
}

fn remove_ipc(host: &Host) -> Seen {
    let main = "/etc/systemd/logind.conf";
    if !host.exists("/run/systemd/system") {
        return Seen::absent("systemd does not run here");
    }
    let Ok(Some(text)) = host.read(main) else {
        return Seen::absent("no systemd-logind here");
    };
    let folder = "/etc/systemd/logind.conf.d";
    let mut texts = vec![(main.to_owned(), text)];
    for name in host.list(folder).into_iter().filter(|name| name.ends_with(".conf")) {
        let path = format!("{folder}/{name}");
        texts.extend(host.text(&path).map(|text| (path, text)));
    }
    // The last word counts; the default is yes.
    let set = texts.iter().rev().find_map(|(path, text)| {
        let value = text.lines().rev().find_map(|line| line.trim().strip_prefix("RemoveIPC="))?;
        Some((path, value.trim().to_owned()))
    });
    match set {
        Some((path, value)) if ["no", "false", "0", "off"].contains(&value.as_str()) => {
            Seen::well("systemd leaves shared memory alone", format!("{path}: RemoveIPC={value}"))
        }
        Some((path, value)) => Seen::warn(
            "systemd removes shared memory of users who log out",
            format!("{path}: RemoveIPC={value}"),
        ),
        None => {
            let (id, off) = default_remove_ipc(host);
            let evidence = format!("{main}: RemoveIPC is not set; {id}");
            match off {
                Some(true) => Seen::well("systemd leaves shared memory alone", evidence),
                Some(false) => {
                    Seen::warn("systemd removes shared memory of users who log out", evidence)
                }
                None => {
                    Seen::unknown("could not look whether systemd removes shared memory", evidence)
                }
            }
        }
    }
}

/// Whether a distribution builds systemd so that shared memory stays, and what says so. Red Hat's family and
/// SUSE's do; the others leave systemd's own default, yes.
fn default_remove_ipc(host: &Host) -> (String, Option<bool>) {
    let Some(text) = host.text("/etc/os-release") else {
        return ("/etc/os-release is not there, and the default differs".to_owned(), None);
    };
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default().trim_matches('"').to_owned()
    };
    let names = format!("{} {}", field("ID"), field("ID_LIKE"));
    let is = |names: &str, name: &str| names.split_whitespace().any(|word| word == name);
    let off = ["rhel", "centos", "fedora", "suse", "opensuse"].iter().any(|name| is(&names, name));
    (format!("the default of {} is {}", field("ID"), if off { "no" } else { "yes" }), Some(off))
}

fn nice_capability(host: &Host) -> Seen {
    if !host.is_container()
        || host.gpus().is_empty()
        || host.variable("NCCL_CUMEM_HOST_ENABLE") == Some("0")
    {
        return Seen::absent("no container with GPUs");
    }
    match host.has_capability(CAP_SYS_NICE) {
        Some(true) => {
            Seen::well("the container may place memory", "/proc/self/status: CapEff has SYS_NICE")
        }
        Some(false) => Seen::warn(
            "the container may not place memory",
            "/proc/self/status: CapEff lacks SYS_NICE",
        ),
        None => Seen::unknown("could not look at capabilities", "/proc/self/status does not say"),
    }
}

fn processes(host: &Host) -> Seen {
    let Some(limit) = host.limit("Max processes") else { return no_limits() };
    let evidence = format!(
        "{LIMITS}: Max processes = {}",
        if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() }
    );
    if limit < 16_384 {
        Seen::warn(format!("only {limit} processes and threads may run"), evidence)
    } else {
        Seen::well("enough processes and threads may run", evidence)
    }
}

fn process_numbers(host: &Host) -> Seen {
    let path = "/proc/sys/kernel/pid_max";
    let cpus = host
        .text("/sys/devices/system/cpu/online")
        .and_then(|text| crate::doctor::host::number_list(&text));
    let cpus = cpus.map_or(1, |cpus| cpus.len());
    match host.number(path) {
        Some(most) if most < 65_536 && cpus >= 64 => Seen::warn(
            format!("only {most} process numbers for {cpus} processors"),
            format!("{path} = {most}"),
        ),
        Some(most) => Seen::well(
            "the kernel has enough process numbers",
            format!("{path} = {most}, {cpus} processors"),
        ),
        None => Seen::unknown("could not look at process numbers", format!("{path} is not there")),
    }
}

fn map_count(host: &Host) -> Seen {
    let path = "/proc/sys/vm/max_map_count";
    match host.number(path) {
        Some(most) if most < 65_530 => {
            Seen::warn(format!("a process may map only {most} regions"), format!("{path} = {most}"))
        }
        Some(most) => Seen::well("a process may map enough regions", format!("{path} = {most}")),
        None => Seen::unknown("could not look at mapped regions", format!("{path} is not there")),
    }
}

fn units(host: &Host) -> Seen {
    let mut tally = Tally::default();
    for service in ["slurmd", "docker", "containerd", "kubelet", "crio"] {
        let mut set = None;
        let folders = ["/usr/lib", "/lib", "/etc"];
        let mut found = false;
        let mut look = |path: String| {
            let Some(text) = host.text(&path) else { return };
            found = true;
            if let Some(value) =
                text.lines().rev().find_map(|line| line.trim().strip_prefix("LimitMEMLOCK="))
            {
                set = Some((path, value.trim().to_owned()));
            }
        };
        for folder in folders {
            look(format!("{folder}/systemd/system/{service}.service"));
        }
        let drop_ins = format!("/etc/systemd/system/{service}.service.d");
        for name in host.list(&drop_ins).into_iter().filter(|name| name.ends_with(".conf")) {
            look(format!("{drop_ins}/{name}"));
        }
        match (found, set) {
            (false, _) => {}
            (true, Some((path, value))) if value == "infinity" => {
                tally.well(format!("{path}: LimitMEMLOCK={value}"))
            }
            (true, Some((path, value))) => tally.warn(format!("{path}: LimitMEMLOCK={value}")),
            // Container engines set the limit of each container; Slurm passes its own on.
            (true, None) if service == "slurmd" => tally
                .warn(format!("{service}.service: LimitMEMLOCK is not set; the default is 8 MiB")),
            (true, None) => tally.well(format!("{service}.service: LimitMEMLOCK is not set")),
        }
    }
    tally.seen(
        "no service that starts jobs",
        "services do not limit locked memory",
        "services that limit locked memory",
    )
}

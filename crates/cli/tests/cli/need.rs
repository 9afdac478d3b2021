//! What a test needs beyond this program: it skips loudly without, or fails where it must not.
//!
//! `RINGWAY_TEST_REQUIRE` lists what the machine must offer (`netns`, `mount`, `mpirun`, `hydra`,
//! `torchrun`, `python`, `sshd`, `slurm`, `zsh`, `fish`, `man` or `all`): a test that would be skipped for lack of it fails instead.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Says whether `what` is there; if not, why the test is skipped, or fails where it is required.
fn need(what: &str, missing: Option<String>, install: &str) -> bool {
    let Some(why) = missing else { return true };
    let required = std::env::var("RINGWAY_TEST_REQUIRE").unwrap_or_default();
    let mut words = required.split([',', ' ']);
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(
        !words.any(|word| word == what || word == "all"),
        "{test} needs {what}: {why}; {install} (RINGWAY_TEST_REQUIRE={required})"
    );
    // Not `eprintln!`: what a passing test prints is not shown.
    let _nobody_reads = writeln!(std::io::stderr(), "SKIPPED: {test}, because {why}; {install}");
    false
}

/// Where a program is.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Root, and `ip` that can make network namespaces.
pub(crate) fn namespaces() -> bool {
    let missing = if find("ip").is_none() {
        Some("there is no `ip`".to_owned())
    } else {
        // Tests ask at the same time; with one name for all, whoever came second was skipped.
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let number = ASKED.fetch_add(1, Ordering::Relaxed);
        let name = format!("rwneed{}n{number}", std::process::id());
        let ip = |args: &[&str]| {
            let output = Command::new("ip").args(args).stdin(Stdio::null()).output();
            output.map_err(|error| error.to_string()).and_then(|output| {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                output.status.success().then_some(()).ok_or(said)
            })
        };
        let made = ip(&["netns", "add", &name]).and_then(|()| ip(&["netns", "del", &name]));
        made.err().map(|why| format!("network namespaces cannot be made ({why})"))
    };
    need("netns", missing, "run as root, with iproute2 installed")
}

/// Root, and `unshare` that lets a program have mounts of its own.
pub(crate) fn mounts() -> bool {
    let mount = "mount -t tmpfs -o size=64k tmpfs /tmp";
    let tried = Command::new("unshare").args(["--mount", "sh", "-c", mount]).output();
    let missing = match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    let missing = missing.map(|why| format!("nothing can be mounted ({why})"));
    need("mount", missing, "run as root, with util-linux installed")
}

/// Open MPI's launcher.
pub(crate) fn open_mpi() -> Option<PathBuf> {
    let found = find("mpirun.openmpi").or_else(|| find("mpirun").filter(|_| !says_hydra("mpirun")));
    let missing = found.is_none().then(|| "there is no mpirun of Open MPI".to_owned());
    need("mpirun", missing, "apt-get install openmpi-bin").then_some(found).flatten()
}

/// MPICH's launcher.
pub(crate) fn hydra() -> Option<PathBuf> {
    let found = find("mpiexec.hydra").or_else(|| find("mpirun.mpich"));
    let missing = found.is_none().then(|| "there is no mpiexec.hydra".to_owned());
    need("hydra", missing, "apt-get install mpich").then_some(found).flatten()
}

/// torchrun.
pub(crate) fn torchrun() -> Option<PathBuf> {
    let found = find("torchrun");
    let missing = found.is_none().then(|| "there is no torchrun".to_owned());
    need("torchrun", missing, "pip install torch").then_some(found).flatten()
}

/// OpenSSH's server and client.
pub(crate) fn sshd() -> bool {
    let there = std::path::Path::new("/usr/sbin/sshd").exists() && find("ssh").is_some();
    let missing = (!there).then(|| "there is no sshd".to_owned());
    need("sshd", missing, "apt-get install openssh-server openssh-client")
}

/// Slurm's daemons, its client and munge.
pub(crate) fn slurm() -> bool {
    let daemons = ["munged", "slurmctld", "slurmd"];
    let there = |name: &&str| std::path::Path::new("/usr/sbin").join(name).exists();
    let lack = daemons.iter().find(|name| !there(name)).copied();
    let lack = lack.or_else(|| find("srun").is_none().then_some("srun"));
    let missing = lack.map(|name| format!("there is no {name}"));
    need("slurm", missing, "apt-get install munge slurmctld slurmd slurm-client")
}

/// Python, as `python3`.
pub(crate) fn python() -> bool {
    let missing = find("python3").is_none().then(|| "there is no python3".to_owned());
    need("python", missing, "apt-get install python3")
}

/// A program that a package of its own brings.
pub(crate) fn program(name: &str, package: &str) -> bool {
    let missing = find(name).is_none().then(|| format!("there is no {name}"));
    need(name, missing, &format!("apt-get install {package}"))
}

fn says_hydra(program: &str) -> bool {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("HYDRA"))
}

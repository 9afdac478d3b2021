//! Running the programs whose output the doctor reads.
//!
//! *Invariant*: no program runs longer than its limit or is read further than its limit, and none gets input.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::libraries;
use crate::doctor::sources::{Each, PROGRAMS};

/// How long one program may take.
const TIME: Duration = Duration::from_secs(10);

/// How long its output may stay open after its end.
const PIPE_TIME: Duration = Duration::from_secs(1);

/// Bytes of its output that are read.
const BYTES: u64 = 16 << 20;

/// Programs at once.
const SIDE_BY_SIDE: usize = 8;

/// Runs every program of the table and returns what each printed, or why it printed nothing.
pub(super) fn run_all(
    interfaces: &[&str],
    adapters: &[&str],
) -> BTreeMap<String, Result<String, String>> {
    let mut calls: Vec<(String, Vec<&str>)> = Vec::new();
    for program in PROGRAMS {
        let devices = match program.each {
            Each::Machine => {
                calls.push((program.name.to_owned(), program.call.to_vec()));
                continue;
            }
            Each::Interface => interfaces,
            Each::Adapter => adapters,
        };
        calls.extend(devices.iter().map(|device| {
            let mut call = program.call.to_vec();
            call.push(device);
            (format!("{}-{device}", program.name), call)
        }));
    }
    let queue = Mutex::new(calls.into_iter());
    let outputs = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.next());
                    let Some((name, call)) = next else { break };
                    let output = run(&call);
                    if let Ok(mut outputs) = outputs.lock() {
                        outputs.insert(name, output);
                    }
                }
            });
        }
    });
    outputs.into_inner().unwrap_or_default()
}

/// Whether a program's complaint says that root may do what this user may not.
pub(super) fn is_denial(why: &str) -> bool {
    let why = why.to_ascii_lowercase();
    ["not permitted", "permission denied", "must be root", "superuser"]
        .iter()
        .any(|word| why.contains(word))
}

fn run(call: &[&str]) -> Result<String, String> {
    let (program, arguments) = call.split_first().ok_or("no program")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin"))
        .env("LC_ALL", "C")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no program {program}"),
            _ => format!("{program}: {error}"),
        })?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = (collected(stdout, BYTES), collected(stderr, 64 << 10));
    let ended = wait(&mut child);
    let Some(text) = stdout.recv_timeout(PIPE_TIME).ok() else {
        // Something it started still holds its output, so the group is still there.
        end_group(&child);
        return Err(format!("{program} left something running"));
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let complaint = stderr.recv_timeout(PIPE_TIME).unwrap_or_default();
    let complaint = String::from_utf8_lossy(&complaint).trim().to_owned();
    match ended {
        Some(_) if !text.trim().is_empty() => Ok(text),
        Some(true) if complaint.is_empty() => Ok(text),
        Some(_) => {
            Err(super::shown(complaint.lines().next().unwrap_or("it failed and printed nothing")))
        }
        None => Err(format!("{program} did not end within {} s", TIME.as_secs())),
    }
}

/// Reads a pipe to its end, or to the limit, beside the caller.
fn collected(pipe: Option<impl Read + Send + 'static>, limit: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _cut = pipe.map(|pipe| pipe.take(limit).read_to_end(&mut bytes));
        let _nobody_waits = sender.send(bytes);
    });
    receiver
}

/// Waits for the end: whether it went well; nothing when it had to be stopped.
fn wait(child: &mut Child) -> Option<bool> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    while begin.elapsed() < TIME {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) => std::thread::sleep(pause),
            Err(_) => break,
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    end_group(child);
    let _gone = child.kill();
    let _reaped = child.wait();
    None
}

/// Ends a program and what it started.
fn end_group(child: &Child) {
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// What a live machine says through system calls only.
pub(super) fn live_facts() -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    if let Ok(found) = rustix::fs::statvfs("/dev/shm") {
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize).to_string();
        facts.insert("shm_bytes".to_owned(), bytes(found.f_blocks));
        facts.insert("shm_free_bytes".to_owned(), bytes(found.f_bavail));
    }
    facts.extend(container());
    facts.extend(own_group());
    facts.insert("uid".to_owned(), rustix::process::geteuid().as_raw().to_string());
    let usable = |path: &str| {
        let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
        rustix::fs::access(path, access).is_ok()
    };
    for (folder, start) in
        [("/dev/infiniband", "uverbs"), ("/dev/nvidia-caps-imex-channels", "channel")]
    {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().take(4096) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(start) {
                let word = if usable(&format!("{folder}/{name}")) { "yes" } else { "no" };
                facts.insert(format!("usable {name}"), word.to_owned());
            }
        }
    }
    facts.extend(libraries::found(&std::env::var("LD_LIBRARY_PATH").unwrap_or_default()));
    facts
}

/// What says that this is a container: who started it, or a root made of layers of an image.
fn container() -> Option<(String, String)> {
    let read = |path: &str| {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).ok()?;
        file.take(1 << 20).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let variables = read("/proc/1/environ").unwrap_or_default();
    let told = variables.split('\0').find(|word| {
        word.starts_with("container=") || word.starts_with("KUBERNETES_SERVICE_HOST=")
    });
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    let what = match told {
        Some(_) => Some("the first process says so"),
        None => has_image_root(&mounts).then_some("its root is an image"),
    };
    what.map(|what| ("container".to_owned(), what.to_owned()))
}

/// Whether the root is an overlay of a container's image. Diskless machines have other overlays.
pub(super) fn has_image_root(mounts: &str) -> bool {
    let marks = ["containerd", "docker", "containers/storage", "/snapshots/", "crio"];
    mounts.lines().any(|line| {
        line.split_whitespace().nth(4) == Some("/")
            && line.contains(" - overlay ")
            && marks.iter().any(|mark| line.contains(mark))
    })
}

/// Memory of this process's own control group (version 2), which need not be the one at the top.
fn own_group() -> Vec<(String, String)> {
    let path = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = path.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    if path.is_empty() || path.split('/').any(|part| part == "..") {
        return Vec::new();
    }
    let mut facts = Vec::new();
    let mut folder = std::path::Path::new("/sys/fs/cgroup").join(path);
    // The nearest group with a limit counts.
    while folder.starts_with("/sys/fs/cgroup") {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let limit = read("memory.max").and_then(|text| text.trim().parse::<u64>().ok());
        if let Some(limit) = limit {
            facts.push(("group_memory_max".to_owned(), limit.to_string()));
            if let Some(used) = read("memory.current") {
                facts.push(("group_memory_current".to_owned(), used.trim().to_owned()));
            }
            let stat = read("memory.stat").unwrap_or_default();
            if let Some(bytes) = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")) {
                facts.push(("group_memory_inactive_file".to_owned(), bytes.trim().to_owned()));
            }
            break;
        }
        if !folder.pop() {
            break;
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gives_output_or_a_reason() {
        assert_eq!(run(&["echo", "a b"]).unwrap(), "a b\n");
        let why = run(&["ringway-no-such-program"]).unwrap_err();
        assert_eq!(why, "there is no program ringway-no-such-program");
        let why = run(&["sh", "-c", "echo Operation not permitted >&2; exit 1"]).unwrap_err();
        assert!(is_denial(&why), "{why}");
    }

    #[test]
    fn the_root_of_a_pod_is_an_image_and_that_of_a_diskless_machine_is_not() {
        let pod = "1 0 0:9 / / rw - overlay overlay rw,lowerdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs";
        assert!(has_image_root(pod));
        assert!(!has_image_root("1 0 0:9 / / rw - overlay root rw,lowerdir=/ro,upperdir=/rw"));
        assert!(!has_image_root(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /var/lib/docker/x rw - overlay o rw"
        ));
    }

    #[test]
    fn endless_output_is_cut() {
        let begin = Instant::now();
        let text = run(&["yes"]).unwrap_or_default();
        assert!(text.len() as u64 <= BYTES);
        assert!(begin.elapsed() < TIME * 2);
    }

    #[test]
    fn a_program_that_leaves_another_behind_is_not_waited_for() {
        let begin = Instant::now();
        let why = run(&["sh", "-c", "sleep 30 & echo begun"]).unwrap_err();
        assert_eq!(why, "sh left something running");
        assert!(begin.elapsed() < TIME);
    }
}

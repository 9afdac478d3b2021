//! Running the program with a bound on its time.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(10);

/// What a finished program left.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

/// A running program; ended when dropped.
pub(crate) struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    started: Instant,
}

/// The program with these arguments, outside of any launcher's job.
pub(crate) fn ringway(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(args).stdin(Stdio::null());
    let ranks = ["RINGWAY_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
    for name in ranks.into_iter().chain(["JOB_COMPLETION_INDEX", "LWS_WORKER_INDEX"]) {
        command.env_remove(name);
    }
    for name in ["NO_COLOR", "RINGWAY_COLOR", "NCCL_TESTS_MIN_BW"] {
        command.env_remove(name);
    }
    // They are the tests' own, and the program would say that it knows none of them.
    for name in ["RINGWAY_CHAOS_ROUNDS", "RINGWAY_SEED", "RINGWAY_SEEDS", "RINGWAY_TEST_REQUIRE"] {
        command.env_remove(name);
    }
    // What somebody once measured on this machine must not decide a test.
    command.env("RINGWAY_TUNING", "off");
    command
}

/// Starts a program and collects its output.
pub(crate) fn start(command: &mut Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    Running { child, stdout, stderr, started: Instant::now() }
}

/// Runs a program to its end.
pub(crate) fn finish(command: &mut Command) -> Finished {
    start(command).finish()
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _closed = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has ended, without its output.
    pub(crate) fn wait(&mut self) {
        wait_for("the program to end", || self.child.try_wait().unwrap());
    }

    /// Waits for the end, at most a minute.
    pub(crate) fn finish(mut self) -> Finished {
        let status = wait_for("the program to end", || self.child.try_wait().unwrap());
        let took = self.started.elapsed();
        let text = |thread: &mut Option<JoinHandle<String>>| thread.take().unwrap().join().unwrap();
        let (stdout, stderr) = (text(&mut self.stdout), text(&mut self.stderr));
        Finished { status, stdout, stderr, took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

/// Polls until `look` finds something; fails after a minute.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "waited too long for {what}");
        thread::sleep(TICK);
    }
}

/// Processes whose command line or environment holds `mark`, other than this one.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let holds = |path: String| {
        std::fs::read(path)
            .is_ok_and(|bytes| bytes.windows(mark.len()).any(|window| window == mark.as_bytes()))
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| holds(format!("/proc/{pid}/environ")))
        .filter(|pid| !is_zombie(*pid))
        .collect()
}

fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
}

/// Sends a signal by name.
pub(crate) fn signal(name: &str, pid: u32) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = match name {
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        "INT" => Signal::INT,
        "TERM" => Signal::TERM,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        other => panic!("no test sends SIG{other}"),
    };
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process has a number");
    kill_process(pid, signal).expect("the process is there");
}

/// An empty folder of this test's own, removed when dropped.
pub(crate) struct Folder(pub(crate) std::path::PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringway-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _already_gone = std::fs::remove_dir_all(&self.0);
    }
}

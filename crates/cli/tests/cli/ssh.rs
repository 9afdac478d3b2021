//! `ringway run --hosts`: with real ssh servers in network namespaces, and without ssh on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, PROGRAM};
use crate::need;
use crate::process::{Finished, Running, finish, marked, ringway, signal, start, wait_for};

/// `ringway run` on the first of two machines with ssh servers.
struct Ssh {
    cluster: Cluster,
    command: String,
    _servers: Vec<Running>,
}

impl Ssh {
    fn new(name: &str) -> Option<Self> {
        if !need::namespaces() || !need::sshd() {
            return None;
        }
        let cluster = Cluster::new(name);
        let (servers, command) = cluster.ssh();
        Some(Self { cluster, command, _servers: servers })
    }

    fn run(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.on(0, PROGRAM);
        command.args(["run", "--ssh", &self.command]).args(args);
        command
    }

    /// The end of a job that cannot start.
    fn refused(&self, args: &[&str]) -> Finished {
        let done = finish(&mut self.run(args));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert_eq!(done.stdout, "", "{args:?}: nothing was started");
        done
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn ranks_on_two_hosts_have_their_places() {
    let Some(ssh) = Ssh::new("ssh-places") else { return };
    let script = "echo $RINGWAY_RANK/$RINGWAY_SIZE $RINGWAY_LOCAL_RANK/$RINGWAY_LOCAL_SIZE $(uname -n) $EXTRA $NCCL_X; \
                  pwd >&2; test $RINGWAY_RANK != 0 || cat";
    let directory = ssh.cluster.folder.0.display().to_string();
    let mut command = ssh.run(&["--hosts", "node[01-02]:2", "--workdir", &directory]);
    command.args(["--env", "EXTRA=a b", "--", "sh", "-c", script]).env("NCCL_X", "carried");
    let input = ssh.cluster.path("input");
    fs::write(&input, "said to rank 0\n").unwrap();
    let done = finish(command.stdin(fs::File::open(&input).unwrap()));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let expected = [
        "[0 node01] 0/4 0/2 node01 a b carried",
        "[0 node01] said to rank 0",
        "[1 node01] 1/4 1/2 node01 a b carried",
        "[2 node02] 2/4 0/2 node02 a b carried",
        "[3 node02] 3/4 1/2 node02 a b carried",
    ];
    assert_eq!(sorted(&done.stdout), expected);
    assert_eq!(sorted(&done.stderr)[3], format!("[3 node02] {directory}"));
}

#[test]
fn a_death_on_another_host_ends_all_and_is_named() {
    let Some(ssh) = Ssh::new("ssh-death") else { return };
    let mark = format!("MARK=ssh-death-{}", std::process::id());
    let script = "test $RINGWAY_RANK = 3 && exit 7; trap '' TERM; sleep 300 & wait; sleep 300";
    let args =
        ["--hosts", "node01:2,node02:2", "--env", &mark, "--grace", "0", "--", "sh", "-c", script];
    let done = finish(&mut ssh.run(&args));
    assert_eq!(done.status.code(), Some(7), "{done:?}");
    assert!(done.stderr.contains("rank 3 (host node02, pid "), "{}", done.stderr);
    assert!(done.stderr.contains("exited with code 7"), "{}", done.stderr);
    assert_eq!(marked(&mark), Vec::<u32>::new());
}

#[test]
fn signals_and_the_launchers_death_leave_nothing_anywhere() {
    let Some(ssh) = Ssh::new("ssh-signals") else { return };
    for (name, code) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        let mark = format!("MARK=ssh-{name}-{}", std::process::id());
        let args = ["--hosts", "node01:2,node02:2", "--env", &mark, "--", "sleep", "300"];
        let running = start(&mut ssh.run(&args));
        wait_for("the ranks to start", || (marked(&mark).len() == 4).then_some(()));
        signal(name, running.pid());
        if let Some(code) = code {
            let done = running.finish();
            assert_eq!(done.status.code(), Some(code), "{done:?}");
            assert_eq!(marked(&mark), Vec::<u32>::new(), "when the launcher returns");
            assert!(
                done.stderr.contains(&format!("SIG{name}: all 4 ranks ended")),
                "{}",
                done.stderr
            );
        } else {
            wait_for("the ranks to end", || marked(&mark).is_empty().then_some(()));
        }
    }
}

#[test]
fn a_host_that_is_lost_is_named_and_ends_the_job() {
    let Some(ssh) = Ssh::new("ssh-lost") else { return };
    let mark = format!("MARK=ssh-lost-{}", std::process::id());
    let args = ["--hosts", "node01:2,node02:2", "--env", &mark, "--", "sleep", "300"];
    let mut running = start(&mut ssh.run(&args));
    wait_for("the ranks to start", || (marked(&mark).len() == 4).then_some(()));
    let killed = Instant::now();
    ssh.cluster.kill_node(1);
    running.wait();
    assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
    let done = running.finish();
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(done.stderr.contains("lost host node02 with ranks 2 to 3"), "{}", done.stderr);
    assert_eq!(marked(&mark), Vec::<u32>::new());
}

#[test]
fn a_host_that_falls_silent_is_lost_too() {
    let Some(ssh) = Ssh::new("ssh-cut") else { return };
    let mark = format!("MARK=ssh-cut-{}", std::process::id());
    let args = ["--hosts", "node01:1,node02:1", "--env", &mark, "--", "sleep", "300"];
    let running = start(&mut ssh.run(&args));
    wait_for("the ranks to start", || (marked(&mark).len() == 2).then_some(()));
    ssh.cluster.cut();
    let done = running.finish();
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(done.stderr.contains("lost host node02 with rank 1"), "{}", done.stderr);
    // Out of the launcher's reach a rank ends when its agent has heard nothing for a minute.
    assert!(marked(&mark).len() <= 1, "those of the other host have ended");
}

#[test]
fn what_keeps_a_job_from_starting_names_the_host_and_the_fix() {
    let Some(ssh) = Ssh::new("ssh-errors") else { return };
    let path = |name: &str| ssh.cluster.path(name);
    let script = |name: &str, text: &str| {
        fs::write(path(name), text).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("older", "#!/bin/sh\necho ringway-host-agent 1 0.0.1\ncat >/dev/null\n");
    script(
        "oldest",
        "#!/bin/sh\necho \"error: unrecognized subcommand 'host-agent'\" >&2\nexit 2\n",
    );
    let stranger = format!("ssh -F {}", path("ssh_stranger"));
    let unknown = format!("ssh -F {}", path("ssh_unknown"));
    let (older, oldest) = (path("older"), path("oldest"));
    let nowhere = path("nowhere");
    let table: [(&[&str], &[&str]); 9] = [
        (&["--hosts", "node01,node99"], &["host node99: no host has that name", "spelling"]),
        (
            &["--hosts", "node01", "--ssh", "ssh -p 7"],
            &["host node01: no ssh server", "Connection refused", "sshd"],
        ),
        (
            &["--hosts", "node01,node02", "--ssh", &stranger],
            &["host node01: it does not accept your key", "host node02", "ssh-copy-id"],
        ),
        (
            &["--hosts", "node02", "--ssh", &unknown],
            &["host node02: its host key is not known", "by hand"],
        ),
        (
            &["--hosts", "node02", "--remote-path", &nowhere],
            &["host node02: there is no", "nowhere", "--remote-path"],
        ),
        (
            &["--hosts", "node02", "--remote-path", &older],
            &["host node02", "ringway 0.0.1 there, this is", "same version"],
        ),
        (&["--hosts", "node02", "--remote-path", &oldest], &["host node02", "another version"]),
        (
            &["--hosts", "node02", "--workdir", &nowhere],
            &["host node02: no working directory", "--workdir"],
        ),
        (&["--hosts", "node02", "--ssh", "no-such-ssh"], &["no-such-ssh", "openssh-client"]),
    ];
    for (args, words) in table {
        // Of two the later --ssh would be refused by the parser.
        let mut command = ssh.cluster.on(0, PROGRAM);
        command.arg("run");
        if !args.contains(&"--ssh") {
            command.args(["--ssh", &ssh.command]);
        }
        let done = finish(command.args(args).args(["--", "echo", "started"]));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert_eq!(done.stdout, "", "{args:?}: nothing was started");
        for word in words {
            assert!(done.stderr.contains(word), "{args:?}: {word}: {}", done.stderr);
        }
    }
    let done = ssh.refused(&["--hosts", "node01,node02", "--", "no-such-program"]);
    assert!(
        done.stderr.contains("host node01: no-such-program: not found in PATH"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.contains("host node02: no-such-program: not found in PATH"),
        "{}",
        done.stderr
    );
}

#[test]
fn this_machine_needs_no_ssh() {
    let args = [
        "run",
        "--hosts",
        "localhost",
        "-n",
        "3",
        "--ssh",
        "false",
        "--",
        "sh",
        "-c",
        "echo $RINGWAY_RANK",
    ];
    let done = finish(&mut ringway(&args));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(sorted(&done.stdout), ["[0 localhost] 0", "[1 localhost] 1", "[2 localhost] 2"]);
    let perf = ["-b", "8", "-e", "64K", "-f", "8", "-n", "2", "-c", "1"];
    let mut command = ringway(&[
        "run",
        "--hosts",
        "localhost:2",
        "--no-prefix",
        "--",
        PROGRAM,
        "perf",
        "all_reduce",
    ]);
    let done = finish(command.args(perf));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(done.stdout.contains("# Out of bounds values : 0 OK"), "{}", done.stdout);
}

#[test]
fn wrong_hosts_are_refused_before_anything_starts() {
    let table: [(&[&str], &str); 6] = [
        (&["--hosts", ""], "names no host"),
        (&["--hosts", "a:0"], "from 1 to 1024"),
        (&["--hosts", "a:1,b:1", "-n", "9"], "2 slots"),
        (&["--hosts=-oProxyCommand=x"], "not a name"),
        (&["--hostfile", "/nowhere/hosts"], "/nowhere/hosts"),
        (&["--hosts", "a", "--hostfile", "b"], "cannot be used with"),
    ];
    for (args, fix) in table {
        let done = finish(&mut ringway(&[&["run"], args, &["--", "true"]].concat()));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert!(done.stderr.contains(fix), "{args:?}: {}", done.stderr);
    }
    let done = finish(&mut ringway(&["host-agent"]));
    assert_eq!(done.status.code(), Some(1), "nobody gives it orders: {done:?}");
}

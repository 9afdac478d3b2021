//! Machines with names: network namespaces that find each other by `/etc/hosts`, each with a host name of its own, and
//! what launchers need on them (an ssh server, a way to start programs on another machine).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::hosts::{Family, Network};
use crate::process::{Folder, Running, ringway, start, wait_for};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ringway");

/// Two machines, `node01` and `node02`; gone when dropped, with all that runs on them.
pub(crate) struct Cluster {
    network: Network,
    pub(crate) folder: Folder,
    names: Vec<PathBuf>,
}

/// The name of a machine.
pub(crate) fn node(host: u32) -> String {
    format!("node{:02}", host + 1)
}

impl Cluster {
    pub(crate) fn new(name: &str) -> Self {
        let network = Network::new(2, Family::V4);
        let mut text = "127.0.0.1 localhost\n".to_owned();
        for host in 0..2 {
            text.push_str(&format!("{} {}\n", network.address(host), node(host)));
        }
        let names: Vec<PathBuf> =
            (0..2).map(|host| PathBuf::from("/etc/netns").join(network.host(host))).collect();
        for folder in &names {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("hosts"), &text).unwrap();
        }
        Self { network, folder: Folder::new(name), names }
    }

    /// A file of this cluster's own.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.0.join(name).display().to_string()
    }

    /// A program on a machine, outside of any launcher's job.
    pub(crate) fn on(&self, host: u32, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.network.host(host), "unshare", "--uts", "sh", "-c"]);
        command.args(["hostname \"$0\" && exec \"$@\"", &node(host), program]);
        for (name, value) in ringway(&[]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null());
        command
    }

    /// Processes on a machine.
    pub(crate) fn processes(&self, host: u32) -> Vec<String> {
        let output = Command::new("ip").args(["netns", "pids", &self.network.host(host)]).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Ends all that runs on a machine, at once, as a power cut does.
    pub(crate) fn kill_node(&self, host: u32) {
        wait_for("a node to be dead", || {
            let all = self.processes(host);
            if all.is_empty() {
                return Some(());
            }
            let _already_gone = Command::new("kill").arg("-9").args(&all).output();
            None
        });
    }

    /// Lets nothing pass between the machines any more.
    pub(crate) fn cut(&self) {
        self.network.cut(0, 1);
    }

    /// A program that starts others on a machine, called as rsh is: options, the machine, the command's words.
    pub(crate) fn remote_shell(&self) -> String {
        let spaces: String = (0..2)
            .map(|host| format!("  {}) space={} ;;\n", node(host), self.network.host(host)))
            .collect();
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
             case $host in\n{spaces}  *) echo \"no machine $host\" >&2; exit 1 ;;\nesac\n\
             exec ip netns exec $space unshare --uts sh -c 'hostname \"$0\" && exec sh -c \"$1\"' $host \"$*\"\n"
        );
        let path = self.folder.0.join("rsh");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// Starts an ssh server on both machines; the ssh command that reaches them.
    pub(crate) fn ssh(&self) -> (Vec<Running>, String) {
        for key in ["host", "user", "stranger"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &self.path(key)])
                .output()
                .unwrap();
            assert!(made.status.success(), "{made:?}");
        }
        fs::copy(self.path("user.pub"), self.path("authorized")).unwrap();
        let key = fs::read_to_string(self.path("host.pub")).unwrap();
        fs::write(self.path("known"), format!("node01,node02 {key}")).unwrap();
        // Debian's sshd insists on it.
        fs::create_dir_all("/run/sshd").unwrap();
        let server = format!(
            "Port 22\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n",
            self.path("host"),
            self.path("authorized")
        );
        fs::write(self.path("sshd_config"), server).unwrap();
        let client = |key: &str, known: &str| {
            format!(
                "Host *\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n  GlobalKnownHostsFile none\n  \
                 StrictHostKeyChecking yes\n  User root\n",
                self.path(key),
                self.path(known)
            )
        };
        fs::write(self.path("ssh_config"), client("user", "known")).unwrap();
        fs::write(self.path("ssh_stranger"), client("stranger", "known")).unwrap();
        fs::write(self.path("ssh_unknown"), client("user", "nobody")).unwrap();
        let servers = (0..2)
            .map(|host| {
                let mut sshd = self.on(host, "/usr/sbin/sshd");
                start(sshd.args(["-D", "-e", "-f", &self.path("sshd_config")]))
            })
            .collect();
        let ssh = format!("ssh -F {}", self.path("ssh_config"));
        for host in 0..2 {
            wait_for("the ssh servers", || {
                let mut words = ssh.split(' ');
                let mut command = self.on(0, words.next().unwrap());
                command.args(words).args(["-o", "BatchMode=yes", &node(host), "true"]);
                command.output().unwrap().status.success().then_some(())
            });
        }
        (servers, ssh)
    }

    /// Waits until so many ranks of a job, whose logs go to this cluster's folder, are up.
    pub(crate) fn wait_for_ranks(&self, ranks: usize) {
        wait_for("the ranks to meet", || {
            let names = self.folder.names();
            let logs = names.iter().filter(|name| name.starts_with("log."));
            let complete = logs.filter(|name| {
                let text = fs::read_to_string(self.folder.0.join(name)).unwrap_or_default();
                text.contains("Init COMPLETE")
            });
            (complete.count() >= ranks).then_some(())
        });
        std::thread::sleep(Duration::from_millis(500));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for host in 0..2 {
            let all = self.processes(host);
            if !all.is_empty() {
                let _already_gone = Command::new("kill").arg("-9").args(&all).output();
            }
        }
        for folder in &self.names {
            let _already_gone = fs::remove_dir_all(folder);
        }
    }
}

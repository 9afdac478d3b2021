//! A Slurm of the test's own: munged, a controller and a slurmd on each machine of a cluster.

use std::fs;
use std::process::{Command, Stdio};

use crate::cluster::{Cluster, node};
use crate::process::{Running, start, wait_for};

/// The daemons; ended when dropped.
pub(crate) struct Slurm {
    conf: String,
    _daemons: Vec<Running>,
}

impl Slurm {
    /// Starts the daemons and waits until both machines are idle.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let folder = cluster.folder.0.display().to_string();
        let mut key = vec![0; 1024];
        let mut filled = 0;
        while filled < key.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut key[filled..], flags).unwrap();
        }
        fs::write(cluster.path("munge.key"), key).unwrap();
        let mode = |path: &str, mode: &str| {
            assert!(Command::new("chmod").args([mode, path]).status().unwrap().success());
        };
        mode(&cluster.path("munge.key"), "400");
        mode(&folder, "755");
        for name in ["state", "spool-node01", "spool-node02"] {
            fs::create_dir_all(cluster.path(name)).unwrap();
        }
        let conf = cluster.path("slurm.conf");
        fs::write(&conf, settings(&folder)).unwrap();
        // Found beside slurm.conf. Namespaces have no cgroups mounted; this plugin needs none while nothing is limited.
        fs::write(cluster.path("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();

        let mut munged = Command::new("/usr/sbin/munged");
        munged.args(["--force", "--foreground", "--num-threads=2"]);
        for (option, name) in [
            ("key-file", "munge.key"),
            ("socket", "munge.socket"),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        ] {
            munged.arg(format!("--{option}={}", cluster.path(name)));
        }
        let mut daemons = vec![start(munged.stdin(Stdio::null()))];
        let socket = cluster.folder.0.join("munge.socket");
        wait_for("munged", || socket.exists().then_some(()));
        daemons.push(start(cluster.on(0, "/usr/sbin/slurmctld").args(["-D", "-i", "-f", &conf])));
        for host in 0..2 {
            let mut slurmd = cluster.on(host, "/usr/sbin/slurmd");
            daemons.push(start(slurmd.args(["-D", "-N", &node(host), "-f", &conf])));
        }
        let slurm = Self { conf, _daemons: daemons };
        wait_for("the nodes of Slurm", || {
            let mut sinfo = slurm.client(cluster, "sinfo");
            let output = sinfo.args(["--noheader", "--format=%D %T"]).output().unwrap();
            (String::from_utf8_lossy(&output.stdout).trim() == "2 idle").then_some(())
        });
        slurm
    }

    /// A command of Slurm's on the first machine.
    pub(crate) fn client(&self, cluster: &Cluster, program: &str) -> Command {
        let mut command = cluster.on(0, program);
        command.env("SLURM_CONF", &self.conf);
        command
    }
}

fn settings(folder: &str) -> String {
    let nodes: String = (0..2)
        .map(|host| {
            format!("NodeName={0} NodeHostname={0} NodeAddr={0} CPUs=4 State=UNKNOWN\n", node(host))
        })
        .collect();
    format!(
        "ClusterName=ringway\nSlurmctldHost=node01\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n\
         AuthInfo=socket={folder}/munge.socket\nCredType=cred/munge\nSlurmctldPort=26817\nSlurmdPort=26818\n\
         StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\nSlurmctldPidFile={folder}/slurmctld.pid\n\
         SlurmdPidFile={folder}/slurmd-%n.pid\nSlurmctldLogFile={folder}/slurmctld.out\nSlurmdLogFile={folder}/slurmd-%n.out\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
         SchedulerType=sched/builtin\nMpiDefault=none\nJobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\nReturnToService=2\nSlurmdTimeout=5\nKillWait=2\n\
         SlurmdParameters=config_overrides\n{nodes}PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE\n"
    )
}

//! Starting the ranks of a job on one machine, and ending them.
//!
//! Shared by `perf` (ranks are copies of this program), `run` (ranks are any program) and `run`'s agents on other hosts.
//!
//! *Invariant*: when the launcher returns, for whatever reason, none of the processes it
//! started is left. Ranks share the launcher's process group, so a terminal's Ctrl-C reaches
//! them too; each asks the kernel to be ended when the launcher dies ([`rank_exec`]); what a
//! rank leaves behind when a job is ended becomes the launcher's own child and is ended with it.

pub(crate) mod children;
pub(crate) mod environment;
pub(crate) mod rank_exec;
pub(crate) mod signals;
mod strays;

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use crate::this;
use anyhow::{Context as _, bail};
use rustix::rand::{GetRandomFlags, getrandom};

/// More ranks than this on one machine are a slip of the keyboard.
pub(crate) const RANKS_MAX: u32 = 1024;

/// How many ranks to start when nobody says: one per core, at least 2, at most 8.
pub(crate) fn default_ranks() -> u32 {
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    u32::try_from(cores.clamp(2, 8)).unwrap_or(8)
}

/// The number of ranks to start, checked.
pub(crate) fn ranks(option: &str, asked: Option<u32>) -> anyhow::Result<u32> {
    match asked {
        None => Ok(default_ranks()),
        Some(0) => bail!("{option} 0: a job has at least 1 rank"),
        Some(count) if count > RANKS_MAX => {
            bail!("{option} {count}: at most {RANKS_MAX} ranks can be started on one machine")
        }
        Some(count) => Ok(count),
    }
}

/// What all ranks of a local job have in common.
#[derive(Clone, Debug)]
pub(crate) struct LocalJob {
    size: u32,
    root: String,
    secret: String,
}

impl LocalJob {
    /// A job of `size` ranks that meets on a free port of the loopback interface and shares a
    /// fresh secret.
    pub(crate) fn new(size: u32) -> anyhow::Result<Self> {
        // The port is free now; rank 0 binds it again in a moment. Somebody may be quicker:
        // `perf` then tries another port.
        let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("no free port on 127.0.0.1 for the ranks to meet on")?;
        let port = probe.local_addr().context("reading back the port bound on 127.0.0.1")?.port();
        Ok(Self { size, root: format!("127.0.0.1:{port}"), secret: fresh_secret()? })
    }

    /// The command that starts `program` as rank `rank` of this job.
    pub(crate) fn command(
        &self,
        rank: u32,
        program: &OsStr,
        args: &[OsString],
    ) -> anyhow::Result<Command> {
        let mut command = command(program, args)?;
        command.envs(self.variables(rank));
        Ok(command)
    }

    fn variables(&self, rank: u32) -> [(&'static str, String); 6] {
        let place = Place { rank, size: self.size, local: rank, local_size: self.size };
        place.variables(&self.root, &self.secret)
    }
}

/// The command that starts `program` as a rank, tied to this process.
pub(crate) fn command(program: &OsStr, args: &[OsString]) -> anyhow::Result<Command> {
    let (this, first) = this::again()?;
    let mut command = Command::new(this);
    command
        .args(first)
        .arg("rank-exec")
        .arg("--parent")
        .arg(std::process::id().to_string())
        .arg("--")
        .arg(program)
        .args(args);
    Ok(command)
}

/// A rank's place in a job and on its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) local: u32,
    pub(crate) local_size: u32,
}

impl Place {
    /// The variables by which the rank knows its place.
    pub(crate) fn variables(&self, root: &str, secret: &str) -> [(&'static str, String); 6] {
        [
            ("RINGWAY_RANK", self.rank.to_string()),
            ("RINGWAY_SIZE", self.size.to_string()),
            ("RINGWAY_LOCAL_RANK", self.local.to_string()),
            ("RINGWAY_LOCAL_SIZE", self.local_size.to_string()),
            ("RINGWAY_ROOT", root.to_owned()),
            ("RINGWAY_SECRET", secret.to_owned()),
        ]
    }
}

/// 32 random bytes in hexadecimal.
pub(crate) fn fresh_secret() -> anyhow::Result<String> {
    let mut bytes = [0_u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())
            .context("reading random bytes for the job's secret")?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_ranks_has_bounds() {
        assert!((2..=8).contains(&ranks("-n", None).unwrap()));
        assert_eq!(ranks("-n", Some(3)).unwrap(), 3);
        assert!(ranks("-n", Some(0)).unwrap_err().to_string().contains("at least 1"));
        assert!(ranks("-n", Some(9999)).unwrap_err().to_string().contains("at most 1024"));
    }

    #[test]
    fn each_job_has_its_own_secret() {
        let (one, two) = (fresh_secret().unwrap(), fresh_secret().unwrap());
        assert_eq!(one.len(), 64);
        assert_ne!(one, two);
    }

    #[test]
    fn every_rank_gets_its_place() {
        let job = LocalJob::new(3).unwrap();
        let variables = job.variables(2);
        assert_eq!(variables[0], ("RINGWAY_RANK", "2".to_owned()));
        assert_eq!(variables[1], ("RINGWAY_SIZE", "3".to_owned()));
        assert!(variables[4].1.starts_with("127.0.0.1:"));
    }
}

//! Processes that ranks left behind.
//!
//! The launcher is the reaper of its descendants: when a rank dies, the processes it had
//! started become the launcher's children, and so can be found and ended.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};

const TICK: Duration = Duration::from_millis(10);

/// What ranks leave behind from now on.
#[derive(Debug)]
pub(crate) struct Strays {
    /// Children this process had before, which are nobody's strays.
    before: Vec<Pid>,
}

impl Strays {
    /// Makes this process the parent of its orphaned descendants. An old kernel that cannot is
    /// no reason to fail: strays then stay, as they do with other launchers.
    pub(crate) fn adopt() -> Self {
        let _old_kernel = set_child_subreaper(Some(getpid()));
        Self { before: children_of(getpid()) }
    }

    /// Ends all children left, kindly for `patience`, then not.
    ///
    /// Call it only when every rank has been reaped.
    pub(crate) fn end(&self, patience: Duration) {
        let started = Instant::now();
        let mut asked = Vec::new();
        loop {
            let mut strays = children_of(getpid());
            strays.retain(|stray| !self.before.contains(stray));
            if strays.is_empty() || started.elapsed() > 2 * patience {
                return;
            }
            for stray in strays {
                if started.elapsed() > patience {
                    let _already_gone = kill_process(stray, Signal::KILL);
                } else if !asked.contains(&stray) {
                    let _already_gone = kill_process(stray, Signal::TERM);
                    asked.push(stray);
                }
                let _still_running = waitpid(Some(stray), WaitOptions::NOHANG);
            }
            std::thread::sleep(TICK);
        }
    }
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| parent_of(*pid) == Some(parent.as_raw_pid()))
        .filter_map(Pid::from_raw)
        .collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold any character, also `)`.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_by_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let found = children_of(getpid());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&pid));
        assert!(!children_of(getpid()).contains(&pid));
    }
}

//! What of this process's surroundings goes along to the hosts.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use anyhow::Context as _;

use super::wire::Prepare;
use crate::run::args::RunArgs;

/// Variables of a login, a terminal or a shell: each host has its own.
const STAY: [&str; 22] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "HOSTNAME",
    "HOST",
    "MAIL",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "TMPDIR",
    "TTY",
    "STY",
    "TMUX",
    "TMUX_PANE",
    "WINDOWID",
    "INVOCATION_ID",
    "LS_COLORS",
];
/// What other launchers, and this one, told this process of its own place.
const PLACES: [&str; 11] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_COMPLETION_INDEX",
    "RINGWAY_RANK",
    "RINGWAY_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
];
const PREFIXES: [&str; 14] = [
    "SSH_",
    "XDG_",
    "DBUS_",
    "SYSTEMD_",
    "JOURNAL_",
    "BASH_FUNC_",
    "SLURM_",
    "SLURMD_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "PRTE_",
    "TORCHELASTIC_",
    "LWS_",
];

fn goes(name: &str) -> bool {
    !STAY.contains(&name)
        && !PLACES.contains(&name)
        && !PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// What all hosts are told.
pub(super) fn prepare(args: &RunArgs) -> anyhow::Result<Prepare> {
    let directory = match &args.workdir {
        Some(directory) => directory.clone(),
        None => {
            std::env::current_dir().context("finding the working directory; name one: --workdir")?
        }
    };
    let variables = std::env::vars_os()
        .filter(|(name, _)| name.to_str().is_some_and(goes))
        .map(|(name, value)| (name.into_vec(), value.into_vec()));
    Ok(Prepare {
        variables: variables.collect(),
        chosen: args.env.clone(),
        directory: directory.into_os_string().into_vec(),
        command: args.command.iter().map(|word| word.as_bytes().to_vec()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::goes;

    #[test]
    fn settings_go_and_logins_stay() {
        for name in [
            "PATH",
            "LD_LIBRARY_PATH",
            "NCCL_DEBUG",
            "RINGWAY_TIMEOUT",
            "CUDA_VISIBLE_DEVICES",
            "VIRTUAL_ENV",
        ] {
            assert!(goes(name), "{name}");
        }
        for name in [
            "HOME",
            "SSH_AUTH_SOCK",
            "SLURM_PROCID",
            "RANK",
            "RINGWAY_RANK",
            "LWS_GROUP_SIZE",
            "TMPDIR",
        ] {
            assert!(!goes(name), "{name}");
        }
    }
}

//! Where the ranks of a job under attack leave their traces: nowhere, in a folder, or on a disk that is full.
//!
//! *Invariant*: a trace tells of the same error that the rank does; one that cannot be written is a warning.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Rank, named};
use crate::process::{Folder, finish, ringway};

/// Gives a command a disk of its own, with nothing left on it.
const FULL: &str = r#"mount -t tmpfs -o size=64k tmpfs "$RINGWAY_TRACE_DIR" || exit
LC_ALL=C cat /dev/zero 2>&1 > "$RINGWAY_TRACE_DIR/full" | grep -q "No space left" || exit
exec "$@""#;

/// The place for a job's traces.
pub(super) enum Traces {
    Nowhere,
    Folder(Folder),
    Full(Folder),
}

impl Traces {
    /// One of three; where nothing can be mounted no disk is full.
    pub(super) fn choose(number: u32, mounts: bool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = || Folder::new(&format!("chaos-{count}"));
        match number % 3 {
            0 => Self::Nowhere,
            1 if mounts => Self::Full(folder()),
            _ => Self::Folder(folder()),
        }
    }

    pub(super) fn about(&self) -> &'static str {
        match self {
            Self::Nowhere => "without traces",
            Self::Folder(_) => "with traces",
            Self::Full(_) => "with traces on a full disk",
        }
    }

    /// The command of a rank that leaves its traces there; it stays one process.
    pub(super) fn of(&self, mut command: Command) -> Command {
        match self {
            Self::Nowhere => command,
            Self::Folder(folder) => {
                command.env("RINGWAY_TRACE_DIR", &folder.0);
                command
            }
            Self::Full(folder) => {
                let mut inside = Command::new("unshare");
                inside.args(["--mount", "sh", "-c", FULL, "sh"]);
                inside.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
                for (name, value) in command.get_envs() {
                    match value {
                        Some(value) => inside.env(name, value),
                        None => inside.env_remove(name),
                    };
                }
                inside.env("RINGWAY_TRACE_DIR", &folder.0);
                inside
            }
        }
    }

    /// What ranks that ended with an error have left, and what the others have not.
    pub(super) fn check(&self, about: &str, ranks: &[Rank]) {
        let ended: Vec<(usize, String)> =
            (0..).zip(ranks).filter_map(|(number, rank)| Some((number, rank.error()?.1))).collect();
        let warnings = |rank: usize| -> Vec<String> {
            let lines = ranks[rank].stderr.lock().unwrap();
            let lines = lines.iter().map(|(_, line)| line.clone());
            lines.filter(|line| line.contains("the trace (")).collect()
        };
        let warned: usize = (0..ranks.len()).map(|rank| warnings(rank).len()).sum();
        match self {
            Self::Nowhere => assert_eq!(warned, 0, "{about}"),
            Self::Full(folder) => {
                let place = format!("could not be written to {}/ringway-", folder.0.display());
                for (rank, error) in &ended {
                    let said = warnings(*rank);
                    let [line] = &said[..] else { panic!("{about}: rank {rank}: {said:?}") };
                    let full = line.contains(&place) && line.contains("No space left on device");
                    assert!(full, "{about}: rank {rank}: {line}\n{error}");
                }
                // A rank may have said so before it was killed; one that goes on has nothing to say.
                assert!(warned == 0 || !ended.is_empty(), "{about}");
            }
            Self::Folder(folder) => {
                assert_eq!(warned, 0, "{about}");
                assert!(folder.names().is_empty() || !ended.is_empty(), "{about}: traces of what?");
                ended.iter().for_each(|(rank, error)| shows(folder, about, (*rank, error)));
            }
        }
    }
}

/// The rank's trace can be read, and names whom the rank names.
fn shows(folder: &Folder, about: &str, (rank, error): (usize, &str)) {
    let names = folder.names();
    let end = format!("-rank{rank}-error.json");
    let own: Vec<&String> = names.iter().filter(|name| name.ends_with(&end)).collect();
    let [name] = own[..] else { panic!("{about}: rank {rank} left {names:?}") };
    let file = folder.0.join(name).display().to_string();
    let shown = finish(&mut ringway(&["trace", "show", &file]));
    assert_eq!(shown.status.code(), Some(0), "{about}: {shown:?}");
    let found = shown.stdout.lines().find(|line| line.starts_with("# error: "));
    let found =
        found.unwrap_or_else(|| panic!("{about}: rank {rank} tells of no error: {shown:?}"));
    assert_eq!(named(found), named(error), "{about}: rank {rank}: {found}\n{error}");
}

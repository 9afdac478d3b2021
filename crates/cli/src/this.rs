//! The command this process runs: its words, and how it is started again to be the ranks of a job.

use std::ffi::OsString;
use std::sync::OnceLock;

use anyhow::Context as _;

struct This {
    /// The command's own name and its arguments.
    words: Vec<OsString>,
    /// A program and its first arguments, to which those of the command are added.
    again: Option<Vec<OsString>>,
}

static THIS: OnceLock<This> = OnceLock::new();

/// Said once, before anything else.
pub(crate) fn set(words: Vec<OsString>, again: Option<Vec<OsString>>) {
    THIS.get_or_init(|| This { words, again: again.filter(|words| !words.is_empty()) });
}

/// The command's name and arguments.
pub(crate) fn words() -> &'static [OsString] {
    THIS.get().map_or(&[], |this| &this.words)
}

/// The arguments.
pub(crate) fn args() -> &'static [OsString] {
    words().split_first().map_or(&[], |(_, args)| args)
}

/// The program that is this command, and the arguments that come before the command's own.
pub(crate) fn again() -> anyhow::Result<(OsString, &'static [OsString])> {
    if let Some((program, first)) = THIS.get().and_then(|this| this.again.as_ref()?.split_first()) {
        return Ok((program.clone(), first));
    }
    let this = std::env::current_exe().context("finding this program's own path")?;
    Ok((this.into(), &[]))
}

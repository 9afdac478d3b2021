//! Finding the program before any rank is started, so that a misspelt name is one error.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::bail;

/// Fails when `program` cannot be started.
pub(crate) fn check(program: &OsStr) -> anyhow::Result<()> {
    check_in(program, &env::var_os("PATH").unwrap_or_default())
}

/// The same with this `PATH`.
pub(crate) fn check_in(program: &OsStr, path: &OsStr) -> anyhow::Result<()> {
    let name = program.display();
    if program.as_bytes().contains(&b'/') {
        let path = Path::new(program);
        if !path.exists() {
            bail!("{name}: no such file");
        }
        if !is_program(path) {
            bail!("{name}: not an executable file; try `chmod +x` or name its interpreter");
        }
        return Ok(());
    }
    if env::split_paths(path).any(|folder| is_program(&folder.join(program))) {
        return Ok(());
    }
    if Path::new(program).exists() {
        bail!("{name}: not found in PATH; to start the file here write ./{name}");
    }
    bail!("{name}: not found in PATH");
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_or_the_reason_is_given() {
        assert!(check(OsStr::new("sh")).is_ok());
        assert!(check(OsStr::new("/bin/sh")).is_ok());
        let error = check(OsStr::new("no-such-program-here")).unwrap_err();
        assert!(error.to_string().contains("not found in PATH"));
        let error = check(OsStr::new("/proc/version")).unwrap_err();
        assert!(error.to_string().contains("chmod +x"));
    }
}

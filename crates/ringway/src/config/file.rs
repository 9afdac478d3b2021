//! Where settings come from: the process environment and NCCL's configuration files.
//!
//! *Invariant:* [`Environment::from_process`] is the one place that reads `std::env`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::Warning;

const CONF_BYTES_MAX: u64 = 1 << 20;
const SYSTEM_FILE: &str = "/etc/nccl.conf";

/// Everything outside the code that settings depend on: variables, home directory, files.
///
/// Tests build one from a map and a directory that stands for `/`.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    home: Option<PathBuf>,
    files: Files,
}

impl Environment {
    /// An environment of these variables, without home and without files.
    pub fn new<N: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
        Self { variables, home: None, files: Files { root: None } }
    }

    /// The environment of this process. A value that is not UTF-8 keeps replacement characters,
    /// which no setting takes.
    #[must_use]
    pub fn from_process() -> Self {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let mut environment = Self::new(std::env::vars_os().map(|(n, v)| (lossy(n), lossy(v))));
        environment.home = std::env::home_dir();
        environment.files = Files::default();
        environment
    }

    /// The same with a home directory (for `~/.nccl.conf`).
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = Some(home.into());
        self
    }

    /// The same with files: every path is looked up under `root`.
    #[must_use]
    pub fn with_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.files = Files { root: Some(root.into()) };
        self
    }

    /// The same with these variables laid over it.
    #[must_use]
    pub fn with<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.variables.extend(variables.into_iter().map(|(n, v)| (n.into(), v.into())));
        self
    }

    /// A variable's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The variables, in order of their names.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    pub(super) fn files(&self) -> &Files {
        &self.files
    }

    /// The lines of the configuration files, those that win first.
    pub(super) fn conf_lines(&self, warnings: &mut Vec<Warning>) -> Vec<ConfLine> {
        let chosen = self.get("NCCL_CONF_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let user = chosen.clone().or_else(|| self.home.as_ref().map(|h| h.join(".nccl.conf")));
        let system = PathBuf::from(SYSTEM_FILE);
        let mut lines = Vec::new();
        for path in user.iter().chain([&system]) {
            match self.files.read(path, CONF_BYTES_MAX) {
                Ok(bytes) => parse_conf(path, &bytes, &mut lines, warnings),
                // Only a file that was asked for must be there.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && chosen.as_ref() != Some(path) => {
                }
                Err(error) => warnings.push(Warning {
                    name: path.display().to_string(),
                    text: format!("{}: cannot be read: {error}; ignored", path.display()),
                }),
            }
        }
        lines
    }
}

/// Names only: values may be secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("variables", &self.variables.keys())
            .field("home", &self.home)
            .field("files", &self.files)
            .finish()
    }
}

/// The file system, or a directory that stands for it, or nothing.
#[derive(Clone, Debug)]
pub(super) struct Files {
    root: Option<PathBuf>,
}

impl Default for Files {
    fn default() -> Self {
        Self { root: Some(PathBuf::from("/")) }
    }
}

impl Files {
    fn locate(&self, path: &Path) -> Option<PathBuf> {
        let root = self.root.as_ref()?;
        if root == Path::new("/") {
            return Some(path.to_owned());
        }
        Some(root.join(path.strip_prefix("/").unwrap_or(path)))
    }

    /// The content of a file of at most `bytes_max`; never waits for a pipe's other end.
    pub(super) fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let path = self.locate(path).ok_or(io::ErrorKind::NotFound)?;
        let kind = std::fs::metadata(&path)?.file_type();
        if !kind.is_file() && !kind.is_char_device() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        std::fs::File::open(&path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(io::Error::other(format!("longer than {bytes_max} bytes")));
        }
        Ok(bytes)
    }
}

/// One `NAME=value` line of a configuration file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConfLine {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) path: PathBuf,
    pub(super) line: usize,
}

/// Parses `NAME=value` lines. Messages name file and line, never the text: it may hold a secret.
fn parse_conf(path: &Path, bytes: &[u8], lines: &mut Vec<ConfLine>, warnings: &mut Vec<Warning>) {
    let mine = lines.len();
    for (index, raw) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = index + 1;
        let mut warn = |why: &str| {
            let place = format!("{}:{line}", path.display());
            warnings.push(Warning {
                text: format!("{place}: {why}; the line is ignored"),
                name: place,
            });
        };
        let Ok(text) = std::str::from_utf8(raw) else {
            warn("not UTF-8");
            continue;
        };
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let Some((name, value)) = text.split_once('=') else {
            warn("no = in it; write NAME=value");
            continue;
        };
        let (name, value) = (name.trim(), value.trim());
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            warn("no variable's name before the =; write NAME=value");
        } else if value.is_empty() {
            warn(&format!("{name} has no value"));
        } else if name == "NCCL_CONF_FILE" {
            warn("NCCL_CONF_FILE counts in the process environment only");
        } else if let Some(first) = lines[mine..].iter().find(|line| line.name == name) {
            warn(&format!("{name} stands in line {} already, and the first counts", first.line));
        } else {
            let (name, value) = (name.to_owned(), value.to_owned());
            lines.push(ConfLine { name, value, path: path.to_owned(), line });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conf_lines_are_read_and_bad_ones_named() {
        let text =
            b"# comment\n\n NCCL_DEBUG = INFO \r\nNCCL_ALGO\n=x\nA B=c\nNCCL_PROTO=\n\xff=1\n\
                     NCCL_DEBUG=WARN\nNCCL_CONF_FILE=/x\nRINGWAY_ROOT=a=b\nNCCL_SOCK";
        let (mut lines, mut warnings) = (Vec::new(), Vec::new());
        parse_conf(Path::new("/etc/nccl.conf"), text, &mut lines, &mut warnings);
        let read: Vec<_> =
            lines.iter().map(|l| (l.name.as_str(), l.value.as_str(), l.line)).collect();
        assert_eq!(read, [("NCCL_DEBUG", "INFO", 3), ("RINGWAY_ROOT", "a=b", 11)]);
        let places: Vec<_> = warnings.iter().map(|w| w.name.as_str()).collect();
        let numbers = [4, 5, 6, 7, 8, 9, 10, 12];
        assert_eq!(places, numbers.map(|line| format!("/etc/nccl.conf:{line}")));
        assert_eq!(
            warnings[0].text,
            "/etc/nccl.conf:4: no = in it; write NAME=value; the line is ignored"
        );
    }

    #[test]
    fn debug_form_hides_values() {
        let environment = Environment::new([("RINGWAY_SECRET", "hunter2")]);
        let text = format!("{environment:?}");
        assert!(text.contains("RINGWAY_SECRET") && !text.contains("hunter2"), "{text}");
    }
}

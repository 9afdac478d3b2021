//! The machine as a tree of files: the live one, or a copy of it in a folder.
//!
//! A copied tree is laid out as the machine is: `DIR/sys/…`, `DIR/proc/…`, `DIR/etc/…`; outputs of
//! commands stand in `DIR/commands/NAME.txt`. All paths are those of the machine, whatever the
//! folder: `root.read("/sys/class/net/eth0/mtu")`.
//!
//! *Invariant:* no path leads out of the root, whatever links lie in it. No call waits for
//! another process, and none takes more memory than its limit: pipes, sockets and devices are
//! never opened, and what is longer than the limit is an error, not cut off.

use std::ffi::OsString;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

#[cfg(test)]
mod tests;

/// Bytes of a file that [`Root::read`] takes at the most.
const FILE_BYTES: u64 = 1 << 20;

/// Bytes of a command's output that [`Root::command_output`] takes at the most.
const COMMAND_BYTES: u64 = 64 << 20;

/// Names of a folder that [`Root::list`] takes at the most.
const NAMES: usize = 1 << 16;

/// Links followed in one path, as the kernel counts.
const HOPS: usize = 40;

/// Bytes and components of a path, links expanded.
const PATH_BYTES: usize = 1 << 16;

/// Why something in a root could not be read. A file that is not there is no error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// This user may not read it.
    #[error("{path}: permission denied; try as root, or copy the tree as root")]
    Denied {
        /// The path, as the machine names it.
        path: String,
    },
    /// A folder, pipe, socket or device where a file is expected.
    #[error("{path} is {kind}, not a file")]
    NotAFile {
        /// The path.
        path: String,
        /// What it is: `a folder`.
        kind: &'static str,
    },
    /// Something else where a folder is expected.
    #[error("{path} is {kind}, not a folder")]
    NotAFolder {
        /// The path.
        path: String,
        /// What it is: `a file`.
        kind: &'static str,
    },
    /// A file longer than the limit.
    #[error("{path} is longer than {limit} bytes; that is no file of this kind")]
    TooLong {
        /// The path.
        path: String,
        /// The most that was asked for.
        limit: u64,
    },
    /// A folder with more names than the limit.
    #[error("{path} holds more than {limit} names")]
    TooMany {
        /// The path.
        path: String,
        /// The most that was asked for.
        limit: usize,
    },
    /// A link that leads out of the root.
    #[error("{path} leads out of {root}; copy what it points at into the tree")]
    Outside {
        /// The path.
        path: String,
        /// The folder of the root.
        root: String,
    },
    /// A link that leads to itself, or more than 40 links in a row.
    #[error("{path} goes through more than {HOPS} links; one of them leads in a circle")]
    Loop {
        /// The path.
        path: String,
    },
    /// A path that no file can have.
    #[error("{path:?} is no path: {why}")]
    BadPath {
        /// The path, cut to 64 characters.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file that does not hold the number it should.
    #[error("{path} holds {text:?}, not a number in range")]
    NotANumber {
        /// The path.
        path: String,
        /// What it holds, cut to 64 characters.
        text: String,
    },
    /// The kernel refused: a driver may answer EINVAL for a port that is down.
    #[error("{path}: {cause}")]
    Refused {
        /// The path.
        path: String,
        /// What the kernel says.
        cause: String,
        /// Its error number.
        errno: Option<i32>,
    },
}

/// The machine as a tree of files.
///
/// ```
/// let root = ringway::topo::Root::live();
/// let host = root.read("/proc/sys/kernel/hostname").unwrap();
/// assert!(host.is_none_or(|name| !name.ends_with('\n')));
/// assert_eq!(root.read("/proc/no/such/file").unwrap(), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    folder: PathBuf,
    live: bool,
}

/// Where a path leads, all links followed.
struct Place {
    /// Components below the root.
    inside: PathBuf,
    /// What is there; nothing for a missing file.
    found: Option<Metadata>,
}

impl Root {
    /// This machine.
    #[must_use]
    pub fn live() -> Self {
        Self { folder: PathBuf::from("/"), live: true }
    }

    /// A copy of a machine's files below a folder. The folder itself may be reached by links.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), live: false }
    }

    /// Whether this is the machine itself, where commands can be run and libraries asked.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// The folder: `/` for the machine itself.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The text of a file without its last line's end; nothing where there is no such file.
    /// Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// What is there is no file, is longer than 1 MiB, or may not be read.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Option<String>, RootError> {
        self.read_at_most(path, FILE_BYTES)
    }

    /// Like [`Self::read`], with another limit in bytes.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn read_at_most(
        &self,
        path: impl AsRef<Path>,
        limit: u64,
    ) -> Result<Option<String>, RootError> {
        let Some(bytes) = self.bytes_at_most(path, limit)? else { return Ok(None) };
        let mut text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        text.truncate(text.trim_end_matches(['\n', '\r']).len());
        Ok(Some(text))
    }

    /// The bytes of a file, such as a device's configuration space; nothing where there is none.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn bytes_at_most(
        &self,
        path: impl AsRef<Path>,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, RootError> {
        let path = path.as_ref();
        let place = self.place(path)?;
        let Some(found) = place.found else { return Ok(None) };
        if !found.is_file() {
            return Err(RootError::NotAFile {
                path: shown(path),
                kind: kind_of(found.file_type()),
            });
        }
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY)
            .open(self.folder.join(&place.inside));
        let file = match file {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(refused(path, &error)),
        };
        // The file may have been exchanged for another since it was looked at.
        let kind = file.metadata().map_err(|error| refused(path, &error))?.file_type();
        if !kind.is_file() {
            return Err(RootError::NotAFile { path: shown(path), kind: kind_of(kind) });
        }
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| refused(path, &error))?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > limit) {
            return Err(RootError::TooLong { path: shown(path), limit });
        }
        Ok(Some(bytes))
    }

    /// The number in a file, decimal or `0x…`; nothing where there is no such file.
    ///
    /// # Errors
    /// As for [`Self::read`], or what the file holds is no number that fits `T`.
    pub fn number<T: TryFrom<i128>>(&self, path: impl AsRef<Path>) -> Result<Option<T>, RootError> {
        let path = path.as_ref();
        let Some(text) = self.read(path)? else { return Ok(None) };
        let word = text.trim();
        let number = match word.strip_prefix("0x") {
            Some(digits) => i128::from_str_radix(digits, 16),
            None => word.parse(),
        };
        match number.ok().and_then(|number| T::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => {
                let text = word.chars().take(64).collect();
                Err(RootError::NotANumber { path: shown(path), text })
            }
        }
    }

    /// The names in a folder, sorted by bytes; none where there is no such folder.
    ///
    /// # Errors
    /// What is there is no folder, holds more than 65,536 names, or may not be read.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<String>, RootError> {
        let path = path.as_ref();
        let place = self.place(path)?;
        let Some(found) = place.found else { return Ok(Vec::new()) };
        if !found.is_dir() {
            let kind = kind_of(found.file_type());
            return Err(RootError::NotAFolder { path: shown(path), kind });
        }
        let entries = match std::fs::read_dir(self.folder.join(&place.inside)) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            Err(error) => return Err(refused(path, &error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| refused(path, &error))?;
            if names.len() == NAMES {
                return Err(RootError::TooMany { path: shown(path), limit: NAMES });
            }
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Where a path really is: the absolute path, as the machine names it, with all links
    /// followed; nothing where there is no such file or link. A link to what was not copied is
    /// followed as far as the tree goes, and the rest is taken by name.
    ///
    /// # Errors
    /// The links lead in a circle, or out of the root.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<Option<String>, RootError> {
        let path = path.as_ref();
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(Some("/".to_owned()));
        };
        let above = self.place(folder)?;
        if above.found.is_none() {
            return Ok(None);
        }
        match self.folder.join(above.inside).join(name).symlink_metadata() {
            Ok(_) => {}
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(refused(path, &error)),
        }
        let place = self.place(path)?;
        Ok(Some(shown(&Path::new("/").join(place.inside))))
    }

    /// Whether there is something, links followed. What may not be looked at is not there.
    #[must_use]
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.place(path.as_ref()).is_ok_and(|place| place.found.is_some())
    }

    /// What a command printed when the tree was copied: `commands/NAME.txt`, or `commands/NAME`.
    /// Nothing on the live machine, where whoever wants it runs the command.
    ///
    /// # Errors
    /// As for [`Self::read`], with a limit of 64 MiB; or the name is no plain file name.
    pub fn command_output(&self, name: &str) -> Result<Option<String>, RootError> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            let why = "the name of a command's output is one word";
            return Err(RootError::BadPath { path: name.chars().take(64).collect(), why });
        }
        if self.live {
            return Ok(None);
        }
        let plain = Path::new("/commands").join(name);
        match self.read_at_most(plain.with_file_name(format!("{name}.txt")), COMMAND_BYTES)? {
            Some(text) => Ok(Some(text)),
            None => self.read_at_most(plain, COMMAND_BYTES),
        }
    }

    /// Follows a path, component by component, without ever leaving the root.
    fn place(&self, path: &Path) -> Result<Place, RootError> {
        let mut pending = Vec::new();
        push_components(path, path, &mut pending)?;
        let mut place = Place { inside: PathBuf::new(), found: None };
        place.found = match self.folder.metadata() {
            Ok(found) => Some(found),
            Err(error) if is_missing(&error) => None,
            Err(error) => return Err(refused(path, &error)),
        };
        let mut hops = 0;
        while let Some(name) = pending.pop() {
            if name == ".." {
                // What is above the root of the machine is the root; a copied tree has an edge.
                if !place.inside.pop() && !self.live {
                    let root = self.folder.display().to_string();
                    return Err(RootError::Outside { path: shown(path), root });
                }
                place.found = self.folder.join(&place.inside).symlink_metadata().ok();
                continue;
            }
            let here = self.folder.join(&place.inside).join(&name);
            let found = match place.found.is_some().then(|| here.symlink_metadata()) {
                None => None,
                Some(Ok(found)) => Some(found),
                Some(Err(error)) if is_missing(&error) => None,
                Some(Err(error)) => return Err(refused(path, &error)),
            };
            if found.as_ref().is_none_or(|found| !found.file_type().is_symlink()) {
                place.inside.push(&name);
                place.found = found;
                continue;
            }
            hops += 1;
            if hops > HOPS {
                return Err(RootError::Loop { path: shown(path) });
            }
            let target = std::fs::read_link(&here).map_err(|error| refused(path, &error))?;
            if target.is_absolute() {
                place.inside = PathBuf::new();
            }
            push_components(path, &target, &mut pending)?;
        }
        Ok(place)
    }
}

/// Puts the components of `path`, the first on top, on the stack of those still to be walked.
fn push_components(
    whole: &Path,
    path: &Path,
    pending: &mut Vec<OsString>,
) -> Result<(), RootError> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let bad = |why| {
        let path = whole.to_string_lossy().chars().take(64).collect();
        Err(RootError::BadPath { path, why })
    };
    if bytes.contains(&0) {
        return bad("it holds a zero byte");
    }
    if bytes.len() + pending.len() > PATH_BYTES {
        return bad("it is too long");
    }
    let from = pending.len();
    pending.extend(path.components().filter_map(|component| match component {
        Component::ParentDir => Some(OsString::from("..")),
        Component::Normal(name) => Some(name.to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    }));
    pending[from..].reverse();
    Ok(())
}

/// Not there, or below something that is no folder.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn refused(path: &Path, error: &io::Error) -> RootError {
    let path = shown(path);
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::PermissionDenied, _) => RootError::Denied { path },
        (_, Some(libc::ELOOP)) => RootError::Loop { path },
        (_, errno) => RootError::Refused { path, cause: error.to_string(), errno },
    }
}

fn kind_of(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else if kind.is_symlink() {
        "a link"
    } else {
        "a file"
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

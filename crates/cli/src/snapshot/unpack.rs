//! Unpacking a snapshot into a private folder that goes away again.
//!
//! *Invariant*: an archive, however hostile, writes below that folder only, no more than [`BYTES`] in
//! [`ENTRIES`] entries, and nothing but files, folders and links. Links are made last, so that no file is ever
//! written through one. Of one entry no more than [`EXTENSION`] bytes are held in memory; names and targets count
//! as bytes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufReader, Read, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, bail, ensure};
use ringway::topo::Root;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Bytes of all files together.
const BYTES: u64 = 192 << 20;

/// Files, folders and links.
const ENTRIES: usize = 200_000;

/// Bytes of a long name or of a list of attributes.
const EXTENSION: u64 = 64 << 10;

/// Bytes of a link's target.
const TARGET: usize = 4096;

/// Folders one below another.
const DEPTH: usize = 64;

/// An unpacked snapshot; its folder goes away with it.
#[derive(Debug)]
pub(crate) struct Unpacked {
    folder: PathBuf,
}

impl Unpacked {
    /// Unpacks a file.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        Self::open_at_most(path, BYTES, ENTRIES)
    }

    /// Unpacks a file with other limits of bytes and entries.
    pub(super) fn open_at_most(path: &Path, bytes: u64, entries: usize) -> anyhow::Result<Self> {
        let unreadable = || format!("cannot read {}", path.display());
        // Before it is opened: a pipe would wait for someone to write.
        let metadata = fs::metadata(path).with_context(unreadable)?;
        ensure!(metadata.is_file(), "{} is neither a file nor a folder", path.display());
        let mut file = File::open(path).with_context(unreadable)?;
        let mut head = [0; 262];
        let length = read_up_to(&mut file, &mut head)?;
        file.rewind()?;
        let unpacked = Self { folder: private_folder()? };
        let source = BufReader::new(file);
        let done = if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            let decoder = ruzstd::decoding::StreamingDecoder::new(source)
                .map_err(|error| anyhow::anyhow!("no whole zstd file: {error}"));
            decoder.and_then(|decoder| unpacked.unpack(decoder, bytes, entries))
        } else if length == head.len() && head[257..].starts_with(b"ustar") {
            unpacked.unpack(source, bytes, entries)
        } else if head.starts_with(&[0x1f, 0x8b]) {
            let plain = flate2::bufread::MultiGzDecoder::new(source);
            unpacked.unpack(plain, bytes, entries)
        } else {
            Err(anyhow::anyhow!("no snapshot: neither zstd, gzip nor tar"))
        };
        done.with_context(|| path.display().to_string())?;
        Ok(unpacked)
    }

    /// Where it lies.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn unpack(&self, source: impl Read, bytes: u64, entries: usize) -> anyhow::Result<()> {
        // A header, a link's name and the filling of a block for each entry.
        let mut archive = tar::Archive::new(source.take(bytes + (entries as u64) * 8192));
        let mut links = BTreeMap::<PathBuf, PathBuf>::new();
        let mut left = bytes;
        let (mut count, mut all) = (0_usize, 0_usize);
        let mut names = Names::default();
        // Raw: the library would read a long name of any length into memory.
        for entry in archive.entries()?.raw(true) {
            ensure!(!interrupted(), "interrupted");
            count += 1;
            ensure!(count <= entries.saturating_mul(3), "more than {entries} entries");
            let mut entry = entry.context("broken archive")?;
            if names.take(&mut entry)? {
                continue;
            }
            all += 1;
            ensure!(all <= entries, "more than {entries} entries");
            let names = std::mem::take(&mut names);
            let name = match names.path {
                Some(path) => path,
                None => entry.path()?.into_owned(),
            };
            let cost = name.as_os_str().len() as u64;
            left = left.checked_sub(cost).with_context(|| format!("more than {bytes} bytes"))?;
            let Some(inside) = inside(&name)? else { continue };
            let path = self.folder.join(&inside);
            match entry.header().entry_type() {
                tar::EntryType::Directory => fs::create_dir_all(&path)?,
                tar::EntryType::Regular | tar::EntryType::Continuous => {
                    if let Some(folder) = path.parent() {
                        fs::create_dir_all(folder)?;
                    }
                    let mut file = File::options()
                        .write(true)
                        .create_new(true)
                        .open(&path)
                        .with_context(|| format!("{} cannot be unpacked", inside.display()))?;
                    left = copy(&mut entry, &mut file, left)?
                        .with_context(|| format!("more than {bytes} bytes"))?;
                }
                tar::EntryType::Symlink => {
                    let target = match names.target {
                        Some(target) => target,
                        None => entry.link_name()?.context("a link without a target")?.into_owned(),
                    };
                    let length = target.as_os_str().len();
                    ensure!((1..=TARGET).contains(&length), "a link's target is too long");
                    left = left
                        .checked_sub(length as u64)
                        .with_context(|| format!("more than {bytes} bytes"))?;
                    links.insert(inside, target);
                }
                other => bail!(
                    "{} is {other:?}; a snapshot holds files, folders and links",
                    inside.display()
                ),
            }
        }
        for (inside, target) in &links {
            let below_link = inside.ancestors().skip(1).any(|above| links.contains_key(above));
            ensure!(!below_link, "{} lies below a link", inside.display());
            let path = self.folder.join(inside);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            symlink(target, &path)
                .with_context(|| format!("{} cannot be unpacked", inside.display()))?;
        }
        Ok(())
    }
}

/// What entries of their own say of the next one: names that do not fit into a header.
#[derive(Debug, Default)]
struct Names {
    path: Option<PathBuf>,
    target: Option<PathBuf>,
}

impl Names {
    /// Reads such an entry; whether it was one.
    fn take(&mut self, entry: &mut tar::Entry<'_, impl Read>) -> anyhow::Result<bool> {
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            return Ok(true);
        }
        if !kind.is_gnu_longname() && !kind.is_gnu_longlink() && !kind.is_pax_local_extensions() {
            return Ok(false);
        }
        let size = entry.size();
        ensure!(size <= EXTENSION, "a name of {size} bytes is too long");
        let mut bytes = Vec::new();
        entry.take(EXTENSION).read_to_end(&mut bytes).context("broken archive")?;
        let as_path = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            Some(PathBuf::from(OsStr::from_bytes(&bytes[..end])))
        };
        if kind.is_gnu_longname() {
            self.path = as_path(&bytes);
        } else if kind.is_gnu_longlink() {
            self.target = as_path(&bytes);
        } else {
            for extension in tar::PaxExtensions::new(&bytes) {
                let extension = extension.context("broken archive")?;
                match extension.key_bytes() {
                    b"path" => self.path = as_path(extension.value_bytes()),
                    b"linkpath" => self.target = as_path(extension.value_bytes()),
                    b"size" => bail!("a file of more than 8 GiB"),
                    _ => {}
                }
            }
        }
        Ok(true)
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

/// The copied files of a machine: a folder laid out as / is, or a snapshot, unpacked as long as this lives.
#[derive(Debug)]
pub(crate) enum Copied {
    /// A folder.
    Folder(PathBuf),
    /// A snapshot.
    Snapshot(Unpacked),
}

impl Copied {
    /// Opens what someone named.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path.is_dir() {
            return Ok(Self::Folder(std::path::absolute(path)?));
        }
        Unpacked::open(path).map(Self::Snapshot)
    }

    /// The tree to read.
    pub(crate) fn root(&self) -> Root {
        match self {
            Self::Folder(folder) => Root::at(folder),
            Self::Snapshot(unpacked) => Root::at(unpacked.folder()),
        }
    }

    /// Whether one of these folders is in it.
    pub(crate) fn holds(&self, folders: &[&str]) -> bool {
        let root = self.root();
        folders.iter().any(|name| root.exists(format!("/{name}")))
    }
}

/// A path below the folder; nothing for the folder itself.
fn inside(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                bail!("{} leads out of the snapshot", path.display())
            }
        }
    }
    ensure!(inside.components().count() <= DEPTH, "{} is too deep", path.display());
    Ok((!inside.as_os_str().is_empty()).then_some(inside))
}

/// Copies at most `left` bytes and returns how many may still come; nothing when there were more.
fn copy(source: &mut impl Read, target: &mut File, left: u64) -> anyhow::Result<Option<u64>> {
    let copied = io::copy(&mut source.take(left + 1), target).context("broken archive")?;
    target.flush()?;
    Ok(left.checked_sub(copied))
}

fn read_up_to(file: &mut File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read(&mut bytes[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// A new folder that only this user may enter.
fn private_folder() -> anyhow::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let _heard = STOP.get_or_init(listen);
    for _ in 0..1000 {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("ringway-snapshot-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| folder.display().to_string()),
        }
    }
    bail!("cannot make a folder in {}", std::env::temp_dir().display())
}

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on an interrupt ends the work at the next entry, so that the folder can be removed. Where that
/// cannot be arranged an interrupt leaves the folder behind.
fn listen() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let _as_before = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    stop
}

/// Whether someone asked to stop.
pub(crate) fn interrupted() -> bool {
    STOP.get().is_some_and(|stop| stop.load(Ordering::Relaxed))
}

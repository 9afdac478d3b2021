//! `ringway snapshot`: what the doctor reads of this machine, in one small file.
//!
//! [`gather`] collects, [`secrets`] takes out what must not leave the machine, [`unpack`] reads the file again.
//!
//! *Invariant*: a snapshot holds nothing but what the tables of `doctor/sources.rs` name, so that what it may
//! give away can be read there and in docs/snapshot.md.

pub(crate) mod gather;
#[cfg(test)]
mod properties;
mod secrets;
#[cfg(test)]
mod tests;
pub(crate) mod unpack;

use crate::exit::ExitCode;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::Args;
use ringway::topo::Root;

use self::gather::Entry;
use crate::doctor::host::Host;
use crate::output;

/// Keep this machine's facts in a file, for the doctor on another machine
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "The file holds what `ringway doctor` and `ringway topo` read: files of /sys,
/proc and /etc that concern GPUs, networks and limits, and outputs of nvidia-smi,
ethtool, dmesg and the like. Values that look like secrets are left out; --anonymous also hides
names, addresses and serial numbers.

Examples:
  ringway snapshot                        ringway-HOST.tar.zst
  ringway snapshot -o node17.tar.zst
  ringway snapshot --anonymous -o -  > s.tar.zst
  ringway doctor node*.tar.zst            looks at them, and compares
  ringway topo --root node17.tar.zst      shows its GPUs and NICs

Exits with 0, or with 2 when the file cannot be written."
)]
pub(crate) struct SnapshotArgs {
    /// Where to write it; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Hide host names, addresses and serial numbers
    #[arg(long)]
    anonymous: bool,
    /// Take it of a folder laid out as / is, instead of this machine
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
}

/// Takes the snapshot.
pub(crate) fn run(args: &SnapshotArgs) -> anyhow::Result<ExitCode> {
    let host = Host::new(args.root.as_ref().map_or_else(Root::live, Root::at));
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let taken = gather::gather(&host, args.anonymous, seconds)?;
    let packed = pack(&taken)?;
    let path = match &args.output {
        Some(path) if path.as_os_str() == "-" => {
            output::stdout_bytes(&packed)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(path) => path.clone(),
        None => PathBuf::from(format!("ringway-{}.tar.zst", plain(&taken.name))),
    };
    write(&path, &packed).with_context(|| format!("cannot write {}", path.display()))?;
    let files = taken.entries.values().filter(|entry| matches!(entry, Entry::File(_))).count();
    output::line(&format!(
        "{}: {files} files, {} KiB; {} things could not be read (manifest.json lists them)",
        path.display(),
        packed.len().div_ceil(1024),
        taken.missing
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A host's name as part of a file's.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(64).collect()
}

/// Writes the whole file or none of it, for this user only.
fn write(path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&part)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        let _gone = std::fs::remove_file(&part);
    }
    written
}

/// The entries as a compressed archive, the manifest first, the rest in the order of their paths.
pub(crate) fn pack(taken: &gather::Taken) -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |path: &str, entry: &Entry| -> std::io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        match entry {
            Entry::File(bytes) => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_mode(0o644);
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, path, &bytes[..])
            }
            Entry::Folder => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                header.set_size(0);
                archive.append_data(&mut header, path, std::io::empty())
            }
            Entry::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                header.set_size(0);
                archive.append_link(&mut header, path, target)
            }
        }
    };
    add("manifest.json", &Entry::File(taken.manifest.clone()))?;
    for (path, entry) in &taken.entries {
        add(path, entry).with_context(|| format!("cannot pack {path}"))?;
    }
    let bytes = archive.into_inner()?;
    Ok(ruzstd::encoding::compress_to_vec(&bytes[..], ruzstd::encoding::CompressionLevel::Fastest))
}

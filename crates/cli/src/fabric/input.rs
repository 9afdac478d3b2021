//! Files, folders and pipes → a fabric.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use ringway_fabric::Fabric;
use ringway_fabric::draft::FinishOptions;
use ringway_fabric::read::{INPUT_BYTES_MOST, Reading};

use super::args::{DumpArgs, ReadingArgs};

/// Files of a folder that are read; more are none of dumps.
const FILES_MOST: usize = 100_000;

/// The fabric of all dumps that were named.
pub(crate) fn fabric(args: &DumpArgs) -> anyhow::Result<Fabric> {
    read(&args.dumps, &args.reading, args.reading.partial)
}

/// The fabric of one dump or folder.
pub(crate) fn one(path: &Path, reading: &ReadingArgs) -> anyhow::Result<Fabric> {
    read(&[path.to_path_buf()], reading, reading.partial)
}

/// Earlier counters, which need not come with a topology.
pub(crate) fn parts(paths: &[PathBuf], args: &DumpArgs) -> anyhow::Result<Fabric> {
    read(paths, &args.reading, true)
}

/// What the fabric was read from.
pub(crate) fn title(fabric: &Fabric) -> String {
    match &fabric.sources[..] {
        [one] if one.name == "-" => "fabric".to_owned(),
        [one] => one.name.rsplit('/').next().unwrap_or(&one.name).to_owned(),
        many => format!("fabric of {} dumps", many.len()),
    }
}

fn read(paths: &[PathBuf], args: &ReadingArgs, partial: bool) -> anyhow::Result<Fabric> {
    let mut reading = Reading::new();
    let mut piped = false;
    for path in paths {
        if path.as_os_str() == "-" {
            if piped {
                bail!("- is given twice: standard input can be read once");
            }
            piped = true;
            let bytes = limited(std::io::stdin().lock(), "standard input")?;
            reading.read("-", &bytes)?;
            continue;
        }
        for file in files(path)? {
            let name = file.display().to_string();
            let opened = std::fs::File::open(&file).with_context(|| name.clone())?;
            reading.read(&name, &limited(opened, &name)?)?;
        }
    }
    Ok(reading.finish(FinishOptions { partial, rate: args.rate })?)
}

/// Bytes up to the most that is taken for a dump.
fn limited(from: impl std::io::Read, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(INPUT_BYTES_MOST as u64 + 1)
        .read_to_end(&mut bytes)
        .with_context(|| name.to_owned())?;
    Ok(bytes)
}

/// The file, or all files of the folder, in the order of their names.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let known = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    if !known.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| path.display().to_string())? {
        let entry = entry.with_context(|| path.display().to_string())?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if entry.path().is_file() && !hidden {
            found.push(entry.path());
        }
        if found.len() > FILES_MOST {
            bail!("{}: more than {FILES_MOST} files", path.display());
        }
    }
    if found.is_empty() {
        bail!("{}: no file in this folder", path.display());
    }
    found.sort();
    Ok(found)
}

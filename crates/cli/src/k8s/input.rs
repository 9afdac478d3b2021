//! Files, folders and pipes → texts.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use ringway_k8s::model::Source;

/// What messages call standard input.
const PIPED: &str = "stdin";
/// Bytes of one file: manifests are never as large.
const FILE_MOST: u64 = 16 << 20;
/// Files of one run.
const FILES_MOST: usize = 10_000;

/// Texts, each with the file that it is from.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// The texts.
    pub(super) sources: Vec<Source>,
    /// Their files, in the same order; standard input is none.
    pub(super) files: Vec<Option<PathBuf>>,
}

impl Texts {
    /// Whether one of them is standard input.
    pub(super) fn is_piped(&self) -> bool {
        self.files.iter().any(Option::is_none)
    }

    fn push(&mut self, source: Source, file: Option<PathBuf>) {
        self.sources.push(source);
        self.files.push(file);
    }
}

/// All that was named, in order.
pub(super) fn texts(paths: &[PathBuf]) -> anyhow::Result<Texts> {
    let mut found = Texts::default();
    for path in paths {
        if path == Path::new("-") {
            if found.is_piped() {
                bail!("- is given twice: standard input can be read once");
            }
            found.push(source(PIPED.to_owned(), std::io::stdin().lock())?, None);
            continue;
        }
        for file in files(path)? {
            let name = file.display().to_string();
            let opened = std::fs::File::open(&file).with_context(|| name.clone())?;
            found.push(source(name, opened)?, Some(file));
        }
        if found.sources.len() > FILES_MOST {
            bail!("{}: more than {FILES_MOST} files", path.display());
        }
    }
    Ok(found)
}

fn source(name: String, from: impl std::io::Read) -> anyhow::Result<Source> {
    let mut bytes = Vec::new();
    from.take(FILE_MOST + 1).read_to_end(&mut bytes).with_context(|| name.clone())?;
    if bytes.len() as u64 > FILE_MOST {
        bail!("{name}: more than 16 MiB, which is no manifest");
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        anyhow::anyhow!(
            "byte {} is not UTF-8: {name} is no manifest",
            error.utf8_error().valid_up_to()
        )
    })?;
    Ok(Source { name, text })
}

/// The file, or all manifests of the folder and of those in it.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let known = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    if !known.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry.with_context(|| folder.display().to_string())?.path();
            let hidden =
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            let kind =
                std::fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
            let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned());
            if hidden || kind.is_symlink() {
                continue;
            }
            if kind.is_dir() {
                folders.push(path);
            } else if matches!(ending.as_deref(), Some("yaml" | "yml")) {
                found.push(path);
            }
            if found.len() + folders.len() > FILES_MOST {
                bail!("{}: more than {FILES_MOST} files", folder.display());
            }
        }
    }
    if found.is_empty() {
        bail!("{}: no file named *.yaml or *.yml in this folder", path.display());
    }
    found.sort();
    Ok(found)
}

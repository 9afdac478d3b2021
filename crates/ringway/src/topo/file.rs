//! Topology files: `NCCL_TOPO_FILE`, the one a hypervisor leaves, `NCCL_TOPO_DUMP_FILE`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::{Root, RootError};
use crate::plan::topology::document::Element;
use crate::plan::topology::xml::{self, BYTES_MOST, XmlError};

/// Where a hypervisor leaves the topology of a virtual machine.
pub const VIRTUAL_TOPOLOGY: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";

/// Why a topology file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyFileError {
    /// There is none.
    #[error("{}: no such file", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] RootError),
    /// It is no topology.
    #[error("{}: {error}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: XmlError,
    },
    /// It cannot be written.
    #[error("{}: {cause}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
}

/// The bytes of a file that someone named, wherever it is; 8 MiB at the most.
///
/// # Errors
/// There is none, it is no file, or it is too long.
pub fn read_file(path: &Path) -> Result<Vec<u8>, TopologyFileError> {
    let missing = || TopologyFileError::Missing { path: path.to_owned() };
    let whole = std::path::absolute(path).map_err(|_| missing())?;
    let limit = u64::try_from(BYTES_MOST).unwrap_or(u64::MAX);
    Root::live().bytes_at_most(whole, limit)?.ok_or_else(missing)
}

/// The file NCCL would read before it looks at the machine: the one named by `NCCL_TOPO_FILE`, or
/// the hypervisor's.
///
/// # Errors
/// The named file is missing or wrong. NCCL goes on without it, silently; here it is an error.
pub fn load(root: &Root, named: Option<&Path>) -> Result<Option<Element>, TopologyFileError> {
    let wrong = |path: &Path, error| TopologyFileError::Wrong { path: path.to_owned(), error };
    if let Some(path) = named {
        let bytes = read_file(path)?;
        return xml::read(&bytes).map(Some).map_err(|error| wrong(path, error));
    }
    let limit = u64::try_from(BYTES_MOST).unwrap_or(u64::MAX);
    let Some(bytes) = root.bytes_at_most(VIRTUAL_TOPOLOGY, limit)? else { return Ok(None) };
    xml::read(&bytes).map(Some).map_err(|error| wrong(Path::new(VIRTUAL_TOPOLOGY), error))
}

/// Writes a topology, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn save(path: &Path, document: &Element) -> Result<(), TopologyFileError> {
    let failed = |error: std::io::Error| TopologyFileError::Unwritable {
        path: path.to_owned(),
        cause: error.to_string(),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let mut file = std::fs::File::create(&beside).map_err(failed)?;
    let written = file.write_all(xml::write(document).as_bytes());
    let renamed = written.and_then(|()| std::fs::rename(&beside, path));
    renamed.inspect_err(|_| drop(std::fs::remove_file(&beside))).map_err(failed)
}

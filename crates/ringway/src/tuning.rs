//! Tuning files: what was measured on this machine, kept in the user's cache folder.
//!
//! `ringway tune` writes them; a communicator reads the one of its topology when it starts. The format
//! and what follows from it are those of [`plan::calibration`](crate::plan::calibration).
//!
//! *Invariant:* a file that cannot be used is never an error of the job: it is a warning with the fix,
//! and the defaults.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::config::{Config, TuningChoice};
use crate::plan::calibration::{Calibration, TEXT_BYTES_MAX, Topology};

/// The topology of ranks on `hosts` and so many machines like this one.
#[must_use]
pub fn topology(hosts: &[u32], machines: u32) -> Topology {
    // The first processor is enough; a machine of many has a long list.
    let mut info = Vec::new();
    let _empty = std::fs::File::open("/proc/cpuinfo")
        .and_then(|file| file.take(4096).read_to_end(&mut info));
    let info = String::from_utf8_lossy(&info);
    Topology {
        cpu: cpu_model(&info).unwrap_or(std::env::consts::ARCH).to_owned(),
        // Of the machine: launchers tie ranks to some of them.
        cores: crate::os::processors(),
        ranks: u32::try_from(hosts.len()).unwrap_or(u32::MAX),
        machines,
        hosts: hosts.iter().max().map_or(1, |most| most.saturating_add(1)),
    }
}

/// What the kernel calls the processor.
fn cpu_model(info: &str) -> Option<&str> {
    let model = info.lines().find_map(|line| line.strip_prefix("model name"))?;
    model.trim_start().strip_prefix(':').map(str::trim).filter(|model| !model.is_empty())
}

/// The file for a topology, whether it is there or not; none where tuning is off or there is no
/// cache folder.
#[must_use]
pub fn path(config: &Config, topology: &Topology) -> Option<PathBuf> {
    match &config.tuning {
        TuningChoice::Off => None,
        TuningChoice::File(path) => Some(path.clone()),
        TuningChoice::Auto => Some(config.cache_dir()?.join(topology.file_name())),
    }
}

/// The text of the file for a topology; none where there is none, or none that can be used.
pub(crate) fn text(config: &Config, topology: &Topology) -> (Vec<u8>, Option<String>) {
    let Some(path) = path(config, topology) else { return (Vec::new(), None) };
    match read_text(config, &path) {
        Ok(Some(text)) => (text, None),
        Ok(None) => (Vec::new(), None),
        Err(warning) => (Vec::new(), Some(warning)),
    }
}

/// What is known of a topology, and the file that says so; none where there is no file.
///
/// # Errors
/// Why the file cannot be used, and what to do.
pub fn read(
    config: &Config,
    topology: &Topology,
) -> Result<Option<(PathBuf, Calibration)>, String> {
    let Some(path) = path(config, topology) else { return Ok(None) };
    let Some(text) = read_text(config, &path)? else { return Ok(None) };
    Ok(Calibration::from_json(&text).ok().map(|calibration| (path, calibration)))
}

fn read_text(config: &Config, path: &Path) -> Result<Option<Vec<u8>>, String> {
    let fix = "run `ringway tune` to make it anew, or set RINGWAY_TUNING=off";
    let unusable =
        |why: String| format!("{}: cannot be used: {why}; using defaults; {fix}", path.display());
    match config.read_file(path, TEXT_BYTES_MAX as u64) {
        Ok(text) => match Calibration::from_json(&text) {
            Ok(_) => Ok(Some(text)),
            Err(why) => Err(unusable(why)),
        },
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && config.tuning == TuningChoice::Auto =>
        {
            Ok(None)
        }
        Err(error) => Err(unusable(error.to_string())),
    }
}

/// Writes a file as a whole: a reader sees the old one or the new one.
///
/// # Errors
/// The folder or the file cannot be written.
pub fn write(path: &Path, calibration: &Calibration) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = std::fs::write(&temporary, calibration.to_json())
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _never_made = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Source};
    use crate::plan::cost::Links;

    #[test]
    fn the_processor_is_named_as_the_kernel_does() {
        let info = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t: x\n";
        assert_eq!(cpu_model(info), Some("Some CPU @ 2.0GHz"));
        assert_eq!(cpu_model("model name\t:\n"), None);
        assert_eq!(cpu_model(""), None);
    }

    #[test]
    fn files_are_found_by_topology_and_bad_ones_named() {
        let folder = std::env::temp_dir().join(format!("ringway-tuning-{}", std::process::id()));
        let mut config = Config::load(
            &Environment::new([("RINGWAY_CACHE_DIR", folder.to_string_lossy())]).with_root("/"),
        );
        let topology = topology(&[0, 0], 1);
        assert_eq!(read(&config, &topology), Ok(None));
        let calibration = Calibration::new(topology.clone(), Links::default());
        let file = path(&config, &topology).unwrap();
        write(&file, &calibration).unwrap();
        assert_eq!(read(&config, &topology), Ok(Some((file.clone(), calibration))));
        std::fs::write(&file, "{").unwrap();
        let error = read(&config, &topology).unwrap_err();
        assert!(error.contains(&*file.to_string_lossy()) && error.contains("ringway tune"));
        config.set("RINGWAY_TUNING", "off", Source::CommandLine).unwrap();
        assert_eq!(read(&config, &topology), Ok(None));
        config.set("RINGWAY_TUNING", "/no/such/file", Source::CommandLine).unwrap();
        assert!(read(&config, &topology).unwrap_err().contains("/no/such/file"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

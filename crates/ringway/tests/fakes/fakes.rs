//! Libraries in the place of vendors', compiled by tests from the sources beside this file.
//!
//! A test crate takes this in by `#[path = "../fakes/fakes.rs"] mod fakes;`, from whatever crate. What is compiled stays
//! in the target folder under the hash of its sources, and is compiled once however many ask.

#![allow(dead_code, reason = "no test crate uses all of it")]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Says whether `what` is there; if not, what is skipped and why, or fails where it is required.
pub(crate) fn need(what: &str, missing: Option<String>, install: &str) -> bool {
    let Some(why) = missing else { return true };
    let required = std::env::var("RINGWAY_TEST_REQUIRE").unwrap_or_default();
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(
        !required.split([',', ' ']).any(|word| word == what || word == "all"),
        "{test} needs {what}: {why}; {install} (RINGWAY_TEST_REQUIRE={required})"
    );
    // Not `eprintln!`: what a passing test prints is not shown.
    let _closed = writeln!(std::io::stderr(), "SKIPPED: {test}, because {why}; {install}");
    false
}

/// Whether there is a C++ compiler.
pub(crate) fn compiler() -> bool {
    let found = Command::new("g++").arg("--version").stdin(Stdio::null()).output();
    need("g++", found.err().map(|error| format!("g++: {error}")), "apt-get install g++")
}

/// The folder of the sources.
pub(crate) fn sources() -> PathBuf {
    // From any crate of the workspace.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ringway/tests/fakes")
}

/// A shared library named `name`, from `files` (compiled) and `read` (included by them), in a folder of
/// its own.
///
/// # Panics
///
/// If they do not compile.
pub(crate) fn shared_library(
    name: &str,
    files: &[PathBuf],
    read: &[PathBuf],
    options: &[&str],
) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);

    let mut hasher = DefaultHasher::new();
    options.hash(&mut hasher);
    for file in files.iter().chain(read) {
        let text = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        text.hash(&mut hasher);
    }
    let folder = cache().join(format!("{name}-{:016x}", hasher.finish()));
    let library = folder.join(name);
    if library.exists() {
        return library;
    }
    std::fs::create_dir_all(&folder).unwrap();
    // Another process may be at it too: whoever is last puts an equal file in its place.
    let draft = folder.join(format!("draft-{}", std::process::id()));
    let done = Command::new("g++")
        .args(["-std=c++17", "-shared", "-fPIC", "-Wall", "-Werror", "-pthread"])
        .args(options)
        .args([Path::new("-o"), &draft])
        .args(files)
        .arg("-ldl")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    std::fs::rename(&draft, &library).unwrap();
    library
}

/// A CUDA driver and its compiler without a GPU; `cuda/fake.h` says what they are like.
#[derive(Clone, Debug)]
pub(crate) struct Cuda {
    /// `libcuda.so.1`.
    pub(crate) driver: PathBuf,
    /// `libnvrtc.so`.
    pub(crate) nvrtc: PathBuf,
}

/// The fake CUDA; nothing where there is no C++ compiler.
pub(crate) fn cuda() -> Option<Cuda> {
    if !compiler() {
        return None;
    }
    let file = |name: &str| sources().join("cuda").join(name);
    // Threads of streams are in its code until the process ends.
    let stays = "-Wl,-z,nodelete";
    let hidden = "-fvisibility=hidden";
    let driver = shared_library(
        "libcuda.so.1",
        &["cuda.cpp", "memory.cpp", "virtual.cpp", "stream.cpp", "module.cpp"].map(file),
        &[file("fake.h")],
        &["-O1", hidden, stays],
    );
    let prelude = file("prelude.h");
    let nvrtc = shared_library(
        "libnvrtc.so",
        &[file("nvrtc.cpp")],
        std::slice::from_ref(&prelude),
        &["-O1", hidden, stays, &format!("-DRW_PRELUDE={prelude:?}")],
    );
    Some(Cuda { driver, nvrtc })
}

/// Where compiled libraries are kept: cargo's folder for integration tests.
pub(crate) fn cache() -> PathBuf {
    option_env!("CARGO_TARGET_TMPDIR")
        .map_or_else(|| std::env::temp_dir().join("ringway-fakes"), PathBuf::from)
}

//! Compiles a C program against the header and the library, and runs it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The languages that programs are in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standard {
    C99,
    Cpp17,
}

impl Standard {
    fn compiler(self) -> Command {
        let (name, language, standard) = match self {
            Self::C99 => ("cc", "c", "-std=c99"),
            Self::Cpp17 => ("c++", "c++", "-std=c++17"),
        };
        let mut command = Command::new(name);
        command.args(["-x", language, standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g"]);
        command
    }
}

pub(crate) fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library, as cargo has built it for these tests.
pub(crate) fn library() -> PathBuf {
    let built = std::env::current_exe().unwrap().with_file_name("libnccl.so");
    assert!(built.is_file(), "{} is not there", built.display());
    built
}

/// The folder of the library under its real names, made by the script that users run.
pub(crate) fn installed() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl");
        let mut install = Command::new(crate_folder().join("install"));
        let output = install.arg(&folder).arg(library()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

/// Says on the real standard error, which the test harness does not keep back, what was not
/// tested; with `RINGWAY_TEST_REQUIRE=all` that is a failure.
pub(crate) fn skip(what: &str, why: &str) {
    let required = std::env::var("RINGWAY_TEST_REQUIRE").unwrap_or_default();
    let named = required.split(',').any(|word| ["all", what].contains(&word.trim()));
    assert!(!named, "RINGWAY_TEST_REQUIRE={required}, but {what} cannot be tested: {why}");
    let _closed = writeln!(std::io::stderr(), "SKIPPED {what}: {why}");
}

/// What a program is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A program that is linked with the library.
    Linked,
    /// A program that loads the library itself.
    Loading,
    /// A library to be loaded before ours.
    Tool,
}

/// A compiled program.
pub(crate) struct Program {
    path: PathBuf,
}

impl Program {
    /// Compiles `tests/c/NAME.c` to a program; nothing where there is no compiler.
    pub(crate) fn build(name: &str, standard: Standard) -> Option<Self> {
        Self::build_as(name, standard, Form::Linked, &[])
    }

    /// Compiles `tests/c/NAME.c` with some more arguments.
    pub(crate) fn build_as(
        name: &str,
        standard: Standard,
        form: Form,
        arguments: &[&str],
    ) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join(format!("{name}-{}-{number}", std::process::id()));
        let source = crate_folder().join("tests/c").join(name).with_extension("c");
        let mut compiler = standard.compiler();
        compiler.args(arguments).arg("-I").arg(crate_folder().join("include")).arg(source);
        compiler.args(["-x", "none", "-pthread", "-lm", "-ldl", "-o"]).arg(&path);
        if form == Form::Tool {
            compiler.args(["-shared", "-fPIC"]);
        }
        if form != Form::Loading {
            compiler.arg(installed().join("libnccl.so.2"));
            compiler.arg(format!("-Wl,-rpath,{}", installed().display()));
        }
        let output = match compiler.output() {
            Ok(output) => output,
            Err(error) => {
                skip("compiler", &format!("{:?}: {error}", compiler.get_program()));
                return None;
            }
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { path })
    }

    pub(crate) fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Runs it with settings; it must end with 0. What it said.
    pub(crate) fn run(&self, arguments: &[&str], settings: &[(&str, &str)]) -> String {
        let mut command = Command::new(&self.path);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("NCCL_") || name.starts_with("RINGWAY_") {
                command.env_remove(name);
            }
        }
        // What a GPU there may be does is for programs that name a fake one.
        if !settings.iter().any(|(name, _)| *name == "RINGWAY_CUDA_LIBRARY") {
            command.env("RINGWAY_GPU", "0");
        }
        command.args(arguments).envs(settings.iter().copied()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{} {arguments:?}: {}\n{said}\n{}",
            self.path.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

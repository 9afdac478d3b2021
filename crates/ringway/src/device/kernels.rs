//! Kernels: one source, compiled for the type, operation and number of operands of a call when it is
//! first made, and kept on disk.
//!
//! Where there is no compiler, kernels made ahead are used (`embedded`).
//!
//! ```text
//! a file of the cache: its name is a hash of all the code is made from
//! ┌───────────────────────┬──────┐
//! │ SHA-256 of what follows│ code │
//! └───────────────────────┴──────┘
//! ```
//!
//! *Invariant:* a file is used only under its name and with its hash, and is written under another name
//! first, so that nobody reads half of one. A damaged file costs a compilation, never a call.

mod embedded;

use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sha2::{Digest as _, Sha256};

use super::Fault;
use super::gpu::{Function, Gpu};
use crate::config::Config;
use crate::ffi::FfiError;
use crate::ffi::cuda::Vendor;
use crate::ffi::nvrtc::Compiler;
use crate::plan::types::{DataType, ReduceOp};

/// Threads of a block at most, and those that a multiprocessor must be able to hold at once: one block of each
/// launch, as all launches together have no more blocks than there are multiprocessors.
const THREADS: u32 = 512;
const THREADS_RESIDENT: u32 = 512;

/// What stands in front of every source: arithmetic, and memory that others see.
const HEADERS: [&str; 2] = [include_str!("kernels/arithmetic.h"), include_str!("kernels/memory.h")];
/// The program of a launch, and calls that the host makes.
const COLLECTIVE: &str = include_str!("kernels/collective.cu");
const STAGED: &str = include_str!("kernels/staged.cu");

/// Bytes of the hash in front of the code.
const HASH_BYTES: usize = 32;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Copies bytes.
    Copy,
    /// Folds so many operands.
    Fold { data_type: DataType, op: ReduceOp, operands: u32 },
    /// Asks the host for a collective.
    Staged,
    /// Asks the host for messages.
    Messages,
}

impl Kind {
    fn source(self) -> String {
        let entry = match self {
            Self::Copy | Self::Fold { .. } => COLLECTIVE,
            Self::Staged | Self::Messages => STAGED,
        };
        [HEADERS[0], HEADERS[1], entry].concat()
    }

    fn entry(self) -> &'static CStr {
        match self {
            Self::Copy | Self::Fold { .. } => c"ringway_run",
            Self::Staged => c"ringway_staged",
            Self::Messages => c"ringway_messages",
        }
    }

    /// Threads of a block. With many operands a thread has enough under way, and more of them measure worse.
    fn threads(self) -> u32 {
        match self {
            Self::Fold { operands, .. } if operands > 4 => THREADS / 2,
            _ => THREADS,
        }
    }

    /// Whether its source waits for the kernel in front of it by itself, where it is told to.
    fn can_overlap(self) -> bool {
        matches!(self, Self::Copy | Self::Fold { .. })
    }

    /// The command line.
    fn options(
        self,
        vendor: Vendor,
        architecture: &str,
        threads: u32,
        overlaps: bool,
    ) -> Vec<String> {
        let mut options = match vendor {
            Vendor::Nvidia => vec![format!("--gpu-architecture={architecture}")],
            // Without one HIP's compiler takes that of the GPU at hand.
            Vendor::Amd => vec!["-ffp-contract=off".to_owned()],
        };
        options.push("--std=c++17".to_owned());
        options.extend(self.definitions(threads, overlaps));
        options
    }

    /// What the source is told there.
    fn definitions(self, threads: u32, overlaps: bool) -> Vec<String> {
        let (data_type, op, operands) = match self {
            Self::Copy | Self::Staged | Self::Messages => (DataType::U8, None, 1),
            Self::Fold { data_type, op, operands } => (data_type, Some(op), operands),
        };
        let mut all = vec![
            format!("-DRW_TYPE={}", data_type as u8),
            format!("-DRW_OPERANDS={operands}"),
            format!("-DRW_THREADS={threads}"),
            format!("-DRW_RESIDENT={}", THREADS_RESIDENT / threads.max(1)),
            format!("-DRW_OVERLAPS={}", u8::from(overlaps)),
        ];
        all.extend(op.map(|op| format!("-DRW_OP={}", code(op))));
        all
    }
}

/// The number of an operation in the source.
pub(super) const fn code(op: ReduceOp) -> u8 {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Avg => 4,
        ReduceOp::PreMulSum => 5,
    }
}

/// Kernels by GPU, kind, and whether they overlap. Each has a lock of its own: to load one, the driver may wait for kernels
/// at work on that GPU, and those for a launch of another thread, which must come to its own kernel meanwhile.
type Loaded = HashMap<(i32, Kind, bool), Arc<Mutex<Option<Function>>>>;

/// Kernels of the GPUs of this process, each loaded once.
static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();

/// One thread at a time compiles, so that others find what it has kept. Held while no GPU is waited for.
static COMPILING: Mutex<()> = Mutex::new(());

/// Where kernels come from.
#[derive(Debug)]
pub(super) struct Kernels {
    gpu: Arc<Gpu>,
    folder: Option<PathBuf>,
    library: Option<String>,
    /// Folders of CUDA that the environment names.
    toolkits: Vec<PathBuf>,
    /// Whether a launch may begin before the kernel in front of it has ended.
    overlap: bool,
    /// Opened when first needed.
    compiler: Option<Compiler>,
    /// Those of this communicator: found without a lock.
    known: HashMap<Kind, Function>,
}

impl Kernels {
    pub(super) fn new(gpu: &Arc<Gpu>, config: &Config) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            folder: config.cache_dir().map(|folder| folder.join("kernels")),
            library: config.nvrtc_library.as_ref().map(|path| path.to_string_lossy().into_owned()),
            toolkits: config.cuda_toolkits(),
            overlap: config.gpu_overlap && gpu.can_overlap,
            compiler: None,
            known: HashMap::new(),
        }
    }

    /// Whether launches may begin before the kernel in front of them has ended; those of kernels made ahead do not.
    pub(super) fn overlap(&self) -> bool {
        self.overlap
    }

    /// Threads of a block.
    pub(super) fn threads(&self, kind: Kind) -> u32 {
        kind.threads().min(self.gpu.threads_most).max(1)
    }

    /// The kernel of a kind, compiled if this machine has not seen it before.
    pub(super) fn get(&mut self, kind: Kind) -> Result<Function, Fault> {
        if let Some(function) = self.known.get(&kind) {
            return Ok(*function);
        }
        let overlaps = self.overlap && kind.can_overlap();
        let key = (self.gpu.ordinal(), kind, overlaps);
        let place = {
            let loaded = LOADED.get_or_init(Mutex::default);
            let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(loaded.entry(key).or_default())
        };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        let function = match *place {
            Some(function) => function,
            None => *place.insert(self.load(kind, overlaps)?),
        };
        self.known.insert(kind, function);
        Ok(function)
    }

    /// Loads a kernel from the cache, or compiles it.
    fn load(&mut self, kind: Kind, overlaps: bool) -> Result<Function, Fault> {
        let architecture = &self.gpu.architecture;
        let options = kind.options(self.gpu.vendor(), architecture, self.threads(kind), overlaps);
        let compiler = match self.compiler.take().map_or_else(|| self.open(), Ok) {
            Ok(compiler) => &*self.compiler.insert(compiler),
            Err(missing @ FfiError::NoLibrary { .. }) => return self.ahead(kind, &missing),
            Err(other) => return Err(Fault::Library(other)),
        };
        let make = Make { kind, architecture, source: kind.source(), options, compiler };
        let file = self.folder.as_ref().map(|folder| folder.join(make.name()));
        let (code, was_kept) = make.code(file.as_deref(), false)?;
        match self.gpu.load(&code, kind.entry(), overlaps) {
            Err(fault) if was_kept => {
                let name = make.name();
                tracing::info!(target: crate::log::INIT, "GPU : {name} is compiled anew: {fault}");
            }
            loaded => return loaded,
        }
        let (code, _) = make.code(file.as_deref(), true)?;
        self.gpu.load(&code, kind.entry(), overlaps)
    }

    /// Opens the compiler that was asked for, or looks for one.
    fn open(&self) -> Result<Compiler, FfiError> {
        let vendor = self.gpu.vendor();
        let compiler = match &self.library {
            Some(path) => Compiler::open(vendor, path)?,
            None => Compiler::find(vendor, &self.toolkits, self.gpu.newest_cuda())?,
        };
        let (version, path) = (compiler.version(), compiler.path());
        tracing::info!(target: crate::log::INIT, "GPU : kernels are compiled by {version} of {path}");
        Ok(compiler)
    }

    /// Loads a kernel made ahead, where there is no compiler.
    fn ahead(&self, kind: Kind, missing: &FfiError) -> Result<Function, Fault> {
        const INSTALL: &str = "install the CUDA toolkit or the package nvidia-cuda-nvrtc, or set \
                               RINGWAY_NVRTC_LIBRARY to its library";
        // A library that was asked for must be there.
        if self.library.is_some() || self.gpu.vendor() == Vendor::Amd {
            return Err(Fault::Other(format!("{missing}: kernels cannot be compiled; {INSTALL}")));
        }
        tracing::warn!(
            target: crate::log::INIT,
            "GPU : {missing}: {kind:?} was made ahead, for no GPU and no number of ranks in particular; \
             it is faster when compiled here: {INSTALL}"
        );
        self.gpu.load(&embedded::find(kind)?, kind.entry(), false)
    }
}

/// What a kernel is made from.
struct Make<'a> {
    kind: Kind,
    architecture: &'a str,
    source: String,
    options: Vec<String>,
    compiler: &'a Compiler,
}

impl Make<'_> {
    /// What its file is called.
    fn name(&self) -> String {
        file_name(&self.source, &self.options, &self.compiler.version(), self.architecture)
    }

    /// The code, and whether it was in its file: compiled where there is none, or `anew`, and kept where that can be.
    fn code(&self, file: Option<&Path>, anew: bool) -> Result<(Vec<u8>, bool), Fault> {
        let kept = || file.filter(|_| !anew).and_then(read);
        if let Some(code) = kept() {
            return Ok((code, true));
        }
        let _turn = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = kept() {
            return Ok((code, true));
        }
        let code = self.compiler.compile(&self.source, &self.options)?;
        let outcome = match file.map(|file| (file.display(), keep(file, &code))) {
            None => String::new(),
            Some((file, Ok(()))) => format!(" into {file}"),
            Some((file, Err(error))) => format!("; it cannot be kept in {file}: {error}"),
        };
        let (kind, architecture, version) = (self.kind, self.architecture, self.compiler.version());
        tracing::info!(
            target: crate::log::INIT,
            "GPU : compiled {kind:?} for {architecture} with {version}{outcome}"
        );
        Ok((code, false))
    }
}

/// The file of a kernel: named by a hash of all it is made from.
fn file_name(source: &str, options: &[String], version: &str, architecture: &str) -> String {
    let mut hash = Sha256::new();
    for part in options.iter().map(String::as_str).chain([version, source]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut name = String::with_capacity(48);
    for byte in hash.finalize().iter().take(16) {
        let _never = write!(name, "{byte:02x}");
    }
    format!("{name}.{architecture}")
}

/// The code in a file of the cache; nothing where there is none, or none that is whole.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(file).ok()?;
    let whole = bytes
        .split_first_chunk::<HASH_BYTES>()
        .is_some_and(|(hash, code)| !code.is_empty() && Sha256::digest(code).as_slice() == hash);
    if !whole {
        tracing::info!(target: crate::log::INIT, "GPU : {} is damaged", file.display());
        return None;
    }
    bytes.drain(..HASH_BYTES);
    Some(bytes)
}

/// Writes a file so that nobody sees a part of it.
fn keep(file: &Path, code: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or_else(|| Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut random = [0; 8];
    let _kind = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let draft = folder.join(format!(".{:x}.{:x}", std::process::id(), u64::from_ne_bytes(random)));
    let whole = [&Sha256::digest(code)[..], code].concat();
    std::fs::write(&draft, whole).and_then(|()| std::fs::rename(&draft, file)).inspect_err(|_| {
        // What could not be finished is of no use to anybody.
        let _absent = std::fs::remove_file(&draft);
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("ringway-kernels-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _absent = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_named_by_all_it_is_made_from() {
        let options = ["-DA=1".to_owned(), "-DB=2".to_owned()];
        let joined = ["-DA=1-DB=2".to_owned()];
        let name = file_name("source", &options, "12.4", "sm_90");
        assert_eq!(name.len(), 32 + ".sm_90".len());
        assert_eq!(name, file_name("source", &options, "12.4", "sm_90"));
        for other in [
            file_name("sourcf", &options, "12.4", "sm_90"),
            file_name("source", &options, "12.5", "sm_90"),
            file_name("source", &options, "12.4", "sm_80"),
            file_name("source", &options[..1], "12.4", "sm_90"),
            file_name("source", &joined, "12.4", "sm_90"),
        ] {
            assert_ne!(name, other);
        }
    }

    #[test]
    fn what_is_kept_is_read_and_what_is_damaged_is_not() {
        let folder = Folder::new("damage");
        let file = folder.0.join("deep/kernel.sm_90");
        assert_eq!(read(&file), None);
        let code: Vec<u8> = (0..=255).cycle().take(5000).collect();
        keep(&file, &code).unwrap();
        assert_eq!(read(&file).as_deref(), Some(&code[..]));
        let whole = std::fs::read(&file).unwrap();
        let mut flipped = whole.clone();
        flipped[3000] ^= 1;
        let hash_alone = &whole[..HASH_BYTES];
        for damaged in [&[][..], b"garbage", hash_alone, &whole[..whole.len() - 1], &flipped, &code]
        {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(read(&file), None, "{} bytes", damaged.len());
        }
        // Kept again over it, and no draft is left.
        keep(&file, b"other code").unwrap();
        assert_eq!(read(&file).as_deref(), Some(&b"other code"[..]));
        assert_eq!(std::fs::read_dir(folder.0.join("deep")).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error_that_leaves_nothing() {
        let folder = Folder::new("refused");
        std::fs::create_dir_all(folder.0.join("kernel.sm_90/in the way")).unwrap();
        assert!(keep(&folder.0.join("kernel.sm_90"), b"code").is_err());
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    /// `bench/gpu/kernels-ahead` compiles for the cache, and would compile in vain under other names.
    #[test]
    fn kernels_compiled_ahead_are_found() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/gpu/kernels-ahead");
        let (version, architecture) = ("NVRTC 13.0", "sm_90");
        let mut command = std::process::Command::new("python3");
        command.arg(script).args(["--names", version, architecture]);
        let done = match command.output() {
            Ok(done) => done,
            Err(error) => {
                let required = std::env::var("RINGWAY_TEST_REQUIRE").unwrap_or_default();
                assert!(!required.split([',', ' ']).any(|word| word == "all"), "python3: {error}");
                let _closed =
                    writeln!(std::io::stderr(), "SKIPPED kernels ahead: python3: {error}");
                return;
            }
        };
        let names = String::from_utf8(done.stdout).unwrap();
        let mut names: Vec<String> = names.lines().map(str::to_owned).collect();

        let mut kinds = vec![(Kind::Copy, false), (Kind::Copy, true), (Kind::Staged, false)];
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                let fold = |operands| Kind::Fold { data_type, op, operands };
                kinds.extend([1, 2, 3, 4, 8].map(|operands| (fold(operands), true)));
            }
        }
        let name = |(kind, overlaps): (Kind, bool)| {
            let options = kind.options(Vendor::Nvidia, architecture, kind.threads(), overlaps);
            file_name(&kind.source(), &options, version, architecture)
        };
        let mut expected: Vec<String> = kinds.into_iter().map(name).collect();
        // Another way to ask for the same code.
        assert!(expected.contains(&name((Kind::Messages, false))));
        names.sort();
        expected.sort();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(names == expected, "kernels-ahead names other files: {said}");
    }

    #[test]
    fn kinds_are_told_to_the_source() {
        let copy = Kind::Copy.definitions(256, false);
        assert!(copy.contains(&"-DRW_OPERANDS=1".to_owned()), "{copy:?}");
        assert!(!copy.iter().any(|one| one.starts_with("-DRW_OP=")), "{copy:?}");
        let fold = Kind::Fold { data_type: DataType::F32, op: ReduceOp::Avg, operands: 3 };
        let fold = fold.definitions(128, true);
        for word in ["-DRW_OP=4", "-DRW_OPERANDS=3", "-DRW_THREADS=128", "-DRW_OVERLAPS=1"] {
            assert!(fold.contains(&word.to_owned()), "{fold:?}");
        }
        let codes = ReduceOp::ALL.map(code);
        assert!(codes.iter().all(|one| usize::from(*one) < codes.len()), "{codes:?}");
    }
}

//! The run-time compilers: NVRTC, and HIPRTC, whose functions have the same shape under other names.

#![allow(unsafe_code, reason = "function pointers into the vendor's compiler")]

mod places;

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::cuda::Vendor;
use super::{FfiError, function, open};

type Program = *mut c_void;
type FnVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type FnCreate = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type FnCompile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type FnSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type FnText = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type FnDestroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// A compiler.
pub(crate) struct Compiler {
    name: &'static str,
    path: String,
    version: FnVersion,
    create: FnCreate,
    compile: FnCompile,
    log_size: FnSize,
    log: FnText,
    code_size: FnSize,
    code: FnText,
    ptx_size: FnSize,
    ptx: FnText,
    destroy: FnDestroy,
    _library: Library,
}

/// Why a source did not become code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompileError {
    /// The compiler refused it.
    #[error("{compiler} refused the kernel (code {code}): {log}")]
    Refused { compiler: &'static str, code: c_int, log: String },
    /// A call of the compiler's failed.
    #[error(transparent)]
    Call(#[from] FfiError),
}

impl Compiler {
    /// Opens the compiler at `path`.
    pub(crate) fn open(vendor: Vendor, path: &str) -> Result<Self, FfiError> {
        let name = name_of(vendor);
        Self::load(vendor, open(name, &[path])?, path)
    }

    /// Looks for a vendor's compiler, in `toolkits` too; one of a CUDA newer than `newest` (its first number) makes
    /// code that the driver does not take.
    pub(crate) fn find(
        vendor: Vendor,
        toolkits: &[PathBuf],
        newest: c_int,
    ) -> Result<Self, FfiError> {
        let name = name_of(vendor);
        if vendor == Vendor::Amd {
            let names = ["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"];
            return Self::load(vendor, open(name, &names)?, names[0]);
        }
        // Where there are no maps, nothing is known of what is loaded.
        let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
        let places = places::places(&String::from_utf8_lossy(&maps), toolkits, &names_in);
        let mut refused = Vec::new();
        for path in &places.libraries {
            let path = path.to_string_lossy();
            match Self::open(vendor, &path) {
                Ok(compiler) if compiler.major() > newest => refused.push(format!(
                    "{path} is {}, newer than the driver's CUDA {newest}",
                    compiler.version()
                )),
                Ok(compiler) => return Ok(compiler),
                // That a name is not on the loader's path is what most machines would say.
                Err(FfiError::NoLibrary { .. }) if !path.contains('/') => {}
                Err(error) => refused.push(format!("{path}: {error}")),
            }
        }
        let folders: Vec<_> = places.folders.iter().map(|f| f.display().to_string()).collect();
        let mut why = "looked on the loader's path".to_owned();
        if !folders.is_empty() {
            why = format!("{why} and in {}", folders.join(", "));
        }
        if !refused.is_empty() {
            why = format!("{why}; {}", refused.join("; "));
        }
        Err(FfiError::NoLibrary { library: name, why })
    }

    fn load(vendor: Vendor, library: Library, path: &str) -> Result<Self, FfiError> {
        let name = name_of(vendor);
        let nvidia = vendor == Vendor::Nvidia;
        let pick = |cuda: &'static str, hip: &'static str| if nvidia { cuda } else { hip };
        macro_rules! find {
            ($cuda:literal, $hip:literal) => {
                // SAFETY: the types of the fields are those of the vendor's header, and the pointers go
                // with the library.
                unsafe { function(&library, name, pick($cuda, $hip))? }
            };
        }
        Ok(Self {
            name,
            path: path.to_owned(),
            version: find!("nvrtcVersion", "hiprtcVersion"),
            create: find!("nvrtcCreateProgram", "hiprtcCreateProgram"),
            compile: find!("nvrtcCompileProgram", "hiprtcCompileProgram"),
            log_size: find!("nvrtcGetProgramLogSize", "hiprtcGetProgramLogSize"),
            log: find!("nvrtcGetProgramLog", "hiprtcGetProgramLog"),
            code_size: find!("nvrtcGetCUBINSize", "hiprtcGetCodeSize"),
            code: find!("nvrtcGetCUBIN", "hiprtcGetCode"),
            ptx_size: find!("nvrtcGetPTXSize", "hiprtcGetCodeSize"),
            ptx: find!("nvrtcGetPTX", "hiprtcGetCode"),
            destroy: find!("nvrtcDestroyProgram", "hiprtcDestroyProgram"),
            _library: library,
        })
    }

    /// Its name and version.
    pub(crate) fn version(&self) -> String {
        match self.numbers() {
            Some((major, minor)) => format!("{} {major}.{minor}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// What it was opened by: a path, or a name for the loader.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    fn major(&self) -> c_int {
        self.numbers().map_or(0, |(major, _)| major)
    }

    fn numbers(&self) -> Option<(c_int, c_int)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for an integer.
        let code = unsafe { (self.version)(&raw mut major, &raw mut minor) };
        (code == 0).then_some((major, minor))
    }

    /// Compiles a source with options to the code of one architecture, which the options name, or to PTX
    /// where they name a virtual one (`compute_70`).
    pub(crate) fn compile(
        &self,
        source: &str,
        options: &[String],
    ) -> Result<Vec<u8>, CompileError> {
        let text = |what: &str| CString::new(what).unwrap_or_default();
        let is_virtual = options.iter().any(|option| option.contains("=compute_"));
        let (source, file) = (text(source), text("ringway.cu"));
        let options: Vec<CString> = options.iter().map(|option| text(option)).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: the strings end with 0 and outlive the call; there are no headers.
        let code = unsafe {
            let nothing = std::ptr::null();
            (self.create)(&raw mut program, source.as_ptr(), file.as_ptr(), 0, nothing, nothing)
        };
        self.check("create", code)?;
        let outcome = self.finish(program, &pointers, is_virtual);
        // SAFETY: the program was created above and is not used again.
        unsafe { (self.destroy)(&raw mut program) };
        outcome
    }

    fn finish(
        &self,
        program: Program,
        options: &[*const c_char],
        is_virtual: bool,
    ) -> Result<Vec<u8>, CompileError> {
        let count = c_int::try_from(options.len()).unwrap_or(0);
        // SAFETY: the program lives, and `options` has so many strings that end with 0.
        let code = unsafe { (self.compile)(program, count, options.as_ptr()) };
        if code != 0 {
            let log = self.read(program, "log", self.log_size, self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
            return Err(CompileError::Refused { compiler: self.name, code, log });
        }
        Ok(match is_virtual {
            true => self.read(program, "PTX", self.ptx_size, self.ptx)?,
            false => self.read(program, "code", self.code_size, self.code)?,
        })
    }

    fn read(
        &self,
        program: Program,
        what: &'static str,
        size: FnSize,
        text: FnText,
    ) -> Result<Vec<u8>, FfiError> {
        let mut bytes = 0;
        // SAFETY: the program lives, and `bytes` is a place for a size.
        let code = unsafe { size(program, &raw mut bytes) };
        self.check(what, code)?;
        let mut buffer = vec![0_u8; bytes];
        // SAFETY: the buffer has as many bytes as the compiler asked for.
        let code = unsafe { text(program, buffer.as_mut_ptr().cast()) };
        self.check(what, code)?;
        Ok(buffer)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), FfiError> {
        if code == 0 { Ok(()) } else { Err(FfiError::Call { call, code }) }
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("name", &self.name).finish_non_exhaustive()
    }
}

const fn name_of(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Nvidia => "NVRTC",
        Vendor::Amd => "HIPRTC",
    }
}

/// The names in a folder; none where it cannot be read.
fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

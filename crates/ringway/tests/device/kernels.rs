#![allow(unsafe_code, reason = "calls NVRTC by its symbols")]
//! Kernels compile for every GPU we name, every type and every operation, without a warning: by NVRTC
//! for NVIDIA's, by clang for AMD's. `.ci/kernels` brings both along and runs these; nothing here needs a GPU.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libloading::Library;

/// One kernel to compile: a type, and an operation or none for copies.
#[derive(Clone, Copy, Debug)]
struct Variant {
    entry: &'static str,
    architecture: &'static str,
    data_type: u32,
    op: Option<u32>,
}

impl Variant {
    /// For the first architecture every type with every operation; for the others every type and every
    /// operation, but not all pairs: what differs between them is how types are rounded.
    fn all(architectures: &[&'static str]) -> Vec<Self> {
        let mut all = Vec::new();
        for (place, architecture) in architectures.iter().copied().enumerate() {
            let entry = "collective.cu";
            for data_type in 0..12 {
                let ops = (0..6).filter(|op| place == 0 || *op == data_type % 6).map(Some);
                all.extend(ops.map(|op| Self { entry, architecture, data_type, op }));
            }
            let copies = |entry| Self { entry, architecture, data_type: 1, op: None };
            all.extend([copies(entry), copies("staged.cu")]);
        }
        all
    }

    fn macros(self) -> Vec<String> {
        // As `Kernels` says them; some number of operands.
        let mut macros = vec![format!("-DRW_TYPE={}", self.data_type)];
        macros
            .extend(["-DRW_OPERANDS=3", "-DRW_THREADS=512", "-DRW_RESIDENT=1"].map(str::to_owned));
        macros.extend(self.op.map(|op| format!("-DRW_OP={op}")));
        let can_overlap = matches!(self.architecture, "sm_90" | "sm_100");
        let overlaps = can_overlap && self.entry == "collective.cu";
        macros.push(format!("-DRW_OVERLAPS={}", u8::from(overlaps)));
        macros
    }
}

/// The source of kernels: their headers in order of name, then the entry.
fn source(entry: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/kernels");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut headers: Vec<_> = files.filter(|file| file.extension().unwrap() == "h").collect();
    headers.sort();
    headers.push(folder.join(entry));
    headers.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Compiles all variants on all processors, and names those that fail.
fn compile_all(variants: &[Variant], compile: impl Fn(Variant) -> Result<(), String> + Sync) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(variant) = variants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(said) = compile(*variant) {
                        failed.lock().unwrap().push(format!("{variant:?}:\n{said}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    let shown = failed.iter().take(3).cloned().collect::<Vec<_>>().join("\n");
    assert!(failed.is_empty(), "{} of {} fail\n{shown}", failed.len(), variants.len());
}

#[test]
#[ignore = "needs NVRTC: .ci/kernels"]
fn every_kernel_compiles_for_nvidia() {
    let path = std::env::var("RINGWAY_NVRTC_LIBRARY")
        .expect("RINGWAY_NVRTC_LIBRARY names NVRTC's library; .ci/kernels sets it");
    // SAFETY: NVIDIA's library, named by whoever runs this.
    let nvrtc = unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{path}: {error}"));
    compile_all(&Variant::all(&["sm_90", "sm_80", "sm_100"]), |variant| {
        let source = CString::new(source(variant.entry)).unwrap();
        by_nvrtc(&nvrtc, &source, variant)
    });
}

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// A function of NVRTC.
///
/// # Safety
///
/// `F` is its type.
unsafe fn symbol<F: Copy>(nvrtc: &Library, name: &str) -> F {
    // SAFETY: the caller's promise.
    let found = unsafe { nvrtc.get::<F>(name.as_bytes()) };
    *found.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Compiles one variant to a CUBIN; what NVRTC says where it fails or warns.
fn by_nvrtc(nvrtc: &Library, source: &CString, variant: Variant) -> Result<(), String> {
    // SAFETY: nvrtc.h's type.
    let create: Create = unsafe { symbol(nvrtc, "nvrtcCreateProgram") };
    // SAFETY: nvrtc.h's type.
    let compile: Compile = unsafe { symbol(nvrtc, "nvrtcCompileProgram") };
    // SAFETY: nvrtc.h's type.
    let log_size: Size = unsafe { symbol(nvrtc, "nvrtcGetProgramLogSize") };
    // SAFETY: nvrtc.h's type.
    let log_text: Text = unsafe { symbol(nvrtc, "nvrtcGetProgramLog") };
    // SAFETY: nvrtc.h's type.
    let cubin_size: Size = unsafe { symbol(nvrtc, "nvrtcGetCUBINSize") };
    // SAFETY: nvrtc.h's type.
    let destroy: Destroy = unsafe { symbol(nvrtc, "nvrtcDestroyProgram") };

    let mut options = variant.macros();
    options
        .extend([format!("--gpu-architecture={}", variant.architecture), "-std=c++17".to_owned()]);
    let options: Vec<CString> = options.into_iter().map(|o| CString::new(o).unwrap()).collect();
    let words: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let count = c_int::try_from(words.len()).unwrap();

    let mut program: Program = null_mut();
    let name = c"collective.cu".as_ptr();
    // SAFETY: the strings live past the call; there are no headers.
    let made = unsafe { create(&raw mut program, source.as_ptr(), name, 0, null(), null()) };
    assert_eq!(made, 0, "nvrtcCreateProgram");
    // SAFETY: a live program; `count` strings that live past the call.
    let code = unsafe { compile(program, count, words.as_ptr()) };
    let (mut bytes, mut image) = (0, 0);
    // SAFETY: a live program and a local.
    let asked = unsafe { log_size(program, &raw mut bytes) };
    assert_eq!(asked, 0, "nvrtcGetProgramLogSize");
    let mut log = vec![0_u8; bytes.max(1)];
    // SAFETY: a live program; room for the log and its end.
    let got = unsafe { log_text(program, log.as_mut_ptr().cast()) };
    assert_eq!(got, 0, "nvrtcGetProgramLog");
    if code == 0 {
        // SAFETY: a program that is compiled, and a local.
        let asked = unsafe { cubin_size(program, &raw mut image) };
        assert_eq!(asked, 0, "nvrtcGetCUBINSize");
    }
    // SAFETY: a live program, used no more.
    unsafe { destroy(&raw mut program) };
    let said = String::from_utf8_lossy(&log).trim_matches('\0').trim().to_owned();
    if code == 0 && said.is_empty() && image > 0 {
        Ok(())
    } else {
        Err(format!("code {code}, {image} bytes\n{said}"))
    }
}

#[test]
#[ignore = "needs clang with AMD's targets: .ci/kernels"]
fn every_kernel_compiles_for_amd() {
    let clang = clang();
    let headers = include_str!("hip.h");
    compile_all(&Variant::all(&["gfx942", "gfx90a"]), |variant| {
        let Variant { entry, .. } = variant;
        let source = format!("#line 1 \"hip.h\"\n{headers}#line 1 \"{entry}\"\n{}", source(entry));
        by_clang(&clang, &source, variant)
    });
}

/// The newest clang that can make code for AMD's GPUs.
fn clang() -> String {
    let names =
        (17..=30).rev().map(|version| format!("clang-{version}")).chain(["clang".to_owned()]);
    let can = |name: &String| {
        let asked = Command::new(name).arg("--print-targets").stdin(Stdio::null()).output();
        asked.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("amdgcn"))
    };
    names.into_iter().find(can).expect("a clang with the target amdgcn: apt-get install clang-19")
}

/// Compiles one variant to assembly: all but the linker, which needs nothing of ours. (Its output is `-`:
/// given a path, clang puts a new file in its place, and for root `/dev/stdout` is then a file.)
fn by_clang(clang: &str, source: &str, variant: Variant) -> Result<(), String> {
    let mut child = Command::new(clang)
        .args(["-x", "hip", "--offload-device-only", "-nogpulib", "-nogpuinc", "-std=c++17", "-O3"])
        .args(["-Wall", "-Wextra", "-Werror", "-S", "-o", "-"])
        .arg(format!("--offload-arch={}", variant.architecture))
        .args(variant.macros())
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{clang}: {error}"))?;
    // clang reads all before it writes.
    child.stdin.take().unwrap().write_all(source.as_bytes()).map_err(|error| error.to_string())?;
    let done = child.wait_with_output().map_err(|error| error.to_string())?;
    let assembly = String::from_utf8_lossy(&done.stdout);
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    if assembly.contains(".amdhsa_kernel") { Ok(()) } else { Err("no kernel came out".to_owned()) }
}

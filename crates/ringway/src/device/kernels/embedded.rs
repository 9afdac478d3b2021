//! Kernels made ahead, for machines without NVRTC: PTX, which the driver compiles when it loads it.
//!
//! `embedded.gz` has one for copies, one for calls that the host makes, and for each type one that folds any
//! number of operands by the operation that a launch names. It is made by the oldest NVRTC that takes the
//! source, as drivers refuse PTX that is newer than they are; `.ci/kernels` makes it again and compares.
//!
//! *Invariant:* it is made from the sources beside it: its first line is their hash.

use std::ffi::CStr;
use std::io::Read as _;

use super::{Fault, Kind};

static PACKED: &[u8] = include_bytes!("embedded.gz");

/// The kernel of a kind, as PTX that ends with 0.
pub(super) fn find(kind: Kind) -> Result<Vec<u8>, Fault> {
    let damaged = |why: &str| Fault::Other(format!("the kernels made ahead cannot be read: {why}"));
    let mut all = Vec::new();
    flate2::read::GzDecoder::new(PACKED)
        .read_to_end(&mut all)
        .map_err(|error| damaged(&error.to_string()))?;
    let (_hash, mut rest) = line(&all).ok_or_else(|| damaged("no first line"))?;
    let wanted = name(kind);
    while let Some((head, body)) = line(rest) {
        let (name, bytes) = head.split_once(' ').ok_or_else(|| damaged(head))?;
        let bytes: usize = bytes.parse().map_err(|_| damaged(head))?;
        let (ptx, behind) = body.split_at_checked(bytes).ok_or_else(|| damaged(head))?;
        if name == wanted {
            let mut ptx = ptx.to_vec();
            if CStr::from_bytes_with_nul(&ptx).is_err() {
                ptx.push(0);
            }
            return Ok(ptx);
        }
        rest = behind;
    }
    Err(damaged(&format!("there is none for {wanted}")))
}

/// The first line, and what is behind it.
fn line(text: &[u8]) -> Option<(&str, &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&text[..end]).ok()?, &text[end + 1..]))
}

/// What a kernel is called here.
fn name(kind: Kind) -> String {
    match kind {
        Kind::Copy => "copy".to_owned(),
        Kind::Fold { data_type, .. } => format!("fold-{}", data_type as u8),
        Kind::Staged | Kind::Messages => "staged".to_owned(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;

    use sha2::{Digest as _, Sha256};

    use super::super::{COLLECTIVE, HEADERS, STAGED, THREADS, THREADS_RESIDENT};
    use super::*;
    use crate::ffi::cuda::Vendor;
    use crate::ffi::nvrtc::Compiler;
    use crate::plan::types::{DataType, ReduceOp};

    /// The oldest architecture that has what the sources use.
    const ARCHITECTURE: &str = "compute_70";

    /// One of each that is made ahead.
    fn kinds() -> Vec<Kind> {
        let fold = |data_type| Kind::Fold { data_type, op: ReduceOp::Sum, operands: 2 };
        let mut all = vec![Kind::Copy, Kind::Staged];
        all.extend(DataType::ALL.map(fold));
        all
    }

    /// The hash of the sources.
    fn hash() -> String {
        let mut hash = Sha256::new();
        for source in [HEADERS[0], HEADERS[1], COLLECTIVE, STAGED] {
            hash.update((source.len() as u64).to_le_bytes());
            hash.update(source);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn unpacked() -> Vec<u8> {
        let mut all = Vec::new();
        let read = flate2::read::GzDecoder::new(PACKED).read_to_end(&mut all);
        assert!(read.is_ok(), "{read:?}");
        all
    }

    fn make(compiler: &Compiler, kind: Kind) -> Vec<u8> {
        let data_type = match kind {
            Kind::Fold { data_type, .. } => data_type,
            _ => DataType::U8,
        };
        let mut options = vec![
            format!("--gpu-architecture={ARCHITECTURE}"),
            "--std=c++17".to_owned(),
            format!("-DRW_TYPE={}", data_type as u8),
            format!("-DRW_THREADS={THREADS}"),
            format!("-DRW_RESIDENT={}", THREADS_RESIDENT / THREADS),
            "-DRW_OVERLAPS=0".to_owned(),
        ];
        options.extend(match kind {
            // Any operation, of any number of operands.
            Kind::Fold { .. } => ["-DRW_OP=6".to_owned(), "-DRW_OPERANDS=0".to_owned()].to_vec(),
            _ => vec!["-DRW_OPERANDS=1".to_owned()],
        });
        let mut ptx = match compiler.compile(&kind.source(), &options) {
            Ok(ptx) => ptx,
            Err(error) => panic!("{kind:?}: {error}"),
        };
        while ptx.last() == Some(&0) {
            ptx.pop();
        }
        ptx
    }

    #[test]
    fn they_are_made_from_the_sources_beside_them() {
        let all = unpacked();
        let (found, _) = line(&all).unwrap();
        assert_eq!(
            found,
            hash(),
            "the sources have changed: RINGWAY_BLESS=1 .ci/kernels makes the kernels anew"
        );
    }

    #[test]
    fn there_is_one_for_every_kind() {
        for kind in kinds().into_iter().chain([Kind::Messages]) {
            let ptx = find(kind).unwrap();
            let text = CStr::from_bytes_with_nul(&ptx).unwrap().to_str().unwrap();
            let entry = kind.entry().to_str().unwrap();
            assert!(text.contains(&format!(".entry {entry}(")), "{kind:?}");
            assert!(text.contains(".target sm_70"), "{kind:?}");
        }
    }

    #[test]
    #[ignore = "needs the oldest NVRTC: .ci/kernels"]
    fn they_are_what_the_oldest_compiler_makes() {
        let path = std::env::var("RINGWAY_TEST_OLD_NVRTC").unwrap();
        let compiler = Compiler::open(Vendor::Nvidia, &path).unwrap();
        let mut all = format!("{}\n", hash()).into_bytes();
        for kind in kinds() {
            let ptx = make(&compiler, kind);
            writeln!(all, "{} {}", name(kind), ptx.len()).unwrap();
            all.extend(ptx);
        }
        if std::env::var_os("RINGWAY_BLESS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/device/kernels/embedded.gz");
            let best = flate2::Compression::best();
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), best);
            packed.write_all(&all).unwrap();
            return std::fs::write(path, packed.finish().unwrap()).unwrap();
        }
        assert!(unpacked() == all, "not what {} makes of the sources", compiler.version());
    }
}

//! Which RDMA libraries of a live machine a process would load, and what build each is of.
//!
//! *Invariant*: at most [`FOLDERS`] folders are looked at, and [`BYTES`] of each library read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use memchr::memmem;

/// Folders of LD_LIBRARY_PATH.
const FOLDERS: usize = 64;

/// Bytes of a library.
const BYTES: u64 = 4 << 20;

/// Libraries of one name that are noted.
const ALIKE: usize = 8;

const NAMES: [&str; 3] = ["libibverbs.so.1", "libmlx5.so.1", "libefa.so.1"];

/// Where the loader looks last.
const SYSTEM: [&str; 6] = [
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
];

/// `library NAME N = PATH VERSION`, N in the order of search.
pub(super) fn found(search: &str) -> Vec<(String, String)> {
    let named = search.split(':').filter(|folder| folder.starts_with('/')).take(FOLDERS);
    let folders: Vec<&str> = named.chain(SYSTEM).collect();
    let mut facts = Vec::new();
    for name in NAMES {
        let mut known = BTreeSet::<PathBuf>::new();
        let mut number = 0;
        for folder in &folders {
            let path = Path::new(folder).join(name);
            // One file has many names: /lib64 is a link to /usr/lib64.
            let Ok(real) = path.canonicalize() else { continue };
            if !real.is_file() || !known.insert(real.clone()) || number == ALIKE {
                continue;
            }
            let Some(version) = version(&real) else { continue };
            facts.push((
                format!("library {name} {number}"),
                format!("{} {version}", path.display()),
            ));
            number += 1;
        }
    }
    facts
}

/// The private version that a library of rdma-core defines or asks for.
fn version(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(BYTES).read_to_end(&mut bytes).ok()?;
    private(&bytes)
}

/// `IBVERBS_PRIVATE_34` in the bytes of a library.
pub(super) fn private(bytes: &[u8]) -> Option<String> {
    let mark = b"IBVERBS_PRIVATE_";
    let at = memmem::find(bytes, mark)?;
    let digits = bytes[at + mark.len()..].iter().take(6).take_while(|byte| byte.is_ascii_digit());
    let digits: String = digits.map(|byte| char::from(*byte)).collect();
    (!digits.is_empty()).then(|| format!("IBVERBS_PRIVATE_{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_in_the_path_stands_first_and_other_names_of_it_are_left_out() {
        let folder = std::env::temp_dir().join(format!("ringway-libraries-{}", std::process::id()));
        let (one, two, three) = (folder.join("one"), folder.join("two"), folder.join("three"));
        for (place, number) in [(&one, 34), (&two, 58)] {
            std::fs::create_dir_all(place).unwrap();
            let text = format!("\0GLIBC_2.34\0IBVERBS_1.14\0IBVERBS_PRIVATE_{number}\0");
            std::fs::write(place.join("libibverbs.so.1"), text).unwrap();
        }
        std::os::unix::fs::symlink(&one, &three).unwrap();
        let search = format!("{}::{}:{}", one.display(), three.display(), two.display());
        let facts = found(&search);
        std::fs::remove_dir_all(&folder).unwrap();
        let ours = |number: usize| &facts[number].1;
        assert_eq!(facts[0].0, "library libibverbs.so.1 0");
        assert!(ours(0).ends_with("one/libibverbs.so.1 IBVERBS_PRIVATE_34"), "{facts:?}");
        assert!(ours(1).ends_with("two/libibverbs.so.1 IBVERBS_PRIVATE_58"), "{facts:?}");
    }

    #[test]
    fn bytes_without_a_version_have_none() {
        assert_eq!(private(b"IBVERBS_PRIVATE_"), None);
        assert_eq!(private(b"xIBVERBS_PRIVATE_25@"), Some("IBVERBS_PRIVATE_25".to_owned()));
    }
}

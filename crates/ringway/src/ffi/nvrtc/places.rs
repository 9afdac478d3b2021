//! Where NVRTC may be, when nobody says: a loaded one, beside CUDA's libraries that are loaded, on the loader's
//! path, and where toolkits are installed.
//!
//! ```text
//! PyTorch's packages            site-packages/nvidia/cublas/lib/libcublas.so.12      loaded, seen in the maps
//!                               site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12   beside it (CUDA 12)
//!                               site-packages/nvidia/cu13/lib/libnvrtc.so.13         all in one folder (CUDA 13)
//! a toolkit                     /usr/local/cuda-12.8/lib64/libnvrtc.so.12
//! ```
//!
//! The package's folder is not on the loader's path, and a process that has not compiled anything yet has not
//! loaded it. NVRTC finds its builtins beside itself.
//!
//! *Invariant:* nothing is opened here: text and the names in folders go in, paths come out.

use std::path::{Path, PathBuf};

/// How names of CUDA's libraries begin, and of those that come in the same packages.
const COMPANIONS: [&str; 13] = [
    "libnvrtc",
    "libcudart",
    "libcublas",
    "libcudnn",
    "libcufft",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libcupti",
    "libnvJitLink",
    "libnccl",
    "libtorch_cuda",
    "libc10_cuda",
];

/// Names by which the loader is asked.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.11.2"];

/// Where toolkits are installed.
const INSTALLED: &str = "/usr/local";

/// The names in a folder; none where there is no such folder.
type Names<'a> = &'a dyn Fn(&Path) -> Vec<String>;

/// What was found, the best first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// Paths, and bare names for the loader.
    pub(super) libraries: Vec<PathBuf>,
    /// Folders that were looked into.
    pub(super) folders: Vec<PathBuf>,
}

impl Places {
    /// Looks into each of some folders that was not looked into before.
    fn look(&mut self, names: Names<'_>, folders: impl IntoIterator<Item = PathBuf>) {
        for folder in folders {
            if self.folders.contains(&folder) {
                continue;
            }
            let mut here: Vec<String> =
                names(&folder).into_iter().filter(|name| is_nvrtc(name)).collect();
            // The newest first; of one version the name that programs ask for.
            here.sort_by_key(|name| (std::cmp::Reverse(major(name)), name.len()));
            self.libraries.extend(here.iter().map(|name| folder.join(name)));
            self.folders.push(folder);
        }
    }
}

/// Where to look, from the text of `/proc/self/maps` and the folders of toolkits that the environment names.
pub(super) fn places(maps: &str, toolkits: &[PathBuf], names: Names<'_>) -> Places {
    let loaded = loaded(maps);
    let mut places = Places::default();
    let is_named =
        |path: &&PathBuf| path.file_name().is_some_and(|n| is_nvrtc(&n.to_string_lossy()));
    places.libraries.extend(loaded.iter().filter(is_named).cloned());
    for path in &loaded {
        let Some(folder) = path.parent() else { continue };
        places.look(names, beside(folder, names));
    }
    places.libraries.extend(NAMES.map(PathBuf::from));
    for toolkit in toolkits {
        places.look(names, [toolkit.join("lib64"), toolkit.join("lib")]);
    }
    let installed = Path::new(INSTALLED);
    let mut versions: Vec<String> =
        names(installed).into_iter().filter(|name| name.starts_with("cuda")).collect();
    // The one without a version is the administrator's choice; else the newest.
    versions.sort_by_key(|name| std::cmp::Reverse((name == "cuda", numbers(name))));
    places.look(names, versions.iter().map(|version| installed.join(version).join("lib64")));
    places
}

/// CUDA's libraries that are loaded, in the order of the maps, each once.
fn loaded(maps: &str) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        // Addresses, rights, offset, device, inode; the rest is a path, which may have spaces.
        let Some(start) = line.find('/') else { continue };
        // Where the file was removed, the path does not lead to it any more.
        let path = Path::new(line[start..].trim_end_matches(" (deleted)"));
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let is_companion = COMPANIONS.iter().any(|companion| name.starts_with(companion));
        if is_companion && name.contains(".so") && !all.iter().any(|known| known == path) {
            all.push(path.to_owned());
        }
    }
    all
}

/// Folders in which a library's companions may be.
fn beside(folder: &Path, names: Names<'_>) -> Vec<PathBuf> {
    let mut all = vec![folder.to_owned()];
    let Some(package) = folder.parent() else { return all };
    all.push(package.join("lib"));
    let Some(site) = package.parent() else { return all };
    // The packages' common folder, or that of torch, which stands beside it.
    for site in [site.to_owned(), site.join("nvidia")] {
        let mut together: Vec<String> =
            names(&site).into_iter().filter(|name| is_toolkit(name)).collect();
        together.sort_by_key(|name| std::cmp::Reverse(numbers(name)));
        all.push(site.join("cuda_nvrtc/lib"));
        all.extend(together.iter().map(|name| site.join(name).join("lib")));
    }
    all
}

/// `cu13`: the packages of one version in one folder.
fn is_toolkit(name: &str) -> bool {
    name.strip_prefix("cu")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `libnvrtc.so.12`, but not its builtins nor its other builds.
fn is_nvrtc(name: &str) -> bool {
    name.strip_prefix("libnvrtc.so").is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn major(name: &str) -> u64 {
    numbers(name).first().copied().unwrap_or(0)
}

/// The numbers in a name, in their order.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file system of some files.
    fn names_of(files: &'static [&'static str]) -> impl Fn(&Path) -> Vec<String> {
        move |folder| {
            let mut all: Vec<String> = files
                .iter()
                .filter_map(|file| Path::new(*file).strip_prefix(folder).ok()?.iter().next())
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            all.dedup();
            all
        }
    }

    fn found(maps: &str, toolkits: &[&str], files: &'static [&'static str]) -> Vec<String> {
        let toolkits: Vec<PathBuf> = toolkits.iter().map(PathBuf::from).collect();
        let places = places(maps, &toolkits, &names_of(files));
        places.libraries.iter().map(|path| path.display().to_string()).collect()
    }

    const BY_NAME: [&str; 4] = NAMES;

    #[test]
    fn nothing_there_leaves_the_loader() {
        assert_eq!(found("", &[], &[]), BY_NAME);
        let maps = "7f00-7f01 r-xp 00000000 08:01 12   /usr/lib/libc.so.6\n\
                    7f02-7f03 rw-p 00000000 00:00 0\n\
                    7f04-7f05 rw-p 00000000 00:00 0    [heap]\n";
        assert_eq!(found(maps, &[], &["/usr/lib/libnvrtc.so.12"]), BY_NAME);
    }

    #[test]
    fn packages_of_cuda_12_are_found_beside_each_other() {
        let maps = "7f00-7f01 r-xp 0 08:01 12   /a b/site-packages/nvidia/cublas/lib/libcublas.so.12\n\
                    7f01-7f02 rw-p 0 08:01 12   /a b/site-packages/nvidia/cublas/lib/libcublas.so.12\n";
        let files = &[
            "/a b/site-packages/nvidia/cublas/lib/libcublas.so.12",
            "/a b/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
            "/a b/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.alt.so.12",
            "/a b/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        ];
        let all = found(maps, &[], files);
        assert_eq!(all[0], "/a b/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        assert_eq!(all[1..], BY_NAME);
    }

    #[test]
    fn packages_of_cuda_13_are_found_in_their_common_folder() {
        let files = &[
            "/s/nvidia/cu12/lib/libnvrtc.so.12",
            "/s/nvidia/cu13/lib/libcudart.so.13",
            "/s/nvidia/cu13/lib/libnvrtc.so.13",
            "/s/nvidia/cudnn/lib/libcudnn.so.9",
            "/s/torch/lib/libtorch_cuda.so",
        ];
        let expected = ["/s/nvidia/cu13/lib/libnvrtc.so.13", "/s/nvidia/cu12/lib/libnvrtc.so.12"];
        for loaded in [
            "/s/nvidia/cu13/lib/libcudart.so.13",
            "/s/nvidia/cudnn/lib/libcudnn.so.9",
            "/s/torch/lib/libtorch_cuda.so",
        ] {
            let all = found(&format!("1-2 r-xp 0 08:01 5  {loaded}\n"), &[], files);
            assert_eq!(all[..2], expected, "{loaded}");
        }
    }

    #[test]
    fn a_loaded_one_comes_first_wherever_it_is() {
        let maps = "1-2 r-xp 0 08:01 5  /s/nvidia/cublas/lib/libcublas.so.12\n\
                    3-4 r-xp 0 08:01 6  /opt/libnvrtc-builtins.so.12.4\n\
                    5-6 r-xp 0 08:01 7  /opt/libnvrtc.so.12.4.127\n";
        let files = &["/s/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"];
        let all = found(maps, &["/t"], files);
        assert_eq!(
            all[..2],
            ["/opt/libnvrtc.so.12.4.127", "/s/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"]
        );
    }

    #[test]
    fn toolkits_come_after_the_loader_and_the_chosen_one_first() {
        let files = &[
            "/t/lib64/libnvrtc.so",
            "/t/lib64/libnvrtc.so.12",
            "/usr/local/cuda/lib64/libnvrtc.so.12",
            "/usr/local/cuda-12.8/lib64/libnvrtc.so.12",
            "/usr/local/cuda-12.10/lib64/libnvrtc.so.12",
        ];
        let all = found("", &["/t"], files);
        assert_eq!(all[..4], BY_NAME);
        assert_eq!(
            all[4..],
            [
                "/t/lib64/libnvrtc.so.12",
                "/t/lib64/libnvrtc.so",
                "/usr/local/cuda/lib64/libnvrtc.so.12",
                "/usr/local/cuda-12.10/lib64/libnvrtc.so.12",
                "/usr/local/cuda-12.8/lib64/libnvrtc.so.12",
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_and_any_names_give_places(maps in "(?s).{0,200}", name in ".{0,40}") {
            let names = |_: &Path| vec![name.clone(), "cu13".to_owned(), "libnvrtc.so.12".to_owned()];
            for maps in [maps.as_str(), &format!("1-2 r 0 8 5 /{maps}/libcudart.so.12\n")] {
                let places = places(maps, &[PathBuf::from("/t")], &names);
                prop_assert!(places.libraries.contains(&PathBuf::from("/t/lib64/libnvrtc.so.12")));
            }
        }
    }

    #[test]
    fn folders_are_looked_into_once_and_told() {
        let maps = "1-2 r-xp 0 08:01 5  /s/nvidia/cublas/lib/libcublas.so.12\n\
                    3-4 r-xp 0 08:01 6  /s/nvidia/cublas/lib/libcublasLt.so.12 (deleted)\n";
        let places = places(maps, &[PathBuf::from("/t")], &|_| Vec::new());
        let told: Vec<_> = places.folders.iter().map(|f| f.display().to_string()).collect();
        let expected = [
            "/s/nvidia/cublas/lib",
            "/s/nvidia/cuda_nvrtc/lib",
            "/s/nvidia/nvidia/cuda_nvrtc/lib",
            "/t/lib64",
            "/t/lib",
        ];
        assert_eq!(told, expected);
    }
}

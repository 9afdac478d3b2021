//! What the library exports, and under which name it is loaded.

use std::collections::BTreeSet;
use std::process::Command;

use crate::build::{crate_folder, installed, library, skip};

/// Host functions of the device interface, which the header leaves out: programs that use them come
/// with NVIDIA's.
const OF_THE_DEVICE_INTERFACE: &[&str] = &[
    "ncclCommQueryProperties",
    "ncclDevCommCreate",
    "ncclDevCommDestroy",
    "ncclGetCftDeviceLeInfo",
    "ncclGetLsaDevicePointer",
    "ncclGetLsaMultimemDevicePointer",
    "ncclGetMultimemDeviceLeInfo",
    "ncclGetMultimemDevicePointer",
    "ncclGetPeerDeviceLeInfo",
    "ncclGetPeerDevicePointer",
    "ncclGinBarrierCreateRequirement",
    "ncclGinInboxA2ACreateRequirement",
    "ncclGinOutboxCreateRequirement",
    "ncclLLA2ACalcSlots",
    "ncclLLA2ACreateRequirement",
    "ncclLsaBarrierCreateRequirement",
    "ncclTeamCft",
    "ncclTeamCftMultimem",
    "ncclTeamLsa",
    "ncclTeamRail",
    "ncclTeamRankToLsa",
    "ncclTeamRankToWorld",
    "ncclTeamWorld",
];

fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(name).args(arguments).arg(library()).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            skip("compiler", &format!("{name}: {error}"));
            None
        }
    }
}

/// The functions that a text declares: words before a parenthesis that begin with the prefix.
fn declared(text: &str, prefix: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with("#define"));
    let words = lines.flat_map(|line| line.split('(').next().filter(|_| line.contains('(')));
    let words = words.filter_map(|before| before.split([' ', '*']).next_back());
    words.filter(|word| word.starts_with(prefix)).map(str::to_owned).collect()
}

#[test]
fn exactly_the_functions_of_the_header_are_exported() {
    let Some(listed) = tool("nm", &["-D", "--defined-only"]) else { return };
    let exported: BTreeSet<String> =
        listed.lines().filter_map(|line| Some(line.split(' ').nth(2)?.to_owned())).collect();
    let header = std::fs::read_to_string(crate_folder().join("include/nccl.h")).unwrap();
    let mut expected = declared(&header, "nccl");
    assert!(expected.len() > 60, "the header declares {} functions", expected.len());
    expected.extend(OF_THE_DEVICE_INTERFACE.iter().map(|name| (*name).to_owned()));
    let twins: BTreeSet<String> = expected.iter().map(|name| format!("p{name}")).collect();
    let of_header = declared(&header, "pnccl");
    assert!(of_header.is_subset(&twins), "{:?}", of_header.difference(&twins));
    expected.extend(twins);
    let missing: Vec<_> = expected.difference(&exported).collect();
    let besides: Vec<_> = exported.difference(&expected).collect();
    assert!(missing.is_empty() && besides.is_empty(), "missing {missing:?}, besides {besides:?}");
}

#[test]
fn every_function_has_its_line_in_the_documents() {
    let text = std::fs::read_to_string(crate_folder().join("../../docs/nccl.md")).unwrap();
    let tables = text.split("## Every function").nth(1).unwrap();
    let listed: Vec<&str> =
        tables.split('`').skip(1).step_by(2).filter(|word| word.starts_with("nccl")).collect();
    let header = std::fs::read_to_string(crate_folder().join("include/nccl.h")).unwrap();
    let mut expected = declared(&header, "nccl");
    expected.extend(OF_THE_DEVICE_INTERFACE.iter().map(|name| (*name).to_owned()));
    for name in &expected {
        assert!(listed.contains(&name.as_str()), "docs/nccl.md says nothing of {name}");
    }
    for name in listed {
        let mentioned = ["ncclCommCuDevice", "ncclCommInitAll", "ncclInvalidUsage"];
        assert!(expected.contains(name) || mentioned.contains(&name), "{name} does not exist");
    }
}

#[test]
fn the_library_has_its_name_and_needs_little() {
    let Some(listed) = tool("readelf", &["-dW"]) else { return };
    let named = |kind: &str| -> Vec<String> {
        let lines = listed.lines().filter(|line| line.contains(kind));
        lines.filter_map(|line| Some(line.split(['[', ']']).nth(1)?.to_owned())).collect()
    };
    assert_eq!(named("(SONAME)"), ["libnccl.so.2"]);
    assert!(listed.contains("NODELETE"), "dlclose would take the code of running threads away");
    for needed in named("(NEEDED)") {
        let usual =
            ["libc.so.", "libgcc_s.so.", "libm.so.", "ld-linux", "libpthread", "libdl", "librt"];
        assert!(usual.iter().any(|name| needed.starts_with(name)), "needs {needed}");
    }
}

#[test]
fn the_script_installs_all_names() {
    for name in ["libnccl.so.2", "libnccl.so", "librccl.so.1", "librccl.so", "nccl.h", "rccl.h"] {
        let path = installed().join(name);
        assert!(path.is_file(), "{} is not there", path.display());
    }
    let wrong = Command::new(crate_folder().join("install")).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let absent = Command::new(crate_folder().join("install"))
        .arg(installed())
        .arg("no-such-library")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&absent.stderr).contains("no-such-library is not there"));
}

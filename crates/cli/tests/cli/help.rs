//! Help and version.

use crate::process::{finish, ringway};

#[test]
fn help_ends_with_examples() {
    for args in [
        &["--help"][..],
        &["perf", "--help"],
        &["perf", "pairs", "--help"],
        &["perf", "bisect", "--help"],
        &["perf", "soak", "--help"],
        &["run", "--help"],
        &["run", "-h"],
        &["tune", "--help"],
        &["doctor", "--help"],
        &["env", "--help"],
        &["env", "lint", "--help"],
        &["env", "suggest", "--help"],
        &["topo", "--help"],
        &["net", "--help"],
        &["k8s", "--help"],
        &["k8s", "gen", "--help"],
        &["k8s", "lint", "--help"],
        &["report", "--help"],
        &["serve", "--help"],
        &["snapshot", "--help"],
        &["trace", "--help"],
        &["trace", "show", "--help"],
        &["trace", "merge", "--help"],
        &["completions", "--help"],
        &["man", "--help"],
    ] {
        let done = finish(&mut ringway(args));
        assert_eq!(done.status.code(), Some(0));
        let (_, examples) = done.stdout.split_once("Examples:").unwrap();
        assert!(examples.contains("ringway "), "{args:?}");
        let widest = done.stdout.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{args:?}: {widest:?}");
    }
}

#[test]
fn version_is_the_package_version() {
    let done = finish(&mut ringway(&["--version"]));
    assert_eq!(done.stdout, format!("ringway {}\n", env!("CARGO_PKG_VERSION")));
}

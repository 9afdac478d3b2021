//! What packages bring beside the program: completions in real shells, manual pages through a real formatter, the
//! Kustomize base, the Containerfile.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::need;
use crate::process::{Finished, Folder, finish, ringway};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(top().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The script for a shell, in a file of this name.
fn script(folder: &Folder, shell: &str, name: &str) -> PathBuf {
    let done = finish(&mut ringway(&["completions", shell]));
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{shell}");
    let path = folder.0.join(name);
    std::fs::write(&path, done.stdout).unwrap();
    path
}

/// Runs a program that is not ours.
fn other(program: &str, args: &[&str]) -> Finished {
    finish(Command::new(program).args(args).stdin(Stdio::null()))
}

#[test]
fn bash_completes_commands_options_and_values() {
    let folder = Folder::new("completions-bash");
    let script = script(&folder, "bash", "ringway");
    // What bash itself does at a tab: the function that was registered, with the words before the cursor.
    let tab = r#"source "$1"; shift
        function=$(complete -p ringway); function=${function#*-F }; function=${function%% *}
        COMP_WORDS=(ringway "$@"); COMP_CWORD=$#
        "$function" ringway "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    for (words, wanted) in [
        (&["pe"][..], "perf\n"),
        (&["rank"], "\n"),
        (&["k8s", "gen", "--im"], "--image\n"),
        (&["k8s", "gen", "--network", "sr"], "sriov\n"),
        (&["completions", "z"], "zsh\n"),
        (&["env", "li"], "lint\nlist\n"),
    ] {
        let args = [&["--norc", "-c", tab, "tab", script.to_str().unwrap()], words].concat();
        let done = other("bash", &args);
        let mut found: Vec<&str> = done.stdout.split_inclusive('\n').collect();
        found.sort_unstable();
        assert_eq!((found.concat().as_str(), done.stderr.as_str()), (wanted, ""), "{words:?}");
    }
}

#[test]
fn zsh_finds_the_function_and_its_commands() {
    if !need::program("zsh", "zsh") {
        return;
    }
    let folder = Folder::new("completions-zsh");
    let _script = script(&folder, "zsh", "_ringway");
    // The last step, which draws a menu, needs a terminal: it prints instead.
    let load = r#"fpath=("$1" $fpath); autoload -Uz compinit; compinit -u -D
        print -- "ringway: $_comps[ringway]"
        _arguments() { return 1 }
        autoload +X -Uz _ringway; eval "$functions[_ringway]"
        _describe() { print -l -- "${(@P)4}" }
        _ringway_commands"#;
    let done = other("zsh", &["-f", "-c", load, "load", folder.0.to_str().unwrap()]);
    assert!(done.stdout.starts_with("ringway: _ringway\n"), "{}{}", done.stdout, done.stderr);
    assert!(done.stdout.contains("\nperf:Measure"), "{}{}", done.stdout, done.stderr);
    assert!(
        done.stdout.contains("\nman:") && !done.stdout.contains("rank-exec"),
        "{}",
        done.stdout
    );
}

#[test]
fn fish_completes_commands_and_options() {
    if !need::program("fish", "fish") {
        return;
    }
    let folder = Folder::new("completions-fish");
    let script = script(&folder, "fish", "ringway.fish");
    for (line, wanted) in
        [("ringway pe", "perf\t"), ("ringway k8s gen --im", "--image\t"), ("ringway rank", "")]
    {
        let tab = "source $argv[1]; complete -C $argv[2]";
        let mut command = Command::new("fish");
        // Fish keeps settings in a folder of the user's.
        command.env("HOME", &folder.0).stdin(Stdio::null());
        command.args(["--no-config", "-c", tab, script.to_str().unwrap(), line]);
        let done = finish(&mut command);
        let found = done.stdout.lines().next().unwrap_or_default();
        let is_right = if wanted.is_empty() { found.is_empty() } else { found.starts_with(wanted) };
        assert!(is_right, "{line:?}: {:?} {}", done.stdout, done.stderr);
    }
}

#[test]
fn manual_pages_are_formatted_without_a_warning() {
    if !need::program("man", "man-db") {
        return;
    }
    let folder = Folder::new("man");
    let pages = folder.0.join("share/man1");
    let done = finish(&mut ringway(&["man", "--out", pages.to_str().unwrap()]));
    assert_eq!((done.status.code(), done.stdout.as_str(), done.stderr.as_str()), (Some(0), "", ""));
    let mut seen = 0;
    for entry in std::fs::read_dir(&pages).unwrap() {
        let path = entry.unwrap().path();
        let mut man = Command::new("man");
        man.env("MANROFFSEQ", "").env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8");
        man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]).arg(&path);
        let done = finish(man.stdin(Stdio::null()));
        assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{}", path.display());
        seen += 1;
    }
    assert!(seen > 30, "{seen} pages");
    let own = finish(&mut ringway(&["man"]));
    assert_eq!(own.stdout, std::fs::read_to_string(pages.join("ringway.1")).unwrap());
}

#[test]
fn wrong_words_say_what_is_right() {
    let done = finish(&mut ringway(&["completions", "tcsh"]));
    assert_eq!(done.status.code(), Some(2));
    assert!(done.stderr.contains("tcsh") && done.stderr.contains("zsh"), "{}", done.stderr);
    let done = finish(&mut ringway(&["man", "--out", "/dev/null/pages"]));
    assert_eq!(done.status.code(), Some(2));
    assert!(done.stderr.starts_with("ringway man: /dev/null/pages: "), "{}", done.stderr);
}

/// Files of the base, and how each is made.
fn made() -> Vec<(&'static str, String)> {
    let image = concat!("ringway:", env!("CARGO_PKG_VERSION"));
    let manifest = |kind: &str| {
        let name = format!("ringway-{kind}");
        let done = finish(&mut ringway(&[
            "k8s",
            "gen",
            kind,
            "--name",
            &name,
            "--namespace",
            "ringway",
            "--image",
            image,
        ]));
        assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{kind}");
        done.stdout
    };
    vec![
        ("exporter.yaml", manifest("exporter")),
        ("doctor.yaml", manifest("doctor")),
        ("ringway.rules.yaml", read("docs/prometheus/ringway.rules.yaml")),
    ]
}

#[test]
fn the_kustomize_base_is_what_is_generated() {
    for (name, text) in made() {
        let path = format!("packaging/kustomize/base/{name}");
        if std::env::var("RINGWAY_BLESS").is_ok_and(|value| value == "1") {
            std::fs::write(top().join(&path), &text).unwrap();
        }
        let kept = std::fs::read_to_string(top().join(&path)).unwrap_or_default();
        assert!(
            kept == text,
            "{path} is stale: RINGWAY_BLESS=1 cargo test -p ringway-cli --test cli packaging"
        );
    }
}

#[test]
fn kustomizations_name_files_that_exist_and_nothing_is_wrong_with_them() {
    let base = read("packaging/kustomize/base/kustomization.yaml");
    for name in ["namespace.yaml", "exporter.yaml", "doctor.yaml", "ringway.rules.yaml"] {
        assert!(base.contains(&format!("- {name}\n")), "{name} is not in the base");
        assert!(top().join("packaging/kustomize/base").join(name).is_file(), "{name}");
    }
    let overlay = read("packaging/kustomize/overlays/example/kustomization.yaml");
    assert!(overlay.contains("- ../../base\n"));
    assert!(overlay.contains(concat!("newTag: ", env!("CARGO_PKG_VERSION"), "\n")));
    for name in ["namespace.yaml", "exporter.yaml", "doctor.yaml"] {
        let path = top().join("packaging/kustomize/base").join(name);
        let done = finish(&mut ringway(&["k8s", "lint", path.to_str().unwrap()]));
        assert_eq!((done.status.code(), done.stdout.as_str()), (Some(0), "nothing wrong found\n"));
    }
}

#[test]
fn the_containerfile_copies_what_exists_and_pins_what_is_pinned() {
    let text = read("packaging/Containerfile").replace("\\\n", " ");
    let mut copied = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0].starts_with("--from=") {
            continue;
        }
        for source in &words[..words.len() - 1] {
            assert!(top().join(source).exists(), "COPY {source}: there is no such file");
            copied += 1;
        }
    }
    assert!(copied > 5, "{copied}");
    let argument = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("ARG {name}=")));
        line.unwrap_or_else(|| panic!("ARG {name}= is missing"))
    };
    let pinned = format!("channel = \"{}\"\n", argument("RUST"));
    assert!(read("rust-toolchain.toml").contains(&pinned), "rust-toolchain.toml: not {pinned}");
    let label = format!("image.version=\"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&label), "{label} is missing");
    assert!(text.contains("cargo build --release --locked "), "not --locked");
    let user = text.lines().rfind(|line| line.starts_with("USER ")).unwrap();
    assert!(!user.contains("root") && !user.starts_with("USER 0"), "{user}");
}

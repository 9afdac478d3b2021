//! The house rules that no compiler checks: layers, unsafe, names, settings, texts, licences.
//!
//! Every rule reads the source tree as text. A rule that stands in the way is changed here, in the
//! same commit as the code that needs it, with the reason in the commit's message.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Past this a file holds two things.
const LINES_MOST: usize = 700;

/// Modules of the library, each with those it may use. Whatever is missing here may be used by
/// nobody; `plan` is the crate of plans.
const LAYERS: &[(&str, &[&str])] = &[
    ("error", &["plan"]),
    ("os", &["plan"]),
    ("interrupt", &[]),
    ("sync", &[]),
    ("clock", &[]),
    ("config", &["error", "plan"]),
    ("log", &["config", "plan"]),
    ("tuning", &["config", "os", "plan"]),
    ("element", &["plan", "reduce"]),
    ("reduce", &["element", "plan"]),
    ("bootstrap", &["error", "interrupt", "os", "plan"]),
    ("recorder", &["error", "log", "os", "plan", "sync"]),
    ("control", &["error", "os", "plan", "recorder", "sync"]),
    ("transport", &["config", "error", "ffi", "log", "os", "plan", "recorder", "sync"]),
    ("executor", &["plan", "recorder", "reduce", "sync", "transport"]),
    ("call", &["error", "plan"]),
    ("ffi", &[]),
    ("topo", &["ffi", "plan"]),
    ("exposition", &["os"]),
    ("device", &["call", "config", "control", "error", "ffi", "log", "os", "plan", "reduce"]),
    (
        "communicator",
        &[
            "bootstrap",
            "call",
            "config",
            "control",
            "device",
            "element",
            "error",
            "executor",
            "exposition",
            "interrupt",
            "log",
            "os",
            "plan",
            "recorder",
            "reduce",
            "sync",
            "topo",
            "transport",
            "tuning",
        ],
    ),
    ("collective", &["call", "communicator", "element", "error", "plan"]),
    ("net", &["config", "device", "error", "ffi", "plan", "topo", "transport"]),
    ("testing", &["bootstrap", "communicator", "config", "error"]),
];

/// Modules of fabrics, likewise.
const FABRIC_LAYERS: &[(&str, &[&str])] = &[
    ("rate", &[]),
    ("counter", &[]),
    ("describe", &[]),
    ("model", &["counter", "rate"]),
    ("tier", &["describe", "model"]),
    ("draft", &["counter", "describe", "model", "rate", "tier"]),
    ("read", &["counter", "describe", "draft", "model", "rate"]),
    ("generate", &["draft", "model", "rate"]),
    ("shape", &["describe", "model", "rate", "tier"]),
    ("check", &["counter", "describe", "model", "rate", "shape"]),
    ("diff", &["check", "describe", "model", "rate", "shape"]),
    ("export", &["check", "describe", "model", "rate", "shape"]),
    ("plan", &["generate", "rate"]),
];

/// Modules of manifests, likewise.
const K8S_LAYERS: &[(&str, &[&str])] = &[
    ("write", &[]),
    ("fields", &[]),
    ("yaml", &["write"]),
    ("model", &["write", "yaml"]),
    ("check", &["fields", "model", "write", "yaml"]),
    ("fix", &["check", "model", "yaml"]),
    ("generate", &["model", "write"]),
];

/// Modules of simulations, likewise.
const SIM_LAYERS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("machine", &["error"]),
    ("network", &["error", "machine"]),
    ("outcome", &["network"]),
    ("work", &["network"]),
    ("fault", &["error", "network"]),
    ("route", &["network", "work"]),
    ("solve", &["network", "outcome", "route"]),
    ("engine", &["error", "fault", "network", "outcome", "route", "solve", "work"]),
    ("dag", &["engine", "error", "network", "outcome", "work"]),
    ("steps", &["engine", "error", "network", "outcome", "work"]),
    ("pattern", &["error", "network", "work"]),
    ("report", &["network", "outcome"]),
    ("workload", &["error", "network", "outcome", "pattern", "work"]),
    ("what_if", &[]),
];

/// Modules of NCCL's interface, likewise; `exports` is above all of them.
const NCCL_LAYERS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("raw", &[]),
    ("registered", &[]),
    ("boundary", &["types"]),
    ("config", &["raw", "types"]),
    ("memory", &["config"]),
    ("param", &["config"]),
    ("operator", &["memory", "raw", "types"]),
    ("comm", &["boundary", "config", "operator", "registered", "types"]),
    ("operation", &["comm", "operator", "types"]),
    ("submit", &["boundary", "comm", "memory", "operation", "operator"]),
    ("group", &["boundary", "comm", "operation", "submit", "types"]),
    ("create", &["comm", "config", "group", "memory", "raw", "types"]),
    ("end", &["comm", "group"]),
];

/// Modules of Python's native module, likewise.
const PYTHON_LAYERS: &[(&str, &[&str])] = &[
    ("command", &[]),
    ("arguments", &[]),
    ("error", &[]),
    ("buffer", &["error"]),
    ("waiting", &["error"]),
    ("work", &["arguments", "error"]),
    ("communicator", &["arguments", "error", "waiting", "work"]),
];

/// Modules above everything: the crate's root, and those that only tests see.
const ABOVE_LAYERS: &[&str] = &["lib", "fuzzing", "exports"];

/// Folders of modules that are compiled for tests only, besides those named `tests`.
const TEST_ONLY: &[&str] = &["crates/ringway/src/executor/simulator"];

/// The only files outside `transport/` that may name one transport: they make links, give them
/// memory, sleep on the bell that all transports ring, or show what a transport would choose.
/// Everything else sees `dyn Link`.
const NAME_A_TRANSPORT: &[&str] = &[
    "communicator/colocation.rs",
    "communicator/connect.rs",
    "communicator/engine.rs",
    "communicator/init.rs",
    "communicator/planning.rs",
    "communicator/rdma.rs",
    "communicator/scratch.rs",
    "executor/links.rs",
    "fuzzing.rs",
    "net/buffer.rs",
    "net/device.rs",
    "net/port.rs",
];

/// Files that may hold unsafe code. Each opens it with a reason.
const MAY_BE_UNSAFE: &[&str] = &[
    "crates/nccl/src/config.rs",
    "crates/nccl/src/memory.rs",
    "crates/nccl/src/raw.rs",
    "crates/nccl/src/submit.rs",
    "crates/python/src/buffer.rs",
    "crates/python/src/communicator.rs",
    "crates/ringway/benches/micro.rs",
    "crates/ringway/src/communicator.rs",
    "crates/ringway/src/communicator/engine.rs",
    "crates/ringway/src/communicator/engine/messages.rs",
    "crates/ringway/src/communicator/gpu.rs",
    "crates/ringway/src/communicator/group.rs",
    "crates/ringway/src/communicator/queue.rs",
    "crates/ringway/src/communicator/raw.rs",
    "crates/ringway/src/communicator/staged.rs",
    "crates/ringway/src/communicator/work.rs",
    "crates/ringway/src/device/gpu.rs",
    "crates/ringway/src/device/gpu/direct.rs",
    "crates/ringway/src/device/gpu/handle.rs",
    "crates/ringway/src/device/gpu/stream.rs",
    "crates/ringway/src/device/gpu/virtual_memory.rs",
    "crates/ringway/src/device/rank.rs",
    "crates/ringway/src/device/staged.rs",
    "crates/ringway/src/device/staged/desk.rs",
    "crates/ringway/src/device/staged/host.rs",
    "crates/ringway/src/device/station.rs",
    "crates/ringway/src/executor/execution.rs",
    "crates/ringway/src/executor/simulator.rs",
    "crates/ringway/src/executor/simulator/memory.rs",
    "crates/ringway/src/executor/simulator/player.rs",
    "crates/ringway/src/ffi.rs",
    "crates/ringway/src/ffi/cuda.rs",
    "crates/ringway/src/ffi/cuda/virtual_memory.rs",
    "crates/ringway/src/ffi/nvml.rs",
    "crates/ringway/src/ffi/nvml/readings.rs",
    "crates/ringway/src/ffi/nvml/tests.rs",
    "crates/ringway/src/ffi/nvrtc.rs",
    "crates/ringway/src/ffi/verbs.rs",
    "crates/ringway/src/ffi/verbs/abi.rs",
    "crates/ringway/src/ffi/verbs/completion.rs",
    "crates/ringway/src/ffi/verbs/context.rs",
    "crates/ringway/src/ffi/verbs/memory.rs",
    "crates/ringway/src/ffi/verbs/queue_pair.rs",
    "crates/ringway/src/ffi/verbs/tests/machine.rs",
    "crates/ringway/src/os.rs",
    "crates/ringway/src/reduce.rs",
    "crates/ringway/src/reduce/fold.rs",
    "crates/ringway/src/reduce/lane.rs",
    "crates/ringway/src/reduce/tests.rs",
    "crates/ringway/src/reduce/x86.rs",
    "crates/ringway/src/transport.rs",
    "crates/ringway/src/transport/shm.rs",
    "crates/ringway/src/transport/shm/flags.rs",
    "crates/ringway/src/transport/shm/reach.rs",
    "crates/ringway/src/transport/shm/segment.rs",
    "crates/ringway/src/transport/framed/connection.rs",
    "crates/ringway/src/transport/framed/stream.rs",
    "crates/ringway/src/transport/verbs/monitor.rs",
    "crates/ringway/src/transport/verbs/place.rs",
    "crates/ringway/src/transport/verbs/region.rs",
    "crates/ringway/src/transport/verbs/stream.rs",
    "crates/ringway/tests/allocations.rs",
    "crates/ringway/tests/device/arithmetic.rs",
    "crates/ringway/tests/device/collectives.rs",
    "crates/ringway/tests/device/driver.rs",
    "crates/ringway/tests/device/full.rs",
    "crates/ringway/tests/device/graph.rs",
    "crates/ringway/tests/device/kernels.rs",
    "crates/ringway/tests/device/mixed.rs",
    "crates/ringway/tests/device/processes.rs",
    "crates/ringway/tests/device/queues.rs",
    "crates/ringway/tests/device/random.rs",
    "crates/ringway/tests/device/refused.rs",
    "crates/ringway/tests/device/shared.rs",
    "crates/ringway/tests/device/staged.rs",
];

/// Licences a dependency may be under.
const LICENCES: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

#[test]
fn files_fit_a_reading_and_are_named_for_what_they_hold() {
    let mut wrong = Vec::new();
    for file in sources("") {
        let lines = file.text.lines().count();
        if lines > LINES_MOST {
            wrong.push(format!("{}: {lines} lines; the most is {LINES_MOST}", file.name));
        }
        for word in file.name.trim_end_matches(".rs").split('/') {
            let vague = ["mod", "util", "utils", "common", "misc", "helper", "helpers", "manager"];
            if vague.contains(&word) {
                wrong.push(format!("{}: call it by what it holds, not {word:?}", file.name));
            }
        }
    }
    report(&wrong);
}

#[test]
fn unsafe_stays_where_it_is_argued_for() {
    let mut wrong = Vec::new();
    let mut found = BTreeSet::new();
    let roots = [
        "crates/plan/src/lib.rs",
        "crates/fabric/src/lib.rs",
        "crates/k8s/src/lib.rs",
        "crates/sim/src/lib.rs",
        "crates/cli/src/lib.rs",
        "crates/cli/src/main.rs",
    ];
    for root in roots {
        if !read(root).contains("#![forbid(unsafe_code)]") {
            wrong.push(format!("{root}: #![forbid(unsafe_code)] is missing"));
        }
    }
    for file in sources("crates") {
        let code = without_comments(&file.text);
        let words = ["{", "fn", "impl", "extern"].map(|next| format!("{} {next}", "unsafe"));
        if words.iter().any(|words| code.contains(words.as_str())) {
            if !MAY_BE_UNSAFE.contains(&file.name.as_str()) {
                wrong.push(format!("{}: unsafe code, but it is not in MAY_BE_UNSAFE", file.name));
            }
            found.insert(file.name);
        }
    }
    for listed in MAY_BE_UNSAFE.iter().filter(|listed| !found.contains(**listed)) {
        wrong.push(format!("{listed}: has no unsafe code; take it off MAY_BE_UNSAFE"));
    }
    report(&wrong);
}

#[test]
fn plans_fabrics_manifests_and_simulations_are_pure() {
    let impure = ["fs", "net", "io", "thread", "time", "env", "process", "os"];
    let mut wrong = Vec::new();
    let all = [
        ("crates/plan/src", "plans"),
        ("crates/fabric/src", "fabrics"),
        ("crates/k8s/src", "manifests"),
        ("crates/sim/src", "simulations"),
    ];
    for (folder, what) in all {
        for file in sources(folder) {
            let code = product_code(&file);
            for module in impure.iter().filter(|m| code.contains(&format!("std::{m}"))) {
                wrong.push(format!("{}: {what} know nothing of std::{module}", file.name));
            }
            if code.contains("ringway::") {
                wrong.push(format!("{}: {what} know nothing of the library", file.name));
            }
        }
    }
    report(&wrong);
}

#[test]
fn each_layer_knows_only_those_below_it() {
    let mut wrong = Vec::new();
    let all = [
        ("crates/ringway/src", LAYERS),
        ("crates/nccl/src", NCCL_LAYERS),
        ("crates/python/src", PYTHON_LAYERS),
        ("crates/fabric/src", FABRIC_LAYERS),
        ("crates/k8s/src", K8S_LAYERS),
        ("crates/sim/src", SIM_LAYERS),
    ];
    for (folder, layers) in all {
        let layers: BTreeMap<&str, &[&str]> = layers.iter().copied().collect();
        for file in sources(folder) {
            let inside = file.name[folder.len()..].trim_start_matches('/');
            let layer = inside.split('/').next().unwrap().trim_end_matches(".rs");
            if ABOVE_LAYERS.contains(&layer) {
                continue;
            }
            let Some(allowed) = layers.get(layer) else {
                wrong.push(format!("{}: {layer} is missing in LAYERS", file.name));
                continue;
            };
            let code = product_code(&file);
            if code.contains("crate::{") {
                wrong.push(format!("{}: one `use crate::module` per line, please", file.name));
            }
            for used in words_after(&code, "crate::") {
                if used != layer && !allowed.contains(&used) {
                    wrong.push(format!("{}: {layer} may not use {used} (see LAYERS)", file.name));
                }
            }
        }
    }
    report(&wrong);
}

#[test]
fn nothing_above_knows_which_transport_is_in_use() {
    let mut wrong = Vec::new();
    for file in sources("crates/ringway/src") {
        let inside = file.name.strip_prefix("crates/ringway/src/").unwrap();
        let code = product_code(&file);
        let transports = ["shm", "tcp", "tls", "verbs", "sim"];
        if let Some(below) = inside.strip_prefix("transport/") {
            let own = below.split('/').next().unwrap().trim_end_matches(".rs");
            for other in transports.iter().filter(|other| **other != own) {
                let paths = [format!("transport::{other}"), format!("super::{other}::")];
                if paths.iter().any(|path| code.contains(path.as_str())) {
                    wrong.push(format!("{}: a transport may not use {other}", file.name));
                }
            }
            if code.contains("plan::algorithm") || code.contains("plan::planner") {
                wrong.push(format!("{}: a transport may not use the planner", file.name));
            }
        } else if inside != "transport.rs"
            && !NAME_A_TRANSPORT.contains(&inside)
            && transports.iter().any(|one| code.contains(&format!("transport::{one}")))
        {
            wrong.push(format!("{}: names a transport (see NAME_A_TRANSPORT)", file.name));
        }
    }
    report(&wrong);
}

#[test]
fn the_environment_is_read_in_one_place() {
    let mut wrong = Vec::new();
    for file in sources("crates/ringway/src") {
        let code = product_code(&file);
        let reads = ["env::var", "env::vars", "env::home_dir", "libc::getenv"];
        if file.name != "crates/ringway/src/config/file.rs"
            && reads.iter().any(|read| code.contains(read))
        {
            wrong.push(format!("{}: the environment is an argument (config)", file.name));
        }
    }
    report(&wrong);
}

#[test]
fn every_ringway_setting_is_documented() {
    let (settings, tests) = (read("docs/env.md"), read("docs/testing.md"));
    let mut wrong = Vec::new();
    let mut check = |file: &str, text: &str, documented: &[&str]| {
        for word in words_after(text, "RINGWAY_") {
            let name = format!("RINGWAY_{word}");
            let known = |text: &&str| text.contains(&format!("`{name}`"));
            if !word.is_empty() && !documented.iter().any(known) {
                wrong.push(format!("{file}: {name} is in no table of settings"));
            }
        }
    };
    for file in sources("crates") {
        if is_test(&file.name) {
            // Tests misspell names on purpose; what they read from outside counts.
            for part in file.text.split("var(\"RINGWAY_").skip(1) {
                let name = part.split('"').next().unwrap();
                check(&file.name, &format!("RINGWAY_{name}"), &[&settings, &tests]);
            }
        } else {
            check(&file.name, &product_code(&file), &[&settings]);
        }
    }
    for file in files("", &["md", "sh", ""]) {
        check(&file.name, &file.text, &[&settings, &tests]);
    }
    report(&wrong);
}

#[test]
fn texts_point_at_what_exists() {
    let mut wrong = Vec::new();
    for file in files("", &["md"]) {
        let folder = Path::new(&file.name).parent().unwrap().to_path_buf();
        let linked = file.text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in linked.filter(|t| !t.contains("://") && !t.starts_with('#')) {
            let path = folder.join(target.split('#').next().unwrap());
            if !top().join(&path).exists() {
                wrong.push(format!("{}: the link to {target} is dead", file.name));
            }
        }
        for word in file.text.split('`').skip(1).step_by(2) {
            let ours = ["crates/", "docs/", "fuzz/", ".ci/"];
            let plain = !word.contains(|c: char| c.is_whitespace() || "*{<…".contains(c));
            if plain && ours.iter().any(|o| word.starts_with(o)) && !top().join(word).exists() {
                wrong.push(format!("{}: `{word}` does not exist", file.name));
            }
        }
    }
    report(&wrong);
}

#[test]
fn the_changelog_keeps_its_form() {
    let kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
    let text = read("CHANGELOG.md");
    let mut wrong = Vec::new();
    let mut versions = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(heading) = line.strip_prefix("## ") {
            versions.push(heading);
            let dated = heading
                .split_once("] - ")
                .is_some_and(|(version, date)| version.starts_with('[') && is_date(date));
            if heading != "[Unreleased]" && !dated {
                wrong.push(format!("CHANGELOG.md:{number}: not [version] - YYYY-MM-DD"));
            }
        } else if let Some(kind) = line.strip_prefix("### ")
            && !kinds.contains(&kind)
        {
            wrong.push(format!("CHANGELOG.md:{number}: {kind} is none of {kinds:?}"));
        }
    }
    if !text.starts_with("# Changelog\n") || versions.first() != Some(&"[Unreleased]") {
        wrong.push("CHANGELOG.md: must begin with # Changelog, then ## [Unreleased]".to_owned());
    }
    report(&wrong);
}

#[test]
fn every_check_is_run() {
    let run = read(".ci/run");
    let scripts = files(".ci", &[""]);
    let mut wrong = Vec::new();
    for file in &scripts {
        let step = file.name.trim_start_matches(".ci/");
        // A step, or what a step calls by its path.
        let called = |other: &File| other.name != file.name && other.text.contains(&file.name);
        let known = run.split_whitespace().any(|word| word == step) || scripts.iter().any(called);
        if step != "run" && !known {
            wrong.push(format!("{}: .ci/run does not call it", file.name));
        }
        if !file.text.contains("set -euo pipefail") {
            wrong.push(format!("{}: set -euo pipefail is missing", file.name));
        }
    }
    report(&wrong);
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let mut wrong = Vec::new();
    for file in files("", &["rs", "md", "toml", "lock", "txt", "json", "yml", "yaml", "sh", ""]) {
        for (number, line) in (1..).zip(file.text.lines()) {
            for folder in ["root", "work", "workspace"] {
                let path = format!("/{folder}/");
                let starts = line.match_indices(&path).map(|(at, _)| &line[..at]);
                let absolute = |before: &str| {
                    !before.ends_with(|c: char| c.is_alphanumeric() || "_.-*})".contains(c))
                };
                if starts.into_iter().any(absolute) {
                    wrong.push(format!("{}:{number}: {path} of some machine", file.name));
                }
            }
        }
    }
    report(&wrong);
}

#[test]
fn dependencies_have_licences_we_can_ship() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(top())
        .output()
        .unwrap();
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        skip("licences", &format!("cargo metadata works only with all sources at hand: {why}"));
        return;
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let licence = package["license"].as_str().unwrap_or("none");
        let plain = licence.replace(['(', ')'], "").replace('/', " OR ");
        let allowed = |part: &str| part.split(" OR ").any(|one| LICENCES.contains(&one.trim()));
        if !plain.split(" AND ").all(allowed) {
            wrong.push(format!("{}: {licence} is not in LICENCES", package["name"]));
        }
    }
    report(&wrong);
}

/// Says on the real standard error, which the test harness does not keep back, what was not
/// tested; with `RINGWAY_TEST_REQUIRE=all` that is a failure.
fn skip(what: &str, why: &str) {
    let required = std::env::var("RINGWAY_TEST_REQUIRE").unwrap_or_default();
    let named = required.split(',').any(|word| ["all", what].contains(&word.trim()));
    assert!(!named, "RINGWAY_TEST_REQUIRE={required}, but {what} cannot be tested: {why}");
    let _closed = writeln!(std::io::stderr(), "SKIPPED {what}: {why}");
}

/// A file of the tree; its name is relative to the top.
struct File {
    name: String,
    text: String,
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(top().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn sources(under: &str) -> Vec<File> {
    files(under, &["rs"])
}

/// The text files below a folder with one of these endings ("" for none), in order.
fn files(under: &str, endings: &[&str]) -> Vec<File> {
    let made = ["target", ".git", "corpus", "artifacts", "proptest-regressions"];
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(under)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(top().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            if made.contains(&name.as_str()) || entry.file_type().unwrap().is_symlink() {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
                continue;
            }
            let ending = path.extension().map_or_else(String::new, |e| e.to_string_lossy().into());
            if endings.contains(&ending.as_str())
                && let Ok(text) = std::fs::read_to_string(entry.path())
            {
                found.push(File { name: path.to_string_lossy().into_owned(), text });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn is_test(name: &str) -> bool {
    TEST_ONLY.iter().any(|folder| name.starts_with(folder))
        || name.split('/').any(|part| part.trim_end_matches(".rs").starts_with("tests"))
}

/// The code of a file that ships: no comments, no inline test modules; nothing of a test file.
fn product_code(file: &File) -> String {
    if is_test(&file.name) {
        return String::new();
    }
    let mut kept = String::new();
    let mut lines = file.text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("#[cfg(") && line.contains("test") {
            if lines.peek().is_some_and(|next| next.ends_with('{')) {
                break; // tests stand last
            }
            lines.next();
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    without_comments(&kept)
}

fn without_comments(text: &str) -> String {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// The words that follow a mark.
fn words_after<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(mark).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        rest[..end.unwrap_or(rest.len())].trim_end_matches('_')
    })
}

fn is_date(text: &str) -> bool {
    let digits = |part: &str, many: usize| {
        part.len() == many && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let parts: Vec<&str> = text.split('-').collect();
    matches!(parts[..], [y, m, d] if digits(y, 4) && digits(m, 2) && digits(d, 2))
}

fn report(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

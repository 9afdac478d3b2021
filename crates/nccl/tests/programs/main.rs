//! C programs against the header and the library as it was built: what a user of `libnccl.so.2` sees.
//!
//! The programs in `tests/c/` check themselves and end with 0; each ends itself by `alarm` when it
//! hangs. They are compiled here, as C99 and as C++17.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod build;
#[path = "../../../ringway/tests/fakes/fakes.rs"]
mod fakes;
mod symbols;

use build::{Form, Program, Standard, installed};

/// A test for each line: its name, the program, the language, its arguments, the settings.
macro_rules! programs {
    ($($name:ident: $program:literal $standard:ident $arguments:expr, $settings:expr;)*) => {$(
        #[test]
        fn $name() {
            let Some(program) = Program::build($program, Standard::$standard) else { return };
            program.run(&$arguments, &$settings);
        }
    )*};
}

programs! {
    collectives_of_ranks_in_one_group: "collectives" C99 ["group", "4"], [];
    collectives_of_ranks_in_threads: "collectives" Cpp17 ["threads", "4"], [];
    collectives_of_ranks_in_processes: "collectives" C99 ["processes", "4"], [];
    collectives_of_ranks_over_tcp:
        "collectives" C99 ["processes", "4"], [("RINGWAY_TRANSPORT", "tcp")];

    random_groups: "random" C99 ["20260501", "3000"], [];
    random_groups_over_tcp: "random" C99 ["20260502", "500"], [("NCCL_SHM_DISABLE", "1")];

    layouts_in_c: "layout" C99 [], [];
    layouts_in_cpp: "layout" Cpp17 [], [];

    what_is_wrong_is_refused: "misuse" C99 [], [];
    what_is_wrong_is_refused_in_cpp: "misuse" Cpp17 [], [];

    ranks_made_in_a_group: "life" C99 ["made_in_a_group"], [];
    ranks_made_for_devices: "life" C99 ["made_for_devices"], [];
    ranks_forked_after_their_id: "life" C99 ["forked_after_the_id"], [];
    ranks_made_by_several_ids: "life" C99 ["scalable"], [];
    split_of_processes: "life" C99 ["split"], [];
    split_of_threads: "life" Cpp17 ["split_in_threads"], [];
    split_in_a_group: "life" C99 ["split_in_a_group"], [];
    split_twice_in_a_group: "life" C99 ["split_twice_in_a_group"], [];
    shrink: "life" C99 ["shrink"], [];
    grow: "life" C99 ["grow"], [];
    several_communicators_in_a_group: "life" C99 ["several"], [];
    messages_of_all_with_all: "life" C99 ["messages"], [];
    messages_that_wait: "life" C99 ["messages_that_wait"], [("RINGWAY_TIMEOUT", "30s")];
    messages_that_wait_over_tcp:
        "life" C99 ["messages_that_wait"],
        [("RINGWAY_TIMEOUT", "30s"), ("RINGWAY_TRANSPORT", "tcp")];
    taken_down_at_the_end: "life" C99 ["taken_down_at_the_end"], [];

    calls_that_do_not_block_in_threads: "later" C99 ["threads"], [];
    calls_that_do_not_block_in_processes: "later" Cpp17 ["processes"], [];
    calls_that_do_not_block_in_a_group:
        "later" C99 ["group"], [("RINGWAY_INIT_TIMEOUT", "5s")];

    shrinks_that_do_not_block: "later" C99 ["shrinks"], [("RINGWAY_INIT_TIMEOUT", "5s")];
    grows_that_do_not_block: "later" Cpp17 ["grows"], [("RINGWAY_INIT_TIMEOUT", "20s")];

    a_peer_is_killed_between_calls: "faults" C99 ["killed_peer"], [];
    a_peer_is_killed_in_a_call: "faults" C99 ["killed_in_a_call"], [];
    counts_differ: "faults" C99 ["mismatch"], [];
    a_call_is_refused_in_a_group: "faults" C99 ["refused_in_a_group"], [];
    counts_differ_in_a_group: "faults" C99 ["mismatch_in_a_group"], [];
    abort_of_a_process_that_waits: "faults" C99 ["abort_in_a_call"], [];
    abort_of_a_thread_that_waits: "faults" C99 ["abort_in_a_thread"], [];
    abort_while_ranks_come_together:
        "faults" C99 ["abort_of_a_beginning"], [("RINGWAY_INIT_TIMEOUT", "20s")];
    revoke_and_go_on: "faults" C99 ["revoke"], [];
    nothing_is_left_behind: "leaks" C99 [], [];
    nobody_comes: "faults" C99 ["nobody_comes"], [("RINGWAY_INIT_TIMEOUT", "2s")];
}

/// Errors are in the log as warnings, with the lines that operators look for when asked.
#[test]
fn the_log_has_the_lines_of_nccl() {
    let Some(program) = Program::build("life", Standard::C99) else { return };
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl-debug.log");
    let _old = std::fs::remove_file(&file);
    program
        .run(&["shrink"], &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", file.to_str().unwrap())]);
    let log = std::fs::read_to_string(&file).unwrap();
    for line in ["NCCL INFO", "Init START", "Init COMPLETE", "NCCL WARN rank 1 is excluded"] {
        assert!(log.contains(line), "no {line:?} in {log}");
    }
}

/// A tool's functions come before the library's, and call on by the twins' names.
#[test]
fn a_tool_between_program_and_library() {
    let Some(tool) = Program::build_as("tool", Standard::C99, Form::Tool, &[]) else { return };
    let Some(program) = Program::build("life", Standard::C99) else { return };
    let said = program.run(&["several"], &[("LD_PRELOAD", tool.path())]);
    assert!(said.contains("the tool saw 400 calls of ncclAllReduce"), "{said}");
}

/// As vLLM and others do: by a path, without having been linked.
#[test]
fn a_program_that_loads_the_library() {
    let built = Program::build_as("loading", Standard::C99, Form::Loading, &[]);
    let Some(program) = built else { return };
    for name in ["libnccl.so.2", "librccl.so.1"] {
        program.run(&[installed().join(name).to_str().unwrap()], &[]);
    }
}

#[test]
fn the_header_takes_streams_from_cuda_where_it_is() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda");
    std::fs::create_dir_all(&folder).unwrap();
    let text = "typedef struct CUstream_st* cudaStream_t;\n#define STAND_IN_FOR_CUDA 1\n";
    std::fs::write(folder.join("cuda_runtime_api.h"), text).unwrap();
    for standard in [Standard::C99, Standard::Cpp17] {
        let arguments = ["-DWITH_CUDA=1", "-I", folder.to_str().unwrap()];
        let built = Program::build_as("layout", standard, Form::Linked, &arguments);
        let Some(program) = built else { return };
        program.run(&[], &[]);
    }
}

/// What the program asks for counts less than the variable.
#[test]
fn the_variable_says_whether_calls_block() {
    let Some(program) = Program::build("later", Standard::C99) else { return };
    program.run(&["by_variable"], &[("NCCL_COMM_BLOCKING", "0")]);
}

/// Runs a program on fake GPUs; whether that could be.
fn on_fake_gpus(name: &str, arguments: &[&str], settings: &[(&str, &str)]) -> bool {
    let Some(program) = Program::build(name, Standard::C99) else { return false };
    let Some(fakes::Cuda { driver, nvrtc }) = fakes::cuda() else { return false };
    let libraries = [
        ("RINGWAY_CUDA_LIBRARY", driver.to_str().unwrap()),
        ("RINGWAY_NVRTC_LIBRARY", nvrtc.to_str().unwrap()),
    ];
    program.run(arguments, &[&libraries, settings].concat());
    true
}

/// Streams have work for pinned memory, which is the host's: on a fake GPU that is slow.
#[test]
fn pinned_memory_that_streams_write() {
    let _ran = on_fake_gpus("pinned", &[], &[("FAKE_CUDA_SLOW", "0:100000")]);
}

/// Calls of nothing say not where the memory of other ranks is.
#[test]
fn calls_of_nothing_meet_those_of_other_ranks() {
    let _ran = on_fake_gpus("nothing", &[], &[("RINGWAY_TIMEOUT", "20s")]);
}

#[test]
fn several_communicators_on_one_gpu() {
    let _ran = on_fake_gpus("several", &[], &[]);
}

/// GPU memory of ranks that do not reach each other's goes by the host, also where a rank has none or dies.
#[test]
fn gpu_memory_of_ranks_on_different_hosts() {
    for which in ["all", "mixed", "killed"] {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join(format!("nccl-staged-{which}.log"));
        let _old = std::fs::remove_file(&file);
        let log = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", file.to_str().unwrap())];
        if !on_fake_gpus("staged", &[which], &log) {
            return;
        }
        let log = std::fs::read_to_string(&file).unwrap();
        assert!(log.contains("staged through pinned memory"), "{log}");
    }
}

//! Arguments that are right, wrong, and the same in two ways.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    perf: PerfArgs,
}

fn settings(words: &str) -> Result<Settings, String> {
    let line = Line::try_parse_from(["perf"].into_iter().chain(words.split_whitespace()))
        .map_err(|error| error.to_string())?;
    Settings::new(&line.perf).map_err(|error| error.to_string())
}

#[test]
fn options_of_nccl_tests_are_taken_short_and_long() {
    let short = settings(
        "all_reduce -b 8 -e 1M -f 4 -n 10 -w 3 -m 2 -N 5 -c 0 -o max -d half -r 1 -z 1 -a 3 \
         -p 1 -t 1 -g 1 -C 1 -J out.json -S 1 -T 30 -I 1 -K 2 -u 1",
    )
    .unwrap();
    let long = settings(
        "all_reduce_perf --minbytes 8 --maxbytes 1M --stepfactor 4 --iters 10 \
         --warmup_iters 3 --agg_iters 2 --run_cycles 5 --check 0 --op max --datatype half \
         --root 1 --blocking 1 --average 3 --parallel_init 1 --nthreads 1 --ngpus 1 \
         --report_cputime 1 --output_file out.json --report_timestamps 1 --timeout 30 \
         --per_iter_timing 1 --per_iter_skip 2 --unalign 1",
    )
    .unwrap();
    assert_eq!(format!("{short:?}"), format!("{long:?}"));
    assert_eq!(short.sweep, Sweep { min_bytes: 8, max_bytes: 1 << 20, step: Step::Factor(4) });
    assert_eq!(short.iterations, Some(10));
    assert_eq!(short.deadline, Some(Duration::from_secs(30)));
    assert_eq!(short.data_types, [DataType::F16]);
}

#[test]
fn names_of_collectives() {
    let table = [
        ("all_reduce", "all_reduce_perf"),
        ("alltoall_perf", "alltoall_perf"),
        ("all_to_all", "alltoall_perf"),
        ("sendrecv", "sendrecv_perf"),
        ("reduce_scatter_perf", "reduce_scatter_perf"),
        ("barrier", "barrier_perf"),
    ];
    for (word, program) in table {
        assert_eq!(settings(word).unwrap().program(), program);
    }
}

#[test]
fn sweeps() {
    let sizes = |words: &str| settings(words).unwrap().sweep.sizes().collect::<Vec<_>>();
    let all = sizes("all_reduce");
    assert_eq!((all.first(), all.last(), all.len()), (Some(&8), Some(&(128 << 20)), 25));
    assert_eq!(sizes("all_reduce -b 1K -e 3K -i 1K"), [1024, 2048, 3072]);
    assert_eq!(sizes("all_reduce -b 8 -e 600 -f 8"), [8, 64, 512]);
    assert_eq!(sizes("all_reduce -b 1G"), [1 << 30]);
    assert_eq!(sizes("all_reduce -e 4"), [4]);
    assert_eq!(sizes("all_reduce -b 0 -e 16"), [0, 8, 16]);
    assert_eq!(sizes("barrier -e 1G"), [0]);
}

#[test]
fn wrong_arguments_say_the_fix() {
    let table = [
        ("all_reduce -b 1Q", "write 8, 4K, 16M, 1G"),
        ("all_reduce -b 2M -e 1M", "swap them"),
        ("all_reduce -f 1", "use -i"),
        ("all_reduce -i 0", "1 or more"),
        ("all_reduce -i 1 -e 1G", "raise -i"),
        ("all_reduce -n 0", "0 is not in 1.."),
        ("all_reduce -t 4", "--ranks 4"),
        ("all_reduce -g 8", "--ranks 8"),
        ("all_reduce -D 1", "--algo"),
        ("all_reduce --memory cuda -D 1", "drop -D"),
        ("all_reduce --memory cuda -t 4", "-g 4"),
        ("all_reduce --memory cuda -g 0", "0 is not in 1..=32"),
        ("all_reduce --memory cuda --algo ring", "drop it"),
        ("all_reduce --memory cuda --level all", "take one of them"),
        ("all_reduce --memory hip", "host, cuda"),
        ("all_reduce -d f31", "bfloat16"),
        ("all_reduce -o plus", "mulsum, all"),
        ("all_reduce -r x", "0, 3 or all"),
        ("all_reduce -K 2", "-I 1"),
        ("all_reduce -I 1 -K 20", "raise -n"),
        ("all_produce", "all_to_all"),
        ("all_reduce --expect=0", "1 to 100"),
        ("all_reduce --expect --expect-rate fast", "as 100G"),
        ("all_reduce --expect-rate 100G", "--expect"),
        ("barrier --expect", "no data"),
        ("all_reduce --expect -N 0", "no verdict"),
        ("all_reduce --expect --algo all", "a table of its own"),
        ("all_reduce --level fast", "run, shape"),
        ("all_reduce --learn", "only with --algo all"),
        ("all_reduce --algo all --level all", "one at a time"),
        ("all_reduce --level all -d all", "--level all: choose one -d"),
        ("all_reduce --algo all -d all", "choose one -d"),
        ("all_reduce --algo all -J x.json", "drop -J"),
        ("sendrecv --algo all", "nothing to choose"),
    ];
    for (words, fix) in table {
        let error = settings(words).unwrap_err();
        assert!(error.contains(fix), "{words}: {error}");
    }
}

#[test]
fn records_of_iterations_have_a_bound() {
    let check = |words: &str, ranks| settings(words).unwrap().check_records(ranks);
    check("all_reduce -I 1", 1024).unwrap();
    check("all_reduce -n 1000000", 8).unwrap();
    check("all_reduce -I 1 -N 0 -n 1000", 8).unwrap();
    let error = check("all_reduce -I 1 -n 100000", 8).unwrap_err().to_string();
    assert!(error.contains("lower -n") && error.contains("8388608"), "{error}");
    assert!(check("all_reduce -I 1 -n 4294967295 -N 4294967295 -d all", 1024).is_err());
}

#[test]
fn expectations_are_read() {
    let expect = |words: &str| settings(words).unwrap().expect;
    assert_eq!(expect("all_reduce"), None);
    assert_eq!(expect("all_reduce --expect"), Some(Wanted { percent: None, rate_gbs: None }));
    assert_eq!(
        expect("all_reduce --expect=90 --expect-rate 100G"),
        Some(Wanted { percent: Some(90.0), rate_gbs: Some(12.5) })
    );
}

#[test]
fn roots_are_ranks() {
    let roots = |words: &str| settings(words).unwrap().roots(3).map_err(|e| e.to_string());
    assert_eq!(roots("broadcast -r all").unwrap(), [Some(0), Some(1), Some(2)]);
    assert_eq!(roots("broadcast -r -1").unwrap().len(), 3);
    assert_eq!(roots("broadcast").unwrap(), [Some(0)]);
    assert_eq!(roots("all_reduce -r 9").unwrap(), [None]);
    assert!(roots("reduce -r 3").unwrap_err().contains("0 to 2"));
}

#[test]
fn gpu_options_are_noted() {
    let settings = settings("all_reduce -G 1 -R 2 -x 1 -V 8 -y 1").unwrap();
    assert_eq!(settings.notes.len(), 5);
    assert!(settings.notes[0].contains("-G"));
}

#[test]
fn gpu_memory_queues_calls_and_has_ranks_as_threads() {
    let host = settings("all_reduce").unwrap();
    assert_eq!((host.blocking, host.ranks_per_process), (Blocking::Call, 1));
    let gpu = settings("all_reduce --memory cuda -g 4 -T 5").unwrap();
    assert_eq!((gpu.blocking, gpu.ranks_per_process), (Blocking::Queue, 4));
    assert_eq!(gpu.variables, [("RINGWAY_TIMEOUT", "5s".to_owned())]);
    let waits = settings("all_reduce --memory cuda -z 2").unwrap();
    assert_eq!((waits.blocking, waits.ranks_per_process), (Blocking::Call, 1));
}

#[test]
fn choices_reach_the_library_as_variables() {
    let settings = settings("all_reduce --transport tcp --algo ring --level shape").unwrap();
    assert_eq!(
        settings.variables,
        [
            ("RINGWAY_TRANSPORT", "tcp".to_owned()),
            ("RINGWAY_LEVEL", "shape".to_owned()),
            ("NCCL_ALGO", "all_reduce:ring".to_owned())
        ]
    );
}

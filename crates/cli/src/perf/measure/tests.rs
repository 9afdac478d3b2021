//! Measuring ranks that are threads: every collective, type and reduction must check out.

use clap::Parser;

use super::*;
use crate::perf::args::PerfArgs;
use ringway::testing::world;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    perf: PerfArgs,
}

fn settings(words: &str) -> Settings {
    let line = Line::parse_from(["perf"].into_iter().chain(words.split_whitespace()));
    Settings::new(&line.perf).unwrap()
}

/// Measures and checks everything `words` ask for on `size` ranks; returns rank 0's rows.
fn rows(words: &str, size: u32) -> Vec<Row> {
    let settings = settings(words);
    let ranks = world(size, |comm| {
        let mut bench = Bench::new(comm, &settings);
        let mut rows = Vec::new();
        for root in settings.roots(size).unwrap() {
            for &data_type in &settings.data_types {
                for &op in &settings.ops {
                    for bytes in settings.sweep.sizes() {
                        rows.push(bench.row(&Subject { data_type, op, root, bytes }).unwrap());
                    }
                }
            }
        }
        rows
    });
    ranks.into_iter().next().unwrap()
}

fn assert_right(rows: &[Row], what: &str) {
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(row.out_of_place.wrong, Some(0), "{what}: {}", row.line());
        assert_eq!(row.in_place.wrong, Some(0), "{what}: {}", row.line());
    }
}

#[test]
fn every_type_and_reduction_checks_out_on_every_reducing_collective() {
    for collective in ["all_reduce", "reduce_scatter", "reduce"] {
        for size in [1, 2, 3, 5] {
            let words = format!("{collective} -d all -o all -n 1 -w 0 -b 640 -e 640");
            assert_right(&rows(&words, size), &format!("{collective} {size}"));
        }
    }
}

#[test]
fn every_type_checks_out_on_every_moving_collective() {
    for collective in ["all_gather", "broadcast", "gather", "scatter", "alltoall", "sendrecv"] {
        for size in [1, 2, 4] {
            let words = format!("{collective} -d all -r all -n 1 -w 0 -b 0 -e 1K -f 16");
            assert_right(&rows(&words, size), &format!("{collective} {size}"));
        }
    }
}

#[test]
fn longer_than_a_period_and_misaligned() {
    assert_right(&rows("all_reduce -d uint8 -n 1 -w 0 -b 200001 -e 200001 -u 3", 2), "u8");
    assert_right(&rows("reduce_scatter -d int8 -n 1 -w 0 -b 300000 -e 300000", 3), "i8");
}

#[test]
fn modes_of_timing_give_full_rows() {
    for mode in ["-z 0", "-z 1", "-z 2", "-z 3", "-m 3", "-a 0", "-a 3", "-C 1", "-c 0"] {
        let rows = rows(&format!("all_gather -n 2 -b 64 -e 64 {mode}"), 2);
        assert!(rows[0].out_of_place.time_us >= 0.0, "{mode}");
        assert_eq!(rows[0].out_of_place.wrong.is_none(), mode == "-c 0");
        assert_eq!(rows[0].actual_iterations, 2);
    }
    let barrier = rows("barrier -n 3", 2);
    assert_eq!((barrier.len(), barrier[0].bytes), (1, 0));
    assert_eq!(barrier[0].out_of_place.wrong, None);
    assert!(barrier[0].out_of_place.time_us > 0.0);
}

#[test]
fn every_iteration_can_be_timed() {
    let rows = rows("all_reduce -n 5 -I 1 -K 2 -b 64 -e 64", 3);
    let iterations = rows[0].in_place.iterations.as_ref().unwrap();
    assert_eq!((iterations.seconds.len(), iterations.skipped), (5, 2));
    assert_eq!(iterations.seconds_of_ranks.len(), 3);
    assert!(iterations.stats.max_us >= iterations.stats.min_us);
    assert_eq!((iterations.slowest.len(), iterations.tally.calls), (5, 3));
    for (at, rank) in iterations.slowest.iter().enumerate() {
        let longest = iterations.seconds_of_ranks[*rank as usize][at];
        assert_eq!(longest, iterations.seconds[at]);
    }
}

#[test]
fn iterations_are_those_asked_for_or_what_time_allows() {
    assert_eq!(rows("all_reduce -n 7 -b 8 -e 8", 1)[0].actual_iterations, 7);
    let default = settings("all_reduce");
    let found = world(1, |comm| {
        let bench = Bench::new(comm, &default);
        [0.000_01, 0.029, 0.09, 9.0]
            .map(|seconds| bench.iterations(Duration::from_secs_f64(seconds)).unwrap())
    });
    assert_eq!(found[0], [20, 10, 3, 1]);
}

//! Tests of the JSON layout and of how the file gets to its place.

use clap::Parser;
use serde_json::Value;

use super::super::args::PerfArgs;
use super::super::late::Tally;
use super::super::table::Iterations;
use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    perf: PerfArgs,
}

fn settings(words: &str) -> Settings {
    let line = Line::parse_from(["perf"].into_iter().chain(words.split_whitespace()));
    Settings::new(&line.perf).unwrap()
}

fn cell(iterations: Option<Iterations>) -> Cell {
    Cell { time_us: 12.5, alg_bw: f64::NAN, bus_bw: 2.0, wrong: Some(0), iterations }
}

fn document(words: &str, iterations: Option<Iterations>) -> Value {
    let settings = settings(words);
    let devices = [Device {
        rank: 0,
        pid: 7,
        host: "node1".to_owned(),
        device: 0,
        address: "0000:18:00".to_owned(),
        name: "a GPU".to_owned(),
    }];
    let row = Row {
        bytes: 64,
        count: 16,
        data_type: "float",
        op: "sum",
        root: -1,
        out_of_place: cell(iterations.clone()),
        in_place: cell(iterations),
        actual_iterations: 20,
        timestamp: None,
    };
    let results = Results {
        settings: &settings,
        devices: &devices,
        rows: &[row],
        summary: Summary { out_of_bounds: 0, average_bus_bandwidth: 2.0, wanted_bandwidth: None },
        connection: "transport shm".to_owned(),
        gpu_path: None,
        expected_us: vec![Some(11.0)],
        expectation: None,
        start_time: "2026-07-09 16:03:21".to_owned(),
        end_time: "2026-07-09 16:03:22".to_owned(),
    };
    let args = vec!["ringway".to_owned()];
    serde_json::to_value(Document::with(&results, args, Vec::new())).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn keys_and_kinds_are_nccl_tests() {
    let json = document("all_reduce -b 64 -e 64", None);
    assert_eq!(
        keys(&json),
        [
            "args",
            "average_bus_bandwidth",
            "config",
            "end_time",
            "env",
            "errors",
            "nccl_version",
            "out_of_bounds",
            "results",
            "ringway",
            "start_time",
            "version"
        ]
    );
    assert_eq!(json["version"], 3);
    assert_eq!(
        keys(&json["config"]),
        [
            "aggregated_iterations",
            "blocking_collectives",
            "devices",
            "graph",
            "iterations",
            "maximum_bytes",
            "minimum_bytes",
            "ngpus",
            "nthreads",
            "parallel_init",
            "per_iter_skip",
            "per_iter_timing",
            "step_factor",
            "validation",
            "warmup_iters"
        ]
    );
    assert_eq!(json["config"]["per_iter_timing"], "false");
    let row = &json["results"][0];
    assert_eq!(
        keys(row),
        [
            "actual_iterations",
            "count",
            "experiment_name",
            "in_place",
            "out_of_place",
            "redop",
            "root",
            "size",
            "type"
        ]
    );
    assert_eq!(keys(&row["in_place"]), ["alg_bw", "bus_bw", "nwrong", "time"]);
    assert_eq!(row["root"], "    -1");
    assert_eq!(row["in_place"]["nwrong"], 0.0);
    assert_eq!(row["in_place"]["alg_bw"], 0.0, "NaN must not reach the file");
    assert_eq!(json["out_of_bounds"]["okay"], "true");
    assert_eq!(json["average_bus_bandwidth"]["okay"], "unchecked");
    assert_eq!(
        keys(&json["config"]["devices"][0]),
        ["device", "device_hex", "device_info", "group", "hostname", "pid", "rank"]
    );
}

#[test]
fn options_change_the_keys_they_change_in_nccl_tests() {
    let iterations = Iterations {
        stats: IterationStats::new(&[1e-6, 2e-6]),
        skipped: 0,
        seconds: vec![1e-6, 2e-6],
        slowest: vec![0, 0],
        tally: Tally::new(2),
        seconds_of_ranks: vec![vec![1e-6, 2e-6], vec![1e-6, 1e-6]],
    };
    let json = document("all_reduce -b 64 -e 128 -i 64 -C 1 -I 1", Some(iterations));
    assert_eq!(json["config"]["step_bytes"], 64);
    assert!(json["config"].get("step_factor").is_none());
    assert!(json["results"][0]["out_of_place"].get("cpu_time").is_some());
    let each = &json["results"][0]["in_place_per_iter"];
    assert_eq!(
        keys(each),
        [
            "avg_us",
            "cv_pct",
            "max_us",
            "min_us",
            "p50_us",
            "p95_us",
            "p99_us",
            "per_process_max_times_us",
            "skipped_iterations",
            "stdev_us",
            "times_us"
        ]
    );
    assert_eq!(json["ringway"]["slowest_ranks"][0]["in_place"], serde_json::json!([0, 0]));
    let plain = document("all_reduce -b 64 -e 64", None);
    assert!(plain["ringway"].get("slowest_ranks").is_none());
}

#[test]
fn secrets_and_strangers_stay_out() {
    let pair = |name: &str| (name.to_owned(), "v".to_owned());
    let names =
        ["PATH", "RINGWAY_SECRET", "NCCL_DEBUG", "RINGWAY_RANK", "NCCL_API_KEY", "AWS_TOKEN"];
    assert_eq!(environment(names.into_iter().map(pair)), ["NCCL_DEBUG=v", "RINGWAY_RANK=v"]);
}

#[test]
fn paths_are_checked_and_nothing_is_left() {
    let folder = std::env::temp_dir().join(format!("ringway-json-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("out.json");
    assert!(!check_path(&file).unwrap());
    fs::write(&file, "old").unwrap();
    assert!(check_path(&file).unwrap());
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    assert!(check_path(&folder).unwrap_err().to_string().contains("is a folder"));
    let missing = folder.join("none").join("out.json");
    assert!(check_path(&missing).unwrap_err().to_string().contains("no file can be written"));

    fs::write(temporary_path(&file, 1).unwrap(), "half").unwrap();
    discard_temporary(&file, 1);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    fs::remove_dir_all(&folder).unwrap();
}

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{Config, Environment};
use crate::plan::types::ReduceOp;
use crate::testing::world_with;

/// A socket of one test's own, and settings that serve metrics there.
fn place(name: &str, settings: &[(&str, &str)]) -> (PathBuf, Config) {
    let path = std::env::temp_dir().join(format!("ringway-{name}-{}.sock", std::process::id()));
    let place = format!("unix:{}", path.display());
    let mut all = vec![("RINGWAY_METRICS", place.as_str())];
    all.extend_from_slice(settings);
    let config = Config::load(&Environment::new(all.iter().copied()));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    (path, config)
}

/// What is answered to a request, the head and the body.
fn ask(path: &Path, request: &str) -> (String, String) {
    let mut stream = UnixStream::connect(path).expect("somebody serves");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream.write_all(request.as_bytes()).expect("somebody listens");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("an answer");
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    (head.to_owned(), body.to_owned())
}

/// Samples by name and labels; the first label is always the communicator's, and left out.
fn samples(path: &Path) -> BTreeMap<String, f64> {
    let (head, body) = ask(path, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    let mut typed = Vec::new();
    let mut found = BTreeMap::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            typed.extend(rest.split(' ').next().map(str::to_owned));
        }
        if line.starts_with('#') {
            continue;
        }
        let (key, value) = line.rsplit_once(' ').expect("a name and a value");
        let (name, labels) = key.split_once('{').unwrap_or((key, ""));
        // All samples of a metric stand behind its type.
        assert!(typed.last().is_some_and(|kind| name.starts_with(kind.as_str())), "{line}");
        let labels = labels.split_once(',').map_or("", |(_, rest)| rest);
        let key = format!("{name}{{{labels}");
        assert_eq!(found.insert(key, value.parse().expect("a number")), None, "{line} comes twice");
    }
    found
}

#[test]
fn totals_are_those_of_the_calls_that_were_made() {
    let (path, config) = place("metrics-totals", &[("RINGWAY_TRANSPORT", "tcp")]);
    world_with(2, &config, |comm| {
        for _ in 0..10 {
            comm.all_reduce(&[1_f32; 256], &mut [0.0; 256], ReduceOp::Sum).unwrap();
        }
        comm.all_gather(&[1_u8; 50], &mut [0; 100]).unwrap();
        let other = 1 - comm.rank();
        comm.send_recv(&[1, 2, 3], other, &mut [0; 3], other).unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let found = samples(&path);
            for rank in 0..2 {
                let of = |name: &str, labels: &str| {
                    let key = format!("{name}{{rank=\"{rank}\"{labels}}}");
                    *found.get(&key).unwrap_or_else(|| panic!("no {key} in {found:#?}"))
                };
                let reduced = ",collective=\"all_reduce\"";
                assert_eq!(of("ringway_operations_total", reduced), 10.0);
                assert_eq!(of("ringway_bytes_total", reduced), 10_240.0);
                assert_eq!(of("ringway_bus_bytes_total", reduced), 10_240.0);
                assert_eq!(of("ringway_operation_seconds_count", reduced), 10.0);
                let endless = ",collective=\"all_reduce\",le=\"+Inf\"";
                assert_eq!(of("ringway_operation_seconds_bucket", endless), 10.0);
                let sum = of("ringway_operation_seconds_sum", reduced);
                assert!(sum > 0.0 && sum < 1_000.0, "{sum}");
                assert_eq!(of("ringway_bytes_total", ",collective=\"all_gather\""), 100.0);
                assert_eq!(of("ringway_bus_bytes_total", ",collective=\"all_gather\""), 50.0);
                assert_eq!(of("ringway_messages_total", ",direction=\"send\""), 1.0);
                assert_eq!(of("ringway_message_bytes_total", ",direction=\"receive\""), 3.0);
                let peer = 1 - rank;
                let link = format!(",peer=\"{peer}\",transport=\"NET/Socket\",direction=\"send\"");
                assert!(of("ringway_link_bytes_total", &link) > 10_000.0);
                assert_eq!(of("ringway_failed", ""), 0.0);
                assert_eq!(of("ringway_errors_total", ",kind=\"remote\""), 0.0);
                assert_eq!(of("ringway_refused_connections_total", ",reason=\"not ringway\""), 0.0);
            }
            let le = |key: &str| key.contains("all_reduce") && key.contains("_bucket{rank=\"0\"");
            let mut buckets: Vec<(f64, f64)> = found
                .iter()
                .filter(|(key, _)| le(key))
                .map(|(key, count)| {
                    let end = key.split("le=\"").nth(1).unwrap().trim_end_matches("\"}");
                    (if end == "+Inf" { f64::MAX } else { end.parse().unwrap() }, *count)
                })
                .collect();
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.len() > 20 && buckets.is_sorted_by(|a, b| a.1 <= b.1), "{buckets:?}");
        }
        comm.barrier().unwrap();
    });
    assert!(!path.exists(), "the socket goes with the last communicator");
}

#[test]
fn waits_and_failures_are_told_with_whom_they_are_about() {
    let (path, config) = place("metrics-failure", &[]);
    world_with(3, &config, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            std::thread::sleep(Duration::from_millis(1_500));
        }
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            let found = samples(&path);
            let waited: f64 = (0..2)
                .flat_map(|rank| (0..3).map(move |peer| (rank, peer)))
                .map(|(rank, peer)| {
                    format!("ringway_waiting_seconds_total{{rank=\"{rank}\",peer=\"{peer}\"}}")
                })
                .filter_map(|key| found.get(&key))
                .sum();
            assert!(waited > 0.1, "{found:#?}");
            comm.abort("enough");
        }
        comm.barrier().unwrap_err();
        comm.barrier().unwrap_err();
        if comm.rank() == 1 {
            let found = samples(&path);
            let failed = "ringway_failed{rank=\"1\",culprit=\"0\"}";
            assert_eq!(found.get(failed), Some(&1.0), "{found:#?}");
            let errors =
                found.iter().filter(|(key, _)| key.starts_with("ringway_errors_total{rank=\"1\""));
            assert_eq!(errors.map(|(_, count)| count).sum::<f64>(), 2.0);
        }
    });
}

#[test]
fn without_the_recorder_there_are_totals_and_no_times() {
    let (path, config) = place("metrics-untimed", &[("RINGWAY_RECORDER", "0")]);
    world_with(2, &config, |comm| {
        comm.all_reduce(&[1_i32; 2], &mut [0; 2], ReduceOp::Max).unwrap();
        if comm.rank() == 0 {
            let found = samples(&path);
            let count = "ringway_operations_total{rank=\"0\",collective=\"all_reduce\"}";
            assert_eq!(found.get(count), Some(&1.0));
            assert!(!found.keys().any(|key| key.starts_with("ringway_operation_seconds")));
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn whatever_is_asked_the_next_one_is_answered() {
    let (path, config) = place("metrics-hostile", &[]);
    world_with(2, &config, |comm| {
        if comm.rank() == 0 {
            let status = |request: &str| ask(&path, request).0;
            assert!(status("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
            assert!(status("GET /secret HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
            assert!(status("\u{1}\u{2}\r\n\r\n").starts_with("HTTP/1.1 405 "));
            let (head, body) = ask(&path, "HEAD /metrics HTTP/1.0\r\n\r\n");
            assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty());
            // One that never ends its request is sent away; what it sent may have to be thrown away.
            let mut endless = UnixStream::connect(&path).unwrap();
            let _sent_away = endless.write_all(&vec![b'x'; 1 << 20]);
            // One that says nothing, and ones that are gone at once.
            let silent = UnixStream::connect(&path).unwrap();
            (0..50).for_each(|_| drop(UnixStream::connect(&path).unwrap()));
            assert!(!samples(&path).is_empty());
            drop(silent);
        }
        comm.barrier().unwrap();
    });
}

/// What stands between the backquotes of a page, or between anything that is in no name.
fn names(page: &str) -> BTreeSet<String> {
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("ringway_")).map(str::to_owned).collect()
}

#[test]
fn the_page_names_what_is_told_and_the_dashboard_asks_for_nothing_else() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect("a page");
    let told = super::text::text(&[]);
    let told: BTreeSet<String> = told
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned))
        .collect();
    let page = read("metrics.md");
    let table = page.split("## Names").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows: BTreeSet<String> =
        rows.flat_map(|row| names(row.split('|').nth(1).unwrap())).collect();
    assert_eq!(rows, told);
    for asked in names(&read("grafana/ringway.json")).union(&names(&page)) {
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| asked.strip_suffix(end));
        let known = told.contains(asked) || name.is_some_and(|name| told.contains(name));
        assert!(known, "{asked} is nothing that is told");
    }
}

//! From files to pages: what is recognised, what is said, what stays inert, how large it gets.

mod long;

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use ringway::recorder::{Reason, Trace, Waited};
use serde_json::{Value, json};

use super::input::Inputs;
use super::page::{Kind, page};
use super::perf::Run;
use super::*;
use crate::doctor::finding::Verdict;
use crate::doctor::tests::soup;
use crate::trace::synthetic;

/// What nobody may get to run.
const EVIL: &str = "</script><img src=x onerror=alert(1)>";

fn args() -> WhatArgs {
    WhatArgs { files: Vec::new(), against: Vec::new(), threshold: 10.0, title: None }
}

fn read(texts: &[String]) -> anyhow::Result<Inputs> {
    let mut inputs = Inputs::default();
    for (at, text) in texts.iter().enumerate() {
        let name = format!("file{at}");
        inputs.bytes(&name, Path::new(&name), text.as_bytes())?;
    }
    Ok(inputs)
}

fn report(texts: &[String]) -> Report {
    assemble(read(texts).unwrap(), &args()).unwrap()
}

/// Results of an all_reduce whose rows take `us` at 1 KiB, 4 KiB, ….
fn perf(us: &[f64], name: &str, ranks: usize) -> Value {
    let device = json!({ "rank": 0, "hostname": name, "device_info": name });
    let mut bytes = 256_u64;
    let rows: Vec<Value> = us
        .iter()
        .map(|us| {
            bytes *= 4;
            let side = json!({ "time": us, "alg_bw": 1.0, "bus_bw": bytes as f64 / us / 1e3, "nwrong": 0.0 });
            json!({
                "size": bytes, "count": bytes / 4, "type": name, "redop": "sum", "root": "    -1",
                "out_of_place": side, "in_place": side,
            })
        })
        .collect();
    json!({
        "version": 3, "start_time": name, "args": ["./build/all_reduce_perf", "-b", "1K"],
        "config": { "devices": vec![device; ranks] }, "results": rows, "errors": [],
        "average_bus_bandwidth": { "bandwidth": 1.5, "okay": "unchecked" },
    })
}

/// Traces of ranks that enter and leave an operation every 100 us; rank `late` comes 30 us late.
fn traces(ranks: u32, operations: u64, late: u32) -> Vec<Trace> {
    let of_rank = |rank: u32| {
        let mut trace = synthetic::trace(rank, ranks);
        trace.clock.id = "one".to_owned();
        trace.calls_begun = operations;
        let enters =
            |n: u64| 1_000 + n * 100_000 + if rank == late { 30_000 } else { u64::from(rank % 7) };
        trace.calls = (0..operations)
            .map(|n| synthetic::call(n, enters(n), Some(60_000 + n * 100_000)))
            .collect();
        trace.taken_ns = 60_000 + operations * 100_000;
        trace
    };
    (0..ranks).map(of_rank).collect()
}

fn doctor(text: &str) -> Value {
    json!({
        "version": 1, "subject": "host", "verdict": "fail", "cause": text,
        "facts": [{ "name": "machine", "value": text }],
        "findings": [
            { "id": text, "group": text, "verdict": "fail", "title": text, "evidence": [text], "cost": text, "fix": text },
            { "id": "b", "group": "g", "verdict": "pass", "title": "well", "evidence": [], "cost": null, "fix": null },
        ],
    })
}

fn topology(text: &str) -> Value {
    json!({
        "title": text, "topology": {}, "warnings": [text], "notes": [text],
        "affinities": [{ "gpu": text, "gpu_bus": null, "nic": text, "class": text, "gb_per_s": 12.5, "numa": 0,
            "gpu_direct": true, "gpu_direct_reason": text }],
        "matrix": { "rows": [{ "name": text, "cells": ["X", text] }, { "name": "NIC0", "cells": [text, "X"] }] },
    })
}

fn xml(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<system version=\"1\"><cpu numaid=\"0\" affinity=\"00000003\" arch=\"x86_64\"><pci busid=\"0000:18:00.0\" \
         class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\"/></pci>\
         <nic><net name=\"{text}\" dev=\"0\" speed=\"100000\" port=\"1\" guid=\"0x1\" maxconn=\"64\" gdr=\"1\"/></nic></cpu></system>"
    )
}

fn simulation(text: &str) -> Value {
    json!({
        "version": 1, "job": text, "gpus": 4, "routing": text, "seed": 1, "qps": 1, "links": [], "seeds": null,
        "summary": { "time_us": 12.0, "flows": 1, "solves": 1,
            "groups": [{ "group": text, "links": 4, "used": 4, "bytes": 1.0, "mean": 0.5, "most": 0.9, "imbalance": 0.8 }],
            "hottest": [{ "name": text, "group": "hosts up", "bytes": 1.0, "use": 0.9, "full": 0.1 }],
            "incidents": [{ "us": 3.0, "what": text }] },
        "calls": [{ "name": text, "collective": "all_reduce", "bytes": 1024, "ranks": 4, "start_us": 0.0, "end_us": 9.0,
            "algbw_gbytes": 1.0, "busbw_gbytes": 1.5 }],
        "spans": [{ "name": text, "row": text, "start_us": 0.0, "end_us": 12.0 }],
    })
}

fn events(text: &str) -> Value {
    json!({ "traceEvents": [
        { "ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": { "name": text } },
        { "ph": "X", "name": text, "pid": 0, "tid": 0, "ts": 1.0, "dur": 4.5 },
        { "ph": "i", "name": text, "pid": 0, "ts": 2.0 },
    ] })
}

/// One of each kind, all of whose texts are `text`.
fn each(text: &str) -> Vec<String> {
    let mut trace = synthetic::trace(0, 2);
    trace.host = text.to_owned();
    trace.communicator = text.to_owned();
    trace.calls = vec![synthetic::call(0, 1_000, Some(9_000)), synthetic::call(1, 20_000, None)];
    trace.calls[0].waited = Some(Waited { rank: 1, waited_ns: 2_000_000 });
    let fleet = json!({ "version": 1, "subject": "fleet", "verdict": "fail", "machines": [doctor(text), doctor(text)],
        "differences": [{ "fact": text, "machines": [text], "value": text, "majority": text, "others": 3 }] });
    let tried = json!({ "version": 1, "job": text, "varied": [text], "rate_is": text,
        "tried": [{ "values": [text], "best": false, "why": text }] });
    vec![
        perf(&[10.0, 20.0], text, 4).to_string(),
        doctor(text).to_string(),
        fleet.to_string(),
        topology(text).to_string(),
        xml(text),
        trace.text(),
        events(text).to_string(),
        simulation(text).to_string(),
        tried.to_string(),
        long::soak(text, 1.5).to_string(),
        pairs(text, 4, Some(2)).to_string(),
        bisection(text).to_string(),
    ]
}

/// A tournament in which what `slow` sends takes twice as long.
fn pairs(text: &str, ranks: usize, slow: Option<usize>) -> Value {
    let rows = |value: &dyn Fn(usize) -> f64| -> Vec<Vec<Option<f64>>> {
        let row = |a| (0..ranks).map(|b| (a != b).then(|| value(a))).collect();
        (0..ranks).map(row).collect()
    };
    let culprit = |slow| json!({ "name": text, "ranks": [slow], "way": "sends", "slower": 2.0, "answers": null });
    let hosts: Vec<Value> = (0..ranks)
        .map(|rank| json!({ "rank": rank, "host": format!("{text}{rank}"), "pid": 1 }))
        .collect();
    json!({
        "format": "ringway-pairs-1", "connection": text, "ranks": hosts, "bytes": 1 << 20, "limit": 1.35,
        "rounds": ranks - 1, "at_once": 1, "suspects": 1, "round_trip_us": rows(&|_| 50.0),
        "bandwidth_gbytes": rows(&|a| if Some(a) == slow { 0.5 } else { 1.0 }),
        "culprits": slow.map(culprit).into_iter().collect::<Vec<_>>(),
    })
}

fn bisection(text: &str) -> Value {
    let group = |us: f64| json!({ "ranks": [0, 1], "small_us": 9.5, "large_us": us });
    json!({
        "format": "ringway-bisect-1", "connection": text, "bytes": 1 << 20, "limit": 1.35,
        "ranks": vec![json!({ "rank": 0, "host": text, "pid": 1 }); 4],
        "rounds": [{ "what": text, "found": text, "groups": [group(900.5), group(1800.5)] }],
        "culprits": [{ "name": text, "ranks": [3], "to": [1], "way": "both", "slower": 2.0, "answers": 1.5 }],
    })
}

#[test]
fn searches_show_their_map_and_whom_they_name() {
    let slow = report(&[pairs("node", 8, Some(2)).to_string()]);
    assert_eq!((slow.verdict(), slow.summary().as_str()), (Verdict::Warn, "1 warning"));
    let text = page(&slow, Kind::File);
    assert!(text.contains("node: what it sends takes 2.0 times as long as elsewhere"), "{text}");
    assert!(
        text.contains("<rect class=\"h5\"")
            && text.contains("<title>2 → 5: 2.00 times as long</title>")
    );
    // As quick as usual is as cold as can be, however little there is to tell.
    let sound = page(&report(&[pairs("node", 8, None).to_string()]), Kind::File);
    assert!(
        sound.contains("nothing stands out by 35 % or more")
            && !sound.contains("<rect class=\"h5\"")
    );
    let found = page(&report(&[bisection("word").to_string()]), Kind::File);
    assert!(found.contains("slow-path") && found.contains("1.80 ms"), "{found}");
    let many = page(&report(&[pairs("node", 600, Some(9)).to_string()]), Kind::File);
    assert!(many.len() < 2 << 20 && many.contains("13 ranks share a cell"), "{}", many.len());
}

#[test]
fn every_kind_is_known_by_its_contents() {
    let inputs = read(&each("word")).unwrap();
    let kinds: Vec<&str> = inputs.files.iter().map(|(_, what)| what.as_str()).collect();
    let wanted = [
        "results of all_reduce",
        "findings of the doctor (host)",
        "findings of the doctor (2 machines)",
        "a topology",
        "a topology file",
        "a trace",
        "trace events",
        "a simulation",
        "a simulation",
        "a long run",
        "a tournament of pairs",
        "a bisection",
    ];
    assert_eq!(kinds, wanted);
    let joined: Vec<String> =
        traces(3, 2, 0).iter().map(|one| one.text().replace('\n', "")).collect();
    let inputs = read(&[joined.join("\n")]).unwrap();
    assert_eq!(inputs.files[0].1, "3 traces");
    let ids: Vec<&str> = report(&each("word")).sections.iter().map(|section| section.id).collect();
    assert_eq!(
        ids,
        ["performance", "soak", "slow", "doctor", "timeline", "events", "topology", "simulation"]
    );
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let table = [
        ("", "file0: it is empty; known are: results (ringway perf"),
        ("  \n", "file0: it is empty"),
        ("# nccl-tests table", "file0: it is neither JSON nor XML"),
        ("{\"a\":1}", "file0: it is JSON of no kind that is known here; known are"),
        ("[1,2]", "file0: it is JSON of no kind"),
        ("{\"results\": [", "file0: it is no whole JSON: EOF"),
        ("{\"results\": 3, \"config\": {}}", "file0: taken for results of perf, but invalid type"),
        ("{\"findings\": [{}]}", "file0: taken for findings, but missing field `id`"),
        (
            "{\"format\": \"ringway-trace\", \"version\": 9}",
            "file0: taken for a trace, but \"version\" is 9",
        ),
        ("<svg></svg>", "file0: taken for a topology in XML"),
        ("{\"format\": \"ringway soak 1\"}", "file0: taken for a long run, but missing field"),
        ("{\"traceEvents\": [3]}", "file0: taken for trace events, but"),
        ("{\"job\": \"x\", \"summary\": 3}", "file0: taken for a simulation, but"),
    ];
    for (text, part) in table {
        let error = format!("{:#}", read(&[text.to_owned()]).unwrap_err());
        assert!(error.contains(part), "{text:?}: {error}");
    }
    assert!(
        read(&["\u{feff}{\"a\":1}".to_owned()]).unwrap_err().to_string().contains("of no kind")
    );
}

#[test]
fn errors_hold_nothing_that_a_terminal_obeys() {
    let mut unknown = doctor("x");
    unknown["findings"][0]["verdict"] = json!("\u{1b}[2J");
    for text in [
        unknown.to_string(),
        "<system><cpu \u{1b}[2J=\"3\" numaid=\"\u{1b}[2J\"/></system>".to_owned(),
    ] {
        let error = format!("{:#}", read(std::slice::from_ref(&text)).unwrap_err());
        assert!(!error.contains('\u{1b}'), "{text:?}: {error:?}");
    }
}

#[test]
fn names_from_files_stay_texts() {
    for text in each(EVIL) {
        let page = page(&report(std::slice::from_ref(&text)), Kind::File);
        assert!(!page.contains("<img") && page.matches("</script>").count() == 1, "{page}");
        assert!(page.contains("onerror"), "what was said is shown: {page}");
    }
}

#[test]
fn a_file_that_is_cut_short_is_an_error_and_no_panic() {
    for text in each("word") {
        for end in (0..text.len()).step_by(7).filter(|end| text.is_char_boundary(*end)) {
            let read = read(&[text[..end].to_owned()]);
            // Only the last line's end may be missing.
            let is_whole = text[end..].trim().is_empty();
            assert_eq!(read.is_ok(), is_whole, "{}", &text[..end]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(20), ..soup::cases(300) })]

    /// Bytes changed anywhere in a file of any kind: it is refused or shown, and nothing of it is markup.
    #[test]
    fn a_spoiled_file_is_refused_or_shown(
        which in 0..each("").len(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = each(EVIL)[which].clone().into_bytes();
        for (place, byte) in &changes {
            let at = place.index(bytes.len());
            bytes[at] = *byte;
        }
        let mut inputs = Inputs::default();
        if inputs.bytes("file", Path::new("file"), &bytes).is_ok()
            && let Ok(report) = assemble(inputs, &args())
        {
            let page = page(&report, Kind::File);
            prop_assert!(!page.contains("<img") && page.matches("</script>").count() == 1);
        }
    }
}

/// Six odd numbers, each in place of every number with a point: pictures of nonsense are still pictures.
#[test]
fn odd_numbers_draw_no_odd_places() {
    for text in each("word") {
        let Ok(value) = serde_json::from_str::<Value>(&text) else { continue };
        for odd in [-1.0, 0.0, 1e300, -1e300, 1e-300, f64::MAX] {
            let mut value = value.clone();
            replace(&mut value, odd);
            let Ok(inputs) = read(&[value.to_string()]) else { continue };
            let page = page(&assemble(inputs, &args()).unwrap(), Kind::File);
            let drawn = page.split("<script>").next().unwrap();
            for wrong in ["NaN", "\"inf", "Minf", "to inf"] {
                assert!(!drawn.contains(wrong), "{odd}: {wrong}: {text}");
            }
        }
    }
}

#[test]
fn times_that_end_nowhere_are_not_drawn() {
    let event =
        |ts: f64, dur: f64| json!({ "ph": "X", "name": "x", "pid": 0, "ts": ts, "dur": dur });
    let far = [event(-f64::MAX, 1.0), event(f64::MAX / 2.0, 1.0), event(f64::MAX, f64::MAX)];
    let mut backwards = simulation("word");
    backwards["spans"][0] = json!({ "name": "x", "row": "r", "start_us": 9.0, "end_us": 3.0 });
    for text in [json!(far).to_string(), backwards.to_string()] {
        let page = page(&report(&[text]), Kind::File);
        let drawn = page.split("<script>").next().unwrap();
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        assert!(
            drawn.contains("Not drawn: 1 of 1 spans") || drawn.contains("of 2 events"),
            "{drawn}"
        );
    }
}

/// The rows of the timeline that is drawn.
fn rows_drawn(events: Value) -> Vec<String> {
    let page = page(&report(&[events.to_string()]), Kind::File);
    let labels = page.split("<text x=\"8\" y=\"").skip(1);
    let label =
        |rest: &str| rest.split_once("\">")?.1.split_once('<').map(|(text, _)| text.to_owned());
    labels.filter_map(label).collect()
}

#[test]
fn threads_and_processes_of_one_name_have_rows_of_their_own() {
    let named = |what: &str, pid: u64, tid: u64, name: &str| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
    let span = |pid: u64, tid: u64| json!({ "ph": "X", "name": "x", "pid": pid, "tid": tid, "ts": 1.0 + tid as f64, "dur": 4.0 });
    let threads = json!([
        named("process_name", 0, 0, "simulation"),
        span(0, 1),
        span(0, 2),
        span(0, 3),
        named("thread_name", 0, 1, "gpu 0"),
        named("thread_name", 0, 2, "gpu 1"),
    ]);
    assert_eq!(
        rows_drawn(threads),
        ["simulation gpu 0", "simulation gpu 1", "simulation thread 3"]
    );
    let twins = json!([
        named("process_name", 7, 0, "python"),
        named("process_name", 8, 0, "python"),
        span(7, 1),
        span(8, 2),
        span(9, 3),
    ]);
    assert_eq!(rows_drawn(twins), ["python (pid 7)", "python (pid 8)", "process 9"]);
}

#[test]
fn machines_that_look_the_same_are_drawn_once() {
    let page = page(&report(&[xml("mlx5_0"), xml("mlx5_0"), xml("mlx5_1")]), Kind::File);
    assert_eq!(page.matches("<figure class=\"topology\"").count(), 2, "{page}");
    assert!(page.contains("<figcaption>file0, file1</figcaption>"), "{page}");
    assert!(page.contains("<figcaption>file2</figcaption>"), "{page}");
}

fn replace(value: &mut Value, number: f64) {
    match value {
        Value::Number(old) if old.is_f64() => *value = json!(number),
        Value::Array(list) => list.iter_mut().for_each(|one| replace(one, number)),
        Value::Object(map) => map.values_mut().for_each(|one| replace(one, number)),
        _ => {}
    }
}

fn compared(new: &[f64], old: &[f64], threshold: f64) -> Report {
    let run = |us: &[f64], name: &str| Run::parse(name, perf(us, "float", 4)).unwrap();
    let section = perf::section(&[run(new, "new")], &[run(old, "old")], &[], threshold);
    Report { title: "t".to_owned(), inputs: Vec::new(), sections: vec![section] }
}

#[test]
fn what_became_slower_is_marked_at_the_threshold() {
    let report = compared(&[10.5, 23.0, 40.0], &[10.0, 20.0, 40.0], 10.0);
    assert_eq!((report.verdict(), report.summary().as_str()), (Verdict::Warn, "1 warning"));
    let text = page(&report, Kind::File);
    assert!(text.contains("slower than in the last run at 1 of 3 sizes"), "{text}");
    assert!(text.contains("1.15 times the time at 4 KiB"), "{text}");
    assert_eq!(text.matches("x slower").count(), 1);
    assert!(text.matches("class=\"slower\"").count() == 2, "a ring in both pictures");
    assert_eq!(compared(&[13.0, 23.0, 40.0], &[10.0, 20.0, 40.0], 10.0).verdict(), Verdict::Fail);
    assert_eq!(compared(&[13.0, 23.0, 40.0], &[10.0, 20.0, 40.0], 30.0).verdict(), Verdict::Pass);
    assert_eq!(compared(&[5.0], &[10.0], 0.0).verdict(), Verdict::Pass);
    let other = Run::parse("old", perf(&[1.0], "float", 8)).unwrap();
    let run = Run::parse("new", perf(&[1.0], "float", 4)).unwrap();
    let section = perf::section(&[run], &[other], &[], 10.0);
    assert!(section.findings.iter().any(|one| one.verdict == Verdict::Unknown));
}

fn verdict(new: &[Value], old: &[Value]) -> (Verdict, String) {
    let runs = |values: &[Value]| -> Vec<Run> {
        values.iter().map(|value| Run::parse("run", value.clone()).unwrap()).collect()
    };
    let section = perf::section(&runs(new), &runs(old), &[], 10.0);
    let found = section.findings.iter().filter(|one| one.id == "perf-slower");
    let worst = found.max_by_key(|one| one.verdict).expect("a finding");
    (worst.verdict, worst.title.clone())
}

/// Rows repeat with `perf -N` and in several files: the fastest of each side counts, once.
#[test]
fn rows_that_repeat_are_compared_by_the_fastest() {
    let repeated = |times: &[f64]| {
        let mut value = perf(times, "float", 4);
        for row in value["results"].as_array_mut().unwrap() {
            row["size"] = json!(1024);
        }
        value
    };
    let noisy = repeated(&[10.0, 15.0, 12.0]);
    let itself = std::slice::from_ref(&noisy);
    let (verdict_of, text) = verdict(itself, itself);
    assert_eq!(verdict_of, Verdict::Pass, "with itself: {text}");
    assert!(text.contains("at 1 size"), "{text}");
    let files = [perf(&[10.0, 20.0], "float", 4), perf(&[20.0, 10.0], "float", 4)];
    let (verdict_of, text) = verdict(&files, &files);
    assert_eq!(verdict_of, Verdict::Pass, "two files with themselves: {text}");
    assert!(text.contains("at 2 sizes"), "{text}");
    let (verdict_of, text) = verdict(&[noisy], &[repeated(&[15.0, 8.0])]);
    assert_eq!(verdict_of, Verdict::Fail, "10 by 8: {text}");
    assert!(text.contains("at 1 of 1 size"), "{text}");
}

#[test]
fn other_connections_and_hosts_are_not_compared() {
    let over = |us: f64, connection: &str| {
        let mut value = perf(&[us], "float", 4);
        value["ringway"] = json!({ "connection": connection });
        value
    };
    let tcp = [over(50.0, "transport tcp")];
    assert_eq!(verdict(&tcp, &[over(5.0, "transport shm")]).0, Verdict::Unknown);
    let both = [over(5.0, "transport shm"), over(50.0, "transport tcp")];
    assert_eq!(verdict(&tcp, &both).0, Verdict::Pass);
    // nccl-tests says nothing of it.
    assert_eq!(verdict(&tcp, &[perf(&[5.0], "float", 4)]).0, Verdict::Fail);
    let mut spread = perf(&[50.0], "float", 4);
    spread["config"]["devices"][0]["hostname"] = json!("another");
    assert_eq!(verdict(&[spread], &[perf(&[5.0], "float", 4)]).0, Verdict::Unknown);
}

/// As many kinds of rows as rows: what is drawn and listed has a bound, and the rest is told.
#[test]
fn thousands_of_kinds_of_rows_fit_a_page() {
    let mut value = perf(&[10.0; 1], "float", 2);
    let row = value["results"][0].clone();
    let rows = (0..5_000).map(|n| {
        let mut row = row.clone();
        row["type"] = json!(format!("type{n}"));
        row
    });
    value["results"] = rows.collect();
    let run = || vec![Run::parse("run", value.clone()).unwrap()];
    let section = perf::section(&run(), &run(), &[], 10.0);
    let report = Report { title: "t".to_owned(), inputs: Vec::new(), sections: vec![section] };
    let text = page(&report, Kind::File);
    assert!(text.len() < 1 << 20, "{} bytes", text.len());
    for part in ["Not drawn: 4988 of 5000 kinds of rows", "Not listed: 4400 of 5000 rows"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(text.contains("as fast as in the last run at 5000 sizes"));
}

#[test]
fn a_simulation_of_the_same_call_is_the_expectation() {
    let texts = [perf(&[10.0, 20.0], "float", 4).to_string(), simulation("fat tree").to_string()];
    let text = page(&report(&texts), Kind::File);
    assert!(text.contains("simulated: fat tree"), "{text}");
    let texts = [perf(&[10.0, 20.0], "float", 8).to_string(), simulation("fat tree").to_string()];
    assert!(!page(&report(&texts), Kind::File).contains("simulated: fat tree"), "other ranks");
}

#[test]
fn machines_are_merged_and_logs_stand_for_themselves() {
    let machine = |name: &str| {
        let mut one = doctor("x");
        one["facts"][0]["value"] = json!(name);
        one.to_string()
    };
    let mut log = doctor("the log's");
    log["subject"] = json!("log");
    let page = page(&report(&[machine("node1"), machine("node2"), log.to_string()]), Kind::File);
    assert!(
        page.contains("x (on 2 of 2 machines)") && page.contains("<li>node2: x</li>"),
        "{page}"
    );
    let mut twice = doctor("x");
    twice["facts"][0]["value"] = json!("node1");
    twice["findings"][1] = twice["findings"][0].clone();
    let counted = report(&[twice.to_string(), machine("node2")]).findings()[0].2.title.clone();
    assert_eq!(counted, "x (on 2 of 2 machines)");
    assert!(page.contains("the log&#39;s <span"), "no machines are counted there: {page}");
    assert!(page.contains("2 failures"), "{page}");
}

#[test]
fn known_gpus_have_a_usual_bandwidth() {
    let mut value = perf(&[10.0], "float", 8);
    for device in value["config"]["devices"].as_array_mut().unwrap() {
        device["device_info"] = json!("NVIDIA H100 80GB HBM3");
    }
    for (busbw, verdict) in [(450.0, Verdict::Pass), (300.0, Verdict::Warn), (100.0, Verdict::Fail)]
    {
        value["results"][0]["size"] = json!(1_u64 << 30);
        value["results"][0]["out_of_place"]["bus_bw"] = json!(busbw);
        let report = report(&[value.to_string()]);
        assert_eq!(report.verdict(), verdict, "{busbw}");
        let page = page(&report, Kind::File);
        let curve = "<path class=\"line s4 expected\" d=\"M0 5H28\"/></svg>usual for NVIDIA H100 80GB HBM3</li>";
        assert!(page.contains(curve), "{page}");
    }
    value["results"][0]["size"] = json!(1024);
    assert_eq!(report(&[value.to_string()]).verdict(), Verdict::Pass, "small sizes say nothing");
}

#[test]
fn wrong_results_are_a_failure() {
    let mut value = perf(&[10.0], "float", 2);
    value["results"][0]["in_place"]["nwrong"] = json!(3.0);
    let report = report(&[value.to_string()]);
    assert_eq!(report.verdict(), Verdict::Fail);
    assert!(report.findings()[0].2.title.contains("wrong in 1 cell"));
}

#[test]
fn who_comes_late_is_named_with_what_it_costs() {
    let section = traces::section(&traces(4, 20, 2));
    let late = section.findings.iter().find(|one| one.id == "trace-late").expect("a finding");
    assert!(late.title.contains("rank 2 on host2") && late.title.contains("20 of 20"), "{late:?}");
    assert!(late.cost.as_ref().is_some_and(|cost| cost.starts_with("31 % ")), "{late:?}");
    // Of two ranks one is always last: half of the times says nothing.
    let mut two = traces(2, 20, 0);
    for n in 10..20 {
        let (first, second) = (two[0].calls[n].start_ns, two[1].calls[n].start_ns);
        (two[0].calls[n].start_ns, two[1].calls[n].start_ns) = (second, first);
    }
    assert!(traces::section(&two).findings.iter().all(|one| one.verdict == Verdict::Pass));
    // Too few operations, or nobody in particular: nothing is said.
    assert!(
        traces::section(&traces(4, 5, 2)).findings.iter().all(|one| one.verdict == Verdict::Pass)
    );
    assert!(
        traces::section(&traces(4, 20, 9)).findings.iter().all(|one| one.verdict == Verdict::Pass)
    );
}

#[test]
fn a_job_that_hangs_names_who_is_not_there() {
    let mut all = traces(3, 10, 9);
    for trace in &mut all[..2] {
        trace.reason = Reason::Signal;
        trace.calls.push(synthetic::call(10, 2_000_000, None));
        trace.taken_ns = 9_000_000_000;
    }
    let section = traces::section(&all);
    let stands = section.findings.iter().find(|one| one.id == "trace-stands").expect("a finding");
    assert!(
        stands.title.contains("all_reduce #10 stands still: 2 ranks are in it, not in it: ranks 2"),
        "{stands:?}"
    );
    assert_eq!(stands.verdict, Verdict::Fail);
    // The recorder of rank 1 has no clock: it is in the operation all the same.
    all[1].calls[10].start_ns = 0;
    let section = traces::section(&all);
    let stands = section.findings.iter().find(|one| one.id == "trace-stands").expect("a finding");
    assert!(stands.title.ends_with("2 ranks are in it, not in it: ranks 2"), "{stands:?}");
    all.remove(1);
    let section = traces::section(&all);
    let missing = section.findings.iter().find(|one| one.id == "trace-missing").expect("a finding");
    assert!(missing.title.contains("no trace of 1 rank: 1"), "{missing:?}");
}

#[test]
fn a_thousand_ranks_fit_a_small_page() {
    let mut all = traces(1000, 300, 17);
    for (at, trace) in all.iter_mut().enumerate() {
        for (n, call) in trace.calls.iter_mut().enumerate() {
            let rank = u32::try_from((at * 31 + n * 7) % 1000).unwrap();
            call.waited = Some(Waited { rank, waited_ns: 1_000_000 });
        }
    }
    let fleet: Vec<Value> = (0..1000).map(|n| doctor(&format!("node{n}"))).collect();
    let fleet = json!({ "subject": "fleet", "machines": fleet, "differences": [] });
    let us: Vec<f64> = (1..20).map(|n| f64::from(n) * 10.0).collect();
    let mut inputs = read(&[perf(&us, "float", 1000).to_string(), fleet.to_string()]).unwrap();
    let path = PathBuf::from("t");
    inputs
        .traces
        .extend(all.into_iter().map(|trace| trace::read::Read { path: path.clone(), trace }));
    let text = page(&assemble(inputs, &args()).unwrap(), Kind::File);
    assert!(text.len() < 5 << 20, "{} bytes", text.len());
    assert!(text.contains("rows for 24 of 1000 ranks"), "what is left out is said");
    assert!(text.contains("Not listed: 936 ranks"), "what is left out is said");
    assert!(text.contains("rank 17 on host17 comes late"));
}

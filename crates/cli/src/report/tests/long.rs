//! Long runs, single iterations and what the links permit.

use super::*;

/// A run of 24 windows whose median grows by `percent`.
pub(super) fn soak(text: &str, percent: f64) -> Value {
    let windows: Vec<Value> = (0..24)
        .map(|at| {
            let p50 = 100.0 * (1.0 + percent / 100.0 * f64::from(at) / 23.0);
            json!({ "at_s": f64::from(at) * 10.0, "seconds": 10.0, "calls": 500, "p50_us": p50, "p99_us": 2.5 * p50,
                "p999_us": 3.5 * p50, "max_us": 9.5 * p50, "busbw_gbs": 1.5, "wrong": 0 })
        })
        .collect();
    let rank = |rank: u32| {
        json!({ "rank": rank, "hostname": text, "pid": 7, "last": 3, "longest": 2,
            "late_s": 0.5 * f64::from(rank), "waited_for_s": 1.5 * f64::from(rank) })
    };
    json!({
        "format": "ringway soak 1", "version": "0.1.0", "start_time": text, "end_time": text, "finished": true,
        "collective": "all_reduce", "size": 1 << 20, "type": text, "connection": text,
        "ranks": [rank(0), rank(1)], "windows": windows, "errors": [],
        "summary": { "calls": 12_000, "p50_us": 100.5, "p99_us": 250.5, "p999_us": 350.5, "max_us": 900.5,
            "drift": { "percent": percent, "quarters_percent": percent, "certain": true }, "drift_limit_percent": 10.5,
            "late": null, "hiccups": 3, "hiccup_period_s": null, "wrong": 0, "okay": true },
    })
}

#[test]
fn a_long_run_is_judged_by_drift_stragglers_and_errors() {
    let verdict = |value: &Value| {
        let report = report(&[value.to_string()]);
        let first = report.findings()[0].2.title.clone();
        (report.verdict(), first)
    };
    let still = soak("float", 2.0);
    assert_eq!(verdict(&still).0, Verdict::Pass);
    let (found, title) = verdict(&soak("float", 30.0));
    assert_eq!(found, Verdict::Fail);
    assert!(title.contains("becomes slower: +30.0 %"), "{title}");
    let mut late = still.clone();
    late["summary"]["late"] =
        json!({ "rank": 1, "last": 90, "calls": 100, "late_us": 120.0, "percent": 12.5 });
    let (found, title) = verdict(&late);
    assert_eq!(found, Verdict::Fail);
    assert!(title.contains("rank 1 (float) came last to 90 of 100"), "{title}");
    let mut ended = still.clone();
    ended["errors"] = json!(["rank 1 died"]);
    assert_eq!(verdict(&ended).0, Verdict::Fail);
    let mut few = still.clone();
    few["summary"]["drift"] = Value::Null;
    assert!(verdict(&few).1.contains("too few windows"));
    let mut regular = still.clone();
    regular["summary"]["hiccup_period_s"] = json!(10.0);
    assert_eq!(verdict(&regular).0, Verdict::Warn);

    let page = page(&report(&[still.to_string()]), Kind::File);
    for part in ["Long runs", "window by window", "others slept for it", "<path class=\"line s3\""]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn very_long_runs_by_very_many_ranks_fit_a_page() {
    let mut value = soak("float", 2.0);
    let window = value["windows"][0].clone();
    value["windows"] = (0..10_000)
        .map(|at| {
            let mut window = window.clone();
            window["at_s"] = json!(f64::from(at));
            window
        })
        .collect();
    let rank = value["ranks"][1].clone();
    value["ranks"] = json!(vec![rank; 4096]);
    let page = page(&report(&[value.to_string()]), Kind::File);
    assert!(page.len() < 300_000, "{}", page.len());
    assert!(page.contains("Not listed: 4032 of 4096 ranks"));
}

/// Results with single iterations of four ranks, of which one comes last by `late_us`.
fn iterations(late_us: f64) -> Value {
    let mut value = perf(&[1000.0, 2000.0], "float", 4);
    for row in value["results"].as_array_mut().unwrap() {
        let of_rank = |rank: usize| {
            let own = if rank == 2 { late_us } else { 0.0 };
            json!(vec![1000.0 + late_us - own; 40])
        };
        row["out_of_place_per_iter"] = json!({
            "skipped_iterations": 0, "p50_us": 1000.0, "p99_us": 1500.0, "max_us": 4000.0, "times_us": [],
            "per_process_max_times_us": [of_rank(0), of_rank(1), of_rank(2), of_rank(3)],
        });
    }
    value
}

#[test]
fn the_spread_of_iterations_is_drawn_and_who_comes_last_is_named() {
    let calm = report(&[iterations(0.0).to_string()]);
    assert_eq!(calm.verdict(), Verdict::Pass);
    let text = page(&calm, Kind::File);
    for part in ["spread of iterations", "slowest iteration", "4.00x", "slowest rank"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let late = report(&[iterations(300.0).to_string()]);
    assert_eq!(late.verdict(), Verdict::Warn);
    let title = &late.findings()[0].2.title;
    assert!(title.contains("rank 2 comes last over and over at 2 of 2 sizes"), "{title}");
    assert!(
        !page(&report(&[perf(&[1.0], "float", 2).to_string()]), Kind::File).contains("spread of")
    );
}

#[test]
fn what_the_links_permit_is_drawn_and_judged() {
    let with = |okay: &[Option<bool>]| {
        let mut value = perf(&[10.0, 20.0], "float", 4);
        let row = |okay: &Option<bool>| {
            json!({ "size": 1024, "ceiling_gbs": 12.5, "floor_gbs": 10.0, "reached_gbs": 9.5, "percent": 76.0,
                "link": "eth0 of b (100 Gb/s)", "okay": okay })
        };
        value["ringway"] = json!({ "expectation": { "okay": false, "rows": okay.iter().map(row).collect::<Vec<_>>() } });
        report(&[value.to_string()])
    };
    let failed = with(&[None, Some(false)]);
    assert_eq!(failed.verdict(), Verdict::Fail);
    let first = failed.findings()[0].2.clone();
    assert!(first.title.contains("below what was expected at 1 of 1 sizes"), "{first:?}");
    assert!(first.cost.unwrap().contains("76 % of the 12.5 that eth0 of b"));
    let text = page(&failed, Kind::File);
    assert!(text.contains("what the links permit") && text.contains("what was expected of them"));
    assert_eq!(with(&[Some(true), Some(true)]).verdict(), Verdict::Pass);
    let unknown = with(&[None, None]);
    assert!(unknown.findings().iter().any(|(_, _, one)| one.verdict == Verdict::Unknown));
}

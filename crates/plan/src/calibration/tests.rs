use proptest::prelude::*;

use super::*;
use crate::planner::{self, Request};
use crate::problem::Problem;
use crate::types::DataType;

fn topology(ranks: u32) -> Topology {
    Topology { cpu: "Some CPU @ 2.0GHz".into(), cores: 4, ranks, machines: 1, hosts: 1 }
}

fn with(points: &[Point]) -> Calibration {
    let mut calibration = Calibration::new(topology(2), Links::default());
    for point in points {
        calibration.learn(Collective::AllReduce, Algorithm::Ring, *point);
    }
    calibration
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn ratios_are_taken_between_sizes_on_a_scale_of_doublings() {
    let points = [Point(1024, 10.0, 10.0), Point(4096, 30.0, 10.0)];
    let at = |bytes| ratio_at(&points, bytes).unwrap();
    assert!(close(at(1024), 1.0) && close(at(2048), 2.0) && close(at(3072), 2.5));
    assert!(close(at(0), 1.0) && close(at(1 << 40), 3.0));
    assert_eq!(ratio_at(&[], 8), None);
    assert!(ratio_at(&[Point(0, 1.0, 1.0), Point(u64::MAX, 1.0, 1.0)], 1).unwrap().is_finite());
}

#[test]
fn one_odd_size_does_not_count_but_a_step_does() {
    let at = |ratios: &[f64]| {
        let points: Vec<Point> =
            (0..).zip(ratios).map(|(i, ratio)| Point(8 << i, *ratio, 1.0)).collect();
        (0..points.len()).map(|i| ratio_at(&points, 8 << i).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(at(&[1.0, 1.1, 9.0, 1.2, 1.3]), [1.0, 1.1, 1.2, 1.3, 1.3]);
    assert_eq!(at(&[1.0, 1.0, 3.0, 3.0]), [1.0, 1.0, 3.0, 3.0]);
}

#[test]
fn newer_times_take_the_place_of_older_ones() {
    let mut calibration = with(&[Point(64, 1.0, 1.0), Point(8, 2.0, 1.0), Point(64, 3.0, 1.0)]);
    assert_eq!(calibration.measured[0].points, [Point(8, 2.0, 1.0), Point(64, 3.0, 1.0)]);
    for bytes in 0..10_000 {
        calibration.learn(Collective::AllReduce, Algorithm::Tree, Point(bytes, 1.0, 1.0));
    }
    assert_eq!((calibration.measured.len(), calibration.measured[1].points.len()), (2, POINTS_MAX));
    let again = Calibration::from_json(calibration.to_json().as_bytes()).unwrap();
    assert_eq!(again, calibration);
}

#[test]
fn what_was_measured_decides() {
    let (problem, hosts) = (Problem::new(Collective::AllReduce, 2, 1 << 18, DataType::F32), [0, 0]);
    let plain = planner::choose(&problem, &hosts, &Request::default()).unwrap();
    let mut seen = Calibration::new(topology(2), Links::default());
    for candidate in plain.candidates.iter().filter(|c| c.predicted_us.is_some()) {
        let us = if candidate.algorithm == Algorithm::Tree { 5.0 } else { 500.0 };
        let point = Point(1 << 20, us, candidate.predicted_us.unwrap());
        seen.learn(Collective::AllReduce, candidate.algorithm, point);
    }
    let request = Request { measured: Some(&seen), ..Request::default() };
    let choice = planner::choose(&problem, &hosts, &request).unwrap();
    assert_eq!(choice.algorithm, Algorithm::Tree);
    let measured = choice.candidates[0].measured.unwrap();
    assert!(close(measured.us, 5.0) && measured.exact);
    assert_eq!(planner::choose_algorithm(&problem, &hosts, &request).unwrap().0, Algorithm::Tree);
    // Other ranks, or the same on two hosts, were not measured.
    for hosts in [vec![0, 1], vec![0; 3]] {
        let count = u32::try_from(hosts.len()).unwrap();
        let problem = Problem { ranks: count, ..problem.clone() };
        let other = planner::choose(&problem, &hosts, &request).unwrap();
        assert!(other.candidates.iter().all(|candidate| candidate.measured.is_none()));
    }
}

#[test]
fn what_was_never_timed_is_not_chosen_for_that() {
    let (problem, hosts) = (Problem::new(Collective::AllReduce, 2, 1 << 18, DataType::F32), [0, 0]);
    let plain = planner::choose(&problem, &hosts, &Request::default()).unwrap();
    let mut seen = Calibration::new(topology(2), Links::default());
    let best = &plain.candidates[0];
    let predicted_us = best.predicted_us.unwrap();
    let point = Point(1 << 20, predicted_us * 7.0, predicted_us);
    seen.learn(Collective::AllReduce, best.algorithm, point);
    let request = Request { measured: Some(&seen), ..Request::default() };
    let choice = planner::choose(&problem, &hosts, &request).unwrap();
    assert_eq!(choice.algorithm, best.algorithm);
}

#[test]
fn names_of_files_are_plain_and_differ() {
    let tcp = Topology { hosts: 2, ..topology(2) };
    let far = Topology { machines: 2, ..tcp.clone() };
    let names = [topology(2), topology(3), tcp, far].map(|t| t.file_name());
    assert_eq!(names[0], "some-cpu-2-0ghz-4c-1x2-shm.json");
    assert_eq!(names[2], "some-cpu-2-0ghz-4c-1x2-tcp.json");
    assert_eq!(names[3], "some-cpu-2-0ghz-4c-2x1-tcp.json");
    let odd = Topology { cpu: "../../etc/Ø\0".into(), ..Topology::default() };
    assert_eq!(odd.file_name(), "etc-0c-0x0-tcp.json");
}

#[test]
fn hostile_texts_are_refused_with_words() {
    let good = with(&[Point(8, 1.0, 1.0)]).to_json();
    let table = [
        (String::new(), "not a tuning file"),
        ("[".repeat(100_000), "not a tuning file"),
        ("{}".to_owned(), "missing field"),
        (good.replace("tuning 1", "tuning 9"), "another version"),
        (good.replace("\"model\":3", "\"model\":2"), "another version"),
        (good.replace("\"ring\"", "\"wing\""), "wing"),
        (good.replace("\"copy_gbs\":25.0", "\"copy_gbs\":0.0"), "copy_gbs is 0"),
        (good.replace("\"copy_gbs\":25.0", "\"copy_gbs\":-1e9"), "cannot be"),
        (good.replace("\"copy_gbs\":25.0", "\"copy_gbs\":1e999"), "number out of range"),
        (good.replace("\"copy_gbs\":25.0", "\"copy_gbs\":null"), "null"),
        (" ".repeat(TEXT_BYTES_MAX + 1), "longer than"),
    ];
    for (text, why) in table {
        let error = Calibration::from_json(text.as_bytes()).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Damaged texts are refused or give sound numbers; nothing panics.
    #[test]
    fn damaged_texts_do_no_harm(at in any::<prop::sample::Index>(), byte in any::<u8>(), bytes in any::<u64>()) {
        let mut text = with(&[Point(8, 1.0, 2.0), Point(64, 3.0, 2.0)]).to_json().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        if let Ok(read) = Calibration::from_json(&text) {
            let corrections = read.corrections(Collective::AllReduce, &[0, 0], bytes);
            let ratio = corrections.ratio(Algorithm::Ring, &Algorithm::ALL);
            prop_assert!(ratio.is_finite() && ratio > 0.0);
        }
    }
}

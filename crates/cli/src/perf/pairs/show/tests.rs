use super::super::judge::Times;
use super::*;
use crate::perf::slow::culprit::{Culprit, Way};
use crate::perf::slow::places::tests::cluster;

fn page(columns: usize, has_colour: bool) -> Page {
    Page {
        head: vec!["# transport tcp".to_owned()],
        bytes: 1 << 20,
        limit: 1.35,
        columns,
        has_colour,
    }
}

/// Everybody as quick, but what `slow` sends.
fn outcome(places: &Places, slow: usize) -> Outcome {
    let ranks = places.ranks();
    let mut times = Times {
        round_trips: Grid::new(ranks),
        messages: Grid::new(ranks),
        works: vec![Some(9.0); ranks],
        copies: vec![None; ranks],
    };
    for a in 0..ranks {
        for b in (0..ranks).filter(|b| *b != a) {
            times.messages.set(a, b, if a == slow { 2000.0 } else { 1000.0 });
            times.round_trips.set(a, b, 50.0);
        }
    }
    let culprit = Culprit::new(places.on(places.node(slow)), Vec::new(), Way::Sends);
    let culprits = vec![Culprit { slower: Some(2.0), ..culprit }.named(places)];
    Outcome { rounds: ranks - 1, at_once: 1, times, suspects: 1, culprits }
}

#[test]
fn the_map_shows_percent_and_marks_what_is_slow() {
    let places = cluster(&[1; 4], 4);
    let text = page(80, false).text(&outcome(&places, 2), &places);
    assert!(text.contains("# 2 node2  50!  50!   ·   50!\n"), "{text}");
    assert!(text.contains("# 0 node0   ·  100  100  100 \n"), "{text}");
    assert!(text.contains("slow: node2 (rank 2): what it sends takes 2.0 times"), "{text}");
    assert!(
        text.contains("bandwidth from row to column: usually 1.05 GB/s, 1.05 GB/s to 0.52 GB/s")
    );
    assert!(!text.contains('\x1b'));
    let coloured = page(80, true).text(&outcome(&places, 2), &places);
    assert!(coloured.contains("\x1b[1;31m  50!\x1b[0m"), "{coloured:?}");
}

#[test]
fn nothing_is_an_answer() {
    let places = cluster(&[1; 4], 4);
    let none = Outcome { culprits: Vec::new(), ..outcome(&places, 9) };
    let text = page(80, false).text(&none, &places);
    assert!(text.contains("nothing stands out by 35 % or more; one that stood out"), "{text}");
}

#[test]
fn many_ranks_fold_into_hosts_or_neighbours_and_fit_the_terminal() {
    for (hosts, columns, wanted) in [
        (vec![8; 16], 100, "# 3 node3"),
        (vec![1; 128], 60, "# 3: 48-63"),
        (vec![100], 40, "# 3: 75-99"),
    ] {
        let places = cluster(&hosts, 4);
        let text = page(columns, false).text(&outcome(&places, 9), &places);
        let map =
            text.lines().filter(|line| line.contains('%').eq(&false) && !line.contains("ringway"));
        let map: Vec<&str> = map.filter(|line| !line.contains("slow")).collect();
        assert!(map.iter().any(|line| line.starts_with(wanted)), "{wanted}\n{text}");
        for line in map.iter().filter(|line| line.contains("100 ")) {
            assert!(line.chars().count() <= columns, "{line}");
        }
        assert!(text.contains(" 50!"), "{text}");
    }
}

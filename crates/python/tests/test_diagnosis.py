"""What `ringway.diagnose` measures, and whom it accuses."""

from __future__ import annotations

import logging
import xml.etree.ElementTree as xml

import pytest

import ringway
from ringway import diagnosis
from ringway.diagnosis import Bandwidth, Diagnosis, Rank, Timer
from ringway.testing import world


@pytest.mark.parametrize("ranks", range(2, 12))
def test_every_two_meet_once_and_nobody_meets_two_at_a_time(ranks):
    met = []
    for pairs in diagnosis.rounds(ranks):
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))
        met += [tuple(sorted(pair)) for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    assert len(list(diagnosis.rounds(ranks))) == (ranks - 1 if ranks % 2 == 0 else ranks)


def test_all_ranks_see_the_same():
    found = world(3, lambda comm: ringway.diagnose(comm, sizes=(8, 4096), repeats=5))
    assert found[0].latency_us == found[1].latency_us == found[2].latency_us
    one = found[0]
    for rank, row in enumerate(one.latency_us):
        assert [value is None for value in row] == [other == rank for other in range(3)]
        assert all(value is None or value > 0 for value in row)
    assert [each.size for each in one.bandwidth] == [8, 4096]
    assert all(each.time_us > 0 and each.p99_us >= each.time_us for each in one.bandwidth)
    assert [rank.rank for rank in one.ranks] == [0, 1, 2]
    said = str(one)
    assert "all_reduce" in said and "4 KiB" in said
    picture = xml.fromstring(one.svg())
    cells = [node for node in picture.iter() if node.tag.endswith("rect")]
    assert len(cells) == 6
    assert one._repr_html_().startswith("<ul><li>")


def made(latency=10.0, work=1000.0, ranks=4):
    table = [[None if a == b else latency for b in range(ranks)] for a in range(ranks)]
    people = [Rank(rank, f"host{rank}", 100 + rank, work, 5.0) for rank in range(ranks)]
    return Diagnosis(people, table, [Bandwidth(8, 10.0, 12.0, 0.1, 0.1)])


def test_equals_are_not_accused():
    found = made()
    found.latency_us[0][1] = 25.0
    found.ranks[2].work_us = 1150.0
    assert diagnosis._verdicts(found, [0, 1, 2, 3]) == []


def test_a_slow_pair_and_a_slow_rank_are_named_with_numbers():
    found = made()
    found.latency_us[1][3] = 300.0
    found.ranks[2].work_us = 2500.0
    pair, rank = diagnosis._verdicts(found, [0, 1, 2, 3])
    assert "rank 1 (host1) and rank 3 (host3) take 300 µs" in pair and "10 µs" in pair
    assert "rank 2 (host host2, pid 102) takes 2500 µs" in rank and "1000 µs" in rank


def test_what_is_far_is_compared_with_what_is_far():
    """Two hosts: messages between them take longer, and nobody is to blame for it."""
    found = made(latency=2.0)
    for a in range(4):
        for b in range(4):
            if a // 2 != b // 2:
                found.latency_us[a][b] = 60.0
    assert diagnosis._verdicts(found, [0, 0, 1, 1]) == []


def test_calls_that_are_now_and_then_slow_are_warned_of_once(caplog):
    timer = Timer()
    with caplog.at_level(logging.WARNING, logger="ringway"):
        for turn in range(200):
            timer.add("step", 0.1 if turn % 20 == 19 else 0.001)
    assert len(caplog.records) == 1
    assert "step: p99 100 ms is 100.0 times the median of 1 ms" in caplog.text
    assert timer.table()["step"]["calls"] == 200
    assert "step" in str(timer)


def test_timed_as_people_use_it():
    with pytest.raises(ZeroDivisionError), ringway.timed("breaks"):
        1 / 0
    assert ringway.timed.table()["breaks"]["calls"] == 1


@pytest.mark.parametrize("words, said", [({"repeats": 1}, "medians need at least 3"), ({"sizes": (3,)}, "a size of 3 bytes")])
def test_wrong_arguments_are_said(words, said):
    with pytest.raises(ValueError, match=said):
        world(1, lambda comm: ringway.diagnose(comm, **words))

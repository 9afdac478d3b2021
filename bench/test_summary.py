#!/usr/bin/env python3
"""Tests of what bench/run computes and writes. Run: python3 bench/test_summary.py"""

import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

from harness import bounds, machine, options, peers, plot, report, start, summary  # noqa: E402


def point(lib, size, time_us, round_number=1, **changes):
    made = {
        "coll": "all_reduce", "dtype": "f32", "ranks": 2, "transport": "shm", "buffers": "hot", "lib": lib,
        "size": size, "bytes": size, "time_us": time_us, "min_us": time_us / 2, "round": round_number,
    }  # fmt: skip
    return {**made, **changes}


def only_table(points):
    (table,) = summary.tabulate(points).values()
    return table


class Ratios(unittest.TestCase):
    def test_the_median_over_rounds_counts(self):
        row = only_table([point("ringway", 8, time, i) for i, time in enumerate([3, 1, 100, 2, 4])])[8]
        self.assertEqual(row["ringway"].time_us, 3)
        self.assertEqual((row["ringway"].least_us, row["ringway"].most_us, row["ringway"].rounds), (1, 100, 5))
        self.assertEqual(row["ringway"].fastest_sample_us, 0.5)

    def test_spread_is_half_the_range(self):
        row = only_table([point("mpich", 8, time, i) for i, time in enumerate([9, 10, 12])])[8]
        self.assertAlmostEqual(row["mpich"].spread, 0.15)

    def test_ratio_to_one_and_to_the_fastest(self):
        row = only_table([point("ringway", 8, 3), point("mpich", 8, 2), point("ompi4", 8, 6)])[8]
        self.assertEqual(summary.fastest_peer(row), ("mpich", 2))
        self.assertEqual(summary.ratio(row), 1.5)
        self.assertEqual(summary.ratio(row, "ompi4"), 0.5)

    def test_what_is_missing_has_no_ratio(self):
        alone = only_table([point("ringway", 8, 3)])[8]
        self.assertIsNone(summary.fastest_peer(alone))
        self.assertIsNone(summary.ratio(alone))
        self.assertIsNone(summary.ratio(alone, "mpich"))
        without_us = only_table([point("mpich", 8, 3)])[8]
        self.assertIsNone(summary.ratio(without_us))

    def test_cases_are_kept_apart(self):
        points = [point("ringway", 8, 1), point("ringway", 8, 5, buffers="cold"), point("ringway", 8, 9, ranks=4)]
        tables = summary.tabulate(points)
        self.assertEqual([table[8]["ringway"].time_us for table in tables.values()], [1, 5, 9])
        self.assertEqual(len({case.name for case in tables}), 3)


class Means(unittest.TestCase):
    def test_geometric_mean(self):
        self.assertAlmostEqual(summary.geometric_mean([0.5, 2.0]), 1.0)
        self.assertAlmostEqual(summary.geometric_mean([2.0, None, 8.0]), 4.0)
        self.assertIsNone(summary.geometric_mean([]))

    def test_ranges_count_only_sizes_both_have(self):
        table = only_table(
            [point("ringway", 8, 1), point("mpich", 8, 2), point("ringway", 1 << 20, 8), point("mpich", 1 << 20, 4)]
            + [point("ringway", 64 << 20, 5)]
        )
        means = summary.means(table, ["mpich"])
        self.assertAlmostEqual(means["all sizes"]["mpich"][0], 1.0)
        self.assertEqual(means["all sizes"]["mpich"][1], 2)
        self.assertEqual(means["up to 4 KiB"][None], (0.5, 1))
        self.assertEqual(means["64 KiB to 4 MiB"][None], (2.0, 1))
        self.assertNotIn("from 16 MiB", means)


class MissingPoints(unittest.TestCase):
    def test_they_are_named(self):
        key = ("ringway", "shm", "all_reduce", "f32", 2, "hot", 8)
        wanted = [(*key, 1), (*key, 2)]
        self.assertEqual(summary.missing([point("ringway", 8, 1)], wanted), [(*key, 2)])


class Limits(unittest.TestCase):
    LINES = [
        {"limit": "flag_hop", "one_way_us": 0.5},
        {"limit": "flag_hop", "one_way_us": 0.1},
        {"limit": "tcp_hop", "one_way_us": 5.0},
        {"limit": "reduce", "ranks": 2, "size": 1000, "GBs": 2.0},
        {"limit": "gather", "ranks": 2, "size": 1000, "GBs": 4.0},
        {"limit": "reduce", "ranks": 2, "size": 1000, "GBs": 1.0},
        {"limit": "write", "ranks": 2, "size": 1000, "GBs": 8.0},
        {"limit": "memcpy", "ranks": 2, "GBs": 0.5},
        {"limit": "tcp", "ranks": 2, "size": 1000, "GBs": 1.0},
    ]

    def setUp(self):
        self.bounds = bounds.Bounds(self.LINES, cores=2)

    def test_all_reduce_is_a_hop_and_two_halves(self):
        # 4000 B added at 2000 B/us and 4000 B copied at 4000 B/us, each half of 8000
        self.assertAlmostEqual(self.bounds.time_us("all_reduce", "shm", "hot", 2, 8000), 0.1 + 2 + 1)
        self.assertAlmostEqual(self.bounds.time_us("reduce_scatter", "shm", "hot", 2, 8000), 0.1 + 2)
        self.assertAlmostEqual(self.bounds.time_us("broadcast", "shm", "hot", 2, 8000), 0.1 + 2)
        self.assertAlmostEqual(self.bounds.time_us("barrier", "shm", "hot", 2, 0), 0.1)

    def test_writing_comes_on_top(self):
        with_writing = lambda coll: self.bounds.time_us(coll, "shm", "hot", 2, 8000, writing=True)
        self.assertAlmostEqual(with_writing("all_reduce"), 0.1 + 2 + 1 + 1)
        self.assertAlmostEqual(with_writing("all_gather"), 0.1 + 1 + 0.5)

    def test_cold_buffers_come_from_memory(self):
        self.assertAlmostEqual(self.bounds.time_us("all_reduce", "shm", "cold", 2, 8000), 16)

    def test_a_crowd_shares_the_cores(self):
        # As two ranks between cores; an all-to-all has twice as much for each core.
        self.assertAlmostEqual(self.bounds.time_us("all_gather", "shm", "hot", 4, 8000), 0.1 + 1)
        self.assertAlmostEqual(self.bounds.time_us("all_to_all", "shm", "hot", 4, 8000), 0.1 + 2)
        self.assertAlmostEqual(self.bounds.time_us("all_gather", "tcp", "hot", 4, 8000), 2 * 6)

    def test_tcp(self):
        self.assertAlmostEqual(self.bounds.time_us("all_reduce", "tcp", "hot", 2, 8000), 8)
        self.assertAlmostEqual(self.bounds.time_us("all_reduce", "tcp", "hot", 2, 8), 5)

    def test_what_was_not_measured_is_not_guessed(self):
        self.assertIsNone(bounds.Bounds([], cores=2).time_us("all_reduce", "shm", "hot", 2, 8))
        self.assertIsNone(bounds.Bounds(self.LINES[:3], cores=2).time_us("all_reduce", "shm", "hot", 2, 8))

    def test_between_sizes(self):
        self.assertAlmostEqual(bounds.interpolate({100: 1.0, 10000: 4.0}, 1000), 2.0)
        self.assertEqual(bounds.interpolate({100: 1.0, 10000: 4.0}, 1), 1.0)
        self.assertEqual(bounds.interpolate({100: 1.0, 10000: 4.0}, 1 << 30), 4.0)


class Words(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([options.parse_size(text) for text in ("8", "4K", "64MiB", "1g")], [8, 4096, 64 << 20, 1 << 30])

    def test_types_are_for_reductions(self):
        asked = options.parse(["--collectives", "all_reduce,broadcast"], cores=2)
        pairs = [("all_reduce", "f32"), ("broadcast", "f32"), ("all_reduce", "bf16")]
        self.assertEqual(options.subjects(asked), pairs)

    def test_default_ranks(self):
        self.assertEqual([options.default_ranks(cores) for cores in (2, 16)], [[2, 4], [8, 16]])

    def test_first_one_thread_of_every_core(self):
        self.assertEqual(machine.parse_cpu_list("0-2,8\n"), [0, 1, 2, 8])
        cores, cpus = machine.cores_first([0, 1, 2, 3], lambda cpu: [cpu // 2 * 2, cpu // 2 * 2 + 1])
        self.assertEqual((cores, cpus), ([0, 2], [0, 2, 1, 3]))

    def test_who_is_bound_to_what(self):
        job = lambda ranks: peers.Job("ringway", "shm", ranks, [0, 2], [0, 2, 1, 3])
        self.assertEqual([job(n).unit for n in (2, 4, 5)], ["core", "hwthread", None])
        self.assertEqual([job(n).crowded for n in (2, 4, 5)], [False, False, True])


class Starts(unittest.TestCase):
    def setUp(self):
        start.GRACE_S = 0.2

    def run_shell(self, script, limit_s=20):
        return start.start(["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, limit_s)

    def test_only_json_counts(self):
        note, lines = self.run_shell("""echo '{"a": 1}'; echo words; echo '{"cut'""")
        self.assertEqual((note["outcome"], lines), ("ok", [{"a": 1}]))

    def test_a_hang_ends_and_is_named(self):
        note, lines = self.run_shell("""echo '{"a": 1}'; sleep 60""", 0.3)
        self.assertIn("no end within", note["outcome"])
        self.assertEqual(lines, [{"a": 1}])

    def test_a_wrong_answer_is_named(self):
        note, _ = self.run_shell("echo 'WRONG: rank 1' >&2; exit 3")
        self.assertEqual(note["outcome"], "wrong answer: WRONG: rank 1")


class Report(unittest.TestCase):
    def results(self, points):
        return {
            "machine": {
                "cpu": "A & B <C>", "cores": 2, "cpus": 2, "caches": {}, "memory_mib": 1024, "virtual": False,
                "kernel": "6", "date": "2000-01-01", "compiler": "cc", "commit": None,
            },
            "options": {"libs": ["ringway", "mpich", "gloo"], "rounds": 2, "seconds": 0.3},
            "versions": {"ringway": "1"}, "missing_libraries": {"gloo": "no torch"},
            "starts": [{"lib": "mpich", "round": 2, "outcome": "no end within 5 s", "foreign": 0.5, "steal": 0}],
            "limits": Limits.LINES, "points": points, "missing_points": [["mpich", "shm"]],
        }  # fmt: skip

    def test_tables_and_plots_say_what_is_missing(self):
        points = [point("ringway", 8, 1), point("ringway", 4096, 2), point("mpich", 8, 2)]
        points.append(point("mpich", 0, 2, coll="barrier"))
        with tempfile.TemporaryDirectory() as folder:
            text = report.report(self.results(points), pathlib.Path(folder))
            made = sorted(path.name for path in pathlib.Path(folder).glob("*.svg"))
            self.assertEqual(made, ["all_reduce-shm-2-hot.svg", "barrier-shm.svg"])
            for name in made:
                xml.etree.ElementTree.parse(pathlib.Path(folder) / name)
        self.assertIn("| 8 B | **1 ±0%** | 2 ±0% | 0.50 |", text)
        self.assertIn("| 4 KiB | **2 ±0%** | missing | – |", text)
        for words in ("Gloo: no torch", "no end within 5 s", "points are missing", "do not quote"):
            self.assertIn(words, text)

    def test_nothing_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("## Overview", report.report(self.results([]), pathlib.Path(folder)))

    def test_units(self):
        self.assertEqual([plot.human_bytes(n) for n in (8, 4096, 1 << 20, 3 << 30)], ["8 B", "4 KiB", "1 MiB", "3 GiB"])
        self.assertEqual([plot.human_time(t) for t in (0.1, 10, 1e4, 1e6)], ["100 ns", "10 µs", "10 ms", "1 s"])


if __name__ == "__main__":
    unittest.main()

//! The table, its header and its footer, as nccl-tests prints them.
//!
//! Readers of that format split rows at blanks and look for the footer's words; lines that
//! begin with `#` and are not known to them they skip. Ours add only such lines.

use super::identity::Gpu;
use super::late::Tally;
use super::number::{fit, general};
use super::stats::IterationStats;

/// One rank as the header and the JSON name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) rank: u32,
    pub(crate) pid: u32,
    pub(crate) host: String,
    /// The rank's number among those of its host, or that of its GPU.
    pub(crate) device: u32,
    /// The GPU's address on the PCI bus; zeros where the buffers are in host memory.
    pub(crate) address: String,
    /// The GPU's name, or `cpu`.
    pub(crate) name: String,
}

/// What stands in the place of a GPU's address where there is none.
pub(crate) const NO_ADDRESS: &str = "0000:00:00";
/// What stands in the place of a GPU's name where there is none.
pub(crate) const NO_GPU: &str = "cpu";

impl Device {
    /// The rank's memory is that of a GPU.
    pub(crate) fn has(&mut self, gpu: Gpu) {
        self.device = gpu.index;
        // nccl-tests leaves the function out.
        gpu.address.split('.').next().unwrap_or_default().clone_into(&mut self.address);
        self.name = gpu.name;
    }

    /// The rank's line in the header.
    pub(crate) fn line(&self) -> String {
        format!(
            "#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [{}] {}",
            self.rank, 0, self.pid, self.host, self.device, self.address, self.name
        )
    }
}

/// One measurement: a size in one placement.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) time_us: f64,
    pub(crate) alg_bw: f64,
    pub(crate) bus_bw: f64,
    /// Wrong elements on all ranks; `None` when not checked.
    pub(crate) wrong: Option<u64>,
    pub(crate) iterations: Option<Iterations>,
}

/// The single iterations of a measurement (`-I`).
#[derive(Clone, Debug)]
pub(crate) struct Iterations {
    pub(crate) stats: IterationStats,
    pub(crate) skipped: u32,
    /// The slowest rank's time of each iteration.
    pub(crate) seconds: Vec<f64>,
    /// Who that was.
    pub(crate) slowest: Vec<u32>,
    /// Each rank's times.
    pub(crate) seconds_of_ranks: Vec<Vec<f64>>,
    /// Who was in those that count for longest, and who came last to them.
    pub(crate) tally: Tally,
}

impl Iterations {
    /// A line below the table: the spread, and who made it.
    fn line(&self, bytes: usize, place: &str, waits_for_all: bool) -> String {
        let IterationStats { p50_us, p99_us, max_us, .. } = self.stats;
        let mut line = format!(
            "# {bytes:>10}  {place:>8}  {}  {}  {}  {:>7.2}",
            fit(p50_us, 8),
            fit(p99_us, 8),
            fit(max_us, 8),
            if p50_us > 0.0 { max_us / p50_us } else { 0.0 }
        );
        if let Some((rank, times)) = self.tally.longest().filter(|_| self.tally.ranks.len() > 1) {
            line.push_str(&format!("  {rank} ({times} of {})", self.tally.calls));
        }
        if let Some(late) = self.tally.late().filter(|_| waits_for_all) {
            line.push_str(&format!(
                "; rank {} came last to {} of {}, {} us late",
                late.rank,
                late.last,
                late.calls,
                fit(late.late_us, 7).trim()
            ));
        }
        line
    }
}

/// The spread of single iterations, below the table.
pub(crate) fn spread(rows: &[Row], waits_for_all: bool) -> Vec<String> {
    let mut lines = vec![
        "#".to_owned(),
        "# Iterations, each as long as its slowest rank's (us):".to_owned(),
        format!(
            "# {:>10}  {:>8}  {:>8}  {:>8}  {:>8}  {:>7}  slowest rank (times)",
            "size", "", "p50", "p99", "max", "max/p50"
        ),
    ];
    for row in rows {
        for (cell, place) in [(&row.out_of_place, "out"), (&row.in_place, "in place")] {
            let iterations = cell.iterations.as_ref();
            lines.extend(iterations.map(|each| each.line(row.bytes, place, waits_for_all)));
        }
    }
    lines
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    pub(crate) data_type: &'static str,
    pub(crate) op: &'static str,
    /// -1 where there is no root.
    pub(crate) root: i64,
    pub(crate) out_of_place: Cell,
    pub(crate) in_place: Cell,
    /// Iterations really run out of place.
    pub(crate) actual_iterations: u32,
    pub(crate) timestamp: Option<String>,
}

/// Which columns the table has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) iterations: bool,
    pub(crate) timestamps: bool,
    pub(crate) cpu_time: bool,
}

impl Columns {
    /// The three lines above the rows.
    pub(crate) fn header(self) -> [String; 3] {
        let (stamp_width, stamp, stamp_unit) =
            if self.timestamps { (19, "timestamp", "%Y-%m-%d %H:%M:%S") } else { (0, "", "") };
        let time = if self.cpu_time { "cputime" } else { "time" };
        let lead = |size: &str, count: &str, data_type: &str, op: &str, root: &str| {
            format!("# {size:>10}  {count:>12}  {data_type:>8}  {op:>6}  {root:>6}")
        };
        let (names, units) = if self.iterations {
            (
                format!(
                    "  {time:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>7}  {:>7}  {:>7}",
                    "algbw", "busbw", "#wrong", "i_min", "i_max", "i_p99", "i_cv%"
                ),
                format!(
                    "  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>7}  {:>7}  {:>7}",
                    "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(%)"
                ),
            )
        } else {
            (
                format!("  {time:>7}  {:>6}  {:>6}  {:>6}", "algbw", "busbw", "#wrong"),
                format!("  {:>7}  {:>6}  {:>6}  {:>6}", "(us)", "(GB/s)", "(GB/s)", ""),
            )
        };
        let placements = if self.iterations {
            "              out-of-place (+ per-iteration)                                \
             in-place (+ per-iteration)"
        } else {
            "           out-of-place                       in-place          "
        };
        [
            format!("{}{placements}", lead("", "", "", "", "")),
            format!(
                "{}{names}{names} {stamp:>stamp_width$}",
                lead("size", "count", "type", "redop", "root")
            ),
            format!(
                "{}{units}{units} {stamp_unit:>stamp_width$}",
                lead("(B)", "(elements)", "", "", "")
            ),
        ]
    }
}

impl Row {
    /// The row's line.
    pub(crate) fn line(&self) -> String {
        let mut line = format!(
            "{:12}  {:12}  {:>8}  {:>6}  {:>6}{}{}",
            self.bytes,
            self.count,
            self.data_type,
            self.op,
            self.root,
            self.out_of_place.text(),
            self.in_place.text()
        );
        if let Some(timestamp) = &self.timestamp {
            line.push_str(&format!("{timestamp:>21}"));
        }
        line
    }
}

impl Cell {
    fn text(&self) -> String {
        let wrong = self.wrong.map_or_else(|| "N/A".to_owned(), wrong_text);
        let mut text = format!(
            "  {}  {}  {}  {wrong:>6}",
            fit(self.time_us, 7),
            fit(self.alg_bw, 6),
            fit(self.bus_bw, 6)
        );
        if let Some(Iterations { stats, .. }) = &self.iterations {
            for value in [stats.min_us, stats.max_us, stats.p99_us, stats.cv_pct] {
                text.push_str(&format!("  {}", fit(value, 7)));
            }
        }
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "printed with six digits")]
fn wrong_text(wrong: u64) -> String {
    general(wrong as f64)
}

/// What the footer sums up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Measurements with wrong elements.
    pub(crate) out_of_bounds: u64,
    pub(crate) average_bus_bandwidth: f64,
    /// The least average that passes (NCCL_TESTS_MIN_BW), if one was asked for.
    pub(crate) wanted_bandwidth: Option<f64>,
}

impl Summary {
    /// Whether the average bandwidth passes; `None` when nobody asked.
    pub(crate) fn bandwidth_passes(&self) -> Option<bool> {
        // nccl-tests lets 10 % slip.
        self.wanted_bandwidth.map(|wanted| self.average_bus_bandwidth >= wanted * 0.9)
    }

    /// Whether everything passes.
    pub(crate) fn passes(&self) -> bool {
        self.out_of_bounds == 0 && self.bandwidth_passes() != Some(false)
    }

    /// The lines below the rows.
    pub(crate) fn footer(&self, program: &str) -> Vec<String> {
        let verdict = |passes: bool| if passes { "OK" } else { "FAILED" };
        let bounds = verdict(self.out_of_bounds == 0);
        let bandwidth = self.bandwidth_passes().map_or("", verdict);
        vec![
            format!("# {:<20} : {} {bounds}", "Out of bounds values", self.out_of_bounds),
            format!(
                "# {:<20} : {} {bandwidth}",
                "Avg bus bandwidth",
                general(self.average_bus_bandwidth)
            ),
            "#".to_owned(),
            format!("# Collective test concluded: {program}"),
            "#".to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(time_us: f64, alg_bw: f64, bus_bw: f64, wrong: Option<u64>) -> Cell {
        Cell { time_us, alg_bw, bus_bw, wrong, iterations: None }
    }

    fn row(bytes: usize, out_of_place: Cell, in_place: Cell) -> Row {
        Row {
            bytes,
            count: bytes / 4,
            data_type: "float",
            op: "sum",
            root: -1,
            out_of_place,
            in_place,
            actual_iterations: 20,
            timestamp: None,
        }
    }

    /// Rows as nccl-tests prints them.
    #[test]
    fn rows_are_nccl_tests_rows() {
        let table = [
            (
                row(8, cell(99.09, 0.0, 0.0, None), cell(36.48, 0.0, 0.0, None)),
                "           8             2     float     sum      -1    99.09    0.00    0.00    N/A    36.48    0.00    0.00    N/A",
            ),
            (
                row(16, cell(12.88, 0.0, 0.0, Some(0)), cell(12.83, 0.0, 0.0, Some(0))),
                "          16             4     float     sum      -1    12.88    0.00    0.00      0    12.83    0.00    0.00      0",
            ),
            (
                row(
                    17_179_869_184,
                    cell(62239.1, 276.03, 483.05, Some(0)),
                    cell(62200.2, 276.2, 483.35, Some(1_234_567)),
                ),
                " 17179869184    4294967296     float     sum      -1  62239.1  276.03  483.05       0  62200.2  276.20  483.35  1.23457e+06",
            ),
        ];
        for (row, expected) in table {
            assert_eq!(squeeze(&row.line()), squeeze(expected));
            assert_eq!(row.line().find("float"), expected.find("float"));
        }
        let golden = "           8             2     float     sum      -1    99.09    0.00    0.00     N/A    36.48    0.00    0.00     N/A";
        assert_eq!(row(8, cell(99.09, 0.0, 0.0, None), cell(36.48, 0.0, 0.0, None)).line(), golden);
    }

    fn squeeze(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn header_stands_over_the_rows() {
        let [placements, names, units] = Columns::default().header();
        assert_eq!(
            names,
            "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong "
        );
        assert_eq!(
            units.trim_end(),
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"
        );
        assert!(placements.contains("out-of-place                       in-place"));
        let line = row(8, cell(1.0, 0.0, 0.0, Some(0)), cell(1.0, 0.0, 0.0, Some(0))).line();
        assert_eq!(line.len(), names.trim_end().len());
        let wide = Columns { iterations: true, timestamps: true, cpu_time: true }.header();
        assert!(wide[1].contains("i_p99") && wide[1].contains("cputime"));
        assert!(wide[1].ends_with("timestamp"));
    }

    #[test]
    fn rank_lines_are_aligned() {
        let device = Device {
            rank: 0,
            pid: 123,
            host: "node1".to_owned(),
            device: 0,
            address: NO_ADDRESS.to_owned(),
            name: NO_GPU.to_owned(),
        };
        assert_eq!(
            device.line(),
            "#  Rank  0 Group  0 Pid    123 on      node1 device  0 [0000:00:00] cpu"
        );
    }

    #[test]
    fn footer_says_ok_or_failed() {
        let good =
            Summary { out_of_bounds: 0, average_bus_bandwidth: 60.168, wanted_bandwidth: None };
        assert_eq!(
            good.footer("all_reduce_perf")[..2],
            ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 60.168 "]
        );
        assert!(good.passes());
        let bad = Summary { out_of_bounds: 2, wanted_bandwidth: Some(100.0), ..good };
        assert_eq!(
            bad.footer("x")[..2],
            ["# Out of bounds values : 2 FAILED", "# Avg bus bandwidth    : 60.168 FAILED"]
        );
        assert!(!bad.passes());
        assert!(Summary { wanted_bandwidth: Some(65.0), ..good }.passes());
    }
}

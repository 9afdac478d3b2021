//! Measurements as lines of a table.

use ringway::net::{Bandwidth, Kind, Latency, Row, Test};

/// What is measured. The line begins with `#`, as all that is no row.
pub(crate) fn title(test: &Test) -> String {
    let lanes = match test.lanes {
        1 => String::new(),
        many => format!(", {many} side by side"),
    };
    let both = if test.bidirectional { ", both ways together" } else { "" };
    let (operation, transport) = (test.operation, test.transport);
    match test.kind {
        Kind::Bandwidth => format!("# bandwidth of {operation} over {transport}{lanes}{both}"),
        Kind::Latency => format!("# latency of {operation} over {transport}, microseconds"),
    }
}

/// The heads of the columns.
pub(crate) fn heads(test: &Test) -> String {
    match test.kind {
        Kind::Bandwidth => format!(
            "#{:>10} {:>10} {:>12} {:>12} {:>12}",
            "bytes", "messages", "MB/s", "Gbit/s", "Mmsg/s"
        ),
        Kind::Latency => format!(
            "#{:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "bytes", "iterations", "min", "typical", "average", "p99", "max"
        ),
    }
}

/// One size.
pub(crate) fn row(row: &Row) -> String {
    match row {
        Row::Bandwidth(Bandwidth {
            bytes,
            messages,
            bytes_per_second,
            messages_per_second,
            ..
        }) => {
            let (mb, gbit) = (bytes_per_second / 1e6, bytes_per_second * 8e-9);
            let rate = messages_per_second / 1e6;
            format!(" {bytes:>10} {messages:>10} {mb:>12.2} {gbit:>12.4} {rate:>12.6}")
        }
        Row::Latency(Latency {
            bytes,
            iterations,
            min_us,
            typical_us,
            average_us,
            p99_us,
            max_us,
        }) => {
            format!(
                " {bytes:>10} {iterations:>10} {min_us:>10.2} {typical_us:>10.2} {average_us:>10.2} {p99_us:>10.2} {max_us:>10.2}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use ringway::net::{Operation, Transport};

    use super::*;

    #[test]
    fn rows_stand_under_their_heads_and_fit_80_columns() {
        let mut test = Test {
            kind: Kind::Bandwidth,
            operation: Operation::Write,
            transport: Transport::Rdma,
            sizes: vec![65536],
            iterations: None,
            seconds: 1.0,
            lanes: 2,
            depth: 128,
            bidirectional: true,
        };
        let bandwidth = Row::Bandwidth(Bandwidth {
            bytes: 65536,
            messages: 1000,
            seconds: 1.0,
            bytes_per_second: 65_536_000.0,
            messages_per_second: 1000.0,
        });
        let line = row(&bandwidth);
        assert_eq!(heads(&test).len(), line.len());
        assert_eq!(
            title(&test),
            "# bandwidth of write over rdma, 2 side by side, both ways together"
        );
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["65536", "1000", "65.54", "0.5243", "0.001000"]
        );
        test.kind = Kind::Latency;
        let latency = Row::Latency(Latency {
            bytes: 8,
            iterations: 1000,
            min_us: 1.0,
            typical_us: 1.5,
            average_us: 1.6,
            p99_us: 3.0,
            max_us: 100.0,
        });
        assert_eq!(heads(&test).len(), row(&latency).len());
        assert!(row(&latency).len() <= 80);
    }
}

use super::*;

const HEADER: &str = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong";

fn read(lines: &[&str]) -> Tables {
    let mut tables = Tables::default();
    for (number, line) in (1_u64..).zip(lines) {
        let place = Place { file: 0, line: number };
        if line.contains('#') { tables.comment(line, place) } else { tables.row(line, place) }
    }
    tables.end_row();
    tables
}

#[test]
fn rows_of_all_formats_are_read() {
    let forms = [
        "  1048576  262144  float  sum  -1  100.0  10.00  17.50  0  90.0  11.00  19.25  0",
        "[1,0]<stdout>:  1048576  262144  float  sum  -1  100.0  10.00  17.50  N/A  90.0  11.00  19.25  N/A",
        "0:   1048576  262144  float  sum  100.0  10.00  17.50  2e-07  90.0  11.00  19.25  2e-07",
        "[1,0]<stdout>:1048576  262144  float  sum  -1  100.0  10.00  17.50  0  90.0  11.00  19.25  0",
    ];
    for form in forms {
        let tables = read(&["# all_reduce_perf", &HEADER.replace("#wrong", "error"), form]);
        let row = tables.curves[0].rows[&1_048_576];
        assert_eq!((row.best_us, row.worst_us), (90.0, 100.0), "{form}");
        assert_eq!((row.busbw, row.worst_busbw), (19.25, 17.50), "{form}");
        assert_eq!(tables.curves[0].setup.collective.as_deref(), Some("all_reduce"));
        assert_eq!(tables.wrong_count, 0, "{form}");
    }
    let tables = read(&["     64   16   float   0   11.16   0.01   0.01   N/A"]);
    assert_eq!(tables.curves[0].rows[&64].best_us, 11.16);
}

#[test]
fn a_row_cut_into_pieces_is_put_together() {
    let tables = read(&[
        HEADER,
        &cut_row("     8388608       2097152     float     sum      -1node0:11:11 [1] ").unwrap(),
        &cut_row("   300304   28.60   28.60      0node0:11:11 [0] ").unwrap(),
        "   300300   28.61   28.61      0",
    ]);
    let row = tables.curves[0].rows[&8_388_608];
    assert_eq!((row.worst_us, row.best_us, row.busbw), (300_304.0, 300_300.0, 28.61));
}

#[test]
fn ranks_and_names_follow_from_the_ratio() {
    let of = |row: &str| {
        let tables = read(&[HEADER, row]);
        (tables.curves[0].name(), tables.curves[0].ranks())
    };
    let all_reduce = "8589934592 2147483648 float sum -1 86026 99.85 187.22 0 86026 99.85 187.22 0";
    assert_eq!(of(all_reduce), ("all_reduce".to_owned(), 16));
    let scatter = "8589934592 2147483648 float sum -1 32473 264.52 231.46 0 32473 264.52 231.46 0";
    assert_eq!(of(scatter), ("reduce_scatter".to_owned(), 8));
}

#[test]
fn wrong_values_are_counted_only_where_the_column_counts_them() {
    let row = "1024 256 float sum -1 10 0.1 0.1 3 10 0.1 0.1 0";
    assert_eq!(read(&[HEADER, row]).wrong_count, 1);
    assert_eq!(read(&[&HEADER.replace("#wrong", "error"), row]).wrong_count, 0);
    assert_eq!(read(&["# Out of bounds values : 12 FAILED"]).wrong_count, 1);
    assert_eq!(read(&["# Out of bounds values : 0 OK"]).wrong_count, 0);
}

#[test]
fn sizes_and_curves_are_bounded() {
    let mut tables = Tables::default();
    for size in 0..(ROWS as u64 + 10) {
        let row = format!("{size} 1 float sum -1 10 0.1 0.1 0 10 0.1 0.1 0");
        tables.row(&row, Place { file: 0, line: size + 1 });
    }
    tables.end_row();
    assert_eq!((tables.curves[0].rows.len(), tables.left_out), (ROWS, 10));
}

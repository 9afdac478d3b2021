//! Answers as text: a line that says what is wrong, and a table of ranks.

use std::fmt::Write as _;

use ringway::control::{Condition, RankState, Seat, Standing};

use super::Case;

/// Ranks in a table, unless all are asked for.
const ROWS_MOST: usize = 40;

/// How to lay it out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) columns: usize,
    pub(super) colour: bool,
    pub(super) all: bool,
}

/// All answers. Of several, only those that are not well have a table.
pub(super) fn render(cases: &[Case], style: &Style) -> String {
    let mut text = String::new();
    for (index, case) in cases.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        let standing = &case.standing;
        let (word, colour) = match standing.condition {
            Condition::Healthy => ("healthy", "32"),
            Condition::Slow => ("slow", "33"),
            Condition::Stuck => ("stuck", "31"),
            Condition::Failed => ("failed", "31"),
        };
        let word =
            if style.colour { format!("\x1b[1;{colour}m{word}\x1b[0m") } else { word.to_owned() };
        let _ = writeln!(text, "{word}: {}", plain(&standing.text));
        let stragglers = standing.stragglers.to_string();
        if !stragglers.is_empty() {
            let _ = writeln!(text, "late: {stragglers}");
        }
        let pids: Vec<String> = case.pids.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            text,
            "communicator {}, {} ranks, here pid {}; rank {} answers",
            case.communicator,
            standing.seats.len(),
            pids.join(" "),
            standing.asked
        );
        if style.all || cases.len() == 1 || standing.condition != Condition::Healthy {
            table(&mut text, standing, style);
        }
    }
    text
}

const HEADS: [&str; 7] = ["rank", "host", "pid", "state", "seconds", "waits for", "operation"];

fn table(text: &mut String, standing: &Standing, style: &Style) {
    let culprit = |seat: &&Seat| standing.culprits.contains(&seat.identity.rank);
    let many = standing.seats.len() > ROWS_MOST && !style.all;
    // Those at fault first where not all can be shown.
    let mut shown: Vec<&Seat> = standing.seats.iter().collect();
    if many {
        shown.sort_by_key(|seat| !culprit(seat));
        shown.truncate(ROWS_MOST);
        shown.sort_by_key(|seat| seat.identity.rank);
    }
    let rows: Vec<[String; 7]> = shown.iter().map(|seat| row(seat)).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEADS[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    let mut line = |cells: &[String; 7], mark: &str| {
        let mut out = String::new();
        for (column, cell) in cells.iter().enumerate() {
            // Numbers to the right, words to the left.
            let width = widths[column];
            let _ = match column {
                0 | 2 | 4 => write!(out, " {cell:>width$} "),
                _ => write!(out, " {cell:<width$} "),
            };
        }
        let cut: String = out.trim_end().chars().take(style.columns).collect();
        let _ = match (style.colour, mark) {
            (true, mark) if !mark.is_empty() => writeln!(text, "\x1b[{mark}m{cut}\x1b[0m"),
            _ => writeln!(text, "{cut}"),
        };
    };
    line(&HEADS.map(str::to_owned), "1");
    for (seat, cells) in shown.iter().zip(&rows) {
        line(cells, if culprit(seat) { "31" } else { "" });
    }
    if many {
        let more = standing.seats.len() - shown.len();
        let _ = writeln!(text, " … {more} more ranks (--all shows them)");
    }
}

/// Text from another process, without what a terminal would take for a command.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// One rank.
fn row(seat: &Seat) -> [String; 7] {
    let none = || "-".to_owned();
    let (state, seconds, waits, operation) = match &seat.state {
        None if seat.left => ("left", none(), none(), none()),
        None => ("silent", none(), none(), none()),
        Some(state) => {
            let waits = state.waiting_on.map(|rank| (rank, state.waiting_ms));
            let (word, waits, operation) = match (state.current(), waits, state.kernel) {
                (Some(call), waits, _) => {
                    let word = if waits.is_some() { "waits" } else { "works" };
                    (word, waits, format!("{} {}", call.sequence, call.call()))
                }
                (None, Some(waits), _) => ("message", Some(waits), before(state)),
                (None, None, Some(kernel)) => {
                    let call =
                        kernel.call.map_or_else(String::new, |call| " ".to_owned() + &call.call());
                    let waits = (kernel.waiting_on, kernel.waiting_ms);
                    ("kernel", Some(waits), format!("launch {}{call}", kernel.launch))
                }
                (None, None, None) => ("outside", None, before(state)),
            };
            let seconds = waits.map(|(_, ms)| format!("{}.{}", ms / 1000, ms / 100 % 10));
            let waits = waits.map(|(rank, _)| format!("rank {rank}"));
            (word, seconds.unwrap_or_else(none), waits.unwrap_or_else(none), operation)
        }
    };
    let identity = &seat.identity;
    let (rank, pid) = (identity.rank.to_string(), identity.pid.to_string());
    [rank, plain(&identity.host), pid, state.to_owned(), seconds, waits, operation]
}

/// What a rank did last that is in no operation: on its GPU, if it has put anything there.
fn before(state: &RankState) -> String {
    match (state.launches, state.launched, state.completed) {
        (0, _, 0) => "none yet".to_owned(),
        (0, _, completed) => format!("after {}", completed - 1),
        (launches, Some(call), _) => format!("after launch {launches} {}", call.call()),
        (launches, None, _) => format!("after launch {launches}"),
    }
}

#[cfg(test)]
mod tests {
    use ringway::error::RankIdentity;

    use ringway::control::{KernelWait, Stragglers};

    use super::*;

    fn case(ranks: u32, culprits: &[u32]) -> Case {
        let seat = |rank| Seat {
            identity: RankIdentity { rank, host: "node-a".to_owned(), pid: 100 + rank },
            left: rank == 2,
            state: (rank % 4 == 0).then(Default::default),
        };
        Case {
            communicator: "0xff".to_owned(),
            pids: vec![100, 101],
            standing: Standing {
                asked: 0,
                condition: Condition::Stuck,
                text: "rank 1 does not answer".to_owned(),
                culprits: culprits.to_vec(),
                seats: (0..ranks).map(seat).collect(),
                silent: Vec::new(),
                stragglers: Stragglers::default(),
            },
        }
    }

    #[test]
    fn a_small_job_is_shown_whole() {
        let style = Style { columns: 100, colour: false, all: false };
        let expected = "\
stuck: rank 1 does not answer
communicator 0xff, 4 ranks, here pid 100 101; rank 0 answers
 rank  host    pid  state    seconds  waits for  operation
    0  node-a  100  outside        -  -          none yet
    1  node-a  101  silent         -  -          -
    2  node-a  102  left           -  -          -
    3  node-a  103  silent         -  -          -
";
        assert_eq!(render(&[case(4, &[1])], &style), expected);
        let mut hostile = case(4, &[1]);
        hostile.standing.text.push_str("\x1b[2J\n");
        hostile.standing.seats[0].identity.host.push('\x07');
        let shown = render(&[hostile], &style);
        assert!(!shown.contains(['\x1b', '\x07']) && shown.lines().count() == 7, "{shown:?}");
        let narrow = render(&[case(4, &[1])], &Style { columns: 40, ..style });
        assert!(narrow.lines().skip(2).all(|line| line.chars().count() <= 40), "{narrow}");
        let coloured = render(&[case(4, &[1])], &Style { colour: true, ..style });
        assert!(coloured.contains("\x1b[31m    1  node-a"), "{coloured:?}");
    }

    #[test]
    fn kernels_that_wait_are_shown_with_their_launches() {
        let style = Style { columns: 100, colour: false, all: false };
        let mut case = case(5, &[4]);
        let journal = ringway::control::Journal::new();
        let call = ringway::control::Signature {
            sequence: 12,
            collective: ringway::Collective::AllReduce,
            count: 7,
            data_type: Some(ringway::DataType::F32),
            op: Some(ringway::ReduceOp::Sum),
            root: None,
            level: ringway::Level::Run,
            extra: 0,
        };
        let kernel = KernelWait { launch: 12, call: Some(call), waiting_on: 4, waiting_ms: 12_345 };
        let before = RankState { launches: 11, launched: Some(call), ..journal.state(0) };
        let seats = &mut case.standing.seats;
        seats[0].state = Some(RankState { kernel: Some(kernel), launches: 12, ..before });
        seats[4].state = Some(before);
        let text = render(&[case], &style);
        for line in [
            "    0  node-a  100  kernel      12.3  rank 4     launch 12 all_reduce of 7 float sum",
            "    4  node-a  104  outside        -  -          after launch 11 all_reduce of 7 float sum",
        ] {
            assert!(text.lines().any(|one| one == line), "{text}");
        }
    }

    #[test]
    fn of_a_large_job_those_at_fault_are_shown() {
        let style = Style { columns: 100, colour: false, all: false };
        let text = render(&[case(1000, &[777])], &style);
        assert!(text.contains(" 777  node-a") && text.contains("960 more ranks"), "{text}");
        assert_eq!(text.lines().count(), 2 + 1 + ROWS_MOST + 1);
        let all = render(&[case(1000, &[777])], &Style { all: true, ..style });
        assert_eq!(all.lines().count(), 2 + 1 + 1000);
    }
}

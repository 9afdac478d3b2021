//! The listing: every rank, lane and step, in lines that fit a terminal.

use std::fmt::Write;

use super::{Summary, title};
use crate::plan::{Plan, RankPlan, Region, Remote, Span, Step};
use crate::types::{DataType, Form, Rank};

/// How to list.
#[derive(Clone, Copy, Debug)]
pub struct TextOptions {
    /// Columns.
    pub columns: usize,
    /// Steps shown of a lane: the first and the last of longer ones.
    pub steps: usize,
    /// Ranks shown.
    pub ranks: usize,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { columns: 80, steps: 40, ranks: 16 }
    }
}

const LEGEND: &str = "\
in out scratch  buffers of the rank; @2 scratch of rank 2, mapped; card@2 its cards
[64+128]        128 bytes from byte 64; ~ partial results, wider than elements
!3              raises counter 3 at that rank; ?3x2 stands until raised twice
*1              the untouched input of rank 1
";

/// Lists a plan.
#[must_use]
pub fn text(plan: &Plan, options: TextOptions) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_plan(plan, options, &mut out);
    out
}

fn write_plan(plan: &Plan, options: TextOptions, out: &mut String) -> std::fmt::Result {
    let columns = options.columns.max(40);
    write_wrapped(&title(plan), 2, columns, out)?;
    for line in Summary::of(plan).lines() {
        write_wrapped(&format!("  {line}"), 4, columns, out)?;
    }
    writeln!(out)?;
    for line in LEGEND.lines() {
        write_wrapped(line, 16, columns, out)?;
    }
    let data_type = plan.problems.first().map_or(DataType::U8, |problem| problem.data_type);
    for (rank, part) in plan.ranks.iter().enumerate().take(options.ranks) {
        let host = plan.hosts.get(rank).copied().unwrap_or(0);
        for (index, lane) in part.lanes.iter().enumerate() {
            writeln!(out, "\nrank {rank} (host {host}) lane {index}")?;
            if lane.is_empty() {
                writeln!(out, "  nothing to do")?;
            }
            let half = options.steps.div_ceil(2).max(1);
            for (number, step) in lane.iter().enumerate() {
                if lane.len() > 2 * half && number == half {
                    writeln!(out, "     … {} steps …", lane.len() - 2 * half)?;
                }
                if number < half || number + half >= lane.len() {
                    let line = format!("{number:>4}  {}", describe(step, part, data_type));
                    write_wrapped(&line, 14, columns, out)?;
                }
            }
        }
    }
    if plan.ranks.len() > options.ranks {
        writeln!(out, "\n… {} more ranks …", plan.ranks.len() - options.ranks)?;
    }
    Ok(())
}

/// A step in words and signs.
pub(super) fn describe(step: &Step, part: &RankPlan, data_type: DataType) -> String {
    match step {
        Step::Copy { source, target } => {
            format!("copy    {} = {}", span(target, data_type), span(source, data_type))
        }
        Step::Reduce { first, operands, target, finish } => {
            let list: Vec<String> = part
                .operands(*first, *operands)
                .iter()
                .map(|operand| match operand.fresh {
                    Some(rank) => format!("{}*{rank}", span(&operand.span, data_type)),
                    None => span(&operand.span, data_type),
                })
                .collect();
            let name = if *finish { "finish" } else { "reduce" };
            format!("{name}  {} = {}", span(target, data_type), list.join(" + "))
        }
        Step::Put { peer, source, target, signal } => {
            let raised = signal.map_or_else(String::new, |flag| format!(" !{flag}"));
            format!("put     rank {peer} {} = {}{raised}", remote(target), span(source, data_type))
        }
        Step::Get { peer, source, target } => {
            format!("get     {} = rank {peer} {}", span(target, data_type), remote(source))
        }
        Step::Signal { peer, flag } => format!("signal  rank {peer} !{flag}"),
        Step::Wait { peer, flag, count } => format!("wait    rank {peer} ?{flag}x{count}"),
        Step::Show { source, card } => format!("show    card {card} = {}", span(source, data_type)),
        Step::See { peer, card } => format!("see     card {card} of rank {peer}"),
    }
}

fn region(region: Region) -> String {
    let numbered = |name: &str, index: u16| match index {
        0 => name.to_owned(),
        _ => format!("{name}{index}"),
    };
    match region {
        Region::Input(index) => numbered("in", index),
        Region::Output(index) => numbered("out", index),
        Region::Scratch => "scratch".to_owned(),
        Region::Window(peer) => window(peer),
        Region::Card(peer) => format!("card{}", window(peer)),
        Region::PeerInput(peer) => format!("in{}", window(peer)),
        Region::PeerOutput(peer) => format!("out{}", window(peer)),
    }
}

fn window(peer: Rank) -> String {
    format!("@{peer}")
}

fn span(span: &Span, data_type: DataType) -> String {
    let bytes = crate::cost::bytes(span, data_type);
    let wide = match span.form {
        Form::Accumulator if data_type.accumulator() != data_type => "~",
        _ => "",
    };
    format!("{}[{}+{bytes}]{wide}", region(span.region), span.offset)
}

fn remote(place: &Remote) -> String {
    format!("{}[{}]", region(place.region), place.offset)
}

/// Breaks at spaces; later lines are indented.
fn write_wrapped(line: &str, indent: usize, columns: usize, out: &mut String) -> std::fmt::Result {
    let mut rest = line;
    let mut lead = 0;
    loop {
        let room = columns.saturating_sub(lead);
        let fits = rest.chars().count() <= room;
        let end = rest.char_indices().nth(room).map_or(rest.len(), |(at, _)| at);
        // A break inside the leading blanks would not help.
        let words = rest.len() - rest.trim_start().len();
        let cut = rest[..end].rfind(' ').filter(|at| *at > words);
        match cut {
            Some(at) if !fits => {
                writeln!(out, "{:lead$}{}", "", rest[..at].trim_end())?;
                rest = rest[at..].trim_start();
                lead = indent;
            }
            _ => return writeln!(out, "{:lead$}{rest}", ""),
        }
    }
}

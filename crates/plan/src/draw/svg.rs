//! The space-time diagram: a row for each lane of each rank, time from left to right by dependency.
//!
//! ```text
//!  rank 0 │ ■──╮      ■
//!  rank 1 │    ╰→■──╮
//!  rank 2 │         ╰→■
//! ```
//!
//! Pure SVG with a style sheet that follows the reader's light or dark scheme; no script. Every box
//! and arrow has a tooltip.

use std::fmt::Write;

use super::text::describe;
use super::timeline::{Arrow, Mark, Timeline, timeline};
use super::{Summary, title};
use crate::plan::{Place, Plan, Step};
use crate::types::{DataType, Rank};

/// How much to draw.
#[derive(Clone, Copy, Debug)]
pub struct SvgOptions {
    /// Ranks drawn, at most.
    pub ranks: usize,
    /// Columns drawn, at most.
    pub columns: usize,
}

impl Default for SvgOptions {
    fn default() -> Self {
        Self { ranks: 64, columns: 160 }
    }
}

/// Plain rules first, as not every viewer knows variables or media.
const STYLE: &str = "
text{font:12px ui-sans-serif,system-ui,'DejaVu Sans',sans-serif;fill:#1b1f24}
.title{font-size:15px;font-weight:600}.rank{font-weight:600}
.paper{fill:#fff}.band{fill:#f3f5f8}.faint{fill:#6a737d}
.lane{stroke:#d0d7de;stroke-width:1}
.mark{fill:#fff;font-size:10px;font-weight:700;text-anchor:middle}
.copy{fill:#8250df}.reduce{fill:#bc5a00}.put{fill:#0969da}.stuck{fill:#d1242f}
.a{fill:none;stroke-width:1.4;opacity:.85}.a:hover{stroke-width:3;opacity:1}
.data{stroke:#0969da}.told{stroke:#8c959f;stroke-dasharray:4 3}
.datatip{fill:#0969da}.toldtip{fill:#8c959f}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.paper{fill:#0d1117}.band{fill:#161b22}.faint{fill:#9198a1}
.lane{stroke:#30363d}.mark{fill:#0d1117}
.copy{fill:#ab7df8}.reduce{fill:#f0883e}.put{fill:#58a6ff}.stuck{fill:#ff7b72}
.data{stroke:#58a6ff}.told{stroke:#7d8590}.datatip{fill:#58a6ff}.toldtip{fill:#7d8590}}
";

const LEFT: usize = 92;
const TOP: usize = 104;
const COLUMN: usize = 26;
const MARK: usize = 18;

/// Draws a plan.
#[must_use]
pub fn svg(plan: &Plan, options: SvgOptions) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = Drawing::new(plan, options).write(&mut out);
    out
}

struct Drawing<'p> {
    plan: &'p Plan,
    data_type: DataType,
    timeline: Timeline,
    /// First row of each drawn rank, and one past the last.
    rows: Vec<usize>,
    columns: usize,
    row: usize,
}

impl<'p> Drawing<'p> {
    fn new(plan: &'p Plan, options: SvgOptions) -> Self {
        let timeline = timeline(plan);
        let mut rows = vec![0];
        for part in plan.ranks.iter().take(options.ranks.max(1)) {
            rows.push(rows.last().copied().unwrap_or(0) + part.lanes.len().max(1));
        }
        let row = if rows.len() > 33 { 24 } else { 32 };
        let columns = timeline.columns.min(options.columns.max(1));
        let data_type = plan.problems.first().map_or(DataType::U8, |problem| problem.data_type);
        Self { plan, data_type, timeline, rows, columns, row }
    }

    fn numbers(&self) -> String {
        Summary::of(self.plan).lines().join("; ")
    }

    fn ranks(&self) -> usize {
        self.rows.len() - 1
    }

    fn x(&self, column: usize) -> usize {
        LEFT + 16 + column * COLUMN
    }

    /// The middle of a lane's row.
    fn y(&self, rank: Rank, lane: usize) -> usize {
        TOP + (self.rows[rank as usize] + lane) * self.row + self.row / 2
    }

    fn drawn(&self, place: Place, column: usize) -> bool {
        (place.rank as usize) < self.ranks() && column < self.columns.max(1)
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let bottom = TOP + self.rows.last().copied().unwrap_or(0) * self.row;
        // As wide as the lanes, the legend, and about what the lines of text need.
        let texts = [self.numbers().len() * 7, title(self.plan).len() * 9];
        let width = (self.x(self.columns) + 40).max(720).max(texts[0]).max(texts[1]);
        let height = bottom + 46;
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">"#
        )?;
        writeln!(out, "<title>{}</title>", escape(&title(self.plan)))?;
        writeln!(out, "<style>{}</style>", STYLE.replace('\n', " "))?;
        writeln!(out, r#"<rect class="paper" width="{width}" height="{height}"/>"#)?;
        self.write_head(out)?;
        self.write_rows(width, out)?;
        for arrow in &self.timeline.arrows {
            self.write_arrow(arrow, out)?;
        }
        for mark in &self.timeline.marks {
            self.write_mark(mark, out)?;
        }
        for place in &self.timeline.stuck {
            self.write_stuck(*place, out)?;
        }
        self.write_foot(bottom, out)?;
        writeln!(out, "</svg>")
    }

    fn write_head(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, r#"<text class="title" x="16" y="26">{}</text>"#, escape(&title(self.plan)))?;
        let numbers = escape(&self.numbers());
        writeln!(out, r#"<text class="faint" x="16" y="46">{numbers}</text>"#)?;
        let legend =
            [("copy", "C", "copy"), ("reduce", "R", "reduce"), ("put", "P", "put to a peer")];
        let mut x = 16;
        for (class, letter, name) in legend {
            write_box(out, class, letter, x, 70)?;
            writeln!(out, r#"<text x="{}" y="74">{name}</text>"#, x + MARK + 6)?;
            x += MARK + 30 + name.len() * 7;
        }
        for (class, name) in [("data", "values travel"), ("told", "signal only")] {
            let end = x + 34;
            writeln!(out, r#"<path class="a {class}" d="M{x} 70H{end}"/>"#)?;
            writeln!(out, r#"<path class="{class}tip" d="M{end} 66l7 4l-7 4z"/>"#)?;
            writeln!(out, r#"<text x="{}" y="74">{name}</text>"#, end + 14)?;
            x = end + 34 + name.len() * 7;
        }
        writeln!(out, r#"<text class="faint" x="{x}" y="74">time →</text>"#)
    }

    fn write_rows(&self, width: usize, out: &mut String) -> std::fmt::Result {
        for (rank, part) in self.plan.ranks.iter().enumerate().take(self.ranks()) {
            let top = TOP + self.rows[rank] * self.row;
            let height = (self.rows[rank + 1] - self.rows[rank]) * self.row;
            if rank % 2 == 0 {
                writeln!(
                    out,
                    r#"<rect class="band" x="0" y="{top}" width="{width}" height="{height}"/>"#
                )?;
            }
            let y = top + self.row / 2 + 4;
            writeln!(out, r#"<text class="rank" x="16" y="{y}">rank {rank}</text>"#)?;
            if self.plan.hosts.iter().any(|host| *host != self.plan.hosts[0]) {
                let host = self.plan.hosts[rank];
                let inline = height < 2 * self.row;
                let (x, y) = if inline { (68, y) } else { (16, y + 16) };
                writeln!(out, r#"<text class="faint" x="{x}" y="{y}">h{host}</text>"#)?;
            }
            for lane in 0..part.lanes.len() {
                let y = top + lane * self.row + self.row / 2;
                let end = width - 16;
                writeln!(out, r#"<path class="lane" d="M{LEFT} {y}H{end}"/>"#)?;
            }
        }
        Ok(())
    }

    fn write_mark(&self, mark: &Mark, out: &mut String) -> std::fmt::Result {
        if !self.drawn(mark.place, mark.column) {
            return Ok(());
        }
        let part = &self.plan.ranks[mark.place.rank as usize];
        let step = &part.lanes[mark.place.lane][mark.place.step];
        let (class, letter) = match step {
            Step::Copy { .. } => ("copy", "C"),
            Step::Reduce { .. } => ("reduce", "R"),
            Step::Show { .. } => ("put", "S"),
            _ => ("put", "P"),
        };
        let text = format!("{}: {}", mark.place, describe(step, part, self.data_type));
        write!(out, "<g><title>{}</title>", escape(&text))?;
        let y = self.y(mark.place.rank, mark.place.lane);
        write_box(out, class, letter, self.x(mark.column), y)?;
        writeln!(out, "</g>")
    }

    fn write_arrow(&self, arrow: &Arrow, out: &mut String) -> std::fmt::Result {
        if !self.drawn(arrow.from, arrow.from_column.saturating_sub(1))
            || !self.drawn(arrow.to, arrow.to_column.saturating_sub(1))
        {
            return Ok(());
        }
        // From the right edge of the box before to a little before the box after.
        let (x1, x2) = (
            (self.x(arrow.from_column) + MARK).saturating_sub(COLUMN),
            self.x(arrow.to_column).saturating_sub(7),
        );
        let (y1, y2) =
            (self.y(arrow.from.rank, arrow.from.lane), self.y(arrow.to.rank, arrow.to.lane));
        let class = if arrow.carries { "data" } else { "told" };
        // Bend just before the end where an arrow is long, so that rows stay readable.
        let bend = (x2.saturating_sub(x1) / 2).clamp(8, 40);
        let (c1, c2) = (x1 + bend, x2.saturating_sub(bend));
        writeln!(
            out,
            r#"<g><title>{} → {}{}</title><path class="a {class}" d="M{x1} {y1}C{c1} {y1} {c2} {y2} {x2} {y2}"/><path class="{class}tip" d="M{x2} {}l6 4l-6 4z"/></g>"#,
            arrow.from,
            arrow.to,
            if arrow.carries { ", with values" } else { "" },
            y2 - 4,
        )
    }

    fn write_stuck(&self, place: Place, out: &mut String) -> std::fmt::Result {
        if place.rank as usize >= self.ranks() {
            return Ok(());
        }
        let y = self.y(place.rank, place.lane);
        let x = self.x(self.columns) + 8;
        writeln!(
            out,
            r#"<g><title>{place} waits for ever</title><circle class="stuck" cx="{x}" cy="{y}" r="7"/></g>"#
        )
    }

    fn write_foot(&self, bottom: usize, out: &mut String) -> std::fmt::Result {
        let mut notes = Vec::new();
        if self.plan.ranks.len() > self.ranks() {
            notes.push(format!("{} more ranks", self.plan.ranks.len() - self.ranks()));
        }
        if self.timeline.columns > self.columns {
            notes.push(format!("{} more columns", self.timeline.columns - self.columns));
        }
        let stuck = self.timeline.stuck.len();
        if stuck > 0 {
            notes.push(format!("{stuck} lanes wait for ever (red)"));
        }
        let text = if notes.is_empty() {
            "hover over boxes and arrows for their steps".to_owned()
        } else {
            format!("not drawn: {}", notes.join(", "))
        };
        let y = bottom + 26;
        writeln!(out, r#"<text class="faint" x="16" y="{y}">{}</text>"#, escape(&text))
    }
}

fn write_box(out: &mut String, class: &str, letter: &str, x: usize, y: usize) -> std::fmt::Result {
    let top = y - MARK / 2;
    let middle = x + MARK / 2;
    let base = y + 4;
    write!(
        out,
        r#"<rect class="{class}" x="{x}" y="{top}" width="{MARK}" height="{MARK}" rx="4"/><text class="mark" x="{middle}" y="{base}">{letter}</text>"#
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

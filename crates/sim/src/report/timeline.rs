//! What happened when: one page for a browser, with nothing from a network and no script.
//!
//! A row for each row of spans; those that overlap in it are stacked. Spans of one name that run side by side (the same collective
//! of many groups) are one box that says how many.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringway_fabric::export::picture::{escaped, shortened};

use super::heat::duration;
use super::summary::Summary;
use crate::network::Network;
use crate::outcome::{Incident, Outcome, Span};

/// Rows that are drawn.
const ROWS_MOST: usize = 400;
/// Boxes that are drawn.
const BOXES_MOST: usize = 20_000;

const LEFT: f64 = 190.0;
const WIDTH: f64 = 1400.0;
const TOP: f64 = 34.0;
const LANE: f64 = 20.0;
/// Letters of text on a box are about so wide.
const LETTER: f64 = 6.6;

const STYLE: &str = ":root{color-scheme:light dark}\
body{margin:1.5rem;background:#fff;color:#1b1f24;font:15px/1.5 system-ui,'DejaVu Sans',sans-serif}\
h1{font-size:1.3rem;margin:0}h2{font-size:1.05rem;margin:1.5rem 0 .4rem}p{margin:.2rem 0}.soft{color:#57606a}\
figure{margin:1rem 0;overflow-x:auto}table{border-collapse:collapse}td,th{padding:.1rem 1.2rem .1rem 0;text-align:left}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
svg text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1b1f24}svg .soft{fill:#57606a}\
.band{fill:#f3f5f8}.grid{stroke:#d0d7de}.on{fill:#fff!important;pointer-events:none}\
.c0{fill:#57606a}.c1{fill:#0b62ba}.c2{fill:#a04800}.c3{fill:#6f42c1}.c4{fill:#0f6b57}.c5{fill:#9b2257}\
rect.box{stroke:#fff;stroke-width:.6}.box:hover{opacity:.75}.incident{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:4 3}\
.bell{fill:#cf222e}.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;list-style:none;margin:.3rem 0;padding:0}\
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}.soft{color:#9198a1}svg text{fill:#e6edf3}\
svg .soft{fill:#9198a1}.band{fill:#151b23}.grid{stroke:#30363d}rect.box{stroke:#0d1117}\
.incident{stroke:#ff7b72}.bell{fill:#ff7b72}}";

/// One box: spans of one name that overlap.
struct Shown<'a> {
    name: &'a str,
    start_us: f64,
    end_us: f64,
    count: usize,
    lane: usize,
}

struct Row<'a> {
    name: &'a str,
    boxes: Vec<Shown<'a>>,
    lanes: usize,
}

/// The page.
#[must_use]
pub fn html(network: &Network, outcome: &Outcome, title: &str) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{0}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n\
         <p class=\"soft\">{1} in all; {2} GPUs on {3} hosts; {4} flows</p>\n",
        escaped(title),
        duration(outcome.end_us),
        network.hosts.len(),
        network.fabric.hosts.len(),
        outcome.flows,
    );
    page.push_str(&figure(&outcome.spans, &outcome.incidents, outcome.end_us));
    if !outcome.incidents.is_empty() {
        page.push_str("<h2>Incidents</h2>\n<table>\n");
        for incident in &outcome.incidents {
            let _ = writeln!(
                page,
                "<tr><td class=\"n\">{}</td><td>{}</td></tr>",
                duration(incident.us),
                escaped(&incident.what)
            );
        }
        page.push_str("</table>\n");
    }
    hottest(&mut page, network, outcome);
    page.push_str("</body>\n</html>\n");
    page
}

fn hottest(page: &mut String, network: &Network, outcome: &Outcome) {
    let summary = Summary::of(network, outcome);
    page.push_str(
        "<h2>Hottest links</h2>\n<table>\n<tr><th>link</th><th class=\"n\">use</th><th class=\"n\">full</th></tr>\n",
    );
    for hot in &summary.hottest {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{:.1} %</td><td class=\"n\">{:.1} %</td></tr>",
            escaped(&hot.name),
            hot.part * 100.0,
            hot.full * 100.0
        );
    }
    page.push_str("</table>\n");
}

/// Spans by row, in the order in which rows began.
fn rows(spans: &[Span]) -> Vec<Row<'_>> {
    let mut order: Vec<&str> = Vec::new();
    let mut of_row: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    // Joins take no time.
    for span in spans.iter().filter(|span| span.end_us > span.start_us) {
        let list = of_row.entry(&span.row).or_default();
        if list.is_empty() {
            order.push(&span.row);
        }
        list.push(span);
    }
    order
        .into_iter()
        .map(|name| {
            let mut boxes = merged(of_row.get(name).map_or(&[], Vec::as_slice));
            let lanes = stacked(&mut boxes);
            Row { name, boxes, lanes }
        })
        .collect()
}

/// Spans of one name that overlap, as one.
fn merged<'a>(spans: &[&'a Span]) -> Vec<Shown<'a>> {
    let mut boxes: Vec<Shown<'a>> = Vec::new();
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for span in spans {
        let open = last.get(span.name.as_str()).and_then(|at| boxes.get_mut(*at));
        match open.filter(|open| span.start_us < open.end_us || span.start_us <= open.start_us) {
            Some(open) => {
                open.end_us = open.end_us.max(span.end_us);
                open.count += 1;
            }
            None => {
                last.insert(&span.name, boxes.len());
                boxes.push(Shown {
                    name: &span.name,
                    start_us: span.start_us,
                    end_us: span.end_us,
                    count: 1,
                    lane: 0,
                });
            }
        }
    }
    boxes
}

/// Gives each box the first lane that is free; says how many there are.
fn stacked(boxes: &mut [Shown<'_>]) -> usize {
    boxes.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(b.end_us.total_cmp(&a.end_us)));
    let mut ends: Vec<f64> = Vec::new();
    for one in boxes {
        let free = ends.iter().position(|end| *end <= one.start_us + 1e-6);
        let lane = free.unwrap_or(ends.len());
        if lane == ends.len() {
            ends.push(0.0);
        }
        ends[lane] = one.end_us;
        one.lane = lane;
    }
    ends.len().max(1)
}

/// The picture alone, for a page that has rules for its classes: `band`, `grid`, `soft`, `box`, `c0` to `c5`, `on` (text on
/// a box), `incident`, `bell` and `legend`. Below it stands what is not drawn.
#[must_use]
pub fn figure(spans: &[Span], incidents: &[Incident], end_us: f64) -> String {
    let rows = rows(spans);
    let mut page = String::new();
    let end_us = if end_us > 0.0 { end_us } else { 1.0 };
    let x = |us: f64| LEFT + us / end_us * (WIDTH - LEFT - 20.0);
    let drawn = &rows[..rows.len().min(ROWS_MOST)];
    let lanes: usize = drawn.iter().map(|row| row.lanes).sum();
    let height = TOP + lanes as f64 * LANE + drawn.len() as f64 * 6.0 + 20.0;
    let _ = writeln!(
        page,
        "<figure class=\"timeline\">\n<svg viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">"
    );
    let mut names: Vec<&str> = Vec::new();
    let mut left_out = 0;
    let mut count = 0;
    let mut y = TOP;
    let mut body = String::new();
    for (place, row) in drawn.iter().enumerate() {
        let high = row.lanes as f64 * LANE;
        if place % 2 == 0 {
            let _ = writeln!(
                page,
                "<rect class=\"band\" x=\"0\" y=\"{:.0}\" width=\"{WIDTH}\" height=\"{:.0}\"/>",
                y - 2.0,
                high + 4.0
            );
        }
        let _ = writeln!(
            body,
            "<text x=\"8\" y=\"{:.0}\">{}</text>",
            y + 14.0,
            escaped(&shortened(row.name, 27))
        );
        for one in &row.boxes {
            count += 1;
            if count > BOXES_MOST {
                left_out += 1;
                continue;
            }
            // One kind, one colour: the first word tells kinds apart.
            let kind = one.name.split_whitespace().next().unwrap_or("");
            let colour = names.iter().position(|name| *name == kind).unwrap_or_else(|| {
                names.push(kind);
                names.len() - 1
            });
            draw(&mut body, one, (x(one.start_us), x(one.end_us)), y, colour % 6);
        }
        y += high + 6.0;
    }
    axis(&mut page, end_us, height, x);
    page.push_str(&body);
    for incident in incidents.iter().filter(|incident| incident.us <= end_us) {
        let at = x(incident.us);
        let _ = writeln!(
            page,
            "<g><title>{}: {}</title><path class=\"incident\" d=\"M{at:.1} {:.0}V{:.0}\"/><path class=\"bell\" d=\"M{at:.1} {:.0}l-5 -9h10z\"/></g>",
            duration(incident.us),
            escaped(&incident.what),
            TOP - 4.0,
            height - 16.0,
            TOP - 2.0,
        );
    }
    page.push_str("</svg>\n");
    legend(&mut page, &names);
    page.push_str("</figure>\n");
    let more = rows.len() - drawn.len();
    if more > 0 || left_out > 0 {
        let _ = writeln!(page, "<p class=\"soft\">Not drawn: {more} rows, {left_out} boxes.</p>");
    }
    page
}

/// Which colour is which kind; past the sixth they begin anew.
fn legend(page: &mut String, names: &[&str]) {
    page.push_str("<ul class=\"legend\">");
    for (colour, name) in names.iter().enumerate().take(24) {
        let colour = colour % 6;
        let _ = write!(
            page,
            "<li><svg viewBox=\"0 0 12 12\" width=\"12\" height=\"12\" aria-hidden=\"true\"><rect class=\"c{colour}\" width=\"12\" height=\"12\" rx=\"2\"/></svg> {}</li>",
            escaped(&shortened(name, 40))
        );
    }
    page.push_str("</ul>\n");
}

fn draw(body: &mut String, one: &Shown<'_>, (from, to): (f64, f64), y: f64, colour: usize) {
    let wide = (to - from).max(1.0);
    let top = y + one.lane as f64 * LANE;
    let side = if one.count > 1 { format!(" ({} side by side)", one.count) } else { String::new() };
    let _ = write!(
        body,
        "<g><title>{}{side}: {} to {}, {}</title><rect class=\"box c{colour}\" x=\"{from:.2}\" y=\"{:.0}\" width=\"{wide:.2}\" height=\"{:.0}\" rx=\"2\"/>",
        escaped(one.name),
        duration(one.start_us),
        duration(one.end_us),
        duration(one.end_us - one.start_us),
        top + 1.0,
        LANE - 2.0,
    );
    // Text only where it fits whole.
    if one.name.chars().count() as f64 * LETTER + 8.0 <= wide {
        let _ = write!(
            body,
            "<text class=\"on\" x=\"{:.1}\" y=\"{:.0}\">{}</text>",
            from + 4.0,
            top + 14.0,
            escaped(one.name)
        );
    }
    body.push_str("</g>\n");
}

/// Lines at round times.
fn axis(page: &mut String, end_us: f64, height: f64, x: impl Fn(f64) -> f64) {
    let rough = end_us / 8.0;
    let scale = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * scale).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let ticks = (0..20).map(|tick| f64::from(tick) * step).take_while(|us| *us <= end_us);
    for us in ticks {
        let at = x(us);
        let _ = writeln!(
            page,
            "<path class=\"grid\" d=\"M{at:.1} {:.0}V{:.0}\"/><text class=\"soft\" x=\"{:.1}\" y=\"16\">{}</text>",
            TOP - 12.0,
            height - 16.0,
            at - 4.0,
            escaped(&tick(us)),
        );
    }
}

/// Without zeros at the end.
fn tick(us: f64) -> String {
    let (value, unit) = match us {
        us if us >= 1e6 => (us / 1e6, "s"),
        us if us >= 1e3 => (us / 1e3, "ms"),
        us => (us, "us"),
    };
    let text = format!("{value:.3}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

//! The fabric as a picture.
//!
//! Up to a hundred switches each has a box with its name, and a line to each switch above it. Beyond that no eye
//! follows lines: switches are cells in the box of their pod or unit, and those that differ are named.
//!
//! Pure SVG with a style sheet that follows the reader's light or dark scheme; no script.
//!
//! *Invariant:* text from dumps is escaped; the picture's size is proportional to the fabric's.

mod boxes;
mod cells;

use std::collections::BTreeMap;

use crate::check::usual;
use crate::model::{Fabric, NodeIndex};
use crate::shape::{Shape, Units};

/// Up to here every switch has a box.
const BOXES_MOST: usize = 100;

const STYLE: &str = "
text{font:12px ui-sans-serif,system-ui,'DejaVu Sans',sans-serif;fill:#1b1f24}
.title{font-size:18px;font-weight:600}.faint{fill:#57606a;font-size:12px}.small{font-size:10px;fill:#57606a}
.mid{text-anchor:middle}.end{text-anchor:end}.name{font-size:11px}.strong{font-weight:600}
.paper{fill:#fff}.group{fill:#f6f8fa;stroke:#d0d7de}
.good{fill:#dafbe1;stroke:#4ac26b}.some{fill:#fff8c5;stroke:#d4a72c}.bad{fill:#ffebe9;stroke:#cf222e}
.top{fill:#ddf4ff;stroke:#54aeff}
.link{stroke:#8c959f;fill:none;opacity:.5}.lost{stroke:#cf222e;fill:none;stroke-width:2}
.warn{fill:#cf222e;font-weight:600}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.faint,.small{fill:#9198a1}.paper{fill:#0d1117}.group{fill:#151b23;stroke:#3d444d}
.good{fill:#12361f;stroke:#2ea043}.some{fill:#3b2f0b;stroke:#bb8009}.bad{fill:#4b1113;stroke:#ff7b72}
.top{fill:#0c2d4b;stroke:#316dca}.link{stroke:#656c76}.lost{stroke:#ff7b72}.warn{fill:#ff7b72}}
";

/// How a switch stands beside its equals.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Standing {
    up: usize,
    usual: usize,
    down: usize,
}

impl Standing {
    fn class(&self, on_top: bool) -> &'static str {
        match (self.up, self.usual) {
            _ if on_top => "top",
            (up, usual) if up >= usual => "good",
            (up, usual) if up * 10 >= usual * 9 => "some",
            _ => "bad",
        }
    }
}

struct View<'a> {
    fabric: &'a Fabric,
    units: Units,
    standing: BTreeMap<NodeIndex, Standing>,
    heading: Vec<String>,
}

/// Draws a fabric.
#[must_use]
pub fn svg(fabric: &Fabric, title: &str) -> String {
    let shape = Shape::of(fabric);
    let mut standing = BTreeMap::new();
    for tier in 1..=fabric.tiers {
        let of_tier = || shape.switch_list.iter().filter(|one| one.tier == tier);
        let expected = usual(of_tier().map(|one| one.up_links)).map_or(0, |(expected, _)| expected);
        for one in of_tier() {
            let down = one.host_links + one.down_links;
            standing.insert(one.node, Standing { up: one.up_links, usual: expected, down });
        }
    }
    let heading = vec![title.to_owned(), summary(&shape)];
    let view = View { fabric, units: Units::of(fabric), standing, heading };
    if shape.switches <= BOXES_MOST { boxes::draw(&view) } else { cells::draw(&view) }
}

fn summary(shape: &Shape) -> String {
    let mut parts = vec![
        format!("{} switches in {} tiers", shape.switches, shape.tiers.len()),
        format!("{} hosts", shape.hosts_named),
        format!("{} links", shape.links),
        format!(
            "bisection {} ({:.0} %)",
            crate::rate::bandwidth(shape.bisection.gbps),
            shape.bisection.part() * 100.0
        ),
    ];
    if shape.rails > 1 {
        parts.push(format!("{} rails", shape.rails));
    }
    parts.join(" · ")
}

/// A page of that size: its style sheet, a heading of up to two lines, and what is drawn. The body begins below 84.
#[must_use]
pub fn page(width: f64, height: f64, heading: &[String], body: &str) -> String {
    let title = heading.first().map_or("", String::as_str);
    let below = heading.get(1).map_or("", String::as_str);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\">\n<title>{0}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"24\" y=\"34\">{0}</text>\n<text class=\"faint\" x=\"24\" y=\"54\">{1}</text>\n{body}</svg>\n",
        escaped(title),
        escaped(below),
    )
}

/// Text between tags and in attributes.
#[must_use]
pub fn escaped(text: &str) -> String {
    // XML has no control characters, not even written as references.
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// At most so many characters, the middle left out.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= most {
        return text.to_owned();
    }
    let front = (most - 1) / 2;
    let back = most - 1 - front;
    let head: String = all[..front].iter().collect();
    let tail: String = all[all.len() - back..].iter().collect();
    format!("{head}…{tail}")
}

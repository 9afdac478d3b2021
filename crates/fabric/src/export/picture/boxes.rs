//! A box for each switch, tiers as rows, the top one on top; below, the hosts of each unit.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{View, escaped, page, shortened};
use crate::check::usual;
use crate::describe;
use crate::model::{Kind, NodeIndex};

const PAD: f64 = 24.0;
const HEAD: f64 = 84.0;
/// A box stands upright: names are long, and there are many side by side.
const WIDE: f64 = 30.0;
const HIGH: f64 = 172.0;
const GAP: f64 = 8.0;
const GROUP_GAP: f64 = 22.0;
const BETWEEN: f64 = 150.0;
const NAME_CHARS: usize = 24;

struct Spot {
    x: f64,
    top: f64,
}

pub(super) fn draw(view: &View<'_>) -> String {
    let fabric = view.fabric;
    let tiers = fabric.tiers.max(1);
    let leaves: f64 = view
        .units
        .units
        .iter()
        .map(|unit| unit.leaves.len() as f64 * (WIDE + GAP) + GROUP_GAP)
        .sum();
    let widest = (1..=tiers)
        .map(|tier| fabric.tier(tier).count() as f64 * (WIDE + GAP))
        .fold(leaves, f64::max);
    let width = (widest + 2.0 * PAD).max(760.0);
    let row = |tier: u8| HEAD + f64::from(tiers - tier) * (HIGH + BETWEEN);
    let mut spots: BTreeMap<NodeIndex, Spot> = BTreeMap::new();
    let mut under = String::new();
    // Leaves by unit, in the middle of the page.
    let mut x = (width - leaves) / 2.0 + GROUP_GAP / 2.0;
    for (number, unit) in view.units.units.iter().enumerate() {
        let wide = unit.leaves.len() as f64 * (WIDE + GAP) - GAP;
        let _ = writeln!(
            under,
            "<rect class=\"group\" x=\"{:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"6\"/>",
            x - 6.0,
            row(1) - 8.0,
            wide + 12.0,
            HIGH + 62.0,
        );
        let middle = x + wide / 2.0;
        let hosts = unit.hosts.len();
        let names =
            describe::folded(unit.hosts.iter().map(|host| fabric.hosts[*host].name.as_str()));
        // Six of a letter's width in each box and its gap.
        let shown = shortened(&names, (unit.leaves.len() * 6).max(8));
        let _ = writeln!(
            under,
            "<text class=\"small mid strong\" x=\"{middle:.0}\" y=\"{:.0}\">{}</text>\
             <text class=\"small mid\" x=\"{middle:.0}\" y=\"{:.0}\"><title>{}</title>{}</text>",
            row(1) + HIGH + 20.0,
            if unit.leaves.len() > 1 {
                format!("unit {}: {hosts} hosts", number + 1)
            } else {
                format!("{hosts}")
            },
            row(1) + HIGH + 36.0,
            escaped(&names),
            if unit.leaves.len() > 1 { escaped(&shown) } else { "hosts".to_owned() },
        );
        for leaf in &unit.leaves {
            spots.insert(*leaf, Spot { x, top: row(1) });
            x += WIDE + GAP;
        }
        x += GROUP_GAP;
    }
    for tier in 2..=tiers {
        let mut switches: Vec<NodeIndex> = fabric.tier(tier).map(|(index, _)| index).collect();
        switches.sort_by_cached_key(|index| describe::natural(&fabric.nodes[*index].name));
        let step = ((width - 2.0 * PAD) / switches.len().max(1) as f64).min((WIDE + GAP) * 4.0);
        let mut x = (width - step * switches.len() as f64) / 2.0 + (step - WIDE) / 2.0;
        for switch in switches {
            spots.insert(switch, Spot { x, top: row(tier) });
            x += step;
        }
    }
    let mut body = under;
    lines(view, &spots, &mut body);
    for (node, spot) in &spots {
        one(view, *node, spot, &mut body);
    }
    let height = row(1) + HIGH + 62.0 + 44.0;
    let _ = writeln!(
        body,
        "<text class=\"faint\" x=\"{PAD}\" y=\"{:.0}\">In each box: links up above, links down below. Green: as many uplinks as usual; \
         yellow and red: fewer, of how many. Red lines: cables missing between two switches; dashed: all of them.</text>",
        height - 16.0
    );
    page(width, height, &view.heading, &body)
}

fn one(view: &View<'_>, node: NodeIndex, spot: &Spot, body: &mut String) {
    let known = &view.fabric.nodes[node];
    let Some(standing) = view.standing.get(&node) else { return };
    let on_top = known.tier == view.fabric.tiers && view.fabric.tiers > 1;
    let middle = spot.x + WIDE / 2.0;
    let count = match (on_top, standing.up < standing.usual) {
        (true, _) => format!("{}", standing.down),
        (false, true) => format!("{}/{}", standing.up, standing.usual),
        (false, false) => format!("{}", standing.up),
    };
    let _ = writeln!(
        body,
        "<g><title>{0}: {1} down, {2} up of {3} usual</title><rect class=\"{4}\" x=\"{5:.1}\" y=\"{6:.0}\" width=\"{WIDE}\" \
         height=\"{HIGH}\" rx=\"4\"/><text class=\"name\" transform=\"translate({7:.1} {8:.0}) rotate(-90)\">{9}</text>\
         <text class=\"small mid{10}\" x=\"{11:.1}\" y=\"{12:.0}\">{count}</text>{13}</g>",
        escaped(&known.name),
        standing.down,
        standing.up,
        standing.usual,
        standing.class(on_top),
        spot.x,
        spot.top,
        middle + 4.0,
        spot.top + HIGH - 20.0,
        escaped(&shortened(&known.name, NAME_CHARS)),
        if standing.up < standing.usual && !on_top { " warn" } else { "" },
        middle,
        spot.top + 12.0,
        if on_top {
            String::new()
        } else {
            format!(
                "<text class=\"small mid\" x=\"{middle:.1}\" y=\"{:.0}\">{}</text>",
                spot.top + HIGH - 5.0,
                standing.down
            )
        },
    );
}

/// A line for each pair of switches that are linked; red where cables are missing.
fn lines(view: &View<'_>, spots: &BTreeMap<NodeIndex, Spot>, body: &mut String) {
    let fabric = view.fabric;
    let mut bundles: BTreeMap<(NodeIndex, NodeIndex), usize> = BTreeMap::new();
    for link in &fabric.links {
        let [a, b] = link.ends.map(|end| end.node);
        if fabric.nodes[a].kind == Kind::Switch && fabric.nodes[b].kind == Kind::Switch {
            let (low, high) =
                if fabric.nodes[a].tier <= fabric.nodes[b].tier { (a, b) } else { (b, a) };
            *bundles.entry((low, high)).or_default() += 1;
        }
    }
    // Between two tiers, where most pairs are linked, those that are not miss their cables.
    let mut missing: Vec<(NodeIndex, NodeIndex, usize, usize)> = Vec::new();
    for tier in 1..fabric.tiers {
        let low: Vec<NodeIndex> = fabric.tier(tier).map(|(index, _)| index).collect();
        let high: Vec<NodeIndex> = fabric.tier(tier + 1).map(|(index, _)| index).collect();
        let counts = low
            .iter()
            .flat_map(|a| high.iter().map(|b| bundles.get(&(*a, *b)).copied().unwrap_or(0)));
        let expected = usual(counts).map_or(0, |(expected, _)| expected);
        for a in &low {
            for b in &high {
                let has = bundles.get(&(*a, *b)).copied().unwrap_or(0);
                if has < expected {
                    missing.push((*a, *b, has, expected));
                }
            }
        }
    }
    let ends = |low: &NodeIndex, high: &NodeIndex| {
        let (low, high) = (spots.get(low)?, spots.get(high)?);
        Some((low.x + WIDE / 2.0, low.top, high.x + WIDE / 2.0, high.top + HIGH))
    };
    // The more lines, the fainter each.
    let faint = (200.0 / bundles.len().max(1) as f64).clamp(0.12, 0.5);
    let _ = writeln!(body, "<g opacity=\"{:.2}\">", faint * 2.0);
    for ((low, high), cables) in &bundles {
        if let Some((x1, y1, x2, y2)) = ends(low, high) {
            let thick = (*cables as f64).sqrt() * 0.6;
            let _ = writeln!(
                body,
                "<line class=\"link\" x1=\"{x1:.1}\" y1=\"{y1:.0}\" x2=\"{x2:.1}\" y2=\"{y2:.0}\" stroke-width=\"{thick:.1}\"/>"
            );
        }
    }
    let _ = writeln!(body, "</g>");
    for (low, high, has, expected) in missing {
        if let Some((x1, y1, x2, y2)) = ends(&low, &high) {
            let _ = writeln!(
                body,
                "<line class=\"lost\" x1=\"{x1:.1}\" y1=\"{y1:.0}\" x2=\"{x2:.1}\" y2=\"{y2:.0}\"{}><title>{} - {}: {has} of {expected} cables</title></line>",
                if has == 0 { " stroke-dasharray=\"5 4\"" } else { "" },
                escaped(&fabric.nodes[low].name),
                escaped(&fabric.nodes[high].name),
            );
        }
    }
}

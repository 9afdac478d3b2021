//! A cell for each switch, in the box of its pod or unit; those that differ are named.

use std::fmt::Write as _;

use super::{View, escaped, page, shortened};
use crate::describe;
use crate::model::NodeIndex;

const PAD: f64 = 24.0;
const HEAD: f64 = 84.0;
const CELL: f64 = 13.0;
const STEP: f64 = 16.0;
const WIDTH: f64 = 1600.0;
/// Cells side by side in a pod's box.
const COLUMNS: usize = 20;
/// Cells side by side in the top tier: the page's width.
const TOP_COLUMNS: usize = 97;
/// The narrowest box that its caption fits in.
const GROUP_LEAST: f64 = 230.0;
/// Switches that differ, by name; of more, the worst.
const NAMED_MOST: usize = 60;

struct Group {
    title: String,
    below: String,
    /// Tiers, the highest first.
    tiers: Vec<Vec<NodeIndex>>,
}

pub(super) fn draw(view: &View<'_>) -> String {
    let fabric = view.fabric;
    let mut body = String::new();
    let mut y = HEAD;
    // The top tier belongs to nobody.
    let mut top: Vec<NodeIndex> = match fabric.tiers {
        0 | 1 => Vec::new(),
        tiers => fabric.tier(tiers).map(|(index, _)| index).collect(),
    };
    sorted(view, &mut top);
    if !top.is_empty() {
        let links: usize =
            top.iter().filter_map(|node| view.standing.get(node)).map(|one| one.down).sum();
        let _ = writeln!(
            body,
            "<text class=\"strong\" x=\"{PAD}\" y=\"{y:.0}\">tier {}: {} switches, {links} links down</text>",
            fabric.tiers,
            top.len()
        );
        y += 10.0;
        y += cells(view, &top, PAD, y, TOP_COLUMNS, &mut body) + 26.0;
    }
    let groups = groups(view);
    let columns =
        groups.iter().flat_map(|group| &group.tiers).map(Vec::len).max().unwrap_or(1).min(COLUMNS);
    let wide = (columns as f64 * STEP + 20.0).max(GROUP_LEAST);
    // As many boxes side by side as fit.
    let across = (1..)
        .take_while(|boxes| f64::from(*boxes) * (wide + 12.0) - 12.0 <= WIDTH - 2.0 * PAD)
        .count()
        .max(1);
    for row in groups.chunks(across) {
        let high = row.iter().map(|group| height(group, columns)).fold(0.0, f64::max);
        for (place, group) in row.iter().enumerate() {
            let x = PAD + place as f64 * (wide + 12.0);
            let _ = writeln!(
                body,
                "<rect class=\"group\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"{wide:.0}\" height=\"{high:.0}\" rx=\"6\"/>\
                 <text class=\"strong\" x=\"{:.0}\" y=\"{:.0}\">{}</text><text class=\"small\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
                x + 10.0,
                y + 18.0,
                escaped(&group.title),
                x + 10.0,
                y + 33.0,
                escaped(&group.below),
            );
            let mut inside = y + 42.0;
            for tier in &group.tiers {
                inside += cells(view, tier, x + 10.0, inside, columns, &mut body) + 5.0;
            }
        }
        y += high + 12.0;
    }
    y += 14.0;
    y = differing(view, y, &mut body);
    let _ = writeln!(
        body,
        "<text class=\"faint\" x=\"{PAD}\" y=\"{y:.0}\">A cell is a switch; in a box the upper rows are the higher tier. Green: as many \
         uplinks as usual in its tier; yellow: up to a tenth fewer; red: less. Names show under the pointer.</text>"
    );
    page(WIDTH, y + 24.0, &view.heading, &body)
}

fn sorted(view: &View<'_>, switches: &mut [NodeIndex]) {
    switches.sort_by_cached_key(|index| describe::natural(&view.fabric.nodes[*index].name));
}

/// Pods, or units where there are no pods.
fn groups(view: &View<'_>) -> Vec<Group> {
    let (fabric, units) = (view.fabric, &view.units);
    let mut groups = Vec::new();
    let below_top = if fabric.tiers > 1 { fabric.tiers - 1 } else { fabric.tiers };
    let counted = |leaves: &[NodeIndex], hosts: usize, lower: &[NodeIndex]| {
        let up: usize = lower.iter().filter_map(|n| view.standing.get(n)).map(|s| s.up).sum();
        format!("{hosts} hosts, {} leaves, {up} links up", leaves.len())
    };
    if units.pods > 1 {
        for pod in 0..units.pods {
            let inside = |tier: u8| {
                let mut list: Vec<NodeIndex> = units
                    .pod_of_switch
                    .iter()
                    .filter(|(node, of)| **of == pod && fabric.nodes[**node].tier == tier)
                    .map(|(node, _)| *node)
                    .collect();
                sorted(view, &mut list);
                list
            };
            let tiers: Vec<Vec<NodeIndex>> = (1..=below_top).rev().map(inside).collect();
            let hosts = units
                .units
                .iter()
                .filter(|unit| unit.pod == pod)
                .map(|unit| unit.hosts.len())
                .sum();
            let below = counted(
                tiers.last().map_or(&[], Vec::as_slice),
                hosts,
                tiers.first().map_or(&[], Vec::as_slice),
            );
            groups.push(Group { title: format!("pod {}", pod + 1), below, tiers });
        }
        return groups;
    }
    // Many single leaves say more in one box than in a box each.
    let single: Vec<usize> =
        (0..units.units.len()).filter(|unit| units.units[*unit].leaves.len() == 1).collect();
    for (number, unit) in units.units.iter().enumerate().filter(|(_, unit)| unit.leaves.len() > 1) {
        let below = counted(&unit.leaves, unit.hosts.len(), &unit.leaves);
        groups.push(Group {
            title: format!("unit {}", number + 1),
            below,
            tiers: vec![unit.leaves.clone()],
        });
    }
    for (number, part) in single.chunks(COLUMNS * 5).enumerate() {
        let leaves: Vec<NodeIndex> =
            part.iter().flat_map(|unit| units.units[*unit].leaves.clone()).collect();
        let hosts = part.iter().map(|unit| units.units[*unit].hosts.len()).sum();
        let below = counted(&leaves, hosts, &leaves);
        groups.push(Group {
            title: format!("leaves {} …", number * COLUMNS * 5 + 1),
            below,
            tiers: vec![leaves],
        });
    }
    groups
}

fn height(group: &Group, columns: usize) -> f64 {
    let rows: f64 =
        group.tiers.iter().map(|tier| tier.len().div_ceil(columns) as f64 * STEP + 5.0).sum();
    rows + 50.0
}

/// Draws cells in rows; gives their height.
fn cells(
    view: &View<'_>,
    switches: &[NodeIndex],
    x: f64,
    y: f64,
    columns: usize,
    body: &mut String,
) -> f64 {
    let columns = columns.max(1);
    for (place, node) in switches.iter().enumerate() {
        let Some(standing) = view.standing.get(node) else { continue };
        let known = &view.fabric.nodes[*node];
        let on_top = known.tier == view.fabric.tiers && view.fabric.tiers > 1;
        let (column, row) = (place % columns, place / columns);
        let _ = writeln!(
            body,
            "<rect class=\"{}\" x=\"{:.0}\" y=\"{:.0}\" width=\"{CELL}\" height=\"{CELL}\" rx=\"2\"><title>{}: {} down, {} up of {}</title></rect>",
            standing.class(on_top),
            x + column as f64 * STEP,
            y + row as f64 * STEP,
            escaped(&known.name),
            standing.down,
            standing.up,
            standing.usual,
        );
    }
    switches.len().div_ceil(columns) as f64 * STEP
}

/// The switches with fewer uplinks than usual, in columns; gives where they end.
fn differing(view: &View<'_>, mut y: f64, body: &mut String) -> f64 {
    let mut odd: Vec<(&NodeIndex, &super::Standing)> =
        view.standing.iter().filter(|(_, one)| one.up < one.usual).collect();
    if odd.is_empty() {
        let _ = writeln!(
            body,
            "<text x=\"{PAD}\" y=\"{y:.0}\">All switches of a tier have as many uplinks as each other.</text>"
        );
        return y + 26.0;
    }
    odd.sort_by_key(|(node, one)| (std::cmp::Reverse(one.usual - one.up), **node));
    let shown = odd.len().min(NAMED_MOST);
    let _ = writeln!(
        body,
        "<text class=\"strong\" x=\"{PAD}\" y=\"{y:.0}\">{} with fewer uplinks than usual{}</text>",
        crate::check::plural(odd.len(), "switch", "switches"),
        if odd.len() > shown { format!(", the worst {shown}:") } else { ":".to_owned() },
    );
    y += 20.0;
    let columns = 5;
    let wide = (WIDTH - 2.0 * PAD) / f64::from(columns);
    for (place, (node, one)) in odd.iter().take(shown).enumerate() {
        let column = u32::try_from(place).unwrap_or(0) % columns;
        let _ = writeln!(
            body,
            "<text class=\"name\" x=\"{:.0}\" y=\"{y:.0}\"><tspan class=\"warn\">{} of {}</tspan> {}</text>",
            PAD + f64::from(column) * wide,
            one.up,
            one.usual,
            escaped(&shortened(&view.fabric.nodes[**node].name, 36)),
        );
        if column + 1 == columns {
            y += 16.0;
        }
    }
    y + 30.0
}

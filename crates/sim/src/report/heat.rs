//! Where the network was full: tiers as rows, a cell for each switch, coloured by its hottest link up.
//!
//! Up to a hundred switches each has a box with its name and a bar for each link up, so that idle ones show beside
//! busy ones. Beyond that a switch is a cell. On top, where nothing is above, links down count. Hosts are a row of small
//! cells. The ten hottest links stand below by name.
//!
//! Colours go from light to dark, so that they read the same without colour; no script.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringway_fabric::describe;
use ringway_fabric::export::picture::{escaped, page, shortened};
use ringway_fabric::model::{Kind, NodeIndex};
use ringway_fabric::shape::Units;

use super::summary::HOTTEST;
use super::tally::{self, Owner, Usage};
use crate::network::{Network, Wire};
use crate::outcome::Outcome;

/// Up to here every switch has a box.
const BOXES_MOST: usize = 100;
/// Beyond this hosts are left out.
const HOSTS_MOST: usize = 20_000;

const PAD: f64 = 24.0;
const HEAD: f64 = 84.0;
/// The page is so wide, of boxes and of cells.
const WIDTH: f64 = 1200.0;
const WIDTH_CELLS: f64 = 1600.0;

/// From hardly used to full. Each is darker than the one before.
const RAMP: [&str; 8] =
    ["#fdf3c7", "#fbdc7e", "#f7bd4b", "#ee9a33", "#db7426", "#b9501e", "#8a3018", "#5a1712"];
/// From here on text on a colour is white.
const DARK_FROM: usize = 5;

const STYLE: &str = ".idle{fill:#fff;stroke:#b6bec8}.cell{stroke:#57606a;stroke-width:.5}\
.onlight{fill:#1b1f24}.ondark{fill:#fff}.onidle{fill:#57606a}.num{text-anchor:end;font-variant-numeric:tabular-nums}\
@media(prefers-color-scheme:dark){.idle{fill:#0d1117;stroke:#3d444d}.onidle{fill:#9198a1}.cell{stroke:#0d1117}}";

/// One switch or host: how hot, by which link, and each of its links.
#[derive(Clone, Debug, Default)]
struct Heat {
    part: f64,
    link: Option<usize>,
    /// The use of each link, the larger direction.
    bars: Vec<f64>,
}

impl Heat {
    fn take(&mut self, usage: &Usage) {
        if usage.bytes > 0.0 && (usage.part > self.part || self.link.is_none()) {
            self.part = usage.part;
            self.link = Some(usage.link);
        }
    }
}

struct View<'a> {
    network: &'a Network,
    usages: &'a [Usage],
    switches: BTreeMap<NodeIndex, Heat>,
    hosts: BTreeMap<usize, Heat>,
    width: f64,
}

/// Draws the use of links.
#[must_use]
pub fn svg(network: &Network, outcome: &Outcome, title: &str) -> String {
    let usages = tally::usages(network, outcome);
    let count = network.fabric.switches().count();
    let boxes = count <= BOXES_MOST;
    let view = View {
        network,
        usages: &usages,
        switches: switches(network, &usages),
        hosts: hosts(&usages),
        width: if boxes { WIDTH } else { WIDTH_CELLS },
    };
    let mut body = format!("<style>{STYLE}</style>\n");
    let mut y = legend(&mut body, HEAD);
    for tier in (1..=network.fabric.tiers).rev() {
        y = row(&view, tier, boxes, y, &mut body);
    }
    y = host_row(&view, y, &mut body);
    y = named(&view, y, &mut body);
    let heading = [title.to_owned(), subtitle(network, outcome, count)];
    page(view.width, y, &heading, &body)
}

fn subtitle(network: &Network, outcome: &Outcome, switches: usize) -> String {
    format!(
        "{switches} switches, {} GPUs · use of links from the first byte to the end, {} in all",
        network.hosts.len(),
        duration(outcome.end_us)
    )
}

/// Time as people write it.
#[must_use]
pub fn duration(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.3} s", us / 1e6),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} us"),
    }
}

/// Every switch by its links up; on top by its links down.
fn switches(network: &Network, usages: &[Usage]) -> BTreeMap<NodeIndex, Heat> {
    let fabric = &network.fabric;
    let mut all: BTreeMap<NodeIndex, Heat> =
        fabric.switches().map(|(index, _)| (index, Heat::default())).collect();
    // The larger of a cable's two directions.
    let mut cables: BTreeMap<usize, f64> = BTreeMap::new();
    for usage in usages {
        if let Wire::Cable { link, .. } = network.links[usage.link].what {
            let most = cables.entry(link).or_default();
            *most = most.max(usage.part);
        }
    }
    for usage in usages {
        let Wire::Cable { link, forward } = network.links[usage.link].what else { continue };
        let ends = fabric.links[link].ends;
        let tiers = ends.map(|end| fabric.nodes[end.node].tier);
        let kinds = ends.map(|end| fabric.nodes[end.node].kind);
        for side in 0..2 {
            let (own, other) = (ends[side].node, 1 - side);
            let up = kinds[other] == Kind::Switch && tiers[other] >= tiers[side];
            let on_top = tiers[side] == fabric.tiers;
            if kinds[side] == Kind::Switch && (up || on_top) {
                let Some(heat) = all.get_mut(&own) else { continue };
                heat.take(usage);
                // Each cable once.
                if forward {
                    heat.bars.push(cables.get(&link).copied().unwrap_or(0.0));
                }
            }
        }
    }
    all
}

/// Every host by its adapters' cables and what is inside.
fn hosts(usages: &[Usage]) -> BTreeMap<usize, Heat> {
    let mut all: BTreeMap<usize, Heat> = BTreeMap::new();
    for usage in usages {
        if let Owner::Host(host) = usage.owner {
            all.entry(host).or_default().take(usage);
        }
    }
    all
}

/// Place in the ramp.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of eight, held to the ramp's ends"
)]
fn shade(part: f64) -> usize {
    ((part * RAMP.len() as f64).max(0.0) as usize).min(RAMP.len() - 1)
}

/// How a cell is filled, and the class of text on it.
fn filled(heat: &Heat) -> (String, &'static str) {
    if heat.link.is_none() {
        return ("class=\"idle\"".to_owned(), "onidle");
    }
    let shade = shade(heat.part);
    let text = if shade >= DARK_FROM { "ondark" } else { "onlight" };
    (format!("class=\"cell\" fill=\"{}\"", RAMP[shade]), text)
}

fn percent(part: f64) -> String {
    match part * 100.0 {
        part if part > 0.0 && part < 0.95 => format!("{part:.1} %"),
        part => format!("{part:.0} %"),
    }
}

fn legend(body: &mut String, y: f64) -> f64 {
    let mut x = PAD;
    let wide = 92.0;
    let _ = writeln!(
        body,
        "<rect class=\"idle\" x=\"{x}\" y=\"{:.0}\" width=\"16\" height=\"12\"/><text x=\"{:.0}\" y=\"{y:.0}\">unused</text>",
        y - 10.0,
        x + 22.0
    );
    x += 84.0;
    for (place, colour) in RAMP.iter().enumerate() {
        let (from, to) = (place as f64 * 12.5, (place + 1) as f64 * 12.5);
        let _ = writeln!(
            body,
            "<rect class=\"cell\" fill=\"{colour}\" x=\"{x}\" y=\"{:.0}\" width=\"16\" height=\"12\"/>\
             <text x=\"{:.0}\" y=\"{y:.0}\">{from:.0}–{to:.0} %</text>",
            y - 10.0,
            x + 22.0
        );
        x += wide;
    }
    y + 34.0
}

/// The switches of a tier; gives where they end.
fn row(view: &View<'_>, tier: u8, boxes: bool, y: f64, body: &mut String) -> f64 {
    let fabric = &view.network.fabric;
    let mut nodes: Vec<NodeIndex> = fabric.tier(tier).map(|(index, _)| index).collect();
    nodes.sort_by_cached_key(|index| describe::natural(&fabric.nodes[*index].name));
    let heats = || nodes.iter().filter_map(|node| view.switches.get(node));
    let hottest = heats().map(|heat| heat.part).fold(0.0, f64::max);
    let idle = heats().filter(|heat| heat.link.is_none()).count();
    let by = if tier == fabric.tiers { "down" } else { "up" };
    let unused = if idle > 0 { format!(", {idle} unused") } else { String::new() };
    let _ = writeln!(
        body,
        "<text class=\"strong\" x=\"{PAD}\" y=\"{y:.0}\">tier {tier}: {} switches, hottest link {by} {}{unused}</text>",
        nodes.len(),
        percent(hottest),
    );
    let below = if boxes {
        named_boxes(view, &nodes, y + 10.0, body)
    } else {
        cells(view, &nodes, y + 10.0, body)
    };
    below + 30.0
}

fn tip(view: &View<'_>, name: &str, heat: &Heat) -> String {
    match heat.link {
        None => format!("{name}: unused"),
        Some(link) => {
            format!("{name}: {} on {}", percent(heat.part), view.network.link_name(link))
        }
    }
}

/// A box each, with its name, the hottest link's use, and a bar for each link.
fn named_boxes(view: &View<'_>, nodes: &[NodeIndex], top: f64, body: &mut String) -> f64 {
    let (wide, high, step) = (136.0, 46.0, 144.0);
    let across = (1..).take_while(|n| f64::from(*n) * step <= view.width - 2.0 * PAD + 8.0).count();
    for (place, node) in nodes.iter().enumerate() {
        let Some(heat) = view.switches.get(node) else { continue };
        let name = &view.network.fabric.nodes[*node].name;
        let x = PAD + (place % across) as f64 * step;
        let y = top + (place / across) as f64 * (high + 8.0);
        let (fill, on) = filled(heat);
        let _ = writeln!(
            body,
            "<g><title>{}</title><rect {fill} x=\"{x:.0}\" y=\"{y:.0}\" width=\"{wide}\" height=\"26\"/>\
             <text class=\"{on}\" x=\"{:.0}\" y=\"{:.0}\">{}</text><text class=\"{on} num\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            escaped(&tip(view, name, heat)),
            x + 6.0,
            y + 17.0,
            escaped(&shortened(name, 13)),
            x + wide - 5.0,
            y + 17.0,
            percent(heat.part),
        );
        // Bars of all links side by side, at least a pixel each.
        let bar = wide / heat.bars.len().max(1) as f64;
        for (place, part) in heat.bars.iter().enumerate() {
            let fill = if *part > 0.0 {
                format!("fill=\"{}\"", RAMP[shade(*part)])
            } else {
                "class=\"idle\"".to_owned()
            };
            let tall = (part.min(1.0) * 16.0).max(1.0);
            let _ = write!(
                body,
                "<rect {fill} x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{tall:.1}\"/>",
                x + place as f64 * bar,
                y + high - tall,
                f64::max(bar - 0.6, 0.8),
            );
        }
        body.push_str("</g>\n");
    }
    top + nodes.len().div_ceil(across) as f64 * (high + 8.0)
}

/// A cell each; pods stand a little apart.
fn cells(view: &View<'_>, nodes: &[NodeIndex], top: f64, body: &mut String) -> f64 {
    let (cell, step, gap) = (13.0, 15.0, 7.0);
    let pods = Units::of(&view.network.fabric).pod_of_switch;
    let (mut x, mut y) = (PAD, top);
    let mut before = None;
    for node in nodes {
        let Some(heat) = view.switches.get(node) else { continue };
        let pod = pods.get(node).copied();
        if before.is_some_and(|before| before != pod) {
            x += gap;
            // A pod that fits a line stays in one.
            let size = nodes.iter().filter(|other| pods.get(other).copied() == pod).count();
            let end = x + size as f64 * step;
            if end > view.width - PAD && PAD + size as f64 * step <= view.width - PAD {
                (x, y) = (PAD, y + step + 1.0);
            }
        }
        before = Some(pod);
        if x + cell > view.width - PAD {
            (x, y) = (PAD, y + step + 1.0);
        }
        let name = &view.network.fabric.nodes[*node].name;
        let _ = writeln!(
            body,
            "<rect {} x=\"{x:.0}\" y=\"{y:.0}\" width=\"{cell}\" height=\"{cell}\"><title>{}</title></rect>",
            filled(heat).0,
            escaped(&tip(view, name, heat)),
        );
        x += step;
    }
    y + step
}

/// Hosts as small cells; gives where they end.
fn host_row(view: &View<'_>, y: f64, body: &mut String) -> f64 {
    let hosts = &view.network.fabric.hosts;
    let idle = (0..hosts.len())
        .filter(|host| view.hosts.get(host).is_none_or(|heat| heat.link.is_none()))
        .count();
    let hottest = view.hosts.values().map(|heat| heat.part).fold(0.0, f64::max);
    let unused = if idle > 0 { format!(", {idle} unused") } else { String::new() };
    let drawn = hosts.len() <= HOSTS_MOST;
    let left_out = if drawn { "" } else { "; too many to draw" };
    let _ = writeln!(
        body,
        "<text class=\"strong\" x=\"{PAD}\" y=\"{y:.0}\">{} hosts, hottest adapter, PCIe or NVLink {}{unused}{left_out}</text>",
        hosts.len(),
        percent(hottest),
    );
    if !drawn {
        return y + 34.0;
    }
    let (cell, step) = if hosts.len() <= 600 { (11.0, 13.0) } else { (7.0, 8.0) };
    let across =
        (1..).take_while(|n| f64::from(*n) * step <= view.width - 2.0 * PAD).count().max(1);
    let none = Heat::default();
    let mut order: Vec<usize> = (0..hosts.len()).collect();
    order.sort_by_cached_key(|host| describe::natural(&hosts[*host].name));
    for (place, index) in order.into_iter().enumerate() {
        let host = &hosts[index];
        let heat = view.hosts.get(&index).unwrap_or(&none);
        let _ = writeln!(
            body,
            "<rect {} x=\"{:.0}\" y=\"{:.0}\" width=\"{cell}\" height=\"{cell}\"><title>{}</title></rect>",
            filled(heat).0,
            PAD + (place % across) as f64 * step,
            y + 10.0 + (place / across) as f64 * step,
            escaped(&tip(view, &host.name, heat)),
        );
    }
    y + 10.0 + hosts.len().div_ceil(across) as f64 * step + 34.0
}

/// The hottest links by name; gives where the page ends.
fn named(view: &View<'_>, mut y: f64, body: &mut String) -> f64 {
    let hottest = tally::hottest(view.usages, HOTTEST);
    if hottest.is_empty() {
        let _ = writeln!(body, "<text x=\"{PAD}\" y=\"{y:.0}\">No link carried anything.</text>");
        return y + 30.0;
    }
    let _ = writeln!(body, "<text class=\"strong\" x=\"{PAD}\" y=\"{y:.0}\">Hottest links</text>");
    for usage in hottest {
        y += 18.0;
        let _ = writeln!(
            body,
            "<rect class=\"cell\" fill=\"{}\" x=\"{PAD}\" y=\"{:.0}\" width=\"12\" height=\"12\"/>\
             <text class=\"num\" x=\"{:.0}\" y=\"{y:.0}\">{}</text>\
             <text x=\"{:.0}\" y=\"{y:.0}\">{}</text><text class=\"faint\" x=\"{:.0}\" y=\"{y:.0}\">{}, full for {} of the time</text>",
            RAMP[shade(usage.part)],
            y - 10.0,
            PAD + 68.0,
            percent(usage.part),
            PAD + 84.0,
            escaped(&shortened(&view.network.link_name(usage.link), 70)),
            PAD + 560.0,
            usage.group,
            percent(usage.full),
        );
    }
    y += 26.0;
    let _ = writeln!(
        body,
        "<text class=\"faint\" x=\"{PAD}\" y=\"{y:.0}\">A switch has the colour of its hottest link up, on top of its hottest link down; \
         names show under the pointer.</text>"
    );
    y + 24.0
}

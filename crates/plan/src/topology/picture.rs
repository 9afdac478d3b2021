//! The machine as a picture: sockets, switches, GPUs and NICs, and the way each GPU takes to its NIC.
//!
//! Pure SVG with a style sheet that follows the reader's light or dark scheme; no script.
//!
//! *Invariant:* text from files is escaped; the picture's size is bounded by that of the graph.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::nearest::Affinity;
use super::path::Paths;
use super::{Kind, LinkKind, NodeIndex, Topology};

const LEAF: f64 = 104.0;
const CPU: f64 = 190.0;
const LEAF_HIGH: f64 = 76.0;
const GAP: f64 = 14.0;
const ROW: f64 = 108.0;
const BOX: f64 = 40.0;
const PAD: f64 = 24.0;
/// Room for the title and the legend.
const LEAST: f64 = 980.0;
const WIDEST: f64 = 2400.0;
/// Between two rows of sockets: room for the links below GPUs.
const BETWEEN: f64 = 124.0;
const HEAD: f64 = 64.0;

/// Rules of the picture by day. They name classes alone (and `text`), so that a page with other pictures nests them.
pub const LIGHT: &str = "
text{font:12px ui-sans-serif,system-ui,'DejaVu Sans',sans-serif;fill:#1b1f24;text-anchor:middle}
.title{font-size:16px;font-weight:600;text-anchor:start}.faint{fill:#57606a;font-size:11px}
.left{text-anchor:start}.name{font-weight:600}.small{font-size:10px;fill:#57606a}
.paper{fill:#fff}.socket{fill:#f6f8fa;stroke:#d0d7de}
.cpu{fill:#ddf4ff;stroke:#54aeff}.pci{fill:#eaeef2;stroke:#8c959f}
.gpu{fill:#dafbe1;stroke:#4ac26b}.nic{fill:#fff1e5;stroke:#e0823d}.off{fill:#f6f8fa;stroke:#afb8c1;stroke-dasharray:4 3}
.nvs{fill:#fbefff;stroke:#8250df}
.link{stroke:#8c959f;stroke-width:1.5;fill:none}.nv{stroke:#8250df;stroke-width:2;fill:none;opacity:.7}
.sys{stroke:#54aeff;stroke-width:2;stroke-dasharray:6 4;fill:none}
.way{stroke-width:4;fill:none;opacity:.75;stroke-linejoin:round}
.slow{fill:#cf222e;font-weight:600}
";

/// What is different by night.
pub const DARK: &str = "
text{fill:#e6edf3}.faint,.small{fill:#9198a1}.paper{fill:#0d1117}.socket{fill:#151b23;stroke:#3d444d}
.cpu{fill:#0c2d4b;stroke:#316dca}.pci{fill:#262c36;stroke:#656c76}
.gpu{fill:#12361f;stroke:#2ea043}.nic{fill:#3d2410;stroke:#db6d28}.off{fill:#151b23;stroke:#656c76}
.nvs{fill:#2b1a45;stroke:#ab7df8}.link{stroke:#656c76}.nv{stroke:#ab7df8}.sys{stroke:#316dca}.slow{fill:#ff7b72}
";

/// Colours of the ways, one a rail, readable on light and dark.
const WAYS: [&str; 8] =
    ["#0969da", "#bf3989", "#1a7f37", "#bc4c00", "#8250df", "#0598bc", "#9a6700", "#cf222e"];

#[derive(Clone, Copy, Debug)]
struct Spot {
    /// Middle of the box.
    x: f64,
    top: f64,
    high: f64,
}

struct Picture<'a> {
    topology: &'a Topology,
    spots: BTreeMap<NodeIndex, Spot>,
    children: Vec<Vec<NodeIndex>>,
    body: String,
}

/// Draws a machine.
#[must_use]
pub fn svg(topology: &Topology, affinities: &[Affinity], title: &str) -> String {
    let mut children = vec![Vec::new(); topology.nodes.len()];
    for (index, node) in topology.nodes.iter().enumerate() {
        if let Some(parent) = node.parent.filter(|_| !matches!(node.kind, Kind::Net(_))) {
            children[parent].push(index);
        }
    }
    let mut picture = Picture { topology, spots: BTreeMap::new(), children, body: String::new() };
    picture.order_leaves();
    let (width, bottom) = picture.place_sockets();
    picture.system_links();
    picture.pci_links();
    picture.ways(&Paths::physical(topology), affinities);
    picture.boxes();
    let height = picture.fast_links(width, bottom) + PAD + 44.0;
    let mut text = String::new();
    let _ = write!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\">\n<title>{0}</title>\n\
         <style>{LIGHT}@media(prefers-color-scheme:dark){{{DARK}}}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"{PAD}\" y=\"32\">{0}</text>\n",
        escaped(title)
    );
    text.push_str(&picture.body);
    let legend = "Thick coloured lines: the way from each GPU to the NIC it uses, one colour a NIC. \
                  x16 48: lanes and GB/s as NCCL counts them. Dashed boxes: not used by NCCL.";
    let _ = writeln!(
        text,
        "<text class=\"faint left\" x=\"{PAD}\" y=\"{:.0}\">{legend}</text>\n</svg>",
        height - PAD
    );
    text
}

impl Picture<'_> {
    /// Switches first, then GPUs, then NICs, each in their order.
    fn order_leaves(&mut self) {
        let topology = self.topology;
        for row in &mut self.children {
            row.sort_by_key(|index| match &topology.nodes[*index].kind {
                Kind::Pci(_) => (0, 0),
                Kind::Gpu(gpu) => (1, gpu.dev),
                _ => (2, 0),
            });
        }
    }

    fn is_drawn(&self, index: NodeIndex) -> bool {
        match self.topology.nodes[index].kind {
            // Devices that are neither GPU nor NIC were kept as bridges with nothing below.
            Kind::Pci(_) => self.children[index].iter().any(|child| self.is_drawn(*child)),
            Kind::Net(_) | Kind::NvSwitch => false,
            _ => true,
        }
    }

    fn width(&self, index: NodeIndex) -> f64 {
        let drawn = self.children[index].iter().filter(|child| self.is_drawn(**child));
        let inside: f64 = drawn.map(|child| self.width(*child) + GAP).sum();
        let least = match self.topology.nodes[index].kind {
            Kind::Cpu(_) => CPU,
            _ => LEAF,
        };
        (inside - GAP).max(least)
    }

    fn depth(&self, index: NodeIndex) -> usize {
        let drawn = self.children[index].iter().filter(|child| self.is_drawn(**child));
        drawn.map(|child| 1 + self.depth(*child)).max().unwrap_or(0)
    }

    /// Places each socket's tree; gives the width and the bottom of all.
    fn place_sockets(&mut self) -> (f64, f64) {
        let (mut left, mut top) = (PAD, HEAD);
        let (mut right, mut row_high) = (LEAST, 0.0_f64);
        let mut frames = String::new();
        for cpu in self.topology.cpus() {
            let wide = self.width(cpu) + 2.0 * GAP;
            let depth = self.depth(cpu);
            #[expect(clippy::cast_precision_loss, reason = "at most 64 levels")]
            let leaves_at = top + GAP + depth as f64 * ROW;
            let high = leaves_at - top + LEAF_HIGH + GAP;
            if left > PAD && left + wide > WIDEST {
                (left, top) = (PAD, top + row_high + BETWEEN);
                row_high = 0.0;
                #[expect(clippy::cast_precision_loss, reason = "at most 64 levels")]
                let leaves_at = top + GAP + depth as f64 * ROW;
                self.place(cpu, left + GAP, top + GAP, leaves_at);
            } else {
                self.place(cpu, left + GAP, top + GAP, leaves_at);
            }
            let _ = writeln!(
                frames,
                "<rect class=\"socket\" x=\"{left:.0}\" y=\"{top:.0}\" width=\"{wide:.0}\" \
                 height=\"{high:.0}\" rx=\"10\"/>"
            );
            row_high = row_high.max(high);
            left += wide + 2.0 * GAP;
            right = right.max(left);
        }
        self.body.push_str(&frames);
        (right - 2.0 * GAP + PAD, top + row_high)
    }

    fn place(&mut self, index: NodeIndex, left: f64, top: f64, leaves_at: f64) {
        let wide = self.width(index);
        let drawn = self.children[index].iter().filter(|child| self.is_drawn(**child));
        let inside = drawn.map(|child| self.width(*child) + GAP).sum::<f64>() - GAP;
        let leaf = matches!(self.topology.nodes[index].kind, Kind::Gpu(_) | Kind::Nic);
        let (top, high) = if leaf { (leaves_at, LEAF_HIGH) } else { (top, BOX) };
        self.spots.insert(index, Spot { x: left + wide / 2.0, top, high });
        let mut left = left + (wide - inside).max(0.0) / 2.0;
        for child in self.children[index].clone() {
            if self.is_drawn(child) {
                self.place(child, left, top + ROW, leaves_at);
                left += self.width(child) + GAP;
            }
        }
    }

    fn system_links(&mut self) {
        let cpus = self.topology.cpus();
        for pair in cpus.windows(2) {
            let (Some(one), Some(other)) = (self.spots.get(&pair[0]), self.spots.get(&pair[1]))
            else {
                continue;
            };
            let is_it = |link: &&super::Link| link.from == pair[0] && link.to == pair[1];
            let Some(link) = self.topology.links.iter().find(is_it) else { continue };
            let (y, to_y) = (one.top + BOX / 2.0, other.top + BOX / 2.0);
            let _ = writeln!(
                self.body,
                "<path class=\"sys\" d=\"M{:.0},{y:.0}L{:.0},{to_y:.0}\"/><text class=\"small\" \
                 x=\"{:.0}\" y=\"{:.0}\">{}</text>",
                one.x,
                other.x,
                f64::midpoint(one.x, other.x),
                f64::midpoint(y, to_y) - 6.0,
                rate(link.gb_per_s)
            );
        }
    }

    fn pci_links(&mut self) {
        for (index, node) in self.topology.nodes.iter().enumerate() {
            let (Some(spot), Some(above)) =
                (self.spots.get(&index), node.parent.and_then(|parent| self.spots.get(&parent)))
            else {
                continue;
            };
            let from = above.top + above.high;
            let _ = writeln!(
                self.body,
                "<path class=\"link\" d=\"M{:.0},{from:.0}L{:.0},{:.0}\"/>",
                above.x, spot.x, spot.top
            );
            let Some(link) = &node.uplink else { continue };
            let gb = super::bus::pci_gb_per_s(link.speed.as_deref(), link.width);
            let (class, label) = match (link.width, link.current_width) {
                (Some(could), Some(now)) if now < could => ("slow", format!("x{now} of x{could}")),
                (Some(could), _) => ("small", format!("x{could} {}", rate(gb))),
                (None, _) => ("small", rate(gb)),
            };
            let y = spot.top - 5.0;
            let _ = writeln!(
                self.body,
                "<text class=\"{class}\" x=\"{:.0}\" y=\"{y:.0}\">{label}</text>",
                // On the side from which no line comes.
                if above.x > spot.x + 1.0 { spot.x - 28.0 } else { spot.x + 28.0 }
            );
        }
    }

    /// The way of each GPU to its NIC, over the boxes between them.
    fn ways(&mut self, paths: &Paths, affinities: &[Affinity]) {
        for one in affinities {
            let Some(net) = one.net else { continue };
            let rail = one.rail.unwrap_or(0);
            let nodes = paths.nodes(one.gpu, net);
            let spots: Vec<Spot> =
                nodes.iter().filter_map(|node| self.spots.get(node)).copied().collect();
            if spots.len() < 2 {
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "at most 8")]
            let shift = (rail % WAYS.len()) as f64 * 2.0 - 7.0;
            // Up to the box where both meet, through those between, and down again.
            let apex = (0..spots.len()).min_by(|a, b| spots[*a].top.total_cmp(&spots[*b].top));
            let (apex, last) = (apex.unwrap_or(0), spots.len() - 1);
            let mut line = String::new();
            for (at, spot) in spots.iter().enumerate() {
                let (top, bottom) = (spot.top, spot.top + spot.high);
                let stops: &[f64] = match at {
                    0 => &[top],
                    _ if at == last => &[top],
                    _ if at == apex => &[bottom],
                    _ if at < apex => &[bottom, top],
                    _ => &[top, bottom],
                };
                for y in stops {
                    let letter = if line.is_empty() { 'M' } else { 'L' };
                    let _ = write!(line, "{letter}{:.0},{y:.0}", spot.x + shift);
                }
            }
            let tip = format!(
                "{} to {}: {}",
                self.topology.name(one.gpu),
                self.topology.name(net),
                one.class
            );
            let _ = writeln!(
                self.body,
                "<path class=\"way\" stroke=\"{}\" d=\"{line}\"><title>{}</title></path>",
                WAYS[rail % WAYS.len()],
                escaped(&tip)
            );
        }
    }

    fn boxes(&mut self) {
        for (&index, &spot) in &self.spots.clone() {
            let node = &self.topology.nodes[index];
            let bus = node.bus.map(|bus| bus.to_string()).unwrap_or_default();
            let (class, lines, wide) = match &node.kind {
                Kind::Cpu(cpu) => {
                    let cpus = cpu.cpus.to_string();
                    let cpus = if cpus.is_empty() { String::new() } else { format!("CPUs {cpus}") };
                    ("cpu", vec![format!("NUMA {}", cpu.numa), cpus], CPU)
                }
                Kind::Pci(_) => ("pci", vec!["PCI switch".to_owned(), bus], LEAF),
                Kind::Gpu(gpu) => {
                    let model = gpu.model.clone().or_else(|| gpu.gcn.clone()).unwrap_or_default();
                    let model = model.trim_start_matches("NVIDIA ").to_owned();
                    ("gpu", vec![format!("GPU{}", gpu.dev), short(&model), bus], LEAF)
                }
                Kind::Nic => {
                    let ports: Vec<&super::Net> = (0..self.topology.nodes.len())
                        .filter(|port| self.topology.nodes[*port].parent == Some(index))
                        .filter_map(|port| self.topology.net(port))
                        .collect();
                    let class = match ports.iter().all(|port| port.unused.is_some()) {
                        true => "off",
                        false => "nic",
                    };
                    (class, nic_lines(&ports, bus), LEAF)
                }
                Kind::Net(_) | Kind::NvSwitch => continue,
            };
            let _ = writeln!(
                self.body,
                "<rect class=\"{class}\" x=\"{:.0}\" y=\"{:.0}\" width=\"{wide:.0}\" \
                 height=\"{:.0}\" rx=\"6\"/>",
                spot.x - wide / 2.0,
                spot.top,
                spot.high
            );
            let mut y = spot.top + 17.0;
            for (at, line) in lines.iter().filter(|line| !line.is_empty()).enumerate() {
                let class = if at == 0 { "name" } else { "small" };
                let _ = writeln!(
                    self.body,
                    "<text class=\"{class}\" x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
                    spot.x,
                    escaped(line)
                );
                y += 16.0;
            }
        }
    }

    /// NVLinks and XGMI below the GPUs; gives the bottom of the picture.
    fn fast_links(&mut self, width: f64, bottom: f64) -> f64 {
        let fast = |kind: LinkKind| match kind {
            LinkKind::NvLink(count) => Some((count, "NVLink")),
            LinkKind::Xgmi(count) => Some((count, "XGMI")),
            _ => None,
        };
        let gpus = self.topology.gpus();
        let links: Vec<_> = self.topology.links.iter().filter(|l| fast(l.kind).is_some()).collect();
        if links.is_empty() {
            return bottom;
        }
        let is_switch =
            |index: NodeIndex| matches!(self.topology.nodes[index].kind, Kind::NvSwitch);
        let to_switch = links.iter().any(|link| is_switch(link.to));
        let pairs = links.iter().filter(|link| !is_switch(link.to) && link.from < link.to).count();
        let all_pairs = gpus.len() > 2 && pairs == gpus.len() * (gpus.len() - 1) / 2;
        if to_switch || all_pairs {
            let name = if to_switch { "NVSwitch" } else { "all GPUs linked with each other" };
            let mut bars: Vec<f64> = Vec::new();
            for &gpu in &gpus {
                let Some(spot) = self.spots.get(&gpu) else { continue };
                let own: Vec<(u32, &str)> = links
                    .iter()
                    .filter(|link| link.from == gpu)
                    .filter_map(|link| fast(link.kind))
                    .collect();
                let Some((_, word)) = own.first() else { continue };
                let count: u32 = own.iter().map(|(count, _)| count).sum();
                let from = spot.top + spot.high;
                let bar = from + GAP + 46.0;
                let _ = writeln!(
                    self.body,
                    "<path class=\"nv\" d=\"M{0:.0},{from:.0}L{0:.0},{bar:.0}\"/>\
                     <text class=\"small\" x=\"{1:.0}\" y=\"{2:.0}\">{count} {word}</text>",
                    spot.x,
                    spot.x + 34.0,
                    bar - 8.0
                );
                if !bars.contains(&bar) {
                    bars.push(bar);
                }
            }
            // One bar a row of sockets; the switches are the same.
            for bar in &bars {
                let _ = writeln!(
                    self.body,
                    "<rect class=\"nvs\" x=\"{PAD}\" y=\"{bar:.0}\" width=\"{:.0}\" height=\"30\" \
                     rx=\"6\"/><text class=\"name\" x=\"{:.0}\" y=\"{:.0}\">{name}</text>",
                    width - 2.0 * PAD,
                    width / 2.0,
                    bar + 20.0
                );
            }
            return bars.into_iter().fold(bottom, |low, bar| low.max(bar + 30.0));
        }
        let mut deepest = bottom;
        for link in links {
            let (Some(one), Some(other)) = (self.spots.get(&link.from), self.spots.get(&link.to))
            else {
                continue;
            };
            if link.from > link.to {
                continue;
            }
            let (count, word) = fast(link.kind).unwrap_or_default();
            let (y, to_y) = (one.top + one.high, other.top + other.high);
            let deep = (one.x - other.x).abs().mul_add(0.25, 24.0).min(160.0);
            let low = y.max(to_y) + deep;
            deepest = deepest.max(low);
            let _ = writeln!(
                self.body,
                "<path class=\"nv\" d=\"M{:.0},{y:.0}C{0:.0},{low:.0} {1:.0},{low:.0} {1:.0},{to_y:.0}\"/>\
                 <text class=\"small\" x=\"{2:.0}\" y=\"{3:.0}\">{count} {word}</text>",
                one.x,
                other.x,
                f64::midpoint(one.x, other.x),
                y.max(to_y) + deep * 0.75 - 4.0
            );
        }
        deepest
    }
}

/// The ports of a NIC, as far as they fit its box.
fn nic_lines(ports: &[&super::Net], bus: String) -> Vec<String> {
    let speed = |net: &super::Net| {
        let gbit = net.speed.map(|mbit| format!("{} Gb/s", mbit / 1000));
        net.unused.clone().or(gbit).unwrap_or_default()
    };
    match ports {
        [] => vec!["NIC".to_owned(), bus],
        [one] if one.name == bus => vec!["NIC".to_owned(), bus],
        [one] => vec![short(&one.name), speed(one), bus],
        [one, other] => {
            vec![short(&one.name), short(&other.name), format!("2 × {}", speed(one)), bus]
        }
        [one, rest @ ..] => vec![short(&one.name), format!("and {} more", rest.len()), bus],
    }
}

/// GB/s, as short as they can be said.
fn rate(gb_per_s: f64) -> String {
    if gb_per_s >= 10.0 { format!("{gb_per_s:.0}") } else { format!("{gb_per_s:.1}") }
}

/// What fits a box.
fn short(text: &str) -> String {
    let letters = text.chars().count();
    if letters <= 14 { text.to_owned() } else { text.chars().take(13).chain(['…']).collect() }
}

/// Text between tags.
fn escaped(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let text: String = text.chars().map(plain).take(400).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

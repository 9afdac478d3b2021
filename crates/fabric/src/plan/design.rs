//! Fat trees of switches of one kind.
//!
//! A leaf has `d` ports down and `u` up, `d/u` at most the oversubscription. Two tiers: each spine has a link to each
//! leaf, so there are at most as many leaves as a spine has ports. Three tiers: pods of such trees with half of
//! each spine's ports up. With rails each adapter of a host has leaves of its own.

use std::fmt;

use serde::Serialize;

use crate::generate::FatTree;
use crate::rate::Rate;

/// How hosts' adapters are spread.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Adapters of a host go to any leaf: one tree.
    FatTree,
    /// Each adapter of a host has a leaf of its own in its unit; spines join the rails.
    Rail,
    /// Each rail is a tree of its own: no way between rails but inside hosts.
    Planes,
    /// Each rail is one switch, and there are no spines.
    RailOnly,
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// GPUs in all.
    pub gpus: u64,
    /// GPUs a node.
    pub gpus_per_node: u64,
    /// Adapters a node.
    pub nics_per_node: u64,
    /// What an adapter and every link carries.
    pub rate: Rate,
    /// Ports of a switch at that rate.
    pub radix: u64,
    /// How adapters are spread.
    pub layout: Layout,
    /// What hosts can send over what leaves can pass on; 1 is non-blocking.
    pub oversubscription: f64,
    /// Tiers to keep to; the fewest that fit where nothing is said.
    pub tiers: Option<u8>,
}

/// One size of the same design.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Nodes.
    pub nodes: u64,
    /// GPUs.
    pub gpus: u64,
    /// Switches next to hosts.
    pub leaves: u64,
    /// Switches of the second tier.
    pub spines: u64,
    /// Switches of the third tier.
    pub cores: u64,
    /// Cables between switches.
    pub switch_cables: u64,
}

/// A fabric that fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Design {
    /// How adapters are spread.
    pub layout: Layout,
    /// Tiers of switches.
    pub tiers: u8,
    /// Trees that are not joined.
    pub planes: u64,
    /// Nodes.
    pub nodes: u64,
    /// GPUs that those nodes have.
    pub gpus: u64,
    /// Adapters.
    pub endpoints: u64,
    /// Ports of a leaf down and up.
    pub leaf_down: u64,
    /// Ports of a leaf up.
    pub leaf_up: u64,
    /// Nodes of a unit: those that share leaves.
    pub unit_nodes: u64,
    /// Units.
    pub units: u64,
    /// Switches next to hosts.
    pub leaves: u64,
    /// Switches of the second tier.
    pub spines: u64,
    /// Switches of the third tier.
    pub cores: u64,
    /// Switches in all.
    pub switches: u64,
    /// Cables to hosts.
    pub host_cables: u64,
    /// Cables between switches.
    pub switch_cables: u64,
    /// Ports of all switches.
    pub ports: u64,
    /// Ports with a cable.
    pub ports_used: u64,
    /// What hosts can send over what leaves can pass on.
    pub oversubscription: f64,
    /// What crosses the middle, in Gb/s in one direction.
    pub bisection_gbps: f64,
    /// The most nodes of this design with this switch.
    pub nodes_most: u64,
    /// Sizes on the way to the most.
    pub growth: Vec<Step>,
    /// What to know of it.
    pub notes: Vec<String>,
    /// What every link carries.
    pub rate: Rate,
    /// Ports of a switch.
    pub radix: u64,
    /// Adapters a node.
    pub nics_per_node: u64,
    /// GPUs a node.
    pub gpus_per_node: u64,
    #[serde(skip)]
    pod_leaves: u64,
    #[serde(skip)]
    pod_spines: u64,
}

/// Why it does not fit, and what would.
#[derive(Clone, Debug, PartialEq)]
pub struct Misfit {
    /// The reason.
    pub why: String,
    /// What fits instead, each with what is changed.
    pub instead: Vec<(String, Design)>,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Misfit {}

/// Endpoints and switches by tier of the largest non-blocking tree of switches with `k` ports.
#[must_use]
pub fn k_ary(k: u64, tiers: u8) -> Option<(u64, Vec<u64>)> {
    match tiers {
        1 => Some((k, vec![1])),
        2 => Some((k * k / 2, vec![k, k / 2])),
        3 => Some((k * k * k / 4, vec![k * k / 2, k * k / 2, k * k / 4])),
        _ => None,
    }
}

/// Plans a fabric.
///
/// # Errors
///
/// When it does not fit; then what would.
pub fn design(request: &Request) -> Result<Design, Misfit> {
    let plain = |why: String| Misfit { why, instead: Vec::new() };
    check(request).map_err(plain)?;
    match sized(request) {
        Ok(design) => Ok(design),
        Err(why) => Err(Misfit { why, instead: instead(request) }),
    }
}

fn check(request: &Request) -> Result<(), String> {
    let Request { gpus, gpus_per_node, nics_per_node, radix, oversubscription, tiers, .. } =
        *request;
    if gpus == 0 || gpus_per_node == 0 || nics_per_node == 0 {
        return Err(
            "a fabric has GPUs, GPUs a node and adapters a node: each at least 1".to_owned()
        );
    }
    if gpus > 1 << 32 || nics_per_node > 1024 || gpus_per_node > 1024 {
        return Err("more than 4 billion GPUs, or more than 1024 of anything in a node".to_owned());
    }
    if !(2..=4096).contains(&radix) {
        return Err(format!("a switch of {radix} ports: between 2 and 4096 are planned for"));
    }
    if !(1.0..=64.0).contains(&oversubscription) {
        return Err(format!(
            "oversubscription {oversubscription}: between 1 (non-blocking) and 64"
        ));
    }
    match tiers {
        Some(tiers) if !(1..=3).contains(&tiers) => {
            Err(format!("{tiers} tiers: 1, 2 or 3 are planned for"))
        }
        _ => Ok(()),
    }
}

/// Ports of a leaf down and up.
fn split(radix: u64, oversubscription: f64) -> (u64, u64) {
    // The most down for which enough is left up.
    let mut best = (1, radix.saturating_sub(1).max(1));
    for down in 1..radix {
        let up = radix - down;
        if down as f64 <= up as f64 * oversubscription + 1e-9 {
            best = (down, up);
        }
    }
    let (down, up) = best;
    // No more up than is asked for.
    let needed =
        (1..=up).find(|up| down as f64 <= *up as f64 * oversubscription + 1e-9).unwrap_or(up);
    (down, needed)
}

/// The least number from `least` that divides `of`.
fn divisor_from(least: u64, of: u64) -> Option<u64> {
    (least.max(1)..=of).find(|number| of.is_multiple_of(*number))
}

struct Tree {
    tiers: u8,
    leaves: u64,
    spines: u64,
    cores: u64,
    spine_links: u64,
    core_links: u64,
    pod_leaves: u64,
    pod_spines: u64,
}

/// A tree over so many leaves, in the fewest tiers.
fn tree(leaves: u64, group: u64, radix: u64, up: u64, wanted: Option<u8>) -> Result<Tree, String> {
    let none = Tree {
        tiers: 1,
        leaves,
        spines: 0,
        cores: 0,
        spine_links: 0,
        core_links: 0,
        pod_leaves: 0,
        pod_spines: 0,
    };
    if leaves <= 1 && wanted.is_none_or(|wanted| wanted == 1) {
        return Ok(none);
    }
    if wanted == Some(1) {
        return Err(format!("{leaves} leaves need a tier above"));
    }
    let two_tiers = leaves <= radix;
    if two_tiers && wanted != Some(3) {
        let least = (leaves * up).div_ceil(radix);
        let spines = divisor_from(least, up).unwrap_or(up);
        return Ok(Tree { tiers: 2, spines, spine_links: leaves * up, ..none });
    }
    if wanted == Some(2) {
        return Err(format!(
            "{leaves} leaves, but a spine of {radix} ports reaches {radix} of them: two tiers end at {radix} leaves"
        ));
    }
    // Pods: half of each spine's ports down, half up; whole units in a pod.
    let half = radix / 2;
    let pod_leaves = if group <= half { half / group * group } else { half };
    let pods = leaves.div_ceil(pod_leaves.max(1));
    if pods > radix || half == 0 {
        return Err(format!(
            "{leaves} leaves make {pods} pods, but a core of {radix} ports reaches {radix}: three tiers end there"
        ));
    }
    let spines = pods * up;
    let group_cores = divisor_from((pods * half).div_ceil(radix), half).unwrap_or(half);
    Ok(Tree {
        tiers: 3,
        leaves,
        spines,
        cores: up * group_cores,
        spine_links: leaves * up,
        core_links: spines * half,
        pod_leaves,
        pod_spines: up,
    })
}

fn sized(request: &Request) -> Result<Design, String> {
    let nodes = request.gpus.div_ceil(request.gpus_per_node);
    let (down, up) = split(request.radix, request.oversubscription);
    let mut design = of_nodes(request, nodes, down, up)?;
    design.nodes_most = most_nodes(request, design.tiers, down);
    design.growth = growth(request, &design, down, up);
    Ok(design)
}

fn of_nodes(request: &Request, nodes: u64, down: u64, up: u64) -> Result<Design, String> {
    let Request { radix, nics_per_node: nics, .. } = *request;
    let endpoints = nodes * nics;
    let mut notes = Vec::new();
    let (leaves, group, planes, unit_nodes, built) = match request.layout {
        Layout::FatTree => {
            let whole = if endpoints <= radix && request.tiers.is_none_or(|tiers| tiers == 1) {
                1
            } else {
                endpoints.div_ceil(down)
            };
            (whole, 1, 1, (down / nics).max(1), tree(whole, 1, radix, up, request.tiers)?)
        }
        Layout::Rail => {
            let units = nodes.div_ceil(down);
            let leaves = units * nics;
            (leaves, nics, 1, down, tree(leaves, nics, radix, up, request.tiers)?)
        }
        Layout::Planes => {
            let single = nodes <= radix && request.tiers.is_none_or(|tiers| tiers == 1);
            let leaves = if single { 1 } else { nodes.div_ceil(down) };
            notes.push("rails are joined inside hosts only (NVLink, PXN): no way between rails in the network".to_owned());
            (leaves, 1, nics, down, tree(leaves, 1, radix, up, request.tiers)?)
        }
        Layout::RailOnly => {
            if nodes > radix {
                return Err(format!(
                    "{nodes} nodes, but without spines a rail is one switch of {radix} ports"
                ));
            }
            notes.push("rails are joined inside hosts only (NVLink, PXN): no way between rails in the network".to_owned());
            (1, 1, nics, radix, tree(1, 1, radix, up, Some(1))?)
        }
    };
    if built.tiers == 2 {
        let least = (leaves * up).div_ceil(radix);
        if built.spines > least {
            notes.push(format!(
                "{} spines, though {least} have the ports: so that each leaf has the same number of cables to each",
                built.spines * planes
            ));
        }
    }
    let single = built.tiers == 1;
    let (leaf_down, leaf_up) = if single { (radix, 0) } else { (down, up) };
    let switches = (built.leaves + built.spines + built.cores) * planes;
    let switch_cables = (built.spine_links + built.core_links) * planes;
    let oversubscription = if single { 1.0 } else { down as f64 / up as f64 };
    let half_rate = endpoints as f64 / 2.0 * request.rate.gbps();
    Ok(Design {
        layout: request.layout,
        tiers: built.tiers,
        planes,
        nodes,
        gpus: nodes * request.gpus_per_node,
        endpoints,
        leaf_down,
        leaf_up,
        unit_nodes: if single && request.layout != Layout::FatTree { radix } else { unit_nodes },
        units: leaves.div_ceil(group),
        leaves: built.leaves * planes,
        spines: built.spines * planes,
        cores: built.cores * planes,
        switches,
        host_cables: endpoints,
        switch_cables,
        ports: switches * radix,
        ports_used: endpoints + switch_cables * 2,
        oversubscription,
        bisection_gbps: half_rate / oversubscription.max(1.0),
        nodes_most: 0,
        growth: Vec::new(),
        notes,
        rate: request.rate,
        radix,
        nics_per_node: nics,
        gpus_per_node: request.gpus_per_node,
        pod_leaves: built.pod_leaves,
        pod_spines: built.pod_spines,
    })
}

/// The most nodes in so many tiers.
fn most_nodes(request: &Request, tiers: u8, down: u64) -> u64 {
    let radix = request.radix;
    let group = if request.layout == Layout::Rail { request.nics_per_node } else { 1 };
    let half = radix / 2;
    let leaves = match tiers {
        1 => 1,
        2 => radix / group * group,
        _ => (if group <= half { half / group * group } else { half }) * radix,
    };
    match (request.layout, tiers) {
        (Layout::FatTree, 1) => radix / request.nics_per_node,
        (Layout::FatTree, _) => leaves * down / request.nics_per_node,
        (Layout::Rail, 1) => radix,
        (Layout::Rail, _) => leaves / group * down,
        (Layout::Planes | Layout::RailOnly, 1) => radix,
        (Layout::Planes | Layout::RailOnly, _) => leaves * down,
    }
}

/// Sizes from one unit up to the most, doubling, and this one.
fn growth(request: &Request, design: &Design, down: u64, up: u64) -> Vec<Step> {
    let first = match request.layout {
        Layout::FatTree => (down / request.nics_per_node).max(1),
        _ => design.unit_nodes,
    };
    let mut sizes = vec![design.nodes, design.nodes_most];
    let mut size = first.max(1);
    while size < design.nodes_most && sizes.len() < 40 {
        sizes.push(size);
        size = size.saturating_mul(2);
    }
    sizes.sort_unstable();
    sizes.dedup();
    let kept = |size: &u64| *size > 0 && *size <= design.nodes_most;
    let request = Request { tiers: Some(design.tiers), ..*request };
    let step = |nodes: u64| {
        let sized = of_nodes(&request, nodes, down, up).ok()?;
        Some(Step {
            nodes,
            gpus: sized.gpus,
            leaves: sized.leaves,
            spines: sized.spines,
            cores: sized.cores,
            switch_cables: sized.switch_cables,
        })
    };
    sizes.into_iter().filter(kept).filter_map(step).collect()
}

/// What would fit with one thing changed.
fn instead(request: &Request) -> Vec<(String, Design)> {
    let mut found = Vec::new();
    let mut offer = |what: String, changed: Request| {
        if let Ok(design) = sized(&changed) {
            found.push((what, design));
        }
    };
    if request.tiers.is_some() {
        for tiers in 1..=3 {
            if request.tiers.is_some_and(|own| tiers > own) {
                offer(format!("--tiers {tiers}"), Request { tiers: Some(tiers), ..*request });
                break;
            }
        }
    }
    if request.layout == Layout::Rail {
        offer(
            "--layout planes: each rail a tree of its own".to_owned(),
            Request { layout: Layout::Planes, ..*request },
        );
    }
    for radix in [64, 72, 128, 144, 256, 512] {
        if radix > request.radix && sized(&Request { radix, ..*request }).is_ok() {
            offer(format!("--radix {radix}"), Request { radix, ..*request });
            break;
        }
    }
    for oversubscription in [2.0, 3.0, 4.0, 8.0] {
        let changed = Request { oversubscription, ..*request };
        if oversubscription > request.oversubscription && sized(&changed).is_ok() {
            offer(format!("--oversubscription {oversubscription}"), changed);
            break;
        }
    }
    found
}

impl Design {
    /// What one GPU gets of its node's adapters in each direction, in GB/s.
    #[must_use]
    pub fn gpu_gbytes(&self) -> f64 {
        self.nics_per_node as f64 * self.rate.gbps() / 8.0 / self.gpus_per_node as f64
    }

    /// The fabric itself, where it is one tree: to be shown, drawn, written or simulated.
    #[must_use]
    pub fn tree(&self) -> Option<FatTree> {
        if self.planes > 1 {
            return None;
        }
        let number = |value: u64| usize::try_from(value).ok();
        Some(FatTree {
            hosts: number(self.nodes)?,
            adapters: number(self.nics_per_node)?,
            rails: self.layout == Layout::Rail && self.tiers > 1,
            down: number(self.leaf_down)?,
            up: number(self.leaf_up)?,
            spines: number(if self.tiers == 3 { self.pod_spines } else { self.spines })?,
            pod_leaves: number(self.pod_leaves)?,
            spine_up: number(if self.tiers == 3 { self.radix / 2 } else { 0 })?,
            cores: number(self.cores)?,
            rate: self.rate,
        })
    }
}

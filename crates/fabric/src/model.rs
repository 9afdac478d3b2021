//! The fabric: nodes with ports, links between ports, hosts that own adapters.
//!
//! Everything is found by index: a [`Link`] joins two [`End`]s, an end is a node and one of its ports. That is
//! all a flow needs to be routed: who is at the other end of each port, how fast the link is, and in which tier a
//! switch stands.
//!
//! *Invariant:* every index is in range; a port's link names that port as one of its ends; ports of a node are in
//! the order of their numbers.

use serde::Serialize;

use crate::counter::Counters;
use crate::rate::Rate;

/// Place of a node in [`Fabric::nodes`].
pub type NodeIndex = usize;
/// Place of a link in [`Fabric::links`].
pub type LinkIndex = usize;
/// Place of a host in [`Fabric::hosts`].
pub type HostIndex = usize;

/// What a node is.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It forwards.
    Switch,
    /// A host's end: an HCA, or one port of an Ethernet NIC.
    Adapter,
    /// A switch's own end for reductions in the network.
    Aggregation,
    /// Between subnets.
    Router,
}

/// How a port stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// Not told.
    #[default]
    Unknown,
    /// It carries traffic.
    Active,
    /// The link is there, but nobody has made it active.
    Init,
    /// Nothing is at the other end, or it does not answer.
    Down,
}

/// One port of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Port {
    /// From 1; Ethernet's ports are numbered in the order of their names.
    pub number: u32,
    /// An Ethernet port's name.
    pub name: Option<String>,
    /// What is plugged in.
    pub link: Option<LinkIndex>,
    /// How it stands.
    pub state: PortState,
    /// What the port said of itself: `Polling`, `Disabled`.
    pub physical: Option<String>,
    /// The rate that the port told by itself, apart from its link.
    pub rate: Option<Rate>,
    /// What both ends could do, by `iblinkinfo`; empty where they do all they can.
    pub could_be: Option<String>,
    /// Its local identifier.
    pub lid: Option<u32>,
    /// Its GUID.
    pub guid: Option<u64>,
    /// What it has counted.
    pub counters: Option<Box<Counters>>,
}

impl Port {
    /// The port as people call it: its name or its number.
    #[must_use]
    pub fn called(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.number.to_string())
    }
}

/// A switch or an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// What no other node is called by: the GUID, or the name where there is none.
    pub id: String,
    /// The GUID.
    pub guid: Option<u64>,
    /// A switch's name; an adapter's with its host's: `node17 mlx5_3`.
    pub name: String,
    /// An adapter's name in its host: `mlx5_3`.
    pub label: String,
    /// A switch's model: `MQM9701`.
    pub model: Option<String>,
    /// What kind of device it is, as the dump tells it.
    pub device: Option<String>,
    /// Its local identifier.
    pub lid: Option<u32>,
    /// How many ports it says it has; 0 where it does not.
    pub port_count: u32,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// What it said is broken: fans, power supplies.
    pub faults: Vec<String>,
    /// Whose adapter it is.
    pub host: Option<HostIndex>,
    /// From 1 for switches that hosts are plugged into; 0 for what is no switch.
    pub tier: u8,
    /// The ports that were told of, by number.
    pub ports: Vec<Port>,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct End {
    /// Place in [`Fabric::nodes`].
    pub node: NodeIndex,
    /// Place in [`Node::ports`].
    pub port: usize,
}

/// One cable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Where it is plugged in.
    pub ends: [End; 2],
    /// What it carries in each direction.
    pub rate: Option<Rate>,
}

impl Link {
    /// The other end, seen from a node.
    #[must_use]
    pub fn across(&self, node: NodeIndex) -> End {
        if self.ends[0].node == node { self.ends[1] } else { self.ends[0] }
    }

    /// The end at a node.
    #[must_use]
    pub fn at(&self, node: NodeIndex) -> End {
        if self.ends[0].node == node { self.ends[0] } else { self.ends[1] }
    }
}

/// A machine with adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Whether that is a host's name. Adapters that carry their maker's name are kept together under it.
    pub named: bool,
    /// Its adapters, in the order of their labels.
    pub adapters: Vec<NodeIndex>,
}

/// What was read.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Source {
    /// The file's name.
    pub name: String,
    /// What it was recognised as.
    pub format: String,
}

/// A whole fabric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fabric {
    /// Switches and adapters.
    pub nodes: Vec<Node>,
    /// Cables.
    pub links: Vec<Link>,
    /// Machines, by name.
    pub hosts: Vec<Host>,
    /// What it was read from.
    pub sources: Vec<Source>,
    /// What did not fit together, in sentences: counters of ports that no dump shows.
    pub remarks: Vec<String>,
    /// How many tiers of switches there are.
    pub tiers: u8,
    /// Whether a list of ports over their thresholds was read: those that it leaves out have counted next to nothing.
    pub errors_listed: bool,
}

impl Fabric {
    /// The switches.
    pub fn switches(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.kind == Kind::Switch)
    }

    /// The switches of one tier.
    pub fn tier(&self, tier: u8) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.switches().filter(move |(_, node)| node.tier == tier)
    }

    /// The adapters.
    pub fn adapters(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.kind == Kind::Adapter)
    }

    /// The links of a node, each with the other end.
    pub fn links_of(&self, node: NodeIndex) -> impl Iterator<Item = (LinkIndex, &Link, End)> {
        let ports = self.nodes.get(node).map_or(&[][..], |node| &node.ports);
        ports.iter().filter_map(move |port| {
            let index = port.link?;
            let link = self.links.get(index)?;
            Some((index, link, link.across(node)))
        })
    }

    /// A port as people call it: `leaf-04 port 35`, `node17 mlx5_3`.
    #[must_use]
    pub fn end_name(&self, end: End) -> String {
        let node = &self.nodes[end.node];
        let port = &node.ports[end.port];
        match node.kind {
            Kind::Adapter if node.ports.len() < 2 => node.name.clone(),
            _ => format!("{} port {}", node.name, port.called()),
        }
    }

    /// A link as people call it: `leaf-04 port 35 - spine-02 port 4`.
    #[must_use]
    pub fn link_name(&self, link: &Link) -> String {
        format!("{} - {}", self.end_name(link.ends[0]), self.end_name(link.ends[1]))
    }

    /// The links of a switch to higher tiers.
    pub fn uplinks(&self, node: NodeIndex) -> impl Iterator<Item = (LinkIndex, &Link, End)> {
        let tier = self.nodes.get(node).map_or(0, |node| node.tier);
        self.links_of(node).filter(move |(_, _, end)| {
            let other = &self.nodes[end.node];
            other.kind == Kind::Switch && other.tier > tier
        })
    }

    /// The links of a switch to hosts and to lower tiers.
    pub fn downlinks(&self, node: NodeIndex) -> impl Iterator<Item = (LinkIndex, &Link, End)> {
        let tier = self.nodes.get(node).map_or(0, |node| node.tier);
        self.links_of(node).filter(move |(_, _, end)| {
            let other = &self.nodes[end.node];
            other.kind == Kind::Adapter || (other.kind == Kind::Switch && other.tier < tier)
        })
    }

    /// Whether anything is linked at all; dumps of counters alone have no links.
    #[must_use]
    pub fn has_topology(&self) -> bool {
        !self.links.is_empty()
    }
}

//! What goes wrong, and when.

use ringway_fabric::model::{LinkIndex, NodeIndex};

use crate::error::SimError;
use crate::network::{Network, small};

/// Something that happens to the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// When.
    pub us: f64,
    /// What.
    pub what: Change,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// A cable carries nothing any more; what is on it takes another way.
    LinkDown(LinkIndex),
    /// A cable carries again; flows that begin from now on may use it.
    LinkUp(LinkIndex),
    /// A cable carries a part of what it should, in both directions; 1 ends it.
    LinkSlow {
        /// Which.
        link: LinkIndex,
        /// The part.
        part: f64,
    },
    /// All cables between two nodes go down at once.
    CablesDown(NodeIndex, NodeIndex),
    /// All cables of a switch go down.
    SwitchDown(NodeIndex),
    /// A rank's GPU has a part of its links: inside its host, and the bus of its adapters.
    RankSlow {
        /// Which.
        rank: u32,
        /// The part.
        part: f64,
    },
}

/// What a fault does to links.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Effect {
    pub(crate) links: Vec<u32>,
    pub(crate) kind: EffectKind,
    /// What happened, in words.
    pub(crate) what: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EffectKind {
    Down,
    Up,
    Slow(f64),
}

impl Fault {
    /// What it does, on this network.
    pub(crate) fn effect(&self, network: &Network) -> Result<Effect, SimError> {
        let wrong = |why: String| SimError::Fault { us: self.us, why };
        if !(self.us.is_finite() && self.us >= 0.0) {
            return Err(wrong("no such time".to_owned()));
        }
        let cable = |link: LinkIndex| match network.fabric.links.get(link) {
            Some(cable) => Ok((both(link), network.fabric.link_name(cable))),
            None => Err(wrong(format!("there is no link {link}"))),
        };
        let part_of = |part: f64| match part > 0.0 && part <= 1.0 {
            true => Ok(part),
            false => Err(wrong(format!(
                "a part is more than 0 and at most 1, not {part}; take the link down instead"
            ))),
        };
        let switch = |node: NodeIndex| match network.switch_of.get(node) {
            Some(place) if *place != u32::MAX => {
                let cables = network.cables.of(node).iter();
                let links = cables.flat_map(|(link, _)| [*link, *link ^ 1]).collect();
                Ok((links, network.fabric.nodes[node].name.clone()))
            }
            _ => Err(wrong(format!("node {node} is no switch"))),
        };
        let (links, kind, what) = match self.what {
            Change::LinkDown(link) => {
                let (links, name) = cable(link)?;
                (links, EffectKind::Down, format!("{name} went down"))
            }
            Change::LinkUp(link) => {
                let (links, name) = cable(link)?;
                (links, EffectKind::Up, format!("{name} came up"))
            }
            Change::LinkSlow { link, part } => {
                let (links, name) = cable(link)?;
                (links, EffectKind::Slow(part_of(part)?), slowed(&name, part))
            }
            Change::CablesDown(a, b) => {
                let nodes = &network.fabric.nodes;
                let (Some(first), Some(second)) = (nodes.get(a), nodes.get(b)) else {
                    return Err(wrong(format!("there are no nodes {a} and {b}")));
                };
                let cables = network.cables_between(a, b);
                let what = format!(
                    "the {} cables between {} and {} went down",
                    cables.len(),
                    first.name,
                    second.name
                );
                (cables.into_iter().flat_map(both).collect(), EffectKind::Down, what)
            }
            Change::SwitchDown(node) => {
                let (links, name) = switch(node)?;
                (links, EffectKind::Down, format!("{name} went down"))
            }
            Change::RankSlow { rank, part } => {
                if rank as usize >= network.ranks() {
                    return Err(wrong(format!("there is no rank {rank}")));
                }
                let (out, into) = network.inside(rank);
                let own = network.own_adapters[rank as usize];
                let bus = (0..own).map(|key| network.bus(network.adapter_of(rank, key.into())));
                let mut links = vec![out, into];
                links.extend(bus.flat_map(|(out, into)| [out, into]));
                (links, EffectKind::Slow(part_of(part)?), slowed(&network.rank_name(rank), part))
            }
        };
        Ok(Effect { links, kind, what })
    }
}

fn both(link: LinkIndex) -> Vec<u32> {
    vec![small(2 * link), small(2 * link + 1)]
}

fn slowed(name: &str, part: f64) -> String {
    if part < 1.0 {
        format!("{name} has {:.0} % of its bandwidth", part * 100.0)
    } else {
        format!("{name} has all of its bandwidth again")
    }
}

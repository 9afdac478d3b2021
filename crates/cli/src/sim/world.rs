//! The network that is simulated, and what goes wrong on it.

use anyhow::{Context as _, bail};
use ringway_fabric::generate::Dragonfly;
use ringway_fabric::model::{Kind, LinkIndex, NodeIndex};
use ringway_fabric::plan::design;
use ringway_plan::topology::{Topology, xml};
use ringway_sim::engine::Options;
use ringway_sim::fault::{Change, Fault};
use ringway_sim::machine::Machine;
use ringway_sim::network::Network;
use ringway_sim::route::Routing;
use ringway_sim::solve::Pause;

use super::args::{CommonArgs, FabricArgs, MachineArgs, RoutingArgs, WayArg, time};
use crate::env::catalogue::distance;
use crate::fabric::args::{DumpArgs, LayoutArg, ReadingArgs};
use crate::fabric::input;

/// The fabric with machines at its ends.
pub(super) fn network(args: &CommonArgs) -> anyhow::Result<Network> {
    let machine = machine(&args.machine, args.fabric.design.gpus_per_node)?;
    let railed =
        args.fabric.dragonfly.is_none() && !matches!(args.fabric.design.layout, LayoutArg::FatTree);
    if args.machine.no_pxn && args.fabric.dump.is_empty() && !railed {
        bail!(
            "--no-pxn says what goes between rails: it is for --layout rail, or a dump of such a fabric"
        );
    }
    let mut wanted = args.fabric.clone();
    wanted.design.gpus_per_node = machine.gpus as u64;
    let fabric = fabric(&wanted)?;
    let ranks = args.fabric.design.gpus.map(usize::try_from).transpose()?;
    Ok(Network::build(fabric, machine, ranks)?)
}

fn fabric(args: &FabricArgs) -> anyhow::Result<ringway_fabric::Fabric> {
    if !args.dump.is_empty() {
        let reading = ReadingArgs { partial: args.partial, rate: args.design.rate };
        return input::fabric(&DumpArgs { dumps: args.dump.clone(), reading });
    }
    let Some(gpus) = args.design.gpus else {
        bail!("--gpus says how many there are, or --dump where the fabric is");
    };
    if let Some([routers, down, global]) = args.dragonfly {
        let hosts = usize::try_from(gpus.div_ceil(args.design.gpus_per_node.max(1)))?;
        let adapters = usize::try_from(args.design.nics.unwrap_or(args.design.gpus_per_node))?;
        let rate = args.design.rate()?;
        let fly = Dragonfly { hosts, adapters, down, routers, global, rate };
        return fly.build().context("the dragonfly cannot be built");
    }
    let planned = design(&args.design.request(gpus)?).map_err(|misfit| {
        let change = misfit.instead.first().map(|(change, _)| format!("; it fits with {change}"));
        anyhow::anyhow!("{}{}", misfit.why, change.unwrap_or_default())
    })?;
    let Some(tree) = planned.tree() else {
        bail!("rails that are trees of their own are not generated: --layout rail or fat-tree");
    };
    tree.build().context("the fabric cannot be built")
}

fn machine(args: &MachineArgs, gpus: u64) -> anyhow::Result<Machine> {
    let mut machine = match &args.topology {
        Some(path) => {
            let name = || path.display().to_string();
            let bytes = std::fs::read(path).with_context(name)?;
            let document = xml::read(&bytes).with_context(name)?;
            let topology = Topology::from_document(&document).with_context(name)?;
            Machine::from_topology(&topology).with_context(name)?
        }
        None => Machine { gpus: usize::try_from(gpus)?, ..Machine::default() },
    };
    machine.inside_gbytes = args.nvlink.unwrap_or(machine.inside_gbytes);
    machine.bus_gbytes = args.pcie.unwrap_or(machine.bus_gbytes);
    machine.inside_us = args.inside_us;
    machine.net_us = args.net_us;
    machine.switch_us = args.switch_us;
    machine.through_rail = !args.no_pxn;
    Ok(machine)
}

/// Whether the routing reads all that it was told.
pub(super) fn check_routing(args: &RoutingArgs) -> anyhow::Result<()> {
    let name = args.routing.name();
    let hashes = matches!(args.routing, WayArg::Ecmp | WayArg::Polarised);
    if args.routing != WayArg::Polarised && !args.polarised.is_empty() {
        bail!("--polarised is for --routing polarised, and it is {name}");
    }
    if !hashes && args.entropy.is_some() {
        bail!("--entropy is for --routing ecmp or polarised: {name} has no hash");
    }
    if !hashes && args.seeds > 1 {
        bail!(
            "--seeds is for --routing ecmp or polarised: {name} has no hash, and all seeds are alike"
        );
    }
    if !hashes && args.seed.is_some() {
        bail!("--seed is for --routing ecmp or polarised: {name} has no hash");
    }
    Ok(())
}

/// How to simulate, with one seed.
pub(super) fn options(args: &CommonArgs, network: &Network, seed: u64) -> anyhow::Result<Options> {
    let polarised = args.routing.polarised.iter().map(|name| switch(network, name));
    let routing = Routing {
        way: args.routing.routing.into(),
        seed,
        polarised: polarised.collect::<anyhow::Result<_>>()?,
        entropy: args.routing.entropy,
    };
    let mut faults = Vec::new();
    for text in &args.faults.down {
        faults.extend(down(network, text).with_context(|| format!("--down {text}"))?);
    }
    for text in &args.faults.slow {
        faults.extend(slow(network, text).with_context(|| format!("--slow {text}"))?);
    }
    let late = args
        .faults
        .straggler
        .iter()
        .map(|text| late(network, text).with_context(|| format!("--straggler {text}")));
    Ok(Options {
        routing,
        faults,
        late: late.collect::<anyhow::Result<_>>()?,
        pause: if args.faults.pause_spreads { Pause::Spreads } else { Pause::Never },
        ..Options::default()
    })
}

/// `leaf-1-spine-2@500us`, `leaf-1:33@1ms`, `spine-2@0`.
fn down(network: &Network, text: &str) -> anyhow::Result<Vec<Fault>> {
    let Some((what, when)) = text.rsplit_once('@') else { bail!("wanted is WHAT@TIME") };
    let us = time(when).map_err(anyhow::Error::msg)?;
    if let Some(node) = network.switch_named(what) {
        return Ok(vec![Fault { us, what: Change::SwitchDown(node) }]);
    }
    let links = links(network, what)?;
    let what = match links[..] {
        [link] => Change::LinkDown(link),
        // All of them join the same two.
        _ => {
            let [a, b] = network.fabric.links[links[0]].ends.map(|end| end.node);
            Change::CablesDown(a, b)
        }
    };
    Ok(vec![Fault { us, what }])
}

/// `leaf-1-spine-2=50%@0`, `spine-2=50%@0`.
fn slow(network: &Network, text: &str) -> anyhow::Result<Vec<Fault>> {
    let parts = text.rsplit_once('@').and_then(|(what, when)| {
        let (link, part) = what.rsplit_once('=')?;
        Some((link, part, when))
    });
    let Some((link, part, when)) = parts else { bail!("wanted is WHAT=PART@TIME") };
    let us = time(when).map_err(anyhow::Error::msg)?;
    let percent = part.strip_suffix('%').and_then(|part| part.trim().parse::<f64>().ok());
    let part = match percent.map(|percent| percent / 100.0).or_else(|| part.parse().ok()) {
        Some(part) if part > 0.0 && part <= 1.0 => part,
        _ => bail!("{part} is no part: 50%, 0.5"),
    };
    let links = match network.switch_named(link) {
        Some(node) => network.fabric.links_of(node).map(|(link, _, _)| link).collect(),
        None => links(network, link)?,
    };
    Ok(links.into_iter().map(|link| Fault { us, what: Change::LinkSlow { link, part } }).collect())
}

/// `17=2ms`.
fn late(network: &Network, text: &str) -> anyhow::Result<(u32, f64)> {
    let Some((rank, when)) = text.split_once('=') else { bail!("wanted is RANK=TIME") };
    let last = network.ranks().saturating_sub(1);
    match rank.trim().parse::<u32>() {
        Ok(rank) if rank as usize <= last => Ok((rank, time(when).map_err(anyhow::Error::msg)?)),
        _ => bail!("{rank} is no rank: 0 to {last}"),
    }
}

/// All cables between two, or the one in a port.
fn links(network: &Network, text: &str) -> anyhow::Result<Vec<LinkIndex>> {
    let fabric = &network.fabric;
    if let Some((name, port)) = text.rsplit_once(':') {
        let node = node(network, name)?;
        let found = fabric.nodes[node].ports.iter().find(|one| one.called() == port);
        let Some(link) = found.and_then(|port| port.link) else {
            bail!("nothing is plugged into port {port} of {name}");
        };
        return Ok(vec![link]);
    }
    // Names have the same sign in them that stands between them.
    let named = |name: &str| fabric.nodes.iter().position(|node| node.name == name);
    for (at, _) in text.match_indices('-') {
        let (a, b) = (&text[..at], &text[at + 1..]);
        if let (Some(first), Some(second)) = (named(a), named(b)) {
            let links = network.cables_between(first, second);
            if links.is_empty() {
                bail!("no cable joins {a} and {b}");
            }
            return Ok(links);
        }
    }
    // The half that is right says which half is wrong.
    for (at, _) in text.match_indices('-') {
        let (a, b) = (&text[..at], &text[at + 1..]);
        if named(a).is_some() {
            node(network, b)?;
        }
        if named(b).is_some() {
            node(network, a)?;
        }
    }
    let sample = fabric
        .links
        .iter()
        .find(|link| link.ends.iter().all(|end| fabric.nodes[end.node].kind == Kind::Switch));
    let sample = sample.or_else(|| fabric.links.first()).map(|link| {
        let [a, b] = link.ends.map(|end| fabric.nodes[end.node].name.as_str());
        format!("; there is {a}-{b}")
    });
    bail!("no switch is called {text}, and no two joined by it{}", near_or(network, text, sample))
}

fn near_or(network: &Network, text: &str, sample: Option<String>) -> String {
    let near = nearest(network, text).map(|near| format!("; did you mean {near}?"));
    near.or(sample).unwrap_or_default()
}

fn node(network: &Network, name: &str) -> anyhow::Result<NodeIndex> {
    match network.fabric.nodes.iter().position(|node| node.name == name) {
        Some(node) => Ok(node),
        None => bail!("nothing is called {name}{}", near_or(network, name, None)),
    }
}

fn switch(network: &Network, name: &str) -> anyhow::Result<NodeIndex> {
    match network.switch_named(name) {
        Some(node) => Ok(node),
        None => bail!("--polarised {name}: no such switch{}", near_or(network, name, None)),
    }
}

/// What is called nearly like it.
fn nearest<'n>(network: &'n Network, name: &str) -> Option<&'n str> {
    let names = network.fabric.nodes.iter().map(|node| node.name.as_str());
    let near = names.filter_map(|known| Some((distance(name, known, 3)?, known)));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// `0-63,70`; everybody where nothing is said.
pub(super) fn ranks(text: Option<&str>, network: &Network) -> anyhow::Result<Vec<u32>> {
    let all = u32::try_from(network.ranks())?;
    let Some(text) = text else { return Ok((0..all).collect()) };
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let ends = first.trim().parse::<u32>().ok().zip(last.trim().parse::<u32>().ok());
        match ends {
            Some((first, last)) if first <= last && last < all => ranks.extend(first..=last),
            _ => bail!("--ranks {part}: wanted are ranks of 0 to {}, as 0-63,70", all - 1),
        }
    }
    Ok(ranks)
}

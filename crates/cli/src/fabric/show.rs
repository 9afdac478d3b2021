//! `ringway fabric show`: a page that reads the same for 40 switches and for 2,000.

use crate::exit::ExitCode;
use std::fmt::Write as _;

use ringway_fabric::Fabric;
use ringway_fabric::rate::bandwidth;
use ringway_fabric::shape::{Shape, SwitchShape, TierShape};

use super::args::ShowArgs;
use super::input;
use crate::output;

/// Up to so many switches all are listed; of more, those that differ from the others.
const LISTED_MOST: usize = 64;
/// Of those that differ, so many; `--all` lists all.
const DIFFERING_MOST: usize = 40;

pub(super) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let fabric = input::fabric(&args.dumps)?;
    let shape = Shape::of(&fabric);
    if args.json {
        let mut document = serde_json::to_value(&shape)?;
        document["version"] = 1.into();
        document["sources"] = serde_json::to_value(&fabric.sources)?;
        output::line(&serde_json::to_string_pretty(&document)?)?;
    } else {
        output::stdout_bytes(page(&fabric, &shape, args.all).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(fabric: &Fabric, shape: &Shape, all: bool) -> String {
    let mut page = String::new();
    let rails =
        if shape.rails > 1 { format!("{} rails", shape.rails) } else { "no rails".to_owned() };
    let units = if shape.units > 1 && shape.rails > 1 {
        format!(", {} units", shape.units)
    } else {
        String::new()
    };
    let mut line = |name: &str, text: String| {
        let _ = writeln!(page, "{name:<10} {text}");
    };
    line(
        "switches",
        format!(
            "{} in {}, {rails}{units}",
            shape.switches,
            many(shape.tiers.len(), "tier", "tiers")
        ),
    );
    line("hosts", hosts(shape));
    let aggregation = match shape.aggregation_nodes {
        0 => String::new(),
        count => format!(", and {count} aggregation nodes of switches"),
    };
    line("adapters", format!("{}{aggregation}", shape.adapters));
    let rates: Vec<String> = shape
        .rates
        .iter()
        .map(|count| {
            let rate =
                count.rate.map_or_else(|| "of unknown rate".to_owned(), |rate| rate.to_string());
            if shape.rates.len() == 1 {
                format!("all {rate}")
            } else {
                format!("{} {rate}", count.links)
            }
        })
        .collect();
    let rates = if rates.is_empty() { String::new() } else { format!(": {}", rates.join(", ")) };
    line("links", format!("{} ({} ends){rates}", shape.links, shape.link_ends));
    if fabric.has_topology() {
        let part = shape.bisection.part() * 100.0;
        let unknown = format!(
            "{part:.0} % of what half of the hosts could send; no dump tells rates: --rate says them"
        );
        let known = format!(
            "{} of the {} that half of the hosts could send ({part:.0} %)",
            bandwidth(shape.bisection.gbps),
            bandwidth(shape.bisection.wanted_gbps)
        );
        line("bisection", if shape.rates_known { known } else { unknown });
        if shape.parts > 1 {
            line("parts", format!("{} that are not linked to each other", shape.parts));
        }
    }
    if let Some(paths) = shape.paths {
        let fewer = match paths.fewer {
            0 => String::new(),
            fewer => {
                format!(", {fewer} of {} pairs have fewer, down to {}", paths.pairs, paths.least)
            }
        };
        line(
            "paths",
            format!(
                "{} between two leaves over {} switches{fewer}",
                paths.usual, paths.switches_most
            ),
        );
    }
    if !shape.tiers.is_empty() {
        page.push('\n');
        page.push_str(&tiers(&shape.tiers, shape.rates_known));
        page.push('\n');
        page.push_str(&switches(shape, all));
    }
    page
}

fn hosts(shape: &Shape) -> String {
    let counts: Vec<String> = shape
        .host_counts
        .iter()
        .take(6)
        .map(|count| {
            format!("{} with {}", count.hosts, many(count.adapters, "adapter", "adapters"))
        })
        .collect();
    let unnamed = match shape.adapters_unnamed {
        0 => String::new(),
        count => format!(
            "; {count} adapters carry their maker's name, counted as {}",
            many(shape.hosts - shape.hosts_named, "host", "hosts")
        ),
    };
    match shape.hosts {
        0 => "none".to_owned(),
        hosts => format!("{hosts}: {}{unnamed}", counts.join(", ")),
    }
}

fn tiers(tiers: &[TierShape], rates_known: bool) -> String {
    let carried = |gbps: f64| if rates_known { bandwidth(gbps) } else { "?".to_owned() };
    let mut rows = vec![
        ["tier", "switches", "down", "carry", "up", "carry", "down:up", "model"].map(str::to_owned),
    ];
    for tier in tiers.iter().rev() {
        let ratio = match (tier.oversubscription, tier.least, tier.most) {
            (Some(ratio), Some(least), Some(most)) if most - least > 0.005 => {
                format!("{ratio:.2} ({least:.2} to {most:.2})")
            }
            (Some(ratio), ..) => format!("{ratio:.2}"),
            _ => "-".to_owned(),
        };
        let up = |text: String| if tier.up_links == 0 { "-".to_owned() } else { text };
        rows.push([
            tier.tier.to_string(),
            tier.switches.to_string(),
            tier.down_links.to_string(),
            carried(tier.down_gbps),
            up(tier.up_links.to_string()),
            up(carried(tier.up_gbps)),
            ratio,
            tier.models.join(", "),
        ]);
    }
    table(&rows)
}

/// The switches: all, or those that are not like most of their tier.
fn switches(shape: &Shape, all: bool) -> String {
    let usual = |tier: u8, value: fn(&SwitchShape) -> usize| -> usize {
        let mut counts = std::collections::BTreeMap::new();
        for one in shape.switch_list.iter().filter(|one| one.tier == tier) {
            *counts.entry(value(one)).or_insert(0_usize) += 1;
        }
        counts
            .into_iter()
            .max_by_key(|(value, count)| (*count, *value))
            .map_or(0, |(value, _)| value)
    };
    let few = shape.switches <= LISTED_MOST;
    let mut heading = String::new();
    let mut listed: Vec<&SwitchShape> = shape.switch_list.iter().collect();
    if !all && !few {
        let tiers: Vec<(u8, usize, usize)> = shape
            .tiers
            .iter()
            .map(|tier| {
                (
                    tier.tier,
                    usual(tier.tier, |one| one.up_links),
                    usual(tier.tier, |one| one.host_links + one.down_links),
                )
            })
            .collect();
        let differs = |one: &&SwitchShape| {
            tiers.iter().any(|(tier, up, down)| {
                one.tier == *tier
                    && (one.up_links != *up || one.host_links + one.down_links != *down)
            })
        };
        listed.retain(differs);
        let most: Vec<String> = tiers
            .iter()
            .map(|(tier, up, down)| format!("tier {tier}: {down} down, {up} up"))
            .collect();
        let _ = writeln!(
            heading,
            "Most switches have ({}); {} not:",
            most.join("; "),
            match listed.len() {
                1 => "1 has".to_owned(),
                count => format!("{count} have"),
            }
        );
        if listed.is_empty() {
            return format!("All switches of a tier are alike ({}).\n", most.join("; "));
        }
        // The fewest uplinks first.
        listed.sort_by_key(|one| (one.tier, one.up_links));
    }
    let dropped = if all || few { 0 } else { listed.len().saturating_sub(DIFFERING_MOST) };
    listed.truncate(listed.len() - dropped);
    let with_rails = shape.rails > 1;
    let mut rows = vec![vec!["switch", "tier", "hosts", "down", "up", "to", "down:up"]];
    if with_rails {
        rows[0].extend(["rail", "unit"]);
    }
    let mut rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.into_iter().map(str::to_owned).collect()).collect();
    for one in listed {
        let or_dash = |text: String, is: bool| if is { text } else { "-".to_owned() };
        let mut row = vec![
            one.name.clone(),
            one.tier.to_string(),
            or_dash(one.host_links.to_string(), one.host_links > 0),
            or_dash(one.down_links.to_string(), one.down_links > 0),
            or_dash(one.up_links.to_string(), one.up_links > 0),
            or_dash(many(one.up_switches, "switch", "switches"), one.up_switches > 0),
            one.oversubscription.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        ];
        if with_rails {
            row.push(one.rail.map_or_else(|| "-".to_owned(), |rail| rail.to_string()));
            row.push(one.unit.map_or_else(|| "-".to_owned(), |unit| unit.to_string()));
        }
        rows.push(row);
    }
    let mut text = format!("{heading}{}", table(&rows));
    if dropped > 0 {
        let _ = writeln!(text, "and {dropped} more: --all lists every switch");
    }
    text
}

/// Columns as wide as their widest, two blanks between.
pub(crate) fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.as_ref().get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .as_ref()
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

/// So many of something.
pub(crate) fn many(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

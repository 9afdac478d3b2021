//! `ringway fabric plan`: the page of a plan.

use crate::exit::ExitCode;
use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use ringway_fabric::export;
use ringway_fabric::plan::{Bill, Demand, Design, Misfit, Prices, Supply, Workload, design};
use ringway_fabric::rate::{self, bandwidth};
use serde_json::json;

use super::args::PlanArgs;
use super::show::table;
use crate::output;

/// Exit code of a plan that does not fit.
const EXIT_MISFIT: u8 = 1;

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    if args.rates {
        let text = if args.json {
            format!("{}\n", serde_json::to_string_pretty(&rates_json())?)
        } else {
            rates()
        };
        output::stdout_bytes(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(gpus) = args.design.gpus else { bail!("--gpus says for how many to plan") };
    let request = args.design.request(gpus)?;
    let prices = args.prices.as_deref().map(|path| {
        let name = || path.display().to_string();
        let bytes = std::fs::read(path).with_context(name)?;
        Prices::from_json(&bytes).with_context(name)
    });
    let prices = prices.transpose()?;
    let planned = match design(&request) {
        Ok(planned) => planned,
        Err(misfit) if misfit.instead.is_empty() && !args.json => return Err(misfit.into()),
        Err(misfit) => return misfits(args, &misfit),
    };
    let bill = prices.map(|prices| prices.bill(&planned));
    let workload = args.params.map(|parameters| Workload {
        parameters,
        bytes: args.bytes,
        step_s: args.step,
        overlap: args.overlap,
        parallel: args.parallel.into(),
        inside: args.nvlink,
    });
    let needs = workload.map(|workload| (workload.demand(planned.gpus), workload.supply(&planned)));
    files(args, &planned)?;
    if args.json {
        let document = json!({
            "version": 1,
            "fits": true,
            "design": planned,
            "bill": bill,
            "demand": needs.map(|(demand, _)| demand),
            "supply": needs.map(|(_, supply)| supply),
        });
        output::line(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let page = page(&planned, bill.as_ref(), needs.as_ref());
        output::stdout_bytes(page.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The planned fabric as a picture and as a dump.
fn files(args: &PlanArgs, planned: &Design) -> anyhow::Result<()> {
    if args.svg.is_none() && args.dump.is_none() {
        return Ok(());
    }
    let Some(tree) = planned.tree() else {
        bail!(
            "rails that are trees of their own cannot be drawn or written as one dump; plan one with --nics 1"
        );
    };
    let fabric = tree.build().context("the planned fabric cannot be built")?;
    if let Some(path) = &args.svg {
        let title = format!("plan for {} GPUs", planned.gpus);
        super::write(&export::picture::svg(&fabric, &title), Some(path))?;
    }
    if let Some(path) = &args.dump {
        super::write(&export::ibnetdiscover::write(&fabric), Some(path))?;
    }
    Ok(())
}

fn misfits(args: &PlanArgs, misfit: &Misfit) -> anyhow::Result<ExitCode> {
    if args.json {
        let instead: Vec<_> = misfit
            .instead
            .iter()
            .map(|(what, design)| json!({ "change": what, "design": design }))
            .collect();
        let document =
            json!({ "version": 1, "fits": false, "why": misfit.why, "instead": instead });
        output::line(&serde_json::to_string_pretty(&document)?)?;
        return Ok(ExitCode::from(EXIT_MISFIT));
    }
    let mut page = format!("It does not fit: {}.\n", misfit.why);
    if !misfit.instead.is_empty() {
        let _ = writeln!(page, "\nWhat fits instead:");
        let mut rows = vec![
            ["change", "tiers", "leaves", "spines", "cores", "cables between", "most nodes"]
                .map(str::to_owned),
        ];
        for (what, design) in &misfit.instead {
            rows.push([
                what.clone(),
                design.tiers.to_string(),
                design.leaves.to_string(),
                design.spines.to_string(),
                design.cores.to_string(),
                design.switch_cables.to_string(),
                design.nodes_most.to_string(),
            ]);
        }
        for line in table(&rows).lines() {
            let _ = writeln!(page, "  {line}");
        }
    }
    output::stdout_bytes(page.as_bytes())?;
    Ok(ExitCode::from(EXIT_MISFIT))
}

fn page(design: &Design, bill: Option<&Bill>, needs: Option<&(Demand, Supply)>) -> String {
    let mut page = String::new();
    let mut line = |name: &str, text: String| {
        let _ = writeln!(page, "{name:<14} {text}");
    };
    let planes = if design.planes > 1 {
        format!(", {} trees that are not joined", design.planes)
    } else {
        String::new()
    };
    line(
        "GPUs",
        format!(
            "{} in {} nodes, {} adapters of {}",
            design.gpus,
            design.nodes,
            design.endpoints,
            bandwidth(design.rate.gbps())
        ),
    );
    line("tiers", format!("{} of switches with {} ports{planes}", design.tiers, design.radix));
    let above = match design.tiers {
        1 => String::new(),
        2 => format!(", {} spines", design.spines),
        _ => format!(", {} spines, {} cores", design.spines, design.cores),
    };
    line("switches", format!("{}: {} leaves{above}", design.switches, design.leaves));
    line(
        "leaf",
        format!(
            "{} ports down, {} up: {:.2}:1",
            design.leaf_down, design.leaf_up, design.oversubscription
        ),
    );
    line(
        "unit",
        format!("{} nodes that share leaves; {} of them", design.unit_nodes, design.units),
    );
    line(
        "cables",
        format!("{} to hosts, {} between switches", design.host_cables, design.switch_cables),
    );
    line(
        "ports",
        format!(
            "{} of {} used, {} free",
            design.ports_used,
            design.ports,
            design.ports.saturating_sub(design.ports_used)
        ),
    );
    line(
        "bisection",
        format!(
            "{} = {:.1} TB/s in one direction",
            bandwidth(design.bisection_gbps),
            design.bisection_gbps / 8000.0
        ),
    );
    line(
        "most",
        format!(
            "{} nodes, {} GPUs in this design",
            design.nodes_most,
            design.nodes_most * design.gpus_per_node
        ),
    );
    for note in &design.notes {
        line("note", note.clone());
    }
    if let Some((demand, supply)) = needs {
        page.push('\n');
        page.push_str(&workload_page(demand, supply));
    }
    if let Some(bill) = bill {
        page.push('\n');
        page.push_str(&bill_page(bill));
    }
    if design.growth.len() > 1 {
        let _ = writeln!(page, "\nGrowth:");
        let mut rows = vec![
            ["nodes", "GPUs", "leaves", "spines", "cores", "cables between"].map(str::to_owned),
        ];
        for step in &design.growth {
            let here = if step.nodes == design.nodes { " <" } else { "" };
            rows.push([
                format!("{}{here}", step.nodes),
                step.gpus.to_string(),
                step.leaves.to_string(),
                step.spines.to_string(),
                step.cores.to_string(),
                step.switch_cables.to_string(),
            ]);
        }
        for line in table(&rows).lines() {
            let _ = writeln!(page, "  {line}");
        }
    }
    page
}

fn workload_page(demand: &Demand, supply: &Supply) -> String {
    let mut page = String::new();
    let mut line = |name: &str, text: String| {
        let _ = writeln!(page, "{name:<14} {text}");
    };
    line(
        "wanted",
        format!("{:.1} GB/s of each GPU ({:.1} GB a step)", demand.gbytes, demand.step_bytes / 1e9),
    );
    line(
        "by adapters",
        format!("{:.1} GB/s of each GPU, by its part of its node's adapters alone", supply.alone),
    );
    if let Some(ring) = supply.ring {
        line(
            "by rings",
            format!("{ring:.1} GB/s of each GPU, where NVLink takes the way inside nodes"),
        );
    }
    line(
        "all to all",
        format!("{:.1} GB/s of each GPU where all of it leaves the leaf", supply.all_to_all),
    );
    let enough = if supply.headroom >= 1.0 { "enough" } else { "NOT enough" };
    line(
        "headroom",
        format!(
            "{:.1} times what is wanted: {enough}; busy for {:.3} s of a step",
            supply.headroom, supply.busy_s
        ),
    );
    page
}

fn bill_page(bill: &Bill) -> String {
    let mut rows = vec![["what", "number", "cost", "kW"].map(str::to_owned)];
    let money = |cost: f64| format!("{cost:.0} {}", bill.currency).trim_end().to_owned();
    for line in &bill.lines {
        rows.push([
            line.what.to_owned(),
            line.count.to_string(),
            line.cost.map_or_else(|| "-".to_owned(), money),
            line.watts.map_or_else(|| "-".to_owned(), |watts| format!("{:.1}", watts / 1000.0)),
        ]);
    }
    rows.push([
        "all".to_owned(),
        String::new(),
        money(bill.cost),
        format!("{:.1}", bill.watts / 1000.0),
    ]);
    let mut page = table(&rows);
    if !bill.unpriced.is_empty() {
        let _ = writeln!(page, "without a price: {}", bill.unpriced.join(", "));
    }
    if !bill.unmeasured.is_empty() {
        let _ = writeln!(page, "without watts: {}", bill.unmeasured.join(", "));
    }
    page
}

fn rates() -> String {
    let mut page = String::from("InfiniBand\n");
    let mut rows = vec![["name", "lane Gb/s", "stated 4x", "carries 4x"].map(str::to_owned)];
    for one in &rate::INFINIBAND {
        let carries = bandwidth(f64::from(one.data_mbps) / 1000.0);
        rows.push([
            one.name.to_owned(),
            one.lane.to_owned(),
            format!("{} Gb/s", one.stated_gbps),
            carries,
        ]);
    }
    let gbps: Vec<String> = rate::ETHERNET_GBPS.iter().map(ToString::to_string).collect();
    let mut inside = vec![["inside a node", "stated GB/s", "reached GB/s"].map(str::to_owned)];
    for one in rate::PCIE_X16.iter().chain(&rate::NVLINK) {
        inside.push([one.name.to_owned(), format!("{}", one.stated), format!("{}", one.reached)]);
    }
    let mut rules = vec![["rule", "part", "of"].map(str::to_owned)];
    for rule in &rate::RULES {
        rules.push([rule.name.to_owned(), format!("{:.2}", rule.part), rule.of.to_owned()]);
    }
    page.push_str(&table(&rows));
    let _ = write!(
        page,
        "\nEthernet (RoCE): {} Gb/s\n\n{}\n{}",
        gbps.join(", "),
        table(&inside),
        table(&rules)
    );
    page
}

fn rates_json() -> serde_json::Value {
    json!({
        "version": 1,
        "infiniband": rate::INFINIBAND,
        "ethernet_gbps": rate::ETHERNET_GBPS,
        "pcie_x16": rate::PCIE_X16,
        "nvlink": rate::NVLINK,
        "rules": rate::RULES,
    })
}

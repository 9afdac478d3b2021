//! `ringway net`: the network under collectives, on its own: devices, addresses, bandwidth, latency.
//!
//! The measuring is the library's (`ringway::net`); here are arguments, tables and JSON.

mod args;
mod listing;
mod table;

use crate::exit::ExitCode;
use std::cell::RefCell;

use anyhow::bail;
use ringway::config::{Config, Environment, RdmaSettings};
use ringway::net::{self, Kind, Row, Server, Side, Transport};
use serde_json::json;

use crate::output;
pub(crate) use args::NetArgs;
use args::{MeasureArgs, NetCommand};

/// Runs the subcommand.
pub(crate) fn run(args: &NetArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load(&Environment::from_process());
    for warning in config.warnings.iter().filter(|warning| warning.name.starts_with("NCCL_IB_")) {
        output::remark(&format!("ringway net: {}", warning.text));
    }
    match &args.command {
        NetCommand::Devices(args) => {
            let devices = net::devices(&config.rdma)?;
            listing::show(&devices, args.device.as_deref(), args.json, listing::devices)
        }
        NetCommand::Gids(args) => {
            let devices = net::devices(&config.rdma)?;
            listing::show(&devices, args.device.as_deref(), args.json, listing::gids)
        }
        NetCommand::Bw(args) => measure(args, Kind::Bandwidth, &config),
        NetCommand::Lat(args) => measure(args, Kind::Latency, &config),
    }
}

fn measure(args: &MeasureArgs, kind: Kind, config: &Config) -> anyhow::Result<ExitCode> {
    let mut rdma = config.rdma.clone();
    if let Some(index) = args.gid_index {
        rdma.gid_index = Some(index);
    }
    let Some(host) = &args.host else {
        if !args.server {
            bail!("name the host where the server runs, or be the server: --server");
        }
        return serve(args, &args.side(config)?, &rdma);
    };
    let test = args.test(kind)?;
    let side = args.side(config)?;
    // A reader that goes away in the middle is told of at the end.
    let trouble = RefCell::new(None);
    let print = |text: &str| {
        if let Err(error) = output::line(text) {
            trouble.borrow_mut().get_or_insert(error);
        }
    };
    let mut places = Vec::new();
    let mut rows = Vec::new();
    let mut tell = |place: &str| {
        if places.is_empty() && !args.json {
            print(&table::title(&test));
        }
        places.push(place.to_owned());
        if !args.json {
            // Each way to GPU memory that was refused, in a line of its own.
            print(&format!("# {}", place.replace("; not by ", "\n#   not by ")));
        }
        if places.len() == 2 && !args.json {
            print(&table::heads(&test));
        }
    };
    let mut row = |row: &Row| {
        match args.json {
            true => output::remark(&format!("ringway net:{}", table::row(row))),
            false => print(&table::row(row)),
        }
        rows.push(row.clone());
    };
    let server = (host.as_str(), args.port);
    let outcome = net::measure(server, &test, &rdma, &side, &mut tell, &mut row);
    if let Err(error) = outcome {
        if test.transport == Transport::Rdma && net::devices(&rdma).is_err() {
            bail!("{error}; or measure sockets: --transport tcp");
        }
        return Err(error.into());
    }
    if args.json {
        let document = json!({
            "tool": "ringway net",
            "version": env!("CARGO_PKG_VERSION"),
            "test": test,
            "places": places,
            "rows": rows,
        });
        print(&serde_json::to_string_pretty(&document)?);
    }
    match trouble.into_inner() {
        Some(error) => Err(error.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn serve(args: &MeasureArgs, side: &Side, rdma: &RdmaSettings) -> anyhow::Result<ExitCode> {
    let server = Server::bind(args.port)?;
    output::remark(&format!("ringway net: listening on port {}", server.port()?));
    loop {
        let mut tell = |text: &str| output::remark(&format!("ringway net: {text}"));
        match net::serve(&server, rdma, side, &mut tell) {
            Ok(()) if args.keep => {}
            Ok(()) => return Ok(ExitCode::SUCCESS),
            Err(error) if args.keep => output::remark(&format!("ringway net: {error}")),
            Err(error) => return Err(error.into()),
        }
    }
}

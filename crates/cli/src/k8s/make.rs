//! `ringway k8s gen`: arguments → choices → a manifest.

use anyhow::{Context as _, bail};
use ringway_k8s::generate::{Choices, Link, Net, Variable, manifest};
use ringway_k8s::model::{has_version, shm_wanted};

use super::args::{self, GenArgs};
use crate::env::host::{Host, Interface};
use crate::env::suggest::{self, Fabric};
use crate::exit::ExitCode;
use crate::fabric;
use crate::output;
use crate::snapshot::unpack::Copied;

/// Makes the manifest and writes it.
pub(super) fn run(args: &GenArgs) -> anyhow::Result<ExitCode> {
    let choices = choices(args)?;
    let text = manifest(&choices).with_context(|| "these choices do not fit together")?;
    fabric::write(&text, args.output.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

fn choices(args: &GenArgs) -> anyhow::Result<Choices> {
    let net = Net::from(args.network);
    let link = match args.link {
        Some(link) => link.into(),
        None if net == Net::Rdma => Link::Ib,
        None => Link::Eth,
    };
    let image = image(args)?;
    Ok(Choices {
        kind: args.kind.into(),
        vendor: args.gpu.into(),
        net,
        link,
        name: args.name.clone(),
        namespace: args.namespace.clone(),
        image,
        nodes: args.nodes,
        gpus: args.gpus,
        nics: args.nics.unwrap_or(args.gpus),
        resource: args.resource.clone(),
        masters: args.master.clone(),
        mtu: args.mtu,
        shm: args.shm.clone().unwrap_or_else(|| shm_wanted(args.gpus)),
        topology: args.topology.clone(),
        selector: args.node.clone(),
        command: args.command.clone(),
        variables: variables(args, net, link)?,
        openshift: args.openshift,
        gds: args.gds,
    })
}

fn image(args: &GenArgs) -> anyhow::Result<String> {
    let Some(image) = &args.image else {
        if args.kind == args::Kind::Cluster {
            return Ok(String::new());
        }
        bail!(
            "no --image: give the container image that has the program, as --image ghcr.io/me/train:1.2"
        );
    };
    if !has_version(image) {
        output::remark(&format!(
            "--image {image} has no version: it is another image tomorrow (K8S-27)"
        ));
    }
    Ok(image.clone())
}

/// What `ringway env suggest` writes for such a network, line by line.
fn variables(args: &GenArgs, net: Net, link: Link) -> anyhow::Result<Vec<Variable>> {
    let fabric = match (net, link) {
        (Net::Pod, _) => Fabric::Tcp,
        (Net::Efa, _) => Fabric::Efa,
        (_, Link::Ib) => Fabric::Ib,
        (_, Link::Eth) => Fabric::Roce,
    };
    let mut host = match &args.root {
        Some(path) => Host::read(&Copied::open(path)?.root()),
        None => Host::default(),
    };
    if net != Net::Host {
        // Whatever the node has, the pod meets others over its own interface.
        let eth0 = Interface {
            name: "eth0".to_owned(),
            is_up: true,
            is_useful: true,
            is_usb: false,
            speed: None,
            is_ipoib: false,
        };
        host.interfaces = vec![eth0];
    }
    let block = suggest::block(&host, fabric, args.dscp);
    let mut found: Vec<Variable> = Vec::new();
    let mut why: Vec<&str> = Vec::new();
    for line in block.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            why.push(text);
        } else if let Some((name, value)) = line.split_once('=') {
            // What is commented out is not set, and its reason goes with it.
            if !name.starts_with('#') {
                let why =
                    if why.is_empty() { "With the line above.".to_owned() } else { why.join(" ") };
                found.push(Variable { name: name.to_owned(), value: value.to_owned(), why });
            }
            why.clear();
        }
    }
    Ok(found)
}

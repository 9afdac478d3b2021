//! As JSON: the whole model, by names.

use serde_json::{Value, json};

use crate::model::{Fabric, Kind};
use crate::rate::Rate;
use crate::shape::{Rails, Units};

/// Version of the form; it grows when a field changes its meaning or goes away.
const VERSION: u32 = 1;

/// The document.
#[must_use]
pub fn document(fabric: &Fabric) -> Value {
    let rails = Rails::of(fabric);
    let units = Units::of(fabric);
    let switches: Vec<Value> = fabric
        .switches()
        .map(|(index, node)| {
            json!({
                "id": node.id,
                "name": node.name,
                "tier": node.tier,
                "model": node.model,
                "lid": node.lid,
                "ports": node.port_count,
                "firmware": node.firmware,
                "rail": rails.of_switch.get(&index).map(|rail| rail + 1),
                "unit": units.of_switch.get(&index).map(|unit| unit + 1),
                "pod": units.pod_of_switch.get(&index).map(|pod| pod + 1),
            })
        })
        .collect();
    let hosts: Vec<Value> = fabric
        .hosts
        .iter()
        .map(|host| {
            let adapters: Vec<Value> = host
                .adapters
                .iter()
                .map(|index| {
                    let node = &fabric.nodes[*index];
                    json!({
                        "id": node.id,
                        "label": node.label,
                        "device": node.device,
                        "firmware": node.firmware,
                        "rail": rails.of_adapter.get(index).filter(|_| rails.count > 1).map(|rail| rail + 1),
                    })
                })
                .collect();
            json!({ "name": host.name, "named": host.named, "adapters": adapters })
        })
        .collect();
    let links: Vec<Value> = fabric
        .links
        .iter()
        .map(|link| {
            let [a, b] = link.ends.map(|end| {
                let node = &fabric.nodes[end.node];
                json!({ "id": node.id, "name": node.name, "port": node.ports[end.port].called() })
            });
            json!({ "a": a, "b": b, "rate": link.rate, "gbps": link.rate.map(Rate::gbps) })
        })
        .collect();
    let aggregation: Vec<&str> = fabric
        .nodes
        .iter()
        .filter(|n| n.kind == Kind::Aggregation)
        .map(|n| n.id.as_str())
        .collect();
    json!({
        "version": VERSION,
        "sources": fabric.sources,
        "tiers": fabric.tiers,
        "switches": switches,
        "hosts": hosts,
        "aggregation_nodes": aggregation,
        "links": links,
    })
}

//! The exporter on every node: the host's files, read only, the sockets of jobs, and a port for Prometheus.

use super::node::{self, Look};
use super::{Choices, Vendor, pod};
use crate::write::{Value, item};

/// Where it serves.
const PORT: u64 = 9464;
/// Where jobs have their sockets, on the host as in pods.
const JOBS: &str = "/run/ringway";

pub(super) fn documents(choices: &Choices) -> Vec<Value> {
    let port =
        Value::map().with("name", "metrics").with("port", PORT).with("targetPort", "metrics");
    let service = Value::map()
        .because("Every pod is asked, not one of them.", "clusterIP", "None")
        .with("selector", pod::labels(choices))
        .with("ports", Value::list([port]));
    let annotations = Value::map()
        .with("prometheus.io/scrape", "true")
        .with("prometheus.io/port", PORT.to_string().as_str())
        .with("prometheus.io/path", "/metrics");
    let look = Look {
        what: "exporter",
        container: container(choices),
        capability: Some(("DAC_OVERRIDE", "Sockets of jobs are open to their own users alone.")),
        folders: vec![(
            "jobs",
            JOBS,
            "Pods of jobs mount the same folder, and set RINGWAY_METRICS=exporter.",
        )],
        annotations: Some((
            "For a Prometheus that finds pods by annotations; an operator's goes by the Service.",
            annotations,
        )),
    };
    let mut documents = vec![
        Value::map()
            .with("apiVersion", "v1")
            .with("kind", "Service")
            .with("metadata", choices.metadata(&choices.name).with("labels", pod::labels(choices)))
            .with("spec", service),
    ];
    documents.extend(node::documents(choices, look));
    documents
}

fn container(choices: &Choices) -> Value {
    let listen = format!("0.0.0.0:{PORT}");
    let mut words =
        vec!["ringway", "exporter", "--listen", &listen, "--root", "/host", "--jobs", JOBS];
    if choices.vendor == Vendor::Nvidia {
        words.extend(["--nvml", "on"]);
    }
    let mut container = Value::map()
        .with("name", "exporter")
        .with("image", choices.image.as_str())
        .with("command", Value::list(words.into_iter().map(Value::from)));
    if choices.vendor == Vendor::Nvidia {
        let variable =
            |name: &str, value: &str| Value::map().with("name", name).with("value", value);
        let all = item(
            "NVIDIA's runtime brings NVML; no GPU is taken from a job.",
            variable("NVIDIA_VISIBLE_DEVICES", "all"),
        );
        let utility = item("NVML alone.", variable("NVIDIA_DRIVER_CAPABILITIES", "utility"));
        container = container.with("env", Value::List(vec![all, utility]));
    }
    let port = Value::map().with("name", "metrics").with("containerPort", PORT);
    container.with("ports", Value::list([port]))
}

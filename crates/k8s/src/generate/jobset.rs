//! A JobSet: its controller makes the service, and restarts all ranks together.

use super::{Choices, pod};
use crate::write::Value;

pub(super) fn documents(choices: &Choices) -> Vec<Value> {
    let root = format!("{0}-workers-0-0.{0}", choices.name);
    let index = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
    let mut variables = pod::meeting(choices, &root, index);
    variables.extend(pod::variables(choices));
    let job = Value::map()
        .with("completionMode", "Indexed")
        .with("completions", choices.nodes)
        .with("parallelism", choices.nodes)
        .with("backoffLimit", 0_u64)
        .with("template", pod::template(choices, variables, pod::command(choices), "Never"));
    let workers = Value::map()
        .with("name", "workers")
        .with("replicas", 1_u64)
        .with("template", Value::map().with("spec", job));
    let spec = Value::map()
        .because(
            "All ranks start again together, at most so often.",
            "failurePolicy",
            Value::map().with("maxRestarts", 3_u64),
        )
        .with(
            "network",
            Value::map().with("enableDNSHostnames", true).with("publishNotReadyAddresses", true),
        )
        .with("replicatedJobs", Value::list([workers]));
    let mut metadata = choices.metadata(&choices.name).with("labels", pod::labels(choices));
    if let Some(key) = &choices.topology {
        let annotations =
            Value::map().with("alpha.jobset.sigs.k8s.io/exclusive-topology", key.as_str());
        metadata = metadata.because(
            "One job in each value of the label, whole.",
            "annotations",
            annotations,
        );
    }
    vec![
        Value::map()
            .with("apiVersion", "jobset.x-k8s.io/v1alpha2")
            .with("kind", "JobSet")
            .with("metadata", metadata)
            .with("spec", spec),
    ]
}

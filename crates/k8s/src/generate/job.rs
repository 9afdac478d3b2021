//! An indexed Job: no operator is needed.

use super::{Choices, pod};
use crate::write::Value;

pub(super) fn documents(choices: &Choices) -> Vec<Value> {
    let root = format!("{0}-0.{0}", choices.name);
    let index = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
    let mut variables = pod::meeting(choices, &root, index);
    variables.extend(pod::variables(choices));
    let template = pod::template(choices, variables, pod::command(choices), "Never");
    let spec = Value::map()
        .with("completionMode", "Indexed")
        .because("All at once: a collective waits for every rank.", "completions", choices.nodes)
        .with("parallelism", choices.nodes)
        .because("One rank that ends ends the job.", "backoffLimit", 0_u64)
        .with("template", template);
    let job = Value::map()
        .with("apiVersion", "batch/v1")
        .with("kind", "Job")
        .with("metadata", choices.metadata(&choices.name).with("labels", pod::labels(choices)))
        .with("spec", spec);
    vec![pod::service(choices), job]
}

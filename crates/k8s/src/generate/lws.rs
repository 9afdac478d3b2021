//! A LeaderWorkerSet: groups of pods that serve together.

use super::{Choices, pod};
use crate::write::Value;

pub(super) fn documents(choices: &Choices) -> Vec<Value> {
    let index = "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']";
    let mut variables = pod::meeting(choices, "$(LWS_LEADER_ADDRESS)", index);
    variables.extend(pod::variables(choices));
    // The set's pods always start again; it sets LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and LWS_WORKER_INDEX itself.
    let template = pod::template(choices, variables, pod::command(choices), "");
    let group = Value::map()
        .with("size", choices.nodes)
        .because(
            "One pod that ends takes its group with it: ranks cannot go on without it.",
            "restartPolicy",
            "RecreateGroupOnPodRestart",
        )
        .with("workerTemplate", template);
    let mut metadata = choices.metadata(&choices.name).with("labels", pod::labels(choices));
    if let Some(key) = &choices.topology {
        let annotations =
            Value::map().with("leaderworkerset.sigs.k8s.io/exclusive-topology", key.as_str());
        metadata = metadata.because(
            "One group in each value of the label, whole.",
            "annotations",
            annotations,
        );
    }
    vec![
        Value::map()
            .with("apiVersion", "leaderworkerset.x-k8s.io/v1")
            .with("kind", "LeaderWorkerSet")
            .with("metadata", metadata)
            .with("spec", Value::map().with("replicas", 1_u64).with("leaderWorkerTemplate", group)),
    ]
}

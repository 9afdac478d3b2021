//! The doctor on every node: it looks at the host's files, read only, and changes nothing.

use super::node::{self, Look};
use super::{Choices, pod};
use crate::write::{Value, item};

pub(super) fn documents(choices: &Choices) -> Vec<Value> {
    let script = "while true; do\n  echo \"node $NODE_NAME\"\n  ringway doctor /host || true\n  sleep 3600\ndone\n";
    let container = Value::map()
        .with("name", "doctor")
        .with("image", choices.image.as_str())
        .with(
            "command",
            Value::list(["/bin/sh".into(), "-c".into(), Value::Lines(script.to_owned())]),
        )
        .with(
            "env",
            Value::List(vec![item(
                "The log says which node it is of.",
                pod::field("NODE_NAME", "spec.nodeName"),
            )]),
        );
    let look =
        Look { what: "doctor", container, capability: None, folders: vec![], annotations: None };
    node::documents(choices, look)
}

//! What doctor and exporter share: one pod on every node, which reads the host's files and changes nothing.

use super::cluster::{Allowed, constrained};
use super::{Choices, pod};
use crate::write::{Value, item};

/// What one of them adds.
pub(super) struct Look {
    /// Its name, as a word.
    pub(super) what: &'static str,
    /// Its container, without what is the same for all.
    pub(super) container: Value,
    /// Capabilities it needs, and why.
    pub(super) capability: Option<(&'static str, &'static str)>,
    /// Folders of the host beside `/`: name, path and why. They can be written.
    pub(super) folders: Vec<(&'static str, &'static str, &'static str)>,
    /// Annotations of its pods, and why.
    pub(super) annotations: Option<(&'static str, Value)>,
}

/// Its DaemonSet, and on OpenShift the account and constraints that let it read.
pub(super) fn documents(choices: &Choices, look: Look) -> Vec<Value> {
    let Look { what, container, capability, folders, annotations } = look;
    let mut capabilities = Value::map().with("drop", Value::list(["ALL".into()]));
    if let Some((name, why)) = capability {
        capabilities = capabilities.because(why, "add", Value::list([name.into()]));
    }
    let mut security = Value::map()
        .because(
            "Whatever the image's user is: only root may read some of the node's files.",
            "runAsUser",
            0_u64,
        )
        .with("allowPrivilegeEscalation", false)
        .with("readOnlyRootFilesystem", true)
        .with("capabilities", capabilities);
    if choices.openshift {
        security = security.because(
            "The host's files have labels of the host's.",
            "seLinuxOptions",
            Value::map().with("type", "spc_t"),
        );
    }
    let mut mounts = vec![
        Value::map()
            .with("name", "host")
            .with("mountPath", "/host")
            .with("readOnly", true)
            .because(
                "What is mounted below / is read only, too.",
                "recursiveReadOnly",
                "IfPossible",
            ),
    ];
    let volume = |name: &str, path: &str, kind: &str| {
        Value::map()
            .with("name", name)
            .with("hostPath", Value::map().with("path", path).with("type", kind))
    };
    let mut volumes = vec![item("The node's files.", volume("host", "/", "Directory"))];
    for (name, path, why) in folders {
        mounts.push(Value::map().with("name", name).with("mountPath", path));
        volumes.push(item(why, volume(name, path, "DirectoryOrCreate")));
    }
    let container = container
        .because("It reads; it needs no right to write.", "securityContext", security)
        .with(
            "resources",
            Value::map()
                .with("requests", Value::map().with("cpu", "10m").with("memory", "32Mi"))
                .with("limits", Value::map().with("memory", "256Mi")),
        )
        .with("volumeMounts", Value::list(mounts));
    let account = match choices.openshift {
        true => Value::map().with("serviceAccountName", choices.name.as_str()),
        false => Value::map(),
    };
    let spec = pod::placed(&Choices { nodes: 1, ..choices.clone() }, account)
        .with("containers", Value::list([container]))
        .with("volumes", Value::List(volumes));
    let mut metadata = Value::map().with("labels", pod::labels(choices));
    if let Some((why, annotations)) = annotations {
        metadata = metadata.because(why, "annotations", annotations);
    }
    let set = Value::map()
        .with("selector", Value::map().with("matchLabels", pod::labels(choices)))
        .with("template", Value::map().with("metadata", metadata).with("spec", spec));
    let mut documents = vec![
        Value::map()
            .with("apiVersion", "apps/v1")
            .with("kind", "DaemonSet")
            .with("metadata", choices.metadata(&choices.name).with("labels", pod::labels(choices)))
            .with("spec", set),
    ];
    if choices.openshift {
        let allowed = Allowed { files: true, host: false };
        let mut constraints = constrained(choices, what, allowed, &["hostPath", "projected"]);
        if let Some((name, _)) = capability {
            constraints = constraints.with("allowedCapabilities", Value::list([name.into()]));
        }
        documents.push(pod::account(choices));
        documents.push(constraints);
    }
    documents
}

//! Images: whether what runs today is what runs tomorrow.

use super::{Finding, Verdict};
use crate::model::{Set, has_version};

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    for pod in set.pods.iter().filter(|pod| pod.is_of_collectives()) {
        for container in &pod.containers {
            let Some(node) = container.node.get("image") else { continue };
            let Some(image) = node.text() else { continue };
            // What a template fills in is not known here.
            if has_version(image) || image.contains(['$', '{']) {
                continue;
            }
            let title = match image.ends_with(":latest") {
                true => format!("{image}: the tag latest is another image tomorrow"),
                false => format!("{image}: without a tag it is latest, another image tomorrow"),
            };
            let base = image.strip_suffix(":latest").unwrap_or(image).trim_end_matches(':');
            found.push(
                Finding::new("K8S-27", Verdict::Warn, pod.resource.file, node, title)
                    .costs(
                        "nodes that pulled at different times run different NCCL versions: ranks of 2 versions do \
                         not connect, and no measurement can be repeated",
                    )
                    .fixed_by(
                        "name the version, or the digest; which one is yours to say",
                        format!("image: {base}:<version>\n"),
                    ),
            );
        }
    }
}

//! Counts that must agree: pods, slots, ranks.

use super::{Finding, Verdict, mpi};
use crate::model::{Container, Pod, Resource, Set, named, words};
use crate::write::Value;
use crate::yaml::{Edit, Node, set_scalar};

pub(super) fn check(set: &Set<'_>, found: &mut Vec<Finding>) {
    for resource in &set.resources {
        match resource.kind {
            "MPIJob" => mpi::check(set, resource, found),
            "Job" => {
                let indexed = |spec: &&Node| spec.text_at(&["completionMode"]) == Some("Indexed");
                completions(set, resource.spec().filter(indexed), resource, found);
            }
            "JobSet" => {
                let jobs = resource.spec().and_then(|spec| spec.get("replicatedJobs"));
                // Its jobs are indexed where they say nothing else.
                let indexed =
                    |spec: &&Node| spec.text_at(&["completionMode"]) != Some("NonIndexed");
                for one in jobs.map_or(&[][..], Node::items) {
                    let spec = one.at(&["template", "spec"]).filter(indexed);
                    completions(set, spec, resource, found);
                }
            }
            _ => {}
        }
    }
    for pod in &set.pods {
        for container in pod.containers.iter().filter(|container| container.gpus() > 0) {
            torchrun(set, pod, container, found);
        }
    }
    domains(set, found);
}

/// Whether what a pod runs are ranks of one job, and not one task of many.
fn shows_ranks(set: &Set<'_>, pod: &Pod<'_>) -> bool {
    let launches = |container: &Container<'_>| {
        let words = words(set.text(pod.resource.file), container);
        words
            .iter()
            .any(|word| word.text.ends_with("torchrun") || word.text.starts_with("--nnodes"))
    };
    pod.gpus() > 1 || pod.containers.iter().any(|one| !one.devices().is_empty() || launches(one))
}

/// Ranks of an indexed job must all run at once.
fn completions(
    set: &Set<'_>,
    spec: Option<&Node>,
    resource: &Resource<'_>,
    found: &mut Vec<Finding>,
) {
    let at = |name| spec.and_then(|spec| spec.get(name));
    let (Some(parallel), Some(complete)) = (at("parallelism"), at("completions")) else { return };
    let (Some(at_once), Some(all)) = (parallel.number(), complete.number()) else { return };
    let template = at("template");
    let pod =
        set.pods.iter().find(|pod| template.is_some_and(|one| std::ptr::eq(one, pod.template)));
    let Some(pod) = pod.filter(|pod| at_once != all && pod.is_of_collectives()) else { return };
    let is_sure = shows_ranks(set, pod);
    let edit = is_sure.then(|| set_scalar(parallel, &Value::from(all))).flatten();
    found.push(
        Finding::new(
            "K8S-28",
            if is_sure { Verdict::Fail } else { Verdict::Hint },
            resource.file,
            parallel,
            format!("{all} ranks, of which {at_once} run at once"),
        )
        .costs(format!("a collective needs all {all}: those that run wait for ever for the others"))
        .fixed_by(
            "parallelism and completions are the number of pods",
            format!("completions: {all}\nparallelism: {all}\n"),
        )
        .edited(edit.map(|edit| vec![edit])),
    );
}

/// `--nnodes` and `--nproc-per-node` of torchrun.
fn torchrun<'a>(set: &Set<'a>, pod: &Pod<'a>, container: &Container<'a>, found: &mut Vec<Finding>) {
    let file = pod.resource.file;
    let text = set.text(file);
    let words = words(text, container);
    let pods = pod.count.filter(|_| pod.is_across_nodes());
    for (names, wanted, what) in [
        (&["--nnodes"][..], pods, "pods"),
        (&["--nproc-per-node", "--nproc_per_node"][..], Some(container.gpus()), "GPUs"),
    ] {
        let Some(wanted) = wanted else { continue };
        let given = named(&words, names);
        let several = given.len() > 1;
        let sum = given.iter().fold(0_u64, |sum, (count, ..)| sum.saturating_add(*count));
        // Several calls may share the GPUs; of several jobs each may count its own pods.
        if several && what == "GPUs" && sum == wanted {
            continue;
        }
        let fits = |count: u64| count == wanted || what == "pods" && pod.parts.contains(&count);
        let is_sure = !several && (what == "GPUs" || pod.parts.iter().all(|part| *part == wanted));
        for (count, span, start) in given.into_iter().filter(|(count, ..)| !fits(*count)) {
            let name = names[0];
            let edit = span.clone().filter(|_| is_sure);
            found.push(
                Finding::new(
                    "K8S-28",
                    if is_sure { Verdict::Fail } else { Verdict::Warn },
                    file,
                    container.node,
                    format!("{name} is {count}, but there are {wanted} {what}"),
                )
                .within(text, span.unwrap_or(start..start))
                .costs(if count > wanted {
                    format!("{wanted} wait for {} others that never come", count - wanted)
                } else {
                    format!("{} of {wanted} {what} stay idle", wanted - count)
                })
                .fixed_by("the same count in both places", format!("{name}={wanted}\n"))
                .edited(edit.map(|span| vec![Edit { span, text: wanted.to_string() }])),
            );
        }
    }
}

/// NVLink between nodes spans as many as its domain says.
fn domains(set: &Set<'_>, found: &mut Vec<Finding>) {
    for domain in set.of_kind("ComputeDomain") {
        let Some(node) = domain.spec().and_then(|spec| spec.get("numNodes")) else { continue };
        let claim = domain
            .node
            .text_at(&["spec", "channel", "resourceClaimTemplate", "name"])
            .unwrap_or("");
        let pod = set.pods.iter().find(|pod| {
            let claims = pod.spec.get("resourceClaims").map_or(&[][..], Node::items);
            claims.iter().any(|one| one.text_at(&["resourceClaimTemplateName"]) == Some(claim))
        });
        let (Some(given), Some(count)) = (node.number(), pod.and_then(|pod| pod.count)) else {
            continue;
        };
        // 0 lets the domain grow with its pods.
        if given == count || given == 0 {
            continue;
        }
        found.push(
            Finding::new(
                "K8S-28",
                Verdict::Fail,
                domain.file,
                node,
                format!("the domain has {given} nodes, its job has {count} pods"),
            )
            .costs("pods wait in ContainerCreating until all nodes of the domain are ready: 0 of them start")
            .fixed_by("as many nodes as pods", format!("spec:\n  numNodes: {count}\n"))
            .edited(set_scalar(node, &Value::from(count)).map(|edit| vec![edit])),
        );
    }
}

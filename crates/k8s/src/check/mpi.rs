//! MPIJobs: slots, ranks and GPUs agree.

use super::{Finding, Verdict};
use crate::model::{Launch, Pod, Resource, Role, Set, is_per_node, launches, words};
use crate::write::Value;
use crate::yaml::{Edit, Node, set_entry};

pub(super) fn check(set: &Set<'_>, resource: &Resource<'_>, found: &mut Vec<Finding>) {
    let Some(spec) = resource.spec() else { return };
    let ours = |pod: &&Pod<'_>| std::ptr::eq(pod.resource.node, resource.node);
    let worker = set.pods.iter().filter(ours).find(|pod| pod.role == Role::Worker);
    let Some(worker) = worker else { return };
    let gpus = worker.gpus();
    let file = resource.file;
    let text = set.text(file);
    let launchers = set.pods.iter().filter(ours).filter(|pod| pod.role == Role::Launcher);
    let calls: Vec<Launch> = launchers
        .flat_map(|pod| &pod.containers)
        .flat_map(|container| launches(&words(text, container)))
        .collect();
    // What drives several GPUs by itself needs fewer ranks; how many is its own affair.
    let drives = calls.iter().map(|call| call.gpus_of_a_rank(gpus)).max().unwrap_or(1);
    let slots_node = spec.get("slotsPerWorker");
    let slots = slots_node.and_then(Node::number).unwrap_or(1);
    if gpus > 0 && slots != gpus {
        if slots.saturating_mul(drives) != gpus {
            let node = slots_node.unwrap_or(spec);
            found.push(of_slots(set, resource, spec, node, (slots, gpus, drives)));
        }
        return;
    }
    let Some(workers) = worker.count else { return };
    for call in &calls {
        for finding in of_ranks(text, file, spec, call, (workers, slots), drives) {
            found.push(finding);
        }
    }
}

fn of_slots(
    set: &Set<'_>,
    resource: &Resource<'_>,
    spec: &Node,
    node: &Node,
    (slots, gpus, drives): (u64, u64, u64),
) -> Finding {
    let file = resource.file;
    let what = if slots < gpus { "GPUs stay idle" } else { "ranks share a GPU" };
    let title = format!("{slots} slots for each worker, which has {gpus} GPUs");
    let is_sure = drives == 1;
    let edit = is_sure
        .then(|| set_entry(set.text(file), spec, "slotsPerWorker", &Value::from(gpus)))
        .flatten();
    let verdict = if is_sure { Verdict::Fail } else { Verdict::Warn };
    let fix = match is_sure {
        true => "one slot for each GPU".to_owned(),
        false => format!("each rank drives {drives} GPUs: slots times {drives} are the GPUs"),
    };
    let yaml = if is_sure { format!("slotsPerWorker: {gpus}\n") } else { String::new() };
    Finding::new("K8S-05", verdict, file, node, title)
        .costs(format!("{} of {} {what}", slots.abs_diff(gpus), slots.max(gpus)))
        .fixed_by(fix, yaml)
        .edited(edit.map(|edit| vec![edit]))
}

fn of_ranks(
    text: &str,
    file: usize,
    spec: &Node,
    call: &Launch,
    (workers, slots): (u64, u64),
    drives: u64,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (flag, word) in &call.counts {
        let Ok(given) = word.text.parse::<u64>() else { continue };
        let per_node = is_per_node(flag);
        let wanted = if per_node { slots } else { workers.saturating_mul(slots) };
        // Fewer ranks than slots are a choice only where they are one for each node.
        let chosen = call.is_one_a_node && given == if per_node { 1 } else { workers };
        if given == wanted || wanted == 0 || chosen {
            continue;
        }
        let is_sure = drives == 1;
        let edit = word.span.clone().filter(|_| is_sure);
        let span = word.span.clone().unwrap_or(word.start..word.start);
        found.push(
            Finding::new(
                "K8S-28",
                if is_sure { Verdict::Fail } else { Verdict::Warn },
                file,
                spec,
                format!(
                    "mpirun {flag} {given}, but {workers} workers with {slots} slots make {wanted}"
                ),
            )
            .within(text, span)
            .costs(if given > wanted {
                "\"not enough slots available\": 0 ranks start".to_owned()
            } else {
                format!("{} of {wanted} GPUs stay idle", wanted - given)
            })
            .fixed_by("the same count in both places", format!("{flag} {wanted}\n"))
            .edited(edit.map(|span| vec![Edit { span, text: wanted.to_string() }])),
        );
    }
    found
}

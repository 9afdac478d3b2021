//! Each fault, planted in a healthy manifest, is found at its line; its correction leaves nothing wrong.

mod shapes;

use proptest::prelude::*;

use super::*;
use crate::fix::fix;
use crate::generate::tests::{combinations, sample};
use crate::generate::{Choices, Kind, Link, Net, Vendor, manifest};
use crate::model::Source;

fn reading(texts: &[&str]) -> Reading {
    let source = |text: &&str| Source { name: "f.yaml".to_owned(), text: (*text).to_owned() };
    Reading::new(texts.iter().map(source).collect())
}

fn found(text: &str) -> Vec<Finding> {
    lint(&reading(&[text]), |_| Vec::new()).findings
}

fn mended(text: &str) -> String {
    let fixed = fix(reading(&[text]), |_| Vec::new());
    assert!(!fixed.is_cut_short, "{text}");
    let (was, is) = (&reading(&[text]).streams[0], &fixed.reading.streams[0]);
    assert!(is.errors.len() <= was.errors.len() && is.documents.len() >= was.documents.len());
    fixed.reading.sources[0].text.clone()
}

fn text(kind: Kind, net: Net, link: Link) -> String {
    manifest(&sample(kind, Vendor::Nvidia, net, link)).expect("they fit")
}

/// A fault: what it is written in place of, and which check sees it at the line with this word.
struct Fault {
    id: &'static str,
    from: &'static str,
    to: &'static str,
    line: &'static str,
}

const fn fault(
    id: &'static str,
    from: &'static str,
    to: &'static str,
    line: &'static str,
) -> Fault {
    Fault { id, from, to, line }
}

/// Faults that a correction mends.
const MENDED: &[Fault] = &[
    fault("K8S-02", "sizeLimit: 16Gi", "sizeLimit: 64Mi", "sizeLimit: 64Mi"),
    fault("K8S-02", "medium: Memory\n", "medium: \"\"\n", "medium: \"\""),
    fault("K8S-02", "mountPath: /dev/shm", "mountPath: /shm", "name: worker"),
    fault("K8S-03", "limits:\n", "limits:\n  PADmemory: 4Gi\n", "sizeLimit"),
    fault("K8S-04", "- IPC_LOCK", "- SYS_PTRACE", "name: worker"),
    fault("K8S-05", "slotsPerWorker: 8", "slotsPerWorker: 4", "slotsPerWorker: 4"),
    fault("K8S-06", "rdma-vf,rdma-vf", "rdma-vf", "networks"),
    fault("K8S-08", "isRdma: true", "isRdma: false", "isRdma: false"),
    fault("K8S-09", "mtu: 9000\n---", "mtu: 1500\n---", "mtu: 1500"),
    fault("K8S-15", "dnsPolicy: ClusterFirstWithHostNet", "dnsPolicy: ClusterFirst", "dnsPolicy"),
    fault("K8S-20", "completionMode:", "completionmode:", "completionmode"),
    fault("K8S-20", "securityContext:", "securitycontext:", "securitycontext"),
    fault("K8S-25", "value: \"=eth0\"", "value: ib0", "NCCL_SOCKET_IFNAME"),
    fault("K8S-28", "parallelism: 4", "parallelism: 2", "parallelism: 2"),
    fault("K8S-28", "- \"32\"\n", "- \"16\"\n", "\"16\""),
    fault("K8S-30", "deviceType: netdevice", "deviceType: vfio-pci", "vfio-pci"),
];

#[test]
fn planted_faults_are_found_at_their_lines_and_mended() {
    let mut planted = vec![0; MENDED.len()];
    // A third of them, in which every kind and network stands with every extra.
    for choices in combinations().into_iter().step_by(3) {
        let healthy = manifest(&choices).expect("they fit");
        for (number, fault) in MENDED.iter().enumerate() {
            // How many ranks torchrun wants of mpirun is its own affair: nothing is written there.
            let is_torchrun = choices.kind == Kind::MpiJob && !choices.command.is_empty();
            if is_torchrun && ["K8S-05", "K8S-28"].contains(&fault.id) {
                continue;
            }
            let Some(at) = healthy.find(fault.from) else { continue };
            let indent = at - healthy[..at].rfind('\n').map_or(0, |at| at + 1);
            let to = fault.to.replace("PAD", &" ".repeat(indent));
            let bad = healthy.replacen(fault.from, &to, 1);
            let faults = found(&bad);
            let Some(one) = faults.iter().find(|one| one.id == fault.id) else {
                // A fault of RDMA is none where there is no RDMA; that it is found somewhere is asked below.
                continue;
            };
            let line = bad.lines().nth(one.place.line - 1).unwrap_or("");
            assert!(line.contains(fault.line), "{}: {line:?} in\n{bad}", fault.id);
            assert!(
                !one.cost.is_empty() && one.cost.contains(|c: char| c.is_ascii_digit()),
                "{one:?}"
            );
            let after = mended(&bad);
            assert_eq!(found(&after), [], "{}\n{after}", fault.id);
            assert_eq!(mended(&after), after);
            planted[number] += 1;
        }
    }
    for (fault, times) in MENDED.iter().zip(planted) {
        assert!(times > 0, "{} {:?} was planted nowhere", fault.id, fault.from);
    }
}

/// A variable is set; a correction takes it out again.
#[test]
fn variables_that_harm_are_taken_out() {
    for kind in [Kind::Job, Kind::MpiJob] {
        for (id, name, value) in [
            ("K8S-23", "NCCL_ALGO", "Ring"),
            ("K8S-23", "NCCL_PROTO", "LL128"),
            ("K8S-24", "NCCL_IB_GID_INDEX", "3"),
            ("K8S-26", "NCCL_IB_DISABLE", "1"),
        ] {
            let base = sample(kind, Vendor::Nvidia, Net::Sriov, Link::Eth);
            let healthy = manifest(&base).expect("they fit");
            let mut choices = base;
            choices.variables.push(crate::generate::Variable {
                name: name.to_owned(),
                value: value.to_owned(),
                why: "planted".to_owned(),
            });
            let bad = manifest(&choices).expect("they fit");
            let faults = found(&bad);
            assert_eq!(faults.iter().map(|one| one.id).collect::<Vec<_>>(), [id], "{bad}");
            assert!(bad.lines().nth(faults[0].place.line - 1).unwrap_or("").contains(name));
            let after = mended(&bad);
            assert_eq!(found(&after), [], "{after}");
            // The reason that was planted with it may stay; nothing else does.
            let kept: Vec<&str> = after.lines().filter(|line| !line.contains("planted")).collect();
            assert_eq!(kept, healthy.lines().collect::<Vec<_>>());
        }
    }
}

/// Faults that only people can mend.
fn of_people() -> Vec<(&'static str, String)> {
    let rdma = text(Kind::Job, Net::Rdma, Link::Ib);
    let sriov = text(Kind::Job, Net::Sriov, Link::Eth);
    let cluster = text(Kind::Cluster, Net::Rdma, Link::Ib);
    vec![
        ("K8S-01", rdma.replace("            rdma/rdma_vf: 1\n", "")),
        ("K8S-27", rdma.replace("bench:1.2", "bench:latest")),
        ("K8S-27", rdma.replace("bench:1.2", "bench")),
        ("K8S-06", sriov.replace("rdma-vf,rdma-vf", "rdma-vf")),
        ("K8S-10", cluster.replace("\"rdmaHcaMax\": 63", "\"rdmaHcaMax\": 0")),
        ("K8S-10", cluster.replace("\"15b3\"", "\"mellanox\"")),
        ("K8S-22", cluster.replace("\"rdmaHcaMax\": 63,", "\"rdmaHcaMax\": 63")),
        ("K8S-19", rdma.replace("kind: Job", "kind: [Job")),
        ("K8S-21", rdma.replace("backoffLimit: 0", "backoffLimit: 0\n  backoffLimit: 1")),
        (
            "K8S-12",
            text(Kind::MpiJob, Net::Rdma, Link::Ib).replace("podAffinity:", "nodeAffinity:"),
        ),
    ]
}

#[test]
fn every_check_has_its_fault() {
    let planted = MENDED.iter().map(|one| one.id).chain(of_people().into_iter().map(|one| one.0));
    let planted: Vec<&str> = planted.chain(shapes::ROWS.iter().map(|row| row.0)).collect();
    for check in ALL {
        // Its rules are of `ringway env lint`, which the caller brings.
        assert!(planted.contains(&check.id) || check.id == "K8S-13", "{}", check.id);
    }
}

#[test]
fn faults_that_only_people_can_mend_are_found() {
    for (id, bad) in of_people() {
        let ids: Vec<&str> = found(&bad).iter().map(|one| one.id).collect();
        assert!(ids.contains(&id), "{id} in {ids:?}\n{bad}");
    }
}

#[test]
fn the_gpu_operator_and_storage_belong_together() {
    let choices = |kind| Choices { gds: true, ..sample(kind, Vendor::Nvidia, Net::Rdma, Link::Ib) };
    let job = manifest(&choices(Kind::Job)).expect("they fit");
    let cluster = manifest(&choices(Kind::Cluster)).expect("they fit");
    let without = cluster.replace("  gds:\n    enabled: true\n", "  gds:\n    enabled: false\n");
    assert_ne!(cluster, without);
    let outcome = lint(&reading(&[&job, &without]), |_| Vec::new());
    assert_eq!(outcome.findings.iter().map(|one| one.id).collect::<Vec<_>>(), ["K8S-29"]);
    let after = fix(reading(&[&job, &without]), |_| Vec::new());
    assert_eq!(after.reading.sources[1].text, cluster);
    let plain = job.replace("value: enabled", "value: disabled");
    assert_eq!(found(&plain).iter().map(|one| one.id).collect::<Vec<_>>(), ["K8S-29"]);
    assert_eq!(mended(&plain), job);
    let closed = cluster
        .replace("kernelModuleType: open", "kernelModuleType: proprietary")
        .replacen("rdma:\n      enabled: true", "rdma:\n      enabled: false", 1);
    assert_eq!(found(&closed).iter().map(|one| one.id).collect::<Vec<_>>(), ["K8S-07"]);
    assert_eq!(found(&mended(&closed)), []);
}

#[test]
fn privileges_go_where_a_plugin_brings_the_devices() {
    let healthy = text(Kind::Job, Net::Rdma, Link::Ib);
    let bad = healthy
        .replace("capabilities:\n            add:\n            - IPC_LOCK", "privileged: true");
    assert_ne!(healthy, bad);
    assert_eq!(found(&bad).iter().map(|one| one.id).collect::<Vec<_>>(), ["K8S-16"]);
    assert_eq!(found(&mended(&bad)), [], "{}", mended(&bad));
    assert!(!mended(&bad).contains("privileged:"));
}

#[test]
fn a_comment_keeps_a_finding_back() {
    let bad = text(Kind::Job, Net::Rdma, Link::Ib).replace("bench:1.2", "bench:latest");
    let allowed = bad.replace("bench:latest", "bench:latest  # ringway: allow K8S-27 nightly");
    let outcome = lint(&reading(&[&allowed]), |_| Vec::new());
    assert_eq!((outcome.findings.len(), outcome.allowed), (0, 1));
    let other = bad.replace("bench:latest", "bench:latest  # ringway: allow K8S-16");
    assert_eq!(found(&other).len(), 1);
}

#[test]
fn what_is_none_of_collectives_is_left_alone() {
    for text in [
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwork: true\n  containers:\n  - name: a\n    image: nginx:latest\n    securityContext: {privileged: true}\n",
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: loader}\nspec:\n  template:\n    spec:\n      hostNetwork: true\n      containers:\n      - name: a\n        image: ubuntu:24.04\n        securityContext: {privileged: true}\n",
        "apiVersion: sriovnetwork.openshift.io/v1\nkind: SriovNetworkNodePolicy\nmetadata: {name: dpdk}\nspec:\n  deviceType: vfio-pci\n  nicSelector: {vendor: \"8086\"}\n  nodeSelector: {a: b}\n  numVfs: 4\n  resourceName: dpdk\n",
        "just: values\nof: [a, chart]\n",
        "",
        "---\n---\n# nothing\n",
    ] {
        assert_eq!(found(text), [], "{text}");
    }
}

#[test]
fn a_document_that_cannot_be_read_does_not_hide_the_others() {
    let good = text(Kind::Job, Net::Rdma, Link::Ib).replace("bench:1.2", "bench");
    let both = format!("a: [1\n---\n{good}---\n{{{{ .Values.x }}}}: {{{{\n");
    let ids: Vec<(&str, usize)> = found(&both).iter().map(|one| (one.id, one.place.line)).collect();
    assert!(ids.iter().any(|(id, _)| *id == "K8S-27"), "{ids:?}");
    assert_eq!(ids.iter().filter(|(id, _)| *id == "K8S-19").count(), 2, "{ids:?}");
    let template =
        found(&both).into_iter().rfind(|one| one.id == "K8S-19").expect("it was counted");
    assert!(template.fix.contains("helm template"), "{template:?}");
}

#[test]
fn aliases_that_multiply_are_an_error_and_not_a_hang() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", before.trim_end_matches(", ")));
    }
    assert_eq!(found(&bomb).iter().map(|one| one.id).collect::<Vec<_>>(), ["K8S-19"]);
    let deep = "[".repeat(100_000);
    assert_eq!(found(&deep).iter().map(|one| one.id).collect::<Vec<_>>(), ["K8S-19"]);
}

#[test]
fn numbers_that_no_machine_has_are_no_panic() {
    let most = u64::MAX;
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers:\n  - &c\n    name: w\n    image: a:1\n    \
         resources: {{limits: {{nvidia.com/gpu: {most}, nvidia.com/rdma_vf: {most}, nvidia.com/roce_vf: {most}, memory: 1e400}}}}\n    \
         command: [torchrun, --nproc-per-node={most}, --nproc-per-node={most}]\n  - *c\n"
    );
    let ids: Vec<&str> = found(&text).iter().map(|one| one.id).collect();
    assert!(ids.contains(&"K8S-02") && ids.contains(&"K8S-06"), "{ids:?}");
    mended(&text);
}

#[test]
fn many_objects_are_mended_together() {
    let one = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: a\n    image: \"a:1\"\n    \
               resources: {limits: {nvidia.com/gpu: 2, rdma/a: 1}}\n";
    let many = vec![one; 200].join("---\n");
    assert_eq!(found(&many).len(), 400);
    assert_eq!(found(&mended(&many)), []);
}

#[test]
fn lines_are_counted_through_all_documents() {
    let text = format!("{}a: [\n---\n{{{{ x }}}}: {{{{\n", "---\n".repeat(5000));
    let seen = found(&text);
    let lines: Vec<usize> = seen.iter().map(|one| one.place.line).collect();
    assert_eq!(lines, [5002, 5004], "{seen:?}");
    assert!(!seen[0].fix.contains("helm") && seen[1].fix.contains("helm"), "{seen:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_looked_at_and_mended_once(text in "[ -~\n\t\u{e4}]{0,200}") {
        let after = mended(&text);
        prop_assert_eq!(mended(&after), after);
    }

    /// Parts of real shapes, cut, repeated and mixed.
    #[test]
    fn broken_manifests_are_looked_at_and_mended_once(
        which in 0_usize..1000, cut in 0_usize..4000, gone in 0_usize..200,
        word in "(: |- |\\{|\\[|\"|&a |\\*a|#|\n|  |true|8|~|---\n){0,4}",
    ) {
        let all = combinations();
        let healthy = manifest(&all[which * 7 % all.len()]).expect("they fit");
        let cut = healthy.floor_char_boundary(cut.min(healthy.len()));
        let end = healthy.floor_char_boundary((cut + gone).min(healthy.len()));
        let text = format!("{}{word}{}", &healthy[..cut], &healthy[end..]);
        let after = mended(&text);
        prop_assert_eq!(&mended(&after), &after);
        prop_assert!(found(&after).len() <= found(&text).len());
    }
}

#[test]
fn every_check_is_documented() {
    let page = include_str!("../../../../docs/k8s.md");
    for check in ALL {
        assert!(page.contains(&format!("| {} |", check.id)), "{} is not in docs/k8s.md", check.id);
    }
}

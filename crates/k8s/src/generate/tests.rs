//! Every combination is well, by the checks of this crate; some are kept whole beside.

use super::*;
use crate::check::lint;
use crate::model::{Reading, Source};

/// Choices that fit together, with variables as `ringway env suggest` would have them.
pub(crate) fn sample(kind: Kind, vendor: Vendor, net: Net, link: Link) -> Choices {
    let nics = 2;
    let interface = if net == Net::Host { "^lo,docker" } else { "=eth0" };
    Choices {
        kind,
        vendor,
        net,
        link,
        name: "bench".to_owned(),
        namespace: "default".to_owned(),
        image: "ghcr.io/me/bench:1.2".to_owned(),
        nodes: 4,
        gpus: 8,
        nics,
        resource: "rdma_vf".to_owned(),
        masters: vec!["ens1f0np0".to_owned(), "ens2f0np0".to_owned()],
        mtu: 9000,
        shm: "16Gi".to_owned(),
        topology: None,
        selector: Vec::new(),
        command: Vec::new(),
        variables: vec![Variable {
            name: "NCCL_SOCKET_IFNAME".to_owned(),
            value: interface.to_owned(),
            why: "Ranks meet over it.".to_owned(),
        }],
        openshift: false,
        gds: false,
    }
}

/// All that fit together.
pub(crate) fn combinations() -> Vec<Choices> {
    let kinds = [
        Kind::Job,
        Kind::JobSet,
        Kind::MpiJob,
        Kind::LeaderWorkerSet,
        Kind::Doctor,
        Kind::Exporter,
        Kind::Cluster,
    ];
    let nets = [Net::Host, Net::Rdma, Net::Sriov, Net::Macvlan, Net::Ipvlan, Net::Efa, Net::Pod];
    let mut all = Vec::new();
    for kind in kinds {
        for net in nets {
            for vendor in [Vendor::Nvidia, Vendor::Amd] {
                for link in [Link::Ib, Link::Eth] {
                    for extra in 0..8 {
                        let mut one = sample(kind, vendor, net, link);
                        (one.openshift, one.gds) = (extra & 1 != 0, extra & 2 != 0);
                        if extra & 4 != 0 {
                            let mpi = kind == Kind::MpiJob;
                            let program = if mpi { "python3" } else { "torchrun" };
                            one.command = vec![program.to_owned(), "train.py".to_owned()];
                            one.topology = Some("fabric.ringway/tier-1".to_owned());
                            one.selector = vec![("pool".to_owned(), "h100".to_owned())];
                        }
                        if fit(&one).is_ok() {
                            all.push(one);
                        }
                    }
                }
            }
        }
    }
    all
}

#[test]
fn nothing_is_wrong_with_any_combination() {
    let all = combinations();
    assert!(all.len() > 300, "{}", all.len());
    for choices in all {
        let text = manifest(&choices).expect("they fit");
        let reading = Reading::new(vec![Source { name: "f".to_owned(), text: text.clone() }]);
        assert!(reading.streams[0].errors.is_empty(), "{text}");
        let outcome = lint(&reading, |_| Vec::new());
        assert_eq!(outcome.findings, [], "{choices:?}\n{text}");
        let allowed = usize::from(
            choices.net == Net::Pod
                && !matches!(choices.kind, Kind::Doctor | Kind::Exporter | Kind::Cluster),
        );
        assert_eq!(outcome.allowed, allowed, "{text}");
    }
}

#[test]
fn what_a_cluster_and_its_jobs_need_fits_together() {
    for net in [Net::Host, Net::Rdma, Net::Sriov] {
        for gds in [false, true] {
            let texts = [Kind::Cluster, Kind::Job].map(|kind| {
                let choices = Choices { gds, ..sample(kind, Vendor::Nvidia, net, Link::Ib) };
                Source { name: "f".to_owned(), text: manifest(&choices).expect("they fit") }
            });
            let outcome = lint(&Reading::new(texts.to_vec()), |_| Vec::new());
            assert_eq!(outcome.findings, []);
        }
    }
}

#[test]
fn what_does_not_fit_says_why() {
    let base = sample(Kind::Job, Vendor::Nvidia, Net::Rdma, Link::Ib);
    let digit = Choices { namespace: "4team".to_owned(), ..base.clone() };
    let cases = [
        (Choices { nodes: 0, ..base.clone() }, "at least 1 node"),
        (
            Choices {
                kind: Kind::MpiJob,
                command: vec!["/usr/bin/torchrun".to_owned(), "train.py".to_owned()],
                ..base.clone()
            },
            "give mpijob the program itself",
        ),
        (Choices { name: "Bad_Name".to_owned(), ..base.clone() }, "cannot be the name"),
        (Choices { net: Net::Macvlan, ..base.clone() }, "are of Ethernet"),
        (
            Choices { net: Net::Ipvlan, link: Link::Eth, nics: 3, ..base.clone() },
            "3 NICs but 2 interfaces",
        ),
        (Choices { net: Net::Efa, vendor: Vendor::Amd, ..base.clone() }, "EFA comes with NVIDIA"),
        (Choices { name: "4nodes".to_owned(), ..base.clone() }, "a letter first"),
        (Choices { resource: "RDMA_VF".to_owned(), ..base.clone() }, "cannot be the resource"),
        (Choices { resource: "x\"y".to_owned(), ..base.clone() }, "cannot be the resource"),
        (Choices { masters: vec!["a\"b".to_owned()], ..base.clone() }, "is no interface"),
        (Choices { topology: Some("a b".to_owned()), ..base.clone() }, "is no label"),
        (
            Choices { selector: vec![("a b".to_owned(), "c".to_owned())], ..base.clone() },
            "is no label",
        ),
        (
            Choices { selector: vec![("a".to_owned(), "c d".to_owned())], ..base.clone() },
            "cannot be the value",
        ),
        (Choices { shm: "1e400".to_owned(), ..base.clone() }, "at least 1Gi"),
        (Choices { gpus: 1000, ..base }, "the most is 64"),
    ];
    assert!(manifest(&digit).is_ok(), "a namespace may begin with a digit");
    for (choices, words) in cases {
        let error = manifest(&choices).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn openshift_gets_what_it_does_not_bring_itself() {
    let with = |kind, net, openshift| {
        let choices = Choices { openshift, ..sample(kind, Vendor::Nvidia, net, Link::Eth) };
        manifest(&choices).expect("they fit")
    };
    assert!(with(Kind::Cluster, Net::Sriov, false).contains("secondaryNetwork:"));
    assert!(!with(Kind::Cluster, Net::Sriov, true).contains("secondaryNetwork:"));
    for net in [Net::Sriov, Net::Macvlan] {
        let kind = if net == Net::Sriov { Kind::Cluster } else { Kind::Job };
        assert!(with(kind, net, false).contains("must be installed"));
        assert!(!with(kind, net, true).contains("must be installed"));
    }
    let rights =
        ["serviceAccountName: bench", "kind: ServiceAccount", "allowHostDirVolumePlugin: true"];
    for kind in [Kind::Doctor, Kind::Exporter] {
        let text = with(kind, Net::Pod, true);
        for words in rights {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        let wants = kind == Kind::Exporter;
        assert_eq!(text.contains("allowedCapabilities:\n- DAC_OVERRIDE"), wants, "{text}");
    }
    let efa = with(Kind::Cluster, Net::Efa, false);
    assert!(
        efa.contains("rdma:\n      enabled: false\n") && !efa.contains("useHostMofed"),
        "{efa}"
    );
}

/// Kept whole, so that every change of what is written is seen.
#[test]
fn some_manifests_are_as_they_were() {
    let job = sample(Kind::Job, Vendor::Nvidia, Net::Rdma, Link::Ib);
    let cluster = sample(Kind::Cluster, Vendor::Nvidia, Net::Sriov, Link::Eth);
    let doctor = sample(Kind::Doctor, Vendor::Amd, Net::Pod, Link::Eth);
    let exporter = sample(Kind::Exporter, Vendor::Nvidia, Net::Host, Link::Ib);
    for (choices, kept) in [
        (job, include_str!("golden/job.yaml")),
        (cluster, include_str!("golden/cluster.yaml")),
        (doctor, include_str!("golden/doctor.yaml")),
        (exporter, include_str!("golden/exporter.yaml")),
    ] {
        let text = manifest(&choices).expect("they fit");
        assert!(text == kept, "changed; if that is meant, this is the new one:\n{text}");
    }
}

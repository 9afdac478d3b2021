//! Whom a search names, in words and in JSON.

use serde::{Deserialize, Serialize};

use super::places::Places;
use crate::perf::identity::Gpu;

/// Which way large messages are slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    Sends,
    Receives,
    Both,
}

/// What is slow: ranks with whomever they talk to, or the path between two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Culprit {
    /// `node3 (ranks 6, 7)`, `GPU 1 of node3 (rank 7)`, `rank 6 on node3`, or the two ends of a path.
    pub(crate) name: String,
    pub(crate) ranks: Vec<usize>,
    /// The other end of a path; none where it is not one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) to: Vec<usize>,
    /// The network ports of `ranks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<String>,
    /// The GPUs whose memory is that of `ranks`, then those of `to`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gpus: Vec<Gpu>,
    /// Which way large messages are slow; of a path, `sends` is from `ranks` to `to`.
    pub(crate) way: Way,
    /// How many times as long as elsewhere large messages take, where that is too long.
    pub(crate) slower: Option<f64>,
    /// The same of round trips.
    pub(crate) answers: Option<f64>,
    /// The same of work that its processor does alone.
    #[serde(default)]
    pub(crate) computes: Option<f64>,
    /// The same of copies in its GPU's own memory; not there of host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copies: Option<f64>,
}

impl Culprit {
    /// Without name yet, and without anything that is slow about it.
    pub(crate) fn new(ranks: Vec<usize>, to: Vec<usize>, way: Way) -> Self {
        Self {
            name: String::new(),
            ranks,
            to,
            ports: Vec::new(),
            gpus: Vec::new(),
            way,
            slower: None,
            answers: None,
            computes: None,
            copies: None,
        }
    }

    /// The same with its name, its ports and its GPUs. A processor that is slow says nothing of those.
    pub(crate) fn named(self, places: &Places) -> Self {
        let Self { ranks, to, .. } = &self;
        let is_processor = self.computes.is_some();
        let name = |ranks: &[usize]| match is_processor {
            true => places.name_of_ranks(ranks),
            false => places.name(ranks),
        };
        let name = match (&to[..], self.way) {
            ([], _) => name(ranks),
            (to, Way::Both) => format!("the path between {} and {}", name(ranks), name(to)),
            (to, Way::Sends) => format!("the path from {} to {}", name(ranks), name(to)),
            (to, Way::Receives) => format!("the path from {} to {}", name(to), name(ranks)),
        };
        let ports = if to.is_empty() { places.ports(ranks) } else { Vec::new() };
        let gpus = match is_processor {
            true => Vec::new(),
            false => [places.gpus_of(ranks), places.gpus_of(to)].concat(),
        };
        Self { name, ports, gpus, ..self }
    }

    /// What is slow about it, in one sentence.
    pub(crate) fn sentence(&self) -> String {
        let what = match (self.to.is_empty(), self.way) {
            (true, Way::Sends) => "what it sends takes",
            (true, Way::Receives) => "what it receives takes",
            (true, Way::Both) => "what it sends and receives takes",
            (false, _) => "large messages take",
        };
        let slower =
            self.slower.map(|times| format!("{what} {times:.1} times as long as elsewhere"));
        let answers = self
            .answers
            .map(|times| format!("round trips take {times:.1} times as long as elsewhere"));
        let computes = self
            .computes
            .map(|times| format!("its processor takes {times:.1} times as long for the same work"));
        let copies = self.copies.map(|times| {
            format!("copies in its GPU's memory take {times:.1} times as long as elsewhere")
        });
        // A processor that is slow says nothing of ports.
        let by = match (&self.ports[..], self.computes) {
            ([], _) | (_, Some(_)) => String::new(),
            (ports, None) => format!(", by {}", ports.join(", ")),
        };
        let said: Vec<String> = [computes, copies, slower, answers].into_iter().flatten().collect();
        format!("{}{}{by}: {}", self.name, self.told_gpus(), said.join("; "))
    }

    /// What tells its GPU from others, or those of a path's ends; nothing of hosts with several.
    fn told_gpus(&self) -> String {
        let ends = if self.to.is_empty() { 1 } else { 2 };
        if self.gpus.len() != ends {
            return String::new();
        }
        let told = |gpu: &Gpu| {
            let index = format!("GPU {}", gpu.index);
            // Once is enough.
            let index =
                if self.name.contains(&format!("{index} of ")) { None } else { Some(index) };
            let known = [gpu.model(), gpu.uuid.clone()].into_iter().filter(|text| !text.is_empty());
            index.into_iter().chain(known).collect::<Vec<_>>().join(", ")
        };
        let told: Vec<String> = self.gpus.iter().map(told).collect();
        format!(" [{}]", told.join("; "))
    }

    /// Where to look.
    pub(crate) fn advice(&self) -> &'static str {
        match (self.to.is_empty(), self.slower, self.answers) {
            _ if self.computes.is_some() => {
                "look at its processors: what else runs there, clock rates, limits: ringway doctor there"
            }
            _ if self.copies.is_some() && self.name.starts_with("rank") => {
                "that GPU is quick for its other ranks: look at what limits this process there (MPS, other work): ringway doctor there"
            }
            _ if self.copies.is_some() => {
                "look at that GPU: clocks, power, temperature, memory errors, what else runs on it: ringway doctor there"
            }
            (false, _, _) if !self.gpus.is_empty() => {
                "look at what is between the two: ringway topo on one host, ringway fabric check and ringway net bw between hosts"
            }
            (true, Some(_), None) if !self.gpus.is_empty() => {
                "look at that GPU's links and its adapter, their rates and errors: ringway topo and ringway doctor there"
            }
            (false, _, _) => {
                "look at the cables and switches between the two: ringway fabric check, ringway net bw"
            }
            (true, Some(_), None) => {
                "look at its link and adapter, their rates and errors: ringway doctor and ringway net bw there"
            }
            (true, _, Some(_)) => {
                "look at its processors and what else runs there, then at its link: ringway doctor there"
            }
            (true, None, None) => "look at it with ringway doctor",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::tests::{cluster, with_gpus};
    use super::*;

    #[test]
    fn sentences_say_who_and_how_much() {
        let mut places = cluster(&[1, 1, 2], 4);
        let one = Culprit::new(vec![2, 3], Vec::new(), Way::Sends);
        let one = Culprit { slower: Some(2.04), ..one }.named(&places);
        assert_eq!(
            one.sentence(),
            "node2 (ranks 2, 3): what it sends takes 2.0 times as long as elsewhere"
        );
        assert!(one.advice().contains("link"));
        for (rank, port) in [(2, "mlx5_0:1"), (3, "mlx5_1:1")] {
            places.0[rank].ports = vec![port.to_owned()];
        }
        let one = Culprit::new(vec![3], Vec::new(), Way::Both);
        let one = Culprit { answers: Some(4.0), ..one }.named(&places);
        assert_eq!(
            one.sentence(),
            "rank 3 on node2, by mlx5_1:1: round trips take 4.0 times as long as elsewhere"
        );
        let one = Culprit { computes: Some(2.0), ..one }.named(&places);
        assert!(one.sentence().starts_with("rank 3 on node2: its processor"), "{}", one.sentence());
        let path = Culprit::new(vec![0], vec![1], Way::Both);
        let path = Culprit { slower: Some(3.0), answers: Some(1.5), ..path }.named(&places);
        assert_eq!(
            path.sentence(),
            "the path between node0 (rank 0) and node1 (rank 1): large messages take 3.0 times as long as elsewhere; \
             round trips take 1.5 times as long as elsewhere"
        );
        assert!(path.advice().contains("cables"));
        let back = Culprit::new(vec![0], vec![1], Way::Receives).named(&places);
        assert_eq!(back.name, "the path from node1 (rank 1) to node0 (rank 0)");
    }

    #[test]
    fn gpus_are_named_by_all_that_is_known_of_them() {
        let mut places = with_gpus(cluster(&[2, 4], 8), 2);
        places.0[2].ports = vec!["mlx5_0:1".to_owned()];
        let one = Culprit::new(vec![2, 4], Vec::new(), Way::Both);
        let one = Culprit { copies: Some(3.0), slower: Some(2.0), ..one }.named(&places);
        assert_eq!(
            one.sentence(),
            "GPU 0 of node1 (ranks 2, 4) [NVIDIA Test at 0000:01:00.0, GPU-1-0], by mlx5_0:1: copies in its GPU's memory \
             take 3.0 times as long as elsewhere; what it sends and receives takes 2.0 times as long as elsewhere"
        );
        assert!(one.advice().contains("clocks"), "{}", one.advice());
        let json = serde_json::to_value(&one).unwrap();
        let gpu = serde_json::json!({
            "index": 0, "address": "0000:01:00.0", "uuid": "GPU-1-0", "name": "NVIDIA Test"
        });
        assert_eq!((&json["gpus"][0], &json["copies"]), (&gpu, &3.0.into()));
        assert_eq!(serde_json::from_value::<Culprit>(json).unwrap(), one);

        // One of two ranks on a GPU is that rank, and the GPU is told beside it; its processor is not the GPU's matter.
        let one = Culprit::new(vec![3], Vec::new(), Way::Sends);
        let one = Culprit { slower: Some(2.0), ..one }.named(&places);
        let sentence = one.sentence();
        assert!(
            sentence
                .starts_with("rank 3 on node1 [GPU 1, NVIDIA Test at 0000:02:00.0, GPU-1-1]: what"),
            "{sentence}"
        );
        assert!(one.advice().contains("ringway topo"), "{}", one.advice());
        let copies = Culprit { copies: Some(2.0), ..one.clone() };
        assert!(copies.advice().contains("quick for its other ranks"), "{}", copies.advice());
        let one = Culprit { computes: Some(2.0), ..one }.named(&places);
        assert!(one.sentence().starts_with("rank 3 on node1: its"), "{}", one.sentence());

        let path = Culprit::new(vec![0], vec![1], Way::Sends);
        let path = Culprit { slower: Some(2.0), ..path }.named(&places);
        assert_eq!(
            path.sentence(),
            "the path from GPU 0 of node0 (rank 0) to GPU 1 of node0 (rank 1) \
             [NVIDIA Test at 0000:01:00.0, GPU-0-0; NVIDIA Test at 0000:02:00.0, GPU-0-1]: \
             large messages take 2.0 times as long as elsewhere"
        );
        // A host with several has no one GPU to name.
        let host = Culprit::new(vec![0, 1], Vec::new(), Way::Sends);
        let host = Culprit { slower: Some(2.0), ..host }.named(&places);
        assert!(host.sentence().starts_with("node0 (ranks 0, 1): "), "{}", host.sentence());
        assert_eq!(host.gpus.len(), 2);
    }
}

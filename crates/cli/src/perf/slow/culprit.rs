//! Whom a search names, in words and in JSON.

use serde::{Deserialize, Serialize};

use super::places::Places;

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
    /// `node3 (ranks 6, 7)`, `rank 6 on node3`, or the two ends of a path.
    pub(crate) name: String,
    pub(crate) ranks: Vec<usize>,
    /// The other end of a path; none where it is not one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) to: Vec<usize>,
    /// The network ports of `ranks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<String>,
    /// Which way large messages are slow; of a path, `sends` is from `ranks` to `to`.
    pub(crate) way: Way,
    /// How many times as long as elsewhere large messages take, where that is too long.
    pub(crate) slower: Option<f64>,
    /// The same of round trips.
    pub(crate) answers: Option<f64>,
    /// The same of work that its processor does alone.
    #[serde(default)]
    pub(crate) computes: Option<f64>,
}

impl Culprit {
    /// Without name yet.
    pub(crate) fn new(places: &Places, ranks: Vec<usize>, to: Vec<usize>, way: Way) -> Self {
        let name = match (&to[..], way) {
            ([], _) => places.name(&ranks),
            (to, Way::Both) => {
                format!("the path between {} and {}", places.name(&ranks), places.name(to))
            }
            (to, Way::Sends) => {
                format!("the path from {} to {}", places.name(&ranks), places.name(to))
            }
            (to, Way::Receives) => {
                format!("the path from {} to {}", places.name(to), places.name(&ranks))
            }
        };
        let ports = if to.is_empty() { places.ports(&ranks) } else { Vec::new() };
        Self { name, ranks, to, ports, way, slower: None, answers: None, computes: None }
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
        // A processor that is slow says nothing of ports.
        let by = match (&self.ports[..], self.computes) {
            ([], _) | (_, Some(_)) => String::new(),
            (ports, None) => format!(", by {}", ports.join(", ")),
        };
        let said: Vec<String> = computes.into_iter().chain(slower).chain(answers).collect();
        format!("{}{by}: {}", self.name, said.join("; "))
    }

    /// Where to look.
    pub(crate) fn advice(&self) -> &'static str {
        match (self.to.is_empty(), self.slower, self.answers) {
            _ if self.computes.is_some() => {
                "look at its processors: what else runs there, clock rates, limits: ringway doctor there"
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
    use super::super::places::tests::cluster;
    use super::*;

    #[test]
    fn sentences_say_who_and_how_much() {
        let mut places = cluster(&[1, 1, 2], 4);
        let mut one = Culprit::new(&places, vec![2, 3], Vec::new(), Way::Sends);
        one.slower = Some(2.04);
        assert_eq!(
            one.sentence(),
            "node2 (ranks 2, 3): what it sends takes 2.0 times as long as elsewhere"
        );
        assert!(one.advice().contains("link"));
        for (rank, port) in [(2, "mlx5_0:1"), (3, "mlx5_1:1")] {
            places.0[rank].ports = vec![port.to_owned()];
        }
        let mut one = Culprit::new(&places, vec![3], Vec::new(), Way::Both);
        one.answers = Some(4.0);
        assert_eq!(
            one.sentence(),
            "rank 3 on node2, by mlx5_1:1: round trips take 4.0 times as long as elsewhere"
        );
        one.computes = Some(2.0);
        assert!(one.sentence().starts_with("rank 3 on node2: its processor"), "{}", one.sentence());
        let mut path = Culprit::new(&places, vec![0], vec![1], Way::Both);
        (path.slower, path.answers) = (Some(3.0), Some(1.5));
        assert_eq!(
            path.sentence(),
            "the path between node0 (rank 0) and node1 (rank 1): large messages take 3.0 times as long as elsewhere; \
             round trips take 1.5 times as long as elsewhere"
        );
        assert!(path.advice().contains("cables"));
        let back = Culprit::new(&places, vec![0], vec![1], Way::Receives);
        assert_eq!(back.name, "the path from node1 (rank 1) to node0 (rank 0)");
    }
}

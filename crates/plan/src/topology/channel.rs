//! Rings over the GPUs of one machine, and the NICs they leave and enter by.
//!
//! A plain search: the order of the GPUs with the fastest slowest step, and on it one channel a
//! rail, entering at the GPU that the rail's port serves. NCCL searches more widely, over
//! bandwidths shared by channels; what is here is what an operator checks first.
//!
//! *Invariant:* a ring has every GPU once; a channel that enters by a port leaves by the same,
//! unless [`CrossNic`] allows another.

use serde::Serialize;

use super::nearest::Ends;
use super::path::{PathClass, Paths};
use super::{NodeIndex, Topology};

/// Steps the search takes for one bandwidth, all GPUs together.
const STEPS_MOST: usize = 1 << 17;
/// Bandwidths the search tries.
const RATES_MOST: usize = 32;

/// `NCCL_CROSS_NIC`: whether a ring may leave by another port than it enters by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrossNic {
    /// 0: never.
    Never,
    /// 1: each end by the port next to its GPU.
    Always,
    /// 2: where the same port could only be reached through the CPU.
    #[default]
    WhereBetter,
}

impl CrossNic {
    /// Reads the variable's value; other numbers are 2, as in NCCL.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.trim() {
            "0" => Self::Never,
            "1" => Self::Always,
            _ => Self::WhereBetter,
        }
    }
}

/// One ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Channel {
    /// The port it enters by; none on a machine without NICs.
    pub enters: Option<NodeIndex>,
    /// The GPUs, in order.
    pub gpus: Vec<NodeIndex>,
    /// The port it leaves by.
    pub leaves: Option<NodeIndex>,
    /// The worst step between GPUs.
    pub inside: PathClass,
    /// The worst step between a GPU and a port.
    pub outside: PathClass,
    /// GB/s of the slowest step.
    pub gb_per_s: f64,
}

/// The rings of one machine, one a rail.
#[must_use]
pub fn channels(topology: &Topology, paths: &Paths, cross: CrossNic) -> Vec<Channel> {
    let ends = Ends::of(topology);
    if ends.gpus.is_empty() {
        return Vec::new();
    }
    let order = order_of(paths, &ends.gpus);
    let serving: Vec<(NodeIndex, NodeIndex)> = ends
        .nets
        .iter()
        .filter_map(|net| Some((*net, paths.gpu_of_net(topology, *net, &ends)?)))
        .collect();
    if serving.is_empty() {
        return vec![channel(paths, order, None, None)];
    }
    serving
        .iter()
        .map(|(net, first)| {
            let order = entering_at(paths, &order, *first, *net);
            let last = order.last().copied().unwrap_or(*first);
            let own = paths.net_of_gpu(topology, last, 0).unwrap_or(*net);
            let leaves = match cross {
                CrossNic::Never => *net,
                CrossNic::Always => own,
                CrossNic::WhereBetter if paths.get(last, *net).class > PathClass::Pxn => own,
                CrossNic::WhereBetter => *net,
            };
            channel(paths, order, Some(*net), Some(leaves))
        })
        .collect()
}

/// The ring turned, and mirrored if that is better, so that it enters at a GPU and ends near to a port.
fn entering_at(
    paths: &Paths,
    order: &[NodeIndex],
    first: NodeIndex,
    net: NodeIndex,
) -> Vec<NodeIndex> {
    let turned = |order: &[NodeIndex]| {
        let at = order.iter().position(|gpu| *gpu == first).unwrap_or(0);
        let mut order = order.to_vec();
        order.rotate_left(at);
        order
    };
    let forward = turned(order);
    let backward = turned(&order.iter().rev().copied().collect::<Vec<_>>());
    let end = |order: &[NodeIndex]| order.last().map(|last| paths.get(*last, net).class);
    if end(&backward) < end(&forward) { backward } else { forward }
}

fn channel(
    paths: &Paths,
    gpus: Vec<NodeIndex>,
    enters: Option<NodeIndex>,
    leaves: Option<NodeIndex>,
) -> Channel {
    let closing = if enters.is_none() { 0 } else { 1 };
    let steps = (0..gpus.len().saturating_sub(closing))
        .filter(|_| gpus.len() > 1)
        .map(|at| paths.get(gpus[at], gpus[(at + 1) % gpus.len()]));
    let steps: Vec<_> = steps.collect();
    let mut outer = Vec::new();
    if let (Some(enters), Some(first)) = (enters, gpus.first()) {
        outer.push(paths.get(enters, *first));
    }
    if let (Some(leaves), Some(last)) = (leaves, gpus.last()) {
        outer.push(paths.get(*last, leaves));
    }
    let worst = |paths: &[super::path::Path]| {
        paths.iter().map(|path| path.class).max().unwrap_or(PathClass::Loc)
    };
    let rates = steps.iter().chain(&outer).map(|path| path.gb_per_s);
    let gb_per_s = rates.min_by(f64::total_cmp).unwrap_or(0.0);
    Channel { enters, inside: worst(&steps), outside: worst(&outer), gpus, leaves, gb_per_s }
}

/// The ring whose slowest step is the fastest, from the first GPU; that of the numbers where the
/// search finds none in its budget.
fn order_of(paths: &Paths, gpus: &[NodeIndex]) -> Vec<NodeIndex> {
    let mut rates: Vec<f64> = gpus
        .iter()
        .flat_map(|from| gpus.iter().map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
        .map(|(from, to)| paths.get(*from, *to).gb_per_s)
        .collect();
    rates.sort_by(|a, b| b.total_cmp(a));
    rates.dedup();
    for rate in rates.into_iter().filter(|rate| *rate > 0.0).take(RATES_MOST) {
        let steps = (STEPS_MOST / gpus.len()).max(2 * gpus.len());
        let mut search = Search { paths, gpus, rate, ring: vec![gpus[0]], steps };
        if search.extend() {
            return search.ring;
        }
    }
    gpus.to_vec()
}

/// A search for a ring with no step slower than `rate`.
struct Search<'a> {
    paths: &'a Paths,
    gpus: &'a [NodeIndex],
    rate: f64,
    ring: Vec<NodeIndex>,
    /// Steps left.
    steps: usize,
}

impl Search<'_> {
    fn extend(&mut self) -> bool {
        let last = self.ring[self.ring.len() - 1];
        let rate = |to: NodeIndex| self.paths.get(last, to).gb_per_s;
        if self.ring.len() == self.gpus.len() {
            return self.ring.len() == 1 || rate(self.ring[0]) >= self.rate;
        }
        let fits = |gpu: &NodeIndex| rate(*gpu) >= self.rate && !self.ring.contains(gpu);
        let mut next: Vec<NodeIndex> = self.gpus.iter().copied().filter(fits).collect();
        next.sort_by_key(|gpu| self.paths.get(last, *gpu).class);
        for gpu in next {
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            self.ring.push(gpu);
            if self.extend() {
                return true;
            }
            self.ring.pop();
        }
        false
    }
}

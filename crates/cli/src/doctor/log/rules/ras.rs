//! What NCCL's own monitor (RAS, `ncclras` or port 28028) prints of a job that runs.

use super::super::super::finding::Verdict::{Fail, Warn};
use super::{In, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ras-dead",
        group: "ranks",
        verdict: Fail,
        order: 205,
        place: In::Any,
        any: &["considered dead (unreachable via the RAS network)", "PEER_DEAD: Process "],
        and: &[],
        title: "NCCL's monitor takes processes of the job for dead",
        cost: "every other rank waits until its own time limit, 10 minutes with PyTorch",
        fix: "look at the process the next line names (host, GPU): its own log, dmesg of its host (Xid, out of memory).",
        cause: "A process of the job is gone or cannot be reached from the others.",
    },
    Rule {
        id: "ras-mismatch",
        group: "ranks",
        verdict: Warn,
        order: 640,
        place: In::Any,
        any: &[
            "Communicator ranks have different status",
            "Communicator ranks have different collective operation counts",
        ],
        and: &[],
        title: "NCCL's monitor saw ranks of a communicator apart",
        cost: "all ranks wait for the last one; one look does not tell a slow rank from one that stands still",
        fix: "ask again after a minute: ranks whose count stays are stuck; look at those processes first (py-spy, dmesg).",
        cause: "Some ranks of a communicator are in another call or another state than the rest.",
    },
    Rule {
        id: "ras-incomplete",
        group: "ranks",
        verdict: Warn,
        order: 650,
        place: In::Any,
        any: &["Missing communicator data from "],
        and: &[],
        title: "NCCL's monitor got no answer for some ranks",
        cost: "what those ranks do is not known; if they are gone, all others wait for them",
        fix: "look at the ranks and processes the next lines name; ask again with a longer time limit.",
        cause: "Some processes of the job did not answer NCCL's monitor: they are busy, stopped or gone.",
    },
];

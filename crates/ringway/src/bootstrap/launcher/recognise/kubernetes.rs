//! Pods: what Kubernetes and the LeaderWorkerSet controller tell them.
//!
//! An indexed Job says only which pod this is. How many there are and where the first is met the manifest says, in
//! `RINGWAY_SIZE` and `RINGWAY_ROOT`. A LeaderWorkerSet says everything.
//!
//! Where a pod holds several ranks, each of its processes has `RINGWAY_LOCAL_SIZE` and `RINGWAY_LOCAL_RANK`; the ranks
//! of a pod are consecutive.

use super::{Found, Reader, Recognised, Root, identity, root_hosts};
use crate::bootstrap::launcher::Launcher;
use crate::error::{Error, Result};

const INDEX: &str = "JOB_COMPLETION_INDEX";
const WORKER: &str = "LWS_WORKER_INDEX";
const GROUP: &str = "LWS_GROUP_SIZE";
const LEADER: &str = "LWS_LEADER_ADDRESS";

/// Whether this is a pod that knows its number.
pub(super) fn is_numbered_pod(e: &Reader<'_>) -> bool {
    [INDEX, WORKER].iter().any(|name| e.text(name).is_some())
}

/// A pod of an indexed Job, or of a JobSet's.
pub(super) fn indexed_job(e: &Reader<'_>) -> Result<Recognised> {
    let Some(index) = e.number(INDEX)? else {
        return Ok(Recognised::No);
    };
    let Some(size) = e.number("RINGWAY_SIZE")? else {
        return Ok(Recognised::Half(Error::usage(format!(
            "{INDEX}={index} is set but RINGWAY_SIZE is not; Kubernetes does not tell pods how many they are: set \
             RINGWAY_SIZE (the Job's completions) and RINGWAY_ROOT (host:port of the first pod) in its manifest, as \
             `ringway k8s gen job` does"
        ))));
    };
    let place = in_pod(e, (INDEX, index), ("RINGWAY_SIZE", size))?;
    // The pods of a Job are NAME-0, NAME-1, …
    let own = format!("-{index}");
    let first = e.text("HOSTNAME").and_then(|name| name.strip_suffix(&own)).unwrap_or("JOB");
    Ok(Recognised::Yes(Box::new(Found {
        launcher: Launcher::Kubernetes,
        rank: (INDEX, place.rank),
        size: ("RINGWAY_SIZE", size),
        local_rank: place.local_rank,
        local_size: place.local_size,
        identity: identity("kubernetes job", e, &["RINGWAY_ROOT", "NCCL_COMM_ID"]),
        root: Root::Unknown(format!(
            "{INDEX} and RINGWAY_SIZE are set but RINGWAY_ROOT is not (the first pod of this Job is {first}-0.SERVICE, \
             after the headless service that its pods name as `subdomain`)"
        )),
    })))
}

/// A pod of a group of a LeaderWorkerSet.
pub(super) fn leader_worker_set(e: &Reader<'_>) -> Result<Recognised> {
    let (index, pods) = match e.pair(WORKER, GROUP, Launcher::LeaderWorkerSet)? {
        Ok(pair) => pair,
        Err(other) => return Ok(other),
    };
    let local = e.number("RINGWAY_LOCAL_SIZE")?.unwrap_or(1);
    let place = in_pod(e, (WORKER, index), (GROUP, pods.saturating_mul(local)))?;
    let leader = e.text(LEADER).map(str::to_owned);
    Ok(Recognised::Yes(Box::new(Found {
        launcher: Launcher::LeaderWorkerSet,
        rank: (WORKER, place.rank),
        size: (GROUP, pods.saturating_mul(local)),
        local_rank: place.local_rank,
        local_size: place.local_size,
        identity: identity("leaderworkerset", e, &[LEADER, "RINGWAY_ROOT", "NCCL_COMM_ID"]),
        root: root_hosts(
            leader.into_iter().collect(),
            false,
            "LWS_WORKER_INDEX and LWS_GROUP_SIZE are set but LWS_LEADER_ADDRESS is not",
        ),
    })))
}

/// A rank by its pod and its place there.
struct InPod {
    rank: u32,
    local_rank: Option<u32>,
    local_size: Option<u32>,
}

fn in_pod(e: &Reader<'_>, pod: (&str, u32), size: (&str, u32)) -> Result<InPod> {
    let ((pod_name, pod), (size_name, size)) = (pod, size);
    let local_size = e.number("RINGWAY_LOCAL_SIZE")?;
    let local_rank = e.number("RINGWAY_LOCAL_RANK")?;
    let each = local_size.unwrap_or(1);
    if each == 0 {
        return Err(Error::argument("RINGWAY_LOCAL_SIZE=0: a pod has at least one rank"));
    }
    if size % each != 0 {
        return Err(Error::argument(format!(
            "{size_name}={size} is no multiple of RINGWAY_LOCAL_SIZE={each}: all pods have as many ranks"
        )));
    }
    let at = match local_rank {
        Some(at) if at >= each => {
            return Err(Error::argument(format!(
                "RINGWAY_LOCAL_RANK={at} but RINGWAY_LOCAL_SIZE={each}: the ranks of a pod run from 0 to {}",
                each - 1
            )));
        }
        None if each > 1 => {
            return Err(Error::usage(format!(
                "RINGWAY_LOCAL_SIZE={each} is set but RINGWAY_LOCAL_RANK is not: give each process of the pod its own, \
                 from 0 to {}",
                each - 1
            )));
        }
        at => at.unwrap_or(0),
    };
    if pod >= size / each {
        return Err(Error::argument(format!(
            "{pod_name}={pod} but there are {} pods ({size_name}={size}, {each} in each): the numbers of pods run from 0",
            size / each
        )));
    }
    Ok(InPod { rank: pod * each + at, local_rank, local_size })
}

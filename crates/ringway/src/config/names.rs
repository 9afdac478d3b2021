//! Names of NCCL's that ringway knows but gives no meaning yet, and the search for a near name.
//!
//! Knowing them has two uses: a job moved over from NCCL is told once that such a variable has no
//! effect, and a misspelt one gets the right suggestion.

/// Variables of NCCL, its plugins and tools, without their `NCCL_`, in order.
const WITHOUT_EFFECT: &str = "
ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS CGA_CLUSTER_SIZE CHECKPOINT_KVS_PATH
CHECKPOINT_KVS_TIMEOUT CHECKS_DISABLE CHECK_MODE CHECK_POINTERS CHUNK_SIZE COLLNET_ENABLE
COLLNET_NODE_THRESHOLD COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES
CONNECT_ROUND_MAX_PEERS CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG_TIMESTAMP_FORMAT
DEBUG_TIMESTAMP_LEVELS DEV_API_JIT DISABLE_MEM_MANAGER DMABUF_ENABLE ELASTIC_BUFFER_REGISTER
ENABLE_VERSION_CHECK ENV_PLUGIN EP_DEBUG EP_HOME EP_JIT_BUILD_INCLUDE_DIR EP_JIT_CACHE_DIR
EP_JIT_CUDA_INCLUDE_DIR EP_JIT_LOG EP_JIT_NVCC EP_JIT_SOURCE_DIR EP_TIMEOUT_MS
GDAKI_USE_RELIABLE_DB GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE
GDR_FLUSH_DISABLE GIN_ENABLE GIN_ERROR_QUERY_SEC GIN_GDAKI_MAX_DEST_RD_ATOMIC
GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_TC GIN_NCONNECTIONS
GIN_PLUGIN GIN_PLUGIN_REF_COUNT GIN_PROXY_QUEUE_SIZE GIN_TYPE GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK
GRAPH_FILE GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER GRAPH_STREAM_ORDERING
GROUP_CUDA_STREAM HOME IBVERBS_LIB IB_CUDA_SUPPORT
IB_DATA_DIRECT IB_DEVICE_PCI_ORDER IB_ECE_ENABLE IB_FIFO_TC IB_GDR_LEVEL IB_MERGE_NICS
IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_OOO_RQ
IB_PCI_RELAXED_ORDERING IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QUERY_PORT_SPEED
IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER
IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY
IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT
IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX IB_RESILIENCY_PORT_RECOVERY_START_DELAY
IB_RETURN_ASYNC_EVENTS IB_ROUTABLE_FLID_GID_INDEX IB_SUBNET_AWARE_ROUTING
IB_SUBNET_PREFIX_LEN IB_USE_INLINE IB_WARN_RAIL_LOCAL IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY
IGNORE_DISABLED_P2P IGNORE_NET_MISMATCH INSPECTOR_COLL_POOL_SIZE INSPECTOR_COMM_POOL_SIZE
INSPECTOR_DUMP_COLL_RING_SIZE INSPECTOR_DUMP_DIR INSPECTOR_DUMP_MIN_SIZE_BYTES
INSPECTOR_DUMP_P2P_RING_SIZE INSPECTOR_DUMP_THREAD_ENABLE
INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS INSPECTOR_DUMP_VERBOSE INSPECTOR_ENABLE
INSPECTOR_ENABLE_P2P INSPECTOR_P2P_POOL_SIZE INSPECTOR_POOL_GROW INSPECTOR_PROM_DUMP
INSPECTOR_REQUIRE_KERNEL_TIMING IPC_USE_ABSTRACT_SOCKET L1_SHARED_MEMORY_CARVEOUT LAUNCH_MODE
LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LL128_BUFFSIZE LL128_C2C
LL128_NTHREADS LL_BUFFSIZE LL_THRESHOLD LOCAL_REGISTER LSA_TEAM_SIZE MAX_CTAS MAX_NCHANNELS
MAX_NRINGS MAX_P2P_NCHANNELS MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS
MLOPART_RDMA_ENABLE MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE MNNVL_ENABLE MNNVL_RAIL_PER_HOST
MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE MULTI_SEGMENT_REGISTER
NCHANNELS_PER_NET_PEER NETDEVS_POLICY NET_DISABLE_INTRA NET_FORCE_FLUSH NET_FORCE_MERGE
NET_GDR_C2C NET_GDR_MLOPART NET_MERGE_LEVEL NET_MERGE_POLICY
NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NET_PLUGIN NET_PLUGIN_REF_COUNT NET_SHARED_BUFFERS
NET_SHARED_COMMS NO_CACHE NTHREADS NUM_RMA_CTX NVB_DISABLE NVB_PRECONNECT
NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_ENABLE NVLS_NCHANNELS
NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_EPOCH_ENABLE
P2P_LEVEL P2P_LL_THRESHOLD P2P_MAX_PEERS P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE
P2P_PER_CHANNEL_NET_BW P2P_PXN_LEVEL P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE P2P_USE_CUDA_MEMCPY
PARAM_DUMP_ALL PAT_ENABLE PROFILER_CE_POLLER_INTERVAL_MICROSECONDS PROFILER_CE_TIMING
PROFILER_PLUGIN PROFILE_CE_BATCH_POOL_SIZE PROFILE_CE_COLL_POOL_SIZE PROFILE_CE_SYNC_POOL_SIZE
PROFILE_COLL_API_POOL_SIZE PROFILE_COLL_POOL_SIZE PROFILE_DUMP_FILE PROFILE_EVENT_MASK
PROFILE_GROUP_API_POOL_SIZE PROFILE_GROUP_POOL_SIZE PROFILE_KERNEL_LAUNCH_POOL_SIZE
PROFILE_P2P_API_POOL_SIZE PROFILE_P2P_POOL_SIZE PROFILE_PROXY_CTRL_POOL_SIZE
PROFILE_PROXY_DETACH_POOL_SIZE PROGRESS_APPENDOP_FREQ PROXY_APPEND_BATCH_SIZE PROXY_CPUSET
PROXY_DUMP_SIGNAL PXN_C2C PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR
REPORT_CONNECT_PROGRESS RESHARD_ALGORITHM RESHARD_CHUNK_SIZE RESHARD_DST_DOMAIN_SIZE
RESHARD_LB_MODE RESHARD_LOG_LEVEL RESHARD_MAX_CTA RESHARD_SRC_DOMAIN_SIZE RESHARD_STREAM_POOL_SIZE
RMA_DISABLE RMA_PLUGIN RMA_PLUGIN_REF_COUNT RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE
RUNTIME_CONNECT SET_CPU_STACK_SIZE SET_STACK_SIZE SET_THREAD_NAME SHADOW_MEMPOOL_MAX_SIZE
SHM_LOCALITY SHM_MEMCPY_MODE SHM_USE_CUDA_MEMCPY SINGLE_PROC_MEM_REG_ENABLE SINGLE_RING_THRESHOLD
SOCKET_INLINE SOCKET_MAGIC SOCKET_MIN_TASKSIZE SOCKET_POLL_TIMEOUT_MSEC SOCKET_RCVBUF
SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_SNDBUF SYM_CE_THRESHOLD SYM_CTAS
SYM_GIN_KERNELS_ENABLE SYM_KERNEL SYM_NOWIN_ENABLE SYM_REUSE_SYSMEM_HANDLES SYM_RS_GIN_CHUNK_SIZE
SYM_TMA_ENABLE THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE TOPO_SPLIT_MLOPART
TREE_THRESHOLD TUNER_CONFIG_FILE TUNER_PLUGIN UID_STAGGER_RATE UID_STAGGER_THRESHOLD
UNPACK_DOUBLE_NCHANNELS WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES
WORK_FIFO_BYTES
";

/// Variables that other software reads or sets under NCCL's prefix: none of ringway's business.
const OF_OTHERS: &[&str] = &[
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_INCLUDE_DIR",
    "NCCL_LIBRARY",
    "NCCL_LIB_DIR",
    "NCCL_ROOT",
    "NCCL_ROOT_DIR",
    "NCCL_VERSION",
];

/// The same, by prefix.
const PREFIXES_OF_OTHERS: &[&str] =
    &["NCCL_TESTS_", "NCCL_OFI_", "NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_"];

const PREFIXES: [&str; 2] = ["NCCL_", "RINGWAY_"];

/// No name or word is nearly as long; longer ones get no suggestion.
const LONGEST: usize = 80;

/// NCCL's names that have no effect in ringway, in order, with their prefix.
pub(super) fn without_effect() -> impl Iterator<Item = String> {
    WITHOUT_EFFECT.split_ascii_whitespace().map(|name| format!("NCCL_{name}"))
}

/// Whether NCCL reads this name and ringway does not.
pub(super) fn has_no_effect(name: &str) -> bool {
    name.strip_prefix("NCCL_")
        .is_some_and(|bare| WITHOUT_EFFECT.split_ascii_whitespace().any(|known| known == bare))
}

/// Whether a misspelling under this name is ringway's to report.
pub(super) fn is_ours(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        && !OF_OTHERS.contains(&name)
        && !PREFIXES_OF_OTHERS.iter().any(|prefix| name.starts_with(prefix))
}

/// The setting a misspelt name most likely means; those of `table` win over equally near names
/// without effect.
pub(super) fn nearest_name(name: &str, table: &[&'static str]) -> Option<String> {
    let (_, bare) = split_prefix(name);
    let limit = tolerance(bare);
    let others: Vec<String> = without_effect().collect();
    let candidates = table.iter().copied().chain(others.iter().map(String::as_str));
    candidates
        .filter_map(|known| {
            let (same_prefix, known_bare) =
                (split_prefix(known).0 == split_prefix(name).0, split_prefix(known).1);
            let distance = distance(bare, known_bare, limit)? + usize::from(!same_prefix);
            Some((distance, known))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known.to_owned())
}

fn split_prefix(name: &str) -> (&str, &str) {
    let length = PREFIXES.iter().find(|prefix| name.starts_with(**prefix)).map_or(0, |p| p.len());
    name.split_at(length)
}

/// The nearest of some words, if any is near, whatever their case.
pub(super) fn nearest<'a>(word: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_ascii_lowercase();
    let limit = tolerance(word);
    words
        .filter_map(|known| Some((distance(&lower, &known.to_ascii_lowercase(), limit)?, known)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Slips to forgive: one in a short word, up to three in a long one.
fn tolerance(word: &str) -> usize {
    (word.chars().count().saturating_sub(1) / 2).clamp(1, 3)
}

/// Damerau–Levenshtein distance (adjacent swaps count one), if at most `limit`.
fn distance(left: &str, right: &str, limit: usize) -> Option<usize> {
    let length = |word: &str| word.chars().take(LONGEST + 1).count();
    if length(left).abs_diff(length(right)) > limit || length(left) > LONGEST {
        return None; // most words: a file may hold many that are not known
    }
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let replaced = previous[j] + usize::from(a != b);
            let mut best = replaced.min(previous[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut previous, row);
    }
    previous.last().copied().filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_slips() {
        for (left, right, expected) in [
            ("ring", "ring", 0),
            ("rign", "ring", 1),
            ("rin", "ring", 1),
            ("ringg", "ring", 1),
            ("rong", "ring", 1),
            ("smh", "shm", 1),
            ("", "abc", 3),
        ] {
            assert_eq!(distance(left, right, 3), Some(expected), "{left} {right}");
        }
        assert_eq!(distance("tree", "ring", 3), None);
        assert_eq!(distance(&"x".repeat(1 << 20), &"x".repeat(1 << 20), 3), None);
    }

    #[test]
    fn misspelt_names_find_their_neighbour() {
        let table = ["NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "RINGWAY_TRANSPORT", "RINGWAY_TIMEOUT"];
        for (wrong, right) in [
            ("NCCL_IB_MERGE_NIC", Some("NCCL_IB_MERGE_NICS")),
            ("NCCL_DEBGU", Some("NCCL_DEBUG")),
            ("NCCL_SOCKET_IFNAMES", Some("NCCL_SOCKET_IFNAME")),
            ("RINGWAY_DEBUG", Some("NCCL_DEBUG")),
            ("NCCL_TRANSPORT", Some("RINGWAY_TRANSPORT")),
            ("RINGWAY_TIMOUT", Some("RINGWAY_TIMEOUT")),
            ("NCCL_COMPLETELY_DIFFERENT_THING", None),
        ] {
            assert_eq!(nearest_name(wrong, &table).as_deref(), right, "{wrong}");
        }
    }

    #[test]
    fn names_are_in_order_and_once() {
        let names: Vec<String> = without_effect().collect();
        assert!(names.len() > 250);
        assert!(names.is_sorted_by(|a, b| a < b));
        assert!(names.iter().all(|name| is_ours(name) && has_no_effect(name)));
        assert!(!is_ours("NCCL_TESTS_DEVICE") && !is_ours("RCCL_X") && !is_ours("NCCL_VERSION"));
    }
}

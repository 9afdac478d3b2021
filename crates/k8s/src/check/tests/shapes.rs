//! Manifests as people write them: what is found in each, and what a correction makes of it.

use super::*;

/// What is found in a text, at which lines, and what a correction puts in place of what.
struct Shape {
    text: String,
    found: &'static [(&'static str, usize)],
    put: &'static [(&'static str, &'static str)],
    left: &'static [&'static str],
}

fn shape(
    text: impl Into<String>,
    found: &'static [(&'static str, usize)],
    put: &'static [(&'static str, &'static str)],
    left: &'static [&'static str],
) -> Shape {
    Shape { text: text.into(), found, put, left }
}

fn look(shapes: &[Shape]) {
    for Shape { text, found: wanted, put, left } in shapes {
        let seen = found(text);
        let ids: Vec<(&str, usize)> = seen.iter().map(|one| (one.id, one.place.line)).collect();
        assert_eq!(ids, *wanted, "{text}\n{seen:#?}");
        for one in &seen {
            let number = one.cost.contains(|c: char| c.is_ascii_digit());
            assert!(!one.title.is_empty() && number, "{one:?}");
        }
        let mut better = text.clone();
        for (from, to) in *put {
            assert!(better.contains(from), "{from} in\n{better}");
            better = better.replacen(from, to, 1);
        }
        let after = mended(text);
        assert_eq!(after, better, "of\n{text}");
        assert_eq!(mended(&after), after);
        let seen = found(&after);
        assert_eq!(seen.iter().map(|one| one.id).collect::<Vec<_>>(), *left, "{after}");
        // What is said to be written is written.
        assert!(seen.iter().all(|one| one.edits.is_empty()), "{after}\n{seen:#?}");
    }
}

/// A pod, with these lines in its container and behind it.
fn pod(container: &str, behind: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers:\n  - name: a\n    image: \"a:1\"\n{container}{behind}"
    )
}

const SHM: &str = "    volumeMounts: [{name: s, mountPath: /dev/shm}]\n";
const MEMORY: &str = "  volumes: [{name: s, emptyDir: {medium: Memory, sizeLimit: 16Gi}}]\n";

const MOUNTED: &str = "gpu: 2}}\n    volumeMounts:\n    - name: dshm\n      mountPath: /dev/shm\n";
const VOLUME: &str =
    "  volumes:\n  - name: dshm\n    emptyDir:\n      medium: Memory\n      sizeLimit: 8Gi\n";

#[test]
fn shared_memory_comes_into_every_shape() {
    let bare = pod("    resources: {limits: {nvidia.com/gpu: 2}}\n", "");
    let empty = bare.replace("spec:\n", "spec:\n  volumes: []\n");
    let wanted = [
        bare.replace("gpu: 2}}\n", &format!("{MOUNTED}{VOLUME}")),
        empty.replace("gpu: 2}}\n", MOUNTED).replace("  volumes: []\n", VOLUME),
    ];
    for (text, better) in [&bare, &empty].into_iter().zip(&wanted) {
        assert_eq!(mended(text), *better);
        // The same with other line ends, and without a last one.
        assert_eq!(mended(&text.replace('\n', "\r\n")), better.replace('\n', "\r\n"));
        assert_eq!(mended(text.trim_end()), better.trim_end());
    }
    // Two of one name and one title: each is mended by itself.
    assert_eq!(mended(&format!("{bare}---\n{empty}")), wanted.join("---\n"));
    for flow in [
        "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"a\"}, \"spec\": {\"containers\": [{\"name\": \"a\", \"image\": \"a:1\", \"resources\": {\"limits\": {\"nvidia.com/gpu\": 2, \"rdma/a\": 1}}, \"securitycontext\": {\"privileged\": false}}]}}\n",
        "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"a\"}, \"spec\": {\"volumes\": [], \"containers\": [{\"name\": \"a\", \"image\": \"a:1\", \"securityContext\": {\"runAsUser\": 0, \"privileged\": true}, \"resources\": {\"limits\": {\"nvidia.com/gpu\": 2, \"rdma/a\": 1}}}]}}\n",
    ] {
        let after = mended(flow);
        assert_eq!(found(&after), [], "{after}");
        serde_json::from_str::<serde_json::Value>(&after).expect("JSON stays JSON");
    }
}

#[test]
fn comments_stay_where_they_are() {
    let limits = "    resources: {limits: {nvidia.com/gpu: 2}}\n";
    let disk = "  volumes:\n  - name: s\n    emptyDir:\n      # we had 64Gi before\n      sizeLimit: 8Gi  # agreed\n";
    look(&[
        shape(
            pod(&format!("{limits}{SHM}"), disk),
            &[("K8S-02", 14)],
            &[("8Gi  # agreed\n", "8Gi  # agreed\n      medium: Memory\n")],
            &[],
        ),
        shape(
            pod(
                &format!("{limits}    volumeMounts:  # none yet\n    # keep me\n    tty: true\n"),
                "  volumes: # no\n",
            ),
            &[("K8S-02", 6)],
            &[
                ("  # none yet\n", "  # none yet\n    - name: dshm\n      mountPath: /dev/shm\n"),
                (
                    " # no\n",
                    " # no\n  - name: dshm\n    emptyDir:\n      medium: Memory\n      sizeLimit: 8Gi\n",
                ),
            ],
            &[],
        ),
        shape(
            pod(
                "    env:\n    - # ------\n      name: NCCL_ALGO\n      value: Ring\n    - name: FOO\n      value: bar\n",
                "",
            ),
            &[("K8S-23", 10)],
            &[("    - # ------\n      name: NCCL_ALGO\n      value: Ring\n", "")],
            &[],
        ),
    ]);
}

#[test]
fn privileges_go_from_every_shape() {
    let rdma = "    resources: {limits: {nvidia.com/gpu: 1, rdma/a: 1}}\n";
    let context = |inside: &str| pod(&format!("    securityContext:\n{inside}{rdma}"), "");
    look(&[
        shape(
            context("      privileged: true  # why\n      runAsUser: 0\n"),
            &[("K8S-16", 9)],
            &[(
                "privileged: true  # why\n",
                "capabilities:  # why\n        add:\n        - IPC_LOCK\n",
            )],
            &[],
        ),
        shape(
            context(
                "      runAsUser: 0\n      capabilities: {add: [SYS_PTRACE]}\n      privileged: true\n",
            ),
            &[("K8S-16", 11)],
            &[("      privileged: true\n", ""), ("SYS_PTRACE", "SYS_PTRACE, IPC_LOCK")],
            &[],
        ),
        shape(
            pod(&format!("    securityContext: {{privileged: true, runAsUser: 0}}\n{rdma}"), ""),
            &[("K8S-16", 8)],
            &[("privileged: true", "capabilities: {add: [IPC_LOCK]}")],
            &[],
        ),
    ]);
}

fn indexed(spec: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec:\n  completionMode: Indexed\n  completions: 100\n  parallelism: 10\n  template:\n    spec:\n      restartPolicy: Never\n{spec}"
    )
}

#[test]
fn tasks_need_not_run_at_once_and_ranks_must() {
    let one =
        "      containers: [{name: a, image: \"a:1\", resources: {limits: {nvidia.com/gpu: 1}}}]\n";
    let rank = one
        .replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 1, rdma/a: 1")
        .replace("\"a:1\",", "\"a:1\", securityContext: {capabilities: {add: [IPC_LOCK]}},");
    let near = "      schedulerName: near\n";
    let jobset = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: a}\nspec:\n  replicatedJobs:\n  - name: d\n    replicas: 4\n    template:\n      spec:\n        completions: 10\n        parallelism: 2\n        completionMode: Indexed\n        template:\n          spec:\n            containers: [{name: a, image: \"a:1\"}]\n";
    look(&[
        shape(indexed("      containers: [{name: a, image: \"busybox:1\"}]\n"), &[], &[], &[]),
        shape(jobset, &[], &[], &[]),
        // Jobs of a set have indices by themselves.
        shape(
            jobset.replace("        completionMode: Indexed\n", "").replace(
                "            containers: [{name: a, image: \"a:1\"}]\n",
                &format!("            schedulerName: near\n      {rank}"),
            ),
            &[("K8S-28", 11)],
            &[("parallelism: 2\n", "parallelism: 10\n")],
            &[],
        ),
        shape(
            indexed(&format!("{near}      # ringway: allow K8S-01 no network\n{one}")),
            &[("K8S-28", 7)],
            &[],
            &["K8S-28"],
        ),
        shape(
            indexed(&format!("{near}{rank}")),
            &[("K8S-28", 7)],
            &[("parallelism: 10\n", "parallelism: 100\n")],
            &[],
        ),
        // The right name stands there already: which of the two is meant is not known.
        shape(
            indexed("      containers: [{name: a, image: \"a:1\"}]\n")
                .replace("  parallelism", "  completion: 10\n  parallelism"),
            &[("K8S-20", 7)],
            &[],
            &["K8S-20"],
        ),
    ]);
}

/// A container whose GPUs, devices and memory are well, with this command.
fn worker(indent: usize, command: &str) -> String {
    let lines = format!(
        "- name: w\n  image: \"a:1\"\n  command: {command}\n  resources: {{limits: {{nvidia.com/gpu: 8, rdma/a: 1}}}}\n  securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}\n  volumeMounts: [{{name: s, mountPath: /dev/shm}}]\n"
    );
    let pad = " ".repeat(indent);
    let lines: String = lines.lines().map(|line| format!("{pad}{line}\n")).collect();
    format!(
        "{pad}schedulerName: near\n{pad}containers:\n{lines}{pad}volumes: [{{name: s, emptyDir: {{medium: Memory, sizeLimit: 16Gi}}}}]\n"
    )
}

fn pytorch(masters: u64, workers: u64, command: &str) -> String {
    let group = |name: &str, count| {
        format!(
            "    {name}:\n      replicas: {count}\n      template:\n        spec:\n{}",
            worker(10, command)
        )
    };
    format!(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: a}}\nspec:\n  pytorchReplicaSpecs:\n{}{}",
        group("Master", masters),
        group("Worker", workers)
    )
}

#[test]
fn torchrun_counts_the_pods_of_all_groups() {
    let single = |command: &str| {
        pod(
            &format!(
                "    command: {command}\n    resources: {{limits: {{nvidia.com/gpu: 8}}}}\n{SHM}"
            ),
            MEMORY,
        )
    };
    look(&[
        shape(
            pytorch(1, 3, "[bash, -c, \"torchrun --nnodes=4 --nproc-per-node=8 t.py\"]"),
            &[],
            &[],
            &[],
        ),
        shape(
            pytorch(1, 3, "[torchrun, \"--nnodes\", \"3\", t.py]"),
            &[("K8S-28", 14), ("K8S-28", 27)],
            &[("\"3\"", "\"4\""), ("\"3\"", "\"4\"")],
            &[],
        ),
        shape(
            single(
                "[bash, -c, \"torchrun --nproc-per-node=4 a.py & torchrun --nproc-per-node=4 b.py\"]",
            ),
            &[],
            &[],
            &[],
        ),
        shape(
            single(
                "[bash, -c, \"torchrun --nproc-per-node=4 a.py; torchrun --nproc-per-node=2 b.py\"]",
            ),
            &[("K8S-28", 8), ("K8S-28", 8)],
            &[],
            &["K8S-28", "K8S-28"],
        ),
        shape(
            single("[bash, -c, \"torchrun --nproc-per-node 4 a.py\"]"),
            &[("K8S-28", 8)],
            &[("node 4", "node 8")],
            &[],
        ),
        shape(
            single("[torchrun, --nproc_per_node=4, a.py]"),
            &[("K8S-28", 8)],
            &[("node=4", "node=8")],
            &[],
        ),
    ]);
    let two = pytorch(1, 1, "[torchrun, t.py]").replace(", rdma/a: 1", "");
    let ids: Vec<&str> = found(&two).iter().map(|one| one.id).collect();
    assert_eq!(ids, ["K8S-01", "K8S-01"], "a master and a worker are two");
}

fn mpi(slots: u64, command: &str) -> String {
    format!(
        "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {{name: a}}\nspec:\n  slotsPerWorker: {slots}\n  mpiReplicaSpecs:\n    Launcher:\n      replicas: 1\n      template:\n        spec:\n          containers:\n          - name: l\n            image: \"a:1\"\n            command: {command}\n    Worker:\n      replicas: 2\n      template:\n        spec:\n{}",
        worker(10, "[/usr/sbin/sshd, -De]")
    )
}

#[test]
fn ranks_of_mpirun_are_its_own_options() {
    look(&[
        shape(mpi(8, "[mpirun, -np, \"16\", python, train.py, -n, \"100\"]"), &[], &[], &[]),
        shape(
            mpi(8, "[mpirun, -np, \"8\", python, train.py]"),
            &[("K8S-28", 14)],
            &[("-np, \"8\"", "-np, \"16\"")],
            &[],
        ),
        shape(
            mpi(8, "[bash, -c, \"mpirun -np 8 x\"]"),
            &[("K8S-28", 14)],
            &[("-np 8", "-np 16")],
            &[],
        ),
        shape(mpi(8, "[mpirun, -np, \"2\", -N, \"1\", all_reduce_perf, -g, \"8\"]"), &[], &[], &[]),
        shape(
            mpi(8, "[mpirun, -np, \"2\", --map-by, \"ppr:1:node\", all_reduce_perf, -g, \"8\"]"),
            &[],
            &[],
            &[],
        ),
        shape(
            mpi(8, "[mpirun, -np, \"2\", all_reduce_perf, -g, \"8\"]"),
            &[("K8S-28", 14)],
            &[],
            &["K8S-28"],
        ),
        shape(mpi(1, "[mpirun, -np, \"2\", all_reduce_perf, -g, \"8\"]"), &[], &[], &[]),
        shape(mpi(1, "[mpirun, -np, \"2\", torchrun, t.py]"), &[], &[], &[]),
        shape(
            mpi(2, "[mpirun, -np, \"2\", all_reduce_perf, -g, \"8\"]"),
            &[("K8S-05", 5)],
            &[],
            &["K8S-05"],
        ),
        shape(
            mpi(1, "[mpirun, -np, \"16\", x]"),
            &[("K8S-05", 5)],
            &[("slotsPerWorker: 1", "slotsPerWorker: 8")],
            &[],
        ),
    ]);
}

#[test]
fn values_in_scripts_are_the_shells() {
    let script = |lines: &str| {
        pod(
            &format!(
                "    resources: {{limits: {{nvidia.com/gpu: 1}}}}\n    command: [bash, -c]\n    args:\n    - |\n{lines}"
            ),
            "",
        )
    };
    look(&[
        shape(
            script("      bash -c 'NCCL_SOCKET_IFNAME=ib0'\n"),
            &[("K8S-25", 12)],
            &[("IFNAME=ib0'", "IFNAME=eth0'")],
            &[],
        ),
        shape(
            script("      if [ -n \"$X\" ]; then\n        export NCCL_ALGO=Ring\n      fi\n"),
            &[("K8S-23", 13)],
            &[],
            &["K8S-23"],
        ),
        shape(
            script("      a\n      export NCCL_ALGO=Ring\n      b\n"),
            &[("K8S-23", 13)],
            &[("      export NCCL_ALGO=Ring\n", "")],
            &[],
        ),
        shape(
            pod(
                "    command: [\"bash\", \"-c\", \"export NCCL_SOCKET_IFNAME=\\\"eth0\\\" && NCCL_ALGO=\\\"\\\" ./x\"]\n",
                "",
            ),
            &[],
            &[],
            &[],
        ),
    ]);
}

#[test]
fn what_is_well_is_left_alone() {
    let eight = "    resources: {limits: {nvidia.com/gpu: 8}}\n";
    let map = |text: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n  x.json: |\n{text}"
        )
    };
    let policy = |driver: &str| {
        format!(
            "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {{name: a}}\nspec:\n  driver: {{enabled: true{driver}}}\n"
        )
    };
    look(&[
        // The host's /dev/shm.
        shape(pod(eight, "  hostIPC: true\n"), &[], &[], &[]),
        // Another version, other fields.
        shape(
            "apiVersion: kubeflow.org/v1\nkind: MPIJob\nmetadata: {name: a}\nspec:\n  cleanPodPolicy: Running\n  mainContainer: x\n",
            &[],
            &[],
            &[],
        ),
        shape(policy(", useOpenKernelModules: true"), &[], &[], &[]),
        shape(policy(""), &[("K8S-07", 5)], &[], &["K8S-07"]),
        shape(
            policy(", kernelModuleType: proprietary"),
            &[("K8S-07", 5)],
            &[("proprietary", "proprietary, rdma: {enabled: true}")],
            &[],
        ),
        // Accelerators and virtual GPUs are no network.
        shape(
            pod(
                "    resources: {limits: {nvidia.com/gpu: 1, intel.com/qat: 1, nvidia.com/GRID_T4-1Q: 1}}\n",
                "",
            ),
            &[],
            &[],
            &[],
        ),
        shape(
            pod("    resources: {limits: {nvidia.com/gpu: 1, openshift.io/fast: 1}}\n", ""),
            &[],
            &[],
            &[],
        ),
        shape(map("    // comment\n    {}\n"), &[("K8S-22", 6)], &[], &["K8S-22"]),
        shape(
            map(
                "    {\"configList\": [{\"resourceName\": \"a\", \"rdmaHcaMax\": 1, \"devices\": [\"e\"]},]}\n",
            ),
            &[("K8S-22", 6)],
            &[("},]", "}]")],
            &[],
        ),
        // Which number is meant is not known.
        shape(
            pod(
                "    resources: {limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 2}}\n",
                "",
            ),
            &[("K8S-31", 8)],
            &[],
            &["K8S-31"],
        ),
        shape(
            pod("    resources:\n      requests: {nvidia.com/gpu: 1}\n", ""),
            &[("K8S-31", 9)],
            &[("gpu: 1}\n", "gpu: 1}\n      limits:\n        nvidia.com/gpu: 1\n")],
            &[],
        ),
    ]);
    let efa = mpi(8, "[mpirun, -np, \"16\", -x, NCCL_IB_DISABLE=1, x]")
        .replace("rdma/a", "vpc.amazonaws.com/efa");
    look(&[shape(efa, &[], &[], &[])]);
    let sriov = "apiVersion: sriovnetwork.openshift.io/v1\nkind: SriovNetworkNodePolicy\nmetadata: {name: p}\nspec: {resourceName: fast, isRdma: true, linkType: ib}\n";
    let both = format!(
        "{sriov}---\n{}",
        pod("    resources: {limits: {nvidia.com/gpu: 1, openshift.io/fast: 1}}\n", "")
    );
    let ids: Vec<&str> = found(&both).iter().map(|one| one.id).collect();
    assert_eq!(ids, ["K8S-04", "K8S-06"], "a policy tells what its resource is");
}

#[test]
fn tasks_of_volcano_are_pods() {
    let text = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: a}\nspec:\n  tasks:\n  - replicas: 4\n    name: w\n    template:\n      spec:\n        containers: [{name: a, image: \"a:latest\", resources: {limits: {nvidia.com/gpu: 8}}}]\n";
    let ids: Vec<&str> = found(text).iter().map(|one| one.id).collect();
    assert_eq!(ids, ["K8S-12", "K8S-02", "K8S-27", "K8S-01"]);
}

/// One fault each: its check, its line, how bad it is, and the text.
pub(super) const ROWS: &[(&str, usize, Verdict, &str)] = &[
    (
        "K8S-07",
        7,
        Verdict::Fail,
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: a}\nspec:\n  driver:\n    kernelModuleType: proprietary\n    rdma: {enabled: false}\n",
    ),
    (
        "K8S-11",
        3,
        Verdict::Warn,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ntopologyManagerPolicy: best-effort\ncpuManagerPolicy: static\n",
    ),
    (
        "K8S-11",
        5,
        Verdict::Fail,
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: KubeletConfig\nspec:\n  kubeletConfig:\n    cpuManagerPolicy: none\n---\napiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    resources: {limits: {nvidia.com/gpu: 1, rdma/a: 1}}\n    securityContext: {capabilities: {add: [IPC_LOCK]}}\n",
    ),
    (
        "K8S-14",
        6,
        Verdict::Fail,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    env: [{name: NCCL_TOPO_FILE, value: /etc/topo.xml}]\n",
    ),
    (
        "K8S-14",
        6,
        Verdict::Hint,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    env: [{name: NCCL_TOPO_FILE, value: /opt/topo.xml}]\n",
    ),
    (
        "K8S-16",
        7,
        Verdict::Warn,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    resources: {limits: {nvidia.com/gpu: 1}}\n    securityContext: {privileged: true}\n",
    ),
    (
        "K8S-17",
        5,
        Verdict::Fail,
        "apiVersion: sriovnetwork.openshift.io/v1\nkind: SriovNetworkNodeState\nmetadata: {name: n}\nstatus:\n  syncStatus: Failed\n  lastSyncError: zero GUID\n",
    ),
    (
        "K8S-17",
        5,
        Verdict::Warn,
        "apiVersion: sriovnetwork.openshift.io/v1\nkind: SriovNetworkNodeState\nmetadata: {name: n}\nstatus:\n  syncStatus: InProgress\n",
    ),
    (
        "K8S-18",
        10,
        Verdict::Fail,
        "apiVersion: batch/v1\nkind: Job\nspec:\n  completionMode: Indexed\n  completions: 2\n  parallelism: 2\n  template:\n    spec:\n      nodeSelector:\n        nvidia.com/gpu.product: NVIDIA-GB200\n      containers:\n      - image: a:1\n        resources: {limits: {nvidia.com/gpu: 1, rdma/a: 1}}\n        securityContext: {capabilities: {add: [IPC_LOCK]}}\n",
    ),
    (
        "K8S-23",
        6,
        Verdict::Fail,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    env: [{name: NCCL_PROTO, value: LL128}]\n",
    ),
    (
        "K8S-24",
        6,
        Verdict::Warn,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    env: [{name: NCCL_IB_GID_INDEX, value: \"3\"}]\n",
    ),
    (
        "K8S-26",
        8,
        Verdict::Fail,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    resources: {limits: {rdma/a: 1}}\n    securityContext: {capabilities: {add: [IPC_LOCK]}}\n    env: [{name: NCCL_NET, value: Socket}]\n",
    ),
    (
        "K8S-29",
        5,
        Verdict::Warn,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    resources: {limits: {nvidia.com/gpu: 1}}\n    volumeMounts: [{name: c, mountPath: /etc/cufile.json}]\n",
    ),
    (
        "K8S-31",
        6,
        Verdict::Fail,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a:1\n    resources: {requests: {nvidia.com/gpu: 1}}\n",
    ),
];

#[test]
fn each_fault_is_found_alone_at_its_line() {
    for (id, line, verdict, text) in ROWS {
        let seen = found(text);
        let all: Vec<_> = seen.iter().map(|one| (one.id, one.place.line, one.verdict)).collect();
        assert_eq!(all, [(*id, *line, *verdict)], "{text}");
        // What is said to be written is written.
        let left = found(&mended(text));
        assert!(left.iter().all(|one| one.edits.is_empty()), "{left:?}");
        assert_eq!(left.is_empty(), !seen[0].edits.is_empty(), "{text}\n{left:?}");
    }
}

#[test]
fn storage_comes_into_every_shape() {
    let limits = "    resources: {limits: {nvidia.com/gpu: 1}}\n";
    let mount = "    volumeMounts: [{name: c, mountPath: /etc/cufile.json}]\n";
    look(&[
        shape(
            pod(
                &format!("{limits}    env:\n    - name: CUFILE_ENV_PATH_JSON\n      value: /x\n"),
                "",
            ),
            &[("K8S-29", 6)],
            &[("value: /x\n", "value: /x\n    - name: NVIDIA_GDS\n      value: enabled\n")],
            &[],
        ),
        shape(
            pod(&format!("{limits}{mount}"), ""),
            &[("K8S-29", 6)],
            &[("json}]\n", "json}]\n    env:\n    - name: NVIDIA_GDS\n      value: enabled\n")],
            &[],
        ),
        shape(
            pod(&format!("{limits}{mount}    env:\n    - name: NVIDIA_GDS\n"), ""),
            &[("K8S-29", 6)],
            &[("NVIDIA_GDS\n", "NVIDIA_GDS\n      value: enabled\n")],
            &[],
        ),
    ]);
}

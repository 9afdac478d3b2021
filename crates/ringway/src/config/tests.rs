//! Each setting good and bad, precedence, files, contradictions, and that nothing panics.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::plan::types::Collective;

fn load(variables: &[(&str, &str)]) -> Config {
    Config::load(&Environment::new(variables.iter().copied()))
}

fn shown(config: &Config, name: &str) -> String {
    config.settings().into_iter().find(|s| s.name == name).unwrap().value
}

/// A directory that stands for `/`, removed at the end.
struct Root(PathBuf);

impl Root {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("ringway-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn load(&self, variables: &[(&str, &str)]) -> Config {
        let environment = Environment::new(variables.iter().copied());
        Config::load(&environment.with_root(&self.0).with_home("/home/me"))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn good_values_are_taken_without_a_word() {
    let cases = [
        ("RINGWAY_RANK", "3", "3"),
        ("RINGWAY_SIZE", "0x10", "16"),
        ("RINGWAY_LOCAL_RANK", "0", "0"),
        ("RINGWAY_LOCAL_SIZE", " 8 ", "8"),
        ("RINGWAY_ROOT", "node1:7000, [fe80::1%eth0]:7001", "node1:7000,[fe80::1%eth0]:7001"),
        ("NCCL_COMM_ID", "[::1]:5000", "[::1]:5000"),
        ("NCCL_HOSTID", "rack-1", "rack-1"),
        ("RINGWAY_SECRET", "correct horse battery", "(redacted)"),
        ("RINGWAY_TRANSPORT", "SHM", "shm"),
        ("RINGWAY_REQUIRE", "shm,rails=4", "shm,rails=4"),
        ("NCCL_SHM_DISABLE", "true", "1"),
        ("RINGWAY_SHM_DIR", "/run/ringway", "/run/ringway"),
        ("NCCL_SOCKET_IFNAME", "^=lo,docker0", "^=lo,docker0"),
        ("RINGWAY_SINGLE_COPY", "0", "0"),
        ("RINGWAY_GPU", "no", "0"),
        ("RINGWAY_GPU_OVERLAP", "0", "0"),
        ("RINGWAY_GPU_CHANNELS", "2", "2"),
        ("RINGWAY_GPUDIRECT", "1", "1"),
        ("RINGWAY_CUDA_LIBRARY", "/opt/libcuda.so.1", "/opt/libcuda.so.1"),
        ("RINGWAY_NVRTC_LIBRARY", "/opt/libnvrtc.so", "/opt/libnvrtc.so"),
        ("CUDA_HOME", "/opt/cuda-12.8", "/opt/cuda-12.8"),
        ("CUDA_PATH", "/usr/local/cuda", "/usr/local/cuda"),
        ("NCCL_SOCKET_FAMILY", "af_inet6", "AF_INET6"),
        ("NCCL_SOCKET_NTHREADS", "4", "4"),
        ("NCCL_NSOCKS_PERTHREAD", "8", "8"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1", "=mlx5_0:1,mlx5_1"),
        ("NCCL_IB_GID_INDEX", "3", "3"),
        ("NCCL_IB_GID_INDEX", "-1", "auto"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6", "AF_INET6"),
        ("NCCL_IB_ADDR_RANGE", "fd00::/8", "fd00::/8"),
        ("NCCL_IB_ADDR_RANGE", "10.0.0.1", "10.0.0.1/32"),
        ("NCCL_IB_ROCE_VERSION_NUM", "1", "1"),
        ("NCCL_IB_TIMEOUT", "22", "22"),
        ("NCCL_IB_RETRY_CNT", "6", "6"),
        ("NCCL_IB_SL", "3", "3"),
        ("NCCL_IB_TC", "106", "106"),
        ("NCCL_IB_PKEY", "1", "1"),
        ("NCCL_IB_DISABLE", "1", "1"),
        ("NCCL_IB_QPS_PER_CONNECTION", "4", "4"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "1", "1"),
        ("NCCL_IB_ADAPTIVE_ROUTING", "1", "1"),
        ("NCCL_IB_AR_THRESHOLD", "4K", "4096"),
        ("NCCL_CROSS_NIC", "1", "1"),
        ("NCCL_NET_GDR_LEVEL", "PHB", "PHB"),
        ("NCCL_NET_GDR_LEVEL", "2", "PXB"),
        ("NCCL_NET_GDR_READ", "0", "0"),
        ("RINGWAY_RDMA_REGISTER", "0", "0"),
        ("RINGWAY_CHECKSUM", "1", "1"),
        ("RINGWAY_TLS", "on", "1"),
        ("NCCL_NET", "ib", "IB"),
        ("NCCL_BUFFSIZE", "8388608", "8M"),
        ("RINGWAY_MAX_BYTES", "1.5G", "1536M"),
        ("RINGWAY_CHUNK_BYTES", "512KiB", "512K"),
        ("RINGWAY_CHUNK_BYTES", "AUTO", "auto"),
        ("RINGWAY_LANES", "4", "4"),
        ("RINGWAY_SPIN_US", "50", "50"),
        ("NCCL_ALGO", "Ring;allreduce:^tree", "ring;allreduce:^tree"),
        ("RINGWAY_TUNING", "OFF", "off"),
        ("RINGWAY_TUNING", "/tmp/t.json", "/tmp/t.json"),
        ("NCCL_PROTO", "^LL128", "^LL128"),
        ("NCCL_COMM_BLOCKING", "0", "0"),
        ("RINGWAY_LEVEL", "shape", "shape"),
        ("RINGWAY_TIMEOUT", "500ms", "500ms"),
        ("RINGWAY_ADAPTIVE_TIMEOUT", "20", "20"),
        ("RINGWAY_INIT_TIMEOUT", "120", "2m"),
        ("NCCL_DEBUG", "info", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "^COLL", "^COLL"),
        ("NCCL_DEBUG_SUBSYS", "init,net", "INIT,NET"),
        ("NCCL_DEBUG_SUBSYS", "ALL", "ALL"),
        ("NCCL_DEBUG_FILE", "/tmp/%h.%p", "/tmp/%h.%p"),
        ("RINGWAY_RECORDER", "0", "0"),
        ("RINGWAY_RECORDER", "4096", "4096"),
        ("RINGWAY_TRACE_DIR", "/tmp/t", "/tmp/t"),
        ("RINGWAY_TRACE_ON", "end, USR2", "end,usr2"),
        ("RINGWAY_METRICS", "9400", "127.0.0.1:9400"),
        ("RINGWAY_METRICS", "[::]:9400", "[::]:9400"),
        ("RINGWAY_METRICS", "unix:/run/r/%p", "unix:/run/r/%p"),
        ("RINGWAY_METRICS", "exporter", "unix:/run/ringway/%h-%p.sock"),
        ("NCCL_DEBUG_FILE", "/dev/stdout", "stdout"),
        ("RINGWAY_CACHE_DIR", "/var/cache", "/var/cache"),
        ("XDG_CACHE_HOME", "/home/a/.cache", "/home/a/.cache"),
        ("RINGWAY_COLOR", "never", "never"),
        ("NO_COLOR", "yes", "1"),
        ("RINGWAY_TEST_REQUIRE", "avx512,netns", "avx512,netns"),
        ("RINGWAY_BLESS", "1", "1"),
    ];
    for (name, value, expected) in cases {
        let config = load(&[(name, value)]);
        assert_eq!(config.warnings, [], "{name}={value}");
        assert_eq!(shown(&config, name), expected, "{name}={value}");
        assert_eq!(config.source(name), Source::Environment);
        // What is shown is taken again and means the same.
        let mut again = Config::default();
        again.set(name, expected, Source::CommandLine).unwrap();
        assert_eq!(shown(&again, name), expected);
    }
    let tested = |entry: &&Entry| cases.iter().any(|(name, ..)| *name == entry.name);
    let untested: Vec<_> = TABLE.iter().filter(|e| !tested(e)).map(|e| e.name).collect();
    assert_eq!(untested, ["RINGWAY_SECRET_FILE", "NCCL_CONF_FILE"], "tested with files below");
}

#[test]
fn bad_values_say_what_would_do_and_what_is_used() {
    let cases = [
        ("RINGWAY_RANK", "-1", "not from 0 to 1048575; using unset"),
        ("RINGWAY_SIZE", "many", "not a whole number from 1 to 1048576; using unset"),
        ("RINGWAY_ROOT", "node1", "node1: no port; write host:port or [ipv6]:port; using unset"),
        (
            "NCCL_COMM_ID",
            "::1:5000",
            "an IPv6 address without brackets; write host:port or [ipv6]:port; using unset",
        ),
        (
            "NCCL_COMM_ID",
            "h:0",
            "the port is not a number from 1 to 65535; write host:port or [ipv6]:port; using unset",
        ),
        (
            "RINGWAY_TRANSPORT",
            "smh",
            "not one of auto, shm, tcp, verbs (did you mean shm?); using auto",
        ),
        ("NCCL_SHM_DISABLE", "2", "neither 0 nor 1; using 0"),
        (
            "RINGWAY_SHM_DIR",
            "run",
            "not an absolute path; ranks may start in different directories; using unset",
        ),
        (
            "NCCL_SOCKET_IFNAME",
            "^",
            "names no interface; write eth0,ib, =eth0 or ^docker,lo; using all",
        ),
        (
            "NCCL_SOCKET_IFNAME",
            "eth0,^lo",
            "^ counts once, at the start, for the whole list; ^lo is ignored; using eth0",
        ),
        (
            "NCCL_SOCKET_FAMILY",
            "AF_INET4",
            "not one of AF_INET, AF_INET6 (did you mean AF_INET?); using any",
        ),
        ("NCCL_SOCKET_NTHREADS", "17", "not from 0 to 16; using 16"),
        ("NCCL_NSOCKS_PERTHREAD", "0", "not from 1 to 64; using 1"),
        ("NCCL_BUFFSIZE", "1K", "not from 64K to 1G; using 64K"),
        ("NCCL_BUFFSIZE", "2G", "not from 64K to 1G; using 1G"),
        ("NCCL_BUFFSIZE", "4MB/s", "not a number of bytes such as 65536, 64K, 16M or 1G; using 4M"),
        ("RINGWAY_LANES", "0", "not from 1 to 16, nor auto; using 1"),
        ("RINGWAY_SPIN_US", "long", "not a whole number from 0 to 1000000, nor auto; using auto"),
        (
            "NCCL_PROTO",
            "LL127",
            "LL127 is not one of LL, LL128, Simple (did you mean LL128?); using LL127",
        ),
        ("RINGWAY_LEVEL", "shpae", "not one of run, shape (did you mean shape?); using run"),
        ("RINGWAY_TIMEOUT", "0", "not from 1ms to 168h; using 1ms"),
        ("RINGWAY_TIMEOUT", "never", "not a duration such as 500ms, 30s, 10m or 2h; using 10m"),
        (
            "NCCL_DEBUG",
            "INOF",
            "not one of NONE, VERSION, WARN, INFO, ABORT, TRACE (did you mean INFO?); using WARN",
        ),
        ("RINGWAY_COLOR", "\u{fffd}", "not valid UTF-8; using auto"),
    ];
    for (name, value, expected) in cases {
        let config = load(&[(name, value)]);
        let texts: Vec<_> = config.warnings.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(texts, [format!("{name}={value}: {expected}")]);
        let mut unchanged = Config::default();
        let error = unchanged.set(name, value, Source::CommandLine).unwrap_err().to_string();
        assert!(texts[0].starts_with(&error), "{error}");
        assert_eq!(unchanged.source(name), Source::Default);
        assert!(config.check().is_ok(), "{name}={value} must not stop a job");
    }
    let config = load(&[("NCCL_DEBUG_SUBSYS", "INIT,NETT")]);
    assert!(config.warnings[0].text.contains("NETT is not one of INIT, COLL"));
    assert!(config.warnings[0].text.ends_with("(did you mean NET?); using INIT"));
}

#[test]
fn names_are_known_unknown_or_of_others() {
    let config = load(&[
        ("NCCL_IB_GID_INDX", "3"),
        ("RINGWAY_TRANSPROT", "shm"),
        ("NCCL_QUITE_SOMETHING_ELSE", "1"),
        ("NCCL_IB_MERGE_NICS", "0"),
        ("NCCL_VERSION", "2.30"),
        ("NCCL_TESTS_DEVICE", "0"),
        ("RCCL_X", "1"),
        ("PATH", "/bin"),
        ("NCCL_DEBUG", ""),
    ]);
    let texts: Vec<_> = config.warnings.iter().map(|w| w.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "NCCL_IB_GID_INDX: unknown; did you mean NCCL_IB_GID_INDEX?",
            "NCCL_QUITE_SOMETHING_ELSE: unknown",
            "RINGWAY_TRANSPROT: unknown; did you mean RINGWAY_TRANSPORT?",
        ]
    );
    assert_eq!(config.notes.len(), 1);
    assert!(
        config.notes[0].text.starts_with("NCCL_IB_MERGE_NICS is set but has no effect in ringway ")
    );
    assert_eq!(config.source("NCCL_DEBUG"), Source::Default);
    assert!(!TABLE.iter().any(|entry| names::has_no_effect(entry.name)));
    let mut config = Config::default();
    assert!(config.set("NCCL_IB_MERGE_NICS", "0", Source::CommandLine).is_ok());
    let error = config.set("NCCL_DEBGU", "INFO", Source::CommandLine).unwrap_err();
    assert_eq!(error.to_string(), "NCCL_DEBGU: unknown; did you mean NCCL_DEBUG?");
    assert!(config.set("PATH", "x", Source::CommandLine).is_err());
}

#[test]
fn process_wins_over_user_file_over_system_file() {
    let root = Root::new(
        "precedence",
        &[
            (
                "etc/nccl.conf",
                "NCCL_DEBUG=INFO\nNCCL_BUFFSIZE=1M\nRINGWAY_LANES=2\nNCCL_HOSTID=a\n",
            ),
            ("home/me/.nccl.conf", "NCCL_DEBUG=TRACE\nNCCL_BUFFSIZE=2M\n"),
            ("job.conf", "# mine\nNCCL_BUFFSIZE=8M\nPATH=/x\nNCCL_DEBUGG=INFO\nbroken"),
        ],
    );
    let config = root.load(&[("NCCL_DEBUG", "VERSION"), ("NCCL_HOSTID", "")]);
    assert_eq!(config.debug, DebugLevel::Version);
    assert_eq!(config.buffer_bytes, 2 << 20);
    assert_eq!(config.lanes, Some(2));
    assert_eq!(config.host_id, None, "an empty variable hides the file's");
    assert_eq!(config.source("NCCL_BUFFSIZE").to_string(), "/home/me/.nccl.conf:2");
    assert_eq!(config.source("RINGWAY_LANES").to_string(), "/etc/nccl.conf:3");
    assert_eq!(config.warnings, []);

    let config = root.load(&[("NCCL_CONF_FILE", "/job.conf")]);
    assert_eq!((config.buffer_bytes, config.debug), (8 << 20, DebugLevel::Info));
    let texts: Vec<_> = config.warnings.iter().map(|w| w.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "/job.conf:5: no = in it; write NAME=value; the line is ignored",
            "/job.conf:4: NCCL_DEBUGG: unknown; did you mean NCCL_DEBUG?",
        ]
    );
    assert!(config.notes[0].text.starts_with("/job.conf:3: PATH has no effect"));

    let config = root.load(&[("NCCL_CONF_FILE", "/missing.conf")]);
    assert!(config.warnings[0].text.starts_with("/missing.conf: cannot be read: "));
    let config = root.load(&[("NCCL_CONF_FILE", "/etc")]);
    assert!(config.warnings[0].text.contains("not a regular file"));
}

#[test]
fn secrets_come_from_files_and_fail_closed() {
    let root = Root::new("secrets", &[("s", " correct horse battery\n"), ("empty", "\n")]);
    let config = root.load(&[("RINGWAY_SECRET_FILE", "/s")]);
    assert_eq!(config.secret.as_ref().unwrap().expose(), b"correct horse battery");
    assert!(!format!("{config:?} {:?}", config.settings()).contains("horse"));
    assert!(config.check().is_ok());
    for (name, value, error) in [
        ("RINGWAY_SECRET_FILE", "/missing", "RINGWAY_SECRET_FILE=/missing: cannot be read: "),
        ("RINGWAY_SECRET_FILE", "/empty", "RINGWAY_SECRET_FILE=/empty: the file is empty"),
        ("RINGWAY_SECRET", "", "RINGWAY_SECRET is set but empty"),
        ("RINGWAY_SECRET", "hunt\u{fffd}er2", "RINGWAY_SECRET: not valid UTF-8"),
    ] {
        let config = root.load(&[(name, value)]);
        let text = config.check().unwrap_err().to_string();
        assert!(text.starts_with(error), "{text}");
        assert!(config.warnings.iter().all(|w| !w.text.contains("hunt")));
    }
    let mut config = root.load(&[("RINGWAY_SECRET_FILE", "/s"), ("RINGWAY_SECRET", "other")]);
    assert_eq!(config.secret.as_ref().unwrap().expose(), b"other");
    assert_eq!(config.warnings.len(), 1);
    config.set("RINGWAY_SECRET_FILE", "/s", Source::CommandLine).unwrap();
    assert_eq!(config.secret.as_ref().unwrap().expose(), b"correct horse battery");
}

#[test]
fn contradictions_stop_a_job() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("RINGWAY_RANK", "4"), ("RINGWAY_SIZE", "4")],
            "RINGWAY_RANK=4 does not fit RINGWAY_SIZE=4",
        ),
        (
            &[("RINGWAY_LOCAL_SIZE", "5"), ("RINGWAY_SIZE", "4")],
            "RINGWAY_LOCAL_SIZE=5 does not fit RINGWAY_SIZE=4",
        ),
        (&[("RINGWAY_REQUIRE", "shm,p2p")], "RINGWAY_REQUIRE=p2p cannot be met: ringway "),
        (
            &[("RINGWAY_REQUIRE", "gdr"), ("NCCL_NET", "Socket")],
            "RINGWAY_REQUIRE=gdr contradicts NCCL_NET=Socket",
        ),
        (
            &[("RINGWAY_REQUIRE", "smh")],
            "RINGWAY_REQUIRE=smh cannot be met: not one of shm, rdma, gdr, p2p, rails=N (did you mean shm?)",
        ),
        (
            &[("RINGWAY_REQUIRE", "shm"), ("RINGWAY_TRANSPORT", "tcp")],
            "RINGWAY_REQUIRE=shm contradicts RINGWAY_TRANSPORT=tcp",
        ),
        (
            &[("RINGWAY_TRANSPORT", "shm"), ("NCCL_SHM_DISABLE", "1")],
            "RINGWAY_TRANSPORT=shm contradicts NCCL_SHM_DISABLE=1",
        ),
        (
            &[("RINGWAY_REQUIRE", "rdma"), ("NCCL_IB_DISABLE", "1")],
            "RINGWAY_REQUIRE=rdma contradicts NCCL_IB_DISABLE=1",
        ),
        (
            &[("NCCL_NET", "IB"), ("RINGWAY_TRANSPORT", "tcp")],
            "NCCL_NET=IB contradicts RINGWAY_TRANSPORT=tcp",
        ),
        (
            &[("RINGWAY_REQUIRE", "rdma"), ("RINGWAY_TLS", "1")],
            "RINGWAY_REQUIRE=rdma contradicts RINGWAY_TLS=1",
        ),
        // Whoever meant to encrypt must not go on in the clear for a slip of the pen.
        (&[("RINGWAY_TLS", "ja")], "RINGWAY_TLS"),
        (&[("RINGWAY_TLS", "")], "RINGWAY_TLS is set but empty"),
    ];
    for (variables, expected) in cases {
        let text = load(variables).check().unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}");
    }
    let fits = [("RINGWAY_RANK", "3"), ("RINGWAY_SIZE", "4"), ("RINGWAY_LOCAL_SIZE", "4")];
    assert!(load(&fits).check().is_ok());
    assert!(load(&[("RINGWAY_REQUIRE", "shm")]).check().is_ok());
}

#[test]
fn combined_settings_are_bounded() {
    let sockets = |variables: &[(&str, &str)]| load(variables).sockets_per_peer();
    assert_eq!(sockets(&[]), 2);
    assert_eq!(sockets(&[("NCCL_SOCKET_NTHREADS", "4")]), 4);
    assert_eq!(sockets(&[("NCCL_NSOCKS_PERTHREAD", "8")]), 8);
    assert_eq!(sockets(&[("NCCL_SOCKET_NTHREADS", "0")]), 1);
    let config = load(&[("NCCL_SOCKET_NTHREADS", "16"), ("NCCL_NSOCKS_PERTHREAD", "8")]);
    assert_eq!((config.sockets_per_peer(), config.warnings.len()), (64, 1));
    let config = load(&[("NCCL_BUFFSIZE", "4M"), ("RINGWAY_MAX_BYTES", "1M")]);
    assert_eq!((config.scratch_bytes(), config.warnings.len()), (1 << 20, 1));
    let config = load(&[("NCCL_COMM_ID", "a:1"), ("RINGWAY_ROOT", "b:2,c:3")]);
    assert_eq!(config.root().len(), 2);
    assert_eq!(load(&[("NCCL_COMM_ID", "a:1")]).root()[0].host, "a");
}

#[test]
fn defaults_follow_other_peoples_variables() {
    let plain = load(&[("NO_COLOR", "1")]);
    assert!(!plain.use_color(true) && Config::default().use_color(true));
    assert!(load(&[("NO_COLOR", "1"), ("RINGWAY_COLOR", "always")]).use_color(false));
}

#[test]
fn toolkits_are_those_that_are_named() {
    let both = load(&[("CUDA_PATH", "/b"), ("CUDA_HOME", "/a")]).cuda_toolkits();
    assert_eq!(both, [Path::new("/a"), Path::new("/b")]);
    assert!(Config::default().cuda_toolkits().is_empty());
}

#[test]
fn tuning_files_are_in_the_first_folder_that_is_set() {
    let folder = |variables: &[(&str, &str)]| {
        let environment = Environment::new(variables.iter().copied()).with_home("/home/a");
        Config::load(&environment).cache_dir().unwrap().display().to_string()
    };
    assert_eq!(folder(&[]), "/home/a/.cache/ringway");
    assert_eq!(folder(&[("XDG_CACHE_HOME", "/x")]), "/x/ringway");
    assert_eq!(folder(&[("XDG_CACHE_HOME", "x")]), "/home/a/.cache/ringway");
    assert_eq!(folder(&[("XDG_CACHE_HOME", "/x"), ("RINGWAY_CACHE_DIR", "/y")]), "/y/ringway");
    assert_eq!(Config::default().cache_dir(), None);
}

#[test]
fn algorithm_names_reach_the_filter() {
    let config = load(&[("NCCL_ALGO", "Ring,NVLS")]);
    assert!(config.algorithms.allows(Collective::AllReduce, "ring"));
    assert!(!config.algorithms.allows(Collective::AllReduce, "tree"));
    assert_eq!(config.notes[0].text, "NCCL_ALGO=Ring,NVLS: NVLS means nothing on host memory");
}

#[test]
fn table_names_are_unique_and_sections_together() {
    let mut sections: Vec<&str> = TABLE.iter().map(|entry| entry.section).collect();
    sections.dedup();
    let count = sections.len();
    sections.sort_unstable();
    sections.dedup();
    assert_eq!(sections.len(), count);
    for (index, entry) in TABLE.iter().enumerate() {
        assert!(TABLE[index + 1..].iter().all(|other| other.name != entry.name), "{}", entry.name);
    }
}

fn any_name() -> impl Strategy<Value = String> {
    let known: Vec<String> =
        TABLE.iter().map(|e| e.name.to_owned()).chain(names::without_effect()).collect();
    prop_oneof![
        8 => proptest::sample::select(known),
        1 => "(NCCL|RINGWAY)_[A-Z_]{0,12}",
        1 => any::<String>(),
    ]
}

fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[\\^=:;,]{0,3}(ring|tree|allreduce|NVLS|shm|INIT|eth0|auto)?[\\^=:;,]{0,2}(pat|lo|ALL)?",
        "-?[0-9]{0,25}(\\.[0-9]{0,12})?(K|MiB|G|T|ms|s|m|h|d)?[0-9]{0,3}s?",
        "\\[?[a-f0-9:.]{0,12}\\]?:?[0-9]{0,6}",
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn loading_never_panics(
        variables in proptest::collection::btree_map(any_name(), any_value(), 0..12),
    ) {
        let config = Config::load(&Environment::new(variables));
        let _ = config.check();
        prop_assert!((1..=64).contains(&config.sockets_per_peer()));
        prop_assert!(config.warnings.iter().all(|w| !w.text.contains('\n')));
        prop_assert!(config.settings().iter().all(|s| !s.value.contains('\n')));
        // What is shown of a setting is taken again and shown the same.
        for setting in config.settings() {
            let set = config.source(setting.name) != Source::Default;
            let skipped = ["RINGWAY_SECRET", "RINGWAY_SECRET_FILE"].contains(&setting.name);
            if set && !skipped && !setting.value.contains(['…', '\\']) {
                let mut again = Config::default();
                if again.set(setting.name, &setting.value, Source::CommandLine).is_ok() {
                    prop_assert_eq!(shown(&again, setting.name), setting.value);
                }
            }
        }
    }

    #[test]
    fn conf_files_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let root = Root::new("fuzz", &[("etc/x", "")]);
        fs::write(root.0.join("etc/nccl.conf"), bytes).unwrap();
        let _ = root.load(&[]);
    }
}

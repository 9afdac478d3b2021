//! Golden lines, and what each level and subsystem lets through.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::config::Environment;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn config(variables: &[(&str, &str)]) -> Config {
    Config::load(&Environment::new(variables.iter().copied()))
}

/// The lines `body` logs, with `tid` for the thread.
fn logged(config: &Config, body: impl FnOnce()) -> String {
    let buffer = Buffer::default();
    let mut logger = Logger::with_writer(config, buffer.clone());
    logger.host = "node1".to_owned();
    logger.now = || UNIX_EPOCH + Duration::from_secs(1_769_903_999);
    tracing::subscriber::with_default(logger, body);
    let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
    let place = format!("{}:{}", std::process::id(), rustix::thread::gettid().as_raw_nonzero());
    text.replace(&place, "pid:tid")
}

#[test]
fn lines_are_nccls() {
    let config =
        config(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT"), ("RINGWAY_RANK", "3")]);
    let text = logged(&config, || {
        version(&config);
        tracing::info!(target: INIT, "Init COMPLETE");
        tracing::info!(target: INIT, rank = 7u64, peer = 2, via = "SHM", "Channel 00");
        tracing::warn!(target: NET, "connection closed by {}", "peer");
        tracing::error!("no target");
    });
    let line = line!() - 2;
    let expected = format!(
        "ringway version {}\n\
         node1:pid:tid [3] NCCL INFO Init COMPLETE\n\
         node1:pid:tid [7] NCCL INFO Channel 00 peer=2 via=SHM\n\
         \n[2026-01-31 23:59:59] node1:pid:tid [3] tests.rs:{} NCCL WARN connection closed by peer\n\
         \n[2026-01-31 23:59:59] node1:pid:tid [3] tests.rs:{} NCCL WARN no target\n",
        env!("CARGO_PKG_VERSION"),
        line - 1,
        line
    );
    assert_eq!(text, expected);
}

#[test]
fn levels_and_subsystems_filter() {
    let lines = |level: &str, subsystems: &str| {
        let config = config(&[("NCCL_DEBUG", level), ("NCCL_DEBUG_SUBSYS", subsystems)]);
        let text = logged(&config, || {
            tracing::trace!(target: NET, "trace-net");
            tracing::debug!(target: SHM, "debug-shm");
            tracing::info!(target: NET, "info-net");
            tracing::info!(target: INIT, "info-init");
            tracing::info!(target: INIT_SHM, "info-init-shm");
            tracing::info!("info-path");
            tracing::info!(target: "another_crate", "foreign");
            tracing::warn!(target: NET, "warn");
            tracing::info_span!("span").in_scope(|| {});
        });
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let names = [
            "trace-net",
            "debug-shm",
            "info-net",
            "info-init",
            "info-init-shm",
            "info-path",
            "foreign",
            "warn",
        ];
        names
            .into_iter()
            .filter(|name| words.iter().any(|w| w == name))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(lines("NONE", "ALL"), "");
    assert_eq!(lines("VERSION", "ALL"), "");
    assert_eq!(lines("WARN", "ALL"), "warn");
    assert_eq!(lines("INFO", ""), "info-init info-init-shm info-path warn");
    assert_eq!(lines("INFO", "SHM"), "info-init-shm info-path warn");
    assert_eq!(lines("ABORT", "^INIT"), "info-net info-init-shm info-path warn");
    assert_eq!(
        lines("TRACE", "ALL"),
        "trace-net debug-shm info-net info-init info-init-shm info-path warn"
    );
    assert_eq!(lines("TRACE", "NET"), "trace-net info-net info-path warn");
}

#[test]
fn unwanted_levels_are_off_before_any_call() {
    for (level, hint) in [
        ("NONE", LevelFilter::OFF),
        ("VERSION", LevelFilter::WARN),
        ("WARN", LevelFilter::WARN),
        ("INFO", LevelFilter::INFO),
        ("TRACE", LevelFilter::TRACE),
    ] {
        let logger = Logger::with_writer(&config(&[("NCCL_DEBUG", level)]), io::sink());
        assert_eq!(logger.max_level_hint(), Some(hint), "{level}");
    }
}

#[test]
fn settings_are_said_once_and_secrets_never() {
    let config = config(&[
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("NCCL_IB_MERGE_NICS", "0"),
        ("NCCL_IB_GID_INDX", "3"),
        ("RINGWAY_SECRET", "correct horse battery staple"),
        ("RINGWAY_LANES", "99"),
    ]);
    let text = logged(&config, || log_settings(&config, &mut |_| true));
    for line in [
        "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0.\n",
        "NCCL INFO RINGWAY_SECRET set by environment to (redacted).\n",
        "NCCL INFO NCCL_IB_MERGE_NICS is set but has no effect in ringway",
        "NCCL WARN NCCL_IB_GID_INDX: unknown; did you mean NCCL_IB_GID_INDEX?\n",
        "NCCL WARN RINGWAY_LANES=99: not from 1 to 16, nor auto; using 16\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(!text.contains("horse"), "{text}");
    assert_eq!(logged(&config, || log_settings(&config, &mut |_| false)), "");
    let twice = logged(&config, || {
        warn_settings(&config);
        warn_settings(&config);
    });
    assert_eq!(twice.matches("NCCL_IB_GID_INDX").count(), 1);
}

#[test]
fn a_thread_can_be_a_rank() {
    let config = config(&[("NCCL_DEBUG", "INFO")]);
    let thread = std::thread::spawn(move || {
        set_thread_rank(5);
        logged(&config, || tracing::info!(target: INIT, "hello"))
    });
    assert_eq!(thread.join().unwrap(), "node1:pid:tid [5] NCCL INFO hello\n");
}

#[test]
fn file_patterns_are_expanded_and_files_appear_with_the_first_line() {
    assert_eq!(expand("/tmp/%h.%p.log", "node1", 42), "/tmp/node1.42.log");
    assert_eq!(expand("%%h%x%", "node1", 42), "%h%x%");
    let directory = std::env::temp_dir().join(format!("ringway-log-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let pattern = directory.join("log.%p");
    let config = config(&[("NCCL_DEBUG_FILE", pattern.to_str().unwrap())]);
    let path = directory.join(format!("log.{}", std::process::id()));
    tracing::subscriber::with_default(Logger::new(&config), || {
        tracing::info!(target: INIT, "not wanted");
        assert!(!path.exists());
        tracing::warn!(target: INIT, "first");
        tracing::warn!(target: INIT, "second");
    });
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("NCCL WARN").count(), 2);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn stamps_are_calendar_dates() {
    for (seconds, text) in [
        (0, "1970-01-01 00:00:00"),
        (951_782_400, "2000-02-29 00:00:00"),
        (1_709_251_199, "2024-02-29 23:59:59"),
        (4_107_542_400, "2100-03-01 00:00:00"),
    ] {
        assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
    }
}

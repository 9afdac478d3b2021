//! `ringway net` where there is no RDMA: what it says, and measurements over TCP.

use std::net::TcpListener;
use std::process::Command;

use crate::process::{Finished, finish, ringway, start, wait_for};

fn net(args: &[&str]) -> Command {
    let mut command = ringway(&[&["net"], args].concat());
    for name in ["NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE"] {
        command.env_remove(name);
    }
    command
}

fn refused(args: &[&str], expected: &str) {
    let done = finish(&mut net(args));
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(done.stderr.contains(expected), "{expected}: {}", done.stderr);
}

/// A port that was free just now.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// Measures over TCP with a server of its own.
fn measured(args: &[&str]) -> (Finished, Finished) {
    let port = free_port();
    let server = start(&mut net(&["bw", "--server", "-p", &port]));
    let client = wait_for("the server to listen", || {
        let line = [args, &["127.0.0.1", "-p", &port, "--transport", "tcp", "-D", "0.02"]].concat();
        let done = finish(&mut net(&line));
        (!done.stderr.contains("start `ringway net bw --server` there")).then_some(done)
    });
    (client, server.finish())
}

#[test]
fn wrong_arguments_say_what_is_right() {
    refused(&["bw"], "--server");
    refused(&["bw", "node1", "--server"], "cannot be used with");
    refused(&["bw", "node1", "--keep"], "cannot be used with");
    refused(&["bw", "node1", "-b", "2K", "-e", "1K"], "not above -e");
    refused(&["bw", "node1", "--device", "mlx5_0:x"], "mlx5_0:1 for its port 1");
    refused(&["bw", "node1", "--transport", "tcp", "-o", "read"], "there is no read over it");
    refused(&["bw", "node1", "--memory", "cuda:x"], "none of host, cuda, cuda:N");
    refused(&["bw", "node1", "--gpudirect", "off"], "--gpudirect off is of GPU memory");
    refused(&["bw", "node1", "--memory", "cuda", "--gpudirect", "on"], "none of auto, dmabuf");
    refused(&["lat", "node1", "--bidirectional", "-o", "send"], "one message");
    refused(&["lat", "127.0.0.1", "-p", &free_port()], "start `ringway net bw --server` there");
}

#[test]
fn without_rdma_the_reason_and_the_fix_are_said() {
    for args in [&["devices"][..], &["gids"], &["devices", "--json"]] {
        let done = finish(&mut net(args));
        if done.status.success() {
            // This machine has devices.
            assert!(done.stdout.contains("port"), "{done:?}");
            continue;
        }
        assert_eq!((done.status.code(), done.stdout.as_str()), (Some(2), ""), "{done:?}");
        let fix = ["install it: Debian", "load the adapter's driver"];
        assert!(fix.iter().any(|fix| done.stderr.contains(fix)), "{}", done.stderr);
    }
}

#[test]
fn bandwidth_and_latency_over_tcp() {
    let (client, server) = measured(&["bw", "-b", "1K", "-e", "64K", "-f", "64", "-q", "2"]);
    assert_eq!(client.status.code(), Some(0), "{client:?}");
    assert_eq!(server.status.code(), Some(0), "{server:?}");
    assert!(
        client.stdout.starts_with("# bandwidth of send over tcp, 2 side by side\n"),
        "{client:?}"
    );
    let rows: Vec<&str> = client.stdout.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows.len(), 2, "{client:?}");
    for row in rows {
        let rate: f64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
        assert!(rate > 0.0, "{row}");
    }
    let (client, _) = measured(&["lat", "-b", "8", "-e", "8", "-n", "30", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&client.stdout).unwrap();
    assert_eq!(json["rows"][0]["iterations"], 30, "{client:?}");
    assert_eq!(json["test"]["transport"], "tcp");
    let times = &json["rows"][0];
    assert!(times["min_us"].as_f64() <= times["typical_us"].as_f64(), "{client:?}");
    let (both, _) =
        measured(&["bw", "-b", "4K", "-e", "4K", "-n", "50", "--bidirectional", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&both.stdout).unwrap();
    assert_eq!(json["rows"][0]["messages"], 50, "{both:?}");
}

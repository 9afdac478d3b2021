//! Error counters of ports and interfaces: since boot (or since they were cleared), or what they grew by between two
//! looks, which says more: what grows now is wrong now.

use super::Check;

mod interfaces;
mod ports;

use self::ports::{Limits, counted};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "ctr-01",
        group: "counters",
        about: "ports saw no symbol errors",
        reads: "/sys/class/infiniband/*/ports/*/counters/symbol_error",
        cost: "more than 10 is a bad cable or optic; a storm of them comes before connections break",
        fix: "clean or exchange the optic; then clear with perfquery -R and watch",
        root: false,
        look: |host| {
            counted(
                host,
                &["counters/symbol_error"],
                Limits { boot: 10, window: 10 },
                "ports saw no symbol errors",
                "ports with symbol errors",
            )
        },
    },
    Check {
        id: "ctr-02",
        group: "counters",
        about: "links did not go down or train again",
        reads: "/sys/class/infiniband/*/ports/*/counters/{link_downed,link_error_recovery}",
        cost: "each time connections stall up to 30 s; 255 is a full counter, not a number",
        fix: "exchange the cable; clear with perfquery -R and watch",
        root: false,
        look: |host| {
            let names = ["counters/link_downed", "counters/link_error_recovery"];
            counted(
                host,
                &names,
                // Since boot: it may have been long ago.
                Limits { boot: u64::MAX, window: 1 },
                "links did not go down",
                "ports whose link went down or trained again",
            )
        },
    },
    Check {
        id: "ctr-03",
        group: "counters",
        about: "ports received no broken packets",
        reads: "/sys/class/infiniband/*/ports/*/counters/port_rcv_{errors,remote_physical_errors}",
        cost: "every broken packet is sent again; remote physical errors point at a link further up",
        fix: "walk the path with ibtracert; exchange the cable that counts first",
        root: false,
        look: |host| {
            let names = ["counters/port_rcv_errors", "counters/port_rcv_remote_physical_errors"];
            counted(
                host,
                &names,
                Limits { boot: 10, window: 10 },
                "ports received no broken packets",
                "ports that received broken packets",
            )
        },
    },
    Check {
        id: "ctr-04",
        group: "counters",
        about: "ports dropped nothing when sending",
        reads: "/sys/class/infiniband/*/ports/*/counters/port_xmit_discards",
        cost: "InfiniBand loses nothing by design: a discard is a timeout at a stuck or dead port",
        fix: "look for credit loops and slow receivers; ibqueryerrors names the port",
        root: false,
        look: |host| {
            counted(
                host,
                &["counters/port_xmit_discards"],
                Limits { boot: 100, window: 100 },
                "ports dropped nothing",
                "ports that dropped packets when sending",
            )
        },
    },
    Check {
        id: "ctr-05",
        group: "counters",
        about: "InfiniBand ports rarely wait for credits",
        reads: "/sys/class/infiniband/*/ports/*/counters/port_xmit_{wait,data}",
        cost: "the share of the time in which data waited is bandwidth lost",
        fix: "adaptive routing; place the job below one leaf; look for oversubscribed links",
        root: false,
        look: ports::waiting,
    },
    Check {
        id: "ctr-06",
        group: "counters",
        about: "nothing was sent twice",
        reads: "/sys/class/infiniband/*/ports/*/hw_counters/{packet_seq_err,out_of_sequence,local_ack_timeout_err}",
        cost: "each missing acknowledgement stalls its connection for ms to s",
        fix: "look for drops on the path: flow control and DSCP (roc-07 to roc-10), cables",
        root: false,
        look: ports::sent_twice,
    },
    Check {
        id: "ctr-07",
        group: "counters",
        about: "receivers were ready",
        reads: "/sys/class/infiniband/*/ports/*/hw_counters/{rnr_nak_retry_err,out_of_buffer}",
        cost: "a sender that finds no buffer waits 0.01 to 500 ms and tries again",
        fix: "the receiving host is too slow: bind its ranks to cores (num-03), look for other load",
        root: false,
        look: |host| {
            let names = ["hw_counters/rnr_nak_retry_err", "hw_counters/out_of_buffer"];
            counted(
                host,
                &names,
                Limits { boot: u64::MAX, window: 0 },
                "receivers were ready",
                "ports whose receiver was not ready",
            )
        },
    },
    Check {
        id: "ctr-08",
        group: "counters",
        about: "the lossless priority was rarely paused",
        reads: "ethtool -S (rx_prioN_pause_duration), /proc/uptime",
        cost: "the share of the time in which the link was paused is bandwidth lost, here and upstream",
        fix: "find the slow receiver; set a PFC watchdog on the switch",
        root: false,
        look: interfaces::paused,
    },
    Check {
        id: "ctr-09",
        group: "counters",
        about: "no link-wide pauses came in, and none for another priority than RDMA's",
        reads: "ethtool -S (rx_pause_ctrl_phy, rx_prioN_pause), mlnx_qos -i",
        cost: "a link-wide pause stops everything, congestion notifications too",
        fix: "link-wide: ethtool -A INTERFACE rx off tx off, on the switch too; another priority: roc-08 and roc-09",
        root: false,
        look: interfaces::global_pause,
    },
    Check {
        id: "ctr-10",
        group: "counters",
        about: "no congestion notification was ignored",
        reads: "/sys/class/infiniband/*/ports/*/hw_counters/rp_cnp_ignored",
        cost: "a sender that does not slow down fills queues until flow control stops the fabric",
        fix: "enable congestion control for the lossless priority (roc-10)",
        root: false,
        look: |host| {
            counted(
                host,
                &["hw_counters/rp_cnp_ignored"],
                Limits { boot: 0, window: 0 },
                "no notification was ignored",
                "ports that ignored congestion notifications",
            )
        },
    },
    Check {
        id: "ctr-11",
        group: "counters",
        about: "interfaces dropped nothing and received nothing broken",
        reads: "ethtool -S, /sys/class/net/*/statistics",
        cost: "RoCE that loses packets falls to less than 1 GB/s (nccl#378)",
        fix: "crc errors: cable; discards: flow control headroom, receive ring (ethtool -G)",
        root: false,
        look: interfaces::drops,
    },
    Check {
        id: "ctr-12",
        group: "counters",
        about: "rails carry alike while a job runs",
        reads: "/sys/class/infiniband/*/ports/*/counters/port_xmit_data, twice (--interval)",
        cost: "the slowest rail sets the speed: 30 % more on one than on the mean is 23 % lost",
        fix: "NCCL_IB_HCA with all rails (env-04); a rail that is slow by itself: ibl-03, pci-01; spread of flows on switches",
        root: false,
        look: ports::balance,
    },
];

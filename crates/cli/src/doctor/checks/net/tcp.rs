//! Settings of TCP.

use crate::doctor::checks::Seen;
use crate::doctor::host::Host;

const IPV4: &str = "/proc/sys/net/ipv4";

/// Below this a buffer limits one connection to 4 GB/s at a round trip of 1 ms.
const BUFFER: i64 = 4 << 20;

fn largest(host: &Host, name: &str, good: &str, bad: &str) -> Seen {
    let path = format!("{IPV4}/{name}");
    let Some(text) = host.text(&path) else {
        return Seen::unknown(
            format!("could not look whether {good}"),
            format!("{path} is not there"),
        );
    };
    match text.split_whitespace().nth(2).and_then(|word| word.parse::<i64>().ok()) {
        Some(most) if most < BUFFER => {
            Seen::warn(format!("{bad}: at most {}", super::size(most)), format!("{path} = {text}"))
        }
        Some(_) => Seen::well(good, format!("{path} = {text}")),
        None => Seen::unknown(format!("could not look whether {good}"), format!("{path} = {text}")),
    }
}

pub(super) fn receive_buffer(host: &Host) -> Seen {
    largest(
        host,
        "tcp_rmem",
        "TCP may buffer enough when receiving",
        "TCP may buffer little when receiving",
    )
}

pub(super) fn send_buffer(host: &Host) -> Seen {
    largest(
        host,
        "tcp_wmem",
        "TCP may buffer enough when sending",
        "TCP may buffer little when sending",
    )
}

/// A switch that should be on.
fn switch(
    host: &Host,
    name: &str,
    good: &str,
    bad: &str,
    answer: fn(String, String) -> Seen,
) -> Seen {
    let path = format!("{IPV4}/{name}");
    match host.number(&path) {
        Some(0) => answer(bad.to_owned(), format!("{path} = 0")),
        Some(value) => Seen::well(good, format!("{path} = {value}")),
        None => {
            Seen::unknown(format!("could not look whether {good}"), format!("{path} is not there"))
        }
    }
}

pub(super) fn window(host: &Host) -> Seen {
    switch(host, "tcp_window_scaling", "TCP windows scale", "TCP windows do not scale", Seen::fail)
}

pub(super) fn selective(host: &Host) -> Seen {
    switch(
        host,
        "tcp_sack",
        "TCP repeats only what was lost",
        "TCP repeats all after a loss",
        Seen::warn,
    )
}

pub(super) fn timestamps(host: &Host) -> Seen {
    let good = "TCP protects against wrapped sequence numbers";
    switch(
        host,
        "tcp_timestamps",
        good,
        "TCP does not protect against wrapped sequence numbers",
        Seen::warn,
    )
}

pub(super) fn backlog(host: &Host) -> Seen {
    let path = "/proc/sys/net/core/netdev_max_backlog";
    let fastest = super::fastest(host);
    if fastest < 25_000 {
        return Seen::absent("no interface of 25 Gb/s or more");
    }
    match host.number(path) {
        Some(value) if value <= 1000 => Seen::warn(
            format!("only {value} packets may queue at {} Gb/s", fastest / 1000),
            format!("{path} = {value}"),
        ),
        Some(value) => {
            Seen::well("packets may queue for the processor", format!("{path} = {value}"))
        }
        None => Seen::absent("the kernel has no such setting in this namespace"),
    }
}

pub(super) fn ports(host: &Host) -> Seen {
    let path = format!("{IPV4}/ip_local_port_range");
    let good = "there are enough ports";
    let Some(text) = host.text(&path) else {
        return Seen::unknown(
            format!("could not look whether {good}"),
            format!("{path} is not there"),
        );
    };
    let mut words = text.split_whitespace().map(str::parse::<i64>);
    let (Some(Ok(first)), Some(Ok(last))) = (words.next(), words.next()) else {
        return Seen::unknown(format!("could not look whether {good}"), format!("{path} = {text}"));
    };
    let count = last.saturating_sub(first).saturating_add(1);
    if count < 10_000 {
        Seen::warn(format!("only {count} ports for connections"), format!("{path} = {text}"))
    } else {
        Seen::well(good, format!("{path} = {text}"))
    }
}

pub(super) fn listening(host: &Host) -> Seen {
    let core = "/proc/sys/net/core/somaxconn";
    let Some(most) = host.number(core) else {
        return Seen::unknown(
            "could not look how many ranks can connect at once",
            format!("{core} is not there"),
        );
    };
    let syn = host.number(&format!("{IPV4}/tcp_max_syn_backlog"));
    let evidence = format!("{core} = {most}, {IPV4}/tcp_max_syn_backlog = {}", syn.unwrap_or(-1));
    let least = most.min(syn.unwrap_or(most));
    match least {
        4096.. => Seen::well("many ranks can connect at once", evidence),
        1024..4096 if most >= 4096 => Seen::well("many ranks can connect at once", evidence),
        _ => Seen::warn(format!("only {least} ranks can connect at once"), evidence),
    }
}

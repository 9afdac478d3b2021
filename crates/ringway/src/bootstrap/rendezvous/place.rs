//! Where the root listens: bound by rank 0, looked up by the others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::bootstrap::dial::Target;
use crate::bootstrap::launcher::RootHint;
use crate::bootstrap::socket;
use crate::error::{Error, ErrorKind, Result};
use crate::os;

/// How long rank 0 tries to bind a port that it was told to use.
const BIND_PATIENCE: Duration = Duration::from_secs(2);

/// Whether a name among the root's hosts has to be looked up.
pub(crate) fn needs_resolver(hint: &RootHint) -> bool {
    let name = |host: &String| host.parse::<IpAddr>().is_err();
    match hint {
        RootHint::At { host, .. } => name(host),
        RootHint::Candidates { hosts, .. } => hosts.iter().any(name),
        RootHint::Pmi { .. } | RootHint::Alone => false,
    }
}

/// The root's addresses, ports in the outer loop: the first port is the likeliest.
pub(crate) fn resolve(hint: &RootHint) -> Result<Vec<Target>> {
    let (hosts, ports) = match hint {
        RootHint::At { host, port } => (vec![host.clone()], vec![*port]),
        RootHint::Candidates { hosts, ports } => (hosts.clone(), ports.clone()),
        RootHint::Pmi { .. } | RootHint::Alone => {
            return Err(Error::internal("this placement names no root"));
        }
    };
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    let mut failures = Vec::new();
    for host in hosts {
        match (host.as_str(), 0).to_socket_addrs() {
            Ok(addresses) => found.extend(addresses.map(|address| (host.clone(), address.ip()))),
            Err(error) => failures.push(format!("{host}: {error}")),
        }
    }
    found.dedup_by_key(|(_, address)| *address);
    if found.is_empty() {
        return Err(Error::new(
            ErrorKind::System,
            format!("cannot resolve the root's host name: {}", failures.join("; ")),
        ));
    }
    let mut targets = Vec::new();
    for port in ports {
        for (host, ip) in &found {
            let label = if *host == ip.to_string() { String::new() } else { host.clone() };
            targets.push(Target { label, address: SocketAddr::new(*ip, port), from: None });
        }
    }
    Ok(targets)
}

/// Binds the root's listener; also where rank 0 itself reaches it.
pub(crate) fn bind_root(hint: &RootHint, deadline: Instant) -> Result<(TcpListener, SocketAddr)> {
    let (only, ports) = match hint {
        // A root that the others reach by the loopback need not face the network.
        RootHint::At { host, port } => {
            let ip = host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback);
            (ip, vec![*port])
        }
        RootHint::Candidates { ports, .. } => (None, ports.clone()),
        RootHint::Pmi { .. } | RootHint::Alone => {
            return Err(Error::internal("this placement names no root"));
        }
    };
    let until = deadline.min(Instant::now() + BIND_PATIENCE);
    loop {
        let mut last = None;
        for &port in &ports {
            match socket::listen(only, port) {
                Ok(listener) => {
                    let address = listener
                        .local_addr()
                        .map_err(|error| Error::system("read the root's address", error))?;
                    let near = match address.ip() {
                        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                        IpAddr::V6(ip) if ip.is_unspecified() => near_loopback(),
                        ip => ip,
                    };
                    return Ok((listener, SocketAddr::new(near, port)));
                }
                Err(error) => last = Some(error),
            }
        }
        if Instant::now() >= until {
            let cause = last.map_or_else(|| "no port to try".to_owned(), |error| error.to_string());
            return Err(Error::system(
                format!("rank 0 cannot listen at {hint} (is another job using it?)"),
                cause,
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The loopback through which a dual-stack listener is reached: IPv4 where there is one.
fn near_loopback() -> IpAddr {
    let v4 = os::interface_addresses()
        .is_ok_and(|all| all.iter().any(|one| one.address == Ipv4Addr::LOCALHOST));
    if v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}

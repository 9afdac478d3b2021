//! What was chosen for each peer and why nothing better, said in the lines that operators grep for; and
//! whether it is good enough for `RINGWAY_REQUIRE`.

use std::fmt::Write as _;

use super::colocation::Colocation;
use super::rdma::Rdma;
use crate::bootstrap::{PeerInfo, Session, rails};
use crate::config::{Config, Requirement};
use crate::error::{Error, Result};
use crate::log;
use crate::plan::types::Rank;

/// Says how this rank reaches the others: one line for each way, with the reason for each peer that
/// is not reached by memory, and one line for all.
pub(super) fn announce(
    session: &Session,
    found: &Colocation,
    (rdma, far): (&Rdma, &[Rank]),
    tls: bool,
) {
    let rank = session.rank;
    let of_rank = u64::from(rank);
    let me = &session.peers[rank as usize];
    for peer in found.attached.iter().map(|one| one.peer) {
        tracing::info!(
            target: log::INIT_SHM,
            rank = of_rank,
            "Channel 00 : {rank}[{rank}] -> {peer}[{peer}] via SHM/direct"
        );
    }
    if let Some(why) = found.unreadable.as_ref().filter(|_| rank == 0) {
        tracing::info!(
            target: log::INIT_SHM,
            rank = of_rank,
            "large messages inside a host are copied twice, not once: {why}"
        );
    }
    let near = found.attached.len();
    let (by_rdma, by_socket): (Vec<Rank>, Vec<Rank>) =
        far.iter().partition(|peer| rdma.reaches(**peer).is_ok());
    let mut network = String::new();
    if !by_rdma.is_empty() {
        announce_rdma(me, rdma);
        let _infallible = write!(network, ", {} by RDMA", by_rdma.len());
    }
    if !by_socket.is_empty() {
        let offered: Vec<String> = (0..)
            .zip(&me.rails)
            .map(|(index, rail): (usize, _)| {
                format!("[{index}]{}:{}<0>", rail.interface, rail.address.ip())
            })
            .collect();
        tracing::info!(target: log::INIT_NET, rank = of_rank, "NET/Socket : Using {}", offered.join(" "));
        tracing::info!(target: log::INIT_NET, rank = of_rank, "Using network Socket");
        if tls {
            tracing::info!(
                target: log::INIT_NET,
                rank = of_rank,
                "NET/Socket/TLS : RINGWAY_TLS=1: data over sockets is encrypted by TLS 1.3, RDMA is not used"
            );
        }
        let mut reasons: Vec<&str> = by_socket
            .iter()
            .flat_map(|peer| {
                [found.refusals[*peer as usize].as_str(), rdma.reaches(*peer).err().unwrap_or("")]
            })
            .filter(|why| !why.is_empty())
            .collect();
        reasons.sort_unstable();
        reasons.dedup();
        let more = reasons.len().saturating_sub(REASONS_MOST);
        reasons.truncate(REASONS_MOST);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let sockets = by_socket.len();
        let sort = if tls { "sockets with TLS" } else { "sockets" };
        let _infallible = write!(network, ", {sockets} over {sort} ({}{more})", reasons.join("; "));
    }
    let copies = match (near, &found.unreadable) {
        (0, _) => "",
        (_, None) => ", single copy",
        (_, Some(_)) => ", no single copy",
    };
    tracing::info!(
        target: log::INIT,
        rank = of_rank,
        "comm {:#x} rank {rank} reaches {near} by shared memory{copies}{network}",
        session.comm_id,
    );
}

fn announce_rdma(me: &PeerInfo, rdma: &Rdma) {
    let rank = u64::from(me.rank);
    let ports: Vec<String> = (0..)
        .zip(rdma.labels())
        .map(|(index, label): (usize, _)| format!("[{index}]{label}"))
        .collect();
    let beside = me
        .rails
        .first()
        .map_or(String::new(), |rail| format!("; OOB {}:{}<0>", rail.interface, rail.address.ip()));
    tracing::info!(target: log::INIT_NET, rank, "NET/IB : Using {}{beside}", ports.join(" "));
    tracing::info!(target: log::INIT_NET, rank, "Using network IB");
    for why in rdma.refused(me.rank) {
        tracing::info!(target: log::INIT_NET, rank, "NET/IB : not used: {why}");
    }
}

/// Reasons on one line, at most.
const REASONS_MOST: usize = 3;

/// Rails that `RINGWAY_REQUIRE` asks for; 0 where it does not.
pub(super) fn rails_required(config: &Config) -> usize {
    let rails = config.require.iter().filter_map(|requirement| match requirement {
        Requirement::Rails(count) => Some(*count as usize),
        _ => None,
    });
    rails.max().unwrap_or(0)
}

/// `RINGWAY_REQUIRE`: a worse choice is an error at start.
pub(super) fn require(session: &Session, config: &Config, found: &Colocation) -> Result<()> {
    if config.require.contains(&Requirement::Shm) {
        require_shm(session, found)?;
    }
    match rails_required(config) {
        0 => Ok(()),
        wanted => require_rails(session, wanted),
    }
}

fn require_shm(session: &Session, found: &Colocation) -> Result<()> {
    let me = &session.peers[session.rank as usize];
    for peer in session.peers.iter().filter(|peer| peer.boot_id == me.boot_id) {
        let refusal = &found.refusals[peer.rank as usize];
        if !refusal.is_empty() {
            return Err(Error::usage(format!(
                "RINGWAY_REQUIRE=shm is not met: {} and {} are on one host but share no memory: {refusal}",
                me.identity(),
                peer.identity(),
            ))
            .with_culprits(vec![peer.identity()]));
        }
    }
    Ok(())
}

fn require_rails(session: &Session, wanted: usize) -> Result<()> {
    let me = &session.peers[session.rank as usize];
    for peer in session.peers.iter().filter(|peer| !me.same_network(peer)) {
        let found = rails::pair(me, peer);
        if found.pairs.len() < wanted {
            let unused: Vec<String> =
                found.refused.iter().map(|(rail, why)| format!("; not {rail}: {why}")).collect();
            return Err(Error::usage(format!(
                "RINGWAY_REQUIRE=rails={wanted} is not met: {} rails lead from {} to {}{}",
                found.pairs.len(),
                me.identity(),
                peer.identity(),
                unused.concat(),
            ))
            .with_culprits(vec![peer.identity()]));
        }
    }
    Ok(())
}

//! Messages of a group, sorted by peer: the first send to a rank meets the first receive there, and so on.

use super::work::Work;
use crate::error::{Error, Result};
use crate::ffi::cuda::Address;
use crate::plan::types::Rank;

/// For each rank what is sent there, and what is received from there, in the order of the calls.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) sends: Vec<Vec<(Address, usize)>>,
    pub(super) receives: Vec<Vec<(Address, usize)>>,
}

impl Messages {
    /// Those of a group of calls.
    pub(super) fn of(work: &[Work<'_>], ranks: u32) -> Self {
        let mut sends = vec![Vec::new(); ranks as usize];
        let mut receives = vec![Vec::new(); ranks as usize];
        for one in work {
            match *one {
                Work::Send { peer, address, bytes } => {
                    sends[peer as usize].push((address, bytes));
                }
                Work::Receive { peer, address, bytes } => {
                    receives[peer as usize].push((address, bytes));
                }
                Work::Collective { .. } => {}
            }
        }
        Self { sends, receives }
    }

    /// Most messages to or from one rank.
    pub(super) fn layers(&self) -> usize {
        self.sends.iter().chain(&self.receives).map(Vec::len).max().unwrap_or(0)
    }

    /// Messages of a rank to itself, as copies: to, from, bytes.
    pub(super) fn own(&self, rank: Rank) -> Result<Vec<(Address, Address, usize)>> {
        let (sends, receives) = (&self.sends[rank as usize], &self.receives[rank as usize]);
        if sends.len() != receives.len() {
            return Err(Error::usage(format!(
                "a group sends {} messages to its own rank and receives {}; they must meet in one group",
                sends.len(),
                receives.len()
            )));
        }
        let meet = |(send, receive): (&(Address, usize), &(Address, usize))| {
            if send.1 != receive.1 {
                return Err(Error::usage(format!(
                    "a message of {} bytes to the own rank meets a receive of {}",
                    send.1, receive.1
                )));
            }
            Ok((receive.0, send.0, send.1))
        };
        sends.iter().zip(receives).map(meet).collect()
    }
}

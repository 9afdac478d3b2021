//! New communicators from old ones.

use std::sync::atomic::Ordering;

use super::{Communicator, options};
use crate::bootstrap::auth::Key;
use crate::bootstrap::{self, UniqueId};
use crate::error::{Error, Result};
use crate::plan::types::Rank;

impl Communicator {
    /// Splits the communicator: ranks with the same `color` form a new one, ordered by `key` and,
    /// where keys are equal, by rank. A rank without a color gets none. All ranks call it.
    ///
    /// ```
    /// ringway::testing::world(4, |comm| {
    ///     let half = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
    ///     assert_eq!((half.rank(), half.size()), (comm.rank() / 2, 2));
    /// });
    /// ```
    ///
    /// # Errors
    /// As for any collective; the new ranks do not come together in time.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        let number = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        let mine = [color.map_or(-1, i64::from), i64::from(key)];
        let mut all = vec![0_i64; 2 * self.size() as usize];
        self.all_gather(&mine, &mut all)?;
        let members = members(&all, mine[0]);
        let Some(color) = color else {
            self.all_gather_blobs(&[])?;
            return Ok(None);
        };
        let position = members.iter().position(|rank| *rank == self.rank());
        let rank = position.and_then(|at| Rank::try_from(at).ok());
        let rank = rank.ok_or_else(|| Error::internal("a split lost its own rank"))?;
        let size = u32::try_from(members.len()).map_err(|_| Error::internal("too many ranks"))?;
        let (secret, parent) = {
            let desk = self.desk();
            (desk.engine.session.key.clone(), desk.engine.session.comm_id)
        };
        let label = format!("ringway split {parent:016x} {number} {color}");
        let key = Key::derive(secret.as_bytes(), label.as_bytes());
        let id = Key::derive(secret.as_bytes(), format!("{label} id").as_bytes());
        let id =
            id.as_bytes().first_chunk::<8>().map_or(number, |bytes| u64::from_le_bytes(*bytes));
        let mut exchange = |blob: Vec<u8>| {
            let blobs = self.all_gather_blobs(&blob)?;
            Ok(members.iter().map(|member| blobs[*member as usize].clone()).collect())
        };
        if size == 1 {
            exchange(Vec::new())?; // the other groups need this rank in their exchange
        }
        let config = self.inner.config.clone();
        let session =
            bootstrap::join_through(&mut exchange, (rank, size), key, id, &options(&config))?;
        Self::start(session, config).map(Some)
    }

    /// A second communicator of the same ranks. All ranks call it.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub fn dup(&self) -> Result<Self> {
        let rank = i32::try_from(self.rank()).unwrap_or(i32::MAX);
        self.split(Some(0), rank)?.ok_or_else(|| Error::internal("a dup without a color"))
    }
}

impl Communicator {
    /// A communicator of these ranks, with the same numbers, and of new ones up to `size`. All ranks
    /// call it, one or several of them with one id ([`Communicator::unique_id`]); the new ranks join by the
    /// same id, `size` and their numbers, with [`Communicator::from_unique_id`].
    ///
    /// ```
    /// use ringway::{Communicator, UniqueId, config::Config};
    /// let id = Communicator::unique_id(&Config::default())?;
    /// let newcomer = std::thread::spawn(move || {
    ///     Communicator::from_unique_id(&id, 2, 3, Config::default()).map(|comm| comm.size())
    /// });
    /// ringway::testing::world(2, |comm| {
    ///     let grown = comm.grow((comm.rank() == 1).then_some(&id), 3).unwrap();
    ///     assert_eq!((grown.rank(), grown.size()), (comm.rank(), 3));
    /// });
    /// assert_eq!(newcomer.join().unwrap()?, 3);
    /// # Ok::<(), ringway::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for any collective; no rank brings an id, or several bring different ones; the new ranks do not come in time.
    pub fn grow(&self, id: Option<&UniqueId>, size: u32) -> Result<Self> {
        self.grow_or(id, None, size)
    }

    /// As [`Communicator::grow`], by an id that ranks have `kept` where no rank brings another.
    ///
    /// # Errors
    /// As for [`Communicator::grow`].
    pub fn grow_or(
        &self,
        id: Option<&UniqueId>,
        kept: Option<&UniqueId>,
        size: u32,
    ) -> Result<Self> {
        if size <= self.size() {
            return Err(Error::argument(format!(
                "{} ranks cannot grow to {size}; it must be more",
                self.size()
            )));
        }
        let id = UniqueId::only(&self.all_gather_blobs(&UniqueId::brought(id, kept))?)?;
        Self::from_unique_id(&id, self.rank(), size, self.inner.config.clone())
    }
}

/// The ranks with this color, by key and rank; `all` holds (color, key) of every rank.
fn members(all: &[i64], color: i64) -> Vec<Rank> {
    let mut found: Vec<(i64, Rank)> = (0..)
        .zip(all.chunks_exact(2))
        .filter(|(_, pair)| pair[0] == color)
        .map(|(rank, pair)| (pair[1], rank))
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, rank)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::members;

    #[test]
    fn members_are_ordered_by_key_then_rank() {
        let all = [0, 5, 1, 0, 0, 1, 0, 5];
        assert_eq!(members(&all, 0), [2, 0, 3]);
        assert_eq!(members(&all, 1), [1]);
    }
}

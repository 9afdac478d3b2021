//! Going on without some ranks, dead or not, or with new processes in their seats: the others meet at the
//! lowest of them, over connections of their own, as those of the communicator may be broken.
//!
//! ```text
//!   rank 0  ◄── rank 2      each says who it is; rank 0 tells everybody
//!           ◄── rank 3      (rank 1 is left out)
//! ```

mod round;

use std::time::{Duration, Instant};

pub(crate) use round::{Round, Word};

use super::connect::Arrivals;
use super::{Communicator, options};
use crate::bootstrap::auth::{Key, Purpose};
use crate::bootstrap::frame::{self, ControlStream, FrameError, Side};
use crate::bootstrap::rendezvous;
use crate::bootstrap::{self, Session, UniqueId};
use crate::error::{Error, ErrorKind, RankIdentity, Result};
use crate::plan::types::Rank;

/// How far ranks had come with collectives of the communicator that another goes on from.
///
/// They are numbered from 0, as errors number them ([`Error::operation`]). Those who met agree on it; what the others had done
/// nobody can know. Calls that kernels on a GPU carry out are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Every one with a smaller number had completed on all of those ranks.
    pub everywhere: u64,
    /// None with this number or a larger one had completed on any of them.
    pub anywhere: u64,
}

impl Progress {
    /// By what each rank says.
    pub(crate) fn of(said: &[Vec<u8>]) -> Result<Self> {
        let number = |said: &Vec<u8>| said.last_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let numbers: Option<Vec<u64>> = said.iter().map(number).collect();
        let numbers = numbers.as_deref().unwrap_or_default();
        match (numbers.iter().min(), numbers.iter().max()) {
            (Some(&everywhere), Some(&anywhere)) => Ok(Self { everywhere, anywhere }),
            _ => Err(Error::internal("a rank that is left does not say how far it is")),
        }
    }
}

/// Frames at a meeting: what a rank has to say, and why the first has given it up.
const MEETING_FRAME: u16 = 0x200;
const MEETING_FAILED: u16 = 0x201;

/// How much longer than the first rank the others wait, for its word on who is missing.
const GRACE: Duration = Duration::from_secs(2);

impl Communicator {
    /// A communicator of the ranks that are left without the `excluded`, in the same order. All of
    /// those call it, with the same list; the excluded do not. The communicator may have failed.
    ///
    /// ```
    /// ringway::testing::world(3, |comm| {
    ///     if comm.rank() != 1 {
    ///         let rest = comm.shrink(&[1]).unwrap();
    ///         assert_eq!((rest.rank(), rest.size()), (comm.rank() / 2, 2));
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    /// A rank does not exist, this rank is excluded, or the others do not come in time.
    pub fn shrink(&self, excluded: &[Rank]) -> Result<Self> {
        let members = self.remaining(excluded)?;
        let rank = members.iter().position(|rank| *rank == self.rank()).unwrap_or_default();
        let rank = Rank::try_from(rank).map_err(|_| Error::internal("too many ranks"))?;
        let size = u32::try_from(members.len()).map_err(|_| Error::internal("too many ranks"))?;
        let config = self.inner.config.clone();
        let turn = self.inner.turn();
        let desk = self.desk();
        let session = &desk.engine.session;
        let deadline = Instant::now() + config.init_timeout;
        let occasion = (Occasion::Shrink, &members[..]);
        let mut meeting = Meeting::open(session, &desk.engine.arrivals, occasion, deadline)?;
        // A number that only those present know makes this communicator another than those
        // of the same ranks before; and how far each has come.
        let completed = desk.engine.sequence.to_le_bytes();
        let said = meeting.all_gather(&[&Key::random()?.as_bytes()[..], &completed].concat())?;
        let progress = Progress::of(&said)?;
        let number = &said[0];
        let label = format!("ringway shrink {:016x} {number:?}", session.comm_id);
        let key = Key::derive(session.key.as_bytes(), label.as_bytes());
        let id = Key::derive(session.key.as_bytes(), format!("{label} id").as_bytes());
        let id = id.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut exchange = |blob: Vec<u8>| meeting.all_gather(&blob);
        let session =
            bootstrap::join_through(&mut exchange, (rank, size), key, id, &options(&config))?;
        drop(desk);
        drop(turn);
        Ok(Self::start(session, config)?.going_on(progress))
    }

    fn going_on(self, progress: Progress) -> Self {
        self.inner.progress.get_or_init(|| progress);
        self
    }

    /// How far those ranks had come from which this communicator goes on, by [`Communicator::shrink`] or
    /// [`Communicator::replace`]: whether an operation that failed for some had completed for others. Nothing in a process that is
    /// new.
    ///
    /// ```
    /// ringway::testing::world(3, |comm| {
    ///     comm.barrier().unwrap();
    ///     if comm.rank() != 1 {
    ///         let progress = comm.shrink(&[1]).unwrap().progress().unwrap();
    ///         assert_eq!((progress.everywhere, progress.anywhere), (1, 1));
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        self.inner.progress.get().copied()
    }

    /// A communicator of the same size in which new processes have the seats of the `excluded`: the ranks that are
    /// left keep their numbers and call this with the same list, one of them with an id
    /// ([`Communicator::unique_id`]); the new processes join by the same id, the number of a seat and the size, with
    /// [`Communicator::from_unique_id`]. The communicator may have failed.
    ///
    /// ```
    /// use ringway::{Communicator, UniqueId, config::Config};
    /// let id = Communicator::unique_id(&Config::default())?;
    /// let newcomer = std::thread::spawn(move || {
    ///     Communicator::from_unique_id(&id, 1, 3, Config::default()).map(|comm| comm.rank())
    /// });
    /// ringway::testing::world(3, |comm| {
    ///     if comm.rank() != 1 {
    ///         let whole = comm.replace(&[1], (comm.rank() == 2).then_some(&id)).unwrap();
    ///         assert_eq!((whole.rank(), whole.size()), (comm.rank(), 3));
    ///     }
    /// });
    /// assert_eq!(newcomer.join().unwrap()?, 1);
    /// # Ok::<(), ringway::Error>(())
    /// ```
    ///
    /// # Errors
    /// A rank does not exist, this rank is excluded or nobody is, no rank brings an id or several bring different ones, or the
    /// others or the new processes do not come in time.
    pub fn replace(&self, excluded: &[Rank], id: Option<&UniqueId>) -> Result<Self> {
        let members = self.remaining(excluded)?;
        if excluded.is_empty() {
            return Err(Error::argument(
                "no rank is excluded, so there is no seat to fill; to have more ranks, grow",
            ));
        }
        let config = self.inner.config.clone();
        let turn = self.inner.turn();
        let desk = self.desk();
        let deadline = Instant::now() + config.init_timeout;
        let (session, arrivals) = (&desk.engine.session, &desk.engine.arrivals);
        let occasion = (Occasion::Replace, &members[..]);
        let mut meeting = Meeting::open(session, arrivals, occasion, deadline)?;
        let brought = meeting.all_gather(&UniqueId::brought(id, None))?;
        // Nobody goes on alone: all know that all have heard of the id.
        let completed = meeting.all_gather(&desk.engine.sequence.to_le_bytes())?;
        let progress = Progress::of(&completed)?;
        drop(desk);
        drop(turn);
        let id = UniqueId::only(&brought)?;
        let whole = Self::from_unique_id(&id, self.rank(), self.size(), config)?;
        Ok(whole.going_on(progress))
    }

    /// The ranks without the `excluded`, of which this rank is none.
    fn remaining(&self, excluded: &[Rank]) -> Result<Vec<Rank>> {
        if excluded.contains(&self.rank()) {
            return Err(Error::argument(format!(
                "rank {} is excluded, so it must not go on with the others",
                self.rank()
            )));
        }
        if let Some(absent) = excluded.iter().find(|rank| **rank >= self.size()) {
            return Err(Error::argument(format!(
                "rank {absent} does not exist; ranks are 0 to {}",
                self.size() - 1
            )));
        }
        Ok((0..self.size()).filter(|rank| !excluded.contains(rank)).collect())
    }
}

/// What ranks meet for.
#[derive(Clone, Copy, Debug)]
enum Occasion {
    Shrink,
    Replace,
}

impl Occasion {
    /// A number for a meeting of these ranks.
    fn tag(self, members: &[Rank]) -> u64 {
        let bytes: Vec<u8> = members.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        let label: &[u8] = match self {
            Self::Shrink => b"ringway meeting",
            Self::Replace => b"ringway meeting to replace",
        };
        let hash = Key::derive(&bytes, label);
        hash.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Shrink => "shrink the communicator",
            Self::Replace => "fill the seats of others",
        }
    }
}

/// Connections between the first of some ranks and all others of them.
struct Meeting {
    deadline: Instant,
    members: Vec<RankIdentity>,
    /// The place of this rank among them; the first is at 0.
    own: usize,
    /// At the first: one to each other, in their order. Elsewhere: one to the first.
    streams: Vec<ControlStream>,
}

impl Meeting {
    fn open(
        session: &Session,
        arrivals: &Arrivals,
        (occasion, ranks): (Occasion, &[Rank]),
        deadline: Instant,
    ) -> Result<Self> {
        let tag = occasion.tag(ranks);
        let first = ranks[0];
        let who = |rank: Rank| session.peers[rank as usize].identity();
        let framed = |rank: Rank, connection, side| {
            let (stream, key) = connection;
            ControlStream::new(stream, key, side).map_err(|error| lost(&who(rank), &error))
        };
        let members = ranks.iter().map(|rank| who(*rank)).collect();
        let own = ranks.iter().position(|rank| *rank == session.rank).unwrap_or_default();
        let mut meeting = Self { deadline, members, own, streams: Vec::with_capacity(ranks.len()) };
        if own > 0 {
            let connection = session.dial(first, Purpose::Meet, tag, deadline)?;
            meeting.streams.push(framed(first, connection, Side::Dialer)?);
            meeting.deadline += GRACE;
            return Ok(meeting);
        }
        let mut missing = Vec::new();
        for rank in &ranks[1..] {
            match arrivals.take_meeting((*rank, tag), deadline) {
                Some(connection) => {
                    meeting.streams.push(framed(*rank, connection, Side::Acceptor)?);
                }
                None => missing.push(who(*rank)),
            }
        }
        // Whoever comes now is late, and comes again for the next meeting.
        arrivals.forget_meeting(tag);
        if missing.is_empty() {
            return Ok(meeting);
        }
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let has = if names.len() == 1 { "has" } else { "have" };
        let text = format!(
            "{} {has} not come to {}; all ranks that are left must, and exclude the same ranks",
            names.join(", "),
            occasion.in_words()
        );
        let error = Error::new(ErrorKind::Timeout, text).with_culprits(missing);
        meeting.fail(&error);
        Err(error)
    }

    /// Tells those who are there why nothing comes of it.
    fn fail(&mut self, error: &Error) {
        let mut streams = std::mem::take(&mut self.streams);
        let body = rendezvous::encode(error);
        frame::say_farewell(&mut streams, MEETING_FAILED, &body, Instant::now() + GRACE / 2);
    }

    /// The connection to a member.
    fn stream(&mut self, member: usize) -> &mut ControlStream {
        &mut self.streams[if self.own == 0 { member - 1 } else { 0 }]
    }

    /// Everybody's bytes, in the members' order.
    fn all_gather(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut round = Round::begin(self.members.clone(), self.own, blob.to_vec());
        loop {
            self.say(&mut round);
            let Some(from) = round.awaited() else { break };
            let deadline = self.deadline;
            let heard = self.stream(from).receive(deadline).and_then(|frame| match frame.kind {
                MEETING_FAILED => Ok(Word::Failed(rendezvous::decode_failure(&frame.body))),
                _ if from > 0 => Ok(Word::Said(frame.body)),
                _ => match serde_json::from_slice(&frame.body) {
                    Ok(all) => Ok(Word::All(all)),
                    Err(_) => Err(FrameError::Closed),
                },
            });
            match heard {
                Ok(word) => round.hear(from, word),
                Err(error) => round.lose(from, kind_of(&error), &error.to_string()),
            }
        }
        round.outcome().unwrap_or_else(|| Err(Error::internal("a meeting without an end")))
    }

    /// Says what a round has to say.
    fn say(&mut self, round: &mut Round) {
        let mut words = round.take_outgoing().into_iter();
        while let Some((to, word)) = words.next() {
            let body = match word {
                Word::Said(blob) => blob,
                Word::All(all) => rendezvous::encode(&all),
                // The others hear the same.
                Word::Failed(error) => return self.fail(&error),
            };
            let deadline = self.deadline;
            if let Err(error) = self.stream(to).send(MEETING_FRAME, &body, deadline) {
                round.lose(to, kind_of(&error), &error.to_string());
                // Those who have not heard of all hear of the one who is lost.
                words = round.take_outgoing().into_iter();
            }
        }
    }
}

fn kind_of(error: &FrameError) -> ErrorKind {
    match error {
        FrameError::Timeout => ErrorKind::Timeout,
        _ => ErrorKind::Remote,
    }
}

fn lost(who: &RankIdentity, error: &FrameError) -> Error {
    Error::new(kind_of(error), format!("{who} was lost when the ranks that are left met: {error}"))
        .with_culprits(vec![who.clone()])
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::plan::types::ReduceOp;
    use crate::testing::world;

    #[test]
    fn the_others_go_on_after_a_failure() {
        world(4, |comm| {
            if comm.rank() == 2 {
                comm.abort("rank 2 gives up");
                comm.barrier().unwrap_err();
                return;
            }
            comm.barrier().unwrap_err();
            // Twice, and from the new one again: they do not mix.
            for _ in 0..2 {
                let rest = comm.shrink(&[2]).unwrap();
                let mut sum = [0_u32];
                rest.all_reduce(&[comm.rank()], &mut sum, ReduceOp::Sum).unwrap();
                assert_eq!((rest.size(), sum[0]), (3, 4));
                if rest.rank() > 0 {
                    let two = rest.shrink(&[0]).unwrap();
                    two.barrier().unwrap();
                    assert_eq!((two.rank(), two.size()), (rest.rank() - 1, 2));
                }
                rest.barrier().unwrap();
            }
        });
    }

    #[test]
    fn those_who_are_left_agree_on_what_had_completed() {
        for after_us in [0, 300, 1_000] {
            let found = std::sync::Mutex::new(Vec::new());
            world(4, |comm| {
                std::thread::scope(|scope| {
                    if comm.rank() == 2 {
                        scope.spawn(|| {
                            std::thread::sleep(std::time::Duration::from_micros(after_us));
                            comm.abort("enough");
                        });
                    }
                    let mut completed = 0;
                    while comm.all_reduce(&[1_u32], &mut [0], ReduceOp::Sum).is_ok() {
                        completed += 1;
                    }
                    assert_eq!(comm.progress(), None);
                    if comm.rank() != 2 {
                        let progress = comm.shrink(&[2]).unwrap().progress().unwrap();
                        found.lock().unwrap().push((completed, progress));
                    }
                });
            });
            let found = found.into_inner().unwrap();
            let completed = || found.iter().map(|(completed, _)| *completed);
            let (least, most) = (completed().min().unwrap(), completed().max().unwrap());
            for (_, progress) in &found {
                assert_eq!((progress.everywhere, progress.anywhere), (least, most));
            }
        }
    }

    #[test]
    fn one_rank_is_left_of_many() {
        world(3, |comm| {
            if comm.rank() == 1 {
                let alone = comm.shrink(&[0, 2]).unwrap();
                alone.barrier().unwrap();
                assert_eq!((alone.rank(), alone.size()), (0, 1));
            }
        });
    }

    #[test]
    fn wrong_lists_are_refused() {
        world(2, |comm| {
            let far = comm.shrink(&[5]).unwrap_err();
            assert!(far.to_string().contains("rank 5 does not exist"), "{far}");
            let own = comm.shrink(&[comm.rank()]).unwrap_err();
            assert!(own.to_string().contains("is excluded"), "{own}");
        });
    }

    /// Who does not come is given up soon.
    fn impatient() -> crate::config::Config {
        let mut config = crate::config::Config::default();
        config.init_timeout = std::time::Duration::from_secs(5);
        config
    }

    #[test]
    fn all_who_came_learn_who_did_not() {
        let meet = std::sync::Barrier::new(5);
        crate::testing::world_with(5, &impatient(), |comm| {
            if [0, 2, 4].contains(&comm.rank()) {
                let error = comm.replace(&[1], None).unwrap_err();
                let named: Vec<_> = error.culprits().iter().map(|who| who.rank).collect();
                assert_eq!(named, [3], "rank {}: {error}", comm.rank());
            }
            meet.wait();
        });
    }

    #[test]
    fn a_meeting_that_failed_leaves_nothing_for_the_next() {
        let tried = std::sync::Barrier::new(3);
        crate::testing::world_with(3, &impatient(), |comm| {
            if comm.rank() != 2 {
                comm.shrink(&[]).unwrap_err();
            }
            tried.wait();
            let again = comm.shrink(&[]).unwrap();
            assert_eq!((again.rank(), again.size()), (comm.rank(), 3));
        });
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let meet = std::sync::Barrier::new(3);
        crate::testing::world_with(3, &impatient(), |comm| {
            if comm.rank() == 0 {
                let error = comm.shrink(&[1]).unwrap_err();
                assert!(error.to_string().contains("rank 2"), "{error}");
                assert_eq!(error.culprits()[0].rank, 2);
            }
            meet.wait();
        });
    }
}

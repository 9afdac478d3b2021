//! One round of a meeting, in which everybody hears what everybody has to say: a pure state machine.
//!
//! ```text
//!   another ── Said ──►  the first  ── All ──►  every other       once all have spoken
//!                                   ── Failed ──►                 once one of them is lost
//! ```
//!
//! No clock and no I/O: whoever runs it says who is lost, also when a deadline has passed. The meeting runs it over real
//! connections, the simulator over delays and deaths.
//!
//! *Invariant*: all who end a round well have the same words, in the members' order. Not all may: the first can be lost
//! while it answers. Who goes on then misses the others in the next round, or when the new communicator connects.

use crate::error::{Error, ErrorKind, RankIdentity, Result};

/// What the first and another tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// What one has to say.
    Said(Vec<u8>),
    /// What everybody has said.
    All(Vec<Vec<u8>>),
    /// Why nothing comes of it.
    Failed(Error),
}

/// One member's part in a round.
#[derive(Debug)]
pub(crate) struct Round {
    members: Vec<RankIdentity>,
    /// The place of this one among the members; the first is at 0.
    own: usize,
    /// What is known to have been said.
    said: Vec<Option<Vec<u8>>>,
    outgoing: Vec<(usize, Word)>,
    outcome: Option<Result<Vec<Vec<u8>>>>,
}

impl Round {
    /// The member at place `own` has something to say.
    pub(crate) fn begin(members: Vec<RankIdentity>, own: usize, word: Vec<u8>) -> Self {
        let mut said = vec![None; members.len()];
        let outgoing = if own == 0 { Vec::new() } else { vec![(0, Word::Said(word.clone()))] };
        said[own] = Some(word);
        let mut round = Self { members, own, said, outgoing, outcome: None };
        round.answer();
        round
    }

    /// A member whose word is missing; none once the round is over.
    pub(crate) fn awaited(&self) -> Option<usize> {
        if self.outcome.is_some() {
            return None;
        }
        if self.own > 0 { Some(0) } else { self.said.iter().position(Option::is_none) }
    }

    /// A member has spoken.
    pub(crate) fn hear(&mut self, from: usize, word: Word) {
        if self.outcome.is_some() {
            return;
        }
        match word {
            Word::Said(word) if self.own == 0 && from > 0 => {
                self.said[from] = Some(word);
                self.answer();
            }
            Word::All(all) if from == 0 && all.len() == self.members.len() => {
                self.outcome = Some(Ok(all));
            }
            Word::Failed(error) if from == 0 => self.outcome = Some(Err(error)),
            Word::Said(_) | Word::All(_) | Word::Failed(_) => {
                self.lose(from, ErrorKind::Remote, "it does not keep to the order of words");
            }
        }
    }

    /// Nothing more comes from a member, or it cannot be reached.
    pub(crate) fn lose(&mut self, whom: usize, kind: ErrorKind, cause: &str) {
        if matches!(self.outcome, Some(Err(_))) {
            return;
        }
        let who = self.members[whom].clone();
        let text = format!("{who} was lost while the ranks that are left met: {cause}");
        let error = Error::new(kind, text).with_culprits(vec![who]);
        if self.own == 0 {
            let others = (1..self.members.len()).filter(|other| *other != whom);
            self.outgoing = others.map(|other| (other, Word::Failed(error.clone()))).collect();
        }
        self.outcome = Some(Err(error));
    }

    /// Takes what is to be said now, and to which member.
    pub(crate) fn take_outgoing(&mut self) -> Vec<(usize, Word)> {
        std::mem::take(&mut self.outgoing)
    }

    /// What it came to; nothing as long as somebody is awaited.
    pub(crate) fn outcome(self) -> Option<Result<Vec<Vec<u8>>>> {
        self.outcome
    }

    /// The first answers once all have spoken.
    fn answer(&mut self) {
        let all: Option<Vec<Vec<u8>>> = self.said.iter().cloned().collect();
        if let Some(all) = all.filter(|_| self.own == 0) {
            let others = 1..self.members.len();
            self.outgoing = others.map(|other| (other, Word::All(all.clone()))).collect();
            self.outcome = Some(Ok(all));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: u32) -> Vec<RankIdentity> {
        (0..count).map(|rank| RankIdentity { rank, host: "h".to_owned(), pid: rank }).collect()
    }

    fn round(own: usize) -> Round {
        Round::begin(members(3), own, vec![u8::try_from(own).unwrap()])
    }

    #[test]
    fn everybody_hears_what_everybody_said() {
        let (mut first, mut second, mut third) = (round(0), round(1), round(2));
        assert_eq!((first.awaited(), second.awaited()), (Some(1), Some(0)));
        // In any order.
        for (place, other) in [(2, &mut third), (1, &mut second)] {
            for (to, word) in other.take_outgoing() {
                assert_eq!(to, 0);
                first.hear(place, word);
            }
        }
        for (to, word) in first.take_outgoing() {
            [&mut second, &mut third][to - 1].hear(0, word);
        }
        for round in [first, second, third] {
            assert_eq!(round.outcome().unwrap().unwrap(), [[0], [1], [2]]);
        }
    }

    #[test]
    fn all_others_learn_who_was_lost() {
        let (mut first, mut second) = (round(0), round(1));
        first.hear(1, Word::Said(vec![1]));
        first.lose(2, ErrorKind::Timeout, "it has not come");
        for (to, word) in first.take_outgoing() {
            assert_eq!(to, 1);
            second.hear(0, word);
        }
        for round in [first, second] {
            let error = round.outcome().unwrap().unwrap_err();
            assert_eq!((error.kind(), error.culprits()[0].rank), (ErrorKind::Timeout, 2));
        }
    }

    #[test]
    fn who_cannot_be_told_is_lost_too() {
        let mut first = round(0);
        (1..3).for_each(|place| first.hear(place, Word::Said(Vec::new())));
        assert_eq!(first.take_outgoing().len(), 2);
        first.lose(1, ErrorKind::Remote, "the connection was reset");
        assert!(matches!(&first.take_outgoing()[..], [(2, Word::Failed(_))]));
        assert_eq!(first.outcome().unwrap().unwrap_err().culprits()[0].rank, 1);
    }

    #[test]
    fn words_that_do_not_belong_there_end_the_round() {
        let mut first = round(0);
        first.hear(2, Word::All(Vec::new()));
        assert_eq!(first.outcome().unwrap().unwrap_err().culprits()[0].rank, 2);
        let mut second = round(1);
        second.hear(0, Word::All(vec![Vec::new(); 2]));
        assert_eq!(second.outcome().unwrap().unwrap_err().culprits()[0].rank, 0);
    }

    #[test]
    fn one_alone_has_nobody_to_wait_for() {
        let alone = Round::begin(members(1), 0, vec![7]);
        assert_eq!(alone.outcome().unwrap().unwrap(), [[7]]);
    }
}

//! What two ranks say on the socket beside their queue pairs: how they are connected, which have failed, and, where none
//! is left, the messages themselves.
//!
//! ```text
//! Offer (ports, addresses, queue pairs)  ◄─►  Offer
//! … connect, post receives …
//! Outcome (for every path, or why not)   ◄─►  Outcome
//!
//! Left p ◄─► Left p                a path has failed, and is left at both ends
//! Again p ──► ◄── Ready p          it is tried once more, with new queue pairs; or Refused p
//! Data, Credit                     messages, where no path is left
//! Over                             this side goes no further, and why
//! ```
//!
//! A word is a head of four numbers of 32 bits, little-endian (kind, two of its own, length), and a body.
//!
//! *Invariant:* whatever comes, reading it neither panics nor keeps more than one word of the greatest length.

use serde::{Deserialize, Serialize};

/// Bytes in front of a body.
const HEAD_BYTES: usize = 16;
/// Bytes of a body, at most; those of a meeting may be longer.
pub(super) const BODY_MOST: usize = 64 << 10;
const MEETING_MOST: usize = 256 << 10;
/// Bytes of a reason, at most.
const WHY_MOST: usize = 400;

/// What one side brings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) rails: Vec<RailOffer>,
    /// Why it brings no more.
    pub(super) refused: Vec<String>,
    /// Whether ports without a counterpart may go to others.
    pub(super) cross: bool,
}

/// A port and the memory behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RailOffer {
    pub(super) name: String,
    /// Its place among the ports of its rank that the settings name; the same place is the same rail.
    pub(super) place: u32,
    pub(super) infiniband: bool,
    /// How far it is from this side's memory.
    pub(super) distance: u32,
    /// The slots that the other side writes.
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) ends: Vec<End>,
}

/// One end of a path, as the other must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
    pub(crate) mtu: i32,
    pub(crate) number: u32,
    pub(crate) psn: u32,
}

/// For every path, why it could not be connected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) paths: Vec<Option<String>>,
}

/// See the module's picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Offer(Offer),
    Outcome(Outcome),
    Left { path: u32, why: String },
    Again { path: u32, generation: u32, end: End },
    Ready { path: u32, generation: u32, end: End },
    Refused { path: u32, generation: u32, why: String },
    Data { sequence: u32, consumed: u32, bytes: Vec<u8> },
    Credit { consumed: u32 },
    Over { why: String },
}

impl Word {
    pub(super) fn encode(&self) -> Vec<u8> {
        // Structures of numbers and strings: they always have a text.
        let json = |body: serde_json::Result<Vec<u8>>| body.unwrap_or_default();
        let words = |why: &str| why.as_bytes()[..why.len().min(BODY_MOST)].to_vec();
        let (kind, one, two, body) = match self {
            Self::Offer(offer) => (1, 0, 0, json(serde_json::to_vec(offer))),
            Self::Outcome(outcome) => (2, 0, 0, json(serde_json::to_vec(outcome))),
            Self::Left { path, why } => (3, *path, 0, words(why)),
            Self::Again { path, generation, end } => {
                (4, *path, *generation, json(serde_json::to_vec(end)))
            }
            Self::Ready { path, generation, end } => {
                (5, *path, *generation, json(serde_json::to_vec(end)))
            }
            Self::Refused { path, generation, why } => (6, *path, *generation, words(why)),
            Self::Data { sequence, consumed, bytes } => (7, *sequence, *consumed, bytes.clone()),
            Self::Credit { consumed } => (8, 0, *consumed, Vec::new()),
            Self::Over { why } => (9, 0, 0, words(why)),
        };
        let mut encoded = head(kind, one, two, body.len());
        encoded.extend(body);
        encoded
    }

    fn decode(kind: u32, one: u32, two: u32, body: &[u8]) -> Result<Self, String> {
        let odd = |error: serde_json::Error| format!("the peer's word {kind} is not one: {error}");
        let words = || String::from_utf8_lossy(body).into_owned();
        Ok(match kind {
            1 => Self::Offer(serde_json::from_slice(body).map_err(odd)?),
            2 => Self::Outcome(serde_json::from_slice(body).map_err(odd)?),
            3 => Self::Left { path: one, why: words() },
            4 => Self::Again {
                path: one,
                generation: two,
                end: serde_json::from_slice(body).map_err(odd)?,
            },
            5 => Self::Ready {
                path: one,
                generation: two,
                end: serde_json::from_slice(body).map_err(odd)?,
            },
            6 => Self::Refused { path: one, generation: two, why: words() },
            7 => Self::Data { sequence: one, consumed: two, bytes: body.to_vec() },
            8 => Self::Credit { consumed: two },
            9 => Self::Over { why: words() },
            _ => return Err(format!("the peer said word {kind}, which there is not")),
        })
    }
}

/// As much of a reason as a word has room for.
pub(super) fn short(mut why: String) -> String {
    if let Some((end, _)) = why.char_indices().find(|(at, _)| *at >= WHY_MOST) {
        why.truncate(end);
        why.push('…');
    }
    why
}

fn head(kind: u32, one: u32, two: u32, bytes: usize) -> Vec<u8> {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    [kind, one, two, bytes].into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Words out of bytes as they come.
#[derive(Debug, Default)]
pub(super) struct Reader {
    heard: Vec<u8>,
}

impl Reader {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.heard.extend_from_slice(bytes);
    }

    /// The next word, if all of it is there.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn next(&mut self) -> Result<Option<Word>, String> {
        let Some(head) = self.heard.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (kind, one, two, bytes) = (number(0), number(4), number(8), number(12) as usize);
        if bytes > if kind <= 2 { MEETING_MOST } else { BODY_MOST } {
            return Err(format!("the peer's word {kind} has {bytes} bytes, which is too much"));
        }
        let Some(body) = self.heard.get(HEAD_BYTES..HEAD_BYTES + bytes) else { return Ok(None) };
        let word = Word::decode(kind, one, two, body)?;
        self.heard.drain(..HEAD_BYTES + bytes);
        Ok(Some(word))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn end() -> End {
        End { gid: [7; 16], lid: 3, mtu: 5, number: 17, psn: 0xff_fffe }
    }

    #[test]
    fn words_come_back_however_they_are_cut() {
        let rail = RailOffer {
            name: "mlx5_0:1".to_owned(),
            place: 0,
            infiniband: false,
            distance: 1,
            address: 1 << 40,
            key: 9,
            ends: vec![end(), end()],
        };
        let words = [
            Word::Offer(Offer {
                rails: vec![rail],
                refused: vec!["mlx5_1:1: down".to_owned()],
                cross: true,
            }),
            Word::Outcome(Outcome { paths: vec![None, Some("no way".to_owned())] }),
            Word::Left { path: 1, why: "it failed".to_owned() },
            Word::Again { path: 1, generation: 2, end: end() },
            Word::Ready { path: 1, generation: 2, end: end() },
            Word::Refused { path: 1, generation: 2, why: "the port is down".to_owned() },
            Word::Data { sequence: 5, consumed: 4, bytes: vec![1; 5000] },
            Word::Credit { consumed: 4 },
            Word::Over { why: "no path".to_owned() },
        ];
        let bytes: Vec<u8> = words.iter().flat_map(Word::encode).collect();
        for piece in [1, 7, 16, 1000, bytes.len()] {
            let mut reader = Reader::default();
            let mut found = Vec::new();
            for part in bytes.chunks(piece) {
                reader.feed(part);
                while let Some(word) = reader.next().unwrap() {
                    found.push(word);
                }
            }
            assert_eq!(found, words);
        }
    }

    #[test]
    fn what_is_no_word_is_an_error() {
        let fed = |bytes: Vec<u8>| {
            let mut reader = Reader::default();
            reader.feed(&bytes);
            reader.next().unwrap_err()
        };
        assert!(fed(head(10, 0, 0, 0)).contains("word 10"));
        assert!(fed(head(7, 0, 0, BODY_MOST + 1)).contains("too much"));
        assert!(fed([head(1, 0, 0, 2), b"[]".to_vec()].concat()).contains("word 1 is not one"));
    }

    proptest! {
        #[test]
        fn nothing_that_comes_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = Reader::default();
            reader.feed(&bytes);
            while let Ok(Some(_)) = reader.next() {}
        }
    }
}

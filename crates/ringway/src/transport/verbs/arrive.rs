//! What comes: completions of what was posted here, and messages of the peer's.

use super::flow::{Mark, WINDOW};
use super::rail::{RECEIVE, SLOT_BYTES};
use super::stream::{CREDIT, GENERATION_SHIFT, HEAD_BYTES, Inner, PATH_SHIFT, SILENT};
use crate::ffi::verbs::Completion;

impl Inner {
    /// Takes what a rail's queue has.
    pub(super) fn poll(&mut self, rail: usize) -> bool {
        let mut found = [Completion::default(); 16];
        let mut moved = false;
        loop {
            let count = match self.rails[rail].cq.poll(&mut found) {
                Ok(count) => count,
                Err(error) => {
                    let why = error.to_string();
                    // What was placed by it and not told of is not sent again.
                    if self.known.is_empty() {
                        self.leave_rail(rail, &why)
                    } else {
                        self.end(why)
                    }
                    return moved;
                }
            };
            for completion in &found[..count] {
                if let Err(why) = self.complete(completion) {
                    self.end(why);
                }
            }
            moved |= count > 0;
            if count < found.len() {
                return moved;
            }
        }
    }

    fn complete(&mut self, completion: &Completion) -> Result<(), String> {
        let id = completion.id();
        let part = |shift: u32| usize::try_from(id >> shift & 0xffff).unwrap_or(usize::MAX);
        let (slot, path, generation) = (part(0), part(PATH_SHIFT), part(GENERATION_SHIFT));
        let Some(end) = self.paths.get_mut(path) else { return Ok(()) };
        if usize::from(end.generation) != generation {
            return Ok(()); // of a queue pair that is no more
        }
        let is_receive = id & RECEIVE != 0;
        if !is_receive && slot as u64 != SILENT {
            end.ended_one(slot);
            if slot as u64 != CREDIT {
                self.outbox.ended(slot);
                if completion.is_success()
                    && let Some(placement) = self.placements.get_mut(slot).and_then(Option::take)
                {
                    self.outbox.delivered(placement.number);
                }
            }
        }
        if !completion.is_success() {
            let why = self.explain(path, completion);
            self.leave_path(path, why);
            return Ok(());
        }
        if !is_receive {
            self.is_back(path);
            return Ok(());
        }
        let id = self.number(path, CREDIT) | RECEIVE;
        let end = &self.paths[path];
        if let Some(made) = end.made.as_ref().filter(|_| end.takes_messages())
            && let Err(error) = made.qp.post_receive(id, None)
        {
            self.leave_path(path, error.to_string());
        }
        self.hears(path);
        let peer = &self.wish.peer;
        let Some(word) = completion.immediate() else {
            return Err(format!("{peer}: a message without its number"));
        };
        match Mark::decode(word) {
            Mark::Credit(consumed) => self.outbox.credit(consumed),
            Mark::Placed(sequence) => {
                // A write of a head tells of one before it, whose length is there; also if the slot was written again.
                let bytes = match completion.bytes() {
                    told if told as usize == HEAD_BYTES => self.head(sequence).1,
                    bytes => bytes,
                };
                self.inbox.arrive(sequence, self.possible(bytes)?, true)
            }
            Mark::Data(sequence) => {
                let (consumed, bytes) = self.head(sequence);
                self.arrive(sequence, consumed, bytes)
            }
        }
    }

    /// What stands in front of a message in its slot: messages consumed, and bytes.
    fn head(&self, sequence: u32) -> (u32, u32) {
        let slot = usize::try_from(u64::from(sequence) % WINDOW).unwrap_or(0);
        let mut head = [0; HEAD_BYTES];
        self.rings.into.read(slot * SLOT_BYTES, &mut head);
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        (word(0), word(4))
    }

    /// The length of a message, if it is one.
    fn possible(&self, bytes: u32) -> Result<u32, String> {
        if bytes == 0 || bytes as usize > SLOT_BYTES - HEAD_BYTES {
            return Err(format!("{}: a message of {bytes} bytes", self.wish.peer));
        }
        Ok(bytes)
    }

    /// A message is in its slot.
    fn arrive(&mut self, sequence: u32, consumed: u32, bytes: u32) -> Result<(), String> {
        let bytes = self.possible(bytes)?;
        self.outbox.credit(consumed)?;
        self.inbox.arrive(sequence, bytes, false)
    }

    /// A message came by the socket.
    pub(super) fn arrive_by_socket(
        &mut self,
        sequence: u32,
        consumed: u32,
        bytes: &[u8],
    ) -> Result<(), String> {
        // One that is late must not be written over what has come since.
        if self.inbox.is_new(sequence) && bytes.len() <= SLOT_BYTES - HEAD_BYTES {
            let slot = usize::try_from(u64::from(sequence) % WINDOW).unwrap_or(0);
            self.rings.into.write(slot * SLOT_BYTES + HEAD_BYTES, bytes);
        }
        self.arrive(sequence, consumed, u32::try_from(bytes.len()).unwrap_or(u32::MAX))
    }
}

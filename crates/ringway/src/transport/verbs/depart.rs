//! What goes: messages by the path that carried least, how much was consumed, and what of it a path has taken.

use super::flow::{Mark, low};
use super::paths::State;
use super::rail::SLOT_BYTES;
use super::stream::{CREDIT, GENERATION_SHIFT, HEAD_BYTES, Inner, PATH_SHIFT, SILENT};
use super::wire::Word;
use crate::ffi::verbs::{Flags, Operation, Part, Remote, Request, VerbsError};

/// Where a message went that no path had.
const BY_SOCKET: usize = usize::MAX;

/// Least bytes of a message of which the parts go by different paths.
const SPLIT_LEAST: usize = 4 << 10;

/// Where a message can go.
enum Way {
    Path(usize),
    Socket,
    Nowhere,
}

impl Inner {
    /// Bytes of a message where so many are to be sent.
    pub(super) fn message_bytes(&self, bytes: usize) -> usize {
        let most = SLOT_BYTES - HEAD_BYTES;
        let up = self.paths.iter().filter(|end| end.state == State::Up);
        let nearest = up.clone().map(|end| end.distance).min();
        let ways = up.filter(|end| Some(end.distance) == nearest).count();
        if self.wish.settings.split && ways > 1 {
            return bytes.div_ceil(ways).clamp(SPLIT_LEAST, most);
        }
        most
    }

    /// Posts what waits, by the paths in turn.
    pub(super) fn post(&mut self) {
        if !self.met || self.ended.is_some() {
            return;
        }
        while let Some((number, slot, bytes)) = self.outbox.waiting() {
            // Whose memory that is waits for it, and posts it.
            if !self.in_call && self.placements[slot].is_some() {
                break;
            }
            let way = self.next_way();
            if matches!(way, Way::Nowhere) {
                break;
            }
            if let Way::Path(path) = way
                && let Some(posted) = self.post_placed(path, number, slot, bytes)
            {
                if posted {
                    self.outbox.posted(number, path);
                }
                continue;
            }
            if !self.fill(slot, bytes) {
                return;
            }
            let told = self.inbox.tell();
            let (base, bytes_here) = (slot * SLOT_BYTES, bytes as usize);
            match way {
                Way::Path(path) => {
                    self.write_head(slot, told, bytes);
                    let id = self.number(path, slot as u64);
                    let part = Some((base, HEAD_BYTES + bytes_here));
                    if self.post_one(path, id, Mark::Data(low(number)), part) {
                        self.outbox.posted(number, path);
                    }
                }
                _ => {
                    let mut body = vec![0; bytes_here];
                    self.rings.out.read(base + HEAD_BYTES, &mut body);
                    let sequence = low(number);
                    self.spoke = true;
                    self.side.say(&Word::Data { sequence, consumed: told, bytes: body });
                    self.outbox.posted(number, BY_SOCKET);
                    self.outbox.ended(slot);
                }
            }
        }
    }

    pub(super) fn write_head(&self, slot: usize, told: u32, bytes: u32) {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&told.to_le_bytes());
        head[4..].copy_from_slice(&bytes.to_le_bytes());
        self.rings.out.write(slot * SLOT_BYTES, &head);
    }

    /// Tells how much was consumed, where nothing goes back that could and the peer should hear of it.
    pub(super) fn settle_credit(&mut self) {
        if !self.inbox.owes() || !self.met || self.ended.is_some() {
            return;
        }
        match self.next_way() {
            Way::Path(path) => self.post_credit(path),
            Way::Socket => {
                let consumed = self.inbox.tell();
                self.side.say(&Word::Credit { consumed });
            }
            Way::Nowhere => {}
        }
    }

    pub(super) fn post_credit(&mut self, path: usize) {
        let mark = Mark::Credit(self.inbox.tell());
        self.post_one(path, self.number(path, CREDIT), mark, None);
    }

    /// A write that may be lost, to see whether a path leads anywhere.
    pub(super) fn post_probe(&mut self, path: usize) {
        let mark = Mark::Credit(self.inbox.hint());
        self.post_one(path, self.number(path, CREDIT), mark, None);
    }

    /// The number of a request.
    pub(super) fn number(&self, path: usize, slot: u64) -> u64 {
        let generation = u64::from(self.paths[path].generation);
        generation << GENERATION_SHIFT | (path as u64) << PATH_SHIFT | slot
    }

    fn post_one(&mut self, path: usize, id: u64, mark: Mark, part: Option<(usize, usize)>) -> bool {
        let end = &self.paths[path];
        let Some(made) = &end.made else { return false };
        let rail = &self.rails[end.rail];
        let (offset, bytes) = part.unwrap_or((0, 0));
        let address = rail.remote.address.wrapping_add(offset as u64);
        let remote = Remote { address, ..rail.remote };
        let local = part.map_or(Part::NONE, |(offset, bytes)| rail.out.part(offset, bytes));
        let inline = bytes > 0 && bytes <= made.qp.inline_bytes() as usize;
        let last = |local, inline| Request {
            id,
            operation: Operation::WriteWithImmediate(remote, mark.encode()),
            local,
            flags: Flags { inline, ..Flags::SIGNALLED },
        };
        let posted = if bytes > self.wish.settings.scattered_from(rail.adapter.is_infiniband()) {
            // Packets that each take a way of their own: what is told comes behind all of them.
            let (id, operation) = (self.number(path, SILENT), Operation::Write(remote));
            let first = Request { id, operation, local, flags: Flags::default() };
            made.qp.post_chain(&[first, last(Part::NONE, false)])
        } else {
            made.qp.post(last(local, inline)).map_err(|error| (0, error))
        };
        self.account(path, id, bytes, posted)
    }

    /// Notes what became of requests that were posted; whether the path has the message.
    pub(super) fn account(
        &mut self,
        path: usize,
        id: u64,
        bytes: usize,
        posted: Result<(), (usize, VerbsError)>,
    ) -> bool {
        match posted {
            Ok(()) => {
                self.paths[path].posted_one(id, bytes);
                true
            }
            Err((posted, error)) => {
                if posted > 0 {
                    // Half of it is under way: it is this path's until both ends have left.
                    self.paths[path].posted_one(id, bytes);
                }
                self.leave_path(path, error.to_string());
                posted > 0
            }
        }
    }

    /// Where the next message goes: of the nearest paths that are up and not full the one that carried least, or the
    /// socket where none is up.
    fn next_way(&mut self) -> Way {
        let up = self.paths.iter().enumerate().filter(|(_, end)| end.state == State::Up);
        let nearest = up.clone().map(|(_, end)| end.distance).min();
        let ready = up.filter(|(_, end)| Some(end.distance) == nearest && end.has_room());
        if let Some((path, _)) = ready.min_by_key(|(_, end)| end.carried) {
            return Way::Path(path);
        }
        if nearest.is_some() || self.wish.insists.is_some() || self.side.is_full() {
            return Way::Nowhere;
        }
        self.say_socket();
        Way::Socket
    }
}

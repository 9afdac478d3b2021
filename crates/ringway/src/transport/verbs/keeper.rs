//! The thread that answers peers while nobody here is in a call.
//!
//! When a path fails, what went by it is in doubt until its other end has left it too. That end may have all it
//! needs: it is out of the call, and perhaps waits elsewhere for the very rank that must hear from it.
//!
//! ```text
//! rank 1   write ──► (lost: the acknowledgement) ──► Left p ────────────► waits ◄── Left p ── goes on
//! rank 0   it came ──► out of the call ──────────────► (nobody) keeper: leaves p ──┘
//! ```
//!
//! It sleeps until a peer says something on a socket. As a rule somebody in a call hears it first, so it comes a moment
//! later, and stays until nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use crate::os;

/// Between two looks at what is not calm, and before the first.
const TURN: Duration = Duration::from_millis(10);

/// Sockets heard of at a time.
const EVENTS_MOST: usize = 64;

/// What is looked after.
pub(super) trait Ward: Send + Sync {
    /// Does what can be done now; whether nothing more is to be done before a peer speaks again.
    fn tend(&self) -> bool;
}

type Wards = BTreeMap<u64, Arc<dyn Ward>>;

struct Keeper {
    wards: Mutex<(u64, Wards)>,
    poller: OwnedFd,
}

/// That of the process with this number: one that was forked off has no such thread.
static KEEPER: Mutex<Option<(u32, Arc<Keeper>)>> = Mutex::new(None);

/// That something is looked after, until this is dropped.
pub(super) struct Kept {
    keeper: Arc<Keeper>,
    number: u64,
}

/// Looks after a ward whose peer speaks on this socket.
///
/// # Errors
/// When the system has no thread or descriptor left.
pub(super) fn keep(ward: Arc<dyn Ward>, socket: BorrowedFd<'_>) -> io::Result<Kept> {
    let keeper = Keeper::get()?;
    let number = {
        let mut wards = keeper.wards();
        wards.0 += 1;
        let number = wards.0;
        wards.1.insert(number, ward);
        number
    };
    let kept = Kept { keeper, number };
    // Every arrival tells once, until somebody reads it: who does is in a call, and leaves it only when all is settled.
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&kept.keeper.poller, socket, epoll::EventData::new_u64(number), flags)?;
    Ok(kept)
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Not dropped under the lock: a ward may be the last to hold much.
        let _ward = self.keeper.wards().1.remove(&self.number);
    }
}

impl Keeper {
    fn get() -> io::Result<Arc<Self>> {
        let mut known = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if let Some((_, keeper)) = known.as_ref().filter(|(of, _)| *of == process) {
            return Ok(Arc::clone(keeper));
        }
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let keeper = Arc::new(Self { wards: Mutex::default(), poller });
        let own = Arc::clone(&keeper);
        let thread = std::thread::Builder::new().name("ringway-rdma".to_owned());
        os::without_signals(|| {
            thread.spawn(move || {
                os::run_anywhere();
                own.run();
            })
        })?;
        Ok(Arc::clone(&known.insert((process, keeper)).1))
    }

    fn wards(&self) -> MutexGuard<'_, (u64, Wards)> {
        self.wards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends with the process: nobody closes what it sleeps on.
    fn run(&self) {
        let turn = rustix::time::Timespec { tv_sec: 0, tv_nsec: TURN.subsec_nanos().into() };
        let mut restless = BTreeSet::new();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MOST);
        let mut woken = Ok(());
        while matches!(woken, Ok(()) | Err(rustix::io::Errno::INTR)) {
            let limit = (!restless.is_empty()).then_some(&turn);
            events.clear();
            woken = epoll::wait(&self.poller, spare_capacity(&mut events), limit).map(|_| ());
            if !events.is_empty() {
                restless.extend(events.iter().map(|event| event.data.u64()));
                std::thread::sleep(TURN);
            }
            restless.retain(|number| {
                let ward = self.wards().1.get(number).cloned();
                ward.is_some_and(|ward| !self.tend(*number, &*ward))
            });
        }
    }

    fn tend(&self, number: u64, ward: &dyn Ward) -> bool {
        catch_unwind(AssertUnwindSafe(|| ward.tend())).unwrap_or_else(|_| {
            // Whoever uses it finds out by itself.
            let _lost = self.wards().1.remove(&number);
            true
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Is calm after so many looks.
    struct Told(Mutex<(Sender<u32>, u32)>, u32);

    impl Ward for Told {
        fn tend(&self) -> bool {
            let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            told.1 += 1;
            let _over = told.0.send(told.1);
            assert!(told.1 < 100, "a ward that fails");
            told.1 >= self.1
        }
    }

    fn ward(looks: u32) -> (Kept, UnixStream, UnixStream, Receiver<u32>) {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let (sender, receiver) = channel();
        let ward = Told(Mutex::new((sender, 0)), looks);
        (keep(Arc::new(ward), near.as_fd()).expect("a keeper"), near, far, receiver)
    }

    #[test]
    fn who_is_spoken_to_is_looked_after_until_calm() {
        let (_kept, mut near, mut far, looks) = ward(3);
        let (_other, _near, _far, others) = ward(1);
        assert!(looks.recv_timeout(TURN * 5).is_err(), "nobody has said anything");
        far.write_all(b"a").unwrap();
        for look in 1..=3 {
            assert_eq!(looks.recv_timeout(LIMIT), Ok(look));
        }
        assert!(looks.recv_timeout(TURN * 5).is_err(), "it is calm, though nobody has read");
        // The next word is heard too, whether the first was read or not.
        far.write_all(b"b").unwrap();
        assert_eq!(looks.recv_timeout(LIMIT), Ok(4));
        near.read_exact(&mut [0; 2]).unwrap();
        far.write_all(b"c").unwrap();
        assert_eq!(looks.recv_timeout(LIMIT), Ok(5));
        assert!(others.try_recv().is_err(), "nobody spoke to it");
    }

    #[test]
    fn one_that_is_dropped_or_fails_is_looked_after_no_more() {
        let (kept, _near, mut far, looks) = ward(u32::MAX);
        far.write_all(b"a").unwrap();
        assert_eq!(looks.recv_timeout(LIMIT), Ok(1));
        drop(kept);
        let end = std::time::Instant::now() + LIMIT;
        // The sender is gone with the ward.
        while looks.recv_timeout(LIMIT).is_ok() {
            assert!(std::time::Instant::now() < end);
        }
        let (_kept, _near, mut far, looks) = ward(u32::MAX);
        far.write_all(b"a").unwrap();
        while looks.recv_timeout(LIMIT).is_ok_and(|look| look < 100) {}
        assert!(looks.recv_timeout(LIMIT).is_err(), "it failed");
        // The others are still looked after.
        let (_kept, _near, mut far, looks) = ward(1);
        far.write_all(b"a").unwrap();
        assert_eq!(looks.recv_timeout(LIMIT), Ok(1));
    }
}

//! Turns: calls of one communicator run one after another, in the order in which they were made.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::interrupt;

/// A queue of turns. Who need not wait takes no lock.
#[derive(Debug, Default)]
pub(crate) struct Order {
    next: AtomicU64,
    serving: AtomicU64,
    /// Threads that wait, or are about to.
    waiting: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

/// A place in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Order {
    /// Takes the next place.
    pub(crate) fn take(&self) -> Ticket {
        Ticket(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits for the ticket's turn; the turn ends when the result is dropped. Where this thread's caller wants out
    /// meanwhile, `interrupted` is called once: it sees to it that those who come before end.
    ///
    /// # Memory ordering
    /// `serving` is released by the end of a turn and acquired by the next. A thread that is about
    /// to wait says so before it looks at `serving` again, and the end of a turn looks whether
    /// somebody waits after it has moved `serving` on; all four are sequentially consistent, so
    /// one of the two sees the other.
    pub(crate) fn wait(&self, ticket: Ticket, interrupted: impl FnOnce()) -> Turn<'_> {
        if self.serving.load(Ordering::Acquire) != ticket.0 {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let mut interrupted = interrupt::is_asked().then_some(interrupted);
            let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            while self.serving.load(Ordering::SeqCst) != ticket.0 {
                if interrupted.is_none() {
                    guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                let waited = self.changed.wait_timeout(guard, interrupt::EVERY);
                guard = waited.unwrap_or_else(PoisonError::into_inner).0;
                // Without the lock: the caller is asked, and may take its time.
                drop(guard);
                if interrupt::wanted()
                    && let Some(interrupted) = interrupted.take()
                {
                    interrupted();
                }
                guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        Turn { order: self }
    }
}

/// The right to run.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    order: &'a Order,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.order.serving.fetch_add(1, Ordering::SeqCst);
        if self.order.waiting.load(Ordering::SeqCst) > 0 {
            // With the lock, so that nobody is between its look and its sleep.
            let _guard = self.order.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.order.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn turns_come_in_the_order_of_the_tickets() {
        let order = Arc::new(Order::default());
        let log = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<Ticket> = (0..8).map(|_| order.take()).collect();
        let threads: Vec<_> = tickets
            .into_iter()
            .enumerate()
            .rev()
            .map(|(index, ticket)| {
                let (order, log) = (Arc::clone(&order), Arc::clone(&log));
                std::thread::spawn(move || {
                    let _turn = order.wait(ticket, || ());
                    log.lock().unwrap().push(index);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*log.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }
}

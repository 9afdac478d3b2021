//! Turns: calls of one communicator run one after another, in the order in which they were made.

use std::sync::{Condvar, Mutex, PoisonError};

/// A queue of turns.
#[derive(Debug, Default)]
pub(crate) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    serving: u64,
    waiting: u32,
}

/// A place in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Order {
    /// Takes the next place.
    pub(crate) fn take(&self) -> Ticket {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.next += 1;
        Ticket(state.next - 1)
    }

    /// Waits for the ticket's turn; the turn ends when the result is dropped.
    pub(crate) fn wait(&self, ticket: Ticket) -> Turn<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.serving != ticket.0 {
            state.waiting += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
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
        let mut state = self.order.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.serving += 1;
        if state.waiting > 0 {
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
                    let _turn = order.wait(ticket);
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

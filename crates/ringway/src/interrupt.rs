//! Asking a caller whether it wants out of a wait: how Ctrl-C ends a call of a program in a language whose signal
//! handlers run only when that language is asked.
//!
//! The question is put to the thread that waits, at most every 50 ms, and never before it has waited that long:
//! calls that are quick pay nothing. Once the answer was yes it stays yes until [`asking`] returns.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often a thread that waits is asked.
pub(crate) const EVERY: Duration = Duration::from_millis(50);

thread_local! {
    /// Never dropped, as calls are made to a thread's very end, by destructors; outside [`asking`] there is nothing in it.
    static ASKED: ManuallyDrop<RefCell<Option<Asked>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
}

fn with_asked<T>(body: impl FnOnce(&mut Option<Asked>) -> T) -> T {
    ASKED.with(|asked| body(&mut asked.borrow_mut()))
}

/// What is known of a thread's wish.
struct Asked {
    check: Rc<dyn Fn() -> bool>,
    last: Option<Instant>,
    wanted: bool,
}

/// Puts back what was there before, also when `work` panics.
struct Restore(Option<Asked>);

impl Drop for Restore {
    fn drop(&mut self) {
        let before = self.0.take();
        // Outside the borrow: what the caller's closure holds may be anything.
        drop(with_asked(|asked| std::mem::replace(asked, before)));
    }
}

/// Runs `work`; while this thread waits in it, `check` is asked now and then whether to give up. Then the communicator
/// that waits is given up as by [`Communicator::abort`](crate::Communicator::abort), and the call returns an error; ranks
/// that are coming together do so no longer.
///
/// ```
/// use std::time::{Duration, Instant};
/// let began = Instant::now();
/// ringway::testing::world(2, |comm| {
///     if comm.rank() == 0 {
///         let enough = move || began.elapsed() > Duration::from_millis(200);
///         ringway::interrupt::asking(enough, || comm.recv(&mut [0], 1)).unwrap_err();
///     } else {
///         let error = comm.barrier().unwrap_err();
///         assert!(error.to_string().contains("rank 0"), "{error}");
///     }
/// });
/// ```
pub fn asking<T>(check: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> T {
    let new = Asked { check: Rc::new(check), last: None, wanted: false };
    let _restore = Restore(with_asked(|asked| asked.replace(new)));
    work()
}

/// Whether anybody would be asked.
pub(crate) fn is_asked() -> bool {
    with_asked(|asked| asked.is_some())
}

/// Whether this thread's caller wants out. Asks it if that was not done for a while.
pub(crate) fn wanted() -> bool {
    let check = with_asked(|asked| {
        let asked = asked.as_mut()?;
        if asked.wanted {
            return Some(None);
        }
        let now = Instant::now();
        let last = *asked.last.get_or_insert(now);
        if now.saturating_duration_since(last) < EVERY {
            return None;
        }
        asked.last = Some(now);
        Some(Some(Rc::clone(&asked.check)))
    });
    match check {
        None => false,
        Some(None) => true,
        // Not while it is borrowed: the caller's handler may make calls of its own.
        Some(Some(check)) => {
            let wanted = check();
            with_asked(|asked| {
                if let Some(asked) = asked {
                    asked.wanted = wanted;
                }
            });
            wanted
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_caller_is_asked_now_and_then_and_its_yes_stays() {
        assert!(!wanted() && !is_asked());
        let times = Rc::new(Cell::new(0));
        let counted = Rc::clone(&times);
        let check = move || {
            counted.set(counted.get() + 1);
            counted.get() == 2
        };
        asking(check, || {
            assert!(!wanted() && !wanted());
            assert_eq!(times.get(), 0, "not before it has waited");
            std::thread::sleep(EVERY);
            assert!(!wanted() && !wanted());
            assert_eq!(times.get(), 1);
            std::thread::sleep(EVERY);
            assert!(wanted() && wanted());
            assert_eq!(times.get(), 2);
        });
        assert!(!wanted() && !is_asked());
    }

    #[test]
    fn what_was_asked_before_is_asked_again_after() {
        asking(
            || true,
            || {
                asking(|| false, || assert!(is_asked()));
                assert!(!wanted());
                std::thread::sleep(EVERY);
                assert!(wanted());
            },
        );
    }
}

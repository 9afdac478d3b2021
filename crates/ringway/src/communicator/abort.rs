//! Giving a communicator up, and asking whether it has failed: both from any thread, at any time.

use std::sync::atomic::Ordering;

use super::{Communicator, Inner};
use crate::control::Report;
use crate::error::Error;

impl Communicator {
    /// Gives the communicator up: calls under way, here and on the other ranks, return an error that
    /// names this rank and the reason within a second, and so does every later call. Returns at once.
    ///
    /// ```
    /// ringway::testing::world(2, |comm| {
    ///     if comm.rank() == 0 {
    ///         comm.abort("the input is broken");
    ///     }
    ///     let error = comm.barrier().unwrap_err();
    ///     assert!(error.to_string().contains("aborted the communicator"), "{error}");
    /// });
    /// ```
    pub fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    /// The error that has broken the communicator, once its ranks agree on it; every call
    /// returns it from then on. It is waited for where kernels have ended without having done their work.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.inner.control.verdict().or_else(|| self.inner.gpu_failure())
    }
}

impl Inner {
    pub(super) fn abort(&self, reason: &str) {
        self.given_up.store(true, Ordering::Release);
        self.control.report(Report::Aborted { rank: self.rank, reason: reason.to_owned() });
        self.abort_gpu(reason);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use crate::error::ErrorKind;
    use crate::testing::world;

    #[test]
    fn a_call_that_waits_ends_when_another_thread_aborts() {
        let meet = Barrier::new(3);
        world(3, |comm| {
            assert_eq!(comm.failure(), None);
            if comm.rank() == 2 {
                meet.wait();
                return; // never calls
            }
            if comm.rank() == 0 {
                let other = comm.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(50));
                    other.abort("enough");
                });
            }
            let error = comm.barrier().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Remote);
            assert_eq!(error.culprits().first().map(|one| one.rank), Some(0));
            assert!(error.to_string().contains("enough"), "{error}");
            assert_eq!(comm.failure(), Some(error.clone()));
            assert_eq!(comm.barrier().unwrap_err(), error);
            meet.wait();
        });
    }
}

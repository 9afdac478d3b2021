//! Finding the root's addresses where it is known by name.
//!
//! In a cluster that starts pods one by one the name of rank 0 appears when its pod does, minutes after a rank first
//! asked for it; so a name that does not resolve is asked for again, with growing pauses, and the log says what is
//! waited for. A name may also lead to the predecessor of a pod for a while; so while nobody answers, it is asked for
//! again too.
//!
//! The system's resolver may take longer than a rank has time, and cannot be stopped: it is asked in a thread of its
//! own, which ends when the resolver does.
//!
//! *Invariant:* nobody waits for the resolver past the deadline, or past the caller's wish to leave.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::place;
use crate::bootstrap::dial::Target;
use crate::bootstrap::launcher::RootHint;
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;

/// The first pause before a name is asked for again; it doubles each time.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// When the log first says what is waited for; then after twice as long, each time.
const SAY_FIRST: Duration = Duration::from_secs(5);

/// Where the root is.
pub(crate) enum Whereabouts<'a> {
    /// At these addresses.
    Known(Vec<Target>),
    /// Where these names lead.
    Named(&'a RootHint),
}

impl Whereabouts<'_> {
    /// A question to the resolver, where another answer is possible at all.
    pub(super) fn ask_again(&self) -> Option<Question> {
        match self {
            Self::Named(hint) if place::needs_resolver(hint) => Question::ask(hint).ok(),
            _ => None,
        }
    }

    /// The addresses, waited for until `deadline`. `who` waits, and was given `timeout`.
    pub(super) fn find(
        &self,
        who: &dyn std::fmt::Display,
        timeout: Duration,
        deadline: Instant,
    ) -> Result<Vec<Target>> {
        let hint = match self {
            Self::Known(targets) => return Ok(targets.clone()),
            Self::Named(hint) if !place::needs_resolver(hint) => return place::resolve(hint),
            Self::Named(hint) => hint,
        };
        let started = Instant::now();
        let (mut pause, mut say_after) = (PAUSE_FIRST, SAY_FIRST);
        let mut said = format!("{hint}: the resolver has not answered yet");
        let mut question = Some(Question::ask(hint)?);
        let mut ask_at = started;
        loop {
            if let Some(asked) = &question {
                match asked.wait(interrupt::EVERY) {
                    None => {}
                    Some(Ok(targets)) => return Ok(targets),
                    Some(Err(why)) => {
                        said = why.to_string();
                        question = None;
                        ask_at = Instant::now() + pause;
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            } else if Instant::now() >= ask_at {
                question = Some(Question::ask(hint)?);
            } else {
                let left = ask_at.min(deadline).saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(interrupt::EVERY));
            }
            let now = Instant::now();
            if now >= deadline || interrupt::wanted() {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "{who} found no address of the root within {:.1} s: {said}; check that rank 0's host or \
                         pod is up and that the name is right (in Kubernetes: a headless service of that name, with \
                         publishNotReadyAddresses), or name an address: RINGWAY_ROOT=host:port; \
                         RINGWAY_INIT_TIMEOUT allows more time",
                        timeout.as_secs_f64()
                    ),
                ));
            }
            if now - started >= say_after {
                say_after *= 2;
                tracing::warn!(
                    target: "ringway::BOOTSTRAP",
                    "{who} waits for the root's name since {:.0} s, for {:.0} s more at most: {said}",
                    (now - started).as_secs_f64(),
                    (deadline - now).as_secs_f64()
                );
            }
        }
    }
}

/// A question to the system's resolver that is under way.
pub(super) struct Question(Receiver<Result<Vec<Target>>>);

impl Question {
    fn ask(hint: &RootHint) -> Result<Self> {
        let (sender, receiver) = channel();
        let hint = hint.clone();
        std::thread::Builder::new()
            .name("ringway-resolve".into())
            .spawn(move || {
                // Whoever asked may have left.
                let _ = sender.send(place::resolve(&hint));
            })
            .map_err(|error| Error::system("start a thread to resolve the root's name", error))?;
        Ok(Self(receiver))
    }

    /// The answer, if it comes within `limit`.
    fn wait(&self, limit: Duration) -> Option<Result<Vec<Target>>> {
        match self.0.recv_timeout(limit) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(gone())),
        }
    }

    /// The answer, if it is there.
    pub(super) fn answer(&self) -> Option<Result<Vec<Target>>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(gone())),
        }
    }
}

fn gone() -> Error {
    Error::internal("the thread that resolves the root's name ended without an answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(host: &str) -> RootHint {
        RootHint::At { host: host.to_owned(), port: 29400 }
    }

    #[test]
    fn a_name_that_never_resolves_is_an_error_with_name_cause_and_fix() {
        // A label of more than 63 characters is refused by every resolver, without asking anybody.
        let name = format!("{}.invalid", "x".repeat(70));
        let limit = Duration::from_millis(200);
        let hint = named(&name);
        let began = Instant::now();
        let error = Whereabouts::Named(&hint)
            .find(&"rank 3", limit, began + limit)
            .expect_err("nothing has that name");
        assert!(began.elapsed() >= limit, "it was asked for again until the deadline");
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let text = error.to_string();
        for part in ["rank 3", &name, "0.2 s", "RINGWAY_ROOT", "RINGWAY_INIT_TIMEOUT"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn addresses_need_no_resolver() {
        for host in ["127.0.0.1", "fd00::1"] {
            let hint = named(host);
            let place = Whereabouts::Named(&hint);
            assert!(place.ask_again().is_none());
            let found = place.find(&"rank 1", Duration::ZERO, Instant::now()).unwrap();
            assert_eq!(found[0].address.ip().to_string(), host);
        }
    }

    #[test]
    fn the_hosts_file_is_asked() {
        let hint = named("localhost");
        let limit = Duration::from_secs(30);
        let found = Whereabouts::Named(&hint).find(&"rank 1", limit, Instant::now() + limit);
        assert!(found.unwrap().iter().all(|target| target.address.ip().is_loopback()));
    }
}

//! Proxies: threads that make on the host the calls that kernels ask for, one for each channel.
//!
//! *Invariant:* a proxy goes through the requests of its channel in the order of the chunks, which is the same
//! on all ranks, so that no channel waits for itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::desk::Desk;
use super::{Alarm, Channels};
use crate::control::Health;
use crate::device::{Fault, near};
use crate::plan::types::Rank;

/// How long a proxy looks without a sleep after something happened.
const EAGER: Duration = Duration::from_micros(200);
/// How long it sleeps while a launch is at work or may be replayed, and while nothing is.
const NAP: Duration = Duration::from_micros(50);
const SLEEP: Duration = Duration::from_millis(5);

/// Threads that end when told, or dropped.
#[derive(Debug)]
pub(super) struct Threads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// The proxies of a rank, one for each channel.
    pub(super) fn proxies(
        desk: &Arc<Desk>,
        channels: &Channels,
        rank: Rank,
    ) -> Result<Self, Fault> {
        let mut all = Self { stop: Arc::default(), threads: Vec::new() };
        for number in 0..channels.len() {
            let (desk, channels) = (Arc::clone(desk), Arc::clone(channels));
            all.start(format!("ringway-gpu-{rank}-{number}"), move |stop| {
                crate::log::set_thread_rank(rank);
                if let Some(cpus) = near::stay(desk.gpu())
                    && number == 0
                {
                    let bus = desk.gpu().bus_address();
                    tracing::info!(target: crate::log::INIT, "GPU : proxies run on CPUs {cpus}, near {bus}");
                }
                serve(&desk, &channels, number, stop);
            })?;
        }
        Ok(all)
    }

    /// The thread that ends what is under way when the communicator fails.
    pub(super) fn watch(alarm: &Alarm, health: &Arc<Health>, rank: Rank) -> Result<Self, Fault> {
        let mut all = Self { stop: Arc::default(), threads: Vec::new() };
        let (alarm, health) = (alarm.clone(), Arc::clone(health));
        all.start(format!("ringway-gpu-{rank}"), move |stop| {
            while !stop.load(Ordering::Acquire) {
                if health.is_raised() {
                    return alarm.abort("the communicator that it works for has failed");
                }
                std::thread::park_timeout(SLEEP);
            }
        })?;
        Ok(all)
    }

    fn start(
        &mut self,
        name: String,
        body: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> Result<(), Fault> {
        let stop = Arc::clone(&self.stop);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || body(&stop))
            .map_err(|error| Fault::Other(format!("cannot start a thread: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Wakes the first `count`.
    pub(super) fn wake(&self, count: usize) {
        for thread in self.threads.iter().take(count) {
            thread.thread().unpark();
        }
    }

    pub(super) fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic is in the log already, and there is nothing left to stop.
            let _ended = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers requests until told to stop, or one fails.
fn serve(desk: &Desk, channels: &Channels, number: usize, stop: &AtomicBool) {
    let (channel, step) = (&*channels[number], channels.len());
    let mut answered = vec![0_u32; desk.slot_count];
    let mut at = number;
    let mut idle = Idle { since: Instant::now(), begun: 0 };
    while !stop.load(Ordering::Acquire) {
        let slot = desk.slot(at);
        let next = answered[at].wrapping_add(1);
        if slot.request.load(Ordering::Acquire) != u64::from(next) {
            idle.pass(desk);
            continue;
        }
        answered[at] = next;
        match desk.serve(channel, step, at) {
            Ok(later) => at = later,
            Err(error) => return desk.fail(&error),
        }
        slot.reply.store(u64::from(next), Ordering::Release);
        idle.since = Instant::now();
    }
}

/// One stretch of waiting.
struct Idle {
    /// When something happened last: a request, or a launch that began.
    since: Instant,
    begun: u32,
}

impl Idle {
    /// Passes a moment. A launch that begins will ask soon; one that is enqueued, or may be replayed, may
    /// begin at any time; while there is none the host says when there is.
    fn pass(&mut self, desk: &Desk) {
        let begun = desk.words.report().begun.load(Ordering::Relaxed);
        if begun != self.begun {
            (self.begun, self.since) = (begun, Instant::now());
        }
        if self.since.elapsed() < EAGER {
            // Others may want the processor, the rank that is waited for among them.
            std::thread::yield_now();
        } else if desk.is_busy() || desk.captured.load(Ordering::Acquire) {
            std::thread::sleep(NAP);
        } else {
            std::thread::park_timeout(SLEEP);
            if desk.is_busy() {
                self.since = Instant::now();
            }
        }
    }
}

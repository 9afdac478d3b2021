//! The thread that looks after a communicator's kernels: maps what they ask for, ends them when the
//! communicator fails, and notices those that stand still.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Fault;
use super::export::Import;
use super::gpu::Gpu;
use super::near;
use super::recent::Recent;
use super::station::{Request, Station, Words};
use super::tail::Neighbours;
use crate::control::{Health, Report, Trouble};
use crate::ffi::cuda::{IPC_BYTES, IpcHandle};
use crate::plan::types::Rank;

/// How often it looks for a while after a launch or while a kernel waits, and else.
const BUSY: Duration = Duration::from_micros(500);
const IDLE: Duration = Duration::from_millis(5);
const A_WHILE: Duration = Duration::from_millis(200);
/// How often it looks whether a kernel waits in vain.
const LOOK: Duration = Duration::from_secs(1);

/// What the thread and the rank both use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) gpu: Arc<Gpu>,
    pub(super) station: Station,
    pub(super) words: Words,
    /// Ranks of other processes, a bit each.
    pub(super) foreign: u64,
    /// Where ranks of this host meet, if not by abstract names.
    pub(super) directory: Option<PathBuf>,
    pub(super) recent: Recent,
    pub(super) neighbours: Option<Neighbours>,
    pub(super) health: Arc<Health>,
    pub(super) timeout: Duration,
    pub(super) rank: Rank,
    /// Launches made, without those that were written down for later: a hint that kernels may ask soon.
    pub(super) launches: AtomicU32,
}

impl Shared {
    /// Why a launch waits in vain for a peer, where that is certain without any deadline.
    fn vain(&self, launch: u32, peer: Rank) -> Option<Report> {
        if self.health.is_gone(peer) {
            return Some(Report::Left { rank: peer });
        }
        let is_behind = self.neighbours.as_ref().is_some_and(|others| others.is_behind(peer));
        is_behind.then(|| Report::Device {
            peer: Some(peer),
            trouble: Trouble::Behind,
            seen: format!(
                "a GPU kernel (launch {launch}{}) waits for one behind it",
                self.recent.told(launch)
            ),
        })
    }
}

/// The thread.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self, Fault> {
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (Arc::clone(shared), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name(format!("ringway-gpu-{}", shared.rank))
            .spawn(move || watch(&shared, &stopped))
            .map_err(|error| Fault::Other(format!("cannot start a thread: {error}")))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the thread.
    pub(super) fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It has no way to panic; if it did, there is nothing left to stop.
            let _ended = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn watch(shared: &Shared, stop: &AtomicBool) {
    if let Some(cpus) = near::stay(&shared.gpu) {
        let (number, bus) = (shared.gpu.ordinal(), shared.gpu.bus_address());
        tracing::info!(target: crate::log::INIT, "GPU : watched from CPUs {cpus}, near GPU {number} ({bus})");
    }
    // A capture of the user's forbids some calls in all threads that do not say this.
    let _relaxed = shared.gpu.relax();
    let mut imports: Vec<Import> = Vec::new();
    let report = shared.words.report();
    let (mut since, mut stuck, mut told) = (Instant::now(), 0, false);
    let (mut look, mut seen) = (LOOK, None);
    let (mut moved, mut launches) = (Instant::now(), 0);
    while !stop.load(Ordering::Acquire) {
        if shared.health.is_raised() {
            shared.words.abort();
        }
        for (peer, request) in (0..).zip(&report.requests) {
            if shared.foreign >> peer & 1 == 0 {
                continue;
            }
            match answer(&shared.gpu, request, shared.directory.as_deref()) {
                Ok(import) => imports.extend(import),
                Err(fault) => fail(shared, peer, &fault.to_string()),
            }
        }
        let mismatch = report.mismatch.swap(0, Ordering::AcqRel);
        if let Some(peer) = mismatch.checked_sub(1) {
            let (own, theirs) = (&report.own_tag, &report.their_tag);
            shared.health.report(Report::Device {
                peer: Some(peer),
                trouble: Trouble::Differs,
                seen: format!(
                    "calls on the GPU differ (signatures {:08x} and {:08x}){}",
                    own.load(Ordering::Relaxed),
                    theirs.load(Ordering::Relaxed),
                    shared.recent.told(report.begun.load(Ordering::Relaxed))
                ),
            });
        }
        let waits_for = report.waits_for.load(Ordering::Acquire).checked_sub(1);
        let launch = report.launch.load(Ordering::Acquire);
        if waits_for.is_none() || launch != stuck {
            (stuck, since, told) = (launch, Instant::now(), false);
            (look, seen) = (LOOK, None);
            shared.recent.goes_on();
        } else if let Some(peer) = waits_for {
            shared.recent.waits(launch, peer, since.elapsed(), shared.health.now_ms());
            if !told && since.elapsed() > look {
                look = since.elapsed() + LOOK;
                // One look may meet a wait that is over and not yet taken back.
                let before = std::mem::replace(&mut seen, shared.vain(launch, peer));
                if let Some(report) = seen.clone().filter(|_| seen == before) {
                    told = true;
                    shared.health.report(report);
                }
            }
        }
        if waits_for.is_some() && !told && since.elapsed() > shared.timeout {
            told = true;
            shared.health.report(Report::Device {
                peer: waits_for,
                trouble: Trouble::Late,
                seen: format!(
                    "a GPU kernel (launch {launch}{}) stood still for {} ms",
                    shared.recent.told(launch),
                    since.elapsed().as_millis()
                ),
            });
        }
        let made = shared.launches.load(Ordering::Acquire);
        if made != launches || waits_for.is_some() {
            (launches, moved) = (made, Instant::now());
        }
        std::thread::sleep(if moved.elapsed() < A_WHILE { BUSY } else { IDLE });
    }
}

/// Maps what a kernel asks for, if it asks for something new.
fn answer(
    gpu: &Arc<Gpu>,
    request: &Request,
    directory: Option<&Path>,
) -> Result<Option<Import>, Fault> {
    let asked = request.asked.load(Ordering::Acquire);
    if asked == 0 || asked == request.answered.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut handle = IpcHandle([0; IPC_BYTES]);
    for (bytes, word) in handle.0.chunks_mut(8).zip(&request.handle) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    let import = Import::open(gpu, handle, directory)?;
    request.base.store(import.base, Ordering::Relaxed);
    request.answered.store(asked, Ordering::Release);
    Ok(Some(import))
}

fn fail(shared: &Shared, peer: Rank, cause: &str) {
    shared.words.abort();
    shared.health.report(Report::LinkBroken { peer, cause: cause.to_owned() });
}

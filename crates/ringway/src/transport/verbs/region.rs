//! Memory of this process, registered at a communicator's adapters, and kept so for the next call.
//!
//! What the communicator has itself stays registered for its life. What callers bring is registered when it is first
//! used, and again when it is no longer what it was ([`monitor`](super::monitor)); where that cannot be told it is not
//! registered, and bytes are copied through the slots of the streams.
//!
//! *Invariant:* a region that was found is what the adapters have, at the time it was asked for.

#![allow(unsafe_code, reason = "registers and reads memory by address")]

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::adapter::Adapter;
use super::foreign::Adopted;
use super::monitor::{self, Watched};
use crate::ffi::verbs::{Access, ForeignMemory, Mr, Part};
use crate::transport::Area;
use crate::transport::framed::stream::Exposure;

/// Regions that are kept.
const KEPT_MOST: usize = 256;

/// How long what could not be registered is left alone, and of how much that is known.
const REFUSED_FOR: Duration = Duration::from_secs(10);
const REFUSED_MOST: usize = 32;

/// Whether memory of callers is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    Registered,
    Copied,
}

/// Memory that adapters read and write.
pub(super) struct Region {
    range: Range<usize>,
    /// With the place of each adapter.
    keys: Vec<(u32, Mr)>,
    /// Nothing for what stays as long as the communicator.
    watched: Option<Watched>,
    /// Where it is a device's: then the processor does not reach it.
    foreign: Option<Arc<dyn ForeignMemory>>,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Region");
        shown.field("range", &self.range).field("keys", &self.keys);
        shown.field("foreign", &self.foreign.is_some()).finish_non_exhaustive()
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Regions {
    adapters: Vec<Arc<Adapter>>,
    callers: Callers,
    /// This rank, for its lines in the log.
    rank: u64,
    kept: Mutex<Kept>,
    /// GPU memory of the communicator's own, and whether there is any.
    adopted: Mutex<Vec<Adopted>>,
    has_adopted: AtomicBool,
}

#[derive(Debug, Default)]
struct Kept {
    own: Vec<Own>,
    /// Callers', the last used first.
    regions: VecDeque<Arc<Region>>,
    refused: VecDeque<(Range<usize>, Instant)>,
    said: bool,
}

/// Memory of the communicator's own.
#[derive(Debug)]
struct Own {
    range: Range<usize>,
    /// Whether it was asked for, and what that came to.
    tried: bool,
    region: Option<Arc<Region>>,
}

impl Regions {
    pub(crate) fn new(adapters: &[Arc<Adapter>], callers: Callers, rank: u64) -> Self {
        Self {
            adapters: adapters.to_vec(),
            callers,
            rank,
            kept: Mutex::default(),
            adopted: Mutex::default(),
            has_adopted: AtomicBool::new(false),
        }
    }

    pub(super) fn adapters(&self) -> &[Arc<Adapter>] {
        &self.adapters
    }

    pub(super) fn adopted(&self) -> &Mutex<Vec<Adopted>> {
        &self.adopted
    }

    pub(super) fn has_adopted(&self) -> &AtomicBool {
        &self.has_adopted
    }

    pub(super) fn rank(&self) -> u64 {
        self.rank
    }

    /// Memory that stays mapped as long as this lives.
    pub(crate) fn own(&self, area: Area) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.own.push(Own { range: pages(&range(area)), tried: false, region: None });
    }

    /// The registration that an area is in; made if there is none. Nothing where it cannot be registered.
    pub(super) fn find(&self, area: Area) -> Option<Arc<Region>> {
        let wanted = range(area);
        if let Some(region) = self.find_foreign(wanted.start, area.bytes) {
            return Some(region);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = kept.own.iter_mut().find(|own| contains(&own.range, &wanted)) {
            if !std::mem::replace(&mut own.tried, true) {
                let made = self.register(&own.range, None);
                let made = made.inspect_err(|why| self.say("the communicator's own memory", why));
                own.region = made.ok().map(Arc::new);
            }
            return own.region.clone();
        }
        if self.callers == Callers::Copied {
            return None;
        }
        if !kept.regions.is_empty() && !monitor::is_settled() {
            return None;
        }
        kept.regions.retain(|region| region.is_intact());
        if let Some(at) = kept.regions.iter().position(|region| contains(&region.range, &wanted)) {
            let found = kept.regions.remove(at)?;
            kept.regions.push_front(Arc::clone(&found));
            return Some(found);
        }
        kept.refused.retain(|(_, since)| since.elapsed() < REFUSED_FOR);
        if kept.refused.iter().any(|(refused, _)| *refused == wanted) {
            return None;
        }
        match self.add(&mut kept, &wanted) {
            Ok(region) => Some(region),
            Err(why) => {
                kept.refused.push_front((wanted, Instant::now()));
                kept.refused.truncate(REFUSED_MOST);
                if !std::mem::replace(&mut kept.said, true) {
                    self.say(&format!("a buffer of {} bytes", area.bytes), &why);
                }
                None
            }
        }
    }

    fn say(&self, what: &str, why: &str) {
        tracing::info!(
            target: crate::log::NET, rank = self.rank,
            "NET/IB : {what} is copied, not registered: {why}"
        );
    }

    fn add(&self, kept: &mut Kept, wanted: &Range<usize>) -> Result<Arc<Region>, String> {
        let range = pages(wanted);
        let watched = monitor::watch(&range)?;
        let made = match self.register(&range, Some(watched)) {
            Err(_full) if !kept.regions.is_empty() => {
                // The limit of locked memory may be reached by what is kept for nobody.
                kept.regions.retain(|region| Arc::strong_count(region) > 1);
                self.register(&range, Some(monitor::watch(&range)?))?
            }
            made => made?,
        };
        if !monitor::is_settled() || !made.is_intact() {
            return Err("it went while it was registered".to_owned());
        }
        let made = Arc::new(made);
        kept.regions.push_front(Arc::clone(&made));
        kept.regions.truncate(KEPT_MOST);
        Ok(made)
    }

    fn register(&self, range: &Range<usize>, watched: Option<Watched>) -> Result<Region, String> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let address = std::ptr::with_exposed_provenance_mut(range.start);
        let bytes = range.end - range.start;
        let mut keys = Vec::with_capacity(self.adapters.len());
        for adapter in &self.adapters {
            // SAFETY: whoever asked for the area vouches for it while it is used; when it is unmapped the adapter keeps the
            // pages it had, and `find` no longer gives out the registration. Only the plan of an operation has it written,
            // for which nobody holds references to it.
            let made = unsafe { adapter.pd.register(address, bytes, access) };
            keys.push((adapter.place, made.map_err(|error| error.to_string())?));
        }
        Ok(Region { range: range.clone(), keys, watched, foreign: None })
    }
}

impl Region {
    /// Memory of a device, registered.
    pub(super) fn foreign(memory: Arc<dyn ForeignMemory>, keys: Vec<(u32, Mr)>) -> Self {
        let (address, bytes) = memory.range();
        let start = usize::try_from(address).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(bytes);
        Self { range, keys, watched: None, foreign: Some(memory) }
    }

    /// Its registration at the adapter at a place.
    pub(super) fn key(&self, place: u32) -> Option<&Mr> {
        self.keys.iter().find(|(at, _)| *at == place).map(|(_, mr)| mr)
    }

    /// The device's memory, where it is one's.
    pub(super) fn device(&self) -> Option<&dyn ForeignMemory> {
        self.foreign.as_deref()
    }

    fn is_intact(&self) -> bool {
        self.watched.as_ref().is_none_or(Watched::is_intact)
    }

    /// Whether so many bytes from an address on are in it.
    pub(super) fn holds(&self, address: usize, bytes: usize) -> bool {
        address.checked_add(bytes).is_some_and(|end| contains(&self.range, &(address..end)))
    }

    /// Whether the byte at an address is in it. What begins where it ends is not.
    pub(super) fn has_byte(&self, address: usize) -> bool {
        self.holds(address, 1)
    }

    pub(super) fn overlaps(&self, area: Area) -> bool {
        let other = range(area);
        self.range.start < other.end && other.start < self.range.end
    }

    /// Bytes of it, as the adapter at a place knows them.
    pub(super) fn part(&self, place: u32, address: usize, bytes: usize) -> Option<Part<'_>> {
        let mr = self.key(place)?;
        self.holds(address, bytes).then(|| mr.part(address - self.range.start, bytes))
    }

    /// What a peer must know to write an area of it.
    pub(super) fn exposure(&self, area: Area) -> Exposure {
        let keys = self.keys.iter().map(|(place, mr)| (*place, mr.remote_key()));
        Exposure {
            address: area.address.addr() as u64,
            bytes: area.bytes as u64,
            keys: keys.collect(),
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// When the device whose memory it is does not.
    ///
    /// # Safety
    /// The memory is still mapped, and nobody writes it.
    ///
    /// # Panics
    /// When they are not inside.
    pub(super) unsafe fn read(&self, address: usize, target: &mut [u8]) -> Result<(), String> {
        assert!(self.holds(address, target.len()), "outside of a region");
        if let Some(memory) = self.device() {
            return memory.fetch(address as u64, target);
        }
        let from = std::ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: inside, mapped by the caller's word, and apart from `target`, which is a reference.
        unsafe { std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) }
        Ok(())
    }
}

fn range(area: Area) -> Range<usize> {
    let start = area.address.expose_provenance();
    start..start.saturating_add(area.bytes)
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The pages that a range lies in.
fn pages(range: &Range<usize>) -> Range<usize> {
    let page = rustix::param::page_size();
    range.start / page * page..range.end.next_multiple_of(page)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_behind_a_region_is_not_in_it() {
        let region = Region { range: 4096..8192, keys: Vec::new(), watched: None, foreign: None };
        assert!(region.has_byte(4096) && region.has_byte(8191));
        assert!(!region.has_byte(4095) && !region.has_byte(8192));
        assert!(!region.has_byte(usize::MAX));
    }
}

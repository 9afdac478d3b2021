//! Memory of a GPU among the regions of a communicator: adapters read and write it where it is, the processor never does.
//!
//! It is the library's own, and stays as long as the communicator. What does not go by adapters (what is sent again when
//! a rail has failed, or over the socket when all have) the GPU's driver copies.
//!
//! *Invariant:* it is registered at every adapter of the communicator, or not at all; and whoever tells the GPU that
//! bytes have come has flushed them before.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::adapter::Adapter;
use super::near;
use super::region::{Region, Regions};
use super::register::{self, Flush, Way};
use crate::config::RdmaSettings;
use crate::ffi::verbs::{Access, ForeignMemory};
use crate::plan::topology::path::PathClass;

/// Memory that was adopted.
pub(super) struct Adopted {
    pub(super) region: Arc<Region>,
    /// Of every adapter, by its order, what sees to it that bytes it wrote are there; nothing where that failed.
    flushes: Vec<Option<Flush>>,
    settings: RdmaSettings,
    /// Of every adapter, by its order, how far it is from the memory; nothing where that is not known of all.
    distances: Option<Vec<u32>>,
}

impl fmt::Debug for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adopted").field(&self.region).finish()
    }
}

impl Regions {
    /// Registers memory of a GPU at all adapters, for as long as the communicator lives or until it is disowned; `class` says
    /// what lies between it and a device. Says by which way each reaches it, and by which not: `mlx5_0:1 (PIX) by dma-buf`.
    ///
    /// # Errors
    /// Why an adapter does not reach it.
    pub(crate) fn adopt(
        &self,
        memory: &Arc<impl ForeignMemory>,
        dmabuf: &dyn Fn() -> Result<OwnedFd, String>,
        settings: &RdmaSettings,
        class: &dyn Fn(&str) -> Option<PathClass>,
    ) -> Result<String, String> {
        if self.adapters().is_empty() {
            return Err("this rank uses no RDMA port".to_owned());
        }
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::RELAXED_ORDERING;
        let (mut keys, mut flushes, mut words) = (Vec::new(), Vec::new(), Vec::new());
        for adapter in self.adapters() {
            let name = adapter.name();
            let made = register::register(&adapter.pd, memory, dmabuf, access, Way::ALL)
                .map_err(|refused| format!("{name} does not reach it: {}", refused.join("; ")))?;
            let flush = Flush::new(adapter, settings)
                .map_err(|why| format!("{name}: no queue pair for flushes: {why}"))?;
            let not: String = made.refused.iter().map(|why| format!(", not by {why}")).collect();
            let far = class(adapter.context.name());
            let far = far.map_or_else(String::new, |class| format!(" ({class})"));
            words.push(format!("{name}{far} by {}{not}", made.way.name()));
            keys.push((adapter.place, made.mr));
            flushes.push(Some(flush));
        }
        let region = Arc::new(Region::foreign(Arc::clone(memory) as _, keys));
        let distance = |one: &Arc<Adapter>| class(one.context.name()).map(|class| class as u32);
        let distances = self.adapters().iter().map(distance).collect();
        let mut adopted = self.adopted().lock().unwrap_or_else(PoisonError::into_inner);
        adopted.push(Adopted { region, flushes, settings: settings.clone(), distances });
        self.has_adopted().store(true, Ordering::Release);
        Ok(words.join("; "))
    }

    /// Forgets all that was adopted: nothing was done with it yet.
    pub(crate) fn disown(&self) {
        self.has_adopted().store(false, Ordering::Release);
        self.adopted().lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether any memory was adopted.
    pub(crate) fn has_foreign(&self) -> bool {
        self.has_adopted().load(Ordering::Acquire)
    }

    /// How far an adapter is from what is sent by it: from memory that was adopted, else from this thread's.
    pub(super) fn distance(&self, adapter: &Adapter) -> u32 {
        let adopted = self.adopted().lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.adapters().iter().position(|one| one.place == adapter.place);
        let distances = adopted.first().and_then(|one| one.distances.as_ref());
        let known = at.zip(distances).and_then(|(at, distances)| distances.get(at));
        known.copied().unwrap_or_else(|| near::distance(adapter.context.name()))
    }

    /// Whether an address is in memory that was adopted.
    pub(crate) fn is_foreign(&self, address: *const u8) -> bool {
        self.has_foreign() && self.find_foreign(address.addr(), 1).is_some()
    }

    /// The memory that so many bytes from an address on are in, where it was adopted.
    pub(super) fn find_foreign(&self, address: usize, bytes: usize) -> Option<Arc<Region>> {
        if !self.has_foreign() {
            return None;
        }
        let adopted = self.adopted().lock().unwrap_or_else(PoisonError::into_inner);
        adopted.iter().map(|one| &one.region).find(|one| one.holds(address, bytes)).cloned()
    }

    /// Returns when all that adapters wrote to the memory an address is in, as far as their completions were seen, is
    /// there for the GPU.
    ///
    /// # Errors
    /// When a port that is up cannot tell.
    pub(crate) fn flush(&self, address: *const u8) -> Result<(), String> {
        if !self.has_foreign() {
            return Ok(());
        }
        let mut adopted = self.adopted().lock().unwrap_or_else(PoisonError::into_inner);
        let Some(one) = adopted.iter_mut().find(|one| one.region.has_byte(address.addr())) else {
            return Ok(());
        };
        let Adopted { region, flushes, settings, .. } = one;
        for (adapter, flush) in self.adapters().iter().zip(flushes) {
            let Some(mr) = region.key(adapter.place) else { continue };
            if let Some(works) = flush {
                let Err(why) = works.flush(mr) else { continue };
                // The read took longer to fail than any write takes through the PCI tree.
                tracing::info!(
                    target: crate::log::NET, rank = self.rank(),
                    "NET/IB : GPU memory is not flushed by {} for now: {why}", adapter.name()
                );
                *flush = None;
            }
            *flush = renew(adapter, settings)?;
            if let Some(works) = flush {
                works.flush(mr)?;
            }
        }
        Ok(())
    }
}

/// A new queue pair for flushes; none while the port is down, by which nothing comes then.
fn renew(adapter: &Adapter, settings: &RdmaSettings) -> Result<Option<Flush>, String> {
    let Ok(now) = adapter.again(settings) else { return Ok(None) };
    match Flush::new(&now, settings) {
        Ok(flush) => Ok(Some(flush)),
        Err(_) if adapter.again(settings).is_err() => Ok(None),
        Err(why) => Err(format!("{}: no queue pair for flushes: {why}", adapter.name())),
    }
}

//! Communicators are made: from an id, or from communicators there are.
//!
//! The handle of one made from an id, or grown from another, is written at once, so that a program can ask how far it is;
//! that of one split or shrunk from another when it is there.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use ringway::{Communicator, Error, Result, UniqueId, interrupt};

use crate::comm::{Comm, Phase, Token, pointer};
use crate::config::{self, Settings};
use crate::group::{Task, add_task};
use crate::memory::{current_device, device_count};
use crate::raw::{Out, Versioned};
use crate::types::{SHRINK_ABORT, SPLIT_NOCOLOR, UniqueIdBytes};

/// Where a handle goes.
pub(crate) type OutComm = Out<*const Token>;

/// A new id; this process serves the meeting of the ranks that get it.
pub(crate) fn unique_id() -> Result<UniqueIdBytes> {
    let id = Communicator::unique_id(&config::load())?;
    Ok(UniqueIdBytes { internal: *id.as_bytes() })
}

/// The place of a rank, checked.
fn place(size: c_int, rank: c_int) -> Result<(u32, u32)> {
    let ranks = u32::try_from(size).ok().filter(|size| *size > 0);
    let ranks =
        ranks.ok_or_else(|| Error::argument(format!("nranks is {size}; 1 is the least")))?;
    let rank = u32::try_from(rank).ok().filter(|rank| *rank < ranks).ok_or_else(|| {
        Error::argument(format!("rank {rank} does not exist; ranks are 0 to {}", ranks - 1))
    })?;
    Ok((rank, ranks))
}

/// Adds a communicator made from an id to the group. `put` writes its handle.
fn add(
    place: (u32, u32),
    id: &UniqueIdBytes,
    (device, settings): (c_int, Settings),
    put: impl Fn(*const Token) -> Result<()> + Send + 'static,
) -> Result<()> {
    let id = UniqueId::from_bytes(&id.internal)?;
    put(pointer(0))?;
    let comm = Comm::register(place, device, settings);
    put(pointer(comm.handle))?;
    let (new, gone) = (Arc::clone(&comm), Arc::clone(&comm));
    add_task(Task {
        watched: comm,
        new: None,
        shrinks: None,
        work: Box::new(move || {
            let watched = Arc::clone(&new);
            let is_given_up = move || watched.phase() != Phase::Starting;
            let joined =
                interrupt::asking(is_given_up, || join(&id, (new.rank, new.size), new.device));
            begin(&new, joined)
        }),
        undo: Box::new(move || take_back(&gone, put)),
    });
    Ok(())
}

/// The ranks of a communicator that has its handle have come together, if they have.
fn begin(comm: &Comm, joined: Result<Communicator>) -> Result<()> {
    if comm.phase() == Phase::Starting && comm.start(joined?) {
        return Ok(());
    }
    Err(Error::usage("the communicator was given up while its ranks came together"))
}

/// Of a communicator that came to nothing the handle is taken back.
fn take_back(comm: &Comm, put: impl Fn(*const Token) -> Result<()>) {
    comm.forget(false);
    // It was written before, so it can be.
    let _written = put(pointer(0));
}

fn join(id: &UniqueId, (rank, size): (u32, u32), device: c_int) -> Result<Communicator> {
    let config = config::load();
    ringway::log::set_thread_rank(rank);
    if rank == 0 {
        ringway::log::version(&config);
    }
    let communicator = Communicator::from_unique_id(id, rank, size, config)?;
    communicator.attach_gpu(Some(device))?;
    Ok(communicator)
}

/// `ncclCommInitRank` and `ncclCommInitRankConfig`.
pub(crate) fn init(
    out: OutComm,
    (size, rank): (c_int, c_int),
    id: &UniqueIdBytes,
    given: Option<Versioned>,
) -> Result<()> {
    out.check("comm")?;
    let settings = settings(given, &Settings::default())?;
    let put = move |handle| out.put("comm", handle);
    add(place(size, rank)?, id, (current_device(), settings), put)
}

fn settings(given: Option<Versioned>, inherited: &Settings) -> Result<Settings> {
    given.map_or_else(|| Ok(Settings::inherit(inherited)), |given| Settings::read(given, inherited))
}

/// `ncclCommInitAll`: one rank for each device, all in this process.
pub(crate) fn init_all(out: OutComm, count: c_int, devices: Option<Vec<c_int>>) -> Result<()> {
    out.check("comms")?;
    let (_, ranks) = place(count, 0)?;
    let there = device_count();
    let id = unique_id()?;
    for rank in 0..ranks {
        let at = rank as usize;
        let device = devices
            .as_ref()
            .map_or_else(|| c_int::try_from(rank).unwrap_or(c_int::MAX), |list| list[at]);
        let is_there = |device| there.is_none_or(|there| device < there);
        if !u32::try_from(device).is_ok_and(is_there) {
            let name = match devices {
                Some(_) => format!("devlist[{at}]"),
                None => format!("the device of rank {rank}"),
            };
            let most = there
                .map_or(String::new(), |there| format!(", and this process sees {there} GPUs"));
            return Err(Error::argument(format!("{name} is {device}{most}")));
        }
        let put = move |handle| out.put_at("comms", at, handle);
        add((rank, ranks), &id, (device, Settings::inherit(&Settings::default())), put)?;
    }
    Ok(())
}

/// Makes a communicator from another in the background of the group: `make` gives the new one, or
/// nothing where this rank is in none.
fn derive(
    parent: &Arc<Comm>,
    out: OutComm,
    settings: Settings,
    shrinks: Option<bool>,
    make: impl FnOnce(&Communicator) -> Result<Option<Communicator>> + Send + 'static,
) -> Result<()> {
    out.put("newcomm", pointer(0))?;
    let (source, device) = (Arc::clone(parent), parent.device);
    add_task(Task {
        watched: Arc::clone(parent),
        new: None,
        shrinks,
        work: Box::new(move || {
            let Some(communicator) = made_from(&source, None, make)? else { return Ok(()) };
            // Whoever has given the old one up may have given the place for the handle back too.
            source.unless_aborted(|| {
                let place = (communicator.rank(), communicator.size());
                let child = Comm::register(place, device, settings);
                child.start(communicator);
                out.put("newcomm", pointer(child.handle))
            })
        }),
        undo: Box::new(|| {}),
    });
    Ok(())
}

/// Makes a communicator from another, with the same GPU, until either is given up. Not as a call: nothing of the program's is
/// touched, so nobody who gives the old one up has to wait for it.
fn made_from(
    source: &Arc<Comm>,
    new: Option<&Arc<Comm>>,
    make: impl FnOnce(&Communicator) -> Result<Option<Communicator>>,
) -> Result<Option<Communicator>> {
    let (old, new) = (Arc::clone(source), new.cloned());
    let is_given_up = move || {
        old.phase() == Phase::Aborted
            || new.as_ref().is_some_and(|new| new.phase() != Phase::Starting)
    };
    interrupt::asking(is_given_up, || {
        let made = make(&source.communicator()?)?;
        if let Some(communicator) = &made {
            communicator.attach_gpu(Some(source.device))?;
        }
        Ok(made)
    })
}

/// `ncclCommSplit`.
pub(crate) fn split(
    parent: &Arc<Comm>,
    (color, key): (c_int, c_int),
    out: OutComm,
    given: Versioned,
) -> Result<()> {
    out.check("newcomm")?;
    if parent.phase() == Phase::Revoked {
        return Err(Error::usage(
            "a revoked communicator cannot be split, as its ranks no longer work together; \
             use ncclCommShrink",
        ));
    }
    parent.check_callable()?;
    let color = if color == SPLIT_NOCOLOR {
        None
    } else {
        Some(u32::try_from(color).map_err(|_| {
            Error::argument(format!("color is {color}; it is NCCL_SPLIT_NOCOLOR or 0 and more"))
        })?)
    };
    let settings = Settings::read(given, &parent.settings)?;
    derive(parent, out, settings, None, move |communicator| communicator.split(color, key))
}

/// `ncclCommShrink`.
pub(crate) fn shrink(
    parent: &Arc<Comm>,
    excluded: &[c_int],
    out: OutComm,
    (given, flags): (Versioned, c_int),
) -> Result<()> {
    out.check("newcomm")?;
    if !(0..=SHRINK_ABORT).contains(&flags) {
        return Err(Error::argument(format!("shrinkFlags is {flags}; it is 0 or 1")));
    }
    let stops = flags == SHRINK_ABORT;
    if !stops && !parent.phase().is_stopped() {
        parent.check_callable()?;
    }
    let excluded: Vec<u32> = excluded
        .iter()
        .map(|rank| {
            u32::try_from(*rank).ok().filter(|rank| *rank < parent.size).ok_or_else(|| {
                Error::argument(format!(
                    "excluded rank {rank} does not exist; ranks are 0 to {}",
                    parent.size - 1
                ))
            })
        })
        .collect::<Result<_>>()?;
    if excluded.is_empty() {
        return Err(Error::argument("no rank is excluded; name at least one"));
    }
    if excluded.contains(&parent.rank) {
        return Err(Error::argument(format!(
            "rank {} is excluded, so it must not call ncclCommShrink",
            parent.rank
        )));
    }
    let settings = Settings::read(given, &parent.settings)?;
    derive(parent, out, settings, Some(stops), move |communicator| {
        if stops && communicator.failure().is_none() {
            communicator.abort("ncclCommShrink was called with NCCL_SHRINK_ABORT");
        }
        communicator.shrink(&excluded).map(Some)
    })
}

/// `ncclCommGetUniqueId`: the id by which new ranks come to this communicator. It is kept until the communicator
/// grows, as this rank may give none then.
pub(crate) fn growth_id(parent: &Arc<Comm>) -> Result<UniqueIdBytes> {
    parent.check_callable()?;
    let id = unique_id()?;
    *parent.growth.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    Ok(id)
}

/// `ncclCommGrow` on a rank that is there already.
pub(crate) fn grow(
    parent: &Arc<Comm>,
    size: c_int,
    id: Option<UniqueIdBytes>,
    out: OutComm,
    given: Versioned,
) -> Result<()> {
    out.check("newcomm")?;
    parent.check_callable()?;
    let size = u32::try_from(size).ok().filter(|size| *size > parent.size).ok_or_else(|| {
        Error::argument(format!("nRanks is {size}; it must be more than {}", parent.size))
    })?;
    let settings = Settings::read(given, &parent.settings)?;
    let id = id.map(|id| UniqueId::from_bytes(&id.internal)).transpose()?;
    let put = move |handle| out.put("newcomm", handle);
    put(pointer(0))?;
    let child = Comm::register((parent.rank, size), parent.device, settings);
    put(pointer(child.handle))?;
    let (source, new, gone) = (Arc::clone(parent), Arc::clone(&child), Arc::clone(&child));
    add_task(Task {
        watched: Arc::clone(parent),
        new: Some(child),
        shrinks: None,
        work: Box::new(move || {
            // Used now, whatever comes of it.
            let kept = source.growth.lock().unwrap_or_else(PoisonError::into_inner).take();
            let kept = kept.map(|id| UniqueId::from_bytes(&id.internal)).transpose()?;
            let grow = |old: &Communicator| old.grow_or(id.as_ref(), kept.as_ref(), size).map(Some);
            let joined = made_from(&source, Some(&new), grow).transpose();
            let none = || Err(Error::internal("a communicator grew without this rank"));
            begin(&new, joined.unwrap_or_else(none))
        }),
        undo: Box::new(move || take_back(&gone, put)),
    });
    Ok(())
}

//! Whether memory is still what it was when it was registered.
//!
//! An adapter keeps the pages it was given. Memory that was freed and taken again has other pages at the same address, and what
//! an adapter writes by the old registration nobody sees. The kernel tells of memory that goes (userfaultfd), and
//! lets whoever frees it wait until that was heard:
//!
//! ```text
//! a thread that frees    munmap ─► the event, and a wait ────────────► returns ─► mmap ─► is it intact?  no
//! the monitor            poll ───────────────► busy ─► read ─► mark ─► not busy
//! ```
//!
//! Another thread may get the address before that event is there. From when pages go to when their event was read the kernel refuses to
//! change protections ("try again"), so whoever asks has it change that of a page nobody uses first.
//!
//! Only private memory without a file is watched, the whole mapping at a time: a mapping that is watched in parts could no longer
//! be moved by `realloc`. Nothing is protected, so no access ever faults.
//!
//! *Invariant:* the monitor's thread takes no lock and no memory. Whoever frees may hold those of its allocator, and waits.

#![allow(unsafe_code, reason = "userfaultfd speaks by ioctl")]

use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous};

use crate::os;

/// Ranges that are watched at a time.
const WATCHED_MOST: usize = 2048;

/// Since 5.12 a process that forks keeps the pages that adapters have, and the child gets copies; since 5.16 the kernel counts
/// who is about to tell of memory that goes.
const KERNEL_LEAST: (u32, u32) = (5, 16);

/// How long the kernel may take to tell.
const SETTLE_MOST: Duration = Duration::from_millis(20);
const UNSETTLED: &str = "the kernel does not come to an end with telling of memory that went";

/// Of the kernel's `linux/userfaultfd.h`.
mod abi {
    pub(super) const API: u64 = 0xaa;
    /// Only faults of programs themselves; needs no privilege.
    pub(super) const USER_MODE_ONLY: u32 = 1;
    pub(super) const FEATURE_WRITE_PROTECT: u64 = 1;
    pub(super) const FEATURE_REMAP: u64 = 1 << 2;
    pub(super) const FEATURE_REMOVE: u64 = 1 << 3;
    pub(super) const FEATURE_UNMAP: u64 = 1 << 6;
    pub(super) const MODE_WRITE_PROTECT: u64 = 1 << 1;
    pub(super) const EVENT_REMAP: u8 = 0x14;
    pub(super) const EVENT_REMOVE: u8 = 0x15;
    pub(super) const EVENT_UNMAP: u8 = 0x16;
    pub(super) const MESSAGE_BYTES: usize = 32;

    #[repr(C)]
    pub(super) struct Api {
        pub(super) api: u64,
        pub(super) features: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct Register {
        pub(super) start: u64,
        pub(super) bytes: u64,
        pub(super) mode: u64,
        pub(super) ioctls: u64,
    }

    /// With mode 0: takes protection away, where there is any.
    #[repr(C)]
    pub(super) struct WriteProtect {
        pub(super) start: u64,
        pub(super) bytes: u64,
        pub(super) mode: u64,
    }

    use rustix::ioctl::opcode::read_write;

    pub(super) const IOCTL_API: libc::Ioctl = read_write::<Api>(0xaa, 0x3f) as libc::Ioctl;
    pub(super) const IOCTL_REGISTER: libc::Ioctl = read_write::<Register>(0xaa, 0) as libc::Ioctl;
    pub(super) const IOCTL_PROTECT: libc::Ioctl =
        read_write::<WriteProtect>(0xaa, 6) as libc::Ioctl;
}

/// A range, as the monitor's thread finds it: `end` is 0 where there is none.
#[derive(Debug)]
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    intact: AtomicBool,
}

/// The ranges of a process, and what tells of them.
#[derive(Debug)]
struct Monitor {
    events: OwnedFd,
    process: u32,
    slots: Box<[Slot]>,
    /// Between an event's being read, which lets the one who frees go on, and its being marked.
    busy: AtomicBool,
    /// Slots that are taken, for those who take them.
    taken: Mutex<Box<[bool]>>,
    /// A page that is watched, and used for nothing else.
    page: usize,
    /// Whether the thread listens.
    listens: AtomicBool,
}

/// A range that is watched, as long as this lives.
#[derive(Debug)]
pub(super) struct Watched {
    monitor: &'static Monitor,
    slot: usize,
}

static MONITOR: OnceLock<Result<Monitor, String>> = OnceLock::new();

/// Whether all memory that went before this call is marked. `false` where the kernel does not come to an end with it: nothing is
/// known then.
pub(super) fn is_settled() -> bool {
    MONITOR.get().is_some_and(|made| made.as_ref().is_ok_and(Monitor::is_settled))
}

/// Watches a range from now on. Registered after this, it is what it was as long as it is intact.
///
/// # Errors
/// Why it cannot be watched, in words.
pub(super) fn watch(range: &Range<usize>) -> Result<Watched, String> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let monitor = MONITOR.get_or_init(Monitor::new).as_ref().map_err(Clone::clone)?;
    STARTED.get_or_init(|| monitor.start()).clone()?;
    if monitor.process != std::process::id() {
        return Err("the process has forked since its memory is watched".to_owned());
    }
    for mapping in mappings(range)? {
        monitor.register(&mapping)?;
    }
    // What is still to be told is of what was there before.
    if !monitor.is_settled() {
        return Err(UNSETTLED.to_owned());
    }
    let slot = monitor.take(range).ok_or_else(|| format!("{WATCHED_MOST} ranges are watched"))?;
    Ok(Watched { monitor, slot })
}

impl Watched {
    /// Whether no page of the range has gone between when it was first watched and when all was settled ([`is_settled`]).
    pub(super) fn is_intact(&self) -> bool {
        self.monitor.slots[self.slot].intact.load(Ordering::SeqCst)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut taken = self.monitor.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.monitor.slots[self.slot].end.store(0, Ordering::SeqCst);
        taken[self.slot] = false;
    }
}

impl Monitor {
    fn new() -> Result<Self, String> {
        let release = rustix::system::uname();
        let release = release.release().to_string_lossy();
        if version(&release).is_none_or(|found| found < KERNEL_LEAST) {
            return Err(format!("Linux {release} is older than 5.16"));
        }
        let flags = UserfaultfdFlags::CLOEXEC
            | UserfaultfdFlags::NONBLOCK
            | UserfaultfdFlags::from_bits_retain(abi::USER_MODE_ONLY);
        // SAFETY: what is asked of the descriptor below makes no access of anybody's wait.
        let events = unsafe { rustix::mm::userfaultfd(flags) }.map_err(|error| {
            format!("userfaultfd: {error}; a container's seccomp profile may forbid it")
        })?;
        let features = abi::FEATURE_WRITE_PROTECT
            | abi::FEATURE_REMAP
            | abi::FEATURE_REMOVE
            | abi::FEATURE_UNMAP;
        let mut api = abi::Api { api: abi::API, features, ioctls: 0 };
        // SAFETY: the structure is the one that this request reads and writes.
        let code = unsafe { libc::ioctl(events.as_raw_fd(), abi::IOCTL_API, &raw mut api) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return Err(format!("userfaultfd does not tell of memory that goes: {error}"));
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        let bytes = rustix::param::page_size();
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, flags) };
        let page = page.map_err(|error| format!("a page of memory: {error}"))?;
        let slot = || Slot {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            intact: AtomicBool::new(false),
        };
        Ok(Self {
            events,
            process: std::process::id(),
            slots: (0..WATCHED_MOST).map(|_| slot()).collect(),
            busy: AtomicBool::new(false),
            taken: Mutex::new(vec![false; WATCHED_MOST].into()),
            page: page.addr(),
            listens: AtomicBool::new(false),
        })
    }

    fn start(&'static self) -> Result<(), String> {
        self.register(&(self.page..self.page + rustix::param::page_size()))?;
        let thread = std::thread::Builder::new().name("ringway-memory".to_owned());
        // A handler that frees memory would wait for the thread it runs on.
        let spawned = os::without_signals(|| thread.spawn(|| self.listen()));
        spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
        // Its beginning takes memory: nothing else may be watched before.
        let started = Instant::now();
        while !self.listens.load(Ordering::SeqCst) {
            if started.elapsed() > Duration::from_secs(5) {
                return Err("a thread does not start".to_owned());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let started = Instant::now();
        loop {
            let mut nothing = abi::WriteProtect {
                start: self.page as u64,
                bytes: rustix::param::page_size() as u64,
                mode: 0,
            };
            let events = self.events.as_raw_fd();
            // SAFETY: the structure is the one that this request reads, of a page that nobody uses.
            let code = unsafe { libc::ioctl(events, abi::IOCTL_PROTECT, &raw mut nothing) };
            if code == 0 {
                break;
            }
            let again = io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
            if !again || started.elapsed() > SETTLE_MOST {
                return false;
            }
            std::thread::yield_now();
        }
        while self.busy.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        true
    }

    /// Hears of memory that goes, for ever, on any processor: whoever frees waits for it.
    fn listen(&self) -> ! {
        os::run_anywhere();
        self.listens.store(true, Ordering::SeqCst);
        let mut message = [0_u8; abi::MESSAGE_BYTES];
        loop {
            let ready = PollFd::from_borrowed_fd(self.events.as_fd(), PollFlags::IN);
            // Interrupted or not, the read tells.
            let _ready = poll(&mut [ready], None);
            self.busy.store(true, Ordering::SeqCst);
            if rustix::io::read(&self.events, &mut message) == Ok(message.len()) {
                let word = |at: usize| {
                    let bytes = message[at..at + 8].first_chunk().copied().unwrap_or_default();
                    usize::try_from(u64::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
                };
                match message[0] {
                    abi::EVENT_REMAP => self.mark(word(8)..word(8).saturating_add(word(24))),
                    abi::EVENT_REMOVE | abi::EVENT_UNMAP => self.mark(word(8)..word(16)),
                    _ => {}
                }
            }
            self.busy.store(false, Ordering::SeqCst);
        }
    }

    /// The pages of a range have gone.
    fn mark(&self, gone: Range<usize>) {
        for slot in &self.slots {
            let end = slot.end.load(Ordering::SeqCst);
            if end != 0 && slot.start.load(Ordering::SeqCst) < gone.end && gone.start < end {
                slot.intact.store(false, Ordering::SeqCst);
            }
        }
    }

    fn take(&self, range: &Range<usize>) -> Option<usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let at = taken.iter().position(|taken| !taken)?;
        taken[at] = true;
        let slot = &self.slots[at];
        slot.start.store(range.start, Ordering::SeqCst);
        slot.intact.store(true, Ordering::SeqCst);
        slot.end.store(range.end, Ordering::SeqCst);
        Some(at)
    }

    /// Has the kernel tell of a mapping.
    fn register(&self, mapping: &Range<usize>) -> Result<(), String> {
        let mut register = abi::Register {
            start: mapping.start as u64,
            bytes: (mapping.end - mapping.start) as u64,
            mode: abi::MODE_WRITE_PROTECT,
            ioctls: 0,
        };
        let events = self.events.as_raw_fd();
        // SAFETY: the structure is the one that this request reads and writes. Pages are only protected when
        // another request asks for it, which nobody makes.
        let code = unsafe { libc::ioctl(events, abi::IOCTL_REGISTER, &raw mut register) };
        match code {
            0 => Ok(()),
            _ => Err(format!("userfaultfd does not take memory: {}", io::Error::last_os_error())),
        }
    }
}

/// The mappings that a range lies in: all private, and of no file.
fn mappings(range: &Range<usize>) -> Result<Vec<Range<usize>>, String> {
    let words = |error: io::Error| format!("/proc/self/maps: {error}");
    let mut found = Vec::new();
    let mut covered = range.start;
    for line in BufReader::new(std::fs::File::open("/proc/self/maps").map_err(words)?).lines() {
        let line = line.map_err(words)?;
        let Some((mapping, is_plain)) = mapping(&line) else { continue };
        if mapping.end <= range.start || mapping.start >= range.end {
            continue;
        }
        if !is_plain {
            return Err("it is shared, or a file's".to_owned());
        }
        if mapping.start > covered {
            break;
        }
        covered = mapping.end;
        found.push(mapping);
    }
    if covered < range.end {
        return Err("it is not all mapped".to_owned());
    }
    Ok(found)
}

/// A line of `/proc/self/maps`: the range, and whether it is private memory of no file that may be read and written.
fn mapping(line: &str) -> Option<(Range<usize>, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (rights, _offset, _device, inode) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let is_plain = rights.starts_with("rw") && rights.ends_with('p') && inode == "0";
    Some((number(start)?..number(end)?, is_plain))
}

/// `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;
    use std::ptr;

    use rustix::mm::{Advice, MremapFlags, madvise, mremap, munmap};

    use super::*;

    const BYTES: usize = 64 << 10;

    /// Pages, at an address if that is free.
    fn pages(at: usize, bytes: usize) -> usize {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let at = ptr::without_provenance_mut(at);
        // SAFETY: a hint, not an order: nothing is replaced.
        unsafe { mmap_anonymous(at, bytes, rights, flags) }.expect("memory").expose_provenance()
    }

    fn free(at: usize, bytes: usize) {
        // SAFETY: pages of this test, which nobody refers to.
        unsafe { munmap(ptr::with_exposed_provenance_mut(at), bytes) }.expect("it was mapped");
    }

    /// The other tests free memory too, and the monitor may not get a processor at once.
    fn is_intact(watched: &Watched) -> bool {
        let started = Instant::now();
        while !is_settled() {
            assert!(started.elapsed() < Duration::from_secs(20), "it never settles");
        }
        watched.is_intact()
    }

    /// What a kernel without it says is no fault of the code under test.
    fn watched(range: Range<usize>) -> Option<Watched> {
        let started = Instant::now();
        let found = loop {
            match watch(&range) {
                Err(why) if why == UNSETTLED && started.elapsed() < Duration::from_secs(20) => {}
                found => break found,
            }
        };
        match found {
            Ok(watched) => Some(watched),
            Err(why) if why.contains("userfaultfd") || why.contains("older") => {
                let _closed = writeln!(io::stderr(), "SKIPPED monitor: {why}");
                None
            }
            Err(why) => panic!("{why}"),
        }
    }

    #[test]
    fn memory_that_is_freed_and_taken_again_is_not_what_it_was() {
        let mut same = 0;
        for _ in 0..100 {
            let at = pages(0, BYTES);
            let Some(watched) = watched(at..at + BYTES) else { return };
            assert!(is_intact(&watched));
            free(at, BYTES);
            let again = pages(at, BYTES);
            same += usize::from(again == at);
            assert!(!is_intact(&watched));
            free(again, BYTES);
        }
        // Others of this process may take it in between, but not always.
        assert!(same > 0, "no address came again");
    }

    /// One thread frees, another takes the address at once, before the first has come back from freeing.
    #[test]
    fn another_thread_that_gets_the_address_is_told_too() {
        let mut rounds = 0;
        for _ in 0..300 {
            let at = pages(0, BYTES);
            let Some(watched) = watched(at..at + BYTES) else { return };
            let started = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| free(at, BYTES));
                let mut got = false;
                // Some other thread of this process may be faster, and keep it.
                while !got && started.elapsed() < Duration::from_millis(200) {
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
                    let rights = ProtFlags::READ | ProtFlags::WRITE;
                    let place = ptr::without_provenance_mut(at);
                    // SAFETY: nothing is replaced: it fails where something is.
                    got = unsafe { mmap_anonymous(place, BYTES, rights, flags) }.is_ok();
                }
                if got {
                    assert!(!is_intact(&watched), "what was there counts for what is there now");
                    rounds += 1;
                    free(at, BYTES);
                }
            });
        }
        assert!(rounds > 0, "nobody else ever got the address");
    }

    #[test]
    fn memory_that_is_moved_or_dropped_is_not_what_it_was() {
        let at = pages(0, BYTES);
        let Some(half) = watched(at..at + BYTES / 2) else { return };
        let whole = watched(at..at + BYTES).unwrap();
        let last = ptr::with_exposed_provenance_mut(at + BYTES - 4096);
        // SAFETY: a page of this test, which nobody refers to.
        unsafe { madvise(last, 4096, Advice::LinuxDontNeed) }.unwrap();
        assert!(is_intact(&half) && !is_intact(&whole));
        let place = ptr::with_exposed_provenance_mut(at);
        // SAFETY: as above.
        let moved = unsafe { mremap(place, BYTES, 1 << 20, MremapFlags::MAYMOVE) }.unwrap();
        assert_eq!(is_intact(&half), moved.addr() == at);
        free(moved.expose_provenance(), 1 << 20);
        assert!(!is_intact(&half));
    }

    /// What is watched can still grow as one: `realloc` moves whole mappings.
    #[test]
    fn memory_that_is_watched_in_part_can_be_moved() {
        let mut list = vec![1_u8; 8 << 20];
        let at = list.as_ptr().addr();
        let Some(_watched) = watched(at + (1 << 20)..at + (2 << 20)) else { return };
        // By moving pages or by copying bytes, as the allocator sees fit.
        list.try_reserve_exact(64 << 20).expect("pages that can be moved");
        assert!(list.iter().all(|byte| *byte == 1));
        let at = pages(0, BYTES);
        let _part = watched(at + BYTES / 4..at + BYTES / 2);
        let place = ptr::with_exposed_provenance_mut(at);
        // SAFETY: pages of this test, which nobody refers to.
        let moved = unsafe { mremap(place, BYTES, 1 << 20, MremapFlags::MAYMOVE) };
        free(moved.expect("pages that can be moved").expose_provenance(), 1 << 20);
    }

    #[test]
    fn others_go_while_some_stay() {
        let (stays, goes) = (pages(0, BYTES), pages(0, BYTES));
        let Some(stays_watched) = watched(stays..stays + BYTES) else { return };
        let goes_watched = watched(goes..goes + BYTES).unwrap();
        free(goes, BYTES);
        assert!(is_intact(&stays_watched) && !is_intact(&goes_watched));
        drop(goes_watched);
        free(stays, BYTES);
        assert!(!is_intact(&stays_watched));
    }

    #[test]
    fn what_cannot_be_watched_is_said() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        // SAFETY: a new mapping of a file, only read.
        let at = unsafe {
            rustix::mm::mmap(ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, 0)
        };
        let at = at.unwrap().expose_provenance();
        assert!(mappings(&(at..at + 4096)).unwrap_err().contains("file"));
        free(at, 4096);
        assert!(mappings(&(4096..8192)).unwrap_err().contains("not all mapped"));
    }

    #[test]
    fn lines_and_versions() {
        let plain = mapping("7f0a10000000-7f0a10021000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!(plain, (0x7f0a_1000_0000..0x7f0a_1002_1000, true));
        assert!(!mapping("55d0-55d1 r--p 00000000 fe:00 1234 /bin/true").unwrap().1);
        assert!(!mapping("55d0-55d1 rw-s 00000000 00:01 77 /SYSV00000000 (deleted)").unwrap().1);
        assert_eq!(mapping("garbage"), None);
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.4.0"), Some((5, 4)));
        assert_eq!(version("?"), None);
    }
}

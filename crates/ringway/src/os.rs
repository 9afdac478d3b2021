//! The few operating-system calls that rustix lacks, each wrapped safely, and one that several ask for.
//!
//! *Invariant:* nothing here decides anything; a function copies what the kernel says into owned
//! values and returns.

#![allow(
    unsafe_code,
    reason = "getifaddrs hands out a C list, inherited descriptors are plain numbers, ioctl takes a pointer, process_vm_readv an address, sigaction a function, masks of signals are C's"
)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::plan::topology::cpus::CpuSet;

/// The processors this thread may run on; nothing where the kernel does not say.
pub(crate) fn allowed_cpus() -> Option<CpuSet> {
    let mask = rustix::thread::sched_getaffinity(None).ok()?;
    let numbers = (0_u32..).zip(0..rustix::thread::CpuSet::MAX_CPU);
    Some(numbers.filter(|(_, cpu)| mask.is_set(*cpu)).map(|(cpu, _)| cpu).collect())
}

/// Does something that starts a thread, which then takes no signals.
pub(crate) fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: a set of signals is plain numbers, for which zeros are a value.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: a place for a set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both are sets; the mask is this thread's own.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) };
    let outcome = start();
    if blocked == 0 {
        // SAFETY: `before` is what the mask was.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    }
    outcome
}

/// Lets this thread run on any processor, and as others do, whatever the thread that started it was held to.
pub(crate) fn run_anywhere() {
    let mut all = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // Where it is not allowed the thread runs as it did.
    let _affinity = rustix::thread::sched_setaffinity(None, &all);
    let plain = libc::sched_param { sched_priority: 0 };
    // SAFETY: a plain structure that the call reads.
    let _policy = unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const plain) };
}

/// The processor's time stamp counter. Only where [`has_trusted_cycles`] says so is it a clock.
#[inline]
pub(crate) fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        monotonic_ns()
    }
}

/// Asks for the cache line of something that will be read soon. Waits for nothing, changes nothing.
#[inline]
pub(crate) fn fetch_to_read<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it reads no value, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Asks for the cache line of something that will be written soon. Waits for nothing, changes nothing.
#[inline]
pub(crate) fn fetch_to_write<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a hint; it reads no value, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Whether the kernel itself takes the time from the processor's counter: then it runs evenly, at one
/// speed, and alike on all processors.
pub(crate) fn has_trusted_cycles() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc")
}

/// CLOCK_MONOTONIC in nanoseconds, without entering the kernel where it offers that.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

/// CLOCK_REALTIME in nanoseconds.
pub(crate) fn realtime_ns() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::Realtime))
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Signals that can be caught, at most.
const SIGNALS: usize = 64;

/// For each signal the event that [`caught`] rings; -1 where there is none. They are never closed.
static SIGNAL_EVENTS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(-1) }; SIGNALS];

/// The handler: one `write`, which a handler may do, and `errno` as it was.
extern "C" fn caught(signal: libc::c_int) {
    let Some(event) = signal_event(signal).map(|event| event.load(Ordering::Relaxed)) else {
        return;
    };
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the call takes nothing; the place it names is this thread's own, and lives as long as it.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: `one` holds the 8 bytes that are written; the descriptor is an event that is never closed.
    unsafe { libc::write(event, one.as_ptr().cast(), one.len()) };
    // SAFETY: as above.
    unsafe { *errno = before };
}

fn signal_event(signal: i32) -> Option<&'static AtomicI32> {
    SIGNAL_EVENTS.get(usize::try_from(signal).ok()?)
}

/// An event that becomes readable each time the process gets `signal`, if nobody else has asked for that
/// signal: a handler of the program's, or that it be ignored, stays. Called once in a process for each.
///
/// # References
/// sigaction(2), eventfd(2), signal-safety(7).
pub(crate) fn catch_signal(signal: i32) -> io::Result<OwnedFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    let event = rustix::event::eventfd(0, flags)?;
    // The handler's own number for it: nobody closes that one.
    let ring = rustix::io::fcntl_dupfd_cloexec(&event, 3)?;
    let place = signal_event(signal).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: all zeros are a valid `sigaction`: no flags, an empty mask, the default action.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) =
        unsafe { std::mem::zeroed() };
    // SAFETY: asks only; `before` is whole, and lives until the call returns.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if before.sa_sigaction != libc::SIG_DFL {
        return Err(io::Error::other("the program handles this signal itself"));
    }
    place.store(ring.into_raw_fd(), Ordering::Relaxed);
    action.sa_sigaction = caught as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY:
    // - `action` is whole, and lives until the call returns;
    // - `caught` has the type of a handler, does only what a handler may, and is there for ever.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(event)
}

/// One address of one network interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    /// Name of the interface, `eth0`.
    pub(crate) name: String,
    /// The address.
    pub(crate) address: IpAddr,
    /// Scope of a link-local IPv6 address; 0 otherwise.
    pub(crate) scope_id: u32,
    /// Bits of the address that its subnet shares.
    pub(crate) prefix: u8,
    /// Whether the interface leads to one other end only, as tunnels do.
    pub(crate) tunnel: bool,
    /// Whether the interface is the loopback.
    pub(crate) loopback: bool,
}

/// The list `getifaddrs` allocated, freed when dropped.
struct InterfaceList(*mut libc::ifaddrs);

impl Drop for InterfaceList {
    fn drop(&mut self) {
        // SAFETY:
        // - the pointer came from a successful `getifaddrs`, which nobody else frees;
        // - no reference into the list outlives this owner.
        unsafe { libc::freeifaddrs(self.0) }
    }
}

/// Every IPv4 and IPv6 address of every interface that is up, in the kernel's order.
pub(crate) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut head: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `head` is a valid place for the one pointer the call writes.
    let code = unsafe { libc::getifaddrs(&raw mut head) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    let list = InterfaceList(head);
    let mut found = Vec::new();
    let mut at = list.0;
    while !at.is_null() {
        // SAFETY:
        // - `at` is an entry of the list that `list` keeps alive;
        // - the structure is copied; the pointers inside stay valid as long as `list` lives.
        let entry = unsafe { ptr::read(at) };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_name.is_null() {
            continue;
        }
        if entry.ifa_flags & libc::IFF_UP.unsigned_abs() == 0 {
            continue;
        }
        let Some((address, scope_id)) = address_of(entry.ifa_addr) else {
            continue;
        };
        // SAFETY: `ifa_name` is a NUL-terminated string owned by the list, alive here.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        found.push(InterfaceAddress {
            name: name.to_string_lossy().into_owned(),
            address,
            scope_id,
            prefix: prefix_of(entry.ifa_netmask),
            tunnel: entry.ifa_flags & libc::IFF_POINTOPOINT.unsigned_abs() != 0,
            loopback: entry.ifa_flags & libc::IFF_LOOPBACK.unsigned_abs() != 0,
        });
    }
    Ok(found)
}

/// Bits set in a netmask; 0 where there is none.
fn prefix_of(netmask: *const libc::sockaddr) -> u8 {
    let mask = if netmask.is_null() { None } else { address_of(netmask) };
    let ones = match mask {
        Some((IpAddr::V4(v4), _)) => v4.to_bits().count_ones(),
        Some((IpAddr::V6(v6), _)) => v6.to_bits().count_ones(),
        None => 0,
    };
    u8::try_from(ones).unwrap_or(u8::MAX)
}

/// Reads an IPv4 or IPv6 socket address; other families are `None`.
fn address_of(socket_address: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    // SAFETY: the caller passes a non-null address of a live `getifaddrs` entry, and every
    // socket address starts with its family.
    let family = unsafe { (*socket_address).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: family AF_INET means that the storage is a `sockaddr_in`; the copy needs no
            // alignment.
            let v4 = unsafe { ptr::read_unaligned(socket_address.cast::<libc::sockaddr_in>()) };
            Some((Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into(), 0))
        }
        libc::AF_INET6 => {
            // SAFETY: family AF_INET6 means that the storage is a `sockaddr_in6`; the copy needs
            // no alignment.
            let v6 = unsafe { ptr::read_unaligned(socket_address.cast::<libc::sockaddr_in6>()) };
            Some((Ipv6Addr::from(v6.sin6_addr.s6_addr).into(), v6.sin6_scope_id))
        }
        _ => None,
    }
}

/// A duplicate of a descriptor that a launcher left open for this process under a number.
///
/// The number itself stays open and is not owned by ringway.
pub(crate) fn duplicate_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY:
    // - the number is not -1;
    // - the borrow ends in this function, and the only use is `fcntl(F_DUPFD_CLOEXEC)`, which
    //   answers EBADF when the number is not an open descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?)
}

/// Bytes that were sent on a socket and that the other side's kernel has not acknowledged yet; 0 if
/// that cannot be told.
///
/// # References
/// `SIOCOUTQ` in tcp(7).
pub(crate) fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one int, for which there is room;
    // the descriptor is open for as long as it is borrowed.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if outcome == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// For how long nothing has come back on a TCP connection that has sent something again and again;
/// `None` where all is well.
///
/// # References
/// `TCP_INFO` in tcp(7), `struct tcp_info` in linux/tcp.h.
pub(crate) fn silent_ms(socket: BorrowedFd<'_>) -> Option<u64> {
    // SAFETY: numbers all, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY:
    // - `info` is a whole `tcp_info`, and `bytes` says how large it is;
    // - the descriptor is open for as long as it is borrowed.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    };
    // Once is nothing: a packet was lost.
    let silent = code == 0 && info.tcpi_unacked > 0 && info.tcpi_retransmits > 1;
    silent.then(|| u64::from(info.tcpi_last_ack_recv))
}

/// How what a TCP connection has sent has fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpFlow {
    /// Bytes that the other end has acknowledged.
    pub(crate) acknowledged: u64,
    /// For how long there were some that it had not, but for the time in which it had no room for more.
    pub(crate) busy_us: u64,
    /// Segments that were sent again.
    pub(crate) sent_again: u64,
}

/// How what a TCP connection has sent has fared; `None` where the kernel does not tell that (before Linux 4.10).
///
/// # References
/// `TCP_INFO` in tcp(7), `struct tcp_info` in linux/tcp.h: what `libc` has of it ends before these.
pub(crate) fn tcp_flow(socket: BorrowedFd<'_>) -> Option<TcpFlow> {
    const SENT_AGAIN: usize = 100;
    const ACKNOWLEDGED: usize = 120;
    const BUSY: usize = 168;
    const NO_ROOM: usize = 176;
    const END: usize = 184;
    let mut info = [0_u8; END];
    let mut bytes = libc::socklen_t::try_from(END).ok()?;
    // SAFETY:
    // - `info` has room for as many bytes as `bytes` says, and the kernel writes no more;
    // - the descriptor is open for as long as it is borrowed.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if code != 0 || usize::try_from(bytes).ok()? < END {
        return None;
    }
    let wide = |at: usize| info[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    let narrow = info[SENT_AGAIN..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
    Some(TcpFlow {
        acknowledged: wide(ACKNOWLEDGED),
        busy_us: wide(BUSY).saturating_sub(wide(NO_ROOM)),
        sent_again: u64::from(narrow),
    })
}

/// The process at the other end of a Unix socket; none where this PID namespace does not show it.
pub(crate) fn peer_process(socket: BorrowedFd<'_>) -> Option<rustix::process::Pid> {
    // A process that cannot be seen from here has the number 0.
    rustix::process::Pid::from_raw(peer_credentials(socket)?.pid)
}

/// The user at the other end of a Unix socket.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> Option<u32> {
    peer_credentials(socket).map(|peer| peer.uid)
}

/// Who is at the other end of a Unix socket.
///
/// # References
/// `SO_PEERCRED` in unix(7).
fn peer_credentials(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY:
    // - `peer` is a whole `ucred`, and `bytes` says how large it is;
    // - the descriptor is open for as long as it is borrowed.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    (code == 0).then_some(peer)
}

/// Processors of this machine that are up, whichever of them this process may use.
///
/// # References
/// `_SC_NPROCESSORS_ONLN` in sysconf(3).
pub(crate) fn processors() -> u32 {
    // SAFETY: the call takes a number and returns one.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(online).unwrap_or(1).max(1)
}

/// Lets other processes of this user read this one's memory, where the Yama security module asks
/// for that. Without Yama there is nothing to allow.
///
/// # References
/// `PR_SET_PTRACER` in prctl(2).
pub(crate) fn allow_reading_memory() {
    // SAFETY: the call takes numbers only, and changes nothing but the permission.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Copies `bytes` bytes at `address` of another process to `target`.
///
/// # Safety
/// `target` must have room for them, and nobody else may touch it meanwhile.
///
/// # References
/// process_vm_readv(2).
pub(crate) unsafe fn read_process(
    pid: rustix::process::Pid,
    address: u64,
    target: *mut u8,
    bytes: usize,
) -> io::Result<()> {
    let address = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut done = 0;
    while done < bytes {
        let piece = |base: *mut u8| libc::iovec {
            iov_base: base.wrapping_add(done).cast(),
            iov_len: bytes - done,
        };
        // An address of another process: the kernel alone makes anything of it.
        let (local, remote) = (piece(target), piece(ptr::without_provenance_mut(address)));
        // SAFETY:
        // - both lists have one entry;
        // - the local one is inside `target`, by the caller's promise;
        // - the remote one is checked by the kernel.
        let copied = unsafe {
            libc::process_vm_readv(
                pid.as_raw_nonzero().get(),
                &raw const local,
                1,
                &raw const remote,
                1,
                0,
            )
        };
        done += match usize::try_from(copied) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => copied,
            Err(_) => return Err(io::Error::last_os_error()),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed() {
        let all = interface_addresses().unwrap();
        let loopback = all.iter().find(|one| one.loopback && one.address.is_loopback());
        assert!(loopback.is_some_and(|one| matches!(one.prefix, 8 | 128)), "{all:?}");
    }

    #[test]
    fn processors_do_not_depend_on_where_a_thread_may_run() {
        let all = processors();
        let tied = std::thread::spawn(|| {
            let mut one = rustix::thread::CpuSet::new();
            one.set(0);
            let _perhaps_not_ours = rustix::thread::sched_setaffinity(None, &one);
            processors()
        });
        assert_eq!(tied.join().unwrap(), all);
    }

    #[test]
    fn the_other_end_of_a_socket_is_known() {
        use std::os::fd::AsFd as _;
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(peer_process(one.as_fd()), Some(rustix::process::getpid()));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(peer_process(null.as_fd()), None);
    }

    #[test]
    fn a_closed_number_is_an_error() {
        assert!(duplicate_inherited(-1).is_err());
        assert!(duplicate_inherited(1_000_000).is_err());
    }
}

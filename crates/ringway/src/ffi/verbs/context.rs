//! Devices: found, opened, asked for their limits, ports, addresses and events.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_int;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::{Verbs, VerbsError, abi, open_hint, text};

/// Entries of an address table that are asked for in one call.
const GIDS_MOST: usize = 4096;

/// Empty places after which the rest of a table is taken for empty: tables have a thousand places,
/// and each is a file.
const EMPTY_MOST: usize = 32;

/// The devices of one look; freed together.
struct List {
    raw: *mut *mut abi::Device,
    verbs: Arc<Verbs>,
}

// SAFETY: the list is an immutable array of the library's, freed once by its owner; the library's
// functions on devices may be called from any thread.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the array came from ibv_get_device_list; opened devices hold references of their own.
        unsafe { (self.verbs.free_device_list)(self.raw) }
    }
}

/// What carries the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// InfiniBand or RoCE; the link layer of a port tells which.
    InfiniBand,
    /// iWARP, over TCP.
    Iwarp,
    /// Something of the maker's own (EFA, usNIC), or not known.
    Other(i32),
}

/// An RDMA device.
#[derive(Clone)]
pub(crate) struct Device {
    raw: NonNull<abi::Device>,
    name: String,
    list: Arc<List>,
}

// SAFETY: the device lives as long as its list, and is only read.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(super) fn list(verbs: &Arc<Verbs>) -> Result<Vec<Self>, VerbsError> {
        let mut many = 0;
        // SAFETY: `many` is a place for one number.
        let raw = unsafe { (verbs.get_device_list)(&raw mut many) };
        if raw.is_null() {
            let error = std::io::Error::last_os_error();
            let why = match error.raw_os_error() {
                Some(libc::ENOSYS) => "the kernel has no verbs loaded".to_owned(),
                _ => error.to_string(),
            };
            return Err(VerbsError::NoDevice(why));
        }
        let list = Arc::new(List { raw, verbs: Arc::clone(verbs) });
        let mut devices = Vec::new();
        for index in 0..usize::try_from(many).unwrap_or(0) {
            // SAFETY: the array has `many` pointers.
            let place = unsafe { raw.add(index) };
            // SAFETY: as above.
            let Some(raw) = NonNull::new(unsafe { *place }) else { break };
            // SAFETY: entries are devices that live as long as the list.
            let name = text(unsafe { &raw.as_ref().name });
            devices.push(Self { raw, name, list: Arc::clone(&list) });
        }
        if devices.is_empty() {
            return Err(super::none_listed());
        }
        Ok(devices)
    }

    /// `mlx5_0`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// GUID of the device, as a number whose hexadecimal digits people know.
    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: the device lives as long as its list.
        u64::from_be(unsafe { (self.list.verbs.get_device_guid)(self.raw.as_ptr()) })
    }

    /// Whether it is a channel adapter (1), an iWARP NIC (4), or something else.
    pub(crate) fn node_type(&self) -> i32 {
        // SAFETY: the device lives as long as its list.
        unsafe { self.raw.as_ref() }.node_type
    }

    /// What carries its verbs.
    pub(crate) fn transport(&self) -> Transport {
        // SAFETY: the device lives as long as its list.
        match unsafe { self.raw.as_ref() }.transport_type {
            0 => Transport::InfiniBand,
            1 => Transport::Iwarp,
            other => Transport::Other(other),
        }
    }

    /// Opens it.
    pub(crate) fn open(&self) -> Result<Arc<Context>, VerbsError> {
        let verbs = &self.list.verbs;
        // SAFETY: the device lives as long as its list.
        let raw = unsafe { (verbs.open_device)(self.raw.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            return Err(VerbsError::call("ibv_open_device", &self.name, code, open_hint(code)));
        };
        let context = Context { raw, device: self.clone() };
        // So that asking for an event never waits.
        rustix::io::ioctl_fionbio(context.async_fd(), true).map_err(|error| {
            VerbsError::call("setting the event descriptor", &self.name, error.raw_os_error(), "")
        })?;
        Ok(Arc::new(context))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

/// What a device can do at the most.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) firmware: String,
    pub(crate) vendor: u32,
    pub(crate) part: u32,
    pub(crate) ports: u8,
    pub(crate) queue_pairs: u32,
    /// Work requests of one queue.
    pub(crate) requests: u32,
    pub(crate) completions: u32,
    pub(crate) registrations: u32,
    pub(crate) registration_bytes: u64,
    /// Reads a queue pair may have under way, as the one who answers and as the one who asks.
    pub(crate) reads_answered: u8,
    pub(crate) reads_asked: u8,
    pub(crate) shared_requests: u32,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortState {
    Down,
    /// Up, and no subnet manager has set it up yet.
    Initializing,
    Armed,
    Active,
    /// Active, and losing its link for the moment.
    ActiveDeferred,
    Unknown,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Down => "DOWN",
            Self::Initializing => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDeferred => "ACTIVE_DEFER",
            Self::Unknown => "unknown",
        })
    }
}

/// What a port's cable carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    InfiniBand,
    Ethernet,
    Unspecified,
}

/// A port, as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) state: PortState,
    pub(crate) link_layer: LinkLayer,
    /// As the header numbers them: 1 is 256 bytes, 5 is 4096.
    pub(crate) max_mtu: i32,
    pub(crate) active_mtu: i32,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) gids: usize,
    pub(crate) pkeys: u16,
    pub(crate) message_bytes_most: u32,
    /// Whether packets must carry a global route, as RoCE's do.
    pub(crate) global_route_needed: bool,
}

/// An address of a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

impl Gid {
    /// The address as IPv6, which it has the form of.
    pub(crate) fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// The IPv4 address in it, if it is one that is mapped.
    pub(crate) fn ipv4(self) -> Option<Ipv4Addr> {
        self.ipv6().to_ipv4_mapped()
    }

    /// Whether nothing is set: all zeros, or the link-local prefix alone.
    pub(crate) fn is_empty(self) -> bool {
        self.0[8..].iter().all(|byte| *byte == 0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// What an address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
    /// The kernel does not say.
    Unknown,
}

/// A place of an address table that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) index: u32,
    pub(crate) gid: Gid,
    pub(crate) kind: GidKind,
    /// The network interface it belongs to, on Ethernet.
    pub(crate) interface: Option<String>,
}

/// What an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A port lost its link, or got it (back).
    PortDown,
    PortActive,
    /// Addresses, identifiers or keys of a port are others now.
    GidsChanged,
    LidChanged,
    PkeysChanged,
    /// A queue pair failed.
    QueuePairFailed,
    /// The peer's first message came before this side was ready to send.
    Established,
    /// The device is lost.
    DeviceFailed,
    /// Something else, by the header's number.
    Other(i32),
}

/// Something that happened on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncEvent {
    pub(crate) kind: EventKind,
    pub(crate) port: Option<u8>,
    /// The queue pair's number, where it is one's.
    pub(crate) queue_pair: Option<u32>,
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EventKind::PortDown => f.write_str("port error")?,
            EventKind::PortActive => f.write_str("port active")?,
            EventKind::GidsChanged => f.write_str("GID table change")?,
            EventKind::LidChanged => f.write_str("LID change")?,
            EventKind::PkeysChanged => f.write_str("P_Key table change")?,
            EventKind::QueuePairFailed => f.write_str("local QP failed")?,
            EventKind::Established => f.write_str("communication established")?,
            EventKind::DeviceFailed => f.write_str("local catastrophic error")?,
            EventKind::Other(number) => write!(f, "event {number}")?,
        }
        match (self.port, self.queue_pair) {
            (Some(port), _) => write!(f, " (port {port})"),
            (_, Some(number)) => write!(f, " (QP {number})"),
            _ => Ok(()),
        }
    }
}

/// A device, opened.
pub(crate) struct Context {
    raw: NonNull<abi::Context>,
    device: Device,
}

// SAFETY: libibverbs and its providers lock what they share; a context may be used by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made in this context holds it, so nothing of it is left.
        let _code = unsafe { (self.verbs().close_device)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.device.name).finish()
    }
}

impl Context {
    pub(super) fn verbs(&self) -> &Arc<Verbs> {
        &self.device.list.verbs
    }

    pub(super) fn raw(&self) -> *mut abi::Context {
        self.raw.as_ptr()
    }

    /// The device that is open.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.device.name
    }

    /// Interrupt vectors that completion queues can be spread over.
    pub(crate) fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open.
        u32::try_from(unsafe { self.raw.as_ref() }.num_comp_vectors).unwrap_or(1)
    }

    /// What the device can do at the most.
    pub(crate) fn limits(&self) -> Result<Limits, VerbsError> {
        // SAFETY: the structure is numbers and arrays of them, for which zero is a value.
        let mut found: abi::DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; `found` is a whole ibv_device_attr.
        let code = unsafe { (self.verbs().query_device)(self.raw(), &raw mut found) };
        self.checked("ibv_query_device", code)?;
        let number = |value: c_int| u32::try_from(value).unwrap_or(0);
        let byte = |value: c_int| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
        Ok(Limits {
            firmware: text(&found.fw_ver),
            vendor: found.vendor_id,
            part: found.vendor_part_id,
            ports: found.phys_port_cnt,
            queue_pairs: number(found.max_qp),
            requests: number(found.max_qp_wr),
            completions: number(found.max_cqe),
            registrations: number(found.max_mr),
            registration_bytes: found.max_mr_size,
            reads_answered: byte(found.max_qp_rd_atom),
            reads_asked: byte(found.max_qp_init_rd_atom),
            shared_requests: number(found.max_srq_wr),
        })
    }

    /// A port, as it is now. Ports are numbered from 1.
    pub(crate) fn port(&self, number: u8) -> Result<Port, VerbsError> {
        // SAFETY: the structure is numbers, for which zero is a value.
        let mut found: abi::PortAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the exported function writes an older, shorter form of the
        // structure, whose fields stand at the same places.
        let code = unsafe { (self.verbs().query_port)(self.raw(), number, &raw mut found) };
        if code != 0 {
            let place = format!("{}:{number}", self.name());
            return Err(VerbsError::call("ibv_query_port", place, code.abs(), ""));
        }
        Ok(Port {
            number,
            state: match found.state {
                1 => PortState::Down,
                2 => PortState::Initializing,
                3 => PortState::Armed,
                4 => PortState::Active,
                5 => PortState::ActiveDeferred,
                _ => PortState::Unknown,
            },
            link_layer: match found.link_layer {
                // Kernels before link layers knew InfiniBand only; so do iWARP's drivers say.
                1 => LinkLayer::InfiniBand,
                2 => LinkLayer::Ethernet,
                _ => LinkLayer::Unspecified,
            },
            max_mtu: found.max_mtu,
            active_mtu: found.active_mtu,
            lid: found.lid,
            sm_lid: found.sm_lid,
            gids: usize::try_from(found.gid_tbl_len).unwrap_or(0),
            pkeys: found.pkey_tbl_len,
            message_bytes_most: found.max_msg_sz,
            global_route_needed: found.link_layer == 2 || found.flags & 1 != 0,
        })
    }

    /// One address of a port.
    pub(crate) fn gid(&self, port: u8, index: u32) -> Result<Gid, VerbsError> {
        let mut gid = abi::RawGid::default();
        let number = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: the context is open; `gid` is a place for one address.
        let code = unsafe { (self.verbs().query_gid)(self.raw(), port, number, &raw mut gid) };
        if code != 0 {
            let place = format!("{}:{port}, GID index {index}", self.name());
            return Err(VerbsError::last("ibv_query_gid", place, "; see `ringway net gids`"));
        }
        Ok(Gid(gid.0))
    }

    /// A partition key of a port.
    pub(crate) fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbsError> {
        let mut pkey = 0;
        // SAFETY: the context is open; `pkey` is a place for one number.
        let code = unsafe {
            (self.verbs().query_pkey)(self.raw(), port, c_int::from(index), &raw mut pkey)
        };
        if code != 0 {
            let place = format!("{}:{port}, P_Key index {index}", self.name());
            return Err(VerbsError::last("ibv_query_pkey", place, ""));
        }
        Ok(u16::from_be(pkey))
    }

    /// The addresses of a port that are set, by their index.
    pub(crate) fn gids(&self, port: &Port) -> Result<Vec<GidEntry>, VerbsError> {
        match self.gid_table(port) {
            Some(found) => Ok(found),
            None => self.gids_one_by_one(port),
        }
    }

    /// The table in one call, where library and kernel have it.
    fn gid_table(&self, port: &Port) -> Option<Vec<GidEntry>> {
        let query = self.verbs().query_gid_table?;
        // The call fails when the room is less than all ports' tables.
        let mut entries = vec![abi::GidEntry::default(); GIDS_MOST];
        let bytes = size_of::<abi::GidEntry>();
        // SAFETY: the context is open; there is room for as many entries of that size as is said.
        let many = unsafe { query(self.raw(), entries.as_mut_ptr(), GIDS_MOST, 0, bytes) };
        let many = usize::try_from(many).ok()?;
        let ours =
            entries.iter().take(many).filter(|entry| entry.port_num == u32::from(port.number));
        Some(
            ours.map(|entry| GidEntry {
                index: entry.gid_index,
                gid: Gid(entry.gid.0),
                kind: match entry.gid_type {
                    0 => GidKind::InfiniBand,
                    1 => GidKind::RoceV1,
                    2 => GidKind::RoceV2,
                    _ => GidKind::Unknown,
                },
                interface: interface_name(entry.ndev_ifindex),
            })
            .filter(|entry| !entry.gid.is_empty())
            .collect(),
        )
    }

    pub(super) fn gids_one_by_one(&self, port: &Port) -> Result<Vec<GidEntry>, VerbsError> {
        let folder =
            format!("/sys/class/infiniband/{}/ports/{}/gid_attrs", self.name(), port.number);
        let read = |file: &str, index: u32| {
            let text = std::fs::read_to_string(format!("{folder}/{file}/{index}")).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let mut found = Vec::new();
        let mut empty = 0;
        for index in 0..u32::try_from(port.gids).unwrap_or(0) {
            let gid = self.gid(port.number, index)?;
            if gid.is_empty() {
                empty += 1;
                if empty == EMPTY_MOST {
                    break;
                }
                continue;
            }
            empty = 0;
            let kind = match (port.link_layer, read("types", index).as_deref()) {
                (LinkLayer::InfiniBand, _) => GidKind::InfiniBand,
                (_, Some("RoCE v2")) => GidKind::RoceV2,
                (_, Some("IB/RoCE v1" | "RoCE v1")) => GidKind::RoceV1,
                _ => GidKind::Unknown,
            };
            found.push(GidEntry { index, gid, kind, interface: read("ndevs", index) });
        }
        Ok(found)
    }

    /// The next event of the device, if there is one; never waits.
    pub(crate) fn take_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut event = abi::AsyncEvent { element: ptr::null_mut(), event_type: 0 };
        // SAFETY: the context is open and its descriptor does not block; `event` is a whole
        // ibv_async_event.
        let code = unsafe { (self.verbs().get_async_event)(self.raw(), &raw mut event) };
        if code != 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() == std::io::ErrorKind::WouldBlock {
                return Ok(None);
            }
            return Err(VerbsError::last("ibv_get_async_event", self.name(), ""));
        }
        let number = event.event_type;
        // 1 to 7 and 16 are of queue pairs; 8 is the device's, 9 to 13, 17 and 18 are ports'.
        let of_queue_pair = matches!(number, 1..=7 | 16);
        let of_port = matches!(number, 9..=13 | 17 | 18);
        let queue_pair = of_queue_pair.then(|| {
            // SAFETY: the element is a queue pair, which is not destroyed before its events are
            // acknowledged.
            unsafe { (*event.element.cast::<abi::Qp>()).qp_num }
        });
        // A union: the number of a port stands in its first bytes.
        let port =
            of_port.then(|| event.element.addr() & 0xff).and_then(|low| u8::try_from(low).ok());
        // SAFETY: the event came from ibv_get_async_event and is acknowledged once.
        unsafe { (self.verbs().ack_async_event)(&raw mut event) };
        let kind = match number {
            1..=3 => EventKind::QueuePairFailed,
            4 => EventKind::Established,
            8 => EventKind::DeviceFailed,
            9 => EventKind::PortActive,
            10 => EventKind::PortDown,
            11 => EventKind::LidChanged,
            12 => EventKind::PkeysChanged,
            18 => EventKind::GidsChanged,
            other => EventKind::Other(other),
        };
        Ok(Some(AsyncEvent { kind, port, queue_pair }))
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let number: RawFd = unsafe { self.raw.as_ref() }.async_fd;
        // SAFETY: the descriptor is open as long as the context is, which the borrow holds.
        unsafe { BorrowedFd::borrow_raw(number) }
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), VerbsError> {
        if code == 0 { Ok(()) } else { Err(VerbsError::call(call, self.name(), code.abs(), "")) }
    }
}

/// Readable when [`Context::take_event`] has an event.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.async_fd()
    }
}

/// The interface of that number, in this network namespace.
fn interface_name(number: u32) -> Option<String> {
    if number == 0 {
        return None;
    }
    let mut buffer = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size the call asks for.
    let found = unsafe { libc::if_indextoname(number, buffer.as_mut_ptr()) };
    (!found.is_null()).then(|| text(&buffer))
}

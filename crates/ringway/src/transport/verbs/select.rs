//! Which ports are used, and which address of a port: NCCL's settings, each choice and each refusal
//! with its reason.
//!
//! Where nothing is set, on RoCE: version 2 only; routable addresses before link-local ones; IPv4 before
//! IPv6; then the lowest index. A fabric with IPv6 alone so gets its IPv6 address. On InfiniBand: index 0,
//! or index 1 where that address can be routed between subnets.
//!
//! *Invariant:* pure. What is set is kept to: where nothing fits, the answer is an error, never
//! another choice.

use std::fmt;
use std::net::IpAddr;

use crate::ffi::verbs::{Gid, GidEntry, GidKind, LinkLayer, Port, PortState};
use crate::plan::topology::hca::HcaFilter;

/// What operators may set.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// `NCCL_IB_HCA`.
    pub(crate) hca: HcaFilter,
    /// `NCCL_IB_GID_INDEX`.
    pub(crate) gid_index: Option<u32>,
    /// `NCCL_IB_ADDR_FAMILY`: whether IPv6 or IPv4; either where unset.
    pub(crate) ipv6: Option<bool>,
    /// `NCCL_IB_ADDR_RANGE`.
    pub(crate) range: Option<Range>,
    /// `NCCL_IB_ROCE_VERSION_NUM`.
    pub(crate) roce_version: u8,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            hca: HcaFilter::default(),
            gid_index: None,
            ipv6: None,
            range: None,
            roce_version: 2,
        }
    }
}

/// Addresses that begin alike: `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: IpAddr,
    pub(crate) bits: u8,
}

impl Range {
    fn holds(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let shift = 32_u32.saturating_sub(self.bits.into());
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let shift = 128_u32.saturating_sub(self.bits.into());
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// The address a port uses, and why that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) index: u8,
    pub(crate) gid: Gid,
    pub(crate) kind: GidKind,
    pub(crate) reason: String,
}

/// Whether a port may be used; the reason why not.
pub(crate) fn port(wanted: &Wanted, device: &str, port: &Port) -> Result<(), String> {
    if !wanted.hca.allows(device, Some(port.number.into())) {
        return Err(format!("NCCL_IB_HCA={} leaves it out", wanted.hca));
    }
    match port.state {
        PortState::Active => Ok(()),
        PortState::Down => {
            Err("its link is down; look at cable, switch port and `ip link`".to_owned())
        }
        PortState::Initializing => Err(
            "its link is up and no subnet manager has set it up; look for opensm or the switch's"
                .to_owned(),
        ),
        other => Err(format!("it is {other}, not ACTIVE")),
    }
}

/// The address that a port uses.
pub(crate) fn gid(wanted: &Wanted, port: &Port, table: &[GidEntry]) -> Result<Chosen, String> {
    if let Some(index) = wanted.gid_index {
        return by_index(index, table);
    }
    if port.link_layer == LinkLayer::InfiniBand {
        return on_infiniband(port, table);
    }
    let mut fit: Vec<&GidEntry> =
        table.iter().filter(|entry| refusal(wanted, entry).is_none()).collect();
    fit.sort_by_key(|entry| (is_link_local(entry.gid), is_ipv6(entry.gid), entry.index));
    let Some(best) = fit.first() else {
        return Err(nothing_fits(wanted, table));
    };
    let mut reason = format!("{}, {}", kind_name(best.kind), scope(best.gid));
    if let Some(range) = wanted.range {
        reason += &format!(", in {range}");
    }
    let class = |gid: Gid| (is_link_local(gid), is_ipv6(gid));
    let alike = fit.iter().filter(|entry| class(entry.gid) == class(best.gid)).count();
    if alike > 1 {
        reason += &format!(", the lowest index of {alike}");
    }
    if is_link_local(best.gid) {
        reason += "; there is no routable one, so peers must be in the same subnet";
    }
    chosen(best, reason)
}

/// Why an address is not even looked at, if so.
pub(crate) fn refusal(wanted: &Wanted, entry: &GidEntry) -> Option<String> {
    let right = match wanted.roce_version {
        1 => GidKind::RoceV1,
        _ => GidKind::RoceV2,
    };
    if entry.kind != right && entry.kind != GidKind::Unknown {
        return Some(format!("is {}", kind_name(entry.kind)));
    }
    if entry.index > u32::from(u8::MAX) {
        return Some("connections know indices up to 255".to_owned());
    }
    match wanted.ipv6 {
        Some(true) if !is_ipv6(entry.gid) => {
            return Some("is IPv4; NCCL_IB_ADDR_FAMILY is AF_INET6".to_owned());
        }
        Some(false) if is_ipv6(entry.gid) => {
            return Some("is IPv6; NCCL_IB_ADDR_FAMILY is AF_INET".to_owned());
        }
        _ => {}
    }
    let range = wanted.range.filter(|range| !range.holds(address(entry.gid)))?;
    Some(format!("is not in NCCL_IB_ADDR_RANGE={range}"))
}

/// Why an address that could be used is not the one, beside the one that is.
pub(crate) fn passed_over(entry: &GidEntry, chosen: &Chosen) -> String {
    let (ours, theirs) = (entry.gid, chosen.gid);
    if is_link_local(ours) && !is_link_local(theirs) {
        return "is link-local; a routable one comes first".to_owned();
    }
    if is_ipv6(ours) && !is_ipv6(theirs) {
        return "is IPv6; IPv4 comes first (NCCL_IB_ADDR_FAMILY=AF_INET6 turns that)".to_owned();
    }
    format!("index {} comes first", chosen.index)
}

/// `RoCE v2`.
pub(crate) fn kind_name(kind: GidKind) -> &'static str {
    match kind {
        GidKind::InfiniBand => "InfiniBand",
        GidKind::RoceV1 => "RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
        GidKind::Unknown => "of unknown type",
    }
}

fn by_index(index: u32, table: &[GidEntry]) -> Result<Chosen, String> {
    let Some(entry) = table.iter().find(|entry| entry.index == index) else {
        return Err(format!(
            "GID index {index} is empty; {}; unset NCCL_IB_GID_INDEX, or set it to one of these",
            what_is_set(table)
        ));
    };
    let mut reason = format!("GID index {index} is set to be used");
    match entry.kind {
        GidKind::RoceV1 => reason += "; it is RoCE v1, which no router forwards",
        _ if entry.kind != GidKind::InfiniBand && is_link_local(entry.gid) => {
            reason += "; it is link-local, so peers must be in the same subnet";
        }
        _ => {}
    }
    chosen(entry, reason)
}

fn on_infiniband(port: &Port, table: &[GidEntry]) -> Result<Chosen, String> {
    let at = |index| table.iter().find(|entry| entry.index == index);
    // A fabric local identifier stands in a router's prefix.
    let routable = at(1).filter(|entry| entry.gid.0[4..6] != [0, 0]);
    if let Some(entry) = routable {
        return chosen(entry, "InfiniBand, routable between subnets".to_owned());
    }
    match at(0) {
        Some(entry) => chosen(entry, format!("InfiniBand, LID {}", port.lid)),
        None => Err(format!("GID index 0 is empty; {}", what_is_set(table))),
    }
}

fn chosen(entry: &GidEntry, reason: String) -> Result<Chosen, String> {
    let Ok(index) = u8::try_from(entry.index) else {
        return Err(format!("GID index {}: connections know indices up to 255", entry.index));
    };
    Ok(Chosen { index, gid: entry.gid, kind: entry.kind, reason })
}

fn nothing_fits(wanted: &Wanted, table: &[GidEntry]) -> String {
    if table.is_empty() {
        return "it has no address; give its network interface an IP address and set it up (ip link set … up)"
            .to_owned();
    }
    let whys: Vec<String> = table
        .iter()
        .filter_map(|entry| Some(format!("{} {}", entry.index, refusal(wanted, entry)?)))
        .collect();
    format!(
        "no address fits: {}; change NCCL_IB_ROCE_VERSION_NUM, NCCL_IB_ADDR_FAMILY or NCCL_IB_ADDR_RANGE, or give its interface another IP address",
        whys.join(", ")
    )
}

fn what_is_set(table: &[GidEntry]) -> String {
    if table.is_empty() {
        return "none is set".to_owned();
    }
    let set: Vec<String> =
        table.iter().take(8).map(|entry| format!("{} ({})", entry.index, entry.gid)).collect();
    let more = if table.len() > set.len() { " and more" } else { "" };
    format!("set are {}{more}", set.join(", "))
}

fn address(gid: Gid) -> IpAddr {
    gid.ipv4().map_or_else(|| IpAddr::V6(gid.ipv6()), IpAddr::V4)
}

fn is_ipv6(gid: Gid) -> bool {
    gid.ipv4().is_none()
}

/// fe80::/10, or 169.254.0.0/16.
fn is_link_local(gid: Gid) -> bool {
    match address(gid) {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn scope(gid: Gid) -> String {
    let family = if is_ipv6(gid) { "IPv6" } else { "IPv4" };
    format!("{} {family}", if is_link_local(gid) { "link-local" } else { "routable" })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn port_of(link_layer: LinkLayer, state: PortState) -> Port {
        Port {
            number: 1,
            state,
            link_layer,
            max_mtu: 5,
            active_mtu: 5,
            lid: 17,
            sm_lid: 1,
            gids: 16,
            pkeys: 1,
            message_bytes_most: 1 << 30,
            global_route_needed: link_layer == LinkLayer::Ethernet,
        }
    }

    fn roce() -> Port {
        port_of(LinkLayer::Ethernet, PortState::Active)
    }

    fn entry(index: u32, gid: &str, kind: GidKind) -> GidEntry {
        let gid = match gid.parse::<IpAddr>().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        GidEntry { index, gid: Gid(gid.octets()), kind, interface: Some("eth0".to_owned()) }
    }

    /// As mlx5 fills it: every address twice, version 1 first.
    fn usual() -> Vec<GidEntry> {
        ["fe80::1", "10.1.2.3", "fd00::3"]
            .iter()
            .flat_map(|gid| [(gid, GidKind::RoceV1), (gid, GidKind::RoceV2)])
            .zip(0..)
            .map(|((gid, kind), index)| entry(index, gid, kind))
            .collect()
    }

    fn index(wanted: &Wanted, table: &[GidEntry]) -> Result<u8, String> {
        gid(wanted, &roce(), table).map(|chosen| chosen.index)
    }

    fn range(text: &str, bits: u8) -> Option<Range> {
        Some(Range { address: text.parse().unwrap(), bits })
    }

    #[test]
    fn the_usual_table_gives_its_routable_ipv4_of_version_2() {
        let found = gid(&Wanted::default(), &roce(), &usual()).unwrap();
        assert_eq!((found.index, found.kind), (3, GidKind::RoceV2));
        assert_eq!(found.reason, "RoCE v2, routable IPv4");
        let mut more = usual();
        more.push(entry(9, "10.1.2.4", GidKind::RoceV2));
        let found = gid(&Wanted::default(), &roce(), &more).unwrap();
        assert_eq!(found.reason, "RoCE v2, routable IPv4, the lowest index of 2");
    }

    #[test]
    fn settings_turn_the_choice() {
        let of = |wanted| index(&wanted, &usual());
        assert_eq!(of(Wanted { ipv6: Some(true), ..Wanted::default() }), Ok(5));
        assert_eq!(of(Wanted { ipv6: Some(false), ..Wanted::default() }), Ok(3));
        assert_eq!(of(Wanted { roce_version: 1, ..Wanted::default() }), Ok(2));
        assert_eq!(of(Wanted { range: range("fd00::", 8), ..Wanted::default() }), Ok(5));
        assert_eq!(of(Wanted { range: range("10.0.0.0", 8), ..Wanted::default() }), Ok(3));
        assert_eq!(of(Wanted { range: range("0.0.0.0", 0), ..Wanted::default() }), Ok(3));
        assert_eq!(of(Wanted { range: range("10.1.2.3", 32), ..Wanted::default() }), Ok(3));
        assert_eq!(of(Wanted { gid_index: Some(0), ..Wanted::default() }), Ok(0));
    }

    #[test]
    fn a_fabric_of_ipv6_alone_works() {
        let table = [
            entry(0, "fe80::1", GidKind::RoceV2),
            entry(1, "2001:db8::7", GidKind::RoceV1),
            entry(2, "2001:db8::7", GidKind::RoceV2),
        ];
        let found = gid(&Wanted::default(), &roce(), &table).unwrap();
        assert_eq!(found.index, 2);
        assert_eq!(found.reason, "RoCE v2, routable IPv6");
        let alone = gid(&Wanted::default(), &roce(), &table[..1]).unwrap();
        assert!(alone.reason.contains("same subnet"), "{}", alone.reason);
        let link_local_v4 =
            [entry(0, "169.254.3.1", GidKind::RoceV2), entry(1, "fd00::3", GidKind::RoceV2)];
        assert_eq!(index(&Wanted::default(), &link_local_v4), Ok(1));
    }

    #[test]
    fn what_is_set_is_kept_to() {
        let refused = |wanted: Wanted| gid(&wanted, &roce(), &usual()).unwrap_err();
        let text = refused(Wanted { range: range("192.168.0.0", 16), ..Wanted::default() });
        assert!(text.contains("3 is not in NCCL_IB_ADDR_RANGE=192.168.0.0/16"), "{text}");
        assert!(text.contains("0 is RoCE v1"), "{text}");
        let text = refused(Wanted { gid_index: Some(9), ..Wanted::default() });
        assert!(text.starts_with("GID index 9 is empty; set are 0 (fe80::1), "), "{text}");
        let table = [entry(0, "fd00::3", GidKind::RoceV2)];
        let v4 = Wanted { ipv6: Some(false), ..Wanted::default() };
        let text = gid(&v4, &roce(), &table).unwrap_err();
        assert!(text.contains("0 is IPv6; NCCL_IB_ADDR_FAMILY is AF_INET"), "{text}");
        let text = gid(&Wanted::default(), &roce(), &[]).unwrap_err();
        assert!(text.contains("IP address"), "{text}");
        let far = [entry(300, "10.1.2.3", GidKind::RoceV2)];
        assert!(index(&Wanted::default(), &far).unwrap_err().contains("up to 255"));
        let named = Wanted { gid_index: Some(300), ..Wanted::default() };
        assert!(index(&named, &far).unwrap_err().contains("up to 255"));
    }

    #[test]
    fn a_set_index_is_taken_with_a_warning_where_it_is_worse() {
        let of = |index| {
            let wanted = Wanted { gid_index: Some(index), ..Wanted::default() };
            gid(&wanted, &roce(), &usual()).unwrap().reason
        };
        assert!(of(0).contains("RoCE v1"));
        assert!(of(1).contains("link-local"));
        assert_eq!(of(3), "GID index 3 is set to be used");
    }

    #[test]
    fn infiniband_has_index_0_or_what_a_router_forwards() {
        let ib = port_of(LinkLayer::InfiniBand, PortState::Active);
        let plain = entry(0, "fe80::1234", GidKind::InfiniBand);
        let found = gid(&Wanted::default(), &ib, std::slice::from_ref(&plain)).unwrap();
        assert_eq!((found.index, found.reason.as_str()), (0, "InfiniBand, LID 17"));
        let mut routed = entry(1, "fec0::1234", GidKind::InfiniBand);
        routed.gid.0[4..6].copy_from_slice(&[0, 7]);
        let found = gid(&Wanted::default(), &ib, &[plain.clone(), routed]).unwrap();
        assert_eq!(found.index, 1);
        let same_subnet = entry(1, "fe80::99", GidKind::InfiniBand);
        assert_eq!(gid(&Wanted::default(), &ib, &[plain, same_subnet]).unwrap().index, 0);
        assert!(gid(&Wanted::default(), &ib, &[]).unwrap_err().contains("none is set"));
    }

    #[test]
    fn only_active_ports_that_the_filter_names_are_used() {
        let of = |hca: &str, state| {
            let wanted = Wanted { hca: HcaFilter::parse(hca), ..Wanted::default() };
            port(&wanted, "mlx5_0", &port_of(LinkLayer::Ethernet, state))
        };
        assert_eq!(of("", PortState::Active), Ok(()));
        assert_eq!(of("=mlx5_0:1", PortState::Active), Ok(()));
        assert_eq!(
            of("^mlx5_0", PortState::Active).unwrap_err(),
            "NCCL_IB_HCA=^mlx5_0 leaves it out"
        );
        assert!(of("=mlx5_0:2", PortState::Active).is_err());
        assert!(of("", PortState::Down).unwrap_err().contains("link is down"));
        assert!(of("", PortState::Initializing).unwrap_err().contains("subnet manager"));
        assert!(of("", PortState::Armed).unwrap_err().contains("ARMED"));
    }

    #[test]
    fn those_passed_over_hear_why() {
        let table = usual();
        let taken = gid(&Wanted::default(), &roce(), &table).unwrap();
        assert!(passed_over(&table[1], &taken).contains("link-local"));
        assert!(passed_over(&table[5], &taken).contains("IPv4 comes first"));
        let second = entry(7, "10.9.9.9", GidKind::RoceV2);
        assert_eq!(passed_over(&second, &taken), "index 3 comes first");
        let unknown = entry(0, &Ipv6Addr::LOCALHOST.to_string(), GidKind::Unknown);
        assert_eq!(refusal(&Wanted::default(), &unknown), None);
    }
}

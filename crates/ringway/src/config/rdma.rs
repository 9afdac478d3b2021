//! Settings of RDMA ports and connections, under NCCL's names.

use std::fmt;
use std::net::IpAddr;

use super::parse::{self, Problem, Remark};
use super::value::AddressFamily;
use crate::plan::topology::hca::HcaFilter;
use crate::plan::topology::level::parse_level;
use crate::plan::topology::path::PathClass;

/// What `NCCL_IB_…` says of ports, addresses and connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaSettings {
    /// `NCCL_IB_HCA`: devices and ports that may be used.
    pub hca: HcaFilter,
    /// `NCCL_IB_GID_INDEX`; chosen where unset.
    pub gid_index: Option<u8>,
    /// `NCCL_IB_ADDR_FAMILY`; either where unset.
    pub family: Option<AddressFamily>,
    /// `NCCL_IB_ADDR_RANGE`; any where unset.
    pub range: Option<AddressRange>,
    /// `NCCL_IB_ROCE_VERSION_NUM`.
    pub roce_version: u8,
    /// `NCCL_IB_TIMEOUT`: 4.096 µs · 2^n until a packet is sent again.
    pub timeout: u8,
    /// `NCCL_IB_RETRY_CNT`: how often.
    pub retries: u8,
    /// `NCCL_IB_SL`.
    pub service_level: u8,
    /// `NCCL_IB_TC`.
    pub traffic_class: u8,
    /// `NCCL_IB_PKEY`: index of the partition key.
    pub pkey_index: u16,
    /// `NCCL_IB_DISABLE`: no RDMA at all.
    pub disable: bool,
    /// `NCCL_IB_QPS_PER_CONNECTION`: queue pairs by each rail.
    pub queue_pairs: u8,
    /// `NCCL_IB_SPLIT_DATA_ON_QPS`: what is sent is cut for all of them, not sent by each in turn.
    pub split: bool,
    /// `NCCL_IB_ADAPTIVE_ROUTING`; where unset on InfiniBand, and not on RoCE.
    pub adaptive_routing: Option<bool>,
    /// `NCCL_IB_AR_THRESHOLD`: bytes above which a message's packets may take ways of their own.
    pub adaptive_least: u64,
    /// `NCCL_CROSS_NIC`: whether ports without a counterpart go to another of the peer's.
    pub cross: u8,
    /// `RINGWAY_RDMA_REGISTER`: callers' memory is registered, and not copied.
    pub register: bool,
    /// `NCCL_NET_GDR_LEVEL`: how far from a GPU an adapter reaches its memory.
    pub gpu_level: Option<PathClass>,
    /// `NCCL_NET_GDR_READ`: whether adapters read what they send from GPU memory, and do not only write there.
    pub gpu_reads: bool,
}

impl RdmaSettings {
    /// Bytes above which the packets of a message may come in any order.
    pub(crate) fn scattered_from(&self, infiniband: bool) -> usize {
        if self.adaptive_routing.unwrap_or(infiniband) {
            usize::try_from(self.adaptive_least).unwrap_or(usize::MAX)
        } else {
            usize::MAX
        }
    }
}

impl Default for RdmaSettings {
    fn default() -> Self {
        Self {
            hca: HcaFilter::default(),
            gid_index: None,
            family: None,
            range: None,
            roce_version: 2,
            timeout: 20,
            retries: 7,
            service_level: 0,
            traffic_class: 0,
            pkey_index: 0,
            disable: false,
            queue_pairs: 1,
            split: false,
            adaptive_routing: None,
            adaptive_least: 8192,
            cross: 2,
            register: true,
            gpu_level: None,
            gpu_reads: true,
        }
    }
}

/// How far is not too far.
pub(super) fn gpu_level(text: &str) -> Result<Option<PathClass>, Problem> {
    let level = parse_level(text.trim());
    level.map(Some).ok_or_else(|| Problem::new("not one of LOC, NVL, PIX, PXB, PHB, SYS or 0 to 5"))
}

/// Addresses that begin alike: `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// An address of them.
    pub address: IpAddr,
    /// How many bits are alike.
    pub bits: u8,
}

impl AddressRange {
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let wrong = || Problem::new("not a network such as 10.0.0.0/8 or fd00::/8");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(Problem::new(format!("an address has {most} bits, not {bits}")));
        }
        Ok(Self { address, bits })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// `NCCL_IB_HCA`, with what is odd about it.
pub(super) fn hca(text: &str) -> Result<(HcaFilter, Vec<Remark>), Problem> {
    let filter = HcaFilter::parse(text);
    let remarks = filter.remarks().into_iter().map(Remark::Warning).collect();
    Ok((filter, remarks))
}

/// `NCCL_IB_GID_INDEX`: -1 chooses.
pub(super) fn gid_index(text: &str) -> Result<Option<u8>, Problem> {
    match text {
        "-1" => Ok(None),
        _ => parse::auto(text, |text| parse::number(text, 0..=255u8)),
    }
}

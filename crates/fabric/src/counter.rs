//! What ports count: names, what they mean, and from when on a count is a fault.
//!
//! One table for all tools: `perfquery` and `ibqueryerrors` (InfiniBand's names), `ethtool -S` (the driver's).
//! Thresholds are those that infiniband-diags ships as examples.

/// What a counter tells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Meaning {
    /// Words of four bytes, sent.
    SentWords,
    /// Words of four bytes, received.
    ReceivedWords,
    /// Bytes, sent.
    SentBytes,
    /// Bytes, received.
    ReceivedBytes,
    /// Time that data waited for credits, in ticks of one word.
    Waited,
    /// A fault: this many are borne.
    Fault(u64),
    /// Pause frames of one priority.
    Pause,
    /// Microseconds of standing still by pause frames.
    PauseTime,
    /// Pause frames for all priorities together.
    GlobalPause,
    /// Packets marked or answered because of congestion.
    Marked,
}

/// One counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Counter {
    /// Its name in dumps.
    pub name: &'static str,
    /// What it tells.
    pub meaning: Meaning,
    /// Id of the check that judges it.
    pub check: &'static str,
    /// The most that it can show in the old form of counters, where it then stays.
    pub saturates: Option<u64>,
    /// What to do when it grows.
    pub fix: &'static str,
}

const CABLE: &str = "clean or replace the cable or its optics; then clear: perfquery -R";
const UPSTREAM: &str = "the bad link is further up: walk the path with ibtracert, look at its ends";
const DRAIN: &str = "look for a slow receiver or a port that goes down; check credit loops";
const MOVE: &str = "adaptive routing, more queue pairs a connection, other placement";
const RECEIVER: &str = "find the receiver that is too slow; set the PFC watchdog on the switch";
const BUFFERS: &str = "check PFC and its headroom on both ends of the path, and the cable";

const fn fault(
    name: &'static str,
    borne: u64,
    check: &'static str,
    saturates: u64,
    fix: &'static str,
) -> Counter {
    Counter { name, meaning: Meaning::Fault(borne), check, saturates: Some(saturates), fix }
}

const fn plain(
    name: &'static str,
    meaning: Meaning,
    check: &'static str,
    fix: &'static str,
) -> Counter {
    Counter { name, meaning, check, saturates: None, fix }
}

/// All that are judged. Others are read over.
pub const COUNTERS: &[Counter] = &[
    plain("PortXmitData", Meaning::SentWords, "fab-06", MOVE),
    plain("PortRcvData", Meaning::ReceivedWords, "fab-06", MOVE),
    plain("PortXmitWait", Meaning::Waited, "ctr-05", MOVE),
    fault("SymbolErrorCounter", 10, "ctr-01", 0xffff, CABLE),
    fault("LinkErrorRecoveryCounter", 10, "ctr-02", 0xff, CABLE),
    fault("LinkDownedCounter", 10, "ctr-02", 0xff, CABLE),
    fault("PortRcvErrors", 10, "ctr-03", 0xffff, CABLE),
    fault("PortRcvRemotePhysicalErrors", 100, "ctr-03", 0xffff, UPSTREAM),
    fault("PortRcvSwitchRelayErrors", 100, "ctr-03", 0xffff, UPSTREAM),
    fault("PortXmitDiscards", 100, "ctr-04", 0xffff, DRAIN),
    fault("PortXmitConstraintErrors", 100, "ctr-03", 0xff, "check partition keys of the port"),
    fault("PortRcvConstraintErrors", 100, "ctr-03", 0xff, "check partition keys of the port"),
    fault("LocalLinkIntegrityErrors", 10, "ctr-01", 0xf, CABLE),
    fault("ExcessiveBufferOverrunErrors", 10, "ctr-03", 0xf, CABLE),
    fault(
        "VL15Dropped",
        100,
        "ctr-04",
        0xffff,
        "management packets are lost: is a subnet manager flooding?",
    ),
    fault(
        "QP1Dropped",
        100,
        "ctr-04",
        0xffff,
        "management packets are lost: is a subnet manager flooding?",
    ),
    plain("PortLocalPhysicalErrors", Meaning::Fault(10), "ctr-03", CABLE),
    plain("PortMalformedPktErrors", Meaning::Fault(10), "ctr-03", CABLE),
    plain("PortBufferOverrunErrors", Meaning::Fault(10), "ctr-03", CABLE),
    plain("PortDLIDMappingErrors", Meaning::Fault(10), "ctr-03", UPSTREAM),
    plain("PortVLMappingErrors", Meaning::Fault(10), "ctr-03", UPSTREAM),
    plain(
        "PortLoopingErrors",
        Meaning::Fault(10),
        "ctr-03",
        "the routes have a loop: look at the subnet manager's log",
    ),
    plain("tx_vport_rdma_unicast_bytes", Meaning::SentBytes, "fab-06", MOVE),
    plain("rx_vport_rdma_unicast_bytes", Meaning::ReceivedBytes, "fab-06", MOVE),
    plain("tx_bytes_phy", Meaning::SentBytes, "fab-06", MOVE),
    plain("rx_bytes_phy", Meaning::ReceivedBytes, "fab-06", MOVE),
    plain("tx_bytes", Meaning::SentBytes, "fab-06", MOVE),
    plain("rx_bytes", Meaning::ReceivedBytes, "fab-06", MOVE),
    plain(
        "rx_pause_ctrl_phy",
        Meaning::GlobalPause,
        "ctr-09",
        "ethtool -A <interface> rx off tx off; use PFC alone",
    ),
    plain("rx_discards_phy", Meaning::Fault(0), "ctr-11", BUFFERS),
    plain("tx_discards_phy", Meaning::Fault(0), "ctr-11", BUFFERS),
    plain("rx_crc_errors_phy", Meaning::Fault(0), "ctr-11", BUFFERS),
    plain(
        "rx_out_of_buffer",
        Meaning::Fault(0),
        "ctr-11",
        "the host takes packets too slowly: rings, interrupts, CPUs",
    ),
    plain("rx_symbol_err_phy", Meaning::Fault(10), "ctr-01", CABLE),
    plain("rx_ecn_mark", Meaning::Marked, "ctr-10", MOVE),
    plain("np_ecn_marked_roce_packets", Meaning::Marked, "ctr-10", MOVE),
    plain("np_cnp_sent", Meaning::Marked, "ctr-10", MOVE),
    plain("rp_cnp_handled", Meaning::Marked, "ctr-10", MOVE),
    plain("rx_prio0_pause", Meaning::Pause, "ctr-08", RECEIVER),
    plain("rx_prio1_pause", Meaning::Pause, "ctr-08", RECEIVER),
    plain("rx_prio2_pause", Meaning::Pause, "ctr-08", RECEIVER),
    plain("rx_prio3_pause", Meaning::Pause, "ctr-08", RECEIVER),
    plain("rx_prio4_pause", Meaning::Pause, "ctr-08", RECEIVER),
    plain("rx_prio5_pause", Meaning::Pause, "ctr-08", RECEIVER),
    plain("rx_prio6_pause", Meaning::Pause, "ctr-08", RECEIVER),
    plain("rx_prio7_pause", Meaning::Pause, "ctr-08", RECEIVER),
    plain("rx_prio0_pause_duration", Meaning::PauseTime, "ctr-08", RECEIVER),
    plain("rx_prio1_pause_duration", Meaning::PauseTime, "ctr-08", RECEIVER),
    plain("rx_prio2_pause_duration", Meaning::PauseTime, "ctr-08", RECEIVER),
    plain("rx_prio3_pause_duration", Meaning::PauseTime, "ctr-08", RECEIVER),
    plain("rx_prio4_pause_duration", Meaning::PauseTime, "ctr-08", RECEIVER),
    plain("rx_prio5_pause_duration", Meaning::PauseTime, "ctr-08", RECEIVER),
    plain("rx_prio6_pause_duration", Meaning::PauseTime, "ctr-08", RECEIVER),
    plain("rx_prio7_pause_duration", Meaning::PauseTime, "ctr-08", RECEIVER),
];

/// Place of a counter in [`COUNTERS`], by its name in a dump.
#[must_use]
pub fn place(name: &str) -> Option<u8> {
    let known = |counter: &Counter| counter.name == name;
    u8::try_from(COUNTERS.iter().position(known)?).ok()
}

/// What one port has counted: at most one value for each counter of the table.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    values: Vec<(u8, u64)>,
    /// Whether the counters are of the old, narrow form, which stops at its end.
    pub narrow: bool,
}

impl Counters {
    /// Keeps a value; a counter that is told again keeps the later one.
    pub fn set(&mut self, place: u8, value: u64) {
        match self.values.binary_search_by_key(&place, |(known, _)| *known) {
            Ok(at) => self.values[at].1 = value,
            Err(at) => self.values.insert(at, (place, value)),
        }
    }

    /// Takes the values of another dump of the same port over.
    pub fn merge(&mut self, other: &Self) {
        for (place, value) in &other.values {
            self.set(*place, *value);
        }
        self.narrow |= other.narrow;
    }

    /// All values with what they mean.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Counter, u64)> {
        self.values
            .iter()
            .filter_map(|(place, value)| Some((COUNTERS.get(usize::from(*place))?, *value)))
    }

    /// A value by the counter's name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        let wanted = place(name)?;
        let at = self.values.binary_search_by_key(&wanted, |(known, _)| *known).ok()?;
        Some(self.values[at].1)
    }

    /// Bytes sent and received, of whichever counters were told; the first of the table counts.
    #[must_use]
    pub fn bytes(&self) -> (Option<u64>, Option<u64>) {
        let of = |words: Meaning, bytes: Meaning| {
            self.iter().find_map(|(counter, value)| match counter.meaning {
                meaning if meaning == words => Some(value.saturating_mul(4)),
                meaning if meaning == bytes => Some(value),
                _ => None,
            })
        };
        (
            of(Meaning::SentWords, Meaning::SentBytes),
            of(Meaning::ReceivedWords, Meaning::ReceivedBytes),
        )
    }

    /// What was counted since an earlier dump. A counter that went back was cleared: it counts from zero.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut grown = Self { values: Vec::new(), narrow: self.narrow };
        for (place, value) in &self.values {
            let was = before.values.iter().find(|(known, _)| known == place).map(|(_, was)| *was);
            // Only what both dumps tell can be compared.
            if let Some(was) = was {
                grown.set(*place, value.checked_sub(was).unwrap_or(*value));
            }
        }
        grown
    }

    /// Whether nothing was told.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_of_what_both_dumps_tell() {
        let sent = place("PortXmitData").expect("in the table");
        let wait = place("PortXmitWait").expect("in the table");
        let downed = place("LinkDownedCounter").expect("in the table");
        let (mut before, mut after) = (Counters::default(), Counters::default());
        before.set(sent, 100);
        before.set(downed, 9);
        after.set(sent, 150);
        after.set(wait, 7);
        after.set(downed, 2);
        let grown = after.since(&before);
        assert_eq!(grown.bytes(), (Some(200), None));
        assert_eq!(grown.get("PortXmitWait"), None);
        assert_eq!(grown.get("LinkDownedCounter"), Some(2), "cleared in between");
    }

    #[test]
    fn the_table_has_each_counter_once() {
        let mut names: Vec<&str> = COUNTERS.iter().map(|counter| counter.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNTERS.len());
        assert!(COUNTERS.len() < 256);
    }
}

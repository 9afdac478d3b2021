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
    /// Pause frames of one priority, received: the other end is too slow.
    Pause,
    /// Pause frames of one priority, sent: what is behind this port is too slow.
    PauseSent,
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

const fn narrow32(name: &'static str, meaning: Meaning, check: &'static str) -> Counter {
    Counter { name, meaning, check, saturates: Some(0xffff_ffff), fix: MOVE }
}

/// All that are judged. Others are read over.
pub const COUNTERS: &[Counter] = &[
    narrow32("PortXmitData", Meaning::SentWords, "fab-06"),
    narrow32("PortRcvData", Meaning::ReceivedWords, "fab-06"),
    narrow32("PortXmitWait", Meaning::Waited, "ctr-05"),
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
    plain("tx_prio0_pause", Meaning::PauseSent, "ctr-08", RECEIVER),
    plain("tx_prio1_pause", Meaning::PauseSent, "ctr-08", RECEIVER),
    plain("tx_prio2_pause", Meaning::PauseSent, "ctr-08", RECEIVER),
    plain("tx_prio3_pause", Meaning::PauseSent, "ctr-08", RECEIVER),
    plain("tx_prio4_pause", Meaning::PauseSent, "ctr-08", RECEIVER),
    plain("tx_prio5_pause", Meaning::PauseSent, "ctr-08", RECEIVER),
    plain("tx_prio6_pause", Meaning::PauseSent, "ctr-08", RECEIVER),
    plain("tx_prio7_pause", Meaning::PauseSent, "ctr-08", RECEIVER),
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

/// In which form a dump tells counters.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Form {
    /// Of 64 bits: they do not end.
    #[default]
    Wide,
    /// The old one, of few bits: a counter stays at its end.
    Narrow,
    /// The old one, and only what is over a threshold: what is not told is next to nothing.
    Listed,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Told {
    place: u8,
    value: u64,
    form: Form,
    /// It stands where it stops counting.
    ended: bool,
}

/// What one port has counted: at most one value for each counter of the table.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    values: Vec<Told>,
    form: Form,
}

impl Counters {
    /// Nothing told yet, of a dump of this form.
    #[must_use]
    pub fn of(form: Form) -> Self {
        Self { values: Vec::new(), form }
    }

    /// Keeps a value; a counter that is told again keeps the later one.
    pub fn set(&mut self, place: u8, value: u64) {
        let form = self.form;
        let end = COUNTERS.get(usize::from(place)).and_then(|counter| counter.saturates);
        self.keep(Told { place, value, form, ended: form != Form::Wide && end == Some(value) });
    }

    fn keep(&mut self, told: Told) {
        match self.values.binary_search_by_key(&told.place, |known| known.place) {
            // A narrow one knows less than a wide one; so does one that is at its end.
            Ok(at) if told.form == Form::Narrow && self.values[at].form != Form::Narrow => {}
            Ok(at) if told.ended && self.values[at].form == Form::Wide => {}
            Ok(at) => self.values[at] = told,
            Err(at) => self.values.insert(at, told),
        }
    }

    /// Takes the values of another dump of the same port over.
    pub fn merge(&mut self, other: &Self) {
        if self.values.is_empty() {
            self.form = other.form;
        } else if other.form == Form::Listed {
            // Of what neither tells, the list says that it is small.
            self.form = Form::Listed;
        }
        for told in &other.values {
            self.keep(*told);
        }
    }

    /// All values with what they mean.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Counter, u64)> {
        self.values
            .iter()
            .filter_map(|told| Some((COUNTERS.get(usize::from(told.place))?, told.value)))
    }

    fn told(&self, place: u8) -> Option<&Told> {
        let at = self.values.binary_search_by_key(&place, |known| known.place).ok()?;
        self.values.get(at)
    }

    /// A value by the counter's name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        Some(self.told(place(name)?)?.value)
    }

    /// Whether a counter stands where it stops counting: what was counted may be any more.
    #[must_use]
    pub fn ended(&self, name: &str) -> bool {
        place(name).and_then(|place| self.told(place)).is_some_and(|told| told.ended)
    }

    /// Bytes sent and received, of whichever counters were told; the first of the table counts. Of one that stopped
    /// counting nothing is known.
    #[must_use]
    pub fn bytes(&self) -> (Option<u64>, Option<u64>) {
        let of = |words: Meaning, bytes: Meaning| {
            let running = self.values.iter().filter(|told| !told.ended);
            let mut known = running
                .filter_map(|told| Some((COUNTERS.get(usize::from(told.place))?, told.value)));
            known.find_map(|(counter, value)| match counter.meaning {
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

    /// What was counted since an earlier dump. A counter that went back was cleared: it counts from zero. One that
    /// stopped counting grew by at least what is told here.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut grown = Self { values: Vec::new(), form: self.form };
        for told in &self.values {
            let meaning = COUNTERS.get(usize::from(told.place)).map(|counter| counter.meaning);
            let listed = before.form == Form::Listed
                && matches!(meaning, Some(Meaning::Fault(_) | Meaning::Waited));
            // Only what both dumps tell can be compared; a list leaves out what is small.
            let was = before.told(told.place).map(|was| was.value).or_else(|| listed.then_some(0));
            if let Some(was) = was {
                let value = told.value.checked_sub(was).unwrap_or(told.value);
                grown.values.push(Told { value, ..*told });
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
    fn a_list_leaves_out_what_is_small() {
        let symbols = place("SymbolErrorCounter").expect("in the table");
        let sent = place("PortXmitData").expect("in the table");
        let before = Counters::of(Form::Listed);
        let mut after = Counters::of(Form::Listed);
        after.set(symbols, 5000);
        after.set(sent, 9);
        let grown = after.since(&before);
        assert_eq!(grown.get("SymbolErrorCounter"), Some(5000));
        assert_eq!(grown.get("PortXmitData"), None, "data is told by --data alone");
        assert_eq!(after.since(&Counters::default()).get("SymbolErrorCounter"), None);
    }

    #[test]
    fn a_narrow_counter_ends_and_never_replaces_a_wide_one() {
        let sent = place("PortXmitData").expect("in the table");
        let symbols = place("SymbolErrorCounter").expect("in the table");
        let mut narrow = Counters::of(Form::Narrow);
        narrow.set(sent, 0xffff_ffff);
        narrow.set(symbols, 0xffff);
        assert_eq!(narrow.bytes(), (None, None), "nobody knows how many");
        assert!(narrow.since(&narrow).ended("SymbolErrorCounter"));
        let mut wide = Counters::default();
        wide.set(sent, 1 << 40);
        for (mut first, second) in [(wide.clone(), &narrow), (narrow.clone(), &wide)] {
            first.merge(second);
            assert_eq!(first.bytes().0, Some(4 << 40));
            assert!(first.ended("SymbolErrorCounter"));
        }
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

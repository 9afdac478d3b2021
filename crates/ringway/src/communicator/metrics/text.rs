//! The text: the Prometheus exposition format, version 0.0.4.
//!
//! All samples of a metric stand together, as the format wants it, whatever communicator they are of.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::Metered;
use crate::exposition::{Label, Page};
use crate::plan::types::Collective;
use crate::recorder::{Span, Totals};

/// Ends of the buckets in which times are told, in microseconds.
const BUCKETS_US: [u64; 23] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 60_000_000,
];

/// How long two clocks must have been compared for one to be told by the other.
const EXACT: Duration = Duration::from_millis(100);

/// What is told of these communicators.
pub(super) fn text(all: &[Arc<Metered>]) -> String {
    let mut page = Told::default();
    page.metric("ringway_info", "gauge", "The library; always 1.");
    page.sample("ringway_info", &[("version", &env!("CARGO_PKG_VERSION"))], 1);
    page.communicators(all);
    page.operations(all);
    page.messages(all);
    page.device(all);
    page.waiting(all);
    page.links(all);
    page.troubles(all);
    page.0.into_text()
}

/// The text in the making.
#[derive(Debug, Default)]
struct Told(Page);

impl std::ops::Deref for Told {
    type Target = Page;

    fn deref(&self) -> &Page {
        &self.0
    }
}

impl std::ops::DerefMut for Told {
    fn deref_mut(&mut self) -> &mut Page {
        &mut self.0
    }
}

impl Told {
    /// A sample of one communicator.
    fn of(&mut self, one: &Metered, name: &str, labels: &[Label<'_>], value: impl Display) {
        let id = Id(one.communicator);
        let mut every: Vec<Label<'_>> = vec![("communicator", &id), ("rank", &one.rank)];
        every.extend_from_slice(labels);
        self.sample(name, &every, value);
    }

    fn communicators(&mut self, all: &[Arc<Metered>]) {
        let name = "ringway_communicator_info";
        self.metric(name, "gauge", "A communicator of this process; always 1.");
        for one in all {
            let labels: [Label<'_>; 3] =
                [("size", &one.size), ("host", &one.host), ("pid", &one.pid)];
            self.of(one, name, &labels, 1);
        }
        let name = "ringway_failed";
        self.metric(
            name,
            "gauge",
            "Whether the communicator has failed; culprit is the first rank blamed.",
        );
        for one in all {
            let verdict = one.health.verdict();
            let culprit = verdict.as_ref().and_then(|error| error.culprits().first().cloned());
            match culprit {
                Some(culprit) => self.of(one, name, &[("culprit", &culprit.rank)], 1),
                None => self.of(one, name, &[], u8::from(one.health.is_raised())),
            }
        }
    }

    fn operations(&mut self, all: &[Arc<Metered>]) {
        let totals: Vec<(&Metered, Collective, Totals)> = all
            .iter()
            .flat_map(|one| Collective::ALL.map(|kind| (&**one, kind, one.meter.of(kind).read())))
            .filter(|(_, _, totals)| totals.operations > 0)
            .collect();
        let name = "ringway_operations_total";
        self.metric(
            name,
            "counter",
            "Collective calls completed; a group of several counts once, as its first.",
        );
        for (one, kind, totals) in &totals {
            self.of(one, name, &[("collective", &kind.name())], totals.operations);
        }
        let name = "ringway_bytes_total";
        self.metric(
            name,
            "counter",
            "Bytes of those calls: of their input or their output, whichever is longer.",
        );
        for (one, kind, totals) in &totals {
            self.of(one, name, &[("collective", &kind.name())], totals.bytes);
        }
        let name = "ringway_bus_bytes_total";
        self.metric(name, "counter", "The same, times the factor of bus bandwidth; by ringway_operation_seconds_sum it is busbw.");
        for (one, kind, totals) in &totals {
            #[expect(clippy::cast_precision_loss, reason = "a statistic")]
            let bytes = totals.bytes as f64 * kind.bus_factor(one.size);
            self.of(one, name, &[("collective", &kind.name())], bytes);
        }
        let name = "ringway_operation_seconds";
        self.metric(name, "histogram", "How long calls took, from entering to leaving them.");
        for (one, kind, totals) in &totals {
            self.histogram(one, name, &[("collective", &kind.name())], totals);
        }
        let name = "ringway_operation_running_seconds";
        self.metric(
            name,
            "gauge",
            "For how long the call that is under way has stood still; 0 where none does.",
        );
        for one in all {
            let state = one.journal.state(one.health.now_ms());
            let waiting_ms = if state.current().is_some() { state.waiting_ms } else { 0 };
            self.of(one, name, &[], seconds(waiting_ms.saturating_mul(1_000_000)));
        }
    }

    fn messages(&mut self, all: &[Arc<Metered>]) {
        let directions = [("receive", false), ("send", true)];
        let totals: Vec<(&Metered, &str, Totals)> = all
            .iter()
            .flat_map(|one| {
                directions.map(|(way, sends)| (&**one, way, one.meter.messages(sends).read()))
            })
            .filter(|(_, _, totals)| totals.operations > 0)
            .collect();
        let name = "ringway_messages_total";
        self.metric(name, "counter", "Messages sent and received.");
        for (one, way, totals) in &totals {
            self.of(one, name, &[("direction", way)], totals.operations);
        }
        let name = "ringway_message_bytes_total";
        self.metric(name, "counter", "Their bytes.");
        for (one, way, totals) in &totals {
            self.of(one, name, &[("direction", way)], totals.bytes);
        }
        let name = "ringway_message_seconds";
        self.metric(
            name,
            "histogram",
            "How long the group of messages took that each was part of.",
        );
        for (one, way, totals) in &totals {
            self.histogram(one, name, &[("direction", way)], totals);
        }
    }

    fn device(&mut self, all: &[Arc<Metered>]) {
        for (at, name, help) in [
            (0, "ringway_device_operations_total", "Calls on GPU memory put on streams."),
            (1, "ringway_device_bytes_total", "Their bytes, counted as ringway_bytes_total."),
        ] {
            self.metric(name, "counter", help);
            for one in all {
                for kind in Collective::ALL {
                    let both = one.meter.enqueued(kind);
                    if both[0] > 0 {
                        self.of(one, name, &[("collective", &kind.name())], both[at]);
                    }
                }
            }
        }
        let name = "ringway_device_waiting_seconds";
        let text =
            "For how long a kernel on the GPU has stood still for another rank; 0 where none does.";
        self.metric(name, "gauge", text);
        for one in all {
            let state = one.journal.state(one.health.now_ms());
            let waiting_ms = state.kernel.map_or(0, |kernel| kernel.waiting_ms);
            if state.launches > 0 {
                self.of(one, name, &[], seconds(waiting_ms.saturating_mul(1_000_000)));
            }
        }
    }

    fn waiting(&mut self, all: &[Arc<Metered>]) {
        let name = "ringway_waiting_seconds_total";
        self.metric(
            name,
            "counter",
            "For how long nothing moved where this rank slept, by the rank it waited for.",
        );
        for one in all {
            for (peer, waited_us) in one.meter.waits() {
                self.of(one, name, &[("peer", &peer)], seconds(waited_us.saturating_mul(1_000)));
            }
        }
    }

    fn links(&mut self, all: &[Arc<Metered>]) {
        let links: Vec<_> = all
            .iter()
            .flat_map(|one| one.journal.recorder().links().into_iter().map(move |link| (one, link)))
            .collect();
        let name = "ringway_link_bytes_total";
        self.metric(
            name,
            "counter",
            "Bytes that went over links between hosts, with their headers.",
        );
        for (one, link) in &links {
            let (sent, received) = link.traffic.bytes();
            for (way, count) in [("receive", received), ("send", sent)] {
                let labels: [Label<'_>; 3] =
                    [("peer", &link.peer), ("transport", &link.transport), ("direction", &way)];
                self.of(one, name, &labels, count);
            }
        }
        let name = "ringway_link_retries_total";
        self.metric(
            name,
            "counter",
            "TCP segments sent again; RDMA connections that had to be left for others.",
        );
        for (one, link) in &links {
            let labels: [Label<'_>; 2] = [("peer", &link.peer), ("transport", &link.transport)];
            self.of(one, name, &labels, link.traffic.flow().retries);
        }
    }

    fn troubles(&mut self, all: &[Arc<Metered>]) {
        let name = "ringway_errors_total";
        self.metric(name, "counter", "Calls that ended with an error.");
        for one in all {
            for (kind, count) in one.meter.errors() {
                self.of(one, name, &[("kind", &kind.name())], count);
            }
        }
        let name = "ringway_refused_connections_total";
        self.metric(name, "counter", "Connections to this rank's port that were not let in.");
        for one in all {
            for (reason, count) in one.rejections.reasons() {
                self.of(one, name, &[("reason", &reason)], count);
            }
        }
    }

    fn histogram(&mut self, one: &Metered, name: &str, labels: &[Label<'_>], totals: &Totals) {
        if !one.journal.recorder().is_on() {
            return;
        }
        let span = one.span();
        let mut counts = [0; BUCKETS_US.len()];
        for (end, count) in &totals.by_ticks {
            // The bucket in which the middle of these ticks lies.
            let middle_us = span.duration(end - end / 16) / 1_000;
            if let Some(at) = BUCKETS_US.iter().position(|most| middle_us < *most) {
                counts[at] += count;
            }
        }
        let mut below = 0;
        for (most, count) in BUCKETS_US.iter().zip(counts) {
            below += count;
            let most = seconds(most * 1_000);
            let mut labels = labels.to_vec();
            labels.push(("le", &most));
            self.of(one, &format!("{name}_bucket"), &labels, below);
        }
        let mut every = labels.to_vec();
        every.push(("le", &"+Inf"));
        self.of(one, &format!("{name}_bucket"), &every, totals.operations);
        self.of(one, &format!("{name}_sum"), labels, seconds(span.duration(totals.ticks)));
        self.of(one, &format!("{name}_count"), labels, totals.operations);
    }
}

impl Metered {
    /// What turns ticks into seconds.
    fn span(&self) -> Span {
        let now = || self.journal.recorder().clock().span();
        match self.span.get() {
            Some(span) => *span,
            None if now().length() < EXACT => now(),
            None => *self.span.get_or_init(now),
        }
    }
}

/// A communicator's name, as in the log.
struct Id(u64);

impl Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Nanoseconds as seconds.
fn seconds(nanoseconds: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a statistic")]
    let nanoseconds = nanoseconds as f64;
    nanoseconds / 1e9
}

//! When a machine was looked at, so that two looks at one machine can be told from looks at two.

use std::collections::BTreeSet;

use super::host::{Earlier, Host, Totals};

/// Seconds by which the times of boot of two looks may differ: clocks are set.
const BOOT_SLACK: f64 = 120.0;

/// One look at a machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moment {
    /// What its counters had come to.
    pub(crate) totals: Totals,
    when: Option<When>,
}

#[derive(Clone, Debug)]
struct When {
    /// Name and hardware addresses.
    who: String,
    /// Seconds since 1970.
    time: f64,
    /// The same of its boot.
    boot: f64,
}

impl Moment {
    /// Of a look whose checks are done.
    pub(crate) fn of(host: &Host) -> Self {
        Self { totals: host.counted(), when: When::of(host) }
    }

    /// What a look at the same machine before this one tells, where it is one: the same run of the kernel.
    pub(crate) fn since(&self, before: &Self) -> Option<Earlier> {
        let (now, then) = (self.when.as_ref()?, before.when.as_ref()?);
        let same = now.who == then.who && (now.boot - then.boot).abs() < BOOT_SLACK;
        let seconds = now.time - then.time;
        (same && seconds >= 1.0).then(|| Earlier { totals: before.totals.clone(), seconds })
    }
}

impl When {
    fn of(host: &Host) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
        let time = host.taken()? as f64;
        let mut addresses: BTreeSet<String> =
            host.hcas().iter().filter_map(|hca| hca.node_guid.clone()).collect();
        addresses.extend(
            host.nics()
                .iter()
                .filter_map(|nic| host.text(&format!("/sys/class/net/{}/address", nic.name))),
        );
        // Clones of one image have one name.
        if addresses.is_empty() {
            return None;
        }
        let who = format!("{} {}", host.name(), Vec::from_iter(addresses).join(" "));
        Some(Self { who, time, boot: time - host.uptime()? })
    }
}

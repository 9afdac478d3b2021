//! Which RDMA libraries a process would load.

use crate::doctor::checks::{Seen, Tally};
use crate::doctor::host::Host;

/// The library, and those that know one maker's cards; all of one build name the same private version.
const VERBS: &str = "libibverbs.so.1";
const PROVIDERS: [&str; 2] = ["libmlx5.so.1", "libefa.so.1"];

pub(super) fn versions(host: &Host) -> Seen {
    if host.hcas().is_empty() {
        return Seen::absent("no RDMA device");
    }
    let all = host.facts();
    // `library NAME N = PATH VERSION`, N in the order in which the loader looks.
    let found = |library: &str| -> Vec<(&str, &str)> {
        let start = format!("library {library} ");
        let ours = all.iter().filter(|(name, _)| name.starts_with(&start));
        ours.filter_map(|(_, value)| value.rsplit_once(' ')).collect()
    };
    let verbs = found(VERBS);
    let Some((path, version)) = verbs.first() else {
        let why = format!("{VERBS} was not found in LD_LIBRARY_PATH and the system's folders");
        return Seen::unknown("could not look at the RDMA libraries", why);
    };
    let mut tally = Tally::default();
    tally.well(format!("{path}: {version}"));
    for (other, theirs) in verbs.iter().skip(1).filter(|(_, theirs)| theirs != version) {
        tally.warn(format!("{path}: {version}; behind it {other}: {theirs}"));
    }
    for provider in PROVIDERS {
        let Some((other, theirs)) = found(provider).first().copied() else { continue };
        let line = format!("{path}: {version}; {other}: {theirs}");
        if theirs == *version { tally.well(line) } else { tally.fail(line) }
    }
    tally.seen(
        "no RDMA library",
        "one RDMA library is in reach",
        "RDMA libraries of different builds are mixed",
    )
}

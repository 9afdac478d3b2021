//! The hosts of a job: `--hosts a,b:4,node[01-08]:8`, host files, and how ranks are dealt to them.

use std::path::Path;

use anyhow::{Context as _, bail};
use ringway::bootstrap::launcher::expand_hosts;

use crate::launch::RANKS_MAX;
use crate::run::args::RunArgs;

/// The name that means this machine, without ssh.
pub(crate) const HERE: &str = "localhost";

/// A host as somebody wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    slots: Option<u32>,
}

/// The ranks of one host: consecutive ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// As ssh knows it.
    pub(crate) host: String,
    /// The first of its ranks.
    pub(crate) first: u32,
    /// How many it has.
    pub(crate) ranks: u32,
}

/// The hosts that the command line names, with their ranks; `None` for a job on this machine.
pub(crate) fn of(args: &RunArgs) -> anyhow::Result<Option<Vec<Share>>> {
    let hosts = match (&args.hosts, &args.hostfile) {
        (None, None) => return Ok(None),
        (Some(list), _) => parse_list(list).with_context(|| format!("--hosts {list}"))?,
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("--hostfile {}", path.display()))?;
            parse_file(&text, path)?
        }
    };
    deal(hosts, args.ranks).map(Some)
}

/// Reads `a,b:4,user@c,[fd00::1]:2,node[01-04]:8`.
fn parse_list(text: &str) -> anyhow::Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for word in words(text) {
        let word = word.trim();
        if !word.is_empty() {
            hosts.extend(parse_word(word)?);
        }
    }
    if hosts.is_empty() {
        bail!("names no host; write a,b or a:4,b:4");
    }
    Ok(hosts)
}

/// Splits at commas outside of brackets.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |character| {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
}

/// One word of a list: hosts with the same number of slots.
fn parse_word(word: &str) -> anyhow::Result<Vec<Host>> {
    let (names, slots) = match word.rsplit_once(':') {
        Some((names, slots)) if !slots.contains(']') => (names, Some(number(word, slots)?)),
        _ => (word, None),
    };
    let (user, place) =
        names.rsplit_once('@').map_or((None, names), |(user, place)| (Some(user), place));
    // An IPv6 address stands in brackets as well; it has colons, ranges have none.
    let v6 = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let names = match v6.filter(|address| address.contains(':')) {
        Some(address) => vec![address.to_owned()],
        None if place.contains(':') => {
            bail!("{word}: an IPv6 address stands in brackets: [fd00::1]:4")
        }
        None => expand_hosts(place).with_context(|| {
            format!("{word}: not a host or a list such as node[01-04]; at most 65536 hosts")
        })?,
    };
    let named = |name: String| match user {
        Some(user) => format!("{user}@{name}"),
        None => name,
    };
    let hosts: Vec<Host> =
        names.into_iter().map(|name| Host { name: named(name), slots }).collect();
    for host in &hosts {
        let strange =
            |c: char| c.is_whitespace() || c.is_control() || "'\"\\;&|<>$`()*?!".contains(c);
        // ssh would take it for an option.
        if host.name.starts_with('-') || host.name.contains(strange) {
            bail!("{word}: not a name of a host");
        }
    }
    Ok(hosts)
}

fn number(word: &str, slots: &str) -> anyhow::Result<u32> {
    match slots.parse() {
        Ok(slots @ 1..=RANKS_MAX) => Ok(slots),
        _ => bail!("{word}: after the colon stands the number of ranks, from 1 to {RANKS_MAX}"),
    }
}

/// Reads a host file: a host on each line, with `slots=4` (as Open MPI writes it) or `:4` (as MPICH does).
fn parse_file(text: &str, path: &Path) -> anyhow::Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for (line, at) in text.lines().zip(1..) {
        let told = || format!("{}:{at}", path.display());
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let mut found = parse_word(name).with_context(told)?;
        for word in words {
            match word.split_once('=') {
                Some(("slots", slots)) => {
                    let slots = number(word, slots).with_context(told)?;
                    found.iter_mut().for_each(|host| host.slots = Some(slots));
                }
                // Limits that Open MPI knows; ranks are never dealt past the slots.
                Some(("max_slots" | "max-slots", _)) => {}
                _ => bail!("{}: {word}: expected HOST or HOST slots=4", told()),
            }
        }
        hosts.extend(found);
    }
    if hosts.is_empty() {
        bail!(
            "{}: names no host; write one on each line, for example: node1 slots=4",
            path.display()
        );
    }
    Ok(hosts)
}

/// Deals ranks to hosts in blocks. A host without a number of slots has one, or, where none has a number and the ranks are
/// counted, an equal share.
fn deal(hosts: Vec<Host>, asked: Option<u32>) -> anyhow::Result<Vec<Share>> {
    let mut merged: Vec<Host> = Vec::new();
    for host in hosts {
        match merged.iter_mut().find(|known| known.name == host.name) {
            Some(known) => {
                let slots = known.slots.unwrap_or(1).saturating_add(host.slots.unwrap_or(1));
                known.slots = Some(slots);
            }
            None => merged.push(host),
        }
    }
    let count = u32::try_from(merged.len()).unwrap_or(u32::MAX);
    let open = merged.iter().all(|host| host.slots.is_none());
    let slots = |host: &Host| host.slots.unwrap_or(1);
    let total = merged.iter().map(slots).fold(0_u32, u32::saturating_add);
    let size = asked.unwrap_or(total);
    if size == 0 {
        bail!("-n 0: a job has at least 1 rank");
    }
    if !open && size > total {
        bail!(
            "-n {size}: the hosts have {total} slots; write more behind the colons, as in a:8,b:8"
        );
    }
    let mut shares = Vec::new();
    let mut first = 0;
    for (host, at) in merged.into_iter().zip(0_u32..) {
        let fair = size / count + u32::from(at < size % count);
        let ranks = if open { fair } else { slots(&host).min(size - first) };
        if ranks > RANKS_MAX {
            bail!("{}: {ranks} ranks; at most {RANKS_MAX} can be started on one host", host.name);
        }
        if ranks > 0 {
            shares.push(Share { host: host.name, first, ranks });
            first += ranks;
        }
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(list: &str, asked: Option<u32>) -> Vec<(String, u32, u32)> {
        let shares = deal(parse_list(list).unwrap(), asked).unwrap();
        shares.into_iter().map(|share| (share.host, share.first, share.ranks)).collect()
    }

    fn plain(shares: &[(String, u32, u32)]) -> Vec<(&str, u32, u32)> {
        shares.iter().map(|(host, first, ranks)| (host.as_str(), *first, *ranks)).collect()
    }

    #[test]
    fn ranks_are_dealt_in_blocks() {
        assert_eq!(plain(&dealt("a,b", None)), [("a", 0, 1), ("b", 1, 1)]);
        assert_eq!(plain(&dealt("a,b", Some(5))), [("a", 0, 3), ("b", 3, 2)]);
        assert_eq!(plain(&dealt("a:2,b:4", None)), [("a", 0, 2), ("b", 2, 4)]);
        assert_eq!(plain(&dealt("a:2,b:4", Some(3))), [("a", 0, 2), ("b", 2, 1)]);
        assert_eq!(plain(&dealt("a:2,b:4", Some(1))), [("a", 0, 1)]);
        assert_eq!(plain(&dealt("a,b,c", Some(2))), [("a", 0, 1), ("b", 1, 1)]);
        assert_eq!(plain(&dealt("a,b:2,a", None)), [("a", 0, 2), ("b", 2, 2)]);
        let many = dealt("me@n[08-10]:2", None);
        assert_eq!(plain(&many), [("me@n08", 0, 2), ("me@n09", 2, 2), ("me@n10", 4, 2)]);
        assert_eq!(
            plain(&dealt("[fd00::1]:2,[fd00::2]", None)),
            [("fd00::1", 0, 2), ("fd00::2", 2, 1)]
        );
    }

    #[test]
    fn wrong_lists_say_what_is_wrong() {
        for (list, why) in [
            ("", "names no host"),
            (",", "names no host"),
            ("a:0", "from 1 to 1024"),
            ("a:x", "number of ranks"),
            ("a:9999", "from 1 to 1024"),
            ("fd00::1", "brackets"),
            ("-oProxyCommand=x", "not a name"),
            ("a b", "not a"),
            ("a;b", "not a name"),
            ("a[1-", "not a host"),
            ("a[3-1]", "not a host"),
        ] {
            let error = format!("{:#}", parse_list(list).unwrap_err());
            assert!(error.contains(why), "{list}: {error}");
        }
        let error = deal(parse_list("a:1,b:1").unwrap(), Some(3)).unwrap_err().to_string();
        assert!(error.contains("2 slots"), "{error}");
        assert!(deal(parse_list("a").unwrap(), Some(0)).is_err());
        assert!(deal(parse_list("a").unwrap(), Some(2000)).is_err());
    }

    #[test]
    fn host_files_of_both_kinds_are_read() {
        let text =
            "# ours\nnode1 slots=4\n\nnode2:2   # the small one\nnode3 slots=1 max_slots=2\n";
        let hosts = parse_file(text, Path::new("hosts")).unwrap();
        let expected = [("node1", 4), ("node2", 2), ("node3", 1)];
        let read: Vec<_> =
            hosts.iter().map(|host| (host.name.as_str(), host.slots.unwrap())).collect();
        assert_eq!(read, expected);
        let error = format!("{:#}", parse_file("a\nb slots=x", Path::new("hosts")).unwrap_err());
        assert!(error.contains("hosts:2"), "{error}");
        assert!(
            parse_file("# none\n", Path::new("hosts"))
                .unwrap_err()
                .to_string()
                .contains("names no host")
        );
        assert!(
            parse_file("a what=4", Path::new("h")).unwrap_err().to_string().contains("slots=4")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_list_panics_and_every_rank_is_dealt_once(text in "[a-c0-9,:\\[\\]@-]{0,24}", asked in 1_u32..200) {
            if let Ok(hosts) = parse_list(&text)
                && let Ok(shares) = deal(hosts, Some(asked))
            {
                let mut next = 0;
                for share in shares {
                    proptest::prop_assert_eq!(share.first, next);
                    proptest::prop_assert!(share.ranks > 0);
                    next += share.ranks;
                }
                proptest::prop_assert_eq!(next, asked);
            }
        }
    }
}

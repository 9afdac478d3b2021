//! Slurm's compressed node lists: `node[01-04,07],login`.

/// The first host of a list; total over arbitrary text, `None` when the list is malformed.
///
/// ```
/// use ringway::bootstrap::launcher::first_host;
/// assert_eq!(first_host("gpu[08-11,14],login").as_deref(), Some("gpu08"));
/// ```
#[must_use]
pub fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        let Some(after) = rest[end..].strip_prefix('[') else {
            break;
        };
        let (inside, tail) = after.split_once(']')?;
        let first = inside
            .split([',', '-'])
            .next()
            .filter(|first| !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit()))?;
        host.push_str(first);
        rest = tail;
    }
    let plain = !host.is_empty() && !host.contains([']', '[', ' ']);
    plain.then_some(host)
}

/// More hosts than this in one list are a slip of the keyboard.
const HOSTS_MAX: usize = 65_536;

/// All hosts of a list, in its order; total over arbitrary text, `None` when the list is malformed or longer than 65,536
/// hosts.
///
/// ```
/// use ringway::bootstrap::launcher::expand_hosts;
/// assert_eq!(expand_hosts("gpu[08-10],login").unwrap(), ["gpu08", "gpu09", "gpu10", "login"]);
/// ```
#[must_use]
pub fn expand_hosts(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    let mut rest = list.trim();
    loop {
        // One word, up to a comma outside of brackets: texts and ranges in turn.
        let mut made = vec![String::new()];
        loop {
            let end = rest.find([',', '[', ']']).unwrap_or(rest.len());
            made.iter_mut().for_each(|host| host.push_str(&rest[..end]));
            rest = &rest[end..];
            let Some(after) = rest.strip_prefix('[') else { break };
            let (inside, tail) = after.split_once(']')?;
            let numbers = expand_ranges(inside)?;
            if made.len().saturating_mul(numbers.len()) > HOSTS_MAX {
                return None;
            }
            let each =
                |host: &String| numbers.iter().map(|n| format!("{host}{n}")).collect::<Vec<_>>();
            made = made.iter().flat_map(each).collect();
            rest = tail;
        }
        if made.iter().any(|host| host.is_empty() || host.contains(char::is_whitespace)) {
            return None;
        }
        hosts.append(&mut made);
        if hosts.len() > HOSTS_MAX {
            return None;
        }
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Some(hosts),
            None => return None,
        }
    }
}

/// The numbers of `01-04,07`, each as wide as its range is written.
fn expand_ranges(text: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(low) || !digits(high) {
            return None;
        }
        let width = low.len();
        let (low, high): (u64, u64) = (low.parse().ok()?, high.parse().ok()?);
        let count = usize::try_from(high.checked_sub(low)?).ok()?;
        if numbers.len().saturating_add(count) >= HOSTS_MAX {
            return None;
        }
        numbers.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::{expand_hosts, first_host};

    #[test]
    fn lists_are_expanded() {
        let table = [
            ("node1", Some("node1")),
            ("node1,node2", Some("node1 node2")),
            ("a[01-03],b", Some("a01 a02 a03 b")),
            ("gpu[3,7-9]", Some("gpu3 gpu7 gpu8 gpu9")),
            ("r[2-3]-n[09-10]", Some("r2-n09 r2-n10 r3-n09 r3-n10")),
            ("n[9-11].x", Some("n9.x n10.x n11.x")),
            ("", None),
            ("a,", None),
            ("a[", None),
            ("a]", None),
            ("a[]", None),
            ("a[2-1]", None),
            ("a[1-2", None),
            ("a[x-y]", None),
            ("a[1-999999]", None),
            ("a[0-999][0-999]", None),
            ("a[1-99999999999999999999999]", None),
            ("a b", None),
        ];
        for (list, expected) in table {
            let expected = expected.map(|text| text.split(' ').map(str::to_owned).collect());
            assert_eq!(expand_hosts(list), expected, "{list}");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_first_of_all_is_the_first(list in "[a-c0-9,\\[\\]-]{0,20}") {
            if let Some(hosts) = expand_hosts(&list) {
                proptest::prop_assert_eq!(hosts.first().cloned(), first_host(&list));
            }
        }
    }

    #[test]
    fn first_of_many_forms() {
        let table = [
            ("node1", Some("node1")),
            ("node1,node2", Some("node1")),
            ("a[01-04],b", Some("a01")),
            ("gpu[3,7-9]", Some("gpu3")),
            ("rack[2-3]-n[01-16]", Some("rack2-n01")),
            ("dgx-h100-[008-015].cluster.local,x", Some("dgx-h100-008.cluster.local")),
            ("", None),
            ("a[", None),
            ("a[]", None),
            ("a[x-y]", None),
            ("]", None),
        ];
        for (list, expected) in table {
            assert_eq!(first_host(list).as_deref(), expected, "{list}");
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::first_host;

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

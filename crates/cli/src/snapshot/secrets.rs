//! Taking secrets out of text, and hiding who a machine is.
//!
//! *Invariant*: what is taken out is gone, not encoded; what is hidden is the first 40 bits of a hash with a key
//! that is thrown away, so it stays equal within a snapshot and means nothing outside.

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};

/// What stands for a secret.
const GONE: &str = "REMOVED";

/// Names of /etc/hosts that are known.
const HOSTS: usize = 1 << 16;

/// Beginnings and ends of parts of a word that are looked at.
const EDGES: usize = 32;

/// Parts of names whose value is a secret.
const NAMES: &[&str] = &[
    "secret",
    "token",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "api_key",
    "private_key",
    "privatekey",
    "access_key",
    "accesskey",
    "credential",
    "cookie",
    "auth_key",
    "authkey",
];

/// The text with the value of each `NAME=value` or `name: value` whose name says secret taken out, with
/// passwords of URLs and blocks of private keys; and how many. In the kernel's command line (`words`) every
/// word stands for itself.
pub(super) fn removed(text: &str, words: bool) -> (String, usize) {
    let mut count = 0;
    let mut clean = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            in_key = true;
            count += 1;
            clean.push_str(GONE);
            clean.push('\n');
        }
        if in_key {
            in_key = !(line.contains("-----END") && line.contains("PRIVATE KEY"));
            continue;
        }
        let (line, found) = cleaned_line(line, words);
        count += found;
        clean.push_str(&line);
    }
    (clean, count)
}

/// A line without the values of secret names. A value goes from its name to the end of the line, or to the quote
/// that closes around it: it may hold spaces, and nothing says where it ends. On the kernel's command line
/// (`words`) a value is a word.
fn cleaned_line(line: &str, words: bool) -> (String, usize) {
    let (mut count, mut clean, mut rest) = (0, String::with_capacity(line.len()), line);
    while let Some((value, end)) = secret_in(rest, words) {
        count += 1;
        push_without_passwords(&rest[..value], &mut clean, &mut count);
        clean.push_str(GONE);
        rest = &rest[end..];
    }
    push_without_passwords(rest, &mut clean, &mut count);
    (clean, count)
}

/// Where the first secret value of a line begins and ends.
fn secret_in(line: &str, words: bool) -> Option<(usize, usize)> {
    let end_of_line = line.trim_end_matches(['\n', '\r']).len();
    let first_colon = line.find(':');
    for (at, mark) in line.match_indices(['=', ':']) {
        let before = line[..at].trim_end_matches(['"', '\'', ' ']);
        let start = before
            .rfind(|c: char| !is_name(c))
            .map_or(0, |found| found + before[found..].chars().next().map_or(0, char::len_utf8));
        // `name: value` with a name of several words.
        let phrase = mark == ":" && first_colon == Some(at) && !before.contains('=');
        let name = if phrase { before } else { &before[start..] };
        let after = &line[at + 1..end_of_line.max(at + 1)];
        let value = after.trim_start_matches(' ');
        if !is_secret_name(name) || value.is_empty() || mark == ":" && value.starts_with("//") {
            continue;
        }
        let from = end_of_line - value.len();
        // A quote around the value, or one that was opened before the name.
        let own = value.chars().next().filter(|c| ['"', '\''].contains(c));
        let around = || {
            let at = line[..start].rfind(['"', '\''])?;
            let open = line[at..].chars().next()?;
            // An apostrophe within a word opens nothing.
            let opens = !line[..at].ends_with(|c: char| c.is_alphanumeric());
            (opens && line[..start].matches(open).count() % 2 == 1).then_some(open)
        };
        let close =
            |from: usize, quote: char| line[from..end_of_line].find(quote).map(|n| from + n);
        let end = match own {
            Some(quote) => close(from + 1, quote).map(|end| end + 1),
            None => around().and_then(|quote| close(from, quote)),
        };
        let word = || words.then(|| from + value.find(char::is_whitespace).unwrap_or(value.len()));
        let end = end.or_else(word).unwrap_or(end_of_line);
        // An empty value in quotes is no secret.
        if value[..end - from].trim_matches(['"', '\'']).is_empty() {
            continue;
        }
        return Some((from, end));
    }
    None
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}

/// Adds words, those that are URLs without their password.
fn push_without_passwords(text: &str, clean: &mut String, count: &mut usize) {
    for word in text.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        match without_password(bare) {
            Some(url) => {
                *count += 1;
                clean.push_str(&url);
            }
            None => clean.push_str(bare),
        }
        clean.push_str(&word[bare.len()..]);
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // Where a secret lies is none.
    !name.ends_with("_file") && NAMES.iter().any(|part| name.contains(part))
}

/// `https://user:password@host` without the password.
fn without_password(word: &str) -> Option<String> {
    let (scheme, rest) = word.split_once("://")?;
    let (login, host) = rest.split('/').next()?.split_once('@')?;
    let (user, _) = login.split_once(':')?;
    let path = rest.split_once('/').map_or(String::new(), |(_, path)| format!("/{path}"));
    Some(format!("{scheme}://{user}:{GONE}@{host}{path}"))
}

/// The output of `nvidia-smi -q` without who runs what on a GPU.
pub(super) fn without_processes(text: &str) -> String {
    // How deep the heading stands of the section that is left out.
    let mut skipped: Option<usize> = None;
    let is_kept = |line: &&str| {
        let indent = line.len() - line.trim_start_matches(' ').len();
        if skipped.is_some_and(|heading| indent > heading) {
            return false;
        }
        skipped = (line.trim() == "Processes").then_some(indent);
        true
    };
    text.split_inclusive('\n').filter(is_kept).collect()
}

/// Hides names, addresses and serial numbers.
#[derive(Debug)]
pub(super) struct Mask {
    key: [u8; 32],
    host: String,
    /// Names of machines, in small letters.
    names: BTreeSet<String>,
}

impl Mask {
    /// A mask with a key of its own, for the machine of this name, which knows the machines of this /etc/hosts.
    pub(super) fn new(host: &str, hosts: &str) -> std::io::Result<Self> {
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
        let plain = |name: &&str| {
            // Every machine has these.
            let common = ["localhost", "ip6-", "loopback", "broadcasthost"];
            name.len() > 2 && !common.iter().any(|start| name.starts_with(start))
        };
        let others = lines.flat_map(|line| line.split_whitespace().skip(1)).filter(plain);
        let own = [host, host.split('.').next().unwrap_or_default()];
        let names = others.take(HOSTS).chain(own).map(str::to_lowercase);
        let names = names.filter(|name| !name.is_empty()).collect();
        Ok(Self { key, host: host.to_owned(), names })
    }

    /// What stands for the machine's name.
    pub(super) fn own_name(&self) -> String {
        self.name(&self.host)
    }

    fn name(&self, name: &str) -> String {
        format!("host-{}", self.hex(name))
    }

    fn hash(&self, text: &str) -> [u8; 5] {
        let digest =
            Sha256::new().chain_update(self.key).chain_update(text.to_lowercase()).finalize();
        [digest[0], digest[1], digest[2], digest[3], digest[4]]
    }

    fn hex(&self, text: &str) -> String {
        self.hash(text).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The text with everything hidden that names the machine or an address.
    pub(super) fn text(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            if let Some(number) = line.strip_prefix("unique_id ") {
                // AMD's serial number of a GPU.
                clean.push_str(&format!("unique_id {}\n", self.hex(number.trim())));
                continue;
            }
            let hidden = self.numbers(line);
            let line = hidden.as_str();
            let is_part = |c: char| c.is_ascii_alphanumeric() || ":.-_".contains(c);
            let mut rest = line;
            while !rest.is_empty() {
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                let (word, more) = rest.split_at(end);
                clean.push_str(&self.word(word));
                let gap = more.find(is_part).unwrap_or(more.len());
                clean.push_str(&more[..gap]);
                rest = &more[gap..];
            }
        }
        clean
    }

    /// A line whose serial numbers and other ids of a kind are hidden: the word after `UUID:` or `Serial
    /// Number =`, and no more.
    fn numbers(&self, line: &str) -> String {
        let low = line.to_ascii_lowercase();
        let (mut clean, mut done) = (String::with_capacity(line.len()), 0);
        let mut marks: Vec<(usize, usize)> = ["serial", "uuid", "reference id"]
            .iter()
            .flat_map(|mark| low.match_indices(mark).map(|(at, mark)| (at, at + mark.len())))
            .collect();
        marks.sort_unstable();
        for (at, end) in marks {
            // `serialize` is something that processors can do, serial8250 a driver.
            let after = &line[end..];
            let name = after.find([':', '=']).map(|length| &after[..length]);
            let Some(name) = name.filter(|name| {
                name.chars().all(|c| c.is_ascii_alphanumeric() || " \t_-#\"".contains(c))
                    && !name.starts_with(|c: char| c.is_ascii_digit())
                    && !low[at..].starts_with("serialize")
            }) else {
                continue;
            };
            let begin = end + name.len() + 1;
            let rest = &line[begin..];
            let from = begin + rest.len() - rest.trim_start_matches([' ', '\t', '"']).len();
            let length = line[from..].find(|c: char| c.is_whitespace() || ",;)\"".contains(c));
            let to = from + length.unwrap_or(line.len() - from);
            if from < done || from == to || &line[from..to] == "N/A" {
                continue;
            }
            clean.push_str(&line[done..from]);
            clean.push_str(&self.hex(&line[from..to]));
            done = to;
        }
        clean.push_str(&line[done..]);
        clean
    }

    fn word(&self, word: &str) -> String {
        let word = &self.without_names(word);
        let core = word.trim_end_matches([':', '.']);
        let tail = &word[core.len()..];
        let masked = self.masked(core);
        masked.map_or_else(|| word.to_owned(), |text| text + tail)
    }

    /// A word without names of machines, which may be a part of it: `ib-node1`, `node1.example.org`.
    fn without_names(&self, word: &str) -> String {
        let is_part = |c: char| c.is_ascii_alphanumeric();
        let at_edge = |at: usize| {
            let (before, after) = (word[..at].ends_with(is_part), word[at..].starts_with(is_part));
            before != after
        };
        let edges: Vec<usize> = (0..=word.len()).filter(|at| at_edge(*at)).take(EDGES).collect();
        let (mut clean, mut done) = (String::with_capacity(word.len()), 0);
        for (index, &start) in edges.iter().enumerate() {
            if start < done || !word[start..].starts_with(is_part) {
                continue;
            }
            // The longest name that begins here.
            let ends = edges[index..].iter().rev();
            let found = ends
                .copied()
                .find(|&end| end > start && self.names.contains(&word[start..end].to_lowercase()));
            let Some(end) = found else { continue };
            clean.push_str(&word[done..start]);
            clean.push_str(&self.name(&word[start..end]));
            // The domain goes with the name.
            let domain = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
            done = match word[end..].starts_with('.') {
                true => word[end..].find(|c| !domain(c)).map_or(word.len(), |length| end + length),
                false => end,
            };
        }
        clean.push_str(&word[done..]);
        clean
    }

    fn masked(&self, word: &str) -> Option<String> {
        let parts: Vec<&str> = word.split(':').collect();
        let hex = |part: &&str, length: usize| {
            part.len() == length && part.bytes().all(|b| b.is_ascii_hexdigit())
        };
        if parts.len() >= 6 && parts.iter().all(|part| hex(part, 2)) {
            let h = self.hash(word);
            return Some(format!(
                "02:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}",
                h[0], h[1], h[2], h[3], h[4]
            ));
        }
        if (parts.len() == 4 || parts.len() == 8) && parts.iter().all(|part| hex(part, 4)) {
            return Some(self.groups(&parts));
        }
        if let Ok(address) = word.parse::<std::net::Ipv6Addr>() {
            let plain = address.is_loopback() || address.is_unspecified();
            let kept = if address.is_unicast_link_local() { "fe80" } else { "2001:db8" };
            let h = self.hash(word);
            return (!plain)
                .then(|| format!("{kept}::{:02x}{:02x}:{:02x}{:02x}", h[0], h[1], h[2], h[3]));
        }
        if word.split([':', '-', '_']).any(is_ipv4) {
            // With a port, or as a range.
            let mut clean = String::new();
            for piece in word.split_inclusive([':', '-', '_']) {
                let address = piece.trim_end_matches([':', '-', '_']);
                if is_ipv4(address) && !address.starts_with("127.") && address != "0.0.0.0" {
                    let h = self.hash(address);
                    clean.push_str(&format!("10.{}.{}.{}", h[0], h[1], h[2]));
                } else {
                    clean.push_str(address);
                }
                clean.push_str(&piece[address.len()..]);
            }
            return Some(clean);
        }
        let guid = word.strip_prefix("0x").is_some_and(|digits| {
            digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit())
        });
        if guid && !word.trim_start_matches("0x").bytes().all(|b| b == b'0') {
            return Some(format!("0x000000{}", self.hex(word)));
        }
        let dashes: Vec<usize> = word.trim_start_matches("GPU-").split('-').map(str::len).collect();
        (dashes == [8, 4, 4, 4, 12]).then(|| format!("id-{}", self.hex(word)))
    }

    /// A GUID or GID: what says its kind stays (zero, link-local, IPv4), the rest is hidden.
    fn groups(&self, parts: &[&str]) -> String {
        let word = parts.join(":");
        if parts.iter().all(|part| *part == "0000") {
            return word;
        }
        let kept = match parts {
            ["0000", "0000", "0000", "0000", "0000", "ffff", ..] => 6,
            ["fe80", ..] if parts.len() == 8 => 4,
            _ => 0,
        };
        let digits = self.hex(&word).repeat(4);
        let mut groups: Vec<String> = parts[..kept].iter().map(|part| (*part).to_owned()).collect();
        for index in kept..parts.len() {
            let at = (index - kept) * 4;
            groups.push(digits[at..at + 4].to_owned());
        }
        // A hidden global address must not look link-local.
        if kept == 0 && parts.len() == 8 {
            "2001".clone_into(&mut groups[0]);
        }
        groups.join(":")
    }

    /// The owner's own number for a machine. Some clouds write their name there, which stays.
    pub(super) fn asset_tag(&self, text: &str) -> String {
        let is_cloud = ["OracleCloud", "Amazon EC2"].iter().any(|name| text.contains(name));
        if is_cloud || text.trim().is_empty() { text.to_owned() } else { self.hex(text.trim()) }
    }

    /// /proc/net/route: destinations and gateways are eight digits.
    pub(super) fn routes(&self, text: &str) -> String {
        let mut clean = String::new();
        for (number, line) in text.lines().enumerate() {
            let words = line.split_whitespace().enumerate().map(|(column, word)| match column {
                1 | 2 if number > 0 && word != "00000000" => self.hex(word)[..8].to_owned(),
                _ => word.to_owned(),
            });
            clean.push_str(&words.collect::<Vec<_>>().join("\t"));
            clean.push('\n');
        }
        clean
    }
}

fn is_ipv4(word: &str) -> bool {
    let parts: Vec<&str> = word.split('.').collect();
    parts.len() == 4 && parts.iter().all(|part| part.parse::<u8>().is_ok())
}

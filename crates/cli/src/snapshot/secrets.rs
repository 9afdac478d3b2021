//! Taking secrets out of text, and hiding who a machine is.
//!
//! *Invariant*: what is taken out is gone, not encoded; what is hidden is the first 40 bits of a hash with a key
//! that is thrown away, so it stays equal within a snapshot and means nothing outside.

use sha2::{Digest as _, Sha256};

/// What stands for a secret.
const GONE: &str = "REMOVED";

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
/// passwords of URLs and blocks of private keys; and how many.
pub(super) fn removed(text: &str) -> (String, usize) {
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
        let (line, found) = cleaned_line(line);
        count += found;
        clean.push_str(&line);
    }
    (clean, count)
}

fn cleaned_line(line: &str) -> (String, usize) {
    let mut count = 0;
    let mut clean = String::with_capacity(line.len());
    // `name: value` with the value to the end of the line.
    if let Some((name, value)) = line.split_once(':')
        && is_secret_name(name)
        && !value.trim().is_empty()
        && !value.starts_with("//")
    {
        let end = if line.ends_with('\n') { "\n" } else { "" };
        return (format!("{name}: {GONE}{end}"), 1);
    }
    for word in line.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        let space = &word[bare.len()..];
        match bare.split_once('=') {
            Some((name, value)) if is_secret_name(name) && !value.is_empty() => {
                count += 1;
                clean.push_str(name);
                clean.push('=');
                clean.push_str(GONE);
            }
            _ => match without_password(bare) {
                Some(url) => {
                    count += 1;
                    clean.push_str(&url);
                }
                None => clean.push_str(bare),
            },
        }
        clean.push_str(space);
    }
    (clean, count)
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

/// Hides names, addresses and serial numbers.
#[derive(Debug)]
pub(super) struct Mask {
    key: [u8; 32],
    host: String,
}

impl Mask {
    /// A mask with a key of its own, for the machine of this name.
    pub(super) fn new(host: &str) -> std::io::Result<Self> {
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self { key, host: host.to_owned() })
    }

    /// What stands for the machine's name.
    pub(super) fn own_name(&self) -> String {
        format!("host-{}", self.hex(&self.host))
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
            // `serialize` is something that processors can do.
            let low = line.to_lowercase().replace("serialize", "");
            if let Some(number) = low.strip_prefix("unique_id ") {
                // AMD's serial number of a GPU.
                clean.push_str(&format!("unique_id {}\n", self.hex(number.trim())));
                continue;
            }
            if (low.contains("serial") || low.contains("uuid"))
                && let Some((name, value)) = line.split_once(':')
            {
                let end = if line.ends_with('\n') { "\n" } else { "" };
                clean.push_str(name);
                clean.push_str(": ");
                clean.push_str(&self.hex(value.trim()));
                clean.push_str(end);
                continue;
            }
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

    fn word(&self, word: &str) -> String {
        let core = word.trim_end_matches([':', '.']);
        let tail = &word[core.len()..];
        let masked = self.masked(core);
        masked.map_or_else(|| word.to_owned(), |text| text + tail)
    }

    fn masked(&self, word: &str) -> Option<String> {
        if !self.host.is_empty()
            && (word == self.host
                || word.strip_prefix(self.host.as_str()).is_some_and(|rest| rest.starts_with('.')))
        {
            return Some(self.own_name());
        }
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

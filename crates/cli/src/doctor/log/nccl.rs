//! Lines of NCCL and RCCL: finding the message in what launchers put around it, and what it says.
//!
//! ```text
//! [1,3]<stderr>:[2026-01-01 10:00:00] host:pid:tid [dev] file.cc:12 (func) NCCL WARN message
//! └ launcher ──┘└ 2.26 and later ───┘ └ head ─────────────────────┘ └ word ┘ └ message
//! ```
//!
//! *Invariant*: parsing is total: whatever does not have the form is left alone. The frequent lines (one
//! for each collective) are given up after a look at their first bytes.

use memchr::memmem;

use super::job::{Comm, Job, Path};
use super::pairs::Line;
use super::sight::{Place, shown};

/// A line of NCCL in its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    /// All before the word `NCCL`.
    pub(crate) head: &'a [u8],
    /// `INFO`, `WARN`, `TRACE`, `CALL`, `DIAG` or `version`.
    pub(crate) word: &'a [u8],
    pub(crate) message: &'a [u8],
}

const WORDS: [&[u8]; 7] = [b"INFO", b"WARN", b"TRACE", b"CALL", b"DIAG", b"version", b"ABORT"];

/// Finds `NCCL WORD` (or `RCCL version`) in a line.
pub(crate) fn parts<'a>(line: &'a [u8], finder: &memmem::Finder<'_>) -> Option<Parts<'a>> {
    let mut from = 0;
    while let Some(found) = finder.find(&line[from..]) {
        let at = from + found;
        let rest = &line[at + 4..];
        let word = WORDS.into_iter().find(|word| rest.starts_with(word));
        if let (Some(word), Some(before @ (b'N' | b'R'))) =
            (word, at.checked_sub(1).map(|i| line[i]))
        {
            let is_version = word == b"version";
            if !is_version || before == b'R' || at == 1 || line[at - 2] != b'_' {
                let after = &rest[word.len()..];
                let message = after.strip_prefix(b" ").unwrap_or(after);
                return Some(Parts { head: &line[..at - 1], word, message });
            }
        }
        from = at + 4;
    }
    None
}

impl<'a> Parts<'a> {
    /// The host, from the `host:pid:tid` nearest to the word.
    pub(crate) fn host(&self) -> Option<&'a str> {
        let digits = |part: Option<&[u8]>| {
            part.is_some_and(|p| !p.is_empty() && p.iter().all(u8::is_ascii_digit))
        };
        let token = self.head.rsplit(|byte| *byte == b' ').take(16).find(|token| {
            let mut parts = token.rsplitn(3, |byte| *byte == b':');
            digits(parts.next()) && digits(parts.next()) && parts.next().is_some()
        })?;
        let host = token.rsplitn(3, |byte| *byte == b':').nth(2)?;
        // What a launcher glued to it: `[1,0]<stdout>:host`, `[rank3]:host`.
        let host = host.rsplit(|byte| matches!(byte, b':' | b'>' | b']')).next()?;
        let host = std::str::from_utf8(host).ok()?;
        (!host.is_empty() && host.len() <= 128).then_some(host)
    }

    /// Whether this is one of the frequent lines that never speak of trouble.
    pub(crate) fn is_harmless(&self) -> bool {
        const STARTS: [&str; 19] = [
            "AllReduce: ",
            "AllGather: ",
            "ReduceScatter: ",
            "Broadcast: ",
            "Reduce: ",
            "Send: ",
            "Recv: ",
            "AlltoAll: ",
            "Channel ",
            "Ring ",
            "Tree",
            "GPU/",
            "Connected ",
            "comm 0x",
            "ncclCommInitRank",
            "Received and initiated",
            "Using network ",
            "Bootstrap: Using ",
            "NET/IB : Using [",
        ];
        self.word == b"INFO"
            && STARTS.iter().any(|start| self.message.starts_with(start.as_bytes()))
    }
}

/// Takes what an INFO message says into the job.
pub(crate) fn learn(job: &mut Job, parts: &Parts<'_>, place: Place, line: &[u8]) {
    let message = parts.message;
    let Some(first) = message.first() else { return };
    let begins = |text: &str| message.starts_with(text.as_bytes());
    match first {
        b'A' | b'B' | b'R' | b'G' | b'S' if is_choice(message) => choice(job, message),
        b'C' if begins("Channel ") => channel(job, parts, place, line),
        b'C' if begins("CollNet ") => {
            job.paths.entry(Path::CollNet).or_default().sight.add(place, line, None);
            job.sharp.add(place, line, None);
        }
        b'n' if begins("ncclCommInit") || begins("ncclCommSplit") => init(job, parts, place, line),
        b'[' if find(message, b"ncclCommInitRank").is_some() => init(job, parts, place, line),
        b'c' if begins("comm 0x") => init(job, parts, place, line),
        b'c' if begins("cudaDriverVersion ") => {
            job.drivers.add(word_after(message, "cudaDriverVersion "), place, line, parts.host());
        }
        b'G' if begins("GPU/") => nvlinks(job, parts, place, line),
        b'I' if begins("Init timings") => timings(job, message, place),
        b'=' => {
            let bw = number_after(message, "maxBw ");
            job.max_bw = match (job.max_bw, bw) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
        }
        b'0'..=b'9' if find(message, b" coll channels").is_some() => {
            job.channels.add(text(message).trim(), place, line, None);
        }
        b'0'..=b'9' if find(message, b" Bytes -> Algo ").is_some() => choice(job, message),
        b'N' | b'U' | b'B' | b'R' | b'D' | b'F' | b'T' | b'P' | b'd' => {
            named(job, parts, place, line)
        }
        _ => error_chain(job, message, place, line),
    }
}

/// Takes what a line `NCCL version …` says.
pub(crate) fn version(job: &mut Job, parts: &Parts<'_>, place: Place, line: &[u8]) {
    let flavour = if memmem::find(line, b"RCCL version").is_some() { "RCCL" } else { "NCCL" };
    let text = text(parts.message);
    let number = text.trim_start_matches([' ', ':']).split_whitespace().next().unwrap_or("");
    if number.starts_with(|c: char| c.is_ascii_digit()) && number.len() < 64 {
        let key = format!("{flavour} {number}");
        job.versions.add(key.as_str(), place, line, parts.host());
    }
}

fn named(job: &mut Job, parts: &Parts<'_>, place: Place, line: &[u8]) {
    let message = parts.message;
    let begins = |text: &str| message.starts_with(text.as_bytes());
    let has = |text: &str| find(message, text.as_bytes()).is_some();
    if begins("NET/") {
        network(job, parts, place, line);
    } else if begins("NCCL version") || begins("RCCL version") {
        version(job, &Parts { message: &message[12..], ..*parts }, place, line);
    } else if begins("NCCL_") || begins("RCCL_") {
        let text = text(message);
        if let Some((name, value)) = text.split_once(" set by environment to ") {
            let value = value.trim().trim_end_matches('.');
            if name.len() < 80 && value.len() < 256 && !name.contains(' ') {
                job.setting(name, value, place, line, parts.host());
            }
        }
    } else if begins("Using network ") {
        job.networks.add(word_after(message, "Using network "), place, line, parts.host());
    } else if begins("Bootstrap") && has("Using ") {
        job.bootstrap.add(interface_after(message, "Using "), place, line, parts.host());
    } else if begins("Failed to open libibverbs") {
        job.no_verbs.add(place, line, parts.host());
    } else if begins("NVLS multicast support is not available") {
        job.nvls_absent.add(place, line, parts.host());
    } else if begins("NVLS multicast support is available") || begins("NVLS comm ") {
        job.nvls_present.add(place, line, parts.host());
    } else if begins("TUNER/Plugin: Using") || begins("TUNER/Plugin: Plugin") {
        job.tuner.add(shown(message).as_str(), place, line, parts.host());
    }
}

fn network(job: &mut Job, parts: &Parts<'_>, place: Place, line: &[u8]) {
    let message = parts.message;
    let begins = |text: &str| message.starts_with(text.as_bytes());
    let has = |text: &str| find(message, text.as_bytes()).is_some();
    let host = parts.host();
    if begins("NET/Socket") && has("Using [") {
        job.sockets.add(interface_after(message, "Using [0]"), place, line, host);
    } else if begins("NET/IB: [") && has("uverbs") {
        // `NET/IB: [0] mlx5_0:uverbs0:1/RoCE provider=Mlx5 speed=100000 …`
        let name = word_after(message, "] ").split(':').next().unwrap_or("");
        if let Some(mbps) = number_after(message, "speed=") {
            job.nic(host.unwrap_or(""), name, mbps);
        }
    } else if begins("NET/IB : No device found") || begins("NET/IB: No device found") {
        job.no_device.add(place, line, host);
    } else if begins("NET/IB") && has("Using [0]") {
        let text = text(message);
        let list = text.split_once("Using ").map_or("", |(_, list)| list);
        job.adapters.add(list.split(';').next().unwrap_or("").trim(), place, line, host);
    } else if begins("NET/Plugin") {
        if has("Could not find") || has("No plugin found") || has("cannot open shared object") {
            job.plugin_missing.add(place, line, host);
        } else if has("Loaded net plugin") || has("Using ") {
            job.plugins.add(shown(message).as_str(), place, line, host);
        }
    } else if begins("NET/OFI") {
        if has("Selected") || has("Initializing") || has("Using ") {
            job.plugins.add(shown(message).as_str(), place, line, host);
        }
    } else if has("GPU Direct RDMA") && has("Disabled") {
        job.gdr_off.add(quoted(message), place, line, host);
    } else if has("GPU Direct RDMA Enabled") {
        job.gdr_on.add(quoted(message), place, line, host);
    }
}

/// What a line of a channel begins with; its number follows.
const CHANNEL: &str = "Channel ";

/// `Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA/Shared`, or the order of a ring.
fn channel(job: &mut Job, parts: &Parts<'_>, place: Place, line: &[u8]) {
    let message = parts.message;
    let Some(via) = find(message, b" via ") else {
        if let Some(colon) = find(message, b" : ")
            && let Some(slash) = memchr::memchr(b'/', message)
            && message[..slash].ends_with(b"00")
        {
            job.rings.add(shown(&message[colon + 3..]).as_str(), place, line, None);
        }
        return;
    };
    let way = &message[via + 5..];
    let path = match way {
        _ if way.starts_with(b"P2P/CUMEM") => Path::P2pCumem,
        _ if way.starts_with(b"P2P/IPC") => Path::P2pIpc,
        _ if way.starts_with(b"P2P/MNNVL") => Path::P2pMnnvl,
        _ if way.starts_with(b"P2P/indirect") => Path::P2pIndirect,
        _ if way.starts_with(b"P2P") => Path::P2pDirect,
        _ if way.starts_with(b"SHM") || way.starts_with(b"direct shared memory") => Path::Shm,
        _ if way.starts_with(b"NET/IB") => Path::NetRdma,
        _ if way.starts_with(b"NET/Socket") => Path::NetSocket,
        _ if way.starts_with(b"NET/") => Path::NetOther,
        _ if way.starts_with(b"COLLNET") => Path::CollNet,
        _ => return,
    };
    let host = if path.is_net() { parts.host() } else { None };
    let seen = job.paths.entry(path).or_default();
    seen.sight.add(place, line, host);
    if path.is_net() {
        let has_gdr = find(way, b"/GDRDMA").is_some();
        let without = usize::from(!has_gdr);
        if find(&message[..via], b"[send]").is_some() {
            seen.send[without] += 1;
        } else if find(&message[..via], b"[receive]").is_some() {
            seen.receive[without] += 1;
        }
        if !has_gdr {
            seen.without_gdr.add(place, line, host);
        }
        seen.pxn += u64::from(way.iter().take(24).any(|byte| *byte == b'('));
    }
    if let Some((from, to)) = ends(&message[..via]) {
        let before = &message[..via];
        let side = if find(before, b"[send]").is_some() {
            Some(true)
        } else {
            find(before, b"[receive]").map(|_| false)
        };
        let gdr = side
            .filter(|_| path.is_net())
            .map(|is_sender| (is_sender, find(way, b"/GDRDMA").is_some()));
        let channel = leading(&message[CHANNEL.len().min(message.len())..]).unwrap_or(0);
        job.pairs.add(Line { from, to, path, channel, gdr });
    }
}

/// `… : 0[0] -> 8[0] …`: the two ranks.
fn ends(text: &[u8]) -> Option<(u32, u32)> {
    let colon = find(text, b" : ")? + 3;
    let arrow = find(text, b" -> ")?;
    Some((leading(text.get(colon..)?)?, leading(text.get(arrow + 4..)?)?))
}

/// `ncclCommInitRank comm 0x.. rank 0 nranks 8 … commId 0x.. - Init START`, and `comm 0x.. rank 0 nRanks 8
/// nNodes 1 …`.
fn init(job: &mut Job, parts: &Parts<'_>, place: Place, line: &[u8]) {
    let message = parts.message;
    let has = |text: &str| find(message, text.as_bytes()).is_some();
    let host = parts.host();
    if let Some(host) = host {
        job.host(host);
    }
    let rank = number_after(message, "rank ").and_then(to_u32);
    let nranks = number_after(message, "nranks ").or_else(|| number_after(message, "nRanks "));
    let (Some(rank), Some(nranks)) = (rank, nranks.and_then(to_u32)) else { return };
    if has("Abort COMPLETE") {
        job.aborted.add(place, line, host);
        return;
    }
    if has(" nNodes ") {
        // This line has no id; its own pointer is good for one process only, so the largest counts.
        let nodes = number_after(message, "nNodes ").and_then(to_u32);
        if let Some(comm) = job.comms.values_mut().rev().find(|comm| comm.nranks == nranks) {
            comm.nodes = comm.nodes.max(nodes);
        } else if let Some(comm) = job.comm(u64::from(nranks)) {
            comm.nranks = nranks;
            comm.nodes = comm.nodes.max(nodes);
        }
        return;
    }
    let end = message.trim_ascii_end();
    let (start, complete) = (end.ends_with(b"Init START"), end.ends_with(b"Init COMPLETE"));
    if !start && !complete {
        return;
    }
    let id = hex_after(message, "commId 0x").unwrap_or_else(|| u64::from(nranks));
    let is_new = |comm: &Comm| comm.first.count == 0;
    if let Some(comm) = job.joined(id, rank, nranks, complete)
        && is_new(comm)
    {
        comm.first.add(place, line, host);
    }
    if complete && let Some(comm) = job.comm(id) {
        // Up to 2.17 there was no START line.
        comm.started.insert(rank);
    }
}

/// `GPU/0-17000 :GPU/0-17000 (0/5000.0/LOC) GPU/0-65000 (1/240.0/NVL) …`
fn nvlinks(job: &mut Job, parts: &Parts<'_>, place: Place, line: &[u8]) {
    let message = text(parts.message);
    let Some((from, rest)) = message.split_once(" :") else { return };
    let host = parts.host().unwrap_or("").to_owned();
    let mut words = rest.split_whitespace();
    while let (Some(to), Some(path)) = (words.next(), words.next()) {
        let mut fields = path.trim_matches(['(', ')']).split('/');
        let (_hops, bw, kind) = (fields.next(), fields.next(), fields.next());
        if to.starts_with("GPU/")
            && kind == Some("NVL")
            && let Some(bw) = bw.and_then(|bw| bw.parse::<f64>().ok()).filter(|bw| bw.is_finite())
        {
            let ends = (host.clone(), from.to_owned(), to.to_owned());
            job.nvlink(ends, bw, place, shown(line));
        }
    }
}

fn timings(job: &mut Job, message: &[u8], place: Place) {
    let (Some(total), Some(rank)) =
        (number_after(message, "total "), number_after(message, "rank "))
    else {
        return;
    };
    let rank = to_u32(rank).unwrap_or(0);
    if job.slowest_init.is_none_or(|(slowest, ..)| total > slowest) {
        job.slowest_init = Some((total, rank, place));
    }
}

fn is_choice(message: &[u8]) -> bool {
    // `AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE`; beside it stand the far more frequent
    // `AllReduce: opCount …`, so the byte after the colon decides.
    let colon = message.iter().take(16).position(|byte| *byte == b':');
    colon.and_then(|at| message.get(at + 2)).is_some_and(u8::is_ascii_digit)
}

fn choice(job: &mut Job, message: &[u8]) {
    let Some(arrow) = find(message, b" Bytes -> Algo ") else { return };
    let digits = message[..arrow].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&message[arrow - digits..arrow]).ok();
    let bytes = number.and_then(|n| n.parse().ok()).unwrap_or(0);
    let name = message[..arrow - digits].trim_ascii_end().strip_suffix(b":").unwrap_or(b"");
    let rest = &message[arrow + 15..];
    let mut words = rest.split(|byte| *byte == b' ');
    let (algorithm, _proto, protocol) = (words.next(), words.next(), words.next());
    if let (Some(algorithm), Some(protocol)) = (algorithm, protocol)
        && name.len() + algorithm.len() + protocol.len() < 60
    {
        let mut key = [0_u8; 64];
        let mut length = 0;
        for part in [name, b" ", algorithm, b"/", protocol] {
            key[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        job.choice(key[..length].trim_ascii(), bytes);
    }
}

/// `init.cc:1358 -> 3`: the way an error took.
fn error_chain(job: &mut Job, message: &[u8], place: Place, line: &[u8]) {
    if let Some(at) = find(message, b" -> ")
        && find(&message[..at], b".c").is_some()
        && let Some(code @ 1..=9) = leading(&message[at + 4..])
    {
        job.last_error.add(&code, place, line, None);
    }
}

/// Finds a short text in a short line: cheaper than preparing a search for it.
pub(crate) fn find(line: &[u8], text: &[u8]) -> Option<usize> {
    // Capitals and signs are rarer than small letters and blanks.
    let rare =
        text.iter().position(|byte| !byte.is_ascii_lowercase() && *byte != b' ').unwrap_or(0);
    let last = line.len().checked_sub(text.len())?;
    memchr::memchr_iter(*text.get(rare)?, &line[..last + rare + 1])
        .filter_map(|at| at.checked_sub(rare))
        .find(|at| line[*at..].starts_with(text))
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(4096)])
}

fn word_after<'a>(message: &'a [u8], mark: &str) -> &'a str {
    let Some(at) = find(message, mark.as_bytes()) else { return "" };
    let rest = &message[at + mark.len()..];
    let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len()).min(64);
    std::str::from_utf8(&rest[..end]).unwrap_or("")
}

/// The name of an interface: `eth0` of `eth0:10.0.0.1<0>`.
fn interface_after<'a>(message: &'a [u8], mark: &str) -> &'a str {
    let word = word_after(message, mark).trim_start_matches("[0]");
    word.split(':').next().unwrap_or(word)
}

fn quoted(message: &[u8]) -> &str {
    let text = std::str::from_utf8(&message[..message.len().min(256)]).unwrap_or("");
    text.split('\'').nth(1).unwrap_or("?")
}

/// The number that follows `mark`, where `mark` begins a word.
pub(crate) fn number_after(message: &[u8], mark: &str) -> Option<f64> {
    let mut from = 0;
    while let Some(found) = find(&message[from..], mark.as_bytes()) {
        let at = from + found;
        from = at + mark.len();
        if at > 0 && message[at - 1].is_ascii_alphanumeric() {
            continue;
        }
        let rest = &message[at + mark.len()..];
        let end = rest
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'.')
            .unwrap_or(rest.len())
            .min(32);
        return std::str::from_utf8(&rest[..end]).ok()?.trim_end_matches('.').parse().ok();
    }
    None
}

fn hex_after(message: &[u8], mark: &str) -> Option<u64> {
    let word = word_after(message, mark);
    u64::from_str_radix(word, 16).ok()
}

fn leading(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.iter().take(10).take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()
}

/// A whole number read as a float, if it is one a rank can have.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just before")]
pub(crate) fn to_u32(number: f64) -> Option<u32> {
    (0.0..=16_777_216.0).contains(&number).then_some(number as u32)
}

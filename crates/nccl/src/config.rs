#![allow(unsafe_code, reason = "a configuration holds addresses of C strings")]
//! `ncclConfig_t`: which of its fields are there follows from its size *and* its version.
//!
//! The structure has grown with almost every version, twice into padding, so that its size alone
//! does not tell what is valid. A field counts where the structure is long enough for it and its
//! version has it.
//!
//! ```text
//!   0 size  8 magic  12 version | 16 blocking │ 20 … │ 32 netName │ 40 … │ 48 commName │ 56 … │ 116
//! ```

use std::ffi::c_int;

use ringway::config::{Config, Environment, Source};
use ringway::{Error, Result};

use crate::raw::{Text, Versioned};
use crate::types::{API_MAGIC, UNDEF_INT};

/// Where the fields of the newest version end.
const BYTES_MAX: usize = 120;

/// What a field must be.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Flag,
    AtLeast(c_int),
    Between(c_int, c_int),
    Any,
}

/// A number in the structure.
#[derive(Clone, Copy, Debug)]
struct Field {
    name: &'static str,
    offset: usize,
    /// The version that has it first.
    since: u32,
    rule: Rule,
}

const fn field(name: &'static str, offset: usize, since: u32, rule: Rule) -> Field {
    Field { name, offset, since, rule }
}

const FIELDS: &[Field] = &[
    field("blocking", 16, 21400, Rule::Flag),
    field("cgaClusterSize", 20, 21700, Rule::AtLeast(0)),
    field("minCTAs", 24, 21700, Rule::AtLeast(1)),
    field("maxCTAs", 28, 21700, Rule::AtLeast(1)),
    field("splitShare", 40, 21800, Rule::Flag),
    field("trafficClass", 44, 22500, Rule::Any),
    field("collnetEnable", 56, 22700, Rule::Flag),
    field("CTAPolicy", 60, 22700, Rule::Between(0, 3)),
    field("shrinkShare", 64, 22700, Rule::Flag),
    field("nvlsCTAs", 68, 22700, Rule::AtLeast(1)),
    field("nChannelsPerNetPeer", 72, 22800, Rule::AtLeast(1)),
    field("nvlinkCentricSched", 76, 22800, Rule::Flag),
    field("graphUsageMode", 80, 22900, Rule::Between(0, 2)),
    field("numRmaCtx", 84, 22900, Rule::AtLeast(0)),
    field("maxP2pPeers", 88, 23000, Rule::AtLeast(1)),
    field("graphStreamOrdering", 92, 23005, Rule::Flag),
    field("launchOrderImplicit", 96, 23100, Rule::Any),
    field("numRmaSig", 100, 23100, Rule::Any),
    field("rmaEagerInit", 104, 23100, Rule::Any),
    field("hostCftMode", 108, 23100, Rule::Any),
    field("nvlsHostMode", 112, 23100, Rule::Any),
];

/// The two strings: name, offset, first version.
const NET_NAME: (usize, u32) = (32, 21700);
const COMM_NAME: (usize, u32) = (48, 22700);

/// What of a configuration counts here. The rest is advice about GPUs and their links; it is
/// checked, since a wrong value is a mistake, and then has nothing to apply to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Whether calls return when they are done.
    pub(crate) blocking: bool,
    /// The program's name for the communicator.
    pub(crate) name: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { blocking: true, name: None }
    }
}

impl Settings {
    /// The settings in a program's structure; NULL stands for the defaults. `NCCL_COMM_BLOCKING`
    /// goes before what the program asks for.
    pub(crate) fn read(given: Versioned, inherited: &Self) -> Result<Self> {
        let mut settings = match given.head() {
            None => inherited.clone(),
            Some(head) => {
                let size = size_of_structure(&head)?;
                let parsed = parse(&given.bytes(size.min(BYTES_MAX))?)?;
                // SAFETY: the address stands in a field that the structure's version has, and the
                // program promises that it is NULL or that of a C string.
                let text = |address: usize| unsafe { Text::at(address) }.read();
                if let Some(net) = text(parsed.net_name) {
                    tracing::info!(
                        target: ringway::log::INIT,
                        "ncclConfig_t.netName={net}: ringway chooses between its transports itself; \
                         see RINGWAY_TRANSPORT"
                    );
                }
                Self { blocking: parsed.blocking, name: text(parsed.comm_name) }
            }
        };
        settings.overrule();
        Ok(settings)
    }

    /// The settings where a program gives none.
    pub(crate) fn inherit(inherited: &Self) -> Self {
        let mut settings = inherited.clone();
        settings.overrule();
        settings
    }

    fn overrule(&mut self) {
        if let Some(blocking) = load().blocking {
            self.blocking = blocking;
        }
    }
}

/// What the log shows is set up by whoever comes first.
pub(crate) fn load() -> Config {
    let config = patient(Config::load(&Environment::from_process()));
    ringway::log::install(&config);
    ringway::log::warn_settings(&config);
    config
}

/// NCCL has no limit for the ranks to find each other, and programs let one prepare something for minutes while the
/// others come together already: where nobody says how long that may take, it is no less than for a call.
fn patient(mut config: Config) -> Config {
    if config.source("RINGWAY_INIT_TIMEOUT") == Source::Default {
        config.init_timeout = config.init_timeout.max(config.timeout);
    }
    config
}

fn size_of_structure(head: &[u8; 16]) -> Result<usize> {
    let magic = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]);
    if magic != API_MAGIC {
        return Err(Error::argument(
            "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER",
        ));
    }
    let size = usize::from_ne_bytes(first(head));
    if size < head.len() {
        return Err(Error::argument(format!(
            "ncclConfig_t says it has {size} bytes; 24 is the least"
        )));
    }
    Ok(size)
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("the caller has looked at the length")
}

/// What the fields say; addresses of strings are 0 where there is none.
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    blocking: bool,
    net_name: usize,
    comm_name: usize,
}

/// Reads the bytes of a structure, its head included.
fn parse(bytes: &[u8]) -> Result<Parsed> {
    let version = u32::from_ne_bytes(first(&bytes[12..]));
    let number = |field: &Field| {
        let there = version >= field.since && bytes.len() >= field.offset + 4;
        let value = there.then(|| c_int::from_ne_bytes(first(&bytes[field.offset..])));
        value.filter(|value| *value != UNDEF_INT)
    };
    let address = |(offset, since): (usize, u32)| {
        let there = version >= since && bytes.len() >= offset + 8;
        if there { usize::from_ne_bytes(first(&bytes[offset..])) } else { 0 }
    };
    for field in FIELDS {
        let fits = number(field).is_none_or(|value| match field.rule {
            Rule::Flag => value == 0 || value == 1,
            Rule::AtLeast(least) => value >= least,
            Rule::Between(least, most) => (least..=most).contains(&value),
            Rule::Any => true,
        });
        if !fits {
            return Err(Error::argument(format!(
                "Invalid config {} attribute value {}",
                field.name,
                number(field).unwrap_or_default()
            )));
        }
    }
    let named = |name: &str| FIELDS.iter().find(|field| field.name == name).and_then(number);
    if let (Some(least), Some(most)) = (named("minCTAs"), named("maxCTAs"))
        && least > most
    {
        return Err(Error::argument(format!(
            "Invalid config min/max channels attribute value {least}/{most}"
        )));
    }
    Ok(Parsed {
        blocking: named("blocking") != Some(0),
        net_name: address(NET_NAME),
        comm_name: address(COMM_NAME),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every version's structure: version, `sizeof`, the end of its last field.
    const VERSIONS: &[(u32, usize, usize)] = &[
        (21400, 24, 20),
        (21701, 40, 40),
        (21801, 48, 44),
        (22005, 48, 44),
        (22602, 48, 48),
        (22703, 72, 72),
        (22809, 80, 80),
        (22907, 88, 88),
        (23004, 96, 92),
        (23007, 96, 96),
        (23102, 120, 116),
        (23203, 120, 116),
    ];

    /// A structure in which all that is not valid is garbage, and all that is valid is unset.
    fn structure(version: u32, size: usize, end: usize) -> Vec<u8> {
        let mut bytes = vec![0xa5; BYTES_MAX];
        bytes[..8].copy_from_slice(&size.to_ne_bytes());
        bytes[8..12].copy_from_slice(&API_MAGIC.to_ne_bytes());
        bytes[12..16].copy_from_slice(&version.to_ne_bytes());
        for field in FIELDS.iter().filter(|field| field.offset + 4 <= end) {
            set(&mut bytes, field.offset, UNDEF_INT);
        }
        for (offset, _) in [NET_NAME, COMM_NAME] {
            if offset + 8 <= end {
                bytes[offset..offset + 8].fill(0);
            }
        }
        bytes
    }

    fn set(bytes: &mut [u8], offset: usize, value: c_int) {
        bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn read(bytes: &[u8]) -> Result<Parsed> {
        let head: [u8; 16] = first(bytes);
        parse(&bytes[..size_of_structure(&head)?.min(BYTES_MAX)])
    }

    #[test]
    fn garbage_behind_what_a_version_has_is_not_looked_at() {
        for &(version, size, end) in VERSIONS {
            let bytes = structure(version, size, end);
            let unset = Parsed { blocking: true, net_name: 0, comm_name: 0 };
            assert_eq!(read(&bytes).unwrap(), unset, "{version}");
        }
    }

    #[test]
    fn every_field_a_version_has_is_looked_at() {
        for &(version, size, end) in VERSIONS {
            for field in FIELDS.iter().filter(|field| field.offset + 4 <= end) {
                assert!(field.since <= version, "{version} has no {}", field.name);
                let wrong = match field.rule {
                    Rule::Flag => 2,
                    Rule::AtLeast(least) | Rule::Between(least, _) => least - 1,
                    Rule::Any => continue,
                };
                let mut bytes = structure(version, size, end);
                set(&mut bytes, field.offset, wrong);
                let error = read(&bytes).unwrap_err();
                assert!(error.to_string().contains(field.name), "{version}: {error}");
            }
            let mut bytes = structure(version, size, end);
            set(&mut bytes, 16, 0);
            assert!(!read(&bytes).unwrap().blocking, "{version}");
            if end >= 56 {
                bytes[48..56].copy_from_slice(&4096_usize.to_ne_bytes());
                assert_eq!(read(&bytes).unwrap().comm_name, 4096, "{version}");
            }
        }
    }

    #[test]
    fn fields_in_former_padding_count_from_their_version_only() {
        // trafficClass and graphStreamOrdering took the place of padding: same size, newer version.
        let mut bytes = structure(23004, 96, 92);
        set(&mut bytes, 92, 7);
        assert!(read(&bytes).is_ok());
        bytes[12..16].copy_from_slice(&23007_u32.to_ne_bytes());
        assert!(read(&bytes).unwrap_err().to_string().contains("graphStreamOrdering"));
    }

    #[test]
    fn ranks_that_come_late_are_waited_for_as_long_as_in_a_call() {
        let seconds = |given: &[(&str, &str)]| {
            let environment = Environment::new(given.iter().copied());
            patient(Config::load(&environment)).init_timeout.as_secs()
        };
        assert_eq!(seconds(&[]), 600);
        assert_eq!(seconds(&[("RINGWAY_TIMEOUT", "5s")]), 60);
        assert_eq!(seconds(&[("RINGWAY_TIMEOUT", "1h")]), 3600);
        assert_eq!(seconds(&[("RINGWAY_TIMEOUT", "1h"), ("RINGWAY_INIT_TIMEOUT", "2s")]), 2);
    }

    #[test]
    fn what_was_not_initialized_is_refused() {
        let mut bytes = structure(22809, 80, 80);
        bytes[8] ^= 1;
        assert!(read(&bytes).unwrap_err().to_string().contains("NCCL_CONFIG_INITIALIZER"));
        let bytes = structure(22809, 8, 16);
        assert!(read(&bytes).unwrap_err().to_string().contains("8 bytes"));
    }

    #[test]
    fn a_longer_structure_of_a_later_version_is_read_as_far_as_it_is_known() {
        let mut bytes = structure(29900, 4096, BYTES_MAX);
        set(&mut bytes, 16, 0);
        assert!(!read(&bytes).unwrap().blocking);
    }
}

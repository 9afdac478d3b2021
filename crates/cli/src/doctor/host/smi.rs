//! What nvidia-smi prints: `-q`, `nvlink -s`, `nvlink -e`, `topo -p2p`.
//!
//! *Invariant*: any text gives a value; a level of indentation is never deeper than [`LEVELS`].

use std::collections::BTreeMap;

use super::Host;

/// Levels of headings that are kept.
const LEVELS: usize = 8;

/// The output of `nvidia-smi -q`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Smi {
    /// `Driver Version` and the others above the GPUs.
    pub(crate) general: BTreeMap<String, String>,
    /// The GPUs.
    pub(crate) gpus: Vec<Gpu>,
}

/// One GPU of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gpu {
    /// `0000:1b:00.0`, as sysfs writes it.
    pub(crate) address: String,
    /// `ECC Mode/Current` and so on; a heading's name, a stroke, the line's.
    values: BTreeMap<String, String>,
}

impl Gpu {
    /// A value, unless it is `N/A`.
    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        let value = self.values.get(path)?;
        (value != "N/A" && value != "[N/A]").then_some(value.as_str())
    }

    /// A value's leading number: `81559 MiB`.
    pub(crate) fn number(&self, path: &str) -> Option<f64> {
        self.get(path)?.split_whitespace().next()?.parse().ok()
    }
}

impl Smi {
    /// Reads the output.
    pub(crate) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        let mut headings: Vec<(usize, String)> = Vec::new();
        for line in text.lines() {
            let indent = line.len() - line.trim_start().len();
            let line = line.trim();
            if indent == 0 && line.starts_with("GPU ") {
                headings.clear();
                let address = sysfs_address(line.trim_start_matches("GPU "));
                found.gpus.push(Gpu { address, values: BTreeMap::new() });
                continue;
            }
            if line.is_empty() {
                continue;
            }
            headings.retain(|(level, _)| *level < indent);
            match line.split_once(" : ").or_else(|| line.strip_suffix(" :").map(|name| (name, "")))
            {
                None => {
                    if headings.len() < LEVELS {
                        headings.push((indent, line.to_owned()));
                    }
                }
                Some((name, value)) => {
                    let mut path: String = headings
                        .iter()
                        .fold(String::new(), |path, (_, heading)| path + heading + "/");
                    path.push_str(name.trim());
                    let values = match found.gpus.last_mut() {
                        Some(gpu) => &mut gpu.values,
                        None => &mut found.general,
                    };
                    values.insert(path, value.trim().to_owned());
                    // A line may be the heading of deeper ones, too.
                    if headings.len() < LEVELS {
                        headings.push((indent, name.trim().to_owned()));
                    }
                }
            }
        }
        found
    }
}

/// `00000000:1B:00.0` as sysfs writes it.
fn sysfs_address(text: &str) -> String {
    let text = text.trim().to_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 => match domain.get(4..) {
            Some(short) => format!("{short}:{rest}"),
            None => text,
        },
        _ => text,
    }
}

/// Links of each GPU that nvidia-smi's `nvlink -s` shows as active and as inactive.
pub(crate) fn active_links(text: &str) -> Vec<(String, usize, usize)> {
    let mut found: Vec<(String, usize, usize)> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("GPU ") {
            let name = line.split("(UUID").next().unwrap_or(line).trim().to_owned();
            found.push((name, 0, 0));
        } else if let (Some(rest), Some(gpu)) = (line.strip_prefix("Link "), found.last_mut()) {
            match rest.contains("GB/s") {
                true => gpu.1 += 1,
                false if rest.to_lowercase().contains("inactive") => gpu.2 += 1,
                false => {}
            }
        }
    }
    found
}

/// Counters of `nvlink -e`: GPU, line, number.
pub(crate) fn link_errors(text: &str) -> Vec<(String, String, u64)> {
    let mut found = Vec::new();
    let mut gpu = String::new();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("GPU ") {
            line.split("(UUID").next().unwrap_or(line).trim().clone_into(&mut gpu);
        } else if line.starts_with("Link ")
            && let Some((name, value)) = line.rsplit_once(':')
            && let Ok(number) = value.trim().parse::<u64>()
        {
            found.push((gpu.clone(), name.trim().to_owned(), number));
        }
    }
    found
}

/// The rows `GPU0 X OK OK` of a matrix: the row's name and the entries.
pub(crate) fn matrix(text: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, entries @ ..] = &words[..]
            && name.starts_with("GPU")
            && entries.contains(&"X")
        {
            found.push((
                (*name).to_owned(),
                entries.iter().map(|word| (*word).to_owned()).collect(),
            ));
        }
    }
    found
}

impl Host {
    /// The output of `nvidia-smi -q`, or why there is none.
    pub(crate) fn smi(&self) -> Result<&Smi, String> {
        let found = self.smi.get_or_init(|| {
            let text = self.output("nvidia-smi-q")?;
            let found = Smi::parse(&text);
            if found.gpus.is_empty() {
                return Err(format!(
                    "nvidia-smi -q: {}",
                    super::shown(text.lines().next().unwrap_or(""))
                ));
            }
            Ok(found)
        });
        found.as_ref().map_err(Clone::clone)
    }
}

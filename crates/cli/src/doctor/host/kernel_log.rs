//! The kernel's log: lines of dmesg, /dev/kmsg or a system log, without their times.
//!
//! *Invariant*: any text gives a list, and matching takes time linear in it.

use super::Host;

/// Lines of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelLog {
    lines: Vec<String>,
}

/// Lines that are kept, the last ones.
const LINES: usize = 1 << 18;

impl KernelLog {
    /// Takes the lines.
    pub(crate) fn parse(text: &str) -> Self {
        let all = text.lines().count();
        let lines = text.lines().skip(all.saturating_sub(LINES));
        Self { lines: lines.filter(|line| !line.trim().is_empty()).map(str::to_owned).collect() }
    }

    /// Lines that hold all of the words.
    pub(crate) fn with(&self, words: &[&str]) -> Vec<&str> {
        let fits = |line: &&String| words.iter().all(|word| line.contains(word));
        self.lines.iter().filter(fits).map(String::as_str).collect()
    }

    /// Errors of GPUs: the line's number, or that of an NVSwitch (`SXid`).
    pub(crate) fn xids(&self, mark: &str) -> Vec<(u32, &str)> {
        let mark = format!("{mark} (PCI:");
        let number = |line: &'_ str| {
            let rest = line.split_once(&mark)?.1.split_once("):")?.1.trim_start();
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            // What follows an SXid on lines of its own tells more of it.
            let more = rest[digits.len()..].trim_start_matches([',', ' ']);
            let is_event = !more.starts_with("Severity ") && !more.starts_with("Data {");
            digits.parse().ok().filter(|_| is_event)
        };
        self.lines
            .iter()
            .filter(|line| mark.starts_with('S') || !line.contains("SXid"))
            .filter_map(|line| Some((number(line)?, line.as_str())))
            .collect()
    }

    /// Times a network link went down, by device.
    pub(crate) fn flaps(&self) -> Vec<(String, usize)> {
        let mut found = std::collections::BTreeMap::<String, usize>::new();
        for line in &self.lines {
            let device = if let Some((before, _)) = line.split_once(": Link down") {
                before.split_whitespace().last()
            } else if let Some((before, _)) = line.split_once(": Lost carrier") {
                before.split_whitespace().last()
            } else if let Some((before, _)) = line.split_once(": lost carrier") {
                before.split_whitespace().last()
            } else {
                None
            };
            if let Some(device) = device {
                *found.entry(device.trim_end_matches(':').to_owned()).or_default() += 1;
            }
        }
        found.into_iter().collect()
    }
}

impl Host {
    /// The kernel's log, or why it cannot be read.
    pub(crate) fn kernel_log(&self) -> Result<&KernelLog, String> {
        let found =
            self.log.get_or_init(|| self.output("dmesg").map(|text| KernelLog::parse(&text)));
        found.as_ref().map_err(Clone::clone)
    }
}

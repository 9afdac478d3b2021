//! The buffers of a rank, and whether the machine has room for them.

use std::fs;

use anyhow::bail;
use ringway_plan::types::Collective;

use super::layout::Layout;
use super::settings::Settings;
use crate::size;

/// Buffers begin at a multiple of this, so that measurements do not depend on luck.
const ALIGNMENT: usize = 4096;

/// A buffer whose pages are there and whose beginning is aligned.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// `length` bytes, every page touched, `skew` bytes past an aligned address.
    pub(crate) fn new(length: usize, skew: usize) -> Self {
        let bytes = vec![1_u8; length + skew + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT) + skew;
        Self { bytes, start, length }
    }

    /// The first `length` bytes.
    pub(crate) fn first(&mut self, length: usize) -> &mut [u8] {
        let length = length.min(self.length);
        &mut self.bytes[self.start..self.start + length]
    }
}

/// Bytes of the input and output buffers of one rank, for the greatest size of the sweep.
pub(crate) fn buffer_bytes(settings: &Settings, size: u32) -> (usize, usize) {
    let mut needed = (0, 0);
    for data_type in &settings.data_types {
        let layout = Layout::new(settings.collective, *data_type, size, settings.sweep.max_bytes);
        // Calls in place work in the output buffer, which must hold the whole.
        let output = layout.table_bytes();
        let input = match settings.collective {
            Collective::SendRecv => output,
            _ => layout.input_bytes(),
        };
        needed = (needed.0.max(input), needed.1.max(output));
    }
    needed
}

/// Fails when the buffers of `local_ranks` ranks of this host do not fit into memory; lowers
/// the greatest size instead when nobody asked for it.
pub(crate) fn fit(settings: &mut Settings, size: u32, local_ranks: u32) -> anyhow::Result<()> {
    fit_into(settings, size, local_ranks, available_bytes())
}

fn fit_into(
    settings: &mut Settings,
    size: u32,
    local_ranks: u32,
    available: Option<u64>,
) -> anyhow::Result<()> {
    let Some(available) = available else {
        return Ok(());
    };
    loop {
        let (input, output) = buffer_bytes(settings, size);
        let needed = (input as u128 + output as u128) * u128::from(local_ranks);
        // The rest is for the library's own staging and for everybody else.
        if needed <= u128::from(available) / 10 * 9 {
            return Ok(());
        }
        let max_bytes = settings.sweep.max_bytes;
        if settings.max_bytes_given || max_bytes / 2 < settings.sweep.min_bytes {
            bail!(
                "-e {max_bytes}: {local_ranks} ranks with two buffers each need {}, but only {} \
                 of memory is available; lower -e or start fewer ranks",
                size::display(u64::try_from(needed).unwrap_or(u64::MAX)),
                size::display(available)
            );
        }
        settings.sweep.max_bytes = max_bytes / 2;
    }
}

/// Memory that can be had without swapping; `None` where the kernel does not say.
fn available_bytes() -> Option<u64> {
    parse_available(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::PerfArgs;
    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        perf: PerfArgs,
    }

    fn settings(words: &str) -> Settings {
        let line = Line::parse_from(["perf"].into_iter().chain(words.split_whitespace()));
        Settings::new(&line.perf).unwrap()
    }

    #[test]
    fn too_large_is_an_error_that_says_so() {
        let mut asked = settings("all_reduce -e 64G");
        let error = fit_into(&mut asked, 4, 4, Some(22 << 30)).unwrap_err().to_string();
        assert!(error.contains("512 GiB") && error.contains("22 GiB"), "{error}");
        assert!(error.contains("lower -e"), "{error}");
    }

    #[test]
    fn the_default_sweep_shrinks_to_fit() {
        let mut sweep = settings("all_reduce");
        fit_into(&mut sweep, 4, 4, Some(512 << 20)).unwrap();
        assert_eq!(sweep.sweep.max_bytes, 32 << 20);
        fit_into(&mut sweep, 4, 4, None).unwrap();
        assert_eq!(sweep.sweep.max_bytes, 32 << 20);
    }

    #[test]
    fn buffers_are_aligned_and_as_long_as_asked() {
        for skew in [0, 4] {
            let mut buffer = Buffer::new(10_000, skew);
            let bytes = buffer.first(20_000);
            assert_eq!(bytes.len(), 10_000);
            assert_eq!(bytes.as_ptr().addr() % ALIGNMENT, skew);
        }
        assert_eq!(buffer_bytes(&settings("all_gather -e 1M -b 1M"), 4), (1 << 18, 1 << 20));
    }

    #[test]
    fn meminfo_is_read() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12_288));
        assert_eq!(parse_available("MemTotal: 9 kB\n"), None);
        assert!(available_bytes().is_some());
    }
}

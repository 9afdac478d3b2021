//! Ranks' output, line by line, each behind its rank.

use std::io::{self, BufRead as _, BufReader, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::output;

/// A line longer than this is passed on in pieces.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// Colours that read well on dark and light ground, dealt to the ranks in turn.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

/// What stands before a rank's lines.
#[derive(Debug)]
pub(crate) struct Label {
    plain: String,
    coloured: String,
}

impl Label {
    /// The label of `rank` in a job of `size`, as wide as the widest.
    pub(crate) fn new(rank: u32, size: u32) -> Self {
        Self::with_host(rank, size, "")
    }

    /// The same, with the host where the rank runs.
    pub(crate) fn with_host(rank: u32, size: u32, host: &str) -> Self {
        let digits = size.saturating_sub(1).to_string().len();
        let space = if host.is_empty() { "" } else { " " };
        let name = format!("[{rank:>digits$}{space}{host}]");
        let colour = usize::try_from(rank).map_or(0, |rank| COLOURS[rank % COLOURS.len()]);
        Self { coloured: format!("\x1b[{colour}m{name}\x1b[0m "), plain: format!("{name} ") }
    }

    pub(crate) fn text(&self, colour: bool) -> &str {
        if colour { &self.coloured } else { &self.plain }
    }
}

/// Passes on the output of all ranks.
#[derive(Debug)]
pub(crate) struct Forwarder {
    /// Every reading thread holds a sender and drops it at the end of its stream.
    running: Option<Sender<()>>,
    all_done: Receiver<()>,
}

impl Default for Forwarder {
    fn default() -> Self {
        let (running, all_done) = channel();
        Self { running: Some(running), all_done }
    }
}

impl Forwarder {
    /// Passes a stream on to standard output.
    pub(crate) fn stdout(
        &mut self,
        stream: impl Read + Send + 'static,
        label: &Arc<Label>,
    ) -> anyhow::Result<()> {
        let label = Arc::clone(label);
        let colour = output::stdout_has_colour();
        self.start(move || copy_lines(stream, label.text(colour), output::stdout_bytes))
    }

    /// Passes a stream on to standard error.
    pub(crate) fn stderr(
        &mut self,
        stream: impl Read + Send + 'static,
        label: &Arc<Label>,
    ) -> anyhow::Result<()> {
        let label = Arc::clone(label);
        let colour = output::stderr_has_colour();
        self.start(move || copy_lines(stream, label.text(colour), output::stderr_bytes))
    }

    /// Hands a stream on, line by line, to whatever writes it.
    pub(crate) fn pass(
        &mut self,
        stream: impl Read + Send + 'static,
        label: String,
        write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
    ) -> anyhow::Result<()> {
        self.start(move || copy_lines(stream, &label, write))
    }

    fn start(
        &mut self,
        copy: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let running = self.running.clone();
        thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || {
                // When our own output is gone the rank's pipe closes with this thread, and the
                // rank hears of it the way it would without us.
                let _closed = copy();
                drop(running);
            })
            .context("starting a thread for a rank's output")?;
        Ok(())
    }

    /// Waits for the end of all streams, at most `patience`: a rank's own background process
    /// may hold one open for ever.
    pub(crate) fn finish(mut self, patience: Duration) {
        self.running = None;
        let deadline = Instant::now() + patience;
        while self.all_done.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
        {
        }
    }
}

fn copy_lines(
    stream: impl Read,
    label: &str,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(label.as_bytes());
        if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        write(&line)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_gets_its_label() {
        let mut lines = Vec::new();
        let text: &[u8] = b"one\n\ntwo\xff\nlast";
        copy_lines(text, Label::new(3, 4).text(false), |line| {
            lines.push(line.to_vec());
            Ok(())
        })
        .unwrap();
        let expected: [&[u8]; 4] = [b"[3] one\n", b"[3] \n", b"[3] two\xff\n", b"[3] last\n"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let mut pieces = 0;
        let text = vec![b'x'; 200 * 1024];
        copy_lines(text.as_slice(), "", |line| {
            assert!(line.len() <= 64 * 1024 + 1);
            pieces += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(pieces, 4);
    }

    #[test]
    fn labels_are_as_wide_as_the_widest() {
        assert_eq!(Label::new(3, 12).text(false), "[ 3] ");
        assert_eq!(Label::new(11, 12).text(false), "[11] ");
        assert_eq!(Label::with_host(3, 12, "b").text(false), "[ 3 b] ");
        assert!(Label::new(0, 1).text(true).contains("\x1b["));
    }
}

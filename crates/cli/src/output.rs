//! The one place that writes to standard output and standard error.
//!
//! *Invariant*: what is written is written in whole lines by one call each, so that lines of
//! several ranks sharing a terminal do not mix. Results go to standard output and their
//! failure (a closed pipe) is returned; remarks go to standard error and their failure is
//! ignored, since nobody is left to tell.

use std::io::{self, IsTerminal as _, Write as _};

/// Exit code when the reader of standard output went away: what a shell reports for SIGPIPE.
pub(crate) const EXIT_BROKEN_PIPE: u8 = 141;

/// Writes one line of results.
pub(crate) fn line(text: &str) -> io::Result<()> {
    stdout_bytes(format!("{text}\n").as_bytes())
}

/// Writes bytes to standard output at once.
pub(crate) fn stdout_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Standard output, for those who write to any writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stdout;

impl io::Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }
}

/// Writes bytes to standard error at once.
pub(crate) fn stderr_bytes(bytes: &[u8]) -> io::Result<()> {
    io::stderr().lock().write_all(bytes)
}

/// Writes one remark to standard error.
pub(crate) fn remark(text: &str) {
    let _nobody_to_tell = stderr_bytes(format!("{text}\n").as_bytes());
}

/// A text within HTML or XML: nothing in it is markup, and nothing in it is a sign that XML forbids.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(c),
            '\u{fffe}' | '\u{ffff}' => safe.push('·'),
            c if c.is_control() => safe.push('·'),
            c => safe.push(c),
        }
    }
    safe
}

/// Writes the error that ends a subcommand, with its causes.
pub(crate) fn failure(command: &str, error: &anyhow::Error) {
    remark(&format!("ringway {command}: {error:#}"));
}

/// Whether the error is that the reader of standard output went away.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether a person sees both what is printed and a bar below it.
pub(crate) fn is_on_a_terminal() -> bool {
    io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// Whether standard output takes colours.
pub(crate) fn stdout_has_colour() -> bool {
    takes_colour(io::stdout().is_terminal(), |name| std::env::var(name).ok())
}

/// Columns of lines on standard output: the terminal's, at most 120 since longer lines read badly; 100 where
/// it is none.
pub(crate) fn columns() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).clamp(40, 120),
        _ => 100,
    }
}

/// Whether standard error takes colours.
pub(crate) fn stderr_has_colour() -> bool {
    takes_colour(io::stderr().is_terminal(), |name| std::env::var(name).ok())
}

/// `RINGWAY_COLOR` (`always`, `never`) decides; else `NO_COLOR` and dumb terminals say no; else
/// terminals say yes.
fn takes_colour(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    match variable("RINGWAY_COLOR").as_deref() {
        Some("always") => return true,
        Some("never") => return false,
        _ => {}
    }
    let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty())
        || variable("TERM").as_deref() == Some("dumb");
    terminal && !refused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(terminal: bool, set: &[(&str, &str)]) -> bool {
        takes_colour(terminal, |name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_in_a_text_is_markup() {
        assert_eq!(escaped("<a href='x'>&\"\n"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\n");
        assert_eq!(escaped("a\u{1b}\u{fffe}\u{ffff}b"), "a···b");
    }

    #[test]
    fn colour_follows_terminal_and_variables() {
        assert!(with(true, &[]));
        assert!(!with(false, &[]));
        assert!(!with(true, &[("NO_COLOR", "1")]));
        assert!(with(true, &[("NO_COLOR", "")]));
        assert!(!with(true, &[("TERM", "dumb")]));
        assert!(with(false, &[("RINGWAY_COLOR", "always"), ("NO_COLOR", "1")]));
        assert!(!with(true, &[("RINGWAY_COLOR", "never")]));
    }
}

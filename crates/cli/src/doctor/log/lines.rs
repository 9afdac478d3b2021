//! Lines of a stream, in bounded memory.
//!
//! *Invariant*: memory is one buffer, however long a line is. A line longer than [`LINE_MOST`] is given by
//! its first bytes and counted; the rest of it is skipped.

use std::io::{self, ErrorKind, Read};

use memchr::{memchr, memchr_iter};

/// The longest line that is looked at whole.
pub(crate) const LINE_MOST: usize = 32 << 10;

/// Bytes read at a time.
const BUFFER: usize = 256 << 10;

/// What was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Totals {
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
    /// Lines of which only the first bytes were looked at.
    pub(crate) too_long: u64,
    /// The number of the first of them.
    pub(crate) first_too_long: Option<u64>,
    /// What ended a packed file before its end.
    pub(crate) fault: Option<String>,
}

impl Totals {
    fn long(&mut self) {
        self.too_long += 1;
        self.first_too_long = self.first_too_long.or(Some(self.lines));
    }
}

/// Calls `see` with the number (from 1) and the bytes of every line, without its end.
pub(crate) fn each(source: &mut dyn Read, mut see: impl FnMut(u64, &[u8])) -> io::Result<Totals> {
    let mut totals = Totals::default();
    let mut buffer = vec![0_u8; BUFFER];
    let mut held = 0;
    let mut skipping = false;
    loop {
        let got = match source.read(&mut buffer[held..]) {
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        totals.bytes += got as u64;
        let filled = held + got;
        let mut start = 0;
        if skipping && got > 0 {
            match memchr(b'\n', &buffer[..filled]) {
                Some(end) => {
                    start = end + 1;
                    skipping = false;
                }
                None => {
                    held = 0;
                    continue;
                }
            }
        }
        let mut from = start;
        for end in memchr_iter(b'\n', &buffer[start..filled]) {
            let end = start + end;
            one(&buffer[from..end], &mut totals, &mut see);
            from = end + 1;
        }
        if got == 0 {
            if from < filled {
                one(&buffer[from..filled], &mut totals, &mut see);
            }
            return Ok(totals);
        }
        held = filled - from;
        if held == BUFFER {
            one(&buffer, &mut totals, &mut see);
            skipping = true;
            held = 0;
        } else {
            buffer.copy_within(from..filled, 0);
        }
    }
}

fn one(line: &[u8], totals: &mut Totals, see: &mut impl FnMut(u64, &[u8])) {
    totals.lines += 1;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() > LINE_MOST {
        totals.long();
    }
    see(totals.lines, &line[..line.len().min(LINE_MOST)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes in small pieces.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let many = self.1.min(self.0.len()).min(into.len());
            into[..many].copy_from_slice(&self.0[..many]);
            self.0 = &self.0[many..];
            Ok(many)
        }
    }

    fn read(bytes: &[u8], piece: usize) -> (Vec<(u64, usize)>, Totals) {
        let mut seen = Vec::new();
        let totals =
            each(&mut Dribble(bytes, piece), |number, line| seen.push((number, line.len())));
        (seen, totals.unwrap())
    }

    #[test]
    fn lines_are_the_same_in_whatever_pieces_they_come() {
        let text = b"one\ntwo\r\n\nfour";
        for piece in 1..=text.len() {
            let (seen, totals) = read(text, piece);
            assert_eq!(seen, [(1, 3), (2, 3), (3, 0), (4, 4)], "{piece}");
            assert_eq!((totals.lines, totals.bytes, totals.too_long), (4, 14, 0));
        }
    }

    #[test]
    fn a_line_longer_than_the_buffer_is_cut_and_counted() {
        let mut text = vec![b'x'; 3 * BUFFER + 17];
        text.extend_from_slice(b"\nafter\n");
        for piece in [4096, BUFFER, 10 * BUFFER] {
            let (seen, totals) = read(&text, piece);
            assert_eq!(seen, [(1, LINE_MOST), (2, 5)], "{piece}");
            assert_eq!((totals.too_long, totals.first_too_long), (1, Some(1)));
            assert_eq!(totals.bytes, text.len() as u64);
        }
    }

    #[test]
    fn a_line_of_exactly_the_buffer_is_one_line() {
        let mut text = vec![b'x'; BUFFER];
        text.extend_from_slice(b"\nafter");
        let (seen, _) = read(&text, 1000);
        assert_eq!(seen, [(1, LINE_MOST), (2, 5)]);
    }

    #[test]
    fn an_empty_stream_has_no_line() {
        assert_eq!(read(b"", 1).0, []);
    }
}

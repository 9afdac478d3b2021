//! Logs that were packed: gzip and zstd, known by their first bytes and unpacked while they are read.
//!
//! *Invariant*: memory is the decoder's window, at most [`WINDOW`] (which is what the decoder itself allows), however
//! much comes out. A file that is cut off or broken gives what stands before the fault, and the fault is told.

use std::io::{self, BufRead as _, BufReader, Read};

use anyhow::bail;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// First bytes that are enough to know a form.
pub(super) const MAGIC: usize = 6;

/// MiB of the largest window of zstd.
const WINDOW: u32 = 100;

/// Bytes read at a time.
const BUFFER: usize = 64 << 10;

/// A frame of zstd with nothing in it.
const EMPTY: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];

/// How a file is packed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    Plain,
    Gzip,
    Zstd,
}

fn form(name: &str, start: &[u8]) -> anyhow::Result<Form> {
    let way_out = |how: &str| format!("`{how} {name} | ringway doctor --log -`");
    Ok(match start {
        [0x1f, 0x8b, ..] => Form::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Form::Zstd,
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            bail!("{name} is packed with xz; give it as {}", way_out("xzcat"))
        }
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41] => {
            bail!("{name} is packed with bzip2; give it as {}", way_out("bzcat"))
        }
        [b'P', b'K', 3, 4, ..] => {
            bail!("{name} is a zip archive; give it as {}", way_out("unzip -p"))
        }
        _ => Form::Plain,
    })
}

/// What is in a file whose first bytes have been read already.
pub(super) fn open<'a>(
    name: &str,
    start: &'a [u8],
    source: &'a mut dyn Read,
) -> anyhow::Result<Unpacked<'a>> {
    let form = form(name, start)?;
    let whole = start.chain(source);
    let inner: Box<dyn Read + 'a> = match form {
        Form::Plain => Box::new(whole),
        Form::Gzip => {
            let whole = BufReader::with_capacity(BUFFER, whole);
            Box::new(flate2::bufread::MultiGzDecoder::new(whole))
        }
        Form::Zstd => Box::new(Frames::new(whole)?),
    };
    Ok(Unpacked { inner, is_packed: form != Form::Plain, fault: None })
}

/// The bytes that were packed, to the end or to the first fault.
pub(super) struct Unpacked<'a> {
    inner: Box<dyn Read + 'a>,
    is_packed: bool,
    /// What is wrong with the packed file.
    pub(super) fault: Option<String>,
}

impl Read for Unpacked<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.fault.is_some() {
            return Ok(0);
        }
        match self.inner.read(into) {
            Err(error) if self.is_packed && error.kind() != io::ErrorKind::Interrupted => {
                self.fault = Some(error.to_string());
                Ok(0)
            }
            done => done,
        }
    }
}

/// One zstd frame after another; those to be skipped are.
struct Frames<R: Read> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    is_open: bool,
}

impl<R: Read> Frames<R> {
    fn new(source: R) -> anyhow::Result<Self> {
        let mut decoder = FrameDecoder::new();
        // The decoder looks at the size of the window of every frame but its first.
        decoder.init(&EMPTY[..]).map_err(|error| anyhow::anyhow!("zstd: {error}"))?;
        Ok(Self { source: BufReader::with_capacity(BUFFER, source), decoder, is_open: false })
    }

    /// Opens the next frame; whether there is one.
    fn next(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(FrameDecoderError::WindowSizeTooBig { requested }) => {
                    return Err(io::Error::other(format!(
                        "its window of {} MiB is larger than {WINDOW}; unpack it with zstd --long=31",
                        requested >> 20
                    )));
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_open {
                if !self.next()? {
                    return Ok(0);
                }
                self.is_open = true;
            }
            while self.decoder.can_collect() < into.len() && !self.decoder.is_finished() {
                let wanted = BlockDecodingStrategy::UptoBytes(into.len());
                self.decoder.decode_blocks(&mut self.source, wanted).map_err(io::Error::other)?;
            }
            match self.decoder.read(into)? {
                0 => self.is_open = false,
                some => return Ok(some),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::doctor::tests::soup;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn unpacked(bytes: &[u8]) -> (Vec<u8>, Option<String>) {
        let (start, mut rest) = bytes.split_at(bytes.len().min(MAGIC));
        let mut unpacked = open("x", start, &mut rest).unwrap();
        let mut out = Vec::new();
        (&mut unpacked).take(8 << 20).read_to_end(&mut out).unwrap();
        (out, unpacked.fault)
    }

    #[test]
    fn both_forms_are_read_also_in_several_parts() {
        let text = b"a line of a log\n".repeat(100_000);
        let (one, two) = text.split_at(700_001);
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        for packed in [
            text.clone(),
            gzip(&text),
            [gzip(one), gzip(two)].concat(),
            zstd(&text),
            [zstd(one), skipped, zstd(two)].concat(),
        ] {
            let (out, fault) = unpacked(&packed);
            assert!(out == text && fault.is_none(), "{} bytes, {fault:?}", out.len());
        }
        assert_eq!(unpacked(b"").0, b"");
    }

    #[test]
    fn a_file_that_is_cut_off_gives_what_is_there_and_says_so() {
        let text: Vec<u8> = (0..300_000_u32).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        for packed in [gzip(&text), zstd(&text)] {
            let (out, fault) = unpacked(&packed[..packed.len() / 2]);
            assert!(fault.is_some());
            assert!(out.len() > 100_000 && text.starts_with(&out), "{}", out.len());
        }
    }

    #[test]
    fn a_window_of_a_terabyte_is_refused() {
        let hostile = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf0, 0, 0, 0, 0];
        let (out, fault) = unpacked(&hostile);
        assert!(out.is_empty() && fault.is_some_and(|fault| fault.contains("window")));
    }

    proptest! {
        #![proptest_config(soup::cases(200))]

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000), form in 0..3) {
            let start: &[u8] = match form {
                0 => &[],
                1 => &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
                _ => &[0x28, 0xb5, 0x2f, 0xfd],
            };
            let _ended = unpacked(&[start, &bytes].concat());
        }

        #[test]
        fn damaged_files_do_no_harm(at in 0..3000_usize, byte: u8) {
            let text = b"a line of a log 1234567890\n".repeat(3000);
            for mut packed in [gzip(&text), zstd(&text)] {
                let at = at % packed.len();
                packed[at] = byte;
                if at >= MAGIC {
                    let _ended = unpacked(&packed);
                }
            }
        }
    }
}

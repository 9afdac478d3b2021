//! What takes secrets and names out of text, and what unpacks archives, on input of any kind.

use proptest::prelude::*;

use super::secrets::{Mask, removed, without_processes};
use super::tests::Packed;
use super::unpack::Unpacked;
use crate::doctor::tests::soup;

fn clean(text: &str) {
    let (once, _) = removed(text, false);
    // What is clean stays as it is.
    assert_eq!(removed(&once, false).0, once);
    let _words = removed(text, true);
    let _processes = without_processes(text);
    let mask = Mask::new("node1", text).expect("the machine has random numbers");
    let _masked = (mask.text(text), mask.routes(text), mask.asset_tag(text));
}

proptest! {
    #![proptest_config(soup::cases(200))]

    #[test]
    fn no_text_makes_the_cleaner_panic(text in soup::text()) {
        clean(&text);
    }

    #[test]
    fn no_bytes_make_the_unpacker_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        form in 0..4_u8,
    ) {
        let start: &[u8] = match form {
            0 => &[],
            1 => &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
            _ => &[0x28, 0xb5, 0x2f, 0xfd],
        };
        let mut all = [start, &bytes].concat();
        if form == 3 {
            all = bytes;
            all.resize(2048, 0);
            all[257..262].copy_from_slice(b"ustar");
        }
        let packed = Packed::new(&all);
        let _ended = Unpacked::open(&packed.0);
    }

    #[test]
    fn no_damaged_archive_makes_the_unpacker_panic(at in 0..2048_usize, byte: u8) {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        builder.append_data(&mut header, "sys/x", &b"hi"[..]).unwrap();
        let mut bytes = builder.into_inner().unwrap();
        let place = at % bytes.len();
        bytes[place] = byte;
        // As it is, and with a sum that fits again.
        for fix in [false, true] {
            if fix {
                let mut header = tar::Header::from_byte_slice(&bytes[..512]).clone();
                header.set_cksum();
                bytes[..512].copy_from_slice(header.as_bytes());
            }
            let packed = Packed::new(&bytes);
            let _ended = Unpacked::open(&packed.0);
        }
    }
}

#[test]
fn long_texts_end() {
    soup::long_texts_end(clean);
}

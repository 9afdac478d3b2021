//! Logs of any kind: no panic, and an end.

use proptest::prelude::*;

use super::*;
use crate::doctor::tests::soup;

proptest! {
    #![proptest_config(soup::cases(200))]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        read(&bytes);
    }

    #[test]
    fn no_text_makes_it_panic(text in soup::text()) {
        read(text.as_bytes()).json().unwrap();
    }

    #[test]
    fn no_damaged_line_makes_it_panic(
        which in 0..LINES.len(),
        cut in 0_usize..400,
        at in 0_usize..400,
        byte in any::<u8>(),
        glue in any::<bool>(),
    ) {
        let sound = sound(2, 2, "[send] via NET/IB/0(1)/GDRDMA/Shared");
        let base = sound.lines().nth(at % 24).unwrap_or_default();
        let table = "1048576 262144 float sum -1 100.0 10.00 17.50 0 90.0 11.00 19.25 0";
        for text in [LINES[which].1, base, table] {
            let mut line = text.as_bytes()[..cut.min(text.len())].to_vec();
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
            if glue {
                line.extend_from_slice(LINES[at % LINES.len()].1.as_bytes());
            }
            line.push(b'\n');
            line.extend_from_slice(&text.as_bytes()[at.min(text.len())..]);
            let report = read(&line);
            report.json().unwrap();
        }
    }
}

#[test]
fn long_texts_end() {
    soup::long_texts_end(|text| {
        let mut reader = Reader::new().unwrap();
        reader.read("x", &mut text.as_bytes()).unwrap();
        let (report, pairs) = reader.report();
        report.json_with(Some(pairs.listing(true))).unwrap();
    });
}

//! Input that someone made to hurt, or that a disk or a pipe cut off.

use super::*;

fn refused(text: &str, expected: &str) {
    let error = xml::read(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, expected);
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    refused(
        "<system>\n <cpu numaid=\"0\">\n </cpu>\n",
        "line 3, column 8: the file ends here, but <system> of line 1 is not closed",
    );
    refused("", "line 1, column 1: the document does not have a root node");
    refused("<sistem/>", "line 1, column 1: the outermost element is <sistem>, not <system>");
    refused(
        "<system version=\"3\"/>",
        "line 1, column 1: version \"3\" of the format; 1 and 2 are known",
    );
    refused("<system>\n <cpu/>\n</system>", "line 2, column 2: <cpu> has no numaid");
    refused(
        "<system>\n <cpu numaid=\"0\">\n  <pci class=\"x\" busid=\"nowhere\"/></cpu></system>",
        "line 3, column 18: busid=\"nowhere\" of <pci> is not a PCI bus id such as 0000:0f:00.0",
    );
    refused(
        "<system><cpu numaid=\"zero\"/></system>",
        "line 1, column 14: numaid=\"zero\" of <cpu> is not a number",
    );
    refused("<system>words</system>", "line 1, column 9: text \"words\" between elements");
    refused("<!DOCTYPE x><system/>", "line 1, column 1: declarations are not part of this format");
    refused("<system xmlns:a=\"b\"/>", "line 1, column 1: namespaces are not part of this format");
    let error = xml::read(b"<system>\n\xff").unwrap_err();
    assert_eq!((error.line, error.column), (2, 1));
}

#[test]
fn a_file_cut_off_anywhere_is_an_error_with_a_place() {
    let whole = hgx();
    assert!(xml::read(whole.as_bytes()).is_ok());
    let lines = u32::try_from(whole.lines().count()).unwrap();
    // The last cut leaves off the closing mark.
    for cut in (0..whole.len() - 2).step_by(7).chain([whole.len() - 2]) {
        let error = xml::read(&whole.as_bytes()[..cut]).unwrap_err();
        assert!((1..=lines).contains(&error.line), "{cut}: {error}");
    }
}

#[test]
fn deep_wide_and_long_files_are_refused_at_once() {
    let start = Instant::now();
    let deep = "<pci busid=\"0:0:0.0\">".repeat(1_000_000);
    let bytes = format!("<system>{deep}");
    assert!(xml::read(bytes.as_bytes()).is_err());
    let deep = format!("<system>{}{}</system>", "<a>".repeat(1_000_000), "</a>".repeat(1_000_000));
    let error = xml::read(deep.as_bytes()).unwrap_err();
    assert!(error.what.contains("64 elements deep"), "{error}");
    let wide = format!("<system>{}</system>", "<a/>".repeat(1_000_000));
    assert!(xml::read(wide.as_bytes()).unwrap_err().what.contains("elements"));
    let long = format!("<system version=\"{}\"/>", "1".repeat(4 << 20));
    assert!(xml::read(long.as_bytes()).unwrap_err().what.contains("65,536 bytes"));
    let huge = vec![b' '; xml::BYTES_MOST + 1];
    assert!(xml::read(&huge).is_err());
    let open = "<!-- ".repeat(500_000);
    assert!(xml::read(open.as_bytes()).is_err());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn random_bytes_and_damaged_files_never_panic() {
    let mut rng = Random::new(7);
    let whole = hgx().into_bytes();
    for _ in 0..400 {
        let mut bytes = whole.clone();
        for _ in 0..1 + rng.below(4) {
            let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
            bytes[at] = u8::try_from(rng.below(256)).unwrap();
        }
        if let Ok(document) = xml::read(&bytes) {
            assert_eq!(xml::read(xml::write(&document).as_bytes()).as_ref(), Ok(&document));
            if let Ok(topology) = Topology::from_document(&document) {
                let _ = nics(&topology, &Levels::default());
            }
        }
        let noise: Vec<u8> =
            (0..rng.below(200)).map(|_| u8::try_from(rng.below(256)).unwrap()).collect();
        assert!(xml::read(&noise).is_err());
        let _ = matrix::read(&String::from_utf8_lossy(&noise));
    }
}

#[test]
fn the_largest_machine_is_worked_out_in_bounded_time() {
    let device = |bus: usize, inside: &str, class: &str| {
        let (domain, bus) = (bus / 256, bus % 256);
        format!("<pci busid=\"{domain:04x}:{bus:02x}:00.0\" class=\"{class}\">{inside}</pci>")
    };
    let mut inside = String::new();
    for dev in 0..ENDS_MOST {
        let links: String = (0..16)
            .map(|step| {
                let to = (dev + step * 7 + 1) % ENDS_MOST;
                format!(
                    "<nvlink target=\"{:04x}:{:02x}:00.0\" count=\"{}\" tclass=\"0x030200\"/>",
                    to / 256,
                    to % 256,
                    1 + (dev * 31 + step) % 97
                )
            })
            .collect();
        inside += &device(dev, &format!("<gpu dev=\"{dev}\">{links}</gpu>"), "0x030200");
        let net = format!("<nic><net dev=\"{dev}\" speed=\"{}\"/></nic>", 1000 + dev);
        inside += &device(4096 + dev, &net, "0x020000");
    }
    let system = |inside: &str| format!("<system><cpu numaid=\"0\">{inside}</cpu></system>");
    let start = Instant::now();
    let topology = graph(&system(&inside));
    let paths = Paths::as_used(&topology, &Levels::default());
    assert_eq!(affinities(&topology, &paths, &Levels::default()).len(), ENDS_MOST);
    let _ = channels(&topology, &paths, CrossNic::default());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    inside += &device(9000, "<gpu dev=\"9\"/>", "0x030200");
    let document = xml::read(system(&inside).as_bytes()).unwrap();
    assert!(matches!(Topology::from_document(&document), Err(TopologyError::TooLarge { .. })));
}

#[test]
fn hostile_matrices_are_refused() {
    let start = Instant::now();
    let wide: String = (0..100_000).map(|number| format!(" GPU{number}")).collect();
    assert_eq!(matrix::read(&wide), Err(matrix::MatrixError::TooLarge));
    let long = format!("  GPU0\nGPU0 {}", "X".repeat(3 << 20));
    assert!(matrix::read(&long).is_ok());
    assert!(matrix::read(&"x".repeat(5 << 20)).is_err());
    assert!(matrix::read(&"\u{1b}[".repeat(1 << 20)).is_err());
    let rows = format!("  GPU0\n{}", "GPU0 X\n".repeat(100_000));
    assert!(matrix::read(&rows).is_ok_and(|matrix| matrix.rows.len() <= 512));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn odd_values_survive_a_round_trip() {
    let odd = Element::new("system")
        .with("version", 1)
        .with("mark", "<&>\"'\u{e9}")
        .with("space", "a\tb\nc\rd  e");
    let written = xml::write(&odd);
    assert_eq!(xml::read(written.as_bytes()).unwrap(), odd, "{written}");
}

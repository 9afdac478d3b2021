//! The parsers of programs' outputs and of files of the kernel, on text of any kind.

use proptest::prelude::*;

use super::{
    BitErrors, Counters, KernelLog, Qos, Smi, active_links, adaptive_routing, configured,
    libraries, link_errors, lspci, matrix, maximums, number_list, pairs, pci, programs, rdma,
    shown,
};
use crate::doctor::tests::soup;

/// Every one of them.
fn parse(text: &str) {
    let smi = Smi::parse(text);
    for gpu in &smi.gpus {
        let _number = gpu.number("PCI/Replays Since Reset");
    }
    let _links = (active_links(text), link_errors(text), matrix(text));
    let log = KernelLog::parse(text);
    let _lines = (log.with(&["GPU", "bus"]), log.xids("Xid"), log.xids("SXid"), log.flaps());
    let qos = Qos::parse(text);
    let _priority = (0..=64).map(|point| qos.priority(point)).max();
    for (bus, device) in lspci::parse(text) {
        let _as_discovery_has_it = device.pci(bus);
    }
    let _hcas = rdma::parse(text);
    let _counters = (Counters::parse(text), maximums(text));
    let _cards = (BitErrors::parse(text), adaptive_routing(text));
    let _libraries = libraries::private(text.as_bytes());
    let _config = pci::Config::parse(text.as_bytes());
    let _pairs = (configured(text), pairs(text, " = "), pairs(text, "="));
    let _numbers = (number_list(text), pci::link_gigabytes(text, 16));
    let _mounts = (programs::has_image_root(text), programs::is_denial(text));
    assert!(shown(text).chars().count() <= super::SHOWN + 1);
}

proptest! {
    #![proptest_config(soup::cases(400))]

    #[test]
    fn no_text_makes_a_parser_panic(text in soup::text()) {
        parse(&text);
    }

    #[test]
    fn no_configuration_space_makes_a_parser_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..4200),
        next in any::<u8>(),
    ) {
        let _any = pci::Config::parse(&bytes);
        // Lists of capabilities that lead anywhere, in circles too.
        let mut config = vec![next; 4096];
        for (place, byte) in config.iter_mut().zip(&bytes) {
            *place = *byte;
        }
        let _circles = pci::Config::parse(&config);
    }
}

#[test]
fn long_texts_end() {
    soup::long_texts_end(parse);
}

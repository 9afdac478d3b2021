//! Settings in text of any kind: files, scripts, manifests, values.

use proptest::prelude::*;

use super::{catalogue, describe, lint, source};
use crate::doctor::tests::soup;

fn read(text: &str) {
    let settings = source::from_text("x", text);
    let host = super::host::Host::default();
    for host in [None, Some(&host)] {
        let report = lint::lint(&lint::Input { settings: &settings, host, dscp: Some(26) });
        report.json().expect("a report is always JSON");
    }
}

proptest! {
    #![proptest_config(soup::cases(300))]

    #[test]
    fn no_text_makes_the_reader_or_a_rule_panic(text in soup::text()) {
        read(&text);
    }

    #[test]
    fn no_value_of_a_known_name_makes_a_rule_panic(
        name in 0_usize..2000,
        other in 0_usize..2000,
        value in soup::text(),
    ) {
        let names: Vec<&str> = catalogue::all().map(|variable| variable.name).collect();
        let setting = |name: usize| source::Setting {
            name: names[name % names.len()].to_owned(),
            value: Some(value.clone()),
            place: "environment".to_owned(),
        };
        let settings = [setting(name), setting(other)];
        let report = lint::lint(&lint::Input { settings: &settings, host: None, dscp: None });
        report.json().expect("a report is always JSON");
        let _number = catalogue::parse_whole(&value);
        let _words = (catalogue::nearest(&value), describe::matching(&value));
    }
}

#[test]
fn long_texts_end() {
    soup::long_texts_end(read);
}

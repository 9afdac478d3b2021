//! The text, read: what another process tells.
//!
//! Only what [`Page`](super::Page) writes is taken: every metric with its type, its samples right behind it, no
//! timestamps. Whatever else may stand in such a text is refused with its line: passed on, it would cost whoever asks
//! the whole answer.
//!
//! *Invariant*: any text gives families or an error; what was taken and is written again is the same.

use std::collections::BTreeSet;

/// A metric with its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: String,
    /// `counter`, `gauge`, `histogram`.
    pub kind: String,
    /// What it is.
    pub help: String,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The metric's name; of a histogram with `_bucket`, `_sum` or `_count` behind it.
    pub name: String,
    /// Labels in their order, their values as they are meant.
    pub labels: Vec<(String, String)>,
    /// The value, as it stands.
    pub value: String,
}

/// What is no such text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is no metric: {why}")]
pub struct Misread {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

/// The metrics in a text.
///
/// ```
/// let text = "# HELP a_total Calls.\n# TYPE a_total counter\na_total{to=\"b\"} 3\n";
/// let families = ringway::exposition::families(text).unwrap();
/// assert_eq!(families[0].samples[0].labels, [("to".to_owned(), "b".to_owned())]);
/// assert!(ringway::exposition::families("a_total 3").is_err());
/// ```
///
/// # Errors
/// A line that [`Page`](super::Page) would not write.
pub fn families(text: &str) -> Result<Vec<Family>, Misread> {
    let mut found: Vec<Family> = Vec::new();
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut seen: BTreeSet<(String, Vec<(String, String)>)> = BTreeSet::new();
    let mut help: Option<(String, String)> = None;
    for (line, text) in (1..).zip(text.split('\n')) {
        let wrong = |why| Misread { line, why };
        if let Some(rest) = text.strip_prefix("# HELP ") {
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            help = Some((name.to_owned(), meant(rest, &['\\', 'n']).map_err(wrong)?));
        } else if let Some(rest) = text.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("a type is missing"))?;
            if !is_name(name) {
                return Err(wrong("the name is none"));
            }
            if !matches!(kind, "counter" | "gauge" | "histogram") {
                return Err(wrong("the type is none of counter, gauge and histogram"));
            }
            if !names.insert(name.to_owned()) {
                return Err(wrong("the metric comes twice"));
            }
            let help = help.take().filter(|(of, _)| of == name).map(|(_, help)| help);
            found.push(Family {
                name: name.to_owned(),
                kind: kind.to_owned(),
                help: help.unwrap_or_default(),
                samples: Vec::new(),
            });
        } else if !text.is_empty() && !text.starts_with('#') {
            let sample = sample(text).map_err(wrong)?;
            let family = found
                .last_mut()
                .filter(|family| family.has(&sample.name))
                .ok_or_else(|| wrong("the sample does not stand behind the type of its metric"))?;
            let mut key = sample.labels.clone();
            key.sort_unstable();
            if !seen.insert((sample.name.clone(), key)) {
                return Err(wrong("the sample comes twice"));
            }
            family.samples.push(sample);
        }
    }
    Ok(found)
}

impl Family {
    fn has(&self, sample: &str) -> bool {
        match sample.strip_prefix(self.name.as_str()) {
            Some("_bucket" | "_sum" | "_count") => self.kind == "histogram",
            Some(rest) => rest.is_empty() && self.kind != "histogram",
            None => false,
        }
    }
}

fn is_name(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `name{label="value",…} number`, or without labels.
fn sample(text: &str) -> Result<Sample, &'static str> {
    let end = text.find(['{', ' ']).ok_or("there is no value")?;
    let (name, mut rest) = text.split_at(end);
    if !is_name(name) {
        return Err("the name is none");
    }
    let mut labels: Vec<(String, String)> = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, behind) = rest.split_once("=\"").ok_or("a label has no value")?;
            if !is_name(label) || labels.iter().any(|(other, _)| other == label) {
                return Err("a label's name is none, or comes twice");
            }
            let end = closing_quote(behind).ok_or("a label's value does not end")?;
            labels.push((label.to_owned(), meant(&behind[..end], &['\\', 'n', '"'])?));
            rest = &behind[end + 1..];
            if let Some(next) = rest.strip_prefix(',') {
                rest = next;
            } else {
                rest = rest.strip_prefix('}').ok_or("the labels do not end")?;
                break;
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("there is no value")?;
    // What the standard library reads, Prometheus reads, too; the other way round it takes more.
    if value.parse::<f64>().is_err() {
        return Err("the value is no number");
    }
    Ok(Sample { name: name.to_owned(), labels, value: value.to_owned() })
}

/// Where the first quote is that no backslash is before.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

/// A text without its escapes.
fn meant(text: &str, escapes: &[char]) -> Result<String, &'static str> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next().filter(|next| escapes.contains(next)) {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => return Err("a backslash stands before what needs none"),
            },
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::super::{Label, Page};
    use super::*;

    fn written(families: &[Family]) -> String {
        let mut page = Page::default();
        for family in families {
            page.metric(&family.name, &family.kind, &family.help);
            for sample in &family.samples {
                let labels: Vec<Label<'_>> = sample
                    .labels
                    .iter()
                    .map(|(name, value)| (name.as_str(), value as &dyn std::fmt::Display))
                    .collect();
                page.sample(&sample.name, &labels, &sample.value);
            }
        }
        page.into_text()
    }

    #[test]
    fn what_would_spoil_an_answer_is_refused_with_its_line() {
        let typed = |line: &str| format!("# TYPE a gauge\n{line}\n");
        for (text, why) in [
            ("a 1".to_owned(), "behind the type"),
            (typed("b 1"), "behind the type"),
            (typed("a_sum 1"), "behind the type"),
            (typed("a"), "no value"),
            (typed("a one"), "no number"),
            (typed("a 1 1700000000"), "no number"),
            (typed("a{} 1"), "has no value"),
            (typed("a{b=\"c} 1"), "does not end"),
            (typed("a{b=\"c\" 1"), "do not end"),
            (typed("a{b=\"c\",b=\"d\"} 1"), "comes twice"),
            (typed("a{b=\"\\q\"} 1"), "backslash"),
            (typed("a{b=\"c\"}1"), "no value"),
            (typed("a{b=\"1\",c=\"2\"} 1\na{c=\"2\",b=\"1\"} 2"), "comes twice"),
            (typed("# TYPE a gauge"), "comes twice"),
            ("# TYPE a summary".to_owned(), "type is none"),
            ("# TYPE 1a gauge".to_owned(), "name is none"),
        ] {
            let error = families(&text).expect_err(&text);
            assert!(error.why.contains(why), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_families_or_an_error(text in "(# TYPE a gauge\n)?[a-z{}=\", \\\\\n#0-9]{0,60}") {
            if let Ok(found) = families(&text) {
                let again = written(&found);
                prop_assert_eq!(families(&again), Ok(found));
            }
        }

        #[test]
        fn what_is_written_is_read(values in prop::collection::btree_set("\\PC{0,20}\n?", 0..5)) {
            let samples = values.iter().map(|value| Sample {
                name: "a".to_owned(),
                labels: vec![("b".to_owned(), value.clone())],
                value: "1.5".to_owned(),
            });
            let family = Family {
                name: "a".to_owned(),
                kind: "gauge".to_owned(),
                help: "one \\ two\nthree".to_owned(),
                samples: samples.collect(),
            };
            prop_assert_eq!(families(&written(std::slice::from_ref(&family))), Ok(vec![family]));
        }
    }
}

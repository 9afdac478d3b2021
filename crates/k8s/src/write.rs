//! YAML out of values: what generated manifests and corrections are made of.

use std::fmt::Write as _;

/// Columns of comments.
const COLUMNS: usize = 100;

/// What is written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Value {
    /// A text; quoted where YAML would take it for something else.
    Text(String),
    /// A number or a truth: never quoted.
    Bare(String),
    /// Several lines, as a literal block.
    Lines(String),
    /// Pairs.
    Map(Vec<Entry>),
    /// Items.
    List(Vec<Entry>),
}

/// A pair of a map, or an item of a list (without a key), with the comment before it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// Why it is there.
    pub comment: Option<String>,
    /// The key; empty for items.
    pub key: String,
    /// What it is.
    pub value: Value,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Bare(truth.to_string())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Bare(number.to_string())
    }
}

impl Value {
    /// An empty map.
    pub fn map() -> Self {
        Self::Map(Vec::new())
    }

    /// A list of these.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        let item = |value| Entry { comment: None, key: String::new(), value };
        Self::List(items.into_iter().map(item).collect())
    }

    /// With one more pair.
    #[must_use]
    pub fn with(self, key: &str, value: impl Into<Self>) -> Self {
        self.pair(None, key, value.into())
    }

    /// With one more pair and the reason for it.
    #[must_use]
    pub fn because(self, why: &str, key: &str, value: impl Into<Self>) -> Self {
        self.pair(Some(why.to_owned()), key, value.into())
    }

    /// With one more pair where there is a value for it.
    #[must_use]
    pub fn maybe(self, key: &str, value: Option<Self>) -> Self {
        match value {
            Some(value) => self.pair(None, key, value),
            None => self,
        }
    }

    fn pair(mut self, comment: Option<String>, key: &str, value: Self) -> Self {
        if let Self::Map(entries) = &mut self {
            entries.push(Entry { comment, key: key.to_owned(), value });
        }
        self
    }

    /// As a block, indented by so many blanks, with a line end.
    pub fn block(&self, indent: usize) -> String {
        let mut text = String::new();
        self.write(&mut text, indent);
        text
    }

    /// On one line, with braces and brackets.
    pub fn flow(&self) -> String {
        match self {
            Self::Text(text) => quoted(text, true),
            Self::Bare(text) => text.clone(),
            Self::Lines(text) => double_quoted(text),
            Self::Map(entries) => {
                let pairs: Vec<String> = entries
                    .iter()
                    .map(|entry| format!("{}: {}", quoted(&entry.key, true), entry.value.flow()))
                    .collect();
                format!("{{{}}}", pairs.join(", "))
            }
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(|item| item.value.flow()).collect();
                format!("[{}]", items.join(", "))
            }
        }
    }

    /// On one line, as JSON.
    pub fn json(&self) -> String {
        match self {
            Self::Text(text) | Self::Lines(text) => double_quoted(text),
            Self::Bare(text) => text.clone(),
            Self::Map(entries) => {
                let pairs: Vec<String> = entries
                    .iter()
                    .map(|entry| format!("{}: {}", double_quoted(&entry.key), entry.value.json()))
                    .collect();
                format!("{{{}}}", pairs.join(", "))
            }
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(|item| item.value.json()).collect();
                format!("[{}]", items.join(", "))
            }
        }
    }

    fn write(&self, text: &mut String, indent: usize) {
        let pad = " ".repeat(indent);
        match self {
            Self::Map(entries) => {
                for entry in entries {
                    comment(text, entry.comment.as_deref(), indent);
                    let _ = write!(text, "{pad}{}:", quoted(&entry.key, false));
                    entry.value.write_after(text, indent);
                }
            }
            Self::List(items) => {
                for item in items {
                    comment(text, item.comment.as_deref(), indent);
                    match &item.value {
                        Self::Map(entries) if !entries.is_empty() => {
                            let mut below = String::new();
                            item.value.write(&mut below, indent + 2);
                            // The first key stands behind the dash, after its comment.
                            let first = below.lines().take_while(|line| is_comment(line)).count();
                            for (number, line) in below.lines().enumerate() {
                                let line = match number {
                                    n if n < first => format!("{pad}{}", line.trim_start()),
                                    n if n == first => format!("{pad}- {}", line.trim_start()),
                                    _ => line.to_owned(),
                                };
                                let _ = writeln!(text, "{line}");
                            }
                        }
                        value => {
                            let _ = write!(text, "{pad}-");
                            value.write_after(text, indent);
                        }
                    }
                }
            }
            scalar => {
                let _ = writeln!(text, "{pad}{}", scalar.flow());
            }
        }
    }

    /// Behind a key's colon, or behind a dash.
    fn write_after(&self, text: &mut String, indent: usize) {
        match self {
            Self::Map(entries) if !entries.is_empty() => {
                text.push('\n');
                self.write(text, indent + 2);
            }
            Self::List(items) if !items.is_empty() => {
                text.push('\n');
                self.write(text, indent);
            }
            Self::Lines(lines) => {
                let strip = if lines.ends_with('\n') { "" } else { "-" };
                let _ = writeln!(text, " |{strip}");
                let pad = " ".repeat(indent + 2);
                for line in lines.lines() {
                    let _ = match line.is_empty() {
                        true => writeln!(text),
                        false => writeln!(text, "{pad}{line}"),
                    };
                }
            }
            Self::Text(plain) => {
                let _ = writeln!(text, " {}", quoted(plain, false));
            }
            other => {
                let _ = writeln!(text, " {}", other.flow());
            }
        }
    }
}

/// An item of a list, with the reason for it.
pub(crate) fn item(why: &str, value: Value) -> Entry {
    Entry { comment: Some(why.to_owned()), key: String::new(), value }
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

fn comment(text: &mut String, comment: Option<&str>, indent: usize) {
    let Some(comment) = comment else { return };
    let pad = " ".repeat(indent);
    let room = COLUMNS.saturating_sub(indent + 2).max(30);
    let mut line = String::new();
    for word in comment.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            let _ = writeln!(text, "{pad}# {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{pad}# {line}");
}

/// A text as a plain scalar where that reads the same, else in quotes.
pub(crate) fn quoted(text: &str, in_flow: bool) -> String {
    let marks = [
        '-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@',
        '`', '=', '<',
    ];
    let starts = text.starts_with(marks) || text.starts_with('.') && text.len() == 1;
    let words = ["", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let is_word = words.contains(&text.to_ascii_lowercase().as_str());
    let numeric = text.parse::<f64>().is_ok()
        || text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_hexdigit() || "xob_.:+-".contains(c));
    let inside = text.contains(": ") || text.ends_with(':') || text.contains(" #");
    let flow = in_flow && text.contains([',', '[', ']', '{', '}']);
    let blank = text.trim() != text;
    if text.chars().any(char::is_control) {
        return double_quoted(text);
    }
    if starts || is_word || numeric || inside || flow || blank {
        return format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    }
    text.to_owned()
}

fn double_quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::yaml;

    #[test]
    fn a_block_is_laid_out_as_kubectl_does() {
        let value = Value::map()
            .with("name", "x")
            .because("why this is so", "count", 8_u64)
            .with("list", Value::list([Value::map().with("a", "1").with("b", true), "c".into()]))
            .with("script", Value::Lines("one\ntwo\n".to_owned()))
            .with("none", Value::map());
        let wanted = "name: x\n# why this is so\ncount: 8\nlist:\n- a: \"1\"\n  b: true\n- c\n\
                      script: |\n  one\n  two\nnone: {}\n";
        assert_eq!(value.block(0), wanted);
    }

    proptest! {
        #[test]
        fn texts_read_back_as_they_were(text in "[ -~\u{e4}\n\t]{0,20}", key in "[a-z/.]{1,8}") {
            for written in [
                Value::map().with(&key, text.as_str()).block(0),
                format!("{}\n", Value::map().with(&key, text.as_str()).flow()),
            ] {
                let stream = yaml::read(&written);
                prop_assert!(stream.errors.is_empty(), "{written:?} {:?}", stream.errors);
                let root = &stream.documents[0].root;
                prop_assert_eq!(root.entry(&key).map(|(_, value)| value.text()), Some(Some(text.as_str())), "{}", written);
            }
        }
    }
}

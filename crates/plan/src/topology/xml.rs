//! NCCL's topology XML, read and written.
//!
//! *Invariant:* [`read`] is total and bounded: before the parser sees a text, its size, the number
//! of its elements, their depth and the length of each tag are checked, so that no input costs
//! more than a few megabytes and milliseconds. What [`write()`] makes, [`read`] reads back equal.

use std::fmt::{self, Write as _};

use super::bus::BusId;
use super::document::{Element, parse_number};

/// Bytes of a topology file; the largest real ones have some ten thousand.
pub const BYTES_MOST: usize = 8 << 20;
/// Elements of a topology file; NCCL itself stops at 256.
pub const ELEMENTS_MOST: usize = 1 << 14;
/// Elements inside each other.
const DEPTH_MOST: usize = 64;
/// Bytes of one tag with its attributes.
const TAG_BYTES_MOST: usize = 1 << 16;

/// Why a text is no topology, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct XmlError {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for XmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

/// Reads a topology.
///
/// # Errors
/// The text is too large, no XML, or not in NCCL's form; the error says where.
pub fn read(bytes: &[u8]) -> Result<Element, XmlError> {
    if bytes.len() > BYTES_MOST {
        let what = format!("the file is longer than {BYTES_MOST} bytes; that is no topology");
        return Err(XmlError { line: 1, column: 1, what });
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.trim_start_matches('\u{feff}'),
        Err(error) => {
            let known = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            return Err(at(&known, known.len(), "not UTF-8 text"));
        }
    };
    let open = check_shape(text)?;
    let options = roxmltree::ParsingOptions {
        nodes_limit: u32::try_from(8 * ELEMENTS_MOST).unwrap_or(u32::MAX),
        ..roxmltree::ParsingOptions::default()
    };
    let document = roxmltree::Document::parse_with_options(text, options).map_err(|error| {
        use roxmltree::Error::{UnclosedRootNode, UnexpectedEndOfStream};
        if matches!(error, UnclosedRootNode | UnexpectedEndOfStream) {
            return cut_off(text, open.last().copied());
        }
        let position = error.pos();
        // The parser ends its messages with the position, which stands in front here.
        let what = error.to_string();
        let what = what.rfind(" at ").map_or(what.as_str(), |end| &what[..end]);
        XmlError { line: position.row, column: position.col, what: what.to_owned() }
    })?;
    let root = document.root_element();
    if root.tag_name().name() != "system" {
        let what = format!("the outermost element is <{}>, not <system>", root.tag_name().name());
        return Err(here(root, what));
    }
    // NCCL writes 1, RCCL has written 2 with the same meaning.
    let version = root.attribute("version").filter(|version| !["1", "2"].contains(version));
    if let Some(version) = version {
        let version: String = version.chars().take(20).collect();
        return Err(here(root, format!("version {version:?} of the format; 1 and 2 are known")));
    }
    element(root)
}

/// Copies one element; the depth is bounded by [`check_shape`].
fn element(node: roxmltree::Node<'_, '_>) -> Result<Element, XmlError> {
    let foreign = node.tag_name().namespace().is_some()
        || node.attributes().any(|attribute| attribute.namespace().is_some())
        || node.namespaces().any(|space| space.name() != Some("xml"));
    if foreign {
        return Err(here(node, "namespaces are not part of this format".to_owned()));
    }
    let mut copy = Element::new(node.tag_name().name());
    for attribute in node.attributes() {
        copy.attributes.push((attribute.name().to_owned(), attribute.value().to_owned()));
    }
    check_attributes(node, &copy)?;
    for child in node.children() {
        if child.is_element() {
            copy.children.push(element(child)?);
        } else if child.is_text() && child.text().is_some_and(|text| !text.trim().is_empty()) {
            let text: String = child.text().unwrap_or_default().trim().chars().take(20).collect();
            return Err(here(child, format!("text {text:?} between elements")));
        }
    }
    Ok(copy)
}

/// What NCCL would take for 0 or refuse later.
fn check_attributes(node: roxmltree::Node<'_, '_>, element: &Element) -> Result<(), XmlError> {
    let (needed, numbers, buses): (&[&str], &[&str], &[&str]) = match element.name.as_str() {
        "cpu" => (&["numaid"], &["numaid", "familyid", "modelid"], &[]),
        "pci" => (&["busid"], &["link_width"], &["busid"]),
        "gpu" => (&["dev"], &["dev", "sm", "rank", "gdr"], &[]),
        "net" => (&[], &["dev", "speed", "port", "gdr", "maxconn"], &[]),
        "nvlink" | "xgmi" => (&["target", "count"], &["count"], &["target"]),
        "c2c" => (&["count", "bw"], &["count", "bw"], &[]),
        "pcilink" => (&["target"], &[], &["target"]),
        _ => (&[], &[], &[]),
    };
    let name = &element.name;
    for key in needed {
        if element.get(key).is_none() {
            return Err(here(node, format!("<{name}> has no {key}")));
        }
    }
    for (key, value) in &element.attributes {
        let shown: String = value.chars().take(40).collect();
        let key = key.as_str();
        // The kernel leaves speeds and widths of virtual devices empty.
        let number = || value.is_empty() || parse_number(value).is_some();
        let wrong = if numbers.contains(&key) && !number() {
            "a number"
        } else if buses.contains(&key) && value.parse::<BusId>().is_err() {
            "a PCI bus id such as 0000:0f:00.0"
        } else {
            continue;
        };
        let place = node.attributes().find(|a| a.name() == key).map(|a| a.range().start);
        let what = format!("{key}={shown:?} of <{name}> is not {wrong}");
        return Err(match place {
            Some(place) => at(node.document().input_text(), place, &what),
            None => here(node, what),
        });
    }
    Ok(())
}

fn here(node: roxmltree::Node<'_, '_>, what: String) -> XmlError {
    let position = node.document().text_pos_at(node.range().start);
    XmlError { line: position.row, column: position.col, what }
}

/// An error at a byte of the text.
fn at(text: &str, byte: usize, what: &str) -> XmlError {
    let before = &text[..text.floor_char_boundary(byte.min(text.len()))];
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    XmlError { line: small(line), column: small(column), what: what.to_owned() }
}

/// Refuses what would cost the parser too much: it has not to be well-formed to pass here.
///
/// Gives the places of the elements that the text does not close.
fn check_shape(text: &str) -> Result<Vec<usize>, XmlError> {
    let bytes = text.as_bytes();
    let end_of = |from: usize, mark: &str| match text.get(from..).and_then(|rest| rest.find(mark)) {
        Some(found) => from + found + mark.len(),
        None => bytes.len(),
    };
    let (mut place, mut elements, mut open_at) = (0, 0, Vec::new());
    while let Some(found) = bytes[place..].iter().position(|byte| *byte == b'<') {
        let open = place + found;
        let rest = &bytes[open..];
        if rest.starts_with(b"<!--") {
            place = end_of(open + 4, "-->");
        } else if rest.starts_with(b"<![CDATA[") {
            return Err(at(text, open, "character data is not part of this format"));
        } else if rest.starts_with(b"<?") {
            place = end_of(open + 2, "?>");
        } else if rest.starts_with(b"<!") {
            return Err(at(text, open, "declarations are not part of this format"));
        } else {
            let length = tag_length(rest);
            if length > TAG_BYTES_MOST {
                return Err(at(text, open, "an element longer than 65,536 bytes"));
            }
            place = open + length;
            if rest.starts_with(b"</") {
                open_at.pop();
                continue;
            }
            elements += 1;
            if elements > ELEMENTS_MOST {
                return Err(at(text, open, &format!("more than {ELEMENTS_MOST} elements")));
            }
            if !rest[..length].ends_with(b"/>") {
                open_at.push(open);
            }
            if open_at.len() > DEPTH_MOST {
                return Err(at(text, open, &format!("more than {DEPTH_MOST} elements deep")));
            }
        }
    }
    Ok(open_at)
}

/// The error of a text that ends too early.
fn cut_off(text: &str, open: Option<usize>) -> XmlError {
    let what = match open {
        None => "the file ends here, but the topology does not".to_owned(),
        Some(open) => {
            let name = text[open + 1..].split(|letter: char| !letter.is_alphanumeric()).next();
            let name: String = name.unwrap_or_default().chars().take(20).collect();
            let line = at(text, open, "").line;
            format!("the file ends here, but <{name}> of line {line} is not closed")
        }
    };
    at(text, text.trim_end().len(), &what)
}

/// Bytes from `<` to its `>`, which may stand in quotes before.
fn tag_length(rest: &[u8]) -> usize {
    let mut quote = None;
    for (index, byte) in rest.iter().enumerate().take(TAG_BYTES_MOST + 1) {
        match (quote, *byte) {
            (None, b'"' | b'\'') => quote = Some(*byte),
            (None, b'>') => return index + 1,
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
    }
    rest.len().min(TAG_BYTES_MOST + 1)
}

/// Writes a topology as NCCL does: two spaces a level, one element a line.
#[must_use]
pub fn write(element: &Element) -> String {
    let mut text = String::new();
    write_element(&mut text, element, 0);
    text
}

fn write_element(text: &mut String, element: &Element, level: usize) {
    let _ = write!(text, "{:1$}<{2}", "", 2 * level, element.name);
    for (name, value) in &element.attributes {
        let _ = write!(text, " {name}=\"{}\"", Escaped(value));
    }
    if element.children.is_empty() {
        text.push_str("/>\n");
        return;
    }
    text.push_str(">\n");
    for child in &element.children {
        write_element(text, child, level + 1);
    }
    let _ = writeln!(text, "{:1$}</{2}>", "", 2 * level, element.name);
}

/// A value between quotes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\t' | '\n' | '\r' => write!(f, "&#{};", u32::from(letter))?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

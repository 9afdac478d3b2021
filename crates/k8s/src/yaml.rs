//! YAML with the place of every node: documents, and where in the text each part stands.
//!
//! A manifest is never printed again from its tree: what is changed is changed in the text, at the spans that
//! stand here, so comments and layout stay. *Invariant*: total. Any text gives documents and errors, each with
//! its place; one document that cannot be read does not hide the others.

mod edit;
mod read;

use std::ops::Range;

pub use edit::{Edit, apply};
pub(crate) use edit::{
    add_entry, add_item, remove_entry, remove_item, replace_entry, set_entry, set_scalar,
};

/// A place in a text; lines and columns begin at 1.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl Place {
    /// The place of a byte.
    pub fn of(text: &str, at: usize) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        Self { line: before.matches('\n').count() + 1, column: before[line..].chars().count() + 1 }
    }
}

/// How a scalar is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// In quotes of either kind.
    Quoted,
    /// A block, `|` or `>`.
    Block,
}

/// What a node holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Content {
    /// A text.
    Scalar(String, Style),
    /// Pairs, in their order.
    Map(Vec<(Node, Node)>),
    /// Items, in their order.
    List(Vec<Node>),
}

/// One node of a document.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// What it holds.
    pub content: Content,
    /// Bytes of the whole text that it takes.
    pub span: Range<usize>,
    /// Where it begins.
    pub place: Place,
    /// Whether it is written with braces or brackets.
    pub is_flow: bool,
    /// Whether it is an alias (`*name`), or within what one stands for: its text stands elsewhere, and is not changed
    /// from here.
    pub is_alias: bool,
}

/// One document of a text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Document {
    /// Its root.
    pub root: Node,
}

/// Why a document could not be read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SyntaxError {
    /// Where.
    pub place: Place,
    /// Why.
    pub reason: String,
    /// Whether the text is a template that must be filled first.
    pub is_template: bool,
}

/// A text, read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Stream {
    /// Documents that could be read; empty ones are left out.
    pub documents: Vec<Document>,
    /// What could not.
    pub errors: Vec<SyntaxError>,
}

/// Reads all documents of a text.
pub fn read(text: &str) -> Stream {
    read::stream(text)
}

impl Node {
    /// The text of a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    /// Whether it is nothing: `~`, `null`, or no text at all.
    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar(text, Style::Plain)
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// A whole number.
    pub fn number(&self) -> Option<u64> {
        self.text()?.trim().parse().ok()
    }

    /// A truth.
    pub fn truth(&self) -> Option<bool> {
        match self.text()? {
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => None,
        }
    }

    /// The pairs of a map; none of anything else.
    pub fn entries(&self) -> &[(Self, Self)] {
        match &self.content {
            Content::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a list; none of anything else.
    pub fn items(&self) -> &[Self] {
        match &self.content {
            Content::List(items) => items,
            _ => &[],
        }
    }

    /// The value of a key, also where a `<<` brings it in; a null is none.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// A key with its value.
    pub fn entry(&self, key: &str) -> Option<&(Self, Self)> {
        let own = self.entries().iter().find(|(name, _)| name.text() == Some(key));
        own.or_else(|| {
            let (_, merged) = self.entries().iter().find(|(name, _)| name.text() == Some("<<"))?;
            merged.entries().iter().find(|(name, _)| name.text() == Some(key))
        })
    }

    /// The value below a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The text below a path of keys.
    pub fn text_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.text()
    }
}

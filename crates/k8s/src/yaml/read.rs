//! Text → nodes, by the parser's events.

use std::collections::BTreeMap;
use std::ops::Range;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use super::{Content, Document, Node, Place, Stream, Style, SyntaxError};

/// Nodes of one document, those that aliases repeat counted each time: more are an attack.
const NODES_MOST: usize = 200_000;
/// Nodes within nodes: deeper ones are an attack on the stack.
const DEPTH_MOST: usize = 120;

/// All documents. The text is cut at the lines that end documents, which nothing inside one can look like, so
/// that a fault in one leaves the others readable.
pub(super) fn stream(text: &str) -> Stream {
    let mut stream = Stream::default();
    // A mark of byte order is no part of the text.
    let begin = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut start = begin;
    let mut at = begin;
    let (mut lines, mut lines_before) = (0, 0);
    for line in text[begin..].split_inclusive('\n') {
        let is_mark = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(|c: char| c.is_whitespace()));
        if is_mark && at > start {
            part(text, start..at, lines_before, &mut stream);
            (start, lines_before) = (at, lines);
        }
        at += line.len();
        lines += 1;
    }
    part(text, start..text.len(), lines_before, &mut stream);
    stream
}

fn part(text: &str, range: Range<usize>, lines_before: usize, stream: &mut Stream) {
    let base = Base::new(text, &range, lines_before);
    let own = &text[range];
    match Reader::new(text, own, base).documents() {
        Ok(documents) => stream.documents.extend(documents),
        Err(mut error) => {
            error.is_template = is_template(own, error.place.line.saturating_sub(lines_before));
            stream.errors.push(error);
        }
    }
}

/// Whether what could not be read is a template's: braces of Go's or Jinja's on the line, or on one before.
fn is_template(text: &str, line: usize) -> bool {
    let near = text.lines().take(line + 1).skip(line.saturating_sub(3));
    near.into_iter().any(|line| line.contains("{{") || line.contains("{%"))
}

/// Where a part begins in the whole text, and which byte each of its characters has.
struct Base {
    /// Byte of each character, and the end.
    bytes: Vec<usize>,
    lines_before: usize,
}

impl Base {
    fn new(text: &str, range: &Range<usize>, lines_before: usize) -> Self {
        let mut bytes: Vec<usize> =
            text[range.clone()].char_indices().map(|(at, _)| range.start + at).collect();
        bytes.push(range.end);
        Self { bytes, lines_before }
    }

    fn byte(&self, marker: &Marker) -> usize {
        let last = self.bytes.len() - 1;
        self.bytes[marker.index().min(last)]
    }

    fn place(&self, marker: &Marker) -> Place {
        Place { line: self.lines_before + marker.line().max(1), column: marker.col() + 1 }
    }
}

struct Reader<'a> {
    whole: &'a str,
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    base: Base,
    anchors: BTreeMap<usize, (Node, usize)>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn new(whole: &'a str, text: &'a str, base: Base) -> Self {
        let parser = Parser::new_from_str(text);
        Self { whole, parser, base, anchors: BTreeMap::new(), nodes: 0 }
    }

    fn documents(mut self) -> Result<Vec<Document>, SyntaxError> {
        let mut found = Vec::new();
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(found),
                (Event::DocumentStart(_), _) => {
                    let event = self.next()?;
                    if matches!(event.0, Event::DocumentEnd) {
                        continue;
                    }
                    let (root, _) = self.node(event, 0)?;
                    if !root.is_null() {
                        found.push(Document { root });
                    }
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), SyntaxError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(SyntaxError {
                place: self.base.place(error.marker()),
                reason: error.info().to_owned(),
                is_template: false,
            }),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn fault(&self, span: &Span, reason: &str) -> SyntaxError {
        SyntaxError {
            place: self.base.place(&span.start),
            reason: reason.to_owned(),
            is_template: false,
        }
    }

    /// The node that begins with an event, and how many nodes it is.
    fn node(
        &mut self,
        (event, span): (Event<'a>, Span),
        depth: usize,
    ) -> Result<(Node, usize), SyntaxError> {
        self.nodes += 1;
        if self.nodes > NODES_MOST {
            return Err(self.fault(&span, "more than 200000 nodes, with what aliases repeat"));
        }
        if depth > DEPTH_MOST {
            return Err(self.fault(&span, "more than 120 levels deep"));
        }
        let place = self.base.place(&span.start);
        let start = self.base.byte(&span.start);
        // An anchor may stand before what opens it, and blanks behind it.
        let opening = self
            .whole
            .get(start..self.base.byte(&span.end))
            .is_some_and(|text| text.trim_end().ends_with(['{', '[']));
        let (node, anchor, size) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
                    ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
                };
                let content = Content::Scalar(text.into_owned(), style);
                let span = start..self.base.byte(&span.end).max(start);
                (Node { content, span, place, is_flow: false, is_alias: false }, anchor, 1)
            }
            Event::SequenceStart(anchor, _) => {
                let mut items = Vec::new();
                let mut size = 1;
                let end = loop {
                    let event = self.next()?;
                    if matches!(event.0, Event::SequenceEnd) {
                        break event.1;
                    }
                    self.must_go_on(&event)?;
                    let (item, count) = self.node(event, depth + 1)?;
                    size += count;
                    items.push(item);
                };
                let last = items.last().map_or(start, |item: &Node| item.span.end);
                let end = if opening { self.closed(start, &end) } else { last };
                let (start, place) = match items.first() {
                    Some(first) if !opening => (first.span.start, first.place),
                    _ => (start, place),
                };
                (collection(Content::List(items), start..end, place, opening), anchor, size)
            }
            Event::MappingStart(anchor, _) => {
                let mut entries = Vec::new();
                let mut size = 1;
                let end = loop {
                    let event = self.next()?;
                    if matches!(event.0, Event::MappingEnd) {
                        break event.1;
                    }
                    self.must_go_on(&event)?;
                    let (key, of_key) = self.node(event, depth + 1)?;
                    let event = self.next()?;
                    self.must_go_on(&event)?;
                    let (value, of_value) = self.node(event, depth + 1)?;
                    size += of_key + of_value;
                    entries.push((key, value));
                };
                let last = entries.last().map_or(start, |(_, value): &(Node, Node)| value.span.end);
                let end = if opening { self.closed(start, &end) } else { last };
                let (start, place) = match entries.first() {
                    Some((first, _)) if !opening => (first.span.start, first.place),
                    _ => (start, place),
                };
                (collection(Content::Map(entries), start..end, place, opening), anchor, size)
            }
            Event::Alias(id) => {
                let Some((mut node, size)) = self.anchors.get(&id).cloned() else {
                    return Err(self.fault(&span, "an alias of nothing"));
                };
                self.nodes = self.nodes.saturating_add(size);
                node.span = start..self.base.byte(&span.end).max(start);
                node.place = place;
                mark(&mut node);
                return Ok((node, size));
            }
            _ => return Err(self.fault(&span, "something other than a value stands here")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok((node, size))
    }

    /// Where braces or brackets that began at a byte are closed; blanks behind them are not theirs.
    fn closed(&self, start: usize, end: &Span) -> usize {
        let text = self.whole.get(start..self.base.byte(&end.end));
        start + text.map_or(0, |text| text.trim_end().len())
    }

    /// The parser ends a stream early after some faults; a collection that is open then never ends.
    fn must_go_on(&self, event: &(Event<'a>, Span)) -> Result<(), SyntaxError> {
        match event.0 {
            Event::StreamEnd | Event::DocumentEnd => {
                Err(self.fault(&event.1, "the document ends within a collection"))
            }
            _ => Ok(()),
        }
    }
}

fn collection(content: Content, span: Range<usize>, place: Place, is_flow: bool) -> Node {
    let span = span.start..span.end.max(span.start);
    Node { content, span, place, is_flow, is_alias: false }
}

/// Says of a node and all in it that they stand elsewhere.
fn mark(node: &mut Node) {
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        node.is_alias = true;
        match &mut node.content {
            Content::Scalar(..) => {}
            Content::Map(entries) => {
                open.extend(entries.iter_mut().flat_map(|(key, value)| [key, value]));
            }
            Content::List(items) => open.extend(items),
        }
    }
}

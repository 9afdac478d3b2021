//! Changes of a text at the places of its nodes.
//!
//! *Invariant*: a change touches only the lines it is about; where a node is an alias, whose text stands
//! elsewhere, there is no change.

use std::ops::Range;

use super::{Content, Node, Style};
use crate::write::{Value, quoted};

/// Bytes of a text, and what is to stand in their place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Edit {
    /// What goes.
    pub span: Range<usize>,
    /// What comes.
    pub text: String,
}

/// The text with all these changes; nothing where they overlap.
pub fn apply(text: &str, edits: &[Edit]) -> Option<String> {
    let mut sorted: Vec<&Edit> = edits.iter().collect();
    sorted.sort_by_key(|edit| (edit.span.start, edit.span.end));
    sorted.dedup();
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    for edit in sorted {
        if edit.span.start < at {
            return None;
        }
        result.push_str(text.get(at..edit.span.start)?);
        result.push_str(&edit.text);
        at = edit.span.end;
    }
    result.push_str(text.get(at..)?);
    Some(result)
}

/// Writes another scalar in place of this one.
pub(crate) fn set_scalar(node: &Node, value: &Value) -> Option<Edit> {
    let style = match &node.content {
        Content::Scalar(_, style) if !node.is_alias => *style,
        _ => return None,
    };
    let text = match (style, value) {
        (Style::Block, _) => return None,
        (Style::Quoted, Value::Text(text)) => {
            let plain = quoted(text, true);
            if plain.starts_with('"') { plain } else { format!("\"{plain}\"") }
        }
        _ => value.flow(),
    };
    // An empty scalar stands right behind its colon.
    let gap = if node.span.is_empty() { " " } else { "" };
    Some(Edit { span: node.span.clone(), text: format!("{gap}{text}") })
}

/// Adds a pair behind the last of a map.
pub(crate) fn add_entry(text: &str, map: &Node, key: &str, value: &Value) -> Option<Edit> {
    let Content::Map(entries) = &map.content else { return None };
    if map.is_alias {
        return None;
    }
    if map.is_flow {
        let inside = pair_in_flow(text, map, key, value);
        return add_in_flow(text, map, entries.last().map(|(_, value)| value), &inside);
    }
    entries.first()?;
    let pair = Value::map().with(key, value.clone());
    Some(insert_after(text, map.span.end, &pair.block(map.place.column - 1)))
}

/// Gives a key this value, whether it is there or not.
pub(crate) fn set_entry(text: &str, map: &Node, key: &str, value: &Value) -> Option<Edit> {
    let own = map.entries().iter().find(|(name, _)| name.text() == Some(key));
    let Some((_, old)) = own else {
        return add_entry(text, map, key, value);
    };
    let scalar = !matches!(value, Value::Map(_) | Value::List(_));
    if scalar && matches!(old.content, Content::Scalar(..)) && !old.is_null() && !map.is_alias {
        return set_scalar(old, value);
    }
    replace_entry(text, map, key, key, value)
}

/// Puts another pair in the place of one.
pub(crate) fn replace_entry(
    text: &str,
    map: &Node,
    old_key: &str,
    key: &str,
    value: &Value,
) -> Option<Edit> {
    let (name, old) = map.entries().iter().find(|(name, _)| name.text() == Some(old_key))?;
    if map.is_alias || old.is_alias {
        return None;
    }
    let start = name.span.start;
    let end = old.span.start + text.get(old.span.clone())?.trim_end().len();
    let end = end.max(name.span.end);
    if map.is_flow {
        return Some(Edit { span: start..end, text: pair_in_flow(text, map, key, value) });
    }
    // A null stands at its colon, or nowhere.
    let colon = name.span.end + text.get(name.span.end..)?.find(':')? + 1;
    let end = end.max(colon);
    let block = Value::map().with(key, value.clone()).block(name.place.column - 1);
    let Some((first, below)) = block.trim().split_once('\n') else {
        return Some(Edit { span: start..end, text: block.trim().to_owned() });
    };
    // A comment stays on the line it stands on.
    let rest = text.get(end..)?.lines().next().unwrap_or("");
    let comment = rest.trim_end();
    if !comment.is_empty() && !comment.trim_start().starts_with('#') {
        return None;
    }
    let both = with_line_ends_of(text, &format!("{first}{comment}\n{below}"));
    Some(Edit { span: start..end + rest.len(), text: both })
}

/// Adds an item behind the last of a list.
pub(crate) fn add_item(text: &str, list: &Node, value: &Value) -> Option<Edit> {
    let Content::List(items) = &list.content else { return None };
    if list.is_alias {
        return None;
    }
    if list.is_flow {
        let inside = if is_json(text, list) { value.json() } else { value.flow() };
        return add_in_flow(text, list, items.last(), &inside);
    }
    let dash = dash_of(text, items.first()?)?;
    let indent = dash - line_start(text, dash);
    let block = Value::list([value.clone()]).block(indent);
    Some(insert_after(text, list.span.end, &block))
}

/// Takes a pair out of a map.
pub(crate) fn remove_entry(text: &str, map: &Node, key: &str) -> Option<Edit> {
    let entries = map.entries();
    let index = entries.iter().position(|(name, _)| name.text() == Some(key))?;
    if map.is_alias {
        return None;
    }
    let (name, value) = &entries[index];
    let next = entries.get(index + 1).map(|(name, _)| name.span.start);
    let before = index.checked_sub(1).map(|index| entries[index].1.span.end);
    remove(text, name.span.start, value.span.end.max(name.span.end), next, before, map.is_flow)
}

/// Takes an item out of a list.
pub(crate) fn remove_item(text: &str, list: &Node, index: usize) -> Option<Edit> {
    let items = list.items();
    let item = items.get(index)?;
    if list.is_alias {
        return None;
    }
    let start_of = |item: &Node| {
        if list.is_flow { Some(item.span.start) } else { dash_of(text, item) }
    };
    let next = match items.get(index + 1) {
        Some(next) => Some(start_of(next)?),
        None => None,
    };
    let before = index.checked_sub(1).map(|index| items[index].span.end);
    remove(text, start_of(item)?, item.span.end, next, before, list.is_flow)
}

fn remove(
    text: &str,
    start: usize,
    end: usize,
    next: Option<usize>,
    before: Option<usize>,
    is_flow: bool,
) -> Option<Edit> {
    let gone = |span| Some(Edit { span, text: String::new() });
    let line = line_start(text, start);
    let alone = text.get(line..start)?.trim().is_empty();
    if is_flow || !alone {
        // In braces, or behind a dash: what follows takes its place.
        return match (next, before) {
            (Some(next), _) => gone(start..next),
            (None, Some(before)) => gone(before..end),
            (None, None) => gone(start..end),
        };
    }
    let end = start + text.get(start..end)?.trim_end().len();
    gone(line..line_end(text, end))
}

fn add_in_flow(text: &str, node: &Node, last: Option<&Node>, inside: &str) -> Option<Edit> {
    let Some(last) = last else {
        let open = node.span.start + text.get(node.span.clone())?.find(['{', '['])? + 1;
        return Some(Edit { span: open..open, text: inside.to_owned() });
    };
    let at = last.span.end;
    // A comma may stand behind the last already.
    let rest = text.get(at..node.span.end)?;
    match rest.trim_start().starts_with(',') {
        true => {
            let comma = at + rest.find(',')? + 1;
            Some(Edit { span: comma..comma, text: format!(" {inside}") })
        }
        false => Some(Edit { span: at..at, text: format!(", {inside}") }),
    }
}

/// `key: value` as it stands within braces.
fn pair_in_flow(text: &str, map: &Node, key: &str, value: &Value) -> String {
    let pair = Value::map().with(key, value.clone());
    let braces = if is_json(text, map) { pair.json() } else { pair.flow() };
    braces[1..braces.len() - 1].to_owned()
}

/// Whether what stands within braces is JSON: then it stays so.
fn is_json(text: &str, node: &Node) -> bool {
    let quoted = |node: &Node| text.get(node.span.clone()).is_some_and(|raw| raw.starts_with('"'));
    text.trim_start().starts_with('{')
        || node.entries().iter().any(|(key, _)| quoted(key))
        || node.items().iter().any(|item| quoted(item) || item.is_flow && is_json(text, item))
}

/// Lines behind the line on which something ends. A text that ends without a line end goes on doing so.
fn insert_after(text: &str, end: usize, block: &str) -> Edit {
    let end = text[..end].trim_end().len();
    let at = line_end(text, end);
    let lines = match text[..at].ends_with('\n') {
        true => block.to_owned(),
        false => format!("\n{}", block.trim_end_matches('\n')),
    };
    Edit { span: at..at, text: with_line_ends_of(text, &lines) }
}

/// Lines that end as those of the text do.
fn with_line_ends_of(text: &str, lines: &str) -> String {
    let first = text.find('\n').unwrap_or(0);
    match text[..first].ends_with('\r') {
        true => lines.replace('\n', "\r\n"),
        false => lines.to_owned(),
    }
}

/// Where the dash of an item of a block list stands: on its line, or above it with comments between.
fn dash_of(text: &str, item: &Node) -> Option<usize> {
    let mut end = item.span.start;
    let mut is_own = true;
    loop {
        let start = line_start(text, end);
        let line = text.get(start..end)?;
        let marks = line.find(|c: char| c != '-' && !c.is_whitespace()).unwrap_or(line.len());
        let rest = &line[marks..];
        if !rest.is_empty() && (is_own || !rest.starts_with('#')) {
            return None;
        }
        match line[..marks].matches('-').count() {
            0 => {}
            1 => return line.find('-').map(|at| start + at),
            // A list within a list: which dash is meant is not asked here.
            _ => return None,
        }
        end = start.checked_sub(1)?;
        is_own = false;
    }
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |at| at + 1)
}

/// Behind the end of the line.
fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end + 1)
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    const TEXT: &str = "a:\n  b: 1  # one\n  c: {d: 2, e: [x]}\nlist:\n- k: 1\n  l: 2\n- k: 3\n";

    fn with(text: &str, make: impl Fn(&Node) -> Option<Edit>) -> String {
        let stream = read(text);
        let edit = make(&stream.documents[0].root).expect("an edit");
        let after = apply(text, &[edit]).expect("one edit never overlaps");
        assert_eq!(read(&after).errors, [], "{after}");
        after
    }

    #[test]
    fn pairs_come_and_go_and_the_rest_stays() {
        let at = |path: &'static [&'static str]| move |root: &Node| root.at(path).cloned();
        let a = at(&["a"]);
        let added = with(TEXT, |root| add_entry(TEXT, &a(root)?, "z", &Value::from(true)));
        assert_eq!(added, TEXT.replace("[x]}\n", "[x]}\n  z: true\n"));
        let flow = at(&["a", "c"]);
        let added = with(TEXT, |root| add_entry(TEXT, &flow(root)?, "z", &Value::from("y")));
        assert_eq!(added, TEXT.replace("[x]}", "[x], z: \"y\"}"));
        let gone = with(TEXT, |root| remove_entry(TEXT, &a(root)?, "b"));
        assert_eq!(gone, TEXT.replace("  b: 1  # one\n", ""));
        let gone = with(TEXT, |root| remove_entry(TEXT, &flow(root)?, "e"));
        assert_eq!(gone, TEXT.replace(", e: [x]", ""));
        let set = with(TEXT, |root| set_entry(TEXT, &a(root)?, "b", &Value::from(2_u64)));
        assert_eq!(set, TEXT.replace("b: 1", "b: 2"));
        let map = Value::map().with("x", 1_u64);
        let set = with(TEXT, |root| set_entry(TEXT, &a(root)?, "b", &map));
        assert_eq!(set, TEXT.replace("b: 1  # one", "b:  # one\n    x: 1"));
    }

    #[test]
    fn items_come_and_go() {
        let list = |root: &Node| root.at(&["list"]).cloned();
        let item = Value::map().with("k", 4_u64);
        let added = with(TEXT, |root| add_item(TEXT, &list(root)?, &item));
        assert_eq!(added, format!("{TEXT}- k: 4\n"));
        let gone = with(TEXT, |root| remove_item(TEXT, &list(root)?, 0));
        assert_eq!(gone, TEXT.replace("- k: 1\n  l: 2\n", ""));
        let first = |root: &Node| list(root)?.items().first().cloned();
        let gone = with(TEXT, |root| remove_entry(TEXT, &first(root)?, "k"));
        assert_eq!(gone, TEXT.replace("k: 1\n  l: 2", "l: 2"));
        let brackets = |root: &Node| root.at(&["a", "c", "e"]).cloned();
        let added = with(TEXT, |root| add_item(TEXT, &brackets(root)?, &Value::from("z")));
        assert_eq!(added, TEXT.replace("[x]", "[x, z]"));
    }

    #[test]
    fn blanks_within_braces_do_not_matter() {
        let text = "- { a: [ x ], b: { } }\n";
        let first = |root: &Node| root.items().first().cloned();
        let list = with(text, |root| add_item(text, first(root)?.get("a")?, &Value::from("z")));
        assert_eq!(list, "- { a: [ x, z ], b: { } }\n");
        let map =
            with(text, |root| add_entry(text, first(root)?.get("b")?, "c", &Value::from("d")));
        assert_eq!(map, "- { a: [ x ], b: {c: d } }\n");
    }

    #[test]
    fn a_text_without_a_last_line_end_stays_so() {
        let text = "a:\n  b: 1";
        let after = with(text, |root| add_entry(text, root, "c", &Value::from("x")));
        assert_eq!(after, "a:\n  b: 1\nc: x");
    }

    #[test]
    fn line_ends_are_those_of_the_text() {
        let text = "a:\r\n  b: 1\r\nc:  # why\r\n";
        let after = with(text, |root| add_entry(text, root.get("a")?, "d", &Value::from("x")));
        assert_eq!(after, text.replace("1\r\n", "1\r\n  d: x\r\n"));
        let map = Value::map().with("x", 1_u64);
        let after = with(text, |root| set_entry(text, root, "c", &map));
        assert_eq!(after, format!("{text}  x: 1\r\n"));
    }

    #[test]
    fn a_comment_stays_on_its_line() {
        for (text, wanted) in [
            ("a:  # none yet\n# keep\nb: 1\n", "a:  # none yet\n- x\n# keep\nb: 1\n"),
            ("a: ~ # none yet\nb: 1\n", "a: # none yet\n- x\nb: 1\n"),
            ("b: 1\na:", "b: 1\na:\n- x"),
        ] {
            let list = Value::list(["x".into()]);
            assert_eq!(with(text, |root| set_entry(text, root, "a", &list)), wanted);
        }
        let text = "a:\n  b: true  # why\n  # and\n  c: 1\n";
        let list = Value::list(["x".into()]);
        let after = with(text, |root| replace_entry(text, root.get("a")?, "b", "z", &list));
        assert_eq!(after, "a:\n  z:  # why\n  - x\n  # and\n  c: 1\n");
    }

    #[test]
    fn a_dash_is_no_part_of_a_comment() {
        let text = "l:\n- # ------\n  a: 1\n- b: 2\n# - -\n- c: 3\n";
        let gone = |index| with(text, |root| remove_item(text, root.get("l")?, index));
        assert_eq!(gone(0), "l:\n- b: 2\n# - -\n- c: 3\n");
        assert_eq!(gone(1), "l:\n- # ------\n  a: 1\n# - -\n- c: 3\n");
        let nested = "l:\n- - a\n  - b\n- c\n";
        let root = &read(nested).documents[0].root;
        assert_eq!(remove_item(nested, root.get("l").expect("it is there"), 0), None);
    }

    #[test]
    fn json_stays_json() {
        let text = r#"{"a": {"b": 1}, "l": ["x"], "e": {}}"#;
        let json = |after: String| {
            serde_json::from_str::<serde_json::Value>(&after).expect("it is JSON still");
            after
        };
        let map = Value::map().with("x", "y").with("l", Value::list(["z".into()]));
        let added = json(with(text, |root| add_entry(text, root.get("e")?, "c", &map)));
        assert!(added.contains(r#""e": {"c": {"x": "y", "l": ["z"]}}"#), "{added}");
        let set = json(with(text, |root| set_entry(text, root, "a", &map)));
        assert!(set.contains(r#""a": {"x": "y", "l": ["z"]}"#), "{set}");
        json(with(text, |root| add_item(text, root.get("l")?, &Value::from("z"))));
    }

    #[test]
    fn what_stands_elsewhere_is_not_changed_from_here() {
        let text = "a: &x {b: {c: 1}}\nd: *x\n";
        let root = &read(text).documents[0].root;
        let inner = root.at(&["d", "b"]).expect("it is there");
        assert_eq!(set_entry(text, inner, "c", &Value::from(2_u64)), None);
        assert_eq!(add_entry(text, inner, "d", &Value::from(2_u64)), None);
        assert_eq!(remove_entry(text, inner, "c"), None);
    }

    #[test]
    fn overlapping_changes_are_refused() {
        let edit = |span| Edit { span, text: String::new() };
        assert_eq!(apply("abcdef", &[edit(0..3), edit(2..4)]), None);
        assert_eq!(apply("abcdef", &[edit(0..3), edit(3..4)]), Some("ef".to_owned()));
    }
}

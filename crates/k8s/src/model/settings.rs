//! Variables that manifests set: in `env`, in scripts, in arguments of mpirun.

use std::ops::Range;

use super::{Pod, Set};
use crate::write::Value;
use crate::yaml::{Content, Edit, Node, Style, remove_entry, remove_item, set_scalar};

/// One variable that a pod sets.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// Its name.
    pub name: String,
    /// Its value; nothing where only a shell or the cluster could tell.
    pub value: Option<String>,
    /// Which pod of the set.
    pub pod: usize,
    /// Which text it stands in.
    pub file: usize,
    /// Bytes of the text that it takes.
    pub span: Range<usize>,
    /// The node it stands in.
    pub node: &'a Node,
    /// What takes it out, where that is safe.
    pub remove: Option<Vec<Edit>>,
    /// Where its value alone stands in the text, and how it is quoted.
    value_span: Option<(Range<usize>, bool)>,
}

impl Setting<'_> {
    /// What gives it another value.
    pub fn set(&self, value: &str) -> Option<Vec<Edit>> {
        let (span, is_node) = self.value_span.clone()?;
        if is_node {
            return set_scalar(self.node, &Value::from(value)).map(|edit| vec![edit]);
        }
        Some(vec![Edit { span, text: value.to_owned() }])
    }
}

/// All variables of all pods.
pub fn settings<'a>(set: &Set<'a>) -> Vec<Setting<'a>> {
    let mut found = Vec::new();
    for (index, pod) in set.pods.iter().enumerate() {
        for container in &pod.containers {
            if let Some(list) = container.node.get("env") {
                of_env(set, index, pod, container.node, list, &mut found);
            }
            of_words(set, index, pod, container.words().collect(), &mut found);
        }
    }
    found
}

fn of_env<'a>(
    set: &Set<'a>,
    index: usize,
    pod: &Pod<'a>,
    container: &'a Node,
    list: &'a Node,
    found: &mut Vec<Setting<'a>>,
) {
    let text = set.text(pod.resource.file);
    for (at, item) in list.items().iter().enumerate() {
        let Some(name) = item.text_at(&["name"]) else { continue };
        let value = item.get("value");
        let remove = match list.items().len() {
            1 => remove_entry(text, container, "env"),
            _ => remove_item(text, list, at),
        };
        let known = value.and_then(Node::text).filter(|value| !value.contains('$'));
        found.push(Setting {
            name: name.to_owned(),
            value: known.map(str::to_owned),
            pod: index,
            file: pod.resource.file,
            span: item.span.clone(),
            node: value.unwrap_or(item),
            remove: remove.map(|edit| vec![edit]),
            value_span: value.map(|value| (value.span.clone(), true)),
        });
    }
}

fn of_words<'a>(
    set: &Set<'a>,
    index: usize,
    pod: &Pod<'a>,
    words: Vec<&'a Node>,
    found: &mut Vec<Setting<'a>>,
) {
    let file = pod.resource.file;
    let text = set.text(file);
    for (at, word) in words.iter().enumerate() {
        let Content::Scalar(value, style) = &word.content else { continue };
        // What an alias brings stands elsewhere, and is not changed from here.
        let is_here = !word.is_alias;
        // `-x`, then `NAME=value`, as two items of a list.
        let single = !value.contains(char::is_whitespace);
        if single
            && let Some((name, rest)) = value.split_once('=')
            && is_name(name)
        {
            let before = at.checked_sub(1).map(|at| words[at]);
            let flag =
                before.filter(|before| is_here && matches!(before.text(), Some("-x" | "-genv")));
            let spans = flag.and_then(|flag| {
                Some(vec![line_of(text, &flag.span)?, line_of(text, &word.span)?])
            });
            let remove = spans.map(|spans| {
                spans.into_iter().map(|span| Edit { span, text: String::new() }).collect()
            });
            let start = word.span.end.saturating_sub(rest.len());
            let plain = *style == Style::Plain && is_here;
            found.push(Setting {
                name: name.to_owned(),
                value: known(rest),
                pod: index,
                file,
                span: word.span.clone(),
                node: word,
                remove,
                value_span: plain.then_some((start..word.span.end, false)),
            });
            continue;
        }
        let Some(raw) = text.get(word.span.clone()) else { continue };
        // Escapes are YAML's: what the shell sees is not what stands here.
        let is_plain = *style != Style::Quoted || !raw.contains('\\');
        for one in assignments(raw) {
            let span = word.span.start + one.start..word.span.start + one.end;
            let value = &raw[one.value.clone()];
            let bare = value.trim_matches(['"', '\'']);
            found.push(Setting {
                name: raw[one.start..one.name_end].to_owned(),
                value: known(bare).filter(|_| is_plain),
                pod: index,
                file,
                node: word,
                remove: line_alone(text, &span)
                    .filter(|_| is_plain && is_here)
                    .map(|span| vec![Edit { span, text: String::new() }]),
                value_span: Some((
                    word.span.start + one.value.start..word.span.start + one.value.end,
                    false,
                ))
                .filter(|_| is_plain && is_here),
                span,
            });
        }
    }
}

fn known(value: &str) -> Option<String> {
    (!value.contains('$') && !value.contains('`')).then(|| value.to_owned())
}

/// Names that are looked at in scripts: those of collectives, which no other word looks like.
fn is_name(name: &str) -> bool {
    let prefixes = ["NCCL_", "RCCL_", "GLOO_", "UCX_", "RINGWAY_", "CUDA_", "FI_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
        && name
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

struct Assignment {
    start: usize,
    name_end: usize,
    value: Range<usize>,
    end: usize,
}

/// All `NAME=value` of a script.
fn assignments(text: &str) -> Vec<Assignment> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(sign) = text[at..].find('=').map(|sign| at + sign) {
        at = sign + 1;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let start = text[..sign]
            .rfind(|c: char| !is_word(c))
            .map_or(0, |before| before + text[before..].chars().next().map_or(1, char::len_utf8));
        let before = text[..start].chars().next_back();
        let line = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let is_comment = text[line..start].trim_start().starts_with('#');
        if !is_name(&text[start..sign]) || matches!(before, Some('$' | '{')) || is_comment {
            continue;
        }
        let rest = &text[at..];
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'));
        let long = match quote.and_then(|quote| Some(rest[1..].find(quote)? + 2)) {
            Some(long) => long,
            None => rest
                .find(|c: char| c.is_whitespace() || ";&\"')|`<>".contains(c))
                .unwrap_or(rest.len()),
        };
        found.push(Assignment { start, name_end: sign, value: at..at + long, end: at + long });
        at += long;
    }
    found
}

/// The whole line of something that stands on one alone, as an item of a list.
fn line_of(text: &str, span: &Range<usize>) -> Option<Range<usize>> {
    let start = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[span.end..].find('\n').map(|at| span.end + at + 1)?;
    let alone = text[start..span.start].trim() == "-";
    let clean = text[span.end..end].trim();
    (alone && (clean.is_empty() || clean.starts_with('#'))).then_some(start..end)
}

/// The whole line of `-x NAME=value \` or `export NAME=value`, where nothing else stands on it.
fn line_alone(text: &str, span: &Range<usize>) -> Option<Range<usize>> {
    let start = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[span.end..].find('\n').map(|at| span.end + at + 1)?;
    let before = text[start..span.start].trim();
    let after = text[span.end..end].trim();
    let line = match before {
        "-x" | "--env" => after == "\\",
        "export" => matches!(after, "" | ";") && !opens(&text[..start]),
        _ => false,
    };
    line.then_some(start..end)
}

/// Whether a shell's text may not end here: something is open that wants a command.
fn opens(text: &str) -> bool {
    let lines = text.lines().rev().map(str::trim);
    let last = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with('#'));
    let word = last.and_then(|line| line.split_whitespace().next_back()).unwrap_or("");
    ["then", "do", "else"].contains(&word) || word.ends_with(['{', '(', '|', '&', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_are_found_with_their_values() {
        let text = "mpirun -x NCCL_IB_HCA='=mlx5_0,mlx5_1' \\\n -x NCCL_NET=IB -x PATH\n# NCCL_ALGO=Ring\n\
                    bash -c 'NCCL_DEBUG=INFO' (NCCL_ALGO=Tree) NCCL_A=`x y` echo $NCCL_X=";
        let found: Vec<(&str, &str)> = assignments(text)
            .iter()
            .map(|one| (&text[one.start..one.name_end], &text[one.value.clone()]))
            .collect();
        let wanted = [
            ("NCCL_IB_HCA", "'=mlx5_0,mlx5_1'"),
            ("NCCL_NET", "IB"),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_ALGO", "Tree"),
            ("NCCL_A", "`x y`"),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_line_goes_only_where_the_shell_still_reads_the_rest() {
        for (text, goes) in [
            ("a\nexport NCCL_X=1\nb\n", true),
            ("if a; then\n  # why\n  export NCCL_X=1\nfi\n", false),
            ("for i in a; do\n  export NCCL_X=1\ndone\n", false),
            ("f() {\n  export NCCL_X=1\n}\n", false),
            ("a &&\n  export NCCL_X=1\n", false),
            ("mpirun \\\n  -x NCCL_X=1 \\\n  b\n", true),
        ] {
            let start = text.find("NCCL_X").expect("it is there");
            let span = start..start + "NCCL_X=1".len();
            assert_eq!(line_alone(text, &span).is_some(), goes, "{text}");
        }
    }
}

//! Where variables are set: the environment, files of settings, scripts, manifests.
//!
//! One reader takes all forms, line by line: `NAME=value` with whatever stands before it (`export`,
//! `mpirun -x`, `env`, `ENV`), YAML's `- name:`/`value:` pairs and `NAME: value` maps. *Invariant*: no shell is
//! run; a value that a shell would have to make (`$X`) is taken as not known.

use super::catalogue::PREFIXES;

/// Names without such a prefix that are looked at too.
const ALSO: [&str; 3] =
    ["CUDA_LAUNCH_BLOCKING", "HSA_FORCE_FINE_GRAIN_PCIE", "HSA_NO_SCRATCH_RECLAIM"];
/// Prefixes that are slips of NCCL's.
const SLIPS: [&str; 5] = ["NCLL_", "NCL_", "NCCCL_", "NNCCL_", "NCC_"];
/// Settings taken from one source.
const MOST: usize = 10_000;

/// One setting.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Setting {
    pub(crate) name: String,
    /// `None` where only a shell could tell.
    pub(crate) value: Option<String>,
    /// `file:line`, or `environment`.
    pub(crate) place: String,
}

/// Whether a name is one we look at.
pub(crate) fn is_ours(name: &str) -> bool {
    let known = PREFIXES.iter().chain(&SLIPS).any(|prefix| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    });
    known || ALSO.contains(&name)
}

/// Those of the environment.
pub(crate) fn from_environment(variables: impl Iterator<Item = (String, String)>) -> Vec<Setting> {
    let mut found: Vec<Setting> = variables
        .filter(|(name, _)| is_ours(name))
        .map(|(name, value)| Setting { name, value: Some(value), place: "environment".to_owned() })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Those of a file.
pub(crate) fn from_text(file: &str, text: &str) -> Vec<Setting> {
    let mut found = Vec::new();
    // A YAML name whose value has not come yet.
    let mut open: Option<(String, usize)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        if found.len() >= MOST {
            break;
        }
        let line = without_comment(line);
        let place = format!("{file}:{number}");
        if let Some(name) = yaml_field(line, "name") {
            open = is_ours(name).then(|| (name.to_owned(), number));
        }
        if let Some((name, at)) = open.take() {
            if let Some(value) = yaml_field(line, "value") {
                found.push(Setting { name, value: known(value), place });
            } else if number - at < 3 {
                open = Some((name, at));
            }
            continue;
        }
        assignments(line, |name, value| {
            let place = place.clone();
            found.push(Setting { name: name.to_owned(), value: known(value), place });
        });
    }
    found
}

/// All `NAME=value` and `NAME: value` of a line.
fn assignments(line: &str, mut see: impl FnMut(&str, &str)) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = line;
    let mut before = ' ';
    while let Some(at) = rest.find(|c: char| c.is_ascii_uppercase()) {
        if let Some(c) = rest[..at].chars().next_back() {
            before = c;
        }
        let word = &rest[at..];
        let end = word.find(|c: char| !is_word(c)).unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        let starts = !is_word(before) && before != '$' && before != '{';
        before = name.chars().next_back().unwrap_or(' ');
        rest = after;
        if !starts || !is_ours(name) {
            continue;
        }
        let unquoted = after.strip_prefix(['"', '\'']).unwrap_or(after);
        let (value, tail) = if let Some(text) = after.strip_prefix('=') {
            value(text)
        } else if let Some(text) = unquoted.strip_prefix(':') {
            value(text.trim_start().trim_end_matches([',', ' ']))
        } else if let Some(text) =
            after.trim_start().strip_prefix('=').filter(|_| line.trim_start().starts_with(name))
        {
            // `NAME = value` of a file of settings: the blank becomes part of the name.
            value(text.trim_start())
        } else {
            continue;
        };
        see(name, value);
        rest = tail;
        before = ' ';
    }
}

/// The value at the start of a text, and what follows it.
fn value(text: &str) -> (&str, &str) {
    for quote in ['"', '\''] {
        if let Some(inside) = text.strip_prefix(quote)
            && let Some(end) = inside.find(quote)
        {
            return (&inside[..end], &inside[end + 1..]);
        }
    }
    let end = text
        .find(|c: char| c.is_whitespace() || c == ';' || c == '"' || c == '\'')
        .unwrap_or(text.len());
    text.split_at(end)
}

fn known(value: &str) -> Option<String> {
    (!value.contains('$') && !value.contains('`') && !value.contains("{{"))
        .then(|| value.to_owned())
}

/// `- name: X`, `name: "X"`, `{name: X, value: Y}`: the field's text.
fn yaml_field<'a>(line: &'a str, field: &str) -> Option<&'a str> {
    let at = line.find(field)?;
    let before = line[..at].trim_end_matches(['"', '\'']);
    if !(before.trim().is_empty()
        || before.ends_with(['{', ',', ' ']) && before.trim_end().ends_with(['{', ',', '-']))
    {
        return None;
    }
    let rest =
        line[at + field.len()..].trim_start_matches(['"', '\'']).trim_start().strip_prefix(':')?;
    let rest = rest.trim_start();
    let (text, _) = value(rest);
    Some(text.trim_end_matches([',', '}']))
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') if before.is_whitespace() => return &line[..at],
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if c == open => quote = None,
            _ => {}
        }
        before = c;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, Option<String>, String)> {
        from_text("f", text).into_iter().map(|s| (s.name, s.value, s.place)).collect()
    }

    fn one(text: &str) -> (String, Option<String>) {
        let found = pairs(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        (found[0].0.clone(), found[0].1.clone())
    }

    #[test]
    fn every_form_is_read() {
        for text in [
            "NCCL_IB_TC=106",
            "export NCCL_IB_TC=106",
            "export NCCL_IB_TC=\"106\"  # the plan",
            "mpirun -np 16 -x NCCL_IB_TC=106 ./all_reduce_perf",
            "env NCCL_IB_TC=106 ./prog; echo",
            "ENV NCCL_IB_TC=106",
            "docker run --env=NCCL_IB_TC=106 image",
            "NCCL_IB_TC = 106",
            "  - name: NCCL_IB_TC\n    value: \"106\"",
            "- {name: NCCL_IB_TC, value: \"106\"}",
            "  NCCL_IB_TC: \"106\"",
            "  \"NCCL_IB_TC\": \"106\",",
            "srun --export=ALL,NCCL_IB_TC=106 ./prog",
        ] {
            assert_eq!(one(text), ("NCCL_IB_TC".to_owned(), Some("106".to_owned())), "{text}");
        }
    }

    #[test]
    fn what_is_no_setting_is_left_alone() {
        for text in [
            "# NCCL_IB_TC=1",
            "echo $NCCL_IB_TC",
            "unset NCCL_IB_TC",
            "-x NCCL_IB_TC",
            "MY_NCCL_X=1",
            "",
        ] {
            assert_eq!(pairs(text), [], "{text}");
        }
    }

    #[test]
    fn lines_are_counted_and_several_stand_on_one() {
        let found = pairs(
            "a\nmpirun -x NCCL_NET=IB -x NCCL_DEBUG=WARN\n- name: NCCL_ALGO\n\n  value: Ring\n",
        );
        let places: Vec<&str> = found.iter().map(|(_, _, place)| place.as_str()).collect();
        assert_eq!(places, ["f:2", "f:2", "f:5"]);
    }

    #[test]
    fn what_only_a_shell_knows_is_not_known() {
        assert_eq!(one("export NCCL_IB_HCA=$HCAS").1, None);
        assert_eq!(one("export NCCL_IB_HCA=\"${HCAS:-mlx5}\"").1, None);
        assert_eq!(one("NCLL_IB_HCA=mlx5").0, "NCLL_IB_HCA");
    }

    #[test]
    fn the_environment_is_filtered_and_sorted() {
        let set = [("PATH", "/"), ("NCCL_NET", "IB"), ("CCL_X", "1"), ("TORCH_NCCL_X", "1")];
        let found = from_environment(set.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
        let names: Vec<&str> = found.iter().map(|setting| setting.name.as_str()).collect();
        assert_eq!(names, ["CCL_X", "NCCL_NET"]);
    }
}

//! The words that a container runs: items of its lists, and those of scripts within one item.

use std::ops::Range;

use super::Container;
use crate::yaml::{Content, Style};

/// One word.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Word {
    /// Without quotes around it.
    pub text: String,
    /// Its bytes, where the text has it as it is and it may be changed there.
    pub span: Option<Range<usize>>,
    /// Where it begins, or the item that it is part of.
    pub start: usize,
    /// Whether a command ends behind it.
    pub ends: bool,
}

/// How mpirun is called.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Counts that its own options name: the option, and the word with the number.
    pub counts: Vec<(String, Word)>,
    /// Whether it is asked for one rank on each node.
    pub is_one_a_node: bool,
    /// What it starts, with arguments.
    pub program: Vec<Word>,
}

/// Options of Open MPI's, MPICH's and Intel's mpirun, without dashes, that take so many words.
const VALUES: [(usize, &[&str]); 3] = [
    (
        0,
        &[
            "allow-run-as-root",
            "bind-to-core",
            "bycore",
            "bynode",
            "byslot",
            "debug-daemons",
            "display-allocation",
            "display-map",
            "enable-recovery",
            "l",
            "leave-session-attached",
            "merge-stderr-to-stdout",
            "nolocal",
            "nooversubscribe",
            "oversubscribe",
            "pernode",
            "prepend-rank",
            "q",
            "quiet",
            "report-bindings",
            "tag-output",
            "timestamp-output",
            "use-hwthread-cpus",
            "v",
            "verbose",
        ],
    ),
    (
        1,
        &[
            "H",
            "N",
            "bind-to",
            "c",
            "cpu-list",
            "cpu-set",
            "f",
            "genvlist",
            "host",
            "hostfile",
            "hosts",
            "iface",
            "launcher",
            "machinefile",
            "map-by",
            "n",
            "np",
            "npernode",
            "npersocket",
            "output",
            "output-filename",
            "path",
            "perhost",
            "ppn",
            "prefix",
            "rank-by",
            "rankfile",
            "rf",
            "stdin",
            "timeout",
            "tmpdir",
            "wd",
            "wdir",
            "x",
        ],
    ),
    (2, &["env", "genv", "gmca", "mca", "pmca", "prtemca"]),
];

/// Options that name how many ranks there are, or how many on a node.
const COUNTS: [&str; 7] = ["np", "n", "c", "npernode", "N", "ppn", "perhost"];

/// All words of a container.
pub fn words(text: &str, container: &Container<'_>) -> Vec<Word> {
    let mut found: Vec<Word> = Vec::new();
    for node in container.words() {
        let Content::Scalar(value, style) = &node.content else { continue };
        let start = node.span.start;
        let raw = text.get(node.span.clone()).filter(|_| !node.is_alias);
        // The part of the text that reads as the value does, byte for byte, or line for line.
        let verbatim = match (raw, style) {
            (Some(raw), Style::Plain) => Some((start, raw)).filter(|_| raw == value),
            (Some(raw), Style::Quoted) => {
                let inner = raw.get(1..raw.len().saturating_sub(1));
                inner.filter(|inner| inner == value).map(|inner| (start + 1, inner))
            }
            (Some(raw), Style::Block) => {
                let skip = match raw.starts_with(['|', '>']) {
                    true => raw.find('\n').map_or(raw.len(), |at| at + 1),
                    false => 0,
                };
                Some((start + skip, &raw[skip..])).filter(|(_, raw)| same_words(raw, value))
            }
            (None, _) => None,
        };
        if !value.contains(char::is_whitespace) {
            let span = verbatim.map(|(at, raw)| at..at + raw.len());
            found.push(Word { text: value.clone(), span, start, ends: false });
            continue;
        }
        if let Some(last) = found.last_mut() {
            last.ends = true;
        }
        // Lines that were folded are one command.
        let folded = verbatim.is_some() && !value.trim_end().contains('\n');
        match verbatim {
            Some((at, raw)) => split(raw, Some(at), start, folded, &mut found),
            None => split(value, None, start, false, &mut found),
        }
        if let Some(last) = found.last_mut() {
            last.ends = true;
        }
    }
    found
}

fn same_words(a: &str, b: &str) -> bool {
    a.split_whitespace().eq(b.split_whitespace())
}

fn split(text: &str, base: Option<usize>, start: usize, folded: bool, found: &mut Vec<Word>) {
    let first = found.len();
    let mut from = 0;
    let mut comment = false;
    let mut escaped = false;
    let end = |found: &mut Vec<Word>| {
        if found.len() > first
            && let Some(last) = found.last_mut()
        {
            last.ends = true;
        }
    };
    for (at, c) in text.char_indices().chain([(text.len(), '\n')]) {
        let was_escaped = std::mem::replace(&mut escaped, c == '\\' && !comment);
        if comment {
            if c == '\n' {
                comment = false;
                from = at + 1;
                end(found);
            }
            continue;
        }
        let is_mark = matches!(c, ';' | '|' | '&' | '(' | ')' | '`');
        if !c.is_whitespace() && !is_mark {
            if c == '#' && from == at {
                comment = true;
            }
            continue;
        }
        let word = &text[from..at];
        let bare = word.trim_matches(['"', '\'']);
        if !bare.is_empty() && bare != "\\" {
            let begin = from + word.find(bare).unwrap_or(0);
            let span = base.map(|base| base + begin..base + begin + bare.len());
            let start = span.as_ref().map_or(start, |span| span.start);
            found.push(Word { text: bare.to_owned(), span, start, ends: false });
        }
        from = at + c.len_utf8();
        if is_mark || c == '\n' && !was_escaped && !folded {
            end(found);
        }
        // A line may end in a carriage return before its end.
        escaped = was_escaped && c == '\r';
    }
}

/// The name of a program, without its folder.
fn base(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

/// All calls of mpirun.
pub fn launches(words: &[Word]) -> Vec<Launch> {
    let is_launcher =
        |word: &Word| ["mpirun", "mpiexec", "orterun", "prterun"].contains(&base(&word.text));
    let starts = words.iter().enumerate().filter(|(_, word)| is_launcher(word) && !word.ends);
    starts.map(|(at, _)| launch(&words[at + 1..])).collect()
}

fn launch(words: &[Word]) -> Launch {
    let mut found = Launch::default();
    let end = words.iter().position(|word| word.ends).map_or(words.len(), |at| at + 1);
    let words = &words[..end];
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let Some(name) = word.text.strip_prefix("--").or_else(|| word.text.strip_prefix('-'))
        else {
            found.program = words[at..].to_vec();
            break;
        };
        at += 1;
        if name.contains('=') {
            continue;
        }
        let many = VALUES.iter().find(|(_, names)| names.contains(&name));
        // Behind an option that is not known nobody can tell options from the program.
        let Some((many, _)) = many else { break };
        let values = &words[at.min(words.len())..(at + many).min(words.len())];
        match values.first() {
            Some(value) if COUNTS.contains(&name) && value.text.parse::<u64>().is_ok() => {
                found.counts.push((word.text.clone(), value.clone()));
            }
            Some(value) if name == "map-by" => {
                found.is_one_a_node |= value.text.starts_with("ppr:1:node");
            }
            _ => {}
        }
        found.is_one_a_node |= name == "pernode";
        at += many;
    }
    let is_one = |(option, value): &(String, Word)| is_per_node(option) && value.text == "1";
    found.is_one_a_node |= found.counts.iter().any(is_one);
    found
}

/// Whether an option counts the ranks of one node, not of all.
pub fn is_per_node(option: &str) -> bool {
    !["np", "n", "c"].contains(&option.trim_start_matches('-'))
}

impl Launch {
    /// How many GPUs each rank drives: 1, what nccl-tests are told, or all of the node's.
    pub fn gpus_of_a_rank(&self, of_node: u64) -> u64 {
        let is_torchrun = self.program.iter().any(|word| {
            ["torchrun", "accelerate", "deepspeed"].contains(&base(&word.text))
                || word.text.starts_with("torch.distributed.")
        });
        if is_torchrun {
            return of_node.max(1);
        }
        let given = |names: [&str; 2]| named(&self.program, &names).first().map_or(1, |one| one.0);
        given(["-g", "--ngpus"]).max(1).saturating_mul(given(["-t", "--nthreads"]).max(1))
    }
}

/// Numbers that options name, as `--option=8` or `--option 8`, each with its bytes and its word's start.
pub fn named(words: &[Word], names: &[&str]) -> Vec<(u64, Option<Range<usize>>, usize)> {
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let (value, span) = match word.text.split_once('=') {
            Some((name, value)) if names.contains(&name) => {
                let skip = name.len() + 1;
                (value, word.span.as_ref().map(|span| span.start + skip..span.end))
            }
            None if names.contains(&word.text.as_str()) && !word.ends => match words.get(at + 1) {
                Some(next) => (next.text.as_str(), next.span.clone()),
                None => continue,
            },
            _ => continue,
        };
        if let Ok(number) = value.parse() {
            found.push((number, span, word.start));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::read;

    fn of(yaml: &str) -> (String, Vec<Word>) {
        let stream = read(yaml);
        let root = &stream.documents[0].root;
        let found = words(yaml, &Container { node: root, is_init: false, has_networks: false });
        for word in &found {
            if let Some(span) = &word.span {
                assert_eq!(yaml[span.clone()], word.text, "{yaml}");
            }
        }
        (found.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" "), found)
    }

    #[test]
    fn words_are_those_of_lists_and_of_scripts() {
        for (yaml, wanted) in [
            ("command: [mpirun, -np, \"2\", x]\n", "mpirun -np 2 x"),
            ("command: [bash, -c, 'a; b && c']\n", "bash -c a b c"),
            ("args:\n- |\n  a \\\n    -n 1  # why\n  # no\n  b \"c d\"\n", "a -n 1 b c d"),
            ("args:\r\n- |\r\n  a \\\r\n    -n 1\r\n  b\r\n", "a -n 1 b"),
            ("args:\n- >\n  a\n  b\n", "a b"),
            ("args:\n- \"a \\\"b\\\" c\"\n", "a b c"),
        ] {
            assert_eq!(of(yaml).0, wanted, "{yaml}");
        }
    }

    #[test]
    fn options_of_mpirun_end_where_its_program_begins() {
        for (yaml, counts, program) in [
            ("command: [mpirun, -np, \"16\", python, t.py, -n, \"100\"]\n", "-np 16", "python"),
            (
                "args:\n- |\n  /opt/bin/mpirun \\\n    --mca a b -N 8 x_perf -n 3\n  y -n 4\n",
                "-N 8",
                "x_perf",
            ),
            ("args:\n- >\n  mpirun -x A=b\n  -np 4\n  x\n", "-np 4", "x"),
            ("command: [mpirun, --unheard-of, x, -n, \"3\"]\n", "", ""),
        ] {
            let found = launches(&of(yaml).1);
            assert_eq!(found.len(), 1, "{yaml}");
            let given: Vec<String> = found[0]
                .counts
                .iter()
                .map(|(name, word)| format!("{name} {}", word.text))
                .collect();
            assert_eq!(given.join(" "), counts, "{yaml}");
            let first = found[0].program.first().map_or("", |word| word.text.as_str());
            assert_eq!(first, program, "{yaml}");
        }
    }
}

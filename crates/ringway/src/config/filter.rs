//! Lists that let some things through: interfaces, algorithms, protocols.

use std::fmt;

use super::parse::{self, Problem, Remark};
use crate::plan::algorithm::Algorithm;
use crate::plan::types::Collective;

/// The network interfaces sockets may use (`NCCL_SOCKET_IFNAME`).
///
/// `eth` takes every name that starts with `eth`; `=eth0,eth1` takes exactly these; `^docker`
/// takes all but those; `^=lo` all but exactly that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    excludes: bool,
    exact: bool,
    names: Vec<String>,
}

impl InterfaceFilter {
    pub(super) fn parse(text: &str) -> Result<(Self, Vec<Remark>), Problem> {
        let mut remarks = Vec::new();
        let mut words = parse::words(text);
        let excludes = parse::take_mark('^', &mut words, &mut remarks);
        let exact = parse::take_mark('=', &mut words, &mut remarks);
        if words.is_empty() {
            return Err(Problem::new("names no interface; write eth0,ib, =eth0 or ^docker,lo"));
        }
        let names = words.into_iter().map(str::to_owned).collect();
        Ok((Self { excludes, exact, names }, remarks))
    }

    /// Whether every interface passes, because none was named.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether an interface may be used.
    ///
    /// # Errors
    /// The reason why not, for the line that reports the refused interface.
    pub fn allows(&self, name: &str) -> Result<(), String> {
        if self.is_all() {
            return Ok(());
        }
        let listed = self.names.iter().any(|listed| {
            if self.exact { name == listed } else { name.starts_with(listed.as_str()) }
        });
        match (listed, self.excludes) {
            (true, true) => Err(format!("{name} is excluded by NCCL_SOCKET_IFNAME={self}")),
            (false, false) => Err(format!("{name} is not among NCCL_SOCKET_IFNAME={self}")),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_all() {
            return f.write_str("all");
        }
        let marks = [("", "="), ("^", "^=")][usize::from(self.excludes)];
        let mark = if self.exact { marks.1 } else { marks.0 };
        write!(f, "{mark}{}", parse::shown(&self.names.join(",")))
    }
}

/// Other spellings of ringway's algorithms. Of all spellings case, `_` and `-` do not count.
const SPELLINGS: &[(Algorithm, &str)] = &[
    (Algorithm::RecursiveDoubling, "rd"),
    (Algorithm::HalvingDoubling, "hd"),
    (Algorithm::Tree, "doublebinarytree"),
];

/// NCCL's algorithms that need hardware ringway does not drive.
const FOREIGN: &[&str] = &["CollnetDirect", "CollnetChain", "NVLS", "NVLSTree"];

const PROTOCOLS: &[&str] = &["LL", "LL128", "Simple"];

/// What one clause of the list allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// The collective it is for; all of them without.
    collective: Option<Collective>,
    excludes: bool,
    names: Vec<&'static str>,
}

/// The algorithms the planner may choose from (`NCCL_ALGO`), in NCCL's grammar:
/// `ring,tree`, `^tree`, `ring;allreduce:tree,rd;allgather:^pat`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmFilter {
    rules: Vec<Rule>,
}

impl AlgorithmFilter {
    pub(super) fn parse(text: &str) -> Result<(Self, Vec<Remark>), Problem> {
        let mut remarks = Vec::new();
        let mut rules = Vec::new();
        for clause in clauses(text) {
            let Clause { collective, words, excludes } = clause.unpack(&mut remarks)?;
            let mut names = Vec::new();
            for word in words {
                if let Some(name) = canonical(word) {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                } else if FOREIGN.iter().any(|name| name.eq_ignore_ascii_case(word)) {
                    let text = format!("{word} means nothing on host memory");
                    remarks.push(Remark::Note(text));
                } else {
                    let names = Algorithm::ALL.into_iter().map(Algorithm::name);
                    let known = parse::not_one_of(word, names);
                    remarks.push(Remark::Warning(format!("{} is {known}", parse::shown(word))));
                }
            }
            let left =
                if excludes { names.len() < Algorithm::ALL.len() } else { !names.is_empty() };
            if left {
                rules.push(Rule { collective, excludes, names });
            } else {
                let which = clause.0.trim();
                let text = format!("{} leaves no algorithm and is ignored", parse::shown(which));
                remarks.push(Remark::Warning(text));
            }
        }
        Ok((Self { rules }, remarks))
    }

    /// Whether the planner may choose `algorithm_name` for `collective`.
    ///
    /// Where none of the algorithms that can do a collective is allowed, the list cannot have been
    /// meant for it: the planner then chooses freely and says so.
    #[must_use]
    pub fn allows(&self, collective: Collective, algorithm_name: &str) -> bool {
        let applies = |rule: &&Rule| rule.collective.is_none_or(|only| only == collective);
        self.rules.iter().rfind(applies).is_none_or(|rule| {
            let listed = canonical(algorithm_name).is_some_and(|name| rule.names.contains(&name));
            listed != rule.excludes
        })
    }

    /// Whether nothing is filtered.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.rules.is_empty()
    }
}

impl fmt::Display for AlgorithmFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rules.is_empty() {
            return f.write_str("all");
        }
        for (index, rule) in self.rules.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ";" })?;
            if let Some(collective) = rule.collective {
                write!(f, "{}:", collective.name().replace('_', ""))?;
            }
            f.write_str(if rule.excludes { "^" } else { "" })?;
            // Only algorithms ringway does not have were excluded.
            f.write_str(if rule.names.is_empty() { FOREIGN[0] } else { "" })?;
            f.write_str(&rule.names.join(","))?;
        }
        Ok(())
    }
}

/// Checks a list of protocols (`NCCL_PROTO`): the names must be right, but they choose how GPU
/// kernels signal, which host memory does without.
pub(super) fn check_protocols(text: &str) -> Result<Vec<Remark>, Problem> {
    let mut remarks = Vec::new();
    for clause in clauses(text) {
        for word in clause.unpack(&mut remarks)?.words {
            if !PROTOCOLS.iter().any(|name| name.eq_ignore_ascii_case(word)) {
                let known = parse::not_one_of(word, PROTOCOLS.iter().copied());
                remarks.push(Remark::Warning(format!("{} is {known}", parse::shown(word))));
            }
        }
    }
    remarks.push(Remark::Note("protocols mean nothing on host memory".to_owned()));
    Ok(remarks)
}

/// The text between two semicolons: `allreduce:^ring,tree`.
struct RawClause<'a>(&'a str);

struct Clause<'a> {
    collective: Option<Collective>,
    excludes: bool,
    words: Vec<&'a str>,
}

fn clauses(text: &str) -> impl Iterator<Item = RawClause<'_>> {
    text.split(';').filter(|clause| !clause.trim().is_empty()).map(RawClause)
}

impl<'a> RawClause<'a> {
    fn unpack(&self, remarks: &mut Vec<Remark>) -> Result<Clause<'a>, Problem> {
        let (collective, list) = match self.0.split_once(':') {
            None => (None, self.0),
            Some((function, list)) => {
                let collective = function.trim().parse::<Collective>().map_err(|unknown| {
                    let names = Collective::ALL.iter().map(|c| c.name());
                    let known = parse::not_one_of(&unknown.given, names);
                    Problem::new(format!("{} is {known}", parse::shown(&unknown.given)))
                })?;
                (Some(collective), list)
            }
        };
        let mut words = parse::words(list);
        let excludes = parse::take_mark('^', &mut words, remarks);
        if words.is_empty() {
            let clause = parse::shown(self.0.trim());
            return Err(Problem::new(format!("{clause} names nothing; write ring,tree or ^tree")));
        }
        Ok(Clause { collective, excludes, words })
    }
}

fn canonical(word: &str) -> Option<&'static str> {
    let plain = |text: &str| text.replace(['_', '-'], "").to_ascii_lowercase();
    let word = plain(word);
    let named = Algorithm::ALL.into_iter().find(|algorithm| plain(algorithm.name()) == word);
    let spelt = || SPELLINGS.iter().find(|(_, other)| *other == word);
    named.or_else(|| spelt().map(|(algorithm, _)| *algorithm)).map(Algorithm::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(text: &str) -> InterfaceFilter {
        InterfaceFilter::parse(text).unwrap().0
    }

    #[test]
    fn interfaces_match_by_prefix_exactly_or_by_exclusion() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("eth", &["eth0", "eth1"], &["lo", "ib0", "weth0"]),
            ("eth0,ib", &["eth0", "eth01", "ib3"], &["eth1"]),
            ("=eth0", &["eth0"], &["eth01", "eth"]),
            ("=eth0,eth2", &["eth0", "eth2"], &["eth1"]),
            ("^docker,lo", &["eth0"], &["docker0", "lo", "lo1"]),
            ("^=lo", &["lo1"], &["lo"]),
            ("^lo,^docker", &["eth0"], &["lo", "docker0"]),
        ];
        for (text, taken, refused) in cases {
            let filter = interfaces(text);
            for name in *taken {
                assert_eq!(filter.allows(name), Ok(()), "{text} {name}");
            }
            for name in *refused {
                assert!(filter.allows(name).is_err(), "{text} {name}");
            }
            assert_eq!(interfaces(&filter.to_string()), filter);
        }
        assert_eq!(
            interfaces("^lo").allows("lo").unwrap_err(),
            "lo is excluded by NCCL_SOCKET_IFNAME=^lo"
        );
        assert!(InterfaceFilter::default().allows("anything").is_ok());
        assert!(InterfaceFilter::parse("^").is_err());
        let (filter, remarks) = InterfaceFilter::parse("eth0,^lo").unwrap();
        assert_eq!((filter.to_string().as_str(), remarks.len()), ("eth0", 1));
    }

    #[test]
    fn algorithms_follow_nccls_grammar() {
        use Collective::{AllGather, AllReduce, Broadcast};
        let parse = |text: &str| AlgorithmFilter::parse(text).unwrap().0;
        let filter = parse("Ring,CollnetDirect;allreduce:tree,RD;all_gather:^pat");
        assert!(filter.allows(Broadcast, "ring") && !filter.allows(Broadcast, "tree"));
        assert!(
            filter.allows(AllReduce, "recursive-doubling") && !filter.allows(AllReduce, "ring")
        );
        assert!(filter.allows(AllGather, "bruck") && !filter.allows(AllGather, "PAT"));
        assert_eq!(parse(&filter.to_string()), filter);
        let filter = parse("^one_shot");
        assert!(filter.allows(AllReduce, "two_shot") && !filter.allows(AllReduce, "oneshot"));
        assert!(filter.allows(AllReduce, "an algorithm of tomorrow"));
        let filter = parse("ring;allreduce:^NVLS,nvlstree");
        assert!(filter.allows(AllReduce, "tree") && !filter.allows(Broadcast, "tree"));
        assert_eq!(parse(&filter.to_string()), filter);
        let filter = parse("allreduce:ring");
        assert!(filter.allows(Broadcast, "tree") && !filter.allows(AllReduce, "tree"));
        assert!(AlgorithmFilter::default().allows(AllReduce, "ring"));
    }

    #[test]
    fn every_algorithm_can_be_named() {
        for algorithm in Algorithm::ALL {
            let (filter, remarks) = AlgorithmFilter::parse(algorithm.name()).unwrap();
            assert!(remarks.is_empty(), "{algorithm}");
            assert!(filter.allows(Collective::AllReduce, algorithm.name()), "{algorithm}");
            assert!(!filter.is_all(), "{algorithm}");
        }
    }

    #[test]
    fn lists_that_leave_nothing_are_ignored_and_said() {
        for text in
            ["NVLS", "rign", &format!("^rd,hd,{}", Algorithm::ALL.map(Algorithm::name).join(","))]
        {
            let (filter, remarks) = AlgorithmFilter::parse(text).unwrap();
            assert!(filter.is_all(), "{text}");
            assert!(remarks.iter().any(|r| matches!(r, Remark::Warning(_))), "{text}");
        }
        let problem = AlgorithmFilter::parse("alreduce:ring").unwrap_err();
        assert!(problem.text.ends_with("(did you mean all_reduce?)"), "{}", problem.text);
        assert!(AlgorithmFilter::parse("allreduce:").is_err());
        assert!(check_protocols("LL,LL128;allreduce:^simple").unwrap().len() == 1);
        assert!(check_protocols("LL64").unwrap().len() == 2);
    }
}

//! The stable text form of a plan.
//!
//! ```text
//! {
//!   "format": "ringway-plan", "version": 1,
//!   "algorithm": "ring",
//!   "problem": { … },             or "problems": one for each rank, where they differ
//!   "hosts": [0, 0, 1, 1],
//!   "ranks": [
//!     { "scratch_bytes": …, "flags": 4,   and, where it has them, "cards", "wide_card_bytes", "exposed"
//!       "operands": [ one a line ],
//!       "lanes": [ [ one step a line ] ] }
//!   ]
//! }
//! ```
//!
//! One step a line, so that two plans can be compared with `diff` and a step found with `grep`.
//!
//! **Invariant:** text is not trusted. What [`read_verified`] returns has been proved; nothing else
//! made from text may be run.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::{Operand, Plan, RankPlan, Step};
use crate::problem::Problem;
use crate::verify::{Refusal, check_shape, verify};

/// The word that tells a plan from other JSON.
pub const FORMAT: &str = "ringway-plan";

/// The version written, and the only one read.
pub const VERSION: u32 = 1;

/// Longest text read.
pub const TEXT_BYTES_MAX: usize = 1 << 30;

/// Why a text is not taken for a plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Longer than any plan.
    #[error("{0} bytes are too long for a plan; the most is {TEXT_BYTES_MAX}")]
    TooLong(usize),
    /// Not JSON, or not of this shape.
    #[error("not a plan: {0}")]
    Syntax(#[from] serde_json::Error),
    /// JSON of something else, or of another version.
    #[error(
        "not a plan of this version: format {format:?} version {version}, not {FORMAT:?} {VERSION}"
    )]
    Version {
        /// What it says it is.
        format: String,
        /// Which version of it.
        version: u32,
    },
    /// A plan that is wrong.
    #[error("the plan is refused: {0}")]
    Refused(#[from] Refusal),
}

/// Writes a plan down.
#[must_use]
pub fn to_json(plan: &Plan) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_plan(plan, &mut text);
    text
}

/// Reads a plan without proving it: for tools that show broken plans.
///
/// # Errors
/// Where the text is not a plan, or its tables do not fit together.
pub fn from_json(text: &str) -> Result<Plan, ReadError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ReadError::TooLong(text.len()));
    }
    let document: Document = serde_json::from_str(text)?;
    if document.format != FORMAT || document.version != VERSION {
        return Err(ReadError::Version { format: document.format, version: document.version });
    }
    let problems = match (document.problem, document.problems) {
        (Some(problem), None) => vec![problem; document.ranks.len()],
        (None, Some(problems)) => problems,
        _ => {
            let text = "a plan has either \"problem\" or \"problems\"".to_owned();
            return Err(Refusal::Malformed(text).into());
        }
    };
    let plan = Plan {
        algorithm: document.algorithm,
        problems,
        hosts: document.hosts,
        ranks: document.ranks,
    };
    check_shape(&plan)?;
    Ok(plan)
}

/// Reads a plan and proves it, with input and output apart. Whoever runs it in place proves that
/// with [`verify`].
///
/// # Errors
/// Where the text is not a plan, or the plan is wrong: then with rank, lane and step.
pub fn read_verified(text: &str) -> Result<Plan, ReadError> {
    let plan = from_json(text)?;
    verify(&plan, false)?;
    Ok(plan)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    algorithm: String,
    problem: Option<Problem>,
    problems: Option<Vec<Problem>>,
    hosts: Vec<u32>,
    ranks: Vec<RankPlan>,
}

fn write_plan(plan: &Plan, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{{")?;
    writeln!(out, r#"  "format": "{FORMAT}","#)?;
    writeln!(out, r#"  "version": {VERSION},"#)?;
    writeln!(out, r#"  "algorithm": {},"#, line(&plan.algorithm))?;
    match plan.problems.split_first() {
        Some((first, rest)) if rest.iter().all(|problem| problem == first) => {
            writeln!(out, r#"  "problem": {},"#, line(first))?;
        }
        _ => {
            write!(out, r#"  "problems": "#)?;
            write_lines(&plan.problems, "    ", out)?;
            writeln!(out, ",")?;
        }
    }
    writeln!(out, r#"  "hosts": {},"#, line(&plan.hosts))?;
    writeln!(out, r#"  "ranks": ["#)?;
    for (rank, part) in plan.ranks.iter().enumerate() {
        write_rank(part, out)?;
        writeln!(out, "{}", comma(rank, plan.ranks.len()))?;
    }
    writeln!(out, "  ]\n}}")
}

fn write_rank(part: &RankPlan, out: &mut String) -> std::fmt::Result {
    writeln!(out, "    {{")?;
    writeln!(out, r#"      "scratch_bytes": {},"#, part.scratch_bytes)?;
    writeln!(out, r#"      "flags": {},"#, part.flags)?;
    if part.cards > 0 {
        writeln!(out, r#"      "cards": {},"#, part.cards)?;
    }
    if part.wide_card_bytes > 0 {
        writeln!(out, r#"      "wide_card_bytes": {},"#, part.wide_card_bytes)?;
    }
    if part.exposed {
        writeln!(out, r#"      "exposed": true,"#)?;
    }
    write!(out, r#"      "operands": "#)?;
    write_lines::<Operand>(&part.operands, "        ", out)?;
    writeln!(out, ",\n      \"lanes\": [")?;
    for (index, lane) in part.lanes.iter().enumerate() {
        write!(out, "        ")?;
        write_lines::<Step>(lane, "          ", out)?;
        writeln!(out, "{}", comma(index, part.lanes.len()))?;
    }
    write!(out, "      ]\n    }}")
}

fn write_lines<T: Serialize>(list: &[T], indent: &str, out: &mut String) -> std::fmt::Result {
    if list.is_empty() {
        return write!(out, "[]");
    }
    writeln!(out, "[")?;
    for (index, entry) in list.iter().enumerate() {
        writeln!(out, "{indent}{}{}", line(entry), comma(index, list.len()))?;
    }
    write!(out, "{}]", &indent[2..])
}

fn line<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("plans have no maps with odd keys, and writing cannot fail")
}

fn comma(index: usize, length: usize) -> &'static str {
    if index + 1 < length { "," } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::build::Tuning;
    use crate::mapped::Way;
    use crate::types::{Collective, DataType};

    fn ring() -> Plan {
        let problem = Problem::new(Collective::AllReduce, 4, 1000, DataType::Bf16);
        let tuning = Tuning { slot_bytes: 256, ..Tuning::default() };
        Algorithm::Ring.plan(&problem, &[0, 0, 1, 1], tuning)
    }

    #[test]
    fn a_plan_survives_the_round_trip() {
        let plan = ring();
        let text = to_json(&plan);
        assert_eq!(read_verified(&text).unwrap(), plan);
        assert_eq!(to_json(&from_json(&text).unwrap()), text);
    }

    #[test]
    fn cards_and_exposed_buffers_survive_it() {
        let problem = Problem::new(Collective::AllReduce, 4, 8, DataType::F32);
        let hosts = [0; 4];
        let tuning = Tuning::default();
        for plan in [
            Algorithm::Tiny.plan(&problem, &hosts, tuning),
            Algorithm::SingleCopy.plan(&problem, &hosts, tuning),
            Way::Cards.plan(&problem, 2),
            Way::Buffers.plan(&problem, 2),
        ] {
            assert_eq!(read_verified(&to_json(&plan)).unwrap(), plan, "{}", plan.algorithm);
        }
    }

    #[test]
    fn a_plan_without_one_wait_is_refused_with_its_place() {
        let text = to_json(&ring());
        let waits = text.matches(r#"{"wait""#).count();
        assert!(waits > 10, "{waits}");
        let at = text.find(r#"{"wait""#).unwrap();
        let end = at + text[at..].find('\n').unwrap();
        let broken = format!("{}{}", &text[..at], &text[end..]);
        let error = read_verified(&broken).unwrap_err().to_string();
        assert!(error.contains("rank 0 lane 0 step 1"), "the place is missing: {error}");
    }

    #[test]
    fn other_texts_are_refused() {
        let good = to_json(&ring());
        let cases = [
            ("", "EOF"),
            ("[]", "not a plan"),
            (&good[..good.len() / 2], "EOF"),
            (&good.replace("ringway-plan", "pizza"), "pizza"),
            (&good.replace(r#""version": 1"#, r#""version": 2"#), "version 2"),
            (&good.replace("scratch_bytes", "scratch"), "unknown field"),
            (&good.replace(r#""hosts": [0,0,1,1]"#, r#""hosts": [0]"#), "1 hosts"),
            (
                &good.replace(r#"{"equal":1000}"#, r#"{"equal":18446744073709551615}"#),
                "bytes; the most",
            ),
            (&good.replace(r#""ranks":4,"#, r#""ranks":4000000000,"#), "does not fit"),
            (&"[".repeat(100_000), "not a plan"),
        ];
        for (text, expected) in cases {
            let error = read_verified(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
    }
}

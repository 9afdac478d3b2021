//! What to measure, read from the environment.

use anyhow::{Context as _, bail};

use crate::collective::{Collective, Type};

/// Everything `bench/run` asks of a driver.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) subjects: Vec<(Collective, Type)>,
    pub(crate) sizes: Vec<usize>,
    /// Whether buffers are cold, in the order in which to measure.
    pub(crate) cold: Vec<bool>,
    pub(crate) seconds: f64,
    pub(crate) cpus: Option<Vec<usize>>,
}

impl Request {
    /// Reads the variables; what is missing has a default, what is wrong is an error.
    pub(crate) fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Self> {
        let value = |name: &str, default: &str| {
            variable(name).filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
        };
        let cpus = value("BENCH_CPUS", "");
        Ok(Self {
            subjects: words(&value("BENCH_COLLS", "all_reduce"), subject)?,
            sizes: words(&value("BENCH_SIZES", "8 4096 1048576"), number)?,
            cold: words(&value("BENCH_BUFFERS", "hot"), is_cold)?,
            seconds: value("BENCH_SECONDS", "0.3").parse().context("BENCH_SECONDS")?,
            cpus: if cpus.is_empty() { None } else { Some(words(&cpus, number)?) },
        })
    }
}

fn words<T>(text: &str, parse: impl Fn(&str) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
    text.split_whitespace().map(parse).collect()
}

fn number(word: &str) -> anyhow::Result<usize> {
    word.parse().with_context(|| format!("{word:?} is no number"))
}

fn subject(word: &str) -> anyhow::Result<(Collective, Type)> {
    let (name, data_type) = word.split_once(':').unwrap_or((word, "f32"));
    let collective =
        Collective::from_name(name).with_context(|| format!("no collective {name:?}"))?;
    let data_type = match data_type {
        "f32" => Type::F32,
        "bf16" => Type::Bf16,
        other => bail!("no type {other:?}"),
    };
    Ok((collective, data_type))
}

fn is_cold(word: &str) -> anyhow::Result<bool> {
    match word {
        "hot" => Ok(false),
        "cold" => Ok(true),
        other => bail!("buffers are hot or cold, not {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> anyhow::Result<Request> {
        Request::from_variables(|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_what_to_measure() {
        let request = with(&[
            ("BENCH_COLLS", "all_reduce:bf16 barrier"),
            ("BENCH_SIZES", "8 64"),
            ("BENCH_BUFFERS", "cold hot"),
            ("BENCH_CPUS", "0 2"),
        ])
        .unwrap();
        let barrier = (Collective::Barrier, Type::F32);
        assert_eq!(request.subjects, [(Collective::AllReduce, Type::Bf16), barrier]);
        assert_eq!(request.sizes, [8, 64]);
        assert_eq!(request.cold, [true, false]);
        assert_eq!(request.cpus, Some(vec![0, 2]));
    }

    #[test]
    fn mistakes_are_not_measured_as_something_else() {
        for wrong in [
            ("BENCH_COLLS", "all_reduce:f8"),
            ("BENCH_COLLS", "allreduce"),
            ("BENCH_SIZES", "4K"),
            ("BENCH_BUFFERS", "warm"),
        ] {
            assert!(with(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}

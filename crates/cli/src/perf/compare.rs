//! `--algo all`: every algorithm beside the others, and how far the planner's choice is from the best.
//! `--level all`: every level beside the others, and what the stricter one costs.

use crate::exit::ExitCode;

use anyhow::Context as _;
use ringway::Communicator;
use ringway::config::Config;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::calibration::{Calibration, Point};
use ringway_plan::cost::Links;
use ringway_plan::types::{Collective, Level, ReduceOp};

use super::memory::Buffer;
use super::progress::Progress;
use super::ranks::{self, Call, Collectives as _};
use super::settings::{Compare, Settings};
use crate::timing::{self, Effort, Subject, Timed};
use crate::{output, size, tune};

/// Where nobody says how often.
const EFFORT: Effort = Effort { rounds: 20, round_us: 1_500.0 };
/// Two ways to do nearly the same need a closer look.
const LEVEL_EFFORT: Effort = Effort { rounds: 60, round_us: 1_500.0 };
const LEVELS: [Level; 2] = [Level::Run, Level::Shape];
/// A choice so much above the best is as good as the best.
const GOOD: f64 = 0.10;

/// Measures and, at rank 0, prints. All ranks call it.
pub(super) fn run(
    comm: &Communicator,
    settings: &Settings,
    what: Compare,
    root: Option<u32>,
) -> anyhow::Result<ExitCode> {
    let ranks = comm.size();
    let subjects: Vec<Subject> = settings
        .sweep
        .sizes()
        .map(|bytes| Subject {
            collective: settings.collective,
            data_type: settings.data_types[0],
            op: settings.ops[0].unwrap_or(ReduceOp::Sum),
            root: root.unwrap_or(0),
            bytes,
        })
        .filter(|subject| subject.is_something(ranks))
        .collect();
    match what {
        Compare::Algorithms => algorithms(comm, settings, &subjects),
        Compare::Levels => levels(comm, settings, &subjects),
    }
}

fn algorithms(
    comm: &Communicator,
    settings: &Settings,
    subjects: &[Subject],
) -> anyhow::Result<ExitCode> {
    let columns = columns(comm, subjects)?;
    let lines = header(comm, settings, &columns);
    let seen = table(comm, subjects, &lines, |subject, buffer| {
        let timed = timing::time(comm, subject, buffer, EFFORT)?;
        let row = row(&timed, &columns);
        Ok((timed, row))
    })?;
    if comm.rank() == 0 {
        output::line(&summary(&seen))?;
        if settings.learn {
            learn(comm, settings.collective, &seen)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn levels(
    comm: &Communicator,
    settings: &Settings,
    subjects: &[Subject],
) -> anyhow::Result<ExitCode> {
    let title = format!(
        "# {} of {}: microseconds at each level, the quickest of {} rounds or more",
        settings.collective, settings.data_types[0], LEVEL_EFFORT.rounds
    );
    let names = format!("# {:>10} {:>12} {:>12} {:>8}  algorithms", "size", "run", "shape", "cost");
    let ratios = table(comm, subjects, &[first_line(comm), title, names], |subject, buffer| {
        let call = subject.call(comm.size());
        let calls = LEVELS.map(|level| Call { level: Some(level), ..call });
        let times = timing::time_calls(comm, subject, buffer, LEVEL_EFFORT, calls.into_iter())?;
        let (run, shape) = (times[0], times[1]);
        let ratio = shape / run;
        let mut chosen = Vec::new();
        for call in calls {
            chosen.push(comm.candidates(&call.of_library())?.algorithm.name());
        }
        chosen.dedup();
        let bytes = subject.table_bytes(comm.size());
        let cost = (ratio - 1.0) * 100.0;
        let chosen = chosen.join(", ");
        Ok((ratio, format!("{bytes:>12} {run:>12.2} {shape:>12.2} {cost:>7.1}%  {chosen}")))
    })?;
    if comm.rank() == 0 {
        output::line(&format!("# level shape costs {:.1} % in the mean", mean_cost(&ratios)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What ratios cost in the geometric mean, in percent.
fn mean_cost(ratios: &[f64]) -> f64 {
    let count = u32::try_from(ratios.len().max(1)).unwrap_or(u32::MAX);
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    ((sum / f64::from(count)).exp() - 1.0) * 100.0
}

/// One row for each subject, printed by rank 0. All ranks call it.
fn table<T>(
    comm: &Communicator,
    subjects: &[Subject],
    header: &[String],
    mut measure: impl FnMut(&Subject, &mut Buffer) -> anyhow::Result<(T, String)>,
) -> anyhow::Result<Vec<T>> {
    let progress = (comm.rank() == 0).then(|| Progress::new(Some(subjects.len() as u64)));
    let mut printed = Ok(());
    if let Some(progress) = &progress {
        printed = header.iter().try_for_each(|line| progress.line(line));
    }
    let greatest = subjects.iter().map(|subject| subject.layout(comm.size()).table_bytes()).max();
    // A call that has no form in place needs two.
    let mut buffer = Buffer::new(2 * greatest.unwrap_or(0), 0);
    let mut seen = Vec::new();
    for subject in subjects {
        let stop = ranks::all_gather(comm, &[u8::from(printed.is_err())])?;
        if stop.concat().contains(&1) {
            break;
        }
        if let Some(progress) = &progress {
            progress.at(size::display(subject.bytes));
        }
        let (found, row) = measure(subject, &mut buffer)?;
        if let Some(progress) = &progress {
            printed = progress.row(&row);
        }
        seen.push(found);
    }
    printed?;
    Ok(seen)
}

/// The algorithms that can do any of the calls.
fn columns(comm: &Communicator, subjects: &[Subject]) -> anyhow::Result<Vec<Algorithm>> {
    let mut able = Vec::new();
    for subject in subjects {
        let choice = comm.candidates(&subject.call(comm.size()).of_library())?;
        able.extend(timing::admitted(&choice));
    }
    Ok(Algorithm::ALL.into_iter().filter(|algorithm| able.contains(algorithm)).collect())
}

fn header(comm: &Communicator, settings: &Settings, columns: &[Algorithm]) -> Vec<String> {
    let prices = match comm.calibration() {
        Some(_) => "from the tuning file of this topology",
        None => "defaults (no tuning file; see ringway tune)",
    };
    let names: String =
        columns.iter().map(|name| format!(" {name:>width$}", width = width(*name))).collect();
    vec![
        first_line(comm),
        format!(
            "# {} of {}: microseconds by each algorithm, the quickest of {} rounds or more",
            settings.collective, settings.data_types[0], EFFORT.rounds
        ),
        format!("# * is the planner's choice; its prices are {prices}"),
        format!("# {:>10}{names}  above best", "size"),
    ]
}

fn first_line(comm: &Communicator) -> String {
    format!("# ringway {} {} ranks {}", env!("CARGO_PKG_VERSION"), comm.describe(), comm.size())
}

fn width(algorithm: Algorithm) -> usize {
    algorithm.name().len().max(9)
}

fn row(timed: &Timed, columns: &[Algorithm]) -> String {
    let cell = |algorithm: &Algorithm| {
        let width = width(*algorithm);
        let mark = if *algorithm == timed.choice.algorithm { "*" } else { " " };
        match timed.us(*algorithm) {
            Some(us) if us < 100.0 => format!("{us:>width$.2}{mark}"),
            Some(us) => format!("{us:>width$.1}{mark}"),
            None => format!("{:>width$} ", "-"),
        }
    };
    let cells: String = columns.iter().map(cell).collect();
    format!("{:>12} {cells} {:>9.1}%", timed.bytes, timed.loss() * 100.0)
}

fn summary(seen: &[Timed]) -> String {
    let good = seen.iter().filter(|timed| timed.loss() <= GOOD).count();
    let worst = seen.iter().max_by(|a, b| a.loss().total_cmp(&b.loss()));
    let worst = worst.map_or_else(String::new, |worst| {
        let (chosen, bytes) = (worst.choice.algorithm, size::display(worst.bytes));
        format!("; the worst is {chosen} at {bytes}, {:.0} % above", worst.loss() * 100.0)
    });
    format!("# the choice is within 10 % of the best at {good} of {} sizes{worst}", seen.len())
}

/// Takes what was seen into the tuning file.
fn learn(comm: &Communicator, collective: Collective, seen: &[Timed]) -> anyhow::Result<()> {
    let topology = comm.topology();
    let path = tune::path(&Config::from_env(), &topology)?;
    let known = comm.calibration().filter(|known| known.topology == topology);
    let mut known = known.map_or_else(
        || Calibration::new(topology, Links::default()),
        |known| Calibration::clone(&known),
    );
    for timed in seen {
        for candidate in &timed.choice.candidates {
            let us = timed.us(candidate.algorithm);
            if let (Some(us), Some(predicted_us)) = (us, candidate.predicted_us) {
                let point = Point(timed.bytes, us, predicted_us);
                known.learn(collective, candidate.algorithm, point);
            }
        }
    }
    ringway::tuning::write(&path, &known)
        .with_context(|| format!("cannot write {}", path.display()))?;
    output::line(&format!("# learned: wrote {}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use ringway_plan::build::Tuning;
    use ringway_plan::planner::Choice;

    use super::*;

    fn timed(bytes: u64, chosen: Algorithm, times: &[(Algorithm, f64)]) -> Timed {
        let choice =
            Choice { algorithm: chosen, tuning: Tuning::default(), candidates: Vec::new() };
        Timed { bytes, choice, times: times.to_vec() }
    }

    #[test]
    fn the_choice_is_marked_and_its_loss_shown() {
        let times = [(Algorithm::Ring, 50.0), (Algorithm::Tree, 40.0)];
        let timed = [timed(64, Algorithm::Ring, &times), timed(4096, Algorithm::Tree, &times)];
        let columns = [Algorithm::Ring, Algorithm::Tree, Algorithm::Pat];
        let line = row(&timed[0], &columns);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["64", "50.00*", "40.00", "-", "25.0%"]);
        assert_eq!(
            summary(&timed),
            "# the choice is within 10 % of the best at 1 of 2 sizes; \
             the worst is ring at 64 B, 25 % above"
        );
        assert!(summary(&[]).contains("0 of 0"));
    }

    #[test]
    fn costs_are_geometric_means() {
        assert!((mean_cost(&[2.0, 0.5])).abs() < 1e-9);
        assert!((mean_cost(&[1.1, 1.1]) - 10.0).abs() < 1e-9);
        assert!(mean_cost(&[]).abs() < 1e-9);
    }
}

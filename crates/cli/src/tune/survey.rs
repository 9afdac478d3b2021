//! What `ringway tune` measures, and what it makes of it.

use crate::exit::ExitCode;

use anyhow::Context as _;
use ringway::Communicator;
use ringway::config::Config;
use ringway_plan::calibration::{Calibration, Point};
use ringway_plan::cost::Links;
use ringway_plan::fit::{self, Timing};
use ringway_plan::planner::{self, Request};
use ringway_plan::problem::Problem;
use ringway_plan::types::{Collective, DataType, ReduceOp};

use super::{TuneArgs, path, show};
use crate::perf::memory::Buffer;
use crate::perf::progress::Progress;
use crate::perf::ranks;
use crate::timing::{self, Effort, Subject, Timed};
use crate::{output, size};

/// Those that training uses most, first: where time is short only these are measured.
const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
    Collective::Barrier,
];

/// How far to go.
struct Scope {
    collectives: usize,
    /// Doublings from one size to the next.
    stride: u32,
    bytes_max: u64,
    effort: Effort,
}

const WHOLE: Scope = Scope {
    collectives: COLLECTIVES.len(),
    stride: 1,
    bytes_max: 16 << 20,
    effort: Effort { rounds: 12, round_us: 800.0 },
};

const QUICK: Scope = Scope {
    collectives: 4,
    stride: 3,
    bytes_max: 4 << 20,
    effort: Effort { rounds: 4, round_us: 500.0 },
};

/// Times that links are fitted to: enough to tell, few enough to be quick.
const FITTED_MOST: usize = 120;

/// Measures; rank 0 writes the file and says what is in it.
pub(super) fn run(args: &TuneArgs) -> anyhow::Result<ExitCode> {
    let comm = ranks::connect()?;
    let comm = &comm;
    let scope = if args.quick { QUICK } else { WHOLE };
    let subjects = subjects(&scope, comm.size());
    let progress = (comm.rank() == 0).then(|| Progress::new(Some(subjects.len() as u64)));
    let greatest = subjects.iter().map(|subject| subject.layout(comm.size()).table_bytes()).max();
    // A call that has no form in place needs two.
    let mut buffer = Buffer::new(2 * greatest.unwrap_or(0), 0);
    let mut seen = Vec::new();
    for subject in &subjects {
        if let Some(progress) = &progress {
            progress.at(format!("{} {}", subject.collective, size::display(subject.bytes)));
        }
        let timed = timing::time(comm, subject, &mut buffer, scope.effort)?;
        seen.push((*subject, timed));
        if let Some(progress) = &progress {
            progress.step();
        }
    }
    if let Some(progress) = progress {
        drop(progress);
        let config = Config::from_env();
        let calibration = calibration(comm, &config, &seen);
        let path = match &args.out {
            Some(path) => path.clone(),
            None => path(&config, &calibration.topology)?,
        };
        ringway::tuning::write(&path, &calibration)
            .with_context(|| format!("cannot write {}", path.display()))?;
        output::stdout_bytes(show::page(&calibration).as_bytes())?;
        output::line(&format!("wrote {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn subjects(scope: &Scope, ranks: u32) -> Vec<Subject> {
    let sizes = || (3..64).step_by(scope.stride as usize).map(|doublings| 1_u64 << doublings);
    let mut subjects: Vec<Subject> = Vec::new();
    for collective in COLLECTIVES.into_iter().take(scope.collectives) {
        let subject = |bytes| Subject {
            collective,
            data_type: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
            bytes,
        };
        match collective {
            Collective::Barrier => subjects.push(subject(0)),
            _ => {
                subjects.extend(sizes().take_while(|bytes| *bytes <= scope.bytes_max).map(subject))
            }
        }
    }
    subjects.retain(|subject| subject.is_something(ranks));
    subjects
}

/// The links that say best what was seen, and what was seen beside what they say.
fn calibration(comm: &Communicator, config: &Config, seen: &[(Subject, Timed)]) -> Calibration {
    let hosts = comm.hosts();
    let problem = |subject: &Subject| {
        let count = subject.layout(comm.size()).count as u64;
        Problem::new(subject.collective, comm.size(), count, subject.data_type)
    };
    let timings: Vec<Timing> = seen
        .iter()
        .flat_map(|(subject, timed)| {
            let all = timed.times.iter();
            all.map(|(algorithm, us)| Timing {
                algorithm: *algorithm,
                problem: problem(subject),
                us: *us,
            })
        })
        .collect();
    let stride = timings.len().div_ceil(FITTED_MOST).max(1);
    let some: Vec<Timing> = timings.iter().step_by(stride).cloned().collect();
    let links = fit::fit(Links::default(), hosts, &some);
    let request = Request {
        lanes: config.lanes,
        slot_bytes: config.chunk_bytes,
        scratch_bytes: config.scratch_bytes().next_multiple_of(4096),
        links,
        ..Request::default()
    };
    let mut calibration = Calibration::new(comm.topology(), links);
    for (subject, timed) in seen {
        for (algorithm, us) in &timed.times {
            let predicted_us = planner::predict_us(*algorithm, &problem(subject), hosts, &request);
            // A time too short for the clock says nothing.
            if *us > 0.0 && predicted_us > 0.0 {
                let point = Point(timed.bytes, *us, predicted_us);
                calibration.learn(subject.collective, *algorithm, point);
            }
        }
    }
    calibration
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_move_nothing_are_left_out() {
        let subjects = subjects(&QUICK, 64);
        let least = |collective| {
            let of = subjects.iter().filter(|subject| subject.collective == collective);
            of.map(|subject| subject.bytes).min()
        };
        assert_eq!(least(Collective::AllReduce), Some(8));
        assert_eq!(least(Collective::AllGather), Some(4096));
        assert_eq!(subjects.iter().map(|subject| subject.bytes).max(), Some(2 << 20));
    }
}

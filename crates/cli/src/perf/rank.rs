//! The ranks of this process in a measurement: join the job, measure every row, report at rank 0.
//!
//! On GPU memory a process may have several, each a thread.
//!
//! *Invariant:* a rank gives its GPU memory back only when no rank of its process waits in a kernel, since
//! that waits for all of them: after a barrier, or after it has aborted the communicator.

use crate::exit::ExitCode;
use std::io;

use anyhow::{Context as _, anyhow};
use ringway::Communicator;
use ringway_plan::types::{Collective, ReduceOp};

use super::args::Memory;
use super::clock;
use super::compare;
use super::device;
use super::expect::Expectation;
use super::identity;
use super::json::{self, Document, Results};
use super::launch::{EXIT_NOT_PASSED, EXIT_PORT_TAKEN, EXIT_SAID};
use super::measure::{Bench, Subject, average_bus_bandwidth};
use super::memory;
use super::progress::Progress;
use super::ranks::{self, Collectives, Team};
use super::settings::{Blocking, ITERATIONS, Settings, Step};
use super::soak;
use super::table::{self, Device, Row, Summary};
use crate::launch::environment::Place;
use crate::{output, size, timing};

/// Joins the job and measures.
pub(crate) fn run(settings: Settings, place: &Place) -> anyhow::Result<ExitCode> {
    let measured = match settings.ranks_per_process {
        1 if place.size > 1 || settings.memory == Memory::Host => one_rank(settings, place),
        _ => threads(&settings, place),
    };
    measured.or_else(|error| {
        if ranks::port_was_taken(&error) && place.rank == 0 {
            return Ok(ExitCode::from(EXIT_PORT_TAKEN));
        }
        Err(error)
    })
}

fn one_rank(mut settings: Settings, place: &Place) -> anyhow::Result<ExitCode> {
    let told = || format!("rank {}", place.rank);
    let replaces = check_json(&settings, place.rank == 0).with_context(told)?;
    memory::fit(&mut settings, place.size, place.local_size).with_context(told)?;
    let comm = ranks::connect().with_context(told)?;
    measure_and_report(settings, &comm, replaces).with_context(told)
}

/// The ranks of a process that has several.
fn threads(settings: &Settings, place: &Place) -> anyhow::Result<ExitCode> {
    let ranks = settings.ranks_per_process;
    let replaces = check_json(settings, place.rank == 0)?;
    let mut settings = settings.clone();
    memory::fit(&mut settings, place.size * ranks, place.local_size * ranks)?;
    let team = Team::meet(place.rank, place.size, ranks)?;
    let (first, _) = team.ranks();
    let one = |rank: u32| -> anyhow::Result<ExitCode> {
        let measured = team
            .join(rank)
            .and_then(|comm| measure_and_report(settings.clone(), &comm, replaces && rank == 0));
        measured.with_context(|| format!("rank {rank}"))
    };
    let one = &one;
    let all: Vec<anyhow::Result<ExitCode>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (first..first + ranks)
            .map(|rank| {
                let name = format!("rank-{rank}");
                std::thread::Builder::new().name(name).spawn_scoped(scope, move || one(rank))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let ended = thread.context("starting a thread for a rank")?.join();
                ended.unwrap_or_else(|_| Err(anyhow!("a rank's thread panicked")))
            })
            .collect()
    });
    // The first rank's is the job's, unless one could not finish.
    let codes = all.into_iter().collect::<anyhow::Result<Vec<ExitCode>>>()?;
    Ok(codes.first().copied().unwrap_or(ExitCode::SUCCESS))
}

/// Whether an older file is replaced, where this process writes one.
fn check_json(settings: &Settings, writes: bool) -> anyhow::Result<bool> {
    match &settings.json {
        Some(path) if writes => json::check_path(path),
        _ => Ok(false),
    }
}

fn measure_and_report(
    mut settings: Settings,
    comm: &Communicator,
    replaces: bool,
) -> anyhow::Result<ExitCode> {
    agree_on_sizes(comm, &mut settings)?;
    let roots = settings.roots(comm.size())?;
    settings.check_records(comm.size())?;
    if let Some(what) = settings.compare {
        return compare::run(comm, &settings, what, roots.first().copied().flatten());
    }
    let mut devices = identity::exchange(comm)?;
    if settings.memory == Memory::Host {
        let mut bench = Bench::new(comm, &settings);
        return work(&settings, comm, &mut bench, &roots, &devices, replaces);
    }
    let own = ranks::attach_gpu(comm, devices[comm.rank() as usize].device)?;
    for (device, gpu) in devices.iter_mut().zip(identity::exchange_gpus(comm, &own)?) {
        device.has(gpu);
    }
    // Memory is given back when `bench` goes: by then nobody may wait in a kernel for this rank.
    let bench = Bench::on_gpu(comm, &settings);
    let (bench, measured) = match bench {
        Ok(mut bench) => {
            let measured = work(&settings, comm, &mut bench, &roots, &devices, replaces);
            (Some(bench), measured)
        }
        Err(error) => (None, Err(error)),
    };
    let measured = device::over(comm, measured);
    drop(bench);
    measured
}

/// Does what was asked for with buffers that are there.
fn work(
    settings: &Settings,
    comm: &Communicator,
    bench: &mut Bench<'_>,
    roots: &[Option<u32>],
    devices: &[Device],
    replaces: bool,
) -> anyhow::Result<ExitCode> {
    match (settings.soak, subjects(settings, roots).first()) {
        (Some(soak), Some(subject)) => {
            soak::run(settings, soak, comm, bench, subject, devices, replaces)
        }
        _ => sweep(settings, comm, bench, roots, devices, replaces),
    }
}

/// Measures every row, and reports at rank 0.
fn sweep(
    settings: &Settings,
    comm: &Communicator,
    bench: &mut Bench<'_>,
    roots: &[Option<u32>],
    devices: &[Device],
    replaces: bool,
) -> anyhow::Result<ExitCode> {
    let start_time = clock::now();
    let prints = comm.rank() == 0;
    let subjects = subjects(settings, roots);
    let expectation = settings
        .expect
        .map(|wanted| Expectation::find(wanted, settings, comm, bench, devices, &subjects));
    let expectation = match expectation.transpose() {
        Ok(found) => found,
        // All ranks have the same to say.
        Err(_) if !prints => return Ok(ExitCode::from(EXIT_SAID)),
        Err(error) => return Err(error),
    };
    let rows_in_all = (settings.cycles > 0)
        .then(|| u64::try_from(subjects.len()).unwrap_or(0) * u64::from(settings.cycles));
    let progress = prints.then(|| Progress::new(rows_in_all));
    let mut printed = Ok(());
    if let Some(progress) = &progress {
        let expected = expectation.iter().flat_map(Expectation::header).collect();
        printed = print(progress, &header(settings, comm, devices, replaces, expected));
    }

    let mut rows: Vec<Row> = Vec::new();
    let mut cycle = 0;
    'sweeps: while settings.cycles == 0 || cycle < settings.cycles {
        cycle += 1;
        for subject in &subjects {
            // When nobody reads the table any more (`| head`), all ranks stop together.
            let stop = ranks::all_gather(comm, &[u8::from(printed.is_err())])?;
            if stop.concat().contains(&1) {
                break 'sweeps;
            }
            if let Some(progress) = &progress {
                progress.at(size::display(subject.bytes));
            }
            let row = bench.row(subject)?;
            if let Some(progress) = &progress {
                printed = progress.row(&row.line());
                // A run without end has no summary to keep rows for.
                if settings.cycles > 0 {
                    rows.push(row);
                }
            }
        }
    }
    printed?;
    let Some(progress) = progress else {
        return Ok(ExitCode::SUCCESS);
    };

    let summary = summary(&rows);
    let verdict = expectation.map(|expectation| expectation.judge(&rows));
    drop(progress);
    if settings.columns.iterations && !rows.is_empty() {
        let spread = table::spread(&rows, settings.collective.waits_for_all());
        spread.iter().try_for_each(|line| output::line(line))?;
    }
    let judged = verdict.iter().flat_map(|verdict| verdict.lines());
    judged.into_iter().try_for_each(|line| output::line(&line))?;
    summary.footer(&settings.program()).iter().try_for_each(|line| output::line(line))?;
    if let Some(path) = &settings.json {
        let results = Results {
            settings,
            devices,
            rows: &rows,
            summary,
            connection: comm.describe(),
            gpu_path: comm.gpu_path(),
            expected_us: expected(settings, comm, &subjects, rows.len()),
            expectation: verdict.clone(),
            start_time,
            end_time: clock::now(),
        };
        json::write(&Document::new(&results), path)?;
    }
    if let (Some(false), Some(wanted)) = (summary.bandwidth_passes(), summary.wanted_bandwidth) {
        output::remark(&format!(
            "ringway perf: average bus bandwidth is more than 10 % below NCCL_TESTS_MIN_BW={wanted}"
        ));
    }
    if let Some(complaint) = verdict.as_ref().and_then(|verdict| verdict.complaint()) {
        output::remark(&complaint);
    }
    let passes = summary.passes() && verdict.is_none_or(|verdict| verdict.okay);
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NOT_PASSED) })
}

/// What the planner reckons each row takes. On GPU memory kernels do the work, and it is not asked.
fn expected(
    settings: &Settings,
    comm: &Communicator,
    subjects: &[Subject],
    rows: usize,
) -> Vec<Option<f64>> {
    if settings.memory != Memory::Host {
        return Vec::new();
    }
    let one = |subject: &Subject| {
        let call = timing::Subject {
            collective: settings.collective,
            data_type: subject.data_type,
            op: subject.op.unwrap_or(ReduceOp::Sum),
            root: subject.root.unwrap_or(0),
            bytes: subject.bytes,
        };
        let choice = comm.candidates(&call.call(comm.size()).of_library()).ok()?;
        let chosen = choice.candidates.iter().find(|one| one.algorithm == choice.algorithm)?;
        chosen.expected_us.filter(|us| us.is_finite())
    };
    let cycle: Vec<Option<f64>> = subjects.iter().map(one).collect();
    cycle.into_iter().cycle().take(rows).collect()
}

fn print(progress: &Progress, lines: &[String]) -> io::Result<()> {
    lines.iter().try_for_each(|line| progress.line(line))
}

/// Ranks on hosts with less memory may have lowered the greatest size; all take the least.
fn agree_on_sizes(comm: &dyn Collectives, settings: &mut Settings) -> anyhow::Result<()> {
    let all = ranks::all_gather(comm, &settings.sweep.max_bytes.to_le_bytes())?;
    let least = all
        .iter()
        .filter_map(|bytes| bytes.as_slice().try_into().ok())
        .map(u64::from_le_bytes)
        .min();
    settings.sweep.max_bytes = least.unwrap_or(settings.sweep.max_bytes);
    Ok(())
}

/// All rows of one cycle, in nccl-tests' order.
fn subjects(settings: &Settings, roots: &[Option<u32>]) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for &data_type in &settings.data_types {
        for &op in &settings.ops {
            for &root in roots {
                let sizes = settings.sweep.sizes();
                subjects.extend(sizes.map(|bytes| Subject { data_type, op, root, bytes }));
            }
        }
    }
    subjects
}

fn summary(rows: &[Row]) -> Summary {
    let cells = rows.iter().flat_map(|row| [&row.out_of_place, &row.in_place]);
    let out_of_bounds = cells.filter(|cell| cell.wrong.is_some_and(|wrong| wrong > 0)).count();
    let wanted = std::env::var("NCCL_TESTS_MIN_BW").ok().and_then(|text| text.parse().ok());
    Summary {
        out_of_bounds: u64::try_from(out_of_bounds).unwrap_or(u64::MAX),
        average_bus_bandwidth: average_bus_bandwidth(rows),
        wanted_bandwidth: wanted,
    }
}

fn header(
    settings: &Settings,
    comm: &Communicator,
    devices: &[Device],
    replaces: bool,
    expected: Vec<String>,
) -> Vec<String> {
    let mut lines = vec![format!(
        "# ringway {} {} ranks {}",
        env!("CARGO_PKG_VERSION"),
        comm.describe(),
        comm.size()
    )];
    lines.extend(comm.gpu_path().map(|path| format!("# GPU memory: {path}")));
    if let Some(path) = &settings.json {
        let older = if replaces { " (in place of the older file)" } else { "" };
        lines.push(format!("# Writing JSON output to {}{older}", path.display()));
    }
    lines.push(format!("# Collective test starting: {}", settings.program()));
    let (step, kind) = match settings.sweep.step {
        Step::Factor(factor) => (factor, "factor"),
        Step::Bytes(bytes) => (bytes, "bytes"),
    };
    lines.push(format!(
        "# nThread 1 nGpus {} minBytes {} maxBytes {} step: {step}({kind}) warmup iters: {} \
         iters: {} agg iters: {} validation: {} graph: 0 unalign: {}",
        settings.ranks_per_process,
        settings.sweep.min_bytes,
        settings.sweep.max_bytes,
        settings.warmup,
        settings.iterations.unwrap_or(ITERATIONS),
        settings.aggregate,
        settings.check,
        settings.unalign
    ));
    if settings.iterations.is_none() {
        lines.push(format!(
            "# iters: up to {ITERATIONS}, fewer where those would take long (-n fixes the number)"
        ));
    }
    lines.extend(remarks(settings).into_iter().map(|remark| format!("# {remark}")));
    lines.extend(expected);
    lines.push("#".to_owned());
    lines.push("# Using devices".to_owned());
    lines.extend(devices.iter().map(Device::line));
    lines.push("#".to_owned());
    lines.extend(settings.columns.header());
    lines
}

fn remarks(settings: &Settings) -> Vec<String> {
    let mut remarks = Vec::new();
    match settings.blocking {
        Blocking::CallAndBarrier => {
            remarks.push("Blocking Enabled: wait and barrier after each inner iteration (-m)");
        }
        Blocking::IterationAndBarrier => remarks.push(
            "Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes \
             barrier",
        ),
        Blocking::Queue | Blocking::Call => {}
    }
    if settings.collective == Collective::Barrier {
        remarks.push("a barrier moves no data: sizes, types and checks do not apply");
    }
    if settings.columns.cpu_time && settings.ranks_per_process > 1 {
        remarks.push("-C 1: the CPU time is that of the process, which all its ranks share");
    }
    let mut remarks: Vec<String> = remarks.into_iter().map(str::to_owned).collect();
    remarks.extend(settings.notes.iter().cloned());
    remarks
}

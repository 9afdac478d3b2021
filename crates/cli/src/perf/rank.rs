//! One rank of a measurement: join the job, measure every row, report at rank 0.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use ringway_plan::types::Collective;

use super::clock;
use super::compare;
use super::identity;
use super::json::{self, Document, Results};
use super::launch::{EXIT_NOT_PASSED, EXIT_PORT_TAKEN};
use super::measure::{Bench, Subject, average_bus_bandwidth};
use super::memory;
use super::progress::Progress;
use super::ranks::{self, Collectives};
use super::settings::{Blocking, ITERATIONS, Settings, Step};
use super::table::{Device, Row, Summary};
use crate::launch::environment::Place;
use crate::{output, size};

/// Joins the job and measures.
pub(crate) fn run(settings: Settings, place: &Place) -> anyhow::Result<ExitCode> {
    measure_and_report(settings, place).with_context(|| format!("rank {}", place.rank)).or_else(
        |error| {
            if ranks::port_was_taken(&error) && place.rank == 0 {
                return Ok(ExitCode::from(EXIT_PORT_TAKEN));
            }
            Err(error)
        },
    )
}

fn measure_and_report(mut settings: Settings, place: &Place) -> anyhow::Result<ExitCode> {
    let start_time = clock::now();
    let prints = place.rank == 0;
    let replaces = match &settings.json {
        Some(path) if prints => json::check_path(path)?,
        _ => false,
    };
    memory::fit(&mut settings, place.size, place.local_size)?;
    let comm = ranks::connect()?;
    let comm = &comm;
    agree_on_sizes(comm, &mut settings)?;
    let roots = settings.roots(comm.size())?;
    if let Some(what) = settings.compare {
        return compare::run(comm, &settings, what, roots.first().copied().flatten());
    }
    let devices = identity::exchange(comm)?;

    let subjects = subjects(&settings, &roots);
    let rows_in_all = (settings.cycles > 0)
        .then(|| u64::try_from(subjects.len()).unwrap_or(0) * u64::from(settings.cycles));
    let progress = prints.then(|| Progress::new(rows_in_all));
    let mut printed = Ok(());
    if let Some(progress) = &progress {
        printed = print(progress, &header(&settings, comm, &devices, replaces));
    }

    let mut rows: Vec<Row> = Vec::new();
    let mut bench = Bench::new(comm, &settings);
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
    drop(progress);
    summary.footer(&settings.program()).iter().try_for_each(|line| output::line(line))?;
    if let Some(path) = &settings.json {
        let results = Results {
            settings: &settings,
            devices: &devices,
            rows: &rows,
            summary,
            connection: comm.describe(),
            start_time,
            end_time: clock::now(),
        };
        Document::new(&results).write(path)?;
    }
    if let (Some(false), Some(wanted)) = (summary.bandwidth_passes(), summary.wanted_bandwidth) {
        output::remark(&format!(
            "ringway perf: average bus bandwidth is more than 10 % below NCCL_TESTS_MIN_BW={wanted}"
        ));
    }
    Ok(if summary.passes() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NOT_PASSED) })
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
    comm: &dyn Collectives,
    devices: &[Device],
    replaces: bool,
) -> Vec<String> {
    let mut lines = vec![format!(
        "# ringway {} {} ranks {}",
        env!("CARGO_PKG_VERSION"),
        comm.describe(),
        comm.size()
    )];
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
        "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: {step}({kind}) warmup iters: {} \
         iters: {} agg iters: {} validation: {} graph: 0 unalign: {}",
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
    let mut remarks: Vec<String> = remarks.into_iter().map(str::to_owned).collect();
    remarks.extend(settings.notes.iter().cloned());
    remarks
}

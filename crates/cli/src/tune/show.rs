//! `ringway tune --show`: what is known of a topology.

use crate::exit::ExitCode;
use std::fmt::Write as _;

use anyhow::bail;
use ringway::config::Config;
use ringway::tuning;
use ringway_plan::algorithm::Algorithm;
use ringway_plan::calibration::Calibration;
use ringway_plan::types::Collective;

use super::TuneArgs;
use crate::perf::args::Transport;
use crate::{launch, output, size};

pub(super) fn run(args: &TuneArgs) -> anyhow::Result<ExitCode> {
    let config = Config::from_env();
    let ranks = launch::ranks("--ranks", args.ranks)?;
    let hosts: Vec<u32> = match args.transport {
        Some(Transport::Tcp | Transport::Verbs) => (0..ranks).collect(),
        None if !config.allows_shm() => (0..ranks).collect(),
        _ => vec![0; ranks as usize],
    };
    let topology = tuning::topology(&hosts, 1);
    let (path, known) = match tuning::read(&config, &topology) {
        Ok(Some(known)) => known,
        Ok(None) => {
            let place = tuning::path(&config, &topology);
            let place = place.map_or_else(
                || "RINGWAY_TUNING=off, or there is no cache folder".to_owned(),
                |path| format!("no {}", path.display()),
            );
            output::line(&format!("nothing is known of these ranks: {place}; run ringway tune"))?;
            return Ok(ExitCode::FAILURE);
        }
        Err(why) => bail!(why),
    };
    output::line(&path.display().to_string())?;
    output::stdout_bytes(page(&known).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The links, and the best algorithm of each collective by size.
pub(super) fn page(known: &Calibration) -> String {
    let (topology, links) = (&known.topology, &known.links);
    let mut page = format!(
        "{}, {} cores, {} ranks on {} machine{}\n",
        topology.cpu,
        topology.cores,
        topology.ranks,
        topology.machines,
        if topology.machines == 1 { "" } else { "s" }
    );
    if topology.hosts < topology.ranks {
        let _ = writeln!(
            page,
            "shared memory: {:.2} us, a core reads {:.1} GB/s of another's, writes {:.1} GB/s",
            links.shm.latency_us, links.shm.bandwidth_gbs, links.stage_gbs
        );
    }
    if topology.hosts > 1 {
        let _ = writeln!(
            page,
            "network: {:.1} us, {:.2} us of a core for a message, {:.2} GB/s",
            links.net.latency_us, links.net.overhead_us, links.net.bandwidth_gbs
        );
    }
    let _ = writeln!(
        page,
        "a core: folds {:.1} GB/s, copies {:.1} GB/s, {:.3} us a step",
        links.reduce_gbs, links.copy_gbs, links.per_step_us
    );
    for collective in Collective::ALL {
        let best = best_by_size(known, collective);
        if !best.is_empty() {
            let _ = writeln!(page, "{:<15} {}", collective.name(), ranges(&best));
        }
    }
    page
}

fn best_by_size(known: &Calibration, collective: Collective) -> Vec<(u64, Algorithm)> {
    let of = || known.measured.iter().filter(|series| series.collective == collective);
    let mut sizes: Vec<u64> =
        of().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let best = |bytes: u64| {
        of().filter_map(|series| {
            let point = series.points.iter().find(|point| point.0 == bytes)?;
            Some((series.algorithm, point.1))
        })
        .min_by(|a, b| a.1.total_cmp(&b.1))
    };
    sizes.into_iter().filter_map(|bytes| Some((bytes, best(bytes)?.0))).collect()
}

/// `tiny to 64 B, one_shot to 16 MiB`.
fn ranges(best: &[(u64, Algorithm)]) -> String {
    let mut ranges: Vec<(u64, Algorithm)> = Vec::new();
    for (bytes, algorithm) in best {
        match ranges.last_mut() {
            Some(last) if last.1 == *algorithm => last.0 = *bytes,
            _ => ranges.push((*bytes, *algorithm)),
        }
    }
    let words = ranges.iter().map(|(bytes, algorithm)| match bytes {
        0 => algorithm.to_string(),
        _ => format!("{algorithm} to {}", size::display(*bytes)),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_algorithm_are_one_range() {
        let best = [(8, Algorithm::Tiny), (16, Algorithm::Tiny), (1024, Algorithm::Ring)];
        assert_eq!(ranges(&best), "tiny to 16 B, ring to 1 KiB");
        assert_eq!(ranges(&[(0, Algorithm::Bruck)]), "bruck");
    }
}

//! The doctor's verdicts as gauges. It looks in the background, now and then: a look takes seconds and runs programs.
//!
//! From the second look on counters are judged by how they grew since the one before.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringway::topo::Root;

use super::metric::{self, Samples};
use crate::doctor::checks;
use crate::doctor::examine::examine;
use crate::doctor::finding::Verdict;
use crate::doctor::host::{Earlier, Host};

/// The last look, for whoever asks.
pub(crate) type Last = Arc<Mutex<Option<Samples>>>;

/// Looks once; also what the next look needs of this one.
pub(crate) fn look(root: &Root, earlier: Option<Earlier>) -> (Samples, Earlier, Instant) {
    let began = Instant::now();
    let mut host = Host::new(root.clone());
    if let Some(earlier) = earlier {
        host = host.after(earlier);
    }
    let found = examine(&host, &checks::all());
    let mut samples = Samples::default();
    for finding in &found.report.findings {
        let labels: [&dyn std::fmt::Display; 2] = [&finding.id, &finding.group];
        let value = match finding.verdict {
            Verdict::Pass => 0,
            Verdict::Warn => 1,
            Verdict::Fail => 2,
            Verdict::Unknown => {
                samples.add(&metric::DOCTOR_UNKNOWN, &labels, 1);
                continue;
            }
        };
        samples.add(&metric::DOCTOR_CHECK, &labels, value);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    samples.add(&metric::DOCTOR_TIME, &[], now.as_secs());
    samples.add(&metric::DOCTOR_DURATION, &[], began.elapsed().as_secs_f64());
    let earlier = Earlier { totals: found.moment.totals, seconds: 0.0 };
    (samples, earlier, began)
}

/// Looks again and again. Nobody waits for it: a program that hangs in a driver ends with the process.
pub(crate) fn keep_looking(root: Root, every: Duration) -> std::io::Result<Last> {
    let last = Last::default();
    let told = Arc::clone(&last);
    let work = move || {
        let mut before: Option<(Earlier, Instant)> = None;
        // For as long as somebody may ask.
        while Arc::strong_count(&told) > 1 {
            let earlier = before.take().map(|(earlier, began)| Earlier {
                seconds: began.elapsed().as_secs_f64(),
                ..earlier
            });
            let (samples, earlier, began) = look(&root, earlier);
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(samples);
            before = Some((earlier, began));
            std::thread::sleep(every);
        }
    };
    std::thread::Builder::new().name("ringway-doctor".to_owned()).spawn(work)?;
    Ok(last)
}

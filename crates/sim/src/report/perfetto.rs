//! Chrome's trace events, which Perfetto and chrome://tracing read: a track for each row.

use serde_json::{Value, json};

use crate::outcome::Outcome;

/// The document.
#[must_use]
pub fn document(outcome: &Outcome) -> Value {
    let mut rows: Vec<&str> = Vec::new();
    let mut places = std::collections::HashMap::new();
    let mut events = vec![json!({
        "ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": { "name": "simulation" },
    })];
    for span in &outcome.spans {
        let row = *places.entry(span.row.as_str()).or_insert_with(|| {
            rows.push(&span.row);
            rows.len()
        });
        events.push(json!({
            "ph": "X", "name": span.name, "pid": 0, "tid": row, "ts": span.start_us,
            "dur": span.end_us - span.start_us,
        }));
    }
    for (row, name) in (1..).zip(&rows) {
        events.push(json!({
            "ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": { "name": name },
        }));
        events.push(json!({
            "ph": "M", "name": "thread_sort_index", "pid": 0, "tid": row, "args": { "sort_index": row },
        }));
    }
    for incident in &outcome.incidents {
        events.push(json!({
            "ph": "i", "s": "g", "name": incident.what, "pid": 0, "tid": 0, "ts": incident.us,
        }));
    }
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": { "made by": "ringway sim" },
    })
}

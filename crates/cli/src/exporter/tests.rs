use std::collections::BTreeSet;
use std::path::Path;

use ringway::exposition::families;

use super::*;
use crate::doctor::tests::tree::Tree;

fn exporter(tree: &Tree, doctor: bool) -> Exporter {
    let args = ExporterArgs {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        once: true,
        root: None,
        jobs: None,
        doctor_every: Duration::from_secs(u64::from(doctor)),
        nvml: Nvml::Off,
        gpu_every: Duration::from_secs(1),
    };
    Exporter::looked(Root::at(tree.folder()), &args, false)
}

#[test]
fn an_answer_can_be_read_and_counts_what_went_wrong_only_once_in_the_log() {
    let mut tree = Tree::healthy();
    let file = "/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error";
    tree.put(file, "x1");
    tree.put(file, "1x");
    let exporter = exporter(&tree, true);
    let value = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.trim().parse::<f64>().unwrap())
    };
    let errors = "ringway_exporter_scrape_errors_total{what=\"rdma\"}";
    for scrape in 1..4_u32 {
        let text = exporter.text();
        families(&text).unwrap();
        assert_eq!(value(&text, errors), Some(f64::from(scrape)));
        assert_eq!(value(&text, "ringway_exporter_scrapes_total"), Some(f64::from(scrape)));
        assert!(text.contains("ringway_node_doctor_check{check=\"pci-01\",group=\"pci\"} "));
        assert!(value(&text, "ringway_node_doctor_timestamp_seconds").is_some());
    }
    let mut troubles = Troubles::default();
    assert!(troubles.note(What::Pci, "a".to_owned()).is_some());
    assert!(troubles.note(What::Pci, "a".to_owned()).is_none());
}

#[test]
fn addresses_and_times_are_understood() {
    assert_eq!(address("9464").unwrap().to_string(), "127.0.0.1:9464");
    assert_eq!(address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
    assert!(address("localhost").is_err() && address("").is_err());
    assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
    assert_eq!(duration("0"), Ok(Duration::ZERO));
    for wrong in ["", "m", "5d", "-1", "99999999999999999999", "9999999h", "1.5s"] {
        assert!(duration(wrong).is_err(), "{wrong}");
    }
}

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("ringway_")).map(str::to_owned).collect()
}

#[test]
fn the_page_has_every_metric_and_rules_and_dashboards_ask_for_nothing_else() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect("a page");
    let page = read("exporter.md");
    let table = page.split("\n## Names").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut rows: Vec<Vec<&str>> = Vec::new();
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        rows.push(line.split('|').map(str::trim).collect());
    }
    assert_eq!(rows.len(), metric::ALL.len());
    for (row, metric) in rows.iter().zip(metric::ALL) {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let wanted = [&format!("`{}`", metric.name), metric.kind, &labels.join(", "), metric.help];
        assert_eq!(row[1..5], wanted, "a row for {}", metric.name);
    }
    // Metrics of jobs are in the page of these, which a test compares with what is told.
    let mut known = names(&read("metrics.md"));
    known.extend(metric::ALL.iter().map(|metric| metric.name.to_owned()));
    for file in [
        "exporter.md",
        "prometheus/ringway.rules.yaml",
        "grafana/node.json",
        "grafana/ringway.json",
    ] {
        for asked in names(&read(file)) {
            let part = ["_bucket", "_sum", "_count"].iter().find_map(|end| asked.strip_suffix(end));
            let is_known = known.contains(&asked) || part.is_some_and(|name| known.contains(name));
            assert!(is_known, "{file}: {asked} is nothing that is told");
        }
    }
}

//! The fuzz targets: one function for each decoder of bytes from outside.
//!
//! Each takes arbitrary bytes and panics when a promise is broken; `fuzz_targets/` hands them
//! libFuzzer's. `cargo test` in this folder runs every target on its seeds and on damaged copies of
//! them, on the stable compiler and without libFuzzer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ringway::bootstrap::launcher::{self, Placement};
use ringway::bootstrap::rendezvous::{decode_failure, decode_join, decode_welcome};
use ringway::bootstrap::{PeerInfo, auth, pmi};
use ringway::config::{Config, Environment, Secret};
use ringway::control::{Board, Journal, Message, neighbours};
use ringway::error::RankIdentity;
use ringway::recorder::Trace;
use ringway_fabric::check::{CheckOptions, check};
use ringway_fabric::diff::diff;
use ringway_fabric::draft::FinishOptions;
use ringway_fabric::export;
use ringway_fabric::plan::Prices;
use ringway_fabric::read::Reading;
use ringway_fabric::shape::Shape;
use ringway_k8s::fix::fix;
use ringway_k8s::model::{Reading as Manifests, Source};
use ringway_plan::algorithm::Algorithm;
use ringway_plan::calibration::Calibration;
use ringway_plan::json;
use ringway_plan::topology::channel::{CrossNic, channels};
use ringway_plan::topology::level::Levels;
use ringway_plan::topology::matrix::{self, Matrix};
use ringway_plan::topology::nearest::affinities;
use ringway_plan::topology::path::Paths;
use ringway_plan::topology::{Topology, picture, warning, xml};

pub use ringway::fuzzing::{
    control_connection, data_connection, net_message, rdma_words, unique_id,
};

/// A target: takes arbitrary bytes.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: [(&str, Target); 17] = [
    ("config", config),
    ("control_connection", control_connection),
    ("control_message", control_message),
    ("data_connection", data_connection),
    ("exposition_text", exposition_text),
    ("fabric_dump", fabric_dump),
    ("handshake", handshake),
    ("introduction", introduction),
    ("launcher", launcher),
    ("manifests", manifests),
    ("net_message", net_message),
    ("plan_json", plan_json),
    ("rdma_words", rdma_words),
    ("topo_xml", topo_xml),
    ("trace_json", trace_json),
    ("tuning_json", tuning_json),
    ("unique_id", unique_id),
];

/// What a job tells the exporter: refused, or the same when it is written and read again.
pub fn exposition_text(bytes: &[u8]) {
    use ringway::exposition::{Label, Page, families};
    let Ok(Ok(read)) = std::str::from_utf8(bytes).map(families) else { return };
    let mut page = Page::default();
    for family in &read {
        page.metric(&family.name, &family.kind, &family.help);
        for sample in &family.samples {
            let labels: Vec<Label<'_>> = sample
                .labels
                .iter()
                .map(|(name, value)| (name.as_str(), value as &dyn std::fmt::Display))
                .collect();
            page.sample(&sample.name, &labels, &sample.value);
        }
    }
    assert_eq!(families(&page.into_text()), Ok(read));
}

/// A trace: refused, or the same when it is written and read again.
pub fn trace_json(bytes: &[u8]) {
    if let Ok(read) =
        std::str::from_utf8(bytes).map_err(drop).and_then(|t| Trace::parse(t).map_err(drop))
    {
        assert!(read.rank < read.size);
        assert_eq!(Trace::parse(&read.text()), Ok(read));
    }
}

/// A tuning file: refused, or numbers that a choice can be made by.
pub fn tuning_json(bytes: &[u8]) {
    if let Ok(read) = Calibration::from_json(bytes) {
        assert_eq!(Calibration::from_json(read.to_json().as_bytes()).as_ref(), Ok(&read));
        let hosts = vec![0; read.topology.ranks.min(64) as usize];
        for series in &read.measured {
            let corrections = read.corrections(series.collective, &hosts, bytes.len() as u64);
            assert!(corrections.ratio(series.algorithm, &Algorithm::ALL).is_finite());
        }
        assert!(!read.topology.file_name().contains('/'));
    }
}

/// The first bytes on any connection: what a stranger can send.
pub fn handshake(bytes: &[u8]) {
    if let Ok((hello, nonce)) = auth::decode_hello(bytes) {
        assert_eq!(auth::encode_hello(&hello, nonce).as_slice(), bytes);
    }
}

/// What ranks and the root say of themselves and of failures: JSON inside authenticated frames.
pub fn introduction(bytes: &[u8]) {
    if let Ok(peer) = PeerInfo::decode(bytes) {
        let _ = peer.identity().to_string();
        assert!(peer.same_network(&peer));
    }
    let _ = decode_join(bytes);
    let _ = decode_welcome(bytes);
    let _ = decode_failure(bytes).to_string();
}

/// What a launcher leaves in the environment and says through its PMI server.
pub fn launcher(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(hosts) = launcher::expand_hosts(&text) {
        assert_eq!(hosts.first(), launcher::first_host(&text).as_ref());
    }
    if let Some(host) = launcher::first_host(&text) {
        assert!(!host.is_empty());
    }
    assert!(launcher::uri_hosts(&text).iter().all(|host| !host.is_empty()));
    for key in ["cmd", "kvsname", "value", "rc"] {
        let _ = pmi::value(&text, key);
    }
    if let Ok(place) = Placement::from_environment(&variables(&text)) {
        assert!(place.rank < place.size);
        let _ = (place.root.to_string(), format!("{place:?}"));
    }
}

/// Control messages, one a line, given to a board of four ranks as its neighbours' words.
pub fn control_message(bytes: &[u8]) {
    let identity = |rank| RankIdentity { rank, host: "host".to_owned(), pid: 1000 + rank };
    let identities: Arc<[RankIdentity]> = (0..4).map(identity).collect();
    let near = neighbours(0, 4);
    let mut board = Board::new(0, identities, &near, Arc::new(Journal::new()));
    let mut now = 1;
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let Ok(message) = Message::decode(line) else { continue };
        let again = message.encode().expect("what was short enough to read can be written");
        assert_eq!(Message::decode(&again).ok().as_ref(), Some(&message));
        let known = board.verdict().cloned();
        board.receive(near[line.len() % near.len()], message, now);
        now += line.len() as u64;
        board.tick(now);
        let _ = board.take_outgoing();
        assert!(known.is_none() || board.verdict() == known.as_ref(), "the first error wins");
    }
    for _ in 0..1000 {
        let Some(next) = board.next_tick(now) else { break };
        now = next.max(now);
        board.tick(now);
    }
    assert!(!board.is_raised() || board.verdict().is_some(), "raised, and never agreed");
    // Whatever was said before, who asks is answered.
    let inquiry = board.ask(now);
    assert!(board.next_look().is_some());
    board.look(|rank| Some(u64::from(rank)), u64::MAX);
    assert!(board.next_look().is_none() && board.answer_due(inquiry).is_some());
    assert_eq!(board.answer(inquiry).map(|standing| standing.seats.len()), Some(4));
}

/// Settings: the first line on as variables, what follows an empty line as a configuration file.
pub fn config(bytes: &[u8]) {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    let root = ROOT.get_or_init(|| {
        let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target");
        let root = target.join(format!("root-{}", std::process::id()));
        std::fs::create_dir_all(root.join("etc")).expect("the build folder takes files");
        root
    });
    let cut = bytes.windows(2).position(|two| two == b"\n\n").unwrap_or(bytes.len());
    let file = root.join("etc/nccl.conf");
    std::fs::write(file, bytes.get(cut + 2..).unwrap_or(&[])).expect("the file can be written");
    let text = String::from_utf8_lossy(&bytes[..cut]);
    let config = Config::load(&Environment::new(variables(&text)).with_root(root));
    let shown = config.settings();
    // What is shown of a secret is the same for every secret.
    if config.secret.is_some() {
        let another = Some(Secret::new("quite another secret"));
        assert_eq!(format!("{:?}", config.secret), format!("{another:?}"), "a secret is shown");
        let of_secret = shown.iter().find(|one| one.name == "RINGWAY_SECRET");
        assert!(of_secret.is_some_and(|one| one.value == "(redacted)"), "a secret is shown");
    }
    assert!((1..=64).contains(&config.sockets_per_peer()));
    let _ = config.check();
    for warning in &config.warnings {
        assert!(!warning.text.is_empty());
    }
}

/// A plan as text: what is read and proved is written and read again alike.
pub fn plan_json(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(plan) = json::read_verified(text) {
        let again = json::from_json(&json::to_json(&plan)).expect("what was written can be read");
        assert_eq!(again, plan);
    }
}

/// A topology file, or the saved text of `nvidia-smi topo -m`: refused with a place in it, or read
/// without loss and worked out to the end.
pub fn topo_xml(bytes: &[u8]) {
    if let Ok(matrix) = matrix::read(&String::from_utf8_lossy(bytes)) {
        assert!(matrix.rows.iter().all(|row| row.cells.len() == matrix.rows.len()));
        let _ = (matrix.table(), matrix.legend());
    }
    let document = match xml::read(bytes) {
        Ok(document) => document,
        Err(error) => {
            assert!(error.line >= 1 && error.column >= 1 && !error.what.is_empty());
            return;
        }
    };
    assert_eq!(xml::read(xml::write(&document).as_bytes()).as_ref(), Ok(&document));
    let Ok(topology) = Topology::from_document(&document) else { return };
    let levels = Levels::default();
    let paths = Paths::as_used(&topology, &levels);
    let chosen = affinities(&topology, &paths, &levels);
    assert_eq!(chosen.len(), topology.gpus().len());
    for ring in channels(&topology, &paths, CrossNic::default()) {
        assert_eq!(ring.gpus.len(), chosen.len());
    }
    let _ = (Matrix::of(&topology).table(), warning::warnings(&topology, &chosen));
    assert!(picture::svg(&topology, &chosen, "fuzz").ends_with("</svg>\n"));
}

/// Manifests of Kubernetes, and their corrections. Any text can be looked at; what could be read can be read when it
/// was mended, and mending it again changes nothing.
pub fn manifests(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let source = Source { name: "f.yaml".to_owned(), text: text.to_owned() };
    let reading = Manifests::new(vec![source]);
    let read = |reading: &Manifests| {
        let stream = &reading.streams[0];
        (stream.errors.len(), stream.documents.len())
    };
    let (errors, documents) = read(&reading);
    let fixed = fix(reading, |_| Vec::new());
    let (errors_then, documents_then) = read(&fixed.reading);
    assert!(errors_then <= errors && documents_then >= documents, "a correction broke the text");
    if !fixed.is_cut_short {
        let again = fix(fixed.reading.clone(), |_| Vec::new());
        assert_eq!(again.reading.sources, fixed.reading.sources);
    }
}

/// A dump of a fabric: refused with a line, or a fabric that can be judged, drawn and written again.
pub fn fabric_dump(bytes: &[u8]) {
    let _ = Prices::from_json(bytes);
    for partial in [false, true] {
        let mut reading = Reading::new();
        if let Err(error) = reading.read("host.eth0.txt", bytes) {
            assert!(error.line >= 1 && !error.what.is_empty());
            return;
        }
        let fabric = match reading.finish(FinishOptions { partial, rate: None }) {
            Ok(fabric) => fabric,
            Err(error) => {
                assert!(error.line >= 1 && !error.what.is_empty());
                continue;
            }
        };
        for (index, link) in fabric.links.iter().enumerate() {
            for end in link.ends {
                assert_eq!(fabric.nodes[end.node].ports[end.port].link, Some(index));
            }
        }
        let shape = Shape::of(&fabric);
        assert!(shape.bisection.gbps >= 0.0 && shape.bisection.gbps <= shape.bisection.wanted_gbps);
        let options = CheckOptions {
            before: Some(&fabric),
            interval_s: Some(1.0),
            oversubscription: Some(1.0),
        };
        let _ = (check(&fabric, options), check(&fabric, CheckOptions::default()));
        assert_eq!(diff(&fabric, &fabric), []);
        assert!(export::picture::svg(&fabric, "fuzz").ends_with("</svg>\n"));
        let _ =
            (export::slurm::topology_conf(&fabric), export::kubernetes::labels(&fabric, "fuzz"));
        let _ = (export::dot::graph(&fabric), export::json::document(&fabric));
        let mut again = Reading::new();
        if again.read("again", export::ibnetdiscover::write(&fabric).as_bytes()).is_ok()
            && let Ok(again) = again.finish(FinishOptions { partial: true, rate: None })
        {
            assert_eq!(again.links.len(), fabric.links.len());
        }
    }
}

/// `NAME=value` lines.
fn variables(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that are made, not kept: two small plans.
    #[test]
    #[ignore = "writes seeds/plan_json"]
    fn write_plan_seeds() {
        use ringway_plan::algorithm::Algorithm;
        use ringway_plan::build::Tuning;
        use ringway_plan::problem::Problem;
        use ringway_plan::types::{Collective, DataType};
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds/plan_json");
        std::fs::create_dir_all(&folder).unwrap();
        for (algorithm, hosts) in [(Algorithm::Ring, [0, 1]), (Algorithm::OneShot, [0, 0])] {
            let problem = Problem::new(Collective::AllReduce, 2, 3, DataType::F32);
            let plan = algorithm.plan(&problem, &hosts, Tuning::default());
            std::fs::write(folder.join(algorithm.name()), json::to_json(&plan)).unwrap();
        }
    }

    /// A generator whose numbers stay the same.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
        }
    }

    #[test]
    fn every_target_survives_its_seeds_and_damaged_copies() {
        for (name, target) in TARGETS {
            target(&[]);
            let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
            let mut seeds: Vec<PathBuf> =
                std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            seeds.sort();
            assert!(!seeds.is_empty(), "{name} has no seeds");
            for seed in seeds {
                let bytes = std::fs::read(&seed).unwrap();
                target(&bytes);
                let mut random = Random(bytes.len() as u64);
                for _ in 0..200 {
                    let mut damaged = bytes.clone();
                    for _ in 0..=random.below(4) {
                        let at = random.below(damaged.len());
                        if let Some(byte) = damaged.get_mut(at) {
                            *byte = u8::try_from(random.below(256)).unwrap();
                        }
                    }
                    damaged.truncate(bytes.len() - random.below(bytes.len() / 4));
                    target(&damaged);
                }
            }
        }
    }
}

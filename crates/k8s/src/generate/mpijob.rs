//! An MPIJob: a launcher that runs mpirun, and workers that wait for it.

use super::{Choices, Net, pod};
use crate::write::{Entry, Value, item};

pub(super) fn documents(choices: &Choices) -> Vec<Value> {
    let ranks = choices.nodes * choices.gpus;
    let mut words: Vec<Entry> = Vec::new();
    let mut word =
        |text: &str| words.push(Entry { comment: None, key: String::new(), value: text.into() });
    for text in ["mpirun", "--allow-run-as-root", "-np", &ranks.to_string(), "--bind-to", "none"] {
        word(text);
    }
    let on_host = choices.net == Net::Host;
    if on_host {
        let why = "Port 22 is the host's own; Open MPI 4 reads this, 5 the variable below.";
        words.push(item(why, "--mca".into()));
        for text in ["plm_rsh_args", "-p 2222"] {
            words.push(Entry { comment: None, key: String::new(), value: text.into() });
        }
    }
    for one in &choices.variables {
        words.push(item(&one.why, "-x".into()));
        words.push(Entry {
            comment: None,
            key: String::new(),
            value: format!("{}={}", one.name, one.value).into(),
        });
    }
    let program: Vec<String> = match choices.command.is_empty() {
        false => choices.command.clone(),
        true => {
            ["ringway", "perf", "all_reduce", "--memory", "cuda", "-b", "8", "-e", "4G", "-f", "2"]
                .map(str::to_owned)
                .to_vec()
        }
    };
    words.extend(program.iter().map(|text| Entry {
        comment: None,
        key: String::new(),
        value: text.as_str().into(),
    }));
    let launcher = Value::map()
        .with("name", "launcher")
        .with("image", choices.image.as_str())
        .with("command", Value::List(words))
        .maybe(
            "env",
            on_host.then(|| Value::list([pod::plain("PRTE_MCA_plm_ssh_args", "-p 2222")])),
        );
    let mut spec = pod::around(choices, Value::map());
    spec = spec.with("restartPolicy", "OnFailure").with("containers", Value::list([launcher]));
    let mut shown = choices.clone();
    // mpirun hands the variables on; those of storage are the container's.
    shown.variables.clear();
    let variables = pod::variables(&shown);
    let mut sshd = vec!["/usr/sbin/sshd", "-De"];
    if on_host {
        sshd.extend(["-p", "2222"]);
    }
    let worker =
        pod::template(choices, variables, Value::list(sshd.into_iter().map(Value::from)), "");
    let replicas = Value::map()
        .with(
            "Launcher",
            Value::map().with("replicas", 1_u64).with("template", Value::map().with("spec", spec)),
        )
        .with("Worker", Value::map().with("replicas", choices.nodes).with("template", worker));
    let spec = Value::map()
        .because("One slot for each GPU of a worker.", "slotsPerWorker", choices.gpus)
        .with("runPolicy", Value::map().with("cleanPodPolicy", "Running"))
        .with("mpiReplicaSpecs", replicas);
    vec![
        Value::map()
            .with("apiVersion", "kubeflow.org/v2beta1")
            .with("kind", "MPIJob")
            .with("metadata", choices.metadata(&choices.name).with("labels", pod::labels(choices)))
            .with("spec", spec),
    ]
}

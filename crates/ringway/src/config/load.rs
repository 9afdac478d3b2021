//! From text to a [`Config`], with everything there is to say about it.

use std::collections::BTreeMap;
use std::path::Path;

use super::file::Environment;
use super::parse::{self, Remark, format_bytes};
use super::table::{self, Entry, TABLE};
use super::{Config, Note, SOCKETS_PER_PEER_MAX, Source, Warning, names};
use crate::error::{Error, Result};

impl Config {
    /// The settings of this process.
    #[must_use]
    pub fn from_env() -> Self {
        Self::load(&Environment::from_process())
    }

    /// The settings of an environment.
    #[must_use]
    pub fn load(environment: &Environment) -> Self {
        let mut config = Self {
            files: environment.files().clone(),
            home: environment.home().map(Path::to_path_buf),
            ..Self::default()
        };

        // An empty variable hides a file's line, as it does in NCCL.
        let mut given: BTreeMap<String, (String, Source)> = BTreeMap::new();
        for (name, value) in environment.variables() {
            if names::is_ours(name) || table::find(name).is_some() {
                given.insert(name.to_owned(), (value.to_owned(), Source::Environment));
            }
        }
        for line in environment.conf_lines(&mut config.warnings) {
            let source = Source::File { path: line.path, line: line.line };
            given.entry(line.name).or_insert((line.value, source));
        }
        for entry in TABLE {
            if let Some((value, source)) = given.remove(entry.name) {
                config.take(entry, value.trim(), source);
            }
        }
        for (name, (_, source)) in given {
            config.remark_on_name(&name, &source);
        }
        config.settle();
        config
    }

    /// Sets one setting, by the same parser. On an error nothing changes.
    ///
    /// # Errors
    /// The name or the value is not understood; the text is the one a warning would have.
    pub fn set(&mut self, name: &str, value: &str, source: Source) -> Result<()> {
        let mut next = self.clone();
        let Some(entry) = table::find(name) else {
            next.remark_on_name(name, &source);
            if next.warnings.len() > self.warnings.len() || next.notes == self.notes {
                return Err(Error::argument(unknown_name(name)));
            }
            *self = next;
            return Ok(());
        };
        let value = value.trim();
        let wrong = |why: &str| Err(Error::argument(format!("{}: {why}", entry.label(value))));
        if value.is_empty() {
            return wrong("no value");
        }
        match next.assign(entry, value) {
            Err(problem) => return wrong(&problem.text),
            Ok(remarks) => {
                for remark in remarks {
                    match remark {
                        Remark::Warning(text) => return wrong(&text),
                        Remark::Note(text) => next.note(entry, value, &text),
                    }
                }
            }
        }
        next.sources.insert(entry.name, source);
        // The secret that was set last is the secret, whichever way it came.
        if entry.name == "RINGWAY_SECRET" {
            next.secret_file = None;
            next.sources.remove("RINGWAY_SECRET_FILE");
        } else if entry.name == "RINGWAY_SECRET_FILE" {
            next.sources.remove("RINGWAY_SECRET");
        }
        next.faults.retain(|fault| !fault.starts_with(entry.name));
        next.settle();
        *self = next;
        Ok(())
    }

    /// Takes a value from outside, however wrong it is.
    fn take(&mut self, entry: &'static Entry, value: &str, source: Source) {
        if value.is_empty() {
            if entry.vital {
                self.faults.push(format!("{} is set but empty", entry.name));
            }
            return;
        }
        let mut complaints = Vec::new();
        let taken = match self.assign(entry, value) {
            Ok(remarks) => {
                for remark in remarks {
                    match remark {
                        Remark::Note(text) => self.note(entry, value, &text),
                        Remark::Warning(text) => complaints.push(text),
                    }
                }
                true
            }
            Err(problem) => {
                complaints.push(problem.text);
                problem.clamp.is_some_and(|nearest| self.assign(entry, &nearest).is_ok())
            }
        };
        if taken {
            self.sources.insert(entry.name, source);
        }
        for complaint in complaints {
            let text = format!("{}: {complaint}", entry.label(value));
            if entry.vital {
                self.faults.push(text.clone());
            }
            let text = format!("{text}; using {}", (entry.show)(self));
            self.warnings.push(Warning { name: entry.name.to_owned(), text });
        }
    }

    fn assign(&mut self, entry: &Entry, value: &str) -> table::Outcome {
        if value.contains(char::REPLACEMENT_CHARACTER) {
            return Err(parse::Problem::new("not valid UTF-8"));
        }
        (entry.assign)(self, value)
    }

    fn note(&mut self, entry: &Entry, value: &str, text: &str) {
        let text = format!("{}: {text}", entry.label(value));
        self.notes.push(Note { name: entry.name.to_owned(), text });
    }

    /// What there is to say about a name that is not in the table.
    fn remark_on_name(&mut self, name: &str, source: &Source) {
        let shown = parse::shown(name);
        let version = env!("CARGO_PKG_VERSION");
        if names::has_no_effect(name) {
            let text = format!("{shown} is set but has no effect in ringway {version}");
            self.notes.push(Note { name: shown, text });
        } else if names::is_ours(name) {
            let mut text = unknown_name(name);
            if let Source::File { .. } = source {
                text = format!("{source}: {text}");
            }
            self.warnings.push(Warning { name: shown, text });
        } else if let Source::File { .. } = source {
            let text = format!("{source}: {shown} has no effect: ringway sets no variables itself");
            self.notes.push(Note { name: shown, text });
        }
    }

    /// Says what no single setting shows.
    fn settle(&mut self) {
        let mut texts: Vec<(&str, String)> = Vec::new();
        let sockets = self.sockets_asked_for();
        if sockets > SOCKETS_PER_PEER_MAX {
            let text = format!(
                "NCCL_SOCKET_NTHREADS × NCCL_NSOCKS_PERTHREAD is {sockets}, more than \
                 {SOCKETS_PER_PEER_MAX} connections per peer; using {SOCKETS_PER_PEER_MAX}"
            );
            texts.push(("NCCL_NSOCKS_PERTHREAD", text));
        }
        if self.scratch_bytes() < self.buffer_bytes && self.is_set("NCCL_BUFFSIZE") {
            let text = format!(
                "NCCL_BUFFSIZE={} is more than RINGWAY_MAX_BYTES; using {}",
                format_bytes(self.buffer_bytes),
                format_bytes(self.scratch_bytes())
            );
            texts.push(("NCCL_BUFFSIZE", text));
        }
        if self.is_set("RINGWAY_SECRET") && self.is_set("RINGWAY_SECRET_FILE") {
            let text = "RINGWAY_SECRET and RINGWAY_SECRET_FILE are both set; using RINGWAY_SECRET";
            texts.push(("RINGWAY_SECRET", text.to_owned()));
        }
        for (name, text) in texts {
            let warning = Warning { name: name.to_owned(), text };
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

impl Entry {
    /// `NAME=value` for messages, or the name alone where the value is a secret.
    fn label(&self, value: &str) -> String {
        if self.secret {
            self.name.to_owned()
        } else {
            format!("{}={}", self.name, parse::shown(value))
        }
    }
}

fn unknown_name(name: &str) -> String {
    let known: Vec<&'static str> = TABLE.iter().map(|entry| entry.name).collect();
    let hint = names::nearest_name(name, &known)
        .map_or_else(String::new, |near| format!("; did you mean {near}?"));
    format!("{}: unknown{hint}", parse::shown(name))
}

//! Starting the agent on a host, and what went wrong when it does not answer.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, bail};

use crate::run::args::RunArgs;
use crate::run::hosts::HERE;
use crate::this;

/// Never asks anything, gives up on a host that does not answer, and notices one that is gone.
const OPTIONS: [&str; 8] = [
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=20",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
];

/// The hidden subcommand.
pub(crate) const AGENT: &str = "host-agent";

/// The command that is the agent on `host`, with pipes.
pub(super) fn command(args: &RunArgs, host: &str) -> anyhow::Result<Command> {
    let (program, first) = this::again()?;
    let mut command = if host == HERE {
        let mut command = Command::new(program);
        command.args(first).arg(AGENT);
        command
    } else {
        let mut words = args.ssh.split_whitespace();
        let Some(ssh) = words.next() else { bail!("--ssh: no command; write --ssh ssh") };
        let mut command = Command::new(ssh);
        command.args(words).args(OPTIONS).args(["-T", "--"]).arg(host);
        command.arg(remote_words(args.remote_path.as_ref(), &program, first)?);
        command
    };
    // A terminal's Ctrl-C is the launcher's alone: the agents are told by it, and say when they are done.
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// The words for the host's shell, whichever that is.
fn remote_words(
    chosen: Option<&OsString>,
    program: &OsString,
    first: &[OsString],
) -> anyhow::Result<String> {
    let words = match chosen {
        Some(path) => vec![path],
        None => std::iter::once(program).chain(first).collect(),
    };
    let mut text = "exec".to_owned();
    for word in words {
        let word = word
            .to_str()
            .context("the program's path is not UTF-8; name another: --remote-path")?;
        text = format!("{text} {}", quoted(word));
    }
    Ok(format!("{text} {AGENT}"))
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Why a host's agent did not answer, and what to do: from how ssh ended and what it said.
pub(super) fn explain(host: &str, path: &str, status: Option<ExitStatus>, said: &str) -> String {
    let code = status.and_then(|status| status.code());
    let has = |text: &str| said.contains(text);
    let (cause, fix) = if host == HERE {
        ("its agent did not start".to_owned(), "see what it said".to_owned())
    } else if code == Some(255) && has("Could not resolve hostname") {
        (
            "no host has that name".to_owned(),
            "check the spelling, /etc/hosts, DNS or ~/.ssh/config".to_owned(),
        )
    } else if has("Host key verification failed") {
        (
            "its host key is not known here, or another than before".to_owned(),
            format!("connect once by hand (ssh {host}) and compare the key"),
        )
    } else if has("Permission denied") {
        (
            "it does not accept your key".to_owned(),
            format!(
                "ssh {host} must work without a password: ssh-copy-id {host}, or start ssh-agent"
            ),
        )
    } else if has("Connection refused") {
        (
            "no ssh server listens there".to_owned(),
            "start sshd on it, or name its port in ~/.ssh/config".to_owned(),
        )
    } else if has("timed out") || has("No route to host") || has("Network is unreachable") {
        ("it does not answer".to_owned(), "check that it is up and that port 22 is open".to_owned())
    } else if code == Some(127) || (has("not found") && has(AGENT)) || has("No such file") {
        (
            format!("there is no {path} on it"),
            "install ringway there at the same path, or name it: --remote-path".to_owned(),
        )
    } else if code == Some(126) {
        (
            format!("{path} cannot be run there"),
            "check its permissions and the machine's kind, or name another: --remote-path"
                .to_owned(),
        )
    } else if has(AGENT) {
        (
            format!("{path} there is another version of ringway"),
            format!("install {} there, or name it: --remote-path", super::wire::VERSION),
        )
    } else {
        let how = status.map_or_else(|| "no end".to_owned(), |status| status.to_string());
        (format!("its agent did not answer ({how})"), format!("try: ssh {host} {path} --version"))
    };
    let said = last_lines(said);
    let said = if said.is_empty() { said } else { format!(" ({said})") };
    format!("host {host}: {cause}{said}; {fix}")
}

/// The last lines of what was said, in one.
pub(super) fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let first = lines.len().saturating_sub(3);
    lines[first..].join("; ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        let words = remote_words(None, &"/opt/my py".into(), &["-m".into()]).unwrap();
        assert_eq!(words, "exec '/opt/my py' '-m' host-agent");
        let words = remote_words(Some(&"/x/ringway".into()), &"/y".into(), &["-m".into()]).unwrap();
        assert_eq!(words, "exec '/x/ringway' host-agent");
    }

    #[test]
    fn every_failure_names_the_host_the_cause_and_the_fix() {
        let table = [
            (
                255,
                "ssh: Could not resolve hostname b: Name or service not known",
                "no host has that name",
                "spelling",
            ),
            (255, "ssh: connect to host b port 22: Connection refused", "no ssh server", "sshd"),
            (
                255,
                "ssh: connect to host b port 22: Connection timed out",
                "does not answer",
                "port 22",
            ),
            (
                255,
                "u@b: Permission denied (publickey).",
                "does not accept your key",
                "ssh-copy-id b",
            ),
            (255, "Host key verification failed.", "host key", "by hand (ssh b)"),
            (
                127,
                "bash: line 1: exec: /x/ringway: not found",
                "there is no /x/ringway",
                "--remote-path",
            ),
            (126, "bash: /x/ringway: Permission of what", "cannot be run", "--remote-path"),
            (2, "error: unrecognized subcommand 'host-agent'", "another version", "install"),
            (1, "strange", "did not answer", "ssh b /x/ringway --version"),
        ];
        for (code, said, cause, fix) in table {
            let status = Some(ExitStatus::from_raw(code << 8));
            let text = explain("b", "/x/ringway", status, said);
            assert!(text.starts_with("host b: "), "{text}");
            assert!(
                text.contains(cause) && text.contains(fix) && text.contains(said),
                "{said}: {text}"
            );
        }
    }
}

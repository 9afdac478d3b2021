//! `ringway run`.

use std::time::Duration;

use crate::process::{Folder, finish, marked, ringway, signal, start, wait_for};

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_rank_speaks_behind_its_number() {
    let done = finish(&mut ringway(&["run", "-n", "3", "--", "sh", "-c", "echo hi $RINGWAY_RANK"]));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(sorted(&done.stdout), ["[0] hi 0", "[1] hi 1", "[2] hi 2"]);
    assert_eq!(done.stderr, "");
}

#[test]
fn streams_stay_apart_and_prefixes_can_go() {
    let script = "echo out; echo err >&2";
    let done = finish(&mut ringway(&["run", "-n", "2", "sh", "-c", script]));
    assert_eq!(sorted(&done.stdout), ["[0] out", "[1] out"]);
    assert_eq!(sorted(&done.stderr), ["[0] err", "[1] err"]);
    let done = finish(&mut ringway(&["run", "-n", "2", "--no-prefix", "--", "sh", "-c", script]));
    assert_eq!(sorted(&done.stdout), ["out", "out"]);
}

#[test]
fn colour_comes_when_asked_for() {
    let mut command = ringway(&["run", "-n", "1", "--", "echo", "hi"]);
    let done = finish(command.env("RINGWAY_COLOR", "always"));
    assert!(done.stdout.contains("\x1b["), "{done:?}");
}

#[test]
fn ranks_get_their_variables() {
    let script = "echo $RINGWAY_SIZE $RINGWAY_LOCAL_RANK $RINGWAY_LOCAL_SIZE $EXTRA; \
                  echo ${#RINGWAY_SECRET} ${RINGWAY_ROOT%%:*}";
    let done =
        finish(&mut ringway(&["run", "-n", "1", "--env", "EXTRA=x=y", "--", "sh", "-c", script]));
    assert_eq!(done.stdout, "[0] 1 0 1 x=y\n[0] 64 127.0.0.1\n");
}

#[test]
fn the_first_death_ends_the_others_and_is_named() {
    let script = "test $RINGWAY_RANK = 1 && exit 3; exec sleep 300";
    let done = finish(&mut ringway(&["run", "-n", "3", "--", "sh", "-c", script]));
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    assert!(done.stderr.contains("rank 1 (pid "), "{}", done.stderr);
    assert!(done.stderr.contains("exited with code 3 after "), "{}", done.stderr);
    assert!(done.took < Duration::from_secs(10), "{:?}", done.took);
}

#[test]
fn a_signal_is_named_and_quiet_is_quiet() {
    let script = "test $RINGWAY_RANK = 1 && kill -9 $$; exec sleep 300";
    let done = finish(&mut ringway(&["run", "-n", "2", "--", "sh", "-c", script]));
    assert_eq!(done.status.code(), Some(137), "{done:?}");
    assert!(done.stderr.contains("was ended by SIGKILL (signal 9)"), "{}", done.stderr);
    let args = ["run", "-n", "2", "--quiet", "--grace", "0", "--", "sh", "-c", script];
    let done = finish(&mut ringway(&args));
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(137), ""));
}

#[test]
fn the_others_may_say_what_they_saw() {
    let script = "test $RINGWAY_RANK = 1 && exit 3; sleep 0.2; echo rank 1 is gone";
    let done = finish(&mut ringway(&["run", "-n", "2", "--", "sh", "-c", script]));
    assert_eq!(done.stdout, "[0] rank 1 is gone\n");
    assert_eq!(done.status.code(), Some(3));
}

#[test]
fn what_ignores_sigterm_is_killed_and_grandchildren_go_too() {
    let mark = format!("MARK=strays-{}", std::process::id());
    let script = "trap '' TERM; sleep 300 & test $RINGWAY_RANK = 1 && exit 4; wait; sleep 300";
    let args = ["run", "-n", "2", "--grace", "0", "--env", &mark, "--", "sh", "-c", script];
    let done = finish(&mut ringway(&args));
    assert_eq!(done.status.code(), Some(4), "{done:?}");
    assert_eq!(marked(&mark), Vec::<u32>::new());
}

#[test]
fn ctrl_c_leaves_no_process() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let mark = format!("MARK=interrupt-{name}-{}", std::process::id());
        let args =
            ["run", "-n", "3", "--env", &mark, "--", "sh", "-c", "echo up; sleep 300; sleep 300"];
        let running = start(&mut ringway(&args));
        // Three shells and their three sleeps.
        wait_for("the ranks to start", || (marked(&mark).len() == 6).then_some(()));
        signal(name, running.pid());
        let done = running.finish();
        assert_eq!(done.status.code(), Some(code), "{done:?}");
        assert_eq!(marked(&mark), Vec::<u32>::new());
        assert!(done.stderr.contains(&format!("SIG{name}")), "{}", done.stderr);
        assert!(!done.stderr.contains("rank 0 (pid"), "no rank is at fault: {}", done.stderr);
    }
}

#[test]
fn the_launchers_death_ends_the_ranks() {
    let mark = format!("MARK=orphan-{}", std::process::id());
    let args = ["run", "-n", "2", "--env", &mark, "--", "sleep", "300"];
    let running = start(&mut ringway(&args));
    wait_for("the ranks to start", || (marked(&mark).len() == 2).then_some(()));
    signal("KILL", running.pid());
    wait_for("the ranks to end", || marked(&mark).is_empty().then_some(()));
    assert_eq!(running.finish().status.code(), None);
}

#[test]
fn wrong_arguments_say_the_fix() {
    let folder = Folder::new("run-args");
    std::fs::write(folder.0.join("script"), "echo").unwrap();
    let script = folder.0.join("script").display().to_string();
    let table: [(&[&str], &str); 6] = [
        (&["run", "-n", "0", "true"], "at least 1 rank"),
        (&["run", "-n", "99999", "true"], "at most 1024"),
        (&["run", "no-such-program"], "not found in PATH"),
        (&["run", &script], "chmod +x"),
        (&["run", "--env", "X", "true"], "NAME=VALUE"),
        (&["run"], "PROGRAM"),
    ];
    for (args, fix) in table {
        let done = finish(&mut ringway(args));
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        assert!(done.stderr.contains(fix), "{args:?}: {}", done.stderr);
    }
}

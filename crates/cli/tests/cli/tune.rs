//! `ringway tune`, `perf --algo all` and what `explain` makes of them.

use crate::process::{Folder, finish, ringway};

/// The program with a cache folder of the test's own.
fn in_cache(folder: &Folder, args: &[&str]) -> std::process::Command {
    let mut command = ringway(args);
    command.env("RINGWAY_TUNING", "auto").env("RINGWAY_CACHE_DIR", &folder.0);
    command
}

/// The one file in the cache folder.
fn tuning_file(folder: &Folder) -> std::path::PathBuf {
    let inside = folder.0.join("ringway");
    let names: Vec<_> = std::fs::read_dir(&inside).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

#[test]
fn a_machine_is_measured_once_and_explained_by_it() {
    let folder = Folder::new("tune");
    let nothing = finish(&mut in_cache(&folder, &["tune", "--show", "--ranks", "2"]));
    assert_eq!(nothing.status.code(), Some(1));
    assert!(nothing.stdout.contains("run ringway tune"), "{}", nothing.stdout);

    let done = finish(&mut in_cache(&folder, &["tune", "--quick", "--ranks", "2"]));
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{done:?}");
    let file = tuning_file(&folder);
    assert!(done.stdout.contains(&format!("wrote {}", file.display())), "{}", done.stdout);
    assert!(done.stdout.contains("shared memory: ") && done.stdout.contains("all_reduce"));
    let shown = finish(&mut in_cache(&folder, &["tune", "--show", "--ranks", "2"]));
    assert!(shown.stdout.contains("a core: folds"), "{}", shown.stdout);

    let explain = ["explain", "all_reduce", "--ranks", "2", "--bytes", "32K"];
    let done = finish(&mut in_cache(&folder, &explain));
    assert!(done.stdout.contains(&format!("numbers: {}", file.display())), "{}", done.stdout);
    let candidate = |line: &&str| line.starts_with("one_shot");
    let row = done.stdout.lines().find(candidate).unwrap().split_whitespace();
    // name, predicted, unit, measured, unit
    assert!(row.clone().nth(3).unwrap().parse::<f64>().is_ok(), "{}", done.stdout);
    let done = finish(&mut ringway(&explain));
    assert!(done.stdout.contains("numbers: defaults"), "{}", done.stdout);
}

#[test]
fn every_algorithm_is_timed_beside_the_others_and_learned() {
    let folder = Folder::new("learn");
    let perf =
        ["perf", "all_reduce", "--ranks", "2", "--algo", "all", "-b", "1K", "-e", "4K", "--learn"];
    let done = finish(&mut in_cache(&folder, &perf));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let rows: Vec<&str> = done.stdout.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows.len(), 3, "{}", done.stdout);
    assert!(rows.iter().all(|row| row.matches('*').count() == 1 && row.ends_with('%')), "{rows:?}");
    assert!(done.stdout.contains("defaults (no tuning file"), "{}", done.stdout);
    assert!(done.stdout.contains("of 3 sizes"), "{}", done.stdout);
    let file = tuning_file(&folder);
    assert!(done.stdout.contains(&format!("learned: wrote {}", file.display())));

    let again = finish(&mut in_cache(&folder, &perf));
    assert!(again.stdout.contains("from the tuning file"), "{}", again.stdout);
    let explain = ["explain", "all_reduce", "--ranks", "2", "--bytes", "3K"];
    let done = finish(&mut in_cache(&folder, &explain));
    assert!(done.stdout.contains(" ~"), "{}", done.stdout);
}

#[test]
fn a_broken_file_is_a_warning_that_names_it() {
    let folder = Folder::new("broken");
    let perf = ["perf", "all_reduce", "--ranks", "2", "-b", "64", "-e", "64"];
    let learn = [&perf[..], &["--algo", "all", "--learn"]].concat();
    assert_eq!(finish(&mut in_cache(&folder, &learn)).status.code(), Some(0));
    let file = tuning_file(&folder);
    let text = std::fs::read_to_string(&file).unwrap();
    let deep = "[".repeat(200_000);
    for text in ["", "{", "\0", &deep, &text.replace("\"links\"", "\"lynx\"")] {
        std::fs::write(&file, text).unwrap();
        let done = finish(&mut in_cache(&folder, &perf));
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        let named = done.stderr.contains(&*file.to_string_lossy());
        assert!(named && done.stderr.contains("run `ringway tune`"), "{}", done.stderr);
        assert_eq!(done.stderr.matches("cannot be used").count(), 1, "rank 0 alone says it");
        let explained = finish(&mut in_cache(&folder, &["explain", "all_reduce", "-n", "2"]));
        assert!(explained.stdout.contains("cannot be used"), "{}", explained.stdout);
    }
}

#[test]
fn wrong_arguments_say_the_fix() {
    let table: [(&[&str], &str); 4] = [
        (&["tune", "--ranks", "1"], "at least 2"),
        (&["tune", "--ranks", "5000"], "at most 1024"),
        (&["tune", "--show", "--quick"], "cannot be used with"),
        (&["perf", "all_reduce", "--learn"], "only with --algo all"),
    ];
    for (args, fix) in table {
        let done = finish(&mut ringway(args));
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert!(done.stderr.contains(fix), "{args:?}: {}", done.stderr);
    }
}

//! `ringway plan` and `ringway explain`.

use crate::process::{Folder, finish, ringway};

#[test]
fn a_few_plans_are_proved_and_counted() {
    let done = finish(&mut ringway(&["plan", "verify", "--ranks", "1..5", "--algo", "ring"]));
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    assert!(done.stdout.starts_with("proved "), "{}", done.stdout);
    assert!(done.stdout.contains(" plans (1 algorithm, 5 collectives) of 1 to 5 ranks: "));
    let done = finish(&mut ringway(&["plan", "verify", "-n", "3", "-a", "tree", "--quiet"]));
    assert_eq!((done.status.code(), done.stdout.as_str()), (Some(0), ""));
}

#[test]
fn a_plan_without_one_wait_is_refused_with_its_place() {
    let folder = std::env::temp_dir().join(format!("ringway-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("ring.json");
    let path = file.to_str().unwrap();
    let show = ["plan", "show", "all_reduce", "-n", "4", "-a", "ring", "-b", "4K", "--json", path];
    assert_eq!(finish(&mut ringway(&show)).status.code(), Some(0));
    let good = finish(&mut ringway(&["plan", "verify", "--file", path]));
    assert_eq!(good.status.code(), Some(0), "{}", good.stderr);
    assert!(good.stdout.contains("proved: ring all_reduce of 4 ranks"), "{}", good.stdout);

    let text = std::fs::read_to_string(&file).unwrap();
    let mut waits = 0;
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| {
            waits += usize::from(line.contains("{\"wait\""));
            waits != 2 || !line.contains("{\"wait\"")
        })
        .collect();
    std::fs::write(&file, kept.join("\n")).unwrap();
    let broken = finish(&mut ringway(&["plan", "verify", "--file", path]));
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(broken.status.code(), Some(1));
    assert!(broken.stdout.contains("refused: rank 0 lane 0 step "), "{}", broken.stdout);
}

#[test]
fn plans_of_gpu_memory_are_proved_shown_and_read_back() {
    let done = finish(&mut ringway(&["plan", "verify", "-n", "2..4", "--algo", "buffers"]));
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    assert!(
        done.stdout.contains("(1 algorithm, 9 collectives) of 2 to 4 ranks"),
        "{}",
        done.stdout
    );

    let folder = Folder::new("plan-mapped");
    let path = folder.0.join("plan.json").display().to_string();
    for (way, step) in [("buffers", "in@"), ("cards", "card")] {
        let show = ["plan", "show", "all_reduce", "-n", "4", "-b", "4K", "--lanes", "2", "-a", way];
        let done = finish(&mut ringway(&show));
        assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
        assert!(
            done.stdout.starts_with(&format!("{way} all_reduce of 1024 float")),
            "{}",
            done.stdout
        );
        assert!(done.stdout.contains(step), "{}", done.stdout);
        let json = [&show[..], &["--json", &path]].concat();
        assert_eq!(finish(&mut ringway(&json)).status.code(), Some(0));
        let read = finish(&mut ringway(&["plan", "verify", "--file", &path]));
        assert_eq!(read.status.code(), Some(0), "{read:?}");
    }
    let apart = ["plan", "show", "all_reduce", "-a", "buffers", "--hosts", "2"];
    let done = finish(&mut ringway(&apart));
    assert_eq!(done.status.code(), Some(2));
    assert!(done.stderr.contains("one host only"), "{}", done.stderr);
}

#[test]
fn plans_are_listed_and_drawn() {
    let done = finish(&mut ringway(&["plan", "show", "all_reduce", "-n", "4", "-b", "64"]));
    assert!(done.stdout.starts_with("one_shot all_reduce of 16 float (64 B), 4 ranks on 1 host"));
    let widest = done.stdout.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{widest:?}");
    let file = std::env::temp_dir().join(format!("ringway-{}.svg", std::process::id()));
    let path = file.to_str().unwrap();
    let show = ["plan", "show", "all_reduce", "-n", "8", "-a", "ring", "--svg", path];
    assert_eq!(finish(&mut ringway(&show)).stdout, format!("wrote {path}\n"));
    let drawn = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
}

#[test]
fn the_choice_is_explained() {
    for command in [&["explain"][..], &["plan", "explain"]] {
        let args = [command, &["all_reduce", "--bytes", "1M", "--ranks", "4"]].concat();
        let done = finish(&mut ringway(&args));
        assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
        assert!(done.stdout.contains("1 host, level run: two_shot"), "{}", done.stdout);
        assert_eq!(done.stdout.matches("chosen").count(), 1);
        assert!(
            done.stdout.contains(" slower") && done.stdout.contains("direct has no all_reduce")
        );
        let widest = done.stdout.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}");
    }
}

#[test]
fn wrong_arguments_say_what_to_do() {
    let cases: [(&[&str], &str); 7] = [
        (&["plan", "show", "all_reduce", "--ranks", "0"], "there must be at least 1"),
        (
            &["plan", "show", "all_reduce", "--algo", "foo"],
            "choose one of tiny, one_shot, two_shot",
        ),
        (
            &["plan", "show", "barrier", "--algo", "ring"],
            "ring has no barrier; choose one of tiny, bruck",
        ),
        (&["plan", "show", "broadcast", "--root", "9"], "root 9 is not one of 8 ranks"),
        (&["plan", "show", "all_reduce", "--hosts", "9"], "cannot be spread over 9 hosts"),
        (&["plan", "verify", "--ranks", "5..2"], "5 comes after 2"),
        (&["plan", "verify", "--file", "/nonexistent.json"], "cannot read /nonexistent.json"),
    ];
    for (args, expected) in cases {
        let done = finish(&mut ringway(args));
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        assert!(done.stderr.contains(expected), "{args:?}: {}", done.stderr);
    }
}

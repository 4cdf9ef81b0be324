//! A file system that is known to be right must pass: every program runs briefly on the directory for temporary files.
//!
//! Programs that need a server, a disk of their own or hours are tried by hand against stand-ins (see `server.rs` for the contract).

use std::process::Command;

fn passes(arguments: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_string_lossy().into_owned();
    let output = Command::new(env!("CARGO_BIN_EXE_ashlar-torture"))
        .args(arguments.iter().map(|word| word.replace("DIR", &path)))
        .current_dir(directory.path())
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    let last = text.lines().next_back().unwrap_or_default();
    assert!(last.ends_with(" 0 failed") || last.starts_with('['), "{arguments:?} ended with {last:?}");
    let left = std::fs::read_dir(directory.path()).expect("readable").count();
    assert!(left == 0 || arguments[0].starts_with("ledger"), "{arguments:?} left {left} entries behind");
}

#[test]
fn fsx_passes_with_and_without_direct_io() {
    passes(&["fsx", "--dir", "DIR", "--ops", "1500", "--files", "2"]);
    passes(&["fsx", "--dir", "DIR", "--ops", "500", "--direct", "--size-max", "2000000"]);
}

#[test]
fn racer_passes() {
    passes(&["racer", "--dir", "DIR", "--seconds", "2", "--rounds", "2", "--threads", "4"]);
}

#[test]
fn litmus_and_linear_pass() {
    if !ashlar_torture::sys::cred::can_switch() {
        println!("SKIPPED: needs root");
        return;
    }
    passes(&["litmus", "--dir", "DIR", "--runs", "20"]);
    passes(&["litmus", "--close-to-open", "--dir", "DIR", "--runs", "20"]);
    passes(&["linear", "--dir", "DIR", "--histories", "100"]);
}

#[test]
fn linear_passes_while_directories_are_disturbed() {
    passes(&["linear", "--dir", "DIR", "--histories", "40", "--disturb", "user.mark=yes", "--fill", "30"]);
}

#[test]
fn pass_locks_passes() {
    passes(&["pass-locks", "--dir", "DIR", "--turns", "500"]);
}

#[test]
fn racer_ends_after_so_many_steps() {
    passes(&["racer", "--dir", "DIR", "--ops", "4000", "--rounds", "2", "--threads", "4"]);
}

#[test]
fn limits_pass() {
    passes(&["limits", "--dir", "DIR", "--entries", "500", "--links", "1100"]);
}

#[test]
fn benchmarks_give_figures() {
    passes(&["metabench", "--dir", "DIR", "--files", "50", "--size", "3000", "--json"]);
    passes(&["databench", "--dir", "DIR", "--mib", "4", "--json"]);
    passes(&[
        "databench",
        "--dir",
        "DIR",
        "--mib",
        "4",
        "--random",
        "--depth",
        "4",
        "--seconds",
        "1",
        "--json",
    ]);
}

#[test]
fn differential_passes_with_itself_as_reference() {
    if !ashlar_torture::sys::cred::can_switch() {
        println!("SKIPPED: needs root");
        return;
    }
    let (left, right) = (tempfile::tempdir().expect("left"), tempfile::tempdir().expect("right"));
    let output = Command::new(env!("CARGO_BIN_EXE_ashlar-torture"))
        .args(["differential", "--ops", "1500", "--left"])
        .arg(left.path())
        .arg("--right")
        .arg(right.path())
        .current_dir(left.path())
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_tree_of_metabench_is_made_looked_at_and_removed_by_runs_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ashlar-torture"))
            .args([
                "metabench",
                "--files",
                "25",
                "--per-directory",
                "10",
                "--root",
                "tree",
                "--json",
                "--dir",
            ])
            .arg(directory.path())
            .args(more)
            .output()
            .expect("the program starts");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let there = |name: &str| directory.path().join("tree").join(name).exists();
    assert_eq!(run(&["--phases", "stat"]), None, "files that are not there cannot be looked at");
    let made = run(&["--phases", "create"]).expect("made");
    assert!(made.contains(r#""operations":50"#), "{made}");
    assert!(there("1/2/f1.24") && there("0/0/f0.0") && !there("0/3"));
    let looked = run(&["--phases", "read,stat", "--sample", "40"]).expect("looked at");
    assert!(looked.contains(r#""operations":80"#), "{looked}");
    assert_eq!(run(&["--phases", "remove", "--sample", "5"]), None, "a file drawn twice is removed once");
    assert!(run(&["--phases", "remove"]).is_some() && !directory.path().join("tree").exists());
}

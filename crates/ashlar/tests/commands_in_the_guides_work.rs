//! Runs the `console` blocks of the guides, line by line, and compares what they print with what is shown.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::{PATIENCE, binary, can_mount, finish_in};

/// The console lines of a guide.
fn console_lines(guide: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides").join(guide);
    let (mut lines, mut is_inside) = (Vec::new(), false);
    for line in fs::read_to_string(path).unwrap().lines() {
        match line {
            "```console" => is_inside = true,
            "```" => is_inside = false,
            _ if is_inside => lines.push(line.to_owned()),
            _ => {}
        }
    }
    assert!(lines.len() > 5, "{guide} shows commands");
    lines
}

/// A script that runs the commands, stops at the first that fails, and checks the output where some is shown.
fn script_of(lines: &[String]) -> String {
    let mut script = String::from("set -eum\n");
    for (at, line) in lines.iter().enumerate() {
        let Some(command) = line.strip_prefix("$ ") else { continue };
        let shown: Vec<&str> =
            lines[at + 1..].iter().take_while(|line| !line.starts_with("$ ")).map(String::as_str).collect();
        script += &format!("echo '+ {}' >&2\n", command.replace('\'', "'\\''"));
        if let Some(server) = command.strip_suffix(" &") {
            // What it prints shows that it is ready; what the one before it has printed must not.
            script += &format!("rm -f \"$OUT\"\n{server} > \"$OUT\" &\n");
            let ready = format!("grep -sqxF '{}' \"$OUT\"", shown.first().unwrap());
            // As long as anything may take: the whole script has an end anyway.
            script += &format!("until {ready}; do kill -0 $!; sleep 0.05; done\n");
        } else if shown.is_empty() {
            script += &format!("{command}\n");
        } else {
            script += &format!("{command} > \"$OUT\"\n");
            for line in shown {
                script += &format!("grep -qxF '{line}' \"$OUT\" || {{ cat \"$OUT\" >&2; exit 99; }}\n");
            }
        }
    }
    script
}

fn run_guide(guide: &str) {
    if !can_mount(guide) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display().to_string();
    let lines = console_lines(guide);
    let patience = PATIENCE * lines.len() as u32;
    let script = script_of(&lines)
        .replace("/mnt/ashlar", &format!("{root}/mnt/ashlar"))
        .replace(" /data", &format!(" {root}/data"));
    let search = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env("PATH", search).env("OUT", dir.path().join("out")).current_dir("/");
    let ended = finish_in(patience, &mut command);
    // After a failure: its server is still there, and ends with the mount.
    if support::is_mounted(&dir.path().join("mnt/ashlar")) {
        Command::new("umount").arg("-l").arg(dir.path().join("mnt/ashlar")).status().unwrap();
    }
    ended.expect(0);
}

#[test]
fn the_guide_to_a_file_system_of_many_servers_works() {
    run_guide("cluster.md");
}

#[test]
fn the_guide_to_administration_works() {
    run_guide("administration.md");
}

#[test]
fn the_guide_to_what_a_client_may_do_works() {
    run_guide("node-policy.md");
}

#[test]
fn the_guide_to_starting_works() {
    run_guide("start.md");
}

#[test]
fn the_guide_to_checking_works() {
    run_guide("fsck.md");
}

#[test]
fn the_guide_to_backups_works() {
    run_guide("backup.md");
}

//! kill -9 on a real disk with the real engine: every group whose commit had returned is there afterwards.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_kv::{Background, FjallEngine, FjallOptions, Lane, LaneConfig};
use ledger::{CLUSTER, commit, get, put, scan_all, small_config};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const CHILD_DIR: &str = "ASHLAR_KV_TEST_CHILD_DIR";

fn open(dir: &Path) -> Lane {
    std::fs::create_dir_all(dir.join("lane")).unwrap();
    let engine = FjallEngine::open(dir.join("lane/engine"), FjallOptions::default()).unwrap();
    let config = LaneConfig {
        background: Background::Threads,
        flush_interval: Duration::from_millis(20),
        segment_bytes: 64 << 10,
        overlay_bytes_max: 128 << 10,
        ..small_config()
    };
    Lane::open(Arc::new(OsDisk::new(dir)), "lane", Box::new(engine), &Env::os(), CLUSTER, config).unwrap()
}

/// Not a test of its own: the process that is killed. It prints each number once its group is committed.
#[test]
fn child_that_commits_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let lane = open(Path::new(&dir));
    let first = get(&lane, "count").map_or(0, |count| std::str::from_utf8(&count).unwrap().parse().unwrap());
    for number in first + 1..u64::MAX {
        let group = vec![
            put(&format!("a{:05}", number % 5000), vec![number as u8; 300]),
            put("count", number.to_string()),
        ];
        commit(&lane, group).unwrap();
        println!("committed {number}");
    }
}

#[test]
fn what_a_killed_process_had_committed_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_commits_until_it_is_killed", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let target = last + 300 + round * 700;
        let mut committed = last;
        let mut read_until = |limit: u64| {
            for line in lines.by_ref() {
                let line = line.unwrap();
                // The test runner's own output may come before the first number on the same line.
                if let Some((_, number)) = line.split_once("committed ") {
                    committed = number.parse().unwrap();
                    if committed >= limit {
                        break;
                    }
                }
            }
        };
        read_until(target);
        child.kill().unwrap();
        child.wait().unwrap();
        read_until(u64::MAX);
        assert!(committed >= target, "the child ended by itself after {committed}");
        let lane = open(dir.path());
        last = std::str::from_utf8(&get(&lane, "count").unwrap()).unwrap().parse().unwrap();
        assert!(last >= committed, "{committed} were committed, {last} are left");
        for number in last.saturating_sub(4999).max(1)..=last {
            let value = get(&lane, &format!("a{:05}", number % 5000)).unwrap();
            assert!(value.len() == 300 && value[0] == number as u8, "group {number} of {last}");
        }
        assert_eq!(scan_all(&lane).unwrap().len() as u64, last.min(5000) + 1);
        lane.verify().unwrap();
        if round % 2 == 0 {
            lane.close().unwrap();
        }
    }
}

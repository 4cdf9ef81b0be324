//! Goal: when all servers have lost their power and some never come back, what the others have is not given up in favour of those: it is waited for them, and as soon as the operator says that they are lost, everything
//! that was synced is there. Method: two storage and two metadata servers as processes, with disks of their own that fail without writing their logs; one of each kind stays away, and comes back in the end after all.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use support::machines::{Machines, Shape};
use support::{Ended, PATIENCE, can_mount, can_start, has_package, soon};

const FILES: u8 = 6;

fn content(of: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(13) ^ of.wrapping_mul(47)).collect()
}

fn lens(of: u8) -> usize {
    if of.is_multiple_of(2) { 3 << 20 } else { 900 }
}

fn write(dir: &Path, of: u8) {
    let mut file = File::create(dir.join(format!("f{of}"))).unwrap();
    file.write_all(&content(of, lens(of))).unwrap();
    file.sync_all().unwrap();
}

/// Reads all files, by a thread of its own: it may have to wait.
fn read(dir: &Path) -> Receiver<bool> {
    let (dir, (told, heard)) = (dir.to_owned(), channel());
    std::thread::spawn(move || {
        let is_whole =
            |of: u8| fs::read(dir.join(format!("f{of}"))).is_ok_and(|read| read == content(of, lens(of)));
        told.send((0..FILES).all(is_whole))
    });
    heard
}

fn run(machines: &Machines, line: &str) -> Ended {
    machines.run(&format!("{line} --identity @manager1/identity"))
}

fn listed(machines: &Machines, line: &str) -> Vec<serde_json::Value> {
    let told = run(machines, &format!("{line} --json")).expect(0).stdout;
    serde_json::from_str(&told).unwrap()
}

#[test]
fn what_the_others_have_is_there_once_the_operator_says_so() {
    let test = "servers that never come back";
    if !can_mount(test) || !has_package(test, "etcd-server", can_start("etcd", "--version")) {
        return;
    }
    let mut machines = Machines::start(Shape { managers: 1, meta: 2, storage: 2, mounts: &[""] });
    let dir = machines.path("m0/copied");
    fs::create_dir(&dir).unwrap();
    let line = format!("layout set --copies 2 {}", dir.display());
    soon(PATIENCE, "the directory takes the layout", || machines.run(&line).code == Some(0));
    machines.wait_for_copies(PATIENCE);
    (0..FILES).for_each(|of| write(&dir, of));
    File::open(&dir).unwrap().sync_all().unwrap();
    File::open(machines.path("m0")).unwrap().sync_all().unwrap();

    machines.kill_mounts();
    machines.cut_power();
    machines.power_on_but(&["storage2", "meta2"]);
    let is_away = || {
        run(&machines, "target list")
            .stdout
            .lines()
            .any(|line| line.contains("storage2") && line.contains("away"))
    };
    soon(PATIENCE, "managers know that storage2 is away", is_away);
    let are_two = |value: &serde_json::Value| value.as_array().unwrap().len() == 2;
    assert!(listed(&machines, "chain list").iter().all(|chain| are_two(&chain["in_sync"])), "they wait");
    assert!(listed(&machines, "copies list").iter().all(|group| are_two(&group["copies"])), "they wait");

    // Nobody goes on by itself, and nothing is done before it is asked for.
    run(&machines, "target lost 2").refused(&["chains have a copy on target-2", "--accept-loss"]);
    run(&machines, "copies lost meta2").refused(&["meta1, meta2", "--accept-loss"]);
    run(&machines, "target lost 1 --accept-loss").refused(&["is not lost", "storage1 serves it"]);
    run(&machines, "target lost 9 --accept-loss").refused(&["there is no target 9"]);
    let told = run(&machines, "copies lost meta2 --accept-loss --json").expect(0).stdout;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(are_two(&told["servers"]) && told["waiting"].as_array().unwrap().is_empty(), "{told}");
    let told = run(&machines, "target lost 2 --accept-loss").expect(0).stdout;
    assert!(told.contains("chains go on without target-2") && !told.starts_with('0'), "{told}");
    machines.mount_again();
    assert!(read(&dir).recv_timeout(PATIENCE).unwrap(), "everything that was synced is there");
    run(&machines, "target lost 2 --accept-loss").expect(0);
    run(&machines, "copies lost meta2 --accept-loss").expect(0);
    run(&machines, "copies lost meta1 --accept-loss").refused(&["meta1 is not lost"]);

    // They come back after all, and are given what there is now.
    write(&dir, 1);
    machines.power_on();
    machines.wait_for_copies(PATIENCE * 2);
    assert!(read(&dir).recv_timeout(PATIENCE).unwrap(), "and still is");
    machines.stop_and_check(|_| false);
}

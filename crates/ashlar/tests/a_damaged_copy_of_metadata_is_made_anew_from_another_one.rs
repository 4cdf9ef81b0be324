//! Goal: metadata that is damaged on one disk is there as long as another copy is sound. Who finds damage in a copy, nobody has to read it for that, leaves what it has to others and is given all of it
//! anew; then the other copy may go. Method: the largest table of a copy that is not running is damaged, in what it holds or where it says what it holds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::cluster::{Lab, Role};
use support::{PATIENCE, can_mount, flip, soon};

const FILES: usize = 400;

/// Copies of the first metadata server, and who serves it.
fn copies(lab: &Lab) -> (usize, String) {
    let listed = lab.ashlar("copies list --json --identity @first").expect(0).stdout;
    let groups: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let is_first = |group: &&serde_json::Value| group["server"]["name"] == "mds";
    let group = groups.as_array().unwrap().iter().find(is_first).unwrap();
    let serves = group["serves"]["name"].as_str().unwrap_or_default().to_owned();
    (group["copies"].as_array().unwrap().len(), serves)
}

fn start_second(lab: &Lab, read_through_every: u32) -> Role {
    let address = Lab::free_address();
    let line = format!(
        "meta --meta @meta1 --listen {address} --identity @mds1 --read-through-every {read_through_every}"
    );
    lab.run("mds1", &line, "serves|keeps copies")
}

/// Where the second server keeps its copy of the first one.
fn copy_at_second(lab: &Lab) -> PathBuf {
    let own = lab.path("meta1/copies");
    let kept: Vec<PathBuf> = fs::read_dir(own).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    kept[0].clone()
}

/// Files that hold pairs, below `path`.
fn tables(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tables(&path));
        } else if path.parent().is_some_and(|parent| parent.ends_with("tables")) {
            found.push(path);
        }
    }
    found
}

/// Nothing that gets smaller when it is packed.
fn content(at: usize) -> Vec<u8> {
    let mut state = at as u64 + 1;
    let step = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(step).take(900).collect()
}

/// A file system with a copy of all metadata at a second server, which is stopped, and the largest table of which is damaged by `damage`.
fn with_damage(damage: impl Fn(&Path)) -> (Lab, PathBuf) {
    let mut lab = Lab::start(2, 2);
    fs::create_dir(lab.path("m0/all")).unwrap();
    for at in 0..FILES {
        fs::write(lab.path(&format!("m0/all/f{at}")), content(at)).unwrap();
    }
    // All of it is in tables then, and comes to others in tables.
    lab.meta.stop();
    lab.start_meta();
    let mut second = lab.add_meta(1);
    lab.ashlar("copies set mds 2 --identity @first").expect(0);
    soon(PATIENCE, "no second copy", || copies(&lab).0 == 2);
    second.stop();
    let copy = copy_at_second(&lab);
    let length = |table: &PathBuf| table.metadata().unwrap().len();
    let largest = tables(&copy).into_iter().max_by_key(length).unwrap();
    assert!(length(&largest) > 200 << 10, "not all is in a table");
    damage(&largest);
    (lab, copy)
}

/// The other mount has none of them in its cache.
#[track_caller]
fn check_files(lab: &Lab) {
    for at in 0..FILES {
        assert_eq!(fs::read(lab.path(&format!("m1/all/f{at}"))).unwrap(), content(at), "f{at}");
    }
    assert_eq!(fs::read_dir(lab.path("m1/all")).unwrap().count(), FILES);
}

fn stop(mut lab: Lab, mut second: Role) {
    lab.mounts.iter_mut().for_each(Role::stop);
    second.stop();
    lab.stop();
}

/// Damage is found that nobody has asked for; then the other copy may go.
fn survives(damage: impl Fn(&Path)) {
    let (lab, copy) = with_damage(damage);
    let second = start_second(&lab, 2);
    let aside = copy.join("set-aside");
    soon(PATIENCE, "damage is not found", || aside.exists());
    soon(PATIENCE, "no second copy after damage", || copies(&lab).0 == 2);
    let told = lab.ashlar("event list --kind damage-found --json --identity @first").expect(0).stdout;
    assert!(told.contains("damage"), "{told}");
    assert!(!copy.join("damaged").exists(), "it is not damaged any more");
    // All of it is there without the first one.
    lab.meta.signal(libc::SIGKILL);
    soon(PATIENCE, "the other one does not serve", || copies(&lab).1 == "mds1");
    check_files(&lab);
    stop(lab, second);
}

#[test]
fn what_is_damaged_in_one_copy_is_found_although_nobody_asks_for_it() {
    if !can_mount("damaged metadata") {
        return;
    }
    survives(|table| flip(table, table.metadata().unwrap().len() / 3));
}

#[test]
fn programs_see_nothing_of_damage_where_metadata_is_served_from() {
    if !can_mount("damaged metadata that is served from") {
        return;
    }
    let (mut lab, copy) = with_damage(|table| flip(table, table.metadata().unwrap().len() / 3));
    let second = start_second(&lab, 0);
    soon(PATIENCE, "no second copy", || copies(&lab).0 == 2);
    lab.meta.stop();
    soon(PATIENCE, "the damaged one does not serve", || copies(&lab).1 == "mds1");
    lab.start_meta();
    soon(PATIENCE, "no sound copy", || copies(&lab).0 == 2);
    assert!(!copy.join("set-aside").exists(), "it was found too early to show anything");
    check_files(&lab);
    soon(PATIENCE, "damage is not found", || copy.join("set-aside").exists());
    soon(PATIENCE, "no second copy after damage", || copies(&lab) == (2, "mds".to_owned()));
    check_files(&lab);
    stop(lab, second);
}

#[test]
fn a_copy_that_cannot_be_opened_is_made_anew() {
    if !can_mount("metadata that cannot be opened") {
        return;
    }
    survives(|table| {
        let file = fs::File::options().write(true).open(table).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    });
}

#[test]
fn a_copy_that_is_too_damaged_to_begin_to_serve_gives_way_to_a_sound_one_that_comes_back() {
    if !can_mount("metadata that is damaged all over") {
        return;
    }
    // All that holds pairs, and nothing of what says where they are, which is at the end.
    let (mut lab, copy) = with_damage(|table| {
        let length = table.metadata().unwrap().len();
        (0..length * 9 / 10).step_by(1000).for_each(|at| flip(table, at));
    });
    let second = start_second(&lab, 0);
    soon(PATIENCE, "no second copy", || copies(&lab).0 == 2);
    assert!(!copy.join("set-aside").exists(), "it was found too early to show anything");
    lab.meta.stop();
    // It is the only one that has all of it, and tries to serve.
    std::thread::sleep(Duration::from_secs(5));
    lab.start_meta();
    soon(PATIENCE, "the sound one does not serve", || copies(&lab) == (2, "mds".to_owned()));
    assert!(copy.join("set-aside").exists(), "it was made anew without having been damaged");
    check_files(&lab);
    stop(lab, second);
}

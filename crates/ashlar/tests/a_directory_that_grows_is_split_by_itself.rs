//! Goal: a directory that grows large is split over all metadata servers by itself, and whoever makes, lists, renames and removes names in it meanwhile, from
//! whichever mount, loses none and sees none twice. The same with very many names: `cargo xtask cluster split`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::{PATIENCE, names_in};

/// From so many entries on the second server splits.
const SPLIT_AT: usize = 1_000;
/// Names that each mount makes at least.
const NAMES: usize = 1_500;
/// So many names after a name was made it is renamed, removed or looked at: it may be in a slice by then.
const BEHIND: usize = 200;
/// Names that are there all the time.
const KEPT: usize = 300;

/// A directory at the second server, which is added.
fn directory_at_second(lab: &Lab, address: &str) -> (Role, String) {
    let first = lab.nodes_of_shards()[0].clone();
    lab.join_meta("mds2");
    let arguments = format!("meta --meta @meta2 --listen {address} --split-at {SPLIT_AT} --identity @mds2");
    let role = lab.run("mds2", &arguments, "serves");
    let deadline = Instant::now() + PATIENCE;
    while lab.nodes_of_shards().iter().filter(|node| **node != first).count() < 32 {
        assert!(Instant::now() < deadline, "shards do not come");
        std::thread::sleep(Duration::from_millis(100));
    }
    let nodes = lab.nodes_of_shards();
    for at in 0.. {
        let name = format!("big{at}");
        fs::create_dir(lab.path("m0").join(&name)).unwrap();
        let shard = fs::metadata(lab.path("m0").join(&name)).unwrap().ino() >> 48;
        if nodes[shard as usize] != first {
            return (role, name);
        }
    }
    unreachable!()
}

/// Makes names, renames some and removes some, until enough are made and the split is over; how many.
fn work(directory: &Path, prefix: &str, is_split: &AtomicBool) -> usize {
    let path = |number: usize| directory.join(format!("{prefix}{number}"));
    let mut number = 0;
    while number < NAMES || !is_split.load(SeqCst) {
        fs::File::create_new(path(number)).unwrap();
        let before = number.wrapping_sub(BEHIND);
        match before % 10 {
            _ if number < BEHIND => {}
            3 => fs::rename(path(before), directory.join(format!("renamed-{prefix}{before}"))).unwrap(),
            7 => fs::remove_file(path(before)).unwrap(),
            _ => assert!(fs::metadata(path(before)).unwrap().is_file()),
        }
        number += 1;
    }
    number
}

/// What [`work`] leaves.
fn left(prefix: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).filter_map(move |number| match number % 10 {
        _ if number + BEHIND >= count => Some(format!("{prefix}{number}")),
        3 => Some(format!("renamed-{prefix}{number}")),
        7 => None,
        _ => Some(format!("{prefix}{number}")),
    })
}

/// Ends whoever goes on until he is told.
struct End<'a>([&'a AtomicBool; 2]);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|flag| flag.store(true, SeqCst));
    }
}

#[test]
fn names_are_made_listed_renamed_and_removed_while_it_is_split() {
    let mut lab = Lab::start(1, 2);
    let (mut second, name) = directory_at_second(&lab, &Lab::free_address());
    let (here, there) = (lab.path("m0").join(&name), lab.path("m1").join(&name));
    (0..KEPT).for_each(|at| drop(fs::File::create_new(here.join(format!("kept{at}"))).unwrap()));
    let (is_split, is_over, listings) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let kept: BTreeSet<String> = (0..KEPT).map(|at| format!("kept{at}")).collect();
    let show = || lab.ashlar(&format!("layout show @m0/{name}")).expect(0).stdout;
    let (made_here, made_there) = std::thread::scope(|scope| {
        let workers = [(&here, "a"), (&there, "b")]
            .map(|(directory, prefix)| scope.spawn(|| work(directory, prefix, &is_split)));
        for directory in [&here, &there] {
            let (kept, is_over, listings) = (&kept, &is_over, &listings);
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    let listed = names_in(directory);
                    assert!(listed.is_superset(kept), "{:?} not listed", kept.difference(&listed));
                    listings.fetch_add(1, SeqCst);
                }
            });
        }
        // Should this fail, nobody is to go on for ever.
        let _end = End([&is_split, &is_over]);
        let deadline = Instant::now() + 10 * PATIENCE;
        loop {
            let shown = show();
            if shown.contains("slices: 2") && !shown.contains("split_percent") {
                break;
            }
            let is_at_work = workers.iter().any(|worker| !worker.is_finished());
            assert!(is_at_work && Instant::now() < deadline, "it is not split: {shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
        is_split.store(true, SeqCst);
        let [made_here, made_there] = workers.map(|worker| worker.join());
        is_over.store(true, SeqCst);
        (made_here.unwrap(), made_there.unwrap())
    });
    assert!(made_here + made_there >= 2 * NAMES && listings.load(SeqCst) > 2);
    let expected: BTreeSet<String> =
        kept.into_iter().chain(left("a", made_here)).chain(left("b", made_there)).collect();
    for directory in [&here, &there] {
        assert_eq!(names_in(directory), expected);
        assert_eq!(fs::metadata(directory).unwrap().len(), expected.len() as u64);
        assert!(expected.iter().all(|name| fs::metadata(directory.join(name)).is_ok()));
    }
    let happened = lab.ashlar("event list --kind directory-split --identity @first").expect(0).stdout;
    assert!(happened.contains("2 slices"), "{happened}");
    lab.mounts.iter_mut().for_each(Role::stop);
    second.stop();
    lab.stop();
}

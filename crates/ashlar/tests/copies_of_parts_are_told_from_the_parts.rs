//! Goal: no older copy of a part of a file system is taken for the part, whatever it is: metadata, a target, an index. Method: copies
//! with `cp -a`, goes on, puts the copy back; what is refused must be named, and what the way out does must leave no wrong content.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use support::{Site, big, can_mount};

const BOTH: &str = "--data @d1 --data @d2";

/// Starts, writes a few files in chunks, and stops.
fn write_more(site: &Site, name: &str) {
    let server = site.up(&format!("up @mnt {BOTH}"));
    for number in 0..6 {
        fs::write(site.mnt().join(format!("{name}{number}")), big()).unwrap();
    }
    server.stop();
}

/// Puts the directory `from` in the place of `to`, which is kept as `aside`.
fn replace(site: &Site, to: &str, from: &str, aside: &str) {
    fs::rename(site.path(to), site.path(aside)).unwrap();
    fs::rename(site.path(from), site.path(to)).unwrap();
}

/// Makes files full of holes and checks that nothing shows in them.
fn holes_are_empty(site: &Site) {
    for number in 0..8 {
        let path = site.mnt().join(format!("holes{number}"));
        let file = fs::File::create(&path).unwrap();
        file.set_len(big().len() as u64 - 1).unwrap();
        file.write_at(b"end", big().len() as u64 - 1).unwrap();
        drop(file);
        let content = fs::read(&path).unwrap();
        let is_empty = content[..content.len() - 3].iter().all(|byte| *byte == 0);
        assert!(is_empty, "old bytes in {}", path.display());
    }
}

#[test]
fn files_made_with_an_older_copy_of_the_metadata_do_not_show_bytes_of_other_files() {
    if !can_mount("older metadata") {
        return;
    }
    let site = Site::with_files();
    site.copy("d1/meta", "older");
    write_more(&site, "newer");
    replace(&site, "d1/meta", "older", "newest");
    let words = ["d1/meta is an older copy", "has been in start 2", "--accept-older-metadata"];
    site.run(&format!("up @mnt {BOTH}")).refused(&words);
    for repair in ["", "--repair "] {
        let ended = site.run(&format!("fsck {repair}{BOTH}")).expect(4);
        assert!(ended.stdout.contains("[metadata-older]"), "{}", ended.all());
    }
    // Nothing was changed: with the newer one all is there.
    replace(&site, "d1/meta", "newest", "older");
    let server = site.up(&format!("up @mnt {BOTH}"));
    assert!(site.has_files());
    assert!(fs::read(site.mnt().join("newer5")).unwrap() == big());
    server.stop();

    replace(&site, "d1/meta", "older", "newest");
    site.run(&format!("fsck --accept-older-metadata {BOTH}")).expect(2);
    let ended = site.run(&format!("fsck --repair --accept-older-metadata {BOTH}")).expect(1);
    assert!(ended.stdout.contains("[chunk-orphan]"), "{}", ended.all());
    let server = site.up(&format!("up @mnt {BOTH}"));
    assert!(site.has_files());
    assert!(!site.mnt().join("newer5").exists());
    holes_are_empty(&site);
    server.stop();
    site.run(&format!("fsck {BOTH}")).expect(0);
    // The newer metadata no longer fits: its chunks are gone.
    replace(&site, "d1/meta", "newest", "older");
    site.run(&format!("up @mnt {BOTH}")).refused(&["d1/meta is an older copy"]);
}

#[test]
fn a_target_that_older_metadata_does_not_know_brings_no_old_bytes_back() {
    if !can_mount("targets that are newer than the metadata") {
        return;
    }
    let site = Site::with_files();
    site.copy("d1/meta", "older");
    fs::create_dir(site.path("d3")).unwrap();
    let all = format!("{BOTH} --data @d3");
    let server = site.up(&format!("up @mnt {all}"));
    for number in 0..6 {
        fs::write(site.mnt().join(format!("newer{number}")), big()).unwrap();
    }
    server.stop();
    replace(&site, "d1/meta", "older", "newest");
    site.run(&format!("up @mnt {all}")).refused(&["d1/meta is an older copy"]);
    site.run(&format!("fsck --repair --accept-older-metadata {BOTH}")).expect(1);
    // Starts until the metadata counts further than the target that it does not know.
    for _ in 0..2 {
        site.up(&format!("up @mnt {BOTH}")).stop();
    }
    let server = site.up(&format!("up @mnt {all}"));
    assert!(site.has_files());
    holes_are_empty(&site);
    server.stop();
    site.run(&format!("fsck {all}")).expect(0);
}

#[test]
fn an_older_copy_of_a_target_is_named_and_can_be_left_out() {
    if !can_mount("older targets") {
        return;
    }
    let site = Site::with_files();
    site.copy("d2", "older");
    write_more(&site, "newer");
    replace(&site, "d2", "older", "newest");
    site.run(&format!("up @mnt {BOTH}")).refused(&[
        "target-2 at",
        "d2/target is an older copy",
        "leave its --data out",
    ]);
    let ended = site.run(&format!("fsck --repair {BOTH}")).expect(4);
    assert!(ended.stdout.contains("[target-older]"), "{}", ended.all());
    // Twice without it: it was not there, and is as good as it was when it is back.
    for _ in 0..2 {
        let server = site.up("up @mnt --data @d1");
        let error = fs::read(site.mnt().join("newer0")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
        server.stop();
    }
    replace(&site, "d2", "newest", "older");
    let server = site.up(&format!("up @mnt {BOTH}"));
    assert!(site.has_files());
    assert!(fs::read(site.mnt().join("newer0")).unwrap() == big());
    server.stop();
    site.run(&format!("fsck {BOTH}")).expect(0);
}

#[test]
fn targets_of_two_copies_that_were_started_apart_are_not_mixed() {
    if !can_mount("copies started apart") {
        return;
    }
    let site = Site::with_files();
    for (from, to) in [("d1", "e1"), ("d2", "e2")] {
        site.copy(from, to);
    }
    write_more(&site, "one");
    site.up("up @mnt --data @e1 --data @e2").stop();
    site.run("up @mnt --data @d1 --data @e2")
        .refused(&["e2/target was last used in start", "another copy of the metadata"]);
    site.run("fsck --repair --data @d1 --data @e2").expect(4);
    for line in ["up @mnt --data @d1 --data @d2", "up @mnt --data @e1 --data @e2"] {
        let server = site.up(line);
        assert!(site.has_files());
        server.stop();
    }
}

#[test]
fn indexes_of_two_targets_that_changed_places_do_not_make_files_read_as_zeros() {
    if !can_mount("swapped indexes") {
        return;
    }
    let site = Site::with_files();
    fs::rename(site.path("d1/target/index"), site.path("index")).unwrap();
    fs::rename(site.path("d2/target/index"), site.path("d1/target/index")).unwrap();
    fs::rename(site.path("index"), site.path("d2/target/index")).unwrap();
    index_is_made_anew(&site);
}

#[test]
fn an_older_copy_of_an_index_does_not_make_files_read_as_zeros() {
    if !can_mount("older indexes") {
        return;
    }
    let site = Site::with_files();
    site.copy("d2/target/index", "older");
    write_more(&site, "newer");
    replace(&site, "d2/target/index", "older", "newest");
    index_is_made_anew(&site);
    let server = site.up(&format!("up @mnt {BOTH}"));
    assert!(fs::read(site.mnt().join("newer0")).unwrap() == big());
    server.stop();
}

/// A start refuses, and a repair brings everything back without deleting a chunk.
fn index_is_made_anew(site: &Site) {
    site.run(&format!("up @mnt {BOTH}")).refused(&["/target", "index is not ours", "fsck --repair"]);
    let ended = site.run(&format!("fsck {BOTH}")).expect(4);
    assert!(ended.stdout.contains("[target-index]"), "{}", ended.all());
    let ended = site.run(&format!("fsck --repair {BOTH}")).expect(1);
    assert!(!ended.stdout.contains("[chunk-"), "{}", ended.all());
    site.run(&format!("fsck {BOTH}")).expect(0);
    let server = site.up(&format!("up @mnt {BOTH}"));
    assert!(site.has_files());
    server.stop();
}

#[test]
fn a_start_that_waits_for_another_does_not_take_its_targets_for_older_copies() {
    if !can_mount("a start that waits") {
        return;
    }
    let site = Site::with_files();
    for (from, to) in [("d1", "e1"), ("d2", "e2")] {
        site.copy(from, to);
    }
    site.up("up @mnt --data @e1 --data @e2").stop();
    let lock = fs::OpenOptions::new().read(true).write(true).open(site.path("d1/meta/lock")).unwrap();
    lock.try_lock().unwrap();
    lock.set_len(0).unwrap();
    lock.write_all_at(b"a test, which is ending", 0).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| site.up(&format!("up @mnt {BOTH}")));
        // Longer than the headers are looked at after the beginning. What is there then is what a start meanwhile leaves.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        for (from, to) in [("d1", "o1"), ("d2", "o2"), ("e1", "d1"), ("e2", "d2")] {
            fs::rename(site.path(from), site.path(to)).unwrap();
        }
        drop(lock);
        let server = waiting.join().unwrap();
        assert!(site.has_files());
        server.stop();
    });
    site.run(&format!("fsck {BOTH}")).expect(0);
}

//! Every file of a stopped file system, one at a time: cut, with a byte changed, or gone. A start either works and every file has its
//! content, or tells which file is damaged and what to do. It never crashes, and never shows wrong content.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use support::{Ended, Site, can_mount, flip};

/// How a file is damaged. What holds nothing is only taken away, and of the engine a cut is a flip for a start.
fn damages(file: &Path) -> &'static [&'static str] {
    let name = file.file_name().unwrap().to_str().unwrap();
    match name {
        "lock" | "reserve" | "0.jnl" => &["gone"],
        "cluster-state" | "secrets" | "target" => &["cut", "flipped", "gone"],
        _ if name.ends_with(".log") || name.ends_with(".slab") => &["cut", "flipped", "gone"],
        _ => &["flipped", "gone"],
    }
}

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            files_below(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

/// A copy of the stopped file system in `site`.
fn copy_of(site: &Site) -> Site {
    let copy = Site::new();
    for name in ["d1", "d2"] {
        let copied =
            Command::new("cp").arg("-a").arg(site.path(name).join(".")).arg(copy.path(name)).status();
        assert!(copied.unwrap().success());
    }
    copy
}

fn damage(path: &Path, how: &str) {
    let len = fs::metadata(path).unwrap().len();
    match how {
        "cut" => fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len / 2).unwrap(),
        // Of a log only the front is in use; of other files any place is as good.
        "flipped" if len > 0 => {
            flip(path, if path.to_string_lossy().contains("/log/") { 80 } else { len / 2 })
        }
        "flipped" => {}
        _ => fs::remove_file(path).unwrap(),
    }
}

/// Checks one damage; tells what was wrong with the answer.
fn judge(template: &Site, relative: &Path, how: &str) -> Result<String, String> {
    let site = copy_of(template);
    damage(&site.path(relative.to_str().unwrap()), how);
    let no_crash = |ended: &Ended| {
        if ended.signal.is_some() || ended.code == Some(101) || ended.stderr.contains("panicked at crates") {
            return Err(format!("crashed: {}", ended.all()));
        }
        Ok(())
    };
    let outcome = match site.try_up("--log error up @mnt --data @d1 --data @d2") {
        Ok(server) => {
            let small = fs::read(site.mnt().join("dir/small"));
            let big = fs::read(site.mnt().join("dir/sub/big"));
            let ended = server.end_by(libc::SIGTERM);
            no_crash(&ended)?;
            // An error of a read is an answer; other content than was written is none.
            match (small, big) {
                (Ok(small), _) if small != b"small content" => {
                    return Err("wrong content of the small file".into());
                }
                (_, Ok(big)) if big != support::big() => return Err("wrong content of the big file".into()),
                (Ok(_), Ok(_)) => "started, all content is there",
                _ => "started, reads fail",
            }
        }
        Err(ended) => {
            no_crash(&ended)?;
            if ended.code != Some(1) {
                return Err(format!("ended oddly: {}", ended.all()));
            }
            let names_a_place = ended.stderr.contains("/meta") || ended.stderr.contains("/target");
            let names_a_way = ["restore", "fsck", "leave", "list the data directory"]
                .iter()
                .any(|way| ended.stderr.contains(way));
            if !names_a_place || !names_a_way {
                return Err(format!("does not say what and what to do: {}", ended.all()));
            }
            "refused"
        }
    };
    if outcome == "started, all content is there" {
        return Ok(outcome.to_owned());
    }
    let ended = site.run("fsck --quick --repair --data @d1 --data @d2");
    no_crash(&ended)?;
    if !matches!(ended.code, Some(0 | 1 | 4 | 8)) {
        return Err(format!("fsck: {}", ended.all()));
    }
    Ok(outcome.to_owned())
}

#[test]
fn every_file_cut_flipped_or_gone_is_refused_or_does_no_harm() {
    if !can_mount("damaged files") {
        return;
    }
    let template = Site::with_files();
    let root = template.path("");
    let mut files = Vec::new();
    files_below(&template.path("d1/meta"), &mut files);
    files_below(&template.path("d2/target"), &mut files);
    let cases: VecDeque<(PathBuf, &str)> = files
        .iter()
        .map(|file| file.strip_prefix(&root).unwrap().to_owned())
        .flat_map(|file| damages(&file).iter().map(move |how| (file.clone(), *how)))
        .collect();
    assert!(cases.len() > 40, "{} cases", cases.len());
    let (cases, faults) = (Mutex::new(cases), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((file, how)) = cases.lock().unwrap().pop_front() else { return };
                    match judge(&template, &file, how) {
                        Ok(outcome) => eprintln!("{} {how}: {outcome}", file.display()),
                        Err(fault) => {
                            faults.lock().unwrap().push(format!("{} {how}: {fault}", file.display()))
                        }
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn lost_metadata_is_not_mistaken_for_a_new_file_system() {
    if !can_mount("lost metadata") {
        return;
    }
    let template = Site::with_files();
    for lost in [&["engine", "lane"][..], &["cluster-state"][..], &["engine"][..]] {
        let site = copy_of(&template);
        for name in lost {
            let path = site.path("d1/meta").join(name);
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
        match site.try_up("up @mnt --data @d1 --data @d2") {
            Err(ended) => drop(ended.refused(&["restore", "d1/meta"])),
            // The log of a young file system still has everything.
            Ok(_server) => assert!(site.has_files(), "{lost:?}"),
        }
    }
    let site = copy_of(&template);
    fs::remove_file(site.path("d1/meta/cluster-state")).unwrap();
    fs::remove_dir_all(site.path("d1/target")).unwrap();
    site.run("up @mnt --data @d1").refused(&["no cluster-state", "restore"]);
}

#[test]
fn a_first_start_that_was_cut_short_begins_anew() {
    if !can_mount("interrupted first starts") {
        return;
    }
    let site = Site::new();
    // As it is after a kill at the last moment before the state is stored.
    site.up("up @mnt --data @d2").stop();
    fs::rename(site.path("d2/meta"), site.path("d1/meta")).unwrap();
    fs::remove_file(site.path("d1/meta/cluster-state")).unwrap();
    fs::write(site.path("d1/meta/creating"), b"").unwrap();
    site.up("up @mnt --data @d1").stop();
    assert!(!site.path("d1/meta/creating").exists());
    site.run("fsck --data @d1").expect(0);
}

#[test]
fn a_damaged_header_and_a_lost_index_of_a_target_are_repaired_from_what_is_redundant() {
    if !can_mount("repairs of targets") {
        return;
    }
    let site = Site::with_files();
    flip(&site.path("d2/target/target"), 20);
    site.run("up @mnt --data @d1 --data @d2").refused(&["d2/target/target", "leave this data directory out"]);
    let ended = site.run("fsck --data @d1 --data @d2").expect(4);
    assert!(ended.stdout.contains("[target-header]"), "{}", ended.all());
    fs::remove_dir_all(site.path("d1/target/index")).unwrap();
    site.run("up @mnt --data @d1").refused(&["the index of the target is not there", "fsck --repair"]);
    let ended = site.run("fsck --repair --data @d1 --data @d2").expect(1);
    assert!(ended.stdout.contains("[target-index]") && ended.stdout.contains("none left"), "{}", ended.all());
    site.run("fsck --data @d1 --data @d2").expect(0);
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files());
    server.stop();
}

/// Makes 40 files, does `then` with each, and kills the server.
fn make_files_and_kill(site: &Site, then: impl Fn(&fs::File)) {
    let mut server = std::mem::ManuallyDrop::new(site.up("up @mnt --data @d1 --data @d2"));
    for number in 0..40 {
        then(&fs::File::create(site.mnt().join(format!("file{number}"))).unwrap());
    }
    // SAFETY: kill takes no pointer; the process is our child.
    unsafe { libc::kill(server.pid(), libc::SIGKILL) };
    server.wait();
    site.run("umount @mnt").expect(0);
}

/// The segment of the metadata log that was written to last, and where what was written ends, bytes.
fn log_in_use(site: &Site) -> (PathBuf, u64) {
    let mut logs = Vec::new();
    files_below(&site.path("d1/meta/lane/log"), &mut logs);
    logs.sort();
    let log = logs
        .into_iter()
        .rfind(|path| fs::read(path).unwrap().iter().skip(4096).any(|byte| *byte != 0))
        .unwrap();
    let used = fs::read(&log).unwrap().iter().rposition(|byte| *byte != 0).unwrap() as u64;
    (log, used)
}

#[test]
fn records_behind_a_hole_that_was_not_flushed_are_left_behind_with_a_warning() {
    if !can_mount("holes in logs") {
        return;
    }
    let site = Site::new();
    make_files_and_kill(&site, |_| ());
    let (log, used) = log_in_use(&site);
    flip(&log, used - used / 8);
    let server = site.up("up @mnt --data @d1 --data @d2");
    let left = fs::read_dir(site.mnt()).unwrap().count();
    assert!((1..40).contains(&left), "{left} files were made before the damage");
    let ended = server.end_by(libc::SIGTERM).expect(0);
    assert!(ended.stderr.contains("at a place that was not flushed"), "{}", ended.all());
    site.run("fsck --data @d1 --data @d2").expect(0);
}

#[test]
fn a_damaged_metadata_log_is_refused_and_can_be_given_up_from_there() {
    if !can_mount("damaged logs") {
        return;
    }
    let site = Site::new();
    make_files_and_kill(&site, |file| file.sync_all().unwrap());
    let (log, used) = log_in_use(&site);
    flip(&log, used / 2);
    let refused = site.run("up @mnt --data @d1 --data @d2").refused(&["log segment", "--give-up-log-from"]);
    let fsck = site.run("fsck --repair --data @d1 --data @d2").expect(8);
    assert!(fsck.stderr.contains("--give-up-log-from"), "{}", fsck.all());
    let position = refused.stderr.split("change after position ").nth(1).unwrap().split(' ').next().unwrap();
    let repair = format!("fsck --repair --give-up-log-from {position} --data @d1 --data @d2");
    let ended = site.run(&repair);
    assert!(matches!(ended.code, Some(0 | 1)), "{}", ended.all());
    site.run("fsck --data @d1 --data @d2").expect(0);
    let server = site.up("up @mnt --data @d1 --data @d2");
    let left = fs::read_dir(site.mnt()).unwrap().count();
    assert!((1..40).contains(&left), "{left} files were made before the damage");
    server.stop();
}

//! Goal: each sentence of `docs/guides/coherence.md` about mounts that are close-to-open is so, on real mounts of real servers; and what such a mount saves
//! where files and directories are shared shows in the calls that it and the others make.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;
use support::counts::Counts;

/// As promised, and what a loaded machine may take besides.
const LATE_MAX: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(4);

struct Site {
    lab: Lab,
    /// Where the mounts show what they count.
    shown: Vec<String>,
}

impl Site {
    /// One strict mount, then `loose` others.
    #[track_caller]
    fn start(strict: usize, loose: usize) -> Site {
        let mut lab = Lab::start(2, strict + loose);
        let mut shown = Vec::new();
        for at in 0..strict + loose {
            lab.mounts[at].stop();
            let kind = if at < strict { "strict" } else { "close-to-open" };
            let address = Lab::free_address();
            let line = format!("mount @m{at} --identity @c{at} --coherence {kind} --metrics {address}");
            lab.mounts[at] = lab.run(&format!("c{at}"), &line, "mounted");
            shown.push(address);
        }
        Site { lab, shown }
    }

    fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.lab.path(&format!("m{mount}")).join(name)
    }

    fn counts(&self, mount: usize) -> Counts {
        Counts::of(&self.shown[mount])
    }
}

/// Content that lives with the inode, and content in chunks.
const SIZES: [usize; 2] = [100, 3 << 20];

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 249) as u8 ^ seed | 1).collect()
}

/// Waits until `is_so`, and fails when that takes longer than promised.
#[track_caller]
fn within_the_bound(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LATE_MAX + SLACK, "{what}: not within {LATE_MAX:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_open_sees_everything_that_was_closed_before() {
    if !can_mount("close-to-open") {
        return;
    }
    let mut site = Site::start(1, 2);
    for bytes in SIZES {
        // Who writes, who reads: strict and loose, loose and loose, loose and strict.
        for (writer, reader) in [(0, 1), (1, 2), (1, 0)] {
            let (there, here) = (site.path(writer, "file"), site.path(reader, "file"));
            for turn in 0..6 {
                let content = pattern(turn * 2, bytes + usize::from(turn) * 100);
                fs::write(&there, &content).unwrap();
                let read = fs::read(&here).unwrap();
                assert!(read == content, "{writer} to {reader}, turn {turn}: {} bytes", read.len());
                assert_eq!(fs::metadata(&here).unwrap().len(), content.len() as u64);
            }
            // In place, without a change of the length, while the reader has it open, and its pages.
            let open = File::open(&here).unwrap();
            let changed = vec![0xEE; 4096.min(bytes)];
            let file = OpenOptions::new().write(true).open(&there).unwrap();
            file.write_all_at(&changed, 0).unwrap();
            drop(file);
            let mut read = vec![0; changed.len()];
            File::open(&here).unwrap().read_exact_at(&mut read, 0).unwrap();
            assert!(read == changed, "{writer} to {reader}, in place");
            drop(open);
            // Another file with that name.
            let content = pattern(77, bytes);
            fs::write(site.path(writer, "new"), &content).unwrap();
            fs::rename(site.path(writer, "new"), &there).unwrap();
            assert!(fs::read(&here).unwrap() == content, "{writer} to {reader}, renamed");
            // None, and then one.
            fs::remove_file(&there).unwrap();
            assert!(fs::read(&here).is_err());
            fs::write(&there, &content).unwrap();
            assert!(fs::read(&here).unwrap() == content, "{writer} to {reader}, made anew");
            fs::remove_file(&there).unwrap();
        }
    }
    site.lab.stop();
}

#[test]
fn what_is_open_shows_changes_of_others_within_the_bound() {
    if !can_mount("close-to-open") {
        return;
    }
    let mut site = Site::start(1, 1);
    for bytes in SIZES {
        let name = format!("log{bytes}");
        let mut writer = File::create(site.path(0, &name)).unwrap();
        writer.write_all(&pattern(1, bytes)).unwrap();
        let reader = File::open(site.path(1, &name)).unwrap();
        within_the_bound("the first part", || reader.metadata().unwrap().len() == bytes as u64);
        let mut head = [0; 10];
        reader.read_exact_at(&mut head, 0).unwrap();
        // The writer neither closes nor syncs.
        writer.write_all(b"more").unwrap();
        writer.seek(SeekFrom::Start(0)).unwrap();
        writer.write_all(b"at the top").unwrap();
        within_the_bound("the length", || reader.metadata().unwrap().len() == bytes as u64 + 4);
        within_the_bound("what was overwritten", || {
            reader.read_exact_at(&mut head, 0).unwrap();
            &head == b"at the top"
        });
        // Without a look at the attributes, and of the same length.
        writer.seek(SeekFrom::Start(0)).unwrap();
        writer.write_all(b"once again").unwrap();
        within_the_bound("what was overwritten again", || {
            reader.read_exact_at(&mut head, 0).unwrap();
            &head == b"once again"
        });
        let mut tail = [0; 4];
        assert_eq!(reader.read_at(&mut tail, bytes as u64).unwrap(), 4);
        assert_eq!(&tail, b"more");
        // Cut, and filled anew.
        writer.set_len(0).unwrap();
        writer.write_all_at(b"short", 0).unwrap();
        within_the_bound("the cut", || reader.metadata().unwrap().len() == 5);
        let mut all = [0; 20];
        within_the_bound("the new content", || {
            matches!(reader.read_at(&mut all, 0), Ok(5)) && &all[..5] == b"short"
        });
        // A directory that gets another name.
        fs::create_dir_all(site.path(0, "d/e")).unwrap();
        assert!(fs::metadata(site.path(1, "d/e")).unwrap().is_dir());
        fs::rename(site.path(0, "d/e"), site.path(0, "d/f")).unwrap();
        within_the_bound("the old name", || fs::metadata(site.path(1, "d/e")).is_err());
        fs::remove_dir(site.path(0, "d/f")).unwrap();
        fs::set_permissions(site.path(0, &name), std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .unwrap();
        within_the_bound("the mode", || reader.metadata().unwrap().mode() & 0o777 == 0o640);
    }
    site.lab.stop();
}

#[test]
fn nobody_reads_zeros_that_were_never_in_a_file_that_others_make_anew() {
    if !can_mount("close-to-open") {
        return;
    }
    let mut site = Site::start(1, 1);
    let bytes = 2 << 20;
    for turn in 0..20u8 {
        fs::write(site.path(0, "file"), pattern(turn * 2, bytes)).unwrap();
        let direct =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(site.path(1, "file")).unwrap();
        let mut page = vec![0; 1 << 20];
        direct.read_exact_at(&mut page, 0).unwrap();
        // What the reader knows of it is good for a moment yet; its chunks go.
        fs::write(site.path(0, "file"), pattern(turn * 2 + 128, if turn % 2 == 0 { bytes } else { 50 }))
            .unwrap();
        let read = direct.read_at(&mut page, 1 << 20).unwrap();
        assert!(read == 0 || page[..read].iter().all(|&byte| byte != 0), "turn {turn}: zeros");
    }
    site.lab.stop();
}

#[test]
fn strict_mounts_see_at_once_what_such_a_mount_does_and_stay_strict_among_themselves() {
    if !can_mount("close-to-open") {
        return;
    }
    let mut site = Site::start(2, 1);
    let strict = [site.path(0, "file"), site.path(1, "file")];
    let loose = site.path(2, "file");
    fs::write(&loose, b"0").unwrap();
    let seen: Vec<File> = strict.iter().map(|path| File::open(path).unwrap()).collect();
    let file = OpenOptions::new().read(true).write(true).open(&loose).unwrap();
    let own = OpenOptions::new().read(true).write(true).open(&strict[0]).unwrap();
    for turn in 0..60u64 {
        let writer = if turn % 2 == 0 { &file } else { &own };
        // First with the inode, then in chunks.
        let content = vec![turn as u8 + 1; if turn < 30 { 500 } else { 100_000 }];
        writer.write_all_at(&content, 0).unwrap();
        for reader in &seen {
            let mut read = vec![0; content.len()];
            reader.read_exact_at(&mut read, 0).unwrap();
            assert!(read == content, "turn {turn}");
            assert_eq!(reader.metadata().unwrap().len(), content.len() as u64);
        }
        fs::write(site.path(2, &format!("name{turn}")), b"").unwrap();
        assert!(fs::metadata(site.path(0, &format!("name{turn}"))).is_ok());
        fs::remove_file(site.path(2, &format!("name{turn}"))).unwrap();
        assert!(fs::metadata(site.path(1, &format!("name{turn}"))).is_err());
    }
    site.lab.stop();
}

#[test]
fn locks_appends_and_fsync_work_as_on_any_mount() {
    if !can_mount("close-to-open") {
        return;
    }
    let mut site = Site::start(1, 2);
    fs::write(site.path(0, "counter"), b"0").unwrap();
    fs::write(site.path(0, "log"), b"").unwrap();
    const TURNS: usize = 40;
    // Each takes the lock, reads, adds one, writes, and lets go, with the file open all the time.
    let add = |mount: usize| {
        let file = OpenOptions::new().read(true).write(true).open(site.path(mount, "counter")).unwrap();
        let mut log = OpenOptions::new().append(true).open(site.path(mount, "log")).unwrap();
        for turn in 0..TURNS {
            // SAFETY: the descriptor is open.
            assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
            let mut text = [0; 20];
            let len = file.read_at(&mut text, 0).unwrap();
            let count: u64 = std::str::from_utf8(&text[..len]).unwrap().trim().parse().unwrap();
            file.write_all_at(format!("{}", count + 1).as_bytes(), 0).unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) }, 0);
            log.write_all(format!("{mount} {turn:03}\n").as_bytes()).unwrap();
        }
        file.sync_all().unwrap();
        log.sync_all().unwrap();
    };
    std::thread::scope(|threads| {
        for mount in 0..3 {
            let add = &add;
            threads.spawn(move || add(mount));
        }
    });
    for mount in 0..3 {
        assert_eq!(fs::read_to_string(site.path(mount, "counter")).unwrap(), (3 * TURNS).to_string());
        let log = fs::read_to_string(site.path(mount, "log")).unwrap();
        assert_eq!(log.lines().count(), 3 * TURNS, "{log}");
        assert!(log.lines().all(|line| line.len() == 5), "{log}");
    }
    // What was synced is there after the metadata server and a target were killed.
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).open(site.path(1, "synced")).unwrap();
    file.write_all_at(&pattern(3, 1 << 20), 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(site.path(0, "synced")).unwrap().len(), 1 << 20);
    drop(file);
    site.lab.meta.kill();
    site.lab.storage[0].kill();
    site.lab.start_storage(0);
    site.lab.start_meta();
    assert!(fs::read(site.path(2, "synced")).unwrap() == pattern(3, 1 << 20));
    site.lab.stop();
}

#[test]
fn it_neither_recalls_others_nor_is_recalled_for_what_it_caches() {
    if !can_mount("close-to-open") {
        return;
    }
    let mut site = Site::start(2, 1);
    fs::create_dir(site.path(0, "shared")).unwrap();
    const FILES: usize = 40;
    let name = |at: usize| format!("shared/f{at}");
    for at in 0..FILES {
        fs::write(site.path(0, &name(at)), pattern(at as u8, 300)).unwrap();
    }
    // One mount makes, changes and removes; the other looks at all of it in between: how often are both asked for what they cache?
    let share = |site: &Site, reader: usize| {
        let before = (site.counts(0), site.counts(reader));
        for turn in 0..FILES {
            let (own, other) = (name(turn), name((turn + 1) % FILES));
            assert!(fs::metadata(site.path(reader, &own)).is_ok());
            assert!(fs::read(site.path(reader, &other)).is_ok());
            fs::write(site.path(0, &format!("shared/n{turn}")), b"new").unwrap();
            let changed = OpenOptions::new().write(true).open(site.path(0, &other)).unwrap();
            changed.write_all_at(&pattern(turn as u8, 310), 0).unwrap();
            drop(changed);
            fs::remove_file(site.path(0, &format!("shared/n{turn}"))).unwrap();
        }
        let (own, other) = (site.counts(0).since(&before.0), site.counts(reader).since(&before.1));
        (own.kind("meta", "recall_done"), other.kind("meta", "recall_done"), other.to("meta"))
    };
    let strict = share(&site, 1);
    // What the other strict mount has cached would be recalled in the next round, too.
    site.lab.mounts[1].stop();
    let loose = share(&site, 2);
    println!(
        "recalls answered by writer and reader, and calls of the reader to metadata: strict {strict:?}, close-to-open {loose:?}"
    );
    assert_eq!((loose.0, loose.1), (0, 0), "recalls by and of a mount that is close-to-open");
    assert!(strict.1 >= FILES as u64, "{strict:?}");
    assert!(loose.2 < strict.2, "{strict:?} {loose:?}");
    // A reader beside a writer: the writer keeps his lease, and is asked how far he is now and then only.
    let writer = File::create(site.path(0, "grows")).unwrap();
    writer.write_all_at(&pattern(1, 1 << 20), 0).unwrap();
    let before = site.counts(0);
    let begun = Instant::now();
    let reader = File::open(site.path(2, "grows")).unwrap();
    let mut piece = vec![0; 4096];
    for at in 0..200u64 {
        writer.write_all_at(&pattern(at as u8, 4096), (1 << 20) + at * 4096).unwrap();
        reader.read_at(&mut piece, at * 4096).unwrap();
        fs::metadata(site.path(2, "grows")).unwrap();
    }
    let own = site.counts(0).since(&before);
    let questions = begun.elapsed().as_secs() + 2;
    assert!(own.kind("meta", "recall_done") <= questions, "{own:?} in {:?}", begun.elapsed());
    assert_eq!(own.kind("meta", "acquire_data"), 0, "the lease of the writer was taken: {own:?}");
    drop((writer, reader));
    site.lab.stop();
}

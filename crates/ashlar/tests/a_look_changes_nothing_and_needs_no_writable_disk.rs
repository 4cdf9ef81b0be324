//! `ashlar fsck` without `--repair` and `ashlar backup` change nothing, and work on a disk that cannot be written to.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Site, can_mount};

/// Every file below `directory` with its content; of locks only that they are there, because they tell who looked last.
fn content(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(content(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            let is_lock = path.file_name().is_some_and(|name| name == "lock");
            found.insert(path, (!is_lock).then_some(bytes));
        }
    }
    found
}

fn both(site: &Site) -> [BTreeMap<PathBuf, Option<Vec<u8>>>; 2] {
    ["d1", "d2"].map(|name| content(&site.path(name)))
}

/// A file system whose server was killed, so that the logs hold something.
fn killed() -> Site {
    let site = Site::with_files();
    let server = site.up("up @mnt --data @d1 --data @d2");
    fs::write(site.mnt().join("newest"), support::big()).unwrap();
    fs::rename(site.mnt().join("dir/small"), site.mnt().join("dir/renamed")).unwrap();
    server.end_by(libc::SIGKILL);
    site
}

#[test]
fn fsck_without_repair_emptied_the_logs_and_removed_a_keyspace() {
    if !can_mount("what a look changes") {
        return;
    }
    let site = killed();
    let before = both(&site);
    let told = site.run("fsck --data @d1 --data @d2").expect(0);
    assert!(told.stdout.contains("clean"), "{}", told.all());
    site.run("backup --data @d1 --data @d2 @backup").expect(0);
    assert!(both(&site) == before, "something changed");

    // The one that holds everything but for its file `current`.
    let current = site.path("d1/meta/engine/keyspaces/1/current");
    let bytes = fs::read(&current).unwrap();
    fs::remove_file(&current).unwrap();
    let damaged = both(&site);
    for line in
        ["fsck --data @d1 --data @d2", "fsck --repair --data @d1 --data @d2", "backup --data @d1 @other"]
    {
        let told = site.run(line);
        assert!(
            told.code != Some(0) && told.stderr.contains("keyspaces/1/current is missing"),
            "{}",
            told.all()
        );
    }
    let refused = site.run("up @mnt --data @d1 --data @d2");
    let refused = refused.refused(&["keyspaces/1/current is missing", "ashlar restore"]);
    assert!(!refused.stderr.contains("give-up-log-from"), "{}", refused.all());
    assert!(both(&site) == damaged, "something changed");
    fs::write(&current, bytes).unwrap();
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert_eq!(fs::read(site.mnt().join("newest")).unwrap(), support::big());
    assert_eq!(fs::read(site.mnt().join("dir/renamed")).unwrap(), b"small content");
    server.stop();
}

#[test]
fn a_renamed_file_was_back_and_repair_repeated_itself_after_a_journal_was_lost() {
    if !can_mount("lost journals") {
        return;
    }
    let site = killed();
    for engine in ["d1/meta/engine", "d1/target/index/engine"] {
        fs::remove_file(site.path(engine).join("0.jnl")).unwrap();
    }
    site.run("up @mnt --data @d1 --data @d2")
        .refused(&["meta/engine/0.jnl is missing", "ashlar fsck --repair"]);
    let told = site.run("fsck --data @d1 --data @d2").expect(4);
    assert!(told.stdout.contains("[metadata]") && told.stdout.contains("2 problems found"), "{}", told.all());
    let told = site.run("fsck --repair --data @d1 --data @d2").expect(1);
    assert!(told.stdout.contains("2 problems repaired, none left"), "{}", told.all());
    site.run("fsck --data @d1 --data @d2").expect(0);
    for _ in 0..2 {
        let server = site.up("up @mnt --data @d1 --data @d2");
        assert_eq!(fs::read(site.mnt().join("newest")).unwrap(), support::big());
        assert_eq!(fs::read(site.mnt().join("dir/renamed")).unwrap(), b"small content");
        assert!(!site.mnt().join("dir/small").exists());
        server.stop();
    }
    site.run("fsck --data @d1 --data @d2").expect(0);
}

/// Makes `d1` read-only for as long as it lives.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn new(path: PathBuf) -> ReadOnly {
        let mount = |args: &[&str]| {
            assert!(
                Command::new("mount").args(args).arg(&path).status().unwrap().success(),
                "mount {args:?}"
            );
        };
        mount(&["--bind", path.to_str().unwrap()]);
        mount(&["-o", "remount,bind,ro"]);
        ReadOnly(path)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_read_only_disk_could_be_neither_checked_nor_backed_up_nor_mounted_read_only() {
    if !can_mount("a look at a read-only disk") {
        return;
    }
    let site = killed();
    let read_only = ["d1", "d2"].map(|name| ReadOnly::new(site.path(name)));
    site.run("fsck --data @d1 --data @d2").expect(0);
    site.run("backup --data @d1 --data @d2 @backup").expect(0);
    let refused = site.run("up @mnt --data @d1 --data @d2").refused(&["read-only", "ashlar backup"]);
    assert!(!refused.stderr.contains("damaged,"), "{}", refused.all());
    for _ in 0..2 {
        let server = site.up("up --read-only @mnt --data @d1 --data @d2");
        assert_eq!(fs::read(site.mnt().join("newest")).unwrap(), support::big());
        assert_eq!(fs::read(site.mnt().join("dir/renamed")).unwrap(), b"small content");
        // What would be acknowledged now would be lost.
        let (path, none) = (CString::new(site.mnt().to_str().unwrap()).unwrap(), std::ptr::null());
        // SAFETY: the path ends with a NUL and outlives the call; a remount reads no source, type or data.
        assert_eq!(unsafe { libc::mount(none, path.as_ptr(), none, libc::MS_REMOUNT, none.cast()) }, 0);
        for refused in [
            fs::write(site.mnt().join("other"), b"new"),
            fs::OpenOptions::new().append(true).open(site.mnt().join("newest")).map(drop),
            fs::remove_file(site.mnt().join("newest")),
            fs::rename(site.mnt().join("newest"), site.mnt().join("older")),
        ] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
        }
        server.stop();
    }
    fs::create_dir(site.path("d3")).unwrap();
    site.run("up --read-only @mnt --data @d1 --data @d2 --data @d3").refused(&["there is no target at"]);
    drop(read_only);
    fs::remove_dir_all(site.path("d1/meta")).unwrap();
    site.run("restore @backup --meta @d1/meta").expect(0);
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert_eq!(fs::read(site.mnt().join("newest")).unwrap(), support::big());
    server.stop();
}

/// A local file system of its own in a file of `site`, for as long as it lives.
struct Small(PathBuf);

impl Small {
    fn new(site: &Site, name: &str, mib: u64) -> Small {
        let (image, path) = (site.path("image"), site.path(name));
        fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        fs::create_dir_all(&path).unwrap();
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            let ended = Command::new(program).args(args).output().unwrap();
            assert!(ended.status.success(), "{program}: {}", String::from_utf8_lossy(&ended.stderr));
        };
        run("mkfs.ext4", &["-q".as_ref(), "-m".as_ref(), "0".as_ref(), image.as_ref()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), path.as_ref()]);
        Small(path)
    }

    /// Leaves no byte to others.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        for block in [1 << 20, 4096] {
            while std::io::Write::write_all(&mut file, &vec![1; block]).is_ok() {}
        }
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_start_on_a_full_disk_called_it_damaged_and_offered_to_give_up_the_log() {
    if !can_mount("a start on a full disk") {
        return;
    }
    let site = Site::new();
    let disk = Small::new(&site, "small", 400);
    let server = site.up("up @mnt --meta @small/meta --data @d2");
    for number in 0..100 {
        fs::write(site.mnt().join(format!("f{number}")), vec![number; 50_000]).unwrap();
    }
    server.end_by(libc::SIGKILL);
    let filler = disk.fill();
    site.run("fsck --meta @small/meta --data @d2").expect(0);
    // The space that was kept back is for this; then it is used up.
    let server = site.up("up @mnt --meta @small/meta --data @d2");
    fs::remove_file(site.mnt().join("f0")).unwrap();
    server.end_by(libc::SIGKILL);
    disk.fill();
    let refused = site.run("up @mnt --meta @small/meta --data @d2").refused(&["disk is full", "make room"]);
    assert!(!refused.stderr.contains("give-up-log-from"), "{}", refused.all());
    // A few MiB are enough to delete more.
    let file = fs::OpenOptions::new().write(true).open(&filler).unwrap();
    file.set_len(file.metadata().unwrap().len() - (8 << 20)).unwrap();
    let server = site.up("up @mnt --meta @small/meta --data @d2");
    fs::remove_file(site.mnt().join("f1")).unwrap();
    server.stop();
    fs::remove_file(filler).unwrap();
    let server = site.up("up @mnt --meta @small/meta --data @d2");
    for number in 2..100 {
        assert_eq!(fs::read(site.mnt().join(format!("f{number}"))).unwrap(), vec![number; 50_000]);
    }
    assert!(!site.mnt().join("f0").exists() && !site.mnt().join("f1").exists());
    server.stop();
    site.run("fsck --meta @small/meta --data @d2").expect(0);
}

#[test]
fn a_target_on_a_full_disk_was_called_damaged_and_lost_its_index_to_a_repair() {
    if !can_mount("a target on a full disk") {
        return;
    }
    let site = Site::new();
    let disk = Small::new(&site, "small", 300);
    let up = "up @mnt --data @d1 --data @small";
    let server = site.up(up);
    site.write_files();
    server.end_by(libc::SIGKILL);
    let filler = disk.fill();
    // The space that was kept back is for this, until it is used up.
    let refused = (0..5).find_map(|_| match site.try_up(up) {
        Ok(server) => {
            server.end_by(libc::SIGKILL);
            disk.fill();
            None
        }
        Err(ended) => Some(ended),
    });
    let refused = refused.unwrap().refused(&["small/target", "disk is full", "make room"]);
    assert!(!refused.stderr.contains("fsck --repair"), "{}", refused.all());
    let told = site.run("fsck --repair --data @d1 --data @small").expect(8);
    assert!(told.stderr.contains("o space"), "{}", told.all());
    assert!(!site.path("small/target/index.damaged").exists());
    fs::remove_file(filler).unwrap();
    let server = site.up(up);
    assert!(site.has_files());
    server.stop();
    site.run("fsck --data @d1 --data @small").expect(0);
}

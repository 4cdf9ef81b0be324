//! `ashlar backup` and `ashlar restore`: everything comes back, and what is newer than the backup does no harm.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use support::{Site, can_mount, flip};

#[test]
fn files_links_and_attributes_are_there_after_a_restore() {
    if !can_mount("restore") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1 --data @d2");
    site.write_files();
    fs::hard_link(site.mnt().join("dir/small"), site.mnt().join("hard")).unwrap();
    std::os::unix::fs::symlink("dir/small", site.mnt().join("soft")).unwrap();
    let before = fs::metadata(site.mnt().join("hard")).unwrap();
    server.stop();
    let told = site.run("backup --data @d1 --data @d2 @backup").expect(0);
    assert!(told.stdout.contains("records"), "{}", told.all());
    assert_eq!(fs::metadata(site.path("backup")).unwrap().mode() & 0o777, 0o600, "it holds secrets");
    site.run("backup --data @d1 @backup").refused(&["is there already"]);
    for part in ["@d1/meta/backup", "@d2/target/backup"] {
        site.run(&format!("backup --data @d1 --data @d2 {part}")).refused(&["would be inside", "elsewhere"]);
        assert!(!site.path(&part[1..]).exists());
    }
    fs::remove_dir_all(site.path("d1/meta")).unwrap();
    site.run("up @mnt --data @d1 --data @d2").refused(&["ashlar restore"]);
    site.run("restore @backup --meta @new/meta").expect(0);
    site.run("restore @backup --meta @new/meta").refused(&["is not empty"]);
    // What a restore has left that was killed before its last step.
    site.copy("new/meta", "rest");
    fs::rename(site.path("rest/cluster-state"), site.path("rest/cluster-state.new")).unwrap();
    site.run("restore @backup --meta @rest").refused(&["did not end", "remove it"]);
    let server = site.up("up @mnt --meta @new/meta --data @d1 --data @d2");
    assert!(site.has_files());
    assert_eq!(fs::read_link(site.mnt().join("soft")).unwrap().to_str(), Some("dir/small"));
    let after = fs::metadata(site.mnt().join("hard")).unwrap();
    assert_eq!((before.ino(), before.nlink(), before.mtime()), (after.ino(), after.nlink(), after.mtime()));
    server.stop();
    site.run("fsck --meta @new/meta --data @d1 --data @d2").expect(0);
}

#[test]
fn directories_say_after_a_restore_as_before_where_new_ones_go() {
    if !can_mount("restore of choices of places") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    for (name, choice) in [("inherits", "inherit"), ("pinned", "shard-7"), ("again", "shard-9")] {
        fs::create_dir(site.mnt().join(name)).unwrap();
        site.run(&format!("layout set @mnt/{name} --directories {choice}")).expect(0);
    }
    fs::create_dir(site.mnt().join("pinned/below")).unwrap();
    site.run("layout set @mnt/again --directories round-robin").expect(0);
    server.stop();
    site.run("backup --data @d1 @backup").expect(0);
    fs::remove_dir_all(site.path("d1/meta")).unwrap();
    site.run("restore @backup --meta @d1/meta").expect(0);
    let server = site.up("up @mnt --data @d1");
    let expected = [
        ("inherits", "inherit"),
        ("pinned", "shard-7"),
        ("pinned/below", "shard-7"),
        ("again", "round-robin"),
    ];
    for (name, choice) in expected {
        let shown = site.run(&format!("layout show @mnt/{name}")).expect(0).stdout;
        assert!(shown.contains(&format!("directories: {choice}\n")), "{name}: {shown}");
    }
    let shard = |path: &str| fs::metadata(site.mnt().join(path)).unwrap().ino() >> 48;
    for path in ["inherits/new", "pinned/new", "pinned/below/new"] {
        fs::create_dir(site.mnt().join(path)).unwrap();
    }
    assert_eq!(shard("inherits/new"), shard("inherits"));
    assert_eq!((shard("pinned/new"), shard("pinned/below/new")), (7, 7));
    server.stop();
}

#[test]
fn chunks_newer_than_the_backup_never_show_in_new_files() {
    if !can_mount("restore of older metadata") {
        return;
    }
    let site = Site::with_files();
    site.run("backup --data @d1 --data @d2 @backup").expect(0);
    fs::create_dir(site.path("d3")).unwrap();
    let server = site.up("up @mnt --data @d1 --data @d2 --data @d3");
    for number in 0..6 {
        fs::write(site.mnt().join(format!("newer{number}")), support::big()).unwrap();
    }
    server.stop();
    fs::remove_dir_all(site.path("d1/meta")).unwrap();
    site.run("restore @backup --meta @meta").expect(0);
    let server = site.up("up @mnt --meta @meta --data @d3 --data @d2 --data @d1");
    assert!(site.has_files());
    // These get the inode numbers the lost ones had, and are full of holes.
    for number in 0..8 {
        let path = site.mnt().join(format!("holes{number}"));
        let file = fs::File::create(&path).unwrap();
        file.set_len(support::big().len() as u64 - 1).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, b"end", support::big().len() as u64 - 1).unwrap();
        drop(file);
        let content = fs::read(&path).unwrap();
        assert!(
            content[..content.len() - 3].iter().all(|byte| *byte == 0),
            "old bytes in {}",
            path.display()
        );
    }
    let ended = server.end_by(libc::SIGTERM).expect(0);
    assert!(ended.stderr.contains("first start after a restore"), "{}", ended.all());
    site.run("fsck --meta @meta --data @d1 --data @d2 --data @d3").expect(0);
}

#[test]
fn a_backup_of_mounts_that_had_not_ended_leaves_no_wrong_block_counts() {
    if !can_mount("restore of a backup after a crash") {
        return;
    }
    let site = Site::new();
    let mut server = site.up("up @mnt --data @d1 --data @d2");
    site.write_files();
    let open = fs::File::create(site.mnt().join("open")).unwrap();
    open.write_all_at(&support::big(), 0).unwrap();
    // SAFETY: kill takes no pointer; the process is a child that was not waited for.
    unsafe { libc::kill(server.pid(), libc::SIGKILL) };
    server.wait();
    drop(open);
    site.run("umount @mnt").expect(0);
    drop(server);
    site.run("backup --data @d1 --data @d2 @backup").expect(0);
    // Other content since: its chunks are not those that the backup knows.
    let server = site.up("up @mnt --data @d1 --data @d2");
    fs::write(site.mnt().join("dir/sub/big"), support::big()).unwrap();
    server.stop();

    fs::remove_dir_all(site.path("d1/meta")).unwrap();
    site.run("restore @backup --meta @meta").expect(0);
    let server = site.up("up @mnt --meta @meta --data @d1 --data @d2");
    assert!(fs::read(site.mnt().join("open")).unwrap() == support::big());
    assert_eq!(fs::metadata(site.mnt().join("dir/sub/big")).unwrap().blocks(), 0);
    server.stop();
    site.run("fsck --meta @meta --data @d1 --data @d2").expect(0);
}

#[test]
fn lost_secrets_and_state_come_back_without_touching_the_metadata() {
    if !can_mount("restore of state files") {
        return;
    }
    let site = Site::with_files();
    site.run("backup --data @d1 --data @d2 @backup").expect(0);
    let server = site.up("up @mnt --data @d1 --data @d2");
    fs::write(site.mnt().join("newer"), b"made after the backup").unwrap();
    server.stop();
    fs::remove_file(site.path("d1/meta/secrets")).unwrap();
    flip(&site.path("d1/meta/cluster-state"), 40);
    site.run("up @mnt --data @d1 --data @d2").refused(&["cluster-state", "ashlar restore"]);
    site.run("restore --state-only @backup --meta @d1/meta").expect(0);
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files());
    assert_eq!(fs::read(site.mnt().join("newer")).unwrap(), b"made after the backup");
    server.stop();
    site.run("restore --state-only @backup --meta @d2").refused(&["has no engine"]);
}

#[test]
fn a_damaged_backup_is_refused_before_anything_is_made() {
    if !can_mount("damaged backups") {
        return;
    }
    let site = Site::with_files();
    site.run("backup --data @d1 --data @d2 @backup").expect(0);
    let len = fs::metadata(site.path("backup")).unwrap().len();
    for at in [0, 9, 50, len / 2, len - 1] {
        flip(&site.path("backup"), at);
        site.run("restore @backup --meta @meta").refused(&["the backup", "cannot be used"]);
        assert!(!site.path("meta").exists(), "flip at {at}");
        flip(&site.path("backup"), at);
    }
    fs::OpenOptions::new().write(true).open(site.path("backup")).unwrap().set_len(len - 20).unwrap();
    site.run("restore @backup --meta @meta").refused(&["cut off"]);
    site.run("restore @nowhere --meta @meta").refused(&["nowhere", "No such file"]);
    site.run("backup --data @mnt @other").refused(&["there is no file system at"]);
}

#[test]
fn of_two_backups_to_one_file_at_once_one_is_refused() {
    if !can_mount("two backups at once") {
        return;
    }
    let site = Site::with_files();
    site.up("up @mnt --data @other").stop();
    for round in 0..3 {
        let both: Vec<_> = ["backup --data @d1 --data @d2", "backup --data @other"]
            .map(|line| format!("{line} @backup{round}"))
            .map(|line| {
                let args = site.args(&line);
                std::thread::spawn(move || support::ashlar(&args))
            })
            .into_iter()
            .map(|running| running.join().unwrap())
            .collect();
        let saved = both.iter().filter(|ended| ended.code == Some(0)).count();
        let refused = |ended: &support::Ended| {
            ended.stderr.contains("meanwhile; name another") || ended.stderr.contains("is there already")
        };
        assert!(saved == 1 && both.iter().any(refused), "{}{}", both[0].all(), both[1].all());
    }
    let left =
        fs::read_dir(site.path("")).unwrap().flatten().filter(|entry| entry.path().extension().is_some());
    assert_eq!(left.count(), 0, "nothing half made is left");
}

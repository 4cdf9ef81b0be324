//! Goal: where a storage server or a metadata server loses its power, and with it what programs had written and not synced, their next fsync says so, once through each open file, and no other fsync does: not after the death of the process alone, nor of what was synced before. The same where its disk
//! fails for a moment: a target stops then, and whoever starts it again finds the same machine and the same mount. Method: real processes and a
//! mount that lives on; the target is on a disk of its own that fails without writing its log, or has no room for a while.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::cluster::Lab;
use support::disk::{Disk, RefusingDisk, cut_power};
use support::{can_mount, can_start, has_package};

const LEN: usize = 3 << 20;

fn content(version: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at as u8).wrapping_mul(31) ^ version.wrapping_mul(101)).collect()
}

fn make(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

/// A lab with one storage server, whose target is on a disk of its own, which `mount` mounts at a path.
fn lab_on_a_disk<D>(mount: impl FnOnce(PathBuf) -> D) -> (Lab, D) {
    let mut lab = Lab::start(1, 1);
    lab.storage[0].stop();
    let disk = mount(lab.path("disk"));
    support::finish(Command::new("cp").arg("-a").arg(lab.path("d0/.")).arg(lab.path("disk"))).expect(0);
    support::finish(Command::new("sync").arg("-f").arg(lab.path("disk"))).expect(0);
    fs::rename(lab.path("d0"), lab.path("before")).unwrap();
    symlink(lab.path("disk"), lab.path("d0")).unwrap();
    lab.start_storage(0);
    (lab, disk)
}

#[track_caller]
fn assert_lost(synced: io::Result<()>) {
    assert_eq!(synced.unwrap_err().raw_os_error(), Some(libc::EIO));
}

fn can_run(what: &str) -> bool {
    can_mount(what) && has_package("a disk that fails", "e2fsprogs", can_start("mkfs.ext4", "-V"))
}

#[test]
fn an_fsync_tells_what_a_storage_server_has_lost_with_its_power() {
    if !can_run("a server that loses its power") {
        return;
    }
    let images = tempfile::tempdir().unwrap();
    let (mut lab, mut disk) = lab_on_a_disk(|point| Disk::mount(&images.path().join("image"), point));
    let path = |name: &str| lab.path("m0").join(name);
    let (file, other) = (make(&path("file")), File::options().write(true).open(path("file")).unwrap());
    let (synced, closed) = (make(&path("synced")), make(&path("closed")));
    for (file, is_synced) in [(&file, false), (&synced, true), (&closed, false)] {
        file.write_all_at(&content(1), 0).unwrap();
        if is_synced {
            file.sync_all().unwrap();
        }
    }
    drop(closed);

    // The process alone.
    lab.storage[0].kill();
    lab.start_storage(0);
    file.sync_all().unwrap();
    File::open(lab.path("m0/closed")).unwrap().sync_all().unwrap();

    for name in ["file", "closed"] {
        File::options()
            .write(true)
            .open(lab.path("m0").join(name))
            .unwrap()
            .write_all_at(&content(2), 0)
            .unwrap();
    }
    disk.fail();
    lab.storage[0].kill();
    disk.repair();
    lab.start_storage(0);
    assert_lost(file.sync_all());
    file.sync_all().unwrap();
    assert_lost(other.sync_all());
    other.sync_data().unwrap();
    // Whoever syncs a file that others have written and closed.
    let closed = File::open(lab.path("m0/closed")).unwrap();
    assert_lost(closed.sync_all());
    closed.sync_all().unwrap();
    synced.sync_all().unwrap();
    assert_eq!(fs::read(lab.path("m0/synced")).unwrap(), content(1));

    // Written once more, it is durable.
    file.write_all_at(&content(3), 0).unwrap();
    file.sync_all().unwrap();
    disk.fail();
    lab.storage[0].kill();
    disk.repair();
    lab.start_storage(0);
    other.sync_all().unwrap();
    let (mut found, file) = (vec![0; LEN], File::open(lab.path("m0/file")).unwrap());
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == content(3), "what was synced after the loss");
    drop((file, other, synced, closed));
    lab.stop();
    drop(disk);
}

#[test]
fn an_fsync_tells_what_a_disk_has_lost_that_failed_for_a_moment() {
    if !can_run("a disk that fails for a moment") {
        return;
    }
    let images = tempfile::tempdir().unwrap();
    let mount = |point| RefusingDisk::mount(images.path().join("memory"), point);
    let (mut lab, disk) = lab_on_a_disk(mount);
    let path = |name: &str| lab.path("m0").join(name);
    let synced = make(&path("synced"));
    synced.write_all_at(&content(1), 0).unwrap();
    synced.sync_all().unwrap();

    let (file, other) = (make(&path("file")), make(&path("other")));
    disk.refuse();
    file.write_all_at(&content(2), 0).unwrap();
    other.write_all_at(&content(2), 0).unwrap();
    // What the server has told nobody is lost: it says so to whoever asks now, and stops.
    assert_lost(other.sync_all());
    disk.take();
    lab.storage[0].kill();
    lab.start_storage(0);

    // To whoever asks later it is told by the next process, which has found the same machine and the same mount.
    assert_lost(file.sync_all());
    file.sync_all().unwrap();
    synced.sync_all().unwrap();
    assert_eq!(fs::read(lab.path("m0/synced")).unwrap(), content(1));

    file.write_all_at(&content(3), 0).unwrap();
    file.sync_all().unwrap();
    lab.storage[0].kill();
    lab.start_storage(0);
    file.sync_all().unwrap();
    let mut found = vec![0; LEN];
    File::open(lab.path("m0/file")).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert!(found == content(3), "what was synced after the loss");
    drop((file, other, synced));
    lab.stop();
    drop(disk);
}

/// Cuts the power of the disk of the metadata server that is kept, and waits until that serves again: by no process of this one, which would close files on its way and wait for that server.
fn cut_power_of_meta(lab: &Lab) {
    fs::write(lab.path("cut"), "").unwrap();
    cut_power(&lab.path("disk"));
    let starts = || lab.meta.text().matches("serves").count();
    let before = starts();
    // SAFETY: its parent waits for it and then writes the next one's id.
    unsafe { libc::kill(lab.kept_meta(), libc::SIGKILL) };
    let deadline = Instant::now() + support::PATIENCE;
    while starts() == before || lab.path("cut").exists() {
        assert!(Instant::now() < deadline, "does not come back: {}", lab.meta.text());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Cuts the power right after files were made, and checks what their fsyncs tell; the files. Also changes `small`, whose fsync is left.
fn lose_open_files(lab: &Lab, small: &File) -> Vec<File> {
    let mut files = Vec::new();
    // The server makes its log durable every second: where this machine is slow, nothing is gone, and it is lost as far as anybody knows.
    let is_gone = (0..5).any(|turn| {
        let path = |name: &str| lab.path(&format!("m0/{name}{turn}"));
        let [chunks, later, gone] = ["chunks", "later", "gone"].map(|name| make(&path(name)));
        chunks.write_all_at(&content(1)[..LEN / 6], 0).unwrap();
        small.write_all_at(b"fifth", 0).unwrap();
        let given_up = || lab.mounts[0].text().matches("is not good any more").count();
        let given_up_before = given_up();
        cut_power_of_meta(lab);
        assert_lost(gone.sync_all());
        let is_gone = !["chunks", "later"].iter().any(|name| path(name).exists());
        // The first may come before the mount has given up what it has cached of it; these come afterwards.
        let deadline = Instant::now() + support::PATIENCE;
        while is_gone && given_up() < given_up_before + 3 {
            assert!(Instant::now() < deadline, "nothing is given up: {}", lab.mounts[0].text());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_lost(chunks.sync_all());
        assert_lost(later.sync_all());
        if is_gone {
            let again = later.sync_all().unwrap_err();
            assert_eq!(again.raw_os_error(), Some(libc::ENOENT), "once, and it is gone");
        }
        files.extend([chunks, later, gone]);
        is_gone
    });
    eprintln!("files that are open are gone: {is_gone}");
    files
}

#[test]
fn an_fsync_tells_what_a_metadata_server_has_lost_with_its_power() {
    if !can_run("a metadata server that loses its power") {
        return;
    }
    let images = tempfile::tempdir().unwrap();
    let image = images.path().join("image");
    let mut lab = Lab::start(1, 1);
    lab.meta.stop();
    let disk = Disk::mount(&image, lab.path("disk"));
    support::finish(Command::new("cp").arg("-a").arg(lab.path("meta/.")).arg(lab.path("disk"))).expect(0);
    support::finish(Command::new("sync").arg("-f").arg(lab.path("disk"))).expect(0);
    fs::rename(lab.path("meta"), lab.path("before")).unwrap();
    symlink(lab.path("disk"), lab.path("meta")).unwrap();
    // As another disk: programs of other tests may have this one in name spaces of their own, and would keep it as it is.
    let again = format!(
        "if [ -e {cut} ]; then umount {point}; cp --sparse=always {image} {image}.$$.$n; \
         mount -o loop {image}.$$.$n {point}; image={image}.$$.$n; n=$n.; rm {cut}; fi",
        cut = lab.path("cut").display(),
        point = lab.path("disk").display(),
        image = "$image",
    );
    lab.keep_meta_with(&format!("image=${{image:-{}}}; {again}", image.display()));
    lab.mounts[0].stop();
    lab.mounts[0] = lab.run("keeping", "mount @m0 --identity @c0 --keep 60 --error-after 60", "mounted");
    let mount = lab.path("m0");
    let path = |name: &str| mount.join(name);
    fs::create_dir(path("dir")).unwrap();
    let (kept, small) = (make(&path("kept")), make(&path("small")));
    for file in [&kept, &small] {
        file.write_all_at(b"first", 0).unwrap();
        file.sync_all().unwrap();
    }
    let directory = File::open(path("dir")).unwrap();
    directory.sync_all().unwrap();

    // The process alone.
    small.write_all_at(b"again", 0).unwrap();
    lab.restart_kept_meta();
    small.sync_all().unwrap();
    directory.sync_all().unwrap();

    let other = File::options().write(true).open(path("small")).unwrap();
    small.write_all_at(b"other", 0).unwrap();
    fs::write(path("dir/name"), "").unwrap();
    cut_power_of_meta(&lab);
    assert_lost(small.sync_all());
    small.sync_all().unwrap();
    assert_lost(other.sync_all());
    other.sync_data().unwrap();
    assert_lost(directory.sync_all());
    directory.sync_all().unwrap();
    kept.sync_all().unwrap();
    assert_eq!(fs::read(path("kept")).unwrap(), b"first");

    // Made once more, it is durable, and a loss of nothing is not told.
    small.write_all_at(b"third", 0).unwrap();
    small.sync_all().unwrap();
    fs::write(path("dir/name"), "").unwrap();
    directory.sync_all().unwrap();
    cut_power_of_meta(&lab);
    small.sync_all().unwrap();
    directory.sync_all().unwrap();
    assert_eq!(fs::read(path("small")).unwrap(), b"third");
    assert!(path("dir/name").exists());

    // What is gone altogether is told, too, and by a program that has taken the place of the one that has heard of it.
    let files = lose_open_files(&lab, &small);
    let mounted = || lab.mounts[0].text().matches("mounted ").count();
    let before = mounted();
    // SAFETY: a process of this one that was not waited for.
    unsafe { libc::kill(lab.mounts[0].id() as i32, libc::SIGUSR2) };
    let deadline = Instant::now() + support::PATIENCE;
    while mounted() == before {
        assert!(Instant::now() < deadline, "does not give way: {}", lab.mounts[0].text());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_lost(small.sync_all());
    small.sync_all().unwrap();
    directory.sync_all().unwrap();
    drop((kept, small, other, directory, files));
    lab.stop_kept();
    drop(disk);
}

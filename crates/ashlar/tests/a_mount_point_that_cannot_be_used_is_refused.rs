//! Every way in which a mount point can be unfit is told with the way out; signals end a mount cleanly; a dead one can be cleaned up.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use support::{Site, can_mount, is_mounted};

#[test]
fn a_mount_point_that_is_missing_a_file_or_not_empty_is_named_with_the_remedy() {
    if !can_mount("unfit mount points") {
        return;
    }
    let site = Site::new();
    let missing = site.path("nowhere").display().to_string();
    site.run("up @nowhere --data @d1").refused(&[&missing, "mkdir -p"]);
    fs::write(site.path("file"), b"").unwrap();
    site.run("up @file --data @d1").refused(&["is not a directory"]);
    fs::write(site.mnt().join("content"), b"").unwrap();
    site.run("up @mnt --data @d1").refused(&["is not empty"]);
    fs::remove_file(site.mnt().join("content")).unwrap();
    site.run("up @d1 --data @d1").refused(&["would be hidden by the mount", "outside"]);
    site.run("up @d1 --data @d2 --meta @d1/meta").refused(&["would be hidden by the mount"]);
    site.run("up @mnt @d1/../mnt --data @d2").refused(&["is listed twice"]);
    assert_eq!(fs::read_dir(site.path("d2")).unwrap().count(), 0, "a start that is refused has made nothing");
    site.run("up @mnt --data @d1/one/two").refused(&["there is no directory", "d1/one", "mkdir -p"]);
    for name in ["d1", "d2"] {
        assert_eq!(fs::read_dir(site.path(name)).unwrap().count(), 0, "a refused start makes nothing");
    }
    // What was refused has not harmed the file system.
    site.up("up @mnt --data @d1").stop();
}

#[test]
fn signals_end_a_mount_cleanly_and_what_was_written_is_there_at_the_next_start() {
    if !can_mount("signals") {
        return;
    }
    let site = Site::new();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let server = site.up("up @mnt --data @d1 --data @d2");
        site.write_files();
        let ended = server.end_by(signal).expect(0);
        assert!(!is_mounted(&site.mnt()), "{}", ended.all());
        let server = site.up("up @mnt --data @d2 --data @d1");
        assert!(site.has_files(), "after signal {signal}");
        server.stop();
    }
}

#[test]
fn a_second_server_is_told_who_has_the_mount_point_and_who_has_the_data() {
    if !can_mount("second server") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let mnt = site.mnt().display().to_string();
    site.run("up @mnt --data @d2").refused(&[&mnt, "already has a fuse.ashlar mount", "ashlar umount"]);
    fs::create_dir(site.path("other")).unwrap();
    let who = format!("ashlar up, process {}", server.pid());
    site.run("up @other --data @d1").refused(&["is in use by", &who]);
    for command in ["fsck --data @d1", "fsck --repair --data @d1"] {
        let ended = site.run(command).expect(8);
        assert!(ended.stderr.contains(&who), "{}", ended.all());
    }
    site.run("backup --data @d1 @backup").refused(&[&who]);
    server.stop();
}

#[test]
fn a_copy_of_a_file_system_beside_it_does_not_take_its_socket_away() {
    if !can_mount("copies that run together") {
        return;
    }
    let site = Site::new();
    site.up("up @mnt --data @d1").stop();
    site.copy("d1", "copy");
    fs::create_dir(site.path("other")).unwrap();
    let server = site.up("up @mnt --data @d1");
    let mut command = std::process::Command::new(support::binary());
    command.args(site.args("up @other --data @copy"));
    let copy =
        support::Server::start(command, site.path("other")).unwrap_or_else(|ended| panic!("{}", ended.all()));
    let metas = |mountpoint: &str| site.run(&format!("status --json {mountpoint}")).expect(0).stdout;
    assert!(metas("@mnt").contains("/d1/meta") && metas("@other").contains("/copy/meta"));
    let ended = copy.end_by(libc::SIGTERM).expect(0);
    let words = ["with the same id runs already", &format!("process {}", server.pid()), "/d1/meta"];
    assert!(words.iter().all(|word| ended.stderr.contains(word)), "{}", ended.all());
    assert!(metas("@mnt").contains("/d1/meta"));
    server.stop();
}

#[test]
fn after_a_kill_the_dead_mount_is_reported_and_umount_cleans_it() {
    if !can_mount("dead mounts") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1 --data @d2");
    site.write_files();
    let mut server = std::mem::ManuallyDrop::new(server);
    // SAFETY: kill takes no pointer; the process is our child.
    unsafe { libc::kill(server.pid(), libc::SIGKILL) };
    server.wait();
    assert!(is_mounted(&site.mnt()), "a killed server leaves its mount");
    site.run("up @mnt --data @d1 --data @d2").refused(&["whose server is gone", "ashlar umount"]);
    site.run("umount @mnt").expect(0);
    assert!(!is_mounted(&site.mnt()));
    site.run("umount @mnt").refused(&["nothing is mounted at"]);
    let again = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files(), "what was acknowledged survives a kill");
    again.stop();
    let ended = site.run("fsck --data @d1 --data @d2").expect(0);
    assert!(ended.stdout.contains("clean"), "{}", ended.all());
}

/// A server that was killed while a thread of it waited for a page of the kernel cannot be had at will; one that is stopped answers as little.
#[test]
fn who_waits_for_a_server_that_does_not_answer_is_let_go_by_umount() {
    if !can_mount("a server that does not answer") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    site.write_files();
    // SAFETY: kill takes no pointer; the process is our child.
    unsafe { libc::kill(server.pid(), libc::SIGSTOP) };
    let wanted = site.mnt().join("not looked up before");
    let waiting = std::thread::spawn(move || fs::metadata(wanted).map(drop));
    let ended = site.run("umount @mnt").expect(0);
    assert!(ended.stderr.contains("does not answer"), "{}", ended.all());
    assert!(!is_mounted(&site.mnt()));
    waiting.join().unwrap().expect_err("nobody has answered");
    // SAFETY: as above.
    unsafe { libc::kill(server.pid(), libc::SIGCONT) };
    server.end_by(0).expect(0);
    let again = site.up("up @mnt --data @d1");
    assert!(site.has_files());
    again.stop();
}

#[test]
fn umount_from_outside_ends_the_server() {
    if !can_mount("umount") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    site.run("umount @mnt").expect(0);
    server.end_by(0).expect(0);
}

#[test]
fn options_that_do_not_exist_are_refused() {
    for line in
        ["up", "up mnt --nonsense", "nonsense", "fsck --data", "restore file", "fsck --give-up-log-from 1"]
    {
        let ended = Site::new().run(line).expect(2);
        assert!(ended.stderr.contains("Usage") || ended.stderr.contains("--help"), "{}", ended.all());
    }
}

//! Goal: `ashlar promote` makes the file system of one machine one of many servers: every file is there, nothing was copied, `ashlar up` says what to do
//! instead, other machines join, and an attempt that was interrupted is begun anew.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use support::{PATIENCE, ashlar, binary, can_mount};

struct Role(Child, PathBuf);

impl Drop for Role {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            // SAFETY: it has not been waited for.
            unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
            let _ = self.0.wait();
        }
    }
}

/// Starts a role in `dir` and waits until it says `ready`.
#[track_caller]
fn start(dir: &Path, name: &str, line: &str, ready: &str) -> Role {
    let log = dir.join(format!("{name}.log"));
    let out = File::create(&log).unwrap();
    let mut command = Command::new(binary());
    command.current_dir(dir).args(line.split(' ')).stdin(Stdio::null());
    command.stdout(out.try_clone().unwrap()).stderr(out);
    let mut role = Role(command.spawn().unwrap(), log);
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_to_string(&role.1).unwrap().contains(ready) {
        let has_ended = role.0.try_wait().unwrap().is_some();
        let text = fs::read_to_string(&role.1).unwrap();
        assert!(!has_ended && Instant::now() < deadline, "{name} does not start: {text}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    role
}

fn fill(mnt: &Path) {
    fs::create_dir_all(mnt.join("a/b")).unwrap();
    for at in 0..40 {
        fs::write(mnt.join(format!("a/small{at}")), format!("content {at}")).unwrap();
    }
    let large = File::create(mnt.join("a/b/large")).unwrap();
    for at in 0..5u64 {
        large.write_all_at(&vec![at as u8 + 1; 1 << 20], at << 20).unwrap();
    }
    fs::hard_link(mnt.join("a/small0"), mnt.join("link")).unwrap();
    std::os::unix::fs::symlink("a/b/large", mnt.join("symlink")).unwrap();
}

fn check(mnt: &Path) {
    for at in 0..40 {
        assert_eq!(fs::read_to_string(mnt.join(format!("a/small{at}"))).unwrap(), format!("content {at}"));
    }
    let large = fs::read(mnt.join("symlink")).unwrap();
    assert_eq!(large.len(), 5 << 20);
    assert!(
        large.chunks(1 << 20).enumerate().all(|(at, part)| part.iter().all(|byte| *byte == at as u8 + 1))
    );
    assert_eq!(fs::metadata(mnt.join("link")).unwrap().nlink(), 2);
}

#[test]
fn every_file_is_there_and_nothing_was_copied() {
    if !can_mount("a machine that is promoted") {
        return;
    }
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    for name in ["d1", "d2", "mnt", "mnt2"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    let path = |name: &str| dir.join(name).display().to_string();
    let (d1, d2, mnt) = (path("d1"), path("d2"), path("mnt"));
    let single = format!("up --data {d1} --data {d2} {mnt}");
    let up = start(dir, "up", &single, "mounted");
    fill(&dir.join("mnt"));
    let port = support::cluster::Lab::free_address();
    let promote = |identity: &str| {
        let (identity, state) = (path(identity), path("state"));
        let line = format!(
            "promote --data {d1} --data {d2} --listen {port} --name first --identity {identity} --state {state}"
        );
        ashlar(&line.split(' ').collect::<Vec<_>>())
    };
    promote("own").refused(&["in use"]);
    drop(up);
    // Interrupted at its last step: a file is where the identity is to be.
    fs::write(dir.join("file"), "").unwrap();
    promote("file/own").refused(&["file/own"]);
    let inodes = |name: &str| fs::metadata(dir.join(name)).unwrap().ino();
    let before = (inodes("d1/target"), inodes("d1/meta"));
    promote("own").expect(0);
    promote("own").refused(&["belongs to"]);
    assert_eq!((inodes("d1/target"), inodes("d1/meta")), before);
    ashlar(&single.split(' ').collect::<Vec<_>>()).refused(&["ashlar promote", "ashlar meta"]);
    let checked = ashlar(&["fsck", "--data", &d1, "--data", &d2]).expect(8);
    assert!(checked.stderr.contains("ashlar promote"), "{}", checked.stderr);

    let (own, state) = (path("own"), path("state"));
    let manager = start(dir, "manager", &format!("manager --identity {own} --state {state}"), "serves");
    let address = support::cluster::Lab::free_address;
    let line = format!("storage --data {d1} --data {d2} --identity {own} --listen {}", address());
    let storage = start(dir, "storage", &line, "serves");
    let line = format!("meta --meta {} --identity {own} --listen {}", path("d1/meta"), address());
    let meta = start(dir, "meta", &line, "serves");
    let first = start(dir, "mount", &format!("mount {mnt} --identity {own}"), "mounted");
    check(&dir.join("mnt"));
    // Another machine.
    let token = ashlar(&["token", "--role", "client,storage", "--identity", &own]).expect(0).stdout;
    ashlar(&["join", token.trim(), "--name", "second", "--identity", &path("own2")]).expect(0);
    let second =
        start(dir, "mount2", &format!("mount {} --identity {}", path("mnt2"), path("own2")), "mounted");
    check(&dir.join("mnt2"));
    fs::write(dir.join("mnt2/a/small0"), "content 0").unwrap();
    fs::write(dir.join("mnt2/new"), vec![9; 300_000]).unwrap();
    check(&dir.join("mnt"));
    assert_eq!(fs::read(dir.join("mnt/new")).unwrap(), vec![9; 300_000]);
    drop((first, second, meta, storage, manager));
}

//! Goal: directories are spread over several metadata servers, and nobody can tell: every operation that touches two of them works as on one, for
//! whoever looks from wherever.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;
use support::cluster::{Lab, Role};
use support::{PATIENCE, names_in};

/// A lab with metadata servers besides its first.
struct Spread {
    lab: Lab,
    more: Vec<Role>,
}

impl Spread {
    #[track_caller]
    fn start(servers: usize, mounts: usize) -> Spread {
        let lab = Lab::start(1, mounts);
        let more = (2..=servers).map(|at| lab.add_meta(at)).collect();
        lab.wait_until_spread(servers);
        Spread { lab, more }
    }

    fn mount(&self, at: usize) -> PathBuf {
        self.lab.path(&format!("m{at}"))
    }

    #[track_caller]
    fn stop(mut self) {
        self.lab.mounts.iter_mut().for_each(Role::stop);
        self.more.iter_mut().for_each(Role::stop);
        self.lab.stop();
    }
}

/// The shard in which something lives.
fn shard(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino() >> 48
}

/// Makes directories until there is one in each of `count` shards at least; tells them.
#[track_caller]
fn make_spread(root: &Path, count: usize) -> Vec<PathBuf> {
    let mut shards = BTreeSet::new();
    let mut made = Vec::new();
    for at in 0..64 {
        let path = root.join(format!("d{at}"));
        fs::create_dir(&path).unwrap();
        shards.insert(shard(&path));
        made.push(path);
    }
    assert!(shards.len() >= count, "{shards:?}");
    made
}

#[test]
fn directories_live_on_all_servers_and_everything_works_between_them() {
    let spread = Spread::start(3, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    let made = make_spread(&here, 40);
    assert_eq!(fs::read_dir(&there).unwrap().count(), 64);
    assert_eq!(fs::metadata(&there).unwrap().nlink(), 66);
    for (at, directory) in made.iter().enumerate() {
        let file = directory.join("f");
        fs::write(&file, format!("content {at}")).unwrap();
        assert_eq!(shard(&file), shard(directory), "a file lives with its directory");
        let same = there.join(directory.file_name().unwrap()).join("f");
        assert_eq!(fs::read_to_string(same).unwrap(), format!("content {at}"));
    }
    // Files go round: through every pair of servers there is.
    for at in 0..63 {
        let (from, to) = (made[at].join("f"), made[at + 1].join(format!("from{at}")));
        let inode = fs::metadata(&from).unwrap().ino();
        fs::rename(&from, &to).unwrap();
        assert_eq!(fs::metadata(&from).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::metadata(&to).unwrap().ino(), inode, "it stays the same file");
        let seen = there.join(to.strip_prefix(&here).unwrap());
        assert_eq!(fs::read_to_string(&seen).unwrap(), format!("content {at}"));
        // What has moved away from its shard is a file like any other.
        OpenOptions::new().append(true).open(&seen).unwrap().write_all(b" and more").unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), format!("content {at} and more"));
        fs::set_permissions(&to, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(&seen).unwrap().mode() & 0o777, 0o640);
    }
    // Names of one file in several shards.
    let file = made[0].join("linked");
    fs::write(&file, b"one").unwrap();
    for (at, directory) in made.iter().enumerate().skip(1).step_by(7) {
        fs::hard_link(&file, directory.join("link")).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 2 + (at as u64 - 1) / 7);
    }
    let names = fs::metadata(&file).unwrap().nlink();
    fs::write(made[1].join("link"), b"another").unwrap();
    assert_eq!(fs::read(there.join("d0/linked")).unwrap(), b"another");
    fs::remove_file(there.join("d0/linked")).unwrap();
    assert_eq!(fs::metadata(made[8].join("link")).unwrap().nlink(), names - 1);
    for directory in made.iter().skip(1).step_by(7) {
        fs::remove_file(directory.join("link")).unwrap();
    }
    errors_are_those_of_one_server(&here, &made);
    remove_all(&here, &there);
    spread.stop();
}

#[track_caller]
fn errors_are_those_of_one_server(root: &Path, made: &[PathBuf]) {
    let kind = |outcome: std::io::Result<()>| outcome.unwrap_err().raw_os_error().unwrap();
    fs::create_dir(made[2].join("sub")).unwrap();
    for at in 3..20 {
        assert_eq!(kind(fs::create_dir(&made[at])), libc::EEXIST);
        assert_eq!(kind(fs::remove_dir(&made[2])), libc::ENOTEMPTY);
        assert_eq!(kind(fs::remove_file(&made[at])), libc::EISDIR);
        assert_eq!(kind(fs::remove_dir(made[at].join("no"))), libc::ENOENT);
        assert_eq!(kind(fs::rename(&made[at], made[2].as_path())), libc::ENOTEMPTY);
        assert_eq!(kind(fs::rename(root.join("d2"), made[2].join("sub/below"))), libc::EINVAL);
        assert_eq!(kind(fs::hard_link(&made[at], made[2].join("l"))), libc::EPERM);
        let file = made[at].join(format!("from{}", at - 1));
        assert_eq!(kind(fs::rename(&file, &made[2])), libc::EISDIR);
        assert_eq!(kind(fs::rename(&made[at], made[40].join("from39"))), libc::ENOTDIR);
    }
}

/// Removes everything through one mount and the other in turns; nothing is left on any server.
#[track_caller]
fn remove_all(here: &Path, there: &Path) {
    for (at, entry) in fs::read_dir(here).unwrap().enumerate() {
        let name = entry.unwrap().file_name();
        fs::remove_dir_all(if at % 2 == 0 { here } else { there }.join(name)).unwrap();
    }
    assert_eq!(fs::read_dir(there).unwrap().count(), 0);
    assert_eq!(fs::metadata(here).unwrap().nlink(), 2);
    let deadline = Instant::now() + PATIENCE;
    // Of one answer: what is free depends on the disk, which others fill meanwhile.
    let used = || {
        let space = rustix::fs::statvfs(here).unwrap();
        space.f_files - space.f_ffree
    };
    while used() > 1 {
        assert!(Instant::now() < deadline, "inodes are left");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn directories_move_between_servers_with_all_that_is_in_them() {
    let spread = Spread::start(2, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    let made = make_spread(&here, 40);
    let mut at = made[0].join("tree");
    fs::create_dir_all(at.join("a/b/c")).unwrap();
    fs::write(at.join("a/b/c/file"), b"deep").unwrap();
    for directory in &made[1..30] {
        let to = directory.join("tree");
        fs::rename(&at, &to).unwrap();
        let seen = there.join(to.strip_prefix(&here).unwrap());
        assert_eq!(fs::read(seen.join("a/b/c/file")).unwrap(), b"deep");
        assert_eq!(fs::metadata(seen.join("..")).unwrap().ino(), fs::metadata(directory).unwrap().ino());
        assert_eq!(fs::metadata(directory).unwrap().nlink(), 3);
        at = to;
    }
    // One directory is replaced by another, and two are exchanged.
    fs::create_dir(made[40].join("empty")).unwrap();
    fs::rename(&at, made[40].join("empty")).unwrap();
    fs::create_dir(made[41].join("other")).unwrap();
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    let (one, other) = (made[40].join("empty"), made[41].join("other"));
    rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, exchange).unwrap();
    assert_eq!(fs::read(there.join("d41/other/a/b/c/file")).unwrap(), b"deep");
    assert_eq!(fs::read_dir(there.join("d40/empty")).unwrap().count(), 0);
    remove_all(&here, &there);
    spread.stop();
}

#[test]
fn directories_that_are_moved_into_each_other_at_once_never_form_a_loop() {
    let spread = Spread::start(2, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    make_spread(&here, 40);
    for round in 0..20 {
        let (a, b) = (format!("d{}", round * 2), format!("d{}", round * 2 + 1));
        let into = |root: &Path, from: &str, to: &str| fs::rename(root.join(from), root.join(to).join(from));
        let (one, other) = std::thread::scope(|threads| {
            let one = threads.spawn(|| into(&here, &a, &b));
            let other = threads.spawn(|| into(&there, &b, &a));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        let failed = one.err().or(other.err()).unwrap().raw_os_error().unwrap();
        assert!(failed == libc::EINVAL || failed == libc::ENOENT, "{failed}");
        let reached = [&a, &b].into_iter().filter(|name| here.join(name).exists()).count();
        assert_eq!(reached, 1, "both are reached from the root, one below the other");
    }
    remove_all(&here, &there);
    spread.stop();
}

#[test]
fn an_unlinked_file_of_another_server_lives_as_long_as_it_is_open() {
    let spread = Spread::start(2, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    let made = make_spread(&here, 40);
    let mut open = Vec::new();
    for pair in made.windows(2).step_by(2) {
        let (from, to) = (pair[0].join("f"), pair[1].join("g"));
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&from).unwrap();
        file.write_all(b"before").unwrap();
        fs::rename(&from, &to).unwrap();
        fs::remove_file(there.join(to.strip_prefix(&here).unwrap())).unwrap();
        assert!(!to.exists());
        open.push(file);
    }
    for mut file in open {
        file.write_all(b" and after").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before and after");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    }
    // Without a name at first, with one in another server's directory then; and nodes of all kinds.
    let unnamed = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&made[0]).unwrap();
    let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    for directory in &made[1..10] {
        rustix::fs::linkat(rustix::fs::CWD, &*source, rustix::fs::CWD, directory.join("named"), follow)
            .unwrap();
        assert!(there.join(directory.strip_prefix(&here).unwrap()).join("named").exists());
    }
    drop(unnamed);
    for directory in &made[1..10] {
        let fifo = directory.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        fs::rename(&fifo, made[20].join("fifo")).unwrap();
        assert!(fs::metadata(there.join("d20/fifo")).unwrap().file_type().is_fifo());
        std::os::unix::fs::symlink("target", directory.join("link")).unwrap();
        fs::rename(directory.join("link"), made[21].join("link")).unwrap();
        assert_eq!(fs::read_link(there.join("d21/link")).unwrap(), Path::new("target"));
    }
    remove_all(&here, &there);
    spread.stop();
}

#[test]
fn a_server_that_is_killed_in_the_middle_leaves_no_half_of_anything() {
    let mut spread = Spread::start(2, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    let made = make_spread(&here, 40);
    let names: Vec<String> = (0..8).map(|at| format!("f{at}")).collect();
    for name in &names {
        fs::write(made[0].join(name), name).unwrap();
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let moved: usize = std::thread::scope(|threads| {
        let movers: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(number, name)| {
                let (made, is_over, root) = (&made, &is_over, if number % 2 == 0 { &here } else { &there });
                let in_root = move |path: &Path| root.join(path.file_name().unwrap());
                threads.spawn(move || {
                    let (mut at, mut moves) = (0, 0);
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        let next = (at + 1 + number) % 40;
                        fs::rename(in_root(&made[at % 40]).join(name), in_root(&made[next]).join(name))
                            .unwrap();
                        (at, moves) = (next, moves + 1);
                    }
                    moves
                })
            })
            .collect();
        for round in 0..6 {
            std::thread::sleep(std::time::Duration::from_millis(700));
            if round % 2 == 0 {
                spread.more[0].kill();
                let address = Lab::free_address();
                let line = format!("meta --meta @meta2 --listen {address} --identity @mds2");
                spread.more[0] = spread.lab.run("mds2", &line, "serves");
            } else {
                spread.lab.meta.kill();
                spread.lab.start_meta();
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        movers.into_iter().map(|mover| usize::from(mover.join().unwrap() > 0)).sum()
    });
    assert_eq!(moved, names.len(), "every file was moved");
    for root in [&here, &there] {
        let mut found: Vec<String> = Vec::new();
        for directory in fs::read_dir(root).unwrap() {
            for file in fs::read_dir(directory.unwrap().path()).unwrap() {
                let file = file.unwrap();
                let name = file.file_name().into_string().unwrap();
                assert_eq!(fs::read_to_string(file.path()).unwrap(), name);
                assert_eq!(file.metadata().unwrap().nlink(), 1);
                found.push(name);
            }
        }
        found.sort();
        assert_eq!(found, names, "each file has exactly one name");
    }
    File::create(here.join("after")).unwrap();
    fs::remove_file(there.join("after")).unwrap();
    remove_all(&here, &there);
    spread.stop();
}

#[test]
fn what_is_removed_while_it_is_being_closed_leaves_nothing_behind() {
    let spread = Spread::start(2, 1);
    let root = spread.mount(0);
    for _ in 0..4 {
        let made = make_spread(&root, 40);
        for directory in made {
            // Closing is told in the background, and so comes beside the removal or after it.
            drop(File::open(&directory).unwrap());
            fs::remove_dir(&directory).unwrap();
        }
    }
    remove_all(&root, &root);
    spread.stop();
}

/// Makes a directory and splits it.
#[track_caller]
fn make_split(spread: &Spread, name: &str, slices: u16) -> (PathBuf, PathBuf) {
    let (here, there) = (spread.mount(0).join(name), spread.mount(1).join(name));
    fs::create_dir(&here).unwrap();
    // Both have looked already, and go by what they were told.
    assert_eq!((fs::read_dir(&here).unwrap().count(), fs::read_dir(&there).unwrap().count()), (0, 0));
    assert_eq!(fs::metadata(there.join("f0")).unwrap_err().kind(), ErrorKind::NotFound);
    spread.lab.ashlar(&format!("layout set @m0/{name} --slices {slices}")).expect(0);
    (here, there)
}

#[test]
fn a_split_directory_is_carried_by_several_servers_and_looks_like_one() {
    let spread = Spread::start(2, 2);
    let (here, there) = make_split(&spread, "big", 4);
    let shown = spread.lab.ashlar("layout show @m1/big").expect(0).stdout;
    assert!(shown.contains("slices: 4"), "{shown}");
    let mut shards = BTreeSet::new();
    for at in 0..60 {
        let (one, other) = if at % 2 == 0 { (&here, &there) } else { (&there, &here) };
        let name = format!("f{at}");
        assert_eq!(fs::metadata(other.join(&name)).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(one.join(&name), &name).unwrap();
        // At once, whatever the other was told before.
        assert_eq!(fs::read_to_string(other.join(&name)).unwrap(), name);
        let (seen, own) = (fs::metadata(other).unwrap(), fs::metadata(one).unwrap());
        assert_eq!((seen.len(), own.len()), (at + 1, at + 1));
        assert_eq!(seen.mtime_nsec(), own.mtime_nsec());
        shards.insert(shard(&one.join(&name)));
    }
    assert_eq!(shards.len(), 4, "{shards:?}");
    let listed = spread.lab.ashlar("shard list --json --identity @first").expect(0).stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let all = listed.as_array().unwrap().iter();
    let servers: BTreeSet<String> = all
        .filter(|entry| entry["id"].as_u64().is_some_and(|id| shards.contains(&id)))
        .map(|entry| entry["node"].to_string())
        .collect();
    assert_eq!(servers.len(), 2, "both servers have files of it: {listed}");
    let expected: BTreeSet<String> = (0..60).map(|at| format!("f{at}")).collect();
    assert_eq!((names_in(&here), names_in(&there)), (expected.clone(), expected));
    rules_hold_in_every_slice(&here, &there);
    names_move_between_slices(&here, &there);
    assert_eq!(fs::remove_dir(&there).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    // What is gone is gone for who has it open, whoever removed it.
    for (at, by) in [0, 1].into_iter().zip([spread.mount(0), spread.mount(1)]) {
        let (gone, _) = make_split(&spread, &format!("gone{at}"), 3);
        let held = File::open(&gone).unwrap();
        assert_eq!((held.metadata().unwrap().nlink(), fs::metadata(&gone).unwrap().len()), (2, 0));
        fs::remove_dir(by.join(format!("gone{at}"))).unwrap();
        assert_eq!((held.metadata().unwrap().nlink(), held.metadata().unwrap().len()), (0, 0));
    }
    // What is refused says why.
    let refused = spread.lab.ashlar("layout set @m0/big --slices 3").expect(1).stderr;
    assert!(refused.contains("is split once"), "{refused}");
    let full = spread.mount(0).join("full");
    fs::create_dir(&full).unwrap();
    (0..1500).for_each(|at| fs::write(full.join(at.to_string()), "").unwrap());
    spread.lab.ashlar("layout set @m0/full --slices 2").expect(0);
    let shown = spread.lab.ashlar("layout show @m1/full").expect(0).stdout;
    assert!(shown.contains("slices: 2") && !shown.contains("split_percent"), "it was waited for: {shown}");
    assert_eq!(names_in(&spread.mount(1).join("full")).len(), 1500);
    remove_all(&spread.mount(0), &spread.mount(1));
    spread.stop();
}

#[track_caller]
fn rules_hold_in_every_slice(here: &Path, there: &Path) {
    std::os::unix::fs::chown(here, None, Some(4321)).unwrap();
    fs::set_permissions(here, fs::Permissions::from_mode(0o2775)).unwrap();
    for at in 0..12 {
        let path = there.join(format!("g{at}"));
        fs::create_dir(&path).unwrap();
        let made = fs::metadata(&path).unwrap();
        assert_eq!((made.gid(), made.mode() & 0o2000), (4321, 0o2000));
        assert_eq!(fs::metadata(here).unwrap().nlink(), 3 + at);
        assert_eq!(fs::metadata(path.join("..")).unwrap().ino(), fs::metadata(here).unwrap().ino());
    }
    let set = std::time::UNIX_EPOCH + std::time::Duration::from_secs(5_000_000_000);
    File::open(there).unwrap().set_modified(set).unwrap();
    assert_eq!(fs::metadata(here).unwrap().modified().unwrap(), set);
    fs::write(here.join("later"), "").unwrap();
    assert!(fs::metadata(there).unwrap().modified().unwrap() < set, "a change sets the time of now");
    fs::remove_file(there.join("later")).unwrap();
}

#[track_caller]
fn names_move_between_slices(here: &Path, there: &Path) {
    let before = fs::metadata(here).unwrap().len();
    for at in 0..12 {
        let (from, to) = (here.join(format!("g{at}")), there.join(format!("moved {at}")));
        fs::write(from.join("in it"), "").unwrap();
        fs::rename(&from, here.join(format!("moved {at}"))).unwrap();
        assert!(to.join("in it").exists() && !there.join(format!("g{at}")).exists());
        assert_eq!(fs::metadata(there).unwrap().len(), before);
        let loops = fs::rename(here.join(format!("moved {at}")), here.join(format!("moved {at}/below")));
        assert_eq!(loops.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
    // Two names of one file: nothing happens, whichever slices they are in.
    for at in 0..12 {
        let (one, other) = (here.join(format!("f{at}")), here.join(format!("link {at}")));
        fs::hard_link(&one, &other).unwrap();
        fs::rename(there.join(format!("f{at}")), there.join(format!("link {at}"))).unwrap();
        assert_eq!(fs::metadata(&one).unwrap().nlink(), 2);
    }
    // One name is taken by another.
    fs::write(there.join("new"), "new").unwrap();
    fs::rename(here.join("new"), here.join("f0")).unwrap();
    assert_eq!(fs::read_to_string(there.join("f0")).unwrap(), "new");
    assert_eq!(fs::metadata(here.join("link 0")).unwrap().nlink(), 1);
}

/// Makes, moves and removes names of its own, and tries for names that others want, too; what is left of its own, and which it got.
fn race_in(directory: &Path, thread: usize, is_over: &AtomicBool) -> (BTreeSet<String>, Vec<String>) {
    let (mut own, mut won) = (BTreeSet::new(), Vec::new());
    let mut at = 0;
    while !is_over.load(SeqCst) || at < 60 {
        let name = format!("t{thread} {at}");
        fs::write(directory.join(&name), &name).unwrap();
        match at % 3 {
            0 => fs::remove_file(directory.join(&name)).unwrap(),
            1 => {
                let to = format!("t{thread} was {at}");
                fs::rename(directory.join(&name), directory.join(&to)).unwrap();
                own.insert(to);
            }
            _ => drop(own.insert(name)),
        }
        let wanted = format!("wanted {at}");
        let taken = OpenOptions::new().write(true).create_new(true).open(directory.join(&wanted));
        match taken {
            Ok(_) => won.push(wanted),
            Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
        }
        at += 1;
    }
    (own, won)
}

#[test]
fn mounts_that_race_in_a_split_directory_while_a_server_is_killed_lose_nothing() {
    let mut spread = Spread::start(2, 2);
    let (here, there) = make_split(&spread, "big", 6);
    spread.lab.keep_meta();
    let is_over = AtomicBool::new(false);
    let mut expected = BTreeSet::new();
    std::thread::scope(|scope| {
        let racers: Vec<_> = (0..4)
            .map(|thread| {
                let (directory, is_over) = (if thread % 2 == 0 { &here } else { &there }, &is_over);
                scope.spawn(move || race_in(directory, thread, is_over))
            })
            .collect();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(700));
            spread.lab.restart_kept_meta();
        }
        is_over.store(true, SeqCst);
        for racer in racers {
            let (own, won) = racer.join().unwrap();
            expected.extend(own);
            for name in won {
                assert!(expected.insert(name.clone()), "{name} was made twice");
            }
        }
    });
    assert_eq!(names_in(&here), expected);
    assert_eq!(names_in(&there), expected);
    assert_eq!(fs::metadata(&there).unwrap().len(), expected.len() as u64);
    for name in &expected {
        assert_eq!(
            fs::metadata(here.join(name)).unwrap().ino(),
            fs::metadata(there.join(name)).unwrap().ino()
        );
    }
    fs::remove_dir_all(&here).unwrap();
    assert_eq!(fs::read_dir(spread.mount(1)).unwrap().count(), 0);
    spread.lab.mounts.iter_mut().for_each(Role::stop);
    spread.more.iter_mut().for_each(Role::stop);
    spread.lab.stop_kept();
}

#[test]
fn slices_move_to_other_servers_while_names_are_made_in_them() {
    let spread = Spread::start(2, 2);
    let (here, there) = make_split(&spread, "big", 3);
    spread.lab.ashlar("layout set @m0/big --slices-of-new 2").expect(0);
    fs::create_dir(here.join("below")).unwrap();
    let shown = spread.lab.ashlar("layout show @m1/big/below").expect(0).stdout;
    assert!(shown.contains("slices: 2") && !shown.contains("slices_of_new"), "{shown}");
    for at in 0..30 {
        fs::write(here.join(format!("f{at}")), "").unwrap();
    }
    let shards: BTreeSet<u64> = (0..30).map(|at| shard(&here.join(format!("f{at}")))).collect();
    let shards: Vec<String> = shards.iter().map(u64::to_string).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let mut at = 30;
            while !is_over.load(SeqCst) {
                fs::write(there.join(format!("f{at}")), "").unwrap();
                at += 1;
            }
            at
        });
        for to in ["mds2", "mds", "mds2"] {
            let line = format!("shard move {} --to {to} --identity @first", shards.join(" "));
            spread.lab.ashlar(&line).expect(0);
        }
        is_over.store(true, SeqCst);
        let count = maker.join().unwrap();
        assert!(count > 30);
        let mut expected: BTreeSet<String> = (0..count).map(|at| format!("f{at}")).collect();
        expected.insert("below".into());
        assert_eq!((names_in(&here), names_in(&there)), (expected.clone(), expected));
    });
    remove_all(&spread.mount(0), &spread.mount(1));
    spread.stop();
}

impl Spread {
    /// The shards of the metadata server `node`.
    fn shards_of(&self, node: &str) -> Vec<u64> {
        let listed = self.lab.ashlar("shard list --json --identity @first").expect(0).stdout;
        let shards: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let of_node = shards.as_array().unwrap().iter().filter(|shard| shard["node"]["name"] == node);
        of_node.map(|shard| shard["id"].as_u64().unwrap()).collect()
    }

    #[track_caller]
    fn choose(&self, path: &str, choice: &str) {
        self.lab.ashlar(&format!("layout set @{path} --directories {choice}")).expect(0);
    }

    /// What `layout show --json` says of where directories go.
    #[track_caller]
    fn chosen(&self, path: &str) -> String {
        let shown = self.lab.ashlar(&format!("layout show @{path} --json")).expect(0).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown["directories"].as_str().unwrap().to_owned()
    }
}

/// Makes a tree, at two mounts in turn; the shards in which its directories are. Files are where their directories are.
#[track_caller]
fn grow_tree((here, there): (&Path, &Path), depth: usize) -> BTreeSet<u64> {
    let mut shards = BTreeSet::new();
    for at in 0..8 {
        let name = format!("t{depth}-{at}");
        let (made, seen) = match at % 2 {
            0 => (here.join(&name), there.join(&name)),
            _ => (there.join(&name), here.join(&name)),
        };
        fs::create_dir(&made).unwrap();
        fs::write(seen.join("f"), "").unwrap();
        assert_eq!(shard(&made.join("f")), shard(&seen));
        shards.insert(shard(&made));
        if at == 0 && depth > 1 {
            shards.extend(grow_tree((&made, &seen), depth - 1));
        }
    }
    shards
}

#[test]
fn new_directories_go_where_their_parent_says() {
    let spread = Spread::start(2, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    let grow = |name: &str| grow_tree((&here.join(name), &there.join(name)), 3);
    assert_eq!(spread.chosen("m0"), "round-robin");
    for name in ["turns", "inherits", "pinned"] {
        fs::create_dir(here.join(name)).unwrap();
    }
    assert!(grow("turns").len() > 8, "all shards in turn");
    spread.choose("m1/inherits", "inherit");
    assert_eq!(grow("inherits"), [shard(&here.join("inherits"))].into());
    // To a shard of the server that does not have the directory itself.
    let (of_first, of_second) = (spread.shards_of("mds"), spread.shards_of("mds2"));
    let is_of_first = of_first.contains(&shard(&here.join("pinned")));
    let pin = if is_of_first { of_second[1] } else { of_first[1] };
    spread.choose("m0/pinned", &format!("shard-{pin}"));
    assert_eq!(grow("pinned"), [pin].into());
    assert_eq!(spread.chosen("m1/pinned/t3-0/t2-0"), format!("shard-{pin}"), "they say the same");
    let shown = spread.lab.ashlar("layout show @m1/pinned").expect(0).stdout;
    assert!(shown.contains(&format!("\ndirectories: shard-{pin}\n")), "{shown}");
    // A file has no directories in it.
    let shown = spread.lab.ashlar("layout show @m1/pinned/t3-0/f").expect(0).stdout;
    assert!(!shown.contains("directories") && shown.contains("stripe_count"), "{shown}");
    // Who is moved elsewhere stays where it is, and goes on as before.
    fs::rename(here.join("pinned/t3-0"), here.join("turns/moved")).unwrap();
    assert_eq!(shard(&there.join("turns/moved")), pin);
    fs::create_dir(there.join("turns/moved/more")).unwrap();
    assert_eq!(shard(&here.join("turns/moved/more")), pin);
    // And back to what was before.
    spread.choose("m0/pinned", "round-robin");
    assert!(grow_tree((&here.join("pinned/t3-1"), &there.join("pinned/t3-1")), 1) == [pin].into());
    let turns: BTreeSet<u64> = (0..8)
        .map(|at| {
            let path = there.join(format!("pinned/again{at}"));
            fs::create_dir(&path).unwrap();
            shard(&path)
        })
        .collect();
    assert!(turns.len() > 4, "{turns:?}");
    remove_all(&here, &there);
    spread.stop();
}

#[test]
fn a_pin_to_what_is_not_there_is_refused_with_what_to_do() {
    let spread = Spread::start(1, 1);
    let here = spread.mount(0);
    fs::create_dir(here.join("d")).unwrap();
    fs::write(here.join("f"), "").unwrap();
    spread.choose("m0/d", "5");
    let set = |what: &str| spread.lab.ashlar(&format!("layout set {what}"));
    let words = ["there is no shard-64", "shard-0 to shard-63", "ashlar shard list"];
    set("@m0/d --directories shard-64 --stripe-count 7").refused(&words);
    set("@m0/d --directories 65535").refused(&["there is no shard-65535"]);
    let wrong = set("@m0/d --directories mds").expect(2);
    assert!(wrong.stderr.contains("round-robin, inherit, or a shard"), "{}", wrong.stderr);
    set("@m0/f --directories inherit").refused(&["it is no directory"]);
    assert_eq!(spread.chosen("m0/d"), "shard-5", "nothing of it was done");
    let shown = spread.lab.ashlar("layout show @m0/d").expect(0).stdout;
    assert!(shown.contains("stripe_count: 4"), "{shown}");
    fs::create_dir(here.join("d/below")).unwrap();
    assert_eq!(shard(&here.join("d/below")), 5);
    spread.stop();
}

/// A shard that is about to leave gets no directories in turn; one that is pinned to goes on getting them, and takes them along.
#[test]
fn a_pin_holds_while_the_shard_moves() {
    let spread = Spread::start(2, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    fs::create_dir(here.join("pinned")).unwrap();
    let pin = spread.shards_of("mds")[3];
    spread.choose("m0/pinned", &format!("shard-{pin}"));
    let is_over = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let makers = [&here, &there].map(|root| {
            let is_over = &is_over;
            scope.spawn(move || {
                let (root_name, mut made) = (root.file_name().unwrap().to_str().unwrap(), 0);
                while !is_over.load(SeqCst) {
                    let path = root.join(format!("pinned/{root_name}-{made}"));
                    fs::create_dir(&path).unwrap();
                    assert_eq!(shard(&path), pin);
                    made += 1;
                }
                made
            })
        });
        for to in ["mds2", "mds", "mds2"] {
            spread.lab.ashlar(&format!("shard move {pin} --to {to} --identity @first")).expect(0);
            assert!(spread.shards_of(to).contains(&pin));
        }
        is_over.store(true, SeqCst);
        makers.map(|maker| maker.join().unwrap())
    });
    assert!(made.iter().all(|count| *count > 0), "{made:?}");
    assert_eq!(names_in(&there.join("pinned")).len(), made.iter().sum::<usize>());
    fs::create_dir(here.join("pinned/after")).unwrap();
    assert_eq!(shard(&there.join("pinned/after")), pin);
    remove_all(&here, &there);
    spread.stop();
}

/// A tree that inherits needs no server but its own; one that is pinned to a server that is away waits for it, and those in turn go elsewhere.
#[test]
fn a_server_that_is_away_is_needed_by_what_is_pinned_to_it_alone() {
    let mut spread = Spread::start(2, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    let (of_first, of_second) = (spread.shards_of("mds"), spread.shards_of("mds2"));
    // By way of a pin they are all at the first server.
    spread.choose("m0", &format!("shard-{}", of_first[0]));
    for name in ["turns", "inherits", "pinned"] {
        fs::create_dir(here.join(name)).unwrap();
    }
    spread.choose("m0/turns", "round-robin");
    spread.choose("m0/inherits", "inherit");
    spread.choose("m0/pinned", &of_second[2].to_string());
    // Ids of the other server's shards are in stock from now on.
    for at in 0..70 {
        fs::create_dir(here.join(format!("turns/before{at}"))).unwrap();
    }
    fs::create_dir(here.join("pinned/before")).unwrap();
    spread.more[0].kill();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fs::create_dir(there.join("pinned/waits")));
        for at in 0..50 {
            let path = here.join(format!("inherits/d{at}"));
            fs::create_dir(&path).unwrap();
            assert_eq!(shard(&path), of_first[0]);
        }
        for at in 0..3 {
            let path = here.join(format!("turns/d{at}"));
            fs::create_dir(&path).unwrap();
            assert!(of_first.contains(&shard(&path)));
        }
        // In the same directory others go on as well, on another mount: on this one the kernel holds it.
        for at in 0..20 {
            let path = |name: &str| here.join(format!("pinned/{name}{at}"));
            fs::write(path("file"), "").unwrap();
            fs::rename(path("file"), path("renamed")).unwrap();
            fs::remove_file(path("renamed")).unwrap();
        }
        assert!(!waiting.is_finished(), "it is to be where it was pinned to");
        let address = Lab::free_address();
        let line = format!("meta --meta @meta2 --listen {address} --identity @mds2");
        spread.more[0] = spread.lab.run("mds2", &line, "serves");
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(shard(&here.join("pinned/waits")), of_second[2]);
    remove_all(&here, &there);
    spread.stop();
}

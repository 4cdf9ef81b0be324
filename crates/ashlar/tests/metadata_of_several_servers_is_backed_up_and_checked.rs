//! Goal: the metadata of several servers is backed up while it is used, as of one moment, and comes back so; and a check of all of it finds damage that no
//! server can see by itself, and repairs it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_kv::{Key, Snapshot};
use ashlar_namespace::{Bucket, Inode, key};
use ashlar_types::{InodeId, ShardId, codec};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::records::{self, Place};
use support::{Ended, PATIENCE};

/// A lab with metadata servers besides its first; the directory of each can be another one after a restore.
struct Site {
    lab: Lab,
    more: Vec<Role>,
    addresses: Vec<String>,
}

impl Site {
    #[track_caller]
    fn start(servers: usize, mounts: usize) -> Site {
        let lab = Lab::start(2, mounts);
        let mut site = Site { lab, more: Vec::new(), addresses: Vec::new() };
        site.addresses.push(site.lab.address(1).to_string());
        for at in 2..=servers {
            site.lab.join_meta(&format!("mds{at}"));
            site.addresses.push(Lab::free_address());
            site.more.push(site.run_meta(at, "meta"));
        }
        site.lab.wait_until_spread(servers);
        site
    }

    /// The identity of the `at`th metadata server.
    fn name(at: usize) -> String {
        if at == 1 { "mds".into() } else { format!("mds{at}") }
    }

    /// Where it has its metadata, in directories that are called `stem`.
    fn dir(at: usize, stem: &str) -> String {
        if at == 1 { stem.into() } else { format!("{stem}{at}") }
    }

    #[track_caller]
    fn run_meta(&self, at: usize, stem: &str) -> Role {
        let (name, dir, address) = (Site::name(at), Site::dir(at, stem), &self.addresses[at - 1]);
        let line = format!("meta --meta @{dir} --listen {address} --identity @{name}");
        self.lab.run(&name, &line, "serves")
    }

    /// Starts all metadata servers with directories that are called `stem`, at the same time as they may wait for each other's sessions.
    #[track_caller]
    fn start_metas(&mut self, stem: &str) {
        let mut started: Vec<Role> = std::thread::scope(|threads| {
            let site = &*self;
            let starting: Vec<_> =
                (1..=site.addresses.len()).map(|at| threads.spawn(move || site.run_meta(at, stem))).collect();
            starting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        self.lab.meta = started.remove(0);
        self.more = started;
    }

    #[track_caller]
    fn stop_metas(&mut self) {
        self.more.iter_mut().for_each(Role::stop);
        self.lab.meta.stop();
    }

    fn mount(&self, at: usize) -> PathBuf {
        self.lab.path(&format!("m{at}"))
    }

    /// The arguments by which a check finds all metadata.
    fn metas(&self, stem: &str) -> String {
        let all: Vec<String> =
            (1..=self.addresses.len()).map(|at| format!("--meta @{}", Site::dir(at, stem))).collect();
        format!("--state @state {}", all.join(" "))
    }

    #[track_caller]
    fn fsck(&self, how: &str, stem: &str) -> Ended {
        self.lab.ashlar(&format!("fsck {how} {} --data @d0 --data @d1", self.metas(stem)))
    }

    #[track_caller]
    fn stop(&mut self) {
        self.lab.mounts.iter_mut().for_each(Role::stop);
        self.stop_metas();
        self.lab.stop();
    }

    /// Restores backup `from` for all servers into directories that are called `stem`.
    #[track_caller]
    fn restore(&self, from: &str, stem: &str) {
        for at in 1..=self.addresses.len() {
            let (name, dir) = (Site::name(at), Site::dir(at, stem));
            self.lab.ashlar(&format!("restore @{from} --meta @{dir} --identity @{name}")).expect(0);
        }
    }
}

/// Makes 64 directories, which go to as many shards in turn.
#[track_caller]
fn make_spread(root: &Path) -> Vec<PathBuf> {
    let made: Vec<PathBuf> = (0..64).map(|at| root.join(format!("d{at}"))).collect();
    made.iter().for_each(|path| fs::create_dir(path).unwrap());
    let shards: BTreeSet<u64> =
        made.iter().map(|path| fs::symlink_metadata(path).unwrap().ino() >> 48).collect();
    assert!(shards.len() >= 40, "{shards:?}");
    made
}

/// What goes on while backups are made. Each call is counted, with the longest.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    calls: AtomicU64,
    longest_ms: AtomicU64,
}

impl Load {
    fn call<T>(&self, call: impl FnOnce() -> std::io::Result<T>) -> T {
        let begin = Instant::now();
        let value = call().unwrap();
        self.calls.fetch_add(1, SeqCst);
        self.longest_ms.fetch_max(begin.elapsed().as_millis() as u64, SeqCst);
        value
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(SeqCst)
    }
}

const RUNNERS: usize = 4;
const TOKENS: usize = 6;

/// Files that move from directory to directory, each always in exactly one.
fn move_tokens(load: &Load, root: &Path, runner: usize) {
    let mut at = [0; TOKENS];
    let place = |token: usize, at: usize| {
        root.join(format!("d{}/token{runner}-{token}", (at * 7 + runner * 13 + token) % 64))
    };
    for (token, at) in at.iter().enumerate() {
        fs::write(place(token, *at), format!("token {runner} {token}")).unwrap();
    }
    while load.goes_on() {
        for (token, at) in at.iter_mut().enumerate() {
            load.call(|| fs::rename(place(token, *at), place(token, *at + 1)));
            *at += 1;
        }
    }
}

/// A file with names in other directories, which come and go; directories that are made, moved and removed.
fn link_and_mkdir(load: &Load, root: &Path, runner: usize) {
    let file = root.join(format!("d{runner}/linked{runner}"));
    fs::write(&file, b"linked").unwrap();
    let mut turn = runner * 5;
    while load.goes_on() {
        turn += 1;
        let near = |what: &str, step: usize| root.join(format!("d{}/{what}{runner}", (turn + step) % 64));
        load.call(|| fs::hard_link(&file, near("link", 1)));
        load.call(|| fs::create_dir(near("made", 2)));
        load.call(|| fs::create_dir(near("made", 2).join("below")));
        load.call(|| fs::rename(near("made", 2), near("moved", 3)));
        load.call(|| fs::remove_file(near("link", 1)));
        load.call(|| fs::remove_dir(near("moved", 3).join("below")));
        load.call(|| fs::remove_dir(near("moved", 3)));
    }
}

/// What is removed only once its successor is there, in another directory: one of them is always there.
fn succeed(load: &Load, root: &Path, runner: usize) {
    let place =
        |number: usize| root.join(format!("d{}/number{runner}-{number}", (number * 11 + runner) % 64));
    fs::write(place(0), b"first").unwrap();
    let mut number = 0;
    while load.goes_on() {
        number += 1;
        load.call(|| fs::write(place(number), format!("{number}")));
        load.call(|| fs::remove_file(place(number - 1)));
    }
}

/// Everything below `root`: path and content.
fn listed(root: &Path) -> BTreeMap<PathBuf, Option<String>> {
    let (mut all, mut dirs) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(root).unwrap().to_owned();
            if path.is_dir() {
                dirs.push(path);
                all.insert(below, None);
            } else {
                all.insert(below, Some(String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned()));
            }
        }
    }
    all
}

#[track_caller]
fn require_whole(root: &Path) {
    let all = listed(root);
    let named = |prefix: &str| -> Vec<(String, String)> {
        let files = all.iter().filter_map(|(path, text)| Some((path.file_name()?.to_str()?, text.clone()?)));
        files
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(name, text)| (name.to_owned(), text))
            .collect()
    };
    for runner in 0..RUNNERS {
        for token in 0..TOKENS {
            let found = named(&format!("token{runner}-{token}"));
            assert_eq!(found.len(), 1, "a token is there once: {found:?}");
            assert_eq!(found[0].1, format!("token {runner} {token}"));
        }
        let numbers = named(&format!("number{runner}-"));
        assert!((1..=2).contains(&numbers.len()), "one or its successor: {numbers:?}");
        let names = named(&format!("linked{runner}")).len() + named(&format!("link{runner}")).len();
        let file = fs::metadata(root.join(format!("d{runner}/linked{runner}"))).unwrap();
        assert_eq!(file.nlink(), names as u64, "as many links as names");
    }
}

#[test]
fn backups_of_servers_under_load_are_of_one_moment_each_and_come_back() {
    let mut site = Site::start(3, 2);
    make_spread(&site.mount(0));
    fs::write(site.mount(0).join("big"), support::big()).unwrap();
    let load = Load::default();
    let told: Vec<Ended> = std::thread::scope(|threads| {
        for runner in 0..RUNNERS {
            let (root, load) = (site.mount(runner % 2), &load);
            let other = site.mount((runner + 1) % 2);
            threads.spawn(move || move_tokens(load, &root, runner));
            threads.spawn(move || link_and_mkdir(load, &other, runner));
            let root = site.mount(runner % 2);
            threads.spawn(move || succeed(load, &root, runner));
        }
        std::thread::sleep(Duration::from_secs(2));
        let told = (0..3)
            .map(|number| {
                let before = load.calls.load(SeqCst);
                let told = site.lab.ashlar(&format!("backup --identity @first @backup{number}"));
                let deadline = Instant::now() + PATIENCE;
                while load.calls.load(SeqCst) < before + 50 {
                    assert!(Instant::now() < deadline, "nothing goes on after {}", told.all());
                    std::thread::sleep(Duration::from_millis(20));
                }
                told
            })
            .collect();
        load.is_over.store(true, SeqCst);
        told
    });
    for ended in told {
        assert!(ended.stdout.contains("of 3 metadata servers"), "{}", ended.all());
        ended.expect(0);
    }
    eprintln!("{} calls, the longest of {} ms", load.calls.load(SeqCst), load.longest_ms.load(SeqCst));
    assert!(load.longest_ms.load(SeqCst) < 15_000, "a backup is a moment for those who work");
    require_whole(&site.mount(0));
    let mode = |path: &str| fs::metadata(site.lab.path(path)).unwrap().mode() & 0o777;
    assert_eq!((mode("backup0"), mode("backup0/mds2.part")), (0o700, 0o600), "what is in it is not for all");
    for number in 0..3 {
        let checked = site.lab.ashlar(&format!("fsck --backup @backup{number}")).expect(0);
        assert!(checked.stdout.contains("of 3 metadata servers"), "{}", checked.all());
    }
    // What comes later is given up with the restore, chunks and all.
    fs::write(site.mount(1).join("later"), support::big()).unwrap();
    site.lab.mounts.iter_mut().for_each(Role::stop);
    site.stop_metas();
    site.restore("backup1", "back");
    site.start_metas("back");
    (0..2).for_each(|at| site.lab.start_mount(at));
    require_whole(&site.mount(1));
    assert!(!site.mount(0).join("later").exists());
    assert!(fs::read(site.mount(0).join("big")).unwrap() == support::big());
    // It is a file system like any other.
    fs::rename(site.mount(0).join("big"), site.mount(0).join("d1/big")).unwrap();
    fs::create_dir(site.mount(1).join("new")).unwrap();
    site.stop();
    let checked = site.fsck("", "back").expect(0);
    assert!(checked.stdout.contains("clean"), "{}", checked.all());
}

#[test]
fn chunks_newer_than_the_backup_never_show_in_new_files() {
    let mut site = Site::start(2, 1);
    let root = site.mount(0);
    let made = make_spread(&root);
    for (at, dir) in made.iter().enumerate().take(8) {
        fs::write(dir.join("kept"), format!("kept {at}")).unwrap();
        fs::write(dir.join("removed"), support::big()).unwrap();
        fs::write(dir.join("grown"), &support::big()[..1 << 20]).unwrap();
    }
    site.lab.ashlar("backup --identity @first @backup").expect(0);
    for dir in made.iter().take(8) {
        fs::remove_file(dir.join("removed")).unwrap();
        fs::write(dir.join("grown"), support::big()).unwrap();
        (0..3).for_each(|number| fs::write(dir.join(format!("newer{number}")), support::big()).unwrap());
    }
    site.lab.mounts[0].stop();
    site.stop_metas();
    site.restore("backup", "back");
    site.start_metas("back");
    site.lab.start_mount(0);
    for dir in made.iter().take(8) {
        assert!(fs::read(dir.join("kept")).unwrap().starts_with(b"kept "));
        assert!(!dir.join("newer0").exists());
        let grown = fs::read(dir.join("grown")).unwrap();
        assert_eq!(grown.len(), 1 << 20, "as long as it was");
        fs::OpenOptions::new().write(true).open(dir.join("grown")).unwrap().set_len(3 << 20).unwrap();
        let grown = fs::read(dir.join("grown")).unwrap();
        assert!(grown[1 << 20..].iter().all(|byte| *byte == 0), "what was cut does not come back");
        let removed = fs::metadata(dir.join("removed")).unwrap();
        assert_eq!(removed.len(), support::big().len() as u64);
        // These get numbers the lost ones had, and are full of holes.
        for number in 0..6 {
            let file = fs::File::options()
                .create(true)
                .read(true)
                .write(true)
                .truncate(true)
                .open(dir.join(format!("holes{number}")))
                .unwrap();
            file.write_all_at(b"end", support::big().len() as u64).unwrap();
            let mut content = Vec::new();
            (&file).read_to_end(&mut content).unwrap();
            assert!(
                content[..content.len() - 3].iter().all(|byte| *byte == 0),
                "old bytes in {}",
                dir.display()
            );
        }
    }
    site.stop();
    site.fsck("", "back").expect(0);
}

#[test]
fn parts_that_do_not_belong_together_are_refused_and_so_is_metadata_of_another_time() {
    let mut site = Site::start(2, 1);
    let made = make_spread(&site.mount(0));
    let backup = |name: &str| site.lab.ashlar(&format!("backup --identity @first @{name}"));
    backup("one").expect(0);
    fs::write(made[3].join("file"), b"between").unwrap();
    backup("two").expect(0);
    backup("two").refused(&["is there already", "name another"]);
    // Who may not.
    site.lab.ashlar("backup --identity @c0 @three").refused(&["certificate", "admin"]);
    assert!(!site.lab.path("three").exists());
    // A server that is away.
    site.more[0].pause();
    let refused = site.lab.ashlar("backup --identity @first @three").refused(&["mds2", "does not answer"]);
    assert!(!site.lab.path("three").exists(), "{}", refused.all());
    site.more[0].resume();
    assert_eq!(fs::read(made[3].join("file")).unwrap(), b"between", "and everything goes on");

    site.lab.mounts[0].stop();
    site.stop_metas();
    let copy = |from: &str, to: &str| {
        fs::create_dir_all(site.lab.path(to).parent().unwrap()).unwrap();
        fs::copy(site.lab.path(from), site.lab.path(to)).unwrap();
    };
    let restore = |from: &str| site.lab.ashlar(&format!("restore @{from} --meta @r --identity @mds"));
    copy("one/mds.part", "half/mds.part");
    restore("half").refused(&["the part of mds2 is missing"]);
    site.lab.ashlar("fsck --backup @half").expect(8);
    copy("one/mds.part", "mixed/mds.part");
    copy("two/mds2.part", "mixed/mds2.part");
    restore("mixed").refused(&["parts of different backups"]);
    copy("one/mds.part", "doubled/mds.part");
    copy("one/mds.part", "doubled/copy.part");
    restore("doubled").refused(&["are the same part"]);
    fs::create_dir(site.lab.path("empty")).unwrap();
    restore("empty").refused(&["has no parts of a backup"]);
    let len = fs::metadata(site.lab.path("two/mds2.part")).unwrap().len();
    for at in [0, 9, 30, 60, len / 2, len - 1] {
        support::flip(&site.lab.path("two/mds2.part"), at);
        restore("two").refused(&["mds2.part", "cannot be used"]);
        support::flip(&site.lab.path("two/mds2.part"), at);
    }
    site.lab
        .ashlar("restore @two/mds.part --meta @r --identity @mds")
        .refused(&["one part of a backup", "name the directory"]);
    site.lab.ashlar("restore @two --meta @r --identity @c0").refused(&["certificate", "meta"]);
    site.lab.ashlar("restore @two --meta @r --identity @first").refused(&["first serves no metadata"]);
    assert!(!site.lab.path("r").exists(), "nothing is made of any of these");

    // One server has the restored metadata: the others have to.
    site.restore("one", "back");
    site.lab.ashlar("restore @one --meta @back --identity @mds").refused(&["is not empty"]);
    let start = |dir: &str, name: &str, address: &str| {
        site.lab.ashlar(&format!("meta --meta @{dir} --listen {address} --identity @{name}"))
    };
    start("back2", "mds", &site.addresses[0]).refused(&["restored for", "this machine is mds"]);
    let first = site.run_meta(1, "back");
    start("meta2", "mds2", &site.addresses[1]).refused(&["`ashlar restore` makes of backup", "meta2"]);
    // A backup that is restored while others serve would be metadata of another time.
    site.lab.ashlar("restore @two --meta @late2 --identity @mds2").expect(0);
    drop(first);
    let first = site.run_meta(1, "back");
    start("late2", "mds2", &site.addresses[1]).refused(&["has changed since", "Restore it anew"]);
    site.lab.meta = first;
    site.more[0] = site.run_meta(2, "back");
    site.lab.start_mount(0);
    assert!(!made[3].join("file").exists() && made[3].exists());
    site.stop();
    site.fsck("", "back").expect(0);
    // The same backup once more: what was restored of it before is of another time by now.
    site.lab.start_manager();
    (0..2).for_each(|at| site.lab.start_storage(at));
    site.lab.ashlar("restore @one --meta @again --identity @mds").expect(0);
    let mut first = site.run_meta(1, "again");
    let line = format!("meta --meta @back2 --listen {} --identity @mds2", site.addresses[1]);
    site.lab.ashlar(&line).refused(&["`ashlar restore` makes of backup"]);
    // Late, and awaited.
    site.lab.ashlar("restore @one --meta @again2 --identity @mds2").expect(0);
    site.run_meta(2, "again").stop();
    first.stop();
    site.lab.manager.stop();
    site.lab.storage.iter_mut().for_each(Role::stop);
    site.fsck("", "again").expect(0);
    // What it had before is not its metadata any more.
    let line = format!("fsck {}", site.metas("meta"));
    let ended = site.lab.ashlar(&line).expect(8);
    assert!(ended.stderr.contains("was replaced by a backup"), "{}", ended.all());
}

#[test]
fn another_machine_takes_the_place_of_a_lost_one_with_what_the_backup_has() {
    let mut site = Site::start(2, 2);
    let made = make_spread(&site.mount(0));
    made.iter().for_each(|dir| fs::write(dir.join("file"), dir.to_str().unwrap()).unwrap());
    // Each to a shard of the other server, or of its own.
    for at in 10..14 {
        site.lab.ashlar(&format!("layout set @m0/d{at} --directories shard-{}", at * 4)).expect(0);
    }
    site.lab.ashlar("backup --identity @first @backup").expect(0);
    // One mount stays, with a file open, and has seen what the backup does not have.
    let there = site.mount(1);
    let open = fs::File::open(there.join("d5/file")).unwrap();
    fs::write(there.join("d6/later"), b"later").unwrap();
    site.lab.mounts[0].stop();
    site.stop_metas();
    fs::remove_dir_all(site.lab.path("meta2")).unwrap();
    fs::remove_dir_all(site.lab.path("mds2")).unwrap();
    site.lab.join_meta("mds3");
    site.lab.ashlar("restore @backup --meta @back --identity @mds").expect(0);
    let told = site.lab.ashlar("restore @backup --meta @back3 --identity @mds3 --instead-of mds2").expect(0);
    assert!(told.stdout.contains("of 32 shards"), "{}", told.all());
    site.lab.meta = site.run_meta(1, "back");
    site.addresses.push(Lab::free_address());
    site.more[0] = site.run_meta(3, "back");
    site.lab.start_mount(0);
    for dir in &made {
        assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), dir.to_str().unwrap());
    }
    let deadline = Instant::now() + PATIENCE;
    for dir in &made {
        let path = there.join(dir.file_name().unwrap()).join("file");
        let read = || fs::read_to_string(&path).ok();
        while read().as_deref() != dir.to_str() {
            assert!(Instant::now() < deadline, "{}: {:?}", path.display(), fs::read_to_string(&path));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    for at in 10..14 {
        let below = there.join(format!("d{at}/below"));
        fs::create_dir(&below).unwrap();
        assert_eq!(inode_of(&below).home(), ShardId(at * 4), "it says where new ones go as before");
    }
    assert!(!there.join("d6/later").exists());
    fs::write(there.join("d6/later"), b"after the restore").unwrap();
    assert_eq!(fs::read(made[6].join("later")).unwrap(), b"after the restore");
    drop(open);
    assert_eq!(site.lab.shards_by_node().get("mds3"), Some(&32));
    site.lab.ashlar("node remove mds2 --identity @first").expect(0);
    site.stop();
    site.lab.ashlar("fsck --state @state --meta @back --meta @back3 --data @d0 --data @d1").expect(0);
}

/// Puts and removes records of the metadata in `meta`, with no regard for its rules.
#[track_caller]
fn edit(site: &Site, meta: &str, change: impl FnOnce(&dyn Snapshot) -> Vec<(Key, Option<bytes::Bytes>)>) {
    let root = site.lab.path(meta);
    let place = Place { engine: &root.join("engine"), root: &root, name: "lane" };
    records::edit(&site.lab.path("d0/target"), &place, change);
}

/// The directory of the metadata server that has `shard`.
fn meta_of(site: &Site, shard: ShardId) -> String {
    let listed = site.lab.ashlar("shard list --json --identity @first").expect(0).stdout;
    let shards: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let name = shards[usize::from(shard.0)]["node"]["name"].as_str().unwrap().to_owned();
    if name == "mds" { "meta".into() } else { name.replace("mds", "meta") }
}

fn inode_of(path: &Path) -> InodeId {
    InodeId(fs::symlink_metadata(path).unwrap().ino())
}

/// Nothing is checked, and nothing told as lost, when not all of the metadata is there.
#[track_caller]
fn a_part_of_the_metadata_is_refused(site: &Site, [one_home, other_home, root_home]: [&String; 3]) {
    let line = format!("fsck --state @state --meta @{one_home} --meta @{root_home}");
    let ended = site.lab.ashlar(&line).expect(8);
    let name = other_home.replace("meta", "mds");
    assert!(ended.stderr.contains(&format!("the metadata of {name} (")), "{}", ended.all());
    assert!(ended.stdout.is_empty(), "nothing is told as lost: {}", ended.all());
    let line = format!("fsck {} --meta @copy", site.metas("meta"));
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(site.lab.path("meta2"))
        .arg(site.lab.path("copy"))
        .status();
    assert!(copied.unwrap().success());
    assert!(site.lab.ashlar(&line).expect(8).stderr.contains("one is a copy of the other"));
    site.lab.ashlar("fsck --meta @meta --meta @meta2").expect(8);
    site.lab.ashlar(&format!("fsck {} --meta @d0", site.metas("meta"))).expect(8);
}

#[test]
fn damage_that_no_server_sees_by_itself_is_found_and_repaired() {
    let mut site = Site::start(3, 1);
    let root = site.mount(0);
    let made = make_spread(&root);
    // Two directories of different servers, neither that of the root.
    let home = |dir: &PathBuf| meta_of(&site, inode_of(dir).home());
    let homes: Vec<String> = made.iter().map(home).collect();
    let root_home = meta_of(&site, ShardId(0));
    let one = (0..64).find(|at| homes[*at] != root_home).unwrap();
    let other = (0..64).find(|at| homes[*at] != root_home && homes[*at] != homes[one]).unwrap();
    let (one, other) = (made[one].clone(), made[other].clone());
    let (one_home, other_home) = (home(&one), home(&other));
    // Files whose inodes are at one server, with names at the other.
    let moved = |name: &str| {
        fs::write(one.join(name), name).unwrap();
        fs::rename(one.join(name), other.join(name)).unwrap();
        inode_of(&other.join(name))
    };
    let (lost, nameless) = (moved("lost"), moved("nameless"));
    fs::write(one.join("linked"), b"linked").unwrap();
    fs::hard_link(one.join("linked"), other.join("link")).unwrap();
    let linked = inode_of(&one.join("linked"));
    assert_eq!(linked.home(), inode_of(&one).home());
    fs::write(one.join("chunks"), support::big()).unwrap();
    fs::rename(one.join("chunks"), other.join("chunks")).unwrap();
    let (before, other_inode) = (listed(&other), inode_of(&other));
    site.stop();

    let clean = site.fsck("", "meta").expect(0);
    assert!(clean.stdout.contains("of 3 metadata servers"), "{}", clean.all());
    a_part_of_the_metadata_is_refused(&site, [&one_home, &other_home, &root_home]);
    edit(&site, &one_home, |snapshot| {
        let mut record: Inode =
            codec::decode(&snapshot.get(&key::inode(linked)).unwrap().unwrap(), "inode").unwrap();
        record.nlink = 7;
        vec![
            (key::inode(lost), None),
            (key::body(lost, 0), None),
            (key::inode(linked), Some(codec::encode(&record).into())),
        ]
    });
    edit(&site, &other_home, |snapshot| {
        let mut changes = Vec::new();
        let mut visit = |record_key: &[u8], value: &[u8]| {
            let mut bucket: Bucket = codec::decode(value, "bucket").unwrap();
            let had = bucket.entries.len();
            bucket.entries.retain(|entry| entry.inode != nameless);
            if bucket.entries.len() < had {
                let value = (!bucket.entries.is_empty()).then(|| codec::encode(&bucket).into());
                changes.push((Key::from_slice(record_key), value));
            }
            ControlFlow::Continue(())
        };
        let (from, to) = key::table_range(other_inode.home(), b'D');
        snapshot.scan(&from, &to, &mut visit).unwrap();
        changes
    });
    let found = site.fsck("", "meta").expect(4);
    for words in [
        "lost: entry \"lost\"".to_owned(),
        format!("points to {lost}, which is not there"),
        format!("inode {nameless} has no name"),
        format!("inode {linked} says 7 links and has 2"),
        "says 5 entries and has 4"
            .replace('5', &before.len().to_string())
            .replace("has 4", &format!("has {}", before.len() - 1)),
    ] {
        assert!(found.stdout.contains(&words), "no `{words}` in {}", found.all());
    }
    let repaired = site.fsck("--repair", "meta").expect(1);
    assert!(repaired.stdout.contains("none left"), "{}", repaired.all());
    site.fsck("", "meta").expect(0);

    site.lab.start_manager();
    (0..2).for_each(|at| site.lab.start_storage(at));
    site.start_metas("meta");
    site.lab.start_mount(0);
    let mut expected = before;
    expected.remove(Path::new("lost"));
    expected.remove(Path::new("nameless"));
    assert_eq!(listed(&other), expected);
    assert_eq!(fs::metadata(other.join("link")).unwrap().nlink(), 2);
    let found: Vec<_> =
        fs::read_dir(root.join("lost+found")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(fs::read_to_string(&found[0]).unwrap(), "nameless");
    fs::remove_file(&found[0]).unwrap();
    site.stop();
    site.fsck("", "meta").expect(0);
}

#[test]
fn targets_that_others_serve_are_compared_with_files() {
    let mut site = Site::start(2, 1);
    let made = make_spread(&site.mount(0));
    let at_second = made.iter().find(|dir| meta_of(&site, inode_of(dir).home()) == "meta2").unwrap().clone();
    let files = ["lost", "cut", "counted", "sound"].map(|name| at_second.join(name));
    files.iter().for_each(|path| fs::write(path, support::big()).unwrap());
    let [lost, cut, counted, _] = files.each_ref().map(|path| inode_of(path));
    site.lab.mounts[0].stop();
    site.stop_metas();
    let check = |site: &Site, how: &str| {
        site.lab.ashlar(&format!("fsck {how} {} --identity @mds", site.metas("meta")))
    };
    let clean = check(&site, "").expect(0);
    assert!(clean.stdout.contains("4 files with 0 chunks on 2 targets"), "{}", clean.all());
    edit(&site, "meta2", |snapshot| {
        let changed = |inode: InodeId, change: fn(&mut Inode)| {
            let bytes = snapshot.get(&key::inode(inode)).unwrap().unwrap();
            let mut record: Inode = codec::decode(&bytes, "inode").unwrap();
            change(&mut record);
            (key::inode(inode), Some(codec::encode(&record).into()))
        };
        vec![
            (key::inode(lost), None),
            changed(cut, |record| record.size = 1_500_000),
            changed(counted, |record| record.blocks = 7),
        ]
    });
    let found = check(&site, "").expect(4);
    for words in [
        format!("chunks {lost}/1 on target-"),
        "belong to no content of a file".into(),
        "behind the end of their file at 1500000".into(),
        "/counted: says it has 7 units".into(),
    ] {
        assert!(found.stdout.contains(&words), "no `{words}` in {}", found.all());
    }
    let repaired = check(&site, "--repair").expect(1);
    assert!(repaired.stdout.contains("none left"), "{}", repaired.all());
    check(&site, "").expect(0);
    // One that is away is told, and so are the files; they are not taken for empty.
    site.lab.storage[1].stop();
    let found = check(&site, "--repair").expect(4);
    assert!(
        found.stdout.contains("[target-missing]") && found.stdout.contains("[file-unreadable]"),
        "{}",
        found.all()
    );
    assert!(!found.stdout.contains("[file-blocks]"), "{}", found.all());
    site.lab.start_storage(1);
    check(&site, "").expect(0);
    site.start_metas("meta");
    site.lab.start_mount(0);
    assert!(!files[0].exists() && fs::read(&files[3]).unwrap() == support::big());
    assert!(fs::read(&files[1]).unwrap() == support::big()[..1_500_000]);
    site.stop();
    site.fsck("", "meta").expect(0);
}

#[test]
fn a_scrub_reads_all_targets_of_many_servers_and_names_the_file() {
    let mut site = Site::start(2, 1);
    let made = make_spread(&site.mount(0));
    (0..3).for_each(|at| fs::write(made[at].join("big"), support::big()).unwrap());
    site.lab.ashlar("scrub --identity @c0").refused(&["certificate", "admin"]);
    let clean = site.lab.ashlar("scrub @m0 --identity @first --json").expect(0);
    let summary: serde_json::Value = serde_json::from_str(&clean.stdout).unwrap();
    assert_eq!(summary["summary"]["targets"], 2);
    let read = summary["summary"]["bytes_read"].as_u64().unwrap();
    assert!(read >= 3 * support::big().len() as u64, "{}", clean.all());
    // The first chunk of one of the files.
    let begin = &support::big()[..64];
    let damaged = ["d0", "d1"].iter().any(|data| {
        let slab = site.lab.path(&format!("{data}/target/slabs/1048576/0.slab"));
        let at = fs::read(&slab).ok().and_then(|bytes| bytes.windows(64).position(|some| some == begin));
        at.is_some_and(|at| {
            support::flip(&slab, at as u64 + 5);
            true
        })
    });
    assert!(damaged);
    let found = site.lab.ashlar("scrub @m0 --identity @first").expect(1);
    assert!(
        found.stdout.contains("/big: target-") && found.stdout.contains("1 problems found"),
        "{}",
        found.all()
    );
    site.lab.storage[1].stop();
    let found = site.lab.ashlar("scrub --identity @first").expect(1);
    assert!(found.stdout.contains("target-2: cannot be scrubbed"), "{}", found.all());
    let events = site.lab.ashlar("event list --kind damage-found --identity @first").expect(0);
    assert!(events.stdout.contains("was written"), "{}", events.all());
}

#[test]
fn operations_that_were_under_way_when_all_servers_were_killed_are_finished_as_a_start_would() {
    let mut site = Site::start(3, 2);
    let root = site.mount(0);
    make_spread(&root);
    let mut seen = 0;
    for round in 0..12 {
        let load = Load::default();
        std::thread::scope(|threads| {
            for runner in 0..RUNNERS * 2 {
                let (root, load) = (site.mount(runner % 2), &load);
                threads.spawn(move || {
                    // Calls fail once everything is killed, and that is well.
                    let place =
                        |at: usize| root.join(format!("d{}/r{round}-{runner}", (at * 7 + runner * 3) % 64));
                    let mut at = 0;
                    if fs::write(place(0), b"x").is_err() {
                        return;
                    }
                    while load.goes_on() && fs::rename(place(at), place(at + 1)).is_ok() {
                        at += 1;
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(700));
            site.lab.meta.kill();
            site.more.iter_mut().for_each(Role::kill);
            load.is_over.store(true, SeqCst);
            // Who waits for them ends.
            site.lab.mounts.iter_mut().for_each(Role::kill);
        });
        for at in 0..2 {
            let _ = std::process::Command::new("umount").arg("-l").arg(site.mount(at)).status();
        }
        let checked = site.lab.ashlar(&format!("fsck {}", site.metas("meta"))).expect(0);
        let is_seen = checked.stderr.contains("operations across servers were under way");
        seen += u32::from(is_seen);
        if is_seen && seen == 1 {
            // It changes nothing unless it is to repair.
            let again = site.lab.ashlar(&format!("fsck {}", site.metas("meta"))).expect(0);
            assert!(again.stderr.contains("under way"), "{}", again.all());
        }
        if is_seen && seen == 2 {
            site.lab.ashlar(&format!("fsck --repair {}", site.metas("meta"))).expect(0);
            let again = site.lab.ashlar(&format!("fsck {}", site.metas("meta"))).expect(0);
            assert!(!again.stderr.contains("under way"), "{}", again.all());
        }
        site.start_metas("meta");
        (0..2).for_each(|at| site.lab.start_mount(at));
        for runner in 0..RUNNERS * 2 {
            let name = format!("r{round}-{runner}");
            let found = (0..64).filter(|at| site.mount(1).join(format!("d{at}/{name}")).exists()).count();
            assert!(found <= 1, "{name} is there {found} times");
        }
        if seen >= 2 {
            break;
        }
    }
    assert!(seen >= 1, "no kill met an operation in the middle");
    site.stop();
    site.fsck("", "meta").expect(0);
}

//! `ashlar fsck` and `ashlar scrub` against damage made behind their back: what they say, what they repair, and their exit status.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use ashlar_chunkstore::{ChunkStore, Config};
use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_kv::{Engine, FjallEngine, FjallOptions, Key, Snapshot};
use ashlar_namespace::{Inode, key};
use ashlar_types::{ChunkId, InodeId, ShardId, codec};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use support::records::{Place, edit};
use support::{Ended, Site, can_mount, flip};

const CHECK: &str = "fsck --data @d1 --data @d2";
const REPAIR: &str = "fsck --repair --data @d1 --data @d2";

/// Checks that damage is found, repaired, and gone, and that the files are as they were. Gives back what the first check said.
#[track_caller]
fn found_and_repaired(site: &Site, class: &str) -> Ended {
    let found = site.run(CHECK).expect(4);
    assert!(found.stdout.contains(&format!("[{class}]")), "{}", found.all());
    assert!(found.stdout.contains("repair would"), "{}", found.all());
    let repaired = site.run(REPAIR).expect(1);
    assert!(repaired.stdout.contains("none left"), "{}", repaired.all());
    let clean = site.run(CHECK).expect(0);
    assert!(clean.stdout.contains("clean"), "{}", clean.all());
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files());
    server.stop();
    found
}

fn with_target(path: &Path, work: impl FnOnce(&ChunkStore)) {
    let disk = Arc::new(OsDisk::new(path));
    let identity = ChunkStore::header(&*disk).unwrap().identity;
    let engine = || {
        let engine = FjallEngine::open(path.join(ashlar_chunkstore::ENGINE_DIR), FjallOptions::default())?;
        Ok(Box::new(engine) as Box<dyn Engine>)
    };
    let (store, _) = ChunkStore::open(disk, engine, &Env::os(), &identity, Config::default()).unwrap();
    work(&store);
    store.close().unwrap();
}

/// Puts and removes records of the metadata, with no regard for its rules.
fn edit_metadata(site: &Site, change: impl FnOnce(&dyn Snapshot) -> Vec<(Key, Option<bytes::Bytes>)>) {
    let meta = site.path("d1/meta");
    let place = Place { engine: &meta.join("engine"), root: &meta, name: "lane" };
    edit(&site.path("d1/target"), &place, change);
}

/// Every inode of table `I` for which `pick` says so, changed.
fn change_inodes(
    snapshot: &dyn Snapshot,
    change: impl Fn(&mut Inode) -> bool,
) -> Vec<(Key, Option<bytes::Bytes>)> {
    let mut changes = Vec::new();
    for shard in 0..ShardId::COUNT_DEFAULT {
        let (from, to) = key::table_range(ShardId(shard), b'I');
        let mut visit = |record_key: &[u8], value: &[u8]| {
            let mut inode: Inode = codec::decode(value, "inode").unwrap();
            if change(&mut inode) {
                changes.push((Key::from_slice(record_key), Some(codec::encode(&inode).into())));
            }
            ControlFlow::Continue(())
        };
        snapshot.scan(&from, &to, &mut visit).unwrap();
    }
    changes
}

fn is_big(inode: &Inode) -> bool {
    inode.size == support::big().len() as u64
}

/// The slab file of the second target.
fn slab(site: &Site) -> std::path::PathBuf {
    site.path("d2/target/slabs/1048576/0.slab")
}

/// An offset in [`slab`] that holds data of the big file.
fn data_offset(site: &Site) -> u64 {
    // The slab is long and sparse; its first slots are what is in use.
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(
        &mut std::io::Read::take(fs::File::open(slab(site)).unwrap(), 8 << 20),
        &mut bytes,
    )
    .unwrap();
    let big = support::big();
    let needle = &big[1 << 20..(1 << 20) + 64];
    let found = bytes.chunks(512).position(|block| block.starts_with(needle));
    (found.expect("the second chunk is on the second target") * 512) as u64
}

#[test]
fn chunks_of_no_file_and_behind_the_end_of_one_are_removed() {
    if !can_mount("orphan chunks") {
        return;
    }
    let site = Site::with_files();
    with_target(&site.path("d1/target"), |store| {
        let chunk = ChunkId { inode: InodeId::new(ShardId(3), 77).unwrap(), generation: 1, index: 0 };
        store.write(chunk, 1 << 20, 0, &[7; 5000], None).unwrap();
    });
    let found = found_and_repaired(&site, "chunk-orphan");
    assert!(found.stdout.contains("chunk 3:77/1/0 on target-1"), "{}", found.all());

    let mut owner = None;
    with_target(&site.path("d1/target"), |store| {
        let first = ChunkId { inode: InodeId(0), generation: 0, index: 0 };
        let chunk = store.list(first, 10).unwrap().chunks[0].id;
        store.write(ChunkId { index: 8, ..chunk }, 1 << 20, 0, &[7; 5000], None).unwrap();
        owner = Some(chunk.inode);
    });
    let found = found_and_repaired(&site, "chunk-beyond-end");
    assert!(found.stdout.contains("/dir/sub/big: chunk"), "{}", found.all());

    with_target(&site.path("d2/target"), |store| {
        let chunk = ChunkId { inode: owner.unwrap(), generation: 1, index: 0 };
        store.write(chunk, 1 << 20, 0, &[7; 5000], None).unwrap();
    });
    found_and_repaired(&site, "chunk-misplaced");
}

#[test]
fn what_is_in_a_split_directory_is_named_with_it_and_its_slices_are_checked() {
    if !can_mount("a split directory") {
        return;
    }
    let site = Site::with_files();
    let server = site.up("up @mnt --data @d1 --data @d2");
    for (at, directory) in ["split", "split/below", "split/below/deep"].into_iter().enumerate() {
        fs::create_dir(site.mnt().join(directory)).unwrap();
        site.run(&format!("layout set @mnt/{directory} --slices {}", at + 2)).expect(0);
    }
    fs::write(site.mnt().join("split/below/deep/file"), "seven b").unwrap();
    site.run("layout set @mnt --slices 3").expect(0);
    assert!(site.has_files());
    server.stop();
    site.run(CHECK).expect(0);
    edit_metadata(&site, |snapshot| {
        change_inodes(snapshot, |inode| {
            inode.nlink += 3;
            inode.size == 7 && !inode.is_directory()
        })
    });
    let found = found_and_repaired(&site, "tree");
    assert!(found.stdout.contains("/split/below/deep/file: "), "{}", found.all());
    edit_metadata(&site, |snapshot| {
        change_inodes(snapshot, |inode| {
            inode.uid = 77;
            matches!(inode.kind, ashlar_namespace::Kind::Slice { index: 0, count: 2, .. })
        })
    });
    let found = found_and_repaired(&site, "tree");
    assert!(found.stdout.contains("/split: slice"), "{}", found.all());
}

#[test]
fn wrong_links_counters_and_blocks_are_set_right() {
    if !can_mount("wrong metadata") {
        return;
    }
    let site = Site::with_files();
    edit_metadata(&site, |snapshot| {
        change_inodes(snapshot, |inode| {
            inode.nlink += 3;
            is_big(inode)
        })
    });
    assert_eq!(site.run(CHECK).expect(4).stdout, site.run(CHECK).expect(4).stdout, "a check changes nothing");
    let found = found_and_repaired(&site, "tree");
    assert!(found.stdout.contains("/dir/sub/big: inode"), "{}", found.all());

    edit_metadata(&site, |snapshot| {
        change_inodes(snapshot, |inode| {
            inode.blocks += 800;
            is_big(inode)
        })
    });
    let found = found_and_repaired(&site, "file-blocks");
    assert!(found.stdout.contains("/dir/sub/big: says it has"), "{}", found.all());
    assert!(found.stdout.contains("[accounting]"), "{}", found.all());
}

#[test]
fn a_file_whose_name_was_lost_gets_one_in_lost_and_found() {
    if !can_mount("lost names") {
        return;
    }
    let site = Site::with_files();
    let mut file = None;
    edit_metadata(&site, |snapshot| {
        let changed = change_inodes(snapshot, |inode| is_big(inode));
        let inode = key::inode_of(&changed[0].0).unwrap();
        file = Some(inode);
        let mut gone = Vec::new();
        let (from, to) = key::table_range(inode.home(), b'D');
        let mut visit = |record_key: &[u8], value: &[u8]| {
            let bucket: ashlar_namespace::Bucket = codec::decode(value, "bucket").unwrap();
            if bucket.entries.iter().any(|entry| entry.inode == inode) {
                gone.push((Key::from_slice(record_key), None));
            }
            ControlFlow::Continue(())
        };
        snapshot.scan(&from, &to, &mut visit).unwrap();
        gone
    });
    let found = site.run(CHECK).expect(4);
    assert!(found.stdout.contains("has no name"), "{}", found.all());
    site.run(REPAIR).expect(1);
    site.run(CHECK).expect(0);
    let server = site.up("up @mnt --data @d1 --data @d2");
    // An entry would keep the directory open.
    let names: Vec<_> =
        fs::read_dir(site.mnt().join("lost+found")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 1);
    assert!(fs::read(&names[0]).unwrap() == support::big());
    server.stop();
}

#[test]
fn a_damaged_block_is_told_with_the_file_by_fsck_and_scrub_and_stays_an_error() {
    if !can_mount("damaged blocks") {
        return;
    }
    let site = Site::with_files();
    flip(&slab(&site), data_offset(&site) + 5);
    for line in [CHECK, REPAIR] {
        let found = site.run(line).expect(4);
        assert!(found.stdout.contains("[block] /dir/sub/big: chunk"), "{}", found.all());
        assert!(found.stdout.contains("not repaired: restore the file from a copy"), "{}", found.all());
    }
    site.run("fsck --quick --data @d1 --data @d2").expect(0);
    let found = site.run("fsck --json --data @d1 --data @d2").expect(4);
    let first: serde_json::Value = serde_json::from_str(found.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&first["class"], &first["path"]), (&"block".into(), &"/dir/sub/big".into()));

    let server = site.up("up @mnt --data @d1 --data @d2");
    let found = site.run("scrub @mnt").expect(1);
    let path = site.mnt().join("dir/sub/big").display().to_string();
    assert!(found.stdout.contains(&format!("{path}: target-2: chunk")), "{}", found.all());
    let found = site.run("scrub --json @mnt").expect(1);
    let last: serde_json::Value = serde_json::from_str(found.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["summary"]["findings"], 1);
    let error = fs::read(site.mnt().join("dir/sub/big")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    // The way out that is told: write the file anew.
    fs::write(site.mnt().join("dir/sub/big"), support::big()).unwrap();
    server.stop();
    site.run(CHECK).expect(0);
}

#[test]
fn a_truncation_that_met_a_damaged_block_does_not_keep_the_file_system_closed() {
    if !can_mount("a truncation at a damaged block") {
        return;
    }
    let site = Site::with_files();
    flip(&slab(&site), data_offset(&site) + 5);
    let big = site.mnt().join("dir/sub/big");
    let server = site.up("up @mnt --data @d1 --data @d2");
    let file = fs::OpenOptions::new().write(true).open(&big).unwrap();
    let cut = file.set_len((1 << 20) + 100).unwrap_err();
    assert_eq!(cut.raw_os_error(), Some(libc::EIO));
    drop(file);
    server.stop();

    // The start tries to carry it out, and fails as well.
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert_eq!(fs::read(site.mnt().join("dir/small")).unwrap(), b"small content");
    assert_eq!(fs::read(&big).unwrap_err().raw_os_error(), Some(libc::EIO));
    fs::write(&big, support::big()).unwrap();
    server.stop();
    site.run(CHECK).expect(0);
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files());
    server.stop();
}

#[test]
fn a_scrub_of_sound_data_finds_nothing_and_reads_it_all() {
    if !can_mount("scrub") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1 --data @d2");
    for number in 0..12 {
        fs::write(site.mnt().join(format!("file{number}")), support::big()).unwrap();
    }
    let told = site.run("scrub --json @mnt").expect(0);
    let summary: serde_json::Value = serde_json::from_str(told.stdout.trim()).unwrap();
    let read = summary["summary"]["bytes_read"].as_u64().unwrap();
    assert!(read >= 12 * support::big().len() as u64, "{read} bytes, in more than one portion");
    let told = site.run("scrub --json --rate 8 @mnt").expect(0);
    let summary: serde_json::Value = serde_json::from_str(told.stdout.trim()).unwrap();
    assert_eq!(summary["summary"]["bytes_read"].as_u64().unwrap(), read);
    let seconds = summary["summary"]["seconds"].as_f64().unwrap();
    assert!(
        seconds >= 1.9,
        "after the first 16 of 30 MiB it is two seconds ahead at least, but took {seconds} s in all"
    );
    site.run("scrub --rate 0 @mnt").expect(2);
    server.stop();
    site.run("scrub @mnt").refused(&["no file system that you may ask is mounted"]);
}

#[test]
fn records_of_an_index_that_are_lost_come_back_from_the_slots() {
    if !can_mount("lost index records") {
        return;
    }
    let site = Site::with_files();
    let index = site.path("d2/target/index");
    let place = Place { engine: &index.join("engine"), root: &site.path("d2/target"), name: "index" };
    edit(&site.path("d1/target"), &place, |snapshot| {
        let mut gone = Vec::new();
        let mut visit = |record_key: &[u8], _: &[u8]| {
            // Table `c` has the places of chunks (`docs/formats/target.md`).
            if record_key[2] == b'c' {
                gone.push((Key::from_slice(record_key), None));
            }
            ControlFlow::Continue(())
        };
        snapshot.scan(&[0, 0], &[0xFF; 64], &mut visit).unwrap();
        assert!(!gone.is_empty());
        gone
    });
    found_and_repaired(&site, "target-index");
    assert!(site.path("d2/target/index.damaged").is_dir(), "the old one is kept");
}

#[test]
fn a_check_that_cannot_be_done_says_why_with_status_8() {
    let site = Site::new();
    let ended = site.run("fsck --data @d1").expect(8);
    assert!(ended.stderr.contains("there is no file system at"), "{}", ended.all());
}

//! Goal: bytes that change on the disk of one copy are never seen, and come back from the other copy, by a read or a scrub; what is damaged in both is an error with the file's name, and nothing else. Method:
//! real processes; slab files are changed while their server is stopped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use support::cluster::{Lab, Role};
use support::{PATIENCE, can_mount, soon};

const CHUNK: usize = 64 << 10;
/// Header block and data of a chunk in its slab.
const STRIDE: u64 = 4096 + CHUNK as u64;
const FILES: u64 = 12;
const LEN: usize = 5 * CHUNK + 777;

fn content(of: u64) -> Vec<u8> {
    let mut state = (of + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..LEN / 8 + 1).flat_map(|_| next()).take(LEN).collect()
}

fn path(lab: &Lab, of: u64) -> PathBuf {
    lab.path(&format!("m0/copied/f{of}"))
}

/// Reads past the cache of the mount.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut found = vec![0; LEN];
    file.read_exact_at(&mut found, 0)?;
    Ok(found)
}

/// Slots of the slab of a target that have a chunk.
fn used_slots(slab: &File) -> Vec<u64> {
    let slots = slab.metadata().unwrap().len() / STRIDE;
    let is_used = |slot: &u64| {
        let mut magic = [0; 8];
        slab.read_exact_at(&mut magic, slot * STRIDE).unwrap();
        &magic == b"ASHLSLOT"
    };
    (0..slots).filter(is_used).collect()
}

fn slab(lab: &Lab, target: usize) -> File {
    let slab = lab.path(&format!("d{target}/target/slabs/65536/0.slab"));
    OpenOptions::new().read(true).write(true).open(slab).unwrap()
}

/// Changes every chunk of a target whose server is stopped: a byte of the content at `within`, or of the header of each fourth.
fn damage(lab: &Lab, target: usize, within: u64, with_headers: bool) -> usize {
    let slab = slab(lab, target);
    let slots = used_slots(&slab);
    for slot in &slots {
        let is_header = with_headers && slot % 4 == 0;
        let at = slot * STRIDE + if is_header { 20 } else { 4096 + within };
        let mut byte = [0];
        slab.read_exact_at(&mut byte, at).unwrap();
        slab.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
    }
    slab.sync_all().unwrap();
    slots.len()
}

fn scrubbed(lab: &Lab) -> support::Ended {
    lab.ashlar(&format!("scrub {} --identity @first", lab.path("m0").display()))
}

/// All chains, as `chain list` tells them.
fn chains(lab: &Lab) -> Vec<serde_json::Value> {
    let listed = lab.ashlar("chain list --json --identity @first").expect(0).stdout;
    serde_json::from_str(&listed).unwrap()
}

/// Targets in sync of a chain that [`chains`] tells, the head first.
fn in_sync(chain: &serde_json::Value) -> Vec<u64> {
    chain["in_sync"].as_array().unwrap().iter().map(|target| target["id"].as_u64().unwrap()).collect()
}

fn wait_for_copies_of(lab: &Lab, copies: usize) {
    soon(PATIENCE, "chains are whole", || {
        let chains = chains(lab);
        !chains.is_empty() && chains.iter().all(|chain| in_sync(chain).len() == copies)
    });
}

fn wait_for_copies(lab: &Lab) {
    wait_for_copies_of(lab, 2);
}

/// As many storage servers as copies, and a directory for files with one on each.
fn start_with_copies(copies: usize) -> Lab {
    let lab = Lab::start(copies, 1);
    lab.ashlar(&format!("pool copies default {copies} --identity @first")).expect(0);
    let dir = lab.path("m0/copied");
    fs::create_dir(&dir).unwrap();
    let line = format!("layout set --copies {copies} --chunk-size 64K --inline-size 0 {}", dir.display());
    // Who serves the directory learns of the chains in a moment.
    soon(PATIENCE, "the directory takes the layout", || lab.ashlar(&line).code == Some(0));
    wait_for_copies_of(&lab, copies);
    lab
}

/// Two storage servers, and files with a copy on each.
fn start() -> Lab {
    let lab = start_with_copies(2);
    for of in 0..FILES {
        fs::write(path(&lab, of), content(of)).unwrap();
        File::open(path(&lab, of)).unwrap().sync_all().unwrap();
    }
    lab
}

/// Stops a storage server, changes what is on its disk, and starts it again.
fn damage_while_stopped(lab: &mut Lab, target: usize, within: u64, with_headers: bool) {
    lab.storage[target].stop();
    assert!(damage(lab, target, within, with_headers) > 20, "there is something to damage");
    lab.start_storage(target);
    wait_for_copies(lab);
}

/// Changes that keep a part of a block which is damaged in one copy, whichever that is: files end within one, or get some bytes there.
fn change_parts_of_damaged_blocks(lab: &Lab) {
    let within = 9 * 4096;
    for of in 0..4 {
        let len = (of as usize + 1) * CHUNK + within + 1234;
        let file = OpenOptions::new().write(true).open(path(lab, of)).unwrap();
        file.set_len(len as u64).unwrap();
        file.sync_all().unwrap();
        let found = fs::read(path(lab, of)).unwrap();
        assert!(found == content(of)[..len], "file {of}, which was cut");
    }
    for of in 4..8 {
        let at = (of as usize - 3) * CHUNK + within + 50;
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path(lab, of)).unwrap();
        file.write_all_at(&[7; 100], at as u64).unwrap();
        file.sync_all().unwrap();
        let mut expected = content(of);
        expected[at..at + 100].fill(7);
        assert!(read(&path(lab, of)).unwrap() == expected, "file {of}, of which a part was changed");
    }
    for of in 0..8 {
        fs::write(path(lab, of), content(of)).unwrap();
        File::open(path(lab, of)).unwrap().sync_all().unwrap();
    }
}

#[test]
fn whatever_is_damaged_on_one_disk_is_read_from_the_other_and_comes_back() {
    if !can_mount("a damaged copy") {
        return;
    }
    let mut lab = start();
    damage_while_stopped(&mut lab, 0, 5000, true);
    // By reads alone, at whichever copy they are made.
    for _ in 0..4 {
        (0..FILES).for_each(|of| assert!(read(&path(&lab, of)).unwrap() == content(of), "file {of}"));
    }
    soon(PATIENCE, "a scrub finds nothing any more", || scrubbed(&lab).code == Some(0));
    wait_for_copies(&lab);
    let events = lab.ashlar("event list --identity @first").expect(0).stdout;
    assert!(events.contains("damage-found") && events.contains("damage-mended"), "{events}");

    // By a scrub alone, also what nobody reads; with the other copy's disk as good as it was before.
    damage_while_stopped(&mut lab, 1, 40_000, true);
    change_parts_of_damaged_blocks(&lab);
    let found = scrubbed(&lab);
    assert_eq!(found.code, Some(1), "{}", found.all());
    assert!(found.stdout.contains("whole again"), "{}", found.all());
    soon(PATIENCE, "a scrub finds nothing any more", || scrubbed(&lab).code == Some(0));
    wait_for_copies(&lab);
    lab.storage[0].stop();
    (0..FILES)
        .for_each(|of| assert!(read(&path(&lab, of)).unwrap() == content(of), "file {of}, of the copy"));
    lab.start_storage(0);
    wait_for_copies(&lab);
    lab.mounts.iter_mut().for_each(Role::stop);
    lab.stop();
    lab.ashlar("fsck --state @state --meta @meta --data @d0 --data @d1").expect(0);
}

#[test]
fn what_is_damaged_in_both_copies_is_an_error_that_names_the_file_and_does_no_further_harm() {
    if !can_mount("damage in both copies") {
        return;
    }
    let mut lab = start();
    // The same block of every chunk on both disks, and another one of one disk alone.
    lab.storage.iter_mut().for_each(Role::stop);
    damage(&lab, 0, 5000, false);
    damage(&lab, 1, 5001, false);
    damage(&lab, 1, 50_000, false);
    (0..2).for_each(|target| lab.start_storage(target));
    wait_for_copies(&lab);
    for of in 0..FILES {
        let error = read(&path(&lab, of)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "file {of}: {error}");
    }
    let found = scrubbed(&lab);
    assert_eq!(found.code, Some(1), "{}", found.all());
    for of in 0..FILES {
        assert!(found.stdout.contains(&format!("copied/f{of}")), "file {of}: {}", found.all());
    }
    // Blocks that one of both has come back, and nothing that is damaged becomes sound: neither copies of it.
    for of in 0..FILES {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path(&lab, of)).unwrap();
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, 49_152).unwrap();
        assert!(block == content(of)[49_152..][..4096], "file {of}");
    }
    let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name oss9 --identity @oss9", token.trim())).expect(0);
    let line = format!("storage --data @d9 --listen {} --identity @oss9", Lab::free_address());
    let _third = lab.run("oss9", &line, "serves");
    lab.ashlar("target drain 1 --identity @first").expect(0);
    soon(PATIENCE * 2, "the first target is empty", || {
        chains(&lab).iter().map(in_sync).all(|in_sync| in_sync.len() == 2 && !in_sync.contains(&1))
    });
    lab.storage[1].stop();
    for of in 0..FILES {
        let error = read(&path(&lab, of)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "file {of}: {error}");
    }
    lab.start_storage(1);
    wait_for_copies(&lab);
    // Written again it is sound again.
    fs::write(path(&lab, 0), content(0)).unwrap();
    assert!(read(&path(&lab, 0)).unwrap() == content(0));
    lab.mounts.iter_mut().for_each(Role::stop);
}

fn write_synced(path: &Path, content: &[u8]) {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all_at(content, 0).unwrap();
    file.sync_all().unwrap();
}

/// Slots of a target as they are, each with its place in the slab.
fn slots(lab: &Lab, target: usize) -> Vec<(u64, Vec<u8>)> {
    let slab = slab(lab, target);
    let read = |slot| {
        let mut bytes = vec![0; STRIDE as usize];
        slab.read_exact_at(&mut bytes, slot * STRIDE).unwrap();
        (slot * STRIDE, bytes)
    };
    used_slots(&slab).into_iter().map(read).collect()
}

/// Whether a target has the full chunks of the content of a turn. What is in slots that are free by now stays there.
fn has_content(lab: &Lab, target: usize, turn: u64) -> bool {
    let slots = slots(lab, target);
    let is_there = |chunk: &[u8]| slots.iter().any(|(_, slot)| &slot[4096..] == chunk);
    content(turn).chunks_exact(CHUNK).all(is_there)
}

/// Has the disk of a target lose what is written to the only file, so that it has the old content, with the checksums of that. False if it was sent there again before a scrub could find it,
/// as what was changed just before a server went away is.
fn lose_writes(lab: &mut Lab, victim: usize, turn: u64) -> bool {
    let before = slots(lab, victim);
    assert!(before.len() > 5);
    write_synced(&path(lab, 0), &content(turn));
    assert_ne!(slots(lab, victim), before, "written in place");
    std::thread::sleep(std::time::Duration::from_secs(3));
    lab.storage[victim].stop();
    let slab = slab(lab, victim);
    before.iter().for_each(|(at, bytes)| slab.write_all_at(bytes, *at).unwrap());
    slab.sync_all().unwrap();
    lab.start_storage(victim);
    let mut is_found = false;
    soon(PATIENCE, "a scrub has found it, or it was sent again", || {
        let found = scrubbed(lab);
        is_found = found.stdout.contains("is not the same");
        assert!(!is_found || found.code == Some(1) && found.stdout.contains("copied/f0"), "{}", found.all());
        is_found || has_content(lab, victim, turn)
    });
    is_found
}

#[test]
fn a_copy_of_three_that_has_lost_writes_and_is_sound_is_found_by_a_scrub() {
    if !can_mount("a copy that has lost writes") {
        return;
    }
    let mut lab = start_with_copies(3);
    lab.ashlar(&format!("layout set --stripe-count 1 {}", lab.path("m0/copied").display())).expect(0);
    // All that is anywhere.
    let file = path(&lab, 0);
    write_synced(&file, &content(0));
    let mut turns = 1..;
    for place in [2, 1] {
        let told = lab.ashlar(&format!("layout show --json {}", file.display())).expect(0).stdout;
        let layout: serde_json::Value = serde_json::from_str(&told).unwrap();
        let targets: Vec<usize> =
            layout["targets"].as_str().unwrap().split('+').map(|target| target.parse().unwrap()).collect();
        let victim = targets[place] - 1;
        let turn = turns.by_ref().take(8).find(|turn| lose_writes(&mut lab, victim, *turn));
        let turn = turn.expect("a scrub has found it");
        soon(PATIENCE, "a scrub finds nothing any more", || scrubbed(&lab).code == Some(0));
        // Chunks that are about to be sent are none of its findings.
        soon(PATIENCE, "the copy is as the others", || has_content(&lab, victim, turn));
        wait_for_copies_of(&lab, 3);
    }
    lab.mounts.iter_mut().for_each(Role::stop);
}

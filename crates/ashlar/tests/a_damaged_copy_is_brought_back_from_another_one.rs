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

fn wait_for_copies(lab: &Lab) {
    soon(PATIENCE, "chains are whole", || {
        let listed = lab.ashlar("chain list --json --identity @first").expect(0).stdout;
        let chains: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let chains = chains.as_array().unwrap();
        !chains.is_empty() && chains.iter().all(|chain| chain["in_sync"].as_array().unwrap().len() == 2)
    });
}

/// Two storage servers, and files with a copy on each.
fn start() -> Lab {
    let lab = Lab::start(2, 1);
    lab.ashlar("pool copies default 2 --identity @first").expect(0);
    let dir = lab.path("m0/copied");
    fs::create_dir(&dir).unwrap();
    let line = format!("layout set --copies 2 --chunk-size 64K --inline-size 0 {}", dir.display());
    // Who serves the directory learns of the chains in a moment.
    soon(PATIENCE, "the directory takes the layout", || lab.ashlar(&line).code == Some(0));
    wait_for_copies(&lab);
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
        let listed = lab.ashlar("chain list --json --identity @first").expect(0).stdout;
        let chains: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let is_gone = |chain: &serde_json::Value| {
            let in_sync = chain["in_sync"].as_array().unwrap();
            in_sync.len() == 2 && !in_sync.iter().any(|target| *target == 1)
        };
        chains.as_array().unwrap().iter().all(is_gone)
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

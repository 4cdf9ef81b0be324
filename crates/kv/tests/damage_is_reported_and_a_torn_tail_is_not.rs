//! The end of a log: what a power cut leaves is the end; what bit rot leaves is an error that names the place and the way
//! out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, OpenMode};
use ashlar_kv::format::{LogIdentity, RecordBuffer, RecordHeader, SegmentHeader, body_bytes};
use ashlar_kv::{KvError, Lane, LaneConfig, MemoryEngine, Position};
use ledger::{CLUSTER, commit, get, open_sim, put, small_config};

/// Where the records of a lane's first segment begin in its file.
const RECORDS: u64 = 4096;
const SEGMENT: &str = "lane/log/0000000000000000.log";

fn config() -> LaneConfig {
    LaneConfig { segment_bytes: 64 << 10, overlay_bytes_max: 1 << 20, ..small_config() }
}

/// A lane with ten groups, each flushed by itself; their positions. The process is dead.
fn ten_flushed_groups() -> (SimDisk, MemoryEngine, Vec<Position>) {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, config(), 1).unwrap();
    let positions = (0..10).map(|number| {
        let position = commit(&lane, vec![put(&format!("k{number}"), format!("v{number}"))]).unwrap();
        lane.flush(position).unwrap();
        position
    });
    let positions = positions.collect();
    drop(lane);
    disk.kill_process();
    (disk, engine, positions)
}

fn flip(disk: &SimDisk, position: Position, byte: u64) {
    disk.flip_bit(SEGMENT, (RECORDS + position.0 + byte) * 8 + 3).unwrap();
}

fn count(lane: &Lane) -> usize {
    (0..10).filter(|number| get(lane, &format!("k{number}")).is_some()).count()
}

#[test]
fn every_kind_of_damage_before_the_last_flushes_is_named_and_nothing_is_lost() {
    let (_, _, positions) = ten_flushed_groups();
    let length = positions[5].0 - positions[4].0;
    for byte in 0..length - 3 {
        let (disk, engine, positions) = ten_flushed_groups();
        flip(&disk, positions[4], byte);
        let error = open_sim(&disk, &engine, config(), 2).err();
        let Some(KvError::Corrupt { what }) = error else {
            // Padding is not covered and carries nothing.
            let lane = open_sim(&disk, &engine, config(), 2);
            assert!(byte > length - 8 && lane.is_ok_and(|lane| count(&lane) == 10), "byte {byte}: {error:?}");
            continue;
        };
        let offset = RECORDS + positions[4].0;
        assert!(what.contains(SEGMENT) && what.contains(&format!("offset {offset}")), "{what}");
        assert!(what.contains("give_up_from") && what.contains(&positions[4].0.to_string()), "{what}");
        // Asking again does not change the answer, and the log is still there for a repair.
        assert!(matches!(open_sim(&disk, &engine, config(), 3), Err(KvError::Corrupt { .. })));
        disk.flip_bit(SEGMENT, (offset + byte) * 8 + 3).unwrap();
        assert_eq!(count(&open_sim(&disk, &engine, config(), 4).unwrap()), 10);
        if byte > 60 {
            break;
        }
    }
}

#[test]
fn giving_up_from_the_named_position_opens_with_what_was_before() {
    let (disk, engine, positions) = ten_flushed_groups();
    flip(&disk, positions[4], 20);
    let elsewhere = LaneConfig { give_up_from: Some(positions[2]), ..config() };
    assert!(matches!(open_sim(&disk, &engine, elsewhere.clone(), 2), Err(KvError::Corrupt { .. })));
    let give_up = LaneConfig { give_up_from: Some(positions[4]), ..config() };
    let lane = open_sim(&disk, &engine, give_up.clone(), 2).unwrap();
    assert_eq!(count(&lane), 5);
    commit(&lane, vec![put("after", "1")]).unwrap();
    drop(lane);
    disk.kill_process();
    // Left in the configuration, the position does no harm.
    let lane = open_sim(&disk, &engine, give_up, 3).unwrap();
    assert_eq!((count(&lane), get(&lane, "after").is_some()), (5, true));
}

#[test]
fn damage_to_the_last_group_is_reported_once_its_flush_was_marked() {
    let (disk, engine, positions) = ten_flushed_groups();
    flip(&disk, positions[8], 20);
    assert_eq!(count(&open_sim(&disk, &engine, config(), 2).unwrap()), 9, "without a mark it is a torn tail");

    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, config(), 1).unwrap();
    commit(&lane, vec![put("k0", "v")]).unwrap();
    lane.tick().unwrap(); // flushes
    lane.tick().unwrap(); // marks
    let writes = disk.counts().writes;
    lane.tick().unwrap();
    assert_eq!(disk.counts().writes, writes, "an idle lane writes one mark");
    drop(lane);
    disk.kill_process();
    flip(&disk, Position(0), 20);
    assert!(matches!(open_sim(&disk, &engine, config(), 2), Err(KvError::Corrupt { .. })));
}

#[test]
fn unflushed_blocks_that_arrived_out_of_order_are_a_torn_tail() {
    let mut lost_and_later_kept = 0;
    for seed in 0..60 {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let lane = open_sim(&disk, &engine, config(), 1).unwrap();
        commit(&lane, vec![put("k0", vec![1; 3000])]).unwrap();
        lane.flush_all().unwrap();
        for number in 1..10 {
            commit(&lane, vec![put(&format!("k{number}"), vec![number; 3000])]).unwrap();
        }
        drop(lane);
        disk.crash(seed);
        let file = disk.open(SEGMENT, OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        let intact = (1..10).filter(|n| bytes.windows(2900).any(|w| w.iter().all(|b| b == n))).count();
        drop(file);
        let lane = open_sim(&disk, &engine, config(), 2).unwrap();
        let kept = (1..10).filter(|number| get(&lane, &format!("k{number}")).is_some()).count();
        assert!(get(&lane, "k0").is_some() && kept <= intact);
        lost_and_later_kept += usize::from(kept < intact);
    }
    assert!(lost_and_later_kept > 5, "the case was hardly met: {lost_and_later_kept}");
}

#[test]
fn records_behind_a_torn_tail_never_come_back() {
    for seed in 0..200 {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let lane = open_sim(&disk, &engine, config(), 1).unwrap();
        for number in 0..10 {
            commit(&lane, vec![put(&format!("k{number}"), vec![b'a'; 900])]).unwrap();
        }
        drop(lane);
        disk.crash(seed);
        // Groups of the very same size replace what was lost, and power fails again.
        let lane = open_sim(&disk, &engine, config(), 2).unwrap();
        let first_life = count(&lane);
        for number in 0..(10 - first_life).min(3) {
            commit(&lane, vec![put(&format!("n{number}"), vec![b'b'; 900])]).unwrap();
        }
        drop(lane);
        disk.crash(seed + 1000);
        let lane = open_sim(&disk, &engine, config(), 3).unwrap();
        assert_eq!(count(&lane), first_life, "a lost group came back, seed {seed}");
    }
}

#[test]
fn a_missing_segment_is_damage() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    for number in 0..8 {
        commit(&lane, vec![put(&format!("k{number}"), vec![1; 3000])]).unwrap();
        lane.flush_all().unwrap();
    }
    drop(lane);
    disk.kill_process();
    let mut names = disk.list("lane/log").unwrap();
    names.retain(|name| name.ends_with(".log"));
    names.sort();
    assert!(names.len() >= 2, "{names:?}");
    disk.remove(&format!("lane/log/{}", names[0])).unwrap();
    let error = open_sim(&disk, &engine, small_config(), 2).err();
    assert!(matches!(&error, Some(KvError::Corrupt { what }) if what.contains("lane/log")), "{error:?}");
}

#[test]
fn a_missing_log_behind_a_checkpoint_is_damage() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    commit(&lane, vec![put("k0", "v")]).unwrap();
    lane.close().unwrap();
    let position = lane.appended();
    drop(lane);
    for name in disk.list("lane/log").unwrap() {
        disk.remove(&format!("lane/log/{name}")).unwrap();
    }
    assert!(matches!(open_sim(&disk, &engine, small_config(), 2), Err(KvError::Corrupt { .. })));
    let give_up = LaneConfig { give_up_from: Some(position), ..small_config() };
    assert_eq!(get(&open_sim(&disk, &engine, give_up, 2).unwrap(), "k0").unwrap(), "v");
}

#[test]
fn files_of_another_file_system_lane_or_format_are_refused() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    commit(&lane, vec![put("k0", "v")]).unwrap();
    drop(lane);
    let other_lane = LaneConfig { lane: 8, ..small_config() };
    assert!(matches!(open_sim(&disk, &engine, other_lane.clone(), 2), Err(KvError::Foreign { .. })));
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    lane.close().unwrap();
    drop(lane);
    // The engine's own note is checked as well: an empty log directory does not hide it.
    let empty = SimDisk::new();
    assert!(matches!(open_sim(&empty, &engine, other_lane, 2), Err(KvError::Foreign { .. })));
}

#[test]
fn a_lane_opens_once() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let _lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    assert!(matches!(
        open_sim(&disk, &engine, small_config(), 2),
        Err(KvError::Io { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock
    ));
}

#[test]
fn a_valid_record_of_an_earlier_use_of_the_file_is_not_taken() {
    let identity = LogIdentity { cluster: CLUSTER, lane: 7 };
    for (change, expected) in [(0, true), (1, false)] {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        drop(open_sim(&disk, &engine, config(), 1).unwrap());
        disk.kill_process();
        let file = disk.open(SEGMENT, OpenMode::ReadWrite).unwrap();
        let mut head = vec![0; RECORDS as usize];
        file.read_at(0, &mut head).unwrap();
        let nonce = SegmentHeader::decode(&head).unwrap().nonce ^ change;
        let frames = [put("k0", "v")];
        let body_bytes = body_bytes(&frames) as u32;
        let header = RecordHeader { body_bytes, position: 0, flushed: 0, nonce, frames: 1 };
        let mut record = RecordBuffer::default();
        record.encode(identity.seed(), &header, &frames, &[1]);
        file.write_at(RECORDS, record.as_slice().unwrap()).unwrap();
        drop(file);
        let lane = open_sim(&disk, &engine, config(), 2).unwrap();
        assert_eq!(get(&lane, "k0").is_some(), expected, "nonce changed by {change}");
    }
}

#[test]
fn files_were_gone_without_a_word_after_the_last_segment_was_cut() {
    let len = config().segment_bytes;
    for cut in [0, 100, RECORDS, RECORDS + 200, len / 2, len - 1] {
        let (disk, engine, _) = ten_flushed_groups();
        let file = disk.open(SEGMENT, OpenMode::ReadWrite).unwrap();
        let mut bytes = vec![0; len as usize];
        file.read_at(0, &mut bytes).unwrap();
        file.set_len(cut).unwrap();
        drop(file);
        let error = open_sim(&disk, &engine, config(), 2).err();
        let Some(KvError::Corrupt { what }) = error else { panic!("cut to {cut}: {error:?}") };
        assert!(what.contains(SEGMENT) && what.contains(&format!("{cut} bytes")), "{what}");
        // The way out is the one of any damage, and nothing was changed.
        let position = what.split("after position ").nth(1).unwrap().split(' ').next().unwrap();
        let give_up = LaneConfig { give_up_from: Some(Position(position.parse().unwrap())), ..config() };
        let before = disk.open(SEGMENT, OpenMode::Read).unwrap().len().unwrap();
        assert_eq!(before, cut);
        if cut < len / 2 {
            let lane = open_sim(&disk, &engine, give_up, 3).unwrap();
            assert!(count(&lane) < 10, "cut to {cut}");
        } else {
            disk.open(SEGMENT, OpenMode::ReadWrite).unwrap().write_at(0, &bytes).unwrap();
            assert_eq!(count(&open_sim(&disk, &engine, config(), 3).unwrap()), 10, "cut to {cut}");
        }
    }
}

#[test]
fn a_segment_of_an_early_release_that_does_not_tell_its_length_is_read() {
    let (disk, engine, _) = ten_flushed_groups();
    disk.open(SEGMENT, OpenMode::ReadWrite).unwrap().write_at(52, &[0; 12]).unwrap();
    assert_eq!(count(&open_sim(&disk, &engine, config(), 2).unwrap()), 10);
}

#[test]
fn a_lost_engine_was_blamed_on_the_log_with_a_remedy_that_loses_the_rest() {
    let (disk, engine, _) = ten_flushed_groups();
    open_sim(&disk, &engine, config(), 2).unwrap().close().unwrap();
    disk.kill_process();
    let error = open_sim(&disk, &MemoryEngine::new(), config(), 3).err();
    let Some(KvError::Corrupt { what }) = error else { panic!("{error:?}") };
    assert!(what.contains("the engine's files are lost") && !what.contains("give_up_from"), "{what}");
}

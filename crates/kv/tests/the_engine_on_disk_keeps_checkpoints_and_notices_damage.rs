//! The real engine: checkpoints survive reopening, merge scans are right, and no flipped bit becomes a wrong answer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_env::sim::SimEntropy;
use ashlar_kv::{Background, Engine, FjallEngine, FjallOptions, Key, KvError, Lane, LaneConfig, Urgency};
use bytes::Bytes;
use ledger::{CLUSTER, Ledger, commit, frame, key, put, scan_all, small_config};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn open_lane(dir: &Path, config: LaneConfig) -> Result<Lane, KvError> {
    std::fs::create_dir_all(dir.join("lane")).unwrap();
    let engine = FjallEngine::open(dir.join("lane/engine"), FjallOptions::default())?;
    Lane::open(Arc::new(OsDisk::new(dir)), "lane", Box::new(engine), &Env::os(), CLUSTER, config)
}

#[test]
fn random_groups_read_the_same_from_overlay_engine_and_both() {
    let dir = tempfile::tempdir().unwrap();
    let random = SimEntropy::new(5);
    let mut ledger = Ledger::default();
    for round in 0..8 {
        let lane = open_lane(dir.path(), small_config()).unwrap();
        ledger.require_prefix(&lane, &format!("round {round}, opened"));
        for number in 0..120 {
            let group = ledger.draw_group(&random);
            lane.write().commit(group, Urgency::Normal).unwrap();
            if number % 50 == 49 {
                lane.checkpoint_now().unwrap();
                ledger.durable = ledger.len();
                ledger.require_prefix(&lane, &format!("round {round}, checkpointed"));
            }
        }
        if round % 2 == 0 {
            lane.close().unwrap();
        }
        ledger.committed = ledger.len();
    }
}

#[test]
fn a_snapshot_stays_what_it_was_while_everything_changes() {
    let dir = tempfile::tempdir().unwrap();
    let all = |snapshot: &dyn ashlar_kv::Snapshot| {
        let mut seen = BTreeMap::new();
        let (from, to) = (key(0, ""), key(9, ""));
        let mut visit = |key: &[u8], value: &[u8]| {
            seen.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        };
        snapshot.scan(&from, &to, &mut visit).unwrap();
        seen
    };
    let long = |number: usize| format!("{number} ").repeat(1000);
    let lane = open_lane(dir.path(), small_config()).unwrap();
    for number in 0..60 {
        commit(&lane, vec![put(&format!("k{number:02}"), long(number))]).unwrap();
    }
    lane.close().unwrap();
    drop(lane);
    // Also what was there before this process had the engine open.
    let lane = open_lane(dir.path(), small_config()).unwrap();
    commit(&lane, vec![put("k00", "in the overlay")]).unwrap();
    let before = all(&lane.read());
    assert_eq!(before.len(), 60);
    let snapshot = lane.snapshot().unwrap();
    for round in 0..12 {
        for number in (round % 3..60).step_by(3) {
            let name = format!("k{number:02}");
            match round < 6 {
                true => commit(&lane, vec![put(&name, long(number + round))]).unwrap(),
                false => commit(&lane, vec![frame(0, 1, vec![(key(0, &name), None)])]).unwrap(),
            };
        }
        commit(&lane, vec![put(&format!("new{round}"), "new")]).unwrap();
        lane.checkpoint_now().unwrap();
        assert!(all(&*snapshot) == before, "after {round} rounds");
    }
    assert_eq!(snapshot.get(&key(0, "k00")).unwrap().as_deref(), Some(b"in the overlay".as_slice()));
    assert_eq!(snapshot.get(&key(0, "new1")).unwrap(), None);
    assert_eq!(all(&lane.read()).len(), 12);
    drop(snapshot);
    lane.close().unwrap();
    drop(lane);
    assert_eq!(all(&open_lane(dir.path(), small_config()).unwrap().read()).len(), 12);
}

#[test]
fn partial_scans_stop_where_they_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let lane = open_lane(dir.path(), small_config()).unwrap();
    for number in 0..50 {
        commit(&lane, vec![put(&format!("k{number:02}"), format!("old {number}"))]).unwrap();
    }
    lane.checkpoint_now().unwrap();
    for number in (0..50).step_by(5) {
        commit(&lane, vec![frame(0, 1, vec![(key(0, &format!("k{number:02}")), None)])]).unwrap();
        commit(&lane, vec![put(&format!("k{number:02}x"), "new")]).unwrap();
    }
    let reader = lane.read();
    for limit in 1..60 {
        let mut seen = Vec::new();
        ashlar_kv::Snapshot::scan(&reader, &key(0, "k03"), &key(0, "k41"), &mut |key, _| {
            seen.push(String::from_utf8_lossy(&key[2..]).into_owned());
            if seen.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        let all = (3..41).map(|n| if n % 5 == 0 { format!("k{n:02}x") } else { format!("k{n:02}") });
        assert_eq!(seen, all.take(limit).collect::<Vec<_>>());
    }
}

#[test]
fn two_lanes_do_not_share_an_engine() {
    let dir = tempfile::tempdir().unwrap();
    let _first = open_lane(dir.path(), small_config()).unwrap();
    assert!(matches!(open_lane(dir.path(), small_config()), Err(KvError::Io { .. })));
}

/// Threads on: writers, readers, flushes and checkpoints at the same time.
#[test]
fn concurrent_writers_and_readers_see_whole_groups() {
    let dir = tempfile::tempdir().unwrap();
    let config = LaneConfig {
        background: Background::Threads,
        segment_bytes: 128 << 10,
        overlay_bytes_max: 256 << 10,
        flush_interval: std::time::Duration::from_millis(5),
        ..small_config()
    };
    let lane = open_lane(dir.path(), config.clone()).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2_u16 {
            let lane = &lane;
            scope.spawn(move || {
                for number in 0..4000_u64 {
                    let value = Bytes::from(number.to_string());
                    let pair = ["a", "b"].map(|side| (key(writer, side), Some(value.clone())));
                    let filler =
                        (key(writer, &format!("c{:05}", number % 3000)), Some(Bytes::from(vec![1; 150])));
                    let writes = pair.into_iter().chain([filler]).collect();
                    let position = commit(lane, vec![frame(writer, number, writes)]).unwrap();
                    if number % 100 == 0 {
                        lane.flush(position).unwrap();
                    }
                }
            });
        }
        for _ in 0..2 {
            let lane = &lane;
            scope.spawn(move || {
                for _ in 0..3000 {
                    let reader = lane.read();
                    for writer in 0..2 {
                        let [a, b] = ["a", "b"]
                            .map(|side| ashlar_kv::Snapshot::get(&reader, &key(writer, side)).unwrap());
                        assert_eq!(a, b, "half a group is visible");
                    }
                }
            });
        }
    });
    let stats = lane.stats();
    assert!(stats.checkpoint_count > 3 && stats.flush_count > 10, "{stats:?}");
    let expected = scan_all(&lane).unwrap();
    assert_eq!(expected.len(), 2 * 3002);
    drop(lane);
    assert!(scan_all(&open_lane(dir.path(), config).unwrap()).unwrap() == expected);
}

fn filled_engine(dir: &Path) -> BTreeMap<Key, Bytes> {
    let engine = FjallEngine::open(dir, FjallOptions::default()).unwrap();
    let pairs: BTreeMap<Key, Bytes> = (0..3000_u32)
        .map(|n| {
            (
                key((n % 3) as u16, &format!("name {n}")),
                Bytes::from(vec![n as u8; 20 + (n % 5 * 500) as usize]),
            )
        })
        .collect();
    engine.apply(&mut pairs.iter().map(|(key, value)| (key, Some(value))), b"note").unwrap();
    engine.close().unwrap();
    pairs
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// What reading everything gives: each pair right, absent with an error, or an error. Never wrong, never silently absent.
fn read_all(dir: &Path, pairs: &BTreeMap<Key, Bytes>) -> &'static str {
    let engine = match FjallEngine::open(dir, FjallOptions::default()) {
        Ok(engine) => engine,
        Err(_) => return "does not open",
    };
    if engine.note().is_ok_and(|note| note.as_deref() != Some(b"note")) {
        return "SILENT: the note is gone";
    }
    let mut errors = 0;
    for (key, value) in pairs {
        match engine.get(key) {
            Ok(Some(found)) if found == value => {}
            Ok(Some(_)) => return "SILENT: a wrong value",
            Ok(None) => return "SILENT: a key is gone",
            Err(_) => errors += 1,
        }
    }
    match engine.verify() {
        Ok(report) if report.pairs != pairs.len() as u64 => "SILENT: verify misses keys",
        Ok(_) if errors == 0 => "harmless",
        Ok(_) => "gets fail, verify passes",
        Err(_) => "reported",
    }
}

#[test]
fn no_flipped_bit_in_any_file_becomes_a_wrong_answer() {
    let dir = tempfile::tempdir().unwrap();
    let pristine = dir.path().join("pristine");
    let pairs = filled_engine(&pristine);
    let random = SimEntropy::new(3);
    let mut outcomes = BTreeMap::<&str, u32>::new();
    let files = files_below(&pristine);
    assert!(files.len() >= 5, "{files:?}");
    for round in 0..60 {
        let damaged = dir.path().join(format!("damaged {round}"));
        for file in &files {
            let copy = damaged.join(file.strip_prefix(&pristine).unwrap());
            std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
            std::fs::copy(file, copy).unwrap();
        }
        // Half the rounds hit the files with the data, the others any file.
        let candidates: Vec<&PathBuf> = files
            .iter()
            .filter(|file| file.metadata().unwrap().len() > if round % 2 == 0 { 50_000 } else { 0 })
            .filter(|file| !file.ends_with("0.jnl"))
            .collect();
        let file = candidates[random.below(candidates.len() as u64) as usize];
        let path = damaged.join(file.strip_prefix(&pristine).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        let bit = random.below(bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        std::fs::write(&path, bytes).unwrap();
        let outcome = read_all(&damaged, &pairs);
        assert!(!outcome.starts_with("SILENT"), "{outcome}: bit {bit} of {}", path.display());
        *outcomes.entry(outcome).or_default() += 1;
        std::fs::remove_dir_all(&damaged).unwrap();
    }
    println!("{outcomes:?}");
    assert!(outcomes.get("reported").copied().unwrap_or(0) > 10, "{outcomes:?}");
}

#[test]
fn an_applied_checkpoint_replaces_and_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let open = || FjallEngine::open(dir.path().join("engine"), FjallOptions::default()).unwrap();
    let engine = open();
    let name = |n: u32| key(0, &format!("{n:06}"));
    let value = Bytes::from(vec![7; 3000]);
    for round in 0..30_u32 {
        // Every checkpoint writes a third of the keys and deletes another.
        let changes: Vec<(Key, Option<Bytes>)> = (0..300)
            .filter(|n| (n + round) % 3 != 0)
            .map(|n| (name(n), ((n + round) % 3 == 1).then(|| value.clone())))
            .collect();
        let mut changes = changes.iter().map(|(key, value)| (key, value.as_ref()));
        engine.apply(&mut changes, &round.to_le_bytes()).unwrap();
    }
    let check = |engine: &FjallEngine| {
        assert_eq!(engine.note().unwrap().unwrap(), 29_u32.to_le_bytes().as_slice());
        let mut count = 0;
        for n in 0..300 {
            // The last two rounds decide every key.
            let expected = (n + 29) % 3 == 1 || ((n + 29) % 3 == 0 && (n + 28) % 3 == 1);
            assert_eq!(engine.get(&name(n)).unwrap().is_some(), expected, "key {n}");
            count += u64::from(expected);
        }
        assert_eq!(engine.verify().unwrap().pairs, count);
    };
    check(&engine);
    engine.close().unwrap();
    assert!(matches!(engine.get(&name(1)), Err(KvError::Stopped { .. })));
    check(&open());
}

/// Versions are numbered by the engine. Without its journal, which is empty, it must still number new ones above old ones.
#[test]
fn a_checkpoint_after_the_journal_was_lost_is_shown_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine");
    let apply = |engine: &FjallEngine, value: &'static str| {
        let change = (key(0, "name"), Bytes::from_static(value.as_bytes()));
        engine.apply(&mut std::iter::once((&change.0, Some(&change.1))), value.as_bytes())
    };
    let engine = FjallEngine::open(&path, FjallOptions::default()).unwrap();
    for value in ["one", "two", "three"] {
        apply(&engine, value).unwrap();
    }
    engine.close().unwrap();
    for file in files_below(&path).iter().filter(|file| file.extension().is_some_and(|e| e == "jnl")) {
        std::fs::remove_file(file).unwrap();
    }
    let Ok(engine) = FjallEngine::open(&path, FjallOptions::default()) else { return };
    let applied = apply(&engine, "four");
    let shown = engine.get(&key(0, "name")).unwrap().unwrap();
    assert!(applied.is_err() || shown == "four", "the checkpoint was taken, and {shown:?} is shown");
}

#[test]
fn deleted_pairs_give_back_what_they_held_when_there_is_room_to_merge() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FjallEngine::open(dir.path().join("engine"), FjallOptions::default()).unwrap();
    let name = |number: usize| key(0, &format!("{number:06}"));
    let value =
        |number: usize| Bytes::from(vec![number as u8; if number.is_multiple_of(8) { 6000 } else { 300 }]);
    let apply = |pairs: BTreeMap<Key, Option<Bytes>>, note: &[u8]| {
        let mut changes = pairs.iter().map(|(key, value)| (key, value.as_ref()));
        engine.apply(&mut changes, note).unwrap();
    };
    apply((0..8000).map(|number| (name(number), Some(value(number)))).collect(), b"full");
    let full = engine.bytes_used();
    while engine.give_back(u64::MAX).unwrap() {}
    assert_eq!(engine.bytes_used(), full, "nothing was deleted");
    // Of values out of line files are given back when nothing of them is needed, or in later merges.
    let is_kept = |number: usize| number >= 6000 && !number.is_multiple_of(8);
    let deleted = (0..8000).filter(|number| !is_kept(*number));
    apply(deleted.map(|number| (name(number), None)).collect(), b"emptied");
    assert!(engine.bytes_used() >= full && engine.merge_bytes() > full / 8);
    while engine.give_back(engine.merge_bytes() - 1).unwrap() {}
    assert!(engine.bytes_used() >= full, "there is no room to merge");
    assert!(engine.give_back(engine.merge_bytes()).unwrap());
    // What nobody needs of values out of line is known then.
    assert!(engine.give_back(engine.merge_bytes()).unwrap());
    let left = engine.bytes_used();
    assert!(left < full / 8, "{left} of {full} bytes");
    assert!(!engine.give_back(u64::MAX).unwrap(), "twice is enough");
    engine.close().unwrap();
    let engine = FjallEngine::open(dir.path().join("engine"), FjallOptions::default()).unwrap();
    assert_eq!(engine.note().unwrap().as_deref(), Some(b"emptied".as_slice()));
    for number in 0..8000 {
        let expected = is_kept(number).then(|| value(number));
        assert!(engine.get(&name(number)).unwrap() == expected, "{number}");
    }
    engine.verify().unwrap();
}

#[test]
fn what_a_merge_has_replaced_takes_no_space_once_nobody_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine");
    let engine = FjallEngine::open(&path, FjallOptions::default()).unwrap();
    let pairs: BTreeMap<Key, Bytes> =
        (0..8000).map(|number| (key(0, &format!("{number:06}")), Bytes::from(vec![7; 600]))).collect();
    engine.apply(&mut pairs.iter().map(|(key, value)| (key, Some(value))), b"full").unwrap();
    let on_disk = || -> u64 {
        let tables =
            files_below(&path).into_iter().filter(|file| file.extension().is_none_or(|e| e != "jnl"));
        tables.map(|file| file.metadata().map_or(0, |found| found.len())).sum()
    };
    let full = on_disk();
    let reader = engine.snapshot().unwrap();
    engine.apply(&mut pairs.keys().map(|key| (key, None)), b"emptied").unwrap();
    while engine.give_back(u64::MAX).unwrap() {}
    // Somebody looks at what was before: it stays, whatever is merged.
    let mut seen = 0;
    let mut visit = |_: &[u8], _: &[u8]| {
        seen += 1;
        ControlFlow::Continue(())
    };
    reader.scan(&key(0, ""), &[0xFF], &mut visit).unwrap();
    assert_eq!((seen, on_disk() >= full), (8000, true));
    drop(reader);
    // Now it goes, and what only it had needed, though nothing is changed any more and there is no room to merge.
    assert!(engine.give_back(0).unwrap());
    while engine.give_back(u64::MAX).unwrap() {}
    let (left, needed) = (on_disk(), engine.bytes_used());
    assert!(left < full / 8 && left < needed + (64 << 10), "{left} bytes of {full}, {needed} are needed");
    engine.verify().unwrap();
    assert_eq!(engine.note().unwrap().as_deref(), Some(b"emptied".as_slice()));
}

//! A file of the engine that is missing, cut or of another moment is named before the engine opens anything, and nothing is removed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_kv::{Engine, EngineReport, FjallEngine, FjallOptions, Key, KvError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn open(dir: &Path) -> Result<FjallEngine, KvError> {
    FjallEngine::open(dir, FjallOptions::default())
}

/// Two checkpoints, with values in tables and out of line.
fn filled(dir: &Path) {
    let engine = open(dir).unwrap();
    for round in 0..2_u8 {
        let pairs: BTreeMap<Key, Bytes> = (0..200_u32)
            .map(|n| {
                let key = Key::from_slice(format!("\0\0key {n:05}").as_bytes());
                (key, Bytes::from(vec![round; 20 + 1500 * (n as usize % 2)]))
            })
            .collect();
        engine.apply(&mut pairs.iter().map(|(key, value)| (key, Some(value))), &[round]).unwrap();
    }
    engine.close().unwrap();
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn copy(from: &BTreeMap<PathBuf, Vec<u8>>, root: &Path, to: &Path) {
    for (path, bytes) in from {
        let target = to.join(path.strip_prefix(root).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, bytes).unwrap();
    }
}

/// Every file, one after the other, missing and empty: the engine is refused with the file named and everything stays as it was,
/// or it opens with all that was in it.
#[test]
fn opening_an_engine_with_a_missing_file_deleted_what_was_left() {
    let dir = tempfile::tempdir().unwrap();
    let pristine = dir.path().join("pristine");
    filled(&pristine);
    let all = files(&pristine);
    let whole = verified(&pristine).unwrap();
    assert_eq!(whole.pairs, 200);
    let mut refused = 0;
    for (number, path) in all.keys().enumerate() {
        for is_cut in [false, true] {
            let place = dir.path().join(format!("{number}-{is_cut}"));
            copy(&all, &pristine, &place);
            let damaged = place.join(path.strip_prefix(&pristine).unwrap());
            if is_cut {
                fs::write(&damaged, b"").unwrap()
            } else {
                fs::remove_file(&damaged).unwrap()
            }
            let before = files(&place);
            match verified(&place) {
                Ok(report) => assert_eq!(report, whole, "{} cut: {is_cut}", damaged.display()),
                Err(KvError::Corrupt { what }) => {
                    refused += 1;
                    let name = damaged.strip_prefix(&place).unwrap().display().to_string();
                    // A version goes by the file that names it.
                    assert!(what.contains(&name) || name == "version", "{name} cut: {is_cut}: {what}");
                    assert!(files(&place) == before, "{name}: something changed");
                }
                Err(error) => panic!("{} cut: {is_cut}: {error}", damaged.display()),
            }
        }
    }
    assert!(refused >= 12, "{refused} of {} files refused", all.len());
}

fn verified(dir: &Path) -> Result<EngineReport, KvError> {
    let engine = open(dir)?;
    let report = engine.verify()?;
    engine.close()?;
    Ok(report)
}

#[test]
fn directories_that_are_missing_are_named_too() {
    let dir = tempfile::tempdir().unwrap();
    let pristine = dir.path().join("pristine");
    filled(&pristine);
    let all = files(&pristine);
    for name in ["keyspaces", "keyspaces/0", "keyspaces/1", "keyspaces/1/tables", "keyspaces/1/blobs"] {
        let place = dir.path().join(name.replace('/', "-"));
        copy(&all, &pristine, &place);
        fs::remove_dir_all(place.join(name)).unwrap();
        let before = files(&place);
        let Err(KvError::Corrupt { what }) = open(&place) else { panic!("without {name}: not refused") };
        assert!(what.contains(name), "{name}: {what}");
        assert!(files(&place) == before, "{name}: something changed");
    }
}

/// The journal never holds anything, but without one the engine numbers versions from 0 again.
#[test]
fn old_values_were_back_after_the_journal_was_lost() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("engine");
    filled(&place);
    let journal = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path());
    let journal = journal.into_iter().find(|path| path.extension().is_some_and(|end| end == "jnl")).unwrap();
    fs::remove_file(&journal).unwrap();
    let Err(KvError::Corrupt { what }) = open(&place) else { panic!("not refused") };
    assert!(what.contains(&journal.display().to_string()), "{what}");

    assert_eq!(FjallEngine::missing_journal(&place).unwrap(), Some(journal.clone()));
    assert_eq!(FjallEngine::put_back_journal(&place).unwrap(), Some(journal));
    assert_eq!(FjallEngine::put_back_journal(&place).unwrap(), None);
    let engine = open(&place).unwrap();
    let key = Key::from_slice(b"\0\0key 00007");
    engine.apply(&mut [(&key, Some(&Bytes::from_static(b"new")))].into_iter(), b"third").unwrap();
    engine.close().unwrap();
    let engine = open(&place).unwrap();
    assert_eq!(engine.get(&key).unwrap().unwrap(), "new");
    assert_eq!(engine.note().unwrap().unwrap(), "third");
    assert_eq!(engine.verify().unwrap().pairs, 200);
}

#[test]
fn a_first_open_that_was_cut_short_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    // In the order in which they are made.
    let begun: [&[&str]; 6] = [
        &[],
        &["lock"],
        &["lock", "keyspaces/"],
        &["lock", "keyspaces/", "0.jnl"],
        &["lock", "keyspaces/", "0.jnl", "version"],
        &["lock", "keyspaces/", "0.jnl", "version=FJL"],
    ];
    for (number, names) in begun.into_iter().enumerate() {
        let place = dir.path().join(number.to_string());
        fs::create_dir(&place).unwrap();
        for name in names {
            match name.strip_suffix('/') {
                Some(name) => fs::create_dir(place.join(name)).unwrap(),
                None => {
                    let (name, content) = name.split_once('=').unwrap_or((name, ""));
                    fs::write(place.join(name), content).unwrap()
                }
            }
        }
        filled(&place);
        assert_eq!(verified(&place).unwrap().pairs, 200, "{names:?}");
    }
}

/// The first open was killed before the keyspace that it had made was known, and the second one in the middle of removing what was there of it.
#[test]
fn the_metadata_of_a_server_whose_first_start_was_killed_twice_was_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let known = dir.path().join("known");
    open(&known).unwrap().close().unwrap();
    let tree = files(&known.join("keyspaces/1"));
    assert!(tree.len() == 2 && tree.contains_key(&known.join("keyspaces/1/current")), "{tree:?}");
    for left in 0..1 << tree.len() {
        for has_directories in [false, true] {
            let place = dir.path().join(format!("{left}-{has_directories}"));
            drop(fjall::Database::builder(&place).open().unwrap());
            let unknown = place.join("keyspaces/1");
            fs::create_dir(&unknown).unwrap();
            for (_, (path, bytes)) in tree.iter().enumerate().filter(|(number, _)| left >> number & 1 == 1) {
                fs::write(unknown.join(path.file_name().unwrap()), bytes).unwrap();
            }
            if has_directories {
                fs::create_dir(unknown.join("tables")).unwrap();
            }
            filled(&place);
            assert_eq!(verified(&place).unwrap().pairs, 200, "{}", place.display());
        }
    }
}

#[test]
fn a_view_reads_and_takes_everything_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("engine");
    filled(&place);
    let before = files(&place);
    let view = FjallEngine::open_view(&place, dir.path().join("view"), FjallOptions::default()).unwrap();
    assert_eq!(view.verify().unwrap().pairs, 200);
    let key = Key::from_slice(b"\0\0key 00007");
    // More than the engine leaves unmerged.
    for round in 0..20_u8 {
        let value = Bytes::from(vec![round; 2000]);
        view.apply(&mut [(&key, Some(&value))].into_iter(), &[round]).unwrap();
    }
    assert_eq!(view.get(&key).unwrap().unwrap(), vec![19; 2000]);
    assert_eq!(view.verify().unwrap().pairs, 200);
    view.close().unwrap();
    assert!(files(&place) == before, "something changed");
    fs::remove_dir_all(dir.path().join("view")).unwrap();
    assert_eq!(verified(&place).unwrap().pairs, 200);
}

/// `current` and the version it names decide what the engine removes, and the engine does not compare them itself.
#[test]
fn a_changed_byte_in_what_names_the_tables_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("engine");
    filled(&place);
    let all = files(&place);
    let is_guarded = |path: &&PathBuf| {
        let (name, tree) = (path.file_name().unwrap().to_string_lossy(), path.parent().unwrap());
        match name.strip_prefix('v').and_then(|number| number.parse::<u64>().ok()) {
            // Others are leftovers.
            Some(number) => {
                all.get(&tree.join("current")).is_some_and(|named| named[..8] == number.to_le_bytes())
            }
            None => name == "current" || path.starts_with(place.join("keyspaces/0")),
        }
    };
    let guarded: Vec<&PathBuf> = all.keys().filter(is_guarded).collect();
    assert!(guarded.len() >= 5, "{guarded:?}");
    for path in guarded {
        for at in (0..all[path].len()).step_by(7) {
            let mut bytes = all[path].clone();
            bytes[at] ^= 0x10;
            fs::write(path, bytes).unwrap();
            let Err(error) = open(&place) else { panic!("{}: byte {at} was not noticed", path.display()) };
            assert!(matches!(error, KvError::Corrupt { .. }), "{}: byte {at}: {error}", path.display());
        }
        fs::write(path, &all[path]).unwrap();
    }
    assert!(files(&place) == all, "something changed");
    assert_eq!(verified(&place).unwrap().pairs, 200);
}

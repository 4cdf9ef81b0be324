//! A lane whose engine is damaged says so where nobody else has what it has; where others do, it is left to them, and whoever reads is told to ask those.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::SimDisk;
use ashlar_kv::{
    Copies, Engine, EngineReport, Group, KvError, Lane, LaneConfig, LastingSnapshot, MemoryEngine, Snapshot,
};
use ashlar_types::Epoch;
use bytes::Bytes;
use ledger::{CLUSTER, commit, key, put, sim_env, small_config};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

/// An engine in which one key is damaged from some moment on.
struct Damaged {
    engine: MemoryEngine,
    fault: Arc<AtomicI32>,
}

/// Reads say that a checksum does not match.
const FLIPPED: i32 = -1;

impl Damaged {
    fn look(&self, key: &[u8]) -> Result<(), KvError> {
        let what = "a bit has flipped".to_owned();
        match self.fault.load(SeqCst) {
            fault if fault == 0 || key != &*damaged_key() => Ok(()),
            FLIPPED => Err(KvError::Corrupt { what }),
            errno => Err(KvError::Io { what, source: std::io::Error::from_raw_os_error(errno) }),
        }
    }
}

fn damaged_key() -> ashlar_kv::Key {
    key(0, "bad")
}

impl Engine for Damaged {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.look(key)?;
        self.engine.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut ashlar_kv::Visit<'_>) -> Result<(), KvError> {
        if from <= &*damaged_key() && &*damaged_key() < to {
            self.look(&damaged_key())?;
        }
        self.engine.scan(from, to, visit)
    }

    fn snapshot(&self) -> Result<LastingSnapshot, KvError> {
        Ok(Box::new(Still(Damaged { engine: self.engine.clone(), fault: self.fault.clone() })))
    }

    fn apply(&self, changes: &mut ashlar_kv::EngineChanges<'_>, note: &[u8]) -> Result<(), KvError> {
        self.engine.apply(changes, note)
    }

    fn note(&self) -> Result<Option<Bytes>, KvError> {
        self.engine.note()
    }

    fn verify(&self) -> Result<EngineReport, KvError> {
        self.engine.verify()
    }

    fn bytes_used(&self) -> u64 {
        self.engine.bytes_used()
    }

    fn close(&self) -> Result<(), KvError> {
        self.engine.close()
    }
}

struct Still(Damaged);

impl Snapshot for Still {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.0.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut ashlar_kv::Visit<'_>) -> Result<(), KvError> {
        self.0.scan(from, to, visit)
    }
}

#[derive(Default)]
struct Others {
    are_there: AtomicBool,
    told: Mutex<Vec<String>>,
}

impl Copies for Others {
    fn await_turn(&self) {}

    fn is_undecided(&self) -> bool {
        false
    }

    fn epoch(&self) -> Result<Epoch, KvError> {
        Ok(Epoch(1))
    }

    fn appended(&self, _: Group) {}

    fn committed(&self) -> u64 {
        u64::MAX
    }

    fn begin_flush(&self, _: u64) {}

    fn end_flush(&self, _: u64) -> Result<(), KvError> {
        Ok(())
    }

    fn give_up_damaged(&self, what: &str) -> bool {
        self.told.lock().push(what.to_owned());
        self.are_there.load(SeqCst)
    }
}

/// Who reads, and how.
type Way<'a> = (&'a str, &'a dyn Fn() -> Result<(), KvError>);

#[test]
fn damage_is_none_where_others_have_what_is_damaged() {
    let (disk, fault) = (SimDisk::new(), Arc::new(AtomicI32::new(0)));
    let engine = Box::new(Damaged { engine: MemoryEngine::new(), fault: fault.clone() });
    let config = LaneConfig { keeps_log: true, ..small_config() };
    let lane = Lane::open(Arc::new(disk), "lane", engine, &sim_env(1), CLUSTER, config).unwrap();
    let others = Arc::new(Others::default());
    lane.replicate_with(others.clone()).unwrap();
    // More than is read in one go.
    for name in ["bad".to_owned()].into_iter().chain((0..1500).map(|number| format!("k{number:04}"))) {
        commit(&lane, vec![put(&name, "value")]).unwrap();
    }
    lane.checkpoint_now().unwrap();
    let all = || {
        let (mut from, mut turns) = (Vec::new(), 0);
        while let Some(next) = lane.read_through(&from)? {
            assert!(next.as_slice() > from.as_slice());
            (from, turns) = (next.to_vec(), turns + 1);
        }
        Ok::<usize, KvError>(turns)
    };
    assert!(all().unwrap() >= 2, "it is read little by little");
    let still = lane.snapshot().unwrap();
    let bad = damaged_key();
    let ways: [Way<'_>; 6] = [
        ("a reader", &|| lane.read().get(&bad).map(drop)),
        ("a writer", &|| lane.write().get(&bad).map(drop)),
        ("a scan", &|| lane.read().scan(&bad, &[0xFF; 9], &mut |_, _| std::ops::ControlFlow::Continue(()))),
        ("a snapshot", &|| still.get(&bad).map(drop)),
        ("a scan of a snapshot", &|| {
            still.scan(&bad, &[0xFF; 9], &mut |_, _| std::ops::ControlFlow::Continue(()))
        }),
        ("who reads all of it", &|| all().map(drop)),
    ];
    for (who, read) in &ways {
        assert!(read().is_ok(), "{who}");
    }
    assert!(others.told.lock().is_empty());
    fault.store(FLIPPED, SeqCst);
    for (who, read) in &ways {
        assert!(matches!(read(), Err(KvError::Corrupt { .. })), "nobody else has it: {who}");
    }
    others.are_there.store(true, SeqCst);
    others.told.lock().clear();
    for unreadable in [FLIPPED, libc::EIO] {
        fault.store(unreadable, SeqCst);
        for (who, read) in &ways {
            let answer = read();
            assert!(matches!(answer, Err(KvError::NotPrimary { .. })), "others have it: {who}: {answer:?}");
        }
    }
    fault.store(libc::EMFILE, SeqCst);
    for (who, read) in &ways {
        assert!(matches!(read(), Err(KvError::Io { .. })), "it is not the disk: {who}");
    }
    let told = others.told.lock().clone();
    assert!(
        told.len() == 2 * ways.len() && told.iter().all(|what| what.contains("a bit has flipped")),
        "{told:?}"
    );
    assert_eq!(lane.read().get(&key(0, "k0007")).unwrap(), Some(Bytes::from("value")));
    drop(still);
    lane.close().unwrap();
}

//! The disk of a copy, as one life of its process sees it.

use super::damage::Rotting;
use super::{CLUSTER, Life, Site};
use ashlar_env::sim::SimDisk;
use ashlar_env::{Continuity, Disk, OpenMode, replace_file};
use ashlar_kv::{Background, Engine, KvError, Lane, LaneConfig};
use ashlar_meta::replica::CopyStore;
use ashlar_types::ClusterId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The disk of a node, with the engines that are on it.
#[derive(Default)]
pub(super) struct NodeDisk {
    pub disk: SimDisk,
    engines: Mutex<BTreeMap<u64, Rotting>>,
}

impl NodeDisk {
    /// Whether what was written last can be read.
    pub fn is_damaged(&self) -> bool {
        self.engines.lock().values().any(Rotting::is_damaged)
    }

    /// From now on all that is there cannot be read, or can.
    pub fn set_damaged(&self, is_damaged: bool) {
        self.engines.lock().values().for_each(|engine| engine.set_damaged(is_damaged));
    }

    /// What is there is of no copy any more.
    pub fn set_aside(&self) -> std::io::Result<()> {
        if self.disk.list("")?.iter().any(|name| name == "copy") {
            self.disk.remove("copy")?;
        }
        let mut engines = self.engines.lock();
        let number = engines.keys().last().copied().unwrap_or(0) + 1;
        engines.clear();
        engines.insert(number, Rotting::default());
        replace_file(&self.disk, "current", number.to_string().as_bytes())
    }
}

/// A life's way to its disk.
pub(super) struct Store {
    pub site: Arc<Site>,
    pub at: usize,
    pub life: Arc<Life>,
    pub begun: AtomicU64,
}

impl Store {
    fn check(&self) -> Result<(), KvError> {
        if self.life.is_over.load(SeqCst) {
            let source = std::io::Error::from_raw_os_error(libc::EIO);
            return Err(KvError::Io { what: "a process that is dead".into(), source });
        }
        Ok(())
    }

    fn disk(&self) -> &NodeDisk {
        &self.site.nodes[self.at].disk
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, KvError> {
        let io = |source| KvError::Io { what: format!("read {name}"), source };
        match self.disk().disk.open(name, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io(error)),
            Ok(file) => {
                let mut bytes = vec![0; file.len().map_err(io)? as usize];
                let got = file.read_at(0, &mut bytes).map_err(io)?;
                bytes.truncate(got);
                Ok(Some(bytes))
            }
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), KvError> {
        self.check()?;
        let io = |source| KvError::Io { what: format!("write {name}"), source };
        self.site.sleep(self.site.dice.below(3_000));
        self.check()?;
        replace_file(&self.disk().disk, name, bytes).map_err(io)
    }

    fn open_number(&self, number: u64, keeps_log: bool) -> Result<Lane, KvError> {
        self.check()?;
        let engine = self.disk().engines.lock().entry(number).or_default().clone();
        let config = LaneConfig {
            lane: 3,
            segment_bytes: 32 << 10,
            overlay_bytes_max: 48 << 10,
            log_bytes_max: 96 << 10,
            retained_log_bytes: 8 << 10,
            reserve_bytes: 0,
            background: Background::Manual,
            keeps_log,
            ..LaneConfig::default()
        };
        let disk = Arc::new(self.disk().disk.clone());
        disk.end_loss().map_err(|source| KvError::Io { what: "read anew".into(), source })?;
        Lane::open(
            disk,
            &format!("lane-{number}"),
            Box::new(engine),
            &self.site.env(self.at),
            CLUSTER,
            config,
        )
    }

    fn current(&self) -> Result<u64, KvError> {
        let text = self.read("current")?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&text).parse().unwrap_or(0))
    }
}

impl CopyStore for Store {
    fn open(&self, keeps_log: bool) -> Result<Lane, KvError> {
        self.open_number(self.current()?, keeps_log)
    }

    fn begin(&self) -> Result<Box<dyn Engine>, KvError> {
        self.check()?;
        let mut engines = self.disk().engines.lock();
        let number = engines.keys().last().copied().unwrap_or(0) + 1;
        self.begun.store(number, SeqCst);
        Ok(Box::new(engines.entry(number).or_default().clone()))
    }

    fn replace(&self, _engine: Box<dyn Engine>) -> Result<Lane, KvError> {
        let number = self.begun.load(SeqCst);
        self.write("current", number.to_string().as_bytes())?;
        self.site.told.lock().everything_sent += 1;
        self.open_number(number, true)
    }

    fn identity(&self) -> (ClusterId, u32) {
        (CLUSTER, 3)
    }

    fn keep(&self, bytes: &[u8]) -> Result<(), KvError> {
        self.write("copy", bytes)
    }

    fn kept(&self) -> Result<Option<Vec<u8>>, KvError> {
        self.read("copy")
    }

    fn continuity(&self) -> Option<Continuity> {
        self.disk().disk.continuity()
    }
}

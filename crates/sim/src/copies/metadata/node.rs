//! A copy, and the service on it while it is primary: how they are started, and killed.

use super::damage;
use super::network::{Managers, Wire};
use super::store::Store;
use super::{Life, MANAGERS, Site, WORKERS, node_of};
use ashlar_env::Entropy;
use ashlar_kv::{Frame, Key, KvError, Snapshot, Urgency, WriteSet};
use ashlar_meta::replica::{Replica, ReplicaConfig, Tenure, prepare};
use ashlar_replication::membership::LeaseTerms;
use ashlar_rpc::HoldsBack;
use ashlar_types::{Epoch, OpId, ShardId};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

pub(super) fn key(text: &str) -> Key {
    let mut key = Key::from_slice(&0u16.to_be_bytes());
    key.extend_from_slice(text.as_bytes());
    key
}

fn register(lane: &dyn Snapshot) -> Result<u64, KvError> {
    let found = lane.get(&key("register"))?;
    Ok(found.map_or(0, |value| String::from_utf8_lossy(&value).parse().unwrap()))
}

/// What the service of a node does: it changes the register, or reads it, and callers are told when that may be.
fn serve_one(site: &Arc<Site>, at: usize, tenure: &Tenure) -> Result<(), KvError> {
    let lane = tenure.lane();
    let theirs = site.clone();
    // At times nothing changes: then a primary that hears nobody any more has nothing that waits to be committed.
    let is_quiet = site.now().as_secs() % 9 < 4 && site.dice.below(200) > 0;
    if is_quiet || site.dice.below(3) == 0 {
        let before = site.told.lock().newest;
        let found = register(&lane.read())?;
        if site.dice.below(8) == 0 {
            site.sleep(site.dice.below(3_000));
        }
        tenure.hold(Box::new(move |is_told, _| {
            if is_told {
                theirs.told.lock().reads += 1;
                if found < before {
                    theirs.fail(format!("node {at} told {found} when {before} had been acknowledged"));
                }
            }
        }));
        return Ok(());
    }
    let mut writer = lane.write();
    let number = site.next_number.fetch_add(1, SeqCst) + 1;
    let mut writes =
        vec![(key(&format!("n{number:06}")), Some(Bytes::from(vec![7; site.dice.below(400) as usize])))];
    writes.push((key("register"), Some(Bytes::from(number.to_string()))));
    let frame = Frame {
        shard: ShardId(0),
        epoch: Epoch(0),
        op: OpId::default(),
        verb: 1,
        writes: WriteSet(writes),
        reply: Bytes::new(),
    };
    let position = writer.commit(vec![frame], Urgency::Normal)?;
    drop(writer);
    let cuts_before = site.told.lock().cuts_of_all;
    let is_flushed = site.dice.below(12) == 0;
    if is_flushed {
        lane.flush(position)?;
        let mut told = site.told.lock();
        if told.cuts_of_all == cuts_before {
            told.flushed.insert(number);
        }
    }
    tenure.hold(Box::new(move |is_told, _| {
        if is_told {
            let mut told = theirs.told.lock();
            told.acknowledged.insert(number);
            told.newest = told.newest.max(number);
            *told.by_node.entry(at).or_default() += 1;
        }
    }));
    Ok(())
}

fn serve_while_primary(site: &Arc<Site>, at: usize, replica: &Arc<Replica>, tenure: &Tenure) {
    while replica.standing().is_serving {
        match serve_one(site, at, tenure) {
            Ok(()) | Err(KvError::NotPrimary { .. } | KvError::Stalled { .. }) => {}
            // Its disk has failed.
            Err(KvError::Stopped { .. }) => {}
            // What it holds is damaged, and nobody else has it.
            Err(KvError::Corrupt { .. }) => {}
            Err(error) => return site.fail(format!("node {at}: {error}")),
        }
        site.sleep(site.dice.below(15_000));
    }
}

/// As the service does when it begins: it tells whether something that was acknowledged may be lost, once.
fn tell_loss(site: &Arc<Site>, at: usize, tenure: &Tenure) -> Result<(), KvError> {
    let has_lost = tenure.has_lost();
    let is_missing = {
        let reader = tenure.lane().read();
        let told = site.told.lock();
        let mut uncertain = told.uncertain.iter().map(|number| reader.get(&key(&format!("n{number:06}"))));
        uncertain.try_fold(false, |is, found| found.map(|found| is || found.is_none()))?
    };
    let cuts = {
        let mut told = site.told.lock();
        if has_lost && told.cuts_of_all == told.cuts_told {
            site.fail(format!("node {at} tells that something may be lost, and nothing is"));
        }
        if is_missing && !has_lost {
            site.fail(format!("node {at} serves without telling that something is lost"));
        }
        if is_missing || has_lost {
            told.uncertain.clear();
        }
        told.losses_told += u64::from(has_lost);
        told.cuts_of_all
    };
    if has_lost {
        tenure.loss_noted()?;
        site.may_lack.lock().remove(&at);
        let mut told = site.told.lock();
        told.cuts_told = told.cuts_told.max(cuts);
    }
    Ok(())
}

/// A life of a node.
fn live(site: &Arc<Site>, at: usize, life: &Arc<Life>) -> Result<(), KvError> {
    damage::set_aside(site, at)?;
    let store = Store { site: site.clone(), at, life: life.clone(), begun: AtomicU64::new(0) };
    let config = ReplicaConfig {
        node: node_of(at),
        env: site.env(at),
        terms: LeaseTerms::DEFAULT,
        keeps_for: Duration::ZERO,
        store: Arc::new(store),
        peers: Arc::new(Wire { site: site.clone(), from: at }),
        agreement: Arc::new(Managers { site: site.clone(), node: node_of(at) }),
    };
    let membership = site.map.lock().1.clone();
    if config.store.kept()?.is_none() && !site.nodes[at].has_lost_all.load(SeqCst) {
        prepare(&*config.store, &membership)?;
    }
    let replica = Replica::start(config, &membership)?;
    *life.replica.lock() = Some(replica.clone());
    let (theirs, copy) = (site.clone(), replica.clone());
    let follow = move || loop {
        theirs.sleep(1_000 + theirs.dice.below(60_000));
        if theirs.cut.lock().contains(&(MANAGERS, at)) {
            continue;
        }
        let membership = theirs.map.lock().1.clone();
        if copy.learn(&membership).is_err() {
            return;
        }
    };
    site.scheduler.start_detached(&format!("n{at}-follow"), Box::new(follow));
    let (theirs, copy) = (site.clone(), replica.clone());
    let tick = move || loop {
        // Seldom, so that a power cut takes something.
        theirs.sleep(100_000 + theirs.dice.below(900_000));
        let _ = copy.lane().tick();
        let _ = copy.lane().read_through(&[]);
    };
    site.scheduler.start_detached(&format!("n{at}-tick"), Box::new(tick));
    loop {
        let standing = replica.standing();
        let begun = if standing.is_serving { replica.begin_service() } else { None };
        let Some(tenure) = begun else {
            site.sleep(2_000 + site.dice.below(5_000));
            continue;
        };
        site.scheduler.note(&|| format!("node {at} serves: {standing:?}, lost: {}", tenure.has_lost()));
        // A service begins with what others answer, and is killed before that at times.
        if site.chance(3) {
            site.sleep(site.dice.below(12_000_000));
            if !tenure.may_speak() {
                tenure.end();
                continue;
            }
        }
        match tell_loss(site, at, &tenure) {
            // What it holds is damaged.
            Err(KvError::Corrupt { .. } | KvError::NotPrimary { .. }) => {
                tenure.end();
                site.sleep(50_000);
                continue;
            }
            told => told?,
        }
        let workers = Arc::new(AtomicU64::new(WORKERS));
        for _ in 0..WORKERS {
            let (theirs, copy, left) = (site.clone(), replica.clone(), workers.clone());
            let tenure = tenure.clone();
            let work = move || {
                serve_while_primary(&theirs, at, &copy, &tenure);
                left.fetch_sub(1, SeqCst);
            };
            site.scheduler.start_detached(&format!("n{at}-main-work"), Box::new(work));
        }
        while workers.load(SeqCst) > 0 {
            site.sleep(1_000);
        }
        tenure.end();
    }
}

pub(super) fn start(site: &Arc<Site>, at: usize) {
    let life = Arc::new(Life { is_over: AtomicBool::new(false), replica: Mutex::default() });
    *site.nodes[at].life.lock() = life.clone();
    let theirs = site.clone();
    let run = move || {
        if let Err(error) = live(&theirs, at, &life)
            && !life.is_over.load(SeqCst)
        {
            theirs.fail(format!("node {at}: {error}"));
        }
    };
    site.scheduler.start_detached(&format!("n{at}-main"), Box::new(run));
}

pub(super) fn kill(site: &Arc<Site>, at: usize, is_power: bool) {
    site.scheduler.note(&|| format!("node {at} dies; power: {is_power}"));
    // One that hangs does so also as another process.
    let hangs_until = *site.nodes[at].frozen_until.lock();
    site.blame.lock().started(at, hangs_until.max(site.now()));
    let life = site.nodes[at].life.lock().clone();
    life.is_over.store(true, SeqCst);
    site.scheduler.kill(&format!("n{at}-"));
    let replica = life.replica.lock().take();
    drop(replica);
    let disk = &site.nodes[at].disk.disk;
    if is_power {
        disk.crash(site.dice.next_u64())
    } else {
        disk.kill_process()
    }
    start(site, at);
}

//! The network between storage servers, and from callers to them.

use super::{Life, Site};
use ashlar_rpc::wire::CopyUnder;
use ashlar_rpc::{OtherTargets, Payload, StoragePeers};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, NodeId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

impl Site {
    /// Has a node carry something out for `from`; nothing if that is not known after `wait`.
    pub(super) fn have(
        self: &Arc<Site>,
        (from, to): (Option<usize>, usize),
        wait: Duration,
        run: impl FnOnce(&Life) -> Result<StorageReply, Errno> + Send + 'static,
    ) -> Option<(Result<StorageReply, Errno>, Arc<Life>)> {
        self.sleep(20 + self.dice.below(300));
        let is_lost = from.is_some_and(|from| self.is_cut(from, to));
        let Some(life) = self.life(to).filter(|_| !is_lost) else {
            self.scheduler.sleep(wait.min(Duration::from_millis(300)));
            return None;
        };
        let reply: Arc<Mutex<Option<Result<StorageReply, Errno>>>> = Arc::default();
        let arrived = Arc::new(self.scheduler.signal());
        let late = if from.is_some() && self.chance(300) { self.dice.below(9_000_000) } else { 0 };
        let (theirs, answer, told, served) = (self.clone(), reply.clone(), arrived.clone(), life.clone());
        let serve = move || {
            theirs.sleep(late);
            let frozen = *theirs.nodes[to].frozen_until.lock();
            theirs.scheduler.sleep(frozen.saturating_sub(theirs.now()));
            let done = run(&served);
            *answer.lock() = Some(done);
            told.notify_all();
        };
        self.scheduler.start_detached(&format!("n{to}-serve"), Box::new(serve));
        let end = self.now() + wait;
        let mut answer = reply.lock();
        while answer.is_none() {
            let left = end.saturating_sub(self.now());
            // A caller hears that the process which it has called has died.
            if left.is_zero() || life.is_over.load(SeqCst) {
                return None;
            }
            arrived.wait_for(&mut answer, left.min(Duration::from_millis(200)));
        }
        let answer = answer.take()?;
        let is_lost = from.is_some_and(|from| self.is_cut(to, from));
        if is_lost { None } else { Some((answer, life)) }
    }
}

/// The network, as one life of a node sees it.
pub(super) struct Wire {
    pub site: Arc<Site>,
    pub from: usize,
    pub is_over: Arc<AtomicBool>,
}

impl OtherTargets for Wire {
    fn call_in_attempt(
        &self,
        _: u64,
        _: &StorageRequest,
        _: Payload<'_>,
        _: Duration,
    ) -> Result<StorageReply, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn call_of_copy(
        &self,
        under: CopyUnder,
        request: &StorageRequest,
        payload: Payload<'_>,
        wait: Duration,
    ) -> Result<StorageReply, Errno> {
        if self.is_over.load(SeqCst) {
            return Err(Errno::ETIMEDOUT);
        }
        let data = if let Payload::Write(data) = payload { data.to_vec() } else { Vec::new() };
        let (node, request) = (NodeId(self.from as u32), request.clone());
        let to = request.target().0 as usize;
        let site = self.site.clone();
        let run = move |life: &Life| {
            let is_write = matches!(request, StorageRequest::Write { .. });
            let payload = if is_write { Payload::Write(&data) } else { Payload::None };
            let answer = life.service.call_of_copy(node, under, &request, payload);
            // A disk takes its time, and what comes meanwhile is not in it.
            if matches!(request, StorageRequest::Sync { .. }) && site.chance(2) {
                site.sleep(site.dice.below(500_000));
            }
            answer
        };
        match self.site.have((Some(self.from), to), wait, run) {
            Some((answer, _)) => answer,
            None => Err(Errno::ETIMEDOUT),
        }
    }
}

//! The network between copies, and from them to managers.

use super::{MANAGERS, Site, at_of, node_of};
use ashlar_meta::replica::{Agreement, CopyPeers};
use ashlar_replication::membership::{Change, Proposer};
use ashlar_types::{Epoch, Errno, NodeId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The network, as one node sees it.
pub(super) struct Wire {
    pub site: Arc<Site>,
    pub from: usize,
}

/// An answer that is on its way.
#[derive(Default)]
struct Reply(Mutex<Option<Vec<u8>>>);

impl CopyPeers for Wire {
    fn ask(&self, node: NodeId, head: &[u8], payload: &[u8], wait: Duration) -> Result<Vec<u8>, Errno> {
        let (site, from, to) = (&self.site, self.from, at_of(node));
        site.sleep(20 + site.dice.below(300));
        let is_cut = site.cut.lock().contains(&(from, to)) || site.chance(300);
        let life = site.nodes[to].life.lock().clone();
        let replica = life.replica.lock().clone();
        let (Some(replica), false) = (replica, is_cut) else {
            site.scheduler.sleep(wait.min(Duration::from_millis(300)));
            return Err(Errno::EHOSTDOWN);
        };
        let (reply, arrived) = (Arc::new(Reply::default()), Arc::new(site.scheduler.signal()));
        let (head, payload) = (head.to_vec(), payload.to_vec());
        // It may come late, and twice.
        let (late, is_twice) =
            (if site.chance(400) { site.dice.below(9_000_000) } else { 0 }, site.chance(50));
        let (theirs, answer, told, done) = (site.clone(), reply.clone(), arrived.clone(), node_of(from));
        let serve = move || {
            theirs.sleep(late);
            let frozen = *theirs.nodes[to].frozen_until.lock();
            theirs.scheduler.sleep(frozen.saturating_sub(theirs.now()));
            if is_twice {
                replica.hear(done, &head, &payload);
                theirs.sleep(theirs.dice.below(2_000));
            }
            let heard = replica.hear(done, &head, &payload);
            *answer.0.lock() = Some(heard);
            told.notify_all();
        };
        site.scheduler.start_detached(&format!("n{to}-serve"), Box::new(serve));
        let end = site.now() + wait;
        let mut answer = reply.0.lock();
        while answer.is_none() {
            let left = end.saturating_sub(site.now());
            if left.is_zero() {
                return Err(Errno::EHOSTDOWN);
            }
            arrived.wait_for(&mut answer, left);
        }
        let answer = answer.take().ok_or(Errno::EHOSTDOWN)?;
        let is_lost = site.cut.lock().contains(&(to, from)) || site.chance(300);
        if is_lost { Err(Errno::EHOSTDOWN) } else { Ok(answer) }
    }
}

pub(super) struct Managers {
    pub site: Arc<Site>,
    pub node: NodeId,
}

impl Agreement for Managers {
    fn propose(&self, expected: Epoch, change: Change<NodeId>) {
        self.site.sleep(self.site.dice.below(40_000));
        let at = at_of(self.node);
        if !self.site.chance(5) && !self.site.cut.lock().contains(&(at, MANAGERS)) {
            self.site.change(expected, Proposer::Replica(self.node), change);
        }
    }

    fn refresh(&self) {}
}

//! A metadata service that runs from a copy, from its begin to its end: what it may do in between.

use super::{Replica, Service};
use ashlar_kv::{KvError, Lane};
use ashlar_rpc::{DeliverOnce, HoldsBack};
use std::sync::Arc;

/// See the module. Threads of a service that has ended may go on with it: it lets them do nothing, also when another one was begun from the same copy.
pub struct Tenure {
    pub(super) replica: Arc<Replica>,
    pub(super) number: u64,
    pub(super) lane: Arc<Lane>,
}

impl Tenure {
    /// What the service runs on.
    pub fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Whether something that was acknowledged may not be in the lane: this machine, and all others that had it, have lost their power, and it goes on with what is left.
    pub fn has_lost(&self) -> bool {
        self.replica.core.lock().is_left_short
    }

    /// The lane says from now on that something was lost, and so do all copies of it.
    ///
    /// # Errors
    /// When that cannot be stored: the next start takes what there is for short once more.
    pub fn loss_noted(&self) -> Result<(), KvError> {
        self.replica.loss_noted()
    }

    /// Whether the service may say something to others: nobody else can serve by now.
    pub fn may_speak(&self) -> bool {
        let now = self.replica.config.env.clock.monotonic();
        let core = self.replica.core.lock();
        core.service == Service::Here(self.number)
            && core.broken.is_none()
            && core.machine.member().may_acknowledge(now)
    }

    /// The service has ended. What of it is at work yet commits and tells nothing any more.
    pub fn end(&self) {
        // ORDER: it must not commit beside the next one, or beside what comes from others.
        self.lane.withdraw();
        {
            let mut core = self.replica.core.lock();
            core.service = Service::Absent;
            core.announced = None;
        }
        self.replica.turned.notify_all();
    }
}

impl HoldsBack for Tenure {
    /// As the trait says; false, too, when this machine does not surely answer for the metadata server any more.
    fn hold(&self, deliver: DeliverOnce) {
        self.replica.hold(self.number, deliver);
    }
}

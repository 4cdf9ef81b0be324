//! The keys of capabilities: metadata servers are given those of the newest epochs, each storage server its own of these, and every hour a new epoch
//! begins. The key of what is open is the same for ever, and metadata servers alone have it.

use crate::{KeyEpoch, ManagerError, ManagerService};
use ashlar_rpc::capability::{checking_keys, open_key, sealing_keys};
use ashlar_types::message::ManagerReply;
use ashlar_types::{KeySet, NodeId};

/// For how long an epoch is the newest, seconds.
const EPOCH_S: u64 = 60 * 60;

impl ManagerService {
    fn keys(&self) -> KeySet {
        sealing_keys(&self.manager().root_key(), self.manager().state().keys.epoch)
    }

    pub(crate) fn sealing_keys(&self) -> Result<ManagerReply, ManagerError> {
        Ok(ManagerReply::Keys(self.keys()))
    }

    pub(crate) fn open_key(&self) -> Result<ManagerReply, ManagerError> {
        Ok(ManagerReply::OpenKey(open_key(&self.manager().root_key())))
    }

    pub(crate) fn checking_keys(&self, server: NodeId) -> Result<ManagerReply, ManagerError> {
        Ok(ManagerReply::Keys(checking_keys(&self.keys(), server)))
    }

    pub(crate) fn rotate_keys(&self) -> Result<ManagerReply, ManagerError> {
        let since_s = self.now_s();
        let epoch = self.manager().change(|state| {
            state.keys = KeyEpoch { epoch: state.keys.epoch + 1, since_s };
            Ok(state.keys.epoch)
        })?;
        tracing::info!(epoch, "keys of a new epoch are in use");
        Ok(ManagerReply::Done)
    }

    /// Begins the next epoch of keys if it is time. To be called now and then; of several managers one does it.
    ///
    /// # Errors
    /// When the state cannot be changed; the keys stay as they are.
    pub fn rotate_keys_in_time(&self) -> Result<(), ManagerError> {
        let now_s = self.now_s();
        if !is_due(self.manager().state().keys, now_s) {
            return Ok(());
        }
        self.manager().change(|state| {
            // Another manager may have done it.
            if is_due(state.keys, now_s) {
                state.keys = KeyEpoch { epoch: state.keys.epoch + 1, since_s: now_s };
            }
            Ok(())
        })
    }
}

/// Also where a clock has gone back: an epoch that was begun by a clock that was wrong must not last for years.
fn is_due(keys: KeyEpoch, now_s: u64) -> bool {
    now_s.abs_diff(keys.since_s) >= EPOCH_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_lasts_an_hour_whatever_the_clock_does() {
        let keys = KeyEpoch { epoch: 3, since_s: 100_000 };
        assert!(!is_due(keys, 100_000 + EPOCH_S - 1) && is_due(keys, 100_000 + EPOCH_S));
        assert!(!is_due(keys, 99_000) && is_due(keys, 100_000 - EPOCH_S));
    }
}

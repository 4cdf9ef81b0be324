//! Answers that become known at the same moment, and are sent together.

use super::connection::Connection;
use super::pool::Pool;
use smallvec::SmallVec;
use std::sync::Arc;

/// To so many connections answers are kept at the most.
const CONNECTIONS_MAX: usize = 64;

/// Answers that were given and not sent: those that go to the same connection go with one system call, when this is dropped or there are many connections.
#[derive(Default)]
pub struct Answers {
    // LIMIT: CONNECTIONS_MAX.
    connections: SmallVec<[(Arc<Pool>, Arc<Connection>); 8]>,
}

impl Answers {
    /// Something is kept for `connection`.
    pub(super) fn add(&mut self, pool: &Arc<Pool>, connection: Arc<Connection>) {
        if !self.connections.iter().any(|(_, known)| Arc::ptr_eq(known, &connection)) {
            if self.connections.len() == CONNECTIONS_MAX {
                self.send();
            }
            self.connections.push((pool.clone(), connection));
        }
    }

    fn send(&mut self) {
        for (pool, connection) in self.connections.drain(..) {
            pool.send_kept(&connection);
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.send();
    }
}

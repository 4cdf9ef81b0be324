//! Certificates renew themselves: every process that goes on for long looks, when it starts and then every few seconds, whether its certificate is to be
//! replaced, and asks a manager for the next one, months before the old one is worth nothing.
//!
//! The key stays, so that only one file changes, and processes that share it may do this at the same time.

use super::background::Background;
use super::node_directory::NodeDirectory;
use anyhow::{Result, bail};
use ashlar_manager::{RENEWAL_DAYS, public_key_of};
use ashlar_rpc::net::TlsIdentity;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks, each of which verifies one certificate. Not long: the clock of a machine may be set, and a machine may sleep for weeks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Time between two tries of a renewal that failed.
const TRY_EVERY: Duration = Duration::from_secs(60);
/// A certificate is replaced when it is good for less than this.
const LEFT_MIN: Duration = Duration::from_secs(RENEWAL_DAYS.unsigned_abs() * 24 * 60 * 60);

/// Gets a certificate (PEM) for a public key.
pub type Certify = dyn Fn(Vec<u8>) -> Result<String> + Send + Sync;

/// See the module. The identity that it keeps is the one in use.
pub struct Renewal {
    pub directory: NodeDirectory,
    pub identity: Arc<RwLock<Arc<TlsIdentity>>>,
    /// Reads the files of the directory.
    pub load: Box<dyn Fn() -> Result<TlsIdentity> + Send + Sync>,
    pub certify: Box<Certify>,
}

/// Refuses a certificate that is worth nothing any more, which nobody would believe.
///
/// # Errors
/// What to do.
pub fn require_current(identity: &TlsIdentity, directory: &NodeDirectory) -> Result<()> {
    if !identity.is_good_in(Duration::ZERO) {
        bail!(
            "the certificate in {} is not valid now: is the clock of this machine right? If it has expired, because this machine could not reach a manager for {RENEWAL_DAYS} days, `ashlar node remove` and `ashlar join` with a new token make the machine a node again",
            directory.shown()
        );
    }
    Ok(())
}

impl Renewal {
    /// Looks now, and every few seconds.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(self, tasks: &dyn ashlar_env::Tasks) -> Result<Background> {
        Background::start(tasks, "ashlar-renewal", move || match self.look() {
            Ok(()) => LOOK_EVERY,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the certificate of this machine could not be renewed; trying again"
                );
                TRY_EVERY
            }
        })
    }

    fn look(&self) -> Result<()> {
        if self.identity.read().is_good_in(LEFT_MIN) {
            return Ok(());
        }
        // Another process of this machine may have done it.
        let stored = (self.load)()?;
        if stored.is_good_in(LEFT_MIN) {
            *self.identity.write() = Arc::new(stored);
            return Ok(());
        }
        let certificate = (self.certify)(public_key_of(&self.directory.key()?)?)?;
        self.directory.store_certificate(&certificate)?;
        let renewed = (self.load)()?;
        if !renewed.is_good_in(LEFT_MIN) {
            bail!("the manager gave a certificate that is as old: are the clocks right?");
        }
        *self.identity.write() = Arc::new(renewed);
        tracing::info!("the certificate of this machine was renewed");
        Ok(())
    }
}

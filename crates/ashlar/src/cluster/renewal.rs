//! Certificates renew themselves: every process that goes on for long looks, when it starts and then every hour, whether its certificate is to be
//! replaced, and asks a manager for the next one, months before the old one is worth nothing.
//!
//! The key stays, so that only one file changes, and processes that share it may do this at the same time.

use super::node_directory::NodeDirectory;
use anyhow::{Context, Result, bail};
use ashlar_manager::{RENEWAL_DAYS, public_key_of};
use ashlar_rpc::net::TlsIdentity;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(60 * 60);
/// Time between two tries of a renewal that failed.
const TRY_EVERY: Duration = Duration::from_secs(60);
/// Time between two looks whether this process ends.
const TURN: Duration = Duration::from_millis(200);
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

/// Ends the looks as it goes.
pub struct Looks(Arc<AtomicBool>);

impl Drop for Looks {
    fn drop(&mut self) {
        // Not waited for: it may be asking a manager that does not answer.
        self.0.store(true, Relaxed);
    }
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
    /// Looks now, and every hour.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(self, tasks: &dyn ashlar_env::Tasks) -> Result<Looks> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let told = is_stopping.clone();
        let run = move || {
            while !told.load(Relaxed) {
                let pause = match self.look() {
                    Ok(()) => LOOK_EVERY,
                    Err(error) => {
                        tracing::warn!(
                            error = format!("{error:#}"),
                            "the certificate of this machine could not be renewed; trying again"
                        );
                        TRY_EVERY
                    }
                };
                let until = Instant::now() + pause;
                while !told.load(Relaxed) && Instant::now() < until {
                    std::thread::sleep(TURN);
                }
            }
        };
        tasks.spawn("ashlar-renewal", Box::new(run)).context("cannot start a thread")?;
        Ok(Looks(is_stopping))
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

//! Which start of its directories a server serves: managers give each out, and see to it that no copy is served beside or instead of a directory. They know
//! the rules (`crates/manager/src/holders.rs`); here is asked, said, and stopped.

use super::announce;
use super::background::Background;
use super::member::{KNOWN_MAX, Member, START_MAX};
use crate::cli::CopyArgs;
use anyhow::{Context, Result, bail};
use ashlar_rpc::net::NetError;
use ashlar_rpc::remote::{ask_managers, tell_managers};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{Holding, Role, Start, StartPlace};
use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Drawn anew by each start of the kernel (`random(4)`).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// For how long somebody else who seems to serve a directory is waited for: managers take a server for gone after 10 s, and one that was just started tells only then.
const TAKEN_MAX: Duration = Duration::from_secs(15);
/// Time between two questions meanwhile.
const TAKEN_PAUSE: Duration = Duration::from_millis(500);
/// Time between two words of what is served.
const HOLD_EVERY: Duration = Duration::from_secs(2);
/// For how long each manager may take to hear it.
const HOLD_MAX: Duration = Duration::from_secs(1);

/// A start that was given out.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// Which.
    pub start: Start,
    /// The directory is an older copy, which an administrator wants all the same.
    pub is_older: bool,
}

/// Where the directory `path` is.
pub fn place_of(path: &Path) -> StartPlace {
    let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let digits: String = text.trim().chars().filter(|digit| *digit != '-').collect();
    let boot = u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes();
    match std::fs::metadata(path) {
        Ok(found) => StartPlace { boot, device: found.dev(), inode: found.ino() },
        // Then managers go by what they hear alone.
        Err(_) => StartPlace::default(),
    }
}

/// Asks for the next start of the directory `found`, which the caller has locked. `None`: no manager can tell, and the managers know already that this server serves it (`is_known`).
///
/// # Errors
/// When it is not to be served, with the reason and the way out, and when nobody can tell.
pub fn claim(
    member: &Member,
    (role, found): (Role, &Holding),
    (copies, is_known): (CopyArgs, bool),
    is_told: &AtomicBool,
) -> Result<Option<Claimed>> {
    let request = ManagerRequest::ClaimStart {
        role,
        found: found.clone(),
        tag: member.env.entropy.next_u64(),
        is_older_accepted: copies.accept_older_copies,
        is_taking_over: copies.take_over,
    };
    let (begun, mut is_said) = (Instant::now(), false);
    let patience = if is_known { KNOWN_MAX } else { START_MAX };
    loop {
        let why = match member.managers.call(&request, Instant::now() + patience) {
            Ok(ManagerReply::StartClaimed { start, is_older }) => {
                return Ok(Some(Claimed { start, is_older }));
            }
            Ok(ManagerReply::StartTaken(text)) if begun.elapsed() > TAKEN_MAX => bail!("{text}"),
            Ok(ManagerReply::StartTaken(text)) => {
                if !std::mem::replace(&mut is_said, true) {
                    eprintln!("ashlar: {text}; waiting {} s whether it goes", TAKEN_MAX.as_secs());
                }
                if is_told.load(Relaxed) {
                    bail!("told to stop while waiting for another server");
                }
                std::thread::sleep(TAKEN_PAUSE);
                continue;
            }
            Ok(ManagerReply::StartUnknown(text)) => text,
            Ok(_) => bail!("the manager gave an answer of the wrong kind"),
            Err(NetError::Refused(text)) => bail!("{text}"),
            Err(error) => error.to_string(),
        };
        if !is_known {
            bail!("no manager can tell whether {} may be served: {why}", found.path);
        }
        tracing::warn!(
            why,
            path = found.path,
            "no manager can tell whether it may be served; it is served as before"
        );
        return Ok(None);
    }
}

/// Says that the starts `held` are noted in their directories. `is_claimed`: managers have just given them out.
///
/// # Errors
/// When one is not to be served, or nobody answers who has to.
pub fn confirm(member: &Member, role: Role, held: &[Holding], is_claimed: bool) -> Result<()> {
    let request = ManagerRequest::HoldStarts { role, held: held.to_vec(), is_ending: false };
    let patience = if is_claimed { START_MAX } else { KNOWN_MAX };
    match member.managers.call(&request, Instant::now() + patience) {
        Ok(ManagerReply::StartsHeld { lost }) => match lost.into_iter().next() {
            Some((_, why)) => bail!("{why}"),
            None => Ok(()),
        },
        Ok(_) => bail!("the manager gave an answer of the wrong kind"),
        Err(error) if is_claimed => Err(error).context("the manager"),
        Err(error) => {
            tracing::warn!(%error, "no manager can be told what is served; going on as before");
            Ok(())
        }
    }
}

/// Says again and again what is served, until it is dropped.
pub struct HeldStarts {
    lost: Arc<Mutex<Option<String>>>,
    role: Role,
    held: Arc<Mutex<Vec<Holding>>>,
    /// Held while something is being said.
    turn: Arc<Mutex<()>>,
    _saying: Background,
}

impl HeldStarts {
    /// Begins.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn keep(member: &Member, role: Role, held: Vec<Holding>) -> Result<HeldStarts> {
        let (routes, lost) = (member.routes(), Arc::new(Mutex::new(None)));
        let held = Arc::new(Mutex::new(held));
        let (said, noted, turn) = (held.clone(), lost.clone(), Arc::new(Mutex::new(())));
        let of_turn = turn.clone();
        let say = move || {
            let _turn = of_turn.lock();
            let held = said.lock().clone();
            if held.is_empty() {
                return HOLD_EVERY;
            }
            let request = ManagerRequest::HoldStarts { role, held, is_ending: false };
            for answer in ask_managers(&routes, &request, HOLD_MAX) {
                if let ManagerReply::StartsHeld { lost } = answer
                    && let Some((_, why)) = lost.into_iter().next()
                {
                    *noted.lock() = Some(why);
                }
            }
            HOLD_EVERY
        };
        let saying = Background::start(&*member.env.tasks, "ashlar-starts", say)?;
        Ok(HeldStarts { lost, role, held, turn, _saying: saying })
    }

    /// Says from now on that `own` is served as well.
    pub fn add(&self, own: Holding) {
        self.held.lock().push(own);
    }

    /// Whether everything may go on being served.
    pub fn are_held(&self) -> bool {
        self.lost.lock().is_none()
    }

    /// Ends this process at once if something is served by another server by now: whatever this one did to its directory, or told others, could be wrong.
    pub fn stop_if_lost(&self) {
        if let Some(why) = self.lost.lock().take() {
            announce::notify("STOPPING=1");
            tracing::error!(why, "this server stops");
            eprintln!("ashlar: {why}; this server stops");
            std::process::exit(1);
        }
    }

    /// Tells managers that the directory `uuid` is not served any more, and is closed; the others are.
    pub fn let_go(&self, member: &Member, uuid: [u8; 16]) {
        let gone = {
            let mut held = self.held.lock();
            let at = held.iter().position(|own| own.uuid == uuid);
            at.map(|at| held.swap_remove(at))
        };
        self.say_ending(member, gone.into_iter().collect());
    }

    /// Tells managers that nothing is served any more, and all is closed: another server need not wait.
    pub fn end(&self, member: &Member) {
        let held = std::mem::take(&mut *self.held.lock());
        self.say_ending(member, held);
    }

    fn say_ending(&self, member: &Member, held: Vec<Holding>) {
        // ORDER: nothing else is said of them any more, so that managers hear the last word last.
        drop(self.turn.lock());
        let request = ManagerRequest::HoldStarts { role: self.role, held, is_ending: true };
        tell_managers(&member.routes(), &request, HOLD_MAX);
    }
}

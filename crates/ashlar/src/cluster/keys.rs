//! The keys of capabilities, as a process of a cluster has them: got from a manager at the start, and anew again and again.

use super::background::Background;
use super::member::Member;
use anyhow::{Context, Result, bail};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{KeySet, SecretKey};
use std::time::{Duration, Instant};

/// Time between two questions for newer keys.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// Time between two looks whether somebody wants newer ones now.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For how long a manager is asked, at the start where there are kept keys, and later.
const MANAGER_MAX: Duration = Duration::from_secs(5);

/// Those by which a storage server checks: from a manager, or the last ones if none answers.
///
/// # Errors
/// When there are none.
pub fn first_checking_keys(member: &Member) -> Result<KeySet> {
    let kept = member.kept_keys();
    let asked = match &kept {
        None => member.ask(&ManagerRequest::CheckingKeys),
        Some(_) => member
            .managers
            .call(&ManagerRequest::CheckingKeys, Instant::now() + MANAGER_MAX)
            .context("the manager"),
    };
    match (asked.and_then(keys_of), kept) {
        (Ok(keys), _) => {
            member.keep_keys(&keys);
            Ok(keys)
        }
        (Err(error), Some(kept)) => {
            tracing::warn!(error = format!("{error:#}"), "no manager gives keys; going by the last ones");
            Ok(kept)
        }
        (Err(error), None) => Err(error.context("cannot get keys for capabilities")),
    }
}

/// Those by which a metadata server seals. They are stored nowhere.
///
/// # Errors
/// When no manager gives any.
pub fn first_sealing_keys(member: &Member) -> Result<KeySet> {
    keys_of(member.ask(&ManagerRequest::SealingKeys)?)
}

/// The key by which a metadata server proves what clients have open. It is stored nowhere, and never changes.
///
/// # Errors
/// When no manager gives it.
pub fn open_key(member: &Member) -> Result<SecretKey> {
    match member.ask(&ManagerRequest::OpenKey)? {
        ManagerReply::OpenKey(key) => Ok(key),
        _ => bail!("the manager gave an answer of the wrong kind"),
    }
}

/// Asks for the keys of `request` every now and then, and when they are `wanted`, for as long as what it returns lives; those that are new go to `take`.
///
/// # Errors
/// When no thread can be started.
pub fn follow(
    member: &Member,
    (request, first): (ManagerRequest, KeySet),
    wanted: impl Fn() -> bool + Send + 'static,
    take: impl Fn(KeySet) + Send + 'static,
) -> Result<Background> {
    let (managers, mut known, mut asked) = (member.managers.clone(), first, Instant::now());
    let turn = move || {
        if !wanted() && asked.elapsed() < ASK_EVERY {
            return LOOK_EVERY;
        }
        let answer = managers.call(&request, Instant::now() + MANAGER_MAX);
        asked = Instant::now();
        match answer.context("the manager").and_then(keys_of) {
            // ORDER: an older set comes from a manager that is behind.
            Ok(keys) if keys.epochs() > known.epochs() => {
                known = keys.clone();
                take(keys);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "no manager gives keys; they stay as they are");
            }
        }
        LOOK_EVERY
    };
    Background::start(&*member.env.tasks, "ashlar-keys", turn)
}

fn keys_of(reply: ManagerReply) -> Result<KeySet> {
    match reply {
        ManagerReply::Keys(keys) if keys.is_sound() => Ok(keys),
        _ => bail!("the manager gave an answer of the wrong kind"),
    }
}

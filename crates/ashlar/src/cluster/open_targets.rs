//! Opening the targets of a storage server: each is locked, then managers are asked whether it may be served, then it is opened.

use super::claim::{HeldStarts, claim, confirm, place_of};
use super::member::Member;
use crate::cli::CopyArgs;
use crate::node::targets;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{ChunkStore, TargetIdentity};
use ashlar_env::os::OsDisk;
use ashlar_types::{Holding, Role};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Opens the targets `found`; says from then on in which start each is. `is_known`: the map says that this server serves them.
///
/// # Errors
/// When one cannot be opened, or is not to be served: with its directory, the reason and the way out.
pub fn open_targets(
    member: &Member,
    found: &[(PathBuf, TargetIdentity)],
    (copies, is_known): (CopyArgs, bool),
    is_told: &AtomicBool,
) -> Result<(Vec<Arc<ChunkStore>>, HeldStarts)> {
    let holder = format!("ashlar storage, process {}", std::process::id());
    let (mut stores, mut untold, mut is_answered) = (Vec::new(), Vec::new(), true);
    // Opening many targets takes long, and what is silent for a while may be taken over.
    let starts = HeldStarts::keep(member, Role::Storage, Vec::new())?;
    for (path, identity) in found {
        let context = || {
            format!(
                "cannot open the target at {}; leave this directory out to start without it",
                path.display()
            )
        };
        let disk = OsDisk::new(path);
        // ORDER: locked before the header is read that is asked for: whoever had it until now may have changed it. And nobody else has it while its place is told.
        let lock = ChunkStore::lock(&disk, &holder).with_context(context)?;
        let header = ChunkStore::header(&disk).with_context(context)?;
        if header.identity != *identity {
            bail!("the target at {} was replaced by another one a moment ago", path.display());
        }
        let (uuid, shown) = (identity.uuid.0, path.display().to_string());
        let mut own = Holding { uuid, start: header.start, path: shown, place: place_of(path) };
        let claimed = match is_answered {
            true => claim(member, (Role::Storage, &own), (copies, is_known), is_told)?,
            false => None,
        };
        is_answered = claimed.is_some();
        if claimed.is_some_and(|claimed| claimed.is_older) {
            eprintln!(
                "ashlar: {} at {} is an older copy: what has changed since is gone",
                identity.target, own.path
            );
        }
        let start = claimed.map(|claimed| claimed.start);
        let opened = targets::open_alone(path, identity, &member.env, (lock, &holder, start));
        stores.push(opened.with_context(context)?);
        own.start = start.unwrap_or(own.start);
        // ORDER: managers hear of a start when its directory says it, durably. Heard before, it would lock a server out that ends in between.
        if is_answered {
            confirm(member, Role::Storage, std::slice::from_ref(&own), true)?;
            starts.add(own);
        } else {
            untold.push(own);
        }
    }
    if !untold.is_empty() {
        confirm(member, Role::Storage, &untold, false)?;
        untold.into_iter().for_each(|own| starts.add(own));
    }
    Ok((stores, starts))
}

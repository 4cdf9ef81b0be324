//! Opening the targets of a storage server: each is locked, then managers are asked whether it may be served, then it is opened.

use super::claim::{HeldStarts, claim, confirm, place_of};
use super::member::Member;
use crate::cli::CopyArgs;
use crate::node::targets;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{ChunkStore, TargetIdentity};
use ashlar_env::os::OsDisk;
use ashlar_types::{Holding, Role};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Opens targets one after the other, and says from then on in which start each is. Opening many takes long, and what is silent for a while may be taken over.
pub struct Opening<'a> {
    member: &'a Member,
    copies: CopyArgs,
    /// The map says that this server serves them.
    is_known: bool,
    is_told: &'a AtomicBool,
    starts: &'a HeldStarts,
    /// A manager has answered each time.
    is_answered: bool,
    untold: Vec<Holding>,
}

impl<'a> Opening<'a> {
    /// Nothing is opened yet. `is_known`: the map says that this server serves what is going to be; `is_told` that it is to stop.
    pub fn new(
        member: &'a Member,
        (copies, is_known): (CopyArgs, bool),
        is_told: &'a AtomicBool,
        starts: &'a HeldStarts,
    ) -> Opening<'a> {
        Opening { member, copies, is_known, is_told, starts, is_answered: true, untold: Vec::new() }
    }

    /// Opens the target at `path`.
    ///
    /// # Errors
    /// When it cannot be opened, or is not to be served: with its directory, the reason and the way out.
    pub fn open(&mut self, path: &Path, identity: &TargetIdentity) -> Result<Arc<ChunkStore>> {
        let holder = format!("ashlar storage, process {}", std::process::id());
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
        let claimed = match self.is_answered {
            true => claim(self.member, (Role::Storage, &own), (self.copies, self.is_known), self.is_told)?,
            false => None,
        };
        self.is_answered = claimed.is_some();
        if claimed.is_some_and(|claimed| claimed.is_older) {
            eprintln!(
                "ashlar: {} at {} is an older copy: what has changed since is gone",
                identity.target, own.path
            );
        }
        let start = claimed.map(|claimed| claimed.start);
        let opened = targets::open_alone(path, identity, &self.member.env, (lock, &holder, start));
        let store = opened.with_context(context)?;
        own.start = start.unwrap_or(own.start);
        // ORDER: managers hear of a start when its directory says it, durably. Heard before, it would lock a server out that ends in between.
        if self.is_answered {
            confirm(self.member, Role::Storage, std::slice::from_ref(&own), true)?;
            self.starts.add(own);
        } else {
            self.untold.push(own);
        }
        Ok(store)
    }

    /// Says what could not be said before.
    ///
    /// # Errors
    /// When one of them is not to be served.
    pub fn finish(self) -> Result<()> {
        if !self.untold.is_empty() {
            confirm(self.member, Role::Storage, &self.untold, false)?;
            self.untold.into_iter().for_each(|own| self.starts.add(own));
        }
        Ok(())
    }
}

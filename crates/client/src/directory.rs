//! Reading directories.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::names::Found;
use ashlar_types::message::{DirEntry, LeaseSet, MetaReply, MetaRequest};
use ashlar_types::{Errno, InodeId};
use std::time::Duration;

/// A part of a directory listing.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The entries, in cookie order.
    pub entries: Vec<DirEntry>,
    /// Whether nothing follows.
    pub is_end: bool,
}

impl Client {
    /// Entries of `directory` behind cookie `after` (0 to begin), about `bytes_max` bytes of them.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else.
    pub fn readdir(
        &self,
        who: &Who,
        directory: InodeId,
        after: u64,
        bytes_max: u32,
        with_attributes: bool,
    ) -> Result<Listing, Errno> {
        match self.call(who, MetaRequest::Readdir { directory, after, bytes_max, with_attributes })? {
            MetaReply::Entries { entries, is_end } => Ok(Listing { entries, is_end }),
            other => Err(unexpected(&other)),
        }
    }

    /// What may be cached of a listed entry.
    pub fn found_in_listing(&self, entry: &DirEntry) -> Option<Found> {
        let attr = entry.attr.clone()?;
        let valid = |lease| if entry.leases.has(lease) { self.lease_term } else { Duration::ZERO };
        Some(Found {
            attr: self.overlay(attr),
            attr_valid: valid(LeaseSet::ATTR),
            entry_valid: valid(LeaseSet::ENTRIES),
        })
    }
}

//! Reading directories.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::names::Found;
use ashlar_types::message::{DirEntry, LeaseSet, MetaReply, MetaRequest, SplitDirectory};
use ashlar_types::{Cookie, Credentials, Errno, InodeId, NameHash};
use std::time::Duration;

/// Cookie of the entry `..`, behind which are those with names.
const AFTER_DOTS: u64 = 2;
/// Bytes for which another slice of a directory is asked: any entry fits.
const ROOM_MIN: u32 = 512;
/// Bytes an entry costs besides its name, with and without attributes, as the kernel packs them.
pub(crate) const ENTRY_BYTES: u32 = 24;
pub(crate) const ENTRY_BYTES_WITH_ATTRIBUTES: u32 = 152;

/// How often in one call the slices of a directory that is being split are asked anew because names went on to them meanwhile.
const TURNS_MAX: usize = 64;

fn begin_of(slice: usize, split: &SplitDirectory) -> NameHash {
    NameHash::begin_of_slice(slice, split.slices.len())
}

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
        if after >= AFTER_DOTS
            && let Some(known) = self.split_directories.find(directory)
        {
            return self.list_slices(who, (directory, known.split()), after, bytes_max, with_attributes);
        }
        match self.call(who, MetaRequest::Readdir { directory, after, bytes_max, with_attributes }) {
            Ok(MetaReply::Entries { entries, is_end }) => Ok(Listing { entries, is_end }),
            Ok(other) => Err(unexpected(&other)),
            // What comes next it does not have itself.
            Err(Errno::EREMOTE) => match self.ask_slices(self.session(), &Credentials::root(), directory)? {
                Some(known) => {
                    self.list_slices(who, (directory, known.split()), after, bytes_max, with_attributes)
                }
                None => Err(Errno::ESTALE),
            },
            Err(errno) => Err(errno),
        }
    }

    /// Entries of a directory that is split. Its slices are asked in the order of the hashes they have, which is that of cookies; of one that is being split the
    /// directory itself comes then.
    fn list_slices(
        &self,
        who: &Who,
        (directory, mut split): (InodeId, SplitDirectory),
        mut after: u64,
        bytes_max: u32,
        with_attributes: bool,
    ) -> Result<Listing, Errno> {
        let of_entry = if with_attributes { ENTRY_BYTES_WITH_ATTRIBUTES } else { ENTRY_BYTES };
        let mut listing = Listing::default();
        let mut room = bytes_max;
        for _ in 0..TURNS_MAX {
            let first = Cookie(after).hash().slice(split.slices.len());
            let begun = (first..split.slices.len()).filter(|at| split.border > begin_of(*at, &split).0);
            let slices = begun.map(|at| (split.slices[at], true));
            let rest = (!split.is_whole()).then_some((directory, false));
            for (part, is_slice) in slices.chain(rest) {
                // Nothing would be the end.
                if room < ROOM_MIN && !listing.entries.is_empty() {
                    return Ok(listing);
                }
                if !is_slice {
                    after = after.max(Cookie::before(NameHash(split.border)).0);
                }
                let request =
                    MetaRequest::Readdir { directory: part, after, bytes_max: room, with_attributes };
                match self.call(who, request) {
                    Ok(MetaReply::Entries { entries, is_end }) => {
                        let taken: u32 = entries.iter().map(|entry| of_entry + entry.name.len() as u32).sum();
                        room = room.saturating_sub(taken);
                        after = entries.last().map_or(after, |entry| entry.cookie);
                        listing.entries.extend(entries);
                        if !is_end {
                            return Ok(listing);
                        }
                    }
                    Ok(other) => return Err(unexpected(&other)),
                    // It has been removed.
                    Err(Errno::ESTALE) if is_slice => {
                        self.split_directories.forget(directory);
                        return Ok(Listing { is_end: true, ..listing });
                    }
                    // Some of them are in slices by now.
                    Err(Errno::EREMOTE) if !is_slice => break,
                    Err(errno) => return Err(errno),
                }
                listing.is_end = part == rest.map_or(split.slices[split.slices.len() - 1], |(rest, _)| rest);
            }
            if listing.is_end {
                return Ok(listing);
            }
            let known = self.ask_slices(self.session(), &Credentials::root(), directory)?;
            split = known.ok_or(Errno::ESTALE)?.split();
        }
        // LIMIT: what there is for now is told, and the rest asked for anew.
        if listing.entries.is_empty() { Err(Errno::EAGAIN) } else { Ok(listing) }
    }

    /// What may be cached of a listed entry.
    pub fn found_in_listing(&self, entry: &DirEntry) -> Option<Found> {
        let attr = entry.attr.clone()?;
        if self.is_close_to_open() {
            return Some(self.found_loosely(attr));
        }
        let valid = |lease| if entry.leases.has(lease) { self.lease_term } else { Duration::ZERO };
        let is_whole = attr.slices() == 0;
        Some(Found {
            is_whole,
            attr: self.overlay(attr),
            attr_valid: if is_whole { valid(LeaseSet::ATTR) } else { Duration::ZERO },
            entry_valid: valid(LeaseSet::ENTRIES),
        })
    }
}

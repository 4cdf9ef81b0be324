//! Directories that are split against their slices: each names the other, and they have the same rules.

use super::{Checker, Finding, Stop};
use crate::record::{Inode, Kind};
use crate::verb::slice;
use ashlar_types::InodeId;

/// Looks at an inode that is split, or a slice; there is nothing to see of others.
pub(super) fn check(checker: &mut Checker<'_>, id: InodeId, inode: &Inode) -> Result<(), Stop> {
    match &inode.kind {
        Kind::Slice { of, index, count, .. } | Kind::SliceInSplit { of, index, count, .. } => {
            check_slice(checker, id, (*of, *index, *count))
        }
        Kind::WideDirectory { .. } | Kind::DirectoryInSplit { .. } => check_directory(checker, id, inode),
        _ => Ok(()),
    }
}

fn check_slice(
    checker: &mut Checker<'_>,
    id: InodeId,
    (of, index, count): (InodeId, u16, u16),
) -> Result<(), Stop> {
    if !checker.args.shards.contains(&of.home()) {
        return Ok(());
    }
    let is_named = match checker.inode(of)? {
        // Nobody knows what a damaged directory has.
        Some(None) => true,
        None => false,
        Some(Some(directory)) => {
            let slices = directory.slices();
            slices.len() == usize::from(count) && slices.get(usize::from(index)) == Some(&id)
        }
    };
    if is_named { Ok(()) } else { checker.found(Finding::SliceStray { inode: id, of }) }
}

fn check_directory(checker: &mut Checker<'_>, id: InodeId, directory: &Inode) -> Result<(), Stop> {
    let count = directory.slices().len();
    for (at, &slice) in directory.slices().iter().enumerate() {
        if !checker.args.shards.contains(&slice.home()) {
            continue;
        }
        match checker.inode(slice)? {
            None => {
                let index = at as u16;
                checker.found(Finding::SliceMissing { directory: id, index, inode: slice })?;
            }
            Some(None) => {}
            Some(Some(record)) => {
                let is_its = matches!(&record.kind,
                    Kind::Slice { of, index, count: slices, .. }
                    | Kind::SliceInSplit { of, index, count: slices, .. }
                    if *of == id && usize::from(*index) == at && usize::from(*slices) == count);
                if !is_its {
                    let what = "what it names as a slice is none of its";
                    checker.found(Finding::InodeMalformed { inode: id, what })?;
                } else if !slice::has_rules(directory, &record) {
                    checker.found(Finding::SliceRules { directory: id, inode: slice })?;
                }
            }
        }
    }
    Ok(())
}

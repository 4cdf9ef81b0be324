//! Troubles of a disk that are no damage, and what to do about each.

use super::usable::NO_PERMISSION;
use ashlar_chunkstore::ChunkError;
use ashlar_kv::KvError;
use std::error::Error;
use std::io::{self, ErrorKind};

const FULL: &str = "its disk is full, nothing is damaged: make room there (or enlarge it) and start again; what is deleted then makes more room";
const READ_ONLY: &str = "its disk is mounted read-only, nothing is known to be damaged: mount it writable (after an error of the disk, see what \
                         the kernel's log says); `ashlar fsck`, `ashlar backup` and `ashlar up --read-only` work as it is";

/// What to do about `error` if its cause is a disk that is full or cannot be written to, or a
/// permission. Such a disk must never look like a damaged
/// file system, whose remedies give up changes.
pub fn way_out(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => return Some(FULL),
                ErrorKind::ReadOnlyFilesystem => return Some(READ_ONLY),
                ErrorKind::PermissionDenied => return Some(NO_PERMISSION),
                _ => {}
            }
        }
        if matches!(error.downcast_ref(), Some(KvError::NoSpace { .. }))
            || matches!(error.downcast_ref(), Some(ChunkError::NoSpace { .. }))
        {
            return Some(FULL);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_and_read_only_disks_are_told_apart_from_damage() {
        let io = |code| KvError::Io { what: "open".into(), source: io::Error::from_raw_os_error(code) };
        assert_eq!(way_out(&io(libc::ENOSPC)), Some(FULL));
        assert_eq!(way_out(&io(libc::EDQUOT)), Some(FULL));
        assert_eq!(way_out(&io(libc::EROFS)), Some(READ_ONLY));
        assert_eq!(way_out(&io(libc::EACCES)), Some(NO_PERMISSION));
        assert_eq!(way_out(&io(libc::EIO)), None);
        assert_eq!(way_out(&KvError::NoSpace { what: String::new() }), Some(FULL));
        assert_eq!(way_out(&ChunkError::NoSpace { what: String::new() }), Some(FULL));
        assert_eq!(way_out(&KvError::Corrupt { what: String::new() }), None);
    }
}

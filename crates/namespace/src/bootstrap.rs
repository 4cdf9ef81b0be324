//! The first transaction of a file system: its root directory.

use crate::error::NsError;
use crate::key;
use crate::record::{Inode, Kind};
use crate::txn::Txn;
use ashlar_types::attr::MODE_PERMISSION_MASK;
use ashlar_types::{Errno, FileType, FilesetId, InodeId, LayoutPolicy, Timespec};

/// How the root directory of a new file system is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootSettings {
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Layout settings; what is not set is taken from [`LayoutPolicy::root_default`].
    pub policy: LayoutPolicy,
}

impl Default for RootSettings {
    fn default() -> RootSettings {
        RootSettings { mode: 0o755, uid: 0, gid: 0, policy: LayoutPolicy::root_default() }
    }
}

/// Makes the root directory of a new file system, in fileset 0, its own parent.
///
/// # Errors
/// `EEXIST` when there is a root already, `EINVAL` for a policy out of its ranges.
pub fn bootstrap(txn: &mut Txn<'_>, settings: RootSettings, now: Timespec) -> Result<(), NsError> {
    if txn.get(&key::inode(InodeId::ROOT))?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let policy = settings.policy.or(LayoutPolicy::root_default());
    policy.check()?;
    let mode = FileType::Directory.mode_bits() | settings.mode & MODE_PERMISSION_MASK;
    let kind = Kind::Directory { parent: InodeId::ROOT, policy };
    let mut root = Inode::new(mode, settings.uid, settings.gid, FilesetId::default(), now, kind);
    root.nlink = 2;
    txn.insert_inode(InodeId::ROOT, root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MemoryStore, World};
    use crate::txn::Txn;

    #[test]
    fn root_is_made_once_and_accounted() {
        let mut world = World::new();
        let root = world.inode(InodeId::ROOT);
        assert_eq!((root.mode, root.nlink, root.size, root.blocks), (0o040755, 2, 0, 0));
        assert_eq!(root.as_directory().unwrap(), (InodeId::ROOT, World::root_policy()));
        assert_eq!(world.accounted().inodes, 1);
        let again = world.as_root(|txn, context| bootstrap(txn, RootSettings::default(), context.now));
        assert_eq!(again, Err(Errno::EEXIST));
    }

    #[test]
    fn settings_are_taken_and_checked() {
        let store = MemoryStore::default();
        let policy = LayoutPolicy { stripe_count: Some(1), ..LayoutPolicy::default() };
        let settings = RootSettings { mode: 0o1777, uid: 7, gid: 8, policy };
        let mut txn = Txn::new(&store);
        bootstrap(&mut txn, settings, Timespec::new(5, 0)).unwrap();
        let root = txn.inode(InodeId::ROOT).unwrap();
        assert_eq!((root.mode, root.uid, root.gid, root.mtime.secs), (0o041777, 7, 8, 5));
        let (_, stored) = root.as_directory().unwrap();
        assert_eq!(stored, policy.or(LayoutPolicy::root_default()));
        let wrong = LayoutPolicy { chunk_bytes: Some(3), ..LayoutPolicy::default() };
        let refused =
            bootstrap(&mut Txn::new(&store), RootSettings { policy: wrong, ..settings }, Timespec::default());
        assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
    }
}

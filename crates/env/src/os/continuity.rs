//! Since when nothing that was written to a local file system has been lost.

use crate::Continuity;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Drawn anew by each start of the kernel (`random(4)`).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The boot and the mount that `path` is on; `None` before Linux 6.8, whose mounts have no number of their own.
///
/// Not the device's number: a local file system that shut itself down after an error has forgotten what it had not written, and the
/// same device is mounted again.
pub(super) fn continuity_of(path: &Path) -> Option<Continuity> {
    let boot = decode_boot_id(&std::fs::read_to_string(BOOT_ID).ok()?)?;
    Some(Continuity { boot, mount: mount_of(path)? })
}

/// 32 hexadecimal digits, with hyphens between some.
fn decode_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|digit| *digit != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| number.to_be_bytes())
}

/// The number of the mount, `STATX_MNT_ID_UNIQUE` of `statx(2)`.
fn mount_of(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: `path` is a terminated string and `answer` is writable memory of the right type.
    let result = unsafe {
        libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MNT_ID_UNIQUE, answer.as_mut_ptr())
    };
    // SAFETY: zeros are a valid value of the structure, whatever the call filled of it.
    let answer = unsafe { answer.assume_init() };
    (result == 0 && answer.stx_mask & libc::STATX_MNT_ID_UNIQUE != 0).then_some(answer.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_mount_have_one_continuity_and_other_mounts_another() {
        let here = tempfile::tempdir().unwrap();
        std::fs::create_dir(here.path().join("below")).unwrap();
        let Some(found) = continuity_of(here.path()) else {
            println!("this kernel does not tell mounts apart");
            return;
        };
        assert_eq!(continuity_of(&here.path().join("below")), Some(found));
        let other = continuity_of(Path::new("/proc")).unwrap();
        assert_eq!(other.boot, found.boot);
        assert_ne!(other.mount, found.mount);
        assert_eq!(continuity_of(&here.path().join("missing")), None);
    }

    #[test]
    fn a_boot_id_is_taken_whole_or_not_at_all() {
        let id = decode_boot_id("01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
        assert_eq!(id[..4], [0x01, 0x23, 0x45, 0x67]);
        assert_eq!(id[15], 0xef);
        assert_eq!(decode_boot_id("0123"), None);
        assert_eq!(decode_boot_id(""), None);
    }
}

//! `renameat2` with `RENAME_WHITEOUT`, which overlayfs wants of the file system of its upper layer, was refused with EINVAL.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use support::{Site, can_mount};

fn rename(from: &Path, to: &Path, flags: u32) -> Result<(), i32> {
    let [from, to] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()).unwrap());
    // SAFETY: both paths end with a NUL and outlive the call.
    let result =
        unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}

#[test]
fn the_old_name_of_a_file_or_directory_becomes_a_whiteout() {
    if !can_mount("whiteouts") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let at = |name: &str| site.mnt().join(name);
    let is_whiteout = |name: &str| {
        let found = fs::symlink_metadata(at(name)).unwrap();
        found.file_type().is_char_device() && found.rdev() == 0 && found.mode() & 0o7777 == 0
    };
    fs::write(at("a"), "content").unwrap();
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("dir/below"), "below").unwrap();
    rename(&at("a"), &at("b"), libc::RENAME_WHITEOUT).unwrap();
    rename(&at("dir"), &at("moved"), libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(fs::read(at("b")).unwrap(), b"content");
    assert_eq!(fs::read(at("moved/below")).unwrap(), b"below");
    assert!(is_whiteout("a") && is_whiteout("dir"));
    assert_eq!(fs::symlink_metadata(site.mnt()).unwrap().nlink(), 3);
    // Over a whiteout, and not over what is there.
    rename(&at("b"), &at("a"), libc::RENAME_WHITEOUT).unwrap();
    assert!(fs::read(at("a")).unwrap() == b"content" && is_whiteout("b"));
    let refused = rename(&at("b"), &at("a"), libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE);
    assert_eq!(refused, Err(libc::EEXIST));
    let refused = rename(&at("b"), &at("a"), libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE);
    assert_eq!(refused, Err(libc::EINVAL));
    let mut names: Vec<_> =
        fs::read_dir(site.mnt()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "dir", "moved"]);
    server.stop();
    let server = site.up("up @mnt --data @d1");
    assert!(is_whiteout("b") && is_whiteout("dir"));
    server.stop();
    site.run("fsck --data @d1").expect(0);
}

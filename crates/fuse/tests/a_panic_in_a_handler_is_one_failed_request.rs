//! Goal: a bug in the file system costs one EIO, not the mount.

mod memory;

use ashlar_fuse::{MountOptions, TransportChoice};
use memory::{MemoryFs, mount_or_skip};
use std::fs;
use std::time::Duration;

#[test]
fn the_caller_gets_eio_and_everybody_else_goes_on() {
    let options = MountOptions { transport: TransportChoice::Device, ..Default::default() };
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &options) else { return };
    // More often than there are workers: a panic must not cost one.
    for _ in 0..20 {
        let error = fs::metadata(mounted.join("panic")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    fs::write(mounted.join("fine"), "fine").unwrap();
    assert_eq!(fs::read_to_string(mounted.join("fine")).unwrap(), "fine");
    mounted.end();
}

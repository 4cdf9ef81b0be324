//! Goal: everything an application does works through a real mount over /dev/fuse, with the newest kernel's features and with those of
//! Linux 5.4 only. Method: the same suite on an in-memory file system.

mod memory;

use ashlar_fuse::{Features, KernelMask, MountOptions, NotifyError, Transport, TransportChoice};
use memory::{MemoryFs, mount_or_skip, suite, waits};
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn device() -> MountOptions {
    MountOptions { transport: TransportChoice::Device, ..Default::default() }
}

#[test]
fn with_the_newest_features_and_no_caching() {
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &device()) else { return };
    assert_eq!(mounted.session.negotiated().max_write, 1 << 20);
    suite::everything(&mounted);
    mounted.end();
}

#[test]
fn with_cached_names_and_attributes_on_cloned_devices() {
    let options = MountOptions {
        threads: NonZeroUsize::new(4),
        default_permissions: true,
        allow_other: true,
        ..device()
    };
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::from_secs(60)), &options) else { return };
    assert_eq!(mounted.session.transport_in_use(), Transport::Device { threads: 4, is_cloned: true });
    suite::everything(&mounted);
    std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    waits::until("FORGETs, in batches", || mounted.fs.calls.forgotten.load(SeqCst) > 1000);
    mounted.end();
}

#[test]
fn with_the_features_of_linux_5_4_only() {
    let options = MountOptions { mask: KernelMask::of_linux("5.4").unwrap(), ..device() };
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::from_secs(1)), &options) else { return };
    let granted = mounted.session.negotiated().features;
    assert_eq!(granted.bits() >> 26, 0, "{granted:?}");
    assert_eq!(mounted.session.negotiated().kernel_minor, 31);
    assert_eq!(mounted.session.notifier().inc_epoch(), Err(NotifyError::Unsupported));
    suite::everything(&mounted);
    mounted.end();
}

#[test]
fn with_no_optional_feature_at_all() {
    let mask = KernelMask { features: Features::from_bits(u64::MAX), minor_max: 31 };
    let options = MountOptions { mask, ..device() };
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &options) else { return };
    assert_eq!(mounted.session.negotiated().features, Features::EMPTY);
    assert_eq!(mounted.session.negotiated().max_write, 128 << 10);
    let name = mounted.join("file");
    std::fs::write(&name, [7; 300_000]).unwrap();
    assert!(std::fs::read(&name).unwrap() == [7; 300_000]);
    mounted.end();
}

#[test]
fn read_only() {
    let options = MountOptions { read_only: true, ..device() };
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &options) else { return };
    let error = std::fs::create_dir(mounted.join("x")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    mounted.end();
}

//! Goal: what the kernel caches under a lifetime goes away when the file system says so, and only then. Method: count the
//! requests that arrive, change things behind the kernel's back, notify.

mod memory;

use ashlar_fuse::{
    Delivery, Features, KernelMask, MountOptions, NodeId, Notifier, NotifyError, TransportChoice,
};
use memory::{MemoryFs, Mounted, mount_or_skip, waits};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn cached(masked: Features) -> Option<(Mounted, Notifier)> {
    let mask = KernelMask { features: masked, ..KernelMask::NONE };
    let options = MountOptions { transport: TransportChoice::Device, mask, ..Default::default() };
    let mounted = mount_or_skip(MemoryFs::new(Duration::from_secs(3600)), &options)?;
    let notifier = mounted.session.notifier();
    Some((mounted, notifier))
}

fn len(mounted: &Mounted, name: &str) -> Option<u64> {
    fs::metadata(mounted.join(name)).ok().map(|metadata| metadata.len())
}

#[test]
fn attributes_and_data_of_a_node() {
    let Some((mounted, notifier)) = cached(Features::EMPTY) else { return };
    fs::write(mounted.join("file"), "old").unwrap();
    assert_eq!(fs::read_to_string(mounted.join("file")).unwrap(), "old");
    assert_eq!(len(&mounted, "file"), Some(3));
    let calls = mounted.fs.calls.getattr.load(SeqCst);
    let node = mounted.fs.overwrite(&["file"], b"newer");
    assert_eq!(len(&mounted, "file"), Some(3), "the lifetime holds");
    assert_eq!(mounted.fs.calls.getattr.load(SeqCst), calls, "no request was made");
    assert_eq!(notifier.inval_inode(node, 0, 0), Ok(Delivery::Applied));
    assert_eq!(len(&mounted, "file"), Some(5));
    assert_eq!(fs::read_to_string(mounted.join("file")).unwrap(), "newer");
    assert_eq!(notifier.inval_inode(NodeId(999_999), 0, 0), Ok(Delivery::NotCached));
    mounted.end();
}

#[test]
fn names() {
    let Some((mounted, notifier)) = cached(Features::EMPTY) else { return };
    fs::create_dir(mounted.join("dir")).unwrap();
    fs::write(mounted.join("dir/file"), "x").unwrap();
    let gone = mounted.fs.remove_quietly(NodeId(2), "file");
    assert_eq!(len(&mounted, "dir/file"), Some(1), "the lifetime holds");
    assert_eq!(notifier.inval_entry(NodeId(2), b"file"), Ok(Delivery::Applied));
    assert_eq!(len(&mounted, "dir/file"), None);
    fs::write(mounted.join("dir/second"), "x").unwrap();
    let second = mounted.fs.remove_quietly(NodeId(2), "second");
    assert_ne!(gone, second);
    assert_eq!(notifier.delete(NodeId(2), second, b"second"), Ok(Delivery::Applied));
    assert_eq!(len(&mounted, "dir/second"), None);
    let long = vec![b'n'; 2000];
    assert!(matches!(notifier.inval_entry(NodeId(2), &long), Err(NotifyError::Refused(_))));
    mounted.end();
}

#[test]
fn expiry_makes_the_kernel_ask_but_keeps_what_is_below() {
    let Some((mounted, notifier)) = cached(Features::EMPTY) else { return };
    let granted = mounted.session.negotiated().clone();
    fs::create_dir(mounted.join("dir")).unwrap();
    let lookups = || mounted.fs.calls.lookup.load(SeqCst);
    let before = lookups();
    fs::metadata(mounted.join("dir")).unwrap();
    assert_eq!(lookups(), before);
    if granted.features.contains(Features::HAS_EXPIRE_ONLY) {
        assert_eq!(notifier.expire_entry(NodeId::ROOT, b"dir"), Ok(Delivery::Applied));
        fs::metadata(mounted.join("dir")).unwrap();
        assert_eq!(lookups(), before + 1);
    }
    if granted.kernel_minor >= 44 {
        assert_eq!(notifier.inc_epoch(), Ok(Delivery::Applied));
        let before = lookups();
        fs::metadata(mounted.join("dir")).unwrap();
        assert_eq!(lookups(), before + 1, "a new epoch expires every name");
    } else {
        assert_eq!(notifier.inc_epoch(), Err(NotifyError::Unsupported));
    }
    mounted.end();
}

#[test]
fn data_can_be_put_into_the_page_cache() {
    let Some((mounted, notifier)) = cached(Features::EMPTY) else { return };
    fs::write(mounted.join("file"), "server").unwrap();
    let node = NodeId(fs::metadata(mounted.join("file")).unwrap().ino());
    // Open first: an open drops the pages.
    let file = fs::File::open(mounted.join("file")).unwrap();
    assert_eq!(notifier.store(node, 0, b"cached"), Ok(Delivery::Applied));
    let mut found = [0; 6];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"cached");
    assert_eq!(notifier.retrieve(77, node, 0, 100), Ok(Delivery::Applied));
    waits::until("the page's content", || !mounted.fs.calls.retrieved.lock().is_empty());
    assert_eq!(*mounted.fs.calls.retrieved.lock(), [(77, 0, b"cached".to_vec())]);
    drop(file);
    assert_eq!(notifier.store(NodeId(999_999), 0, b"x"), Ok(Delivery::NotCached));
    mounted.end();
}

#[test]
fn what_the_kernel_lacks_is_said_and_a_dead_mount_too() {
    let Some((mounted, notifier)) = cached(Features::HAS_EXPIRE_ONLY | Features::HAS_RESEND) else { return };
    assert_eq!(notifier.expire_entry(NodeId::ROOT, b"x"), Err(NotifyError::Unsupported));
    assert_eq!(notifier.resend(), Err(NotifyError::Unsupported));
    mounted.end();
    assert_eq!(notifier.inval_inode(NodeId::ROOT, 0, 0), Err(NotifyError::Disconnected));
}

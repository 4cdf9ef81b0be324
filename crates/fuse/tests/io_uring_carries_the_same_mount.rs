//! Goal: FUSE over io_uring gives the same file system as /dev/fuse: data, names, deferred locks, interrupts, FORGETs, panics, end.
//! Method: the same suites, with the kernel's switch set for the length of the test.

#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod memory;

use ashlar_fuse::{MountOptions, NodeId, Transport, TransportChoice};
use memory::{MemoryFs, Mounted, RingSwitch, mount, suite, waits};
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn ring(lifetime: Duration) -> Option<(Mounted, RingSwitch)> {
    ring_shared_by(1, lifetime)
}

fn ring_shared_by(threads: usize, lifetime: Duration) -> Option<(Mounted, RingSwitch)> {
    let switch = RingSwitch::set_or_skip(true)?;
    let threads_per_ring = NonZeroUsize::new(threads)?;
    let options = MountOptions { threads_per_ring, ..Default::default() };
    let mounted = mount(MemoryFs::new(lifetime), &options).expect("it mounts");
    let transport = mounted.session.transport_in_use();
    let wanted = if threads == 1 { 8 } else { threads.min(8) };
    assert!(matches!(transport, Transport::Ring { depth, .. } if depth == wanted), "{transport}");
    assert_eq!(mounted.session.transport_hint(), None);
    Some((mounted, switch))
}

#[test]
fn everything_an_application_does() {
    let Some((mounted, _switch)) = ring(Duration::ZERO) else { return };
    suite::everything(&mounted);
    mounted.end();
}

#[test]
fn everything_with_cached_names_and_attributes() {
    let Some((mounted, _switch)) = ring(Duration::from_secs(60)) else { return };
    suite::everything(&mounted);
    mounted.end();
}

#[test]
fn several_threads_share_a_queue() {
    for threads in [3, 8, 100] {
        let Some((mounted, _switch)) = ring_shared_by(threads, Duration::ZERO) else { return };
        suite::everything(&mounted);
        waits::many(&mounted, 40);
        mounted.end();
    }
}

#[test]
fn handlers_that_wait_do_not_hold_up_a_queue_with_threads_to_spare() {
    let Some((mounted, _switch)) = ring_shared_by(8, Duration::ZERO) else { return };
    others_go_on_beside_handlers_that_wait(mounted);
}

/// A thread that has been given its entry back after its request was parked had two, and did not look at one while it was at the other.
#[test]
fn nor_do_they_after_many_requests_were_parked() {
    let Some((mounted, _switch)) = ring_shared_by(8, Duration::ZERO) else { return };
    for _ in 0..3 {
        waits::many(&mounted, 60);
    }
    others_go_on_beside_handlers_that_wait(mounted);
}

fn others_go_on_beside_handlers_that_wait(mounted: Mounted) {
    // A directory of their own: lookups hold the lock that creates need.
    fs::create_dir(mounted.join("other")).unwrap();
    let sleepers: Vec<_> = (0..4)
        .map(|index| {
            let slow = mounted.join(&format!("slow-{index}"));
            std::thread::spawn(move || fs::metadata(slow))
        })
        .collect();
    waits::until("all sleep", || mounted.fs.calls.sleeping.load(SeqCst) == 4);
    for index in 0..1000 {
        fs::write(mounted.join(&format!("other/{index}")), "x").unwrap();
    }
    assert_eq!(mounted.fs.calls.sleeping.load(SeqCst), 4, "the others had to wait for the sleepers");
    mounted.fs.calls.are_woken.store(true, SeqCst);
    for sleeper in sleepers {
        sleeper.join().unwrap().unwrap_err();
    }
    mounted.end();
}

#[test]
fn more_waiting_locks_than_a_queue_has_entries() {
    let Some((mounted, _switch)) = ring(Duration::from_secs(1)) else { return };
    waits::many(&mounted, 60);
    mounted.end();
}

#[test]
fn a_signal_ends_the_wait_for_a_lock() {
    let Some((mounted, _switch)) = ring(Duration::from_secs(1)) else { return };
    waits::interrupted(&mounted);
    mounted.end();
}

#[test]
fn aborting_the_mount_ends_every_wait() {
    let Some((mounted, _switch)) = ring(Duration::from_secs(1)) else { return };
    waits::aborted(mounted);
}

/// Threads all of whose requests waited did not hear of the end, and the mount did not end for them.
#[test]
fn the_end_is_heard_by_threads_whose_requests_wait() {
    let Some((mounted, _switch)) = ring_shared_by(2, Duration::from_secs(1)) else { return };
    let begun = std::time::Instant::now();
    waits::aborted(mounted);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn forgets_notifications_and_panics() {
    let Some((mounted, _switch)) = ring(Duration::from_secs(3600)) else { return };
    for index in 0..2000 {
        fs::write(mounted.join(&format!("file-{index}")), "x").unwrap();
        fs::remove_file(mounted.join(&format!("file-{index}"))).unwrap();
    }
    waits::until("FORGETs", || mounted.fs.calls.forgotten.load(SeqCst) >= 2000);
    fs::write(mounted.join("file"), "old").unwrap();
    let node = mounted.fs.overwrite(&["file"], b"newer");
    assert_ne!(node, NodeId::ROOT);
    mounted.session.notifier().inval_inode(node, 0, 0).unwrap();
    assert_eq!(fs::read_to_string(mounted.join("file")).unwrap(), "newer");
    fs::write(mounted.join("kept"), "12345").unwrap();
    let file = fs::File::open(mounted.join("kept")).unwrap();
    let node = NodeId(file.metadata().unwrap().ino());
    mounted.session.notifier().store(node, 0, b"cache").unwrap();
    mounted.session.notifier().retrieve(u32::MAX, node, 0, 100).unwrap();
    waits::until("the page's content", || !mounted.fs.calls.retrieved.lock().is_empty());
    assert_eq!(*mounted.fs.calls.retrieved.lock(), [(u32::MAX, 0, b"cache".to_vec())]);
    drop(file);
    for _ in 0..20 {
        assert_eq!(fs::metadata(mounted.join("panic")).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    mounted.end();
}

#[test]
fn without_the_switch_the_device_is_used_and_a_hint_says_why() {
    let Some(_switch) = RingSwitch::set_or_skip(false) else { return };
    let mounted = mount(MemoryFs::new(Duration::ZERO), &MountOptions::default()).unwrap();
    assert!(matches!(mounted.session.transport_in_use(), Transport::Device { .. }));
    assert!(
        mounted
            .session
            .transport_hint()
            .unwrap()
            .contains("echo 1 > /sys/module/fuse/parameters/enable_uring")
    );
    mounted.end();
}

#[test]
fn the_choice_of_the_device_is_respected() {
    let Some(_switch) = RingSwitch::set_or_skip(true) else { return };
    let options = MountOptions { transport: TransportChoice::Device, ..Default::default() };
    let mounted = mount(MemoryFs::new(Duration::ZERO), &options).unwrap();
    assert!(matches!(mounted.session.transport_in_use(), Transport::Device { .. }));
    mounted.end();
}

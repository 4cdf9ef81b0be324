//! Goal: a blocking lock request holds no worker, any number of them up to the limit can wait, a signal ends the wait, and
//! every one of them gets exactly one answer.

mod memory;

use ashlar_fuse::{MountOptions, TransportChoice};
use memory::{MemoryFs, Mounted, mount_or_skip, waits};
use std::time::Duration;

fn device(deferred_max: usize) -> Option<Mounted> {
    let options = MountOptions { transport: TransportChoice::Device, deferred_max, ..Default::default() };
    mount_or_skip(MemoryFs::new(Duration::from_secs(1)), &options)
}

#[test]
fn many_waiters_are_served_in_turn_and_nothing_else_stops() {
    let Some(mounted) = device(1024) else { return };
    waits::many(&mounted, 40);
    mounted.end();
}

#[test]
fn a_signal_ends_the_wait() {
    let Some(mounted) = device(1024) else { return };
    waits::interrupted(&mounted);
    mounted.end();
}

#[test]
fn beyond_the_limit_a_waiter_is_refused() {
    let Some(mounted) = device(3) else { return };
    waits::refused_beyond(&mounted, 3);
    mounted.end();
}

#[test]
fn aborting_the_mount_ends_every_wait() {
    let Some(mounted) = device(1024) else { return };
    waits::aborted(mounted);
}

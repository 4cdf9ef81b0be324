//! Goal: a failure to set io_uring up costs a log line, not the mount. Method: the kernel offers io_uring, but the process may not
//! have the memory for the ring's buffers. In a test binary of its own, as the limit is the process's.

mod memory;

use ashlar_fuse::{MountOptions, Transport};
use memory::{MemoryFs, RingSwitch, mount, suite};
use std::time::Duration;

/// Requests that the kernel holds back in the queue of a processor are only given out again by something that is asked there.
#[test]
fn a_server_that_is_kept_off_a_processor_uses_the_device() {
    let Some(_switch) = RingSwitch::set_or_skip(true) else { return };
    // SAFETY: all zeros is the empty set, `set` is as large as said; only this thread and those it starts are bound.
    let bound = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if bound != 0 || std::thread::available_parallelism().unwrap().get() != 1 {
        return;
    }
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let mounted = mount(MemoryFs::new(Duration::ZERO), &MountOptions::default()).unwrap();
    let is_device = matches!(mounted.session.transport_in_use(), Transport::Device { .. });
    assert_eq!(is_device, online.trim() != "0", "{online}");
    mounted.end();
}

#[test]
fn the_mount_works_over_the_device() {
    let Some(_switch) = RingSwitch::set_or_skip(true) else { return };
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let in_use = statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    let limit = libc::rlimit { rlim_cur: in_use + (700 << 20), rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is a valid rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let options = MountOptions { ring_depth: 2000, ..Default::default() };
    let mounted = mount(MemoryFs::new(Duration::ZERO), &options).unwrap();
    assert!(matches!(mounted.session.transport_in_use(), Transport::Device { .. }));
    let hint = mounted.session.transport_hint().unwrap();
    assert!(hint.contains("enabled in the kernel but this mount could not use it"), "{hint}");
    suite::everything(&mounted);
    mounted.end();
}

//! Goal: nobody has to think of certificates. A process whose certificate is good for less than two months gets the next one when it looks, and one that has
//! expired is told with what to do. Method: the file system's own authority makes certificates as it would have made them some time ago.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_coord::local_file::LocalFile;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, public_key_of};
use ashlar_types::{NodeId, PeerId, Role, Timespec};
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;

/// Replaces the certificate of `name` by one that was made `days` days ago.
fn age(lab: &Lab, name: &str, node: u32, roles: &[Role], days: i64) -> String {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(lab.path("state")));
    let manager = Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    let roles = roles.iter().copied().collect();
    let peer = PeerId { cluster: manager.identity().cluster, node: NodeId(node), roles };
    let key = public_key_of(&fs::read_to_string(lab.path(name).join("key.pem")).unwrap()).unwrap();
    let now = Env::os().clock.now();
    let then = Timespec { secs: now.secs - days * 24 * 60 * 60, ..now };
    let certificate = manager.authority().unwrap().issue(peer, &key, then).unwrap();
    fs::write(lab.path(name).join("certificate.pem"), &certificate).unwrap();
    certificate
}

#[track_caller]
fn is_renewed(lab: &Lab, name: &str, old: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while fs::read_to_string(lab.path(name).join("certificate.pem")).unwrap() == old {
        assert!(Instant::now() < deadline, "the certificate of {name} is the old one");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_certificate_is_replaced_long_before_it_expires() {
    if !can_mount("certificates that renew themselves") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    fs::write(lab.path("m0/file"), b"content").unwrap();
    lab.stop();
    let all: Vec<Role> = Role::ALL.to_vec();
    let old = [
        ("first", age(&lab, "first", 1, &all, 50)),
        ("oss0", age(&lab, "oss0", 2, &[Role::Storage], 89)),
        ("mds", age(&lab, "mds", 3, &[Role::Meta], 31)),
        ("c0", age(&lab, "c0", 4, &[Role::Client], 31)),
    ];
    lab.start_manager();
    lab.start_storage(0);
    lab.start_meta();
    lab.start_mount(0);
    for (name, old) in &old {
        is_renewed(&lab, name, old);
    }
    assert_eq!(fs::read(lab.path("m0/file")).unwrap(), b"content");
    lab.stop();
    // One that is young stays, and one of a machine whose clock is a day ahead is good.
    let young = age(&lab, "c0", 4, &[Role::Client], 20);
    let ahead = age(&lab, "oss0", 2, &[Role::Storage], -1);
    lab.start_manager();
    lab.start_storage(0);
    lab.start_meta();
    lab.start_mount(0);
    assert_eq!(fs::read(lab.path("m0/file")).unwrap(), b"content");
    assert_eq!(fs::read_to_string(lab.path("c0/certificate.pem")).unwrap(), young);
    assert_eq!(fs::read_to_string(lab.path("oss0/certificate.pem")).unwrap(), ahead);
    lab.mounts[0].stop();
    // One that has expired is worth nothing, here and elsewhere.
    age(&lab, "c0", 4, &[Role::Client], 100);
    let mount = format!("mount {} --identity @c0 --error-after 2", lab.path("m0").display());
    lab.ashlar(&mount).refused(&["certificate", "expired", "ashlar join"]);
    lab.stop();
}

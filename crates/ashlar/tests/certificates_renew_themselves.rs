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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role as Process};
use support::{PATIENCE, can_mount, has_faketime, soon};

/// Replaces the certificate of `name` by one that was made `days` days ago.
fn age(lab: &Lab, name: &str, node: u32, roles: &[Role], days: i64) -> String {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(lab.path("state")));
    let manager = Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    let roles = roles.iter().copied().collect();
    let peer = PeerId { cluster: manager.identity().cluster, node: NodeId(node), roles, host: None };
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

/// The processes of a file system that go by a clock which is set while they run.
struct Running {
    lab: Lab,
    manager: Process,
    meta: Process,
    storage: Vec<Process>,
    mounts: Vec<Process>,
}

impl Running {
    #[track_caller]
    fn start() -> Running {
        let mut lab = Lab::start(2, 2);
        lab.stop();
        lab.set_clock(0);
        let manager = lab.run_by_clock("manager", "manager --state @state --identity @first", "serves");
        let storage = (0..2).map(|at| run_storage(&lab, at)).collect();
        let meta = run_meta(&lab);
        let mount = |at| {
            let line = format!("mount @m{at} --identity @c{at} --error-after 60");
            lab.run_by_clock(&format!("c{at}"), &line, "mounted")
        };
        let mounts = (0..2).map(mount).collect();
        Running { lab, manager, meta, storage, mounts }
    }

    fn certificates(&self) -> Vec<String> {
        let names = ["first", "oss0", "oss1", "mds", "c0", "c1"];
        let read = |name: &str| fs::read_to_string(self.lab.path(name).join("certificate.pem")).unwrap();
        names.map(read).to_vec()
    }

    /// Mounts that were there before reach all servers, and each shows what the other has written.
    #[track_caller]
    fn require_all_to_be_reached(&self, text: &str) {
        for (from, to) in [(0, 1), (1, 0)] {
            let name = format!("{text}{from}");
            let content = vec![from as u8 + 1; 5 << 20];
            fs::write(self.lab.path(&format!("m{from}")).join(&name), &content).unwrap();
            assert!(fs::read(self.lab.path(&format!("m{to}")).join(&name)).unwrap() == content, "{name}");
        }
    }

    #[track_caller]
    fn stop(mut self) {
        self.mounts.iter_mut().for_each(Process::stop);
        self.meta.stop();
        self.storage.iter_mut().for_each(Process::stop);
        self.manager.stop();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let all = self.storage.iter().chain(&self.mounts).chain([&self.manager, &self.meta]);
            all.for_each(|process| eprintln!("{}", process.text()));
        }
    }
}

#[track_caller]
fn run_storage(lab: &Lab, at: usize) -> Process {
    let listen = &lab.addresses()[2 + at];
    let line = format!("storage --data @d{at} --listen {listen} --identity @oss{at}");
    lab.run_by_clock(&format!("oss{at}"), &line, "serves")
}

#[track_caller]
fn run_meta(lab: &Lab) -> Process {
    let line = format!("meta --meta @meta --listen {} --identity @mds", lab.address(1));
    lab.run_by_clock("mds", &line, "serves")
}

#[test]
fn processes_that_run_go_on_when_the_certificates_they_began_with_expire() {
    if !can_mount("certificates of processes that run") || !has_faketime() {
        return;
    }
    let mut running = Running::start();
    let (is_over, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    let path = running.lab.path("m0/counted");
    std::thread::scope(|threads| {
        let (is_over, writes) = (&is_over, &writes);
        let writer = threads.spawn(move || {
            let mut longest = Duration::ZERO;
            while !is_over.load(SeqCst) {
                let since = Instant::now();
                fs::write(&path, writes.fetch_add(1, SeqCst).to_string()).unwrap();
                longest = longest.max(since.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            longest
        });
        let old = running.certificates();
        // They are good for 20 days more: nobody is told to look.
        running.lab.set_clock(70);
        soon(PATIENCE, "a certificate is the old one", || {
            running.certificates().iter().zip(&old).all(|(now, old)| now != old)
        });
        running.require_all_to_be_reached("renewed");
        // Those they began with are worth nothing. Connections are made anew, by both sides: servers that are started again ask the manager, and mounts and the
        // server that was not go to them.
        running.lab.set_clock(100);
        std::thread::sleep(Duration::from_secs(2));
        running.storage[0].stop();
        running.storage[0] = run_storage(&running.lab, 0);
        running.meta.stop();
        running.meta = run_meta(&running.lab);
        running.require_all_to_be_reached("expired");
        // And those that went through all of it as one that is new.
        running.storage[1].stop();
        running.storage[1] = run_storage(&running.lab, 1);
        running.mounts[1].stop();
        running.mounts[1] =
            running.lab.run_by_clock("c1", "mount @m1 --identity @c1 --error-after 60", "mounted");
        running.require_all_to_be_reached("again");
        let before = writes.load(SeqCst);
        soon(PATIENCE, "the writer does not go on", || writes.load(SeqCst) > before + 5);
        is_over.store(true, SeqCst);
        let longest = writer.join().unwrap();
        assert!(longest < Duration::from_secs(60), "a write took {longest:?}");
    });
    running.stop();
}

//! Goal: every refusal names the thing and what to do; no mount is made over what is there; a mount in use ends later.

mod memory;

use ashlar_fuse::{
    Errno, Filesystem, MountError, MountOptions, Negotiated, Notifier, Session, TransportChoice,
    UnmountOutcome,
};
use memory::{MemoryFs, mount_or_skip};
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn device() -> MountOptions {
    MountOptions { transport: TransportChoice::Device, ..Default::default() }
}

fn refusal(path: &Path) -> (MountError, String) {
    let error = Session::mount(MemoryFs::new(Duration::ZERO), path, &device()).err().expect("refused");
    let message = error.to_string();
    assert!(message.contains(&path.display().to_string()), "{message}");
    (error, message)
}

#[test]
fn a_path_that_is_no_empty_directory() {
    let root = tempfile::tempdir().unwrap();
    let (error, message) = refusal(&root.path().join("missing"));
    assert!(matches!(error, MountError::Missing(_)) && message.contains("mkdir -p"), "{message}");
    File::create(root.path().join("file")).unwrap();
    assert!(matches!(refusal(&root.path().join("file")).0, MountError::NotADirectory(_)));
    assert!(matches!(refusal(&root.path().join("file/below")).0, MountError::NotADirectory(_)));
    let (error, message) = refusal(root.path());
    assert!(matches!(error, MountError::NotEmpty(_)) && message.contains("hidden"), "{message}");
}

#[test]
fn a_path_with_a_mount_alive_or_dead() {
    let Some(mut mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &device()) else { return };
    let (error, message) = refusal(mounted.path());
    assert!(matches!(error, MountError::AlreadyMounted { .. }), "{message}");
    assert!(message.contains("fuse.ashlar") && message.contains("ashlar umount"), "{message}");
    let keeps_it_busy = File::create(mounted.join("open")).unwrap();
    mounted.session.abort().unwrap();
    mounted.session.join(Duration::from_secs(10)).unwrap();
    let (error, message) = refusal(mounted.path());
    assert!(matches!(error, MountError::Dead { .. }) && message.contains("fusermount3 -u"), "{message}");
    drop(keeps_it_busy);
    mounted.end_aborted();
}

#[test]
fn a_mount_in_use_is_detached_and_serves_until_its_last_user_leaves() {
    let Some(mut mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &device()) else { return };
    let mut file = File::create(mounted.join("open")).unwrap();
    let UnmountOutcome::Lazy { message } = mounted.session.unmount().unwrap() else { panic!("it is in use") };
    let me = format!("is in use by process {} (", std::process::id());
    assert!(message.contains(&me) && message.contains(": open file)"), "{message}");
    assert!(mounted.session.join(Duration::from_millis(50)).is_err(), "somebody is still there");
    std::io::Write::write_all(&mut file, b"still served").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 12);
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0, "out of the tree");
    drop(file);
    mounted.session.join(Duration::from_secs(10)).unwrap();
    assert_eq!(mounted.fs.calls.destroyed.load(SeqCst), 1);
    assert_eq!(mounted.session.unmount().unwrap(), UnmountOutcome::AlreadyGone);
}

#[test]
fn dropping_a_session_unmounts() {
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &device()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let fs = MemoryFs::new(Duration::ZERO);
    let session = Session::mount(fs.clone(), directory.path(), &device()).unwrap();
    fs::write(directory.path().join("x"), "x").unwrap();
    drop(session);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(fs.calls.destroyed.load(SeqCst), 1);
    mounted.end();
}

struct Refusing;

impl Filesystem for Refusing {
    fn init(&self, _granted: &Negotiated, _notifier: &Notifier) -> Result<(), Errno> {
        Err(Errno::EACCES)
    }
}

#[test]
fn a_file_system_that_does_not_start_leaves_no_mount() {
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &device()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let error = Session::mount(Refusing, directory.path(), &device()).err().unwrap();
    assert!(matches!(error, MountError::Filesystem(Errno::EACCES)), "{error}");
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!table.contains(directory.path().to_str().unwrap()));
    mounted.end();
}

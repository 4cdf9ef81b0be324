//! Mounting for a test: a temporary directory, a watchdog that breaks a hang, and the io_uring switch.

use super::MemoryFs;
use ashlar_fuse::{Features, MountError, MountOptions, Session, UnmountOutcome};
use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tempfile::TempDir;

/// A test that takes longer hangs.
const HANG: Duration = Duration::from_secs(60);

/// Why tests that mount cannot run here.
pub fn skip_reason() -> Option<String> {
    // SAFETY: geteuid has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root".into());
    }
    File::options().read(true).write(true).open("/dev/fuse").err().map(|error| format!("/dev/fuse: {error}"))
}

/// Written to the real stderr, which the test harness does not hide.
fn say_skipped(reason: &str) {
    let name = std::thread::current().name().unwrap_or("?").to_string();
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: cannot mount FUSE here ({reason})");
}

/// A mount for the length of a test.
pub struct Mounted {
    pub session: Session,
    pub fs: MemoryFs,
    directory: Option<TempDir>,
    _watchdog: Sender<()>,
}

impl Mounted {
    pub fn path(&self) -> &Path {
        self.session.mountpoint()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Unmounts and checks that everything ended.
    pub fn end(mut self) {
        assert_eq!(self.session.unmount().unwrap(), UnmountOutcome::Clean);
        self.check_ended();
    }

    /// The same after the mount was aborted, which may have removed it.
    pub fn end_aborted(mut self) {
        self.session.unmount().unwrap();
        self.check_ended();
    }

    fn check_ended(&mut self) {
        self.session.join(Duration::from_secs(10)).unwrap();
        assert_eq!(self.fs.calls.destroyed.load(SeqCst), 1, "destroy is called once");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A failing test must not leave a mount behind, nor threads that wait for it for ever.
        if std::thread::panicking() {
            let _ = self.session.abort();
        }
        let _ = self.session.unmount();
        if std::thread::panicking()
            && let Some(directory) = self.directory.take()
        {
            let _ = directory.keep();
        }
    }
}

/// Mounts, or says visibly why not.
pub fn mount_or_skip(fs: MemoryFs, options: &MountOptions) -> Option<Mounted> {
    if let Some(reason) = skip_reason() {
        say_skipped(&reason);
        return None;
    }
    Some(mount(fs, options).unwrap())
}

pub fn mount(fs: MemoryFs, options: &MountOptions) -> Result<Mounted, MountError> {
    let directory = tempfile::tempdir().unwrap();
    let session = Session::mount(fs.clone(), directory.path(), options)?;
    let watchdog = watch(session.mountpoint().to_path_buf());
    Ok(Mounted { session, fs, directory: Some(directory), _watchdog: watchdog })
}

/// Aborts the mount at `path` if the returned sender is still there after a minute.
fn watch(path: PathBuf) -> Sender<()> {
    let (sender, receiver) = channel::<()>();
    let path = CString::new(path.into_os_string().into_encoded_bytes()).unwrap();
    std::thread::spawn(move || {
        if receiver.recv_timeout(HANG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = writeln!(std::io::stderr(), "the test hangs; aborting its mount");
            // SAFETY: the path ends with a NUL. A forced unmount aborts the connection.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE) };
        }
    });
    sender
}

/// FUSE over io_uring enabled for the length of a test, and set back after it.
pub struct RingSwitch {
    before: String,
    _lock: File,
}

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

impl RingSwitch {
    /// Sets the switch, or says visibly why not. A file lock keeps other test processes from setting it back.
    pub fn set_or_skip(to: bool) -> Option<Self> {
        if let Some(reason) = skip_reason() {
            say_skipped(&reason);
            return None;
        }
        let lock = File::create(std::env::temp_dir().join("ashlar-fuse-test-uring-switch.lock")).unwrap();
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
        let before = match std::fs::read_to_string(SWITCH) {
            Ok(before) => before,
            Err(error) => {
                say_skipped(&format!("no io_uring switch: {error}"));
                return None;
            }
        };
        if let Err(error) = std::fs::write(SWITCH, if to { "Y" } else { "N" }) {
            say_skipped(&format!("cannot set the io_uring switch: {error}"));
            return None;
        }
        Some(Self { before, _lock: lock })
    }
}

impl Drop for RingSwitch {
    fn drop(&mut self) {
        std::fs::write(SWITCH, self.before.trim()).unwrap();
    }
}

//! A world for ordinary users: a mount name space of its own, in which the FUSE device is open to everybody (as udev makes it; a bare
//! container does not) and /etc/fuse.conf says what the test wants. Nothing of it is seen outside, and it goes with the test.

use super::{Ended, Server, Site, binary, can_mount, finish, has_package};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// An ordinary user, with its group.
pub const NOBODY: (u32, u32) = (65534, 65534);
/// Another one.
pub const DAEMON: (u32, u32) = (1, 1);

/// Directories of one user, and the binary where everybody can reach it.
pub struct UserWorld {
    pub site: Site,
}

impl UserWorld {
    /// Runs `test` in a world whose /etc/fuse.conf holds `fuse_conf`; says so where people look if there cannot be one here.
    pub fn enter(name: &str, fuse_conf: &'static str, test: impl FnOnce(&UserWorld) + Send + 'static) {
        let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"];
        let is_set_id = |path: &&str| fs::metadata(path).is_ok_and(|found| found.mode() & 0o4000 != 0);
        let has_helper = helper.iter().any(is_set_id) && Path::new("/etc/fuse.conf").exists();
        if !has_package(name, "fuse3", has_helper) || !can_mount(name) {
            return;
        }
        // A name space belongs to a thread; the processes it starts inherit it.
        let world = std::thread::spawn(move || {
            let world = UserWorld::make(fuse_conf);
            test(&world);
        });
        if let Err(panic) = world.join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn make(fuse_conf: &str) -> UserWorld {
        // SAFETY: unshare takes no pointer; it gives this thread a copy of the mount table.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0, "{}", std::io::Error::last_os_error());
        mount("none", Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE);
        forget_mounts_of_others();
        let site = Site::new();
        open_to_all(&site.path(""));
        let binary_here = site.path("ashlar");
        // By a process of its own: a file this one had open for writing could still be open in what another test has just forked, and
        // cannot be executed then (ETXTBSY).
        let copied = Command::new("cp").arg(binary()).arg(&binary_here).status().unwrap();
        assert!(copied.success());
        open_to_all(&binary_here);
        let devices = site.path("devices");
        fs::create_dir(&devices).unwrap();
        mount("none", &devices, Some("tmpfs"), 0);
        let node = devices.join("fuse");
        let number = fs::metadata("/dev/fuse").unwrap().rdev();
        let path = text(&node);
        // SAFETY: the path ends with a NUL and outlives the call.
        assert_eq!(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, number) }, 0);
        fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
        bind(&node, Path::new("/dev/fuse"));
        let conf = site.path("fuse.conf");
        fs::write(&conf, fuse_conf).unwrap();
        fs::set_permissions(&conf, fs::Permissions::from_mode(0o644)).unwrap();
        bind(&conf, Path::new("/etc/fuse.conf"));
        for name in ["mnt", "d1", "d2", "home", "run"] {
            fs::create_dir_all(site.path(name)).unwrap();
            chown(site.path(name), Some(NOBODY.0), Some(NOBODY.1)).unwrap();
        }
        fs::set_permissions(site.path("run"), fs::Permissions::from_mode(0o700)).unwrap();
        // Like /tmp.
        fs::create_dir(site.path("tmp")).unwrap();
        fs::set_permissions(site.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        UserWorld { site }
    }

    /// The binary as user nobody, with its own runtime directory; `line` as for [`Site::args`].
    pub fn command(&self, line: &str) -> Command {
        let mut command = self.command_of(NOBODY, line);
        command.env("XDG_RUNTIME_DIR", self.site.path("run"));
        command
    }

    /// The binary as a user without a runtime directory.
    pub fn command_of(&self, (uid, gid): (u32, u32), line: &str) -> Command {
        let mut command = Command::new(self.site.path("ashlar"));
        command.args(self.site.args(line)).uid(uid).gid(gid).current_dir("/");
        command.env("HOME", self.site.path("home")).env("TMPDIR", self.site.path("tmp"));
        command.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_DATA_HOME");
        command
    }

    #[track_caller]
    pub fn run(&self, line: &str) -> Ended {
        finish(&mut self.command(line))
    }

    /// Starts it as nobody.
    #[track_caller]
    pub fn up(&self, line: &str) -> Server {
        Server::start(self.command(line), self.site.mnt()).unwrap_or_else(|ended| panic!("{}", ended.all()))
    }

    /// Runs a shell script as a user in the mount point, which must be reachable for it.
    #[track_caller]
    pub fn shell(&self, (uid, gid): (u32, u32), script: &str) -> Ended {
        let mut command = Command::new("/bin/sh");
        command.args(["-euc", &format!("cd \"$0\"; {script}"), self.site.mnt().to_str().unwrap()]);
        finish(command.uid(uid).gid(gid).current_dir("/"))
    }

    /// The line of the mount table, without looking at the mount.
    pub fn mount_line(&self) -> String {
        let table = fs::read("/proc/thread-self/mountinfo").unwrap();
        let table = String::from_utf8_lossy(&table);
        let mnt = self.site.mnt().display().to_string();
        table.lines().find(|line| line.split(' ').nth(4) == Some(&mnt)).unwrap_or_default().to_owned()
    }
}

/// Shows `source` in the place of `target`, to this thread and what it starts.
#[track_caller]
pub fn bind(source: &Path, target: &Path) {
    mount(source.to_str().unwrap(), target, None, libc::MS_BIND);
}

/// Takes the copies of other tests' mounts out of this name space: they would keep those mounts alive after their own tests have
/// unmounted them, and have ended.
fn forget_mounts_of_others() {
    let table = fs::read("/proc/thread-self/mountinfo").unwrap();
    for line in table.split(|byte| *byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        if words.contains(&b"fuse.ashlar".as_slice()) {
            let path = CString::new(words[4]).unwrap();
            // SAFETY: the path ends with a NUL and outlives the call. A mount that is not there any more is none to forget.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

#[track_caller]
fn mount(source: &str, target: &Path, fstype: Option<&str>, flags: libc::c_ulong) {
    let (source, target) = (CString::new(source).unwrap(), text(target));
    let fstype = fstype.map(|fstype| CString::new(fstype).unwrap());
    let fstype = fstype.as_ref().map_or(std::ptr::null(), |fstype| fstype.as_ptr());
    // SAFETY: the strings end with a NUL and outlive the call; the type and the data may be null.
    let result = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), fstype, flags, std::ptr::null()) };
    assert_eq!(result, 0, "{target:?}: {}", std::io::Error::last_os_error());
}

//! A disk of its own for a target, which can hang or fail.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// `_IOR('X', 125, u32)`: ends a mounted ext4 or XFS where it stands.
const FS_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Has the ext4 or XFS that is mounted at `point` end where it stands, as if the power of its disk was cut: what was not synced is lost, and nothing can be done with it before it is mounted again.
#[track_caller]
pub fn cut_power(point: &Path) {
    let point = File::open(point).unwrap();
    let without_log: u32 = 2;
    // SAFETY: the call reads four bytes at the address, which are there, and the descriptor is open.
    let outcome = unsafe { libc::ioctl(point.as_raw_fd(), FS_IOC_SHUTDOWN, &raw const without_log) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

/// The local file systems that targets and metadata are on.
#[derive(Clone, Copy)]
pub enum Format {
    Ext4,
    Xfs,
}

impl Format {
    fn make(self, image: &Path) {
        let [program, force] = match self {
            Format::Ext4 => ["mkfs.ext4", "-F"],
            Format::Xfs => ["mkfs.xfs", "-f"],
        };
        run(Command::new(program).args(["-q", force]).arg(image));
    }

    /// Of mount(8). A copy of a disk may be mounted beside it.
    fn options(self) -> &'static str {
        match self {
            Format::Ext4 => "loop",
            Format::Xfs => "loop,nouuid",
        }
    }
}

/// A file system in a file, whose changes can be held back, or end.
pub struct Disk {
    format: Format,
    image: PathBuf,
    point: PathBuf,
    /// Has it go on if this process does not.
    watch: Option<Child>,
}

impl Disk {
    #[track_caller]
    pub fn mount(image: &Path, point: PathBuf) -> Disk {
        Disk::mount_as(Format::Ext4, image, point)
    }

    #[track_caller]
    pub fn mount_as(format: Format, image: &Path, point: PathBuf) -> Disk {
        File::create(image).unwrap().set_len(512 << 20).unwrap();
        format.make(image);
        fs::create_dir(&point).unwrap();
        let disk = Disk { format, image: image.to_owned(), point, watch: None };
        disk.attach();
        disk
    }

    fn attach(&self) {
        let options = ["-o", self.format.options()];
        run(Command::new("mount").args(options).arg(&self.image).arg(&self.point));
    }

    pub fn is_at(&self, point: &Path) -> bool {
        self.point == point
    }

    /// Has it hang for as long as what it returns lives.
    #[track_caller]
    pub fn hang(&mut self) -> Hung<'_> {
        let watch = "sleep 60; exec fsfreeze --unfreeze \"$0\"";
        let mut command = Command::new("sh");
        command.args(["-c", watch]).arg(&self.point).process_group(0).stderr(Stdio::null());
        self.watch = Some(command.spawn().unwrap());
        run(Command::new("fsfreeze").arg("--freeze").arg(&self.point));
        Hung(self)
    }

    /// Has it fail, as a disk whose power is cut: what was not synced is lost, and nothing can be done with it before [`Disk::repair`].
    #[track_caller]
    pub fn fail(&mut self) {
        cut_power(&self.point);
    }

    /// Mounts what is on it again, once nobody uses it any more. As another disk where programs of other tests have this one in name spaces of their own, and would keep it as it is.
    #[track_caller]
    pub fn repair(&mut self) {
        run(Command::new("umount").arg(&self.point));
        if self.is_attached() {
            let is_first = self.image.extension().is_none_or(|extension| extension != "again");
            let again = self.image.with_extension(if is_first { "again" } else { "once-more" });
            run(Command::new("cp").arg("--sparse=always").args([&self.image, &again]));
            fs::remove_file(&self.image).unwrap();
            self.image = again;
        }
        self.attach();
    }

    /// Whether there is still a device for the file, a moment after it was unmounted.
    fn is_attached(&self) -> bool {
        let attached = || {
            let output = Command::new("losetup").arg("-j").arg(&self.image).output().unwrap();
            !output.status.success() || !output.stdout.is_empty()
        };
        for _ in 0..20 {
            if !attached() {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        true
    }

    fn go_on(&mut self) {
        let Some(mut watch) = self.watch.take() else { return };
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.point).status();
        // SAFETY: kill takes no pointer; the group is that of a child that was not waited for.
        unsafe { libc::kill(-(watch.id() as i32), libc::SIGKILL) };
        let _ = watch.wait();
    }
}

/// A disk hangs.
pub struct Hung<'d>(&'d mut Disk);

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.go_on();
        let _ = Command::new("umount").arg("-l").arg(&self.point).status();
    }
}

/// A file system in a file in memory that has no room for what is written where nothing was before, for as long as [`RefusingDisk::refuse`] says so: a disk that fails for a moment, while its file system stays mounted.
pub struct RefusingDisk {
    memory: PathBuf,
    point: PathBuf,
}

impl RefusingDisk {
    /// Mounts one at `point`; `memory` is where its file is.
    #[track_caller]
    pub fn mount(memory: PathBuf, point: PathBuf) -> RefusingDisk {
        fs::create_dir(&memory).unwrap();
        fs::create_dir(&point).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=560m", "tmpfs"]).arg(&memory));
        let disk = RefusingDisk { memory, point };
        let image = disk.image();
        // Whole, so that there is room for whatever the file system keeps for itself.
        run(Command::new("dd").args(["if=/dev/zero", "bs=1M", "count=512", "status=none"]).arg(of(&image)));
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&disk.point));
        disk
    }

    fn image(&self) -> PathBuf {
        self.memory.join("image")
    }

    fn filler(&self) -> PathBuf {
        self.memory.join("filler")
    }

    /// From now on nothing can be written where nothing was before.
    #[track_caller]
    pub fn refuse(&self) {
        run(Command::new("sync").arg("-f").arg(&self.point));
        let told = Command::new("dumpe2fs").arg(self.image()).output().unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        for ranges in told.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
            for range in ranges.split(", ").filter(|range| !range.is_empty()) {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
                let (offset, len) = (first * 4096, (last + 1 - first) * 4096);
                let mut punch = Command::new("fallocate");
                punch.args(["-p", "-o", &offset.to_string(), "-l", &len.to_string()]);
                run(punch.arg(self.image()));
            }
        }
        let filled = Command::new("dd").args(["if=/dev/zero", "bs=4k"]).arg(of(&self.filler())).output();
        assert!(!filled.unwrap().status.success(), "the memory is not full");
    }

    /// It works again; what it was to write meanwhile is lost.
    #[track_caller]
    pub fn take(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

fn of(path: &Path) -> String {
    format!("of={}", path.display())
}

impl Drop for RefusingDisk {
    fn drop(&mut self) {
        for point in [&self.point, &self.memory] {
            let _ = Command::new("umount").arg("-l").arg(point).status();
        }
    }
}

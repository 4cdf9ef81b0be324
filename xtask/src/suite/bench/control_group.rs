//! A control group with limited memory or processor time, made for one run and removed after it.
//!
//! Version 2 where the controller is there, else version 1. It is made below the group this program is in (version 2: below the
//! nearest one above that hands the controller on), so that whatever limits this program also limits what it measures.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long a group may stay busy after its last process has ended.
const REMOVE_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Processor time is shared out anew so often, if the share is not too small. Ten times a second, as the kernel does by itself, would add a tenth of a second to calls.
const PERIOD_US: u64 = 10_000;
/// The least time that the kernel shares out.
const QUOTA_US_MIN: u64 = 1_000;

/// The group; removed when dropped.
#[derive(Debug)]
pub(super) struct ControlGroup {
    path: PathBuf,
    version: Version,
}

impl ControlGroup {
    /// Makes a group whose processes, their page cache included, may use `limit_bytes`.
    ///
    /// # Errors
    /// When there is no memory controller this program may use.
    pub(super) fn of_memory(name: &str, limit_bytes: u64) -> anyhow::Result<Self> {
        let group = Self::create(name, "memory")?;
        let limit = match group.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        group.write(limit, &limit_bytes.to_string())?;
        Ok(group)
    }

    /// Makes a group whose processes get `percent` of one processor together.
    ///
    /// # Errors
    /// When there is no processor controller this program may use.
    pub(super) fn of_processor(name: &str, percent: u32) -> anyhow::Result<Self> {
        let group = Self::create(name, "cpu")?;
        let percent = u64::from(percent.max(1));
        let period_us = PERIOD_US.max(QUOTA_US_MIN * 100 / percent);
        let quota_us = period_us * percent / 100;
        match group.version {
            Version::One => {
                group.write("cpu.cfs_period_us", &period_us.to_string())?;
                group.write("cpu.cfs_quota_us", &quota_us.to_string())?;
            }
            Version::Two => group.write("cpu.max", &format!("{quota_us} {period_us}"))?,
        }
        Ok(group)
    }

    fn create(name: &str, controller: &str) -> anyhow::Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
        let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
        let hands_on = |group: &Path| {
            let controllers = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
            controllers.split_whitespace().any(|handed_on| handed_on == controller)
        };
        let (parent, version) = find_parent(&mounts, &own, controller, hands_on).with_context(|| {
            format!(
                "no control group with the {controller} controller may be used; run as root, on cgroup 2 for example in \
                 `systemd-run --scope -p Delegate=yes`"
            )
        })?;
        let group = Self { path: parent.join(format!("ashlar-{name}-{}", std::process::id())), version };
        fs::create_dir(&group.path).with_context(|| format!("create {} (as root)", group.path.display()))?;
        Ok(group)
    }

    /// Moves a process that is running into the group, with all its threads.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn take(&self, pid: u64) -> anyhow::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path.join(file);
        fs::write(&path, text).with_context(|| format!("write {text} to {}", path.display()))
    }

    fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = self.path.join(file);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// A command that joins the group and then becomes `words`, its process id unchanged.
    pub(super) fn command(&self, words: &[OsString]) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.path.join("cgroup.procs"))
            .args(words);
        command
    }

    /// The most memory that was used at a time, page cache included, in MiB; never more than the limit.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub(super) fn peak_mib(&self) -> anyhow::Result<f64> {
        let file = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        let bytes: f64 = self.read(file)?.trim().parse().context("a number of bytes")?;
        Ok(bytes / f64::from(1 << 20))
    }

    /// Gives back the page cache of processes that have ended, so that the next one reads from the disk.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn drop_page_cache(&self) -> anyhow::Result<()> {
        match self.version {
            Version::One => self.write("memory.force_empty", "0"),
            // It ends with EAGAIN when less than asked for could be reclaimed, which here is always.
            Version::Two => match fs::write(self.path.join("memory.reclaim"), "64G") {
                Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => {
                    Err(error).context("reclaim the page cache of the group")
                }
                _ => Ok(()),
            },
        }
    }

    fn remove(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            match fs::remove_dir(&self.path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                // Processes that have just ended still count for a moment.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && begin.elapsed() < REMOVE_MAX => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => bail!("cannot remove {}: {error}", self.path.display()),
            }
        }
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{error:#}");
        }
    }
}

/// Has all threads of a process run on processor `number` alone, and those that they start: on several, one that holds a lock may be out of its share while others still
/// use theirs to wait for it, as no machine does.
///
/// # Errors
/// When the kernel refuses, or there is no `taskset`.
pub(super) fn keep_on_processor(pid: u64, number: usize) -> anyhow::Result<()> {
    let words = ["--all-tasks", "--pid", "--cpu-list", &number.to_string(), &pid.to_string()];
    // Twice: a thread that was just started by one that was not seen to yet is seen to then.
    for _ in 0..2 {
        let done = Command::new("taskset").args(words).output().context("run taskset, of util-linux")?;
        if !done.status.success() {
            bail!(
                "keep process {pid} on processor {number}: {}",
                String::from_utf8_lossy(&done.stderr).trim()
            );
        }
    }
    Ok(())
}

/// The directory to make a group in, from /proc/self/mountinfo and /proc/self/cgroup.
fn find_parent(
    mounts: &str,
    own: &str,
    controller: &str,
    hands_on: impl Fn(&Path) -> bool,
) -> Option<(PathBuf, Version)> {
    // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS... - TYPE SOURCE SUPER-OPTIONS
    let mounted = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let (place, what) = line.split_once(" - ")?;
            let mut what = what.split(' ');
            let has = what.next() == Some(kind)
                && option.is_none_or(|option| what.nth(1).is_some_and(|o| o.split(',').any(|o| o == option)));
            has.then(|| place.split(' ').nth(4).map(PathBuf::from))?
        })
    };
    // NUMBER:CONTROLLERS:PATH, with no controllers for version 2.
    let membership = |wanted: &str| {
        own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|c| c == wanted).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    if let Some((root, path)) = mounted("cgroup2", None).zip(membership("")) {
        let group = root.join(path);
        let above = group.ancestors().take_while(|group| group.starts_with(&root));
        // Not the group itself: one with processes in it can hand nothing on, except the topmost.
        if let Some(parent) = above.into_iter().find(|group| hands_on(group)) {
            return Some((parent.to_owned(), Version::Two));
        }
    }
    let (root, path) = mounted("cgroup", Some(controller)).zip(membership(controller))?;
    Some((root.join(path), Version::One))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "20 1 0:9 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        21 20 0:10 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        22 20 0:11 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        23 20 0:12 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_nearest_group_that_hands_the_controller_on_is_used() {
        let own = "4:memory:/a/b\n0::/user/session\n";
        let root = Path::new("/sys/fs/cgroup/unified");
        let found = |hands_on: &str| find_parent(MOUNTS, own, "memory", |group| group == root.join(hands_on));
        assert_eq!(found("user"), Some((root.join("user"), Version::Two)));
        assert_eq!(found("user/session"), Some((root.join("user/session"), Version::Two)));
        assert_eq!(found("other").map(|(_, version)| version), Some(Version::One));
    }

    #[test]
    fn without_it_the_first_version_is_used_below_the_own_group() {
        let found = find_parent(MOUNTS, "4:memory:/a/b\n0::/\n", "memory", |_| false);
        assert_eq!(found, Some((PathBuf::from("/sys/fs/cgroup/memory/a/b"), Version::One)));
        let processor = find_parent(MOUNTS, "4:memory:/a/b\n1:cpu:/c\n0::/\n", "cpu", |_| false);
        assert_eq!(processor, Some((PathBuf::from("/sys/fs/cgroup/cpu/c"), Version::One)));
        assert_eq!(find_parent("", "0::/\n", "memory", |_| true), None);
        assert_eq!(find_parent(MOUNTS, "0::/\n", "memory", |_| false), None);
    }
}

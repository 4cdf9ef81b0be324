//! Two mounts of one file system that take turns under a program which knows of one: `tests/preload/turns.c`, preloaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::repository::Repository;
use crate::shell;

/// Calls of libc with the path of a file. One that a program uses and the library does not know would go through the first mount always.
/// Not among them: `chdir`, `chroot` and `execvp`, which Rust's standard library brings into every program, for the processes that it starts.
const PATH_CALLS: &[&str] = &[
    "__fxstatat",
    "__lxstat",
    "__xstat",
    "access",
    "bind",
    "chmod",
    "chown",
    "connect",
    "creat",
    "creat64",
    "euidaccess",
    "faccessat",
    "fchmodat",
    "fchownat",
    "fopen",
    "fopen64",
    "fstatat",
    "fstatat64",
    "futimesat",
    "getxattr",
    "lchmod",
    "lchown",
    "lgetxattr",
    "link",
    "linkat",
    "listxattr",
    "llistxattr",
    "lremovexattr",
    "lsetxattr",
    "lstat",
    "lstat64",
    "lutimes",
    "mkdir",
    "mkdirat",
    "mkfifo",
    "mkfifoat",
    "mknod",
    "mknodat",
    "mount",
    "name_to_handle_at",
    "open",
    "open64",
    "openat",
    "openat64",
    "opendir",
    "pathconf",
    "posix_spawn",
    "posix_spawnp",
    "readlink",
    "readlinkat",
    "realpath",
    "remove",
    "removexattr",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "scandir",
    "setxattr",
    "stat",
    "stat64",
    "statfs",
    "statfs64",
    "statvfs",
    "statvfs64",
    "statx",
    "symlink",
    "symlinkat",
    "truncate",
    "truncate64",
    "umount",
    "umount2",
    "unlink",
    "unlinkat",
    "utime",
    "utimensat",
    "utimes",
];

/// The library, the mounts, and what was counted.
#[derive(Debug)]
pub(super) struct Turns {
    library: PathBuf,
    mounts: [PathBuf; 2],
    counts: PathBuf,
    /// Calls through each of the mounts, and how many of them were held to theirs.
    counted: [u64; 3],
}

impl Turns {
    /// Builds the library in `work`.
    ///
    /// # Errors
    /// When it cannot be built, or lacks a call that `program` makes.
    pub(super) fn prepare(
        repository: &Repository,
        work: &Path,
        program: &Path,
        mounts: [&Path; 2],
    ) -> anyhow::Result<Self> {
        let library = work.join("turns.so");
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library);
        shell::run(command.arg(repository.root.join("tests/preload/turns.c")))?;
        let used = symbols(program, "--undefined-only")?;
        let known = symbols(&library, "--defined-only")?;
        let lacking = lacking(&used, &known);
        ensure!(lacking.is_empty(), "{} calls what takes no turns: {lacking:?}", program.display());
        let mounts = mounts.map(Path::to_owned);
        Ok(Self { library, mounts, counts: work.join("turns"), counted: [0; 3] })
    }

    /// Has a program take turns.
    pub(super) fn pass_to(&self, command: &mut Command) {
        let [first, second] = &self.mounts;
        command.env("LD_PRELOAD", &self.library).env("TURNS_COUNTS", &self.counts);
        command.env("TURNS_FIRST", first).env("TURNS_SECOND", second);
    }

    /// A script that runs a command with its arguments, and then once more with those that lead to the first mount leading to the second.
    pub(super) fn script_at_both(&self, command: &str) -> String {
        let [first, second] = self.mounts.each_ref().map(|mount| mount.display().to_string());
        format!(
            "#!/bin/sh\n{command} \"$@\" || exit\nfor word do\n    shift\n    case $word in\n    \
             '{first}'|'{first}'/*) word='{second}'${{word#'{first}'}} ;;\n    esac\n    set -- \"$@\" \"$word\"\ndone\n\
             exec {command} \"$@\"\n"
        )
    }

    /// Adds what a program has left, which has ended.
    ///
    /// # Errors
    /// When it has left nothing, as one that was not preloaded.
    pub(super) fn count(&mut self) -> anyhow::Result<()> {
        let text = fs::read_to_string(&self.counts).context("read how many calls took turns")?;
        let counts = parse_counts(&text).with_context(|| format!("these are no counts: {text:?}"))?;
        for (sum, count) in self.counted.iter_mut().zip(counts) {
            *sum += count;
        }
        fs::remove_file(&self.counts).context("remove what was counted")
    }

    /// Tells how many calls went through each mount.
    ///
    /// # Errors
    /// When one had not its share.
    pub(super) fn require_both(&self) -> anyhow::Result<()> {
        let [first, second, held] = self.counted;
        println!(
            "{first} calls went through the first mount, {second} through the second; {held} were held to theirs"
        );
        if !is_fair(self.counted) {
            bail!("the mounts did not take turns");
        }
        Ok(())
    }
}

/// Whether only calls that were held make a difference (each is one less here and one more there), but for the odd one of each pass.
fn is_fair([first, second, held]: [u64; 3]) -> bool {
    first.min(second) > 0 && first.abs_diff(second) <= 2 * held + 2 && held < first.min(second)
}

fn parse_counts(text: &str) -> Option<[u64; 3]> {
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

/// Names of dynamic symbols, without versions.
fn symbols(file: &Path, which: &str) -> anyhow::Result<Vec<String>> {
    let text = shell::output(Command::new("nm").args(["-D", which]).arg(file))?;
    let name = |line: &str| line.split_whitespace().last()?.split('@').next().map(str::to_owned);
    Ok(text.lines().filter_map(name).collect())
}

fn lacking<'a>(used: &'a [String], known: &[String]) -> Vec<&'a str> {
    used.iter()
        .map(String::as_str)
        .filter(|name| PATH_CALLS.contains(name) && !known.iter().any(|known| known == name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_takes_no_turns_is_found() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let used = names(&["malloc", "open", "renameat2"]);
        assert_eq!(lacking(&used, &names(&["open"])), ["renameat2"]);
        assert!(lacking(&used, &names(&["open", "renameat2"])).is_empty());
    }

    #[test]
    fn only_mounts_that_took_turns_are_fair() {
        assert!(is_fair([100, 101, 0]) && is_fair([100, 110, 4]));
        assert!(
            !is_fair([100, 110, 3])
                && !is_fair([200, 0, 0])
                && !is_fair([200, 0, 200])
                && !is_fair([0, 0, 0])
        );
    }

    #[test]
    fn what_is_done_at_one_mount_is_done_at_the_other() {
        let turns = Turns {
            library: PathBuf::new(),
            mounts: ["/a/client1".into(), "/a/client2".into()],
            counts: PathBuf::new(),
            counted: [0; 3],
        };
        let script = turns.script_at_both("echo");
        let words = ["-o", "remount,ro", "/a/client1", "/a/client1/x y", "/a/client10/x"];
        let output = Command::new("sh").args(["-c", &script, "sh"]).args(words).output().expect("it runs");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "-o remount,ro /a/client1 /a/client1/x y /a/client10/x\n-o remount,ro /a/client2 /a/client2/x y /a/client10/x\n"
        );
    }
}

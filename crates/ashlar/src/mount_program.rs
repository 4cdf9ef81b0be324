//! The program that mount(8) calls for Ashlar: the same binary under the names `mount.ashlar` and `mount.fuse.ashlar`, so that /etc/fstab and `mount -o
//! remount` work as for any file system.
//!
//! mount(8) looks for `mount.TYPE`, with the type of /etc/fstab for a new mount, and with that of the mount table, which the kernel
//! gives as `fuse.ashlar`, for one that is there. umount(8) needs no helper (and would look for `umount.fuse`).

mod kind;
mod options;
mod remount;
mod start;

use anyhow::{Context, Result, bail};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit status of mount(8): wrong use.
const EXIT_USAGE: u8 = 1;
/// Exit status of mount(8): the mount failed.
const EXIT_FAILED: u8 = 32;

/// Whether this program was started as that program.
pub fn is_asked_for(program: Option<&OsStr>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| name == "mount.ashlar" || name == "mount.fuse.ashlar")
}

/// Does what `mount.ashlar SPEC DIR [-sfnv] [-o OPTIONS] [-t TYPE]` asks; the exit status is that of mount(8).
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let (outcome, status) = match Call::parse(args) {
        Ok(call) => (start::run(&call), EXIT_FAILED),
        Err(error) => (Err(error), EXIT_USAGE),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ashlar: {error:#}");
            ExitCode::from(status)
        }
    }
}

/// The command line.
#[derive(Debug, Default)]
struct Call {
    /// The first field of /etc/fstab.
    spec: OsString,
    /// Where, absolute.
    mountpoint: PathBuf,
    options: options::Options,
    /// Only pretend.
    is_fake: bool,
}

impl Call {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Call> {
        let (mut call, mut places) = (Call::default(), Vec::new());
        while let Some(arg) = args.next() {
            let Some(letters) = arg.to_str().and_then(|text| text.strip_prefix('-')) else {
                places.push(arg);
                continue;
            };
            for letter in letters.chars() {
                match letter {
                    'o' => {
                        let list = args.next().context("-o needs a list of options")?;
                        let list = list.to_str().context("the options are not UTF-8")?;
                        call.options = options::Options::parse(list)?;
                    }
                    // The type is known.
                    't' => drop(args.next()),
                    'f' => call.is_fake = true,
                    // Sloppy, no table, verbose: nothing to do.
                    's' | 'n' | 'v' => {}
                    'N' => bail!("-N is not supported; use nsenter --mount"),
                    _ => bail!("unknown option -{letter}"),
                }
            }
        }
        let [spec, mountpoint] = places.as_slice() else {
            bail!("usage: mount.ashlar DATA-OR-IDENTITY-DIRECTORY MOUNTPOINT [-o OPTIONS]")
        };
        call.spec = spec.clone();
        // Not resolved: a mount whose server is gone cannot be.
        call.mountpoint = std::path::absolute(mountpoint).context("the mount point")?;
        Ok(call)
    }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).with_context(|| format!("{} contains NUL", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Call> {
        Call::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_name_of_the_program_chooses() {
        let by = |name: &str| is_asked_for(Some(OsStr::new(name)));
        assert!(by("/sbin/mount.fuse.ashlar") && by("mount.ashlar"));
        assert!(!by("/usr/bin/ashlar") && !by("umount.ashlar") && !is_asked_for(None));
    }

    #[test]
    fn arguments_are_those_that_mount_passes() {
        let call = parse("/disk1 /mnt -sn -o rw,data=/disk2 -t fuse.ashlar").expect("sound");
        assert_eq!((call.spec.to_str(), call.mountpoint.to_str()), (Some("/disk1"), Some("/mnt")));
        assert_eq!(call.options.data, [PathBuf::from("/disk2")]);
        assert!(!call.is_fake && parse("/disk1 /mnt -f").expect("sound").is_fake);
        for wrong in ["/disk1", "/disk1 /mnt more", "/disk1 /mnt -o", "/disk1 /mnt -z", "/disk1 /mnt -N 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

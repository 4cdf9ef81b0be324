//! `ashlar-torture limits`: names, links, attributes, directories and files at and beyond their largest.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::report::Report;
use crate::sys::attr::{self, Follow, fstat, fstatat};
use crate::sys::data::{self, CWD};
use crate::sys::dir::read_all;
use crate::sys::{Errno, SysResult, name};

/// Reach the limits of names, links, attributes, directories and files.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the file system under test.
    #[arg(long)]
    dir: PathBuf,
    /// Links made to one file if it has no smaller limit.
    #[arg(long, default_value_t = 70_000)]
    links: u64,
    /// Entries in one directory.
    #[arg(long, default_value_t = 50_000)]
    entries: u64,
}

const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

/// Runs the command.
///
/// # Errors
/// When the working directory cannot be made or removed; everything else is in the report.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let root = arguments.dir.join(format!("limits-{}", std::process::id()));
    std::fs::create_dir(&root).with_context(|| format!("create {}", root.display()))?;
    let path = root.as_os_str().as_bytes().to_vec();
    let top = data::openat(CWD, &path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut report = Report::new();
    let parts: [(&str, SysResult<()>); 6] = [
        ("names", names(&top, &mut report)),
        ("links", links(&top, arguments.links, &mut report)),
        ("extended attributes", xattrs(&path, &top, &mut report)),
        ("a large directory", entries(&top, arguments.entries, &mut report)),
        ("a large sparse file", sparse(&top, &mut report)),
        ("deep directories", depth(&top, &mut report)),
    ];
    for (part, result) in parts {
        report.check(result.is_ok(), || format!("{part}: unexpected {result:?}"));
    }
    drop(top);
    std::fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    Ok(report)
}

fn expect<T: std::fmt::Debug>(report: &mut Report, what: &str, result: SysResult<T>, errno: i32) {
    let wanted = Errno(errno);
    let right = matches!(&result, Err(got) if *got == wanted);
    report.check(right, || format!("{what}: expected {wanted:?}, got {result:?}"));
}

fn names(top: &OwnedFd, report: &mut Report) -> SysResult<()> {
    for len in [1, 2, 127, 128, 254, 255] {
        let name_of_len = vec![b'n'; len];
        drop(data::openat(top.as_fd(), &name_of_len, NEW, 0o600)?);
        let moved = vec![b'm'; len];
        name::renameat2(top.as_fd(), &name_of_len, &moved, 0)?;
        let stat = fstatat(top.as_fd(), &moved, 0)?;
        report.check(stat.nlink == 1, || format!("a name of {len} bytes: link count {}", stat.nlink));
        name::unlinkat(top.as_fd(), &moved, 0)?;
    }
    let long = vec![b'n'; 256];
    expect(report, "open of 256 bytes", data::openat(top.as_fd(), &long, NEW, 0o600), libc::ENAMETOOLONG);
    expect(report, "stat of 256 bytes", fstatat(top.as_fd(), &long, 0), libc::ENAMETOOLONG);
    expect(report, "mkdir of 256 bytes", name::mkdirat(top.as_fd(), &long, 0o700), libc::ENAMETOOLONG);
    for len in [1, 255, 4095] {
        let target = vec![b't'; len];
        name::symlinkat(&target, top.as_fd(), b"link")?;
        let got = name::readlinkat(top.as_fd(), b"link")?;
        report.check(got == target, || format!("a link target of {len} bytes came back with {}", got.len()));
        name::unlinkat(top.as_fd(), b"link", 0)?;
    }
    let target = vec![b't'; 4096];
    expect(
        report,
        "a link target of 4096 bytes",
        name::symlinkat(&target, top.as_fd(), b"link"),
        libc::ENAMETOOLONG,
    );
    Ok(())
}

/// POSIX: the link beyond the limit fails with EMLINK and changes nothing. A limit below 1,000 would break existing programs.
fn links(top: &OwnedFd, most: u64, report: &mut Report) -> SysResult<()> {
    let file = data::openat(top.as_fd(), b"file", NEW, 0o600)?;
    name::mkdirat(top.as_fd(), b"links", 0o700)?;
    let link = |number: u64| name::linkat(top.as_fd(), b"file", format!("links/{number}").as_bytes(), 0);
    let mut made = 1;
    while made < most {
        match link(made) {
            Ok(()) => made += 1,
            Err(Errno(libc::EMLINK)) => break,
            Err(errno) => return Err(errno),
        }
    }
    println!("links to one file: {made}{}", if made < most { ", then EMLINK" } else { "" });
    report.check(made >= 1000, || format!("only {made} links"));
    let count = fstat(file.as_fd())?.nlink;
    report.check(count == made, || format!("{made} names, link count {count}"));
    if made < most {
        name::unlinkat(top.as_fd(), b"links/1", 0)?;
        link(1)?;
        expect(report, "one link too many", link(made + 1), libc::EMLINK);
    }
    for number in 1..made {
        name::unlinkat(top.as_fd(), format!("links/{number}").as_bytes(), 0)?;
    }
    let count = fstat(file.as_fd())?.nlink;
    report.check(count == 1, || format!("one name left, link count {count}"));
    name::unlinkat(top.as_fd(), b"file", 0)?;
    name::unlinkat(top.as_fd(), b"links", libc::AT_REMOVEDIR)
}

fn xattrs(root: &[u8], top: &OwnedFd, report: &mut Report) -> SysResult<()> {
    let path = [root, b"/attributes"].concat();
    drop(data::openat(top.as_fd(), b"attributes", NEW, 0o600)?);
    let longest = [b"user.".to_vec(), vec![b'x'; 250]].concat();
    attr::setxattr(&path, Follow::Target, &longest, b"value", 0)?;
    let value = attr::getxattr(&path, Follow::Target, &longest, 100)?;
    report.check(value == b"value", || "an attribute with a name of 255 bytes is lost".to_owned());
    let too_long = [longest.as_slice(), b"x"].concat();
    expect(
        report,
        "a name of 256 bytes",
        attr::setxattr(&path, Follow::Target, &too_long, b"v", 0),
        libc::ERANGE,
    );
    // A value of 64 KiB is the most the kernel passes; a file system may have less room and says so.
    for len in [0, 1, 1000, 4000, 65_536] {
        let value = vec![b'v'; len];
        match attr::setxattr(&path, Follow::Target, b"user.big", &value, 0) {
            Ok(()) => {
                let got = attr::getxattr(&path, Follow::Target, b"user.big", 65_536)?;
                report.check(got == value, || format!("a value of {len} bytes came back with {}", got.len()));
            }
            Err(Errno(libc::ENOSPC | libc::E2BIG)) if len > 1000 => report.pass(),
            Err(errno) => return Err(errno),
        }
    }
    expect(
        report,
        "a value of 64 KiB and a byte",
        attr::setxattr(&path, Follow::Target, b"user.big", &vec![0; 65_537], 0),
        libc::E2BIG,
    );
    name::unlinkat(top.as_fd(), b"attributes", 0)
}

fn entries(top: &OwnedFd, count: u64, report: &mut Report) -> SysResult<()> {
    name::mkdirat(top.as_fd(), b"large", 0o700)?;
    let dir = data::openat(top.as_fd(), b"large", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let name_of = |number: u64| format!("entry-{number}").into_bytes();
    for number in 0..count {
        drop(data::openat(dir.as_fd(), &name_of(number), NEW, 0o600)?);
    }
    for pass in 0..2 {
        data::lseek(dir.as_fd(), 0, libc::SEEK_SET)?;
        let listed = read_all(dir.as_fd())?;
        let different: HashSet<&[u8]> = listed.iter().map(|entry| entry.name.as_slice()).collect();
        report.check(listed.len() as u64 == count + 2 && different.len() == listed.len(), || {
            format!(
                "pass {pass}: {} entries, {} different, expected {}",
                listed.len(),
                different.len(),
                count + 2
            )
        });
    }
    // The way rm -r works: read a part, remove it, go on.
    data::lseek(dir.as_fd(), 0, libc::SEEK_SET)?;
    let mut removed = 0;
    loop {
        let batch = crate::sys::dir::getdents(dir.as_fd(), 32_768)?;
        if batch.is_empty() {
            break;
        }
        for entry in batch.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
            name::unlinkat(dir.as_fd(), &entry.name, 0)?;
            removed += 1;
        }
    }
    report.check(removed == count, || format!("removing while reading found {removed} of {count} entries"));
    name::unlinkat(top.as_fd(), b"large", libc::AT_REMOVEDIR)
}

fn sparse(top: &OwnedFd, report: &mut Report) -> SysResult<()> {
    const FAR: i64 = 1 << 40;
    let file = data::openat(top.as_fd(), b"sparse", NEW, 0o600)?;
    data::pwrite(file.as_fd(), b"far", FAR)?;
    let stat = fstat(file.as_fd())?;
    report.check(stat.size == FAR + 3, || format!("size {}", stat.size));
    report.check(stat.blocks < 1 << 17, || format!("three bytes take {} blocks", stat.blocks));
    let hole = data::pread(file.as_fd(), 4096, FAR / 2)?;
    report.check(hole == vec![0; 4096], || "a hole does not read as zeros".to_owned());
    let start = data::lseek(file.as_fd(), 0, libc::SEEK_DATA)?;
    report.check(start <= FAR, || format!("SEEK_DATA found data at {start}, behind the data at {FAR}"));
    data::ftruncate(file.as_fd(), FAR + 1)?;
    data::ftruncate(file.as_fd(), FAR + 3)?;
    let end = data::pread(file.as_fd(), 10, FAR)?;
    report.check(end == b"f\0\0", || format!("cut and extended: {end:?}"));
    expect(report, "a negative size", data::ftruncate(file.as_fd(), -1), libc::EINVAL);
    name::unlinkat(top.as_fd(), b"sparse", 0)
}

fn depth(top: &OwnedFd, report: &mut Report) -> SysResult<()> {
    const DEEP: usize = 500;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let mut dirs = vec![data::openat(top.as_fd(), b".", flags, 0)?];
    for _ in 0..DEEP {
        let here = &dirs[dirs.len() - 1];
        name::mkdirat(here.as_fd(), b"down", 0o700)?;
        let below = data::openat(here.as_fd(), b"down", flags, 0)?;
        dirs.push(below);
    }
    let up = vec![&b".."[..]; DEEP].join(&b'/');
    let reached = fstatat(dirs[DEEP].as_fd(), &up, 0)?;
    let wanted = fstat(top.as_fd())?;
    report.check(reached.ino == wanted.ino, || format!("{DEEP} times `..` leads elsewhere"));
    while let Some(below) = dirs.pop() {
        drop(below);
        if let Some(here) = dirs.last() {
            name::unlinkat(here.as_fd(), b"down", libc::AT_REMOVEDIR)?;
        }
    }
    Ok(())
}

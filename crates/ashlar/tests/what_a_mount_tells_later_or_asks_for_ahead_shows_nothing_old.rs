//! Goal: closes that a mount tells a moment later, with the time of the last read, and entries of a directory that it has asked for ahead, show nobody anything old
//! that he would not have been shown without. Method: two mounts; what one has told later or read ahead the other one changes meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};
use support::can_mount;
use support::cluster::Lab;

/// Much more than a close waits for others.
const TOLD_MAX: Duration = Duration::from_millis(300);
/// More entries than the kernel asks for at once.
const ENTRIES: u64 = 600;

fn read(path: &Path) {
    let mut text = Vec::new();
    File::open(path).unwrap().read_to_end(&mut text).unwrap();
    assert_eq!(text, b"content");
}

fn set_times(path: &Path, seconds: u64) {
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    let times = FileTimes::new().set_accessed(time).set_modified(time);
    OpenOptions::new().write(true).open(path).unwrap().set_times(times).unwrap();
}

#[test]
fn a_time_that_is_set_after_a_read_stays() {
    if !can_mount("times of files that were just read") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    let mounts = [lab.path("m0"), lab.path("m1")];
    for at in 0..24 {
        let name = format!("f{at}");
        let (reader, setter) = (mounts[0].join(&name), mounts[at % 2].join(&name));
        fs::write(&reader, "content").unwrap();
        let written = fs::metadata(&reader).unwrap();
        read(&reader);
        let after = fs::metadata(&reader).unwrap();
        let (before, now) = ((written.mtime(), written.mtime_nsec()), (after.atime(), after.atime_nsec()));
        assert!(now > before, "who has read it sees that at once: {now:?}, written at {before:?}");
        set_times(&setter, 1000);
    }
    std::thread::sleep(TOLD_MAX);
    for at in 0..24 {
        let of = |mount: &Path| fs::metadata(mount.join(format!("f{at}"))).unwrap().atime();
        assert_eq!((of(&mounts[0]), of(&mounts[1])), (1000, 1000), "f{at}");
    }
    // And one that nobody has set is told.
    let name = "told";
    fs::write(mounts[0].join(name), "content").unwrap();
    read(&mounts[0].join(name));
    let told = Instant::now() + Duration::from_secs(20);
    loop {
        let found = fs::metadata(mounts[1].join(name)).unwrap();
        if (found.atime(), found.atime_nsec()) > (found.mtime(), found.mtime_nsec()) {
            break;
        }
        assert!(Instant::now() < told, "the other mount is never told");
        std::thread::sleep(Duration::from_millis(20));
    }
    lab.stop();
}

/// Length and links of an open file, asked of the mount whatever the kernel has kept.
fn length_and_links(file: &File) -> (u64, u32) {
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
    // SAFETY: the descriptor is open, the path ends with a NUL, and there is room for the answer.
    let outcome = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_BASIC_STATS, found.as_mut_ptr())
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: all bits of it were zeros, and it was filled in.
    let found = unsafe { found.assume_init() };
    (found.stx_size, found.stx_nlink)
}

#[test]
fn a_file_that_went_with_a_close_has_its_last_attributes() {
    if !can_mount("attributes of a file that another mount has removed") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    let (here, there) = (lab.path("m0/file"), lab.path("m1/file"));
    fs::write(&here, "seven b").unwrap();
    let open = File::open(&here).unwrap();
    let by_path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&here).unwrap();
    fs::remove_file(&there).unwrap();
    drop(open);
    let end = Instant::now() + TOLD_MAX;
    while Instant::now() < end {
        assert_eq!(length_and_links(&by_path), (7, 0));
    }
    drop(by_path);
    lab.stop();
}

#[test]
fn entries_that_were_asked_for_ahead_are_as_they_are_now() {
    if !can_mount("a listing beside changes") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    let (here, there, other) = (lab.path("m0/dir"), lab.path("m1/dir"), lab.path("m1/other"));
    fs::create_dir(&here).unwrap();
    fs::create_dir(&other).unwrap();
    (0..ENTRIES).for_each(|at| drop(File::create(here.join(format!("f{at}"))).unwrap()));
    for is_mode in [true, false] {
        let mut listing = fs::read_dir(&here).unwrap();
        let first = listing.next().unwrap().unwrap();
        first.metadata().unwrap();
        for at in 0..ENTRIES {
            let path = there.join(format!("f{at}"));
            match is_mode {
                true => fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap(),
                // What the name stood for is still there.
                false if at % 3 == 0 => fs::rename(&path, other.join(format!("f{at}"))).unwrap(),
                false => {}
            }
        }
        let mut seen = 1;
        for entry in listing {
            let (entry, has_gone) = (entry.as_ref().unwrap(), |name: &str| {
                !is_mode && name[1..].parse::<u64>().unwrap() % 3 == 0
            });
            let name = entry.file_name().into_string().unwrap();
            match entry.metadata() {
                Ok(found) => {
                    assert_eq!(found.mode() & 0o777, 0o600, "{name}");
                    assert!(!has_gone(&name), "{name} is gone");
                    seen += 1;
                }
                Err(error) => assert!(has_gone(&name), "{name}: {error}"),
            }
        }
        let wanted = if is_mode { ENTRIES } else { ENTRIES - ENTRIES.div_ceil(3) };
        assert!(seen >= wanted && seen <= wanted + 1, "{seen} of {wanted}: the first may have gone");
    }
    // One that begins anew shows what is there now, and each once.
    File::create(there.join("new")).unwrap();
    let names: std::collections::BTreeSet<_> =
        fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len() as u64, ENTRIES - ENTRIES.div_ceil(3) + 1);
    lab.stop();
}

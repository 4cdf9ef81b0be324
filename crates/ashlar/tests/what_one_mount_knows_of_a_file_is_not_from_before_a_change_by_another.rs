//! Goal: what one mount tells of a file that another changes just then is not kept by its kernel as it was before the change. Method: one looks a
//! new file up while the other changes its mode a few times; when all calls have returned, both tell the last mode. Two write in turns to a small file that
//! one of them has had open for longer, and so writes through its page cache; both read what was written last. One reads a file that the other has just made shorter; it gets what is there, and no zeros behind it.
//! Through one a file or directory that the other knows gets another owner, who may change it through the other at once.
#![allow(clippy::unwrap_used)] // a test panics where it fails

mod support;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use support::{Site, can_mount};

const ROUNDS: u32 = 400;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A place for a file system, and for the second of its mounts.
fn two_mounts() -> (Site, PathBuf) {
    let site = Site::new();
    let other = site.path("other");
    fs::create_dir(&other).unwrap();
    (site, other)
}

/// The file, made if need be, to be read and written.
fn open(path: &Path) -> File {
    OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).unwrap()
}

#[test]
fn a_mode_that_another_mount_changes_while_the_file_is_looked_up() {
    if !can_mount("a change of mode by another mount") {
        return;
    }
    let (site, other) = two_mounts();
    // Both mounts are there when the second is announced; the first is looked for by the helper.
    let server = site.up("up @other @mnt --data @d1");
    let barrier = Barrier::new(2);
    let names: Vec<String> = (0..ROUNDS).map(|round| format!("f{round}")).collect();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for (round, name) in (0..ROUNDS).zip(&names) {
                let file = File::create(other.join(name)).unwrap();
                barrier.wait();
                for step in 0..1 + round % 6 {
                    file.set_permissions(Permissions::from_mode(0o600 + (round + step) % 0o77)).unwrap();
                }
                barrier.wait();
            }
        });
        let mut stale = 0;
        for (round, name) in (0..ROUNDS).zip(&names) {
            let path = site.mnt().join(name);
            barrier.wait();
            mode(&path);
            barrier.wait();
            stale += u32::from(mode(&path) != 0o600 + (round + round % 6) % 0o77);
        }
        assert_eq!(stale, 0, "of {ROUNDS} files");
    });
    server.stop();
}

#[test]
fn what_was_written_through_the_page_cache_to_a_small_file() {
    if !can_mount("writes of two mounts to one small file") {
        return;
    }
    const PAGES: usize = 3;
    let (site, other) = two_mounts();
    let server = site.up("up @other @mnt --data @d1");
    let mut stale = Vec::new();
    for round in 0..20 {
        let name = format!("f{round}");
        // The first has it for itself and keeps pages of it, also when the second has opened it.
        let first = open(&site.mnt().join(&name));
        let second = open(&other.join(&name));
        let mut expected = vec![1; PAGES * 4096];
        second.write_all_at(&expected, 0).unwrap();
        // With the length known nothing but a recall drops pages.
        assert_eq!(first.metadata().unwrap().len(), expected.len() as u64);
        first.write_all_at(&vec![2; expected.len()], 0).unwrap();
        second.write_all_at(&[3; 100], 5000).unwrap();
        expected.fill(2);
        expected[5000..5100].fill(3);
        let mut found = vec![0; expected.len()];
        for (who, file) in [("first", &first), ("second", &second)] {
            file.read_exact_at(&mut found, 0).unwrap();
            if found != expected {
                stale.push((round, who));
            }
        }
    }
    assert_eq!(stale, []);
    server.stop();
}

#[test]
fn the_length_of_a_file_that_is_read_right_after_it_was_made_shorter() {
    if !can_mount("a truncation by another mount") {
        return;
    }
    const LONG: u64 = 2_500_000;
    let (site, other) = two_mounts();
    let server = site.up("up @other @mnt --data @d1");
    // Through its page cache, as it had the file for itself then.
    let reader = open(&site.mnt().join("f"));
    let writer = open(&other.join("f"));
    let mut found = vec![0; LONG as usize + 10_000];
    let mut wrong = Vec::new();
    for round in 0..150 {
        writer.write_all_at(&[1; 5000], LONG).unwrap();
        assert_eq!(reader.read_at(&mut found, 0).unwrap() as u64, LONG + 5000);
        writer.set_len(3000).unwrap();
        // The kernel of the reader asks for a hole, this, and what was behind it, side by side. Bytes take longer than zeros.
        let place = 300_000 + round * 11_117;
        writer.write_all_at(&[2; 7000], place).unwrap();
        let length = place + 7000;
        let read = reader.read_at(&mut found[..length as usize + 10], 0).unwrap() as u64;
        if read != length {
            wrong.push((length, read));
        }
    }
    assert_eq!(wrong, []);
    server.stop();
}

/// A call with a path.
type Call = dyn Fn(&Path) -> std::io::Result<()> + Sync;

/// Does `work` as a user of this machine; a thread has its own one for files.
fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            // SAFETY: both take numbers and change what this thread may do with files, which ends here.
            unsafe {
                libc::setfsgid(user);
                libc::setfsuid(user);
            }
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn the_owner_of_a_file_or_directory_whom_another_mount_has_given_it() {
    if !can_mount("a change of owner by another mount") {
        return;
    }
    const USER: u32 = 65_534;
    let (site, other) = two_mounts();
    fs::set_permissions(site.path(""), Permissions::from_mode(0o755)).unwrap();
    let server = site.up("up @other @mnt --data @d1");
    // In a sticky directory its owner alone may remove a file.
    let (mine, theirs) = (site.mnt().join("sticky"), other.join("sticky"));
    fs::create_dir(&mine).unwrap();
    fs::set_permissions(&mine, Permissions::from_mode(0o1777)).unwrap();
    // Calls that look at nothing before.
    let change_mode = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o700));
    let set_times = |path: &Path| {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        let times = [libc::timespec { tv_sec: 1, tv_nsec: 0 }; 2];
        // SAFETY: the name ends with a zero, and there are two times.
        match unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), times.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let calls: [(&str, bool, &Call); 6] = [
        ("chmod of a file", false, &change_mode),
        ("chmod of a directory", true, &change_mode),
        ("utimensat of a file", false, &set_times),
        ("utimensat of a directory", true, &set_times),
        ("unlink", false, &|path| fs::remove_file(path)),
        ("rename of a directory", true, &|path| fs::rename(path, path.with_extension("renamed"))),
    ];
    let mut refused = Vec::new();
    for ((call, is_directory, make), changes_before) in
        calls.into_iter().flat_map(|call| (0..3).map(move |changes| (call, changes)))
    {
        let name = format!("{call} {changes_before}");
        let path = mine.join(&name);
        // The kernel of this mount knows it, and what is in it.
        if is_directory {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("in"), "").unwrap();
        } else {
            fs::write(&path, "").unwrap();
        }
        // Whatever was changed before: attributes that it does not have any more can be recalled from nobody.
        for change in 0..changes_before {
            fs::set_permissions(theirs.join(&name), Permissions::from_mode(0o750 + change)).unwrap();
        }
        chown(theirs.join(&name), Some(USER), Some(USER)).unwrap();
        if let Err(error) = as_user(USER, || make(&path)) {
            refused.push(format!("{name}: {error}"));
        }
    }
    assert_eq!(refused, [""; 0]);
    server.stop();
}

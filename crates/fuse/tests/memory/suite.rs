//! What any mount must do, whatever carries its requests.

use super::Mounted;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Runs all of it in a directory of its own.
pub fn everything(mounted: &Mounted) {
    let root = mounted.join("suite");
    fs::create_dir(&root).unwrap();
    names(&root);
    directories(&root);
    data(&root);
    mapping(&root);
    xattrs(&root);
    locks(&root);
    let mut statfs: libc::statvfs = unsafe_zeroed();
    // SAFETY: the path ends with a NUL and the structure is writable.
    assert_eq!(unsafe { libc::statvfs(path(&root).as_ptr(), &mut statfs) }, 0);
    assert_eq!((statfs.f_blocks, statfs.f_bavail, statfs.f_namemax), (1000, 400, 255));
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn unsafe_zeroed<T>() -> T {
    // SAFETY: only used for C structures that are valid when zero.
    unsafe { std::mem::zeroed() }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn names(root: &Path) {
    let at = |name: &str| root.join(name);
    File::create_new(at("a")).unwrap();
    assert_eq!(File::create_new(at("a")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::metadata(at("none")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::set_permissions(at("a"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(at("a"), at("b")).unwrap();
    let metadata = fs::metadata(at("b")).unwrap();
    assert_eq!((metadata.nlink(), metadata.mode() & 0o7777), (2, 0o600));
    fs::rename(at("b"), at("c")).unwrap();
    assert!(!at("b").exists() && at("c").exists());
    let rename = |from: &str, to: &str, flags| {
        let (from, to) = (path(&at(from)), path(&at(to)));
        // SAFETY: both paths end with a NUL.
        unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) }
    };
    assert_eq!((rename("a", "c", libc::RENAME_NOREPLACE), errno()), (-1, libc::EEXIST));
    fs::create_dir(at("d")).unwrap();
    assert_eq!(rename("a", "d", libc::RENAME_EXCHANGE), 0);
    assert!(at("a").is_dir() && at("d").is_file());
    std::os::unix::fs::symlink("some/where", at("link")).unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("some/where"));
    assert_eq!(fs::symlink_metadata(at("link")).unwrap().len(), 10);
    let long = "n".repeat(255);
    File::create(at(&long)).unwrap();
    let fifo = path(&at("fifo"));
    // SAFETY: the path ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o644) }, 0);
    for name in ["c", "d", "link", &long, "fifo"] {
        fs::remove_file(at(name)).unwrap();
    }
    fs::remove_dir(at("a")).unwrap();
    assert_eq!(fs::read_dir(root).unwrap().count(), 0);
}

fn directories(root: &Path) {
    let directory = root.join("many");
    fs::create_dir(&directory).unwrap();
    assert_eq!(fs::metadata(root).unwrap().nlink(), 3);
    let expected: BTreeSet<String> = (0..1500).map(|index| format!("entry-{index:05}")).collect();
    for name in &expected {
        File::create(directory.join(name)).unwrap();
    }
    let listed: Vec<_> = fs::read_dir(&directory).unwrap().map(Result::unwrap).collect();
    let names: BTreeSet<String> =
        listed.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!((listed.len(), &names), (1500, &expected), "every name once");
    assert!(listed.iter().all(|entry| entry.metadata().unwrap().is_file()));
    assert_eq!(fs::remove_dir(&directory).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir_all(&directory).unwrap();
}

fn data(root: &Path) {
    let name = root.join("data");
    let content = pattern(3 * (1 << 20) + 12_345);
    fs::write(&name, &content).unwrap();
    assert_eq!(fs::metadata(&name).unwrap().len(), content.len() as u64);
    drop_pages(&name);
    assert!(fs::read(&name).unwrap() == content, "what was written is read");
    let mut file = OpenOptions::new().read(true).append(true).open(&name).unwrap();
    file.write_all(b"tail").unwrap();
    let mut tail = [0; 8];
    file.read_exact_at(&mut tail, content.len() as u64 - 4).unwrap();
    assert_eq!((&tail[..4], &tail[4..]), (&content[content.len() - 4..], &b"tail"[..]));
    file.set_len(100_000).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 100_000);
    assert_eq!(file.read(&mut tail).unwrap(), 0, "end of file");
    direct(&name, &content[..65_536]);
    File::create(&name).unwrap();
    assert_eq!(fs::metadata(&name).unwrap().len(), 0, "O_TRUNC");
    fs::remove_file(&name).unwrap();
}

/// O_DIRECT reads bypass the page cache and must find the same bytes.
fn direct(name: &Path, expected: &[u8]) {
    let name = path(name);
    // SAFETY: the path ends with a NUL.
    let fd = unsafe { libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_DIRECT) };
    assert!(fd >= 0);
    let mut buffer = vec![0u8; expected.len() + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let target = &mut buffer[start..start + expected.len()];
    // SAFETY: `target` is writable for its length; the descriptor is closed once.
    let len = unsafe { libc::read(fd, target.as_mut_ptr().cast(), target.len()) };
    assert_eq!(len, expected.len() as isize);
    assert!(target == expected);
    // SAFETY: as above.
    unsafe { libc::close(fd) };
}

fn drop_pages(name: &Path) {
    let file = File::open(name).unwrap();
    // SAFETY: posix_fadvise takes no pointer.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

fn mapping(root: &Path) {
    let name = root.join("mapped");
    fs::write(&name, vec![b'.'; 10_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let (len, access) = (10_000, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new shared mapping of an open file.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the mapping is `len` bytes and only this thread uses it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), len) };
    assert_eq!(bytes[9_999], b'.');
    bytes[5_000..5_005].copy_from_slice(b"hello");
    // SAFETY: start and length are those of the mapping.
    assert_eq!(unsafe { libc::msync(start, len, libc::MS_SYNC) }, 0);
    // SAFETY: as above; `bytes` is not used any more.
    unsafe { libc::munmap(start, len) };
    drop(file);
    drop_pages(&name);
    let mut found = String::new();
    File::open(&name).unwrap().read_to_string(&mut found).unwrap();
    assert_eq!((found.find("hello"), found.len()), (Some(5_000), len));
    fs::remove_file(&name).unwrap();
}

fn xattrs(root: &Path) {
    let name = root.join("attributed");
    File::create(&name).unwrap();
    let file = path(&name);
    let set = |key: &str, value: &[u8], flags| {
        let key = CString::new(key).unwrap();
        // SAFETY: strings end with a NUL; the value is readable for its length.
        unsafe { libc::setxattr(file.as_ptr(), key.as_ptr(), value.as_ptr().cast(), value.len(), flags) }
    };
    let get = |key: &str, room: usize| {
        let key = CString::new(key).unwrap();
        let mut value = vec![0u8; room];
        // SAFETY: strings end with a NUL; the value is writable for its length.
        let len = unsafe { libc::getxattr(file.as_ptr(), key.as_ptr(), value.as_mut_ptr().cast(), room) };
        value.truncate(len.max(0) as usize);
        (len, value)
    };
    let large = pattern(60_000);
    assert_eq!(set("user.small", b"value", 0), 0);
    assert_eq!(set("user.large", &large, 0), 0);
    assert_eq!((set("user.small", b"x", libc::XATTR_CREATE), errno()), (-1, libc::EEXIST));
    assert_eq!(get("user.small", 100), (5, b"value".to_vec()));
    assert_eq!(get("user.small", 0).0, 5, "size only");
    assert_eq!((get("user.small", 4).0, errno()), (-1, libc::ERANGE));
    assert_eq!(get("user.large", 65_536), (60_000, large));
    assert_eq!((get("user.none", 10).0, errno()), (-1, libc::ENODATA));
    let mut list = [0u8; 100];
    // SAFETY: the list is writable for its length.
    let len = unsafe { libc::listxattr(file.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    assert_eq!(&list[..len as usize], b"user.large\0user.small\0");
    // SAFETY: strings end with a NUL.
    assert_eq!(unsafe { libc::removexattr(file.as_ptr(), c"user.small".as_ptr()) }, 0);
    assert_eq!(get("user.small", 10).0, -1);
    fs::remove_file(&name).unwrap();
}

fn locks(root: &Path) {
    let name = root.join("locked");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&name).unwrap();
    let (one, two) = (open(), open());
    // Locks of open files, so that one process can be two owners.
    let lock = |file: &File, command, kind, start, len| {
        let mut lock: libc::flock = unsafe_zeroed();
        (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, len);
        // SAFETY: the structure is what fcntl(2) wants.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
        (result, i32::from(lock.l_type), lock.l_start)
    };
    let (set, get) = (libc::F_OFD_SETLK, libc::F_OFD_GETLK);
    assert_eq!(lock(&one, set, libc::F_WRLCK, 10, 10).0, 0);
    assert_eq!((lock(&two, set, libc::F_RDLCK, 15, 1).0, errno()), (-1, libc::EAGAIN));
    assert_eq!(lock(&two, set, libc::F_WRLCK, 20, 10).0, 0, "no overlap");
    assert_eq!(lock(&two, get, libc::F_RDLCK, 0, 12), (0, libc::F_WRLCK, 10));
    assert_eq!(lock(&one, set, libc::F_UNLCK, 12, 3).0, 0);
    assert_eq!(lock(&two, set, libc::F_RDLCK, 12, 3).0, 0, "the hole in the middle is free");
    let flock = |file: &File, how| {
        // SAFETY: flock takes no pointer.
        unsafe { libc::flock(file.as_raw_fd(), how) }
    };
    assert_eq!(flock(&one, libc::LOCK_EX), 0);
    assert_eq!((flock(&two, libc::LOCK_SH | libc::LOCK_NB), errno()), (-1, libc::EWOULDBLOCK));
    drop(one);
    assert_eq!(flock(&two, libc::LOCK_EX), 0, "close drops flock locks");
    drop(two);
    fs::remove_file(&name).unwrap();
}

//! Random steps. Names, offsets and users come from small pools, so that operations meet each other's results.
//!
//! The generator learns which steps succeeded, so that most later ones find something to work on. Both sides have answered
//! alike until the first difference, so the seed still fixes the sequence on one kind of reference file system.

use std::ops::RangeInclusive;

use super::names::Names;
use super::op::{AclEntry, Op, SLOTS, Slot, Step};
use super::path::BytePath;
use crate::rng::Rng;
use crate::sys::attr::{Follow, TimeArgument};
use crate::sys::cred::User;
use crate::sys::lock::{LockOwner, Range};

/// The users a run acts as: root alone, or root and three others that share a group.
#[must_use]
pub fn users(several: bool) -> Vec<User> {
    let mut users = vec![User::root()];
    if several {
        users.push(User { uid: 1001, gid: 1001, groups: vec![2000] });
        users.push(User { uid: 1002, gid: 1002, groups: vec![1001, 2000] });
        users.push(User { uid: 65_534, gid: 65_534, groups: Vec::new() });
    }
    users
}

const UIDS: &[u32] = &[0, 1001, 1002, 65_534, u32::MAX];
const GIDS: &[u32] = &[0, 1001, 1002, 2000, 65_534, u32::MAX];
const MODES: &[u32] = &[
    0o644, 0o600, 0o755, 0o700, 0o777, 0o666, 0o000, 0o4755, 0o2755, 0o6777, 0o1777, 0o2777, 0o2775, 0o4711,
    0o2644, 0o555, 0o444,
];
const XATTR_NAMES: &[&str] = &[
    "user.a",
    "user.a",
    "user.a",
    "user.a",
    "user.b",
    "user.b",
    "user.longer-name.with-dots",
    "trusted.t",
    "security.s",
    "user.",
    "bogus.x",
    "system.posix_acl_access",
    "system.posix_acl_default",
];
const DIRECTORIES: &[&str] = &["d0", "d1", "d2", "d3"];
const LEAVES: &[&str] = &["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "l0", "l1", "d0"];

/// The source of steps.
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    users: usize,
    lacks_tmpfile: bool,
    names: Names,
    /// The path opened last.
    opened: BytePath,
}

/// How often each kind of operation is drawn, in parts of the sum, and how it is made.
type Draw = fn(&mut Generator) -> Op;
const WEIGHTS: &[(u64, Draw)] = &[
    (150, Generator::open),
    (12, Generator::open_tmpfile),
    (12, Generator::link_fd),
    (20, Generator::close),
    (30, Generator::read),
    (40, Generator::write),
    (40, Generator::pread),
    (50, Generator::pwrite),
    (12, Generator::writev),
    (25, Generator::lseek),
    (20, Generator::data_map),
    (25, Generator::ftruncate),
    (15, Generator::truncate),
    (35, Generator::fallocate),
    (20, Generator::copy_file_range),
    (10, Generator::fsync),
    (15, Generator::fstat),
    (15, Generator::map_write),
    (12, Generator::map_read),
    (60, Generator::mkdir),
    (20, Generator::rmdir),
    (50, Generator::unlink),
    (80, Generator::rename),
    (25, Generator::link),
    (30, Generator::symlink),
    (12, Generator::readlink),
    (20, Generator::mknod),
    (40, Generator::stat),
    (25, Generator::chmod),
    (10, Generator::fchmod),
    (25, Generator::chown),
    (10, Generator::fchown),
    (20, Generator::utimens),
    (10, Generator::futimens),
    (25, Generator::setxattr),
    (20, Generator::getxattr),
    (10, Generator::listxattr),
    (10, Generator::removexattr),
    (15, Generator::set_acl),
    (25, Generator::access),
    (6, Generator::umask),
    (3, Generator::statfs),
    (12, Generator::flock),
    (15, Generator::setlk),
    (10, Generator::getlk),
    (4, Generator::setlk_as_child),
    (25, Generator::readdir),
    (2, Generator::readdir_while_modifying),
    (6, Generator::seekdir),
];

impl Generator {
    /// A generator for `seed`; `users` is the size of the table of users.
    #[must_use]
    pub fn new(seed: u64, users: usize) -> Self {
        let (names, opened) = (Names::default(), BytePath::default());
        Self { rng: Rng::new(seed), users, lacks_tmpfile: false, names, opened }
    }

    /// Leaves `O_TMPFILE` out, which a FUSE mount has only from Linux 6.1 on.
    #[must_use]
    pub fn without_tmpfile(self, lacks_tmpfile: bool) -> Self {
        Self { lacks_tmpfile, ..self }
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        let user = if self.users > 1 && self.rng.percent(35) { self.rng.index(self.users) as u8 } else { 0 };
        let watch = self.rng.percent(50);
        let op = self.draw();
        Step { user, watch, op }
    }

    /// Takes note that `op` succeeded.
    pub fn learn(&mut self, op: &Op) {
        self.names.apply(op);
        if let Op::Open { path, .. } = op {
            self.opened = path.clone();
        }
    }

    fn draw(&mut self) -> Op {
        let sum: u64 = WEIGHTS.iter().map(|(weight, _)| weight).sum();
        let mut at = self.rng.below(sum);
        for (weight, draw) in WEIGHTS {
            if at < *weight {
                return draw(self);
            }
            at -= weight;
        }
        self.open()
    }

    fn slot(&mut self) -> Slot {
        Slot(self.rng.below(u64::from(SLOTS)) as u8)
    }

    /// A path below a directory that may exist, ending in one of the names of the pool.
    fn fresh(&mut self, leaves: &[&str]) -> BytePath {
        let mut parts = Vec::new();
        // LIMIT: depth, so that directories moved into each other do not nest without end.
        if self.rng.percent(60)
            && let Some(base) = self.names.pick(&mut self.rng, true)
            && base.0.iter().filter(|byte| **byte == b'/').count() < 14
        {
            parts.push(base.0);
        }
        if self.rng.percent(5) {
            parts.push(self.rng.pick(DIRECTORIES).as_bytes().to_vec());
        }
        parts.push(match self.rng.below(200) {
            0..2 => vec![b'L'; 255],
            2 => vec![b'N'; 256],
            3..5 => b"\xff\xfe\x80not utf-8".to_vec(),
            5 => b"..".to_vec(),
            6 => b".".to_vec(),
            7..9 => vec![b'M'; 255],
            9 => b"a name with\nodd \x01 bytes".to_vec(),
            _ => self.rng.pick(leaves).as_bytes().to_vec(),
        });
        let mut path = BytePath::join(&parts);
        match self.rng.below(400) {
            0 => path.0.push(b'/'),
            1 => path.0.insert(0, b'/'),
            2 => path = BytePath(Vec::new()),
            3 => path.0.extend_from_slice(b"/."),
            _ => {}
        }
        path
    }

    /// A name for something new that is no directory.
    fn new_file(&mut self) -> BytePath {
        self.fresh(LEAVES)
    }

    /// A name for a new directory.
    fn new_directory(&mut self) -> BytePath {
        self.fresh(DIRECTORIES)
    }

    /// Something that is probably there and no directory.
    fn file(&mut self) -> BytePath {
        let known = if self.rng.percent(90) { self.names.pick(&mut self.rng, false) } else { None };
        known.unwrap_or_else(|| self.fresh(LEAVES))
    }

    /// A directory that is probably there.
    fn directory(&mut self) -> BytePath {
        if self.rng.percent(20) {
            return BytePath(b".".to_vec());
        }
        let known = if self.rng.percent(90) { self.names.pick(&mut self.rng, true) } else { None };
        known.unwrap_or_else(|| self.fresh(DIRECTORIES))
    }

    /// Anything that is probably there; the top directory seldom, because steps that change it affect all others.
    fn path(&mut self) -> BytePath {
        if self.rng.percent(65) {
            return self.file();
        }
        let path = self.directory();
        if path.0 == b"." && self.rng.percent(80) { self.file() } else { path }
    }

    /// An offset: around block, page and chunk borders more often than anywhere else.
    fn offset(&mut self) -> i64 {
        let near = |rng: &mut Rng, border: i64, span: RangeInclusive<i64>| {
            border + rng.below((span.end() - span.start() + 1) as u64) as i64 + span.start()
        };
        let rng = &mut self.rng;
        let offset = match rng.below(100) {
            0..15 => 0,
            15..40 => rng.below(5_000) as i64,
            40..60 => {
                let pages = rng.below(40) as i64;
                near(rng, 4096 * pages, -3..=3)
            }
            60..80 => rng.below(300_000) as i64,
            80..90 => {
                let border = *rng.pick(&[16_384i64, 65_536, 131_072, 262_144, 524_288, 1_048_576, 4_194_304]);
                near(rng, border, -4100..=4100)
            }
            90..98 => rng.below(3_000_000) as i64,
            98 => -1,
            _ => rng.below(12_000_000) as i64,
        };
        offset.max(-1)
    }

    fn len(&mut self) -> u32 {
        (match self.rng.below(100) {
            0..5 => 0,
            5..40 => self.rng.between(1, 600),
            40..70 => self.rng.between(1, 9_000),
            70..80 => 4096 * self.rng.between(1, 16),
            80..97 => self.rng.between(1, 70_000),
            _ => self.rng.between(1, 400_000),
        }) as u32
    }

    fn follow(&mut self) -> Follow {
        if self.rng.percent(70) { Follow::Target } else { Follow::Link }
    }

    fn mode(&mut self) -> u32 {
        *self.rng.pick(MODES)
    }

    /// The mode of something new: mostly one that lets the others go on working with it.
    fn creation_mode(&mut self) -> u32 {
        if self.rng.percent(70) { 0o777 } else { self.mode() }
    }

    fn open(&mut self) -> Op {
        let mut flags =
            *self.rng.pick(&[libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY]);
        let extras = [
            (45, libc::O_CREAT),
            (6, libc::O_EXCL),
            (10, libc::O_TRUNC),
            (15, libc::O_APPEND),
            (3, libc::O_DIRECTORY),
            (6, libc::O_NOFOLLOW),
            (4, libc::O_SYNC),
            (2, libc::O_NOATIME),
            (2, libc::O_PATH),
        ];
        for (percent, flag) in extras {
            if self.rng.percent(percent) {
                flags |= flag;
            }
        }
        let path = match self.rng.below(100) {
            0..4 => self.directory(),
            // Several open files of one object: what locks, appends and truncation are about.
            4..24 if !self.opened.0.is_empty() => self.opened.clone(),
            12..40 if flags & libc::O_CREAT != 0 => self.new_file(),
            _ => self.file(),
        };
        Op::Open { slot: self.slot(), path, flags, mode: self.creation_mode() }
    }

    fn open_tmpfile(&mut self) -> Op {
        if self.lacks_tmpfile {
            return self.open();
        }
        let mut flags = *self.rng.pick(&[libc::O_RDWR, libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY]);
        if self.rng.percent(15) {
            flags |= libc::O_EXCL;
        }
        Op::OpenTmpfile { slot: self.slot(), dir: self.directory(), flags, mode: self.creation_mode() }
    }

    fn link_fd(&mut self) -> Op {
        Op::LinkFd { slot: self.slot(), path: self.new_file() }
    }

    fn close(&mut self) -> Op {
        Op::Close { slot: self.slot() }
    }

    fn read(&mut self) -> Op {
        Op::Read { slot: self.slot(), len: self.len() }
    }

    fn write(&mut self) -> Op {
        Op::Write { slot: self.slot(), fill: self.rng.next_u64(), len: self.len() }
    }

    fn pread(&mut self) -> Op {
        Op::Pread { slot: self.slot(), offset: self.offset(), len: self.len() }
    }

    fn pwrite(&mut self) -> Op {
        Op::Pwrite { slot: self.slot(), offset: self.offset(), fill: self.rng.next_u64(), len: self.len() }
    }

    fn writev(&mut self) -> Op {
        let parts = self.rng.between(1, 5);
        let lens = (0..parts).map(|_| self.len() / 4).collect();
        // The seeds of the parts count up from `fill`.
        Op::Writev { slot: self.slot(), fill: self.rng.next_u64() >> 1, lens }
    }

    fn lseek(&mut self) -> Op {
        let whence = *self.rng.pick(&[libc::SEEK_SET, libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, 99]);
        let mut offset = self.offset();
        if whence != libc::SEEK_SET && self.rng.percent(50) {
            offset = -offset;
        }
        Op::Lseek { slot: self.slot(), offset, whence }
    }

    fn data_map(&mut self) -> Op {
        Op::DataMap { slot: self.slot() }
    }

    fn ftruncate(&mut self) -> Op {
        Op::Ftruncate { slot: self.slot(), len: self.offset() }
    }

    fn truncate(&mut self) -> Op {
        Op::Truncate { path: self.file(), len: self.offset() }
    }

    fn fallocate(&mut self) -> Op {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let mode = *self.rng.pick(&[
            0,
            keep,
            libc::FALLOC_FL_PUNCH_HOLE | keep,
            libc::FALLOC_FL_PUNCH_HOLE | keep,
            libc::FALLOC_FL_ZERO_RANGE,
            libc::FALLOC_FL_ZERO_RANGE | keep,
            libc::FALLOC_FL_PUNCH_HOLE,
        ]);
        Op::Fallocate { slot: self.slot(), mode, offset: self.offset(), len: i64::from(self.len()) }
    }

    fn copy_file_range(&mut self) -> Op {
        Op::CopyFileRange {
            from: self.slot(),
            from_offset: self.offset().max(0),
            to: self.slot(),
            to_offset: self.offset().max(0),
            len: self.len(),
        }
    }

    fn fsync(&mut self) -> Op {
        Op::Fsync { slot: self.slot(), data_only: self.rng.percent(30) }
    }

    fn fstat(&mut self) -> Op {
        Op::Fstat { slot: self.slot() }
    }

    fn map_write(&mut self) -> Op {
        Op::MapWrite {
            slot: self.slot(),
            page: self.rng.below(20) as i64,
            at: self.rng.below(4096) as u32,
            fill: self.rng.next_u64(),
            len: self.len().min(40_000),
        }
    }

    fn map_read(&mut self) -> Op {
        Op::MapRead { slot: self.slot(), page: self.rng.below(20) as i64, len: self.len() }
    }

    fn mkdir(&mut self) -> Op {
        let path = self.new_directory();
        let mode = if self.rng.percent(80) { 0o777 } else { self.mode() };
        Op::Mkdir { path, mode }
    }

    fn rmdir(&mut self) -> Op {
        Op::Rmdir { path: if self.rng.percent(92) { self.directory() } else { self.file() } }
    }

    fn unlink(&mut self) -> Op {
        Op::Unlink { path: if self.rng.percent(92) { self.file() } else { self.directory() } }
    }

    fn rename(&mut self) -> Op {
        let flags = *self.rng.pick(&[
            0,
            0,
            0,
            0,
            0,
            libc::RENAME_NOREPLACE,
            libc::RENAME_EXCHANGE,
            libc::RENAME_EXCHANGE,
            libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE,
            1 << 20,
        ]);
        // A directory moves to a name a directory can be found under later, and likewise for the rest.
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let (from, to) = match self.rng.below(100) {
            0..50 if exchange => (self.file(), self.file()),
            0..50 => (self.file(), self.new_file()),
            50..80 if exchange => (self.directory(), self.directory()),
            50..80 => (self.directory(), self.new_directory()),
            _ => (self.path(), self.path()),
        };
        Op::Rename { from, to, flags }
    }

    fn link(&mut self) -> Op {
        let flags = if self.rng.percent(25) { libc::AT_SYMLINK_FOLLOW } else { 0 };
        Op::Link { from: self.path(), to: self.new_file(), flags }
    }

    fn symlink(&mut self) -> Op {
        let target = match self.rng.below(20) {
            0 => BytePath(vec![b't'; 4095]),
            1 => BytePath(vec![b't'; 4096]),
            2 => BytePath(vec![b't'; 700]),
            3 => BytePath(b"../d0/../f1".to_vec()),
            4 => BytePath(Vec::new()),
            _ => self.path(),
        };
        let path = if self.rng.percent(60) { self.new_file() } else { self.fresh(&["l0", "l1"]) };
        Op::Symlink { target, path }
    }

    fn readlink(&mut self) -> Op {
        Op::Readlink { path: if self.rng.percent(50) { self.fresh(&["l0", "l1"]) } else { self.path() } }
    }

    fn mknod(&mut self) -> Op {
        let kind = *self.rng.pick(&[
            libc::S_IFIFO,
            libc::S_IFSOCK,
            libc::S_IFCHR,
            libc::S_IFBLK,
            libc::S_IFREG,
            0,
            libc::S_IFDIR,
        ]);
        // Steps open device nodes too, as root: only major numbers no driver has, so that they reach no device of the machine.
        let device = libc::makedev(3000 + self.rng.below(1000) as u32, self.rng.below(70_000) as u32);
        Op::Mknod { path: self.new_file(), mode: kind | self.creation_mode(), device }
    }

    fn stat(&mut self) -> Op {
        Op::Stat { path: self.path(), follow: self.follow() }
    }

    fn chmod(&mut self) -> Op {
        Op::Chmod {
            path: self.path(),
            mode: if self.rng.percent(50) { self.creation_mode() } else { self.mode() },
        }
    }

    fn fchmod(&mut self) -> Op {
        Op::Fchmod { slot: self.slot(), mode: self.mode() }
    }

    fn chown(&mut self) -> Op {
        let (uid, gid) = (*self.rng.pick(UIDS), *self.rng.pick(GIDS));
        Op::Chown { path: self.path(), uid, gid, follow: self.follow() }
    }

    fn fchown(&mut self) -> Op {
        Op::Fchown { slot: self.slot(), uid: *self.rng.pick(UIDS), gid: *self.rng.pick(GIDS) }
    }

    fn time(&mut self) -> TimeArgument {
        match self.rng.below(10) {
            0 | 1 => TimeArgument::Now,
            2 => TimeArgument::Omit,
            3 => TimeArgument::At(0, 0),
            4 => TimeArgument::At(-(self.rng.below(1 << 30) as i64), 1),
            5 => TimeArgument::At(4_100_000_000 + self.rng.below(1 << 32) as i64, 999_999_999),
            6 => TimeArgument::At(5, 1_000_000_000),
            _ => TimeArgument::At(self.rng.below(1_000_000_000) as i64, self.rng.below(1_000_000_000) as i64),
        }
    }

    fn utimens(&mut self) -> Op {
        Op::Utimens { path: self.path(), atime: self.time(), mtime: self.time(), follow: self.follow() }
    }

    fn futimens(&mut self) -> Op {
        Op::Futimens { slot: self.slot(), atime: self.time(), mtime: self.time() }
    }

    fn xattr_name(&mut self) -> BytePath {
        BytePath(self.rng.pick(XATTR_NAMES).as_bytes().to_vec())
    }

    fn setxattr(&mut self) -> Op {
        Op::Setxattr {
            path: self.path(),
            name: self.xattr_name(),
            fill: self.rng.next_u64(),
            // All values of one object fit into the one 4 KiB block ext4 has for them.
            len: self.rng.below(500) as u32,
            flags: *self.rng.pick(&[0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE]),
            follow: self.follow(),
        }
    }

    fn getxattr(&mut self) -> Op {
        let room = *self.rng.pick(&[0, 10, 1000, 65_536]);
        Op::Getxattr { path: self.path(), name: self.xattr_name(), room, follow: self.follow() }
    }

    fn listxattr(&mut self) -> Op {
        Op::Listxattr { path: self.path(), follow: self.follow() }
    }

    fn removexattr(&mut self) -> Op {
        Op::Removexattr { path: self.path(), name: self.xattr_name(), follow: self.follow() }
    }

    fn set_acl(&mut self) -> Op {
        const NO_ID: u32 = u32::MAX;
        let mut entries = Vec::new();
        let mut push = |rng: &mut Rng, tag, id| {
            entries.push(AclEntry { tag, perm: rng.below(8) as u16, id });
        };
        let rng = &mut self.rng;
        push(rng, 0x01, NO_ID);
        let named = rng.percent(70);
        if named {
            let uid = *rng.pick(&[1001, 1002]);
            push(rng, 0x02, uid);
        }
        push(rng, 0x04, NO_ID);
        if named && rng.percent(50) {
            push(rng, 0x08, 2000);
        }
        // Sometimes without the mask a list with named entries must have: EINVAL.
        if named && rng.percent(92) {
            push(rng, 0x10, NO_ID);
        }
        push(rng, 0x20, NO_ID);
        Op::SetAcl { path: self.path(), default: self.rng.percent(30), entries }
    }

    fn access(&mut self) -> Op {
        let flags = *self.rng.pick(&[0, libc::AT_EACCESS, libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW]);
        Op::Access { path: self.path(), mode: self.rng.below(8) as i32, flags }
    }

    fn umask(&mut self) -> Op {
        Op::Umask { mask: *self.rng.pick(&[0o022, 0o000, 0o077, 0o002, 0o027]) }
    }

    fn statfs(&mut self) -> Op {
        Op::Statfs { path: self.directory() }
    }

    fn flock(&mut self) -> Op {
        let operation = *self.rng.pick(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN]) | libc::LOCK_NB;
        Op::Flock { slot: self.slot(), operation }
    }

    fn range(&mut self) -> Range {
        Range {
            kind: *self.rng.pick(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK]),
            start: self.rng.below(100) as i64,
            len: self.rng.below(40) as i64,
        }
    }

    fn lock_owner(&mut self) -> LockOwner {
        if self.rng.percent(40) { LockOwner::Process } else { LockOwner::Description }
    }

    fn setlk(&mut self) -> Op {
        Op::Setlk { slot: self.slot(), owner: self.lock_owner(), range: self.range() }
    }

    fn getlk(&mut self) -> Op {
        let mut range = self.range();
        if range.kind == libc::F_UNLCK {
            range.kind = libc::F_WRLCK;
        }
        Op::Getlk { slot: self.slot(), owner: self.lock_owner(), range }
    }

    fn setlk_as_child(&mut self) -> Op {
        Op::SetlkAsChild { slot: self.slot(), range: self.range() }
    }

    fn readdir(&mut self) -> Op {
        Op::Readdir { path: self.directory() }
    }

    fn readdir_while_modifying(&mut self) -> Op {
        Op::ReaddirWhileModifying {
            path: self.directory(),
            entries: self.rng.between(2, 120) as u16,
            room: self.rng.between(320, 2000) as u16,
            fill: self.rng.next_u64(),
        }
    }

    fn seekdir(&mut self) -> Op {
        Op::Seekdir { path: self.directory(), fill: self.rng.next_u64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_fixes_the_steps_and_every_kind_of_step_occurs() {
        let steps = |seed| {
            let mut generator = Generator::new(seed, 4);
            let mut steps = Vec::new();
            for _ in 0..5000 {
                let step = generator.step();
                generator.learn(&step.op);
                steps.push(step);
            }
            steps
        };
        let first = steps(11);
        assert_eq!(first, steps(11));
        assert_ne!(first, steps(12));
        let kinds: std::collections::HashSet<_> =
            first.iter().map(|step| std::mem::discriminant(&step.op)).collect();
        assert_eq!(kinds.len(), WEIGHTS.len());
    }

    #[test]
    fn what_the_kernel_lacks_is_left_out() {
        let mut generator = Generator::new(11, 4).without_tmpfile(true);
        let is_tmpfile = |step: Step| matches!(step.op, Op::OpenTmpfile { .. });
        assert!(!(0..5000).any(|_| is_tmpfile(generator.step())));
    }

    #[test]
    fn a_step_survives_the_trace() {
        let mut generator = Generator::new(3, 4);
        for _ in 0..2000 {
            let step = generator.step();
            let line = serde_json::to_string(&step).expect("plain data");
            assert_eq!(serde_json::from_str::<Step>(&line).expect("what was written"), step);
        }
    }
}

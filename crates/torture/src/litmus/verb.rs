//! What the verbs of statements do: each makes the calls its name says, on paths below the client's root or on an open file by its name.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use super::client::{Client, Fault};
use crate::sys::attr::{self, Follow, Stat, TimeArgument};
use crate::sys::cred::{User, as_user};
use crate::sys::data::{self, CWD};
use crate::sys::dir::names;
use crate::sys::lock::{self, LockOwner, Range};
use crate::sys::map::Mapping;
use crate::sys::{Errno, SysResult, name};

/// LIMIT: bytes of a file that `read` returns; the files of rows are far shorter.
const READ_MAX: usize = 4096;

/// Who has no rights but those of others.
const NOBODY: u32 = 65_534;

type Answer = Result<String, Fault>;

fn done(result: SysResult<()>) -> Answer {
    result.map(|()| "ok".to_owned()).map_err(Fault::from)
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, Fault> {
    word.parse().map_err(|_| Fault::Statement(format!("`{word}` is no number")))
}

fn octal(word: &str) -> Result<u32, Fault> {
    u32::from_str_radix(word, 8).map_err(|_| Fault::Statement(format!("`{word}` is no mode")))
}

/// Bytes as one word: `empty` for none, `.` for NUL.
fn show(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "empty".to_owned();
    }
    bytes.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }).collect()
}

fn open_flags(word: &str) -> Result<i32, Fault> {
    let mut flags = 0;
    for letter in word.chars() {
        flags |= match letter {
            'r' => libc::O_RDONLY,
            'w' => libc::O_WRONLY,
            'u' => libc::O_RDWR,
            'a' => libc::O_WRONLY | libc::O_APPEND,
            'c' => libc::O_CREAT,
            'x' => libc::O_CREAT | libc::O_EXCL,
            't' => libc::O_TRUNC,
            _ => return Err(Fault::Statement(format!("`{letter}` is no way to open a file"))),
        };
    }
    Ok(flags)
}

impl Client {
    fn path(&self, word: &str) -> Vec<u8> {
        self.root.join(word).as_os_str().as_bytes().to_vec()
    }

    fn handle(&self, word: &str) -> Result<BorrowedFd<'_>, Fault> {
        let handle = self.handles.get(word).map(AsFd::as_fd);
        handle.ok_or_else(|| Fault::Statement(format!("nothing is open as `{word}`")))
    }

    fn stat(&self, path: &str) -> SysResult<Stat> {
        attr::fstatat(CWD, &self.path(path), libc::AT_SYMLINK_NOFOLLOW)
    }

    /// Carries out one call that is not `tell` or `await`.
    pub(super) fn call(&mut self, words: &[&str]) -> Answer {
        match *words {
            ["open", handle, path, flags] => {
                let file = data::openat(CWD, &self.path(path), open_flags(flags)?, 0o644)?;
                self.handles.insert(handle.to_owned(), file);
                Ok("ok".to_owned())
            }
            ["close", handle] => match self.handles.remove(handle) {
                Some(file) => done(data::close(file)),
                None => Err(Fault::Statement(format!("nothing is open as `{handle}`"))),
            },
            ["map", mapping, handle, len] => {
                let mapped = Mapping::new(self.handle(handle)?, 0, number(len)?, true)?;
                self.mappings.insert(mapping.to_owned(), mapped);
                Ok("ok".to_owned())
            }
            _ => self.name_call(words),
        }
    }

    fn name_call(&mut self, words: &[&str]) -> Answer {
        let path = |word: &str| self.path(word);
        match *words {
            ["create", file] => {
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
                done(data::openat(CWD, &path(file), flags, 0o644).and_then(data::close))
            }
            ["unlink", file] => done(name::unlinkat(CWD, &path(file), 0)),
            ["mkdir", dir] => done(name::mkdirat(CWD, &path(dir), 0o755)),
            ["rmdir", dir] => done(name::unlinkat(CWD, &path(dir), libc::AT_REMOVEDIR)),
            ["rename", from, to] => done(name::renameat2(CWD, &path(from), &path(to), 0)),
            ["exchange", from, to] => {
                done(name::renameat2(CWD, &path(from), &path(to), libc::RENAME_EXCHANGE))
            }
            ["link", from, to] => done(name::linkat(CWD, &path(from), &path(to), 0)),
            ["symlink", target, link] => done(name::symlinkat(target.as_bytes(), CWD, &path(link))),
            ["readlink", link] => Ok(show(&name::readlinkat(CWD, &path(link))?)),
            ["list", dir] => {
                let dir = data::openat(CWD, &path(dir), libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
                let mut found: Vec<String> = names(dir.as_fd())?.iter().map(|name| show(name)).collect();
                found.retain(|name| name != "." && name != "..");
                found.sort();
                Ok(if found.is_empty() { "empty".to_owned() } else { found.join(",") })
            }
            _ => self.attribute_call(words),
        }
    }

    fn attribute_call(&mut self, words: &[&str]) -> Answer {
        let path = |word: &str| self.path(word);
        match *words {
            ["stat", file] => done(self.stat(file).map(drop)),
            ["size", file] => Ok(self.stat(file)?.size.to_string()),
            ["links", file] => Ok(self.stat(file)?.nlink.to_string()),
            ["mode", file] => Ok(format!("{:o}", self.stat(file)?.mode & 0o7777)),
            ["owner", file] => Ok(self.stat(file)?.uid.to_string()),
            ["mtime", file] => Ok(self.stat(file)?.mtime.0.to_string()),
            ["chmod", file, mode] => done(attr::fchmodat(CWD, &path(file), octal(mode)?)),
            ["chown", file, user] => {
                let user = number(user)?;
                done(attr::fchownat(CWD, &path(file), user, user, libc::AT_SYMLINK_NOFOLLOW))
            }
            ["touch", file, seconds] => {
                let time = TimeArgument::At(number(seconds)?, 0);
                done(attr::utimensat(CWD, &path(file), time, time, 0))
            }
            ["setx", file, value] => {
                done(attr::setxattr(&path(file), Follow::Link, b"user.litmus", value.as_bytes(), 0))
            }
            ["getx", file] => Ok(show(&attr::getxattr(&path(file), Follow::Link, b"user.litmus", READ_MAX)?)),
            ["access", file] => {
                // From an open directory on: where the mounts are may be closed to others.
                let root = data::openat(CWD, self.root.as_os_str().as_bytes(), libc::O_PATH, 0)?;
                let nobody = User { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
                let open = || data::openat(root.as_fd(), file.as_bytes(), libc::O_RDONLY, 0);
                done(as_user(&nobody, open)?.and_then(data::close))
            }
            _ => self.content_call(words),
        }
    }

    fn content_call(&mut self, words: &[&str]) -> Answer {
        match *words {
            ["put", file, text] => {
                let flags = libc::O_CREAT | libc::O_WRONLY;
                let file = data::openat(CWD, &self.path(file), flags, 0o644)?;
                data::pwrite_all(file.as_fd(), text.as_bytes(), 0)?;
                done(data::close(file))
            }
            ["write", file, text] => {
                let file = data::openat(CWD, &self.path(file), libc::O_WRONLY, 0)?;
                data::pwrite_all(file.as_fd(), text.as_bytes(), 0)?;
                done(data::close(file))
            }
            ["read", file] => self.read(file, 0, READ_MAX),
            ["read", file, at, len] => self.read(file, number(at)?, number(len)?),
            ["count", file, text] => {
                let file = data::openat(CWD, &self.path(file), libc::O_RDONLY, 0)?;
                let content = data::pread(file.as_fd(), READ_MAX, 0)?;
                Ok(content.windows(text.len()).filter(|part| *part == text.as_bytes()).count().to_string())
            }
            ["truncate", file, len] => done(data::truncate(&self.path(file), number(len)?)),
            _ => self.handle_call(words),
        }
    }

    fn read(&self, file: &str, at: i64, len: usize) -> Answer {
        let file = data::openat(CWD, &self.path(file), libc::O_RDONLY, 0)?;
        Ok(show(&data::pread(file.as_fd(), len.min(READ_MAX), at)?))
    }

    fn handle_call(&mut self, words: &[&str]) -> Answer {
        match *words {
            ["hwrite", handle, at, text] => {
                done(data::pwrite_all(self.handle(handle)?, text.as_bytes(), number(at)?))
            }
            ["hread", handle, at, len] => {
                Ok(show(&data::pread(self.handle(handle)?, number(len)?, number(at)?)?))
            }
            ["append", handle, text] => match data::write(self.handle(handle)?, text.as_bytes())? {
                written if written == text.len() => Ok("ok".to_owned()),
                _ => Err(Fault::Call(Errno(libc::EIO))),
            },
            ["hsize", handle] => Ok(attr::fstat(self.handle(handle)?)?.size.to_string()),
            ["hlinks", handle] => Ok(attr::fstat(self.handle(handle)?)?.nlink.to_string()),
            ["hcut", handle, len] => done(data::ftruncate(self.handle(handle)?, number(len)?)),
            ["punch", handle, at, len] => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                done(data::fallocate(self.handle(handle)?, mode, number(at)?, number(len)?))
            }
            ["sync", handle] => done(data::fsync(self.handle(handle)?, false)),
            ["incr", handle] => {
                let handle = self.handle(handle)?;
                let text = String::from_utf8_lossy(&data::pread(handle, 1, 0)?).into_owned();
                let next = number::<u32>(&text)? + 1;
                done(data::pwrite_all(handle, next.to_string().as_bytes(), 0))
            }
            ["load", mapping, at, len] => {
                let mapping = self.mappings.get(mapping).ok_or(Fault::Statement("no such mapping".into()))?;
                Ok(show(&mapping.load(number(at)?, number(len)?)?))
            }
            ["msync", mapping] => {
                let mapping = self.mappings.get(mapping).ok_or(Fault::Statement("no such mapping".into()))?;
                done(mapping.sync())
            }
            ["store", mapping, at, text] => {
                let mapping =
                    self.mappings.get_mut(mapping).ok_or(Fault::Statement("no such mapping".into()))?;
                done(mapping.store(number(at)?, text.as_bytes()))
            }
            _ => self.lock_call(words),
        }
    }

    fn lock_call(&mut self, words: &[&str]) -> Answer {
        match *words {
            ["flock", handle, kind] => {
                let operation = match kind {
                    "wait" => libc::LOCK_EX,
                    "ex" => libc::LOCK_EX | libc::LOCK_NB,
                    "sh" => libc::LOCK_SH | libc::LOCK_NB,
                    "un" => libc::LOCK_UN,
                    _ => return Err(Fault::Statement(format!("`{kind}` is no lock"))),
                };
                done(lock::flock(self.handle(handle)?, operation))
            }
            ["lock", handle, start, len, kind] => {
                let (kind, is_waiting) = match kind {
                    "wait" => (libc::F_WRLCK, true),
                    "w" => (libc::F_WRLCK, false),
                    "r" => (libc::F_RDLCK, false),
                    "u" => (libc::F_UNLCK, false),
                    _ => return Err(Fault::Statement(format!("`{kind}` is no lock"))),
                };
                let range = Range { kind, start: number(start)?, len: number(len)? };
                let handle = self.handle(handle)?;
                if is_waiting {
                    return done(lock::setlkw(handle, range));
                }
                done(lock::setlk(handle, LockOwner::Description, range))
            }
            _ => Err(Fault::Statement("there is no such verb".to_owned())),
        }
    }
}

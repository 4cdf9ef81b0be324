//! Clients that make calls on few names, and write down what they did.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Answer, Call, Path, Verb};
use crate::rng::Rng;
use crate::sys::data::{self, CWD};
use crate::sys::{Errno, SysResult, attr, name};

/// Errors that do not tell whether the call was done: the server was not reached in time; a name had changed under the kernel, which
/// begins again by itself once and then says so.
const UNKNOWN: [i32; 2] = [libc::ETIMEDOUT, libc::ESTALE];

/// Where files are, and where they can be put.
const FILES: [Path; 5] = [
    Path { dir: None, name: b'a' },
    Path { dir: None, name: b'b' },
    Path { dir: Some(b'd'), name: b'a' },
    Path { dir: Some(b'e'), name: b'a' },
    Path { dir: Some(b'd'), name: b'b' },
];

/// Names that are directories at times.
const DIRECTORIES: [Path; 2] = [Path { dir: None, name: b'd' }, Path { dir: None, name: b'e' }];

/// Draws a call. Directories stay in the folder of the history, so that none is in another.
fn draw(rng: &mut Rng) -> Verb {
    let file = *rng.pick(&FILES);
    let directory = *rng.pick(&DIRECTORIES);
    match rng.below(100) {
        0..18 => Verb::Create(file),
        18..30 => Verb::Mkdir(directory),
        30..44 => Verb::Unlink(file),
        44..46 => Verb::Unlink(directory),
        46..54 => Verb::Rmdir(directory),
        54..66 => Verb::Rename(file, *rng.pick(&FILES)),
        66..69 if file.dir.is_none() => Verb::Rename(file, directory),
        69..75 => Verb::Rename(directory, *rng.pick(&DIRECTORIES)),
        75..84 => Verb::Link(file, *rng.pick(&FILES)),
        84..86 => Verb::Link(directory, file),
        86..95 => Verb::Stat(file),
        _ => Verb::Stat(directory),
    }
}

fn carry_out(root: &std::path::Path, verb: Verb) -> Answer {
    let path = |path: Path| root.join(path.to_string()).as_os_str().as_bytes().to_vec();
    let done = |result: SysResult<()>| result.map(|()| Answer::Done);
    let result = match verb {
        Verb::Create(file) => {
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDONLY;
            data::openat(CWD, &path(file), flags, 0o644)
                .and_then(|file| attr::fstat(file.as_fd()))
                .map(|stat| Answer::File(stat.ino))
        }
        Verb::Mkdir(directory) => done(name::mkdirat(CWD, &path(directory), 0o755)),
        Verb::Unlink(file) => done(name::unlinkat(CWD, &path(file), 0)),
        Verb::Rmdir(directory) => done(name::unlinkat(CWD, &path(directory), libc::AT_REMOVEDIR)),
        Verb::Rename(from, to) => done(name::renameat2(CWD, &path(from), &path(to), 0)),
        Verb::Link(from, to) => done(name::linkat(CWD, &path(from), &path(to), 0)),
        Verb::Stat(file) => attr::fstatat(CWD, &path(file), libc::AT_SYMLINK_NOFOLLOW).map(|stat| {
            if stat.kind() == libc::S_IFDIR { Answer::Directory } else { Answer::File(stat.ino) }
        }),
    };
    match result {
        Ok(answer) => answer,
        Err(Errno(errno)) if UNKNOWN.contains(&errno) => Answer::Unknown(Errno(errno)),
        Err(errno) => Answer::Failed(errno),
    }
}

/// Has a client at each of `roots`, which are one empty directory, make so many calls; all begin together.
///
/// # Errors
/// When a client panics.
pub fn record(roots: &[PathBuf], calls_each: usize, rng: &mut Rng) -> anyhow::Result<Vec<Call>> {
    let start = Instant::now();
    let together = Arc::new(Barrier::new(roots.len()));
    let clients: Vec<_> = roots
        .iter()
        .cloned()
        .enumerate()
        .map(|(client, root)| {
            let (mut rng, together) = (Rng::new(rng.next_u64()), together.clone());
            std::thread::spawn(move || {
                together.wait();
                let now = || start.elapsed().as_nanos() as u64;
                let call = |_| {
                    if rng.percent(20) {
                        std::thread::sleep(Duration::from_micros(rng.below(500)));
                    }
                    let verb = draw(&mut rng);
                    let begin = now();
                    let answer = carry_out(&root, verb);
                    Call { client, verb, begin, end: now(), answer }
                };
                (0..calls_each).map(call).collect::<Vec<Call>>()
            })
        })
        .collect();
    let mut calls = Vec::new();
    for client in clients {
        calls.extend(client.join().ok().context("a client panicked")?);
    }
    calls.sort_by_key(|call| call.begin);
    Ok(calls)
}

//! A program that merely had a file open on the mount, or its working directory there, cost whoever stopped the server 20 seconds and an
//! exit status of failure, with a text about requests of which there were none.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::user_world::{NOBODY, UserWorld};
use support::{Ended, PATIENCE, Server, Site, can_mount, is_mounted};

/// A program that is ended with the test.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Program {
        Program(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a server whose mount is in use, which is no failure; what it says.
#[track_caller]
fn stop_in_use(server: Server) -> Ended {
    let mountpoint = server.mountpoint.clone();
    let ended = server.end_by(libc::SIGTERM).expect(0);
    assert!(!is_mounted(&mountpoint));
    ended
}

#[test]
fn programs_that_have_a_file_open_or_their_directory_there_are_named_and_keep_nothing_from_ending() {
    if !can_mount("stopping a mount in use") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let mut kept = File::create_new(site.mnt().join("kept")).unwrap();
    kept.write_all(b"what was acknowledged").unwrap();
    let there = Program::start(Command::new("sleep").arg("1000").current_dir(site.mnt()));
    let ended = stop_in_use(server);
    assert!(!ended.stderr.contains("(ashlar: "), "the server is none of them: {}", ended.all());
    for named in [
        format!("process {} (sleep: working directory)", there.0.id()),
        format!("process {} (", std::process::id()),
    ] {
        assert!(ended.stderr.contains(&named), "{named}: {}", ended.all());
    }
    let error = kept.write_all(b"more").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
    let server = site.up("up @mnt --data @d1");
    assert_eq!(fs::read(site.mnt().join("kept")).unwrap(), b"what was acknowledged");
    server.stop();
    site.run("fsck --data @d1").expect(0);
}

#[test]
fn a_writer_that_is_cut_off_has_lost_nothing_it_was_told() {
    if !can_mount("stopping under a writer") {
        return;
    }
    const BLOCK: u64 = 4096;
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let mut file = File::create_new(site.mnt().join("growing")).unwrap();
    let told = AtomicU64::new(0);
    let last = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            loop {
                match file.write_all(&[7; BLOCK as usize]) {
                    Ok(()) => told.fetch_add(BLOCK, SeqCst),
                    Err(error) => return error,
                };
            }
        });
        let deadline = Instant::now() + PATIENCE;
        while told.load(SeqCst) < 100 * BLOCK {
            assert!(Instant::now() < deadline, "nobody writes");
            std::thread::sleep(Duration::from_millis(1));
        }
        stop_in_use(server);
        writer.join().unwrap()
    });
    assert!(matches!(last.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{last}");
    let server = site.up("up @mnt --data @d1");
    let content = fs::read(site.mnt().join("growing")).unwrap();
    assert!(content.len() as u64 >= told.load(SeqCst), "{} of {told:?}", content.len());
    assert!(content.iter().all(|&byte| byte == 7));
    server.stop();
    site.run("fsck --data @d1").expect(0);
}

#[test]
fn what_a_program_stored_into_a_mapping_is_there_after_a_stop() {
    if !can_mount("stopping under a mapping") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let mut file = File::create_new(site.mnt().join("mapped")).unwrap();
    file.write_all(&[0; 300_000]).unwrap();
    file.rewind().unwrap();
    // SAFETY: a new mapping at an address that the kernel chooses, of a file that nobody cuts.
    let mapping = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            300_000,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(mapping, libc::MAP_FAILED);
    drop(file);
    for at in [0, 4096, 299_999] {
        // SAFETY: within the mapping, which is writable.
        unsafe { mapping.cast::<u8>().add(at).write(b'x') };
    }
    stop_in_use(server);
    // SAFETY: the mapping from above; nobody uses it any more.
    assert_eq!(unsafe { libc::munmap(mapping, 300_000) }, 0);
    let server = site.up("up @mnt --data @d1");
    let content = fs::read(site.mnt().join("mapped")).unwrap();
    let stored: Vec<usize> = (0..content.len()).filter(|&at| content[at] == b'x').collect();
    assert_eq!((content.len(), stored), (300_000, vec![0, 4096, 299_999]));
    server.stop();
}

#[test]
fn a_mount_that_another_name_space_holds_is_taken_away_there_too() {
    UserWorld::enter("a mount in another name space", "", |world| {
        let site = &world.site;
        let server = site.up("up @mnt --data @d1");
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "echo here > \"$0\"; exec sleep 1000",
        ]);
        let _holder = Program::start(command.arg(site.path("started")).current_dir("/"));
        let deadline = Instant::now() + PATIENCE;
        while !site.path("started").exists() {
            assert!(Instant::now() < deadline, "not started");
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = stop_in_use(server);
        assert!(ended.stderr.contains("in another mount name space"), "{}", ended.all());
        site.up("up @mnt --data @d1").stop();
    });
}

#[test]
fn an_ordinary_user_s_mount_in_use_ends_too() {
    UserWorld::enter("an ordinary user's mount in use", "", |world| {
        let server = world.up("up @mnt --data @d1");
        world.shell(NOBODY, "echo mine > file").expect(0);
        let script = "cd \"$0\"; exec 3<file; echo here > ../home/started; exec sleep 1000";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).arg(world.site.mnt());
        std::os::unix::process::CommandExt::uid(&mut command, NOBODY.0);
        std::os::unix::process::CommandExt::gid(&mut command, NOBODY.1);
        let reader = Program::start(command.current_dir("/"));
        let deadline = Instant::now() + PATIENCE;
        while !world.site.path("home/started").exists() {
            assert!(Instant::now() < deadline, "not started");
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = stop_in_use(server);
        let named = format!("process {} (", reader.0.id());
        assert!(ended.stderr.contains(&named), "{}", ended.all());
        world.up("up @mnt --data @d1").stop();
    });
}

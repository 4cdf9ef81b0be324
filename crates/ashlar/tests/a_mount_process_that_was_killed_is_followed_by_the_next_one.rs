//! Goal: when the process of a mount with `--keep` is killed and `ashlar mount` is started again, programs go on with the files that they have open, as if nothing
//! had happened: writers, readers, who makes and removes names, and who has a file without a name. If nobody comes, they are told after the time that was given.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::{PATIENCE, binary, can_mount};

/// A shell that works in `dir` and says `begun` in a file beside it when it is in the middle of things. This process itself must have nothing open there: what it
/// starts would close that on the way, which waits for the mount.
fn shell(dir: &Path, begun: &Path, script: &str) -> Child {
    Command::new("sh")
        .args(["-c", script])
        .env("M", dir)
        .env("BEGUN", begun)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[track_caller]
fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn ended_well(what: &str, mut child: Child) {
    wait_for(what, || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{what}: {:?} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

fn start_keeping(lab: &Lab, name: &str, seconds: u32) -> Role {
    let line = format!("mount @m0 --identity @c0 --keep {seconds} --error-after 60");
    lab.run(name, &line, "mounted")
}

const LINES: usize = 300;

#[test]
fn programs_go_on_with_their_open_files_over_a_kill_of_the_mount_process() {
    if !can_mount("take-over") {
        return;
    }
    let mut lab = Lab::start(2, 2);
    lab.mounts[0].stop();
    lab.mounts[0] = start_keeping(&lab, "kept1", 60);
    let (here, there) = (lab.path("m0"), lab.path("m1"));
    let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
    fs::write(there.join("data"), &data).unwrap();
    fs::write(there.join("small"), b"with the inode").unwrap();
    fs::create_dir(there.join("names")).unwrap();
    let beside = lab.path("");
    let begun = |name: &str| beside.join(format!("begun-{name}"));
    let programs = [
        // A line at a time, into chunks and with the inode, through one descriptor.
        ("chunks", format!("exec 3>$M/chunks; head -c 100000 /dev/zero | tr '\\0' x >&3; i=0; while [ $i -lt {LINES} ]; do printf 'line %06d\\n' $i >&3 || exit 1; [ $i = 60 ] && : > $BEGUN; i=$((i+1)); sleep 0.02; done")),
        ("inline", format!("exec 3>$M/inline; i=0; while [ $i -lt {LINES} ]; do printf 'line %06d\\n' $i >&3 || exit 1; [ $i = 60 ] && : > $BEGUN; i=$((i+1)); sleep 0.02; done")),
        // Names come and go all the time.
        ("names", format!("i=0; while [ $i -lt {LINES} ]; do mkdir $M/names/d$i && : > $M/names/d$i/f && mv $M/names/d$i/f $M/names/d$i/g && rm $M/names/d$i/g && rmdir $M/names/d$i || exit 1; [ $i = 20 ] && : > $BEGUN; i=$((i+1)); done")),
        // What was opened before is read after.
        ("reader", "exec 3<$M/data 4<$M/small; head -c 1000 <&3 >/dev/null; : > $BEGUN; sleep 4; { head -c 1000 $M/data; cat <&3; } | cmp - $M/data || exit 1; [ \"$(cat <&4)\" = 'with the inode' ]".to_owned()),
        ("nameless", "exec 3<>$M/nameless; echo kept >&3; rm $M/nameless; : > $BEGUN; sleep 4; echo more >&3; [ \"$(cat /proc/self/fd/3)\" = \"$(printf 'kept\\nmore')\" ]".to_owned()),
        ("inside", "cd $M/names; : > $BEGUN; sleep 4; : > ../inside; ls > /dev/null".to_owned()),
    ];
    let running: Vec<(&str, Child)> =
        programs.iter().map(|(name, script)| (*name, shell(&here, &begun(name), script))).collect();
    for (name, _) in &running {
        wait_for(name, || begun(name).exists());
    }
    lab.mounts[0].kill();
    std::thread::sleep(Duration::from_millis(500));
    let next = start_keeping(&lab, "kept2", 60);
    assert!(next.text().contains("going on with a mount"), "{}", next.text());
    lab.mounts[0] = next;
    for (name, child) in running {
        ended_well(name, child);
    }
    let lines: String = (0..LINES).map(|at| format!("line {at:06}\n")).collect();
    for dir in [&here, &there] {
        assert_eq!(fs::read_to_string(dir.join("inline")).unwrap(), lines);
        let text = fs::read_to_string(dir.join("chunks")).unwrap();
        assert!(
            text[..100_000].bytes().all(|byte| byte == b'x') && text[100_000..] == lines,
            "{}",
            text.len()
        );
        assert!(fs::read_dir(dir.join("names")).unwrap().next().is_none());
        assert!(dir.join("inside").exists() && !dir.join("nameless").exists());
    }
    // And once more, by the process that took over.
    let again = shell(&here, &begun("again"), "exec 3>$M/again; : > $BEGUN; sleep 2; echo done >&3");
    wait_for("again", || begun("again").exists());
    lab.mounts[0].kill();
    lab.mounts[0] = start_keeping(&lab, "kept3", 60);
    ended_well("again", again);
    assert_eq!(fs::read(there.join("again")).unwrap(), b"done\n");
    lab.stop();
}

#[test]
fn a_mount_process_that_is_killed_as_soon_as_it_serves_is_followed_too() {
    if !can_mount("take-over at once") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    lab.mounts[0].stop();
    let place = lab.path("notify");
    let socket = UnixDatagram::bind(&place).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let [mountpoint, identity] = ["m0", "c0"].map(|name| lab.path(name));
    // What is told by a socket is told at once: a look at what was printed comes too late.
    for turn in 0..15 {
        let mut process = Command::new(binary())
            .arg("mount")
            .arg(&mountpoint)
            .arg("--identity")
            .arg(&identity)
            .args(["--keep", "60"])
            .env("NOTIFY_SOCKET", &place)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut text = [0; 64];
        let got = socket.recv(&mut text);
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(&text[..got.unwrap_or_else(|error| panic!("turn {turn}: {error}"))], b"READY=1");
    }
    lab.mounts[0] = start_keeping(&lab, "last", 60);
    assert!(lab.mounts[0].text().contains("going on with a mount"), "{}", lab.mounts[0].text());
    lab.stop();
}

#[test]
fn if_nobody_comes_programs_are_told_after_the_time_that_was_given() {
    if !can_mount("no take-over") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    lab.mounts[0].stop();
    lab.mounts[0] = start_keeping(&lab, "kept", 3);
    let begun = lab.path("begun");
    let mut program =
        shell(&lab.path("m0"), &begun, "exec 3>$M/file; : > $BEGUN; sleep 1; echo x >&3 || exit 7; exit 0");
    wait_for("the program", || begun.exists());
    lab.mounts[0].kill();
    let killed = Instant::now();
    wait_for("the end", || program.try_wait().unwrap().is_some());
    assert_eq!(program.wait().unwrap().code(), Some(7));
    assert!(killed.elapsed() >= Duration::from_secs(2), "{:?}", killed.elapsed());
    // A mount that ends in good order is not kept.
    let _ = Command::new("umount").arg("-l").arg(lab.path("m0")).status();
    lab.mounts[0] = start_keeping(&lab, "kept2", 60);
    fs::write(lab.path("m0/file2"), b"x").unwrap();
    lab.stop();
    assert!(!lab.path("m0/file2").exists());
}

/// The number of the connection that serves `mountpoint`, and the socket of who keeps it.
fn keeper_of(mountpoint: &Path) -> (u32, PathBuf) {
    let number = rustix::fs::minor(fs::metadata(mountpoint).unwrap().dev());
    (number, Path::new("/run/ashlar").join(format!("{number}.keeper")))
}

#[test]
fn nobody_else_can_be_where_the_keeper_is_looked_for() {
    if !can_mount("take-over beside others") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    lab.mounts[0].stop();
    lab.mounts[0] = start_keeping(&lab, "kept1", 60);
    let (number, socket) = keeper_of(&lab.path("m0"));
    // Where keepers of earlier versions were, and anybody could be.
    let before = SocketAddr::from_abstract_name(format!("ashlar-keeper-{number}")).unwrap();
    let _squatter = UnixListener::bind_addr(&before).unwrap();
    // Somebody who asks while the mount is served gets nothing.
    let mut early = UnixStream::connect(&socket).unwrap();
    assert_eq!(early.read(&mut [0]).unwrap(), 0);
    for turn in 2..4 {
        lab.mounts[0].kill();
        lab.mounts[0] = start_keeping(&lab, &format!("kept{turn}"), 60);
        assert!(lab.mounts[0].text().contains("going on with a mount"), "{}", lab.mounts[0].text());
        assert_eq!(keeper_of(&lab.path("m0")).0, number);
    }
    // The next mount of the machine may have the same number.
    let inode = |socket: &Path| {
        fs::symlink_metadata(socket).ok().map(|found| (found.ino(), found.mtime(), found.mtime_nsec()))
    };
    let made = inode(&socket);
    assert!(made.is_some());
    lab.mounts[0].stop();
    assert_ne!(inode(&socket), made, "a mount that has ended leaves its keeper's socket");
    lab.mounts[0] = start_keeping(&lab, "kept4", 1);
    let (_, socket) = keeper_of(&lab.path("m0"));
    let made = inode(&socket);
    lab.mounts[0].kill();
    wait_for("the end of the keeper", || inode(&socket) != made);
    lab.stop();
}

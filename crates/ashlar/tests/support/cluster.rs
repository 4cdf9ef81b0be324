//! A file system of many processes on this machine: real roles, real mounts, ports of the loopback.

use super::{Ended, PATIENCE, ashlar, binary};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A role that runs.
pub struct Role {
    child: Child,
    log: PathBuf,
}

impl Role {
    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Tells it to stop, and waits until it has.
    #[track_caller]
    pub fn stop(&mut self) {
        if self.has_ended() {
            return;
        }
        // SAFETY: the child has not been waited for, so the id is its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() {
            assert!(Instant::now() < deadline, "does not stop: {}", self.text());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// What it has printed.
    pub fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// See the module.
pub struct Lab {
    dir: tempfile::TempDir,
    ports: Vec<u16>,
    pub manager: Role,
    pub meta: Role,
    pub storage: Vec<Role>,
    pub mounts: Vec<Role>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        for (at, mount) in self.mounts.iter_mut().enumerate() {
            let _ = mount.child.kill();
            let _ = mount.child.wait();
            let point = self.dir.path().join(format!("m{at}"));
            let _ = Command::new("umount").arg("-l").arg(point).stderr(Stdio::null()).status();
        }
        for role in self.storage.iter_mut().chain([&mut self.meta, &mut self.manager]) {
            let _ = role.child.kill();
            let _ = role.child.wait();
        }
    }
}

impl Lab {
    /// A new file system with so many storage servers and mounts, all running.
    #[track_caller]
    pub fn start(storage: usize, mounts: usize) -> Lab {
        let dir = tempfile::tempdir().unwrap();
        // Held until all are known, so that they are different ones.
        let held: Vec<TcpListener> =
            (0..storage + 2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = held.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        drop(held);
        let path = |name: &str| dir.path().join(name).display().to_string();
        let listen = format!("127.0.0.1:{}", ports[0]);
        ashlar(&[
            "init",
            "--listen",
            &listen,
            "--name",
            "first",
            "--state",
            &path("state"),
            "--identity",
            &path("first"),
        ])
        .expect(0);
        let manager = run(
            &dir,
            "manager",
            &["manager", "--state", &path("state"), "--identity", &path("first")],
            "serves",
        );
        for name in (0..storage).map(|at| format!("d{at}")).chain((0..mounts).map(|at| format!("m{at}"))) {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let joined = |role: &str, name: &str| {
            let token = ashlar(&["token", "--role", role, "--identity", &path("first")]).expect(0).stdout;
            ashlar(&["join", token.trim(), "--name", name, "--identity", &path(name)]).expect(0);
        };
        for at in 0..storage {
            joined("storage", &format!("oss{at}"));
        }
        joined("meta", "mds");
        for at in 0..mounts {
            joined("client", &format!("c{at}"));
        }
        let storage = (0..storage).map(|at| run_storage(&dir, &ports, at)).collect();
        let meta = run_meta(&dir, &ports);
        let mounts = (0..mounts).map(|at| run_mount(&dir, at)).collect();
        Lab { dir, ports, manager, meta, storage, mounts }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The arguments, with `@name` standing for a path here.
    #[track_caller]
    pub fn ashlar(&self, line: &str) -> Ended {
        let place = |word: &str| match word.strip_prefix('@') {
            Some(name) => self.path(name).display().to_string(),
            None => word.to_owned(),
        };
        ashlar(&line.split_whitespace().map(place).collect::<Vec<_>>())
    }

    /// Where manager, metadata and targets listen.
    pub fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// A free port of the loopback, as an address.
    pub fn free_address() -> String {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    #[track_caller]
    pub fn start_storage(&mut self, at: usize) {
        self.storage[at] = run_storage(&self.dir, &self.ports, at);
    }

    #[track_caller]
    pub fn start_meta(&mut self) {
        self.meta = run_meta(&self.dir, &self.ports);
    }

    #[track_caller]
    pub fn start_manager(&mut self) {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let args = ["manager", "--state", &path("state"), "--identity", &path("first")];
        self.manager = run(&self.dir, "manager", &args, "serves");
    }

    #[track_caller]
    pub fn start_mount(&mut self, at: usize) {
        self.mounts[at] = run_mount(&self.dir, at);
    }

    /// Stops everything, in the order an administrator would.
    #[track_caller]
    pub fn stop(&mut self) {
        self.mounts.iter_mut().for_each(Role::stop);
        self.meta.stop();
        self.storage.iter_mut().for_each(Role::stop);
        self.manager.stop();
    }
}

#[track_caller]
fn run_storage(dir: &tempfile::TempDir, ports: &[u16], at: usize) -> Role {
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (data, own) = (path(&format!("d{at}")), path(&format!("oss{at}")));
    let listen = format!("127.0.0.1:{}", ports[2 + at]);
    run(
        dir,
        &format!("oss{at}"),
        &["storage", "--data", &data, "--listen", &listen, "--identity", &own],
        "serves",
    )
}

#[track_caller]
fn run_meta(dir: &tempfile::TempDir, ports: &[u16]) -> Role {
    let path = |name: &str| dir.path().join(name).display().to_string();
    let listen = format!("127.0.0.1:{}", ports[1]);
    run(
        dir,
        "mds",
        &["meta", "--meta", &path("meta"), "--listen", &listen, "--identity", &path("mds")],
        "serves",
    )
}

#[track_caller]
fn run_mount(dir: &tempfile::TempDir, at: usize) -> Role {
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (point, own) = (path(&format!("m{at}")), path(&format!("c{at}")));
    run(dir, &format!("c{at}"), &["mount", &point, "--identity", &own, "--error-after", "60"], "mounted")
}

/// Starts a role and waits until it says `ready`.
#[track_caller]
fn run(dir: &tempfile::TempDir, name: &str, args: &[&str], ready: &str) -> Role {
    let log = dir.path().join(format!("{name}.log"));
    let out = File::create(&log).unwrap();
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    let mut role = Role { child: command.spawn().unwrap(), log };
    let deadline = Instant::now() + PATIENCE;
    while !role.text().contains(ready) {
        assert!(!role.has_ended() && Instant::now() < deadline, "{name} does not start: {}", role.text());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    role
}

//! A file system of many processes on this machine: real roles, real mounts, ports of the loopback.

use super::ports::free_ports;
use super::{Ended, PATIENCE, args_in, ashlar, binary};
use ashlar_env::Env;
use ashlar_rpc::net::{Caller, Epochs, TlsIdentity};
use parking_lot::RwLock;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// A role that runs.
pub struct Role {
    child: Child,
    log: PathBuf,
}

impl Drop for Role {
    fn drop(&mut self) {
        // What has ended already cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the id is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Has it do nothing any more, as a process that hangs.
    pub fn pause(&self) {
        // SAFETY: the child has not been waited for, so the id is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGSTOP) }, 0);
    }

    /// Processor time that it has used, ticks of 10 ms.
    pub fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // Behind the name, which may have anything in it (proc(5): utime and stime).
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Has it go on.
    pub fn resume(&self) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGCONT) }, 0);
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

    /// Whether it has said `ready`, or one of several with `|` between them.
    pub fn says(&self, ready: &str) -> bool {
        let text = self.text();
        ready.split('|').any(|ready| text.contains(ready))
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed.
    pub fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// See the module.
pub struct Lab {
    dir: tempfile::TempDir,
    host: String,
    /// The network of the first mount, if it is one of its own.
    split: Option<Split>,
    ports: Vec<u16>,
    pub manager: Role,
    pub meta: Role,
    pub storage: Vec<Role>,
    pub mounts: Vec<Role>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let roles = [&self.manager, &self.meta].into_iter().chain(&self.storage).chain(&self.mounts);
            roles.for_each(|role| eprintln!("{}:\n{}", role.log.display(), role.text()));
        }
        for (at, mount) in self.mounts.iter_mut().enumerate() {
            let _ = mount.child.kill();
            let _ = mount.child.wait();
            let point = self.dir.path().join(format!("m{at}"));
            let _ = Command::new("umount").arg("-l").arg(point).stderr(Stdio::null()).status();
        }
        let _ = fs::write(self.dir.path().join("mds.stop"), "");
        if let Ok(Ok(kept)) =
            fs::read_to_string(self.dir.path().join("mds.pid")).map(|text| text.trim().parse())
        {
            // SAFETY: its parent, which is not killed yet, has not waited for it, or has written the next one's id.
            unsafe { libc::kill(kept, libc::SIGKILL) };
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
        Lab::start_on("127.0.0.1", None, &[], (storage, mounts))
    }

    /// As [`Lab::start`], made with these arguments of `ashlar init` besides.
    #[track_caller]
    pub fn start_with(init: &[String], storage: usize, mounts: usize) -> Lab {
        Lab::start_on("127.0.0.1", None, init, (storage, mounts))
    }

    /// Runs a role; `@name` in its arguments stands for a path here. It has to be stopped before the rest.
    #[track_caller]
    pub fn run(&self, name: &str, line: &str, ready: &str) -> Role {
        let args = self.args(line);
        run(self.dir.path(), name, &args.iter().map(String::as_str).collect::<Vec<_>>(), ready)
    }

    /// As [`Lab::run`], by a clock that is so many seconds ahead (libfaketime).
    #[track_caller]
    pub fn run_at(&self, seconds: i64, name: &str, line: &str, ready: &str) -> Role {
        let mut command = Command::new(binary());
        start(self.dir.path(), name, at(seconds, command.args(self.args(line))), ready)
    }

    /// As [`Lab::run`], by a clock that [`Lab::set_clock`] sets while it runs.
    #[track_caller]
    pub fn run_by_clock(&self, name: &str, line: &str, ready: &str) -> Role {
        let mut command = Command::new(binary());
        command.args(self.args(line));
        by_other_clock(&mut command)
            .env("FAKETIME_TIMESTAMP_FILE", self.path("clock"))
            .env("FAKETIME_CACHE_DURATION", "1");
        start(self.dir.path(), name, &mut command, ready)
    }

    /// Sets the clock of those that go by it to so many days ahead, within a second.
    pub fn set_clock(&self, days: u32) {
        let new = self.path("clock.new");
        fs::write(&new, format!("+{days}d\n")).unwrap();
        fs::rename(new, self.path("clock")).unwrap();
    }

    /// As [`Lab::ashlar`], by such a clock.
    #[track_caller]
    pub fn ashlar_at(&self, seconds: i64, line: &str) -> Ended {
        super::finish(at(seconds, Command::new(binary()).args(self.args(line))))
    }

    /// The id of the process of a role.
    pub fn process(role: &Role) -> u32 {
        role.child.id()
    }

    fn args(&self, line: &str) -> Vec<String> {
        args_in(self.dir.path(), line)
    }

    /// As [`Lab::start`]; the first mount reaches the servers through a link of its own, which can be cut.
    #[track_caller]
    pub fn start_split(storage: usize, mounts: usize) -> Lab {
        let split = Split::make();
        let host = split.host();
        Lab::start_on(&host, Some(split), &[], (storage, mounts))
    }

    /// Cuts the first mount off, or connects it again.
    #[track_caller]
    pub fn cut(&self, is_cut: bool) {
        self.split.as_ref().unwrap().cut(is_cut);
    }

    #[track_caller]
    fn start_on(host: &str, split: Option<Split>, init: &[String], (storage, mounts): (usize, usize)) -> Lab {
        let dir = tempfile::tempdir().unwrap();
        let ports = free_ports(host, storage + 2);
        let path = |name: &str| dir.path().join(name).display().to_string();
        let listen = format!("{host}:{}", ports[0]);
        let (state, first) = (path("state"), path("first"));
        let mut args =
            vec!["init", "--listen", &listen, "--name", "first", "--state", &state, "--identity", &first];
        args.extend(init.iter().map(String::as_str));
        ashlar(&args).expect(0);
        let manager = run(
            dir.path(),
            "manager",
            &["manager", "--state", &path("state"), "--identity", &path("first")],
            "serves",
        );
        for name in (0..storage).map(|at| format!("d{at}")).chain((0..mounts).map(|at| format!("m{at}"))) {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let joined = |role: &str, name: &str| {
            // These tests are root on their clients; what others get is in `what_a_node_may_do_says_its_policy.rs`.
            let args = ["token", "--role", role, "--squash", "none", "--identity", &path("first")];
            let token = ashlar(&args).expect(0).stdout;
            ashlar(&["join", token.trim(), "--name", name, "--identity", &path(name)]).expect(0);
        };
        for at in 0..storage {
            joined("storage", &format!("oss{at}"));
        }
        joined("meta", "mds");
        for at in 0..mounts {
            joined("client", &format!("c{at}"));
        }
        let storage = (0..storage).map(|at| run_storage(dir.path(), host, &ports, at)).collect();
        let meta = run_meta(dir.path(), host, &ports);
        let mounts = (0..mounts).map(|at| run_mount(dir.path(), split.as_ref(), at)).collect();
        Lab { dir, host: host.to_owned(), split, ports, manager, meta, storage, mounts }
    }

    /// What a program calls servers with that is not ours, and has the identity of the node `name`: as a client.
    pub fn client_program(&self, name: &str) -> Arc<Caller> {
        let read = |file: &str| fs::read_to_string(self.path(name).join(file)).unwrap();
        let identity =
            TlsIdentity::from_pem(&read("certificate.pem"), &read("key.pem"), &read("authority.pem"))
                .unwrap();
        let mut instance = [0; 16];
        Env::os().entropy.fill(&mut instance);
        let identity = Arc::new(RwLock::new(Arc::new(identity)));
        let (role, epochs) = (ashlar_types::Role::Client, Arc::new(Epochs::default()));
        Arc::new(Caller::new(identity, role, instance, epochs))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The arguments, with `@name` standing for a path here.
    #[track_caller]
    pub fn ashlar(&self, line: &str) -> Ended {
        ashlar(&self.args(line))
    }

    /// Where manager, metadata and targets listen.
    pub fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// Where the manager (0), the metadata server (1) and the first storage server (2) listen.
    pub fn address(&self, at: usize) -> std::net::SocketAddr {
        format!("{}:{}", self.host, self.ports[at]).parse().unwrap()
    }

    /// An address of the loopback whose port and the next one are free.
    pub fn free_pair() -> String {
        format!("127.0.0.1:{}", free_ports("127.0.0.1", 2)[0])
    }

    /// A free port of the loopback, as an address.
    pub fn free_address() -> String {
        format!("127.0.0.1:{}", free_ports("127.0.0.1", 1)[0])
    }

    #[track_caller]
    pub fn start_storage(&mut self, at: usize) {
        self.storage[at] = run_storage(self.dir.path(), &self.host, &self.ports, at);
    }

    #[track_caller]
    pub fn start_meta(&mut self) {
        self.meta = run_meta(self.dir.path(), &self.host, &self.ports);
    }

    /// Kills the metadata server, and has it started again whenever it ends. This process must not do that while it has files of a mount open: what it starts
    /// closes them on the way, which waits for the metadata server.
    #[track_caller]
    pub fn keep_meta(&mut self) {
        self.keep_meta_with(":");
    }

    /// As [`Lab::keep_meta`], with commands of the shell that are carried out each time it has ended.
    #[track_caller]
    pub fn keep_meta_with(&mut self, between: &str) {
        self.meta.kill();
        let path = |name: &str| self.path(name).display().to_string();
        let listen = format!("{}:{}", self.host, self.ports[1]);
        let keeper = format!(
            "while [ ! -e {stop} ]; do {binary} meta --meta {meta} --listen {listen} --identity {own} & echo $! > {pid}.new; \
             mv {pid}.new {pid}; wait $!; {between}; done",
            stop = path("mds.stop"),
            binary = binary().display(),
            meta = path("meta"),
            own = path("mds"),
            pid = path("mds.pid"),
        );
        self.meta = start(self.dir.path(), "mds", Command::new("sh").args(["-c", &keeper]), "serves");
    }

    /// The process of the metadata server that is kept.
    pub fn kept_meta(&self) -> i32 {
        fs::read_to_string(self.path("mds.pid")).unwrap().trim().parse().unwrap()
    }

    /// Kills the metadata server that is kept, and waits until it serves again.
    #[track_caller]
    pub fn restart_kept_meta(&mut self) {
        let starts = |text: String| text.matches("serves").count();
        let before = starts(self.meta.text());
        // SAFETY: its parent waits for it and then writes the next one's id.
        unsafe { libc::kill(self.kept_meta(), libc::SIGKILL) };
        let deadline = Instant::now() + PATIENCE;
        while starts(self.meta.text()) == before {
            assert!(Instant::now() < deadline, "does not come back: {}", self.meta.text());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Has the metadata server not be kept any more, and stops everything.
    #[track_caller]
    pub fn stop_kept(&mut self) {
        self.mounts.iter_mut().for_each(Role::stop);
        fs::write(self.path("mds.stop"), "").unwrap();
        // SAFETY: as above.
        unsafe { libc::kill(self.kept_meta(), libc::SIGTERM) };
        let deadline = Instant::now() + PATIENCE;
        while !self.meta.has_ended() {
            assert!(Instant::now() < deadline, "does not stop: {}", self.meta.text());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        self.stop();
    }

    #[track_caller]
    pub fn start_manager(&mut self) {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let args = ["manager", "--state", &path("state"), "--identity", &path("first")];
        self.manager = run(self.dir.path(), "manager", &args, "serves");
    }

    #[track_caller]
    pub fn start_mount(&mut self, at: usize) {
        self.mounts[at] = run_mount(self.dir.path(), self.split.as_ref(), at);
    }

    /// Stops everything, and again and again after further starts of the storage servers, until no target has chunks of chains that are on others; the caller has
    /// seen to it that they are to be deleted. What a target has is looked up in its index: slots that are free again may well keep their bytes.
    #[track_caller]
    pub fn stop_without_leftovers(&mut self) {
        let data: String = (0..self.storage.len()).map(|at| format!(" --data @d{at}")).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.stop();
            let checked = self.ashlar(&format!("fsck --quick --json --state @state --meta @meta{data}"));
            if checked.code == Some(0) {
                return;
            }
            let problems = checked.stdout.lines().filter(|line| line.contains("\"class\""));
            let is_left_over = |line: &str| line.contains("chunk-misplaced");
            let others: Vec<&str> = problems.filter(|line| !is_left_over(line)).collect();
            assert!(checked.code == Some(4) && others.is_empty(), "{}", checked.all());
            assert!(Instant::now() < deadline, "chunks stay where their chains were: {}", checked.all());
            self.start_manager();
            (0..self.storage.len()).for_each(|at| self.start_storage(at));
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
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

/// Has a command go by a clock that is so many seconds ahead. The library is named, and not its program `faketime`: that one may stay between us and the command.
fn at(seconds: i64, command: &mut Command) -> &mut Command {
    by_other_clock(command).env("FAKETIME", format!("{seconds:+}s"))
}

fn by_other_clock(command: &mut Command) -> &mut Command {
    command
        .env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1")
        // Clocks that measure how long something takes go on as they do.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1")
}

#[track_caller]
fn run_storage(dir: &Path, host: &str, ports: &[u16], at: usize) -> Role {
    let path = |name: &str| dir.join(name).display().to_string();
    let (data, own) = (path(&format!("d{at}")), path(&format!("oss{at}")));
    let listen = format!("{host}:{}", ports[2 + at]);
    run(
        dir,
        &format!("oss{at}"),
        &["storage", "--data", &data, "--listen", &listen, "--identity", &own],
        "serves",
    )
}

#[track_caller]
fn run_meta(dir: &Path, host: &str, ports: &[u16]) -> Role {
    let path = |name: &str| dir.join(name).display().to_string();
    let listen = format!("{host}:{}", ports[1]);
    run(
        dir,
        "mds",
        &["meta", "--meta", &path("meta"), "--listen", &listen, "--identity", &path("mds")],
        "serves|keeps copies",
    )
}

#[track_caller]
fn run_mount(dir: &Path, split: Option<&Split>, at: usize) -> Role {
    let path = |name: &str| dir.join(name).display().to_string();
    let (point, own) = (path(&format!("m{at}")), path(&format!("c{at}")));
    let args = ["mount", &point, "--identity", &own, "--error-after", "60"];
    match split.filter(|_| at == 0) {
        None => run(dir, &format!("c{at}"), &args, "mounted"),
        Some(split) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{}", split.name)).arg(binary()).args(args);
            start(dir, &format!("c{at}"), &mut command, "mounted")
        }
    }
}

/// Starts a role and waits until it says `ready`, or one of several with `|` between them.
#[track_caller]
pub fn run(dir: &Path, name: &str, args: &[&str], ready: &str) -> Role {
    start(dir, name, Command::new(binary()).args(args), ready)
}

#[track_caller]
pub fn start(dir: &Path, name: &str, command: &mut Command, ready: &str) -> Role {
    let mut role = spawn(dir, name, command);
    let deadline = Instant::now() + PATIENCE;
    while !role.says(ready) {
        assert!(!role.has_ended() && Instant::now() < deadline, "{name} does not start: {}", role.text());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    role
}

/// Starts a role, which may take its time.
#[track_caller]
pub fn spawn(dir: &Path, name: &str, command: &mut Command) -> Role {
    let log = dir.join(format!("{name}.log"));
    let out = File::create(&log).unwrap();
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    Role { child: command.spawn().unwrap(), log }
}

/// A network of its own for one mount, with a link to this machine's.
struct Split {
    name: String,
    number: u32,
}

impl Drop for Split {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}

impl Split {
    #[track_caller]
    fn make() -> Split {
        // Tests of a process run at the same time.
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let made = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let number = (std::process::id() * 4 + made % 4) % 60_000;
        let split = Split { name: format!("ashlar-{number}"), number };
        let (here, there) = (split.host(), split.address(2));
        let (link, name) = (split.link(), &split.name);
        for line in [
            format!("netns add {name}"),
            format!("link add {link} type veth peer name eth0 netns {name}"),
            format!("addr add {here}/30 dev {link}"),
            format!("link set {link} up"),
            format!("-n {name} addr add {there}/30 dev eth0"),
            format!("-n {name} link set eth0 up"),
        ] {
            ip(&line);
        }
        split
    }

    fn link(&self) -> String {
        format!("ash{}", self.number)
    }

    fn address(&self, last: u32) -> String {
        format!("10.{}.{}.{last}", 200 + self.number / 1200, self.number % 240)
    }

    fn host(&self) -> String {
        self.address(1)
    }

    #[track_caller]
    fn cut(&self, is_cut: bool) {
        ip(&format!("-n {} link set eth0 {}", self.name, if is_cut { "down" } else { "up" }));
    }
}

#[track_caller]
fn ip(line: &str) {
    let ended = Command::new("ip").args(line.split(' ')).status().unwrap();
    assert!(ended.success(), "ip {line}");
}

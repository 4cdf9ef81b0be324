//! A file system of machines that each have a disk of their own, with everything on it that a server must not forget: the power of all of them can be cut at once.

use super::cluster::{Lab, Role, spawn, start};
use super::disk::{Disk, Format};
use super::{Ended, PATIENCE, args_in, ashlar, binary, soon};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process that was refused rests before it is started again, as an init system does.
const REST: Duration = Duration::from_millis(500);

/// How many there are of what.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Managers, each with a member of an etcd beside it.
    pub managers: usize,
    pub meta: usize,
    pub storage: usize,
    /// Further arguments of each mount.
    pub mounts: &'static [&'static str],
}

/// A process of a machine.
struct Process {
    name: String,
    args: Vec<String>,
    ready: &'static str,
    role: Option<Role>,
}

impl Process {
    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.args(&self.args);
        command
    }
}

/// See the module.
pub struct Machines {
    disks: Vec<Disk>,
    /// Those without which nobody starts: managers and members of etcd.
    managers: Vec<Process>,
    servers: Vec<Process>,
    mounts: Vec<Process>,
    shape: Shape,
    /// It goes last: the disks are mounted in it.
    dir: tempfile::TempDir,
}

impl Drop for Machines {
    fn drop(&mut self) {
        let all = self.mounts.iter().chain(&self.servers).chain(&self.managers);
        if std::thread::panicking() {
            for process in all {
                let text = process.role.as_ref().map(Role::text).unwrap_or_default();
                eprintln!(
                    "{}:\n{}",
                    process.name,
                    text.lines().rev().take(60).collect::<Vec<_>>().join("\n")
                );
            }
        }
        self.mounts.iter_mut().for_each(|mount| drop(mount.role.take()));
        self.unmount();
        // What holds a disk is gone before the disk.
        self.servers.clear();
        self.managers.clear();
    }
}

impl Machines {
    /// A new file system of which everything runs, with two copies of everything.
    #[track_caller]
    pub fn start(shape: Shape) -> Machines {
        let dir = tempfile::tempdir().unwrap();
        let (disks, managers, servers, mounts) = Default::default();
        let mut machines = Machines { dir, disks, managers, servers, mounts, shape };
        machines.make_managers();
        for (role, count) in [("storage", shape.storage), ("meta", shape.meta)] {
            (1..=count).for_each(|at| machines.make_server(role, &format!("{role}{at}")));
        }
        machines.run("pool copies default 2 --identity @manager1/identity").expect(0);
        for at in 1..=shape.meta {
            machines.run(&format!("copies set meta{at} 2 --identity @manager1/identity")).expect(0);
        }
        for (at, more) in shape.mounts.iter().enumerate() {
            machines.join("client --squash none", &format!("c{at}"), &format!("@c{at}"));
            fs::create_dir(machines.path(&format!("m{at}"))).unwrap();
            let args = format!("mount @m{at} --identity @c{at} --error-after 60 {more}");
            machines.mounts.push(machines.process(format!("c{at}"), &args, "mounted"));
        }
        machines.start_mounts();
        soon(PATIENCE, "shards are at all metadata servers", || {
            let servers = machines.servers_of_shards();
            let has_its_part = |at: usize| {
                let name = format!("meta{at}");
                servers.iter().filter(|server| **server == name).count() >= servers.len() / shape.meta
            };
            (1..=shape.meta).all(has_its_part)
        });
        machines
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn args(&self, line: &str) -> Vec<String> {
        args_in(self.dir.path(), line)
    }

    /// Runs a command; `@name` stands for a path here.
    #[track_caller]
    pub fn run(&self, line: &str) -> Ended {
        ashlar(&self.args(line))
    }

    fn process(&self, name: String, line: &str, ready: &'static str) -> Process {
        Process { name, args: self.args(line), ready, role: None }
    }

    #[track_caller]
    fn start_process(&self, mut process: Process) -> Process {
        let role = start(self.dir.path(), &process.name, &mut process.command(), process.ready);
        process.role = Some(role);
        process
    }

    #[track_caller]
    fn make_disk(&mut self, name: &str) {
        // Both kinds, in turns: what a power cut takes from them is not the same.
        let format = if self.disks.len().is_multiple_of(2) { Format::Ext4 } else { Format::Xfs };
        let (image, point) = (self.path(&format!("{name}.image")), self.path(name));
        self.disks.push(Disk::mount_as(format, &image, point));
    }

    #[track_caller]
    fn join(&self, role: &str, name: &str, identity: &str) {
        let token = self.run(&format!("token --role {role} --identity @manager1/identity")).expect(0).stdout;
        self.run(&format!("join {} --name {name} --identity {identity}", token.trim())).expect(0);
    }

    #[track_caller]
    fn make_managers(&mut self) {
        let program = std::env::var("ASHLAR_ETCD").ok();
        let named =
            |option: &str| program.as_ref().map(|path| format!("{option} {path}")).unwrap_or_default();
        let (for_init, for_member) = (named("--etcd-program"), named("--program"));
        for at in 1..=self.shape.managers {
            let name = format!("manager{at}");
            self.make_disk(&name);
            let places = format!("--state @{name}/state --identity @{name}/identity");
            let (listen, etcd) = (Lab::free_address(), Lab::free_pair());
            let member = format!("etcd run {for_member} --state @{name}/state");
            let member = self.process(format!("etcd{at}"), &member, "serving client");
            let manager =
                self.process(name.clone(), &format!("manager {places} --listen {listen}"), "serves");
            if at == 1 {
                let line =
                    format!("init --name {name} {places} --listen {listen} --with-etcd {etcd} {for_init}");
                self.run(&line).expect(0);
                let member = self.start_process(member);
                self.managers.push(member);
                let manager = self.start_process(manager);
                self.managers.push(manager);
                continue;
            }
            let token = self.run("token --role manager,admin --identity @manager1/identity").expect(0).stdout;
            self.run(&format!("join {} --name {name} {places}", token.trim())).expect(0);
            let manager = self.start_process(manager);
            self.managers.push(manager);
            self.run(&format!("etcd join --listen {etcd} {places}")).expect(0);
            let member = self.start_process(member);
            self.managers.push(member);
            soon(PATIENCE, "the member of etcd counts", || {
                let told = self.run(&format!("etcd list --json --state @{name}/state")).expect(0).stdout;
                let members: Vec<Value> = serde_json::from_str(&told).unwrap();
                members.iter().any(|member| member["name"] == *name && member["standing"] == "counts")
            });
        }
    }

    #[track_caller]
    fn make_server(&mut self, role: &str, name: &str) {
        self.make_disk(name);
        self.join(role, name, &format!("@{name}/identity"));
        let data = if role == "meta" { "--meta" } else { "--data" };
        let line = format!(
            "{role} {data} @{name}/data --listen {} --identity @{name}/identity",
            Lab::free_address()
        );
        let process = self.process(name.to_owned(), &line, "serves|keeps copies");
        let process = self.start_process(process);
        self.servers.push(process);
    }

    #[track_caller]
    fn start_mounts(&mut self) {
        let mounts = std::mem::take(&mut self.mounts);
        self.mounts = mounts.into_iter().map(|mount| self.start_process(mount)).collect();
    }

    fn unmount(&self) {
        for at in 0..self.shape.mounts.len() {
            let point = self.path(&format!("m{at}"));
            let _ = Command::new("umount").arg("-l").arg(point).stderr(Stdio::null()).status();
        }
    }

    /// Ends the processes of the mounts, and takes the mounts away.
    pub fn kill_mounts(&mut self) {
        // What has ended cannot be killed once more.
        self.mounts.iter_mut().for_each(|mount| drop(mount.role.take()));
        self.unmount();
    }

    /// Cuts the power of all servers at once: what is not on their disks is lost, and their processes are gone.
    #[track_caller]
    pub fn cut_power(&mut self) {
        // ORDER: the disks first: nothing that a process writes which is killed gets to one any more.
        std::thread::scope(|scope| {
            for disk in &mut self.disks {
                scope.spawn(|| disk.fail());
            }
        });
        for role in self.servers.iter_mut().chain(&mut self.managers).filter_map(|one| one.role.as_mut()) {
            if !role.has_ended() {
                role.signal(libc::SIGKILL);
            }
        }
        for process in self.servers.iter_mut().chain(&mut self.managers) {
            process.role = None;
        }
    }

    /// The power is back: all servers start at the same time. One that is refused is started again, as an init system does. Tells how long it took.
    #[track_caller]
    pub fn power_on(&mut self) -> Duration {
        self.power_on_but(&[])
    }

    /// As [`Machines::power_on`], of those that do not run yet, but for those that are `away`.
    #[track_caller]
    pub fn power_on_but(&mut self, away: &[&str]) -> Duration {
        let all = self.managers.iter_mut().chain(&mut self.servers);
        let mut all: Vec<&mut Process> =
            all.filter(|one| one.role.is_none() && !away.contains(&one.name.as_str())).collect();
        let is_meant = |disk: &&mut Disk| all.iter().any(|one| disk.is_at(&self.dir.path().join(&one.name)));
        self.disks.iter_mut().filter(is_meant).for_each(Disk::repair);
        let begun = Instant::now();
        let dir = self.dir.path().to_owned();
        for process in &mut all {
            process.role = Some(spawn(&dir, &process.name, &mut process.command()));
        }
        while !all.iter().all(|process| process.role.as_ref().is_some_and(|role| role.says(process.ready))) {
            for process in &mut all {
                let Some(role) = process.role.as_mut() else { continue };
                if !role.has_ended() {
                    continue;
                }
                let text = role.text();
                assert!(begun.elapsed() < PATIENCE && !text.contains("panicked"), "{}: {text}", process.name);
                eprintln!("{} is started again: {}", process.name, text.trim());
                std::thread::sleep(REST);
                process.role = Some(spawn(&dir, &process.name, &mut process.command()));
            }
            let late = || {
                let is_late = |process: &&&mut Process| {
                    process.role.as_ref().is_some_and(|role| !role.says(process.ready))
                };
                all.iter().filter(is_late).map(|process| process.name.as_str()).collect::<Vec<_>>().join(", ")
            };
            assert!(begun.elapsed() < PATIENCE, "these do not serve: {}", late());
            std::thread::sleep(Duration::from_millis(20));
        }
        begun.elapsed()
    }

    /// Mounts again at all mount points.
    #[track_caller]
    pub fn mount_again(&mut self) {
        self.start_mounts();
    }

    fn asked(&self, line: &str) -> Option<Vec<Value>> {
        let ended = self.run(&format!("{line} --json --identity @manager1/identity"));
        serde_json::from_str(&ended.stdout).ok().filter(|_| ended.code == Some(0))
    }

    /// What lacks a copy, in words; nothing if nothing does.
    pub fn lacking(&self) -> Option<String> {
        let (Some(chains), Some(groups)) = (self.asked("chain list"), self.asked("copies list")) else {
            return Some("managers do not tell".into());
        };
        let short = chains.iter().filter(|chain| chain["is_short"] != false).count();
        let has_two = |group: &&Value| group["copies"].as_array().map_or(0, Vec::len) >= 2;
        let groups = groups.iter().filter(has_two).count();
        let is_full = short == 0 && !chains.is_empty() && groups == self.shape.meta;
        let told = || {
            let count = chains.len();
            format!(
                "{short} of {count} chains lack a copy, {groups} of {} metadata servers have two",
                self.shape.meta
            )
        };
        (!is_full).then(told)
    }

    /// Waits until everything has two copies; tells how long that took.
    #[track_caller]
    pub fn wait_for_copies(&self, most: Duration) -> Duration {
        let begun = Instant::now();
        while let Some(lacking) = self.lacking() {
            assert!(begun.elapsed() < most, "after {most:?}: {lacking}");
            std::thread::sleep(Duration::from_millis(200));
        }
        begun.elapsed()
    }

    /// The metadata server of each shard, in the order of shards.
    #[track_caller]
    pub fn servers_of_shards(&self) -> Vec<String> {
        let mut shards = self.asked("shard list").unwrap();
        shards.sort_by_key(|shard| shard["id"].as_u64());
        shards.iter().map(|shard| shard["node"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Stops everything in good order, and checks all of it. Only problems may be found that `may_be` says, and they can be repaired.
    #[track_caller]
    pub fn stop_and_check(&mut self, may_be: impl Fn(&str) -> bool) {
        let stop = |process: &mut Process| process.role.as_mut().into_iter().for_each(Role::stop);
        self.mounts.iter_mut().for_each(stop);
        let (meta, storage): (Vec<_>, Vec<_>) =
            self.servers.iter_mut().partition(|process| process.name.starts_with("meta"));
        meta.into_iter().chain(storage).for_each(stop);
        let is_member = |process: &&mut Process| process.name.starts_with("etcd");
        self.managers.iter_mut().filter(|process| !is_member(process)).for_each(stop);
        let of = |option: &str, name: &str, count: usize| -> String {
            (1..=count).map(|at| format!(" --{option} @{name}{at}/data")).collect()
        };
        let (meta, data) = (of("meta", "meta", self.shape.meta), of("data", "storage", self.shape.storage));
        let line = format!("fsck --state @manager1/state{meta}{data}");
        let checked = self.run(&line);
        let mut problems = checked.stdout.lines().filter(|line| line.starts_with('['));
        assert!(matches!(checked.code, Some(0 | 4)) && problems.all(may_be), "{}", checked.all());
        if checked.code == Some(4) {
            let repaired = self.run(&format!("{line} --repair"));
            assert!(repaired.code == Some(1), "{}", repaired.all());
            self.run(&line).expect(0);
        }
        self.managers.iter_mut().for_each(stop);
    }
}

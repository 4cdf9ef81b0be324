//! Goal: disks that two storage servers reach are served by one of them at a time, by each of its own; when one is stopped, hangs or is told to, the other one goes on within seconds with what was synced, and no call fails.
//! Nothing is taken over before a program of the site has fenced who had it. Method: two storage servers and two mounts as processes; each disk is a file behind two loop devices, one for each server, so that the
//! kernel does not know that they are the same. A watcher looks all the time whether both have one mounted, and is the site's fence.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::cluster::{Lab, Role};
use support::disk::cut_power;
use support::{PATIENCE, can_mount, is_mounted, load, soon};

const FILE_BYTES: usize = 300_000;
const SERVERS: [&str; 2] = ["oss8", "oss9"];
const DISKS: [&str; 2] = ["left", "right"];
/// What makes the file system of each: one of either kind that targets are on.
const FORMATS: [[&str; 3]; 2] = [["mkfs.ext4", "-q", "-F"], ["mkfs.xfs", "-q", "-f"]];

#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The disks, each with a device for each server.
struct Shared {
    devices: Vec<[String; 2]>,
    uuids: Vec<String>,
}

impl Shared {
    fn make(lab: &Lab) -> Shared {
        let device = |image: &Path| output(Command::new("losetup").arg("--find").arg("--show").arg(image));
        let disk = |(name, [program, options @ ..]): (&&str, [&str; 3])| {
            let image = lab.path(name).with_extension("image");
            File::create(&image).unwrap().set_len(512 << 20).unwrap();
            output(Command::new(program).args(options).arg(&image));
            SERVERS.map(|server| {
                fs::create_dir(point(lab, server, name)).unwrap();
                device(&image)
            })
        };
        let devices: Vec<[String; 2]> = DISKS.iter().zip(FORMATS).map(disk).collect();
        let uuid = |[device, _]: &[String; 2]| {
            output(Command::new("blkid").args(["-p", "-o", "value", "-s", "UUID", device]))
        };
        let uuids = devices.iter().map(uuid).collect();
        Shared { devices, uuids }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for device in self.devices.iter().flatten() {
            let _ = Command::new("umount").args(["-q", "-l", device]).status();
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
    }
}

/// Where a server mounts a disk.
fn point(lab: &Lab, server: &str, disk: &str) -> PathBuf {
    lab.path(&format!("{server}-{disk}"))
}

/// What the site's fence is told.
struct Fence {
    asked: PathBuf,
    done: PathBuf,
    /// What to do about whoever is to be fenced: nothing, while it fails.
    works: AtomicBool,
    /// The process to be killed.
    process: Mutex<Option<(usize, u32)>>,
    fenced: AtomicU64,
}

impl Fence {
    fn make(lab: &Lab) -> Fence {
        let (asked, done) = (lab.path("fence.asked"), lab.path("fence.done"));
        let script = format!(
            "#!/bin/sh\nrm -f {done}\necho \"$1\" >> {asked}\nfor turn in $(seq 100); do\n  if [ -e {done} ]; then grep -q yes {done}; exit; fi\n  sleep 0.1\ndone\nexit 1\n",
            done = done.display(),
            asked = asked.display()
        );
        let path = lab.path("fence");
        fs::write(&path, script).unwrap();
        output(Command::new("chmod").arg("+x").arg(&path));
        let works = AtomicBool::new(true);
        Fence { asked, done, works, process: Mutex::default(), fenced: AtomicU64::new(0) }
    }

    fn times_asked(&self) -> usize {
        fs::read_to_string(&self.asked).unwrap_or_default().lines().count()
    }

    /// Switches a server off: what was not synced is lost.
    fn answer(&self, lab: &Lab, server: &str) {
        let known = self.process.lock().unwrap().take_if(|(at, _)| SERVERS[*at] == server);
        let Some((_, process)) = known.filter(|_| self.works.load(SeqCst)) else {
            return fs::write(&self.done, "no").unwrap();
        };
        for disk in DISKS {
            let point = point(lab, server, disk);
            if is_mounted(&point) {
                cut_power(&point);
            }
        }
        // SAFETY: kill takes no pointer; its parent has not waited for it.
        unsafe { libc::kill(process as i32, libc::SIGKILL) };
        for disk in DISKS {
            let point = point(lab, server, disk);
            soon(PATIENCE, "the disk of a dead server is free", || {
                !is_mounted(&point) || Command::new("umount").arg(&point).status().unwrap().success()
            });
        }
        self.fenced.fetch_add(1, SeqCst);
        fs::write(&self.done, "yes").unwrap();
    }
}

/// Ends the watch, also when something else fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Watches until it is told to end: answers the fence, and that no disk is mounted twice.
fn watch(lab: &Lab, fence: &Fence, is_done: &AtomicBool) {
    let mut answered = 0;
    while !is_done.load(SeqCst) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        for disk in DISKS {
            let has = |server: &&&str| {
                let shown = point(lab, server, disk).display().to_string();
                mounts.lines().any(|line| line.split(' ').nth(4) == Some(&shown))
            };
            let have: Vec<_> = SERVERS.iter().filter(has).collect();
            assert!(have.len() < 2, "{disk} is mounted by both");
        }
        let asked = fs::read_to_string(&fence.asked).unwrap_or_default();
        if let Some(server) = asked.lines().nth(answered) {
            answered += 1;
            fence.answer(lab, server);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn start_server(lab: &Lab, shared: &Shared, at: usize, address: &str) -> Role {
    let place = |disk: usize| {
        let dir = point(lab, SERVERS[at], DISKS[disk]);
        format!("{}={}", dir.display(), shared.devices[disk][at])
    };
    let line = format!(
        "storage --shared {} --standby {} --fence @fence --pool shared --listen {address} --identity @{}",
        place(at),
        place(1 - at),
        SERVERS[at]
    );
    lab.run(SERVERS[at], &line, "serves")
}

/// The target on each disk, and who has it.
fn list(lab: &Lab, shared: &Shared) -> Vec<(u64, String)> {
    let listed = lab.ashlar("disk list --json --identity @first").expect(0).stdout;
    let disks: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let of = |disk: &serde_json::Value| {
        let server = disk["server"]["name"].as_str().unwrap_or_default().to_owned();
        let is_used = disk["state"] == "used";
        (disk["target"].as_u64().unwrap_or_default(), if is_used { server } else { String::new() })
    };
    let disks = disks.as_array().unwrap();
    let find = |uuid: &String| disks.iter().find(|disk| disk["disk"] == **uuid).map(of);
    shared.uuids.iter().filter_map(find).collect()
}

#[track_caller]
fn wait_for((lab, shared): (&Lab, &Shared), what: &str, owners: [&str; 2]) {
    let mut have = Vec::new();
    let deadline = std::time::Instant::now() + PATIENCE;
    while std::time::Instant::now() < deadline {
        have = list(lab, shared);
        if have.len() == 2
            && have.iter().zip(owners).all(|((target, has), owner)| *target > 0 && has == owner)
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let events = lab.ashlar("event list --identity @first").all();
    let logs =
        SERVERS.map(|server| fs::read_to_string(lab.path(server).with_extension("log")).unwrap_or_default());
    panic!("{what}: {have:?}\n{events}\n{}", logs.join("\n\n"));
}

fn content(of: usize, turn: u64) -> Vec<u8> {
    let seed = (of as u64 * 1_000_003 + turn).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..FILE_BYTES as u64).map(|at| (seed.rotate_left((at % 61) as u32) >> 13) as u8).collect()
}

/// A file is written and synced, and read through the other mount.
fn work(lab: &Lab, of: usize, turn: u64) {
    let path = |mount: usize| lab.path(&format!("m{}/on-shared/w{of}-{turn}", mount % 2));
    let mut file = File::create(path(of)).unwrap();
    file.write_all(&content(of, turn)).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(path(of + 1)).unwrap() == content(of, turn), "w{of}-{turn} is not what was written");
}

fn check(lab: &Lab, turns: &[u64]) {
    for (of, turns) in turns.iter().enumerate() {
        for turn in 0..*turns {
            let path = lab.path(&format!("m{}/on-shared/w{of}-{turn}", (of + 1) % 2));
            assert!(fs::read(&path).unwrap() == content(of, turn), "{} has changed", path.display());
        }
    }
}

/// A file system with a pool on the shared disks.
fn start() -> (Lab, Shared, Fence, Vec<String>) {
    let lab = Lab::start(1, 2);
    lab.ashlar("pool add shared --identity @first").expect(0);
    for server in SERVERS {
        let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
        lab.ashlar(&format!("join {} --name {server} --identity @{server}", token.trim())).expect(0);
    }
    let (shared, fence) = (Shared::make(&lab), Fence::make(&lab));
    let addresses = SERVERS.iter().map(|_| Lab::free_address()).collect();
    (lab, shared, fence, addresses)
}

#[test]
fn one_server_at_a_time_serves_a_disk_and_the_other_one_goes_on_with_it() {
    if !can_mount("a shared disk") {
        return;
    }
    let (mut lab, shared, fence, addresses) = start();
    let mut servers: Vec<Role> = (0..2).map(|at| start_server(&lab, &shared, at, &addresses[at])).collect();
    wait_for((&lab, &shared), "each has its own", SERVERS);
    let dir = lab.path("m0/on-shared");
    fs::create_dir(&dir).unwrap();
    let line = format!("layout set --pool shared --inline-size 0 --stripe-count 0 {}", dir.display());
    soon(PATIENCE, "the directory takes the layout", || lab.ashlar(&line).code == Some(0));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = Ending(&is_done);
        let (at_lab, at_fence, is_over) = (&lab, &fence, &is_done);
        let watcher = scope.spawn(move || watch(at_lab, at_fence, is_over));
        let under_load = |first: &[u64], during: &mut dyn FnMut(&dyn Fn())| {
            load::under_load(first, 8, |of, turn| work(&lab, of, turn), |goes_on| during(goes_on))
        };
        // In good order, and back.
        let target = list(&lab, &shared)[0].0;
        let (turns, stall) = under_load(&[0; 4], &mut |goes_on| {
            lab.ashlar(&format!("disk move {target} --to oss9 --identity @first")).expect(0);
            wait_for((&lab, &shared), "the disk is moved", ["oss9", "oss9"]);
            goes_on();
            lab.ashlar(&format!("disk move {target} --to oss8 --identity @first")).expect(0);
            wait_for((&lab, &shared), "the disk is moved back", SERVERS);
        });
        eprintln!("moved: the longest turn took {stall:?}");
        assert_eq!(fence.times_asked(), 0);
        // A server that is stopped in good order lets go of what it has.
        let (turns, stall) = under_load(&turns, &mut |goes_on| {
            servers[0].stop();
            wait_for((&lab, &shared), "a server was stopped", ["oss9", "oss9"]);
            goes_on();
            servers[0] = start_server(&lab, &shared, 0, &addresses[0]);
            let back = format!("disk move {target} --to oss8 --identity @first");
            soon(PATIENCE, "managers have heard of it", || lab.ashlar(&back).code == Some(0));
            wait_for((&lab, &shared), "it is back", SERVERS);
        });
        eprintln!("stopped: the longest turn took {stall:?}");
        assert_eq!(fence.times_asked(), 0);
        // One that hangs is fenced.
        let (turns, stall) = under_load(&turns, &mut |goes_on| {
            *fence.process.lock().unwrap() = Some((1, servers[1].id()));
            servers[1].pause();
            wait_for((&lab, &shared), "a server hangs", ["oss8", "oss8"]);
            goes_on();
        });
        eprintln!("hung and fenced: the longest turn took {stall:?}");
        assert_eq!(fence.fenced.load(SeqCst), 1);
        check(&lab, &turns);
        // Where nobody can be fenced nothing is taken over; who goes on after all lets go in good order.
        servers[1].kill();
        servers[1] = start_server(&lab, &shared, 1, &addresses[1]);
        let (turns, stall) = under_load(&turns, &mut |_| {
            fence.works.store(false, SeqCst);
            let before = fence.times_asked();
            servers[0].pause();
            soon(PATIENCE, "it is tried again", || fence.times_asked() > before + 1);
            assert!(list(&lab, &shared).iter().all(|(_, has)| has.is_empty()), "it was taken over unfenced");
            servers[0].resume();
            wait_for((&lab, &shared), "it goes on", ["oss9", "oss9"]);
        });
        eprintln!("hung and not fenced: the longest turn took {stall:?}");
        let events = lab.ashlar("event list --identity @first").expect(0).stdout;
        for kind in ["disk-moved", "fence-begun", "server-fenced", "fence-failed"] {
            assert!(events.contains(kind), "{kind}: {events}");
        }
        check(&lab, &turns);
        drop(ending);
        watcher.join().unwrap();
    });
    servers.iter_mut().for_each(Role::stop);
    assert!(DISKS.iter().all(|disk| !SERVERS.iter().any(|server| is_mounted(&point(&lab, server, disk)))));
    lab.mounts.iter_mut().for_each(Role::stop);
    lab.stop();
    let data: Vec<String> = DISKS
        .iter()
        .enumerate()
        .map(|(disk, name)| {
            let point = point(&lab, SERVERS[0], name);
            output(Command::new("mount").arg(&shared.devices[disk][0]).arg(&point));
            format!("--data {}", point.display())
        })
        .collect();
    lab.ashlar(&format!("fsck --state @state --meta @meta --data @d0 {}", data.join(" "))).expect(0);
}

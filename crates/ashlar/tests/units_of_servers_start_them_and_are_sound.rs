//! Goal: the systemd units in packaging/ are sound, start the roles as the guide says, and are told when they serve and when they stop. Method:
//! systemd-analyze over the units as they are; their command lines run with a socket in the place of systemd's.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::cluster::Lab;
use support::{PATIENCE, binary, can_mount, can_start, has_package, is_mounted};

const ROLES: [&str; 3] = ["manager", "meta", "storage"];

fn unit(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The values of a key of a unit.
fn values(unit: &str, key: &str) -> Vec<String> {
    let of_line = |line: &str| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
    unit.lines().filter_map(of_line).collect()
}

fn analyze(args: &[&str], path: &Path) -> Option<(bool, String)> {
    let output = Command::new("systemd-analyze").args(args).arg(path).stdin(Stdio::null()).output().ok()?;
    let both = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&both).into_owned()))
}

#[test]
fn systemd_finds_nothing_wrong_and_little_that_is_exposed() {
    if !has_package("a check of the units", "systemd", can_start("systemd-analyze", "--version")) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let check = |name: &str, text: &str| {
        let path = dir.path().join(name);
        // The program is not installed where the unit has it.
        fs::write(&path, text.replace("/usr/bin/ashlar", &binary().display().to_string())).unwrap();
        (path.clone(), analyze(&["verify", "--man=no"], &path).unwrap())
    };
    for role in ROLES.into_iter().chain(["etcd", "console"]) {
        let name = format!("ashlar-{role}.service");
        let (path, (is_sound, said)) = check(&name, &unit(&name));
        assert!(is_sound && !said.contains("ashlar"), "{name}: {said}");
        // 22 today, of 100.
        let exposed = analyze(&["security", "--offline=true", "--threshold=25"], &path).unwrap();
        assert!(exposed.0, "{name}: {}", exposed.1);
    }
    // Mounts are seen by all: those units have no name space of their own. An instance of each is what can be checked.
    for unit_of_mounts in ["ashlar", "ashlar-mount"] {
        let instance = format!("{unit_of_mounts}@mnt-ashlar.service");
        let (_, (is_sound, said)) = check(&instance, &unit(&format!("{unit_of_mounts}@.service")));
        assert!(is_sound && !said.contains("ashlar"), "{said}");
    }
    // It would find something.
    let wrong = unit("ashlar-meta.service").replace("Type=notify", "Type=notified");
    let (_, (_, said)) = check("ashlar-wrong.service", &wrong);
    assert!(said.contains("notified"), "{said}");
}

/// A role as its unit starts it, and the socket on which it tells how it is.
struct Started {
    child: Child,
    socket: UnixDatagram,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Started {
    #[track_caller]
    fn expect(&self, state: &str) {
        let mut text = [0; 256];
        let got = self.socket.recv(&mut text).unwrap_or_else(|error| panic!("not told {state}: {error}"));
        assert_eq!(std::str::from_utf8(&text[..got]).unwrap(), state);
    }
}

#[test]
fn the_unit_of_etcd_runs_the_member_and_is_told_when_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let address = Lab::free_pair();
    let program = std::env::var("ASHLAR_ETCD").unwrap_or_else(|_| "etcd".to_owned());
    let is_named = program != "etcd";
    let (listen, state, own) = (Lab::free_address(), at("state"), at("own"));
    let mut init =
        vec!["init", "--listen", &listen, "--name", "first", "--state", &state, "--identity", &own];
    init.extend(["--with-etcd", &address]);
    if is_named {
        init.extend(["--etcd-program", &program]);
    }
    support::ashlar(&init).expect(0);
    let named = if is_named { format!("--program {program}") } else { String::new() };
    let mut member = start("etcd", &format!("--state {state} {named}"), dir.path());
    member.expect("READY=1");
    // SAFETY: kill takes no pointer; the process is a child that was not waited for.
    unsafe { libc::kill(member.child.id() as i32, libc::SIGTERM) };
    member.child.wait().unwrap();
}

/// Runs the command line of the unit of `role`, with `arguments` in the variable that the file in /etc/default sets.
#[track_caller]
fn start(role: &str, arguments: &str, place: &Path) -> Started {
    let unit = unit(&format!("ashlar-{role}.service"));
    let variable = format!("ASHLAR_{}", role.to_uppercase());
    assert_eq!(values(&unit, "EnvironmentFile"), [format!("-/etc/default/ashlar-{role}")]);
    assert_eq!(values(&unit, "Type"), ["notify"]);
    let [line] = values(&unit, "ExecStart").try_into().unwrap();
    // systemd splits what `$NAME` as a word of its own stands for at spaces.
    run(&line.replace(&format!("${variable}"), arguments), &place.join(format!("{role}.notify")))
}

/// Runs a command line of a unit that tells at the socket `path` how it is.
fn run(line: &str, path: &Path) -> Started {
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], "/usr/bin/ashlar");
    // One that a process before had.
    let _ = fs::remove_file(path);
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(binary());
    command.args(&words[1..]).env("NOTIFY_SOCKET", path).stdin(Stdio::null()).stdout(Stdio::null());
    Started { child: command.spawn().unwrap(), socket }
}

/// What the unit of mounts has run after its process has ended, for the mount point `at`.
fn clean_up(unit: &str, at: &str) {
    let [line] = values(unit, "ExecStopPost").try_into().unwrap();
    let line = line.strip_prefix("-/bin/sh -c '").and_then(|line| line.strip_suffix("' sh %f")).unwrap();
    // As systemd reads it.
    let script = line.replace("$$", "$").replace("/usr/bin/ashlar", &binary().display().to_string());
    // What it tells is not looked at, as by systemd: the next start shows whether it has worked.
    Command::new("/bin/sh").args(["-c", &script, "sh", at]).stdin(Stdio::null()).status().unwrap();
}

#[test]
fn the_unit_of_mounts_follows_a_process_that_was_killed_and_clears_a_dead_mount_away() {
    if !can_mount("the unit of mounts") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    lab.mounts[0].stop();
    let unit = unit("ashlar-mount@.service");
    assert_eq!(values(&unit, "KillMode"), ["process"], "what keeps the mount is in its control group");
    assert_eq!(
        (values(&unit, "Type"), values(&unit, "Restart")),
        (vec!["notify".into()], vec!["on-failure".into()])
    );
    let [line] = values(&unit, "ExecStart").try_into().unwrap();
    let [at, identity] = ["m0", "c0"].map(|name| lab.path(name).display().to_string());
    let line = line.replace("%f", &at).replace("$ASHLAR_MOUNT", &format!("--identity {identity}"));
    let notify = lab.path("mount.notify");

    let mut mount = run(&line, &notify);
    mount.expect("READY=1");
    // With pauses: a call that the process is just being handed when it is killed ends with EIO (docs/guides/kernel.md).
    let script =
        "exec 3>\"$0/file\"; : > \"$1\"; while [ ! -e \"$2\" ]; do echo x >&3 || exit 1; sleep 0.05; done";
    let (begun, end) = (lab.path("begun"), lab.path("end"));
    let mut program = Command::new("sh").args(["-c", script, &at]).arg(&begun).arg(&end).spawn().unwrap();
    while !begun.exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    mount.child.kill().unwrap();
    mount.child.wait().unwrap();
    clean_up(&unit, &at);
    let mut next = run(&line, &notify);
    next.expect("READY=1");
    fs::write(&end, "").unwrap();
    assert!(program.wait().unwrap().success(), "the program goes on");
    // SAFETY: kill takes no pointer; the process is a child that was not waited for.
    unsafe { libc::kill(next.child.id() as i32, libc::SIGTERM) };
    next.expect("STOPPING=1");
    assert!(next.child.wait().unwrap().success());
    clean_up(&unit, &at);
    assert!(!is_mounted(Path::new(&at)));

    // Nobody keeps this one.
    let mut dead = run(&line.replace("--keep 120", "--keep 0"), &notify);
    dead.expect("READY=1");
    dead.child.kill().unwrap();
    dead.child.wait().unwrap();
    assert!(is_mounted(Path::new(&at)));
    clean_up(&unit, &at);
    assert!(!is_mounted(Path::new(&at)));
    let mut again = run(&line, &notify);
    again.expect("READY=1");
    // SAFETY: as above.
    unsafe { libc::kill(again.child.id() as i32, libc::SIGTERM) };
    assert!(again.child.wait().unwrap().success());
    lab.stop();
}

#[test]
fn roles_that_units_start_tell_when_they_serve_and_when_they_stop() {
    if !can_mount("units of a cluster") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    fs::write(lab.path("m0/file"), b"before").unwrap();
    let (addresses, dir) = (lab.addresses(), tempfile::tempdir().unwrap());
    let token = lab.ashlar("token --role console --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name console --identity @console", token.trim())).expect(0);
    lab.meta.stop();
    lab.storage[0].stop();
    lab.manager.stop();
    let at = |name: &str| lab.path(name).display().to_string();
    let manager = format!("--state {} --identity {}", at("state"), at("first"));
    let storage = format!("--data {} --listen {} --identity {}", at("d0"), addresses[2], at("oss0"));
    let meta = format!("--meta {} --listen {} --identity {}", at("meta"), addresses[1], at("mds"));
    let console = format!("--listen {} --identity {}", Lab::free_address(), at("console"));
    let mut started: Vec<Started> = Vec::new();
    for (role, arguments) in
        [("manager", manager), ("storage", storage), ("meta", meta), ("console", console)]
    {
        let role = start(role, &arguments, dir.path());
        role.expect("READY=1");
        started.push(role);
    }
    lab.mounts[0].stop();
    lab.start_mount(0);
    assert_eq!(fs::read(lab.path("m0/file")).unwrap(), b"before");
    lab.mounts[0].stop();
    for role in started.iter_mut().rev() {
        // SAFETY: kill takes no pointer; the process is a child that was not waited for.
        unsafe { libc::kill(role.child.id() as i32, libc::SIGTERM) };
        role.expect("STOPPING=1");
        assert!(role.child.wait().unwrap().success());
    }
    // Without the arguments it needs a role ends with the status that the unit does not start it again for.
    for role in ["meta", "storage"] {
        assert_eq!(values(&unit(&format!("ashlar-{role}.service")), "RestartPreventExitStatus"), ["2"]);
        let mut wrong = start(role, "--listen", tempfile::tempdir().unwrap().path());
        assert_eq!(wrong.child.wait().unwrap().code(), Some(2));
    }
}

//! Goal: the systemd units in packaging/ are sound, start the roles as the guide says, and are told when they serve and when they stop. Method:
//! systemd-analyze over the units as they are; their command lines run with a socket in the place of systemd's.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::cluster::Lab;
use support::{PATIENCE, binary, can_mount, can_start, has_package};

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
    // Mounts are seen by all: that unit has no name space of its own. An instance of it is what can be checked.
    let (_, (is_sound, said)) = check("ashlar@mnt-ashlar.service", &unit("ashlar@.service"));
    assert!(is_sound && !said.contains("ashlar"), "{said}");
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
    let address = loop {
        let address = Lab::free_address();
        let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
        if port < u16::MAX && std::net::TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            break address;
        }
    };
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
    let line = line.replace(&format!("${variable}"), arguments);
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], "/usr/bin/ashlar");
    let path: PathBuf = place.join(format!("{role}.notify"));
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(binary());
    command.args(&words[1..]).env("NOTIFY_SOCKET", &path).stdin(Stdio::null()).stdout(Stdio::null());
    Started { child: command.spawn().unwrap(), socket }
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

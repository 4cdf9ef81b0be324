//! Runs the `console` blocks of the guides, line by line, and compares what they print with what is shown.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{PATIENCE, binary, can_mount};

/// The console lines of a guide.
fn console_lines(guide: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides").join(guide);
    let (mut lines, mut is_inside) = (Vec::new(), false);
    for line in fs::read_to_string(path).unwrap().lines() {
        match line {
            "```console" => is_inside = true,
            "```" => is_inside = false,
            _ if is_inside => lines.push(line.to_owned()),
            _ => {}
        }
    }
    assert!(lines.len() > 5, "{guide} shows commands");
    lines
}

/// A script that runs the commands, stops at the first that fails, and checks the output where some is shown.
fn script_of(lines: &[String]) -> String {
    let mut script = String::from("set -eum\n");
    for (at, line) in lines.iter().enumerate() {
        let Some(command) = line.strip_prefix("$ ") else { continue };
        let shown: Vec<&str> =
            lines[at + 1..].iter().take_while(|line| !line.starts_with("$ ")).map(String::as_str).collect();
        script += &format!("echo '+ {}' >&2\n", command.replace('\'', "'\\''"));
        if let Some(server) = command.strip_suffix(" &") {
            // What it prints shows that it is ready; what the one before it has printed must not. What it says besides is kept by itself.
            script += &format!("rm -f \"$OUT\"\n{server} > \"$OUT\" 2> \"$LOGS/{at:03}\" &\n");
            let ready = format!("grep -sqxF '{}' \"$OUT\"", shown.first().unwrap());
            // As long as anything may take: the whole script has an end anyway.
            script += &format!("until {ready}; do kill -0 $!; sleep 0.05; done\n");
        } else if shown.is_empty() {
            script += &format!("{command}\n");
        } else {
            script += &format!("{command} > \"$OUT\"\n");
            for line in shown {
                script += &format!("grep -qxF '{line}' \"$OUT\" || {{ cat \"$OUT\" >&2; exit 99; }}\n");
            }
        }
    }
    script
}

/// A script with everything that it has started, which ends with it whatever has happened: a server that stays would be in the way of the next try.
struct Script {
    shell: Child,
    mountpoint: PathBuf,
}

impl Script {
    #[track_caller]
    fn start(command: &mut Command, mountpoint: PathBuf) -> Script {
        // SAFETY: between fork and exec it calls nothing but setsid, which takes no memory and no lock.
        unsafe {
            command.pre_exec(|| match libc::setsid() {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        Script { shell: command.stdin(Stdio::null()).spawn().unwrap(), mountpoint }
    }

    /// Its exit status, if it ends in time.
    fn wait(&mut self, patience: Duration) -> Option<i32> {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.shell.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Processes of its session that run; those that have ended and were not waited for do not count.
    fn processes(&self) -> Vec<i32> {
        let is_of_session = |id: &i32| {
            // One that ends meanwhile is none.
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            // Behind the name, which may have anything in it (proc(5)): state, parent, group, session.
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            fields.get(3) == Some(&self.shell.id().to_string().as_str()) && fields[0] != "Z"
        };
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_of_session).collect()
    }

    fn end(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        // Anew each time: one may have started another.
        loop {
            let processes = self.processes();
            if processes.is_empty() || Instant::now() > deadline {
                break;
            }
            for id in processes {
                // SAFETY: kill takes no pointer; the process was of the session a moment ago.
                unsafe { libc::kill(id, libc::SIGKILL) };
            }
            if support::is_mounted(&self.mountpoint) {
                // What uses it is told, and what waits for it ends.
                let _ = Command::new("umount").arg("-l").arg(&self.mountpoint).status();
            }
            let _ = self.shell.try_wait();
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.shell.wait();
        if support::is_mounted(&self.mountpoint) {
            let _ = Command::new("umount").arg("-l").arg(&self.mountpoint).status();
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the servers of a script have said, each under the command that started it.
fn logs(dir: &Path, lines: &[String]) -> String {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let tell = |path: &PathBuf| {
        let at: usize = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        format!("{}\n{}", lines[at], fs::read_to_string(path).unwrap())
    };
    files.iter().map(tell).collect::<Vec<_>>().join("\n")
}

/// Runs a script of `lines` in a directory of its own, and ends everything that it has started.
///
/// # Errors
/// How it ended instead of well, with everything that was printed.
fn run_script(lines: &[String], script: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display().to_string();
    let patience = PATIENCE * lines.len() as u32;
    let script = script
        .replace("/mnt/ashlar", &format!("{root}/mnt/ashlar"))
        .replace(" /data", &format!(" {root}/data"));
    let search = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("logs")).unwrap();
    let printed = File::create(path("printed")).unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir("/");
    command.env("PATH", search).env("OUT", path("out")).env("LOGS", path("logs"));
    // A file, not a pipe: a server that is left keeps a pipe open, and whoever reads to its end waits for it.
    command.stdout(printed.try_clone().unwrap()).stderr(printed);
    let mut script = Script::start(&mut command, path("mnt/ashlar"));
    let code = script.wait(patience);
    script.end();
    let left = script.processes();
    assert!(left.is_empty(), "processes {left:?} do not end");
    let printed = fs::read_to_string(path("printed")).unwrap();
    match code {
        Some(0) => Ok(()),
        _ => {
            Err(format!("ended with {code:?} (none: not in time)\n{printed}\n{}", logs(&path("logs"), lines)))
        }
    }
}

fn run_guide(guide: &str) {
    if !can_mount(guide) {
        return;
    }
    let lines = console_lines(guide);
    if let Err(what) = run_script(&lines, &script_of(&lines)) {
        panic!("{guide} {what}");
    }
}

#[test]
fn a_guide_that_fails_leaves_nothing_behind_and_shows_what_its_servers_said() {
    if !can_mount("a guide that fails") {
        return;
    }
    let listen = "127.0.0.109";
    let lines: Vec<String> = format!(
        "$ mkdir -p /data /mnt/ashlar
$ ashlar init --name first --listen {listen} --state /data/state --identity /data/id > /dev/null
$ ashlar manager --state /data/state --identity /data/id &
manager serves at {listen}:7400
$ sh -c 'echo ready; echo this server complains >&2; sleep 1000' &
ready
$ ashlar node list --identity /data/id
this is not what it prints"
    )
    .lines()
    .map(ToOwned::to_owned)
    .collect();
    for _ in 0..2 {
        // The second one finds the port free.
        let said = run_script(&lines, &script_of(&lines)).unwrap_err();
        assert!(said.contains("ended with Some(99)"), "{said}");
        assert!(said.contains("+ ashlar node list") && said.contains("first"), "{said}");
        assert!(said.contains("sleep 1000' &\nthis server complains\n"), "{said}");
    }
}

#[test]
fn the_guide_to_a_file_system_of_many_servers_works() {
    run_guide("cluster.md");
}

#[test]
fn commands_of_the_guide_to_targets_work() {
    run_guide("targets.md");
}

#[test]
fn the_guide_to_administration_works() {
    run_guide("administration.md");
}

#[test]
fn the_guide_to_the_console_works() {
    run_guide("console.md");
}

#[test]
fn the_guide_to_what_a_client_may_do_works() {
    run_guide("node-policy.md");
}

#[test]
fn the_guide_to_starting_works() {
    run_guide("start.md");
}

#[test]
fn the_guide_to_checking_works() {
    run_guide("fsck.md");
}

#[test]
fn the_guide_to_backups_works() {
    run_guide("backup.md");
}

#[test]
fn the_guide_to_large_directories_works() {
    run_guide("directories.md");
}

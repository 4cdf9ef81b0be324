//! Goal: all processes of a cluster can be restarted one after the other, as for an upgrade, while programs work on two mounts: none of them sees an error, and all content is
//! right in the end. (`cargo xtask upgrade` does the same from the binary of the commit before.)
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;

/// What a program does: copies, comparisons, renames and removals, and the first error ends it.
const LOAD: &str = r#"
set -eu
n=0
while [ ! -e "$STOP" ]; do
  n=$((n + 1)) k=$((n % 4))
  mkdir "$DIR/d$n"
  cp "$SOURCE/s$k" "$DIR/d$n/f"
  cmp "$SOURCE/s$k" "$DIR/d$n/f"
  mv "$DIR/d$n/f" "$DIR/kept$k"
  cmp "$SOURCE/s$k" "$DIR/kept$k"
  rmdir "$DIR/d$n"
  echo $n > "$COUNT"
done
"#;

/// A program at work on a mount. In a process of its own: this one starts servers, and must not have files of a mount open.
struct Load {
    child: Child,
    dir: PathBuf,
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Load {
    #[track_caller]
    fn start(mount: &Path, name: &str, place: &Path) -> Load {
        let dir = place.join(name);
        fs::create_dir_all(&dir).unwrap();
        let _ = fs::remove_file(dir.join("stop"));
        let work = mount.join(name);
        fs::create_dir_all(&work).unwrap();
        let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", LOAD]).env("STOP", dir.join("stop")).env("COUNT", dir.join("count"));
        command.env("DIR", work).env("SOURCE", place.join("source"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Load { child: command.spawn().unwrap(), dir }
    }

    fn count(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join("count")).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    /// Until it has done something more.
    #[track_caller]
    fn goes_on(&mut self, after: &str) {
        let (before, deadline) = (self.count(), Instant::now() + Duration::from_secs(60));
        loop {
            let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(self.child.try_wait().unwrap().is_none(), "ended after {after}: {}", log());
            let now = self.count();
            if now != before && now > 0 {
                return;
            }
            assert!(Instant::now() < deadline, "does nothing after {after}: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it after what it is at.
    #[track_caller]
    fn finish(mut self) {
        fs::write(self.dir.join("stop"), "").unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}", fs::read_to_string(self.dir.join("log")).unwrap());
    }
}

#[test]
fn no_program_notices_that_every_server_and_mount_was_restarted() {
    if !can_mount("restarts in turn") {
        return;
    }
    let mut lab = Lab::start(2, 2);
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    fs::create_dir(&source).unwrap();
    let contents: Vec<Vec<u8>> = [100, 5000, 300_000, 3 << 20]
        .iter()
        .map(|bytes| (0..*bytes).map(|at: u32| (at * 31 % 251) as u8).collect())
        .collect();
    for (at, content) in contents.iter().enumerate() {
        fs::write(source.join(format!("s{at}")), content).unwrap();
    }
    let mut one = Load::start(&lab.path("m0"), "one", place.path());
    let mut two = Load::start(&lab.path("m1"), "two", place.path());
    let both_go_on = |one: &mut Load, two: &mut Load, after: &str| {
        one.goes_on(after);
        two.goes_on(after);
    };
    both_go_on(&mut one, &mut two, "the start");
    lab.manager.stop();
    lab.start_manager();
    both_go_on(&mut one, &mut two, "the manager");
    lab.meta.stop();
    lab.start_meta();
    both_go_on(&mut one, &mut two, "the metadata server");
    for at in 0..2 {
        lab.storage[at].stop();
        lab.start_storage(at);
        both_go_on(&mut one, &mut two, "a storage server");
    }
    // A mount cannot be taken from a program; the other one goes on.
    one.finish();
    lab.mounts[0].stop();
    lab.start_mount(0);
    two.goes_on("the first mount");
    let mut one = Load::start(&lab.path("m0"), "one-again", place.path());
    two.finish();
    lab.mounts[1].stop();
    lab.start_mount(1);
    one.goes_on("the second mount");
    one.finish();
    for name in ["one", "two", "one-again"] {
        for (at, content) in contents.iter().enumerate() {
            for mount in ["m0", "m1"] {
                let path = lab.path(mount).join(name).join(format!("kept{at}"));
                // The second program may not have come to all.
                if name != "one-again" || path.exists() {
                    assert!(fs::read(&path).unwrap() == *content, "{}", path.display());
                }
            }
        }
    }
    // Administrators can see it, each restart as what it was.
    let told = lab.ashlar("event list --kind server-stopped --identity @first").expect(0).stdout;
    for name in ["first", "mds", "oss0", "oss1"] {
        assert!(told.contains(name), "no stop of {name}: {told}");
    }
    lab.stop();
}

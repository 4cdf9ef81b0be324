//! Targets on small disks: file systems in memory that are soon full.

use super::cluster::{Lab, Role};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A file system in memory of a few MiB, until it is dropped.
pub struct Small(PathBuf);

impl Small {
    #[track_caller]
    fn mount(path: PathBuf, mib: usize) -> Small {
        fs::create_dir(&path).unwrap();
        let size = format!("size={mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&path).status();
        assert!(mounted.unwrap().success());
        Small(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // What is in the way of that has failed the test already.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// One more storage server, with a target of `mib` in memory in the pool `small`; tells its command line, too.
#[track_caller]
pub fn add_small(lab: &Lab, name: &str, mib: usize) -> (Small, Role, String) {
    let small = Small::mount(lab.path(&format!("data-{name}")), mib);
    let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
    let address = Lab::free_address();
    let line = format!("storage --data @data-{name}/t --pool small --listen {address} --identity @{name}");
    (small, lab.run(name, &line, "serves"), line)
}

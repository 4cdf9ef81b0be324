//! Goal: a copy of a data directory, or a disk that is attached to two machines, is never served beside the one that is: whoever comes second is refused with what
//! to do, the first one goes on, and administrators can see it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::process::Command;
use support::can_mount;
use support::cluster::Lab;

#[test]
fn a_copied_target_is_refused_on_another_node_and_the_one_that_is_served_goes_on() {
    if !can_mount("a target that two servers have") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    let file = lab.path("m0/file");
    fs::write(&file, vec![1; 2 << 20]).unwrap();
    lab.storage[0].stop();
    let copied = Command::new("cp").arg("-a").arg(lab.path("d0")).arg(lab.path("copy")).status().unwrap();
    assert!(copied.success());
    lab.start_storage(0);
    fs::write(&file, vec![2; 2 << 20]).unwrap();
    let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name oss9 --identity @oss9", token.trim())).expect(0);
    let second = format!("storage --data @copy --listen {} --identity @oss9", Lab::free_address());
    lab.ashlar(&second).refused(&["target-1", "copy/target is an older copy", "oss0", "d0"]);
    let told = lab.ashlar("event list --kind copy-refused --identity @first").expect(0).stdout;
    assert!(told.contains("target-1") && told.contains("copy"), "{told}");
    // One that was made of the target while it is served.
    let copied = Command::new("cp").arg("-a").arg(lab.path("d0")).arg(lab.path("twin")).status().unwrap();
    assert!(copied.success());
    let twin = format!("storage --data @twin --listen {} --identity @oss9", Lab::free_address());
    lab.ashlar(&twin).refused(&["target-1", "twin", "d0", "stop one of them"]);
    let told = lab.ashlar("event list --kind target-claimed-twice --identity @first").expect(0).stdout;
    assert!(told.contains("target-1") && told.contains("twin"), "{told}");
    // The map has not changed, and neither has what is read.
    let targets = lab.ashlar("target list --json --identity @first").expect(0).stdout;
    assert!(targets.contains("oss0") && !targets.contains("oss9"), "{targets}");
    fs::write(&file, vec![3; 2 << 20]).unwrap();
    lab.mounts[0].stop();
    lab.start_mount(0);
    assert!(fs::read(&file).unwrap() == vec![3; 2 << 20]);
    // On the node itself the copy is one as well.
    lab.storage[0].stop();
    let address = lab.address(2);
    let both = format!("storage --data @d0 --data @copy --listen {address} --identity @oss0");
    lab.ashlar(&both).refused(&["copy"]);
    lab.start_storage(0);
    assert!(fs::read(&file).unwrap() == vec![3; 2 << 20]);
    lab.stop();
}

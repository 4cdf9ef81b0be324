//! Goal: nothing depends on clocks that agree. Machines whose clocks are a day ahead or behind join, serve and mount; certificates, tokens and leases hold; and a
//! clock that is a year off is told as what it is. Method: libfaketime (package faketime) in front of the real processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use support::cluster::Lab;
use support::{can_mount, has_faketime};

const DAY: i64 = 24 * 60 * 60;

#[track_caller]
fn token(lab: &Lab, role: &str) -> String {
    let args = format!("token --role {role} --squash none --identity @first");
    lab.ashlar(&args).expect(0).stdout.trim().to_owned()
}

#[test]
fn servers_and_clients_a_day_ahead_and_behind_are_one_file_system() {
    if !can_mount("clocks that are off") || !has_faketime() {
        return;
    }
    let mut lab = Lab::start(2, 1);
    fs::write(lab.path("m0/file"), "one").unwrap();
    // Servers get other clocks, each in another direction, and clients too, which join by them.
    lab.storage[0].stop();
    lab.storage[1].stop();
    lab.meta.stop();
    let listen = |at: usize| lab.address(at).to_string();
    let storage = |at: usize, seconds: i64| {
        let line = format!("storage --data @d{at} --listen {} --identity @oss{at}", listen(2 + at));
        lab.run_at(seconds, &format!("oss{at}"), &line, "serves")
    };
    let servers = [storage(0, DAY), storage(1, -DAY)];
    let line = format!("meta --meta @meta --listen {} --identity @mds", listen(1));
    let mut meta = lab.run_at(DAY, "mds", &line, "serves");
    let mut mounts = Vec::new();
    for (name, seconds) in [("ahead", DAY), ("behind", -DAY)] {
        let line = format!("join {} --name {name} --identity @{name}", token(&lab, "client"));
        lab.ashlar_at(seconds, &line).expect(0);
        fs::create_dir(lab.path(&format!("m{name}"))).unwrap();
        mounts.push(lab.run_at(
            seconds,
            name,
            &format!("mount @m{name} --identity @{name} --error-after 30"),
            "mounted",
        ));
    }
    // Coherent, with leases of both and data on both targets.
    let large = vec![7u8; 3 << 20];
    fs::write(lab.path("mahead/large"), &large).unwrap();
    assert!(fs::read(lab.path("mbehind/large")).unwrap() == large);
    for turn in 0..20u8 {
        let (writer, reader) = if turn % 2 == 0 { ("mahead", "mbehind") } else { ("m0", "mahead") };
        fs::write(lab.path(writer).join("turns"), [turn; 50]).unwrap();
        assert_eq!(fs::read(lab.path(reader).join("turns")).unwrap(), [turn; 50]);
    }
    assert_eq!(fs::read_to_string(lab.path("mahead/file")).unwrap(), "one");
    // The sessions live: leases are renewed although the clocks do not agree.
    std::thread::sleep(std::time::Duration::from_secs(21));
    let sessions = lab.ashlar("session list --json --identity @first").expect(0).stdout;
    let sessions: serde_json::Value = serde_json::from_str(&sessions).unwrap();
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 3, "{sessions:#?}");
    assert_eq!(fs::read(lab.path("mbehind/turns")).unwrap(), [19; 50]);
    // The manager's clock goes back by a day: tokens that were made, and its own certificate, hold.
    let made = token(&lab, "client");
    lab.manager.stop();
    lab.manager = lab.run_at(-DAY, "manager", "manager --state @state --identity @first", "serves");
    lab.ashlar(&format!("join {made} --name c7 --identity @c7")).expect(0);
    lab.ashlar("node list --identity @c0").refused(&["admin"]);
    // A token that such a manager makes can be used by the others.
    let made = token(&lab, "client");
    lab.ashlar_at(DAY, &format!("join {made} --name c8 --identity @c8")).expect(0);
    mounts.iter_mut().for_each(|mount| mount.stop());
    lab.mounts[0].stop();
    meta.stop();
    for mut server in servers {
        server.stop();
    }
    lab.manager.stop();
}

#[test]
fn a_clock_that_is_a_year_off_is_told() {
    if !has_faketime() {
        return;
    }
    let mut lab = Lab::start(1, 0);
    let made = token(&lab, "client");
    lab.ashlar(&format!("join {made} --name c7 --identity @c7")).expect(0);
    for seconds in [365 * DAY, -365 * DAY] {
        lab.ashlar_at(seconds, "node list --identity @first").refused(&["clock", "not valid now"]);
        lab.ashlar_at(seconds, "mount @d0 --identity @c7 --error-after 2").refused(&["clock"]);
    }
    // A token is too old by the manager's clock alone: one that is far ahead has it expire, and says so.
    let made = token(&lab, "client");
    lab.manager.stop();
    lab.manager = lab.run_at(2 * DAY, "manager", "manager --state @state --identity @first", "serves");
    lab.ashlar(&format!("join {made} --name c8 --identity @c8"))
        .refused(&["no manager knows this token", "`ashlar token`"]);
    lab.ashlar("node list --identity @first").expect(0);
    lab.stop();
}

//! Goal: whatever an administrator shows or changes can be read by a program: one document on standard output, whose fields are those of the lists; of what was
//! changed, as it is afterwards; of what was taken out, as it was. What is refused prints none. A mount tells who serves it, also while servers are away.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use std::fs;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use support::cluster::Lab;
use support::{PATIENCE, can_mount};

/// What a command prints: one document and nothing else.
#[track_caller]
fn told(lab: &Lab, line: &str) -> Value {
    let ended = lab.ashlar(&format!("{line} --json --identity @first")).expect(0);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{line}: {error}: {}", ended.all()))
}

/// The same for a command that asks no server.
#[track_caller]
fn told_here(lab: &Lab, line: &str) -> Value {
    let ended = lab.ashlar(&format!("{line} --json")).expect(0);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{line}: {error}: {}", ended.all()))
}

/// The one of a list with this value.
#[track_caller]
fn one(list: &Value, field: &str, value: &Value) -> Value {
    list.as_array()
        .unwrap()
        .iter()
        .find(|one| one[field] == *value)
        .unwrap_or_else(|| panic!("{list}"))
        .clone()
}

/// Whether `whole` has all fields of `part`, with the same values but for those that change from moment to moment.
#[track_caller]
fn has_all_of(whole: &Value, part: &Value) {
    for (name, value) in part.as_object().unwrap() {
        let changes = name.starts_with("bytes_") || ["heard_ms", "leases", "opens"].contains(&name.as_str());
        assert!(changes && whole.get(name).is_some() || whole[name] == *value, "{name}: {whole}");
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn machines_pools_and_targets_are_changed_and_told_as_documents() {
    if !can_mount("administration by programs") {
        return;
    }
    let mut lab = Lab::start(2, 1);
    let listed = |noun: &str, name: &str| one(&told(&lab, &format!("{noun} list")), "name", &name.into());

    assert_eq!(told(&lab, "pool add fast"), listed("pool", "fast"));
    let fast = told(&lab, "pool show fast");
    assert_eq!(
        (&fast["members"], &fast["targets_told"], &fast["bytes_total"]),
        (&json!([]), &0.into(), &0.into())
    );
    has_all_of(&told(&lab, "pool remove fast"), &listed_pool("fast"));
    assert!(told(&lab, "pool list").as_array().unwrap().iter().all(|pool| pool["name"] != "fast"));
    let refused = lab.ashlar("pool show fast --json --identity @first").refused(&["no pool `fast`"]);
    assert_eq!(refused.stdout, "");
    assert_eq!(lab.ashlar("pool remove fast --json --identity @first").refused(&["fast"]).stdout, "");

    let pool = told(&lab, "pool show default");
    has_all_of(&pool, &listed("pool", "default"));
    assert_eq!((&pool["targets_told"], &pool["chains_moving"]), (&2.into(), &0.into()));
    let targets = told(&lab, "target list");
    for (at, member) in pool["members"].as_array().unwrap().iter().enumerate() {
        has_all_of(member, &targets[at]);
    }
    let sum: u64 =
        pool["members"].as_array().unwrap().iter().map(|one| one["bytes_total"].as_u64().unwrap()).sum();
    assert_eq!(pool["bytes_total"], sum);
    let text = lab.ashlar("pool show default --identity @first").expect(0).stdout;
    assert!(text.contains("GiB free on 2 of 2 targets") && text.contains("target-2"), "{text}");

    let oss1 = told(&lab, "node show oss1");
    has_all_of(&oss1, &listed("node", "oss1"));
    assert_eq!((&oss1["targets"], &oss1["shards"]), (&json!([2]), &json!([])));
    assert_eq!(
        told(&lab, "node show mds")["shards"].as_array().unwrap().len(),
        told(&lab, "shard list").as_array().unwrap().len()
    );
    assert_eq!(told(&lab, "node domain oss1 rack1")["domain"], "rack1");
    assert_eq!(told(&lab, "node domain oss1"), listed("node", "oss1"));
    assert_eq!(told(&lab, "node domain oss1 none")["domain"], Value::Null);
    let policy = told(&lab, "node policy c0 --outside squash --anonymous 7:8");
    assert_eq!(policy["policy"]["anonymous"], json!({ "uid": 7, "gid": 8 }));
    assert_eq!(told(&lab, "node policy c0"), policy);

    let moves = told(&lab, "target moves --pause --rate 5");
    assert_eq!((&moves["is_paused"], &moves["rate_mib_s"]), (&true.into(), &5.into()));
    assert_eq!(told(&lab, "target moves"), moves);
    assert_eq!(told(&lab, "target rebalance")["is_rebalancing"], true);
    let stopped = told(&lab, "target rebalance --stop");
    assert_eq!((&stopped["name"], &stopped["is_rebalancing"]), (&"default".into(), &false.into()));
    let drained = told(&lab, "node drain oss1");
    assert_eq!((drained.as_array().unwrap().len(), &drained[0]["is_draining"]), (1, &true.into()));
    assert_eq!(told(&lab, "node undrain oss1")[0]["is_draining"], false);
    let drained = told(&lab, "target drain 2 2");
    has_all_of(&drained[0], &json!({ "id": 2, "is_draining": true, "chains": 100, "pool": "default" }));
    assert_eq!(drained.as_array().unwrap().len(), 1, "named twice");
    assert_eq!(told(&lab, "target undrain 2")[0]["is_draining"], false);
    let refused = lab.ashlar("target remove 2 --json --identity @first").refused(&["target-2"]);
    assert_eq!(refused.stdout, "");
    assert_eq!(told(&lab, "target moves --resume --rate 0")["is_paused"], false);
    told(&lab, "target drain 2");
    wait_until("it is empty", || told(&lab, "target show 2")["chains"] == 0);
    has_all_of(&told(&lab, "target remove 2"), &json!({ "id": 2, "is_draining": true, "chains": 0 }));
    assert_eq!(told(&lab, "target list").as_array().unwrap().len(), 1);
    lab.storage[1].stop();

    // Who joins, and what is done about keys.
    let made = told(&lab, "token --role client,admin --valid-minutes 5 --read-only");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let expires = made["expires"].as_u64().unwrap();
    assert!((now + 270..=now + 301).contains(&expires), "{made}");
    let roles = json!(["client", "admin"]);
    assert_eq!((&made["roles"], &made["policy"]["read_only"]), (&roles, &true.into()), "{made}");
    let join = format!("join {} --name desk --identity @desk --json", made["token"].as_str().unwrap());
    let joined: Value = serde_json::from_str(&lab.ashlar(&join).expect(0).stdout).unwrap();
    let desk = one(&told(&lab, "node list"), "name", &"desk".into());
    assert_eq!((&joined["id"], &joined["name"], &joined["roles"]), (&desk["id"], &"desk".into(), &roles));
    assert_eq!(joined["cluster"].as_str().unwrap().len(), 36, "{joined}");
    assert_eq!(lab.ashlar(&join).refused(&["desk"]).stdout, "");
    assert_eq!(told(&lab, "key rotate"), json!({ "is_rotated": true }));
    let removed = told(&lab, "node remove oss1");
    assert_eq!((&removed["name"], &removed["roles"]), (&"oss1".into(), &json!(["storage"])));
    lab.stop();
}

fn listed_pool(name: &str) -> Value {
    json!({ "name": name, "targets": [], "chains": 0, "is_rebalancing": false })
}

/// What a user other than root is told who asks the mount at `directory` about itself; the errno.
fn asked_as_nobody(directory: &fs::File) -> Option<i32> {
    std::thread::scope(|scope| {
        let ask = || {
            let mut text = [0u8; 65536];
            // SAFETY: it changes this thread alone, which ends afterwards.
            unsafe { libc::setfsuid(65534) };
            let name = c"system.ashlar_mount";
            // SAFETY: the name is NUL-terminated, and the buffer as long as said.
            let got = unsafe {
                libc::fgetxattr(directory.as_raw_fd(), name.as_ptr(), text.as_mut_ptr().cast(), text.len())
            };
            (got < 0).then(|| std::io::Error::last_os_error().raw_os_error().unwrap())
        };
        scope.spawn(ask).join().unwrap()
    })
}

#[test]
fn shards_sessions_mounts_and_layouts_are_told_as_documents_also_while_servers_are_away() {
    if !can_mount("administration by programs") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    fs::write(lab.path("m0/file"), "content").unwrap();
    let open = fs::File::open(lab.path("m0/file")).unwrap();

    let shard = told(&lab, "shard show 1");
    has_all_of(&shard, &told(&lab, "shard list")[1]);
    assert_eq!(
        (&shard["addresses"][0], shard["epoch"].is_u64()),
        (&lab.addresses()[1].as_str().into(), true)
    );
    assert_eq!(told(&lab, "shard show shard-1"), shard);
    let text = lab.ashlar("shard show 1 --identity @first").expect(0).stdout;
    assert!(text.contains("mds") && text.contains(&lab.addresses()[1]), "{text}");
    assert_eq!(lab.ashlar("shard show 999 --json --identity @first").refused(&["no shard-999"]).stdout, "");

    // A mount says which session it has, and that is among those of the servers.
    let mount = told_here(&lab, "mount show @m0");
    let path = lab.path("m0").canonicalize().unwrap();
    has_all_of(&mount, &one(&told_here(&lab, "mount list"), "mountpoint", &path.to_str().unwrap().into()));
    let expected = json!({
        "is_answering": true,
        "pid": Lab::process(&lab.mounts[0]),
        "coherence": "strict",
        "durability": "async",
        "error_after_s": 60,
        "keep_s": 0,
        "subdirectory": null,
        "allow_other": true,
        "servers_left_out": 0,
        "addresses_left_out": 0,
    });
    has_all_of(&mount, &expected);
    assert_eq!(mount["node"]["name"], "c0");
    assert_eq!(mount["metadata_servers"][0]["addresses"][0], lab.addresses()[1]);
    assert_eq!(mount["storage_servers"][0]["name"], "oss0");
    let text = lab.ashlar("mount show @m0").expect(0).stdout;
    assert!(text.contains("error_after_s: 60") && text.contains("metadata_servers: mds at "), "{text}");
    assert_eq!(lab.ashlar("mount show @d0 --json").refused(&["nothing is mounted"]).stdout, "");
    let directory = fs::File::open(lab.path("m0")).unwrap();
    assert_eq!(asked_as_nobody(&directory), Some(libc::EPERM));
    drop(directory);

    let id = mount["session_text"].as_str().unwrap();
    let session = told(&lab, &format!("session show {id}"));
    has_all_of(&session, &one(&told(&lab, "session list")["sessions"], "id", &mount["session"]));
    assert_eq!((&session["node"]["name"], &session["unanswered"]), (&"c0".into(), &json!([])));
    assert_eq!(session["by_server"][0]["server"]["name"], "mds");
    assert!(session["by_server"][0]["opens"].as_u64() >= Some(1), "{session}");
    assert_eq!(session["instance"].as_str().unwrap().len(), 32);
    let text = lab.ashlar(&format!("session show session-{id} --identity @first")).expect(0).stdout;
    assert!(text.contains("at mds: "), "{text}");
    assert_eq!(lab.ashlar("session show 7 --json --identity @first").refused(&["no session-7"]).stdout, "");

    fs::create_dir(lab.path("m0/directory")).unwrap();
    let set = told_here(&lab, "layout set @m0/directory --chunk-size 64k --stripe-count 1");
    assert_eq!((&set["chunk_bytes"], &set["stripe_count"]), (&65536.into(), &1.into()));
    assert_eq!(told_here(&lab, "layout show @m0/directory"), set);

    let ended = told(&lab, &format!("session remove {id}"));
    has_all_of(&ended, &json!({ "id_text": id, "unanswered": [] }));
    assert_eq!(
        lab.ashlar(&format!("session remove {id} --json --identity @first")).refused(&["no session"]).stdout,
        ""
    );
    drop(open);

    // Servers that hang keep nobody from learning who they are, and a process that hangs only from what it knows.
    lab.meta.pause();
    let begun = Instant::now();
    let other = told_here(&lab, "mount show @m1");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!((&other["is_answering"], &other["node"]["name"]), (&true.into(), &"c1".into()));
    lab.mounts[1].pause();
    let silent = told_here(&lab, "mount show @m1");
    assert_eq!((&silent["is_answering"], &silent["session"]), (&false.into(), &Value::Null));
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&silent), names(&other), "the same fields");
    let text = lab.ashlar("mount show @m1").expect(0).stdout;
    assert!(text.contains("its process does not answer"), "{text}");
    let detached = told_here(&lab, "mount detach @m1");
    assert_eq!((&detached["is_answering"], &detached["mountpoint"]), (&false.into(), &silent["mountpoint"]));
    lab.mounts[1].kill();
    lab.meta.resume();
    lab.stop();
}

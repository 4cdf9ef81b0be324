//! Goal: the console shows administrators what the commands show, and what servers count; it lets nobody in who has no link, each of which is good once; a
//! server that is away is shown as such, and holds nobody up; and strangers do no harm. Method: a cluster of processes, the console as its command starts it,
//! and a browser of this test that speaks TLS with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::browser::{Browser, read};
use support::can_mount;
use support::cluster::{Lab, Role};

/// Within which time a server is shown as away, or as back, as the guide states it, and what a machine with much else to do may take longer.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
const SLOW_MACHINE: Duration = Duration::from_secs(10);
/// Within which time the page answers, whoever is away.
const ANSWER_MAX: Duration = Duration::from_secs(2);

const PATHS: [&str; 14] = [
    "cluster", "health", "nodes", "pools", "space", "targets", "moves", "shards", "sessions", "servers",
    "clients", "notes", "events", "history",
];

/// A console with an identity of its own.
struct Console {
    role: Role,
    address: String,
}

impl Console {
    #[track_caller]
    fn start(lab: &Lab) -> Console {
        let token = lab.ashlar("token --role console --identity @first").expect(0).stdout;
        lab.ashlar(&format!("join {} --name console --identity @console", token.trim())).expect(0);
        let address = Lab::free_address();
        let line = format!("--log info console --listen {address} --identity @console");
        Console { role: lab.run("console", &line, "serves"), address }
    }

    fn browser(&self, lab: &Lab) -> Browser {
        Browser::new(&self.address, &lab.path("console/certificate.pem"))
    }

    /// The code in a link for logging in.
    #[track_caller]
    fn code(&self, lab: &Lab) -> String {
        let link = lab.ashlar("console login --identity @console").expect(0).stdout;
        let code = link.trim().strip_prefix(&format!("https://{}/login#", self.address));
        code.unwrap_or_else(|| panic!("{link}")).to_owned()
    }

    #[track_caller]
    fn logged_in(&self, lab: &Lab) -> Browser {
        let mut browser = self.browser(lab);
        assert_eq!(browser.log_in(&self.code(lab)).status, 303);
        browser
    }
}

/// Looks again and again until `is_so`.
#[track_caller]
fn wait_until(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < within + SLOW_MACHINE, "{what}: not in {within:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What a command prints as JSON.
#[track_caller]
fn command(lab: &Lab, line: &str) -> Value {
    serde_json::from_str(&lab.ashlar(&format!("{line} --json --identity @first")).expect(0).stdout).unwrap()
}

/// A list of objects without those fields that differ from one moment to the next.
fn without(mut list: Value, fields: &[&str]) -> Value {
    for object in list.as_array_mut().unwrap() {
        fields.iter().for_each(|field| drop(object.as_object_mut().unwrap().remove(*field)));
    }
    list
}

/// The server of a role, as the console knows it.
fn server(browser: &Browser, role: &str) -> Value {
    let servers = browser.api("servers");
    servers.as_array().unwrap().iter().find(|server| server["role"] == role).cloned().unwrap_or_default()
}

#[test]
fn who_has_not_logged_in_sees_nothing_and_a_link_lets_one_in_once() {
    let mut lab = Lab::start(0, 0);
    let mut console = Console::start(&lab);
    let mut stranger = console.browser(&lab);
    for path in PATHS {
        let page = stranger.get(&format!("/api/v1/{path}"));
        assert_eq!(page.status, 401, "{path}");
        assert!(page.body.contains("log in") && !page.body.contains("mds"), "{}", page.body);
    }
    let page = stranger.get("/");
    assert_eq!((page.status, page.header("location"), page.body.as_str()), (303, Some("/login"), ""));
    stranger.cookie = Some(format!("__Host-ashlar-console={}", "0".repeat(64)));
    assert_eq!(stranger.get("/api/v1/nodes").status, 401);
    stranger.cookie = None;
    let page = stranger.get("/login");
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for (name, value) in
        [("cache-control", "no-store"), ("x-frame-options", "DENY"), ("referrer-policy", "no-referrer")]
    {
        assert_eq!(page.header(name), Some(value));
    }

    let code = console.code(&lab);
    assert_eq!(stranger.log_in(&"0".repeat(64)).status, 403);
    let foreign = stranger.post("/login", &format!("code={code}"), "Sec-Fetch-Site: cross-site\r\n");
    assert_eq!(foreign.status, 403, "a page of somebody else");
    let mut browser = console.browser(&lab);
    let page = browser.log_in(&code);
    assert_eq!((page.status, page.header("location")), (303, Some("/")));
    let cookie = page.header("set-cookie").unwrap();
    for word in ["__Host-", "; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict", "; Max-Age=28800"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    assert_eq!(stranger.log_in(&code).status, 403, "a second time");
    assert!(stranger.cookie.is_none());
    for path in PATHS {
        browser.api(path);
    }
    assert!(browser.get("/").body.contains("<h1>Ashlar"));
    assert_eq!(browser.get("/api/v1/nothing").status, 404);
    assert_eq!(browser.post("/api/v1/nodes", "", "").status, 405, "nothing can be changed here");
    for wrong in ["events?after=x", "history?span=year", "history?role=meta&node=x"] {
        assert_eq!(browser.get(&format!("/api/v1/{wrong}")).status, 400, "{wrong}");
    }
    for unknown in ["history?client=nobody", "history?role=meta&node=77", "history?role=nothing&node=1"] {
        assert_eq!(browser.get(&format!("/api/v1/{unknown}")).status, 404, "{unknown}");
    }
    assert_eq!(browser.post("/logout", "", "").status, 303);
    assert_eq!(browser.get("/api/v1/nodes").status, 401);

    // No secret is in the log, which tells who came and who did not.
    let (log, secret) = (console.role.text(), browser.cookie.unwrap());
    assert!(log.contains("somebody has logged in") && log.contains("a wrong code"), "{log}");
    assert!(!log.contains(&code) && !log.contains(secret.split_once('=').unwrap().1), "{log}");
    // Another one with the same identity is refused, and one without the role.
    lab.ashlar("console --listen 127.0.0.1:0 --identity @console")
        .refused(&["another console", "--identity"]);
    let token = lab.ashlar("token --role client --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name c --identity @c", token.trim())).expect(0);
    lab.ashlar("console --listen 127.0.0.1:0 --identity @c")
        .refused(&["not for console", "ashlar token --role console"]);
    console.role.stop();
    assert!(!lab.path("console/console.sock").exists());
    lab.ashlar("console login --identity @console").refused(&["no console answers"]);
    lab.stop();
}

#[test]
fn administrators_and_consoles_that_join_find_the_network_for_management() {
    let management = Lab::free_address();
    let mut lab = Lab::start_with(&["--management".to_owned(), management], 0, 0);
    let mut console = Console::start(&lab);
    let browser = console.logged_in(&lab);
    wait_until("the manager has answered", SHOWN_WITHIN, || server(&browser, "manager")["heard_ms"].is_u64());
    wait_until("events are told", SHOWN_WITHIN, || browser.api("events") != json!([]));
    // Also one that may be a client, and goes as that to the other addresses.
    let token = lab.ashlar("token --role admin,client --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name a --identity @a", token.trim())).expect(0);
    assert!(lab.ashlar("node list --identity @a").expect(0).stdout.contains("for management"));
    console.role.stop();
    lab.stop();
}

#[test]
fn who_guesses_codes_has_to_wait() {
    let mut lab = Lab::start(0, 0);
    let mut console = Console::start(&lab);
    let mut browser = console.browser(&lab);
    let answers: Vec<u16> = (0..12).map(|_| browser.log_in(&"1".repeat(64)).status).collect();
    assert_eq!(answers, [vec![403; 10], vec![429; 2]].concat());
    let page = browser.log_in(&console.code(&lab));
    assert_eq!((page.status, page.header("retry-after")), (429, Some("60")), "also with a right one");
    console.role.stop();
    lab.stop();
}

/// Ends the work of a thread, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A program at work is seen, at the servers and as a client.
#[track_caller]
fn work_is_seen(lab: &Lab, browser: &Browser) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Ends(&is_over);
        scope.spawn(|| {
            let mut turn = 0u64;
            while !is_over.load(Relaxed) {
                turn += 1;
                fs::write(lab.path("m0/busy"), vec![turn as u8; 1 << 20]).unwrap();
                // Always a new one, so that there is something to create.
                fs::write(lab.path(&format!("m0/small{turn}")), b"x").unwrap();
            }
        });
        let rate = |value: &Value, field: &str| value[field].as_f64().unwrap_or_default();
        wait_until("the work is seen", SHOWN_WITHIN, || {
            let meta = server(browser, "meta");
            let written: f64 = browser
                .api("servers")
                .as_array()
                .unwrap()
                .iter()
                .filter(|server| server["role"] == "storage")
                .map(|server| rate(&server["rates"], "written_bytes_per_s"))
                .sum();
            let client = browser.api("clients")[0].clone();
            let creates = meta["rates"]["kinds"].as_array().is_some_and(|kinds| {
                kinds.iter().any(|kind| kind["kind"] == "create" && rate(kind, "mean_s") > 0.0)
            });
            written > 1e3
                && creates
                && client["node"]["name"] == "c0"
                && rate(&client, "written_bytes_per_s") > 1e3
                && rate(&client, "calls_per_s") > 1.0
        });
        wait_until("the work is in the histories", SHOWN_WITHIN, || {
            let id = server(browser, "meta")["node"]["id"].clone();
            let has_any = |path: &str, field: &str| {
                let history = browser.api(path);
                assert_eq!(history["step_s"], 2);
                history["figures"][field].as_array().unwrap().iter().any(|figure| figure.as_f64() > Some(1.0))
            };
            has_any("history?span=minutes", "written_bytes_per_s")
                && has_any("history?client=c0", "written_bytes_per_s")
                && has_any(&format!("history?role=meta&node={id}"), "calls_per_s")
        });
        drop(ends);
    });
}

#[test]
fn what_is_shown_is_what_commands_tell_and_servers_count() {
    if !can_mount("the console of a cluster in use") {
        return;
    }
    let mut lab = Lab::start(2, 1);
    let mut console = Console::start(&lab);
    let browser = console.logged_in(&lab);
    wait_until("all servers have told something", SHOWN_WITHIN, || {
        let servers = browser.api("servers");
        let servers = servers.as_array().unwrap();
        servers.len() == 4 && servers.iter().all(|server| server["heard_ms"].is_u64())
    });
    wait_until("the session is known", SHOWN_WITHIN, || browser.api("sessions") != json!([]));
    fs::write(lab.path("m0/file"), vec![1u8; 3 << 20]).unwrap();

    assert_eq!(browser.api("nodes"), command(&lab, "node list"));
    assert_eq!(browser.api("pools"), command(&lab, "pool list"));
    assert_eq!(browser.api("shards"), command(&lab, "shard list"));
    let mut moves = command(&lab, "target moves");
    // How far drains are is told by commands and metrics alone.
    assert_eq!(moves.as_object_mut().unwrap().remove("works"), Some(json!([])));
    assert_eq!(browser.api("moves"), moves);
    let moment = ["bytes_used", "bytes_free", "drain"];
    assert_eq!(without(browser.api("targets"), &moment), without(command(&lab, "target list"), &moment));
    let moment = ["heard_ms", "leases", "opens", "locks"];
    assert_eq!(
        without(browser.api("sessions"), &moment),
        without(command(&lab, "session list")["sessions"].take(), &moment)
    );
    wait_until("events are the same", SHOWN_WITHIN, || browser.api("events") == command(&lab, "event list"));
    let events = browser.api("events");
    let numbers: Vec<u64> =
        events.as_array().unwrap().iter().map(|event| event["number"].as_u64().unwrap()).collect();
    let after = numbers[numbers.len() - 3];
    assert_eq!(browser.api(&format!("events?after={after}")).as_array().unwrap().len(), 2);
    assert_eq!(browser.api("events?max=1")[0]["number"], *numbers.last().unwrap());
    let (targets, space) = (browser.api("targets"), browser.api("space"));
    let sum = |field: &str| {
        targets.as_array().unwrap().iter().map(|target| target[field].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(space[0]["bytes_total"], sum("bytes_total"));
    assert_eq!((&space[0]["pool"], &space[0]["targets_told"]), (&json!("default"), &json!(2)));
    let health = browser.api("health");
    // The disk that this test is on may be as full as it likes.
    let is_of_space = |finding: &Value| finding["what"].as_str().unwrap().contains("of its space are free");
    let others: Vec<&Value> =
        health["findings"].as_array().unwrap().iter().filter(|finding| !is_of_space(finding)).collect();
    assert!(others.is_empty(), "{health:#}");

    let storage = server(&browser, "storage");
    let in_80_days = std::time::SystemTime::now() + Duration::from_secs(80 * 86_400);
    let in_80_days = in_80_days.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let end = storage["certificate_end"].as_u64().unwrap();
    assert!(end > in_80_days && end < in_80_days + 20 * 86_400, "{storage}");
    assert_eq!(
        (&storage["version"], &storage["is_away"]),
        (&json!(env!("CARGO_PKG_VERSION")), &json!(false))
    );
    assert_eq!(server(&browser, "manager")["state"], json!({ "store": "file", "is_reached": true }));

    work_is_seen(&lab, &browser);
    assert_eq!(browser.api("history?span=day")["step_s"], 60);
    console.role.stop();
    lab.stop();
}

#[test]
fn a_server_that_is_away_is_told_and_holds_nobody_up() {
    let mut lab = Lab::start(1, 0);
    let mut console = Console::start(&lab);
    let browser = console.logged_in(&lab);
    let findings = |browser: &Browser| browser.api("health")["findings"].to_string();
    let kinds = |browser: &Browser, path: &str| -> Vec<String> {
        let all = browser.api(path);
        all.as_array()
            .unwrap()
            .iter()
            .map(|event| format!("{} {}", event["kind"], event["subject"]).replace('"', ""))
            .collect()
    };
    // Others may be slow on a machine that has much else to do.
    let of_oss0 = |notes: &[String]| -> Vec<String> {
        notes.iter().filter(|note| note.ends_with(" oss0")).cloned().collect()
    };
    wait_until("the storage server has answered", SHOWN_WITHIN, || {
        server(&browser, "storage")["heard_ms"].is_u64()
    });
    let known = browser.api("targets");

    lab.storage[0].kill();
    wait_until("it is shown as away", SHOWN_WITHIN, || server(&browser, "storage")["is_away"] == true);
    wait_until("it is noted", SHOWN_WITHIN, || of_oss0(&kinds(&browser, "notes")) == ["server-away oss0"]);
    let health = browser.api("health");
    assert_eq!(health["state"], "error");
    assert!(findings(&browser).contains("storage has not answered for"), "{health:#}");
    let shown = without(browser.api("targets"), &["away_s"]);
    assert_eq!(shown, without(known, &["away_s"]), "what it told last is still shown");
    wait_until("managers tell that they do not hear of it", SHOWN_WITHIN, || {
        let away = |value: &Value| value.as_u64().is_some_and(|seconds| seconds >= 10);
        let nodes = browser.api("nodes");
        let oss0 = nodes.as_array().unwrap().iter().find(|node| node["name"] == "oss0").unwrap();
        away(&server(&browser, "storage")["away_s"])
            && away(&browser.api("targets")[0]["away_s"])
            && away(&oss0["away_s"]["storage"])
    });
    let age: u64 = browser.get("/api/v1/targets").header("age").unwrap().parse().unwrap();
    assert!(age >= 6, "{age}");
    lab.start_storage(0);
    wait_until("it is back", SHOWN_WITHIN, || {
        of_oss0(&kinds(&browser, "notes")) == ["server-away oss0", "server-back oss0"]
    });
    let started = || kinds(&browser, "events").iter().filter(|kind| *kind == "server-started oss0").count();
    wait_until("its start is an event", SHOWN_WITHIN, || started() == 2);
    assert!(!findings(&browser).contains("has not answered"));

    // A manager that hangs: worse than one that was killed, because it takes connections.
    lab.manager.pause();
    wait_until("the manager is shown as away", SHOWN_WITHIN, || {
        let begun = Instant::now();
        PATHS.iter().for_each(|path| drop(browser.api(path)));
        assert!(begun.elapsed() < PATHS.len() as u32 * ANSWER_MAX, "{:?}", begun.elapsed());
        server(&browser, "manager")["is_away"] == true
    });
    assert!(findings(&browser).contains("no manager has answered for"), "{}", findings(&browser));
    let age = |path: &str| browser.get(path).header("age").unwrap().parse::<u64>().unwrap();
    // Where the machine is busy, the last answer may have come a while after it was paused.
    wait_until("it says how old it is", SHOWN_WITHIN, || {
        age("/api/v1/nodes") >= 6 && age("/api/v1/events") >= 6
    });
    assert_eq!(server(&browser, "storage")["is_away"], false);
    // One can log in all the same.
    assert_eq!(console.logged_in(&lab).api("nodes").as_array().unwrap().len(), 4);
    lab.manager.resume();
    wait_until("the manager is back", SHOWN_WITHIN, || server(&browser, "manager")["is_away"] == false);
    wait_until("its word is new", SHOWN_WITHIN, || age("/api/v1/nodes") < 6 && age("/api/v1/events") < 6);

    // A console starts while no manager answers, with the map that it has seen.
    console.role.stop();
    lab.manager.kill();
    console.role =
        lab.run("console", &format!("console --listen {} --identity @console", console.address), "serves");
    let browser = console.logged_in(&lab);
    assert!(browser.api("nodes").to_string().contains("oss0"));
    wait_until("what it has never heard of is told", SHOWN_WITHIN, || {
        findings(&browser).contains("has not answered since the console was started")
    });
    console.role.stop();
    lab.start_manager();
    lab.stop();
}

/// Memory that a process has in use.
fn memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it runs");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn strangers_do_no_harm() {
    let mut lab = Lab::start(0, 0);
    let mut console = Console::start(&lab);
    let browser = console.logged_in(&lab);
    let before = memory(Lab::process(&console.role));

    // No TLS, and half of it.
    for sent in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\xff\xff", b"\x00", b""] {
        let mut stream = TcpStream::connect(&console.address).unwrap();
        stream.write_all(sent).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut got = Vec::new();
        // Cut off, or told in TLS that it is none.
        let _ = stream.read_to_end(&mut got);
        assert!(got.len() < 100 && !got.starts_with(b"HTTP"), "{got:?}");
    }
    // What is no request, or too much of one.
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    let wide = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    for sent in ["\r\n\r\n\r\n", "GET", "GET / HTTP/9.9\r\n\r\n", "\u{0}\u{1}\r\n\r\n", &long, &many, &wide] {
        if let Ok(got) = browser.exchange(sent.as_bytes()) {
            assert!(got.is_empty() || read(&got).status >= 400, "{}", String::from_utf8_lossy(&got));
        }
    }
    // A body that is too large, one that never ends, and one that lies about its length.
    let head = "POST /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    let large = format!("{head}Content-Length: 100000\r\n\r\ncode={}", "0".repeat(99_995));
    let endless = format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\ncode=\r\n");
    let short = format!("{head}Content-Length: 500\r\n\r\ncode=0");
    for sent in [large, endless, short] {
        let begun = Instant::now();
        if let Ok(got) = browser.exchange(sent.as_bytes()) {
            assert_eq!(read(&got).status, 400);
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
    for path in ["/../../etc/passwd", "/api/v1/../../login", "/%2e%2e/", "//", "/api/v1/nodes/../nodes"] {
        assert_eq!(browser.get(path).status, 404, "{path}");
    }
    // Those who say nothing take the places of one address, and for a few seconds.
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&console.address).unwrap()).collect();
    let mut slow = browser.connect();
    let _ = slow.write_all(b"GET /api/v1/nodes HTTP/1.1\r\nX-Slow: ");
    let asked = || browser.exchange(b"GET /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    wait_until("somebody is served beside them", SHOWN_WITHIN, || {
        asked().is_ok_and(|got| read(&got).status == 200)
    });
    drop((silent, slow));
    assert_eq!(browser.api("nodes").as_array().unwrap().len(), 3);
    let after = memory(Lab::process(&console.role));
    assert!(after < before + (64 << 20), "{before} bytes before, {after} after");
    assert!(!console.role.text().contains("panicked"), "{}", console.role.text());
    console.role.stop();
    lab.stop();
}

#[test]
fn another_certificate_can_be_shown_to_browsers() {
    let mut lab = Lab::start(0, 0);
    let mut console = Console::start(&lab);
    console.role.stop();
    let given = rcgen::generate_simple_self_signed(["console.example.org".to_owned()]).unwrap();
    fs::write(lab.path("cert.pem"), given.cert.pem()).unwrap();
    fs::write(lab.path("key.pem"), given.signing_key.serialize_pem()).unwrap();
    let line = format!("console --listen {} --identity @console", console.address);
    lab.ashlar(&format!("{line} --tls-cert @cert.pem --tls-key @console/key.pem")).refused(&[
        "--tls-cert",
        "--tls-key",
        "cert.pem",
    ]);
    lab.ashlar(&format!("{line} --tls-cert @cert.pem")).expect(2);
    lab.ashlar(&format!("{line} --tls-cert @nothing --tls-key @key.pem"))
        .refused(&["cannot read", "nothing"]);
    let more = "--tls-cert @cert.pem --tls-key @key.pem --url https://console.example.org";
    console.role = lab.run("console", &format!("{line} {more}"), "serves");
    let link = lab.ashlar("console login --identity @console").expect(0).stdout;
    let code = link.trim().strip_prefix("https://console.example.org/login#").expect("the link has the name");
    let mut browser = Browser::new(&console.address, &lab.path("cert.pem"));
    assert_eq!(browser.log_in(code).status, 303);
    assert_eq!(browser.api("nodes").as_array().unwrap().len(), 3);
    console.role.stop();
    lab.stop();
}

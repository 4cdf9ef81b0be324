//! A command that was being answered when the server was told to stop kept the services in use: it ended with an error, and left the
//! next start to recover. `ashlar status` asks all servers of the machine, so this met those that nobody had asked anything.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{PATIENCE, Site, can_mount};

/// Asks as `ashlar status` does; whether there was an answer, or `None` when there is nobody to ask any more.
fn ask(socket: &Path) -> Option<bool> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let mut answer = String::new();
    let is_read =
        stream.write_all(b"{\"request\":\"status\"}\n").is_ok() && stream.read_to_string(&mut answer).is_ok();
    Some(is_read && answer.contains("bytes_total"))
}

#[test]
fn a_server_that_is_asked_while_it_stops_ends_in_good_order() {
    if !can_mount("commands while a server stops") {
        return;
    }
    let site = Site::new();
    for _ in 0..5 {
        let server = site.up("up @mnt --data @d1");
        let status = site.run("status @mnt --json").expect(0);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
        let socket = format!("/run/ashlar/{}.sock", status[0]["cluster"].as_str().unwrap());
        let answers = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(is_answered) = ask(socket.as_ref()) {
                        answers.fetch_add(u64::from(is_answered), SeqCst);
                    }
                });
            }
            let deadline = Instant::now() + PATIENCE;
            while answers.load(SeqCst) < 20 {
                assert!(Instant::now() < deadline, "nobody answers");
                std::thread::sleep(Duration::from_millis(1));
            }
            server.stop();
        });
    }
}

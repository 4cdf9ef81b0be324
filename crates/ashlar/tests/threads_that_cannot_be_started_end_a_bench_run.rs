//! `ashlar bench` where the user may have no more threads (`ulimit -u`): an error that names the way out, in bounded time, and nothing is left.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use support::agents::{Coordinator, Process, entries};
use support::binary;

/// Threads that the user may have, all processes together: enough to begin with.
const THREADS_MAX: u32 = 40;
/// Bounded: no wait for a thread that does not come, and none for somebody who does not answer.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// A user who has no other processes, with few threads.
struct Poor {
    user: String,
    /// Open for the programs of the test: the way to it may be closed to another user.
    program: File,
    place: tempfile::TempDir,
}

impl Poor {
    /// Nothing, said where people look, unless this is root, whose threads are not limited but who can be another user.
    fn new(number: u32) -> Option<Poor> {
        // SAFETY: geteuid has no preconditions and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!(
                "******** SKIPPED: threads that cannot be started need root, to be a user of their own ********"
            );
            return None;
        }
        // Tests of one process run at the same time, and so may other processes.
        let user = (3_000_000_000 + std::process::id() * 8 + number).to_string();
        let program = File::open(binary()).unwrap();
        // SAFETY: the descriptor is open; its flag is of no use to anybody else.
        assert_eq!(unsafe { libc::fcntl(program.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        // Not beside the build, which another user may not be able to reach.
        let place = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        Some(Poor { user, program, place })
    }

    /// `ashlar` with `words` as this user.
    fn start(&self, words: &[&str], secret: Option<&str>) -> Process {
        let limit = format!("--nproc={THREADS_MAX}");
        let program = format!("/proc/self/fd/{}", self.program.as_raw_fd());
        // `Process` puts the path of the program behind this; the shell takes the open one instead.
        let instead = ["sh", "-c", "shift; exec \"$@\"", "sh"];
        let as_user =
            ["setpriv", "--reuid", &self.user, "--regid", &self.user, "--clear-groups", "prlimit", &limit];
        let wrapper = [&as_user[..], &instead].concat();
        Process::start(&wrapper, &[&[program.as_str()], words].concat(), secret)
    }

    fn directory(&self) -> String {
        self.place.path().display().to_string()
    }
}

#[test]
fn a_workload_with_more_threads_than_the_user_may_have_names_the_way_out() {
    let Some(poor) = Poor::new(0) else { return };
    let directory = poor.directory();
    let few = ["bench", "metadata", &directory, "--threads", "2", "--files", "20", "--keep-caches"];
    poor.start(&few, None).end().expect(0);
    let content = ["bench", "sequential", &directory, "--threads", "64", "--total", "64m", "--keep-caches"];
    let files = ["bench", "metadata", &directory, "--threads", "64", "--files", "640", "--keep-caches"];
    for words in [&content[..], &files] {
        let begin = Instant::now();
        let told = poor.start(words, None).end();
        let told = told.refused(&["cannot start 64 threads", "--threads", "ulimit -u", "TasksMax="]);
        assert!(begin.elapsed() < ENDS_WITHIN, "{}", told.all());
        assert_eq!(entries(poor.place.path()), [] as [std::path::PathBuf; 0], "nothing is left");
    }
}

#[test]
fn an_agent_that_cannot_start_its_threads_says_so_and_ends_the_run() {
    let Some(poor) = Poor::new(1) else { return };
    let directory = poor.directory();
    let words =
        ["metadata", &directory, "--agents", "2", "--threads", "128", "--files", "1280", "--keep-caches"];
    let coordinator = Coordinator::start(&[], "127.0.0.1:0", &words);
    let begin = Instant::now();
    // Both of the same user: what one of them makes the other writes into.
    let agent = ["bench", "agent", &coordinator.address, &directory];
    let agents = [(); 2].map(|()| poor.start(&agent, Some(&coordinator.secret)));
    let told = coordinator.process.end().refused(&["agent ", "cannot start 64 threads", "ulimit -u"]);
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&["the run has failed"])));
    assert!(begin.elapsed() < ENDS_WITHIN, "{}", told.all());
    assert_eq!(entries(poor.place.path()), [] as [std::path::PathBuf; 0], "nothing is left");
}

#[test]
fn a_network_with_more_connections_than_threads_names_the_way_out() {
    let Some(poor) = Poor::new(2) else { return };
    let words = ["network", "--agents", "2", "--streams", "64", "--seconds", "1"];
    let coordinator = Coordinator::start(&[], "127.0.0.1:0", &words);
    let begin = Instant::now();
    let agents = [
        poor.start(&["bench", "agent", &coordinator.address], Some(&coordinator.secret)),
        coordinator.agent(&[], &[]),
    ];
    let told = coordinator.process.end().refused(&["agent ", "cannot start 64 threads", "ulimit -u"]);
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&["the run has failed"])));
    assert!(begin.elapsed() < ENDS_WITHIN, "{}", told.all());
}

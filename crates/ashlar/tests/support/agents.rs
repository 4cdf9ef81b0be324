//! A coordinator of `ashlar bench` and its agents as real processes.

use super::{PATIENCE, binary};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A process whose output goes into files of its own.
pub struct Process {
    child: Child,
    stdout: tempfile::NamedTempFile,
    stderr: tempfile::NamedTempFile,
}

/// How one has ended.
pub struct Told {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Told {
    pub fn all(&self) -> String {
        format!("exit {:?}\n{}{}", self.code, self.stdout, self.stderr)
    }

    /// Checks that it failed with these words and did not crash.
    #[track_caller]
    pub fn refused(self, words: &[&str]) -> Told {
        assert!(self.code != Some(0) && !self.stderr.contains("panicked"), "{}", self.all());
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in: {}", self.all());
        }
        self
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Told {
        assert_eq!(self.code, Some(code), "{}", self.all());
        self
    }
}

impl Process {
    /// Runs the binary with `words` inside of `wrapper`, which may be nothing.
    pub fn start(wrapper: &[&str], words: &[&str], secret: Option<&str>) -> Process {
        let [stdout, stderr] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
        let program = binary().display().to_string();
        let words: Vec<&str> =
            wrapper.iter().copied().chain([program.as_str()]).chain(words.iter().copied()).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command.stdout(stdout.reopen().unwrap()).stderr(stderr.reopen().unwrap());
        if let Some(secret) = secret {
            command.env("ASHLAR_BENCH_SECRET", secret);
        }
        let child = command.spawn().unwrap();
        Process { child, stdout, stderr }
    }

    pub fn id(&self) -> i32 {
        self.child.id() as i32
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.stderr.path()).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes no pointer; the child has not been waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(self.id(), signal) }, 0);
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(mut self) -> Told {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "does not end: {}", self.said());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let code = self.child.wait().unwrap().code();
        let [stdout, stderr] =
            [&self.stdout, &self.stderr].map(|file| std::fs::read_to_string(file.path()).unwrap());
        Told { code, stdout, stderr }
    }

    /// Waits until it has said `word`.
    #[track_caller]
    pub fn until_said(&mut self, word: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.said().contains(word) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "{ended:?} without `{word}`: {}",
                self.said()
            );
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that fails leaves nobody behind; whoever has ended is not there to be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A coordinator that waits for agents.
pub struct Coordinator {
    pub process: Process,
    pub secret: String,
    pub address: String,
}

impl Coordinator {
    /// `bench` with `words`, listening on `listen`.
    #[track_caller]
    pub fn start(wrapper: &[&str], listen: &str, words: &[&str]) -> Coordinator {
        let words = [&["bench"], words, &["--listen", listen]].concat();
        let mut process = Process::start(wrapper, &words, None);
        process.until_said("good for this run only");
        process.until_said("\n    ");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = process.said();
            let secret = said.lines().map(str::trim).find(|line| line.len() == 64 && !line.contains(' '));
            let address = said.lines().find_map(|line| line.trim().strip_prefix("ashlar bench agent "));
            if let (Some(secret), Some(address), true) = (secret, address, said.ends_with('\n')) {
                let address = address.split(' ').next().unwrap().to_owned();
                return Coordinator { secret: secret.to_owned(), address, process };
            }
            assert!(Instant::now() < deadline, "{said}");
        }
    }

    pub fn agent(&self, wrapper: &[&str], directories: &[&Path]) -> Process {
        agent(wrapper, &self.address, &self.secret, directories)
    }
}

/// An agent with this secret.
pub fn agent(wrapper: &[&str], address: &str, secret: &str, directories: &[&Path]) -> Process {
    let directories: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
    let directories = directories.iter().map(String::as_str);
    let words: Vec<&str> = ["bench", "agent", address].into_iter().chain(directories).collect();
    Process::start(wrapper, &words, Some(secret))
}

/// A directory whose pages can be evicted: not on tmpfs.
pub fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// What is in a directory.
pub fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Waits until a file that ends with `name` is somewhere below `directory`.
#[track_caller]
pub fn wait_for_file(directory: &Path, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !entries(directory).iter().any(|run| File::open(run.join(name)).is_ok()) {
        assert!(Instant::now() < deadline, "there is no {name}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

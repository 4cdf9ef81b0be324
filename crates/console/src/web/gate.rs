//! Who may look: codes that are good once, and sessions that come of them. All of it is in memory, and none of it as it is: only hashes, so that nothing of
//! use can be read from the memory of the process, and comparing takes as long for a guess that is nearly right.

use ashlar_env::Entropy;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a code can be used.
pub const CODE_LIFE: Duration = Duration::from_secs(10 * 60);
/// For how long a session is good.
pub const SESSION_LIFE: Duration = Duration::from_secs(8 * 60 * 60);
/// LIMIT: codes that wait to be used, and sessions; the oldest make room for others.
const CODES_MAX: usize = 16;
const SESSIONS_MAX: usize = 64;
/// LIMIT: wrong codes from one address within [`FAILURE_TERM`]; after that it is told to wait.
const FAILURES_MAX: u32 = 10;
const FAILURE_TERM: Duration = Duration::from_secs(60);
/// LIMIT: addresses of which failures are remembered; the oldest are forgotten.
const ADDRESSES_MAX: usize = 4096;
/// Bytes of a code and of a session's secret.
const SECRET_BYTES: usize = 32;

type Hash = [u8; 32];

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The code is none, was used, or is too old.
    Wrong,
    /// Too many wrong codes came from there.
    Later,
}

#[derive(Default)]
struct Kept {
    codes: Vec<(Hash, Instant)>,
    sessions: Vec<(Hash, Instant)>,
    failures: HashMap<IpAddr, (u32, Instant)>,
}

/// See the module.
pub struct Gate {
    entropy: Arc<dyn Entropy>,
    kept: Mutex<Kept>,
}

fn hash(secret: &str) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    hash
}

/// The newest ones stay, and none that is too old.
fn tidy(kept: &mut Vec<(Hash, Instant)>, life: Duration, max: usize, now: Instant) {
    kept.retain(|(_, since)| now.saturating_duration_since(*since) < life);
    let excess = kept.len().saturating_sub(max);
    kept.drain(..excess);
}

impl Gate {
    /// Nobody is in.
    pub fn new(entropy: Arc<dyn Entropy>) -> Gate {
        Gate { entropy, kept: Mutex::default() }
    }

    fn draw(&self) -> String {
        let mut secret = [0; SECRET_BYTES];
        self.entropy.fill(&mut secret);
        secret.iter().fold(String::new(), |mut text, byte| {
            // Writing into a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// A code by which one can get in, once.
    pub fn new_code(&self) -> String {
        let (code, now) = (self.draw(), Instant::now());
        let mut kept = self.kept.lock();
        kept.codes.push((hash(&code), now));
        tidy(&mut kept.codes, CODE_LIFE, CODES_MAX, now);
        code
    }

    /// Uses a code; gives the secret of the session that comes of it.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn enter(&self, from: IpAddr, code: &str) -> Result<String, Refusal> {
        self.enter_at(from, code, Instant::now())
    }

    fn enter_at(&self, from: IpAddr, code: &str, now: Instant) -> Result<String, Refusal> {
        let (given, secret) = (hash(code), self.draw());
        let mut kept = self.kept.lock();
        kept.failures.retain(|_, (_, since)| now.saturating_duration_since(*since) < FAILURE_TERM);
        if kept.failures.get(&from).is_some_and(|(count, _)| *count >= FAILURES_MAX) {
            return Err(Refusal::Later);
        }
        tidy(&mut kept.codes, CODE_LIFE, CODES_MAX, now);
        let Some(at) = kept.codes.iter().position(|(known, _)| *known == given) else {
            note_failure(&mut kept.failures, from, now);
            return Err(Refusal::Wrong);
        };
        // ORDER: gone before anybody is in by it.
        kept.codes.remove(at);
        kept.sessions.push((hash(&secret), now));
        tidy(&mut kept.sessions, SESSION_LIFE, SESSIONS_MAX, now);
        Ok(secret)
    }

    /// Whether this is the secret of a session.
    pub fn knows(&self, secret: &str) -> bool {
        self.knows_at(secret, Instant::now())
    }

    fn knows_at(&self, secret: &str, now: Instant) -> bool {
        let given = hash(secret);
        let mut kept = self.kept.lock();
        tidy(&mut kept.sessions, SESSION_LIFE, SESSIONS_MAX, now);
        kept.sessions.iter().any(|(known, _)| *known == given)
    }

    /// Ends a session.
    pub fn leave(&self, secret: &str) {
        let given = hash(secret);
        self.kept.lock().sessions.retain(|(known, _)| *known != given);
    }
}

fn note_failure(failures: &mut HashMap<IpAddr, (u32, Instant)>, from: IpAddr, now: Instant) {
    if failures.len() >= ADDRESSES_MAX
        && !failures.contains_key(&from)
        && let Some(oldest) = failures.iter().min_by_key(|(_, (_, since))| *since).map(|(from, _)| *from)
    {
        failures.remove(&oldest);
    }
    failures.entry(from).or_insert((0, now)).0 += 1;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn gate() -> Gate {
        Gate::new(ashlar_env::Env::os().entropy)
    }

    fn address(last: u16) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + u32::from(last)).into()
    }

    #[test]
    fn a_code_lets_one_in_once_and_not_for_ever() {
        let gate = gate();
        let code = gate.new_code();
        let secret = gate.enter(address(1), &code).unwrap();
        assert!(gate.knows(&secret) && secret != code && secret.len() == 64);
        assert_eq!(gate.enter(address(1), &code), Err(Refusal::Wrong), "a second time");
        let late = Instant::now() + SESSION_LIFE;
        assert!(!gate.knows_at(&secret, late));
        let code = gate.new_code();
        assert_eq!(
            gate.enter_at(address(1), &code, Instant::now() + CODE_LIFE),
            Err(Refusal::Wrong),
            "too late"
        );
    }

    #[test]
    fn who_leaves_is_out_and_nobody_else() {
        let gate = gate();
        let enter = || gate.enter(address(1), &gate.new_code()).unwrap();
        let (one, other) = (enter(), enter());
        gate.leave(&one);
        assert!(!gate.knows(&one) && gate.knows(&other) && !gate.knows(""));
    }

    #[test]
    fn codes_and_sessions_are_bounded_and_the_oldest_make_room() {
        let gate = gate();
        let codes: Vec<String> = (0..=CODES_MAX).map(|_| gate.new_code()).collect();
        assert_eq!(gate.enter(address(1), &codes[0]), Err(Refusal::Wrong));
        assert!(gate.enter(address(1), &codes[1]).is_ok());
        let secrets: Vec<String> =
            (0..=SESSIONS_MAX).map(|_| gate.enter(address(1), &gate.new_code()).unwrap()).collect();
        assert!(!gate.knows(&secrets[0]) && gate.knows(&secrets[1]));
    }

    #[test]
    fn who_guesses_has_to_wait_and_keeps_nobody_else_out() {
        let gate = gate();
        let now = Instant::now();
        for _ in 0..FAILURES_MAX {
            assert_eq!(gate.enter_at(address(1), "guess", now), Err(Refusal::Wrong));
        }
        let code = gate.new_code();
        assert_eq!(gate.enter_at(address(1), &code, now), Err(Refusal::Later), "also with the right one");
        assert!(gate.enter_at(address(2), &code, now).is_ok());
        assert_eq!(gate.enter_at(address(1), "guess", now + FAILURE_TERM), Err(Refusal::Wrong));
        (0..2 * ADDRESSES_MAX as u16).for_each(|last| drop(gate.enter_at(address(last), "guess", now)));
        assert!(gate.kept.lock().failures.len() <= ADDRESSES_MAX);
    }
}

//! The one-time secret that a coordinator prints and every agent is given.

use crate::BenchError;
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Bytes of each half: 128 bits cannot be guessed, and no second key with the same fingerprint can be found.
const HALF_BYTES: usize = 16;
/// LIMIT: bytes of a file with an invitation.
const TEXT_BYTES_MAX: u64 = 4096;
/// What the agents' key is derived for.
const AGENT_KEY_INFO: &[u8] = b"ashlar bench agent key 1";

/// Seed of an Ed25519 key.
pub(super) type Seed = [u8; 32];

/// By which an agent knows the coordinator (the fingerprint of its public key), and by which the coordinator knows an agent (a secret that the
/// agents' key is derived from). Who has it may act as an agent and not as the coordinator. Drawn anew for every run.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    fingerprint: [u8; HALF_BYTES],
    secret: [u8; HALF_BYTES],
}

// Not printed by accident: only `text` shows it.
impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invitation")
    }
}

impl Invitation {
    /// A fresh one for the coordinator with this public key.
    ///
    /// # Errors
    /// [`BenchError::Refused`] when the system has no random numbers.
    pub(super) fn draw(public_key: &[u8]) -> Result<Invitation, BenchError> {
        Ok(Invitation { fingerprint: fingerprint(public_key), secret: random()? })
    }

    /// Whether a coordinator's public key is the one that was invited for.
    pub(super) fn is_from(&self, public_key: &[u8]) -> bool {
        self.fingerprint == fingerprint(public_key)
    }

    /// The seed of the key by which agents show that they have the secret.
    pub(super) fn agent_seed(&self) -> Seed {
        let mut seed = Seed::default();
        let key = Salt::new(HKDF_SHA256, &self.fingerprint).extract(&self.secret);
        let info = [AGENT_KEY_INFO];
        let filled = key.expand(&info, HKDF_SHA256).and_then(|material| material.fill(&mut seed));
        filled.unwrap_or_else(|_| unreachable!("a SHA-256 hash is as long as a seed"));
        seed
    }

    /// 64 hexadecimal digits, for the eyes of whoever starts the agents.
    pub fn text(&self) -> String {
        self.fingerprint.iter().chain(&self.secret).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`Invitation::text`] wrote; space around it does not count.
    ///
    /// # Errors
    /// [`BenchError::Refused`], without what was read.
    pub fn parse(text: &str) -> Result<Invitation, BenchError> {
        let digits = text.trim().as_bytes();
        let fault = || {
            BenchError::Refused(
                "this is not a secret of `ashlar bench`: it has 64 hexadecimal digits, as the coordinator printed it".into(),
            )
        };
        if digits.len() != 4 * HALF_BYTES {
            return Err(fault());
        }
        let mut bytes = [0; 2 * HALF_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| fault())?;
            // `from_str_radix` would take a sign.
            if !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(fault());
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| fault())?;
        }
        let (fingerprint, secret) = bytes.split_at(HALF_BYTES);
        let half = |bytes: &[u8]| bytes.try_into().map_err(|_| fault());
        Ok(Invitation { fingerprint: half(fingerprint)?, secret: half(secret)? })
    }

    /// Reads one from a file that nobody else may read.
    ///
    /// # Errors
    /// [`BenchError::Refused`] when others may, and what a call answers.
    pub fn from_file(path: &Path) -> Result<Invitation, BenchError> {
        let file = File::open(path).map_err(BenchError::io("open", path))?;
        let mode = file.metadata().map_err(BenchError::io("stat", path))?.permissions().mode();
        if mode & 0o077 != 0 {
            let text = format!("{} can be read by others: chmod 600 it, and begin anew", path.display());
            return Err(BenchError::Refused(text));
        }
        let mut text = String::new();
        file.take(TEXT_BYTES_MAX).read_to_string(&mut text).map_err(BenchError::io("read", path))?;
        Invitation::parse(&text)
    }
}

fn fingerprint(public_key: &[u8]) -> [u8; HALF_BYTES] {
    let mut half = [0; HALF_BYTES];
    half.copy_from_slice(&digest(&SHA256, public_key).as_ref()[..HALF_BYTES]);
    half
}

/// Bytes that nobody can guess.
///
/// # Errors
/// [`BenchError::Refused`] when the system has none.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], BenchError> {
    let mut bytes = [0; N];
    let drawn = SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| BenchError::Refused("this system gives no random numbers".into()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_invitation_is_read_as_it_was_printed_and_never_printed_by_accident() {
        let drawn = Invitation::draw(b"key").unwrap();
        let text = drawn.text();
        assert_eq!(text.len(), 64);
        assert_eq!(Invitation::parse(&format!(" {}\n", text.to_uppercase())).unwrap(), drawn);
        assert!(drawn.is_from(b"key") && !drawn.is_from(b"yek"));
        assert_ne!(drawn, Invitation::draw(b"key").unwrap());
        assert_ne!(drawn.agent_seed(), Invitation::draw(b"key").unwrap().agent_seed());
        assert_eq!(format!("{drawn:?}"), "Invitation");
        for wrong in ["", "12", &text[1..], &format!("{text}0"), &text.replace(&text[..2], "+1")] {
            let error = Invitation::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
            assert!(wrong.len() < 9 || !error.contains(&wrong[2..9]), "it is not told what was read");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let drawn = Invitation::draw(b"key").unwrap();
        writeln!(file, "{}", drawn.text()).unwrap();
        assert_eq!(Invitation::from_file(file.path()).unwrap(), drawn);
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(
            Invitation::from_file(file.path()).unwrap_err().to_string().contains("can be read by others")
        );
    }
}

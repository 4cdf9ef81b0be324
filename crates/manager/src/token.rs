//! One-time tokens by which a machine becomes a node.
//!
//! A token is a secret and the fingerprint of the file system's authority. The secret is the seed of a key: who joins shows a certificate that
//! this key has signed itself, and the manager, which knows the public key alone, believes it once. The fingerprint tells who joins that
//! it speaks to the right file system.

use crate::ManagerError;
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use std::fmt;
use std::net::SocketAddr;

const SECRET_BYTES: usize = 16;
const FINGERPRINT_BYTES: usize = 32;
/// What a token begins with; the digit is the version of its form.
const PREFIX: &str = "ashlar1-";
const KEY_INFO: &[u8] = b"ashlar join token key 1";
/// An Ed25519 private key as PKCS #8 is this and its seed (RFC 8410, section 7).
const PKCS8_HEAD: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// An Ed25519 public key as `SubjectPublicKeyInfo` is this and the key (RFC 8410, section 4).
const SPKI_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: [u8; SECRET_BYTES],
    /// SHA-256 of the certificate of the authority.
    pub fingerprint: [u8; FINGERPRINT_BYTES],
    /// Where managers are.
    pub managers: Vec<SocketAddr>,
}

// Not printed by accident: only `text` shows it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    // LIMIT: of addresses in a token.
    /// Most addresses of managers in a token.
    pub const MANAGERS_MAX: usize = 16;

    /// A token with `secret`, drawn at random, for the file system whose authority has this certificate (DER).
    pub fn new(secret: [u8; SECRET_BYTES], authority: &[u8], managers: Vec<SocketAddr>) -> Token {
        let mut fingerprint = [0; FINGERPRINT_BYTES];
        fingerprint.copy_from_slice(digest(&SHA256, authority).as_ref());
        Token { secret, fingerprint, managers }
    }

    /// The text by which people pass it on: secret and fingerprint in hexadecimal digits, and addresses.
    pub fn text(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let managers: Vec<String> = self.managers.iter().map(SocketAddr::to_string).collect();
        format!("{PREFIX}{}-{}@{}", hex(&self.secret), hex(&self.fingerprint), managers.join(","))
    }

    /// Reads what [`Token::text`] wrote; space around it does not count.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`], without what was read.
    pub fn parse(text: &str) -> Result<Token, ManagerError> {
        let fault = || {
            ManagerError::Invalid(
                "this is not a token: it begins with `ashlar1-` and ends with the addresses of managers, as `ashlar token` printed it".into(),
            )
        };
        let rest = text.trim().strip_prefix(PREFIX).ok_or_else(fault)?;
        let (secrets, managers) = rest.split_once('@').ok_or_else(fault)?;
        let (secret, fingerprint) = secrets.split_once('-').ok_or_else(fault)?;
        let managers: Vec<SocketAddr> =
            managers.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| fault())?;
        if managers.len() > Self::MANAGERS_MAX {
            return Err(fault());
        }
        let secret = from_hex(secret).ok_or_else(fault)?;
        let fingerprint = from_hex(fingerprint).ok_or_else(fault)?;
        Ok(Token { secret, fingerprint, managers })
    }

    fn seed(&self) -> [u8; 32] {
        let mut seed = [0; 32];
        let key = Salt::new(HKDF_SHA256, &self.fingerprint).extract(&self.secret);
        let filled = key.expand(&[KEY_INFO], HKDF_SHA256).and_then(|material| material.fill(&mut seed));
        filled.unwrap_or_else(|_| unreachable!("a SHA-256 hash is as long as a seed"));
        seed
    }

    /// The public key of its key.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] never, as far as is known: every seed has a key.
    pub fn public_key(&self) -> Result<[u8; 32], ManagerError> {
        let invalid = || ManagerError::Invalid("the key of a token cannot be made".into());
        let pair = Ed25519KeyPair::from_seed_unchecked(&self.seed()).map_err(|_| invalid())?;
        pair.public_key().as_ref().try_into().map_err(|_| invalid())
    }

    /// A certificate (DER) that its key has signed itself, and the key (PKCS #8): what who joins shows.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when they cannot be made.
    pub fn certificate(&self) -> Result<(Vec<u8>, Vec<u8>), ManagerError> {
        let invalid = |error: rcgen::Error| {
            ManagerError::Invalid(format!("the key of a token cannot be made: {error}"))
        };
        // rcgen wants the public key in the encoding, too (RFC 5958).
        let public = self.public_key()?;
        let mut v2 = vec![0x30, 0x51, 0x02, 0x01, 0x01];
        v2.extend_from_slice(&PKCS8_HEAD[5..]);
        v2.extend_from_slice(&self.seed());
        v2.extend_from_slice(&[0x81, 0x21, 0x00]);
        v2.extend_from_slice(&public);
        let der = rustls_pki_types::PrivatePkcs8KeyDer::from(v2);
        let key =
            rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ED25519).map_err(invalid)?;
        let mut params = rcgen::CertificateParams::new(Vec::new()).map_err(invalid)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "joiner");
        let certificate = params.self_signed(&key).map_err(invalid)?;
        Ok((certificate.der().to_vec(), [&PKCS8_HEAD[..], &self.seed()].concat()))
    }
}

/// The Ed25519 key in a `SubjectPublicKeyInfo` (DER), if it is one.
pub fn token_key(info: &[u8]) -> Option<[u8; 32]> {
    // A parser may give the inside of the outer sequence alone.
    let inside = info.strip_prefix(&SPKI_HEAD[..]).or_else(|| info.strip_prefix(&SPKI_HEAD[2..]))?;
    inside.try_into().ok()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let mut bytes = [0; N];
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn token() -> Token {
        Token::new(
            [7; 16],
            b"certificate",
            vec!["10.0.0.1:7400".parse().unwrap(), "[fd00::1]:7400".parse().unwrap()],
        )
    }

    #[test]
    fn a_token_is_read_as_it_was_printed_and_never_printed_by_accident() {
        let text = token().text();
        assert!(text.len() < 160, "{text}");
        assert_eq!(Token::parse(&format!(" {text}\n")).unwrap(), token());
        assert_eq!(format!("{:?}", token()), "Token");
        for wrong in [
            "",
            "ashlar1-",
            &text[1..],
            &text.replace("ashlar1", "ashlar2"),
            &text.replace('@', "-"),
            &text[..60],
        ] {
            let error = Token::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("this is not a token") && !error.contains("0707"), "{error}");
        }
    }

    #[test]
    fn the_certificate_of_a_token_has_the_key_by_which_the_manager_knows_it() {
        let (certificate, _) = token().certificate().unwrap();
        let key = token().public_key().unwrap();
        let info = [&SPKI_HEAD[..], &key].concat();
        assert!(certificate.windows(info.len()).any(|window| window == info));
        assert_eq!(token_key(&info), Some(key));
        assert_eq!(token_key(&info[2..]), Some(key));
        assert_eq!(token_key(&info[..40]), None);
    }
}

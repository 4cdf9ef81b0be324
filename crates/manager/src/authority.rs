//! The built-in certificate authority.

use crate::{ManagerError, Secrets};
use ashlar_types::{PeerId, Timespec};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, PublicKeyData, SanType};

/// For how long a certificate is good.
pub const CERTIFICATE_DAYS: i64 = 90;
/// A node asks for a new one when the old one is good for less than this.
pub const RENEWAL_DAYS: i64 = 60;
/// By how much a certificate is good before it was made: clocks may differ by a day.
const BACKDATED_DAYS: i64 = 3;
const DAY_S: i64 = 24 * 60 * 60;
/// Bytes of a public key: a point on P-256, uncompressed (SEC 1, 2.3.3).
const POINT_BYTES: usize = 65;

/// See the module.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A public key that somebody sent.
struct Sent<'a>(&'a [u8]);

impl PublicKeyData for Sent<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

fn invalid(error: rcgen::Error) -> ManagerError {
    ManagerError::Invalid(format!("cannot make a certificate: {error}"))
}

impl Authority {
    /// The authority of a file system.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when its key is damaged.
    pub fn new(secrets: &Secrets) -> Result<Authority, ManagerError> {
        let key = KeyPair::from_pem(&secrets.ca_key_pem).map_err(invalid)?;
        let params = crate::identity::authority_params(secrets.cluster)?;
        Ok(Authority { issuer: Issuer::new(params, key), certificate: secrets.ca_certificate_pem.clone() })
    }

    /// Its own certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate (PEM) that says that who has the private key of `public_key` (P-256, uncompressed) is `peer`.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when the key is none.
    pub fn issue(&self, peer: PeerId, public_key: &[u8], now: Timespec) -> Result<String, ManagerError> {
        if public_key.len() != POINT_BYTES || public_key[0] != 4 {
            return Err(ManagerError::Invalid("the public key is no point on P-256".into()));
        }
        let mut params = CertificateParams::new(Vec::new()).map_err(invalid)?;
        let uri = peer.to_string().try_into().map_err(invalid)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, peer.node.to_string());
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        let day = |days: i64| {
            let seconds = now.secs.saturating_add(days * DAY_S);
            time::OffsetDateTime::from_unix_timestamp(seconds)
                .map_err(|_| ManagerError::Invalid("the clock of this machine is wrong".into()))
        };
        (params.not_before, params.not_after) = (day(-BACKDATED_DAYS)?, day(CERTIFICATE_DAYS)?);
        Ok(params.signed_by(&Sent(public_key), &self.issuer).map_err(invalid)?.pem())
    }
}

/// A new private key (PEM) with its public key as [`Authority::issue`] wants it.
///
/// # Errors
/// [`ManagerError::Invalid`] when the system gives no random numbers.
pub fn draw_key() -> Result<(String, Vec<u8>), ManagerError> {
    let key = KeyPair::generate().map_err(invalid)?;
    let public = key.public_key_raw().to_vec();
    Ok((key.serialize_pem(), public))
}

/// The public key of a private key (PEM), as [`Authority::issue`] wants it.
///
/// # Errors
/// [`ManagerError::Invalid`] when it is none.
pub fn public_key_of(key: &str) -> Result<Vec<u8>, ManagerError> {
    Ok(KeyPair::from_pem(key).map_err(invalid)?.public_key_raw().to_vec())
}

//! The certificate authority of an etcd that was set up for one file system: its members and the managers have certificates of it, and nobody
//! else does. It is another one than that of the file system, whose certificates every client has.

use crate::ManagerError;
use ashlar_types::Timespec;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// For how long what it signs is good. Members and managers get new certificates with every start.
const CERTIFICATE_DAYS: i64 = 10 * 365;
/// For how long it is good itself.
const AUTHORITY_DAYS: i64 = 100 * 365;
/// By how much a certificate is good before it was made: clocks may differ.
const BACKDATED_DAYS: i64 = 3;
const DAY_S: i64 = 24 * 60 * 60;

/// See the module. Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdAuthority {
    /// Its certificate, PEM.
    pub certificate: String,
    /// Its private key, PEM.
    pub private_key: String,
}

// No secret in a log.
impl std::fmt::Debug for EtcdAuthority {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("EtcdAuthority(..)")
    }
}

fn invalid(error: rcgen::Error) -> ManagerError {
    ManagerError::Invalid(format!("cannot make a certificate for etcd: {error}"))
}

fn set_validity(params: &mut CertificateParams, now: Timespec, days: i64) -> Result<(), ManagerError> {
    let day = |days: i64| {
        time::OffsetDateTime::from_unix_timestamp(now.secs.saturating_add(days * DAY_S))
            .map_err(|_| ManagerError::Invalid("the clock of this machine is wrong".into()))
    };
    (params.not_before, params.not_after) = (day(-BACKDATED_DAYS)?, day(days)?);
    Ok(())
}

fn params() -> Result<CertificateParams, ManagerError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(invalid)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Ashlar etcd");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

impl EtcdAuthority {
    /// A new one.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when the system gives no random numbers.
    pub fn draw(now: Timespec) -> Result<EtcdAuthority, ManagerError> {
        let key = KeyPair::generate().map_err(invalid)?;
        let mut params = params()?;
        set_validity(&mut params, now, AUTHORITY_DAYS)?;
        let certificate = params.self_signed(&key).map_err(invalid)?.pem();
        Ok(EtcdAuthority { certificate, private_key: key.serialize_pem() })
    }

    /// A certificate and its private key, PEM, for a member at `addresses`, or for a client without any.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when its key is damaged.
    pub fn issue(
        &self,
        name: &str,
        addresses: &[IpAddr],
        now: Timespec,
    ) -> Result<(String, String), ManagerError> {
        let own = KeyPair::from_pem(&self.private_key).map_err(invalid)?;
        let issuer = Issuer::new(params()?, own);
        let key = KeyPair::generate().map_err(invalid)?;
        let mut params = CertificateParams::new(Vec::new()).map_err(invalid)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = addresses.iter().copied().map(SanType::IpAddress).collect();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A member is a client of the others, and of its own gateway.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, now, CERTIFICATE_DAYS)?;
        let certificate = params.signed_by(&key, &issuer).map_err(invalid)?.pem();
        Ok((certificate, key.serialize_pem()))
    }
}

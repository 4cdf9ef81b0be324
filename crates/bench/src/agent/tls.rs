//! TLS 1.3 between coordinator and agents, both known by their public keys (RFC 7250) and by nothing else.
//!
//! There are no certificates: nothing that a certificate says besides its key would be believed, and none can be too old or too new on a machine
//! whose clock is wrong. Each side proves with its signature over the handshake that it has the private key.

use super::invitation::{Invitation, Seed};
use crate::BenchError;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, ServerConnection, SignatureScheme,
};
use std::sync::Arc;

/// What both sides say they speak.
const PROTOCOL: &[u8] = b"ashlar-bench-agent";
/// An Ed25519 private key as PKCS #8 is this and its seed (RFC 8410, section 7).
const PKCS8_HEAD: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// A private key with its public one.
pub(super) struct Key {
    certified: Arc<CertifiedKey>,
}

impl Key {
    pub fn from_seed(seed: &Seed) -> Result<Key, BenchError> {
        let encoded = [&PKCS8_HEAD[..], seed].concat();
        let fault = |error: Error| BenchError::Refused(format!("cannot make a key: {error}"));
        let key = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(encoded)).map_err(fault)?;
        let public = key
            .public_key()
            .ok_or_else(|| BenchError::Refused("cannot make a key: it has no public half".into()))?;
        let certified = CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key);
        Ok(Key { certified: Arc::new(certified) })
    }

    /// The public key as it travels.
    pub fn public(&self) -> &[u8] {
        self.certified.cert.first().map_or(&[], |public| public.as_ref())
    }
}

/// No clock: keys have no dates, and sessions are not resumed.
#[derive(Debug)]
struct NoClock;

impl TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::ZERO))
    }
}

/// Believes one public key.
#[derive(Debug)]
struct OneKey {
    expected: Expected,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Expected {
    Coordinator(Invitation),
    Agent(Vec<u8>),
}

impl OneKey {
    fn check(&self, public: &[u8]) -> Result<(), Error> {
        let is_expected = match &self.expected {
            Expected::Coordinator(invitation) => invitation.is_from(public),
            Expected::Agent(key) => key == public,
        };
        if is_expected {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn check_signature(
        &self,
        message: &[u8],
        public: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let public = SubjectPublicKeyInfoDer::from(public.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &public, signature, algorithms)
    }
}

/// What TLS 1.2 would need; it is not offered.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
}

impl ServerCertVerifier for OneKey {
    fn verify_server_cert(
        &self,
        public: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(public).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        public: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, public, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for OneKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        public: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(public).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        public: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, public, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn fault(error: impl std::fmt::Display) -> BenchError {
    BenchError::Refused(format!("cannot set up TLS: {error}"))
}

/// The coordinator's side: shows `key`, and believes who has the secret of `invitation`.
pub(super) fn coordinator(key: &Key, invitation: &Invitation) -> Result<Arc<ServerConfig>, BenchError> {
    let provider = Arc::new(provider::default_provider());
    let expected = Expected::Agent(Key::from_seed(&invitation.agent_seed())?.public().to_vec());
    let verifier = OneKey { expected, provider: provider.clone() };
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(NoClock))
        .with_protocol_versions(&[&TLS13])
        .map_err(fault)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key.certified.clone())));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The agent's side of a connection: shows the key of the secret, and believes the coordinator of `invitation`.
pub(super) fn agent(invitation: &Invitation) -> Result<ClientConnection, BenchError> {
    let provider = Arc::new(provider::default_provider());
    let key = Key::from_seed(&invitation.agent_seed())?;
    let verifier = OneKey { expected: Expected::Coordinator(invitation.clone()), provider: provider.clone() };
    let mut config = ClientConfig::builder_with_details(provider, Arc::new(NoClock))
        .with_protocol_versions(&[&TLS13])
        .map_err(fault)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key.certified)));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
    let name = ServerName::try_from("coordinator").map_err(fault)?;
    ClientConnection::new(Arc::new(config), name).map_err(fault)
}

/// The coordinator's side of a connection.
pub(super) fn accepted(config: &Arc<ServerConfig>) -> Result<ServerConnection, BenchError> {
    ServerConnection::new(config.clone()).map_err(fault)
}

/// A client that believes the coordinator of `invitation` and shows no key.
#[cfg(test)]
pub(super) fn anonymous(invitation: &Invitation) -> ClientConnection {
    let provider = Arc::new(provider::default_provider());
    let verifier = OneKey { expected: Expected::Coordinator(invitation.clone()), provider: provider.clone() };
    let mut config = ClientConfig::builder_with_details(provider, Arc::new(NoClock))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    ClientConnection::new(Arc::new(config), ServerName::try_from("coordinator").unwrap()).unwrap()
}

//! Mutual TLS 1.3 with certificates of the file system's own authority.
//!
//! A certificate names a node and its roles ([`PeerId`]); names of machines and addresses mean nothing. The authority of a file system
//! signs for it alone, and a caller says beforehand which node or role it wants to speak to.

use super::NetError;
use ashlar_types::{NodeId, PeerId, Role};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};
use std::fmt;
use std::sync::Arc;

/// What both sides say they speak (RFC 7301).
const PROTOCOL_NAME: &[u8] = b"ashlar";

/// The certificate and key of a node, ready to use.
pub struct TlsIdentity {
    peer: PeerId,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    server: Arc<ServerConfig>,
}

// No secret in a log.
impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsIdentity({})", self.peer)
    }
}

fn invalid(what: &str, error: impl fmt::Display) -> NetError {
    NetError::Credentials(format!("{what}: {error}"))
}

impl TlsIdentity {
    /// Reads certificate, key and the certificate of the authority, each PEM.
    ///
    /// # Errors
    /// [`NetError::Credentials`] when one of them is not what it should be.
    pub fn from_pem(certificate: &str, key: &str, authority: &str) -> Result<TlsIdentity, NetError> {
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|error| invalid("the certificate cannot be read", error))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| invalid("the private key cannot be read", error))?;
        let authority = CertificateDer::from_pem_slice(authority.as_bytes())
            .map_err(|error| invalid("the certificate of the authority cannot be read", error))?;
        let peer = peer_of(&certificate)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(|error| invalid("the certificate of the authority", error))?;
        let (roots, provider) = (Arc::new(roots), Arc::new(provider::default_provider()));
        // The authority goes along, so that whoever joins can compare it with its token.
        let chain = vec![certificate, authority];
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| invalid("the certificate of the authority", error))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| invalid("TLS 1.3", error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| invalid("certificate and key", error))?;
        server.alpn_protocols = vec![PROTOCOL_NAME.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(TlsIdentity { peer, roots, provider, chain, key, server: Arc::new(server) })
    }

    /// Who this is.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The server's side of a connection.
    ///
    /// # Errors
    /// [`NetError::Credentials`].
    pub fn accepting(&self) -> Result<ServerConnection, NetError> {
        ServerConnection::new(self.server.clone()).map_err(|error| invalid("TLS", error))
    }

    /// What a caller of `wanted` needs.
    ///
    /// # Errors
    /// [`NetError::Credentials`].
    pub fn calling(&self, wanted: Wanted) -> Result<Arc<ClientConfig>, NetError> {
        let signatures = WebPkiServerVerifier::builder_with_provider(self.roots.clone(), self.provider.clone())
            .build()
            .map_err(|error| invalid("the certificate of the authority", error))?;
        let verifier =
            NodeVerifier { own: self.peer, wanted, roots: self.roots.clone(), provider: self.provider.clone(), signatures };
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| invalid("TLS 1.3", error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| invalid("certificate and key", error))?;
        config.alpn_protocols = vec![PROTOCOL_NAME.to_vec()];
        config.enable_sni = false;
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// The caller's side of a connection.
pub(crate) fn connecting(config: &Arc<ClientConfig>) -> Result<ClientConnection, NetError> {
    // The name is not sent and not compared: certificates name nodes.
    let name = ServerName::try_from("node.ashlar").map_err(|error| invalid("TLS", error))?;
    ClientConnection::new(config.clone(), name).map_err(|error| invalid("TLS", error))
}

/// Whom a caller wants to speak to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What it must be allowed to be.
    pub role: Role,
    /// Which node, if that is known.
    pub node: Option<NodeId>,
}

/// Who the certificate of a peer says it is.
///
/// # Errors
/// [`NetError::Credentials`] when it names nobody, or more than one.
pub fn peer_of(certificate: &CertificateDer<'_>) -> Result<PeerId, NetError> {
    let nobody = || NetError::Credentials("the certificate names no node of an Ashlar file system".into());
    let parsed = webpki::EndEntityCert::try_from(certificate)
        .map_err(|error| invalid("the certificate cannot be read", error))?;
    let mut names = parsed.valid_uri_names();
    let first = names.next().and_then(PeerId::parse).ok_or_else(nobody)?;
    if names.next().is_some() {
        return Err(nobody());
    }
    Ok(first)
}

/// Believes nodes of the own file system that are what was wanted.
#[derive(Debug)]
struct NodeVerifier {
    own: PeerId,
    wanted: Wanted,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    signatures: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(certificate)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        let peer = peer_of(certificate).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let is_wanted = peer.cluster == self.own.cluster
            && peer.roles.has(self.wanted.role)
            && self.wanted.node.is_none_or(|node| node == peer.node);
        if !is_wanted {
            return Err(Error::General(format!("it is {peer}, and not the {} that was meant", self.wanted)));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.supported_verify_schemes()
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "{} {node}", self.role),
            None => write!(f, "{}", self.role),
        }
    }
}

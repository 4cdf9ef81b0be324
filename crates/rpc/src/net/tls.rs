//! Mutual TLS 1.3 with certificates of the file system's own authority.
//!
//! A certificate names a node and its roles ([`PeerId`]); names of machines and addresses mean nothing. The authority of a file system
//! signs for it alone, and a caller says beforehand which node or role it wants to speak to.

use super::NetError;
use ashlar_types::{ClusterId, NodeId, PeerId, Role, Roles};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What both sides say they speak (RFC 7301).
const PROTOCOL_NAME: &[u8] = b"ashlar";

/// The certificate and key of a node, or of somebody who has a token, ready to use.
pub struct TlsIdentity {
    peer: PeerId,
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    trust: Trust,
}

/// Whom an identity believes.
enum Trust {
    /// Nodes of its own file system.
    Nodes { roots: Arc<RootCertStore>, nodes: Arc<dyn ClientCertVerifier>, server: Arc<ServerConfig> },
    /// Nodes of the file system whose authority's certificate has this SHA-256.
    Fingerprint([u8; 32]),
}

/// Says by which name a public key (`SubjectPublicKeyInfo`, DER) is that of a token that can be used, if it is one.
pub type KnowsToken = dyn Fn(&[u8]) -> Option<[u8; 32]> + Send + Sync;

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
        TlsIdentity::with_tokens(certificate, key, authority, None)
    }

    /// As [`TlsIdentity::from_pem`]; its servers also let in whoever has a token, as [`Role::Joiner`].
    ///
    /// # Errors
    /// As [`TlsIdentity::from_pem`].
    pub fn with_tokens(
        certificate: &str,
        key: &str,
        authority: &str,
        tokens: Option<Arc<KnowsToken>>,
    ) -> Result<TlsIdentity, NetError> {
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
            .with_client_cert_verifier(Arc::new(CallerVerifier {
                nodes: verifier.clone(),
                tokens: Tokens(tokens),
            }))
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| invalid("certificate and key", error))?;
        server.alpn_protocols = vec![PROTOCOL_NAME.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let trust = Trust::Nodes { roots, nodes: verifier, server: Arc::new(server) };
        Ok(TlsIdentity { peer, provider, chain, key, trust })
    }

    /// Somebody who has a token: `certificate` (DER) is signed with its own key (PKCS #8), which is derived from the token; `fingerprint` is
    /// the SHA-256 of the certificate of the authority.
    ///
    /// # Errors
    /// [`NetError::Credentials`] when one of them is not what it should be.
    pub fn from_token(
        certificate: Vec<u8>,
        key: Vec<u8>,
        fingerprint: [u8; 32],
    ) -> Result<TlsIdentity, NetError> {
        let key = PrivateKeyDer::try_from(key).map_err(|error| invalid("the key of a token", error))?;
        Ok(TlsIdentity {
            peer: joiner(ClusterId::default()),
            provider: Arc::new(provider::default_provider()),
            chain: vec![CertificateDer::from(certificate)],
            key,
            trust: Trust::Fingerprint(fingerprint),
        })
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
        let Trust::Nodes { server, .. } = &self.trust else {
            return Err(NetError::Credentials("who has a token serves nobody".into()));
        };
        ServerConnection::new(server.clone()).map_err(|error| invalid("TLS", error))
    }

    /// Whether the authority of the own file system stands behind the certificate that `chain` begins with.
    pub(crate) fn is_certified(&self, chain: &[CertificateDer<'_>]) -> bool {
        let (Trust::Nodes { nodes, .. }, Some((first, rest))) = (&self.trust, chain.split_first()) else {
            return false;
        };
        nodes.verify_client_cert(first, rest, UnixTime::now()).is_ok()
    }

    /// Whether the own certificate will be believed after so much time.
    pub fn is_good_in(&self, ahead: Duration) -> bool {
        let (Trust::Nodes { nodes, .. }, Some((first, rest))) = (&self.trust, self.chain.split_first())
        else {
            return false;
        };
        let then = Duration::from_secs(UnixTime::now().as_secs()).saturating_add(ahead);
        nodes.verify_client_cert(first, rest, UnixTime::since_unix_epoch(then)).is_ok()
    }

    /// Until when the own certificate is believed, seconds since 1970; nothing when it is not now, or this has none.
    pub fn good_until_s(&self) -> Option<u64> {
        // LIMIT: far longer than any certificate of a node.
        const AHEAD_MAX_S: u64 = 40 * 366 * 24 * 60 * 60;
        let is_good = |ahead_s: u64| self.is_good_in(Duration::from_secs(ahead_s));
        // What is believed is asked of who believes: nobody else reads dates in certificates here.
        let (mut good, mut bad) = (0, AHEAD_MAX_S);
        if !is_good(good) {
            return None;
        }
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if is_good(middle) { good = middle } else { bad = middle }
        }
        Some(UnixTime::now().as_secs() + good)
    }

    /// The server's side of a connection for a browser, which shows no certificate: HTTP/1.1 under TLS 1.3, and nothing of what nodes say to each other.
    ///
    /// # Errors
    /// [`NetError::Credentials`].
    pub fn for_browsers(&self) -> Result<Arc<ServerConfig>, NetError> {
        browser_config(self.provider.clone(), self.chain.clone(), self.key.clone_key())
    }

    /// What a caller of `wanted` needs.
    ///
    /// # Errors
    /// [`NetError::Credentials`].
    pub fn calling(&self, wanted: Wanted) -> Result<Arc<ClientConfig>, NetError> {
        let believed = match &self.trust {
            Trust::Nodes { roots, .. } => {
                Believed::Roots { roots: roots.clone(), cluster: self.peer.cluster }
            }
            Trust::Fingerprint(fingerprint) => Believed::Fingerprint(*fingerprint),
        };
        let verifier = NodeVerifier { wanted, believed, provider: self.provider.clone() };
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

/// The server's side of a connection for a browser, with another certificate than that of the node: a chain and its key, both PEM.
///
/// # Errors
/// [`NetError::Credentials`] when one of them is not what it should be.
pub fn for_browsers(chain: &str, key: &str) -> Result<Arc<ServerConfig>, NetError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| invalid("the certificate cannot be read", error))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|error| invalid("the private key cannot be read", error))?;
    browser_config(Arc::new(provider::default_provider()), chain, key)
}

fn browser_config(
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, NetError> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| invalid("TLS 1.3", error))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| invalid("certificate and key", error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
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

/// Who came with a token.
pub(crate) fn joiner(cluster: ClusterId) -> PeerId {
    PeerId { cluster, node: NodeId(0), roles: Roles::default().with(Role::Joiner), host: None }
}

/// By what a caller knows the authority.
#[derive(Debug)]
enum Believed {
    Roots { roots: Arc<RootCertStore>, cluster: ClusterId },
    Fingerprint([u8; 32]),
}

/// Believes nodes of one file system that are what was wanted.
#[derive(Debug)]
struct NodeVerifier {
    wanted: Wanted,
    believed: Believed,
    provider: Arc<CryptoProvider>,
}

impl NodeVerifier {
    /// The authority that the server must be certified by.
    fn roots(&self, sent: &[CertificateDer<'_>]) -> Result<Arc<RootCertStore>, Error> {
        match &self.believed {
            Believed::Roots { roots, .. } => Ok(roots.clone()),
            Believed::Fingerprint(fingerprint) => {
                let is_it = |certificate: &&CertificateDer<'_>| {
                    ring::digest::digest(&ring::digest::SHA256, certificate).as_ref() == fingerprint
                };
                let authority = sent
                    .iter()
                    .find(is_it)
                    .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone().into_owned())?;
                Ok(Arc::new(roots))
            }
        }
    }
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
        let roots = self.roots(intermediates)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(certificate)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &roots,
            intermediates,
            now,
            algorithms,
        )?;
        let peer =
            peer_of(certificate).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let is_own = match &self.believed {
            Believed::Roots { cluster, .. } => peer.cluster == *cluster,
            Believed::Fingerprint(_) => true,
        };
        let is_wanted = is_own
            && peer.roles.has(self.wanted.role)
            && self.wanted.node.is_none_or(|node| node == peer.node);
        if !is_wanted {
            return Err(Error::General(format!("it is {peer}, and not the {} that was meant", self.wanted)));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

struct Tokens(Option<Arc<KnowsToken>>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

/// Believes nodes of the own file system, and who has a token.
#[derive(Debug)]
struct CallerVerifier {
    nodes: Arc<dyn ClientCertVerifier>,
    tokens: Tokens,
}

/// The public key in a certificate.
pub(crate) fn public_key_of(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(parsed.subject_public_key_info().to_vec())
}

impl ClientCertVerifier for CallerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Without hints a caller shows what it has; a token's certificate has no authority to match.
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.nodes.verify_client_cert(certificate, intermediates, now).or_else(|error| {
            let token = self.tokens.0.as_ref().and_then(|knows| knows(&public_key_of(certificate)?));
            if token.is_some() { Ok(ClientCertVerified::assertion()) } else { Err(error) }
        })
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.nodes.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.nodes.supported_verify_schemes()
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

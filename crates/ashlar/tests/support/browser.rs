//! A browser as the console sees it: HTTP/1.1 under TLS, a cookie, and one certificate that it believes.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
    StreamOwned,
};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// For how long one answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// See the module.
pub struct Browser {
    pub address: SocketAddr,
    config: Arc<ClientConfig>,
    pub cookie: Option<String>,
}

/// What was answered.
pub struct Page {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Page {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Browser {
    /// One that believes the certificate in a file, and no other.
    pub fn new(address: &str, certificate: &Path) -> Browser {
        let pem = fs::read(certificate).unwrap();
        let believed = CertificateDer::from_pem_slice(&pem).unwrap();
        let provider = Arc::new(provider::default_provider());
        let verifier = Arc::new(Believes { believed, provider: provider.clone() });
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Browser { address: address.parse().unwrap(), config: Arc::new(config), cookie: None }
    }

    /// A connection on which nothing was said yet.
    pub fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let name = ServerName::try_from("console.example.org").unwrap();
        StreamOwned::new(ClientConnection::new(self.config.clone(), name).unwrap(), stream)
    }

    /// Sends these bytes; what comes until the end of the connection.
    pub fn exchange(&self, sent: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = self.connect();
        stream.write_all(sent)?;
        stream.flush()?;
        let mut got = Vec::new();
        match stream.read_to_end(&mut got) {
            // A server may cut a connection on which it has said everything.
            Err(_) if !got.is_empty() => Ok(got),
            Err(error) => Err(error),
            Ok(_) => Ok(got),
        }
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, more: &str, body: &str) -> Page {
        let cookie = self.cookie.as_ref().map(|cookie| format!("Cookie: {cookie}\r\n")).unwrap_or_default();
        let length =
            if method == "POST" { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
        let sent = format!(
            "{method} {path} HTTP/1.1\r\nHost: console.example.org\r\nConnection: close\r\n{cookie}{length}{more}\r\n{body}"
        );
        read(&self.exchange(sent.as_bytes()).unwrap_or_else(|error| panic!("{method} {path}: {error}")))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Page {
        self.ask("GET", path, "", "")
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &str, more: &str) -> Page {
        self.ask("POST", path, &format!("Content-Type: application/x-www-form-urlencoded\r\n{more}"), body)
    }

    /// An answer under `/api/v1/`.
    #[track_caller]
    pub fn api(&self, path: &str) -> Value {
        self.get(&format!("/api/v1/{path}")).json()
    }

    /// Logs in with the code of a link, and keeps the cookie.
    #[track_caller]
    pub fn log_in(&mut self, code: &str) -> Page {
        let page = self.post("/login", &format!("code={code}"), "");
        if let Some(cookie) = page.header("set-cookie") {
            self.cookie = Some(cookie.split(';').next().unwrap().to_owned());
        }
        page
    }
}

/// Reads an answer whose connection has ended.
#[track_caller]
pub fn read(bytes: &[u8]) -> Page {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    Page { status, headers: lines.filter_map(header).collect(), body: body.to_owned() }
}

#[derive(Debug)]
struct Believes {
    believed: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Believes {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match *certificate == self.believed {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 is spoken".into()))
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

//! Why a call over the network came to nothing.

use std::io;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Certificate, key or authority are not what they should be.
    #[error("{0}")]
    Credentials(String),
    /// The operating system.
    #[error("{0}")]
    Io(io::Error),
    /// TLS; also that the other side is not who it should be, or does not believe us.
    #[error("{}", tls_text(.0))]
    Tls(rustls::Error),
    /// What came is no frame.
    #[error("it sent {0}")]
    Malformed(&'static str),
    /// The other side ended the connection.
    #[error("it ended the connection")]
    Closed,
    /// The other side takes or says nothing.
    #[error("it does not answer")]
    Stuck,
    /// The server refuses; its words.
    #[error("it refuses: {0}")]
    Refused(String),
    /// The server has started anew, and it is not known whether it had carried the call out before.
    #[error("it was started anew while it was at work on the call")]
    Restarted,
    /// What the call is about is at another server by now: this one is not waited for any longer. Also that its caller
    /// may not send anything any more ([`Caller::guarded`](super::Caller::guarded)).
    #[error("what it was asked about is at another server by now")]
    Elsewhere,
    /// No address of the server is known.
    #[error("no address of it is known")]
    NoAddress,
    /// The call was carried out and failed.
    #[error("{0}")]
    Errno(ashlar_types::Errno),
    /// More is under way than may be.
    #[error("too many calls are under way")]
    Crowded,
}

impl NetError {
    /// Whether the other side says that it does not know the certificate that it was shown.
    pub fn is_of_a_stranger(&self) -> bool {
        use rustls::{AlertDescription, Error};
        let alerts = [AlertDescription::UnknownCA, AlertDescription::DecryptError];
        matches!(self, NetError::Tls(Error::AlertReceived(alert)) if alerts.contains(alert))
    }
}

/// The words of the library, with what to do where people would not know.
fn tls_text(error: &rustls::Error) -> String {
    use rustls::{AlertDescription, CertificateError, Error};
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is not of this file system: it belongs to another one".into()
        }
        Error::InvalidCertificate(error @ CertificateError::ExpiredContext { .. }) => {
            format!("its certificate has expired ({error}); are the clocks right?")
        }
        Error::InvalidCertificate(error @ CertificateError::NotValidYetContext { .. }) => {
            format!("its certificate is not valid yet ({error}); are the clocks right?")
        }
        Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "it does not know the certificate of this node: it belongs to another file system".into()
        }
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "it says that the certificate of this node has expired; are the clocks right? `ashlar join` gets a new one".into()
        }
        Error::AlertReceived(AlertDescription::CertificateRevoked) => {
            "it says that the certificate of this node was revoked".into()
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it wants a certificate, and this node has none".into()
        }
        other => other.to_string(),
    }
}

//! Why one member did not do what was asked: in words that name it and a remedy, and whether the request may have been carried out.

use super::ATTEMPT_SECONDS_MAX;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use serde::Deserialize;
use std::fmt;
use std::io::ErrorKind;

/// Longest part of a foreign text that is repeated, characters.
const QUOTE_CHARS_MAX: usize = 200;

/// See the module.
#[derive(Debug)]
pub(super) struct Failure {
    endpoint: String,
    what: String,
    /// Asking this member again will not help.
    pub(super) is_final: bool,
    /// The request certainly had no effect and will have none.
    pub(super) had_no_effect: bool,
    pub(super) kind: ErrorKind,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "etcd at {} {}", self.endpoint, self.what)
    }
}

/// The body of an error of the gateway.
#[derive(Deserialize, Default)]
#[serde(default)]
struct GatewayError {
    /// Of gRPC.
    code: u32,
    message: String,
    /// As before etcd 3.6.
    error: String,
}

const RESOURCE_EXHAUSTED: u32 = 8;

impl Failure {
    fn passing(endpoint: &str, kind: ErrorKind, what: String) -> Failure {
        Failure { endpoint: endpoint.to_owned(), what, is_final: false, had_no_effect: false, kind }
    }

    fn refused(endpoint: &str, kind: ErrorKind, what: String) -> Failure {
        Failure { endpoint: endpoint.to_owned(), what, is_final: true, had_no_effect: true, kind }
    }

    /// No answer came, or not a whole one.
    pub(super) fn of_client(endpoint: &str, error: ureq::Error, has_client_certificate: bool) -> Failure {
        match error {
            ureq::Error::Timeout(_) => Failure::passing(
                endpoint,
                ErrorKind::TimedOut,
                format!(
                    "does not answer within {ATTEMPT_SECONDS_MAX} s: is it running, with most of its members, and is no firewall in between?"
                ),
            ),
            ureq::Error::HostNotFound => Failure {
                had_no_effect: true,
                ..Failure::passing(
                    endpoint,
                    ErrorKind::NotFound,
                    "is not known by that name: correct the endpoint, or the name service".to_owned(),
                )
            },
            ureq::Error::ConnectionFailed => Failure::not_reached(endpoint, "no connection could be made"),
            ureq::Error::Rustls(error) => Failure::of_tls(endpoint, &error, has_client_certificate),
            ureq::Error::BodyExceedsLimit(bytes) => Failure::passing(
                endpoint,
                ErrorKind::InvalidData,
                format!("answers with more than {bytes} bytes: is it etcd, and the key ours alone?"),
            ),
            ureq::Error::Io(error) => Failure::of_io(endpoint, &error, has_client_certificate),
            other => Failure::passing(
                endpoint,
                ErrorKind::InvalidData,
                format!(
                    "does not speak HTTP as expected ({}): is it etcd's client port?",
                    quoted(&other.to_string())
                ),
            ),
        }
    }

    fn not_reached(endpoint: &str, why: &str) -> Failure {
        let what = format!("does not answer ({why}): is it running, and is the address right?");
        Failure { had_no_effect: true, ..Failure::passing(endpoint, ErrorKind::ConnectionRefused, what) }
    }

    fn of_io(endpoint: &str, error: &std::io::Error, has_client_certificate: bool) -> Failure {
        if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
            return Failure::of_tls(endpoint, error, has_client_certificate);
        }
        if matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
        ) {
            return Failure::not_reached(endpoint, &error.to_string());
        }
        // A server that wants TLS, or a certificate, may close the connection before its reason is read.
        let hint = match (endpoint.starts_with("https"), has_client_certificate) {
            (true, true) => "?",
            (true, false) => ", or does it ask for a client certificate (none is given)?",
            (false, _) => ", or does it want https?",
        };
        let what = format!("broke off the connection ({}): is it running{hint}", quoted(&error.to_string()));
        Failure::passing(endpoint, error.kind(), what)
    }

    fn of_tls(endpoint: &str, error: &TlsError, has_client_certificate: bool) -> Failure {
        let what = match error {
            TlsError::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => "has a certificate that the given CA did not sign: give the CA certificate that etcd's --cert-file comes from"
                .to_owned(),
            TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => format!(
                "has a certificate for another name: use a name or address in the endpoint that etcd's --cert-file is for ({})",
                quoted(&error.to_string())
            ),
            TlsError::InvalidCertificate(_) => {
                format!("has a certificate that is not accepted: {}", quoted(&error.to_string()))
            }
            TlsError::AlertReceived(
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied
                | AlertDescription::HandshakeFailure,
            ) if has_client_certificate => format!(
                "does not accept our client certificate: give one that its --trusted-ca-file has signed and that is still valid ({})",
                quoted(&error.to_string())
            ),
            TlsError::AlertReceived(
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::HandshakeFailure,
            ) => "asks for a client certificate and none is given: give a certificate and key that its --trusted-ca-file has signed"
                .to_owned(),
            TlsError::InvalidMessage(_) => "does not speak TLS: is its --listen-client-urls http?".to_owned(),
            _ => format!("and we do not agree on TLS: {}", quoted(&error.to_string())),
        };
        // Other errors may come in the middle of a connection, after a request was carried out.
        let had_no_effect = matches!(error, TlsError::InvalidCertificate(_) | TlsError::AlertReceived(_));
        Failure { had_no_effect, ..Failure::refused(endpoint, ErrorKind::PermissionDenied, what) }
    }

    /// It answered with an error.
    pub(super) fn of_status(endpoint: &str, status: u16, body: &[u8]) -> Failure {
        let error: GatewayError = serde_json::from_slice(body).unwrap_or_default();
        let text = match (error.message.as_str(), error.error.as_str()) {
            ("", "") => String::from_utf8_lossy(body),
            ("", text) | (text, _) => text.into(),
        };
        let text = quoted(&text);
        let refused =
            |kind, remedy: &str| Failure::refused(endpoint, kind, format!("says {text:?}: {remedy}"));
        if text.contains("HTTP request to an HTTPS server") {
            return refused(
                ErrorKind::InvalidInput,
                "write https in the endpoint and give the CA certificate",
            );
        }
        if text.contains("request is too large") {
            return refused(ErrorKind::FileTooLarge, "start etcd with --max-request-bytes 1572864 or more");
        }
        if error.code == RESOURCE_EXHAUSTED && text.contains("space exceeded") {
            return refused(
                ErrorKind::StorageFull,
                "compact and defragment etcd, raise its --quota-backend-bytes, then `etcdctl alarm disarm`",
            );
        }
        if ["user name is empty", "permission denied", "authentication", "invalid auth token"]
            .iter()
            .any(|part| text.contains(part))
        {
            return refused(
                ErrorKind::PermissionDenied,
                "etcd's users and passwords are not supported: use client certificates and `etcdctl auth disable`",
            );
        }
        if status == 404 {
            return refused(
                ErrorKind::Unsupported,
                "is it etcd 3.4 or later, with --enable-grpc-gateway (`enable-grpc-gateway: true` in a configuration file)?",
            );
        }
        let remedy = match status == 503 && endpoint.starts_with("https") && !text.contains("etcdserver") {
            // The gateway is a client of its own member, with that member's certificate.
            true => {
                "its gateway does not get through to itself: its --cert-file must be good for clients too (clientAuth)"
            }
            false => "see its log; it may have no leader for the moment",
        };
        let what = format!("answers with status {status}, {text:?}: {remedy}");
        Failure::passing(endpoint, ErrorKind::Other, what)
    }

    /// What came was no answer of etcd's.
    pub(super) fn not_etcd(endpoint: &str, error: &dyn fmt::Display) -> Failure {
        let what = format!("answers with something else than etcd does ({error}): is it etcd's client port?");
        Failure::passing(endpoint, ErrorKind::InvalidData, what)
    }
}

/// A foreign text, on one line and not too long.
fn quoted(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUOTE_CHARS_MAX).collect()
}

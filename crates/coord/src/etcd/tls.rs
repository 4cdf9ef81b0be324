//! Certificates for the connection to etcd: read, and checked to fit together before anything is sent.

use super::EtcdTls;
use crate::CoordError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};

fn settings(what: String) -> CoordError {
    CoordError::Settings { what }
}

/// All certificates in `pem`; `what` names them for errors.
fn certificates(what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, CoordError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => {
            Err(settings(format!("{what} for etcd has no certificate in it: give a file in PEM format")))
        }
        Err(error) => Err(settings(format!("{what} for etcd is not in PEM format: {error}"))),
    }
}

/// What the HTTP client needs to speak TLS as `given`.
///
/// # Errors
/// [`CoordError::Settings`] when something is missing, unreadable, or does not fit together. It never has the key's content.
pub(super) fn configuration(given: &EtcdTls) -> Result<TlsConfig, CoordError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let authorities = certificates("the CA certificate", &given.authority_pem)?;
    let mut roots = RootCertStore::empty();
    for authority in &authorities {
        roots
            .add(authority.clone())
            .map_err(|error| settings(format!("the CA certificate for etcd cannot be used: {error}")))?;
    }
    let roots_for_client = authorities.iter().map(|der| Certificate::from_der(der).to_owned());
    let mut config = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(provider.clone())
        .root_certs(RootCerts::from(roots_for_client));
    if let Some(identity) = &given.identity {
        let chain = certificates("the client certificate", &identity.certificate_pem)?;
        let no_key =
            "the client key for etcd has no usable private key in it: give one in PEM format, not encrypted";
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())
            .map_err(|_| settings(no_key.to_owned()))?;
        let key_for_client =
            PrivateKey::from_pem(identity.key_pem.as_bytes()).map_err(|_| settings(no_key.to_owned()))?;
        // The HTTP client does this again and panics where it fails.
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder.with_root_certificates(roots).with_client_auth_cert(chain.clone(), key)
            })
            .map_err(|error| {
                settings(format!("the client certificate and key for etcd do not fit together: {error}"))
            })?;
        let chain: Vec<_> = chain.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        config = config.client_cert(Some(ClientCert::new_with_certs(&chain, key_for_client)));
    }
    Ok(config.build())
}

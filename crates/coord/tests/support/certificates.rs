//! An authority of a test's own, and what it signs.

use ashlar_coord::etcd::{EtcdIdentity, EtcdTls};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

pub struct Authority {
    pub pem: String,
    /// What certificates may be used for.
    pub purposes: Vec<ExtendedKeyUsagePurpose>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).unwrap().pem();
        // A server is a client of its own gateway too.
        let purposes = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Authority { pem, purposes, issuer: Issuer::new(params, key) }
    }

    /// For a server at `names`, or a client.
    pub fn issue(&self, names: &[&str]) -> EtcdIdentity {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = self.purposes.clone();
        let certificate_pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        EtcdIdentity { certificate_pem, key_pem: key.serialize_pem() }
    }

    /// To speak with servers of this authority as `identity`.
    pub fn tls(&self, identity: Option<EtcdIdentity>) -> EtcdTls {
        EtcdTls { authority_pem: self.pem.clone(), identity }
    }
}

//! Certificates for tests: an authority of their own, and what it signs.

use std::path::PathBuf;

/// An authority, with what it has signed in files.
pub struct Authority {
    dir: tempfile::TempDir,
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        // Two authorities of one name would be told apart by their signatures only.
        let name = format!("authority {}", uuid::Uuid::now_v7());
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        let issuer = rcgen::CertifiedIssuer::self_signed(params, key).expect("an authority");
        let this = Self { dir: tempfile::tempdir().expect("a directory"), issuer };
        std::fs::write(this.path("ca.pem"), this.issuer.pem()).expect("written");
        this
    }

    /// A file of its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What such a file holds.
    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file")
    }

    /// Signs a certificate for these names: `NAME.pem`, and its key `NAME.key`.
    pub fn sign(&self, name: &str, names: &[&str], expired: bool) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).expect("parameters");
        if expired {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        }
        let key = rcgen::KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("written");
        std::fs::write(self.path(&format!("{name}.pem")), signed.pem()).expect("written");
    }
}

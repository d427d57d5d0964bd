//! TLS of the listener: certificate and key from files, and the authority of clients' certificates.
//!
//! The files are looked at every few seconds and read again when they have changed, so a certificate is renewed without a
//! restart. What cannot be read leaves the former in force, and is told. A connection keeps what it began with.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::config::{Error, Server};

/// What a client and the listener call HTTP/2 in their handshake.
pub const HTTP2: &[u8] = b"h2";

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(5);

/// The TLS of the listener.
pub struct Tls {
    files: Files,
    current: RwLock<Arc<ServerConfig>>,
}

/// The files that it is made of.
#[derive(Debug, Clone)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// When each file was changed last, and its length.
type Looks = Vec<Option<(SystemTime, u64)>>;

impl Tls {
    /// The TLS of these settings; `None` if they say none.
    pub fn open(server: &Server) -> Result<Option<Self>, Error> {
        let (Some(certificate), Some(key)) = (&server.tls_certificate, &server.tls_key) else {
            return Ok(None);
        };
        let files = Files {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: server.tls_client_ca.clone(),
        };
        let current = RwLock::new(Arc::new(files.read()?));
        Ok(Some(Self { files, current }))
    }

    /// What shakes hands with the next client.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Reads the files again whenever they have changed. Runs until dropped.
    pub async fn follow(&self) {
        let (mut seen, mut told) = (self.files.looks(), None);
        loop {
            tokio::time::sleep(EVERY).await;
            let looks = self.files.looks();
            if looks == seen {
                continue;
            }
            match self.files.read() {
                Ok(read) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
                    tracing::info!("the certificate of the listener was read again");
                    seen = looks;
                }
                // It is tried again: rights of files may change without another look of theirs.
                Err(why) if told.as_ref() != Some(&looks) => {
                    tracing::error!("{why}; the former one stays in force");
                    told = Some(looks);
                }
                Err(_) => {}
            }
        }
    }
}

impl Files {
    fn looks(&self) -> Looks {
        let look = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len()))
        };
        let all = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        all.into_iter().flatten().map(|path| look(path)).collect()
    }

    fn read(&self) -> Result<ServerConfig, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates("server.tls_certificate", &self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|why| {
            bad("server.tls_key", &self.key, format_args!("holds no private key in PEM: {why}"))
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|why| bad("server.tls_certificate", &self.certificate, why))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let wrong = |why: &dyn std::fmt::Display| bad("server.tls_client_ca", path, why);
                let mut roots = RootCertStore::empty();
                for root in certificates("server.tls_client_ca", path)? {
                    roots.add(root).map_err(|why| wrong(&why))?;
                }
                // Whoever shows none needs a key of the other kind.
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|why| wrong(&why))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|why| {
            bad("server.tls_key", &self.key, format_args!("does not fit the certificate: {why}"))
        })?;
        if self.client_ca.is_some() {
            // A resumed session would not check the client's certificate again.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(bad(key, path, "holds no certificate in PEM")),
        Err(why) => Err(bad(key, path, why)),
    }
}

fn bad(key: &'static str, path: &Path, why: impl std::fmt::Display) -> Error {
    Error::Check { key, detail: format!("{}: {why}", path.display()) }
}

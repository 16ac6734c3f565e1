//! The certificate by which this server proves to extension servers that it is the one that forwards: one of the cluster's
//! own, or the one that `--proxy-client-cert-file` names.
//!
//! Invariants: a certificate or key that is named and cannot be used keeps the server from starting; later, one that cannot
//! be used changes nothing.

use crate::{delegation, follow::Followed};
use clap::Args;
use kaji_aggregator::{Aggregator, Identity};
use kaji_outbound::{ClientCache, ClientConfig, Target};
use kaji_server::pki::{Pki, PkiError};
use std::{fs, io, path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// A certificate that was made elsewhere.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyClient {
    /// The certificate that this server shows extension servers, PEM; looked at anew when it changes.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
}

/// Whether a certificate and a key can be shown to anybody.
fn check(identity: &Identity) -> Result<(), String> {
    let nobody = ClientConfig::new(Target::Url("https://localhost".into()), "");
    let config = ClientConfig { identity: Some(identity.clone()), insecure: true, ..nobody };
    ClientCache::default().client(&config).map(drop).map_err(|e| e.to_string())
}

impl ProxyClient {
    fn paths(&self) -> Option<[PathBuf; 2]> {
        Some([self.proxy_client_cert_file.clone()?, self.proxy_client_key_file.clone()?])
    }

    /// What is shown at first.
    ///
    /// # Errors
    /// When a file cannot be read, or holds no certificate or not its key.
    pub fn load(&self, pki: &Pki) -> Result<Identity, PkiError> {
        let Some([certificate, key]) = self.paths() else { return Ok(delegation::identity(pki)) };
        let read = |path: &PathBuf| {
            let path = path.clone();
            fs::read(&path).map_err(|source| PkiError::Io { path, source })
        };
        let identity = (read(&certificate)?, read(&key)?);
        let unusable = |why| PkiError::Io { path: certificate, source: io::Error::other(why) };
        check(&identity).map_err(unusable)?;
        Ok(identity)
    }

    /// Follows the files, if there are any.
    pub async fn follow(self, first: Identity, aggregator: Arc<Aggregator>, mut stop: watch::Receiver<bool>) {
        let Some([certificate, key]) = self.paths() else { return };
        let mut files = Followed::new([(certificate, first.0), (key, first.1)]);
        while let Some(found) = files.changed(&mut stop).await {
            let found = found.map_err(|e| e.to_string()).map(|mut held| {
                let key = held.pop().unwrap_or_default();
                (held.pop().unwrap_or_default(), key)
            });
            match found.and_then(|identity| check(&identity).map(|()| identity)) {
                Ok(identity) => aggregator.identify(identity),
                Err(error) => {
                    let files = files.names();
                    tracing::warn!(files, error, "the certificate for extension servers stays as it was");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_is_an_error() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let certificates = kaji_server::Certificates::in_memory(vec![], now).unwrap();
        let pki = certificates.current();
        let own = delegation::identity(&pki);
        assert_eq!(ProxyClient::default().load(&pki).unwrap(), own);
        let dir = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert", "key"].map(|name| dir.path().join(name));
        let flags = ProxyClient {
            proxy_client_cert_file: Some(cert.clone()),
            proxy_client_key_file: Some(key.clone()),
        };
        assert!(flags.load(&pki).is_err());
        fs::write(&cert, &pki.admin.certificate).unwrap();
        fs::write(&key, &own.1).unwrap();
        let error = flags.load(&pki).unwrap_err();
        assert!(error.to_string().contains("cert"), "not its key: {error}");
        fs::write(&key, &pki.admin.key).unwrap();
        let admin = (pki.admin.certificate.clone().into_bytes(), pki.admin.key.clone().into_bytes());
        assert_eq!(flags.load(&pki).unwrap(), admin);
        fs::write(&cert, "nothing").unwrap();
        assert!(flags.load(&pki).is_err());
    }
}

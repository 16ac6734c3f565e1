//! The client certificate that the aggregator presents to extension API servers: the cluster's own, or that of
//! `--proxy-client-cert-file`.
//!
//! Invariants: a file that cannot be used keeps the server from starting; at a reload it changes nothing.

use kaji_aggregator::{Aggregator, Identity};
use kaji_options::{ProxyClient, WatchedFiles};
use kaji_outbound::{ClientCache, ClientConfig, Target};
use kaji_server::{
    cluster_authentication_trust,
    pki::{Pki, PkiError},
};
use std::{fs, io, path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// Whether a certificate and a key make a TLS client.
///
/// # Errors
/// Why they do not.
pub fn check(identity: &Identity) -> Result<(), String> {
    let base = ClientConfig::new(Target::Url("https://localhost".into()), "");
    let config = ClientConfig { identity: Some(identity.clone()), insecure: true, ..base };
    ClientCache::default().client(&config).map(drop).map_err(|e| e.to_string())
}

/// The certificate and key to start with: those of the files, or the cluster's own.
///
/// # Errors
/// When a file cannot be read, or holds no certificate or not its key.
pub fn load(options: &ProxyClient, pki: &Pki) -> Result<Identity, PkiError> {
    let Some([certificate, key]) = options.paths() else {
        return Ok(cluster_authentication_trust::identity(pki));
    };
    let read = |path: &PathBuf| {
        let path = path.clone();
        fs::read(&path).map_err(|source| PkiError::Io { path, source })
    };
    let identity = (read(&certificate)?, read(&key)?);
    let unusable = |why| PkiError::Io { path: certificate, source: io::Error::other(why) };
    check(&identity).map_err(unusable)?;
    Ok(identity)
}

/// Reloads the files when they change, until `stop` turns true.
pub async fn reload(
    options: ProxyClient,
    current: Identity,
    aggregator: Arc<Aggregator>,
    mut stop: watch::Receiver<bool>,
) {
    let Some([certificate, key]) = options.paths() else { return };
    let mut files = WatchedFiles::new([(certificate, current.0), (key, current.1)]);
    while let Some(found) = files.changed(&mut stop).await {
        let found = found.map_err(|e| e.to_string()).map(|mut contents| {
            let key = contents.pop().unwrap_or_default();
            (contents.pop().unwrap_or_default(), key)
        });
        match found.and_then(|identity| check(&identity).map(|()| identity)) {
            Ok(identity) => aggregator.identify(identity),
            Err(error) => {
                let files = files.names();
                tracing::warn!(files, error, "the proxy client certificate is not reloaded");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_unusable_files() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let certificates = kaji_server::Certificates::in_memory(vec![], now).unwrap();
        let pki = certificates.current();
        let own = cluster_authentication_trust::identity(&pki);
        assert_eq!(load(&ProxyClient::default(), &pki).unwrap(), own);
        let dir = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert", "key"].map(|name| dir.path().join(name));
        let flags = ProxyClient {
            proxy_client_cert_file: Some(cert.clone()),
            proxy_client_key_file: Some(key.clone()),
        };
        assert!(load(&flags, &pki).is_err());
        fs::write(&cert, &pki.admin.certificate).unwrap();
        fs::write(&key, &own.1).unwrap();
        let error = load(&flags, &pki).unwrap_err();
        assert!(error.to_string().contains("cert"), "not its key: {error}");
        fs::write(&key, &pki.admin.key).unwrap();
        let admin = (pki.admin.certificate.clone().into_bytes(), pki.admin.key.clone().into_bytes());
        assert_eq!(load(&flags, &pki).unwrap(), admin);
        fs::write(&cert, "nothing").unwrap();
        assert!(load(&flags, &pki).is_err());
    }
}

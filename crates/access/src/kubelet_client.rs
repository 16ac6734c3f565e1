//! How the server reaches kubelets: with the cluster's own client certificate and authority, or those of
//! `--kubelet-client-certificate` and `--kubelet-certificate-authority`.
//!
//! Invariants: a file that cannot be used keeps the server from starting; at a reload it changes nothing.

use crate::front_proxy::check;
use kaji_options::{KubeletClient, WatchedFiles};
use kaji_server::{Certificates, Connector, NodeClient, pki::PkiError};
use std::{fs, io, path::Path, sync::Arc};
use tokio::sync::watch;

fn read(path: &Path) -> Result<Vec<u8>, PkiError> {
    fs::read(path).map_err(|source| PkiError::Io { path: path.into(), source })
}

fn unusable(path: &Path, why: String) -> PkiError {
    PkiError::Io { path: path.into(), source: io::Error::other(why) }
}

/// The client to start with.
///
/// # Errors
/// When a file cannot be read, or holds no certificate or not its key.
pub fn load(options: &KubeletClient, certificates: Arc<Certificates>) -> Result<NodeClient, PkiError> {
    let authority = options.kubelet_certificate_authority.as_deref().map(|path| {
        let pem = read(path)?;
        kaji_outbound::check_bundle(&pem).map_err(|why| unusable(path, why))?;
        Ok::<_, PkiError>(pem)
    });
    let client = NodeClient::new(certificates)
        .with_authority(authority.transpose()?)
        .with_address_types(options.kubelet_preferred_address_types.clone());
    if let Some([certificate, key]) = options.paths() {
        let identity = (read(&certificate)?, read(&key)?);
        check(&identity).map_err(|why| unusable(&certificate, why))?;
        client.identify(identity.0, identity.1);
    }
    Ok(client)
}

/// Reloads the client certificate when its files change, until `stop` turns true.
pub async fn reload(options: KubeletClient, connector: Arc<Connector>, mut stop: watch::Receiver<bool>) {
    let Some([certificate, key]) = options.paths() else { return };
    // What was there at the start; a file that went since is read when it comes back.
    let known = |path: &Path| fs::read(path).unwrap_or_default();
    let current = [(certificate.clone(), known(&certificate)), (key.clone(), known(&key))];
    let mut files = WatchedFiles::new(current);
    while let Some(found) = files.changed(&mut stop).await {
        let found = found.map_err(|e| e.to_string()).map(|mut contents| {
            let key = contents.pop().unwrap_or_default();
            (contents.pop().unwrap_or_default(), key)
        });
        match found.and_then(|identity| check(&identity).map(|()| identity)) {
            Ok((chain, key)) => connector.nodes().identify(chain, key),
            Err(error) => {
                let files = files.names();
                tracing::warn!(files, error, "the client certificate for kubelets is not reloaded");
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
        let certificates = Arc::new(Certificates::in_memory(vec![], now).unwrap());
        let pki = certificates.current();
        assert!(load(&KubeletClient::default(), certificates.clone()).is_ok());
        let dir = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| dir.path().join(name));
        let with = |options: KubeletClient| load(&options, certificates.clone()).map(drop);
        let authority =
            KubeletClient { kubelet_certificate_authority: Some(ca.clone()), ..Default::default() };
        assert!(with(authority.clone()).is_err(), "missing");
        fs::write(&ca, "nothing").unwrap();
        assert!(with(authority.clone()).is_err(), "no certificate");
        fs::write(&ca, &pki.ca.certificate).unwrap();
        with(authority).unwrap();
        let identity = KubeletClient {
            kubelet_client_certificate: Some(cert.clone()),
            kubelet_client_key: Some(key.clone()),
            ..Default::default()
        };
        fs::write(&cert, &pki.admin.certificate).unwrap();
        fs::write(&key, &pki.kubelet_client.key).unwrap();
        assert!(with(identity.clone()).is_err(), "not its key");
        fs::write(&key, &pki.admin.key).unwrap();
        with(identity).unwrap();
    }
}

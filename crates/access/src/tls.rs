//! Reloads certificates that flags name while the cluster runs: the certificate authorities of clients and front proxies, and
//! the serving certificate.
//!
//! Invariant: a file that cannot be used changes nothing; the cluster's own authorities are always trusted.

use kaji_auth::authn::ClusterAuthenticationInfo;
use kaji_options::{AuthnOptions, Serving, WatchedFiles, authentication::Authorities};
use kaji_server::{Certificates, StackError, TlsConfigHandle, pki::Pki};
use std::sync::Arc;
use tokio::sync::watch;

/// The TLS configuration of the listener.
///
/// # Errors
/// TLS or authorities that cannot be used.
pub fn front(
    serving: &Serving,
    certificates: &Certificates,
    signers: &Authorities,
) -> Result<TlsConfigHandle, StackError> {
    let (tls, authorities) = parts(serving, certificates, signers)?;
    Ok(TlsConfigHandle::new(tls, authorities))
}

/// Sessions that are kept for clients that connect again.
const SESSIONS: usize = 256;

type Parts = (kaji_server::TlsAcceptor, Arc<kaji_server::Authorities>);

fn parts(serving: &Serving, certificates: &Certificates, signers: &Authorities) -> Result<Parts, StackError> {
    let authorities = Arc::new(kaji_server::Authorities::new(&signers.clients, &signers.proxies)?);
    Ok((kaji_server::tls(&serving.tls, certificates.serving(), authorities.clone(), SESSIONS)?, authorities))
}

/// Watches all of them.
pub struct Reload {
    /// Files with certificate authorities.
    signers: WatchedFiles,
    /// The serving certificate and its key.
    shown: WatchedFiles,
    options: AuthnOptions,
    serving: Serving,
    pki: Arc<Pki>,
    certificates: Arc<Certificates>,
    front: Option<TlsConfigHandle>,
    /// The authorities in use, for the other consumers.
    authentication: watch::Sender<ClusterAuthenticationInfo>,
}

impl Reload {
    /// For files that are in use. `front` is the listener's configuration, if there is a listener; `authentication`
    /// gets reloaded authorities.
    pub fn new(
        options: &AuthnOptions,
        serving: &Serving,
        signers: &Authorities,
        certificates: Arc<Certificates>,
        (front, authentication): (Option<TlsConfigHandle>, watch::Sender<ClusterAuthenticationInfo>),
    ) -> Reload {
        let signers = WatchedFiles::new(signers.files.clone());
        let pki = certificates.current();
        let shown = WatchedFiles::new(serving.files.held(&pki.serving));
        Reload {
            signers,
            shown,
            options: options.clone(),
            serving: serving.clone(),
            pki,
            certificates,
            front,
            authentication,
        }
    }

    /// Runs until `stop` turns true.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let Reload { mut signers, mut shown, options, serving, pki, certificates, front, authentication } =
            self;
        let (mut stop, mut stopped) = (stop.clone(), stop);
        let authorities = async {
            let Some(front) = front.filter(|_| !signers.is_empty()) else { return };
            while let Some(found) = signers.changed(&mut stop).await {
                let outcome = found.map_err(|e| e.to_string()).and_then(|files| {
                    let signers = options.with_authorities(&pki, files).map_err(|e| e.to_string())?;
                    let parts = parts(&serving, &certificates, &signers).map_err(|e| e.to_string())?;
                    Ok((parts, signers))
                });
                let path = signers.names();
                match outcome {
                    Ok(((tls, authorities), Authorities { clients, proxies, .. })) => {
                        front.set(tls, authorities);
                        authentication.send_modify(|info| {
                            (info.client_ca, info.request_header_ca) = (clients, proxies)
                        });
                        tracing::info!(path, "the authorities of clients are reloaded");
                    }
                    Err(error) => tracing::error!(path, error, "the authorities of clients are not reloaded"),
                }
            }
        };
        let serving_certificate = async {
            if shown.is_empty() {
                return;
            }
            while let Some(found) = shown.changed(&mut stopped).await {
                let outcome = found.map_err(|e| e.to_string()).and_then(|files| {
                    let given = kaji_options::serving::identity(files)?;
                    certificates.present(given).map_err(|e| e.to_string())
                });
                let path = shown.names();
                match outcome {
                    Ok(()) => tracing::info!(path, "the serving certificate is reloaded"),
                    Err(error) => tracing::error!(path, error, "the serving certificate is not reloaded"),
                }
            }
        };
        tokio::join!(authorities, serving_certificate);
    }
}

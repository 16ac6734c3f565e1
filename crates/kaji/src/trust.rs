//! Certificates that flags name, followed while the cluster runs: who signs clients' and front proxies', and what the
//! server shows.
//!
//! Invariant: a file that cannot be used changes nothing; the cluster's own authorities always count.

use crate::{
    authn::{AuthnOptions, Authorities},
    delegation::Trust,
    follow::Followed,
    serving::Serving,
};
use kaji_server::{Certificates, StackError, TlsConfigHandle, pki::Pki};
use std::sync::Arc;
use tokio::sync::watch;

/// What connections are met with.
///
/// # Errors
/// TLS or authorities that cannot be used.
pub(crate) fn front(
    serving: &Serving,
    certificates: &Certificates,
    signers: &Authorities,
) -> Result<TlsConfigHandle, StackError> {
    let (tls, authorities) = parts(serving, certificates, signers)?;
    Ok(TlsConfigHandle::new(tls, authorities))
}

type Parts = (kaji_server::TlsAcceptor, Arc<kaji_server::Authorities>);

fn parts(serving: &Serving, certificates: &Certificates, signers: &Authorities) -> Result<Parts, StackError> {
    let authorities = Arc::new(kaji_server::Authorities::new(&signers.clients, &signers.proxies)?);
    Ok((kaji_server::tls(&serving.tls, certificates.serving(), authorities.clone())?, authorities))
}

/// Follows all of them.
pub(crate) struct Reload {
    /// Authorities.
    signers: Followed,
    /// A certificate and its key.
    shown: Followed,
    options: AuthnOptions,
    serving: Serving,
    pki: Arc<Pki>,
    certificates: Arc<Certificates>,
    front: Option<TlsConfigHandle>,
    /// Who is told of authorities besides.
    believed: watch::Sender<Trust>,
}

impl Reload {
    /// Of files whose contents are in force. `front` is where connections come in, if anywhere; `believed` is what others
    /// are told of authorities.
    pub fn new(
        options: &AuthnOptions,
        serving: &Serving,
        signers: &Authorities,
        certificates: Arc<Certificates>,
        (front, believed): (Option<TlsConfigHandle>, watch::Sender<Trust>),
    ) -> Reload {
        let signers = Followed::new(signers.files.clone());
        let pki = certificates.current();
        let shown = Followed::new(serving.files.held(&pki.serving));
        Reload {
            signers,
            shown,
            options: options.clone(),
            serving: serving.clone(),
            pki,
            certificates,
            front,
            believed,
        }
    }

    /// Until told to stop.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let Reload { mut signers, mut shown, options, serving, pki, certificates, front, believed } = self;
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
                        believed.send_modify(|trust| (trust.clients, trust.proxies) = (clients, proxies));
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
                    let given = crate::serving::identity(files)?;
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

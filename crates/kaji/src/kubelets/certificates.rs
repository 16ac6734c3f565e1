//! What a kubelet's server shows: a certificate of its own, made when it is first asked for and again in time.
//!
//! Invariant: keys are in memory only, and no certificate is shown in its last months.

use kaji_meta::Clock;
use kaji_server::pki::{self, Identity, PkiError};
use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// How long a certificate, which is good for a year, is shown.
const SHOWN: jiff::SignedDuration = jiff::SignedDuration::from_hours(24 * 180);

/// Signs nodes' serving certificates.
pub(super) struct Signer {
    authority: Identity,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl Signer {
    /// One that signs with this authority or, if its key is not at hand, with one of its own, which nobody else knows.
    /// Source: kubelets without `serverTLSBootstrap` are their own authorities.
    ///
    /// # Errors
    /// When none can be made.
    pub fn new(authority: &Identity, clock: Arc<dyn Clock>) -> Result<Arc<Signer>, PkiError> {
        let authority = match pki::can_sign(authority) {
            true => authority.clone(),
            false => pki::authority("kubelet-ca", clock.now())?,
        };
        Ok(Arc::new(Signer { authority, clock }))
    }
}

/// The certificate of one node.
#[derive(Debug)]
pub(super) struct Serving {
    signer: Arc<Signer>,
    node: String,
    address: IpAddr,
    /// And until when it is shown.
    held: Mutex<Option<(jiff::Timestamp, Arc<CertifiedKey>)>>,
}

impl Serving {
    /// For a node at an address.
    pub fn new(signer: Arc<Signer>, node: &str, address: IpAddr) -> Serving {
        Serving { signer, node: node.to_owned(), address, held: Mutex::default() }
    }

    fn make(&self, now: jiff::Timestamp) -> Result<CertifiedKey, String> {
        let names = [self.node.clone(), self.address.to_string()];
        let made = pki::kubelet_serving(&self.signer.authority, &self.node, &names, now);
        let Identity { certificate, key } = made.map_err(|e| e.to_string())?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| e.to_string())?;
        let chain = chain.map_err(|e| e.to_string())?;
        CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|e| e.to_string())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let now = self.signer.clock.now();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((until, key)) = &*held
            && now < *until
        {
            return Some(key.clone());
        }
        match self.make(now) {
            Ok(made) => {
                let made = Arc::new(made);
                *held = Some((now.saturating_add(SHOWN).unwrap_or(now), made.clone()));
                Some(made)
            }
            Err(error) => {
                tracing::warn!(node = self.node, error, "a kubelet has no serving certificate");
                None
            }
        }
    }
}

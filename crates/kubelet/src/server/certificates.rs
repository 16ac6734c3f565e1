//! Serving certificates: those that a kubelet issues for itself at the first handshake, and again before they expire, and those
//! that it is given and that are replaced while it serves.
//!
//! Invariants: issued keys are in memory only, and no issued certificate is used in its last months; a certificate that is given
//! is presented only while it is valid, and without one handshakes fail.

use jiff::Timestamp;
use kaji_meta::Clock;
use kaji_server::pki::{self, Identity, PkiError};
use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
};
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// How long a certificate, which is valid for a year, is used.
const USED_FOR: jiff::SignedDuration = jiff::SignedDuration::from_hours(24 * 180);

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
    /// A signer with this certificate authority or, without its private key, with a new one that is not published.
    /// Source: kubelets without `serverTLSBootstrap` are their own authorities.
    ///
    /// # Errors
    /// When no authority can be created.
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
    /// The certificate, and until when it is used.
    held: Mutex<Option<(jiff::Timestamp, Arc<CertifiedKey>)>>,
}

impl Serving {
    /// For a node at an address.
    pub fn new(signer: Arc<Signer>, node: &str, address: IpAddr) -> Serving {
        Serving { signer, node: node.to_owned(), address, held: Mutex::default() }
    }

    fn make(&self, now: jiff::Timestamp) -> Result<CertifiedKey, String> {
        let names = [self.node.clone(), self.address.to_string()];
        let issued = pki::kubelet_serving(&self.signer.authority, &self.node, &names, now);
        let Identity { certificate, key } = issued.map_err(|e| e.to_string())?;
        certified_key(&certificate, &key)
    }
}

/// A certificate chain with its key, PEM.
fn certified_key(certificate: &str, key: &str) -> Result<CertifiedKey, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| e.to_string())?;
    let chain = chain.map_err(|e| e.to_string())?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|e| e.to_string())
}

/// A certificate that is replaced while a server presents it.
pub struct ReplaceableCertificate {
    clock: Arc<dyn Clock>,
    /// Its end, if it is not presented after it.
    current: RwLock<Option<(Option<Timestamp>, Arc<CertifiedKey>)>>,
}

impl fmt::Debug for ReplaceableCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplaceableCertificate").finish_non_exhaustive()
    }
}

impl ReplaceableCertificate {
    /// None yet: handshakes fail.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> ReplaceableCertificate {
        ReplaceableCertificate { clock, current: RwLock::default() }
    }

    /// Presents a chain with its key, PEM, from now on; until `not_after`, if there is one.
    ///
    /// # Errors
    /// When they cannot be used. The former certificate stays.
    pub fn set(&self, certificate: &str, key: &str, not_after: Option<Timestamp>) -> Result<(), String> {
        let key = Arc::new(certified_key(certificate, key)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some((not_after, key));
        Ok(())
    }
}

impl ResolvesServerCert for ReplaceableCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let (not_after, key) = current.as_ref()?;
        not_after.is_none_or(|end| self.clock.now() < end).then(|| key.clone())
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
            Ok(issued) => {
                let issued = Arc::new(issued);
                *held = Some((now.saturating_add(USED_FOR).unwrap_or(now), issued.clone()));
                Some(issued)
            }
            Err(error) => {
                tracing::warn!(node = self.node, error, "kubelet server: no serving certificate");
                None
            }
        }
    }
}

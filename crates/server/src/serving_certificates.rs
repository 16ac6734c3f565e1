//! Certificates that are renewed while the server runs: in their files, for new connections, and for subscribers.
//!
//! Invariants: a renewed certificate is on disk before it is presented; open connections keep theirs; authorities and the
//! service account key are never renewed. A renewal that fails changes nothing and is retried within the hour, for which
//! ninety days are left. A serving certificate that was given is never replaced.

use crate::pki::{Identity, Pki, PkiError};
use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use kaji_meta::time::Clock;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::watch;
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// How often the certificates' ends are looked at.
const CHECK: Duration = Duration::from_secs(3600);

/// The cluster's certificates, as they are now.
#[derive(Debug)]
pub struct Certificates {
    /// `None` for certificates that end with the process.
    dir: Option<PathBuf>,
    /// The serving certificate, if one was given.
    given: ArcSwapOption<Identity>,
    names: Vec<String>,
    current: watch::Sender<Arc<Pki>>,
    served: Arc<Served>,
    /// One renewal at a time.
    renewing: Mutex<()>,
}

/// What handshakes are answered with.
#[derive(Debug)]
struct Served(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

fn certified(dir: &Path, identity: &Identity) -> Result<CertifiedKey, PkiError> {
    let malformed = |reason: String| PkiError::Malformed { path: dir.join("apiserver.crt"), reason };
    let chain =
        CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|e| malformed(e.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(|e| malformed(e.to_string()))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|e| malformed(e.to_string()))
}

impl Certificates {
    /// Reads what is in `dir` and makes what is missing; see [`Pki::ensure`].
    ///
    /// # Errors
    /// Those of [`Pki::ensure`], and when the serving certificate and its key do not fit.
    pub fn open(dir: &Path, names: Vec<String>, now: Timestamp) -> Result<Certificates, PkiError> {
        Self::new(Some(dir.into()), names, now)
    }

    /// Makes all of them, and writes none.
    ///
    /// # Errors
    /// Those of [`Pki::in_memory`].
    pub fn in_memory(names: Vec<String>, now: Timestamp) -> Result<Certificates, PkiError> {
        Self::new(None, names, now)
    }

    /// Serves with this certificate, PEM, instead of a generated one or one that was given before.
    ///
    /// # Errors
    /// When the certificate and its key do not fit; then nothing changes.
    pub fn present(&self, given: Identity) -> Result<(), PkiError> {
        let _one = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        let served = certified(Path::new(""), &given)?;
        let mut pki = Pki::clone(&self.current());
        pki.serving = given.clone();
        self.given.store(Some(Arc::new(given)));
        self.served.0.store(Arc::new(served));
        self.current.send_replace(Arc::new(pki));
        Ok(())
    }

    fn new(dir: Option<PathBuf>, names: Vec<String>, now: Timestamp) -> Result<Certificates, PkiError> {
        let pki = match &dir {
            Some(dir) => Pki::ensure(dir, &names, now)?,
            None => Pki::in_memory(None, &names, now)?,
        };
        let path = dir.as_deref().unwrap_or(Path::new(""));
        let served = Arc::new(Served(ArcSwap::from_pointee(certified(path, &pki.serving)?)));
        let current = watch::Sender::new(Arc::new(pki));
        let given = ArcSwapOption::empty();
        Ok(Certificates { dir, given, names, current, served, renewing: Mutex::new(()) })
    }

    /// What a client must trust to reach this server, PEM.
    pub fn trust(&self) -> String {
        // The issuer of a given certificate is unknown; a client that trusts the certificate itself trusts the server.
        let given = self.given.load();
        given.as_ref().map_or_else(|| self.current().ca.certificate.clone(), |g| g.certificate.clone())
    }

    /// The certificates of this moment.
    pub fn current(&self) -> Arc<Pki> {
        self.current.borrow().clone()
    }

    /// Tells of renewals.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Pki>> {
        self.current.subscribe()
    }

    /// What a listener shows.
    pub fn serving(&self) -> Arc<dyn ResolvesServerCert> {
        self.served.clone()
    }

    /// Renews what runs out soon. Whether anything did.
    ///
    /// # Errors
    /// Those of [`Pki::ensure`] and [`Pki::in_memory`].
    pub fn renew(&self, now: Timestamp) -> Result<bool, PkiError> {
        let _one = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.current();
        let given = self.given.load_full();
        let due = if given.is_none() { old.renew_at() } else { old.renew_clients_at() };
        if due.is_none_or(|at| now < at) {
            return Ok(false);
        }
        let mut pki = match &self.dir {
            Some(dir) => Pki::ensure(dir, &self.names, now)?,
            None => Pki::in_memory(Some(&old), &self.names, now)?,
        };
        if let Some(given) = given {
            pki.serving = Identity::clone(&given);
        }
        let served = certified(self.dir.as_deref().unwrap_or(Path::new("")), &pki.serving)?;
        self.served.0.store(Arc::new(served));
        self.current.send_replace(Arc::new(pki));
        Ok(true)
    }

    /// Renews in time, until `stop` turns true.
    pub async fn run(self: Arc<Self>, clock: Arc<dyn Clock>, mut stop: watch::Receiver<bool>) {
        loop {
            let (this, now) = (self.clone(), clock.now());
            // Making keys and writing files blocks.
            match kaji_store::blocking(move || this.renew(now)).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => tracing::info!("certificates were renewed"),
                Ok(Err(error)) => tracing::error!(%error, "certificates could not be renewed"),
                Err(error) => tracing::error!(%error, "renewing certificates"),
            }
            tokio::select! { biased; () = tokio::time::sleep(CHECK) => {}, _ = stop.wait_for(|s| *s) => return }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use std::os::unix::fs::PermissionsExt;

    fn start() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn days(days: i64) -> Timestamp {
        start() + SignedDuration::from_hours(24 * days)
    }

    #[test]
    fn leaves_are_renewed_in_time_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::open(dir.path(), vec!["localhost".into()], start()).unwrap();
        let (first, seen) = (certificates.current(), certificates.subscribe());
        let shown = |c: &Certificates| c.served.0.load().cert[0].to_vec();
        let served = shown(&certificates);
        assert!(!certificates.renew(days(274)).unwrap());
        assert_eq!(shown(&certificates), served);
        assert!(!seen.has_changed().unwrap());

        assert!(certificates.renew(days(275)).unwrap());
        let second = certificates.current();
        assert_ne!(shown(&certificates), served);
        assert!(seen.has_changed().unwrap());
        assert_ne!(first.serving.certificate, second.serving.certificate);
        assert_ne!(first.admin.certificate, second.admin.certificate);
        assert_eq!(first.ca.certificate, second.ca.certificate);
        assert_eq!(first.service_account.public, second.service_account.public);
        let on_disk = std::fs::read_to_string(dir.path().join("apiserver.crt")).unwrap();
        assert_eq!(on_disk, second.serving.certificate);
        let mode = std::fs::metadata(dir.path().join("apiserver.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!certificates.renew(days(275)).unwrap());
    }

    #[test]
    fn certificates_in_memory_keep_their_authority() {
        let certificates = Certificates::in_memory(vec!["localhost".into()], start()).unwrap();
        let first = certificates.current();
        assert!(certificates.renew(days(275)).unwrap());
        let second = certificates.current();
        assert_ne!(first.serving.certificate, second.serving.certificate);
        assert_eq!(first.ca.certificate, second.ca.certificate);
        assert_eq!(first.service_account.public, second.service_account.public);
        assert_eq!(certificates.trust(), second.ca.certificate);
    }

    #[test]
    fn a_given_serving_certificate_is_kept() {
        let other = Certificates::in_memory(vec!["localhost".into()], start()).unwrap().current();
        let certificates = Certificates::in_memory(vec![], start()).unwrap();
        certificates.present(other.serving.clone()).unwrap();
        assert!(certificates.renew(days(275)).unwrap());
        assert!(!certificates.renew(days(275)).unwrap());
        assert_eq!(certificates.current().serving.certificate, other.serving.certificate);
        assert_eq!(certificates.trust(), other.serving.certificate);
        let wrong = Identity { key: other.admin.key.clone(), ..other.serving.clone() };
        assert!(certificates.present(wrong).is_err());
        assert_eq!(certificates.trust(), other.serving.certificate);
        let another = Certificates::in_memory(vec!["localhost".into()], start()).unwrap().current();
        certificates.present(another.serving.clone()).unwrap();
        assert_eq!(certificates.trust(), another.serving.certificate);
        assert_eq!(certificates.current().serving.certificate, another.serving.certificate);
    }

    #[test]
    fn a_renewal_that_fails_leaves_everything_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::open(dir.path(), vec![], start()).unwrap();
        let before = certificates.current().serving.certificate.clone();
        std::fs::remove_file(dir.path().join("ca.key")).unwrap();
        assert!(certificates.renew(days(300)).is_err());
        assert_eq!(certificates.current().serving.certificate, before);
    }
}

//! The serving certificate of a joined node's HTTPS API: requested from the signer `kubernetes.io/kubelet-serving`, kept, renewed.
//!
//! Invariants: a certificate is on disk before it is presented; before the first one is signed, handshakes fail; a certificate is
//! presented only while it is good.
//!
//! Source: kubelets with `serverTLSBootstrap`.

use super::{
    AgentError, JoinedNode, Member,
    identity::{Credential, NodeKey},
    request::{self, Purpose},
};
use crate::server::KubeletServerConfig;
use jiff::Timestamp;
use kaji_auth::authn::{ClusterAuthenticationInfo, RequestHeader};
use kaji_meta::{Clock, text};
use kaji_runtime::Client;
use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::watch;
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// How long a request may wait for its approval before another one is made: a node's addresses may be another's at first. Upstream
/// waits as long.
const SIGNING: Duration = Duration::from_secs(15 * 60);
/// The first pause after a failure, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));
/// How often the certificate's expiry is checked: timers stop while a machine is suspended.
const CHECK: Duration = Duration::from_secs(600);

/// The certificate that handshakes present.
struct Presented {
    clock: Arc<dyn Clock>,
    current: RwLock<Option<(Timestamp, Arc<CertifiedKey>)>>,
}

impl fmt::Debug for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presented").finish_non_exhaustive()
    }
}

impl Presented {
    fn set(&self, credential: &Credential) -> Result<(), String> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(credential.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes()).map_err(|e| e.to_string())?;
        let chain = chain.map_err(|e| e.to_string())?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|e| e.to_string())?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = Some((credential.not_after, Arc::new(key)));
        Ok(())
    }
}

impl ResolvesServerCert for Presented {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let (until, key) = current.as_ref()?;
        (self.clock.now() < *until).then(|| key.clone())
    }
}

impl JoinedNode {
    /// What the kubelet's HTTPS API at an address needs, and the task that requests its certificate and renews it until the node
    /// ends. Clients are authenticated by the authorities that the node joined with.
    pub fn kubelet_server(
        &self,
        address: IpAddr,
    ) -> (KubeletServerConfig, impl Future<Output = ()> + Send + 'static) {
        let presented = Arc::new(Presented { clock: self.shared.clock.clone(), current: RwLock::default() });
        let client_ca = self.member.authorities.iter().map(|der| text::pem("CERTIFICATE", der)).collect();
        let info = ClusterAuthenticationInfo {
            client_ca,
            request_header_ca: String::new(),
            request_header: RequestHeader::default(),
        };
        let (sender, authentication) = watch::channel(info);
        let config = KubeletServerConfig::with_certificate(
            presented.clone(),
            authentication,
            self.shared.clock.clone(),
        );
        let renewal = Renewal {
            member: self.member.clone(),
            client: self.shared.client.clone(),
            names: vec![self.name.clone(), address.to_string()],
            address,
            presented,
        };
        let mut stop = self.stop.clone();
        let task = async move {
            tokio::select! {
                () = renewal.run() => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
            drop(sender);
        };
        (config, task)
    }
}

struct Renewal {
    member: Arc<Member>,
    client: Client,
    names: Vec<String>,
    address: IpAddr,
    presented: Arc<Presented>,
}

impl Renewal {
    async fn run(self) {
        let mut pause = RETRY.0;
        let mut due = self.restore();
        loop {
            let now = self.presented.clock.now();
            if now < due {
                let left = Duration::try_from(due.duration_since(now)).unwrap_or_default();
                tokio::time::sleep(left.min(CHECK)).await;
                continue;
            }
            match self.renew().await {
                Ok(next) => {
                    due = next;
                    pause = RETRY.0;
                }
                Err(error) => tracing::warn!(%error, "the node has no new serving certificate"),
            }
            if self.presented.clock.now() >= due {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
            }
        }
    }

    /// Presents the kept certificate, if there is one for this address. When it is due.
    fn restore(&self) -> Timestamp {
        let kept = match self.member.store.serving() {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(%error, "the node's serving certificate is requested anew");
                None
            }
        };
        let Some(kept) = kept.filter(|kept| kept.serves(&self.member.options.node, self.address)) else {
            return Timestamp::UNIX_EPOCH;
        };
        match self.presented.set(&kept) {
            Ok(()) => kept.renew_at(&*self.member.options.random),
            Err(error) => {
                tracing::warn!(error, "the node's serving certificate is requested anew");
                Timestamp::UNIX_EPOCH
            }
        }
    }

    async fn renew(&self) -> Result<Timestamp, AgentError> {
        let node = &self.member.options.node;
        let key = NodeKey::generate(node)?;
        let purpose = Purpose::serving(self.names.clone());
        let signed = request::certificate(&self.client, &key, &purpose, None, SIGNING).await?;
        let credential = Credential::signed(&signed, &key)?;
        self.member.store.replace_serving(&credential)?;
        let unusable = |reason| AgentError::Certificate { node: node.clone(), reason };
        self.presented.set(&credential).map_err(unusable)?;
        Ok(credential.renew_at(&*self.member.options.random))
    }
}

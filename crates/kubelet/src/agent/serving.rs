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
use crate::server::{KubeletServerConfig, ReplaceableCertificate};
use jiff::Timestamp;
use kaji_auth::authn::{ClusterAuthenticationInfo, RequestHeader};
use kaji_meta::{Clock, text};
use kaji_runtime::Client;
use std::{net::IpAddr, sync::Arc, time::Duration};
use tokio::sync::watch;

/// How long a request may wait for its approval before another one is made: a node's addresses may be another's at first. Upstream
/// waits as long.
const SIGNING: Duration = Duration::from_secs(15 * 60);
/// The first pause after a failure, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));
/// How often the certificate's expiry is checked: timers stop while a machine is suspended.
const CHECK: Duration = Duration::from_secs(600);

impl JoinedNode {
    /// What the kubelet's HTTPS API at an address needs, and the task that requests its certificate and renews it until the node
    /// ends. Clients are authenticated by the authorities that the node joined with.
    pub fn kubelet_server(
        &self,
        address: IpAddr,
    ) -> (KubeletServerConfig, impl Future<Output = ()> + Send + 'static) {
        let presented = Arc::new(ReplaceableCertificate::new(self.shared.clock.clone()));
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
            clock: self.shared.clock.clone(),
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
    clock: Arc<dyn Clock>,
    presented: Arc<ReplaceableCertificate>,
}

impl Renewal {
    async fn run(self) {
        let mut pause = RETRY.0;
        let mut due = self.restore();
        loop {
            let now = self.clock.now();
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
            if self.clock.now() >= due {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
            }
        }
    }

    fn present(&self, credential: &Credential) -> Result<(), String> {
        self.presented.set(&credential.certificate, &credential.key, Some(credential.not_after))
    }

    /// Presents the kept certificate, if there is one for this address. When it is due.
    fn restore(&self) -> Timestamp {
        let kept = match self.member.store.serving() {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(%error, "the node's serving certificate is requested again");
                None
            }
        };
        let Some(kept) = kept.filter(|kept| kept.serves(&self.member.options.node, self.address)) else {
            return Timestamp::UNIX_EPOCH;
        };
        match self.present(&kept) {
            Ok(()) => kept.renew_at(&*self.member.options.random),
            Err(error) => {
                tracing::warn!(error, "the node's serving certificate is requested again");
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
        self.present(&credential).map_err(unusable)?;
        Ok(credential.renew_at(&*self.member.options.random))
    }
}

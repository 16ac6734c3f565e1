//! A pod network that hands over a pod only when its network policies are in force: the API shows the pod's address only after its
//! containers run, and until then rules that follow from the API alone would not know it.
//!
//! Invariants: no container is started before the rules of its pod are in the kernel; a pod that was there before this process is not
//! held up. A static pod is not in the API when the server is away, and starts without rules then, as its purpose may be the server.

use kaji_containers::{BoxFuture, NetworkSetup, PodAddresses, PodNetwork, RuntimeError};
use kaji_proxy::policy::{LocalPod, LocalPods};
use std::{sync::Arc, time::Duration};

/// How long rules are waited for; the kubelet tries again after a failure.
const RULES_TIMEOUT: Duration = Duration::from_secs(5);
/// The annotation by which a pod's sandbox says where the pod comes from.
const SOURCE: &str = "kubernetes.io/config.source";

/// See the module.
pub struct GuardedNetwork {
    inner: Arc<dyn PodNetwork>,
    local: LocalPods,
}

impl GuardedNetwork {
    /// Guards a network.
    pub fn new(inner: Arc<dyn PodNetwork>, local: LocalPods) -> GuardedNetwork {
        GuardedNetwork { inner, local }
    }

    fn connected(&self, setup: &NetworkSetup, addresses: &PodAddresses) {
        let metadata = &setup.metadata;
        let pod = LocalPod {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            addresses: addresses.addresses.clone(),
        };
        self.local.insert(&setup.sandbox_id, pod);
    }
}

impl PodNetwork for GuardedNetwork {
    fn unavailable_reason(&self) -> BoxFuture<'_, Option<String>> {
        self.inner.unavailable_reason()
    }

    fn update_pod_cidrs(&self, cidrs: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        self.inner.update_pod_cidrs(cidrs)
    }

    fn set_up(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
        Box::pin(async move {
            let addresses = self.inner.set_up(setup.clone()).await?;
            self.connected(&setup, &addresses);
            if tokio::time::timeout(RULES_TIMEOUT, self.local.enforced(&setup.sandbox_id)).await.is_ok() {
                return Ok(addresses);
            }
            let pod = format!("{}/{}", setup.metadata.namespace, setup.metadata.name);
            if setup.annotations.get(SOURCE).is_some_and(|source| source == "file") {
                tracing::warn!(pod, "a static pod starts before its network policies are known");
                return Ok(addresses);
            }
            self.local.remove(&setup.sandbox_id);
            Err(RuntimeError::Unavailable(format!("the network policies of pod {pod} are not in force yet")))
        })
    }

    fn adopt(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
        Box::pin(async move {
            let addresses = self.inner.adopt(setup.clone()).await?;
            self.connected(&setup, &addresses);
            Ok(addresses)
        })
    }

    fn tear_down(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async move {
            self.inner.tear_down(setup.clone()).await?;
            self.local.remove(&setup.sandbox_id);
            Ok(())
        })
    }

    fn sweep(&self, sandboxes: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        self.inner.sweep(sandboxes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_containers::PodSandboxMetadata;
    use std::{collections::BTreeSet, future::ready};

    /// Gives every pod the same address.
    struct OneAddress;

    impl OneAddress {
        fn given() -> Result<PodAddresses, RuntimeError> {
            Ok(PodAddresses { addresses: vec!["10.244.0.2".parse().unwrap()] })
        }
    }

    impl PodNetwork for OneAddress {
        fn unavailable_reason(&self) -> BoxFuture<'_, Option<String>> {
            Box::pin(ready(None))
        }
        fn update_pod_cidrs(&self, _: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
            Box::pin(ready(Ok(())))
        }
        fn set_up(&self, _: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
            Box::pin(ready(OneAddress::given()))
        }
        fn adopt(&self, _: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
            Box::pin(ready(OneAddress::given()))
        }
        fn tear_down(&self, _: NetworkSetup) -> BoxFuture<'_, Result<(), RuntimeError>> {
            Box::pin(ready(Ok(())))
        }
        fn sweep(&self, _: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
            Box::pin(ready(Ok(())))
        }
    }

    fn guarded() -> (Arc<GuardedNetwork>, LocalPods) {
        let local = LocalPods::default();
        (Arc::new(GuardedNetwork::new(Arc::new(OneAddress), local.clone())), local)
    }

    fn setup(source: &str) -> NetworkSetup {
        NetworkSetup {
            sandbox_id: "s".into(),
            metadata: PodSandboxMetadata {
                name: "p".into(),
                namespace: "n".into(),
                uid: "u".into(),
                attempt: 0,
            },
            annotations: [(SOURCE.to_owned(), source.to_owned())].into(),
            ..NetworkSetup::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_handed_over_when_its_rules_are_in_force() {
        let (network, local) = guarded();
        let waiting = tokio::spawn(async move { network.set_up(setup("api")).await });
        tokio::time::sleep(RULES_TIMEOUT / 2).await;
        assert!(!waiting.is_finished(), "nothing has been written to the kernel");
        local.set_enforced(BTreeSet::from(["s".to_owned()]));
        assert_eq!(waiting.await.unwrap().unwrap().addresses.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn without_rules_only_pods_that_the_api_does_not_have_or_that_were_there_go_on() {
        let (network, local) = guarded();
        let error = network.set_up(setup("api")).await.unwrap_err().to_string();
        assert_eq!(error, "the network policies of pod n/p are not in force yet");
        assert!(local.is_empty());
        network.set_up(setup("file")).await.unwrap();
        network.tear_down(setup("file")).await.unwrap();
        assert!(local.is_empty());
        network.adopt(setup("api")).await.unwrap();
        assert!(!local.is_empty(), "rules follow from its address, too");
    }
}

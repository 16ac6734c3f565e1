//! Upstream's start hooks as health checks of this server: monitors and upstream's own tests ask for them by name.
//!
//! Invariant: a check passes from when on what its hook does upstream is done here. The stages before the listener are done when a request
//! can ask; what runs in the background is when [`Health::tasks_started`] was called. Hooks of what this server does not do are absent.
//! Source: kube-apiserver 1.37, `/readyz?verbose`, in its order.

use crate::Health;
use std::sync::{Arc, atomic::Ordering};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The stages before the listener.
    Stages,
    /// Background tasks and control loops.
    Tasks,
    /// Tasks of a server that may have others beside it.
    SeveralServers,
}

const HOOKS: [(&str, Of); 30] = [
    ("poststarthook/start-apiserver-admission-initializer", Of::Stages),
    ("poststarthook/generic-apiserver-start-informers", Of::Stages),
    ("poststarthook/priority-and-fairness-config-consumer", Of::Tasks),
    ("poststarthook/priority-and-fairness-filter", Of::Stages),
    ("poststarthook/storage-object-count-tracker-hook", Of::Stages),
    ("poststarthook/start-apiextensions-informers", Of::Stages),
    ("poststarthook/start-apiextensions-controllers", Of::Stages),
    ("poststarthook/crd-informer-synced", Of::Stages),
    ("poststarthook/start-system-namespaces-controller", Of::Tasks),
    ("poststarthook/start-cluster-authentication-info-controller", Of::Tasks),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", Of::SeveralServers),
    ("poststarthook/start-kube-apiserver-identity-lease-garbage-collector", Of::SeveralServers),
    ("poststarthook/storage-readiness", Of::Stages),
    ("poststarthook/start-legacy-token-tracking-controller", Of::Tasks),
    ("poststarthook/start-service-ip-repair-controllers", Of::Tasks),
    ("poststarthook/rbac/bootstrap-roles", Of::Stages),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Of::Stages),
    ("poststarthook/priority-and-fairness-config-producer", Of::Stages),
    ("poststarthook/bootstrap-controller", Of::Tasks),
    ("poststarthook/start-kubernetes-service-cidr-controller", Of::Tasks),
    ("poststarthook/aggregator-reload-proxy-client-cert", Of::Tasks),
    ("poststarthook/start-kube-aggregator-informers", Of::Tasks),
    ("poststarthook/apiservice-status-local-available-controller", Of::Tasks),
    ("poststarthook/apiservice-status-remote-available-controller", Of::Tasks),
    ("poststarthook/apiservice-registration-controller", Of::Tasks),
    ("poststarthook/apiservice-discovery-controller", Of::Tasks),
    ("poststarthook/kube-apiserver-autoregistration", Of::Stages),
    ("autoregister-completion", Of::Stages),
    ("poststarthook/apiservice-openapi-controller", Of::Tasks),
    ("poststarthook/apiservice-openapiv3-controller", Of::Tasks),
];

impl Health {
    /// Adds the checks, of a server that may have others beside it or not.
    pub fn add_start_hooks(&self, several_servers: bool) {
        for (name, of) in HOOKS.into_iter().filter(|(_, of)| several_servers || *of != Of::SeveralServers) {
            let tasks = (of != Of::Stages).then(|| self.tasks_run.clone());
            let done = move || match &tasks {
                Some(run) if !run.load(Ordering::Acquire) => Err("not finished".to_owned()),
                _ => Ok(()),
            };
            self.add_start(name, Arc::new(done));
        }
    }

    /// Background tasks and control loops run from now on.
    pub fn tasks_started(&self) {
        self.tasks_run.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::Query;

    #[tokio::test]
    async fn hooks_of_tasks_pass_once_these_run() {
        let health = Health::default();
        health.add_start_hooks(false);
        let ask = async |check| health.serve("readyz", check, &Query::default()).await.map(|(code, _)| code);
        assert_eq!(ask("poststarthook/rbac/bootstrap-roles").await, Some(200));
        assert_eq!(ask("poststarthook/bootstrap-controller").await, Some(500));
        assert_eq!(ask("").await, Some(500));
        health.tasks_started();
        assert_eq!(ask("poststarthook/bootstrap-controller").await, Some(200));
        assert_eq!(ask("").await, Some(200));
        let identity = "poststarthook/start-kube-apiserver-identity-lease-controller";
        assert_eq!(ask(identity).await, None, "there is no such task");
    }
}

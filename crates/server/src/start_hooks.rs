//! Upstream's start hooks as health checks of this server: monitors and upstream's own tests ask for them by name.
//!
//! Invariant: a check passes from when on what its hook does upstream is done here. The stages before the listener are done when a request
//! can ask; what runs in the background is when [`Health::tasks_started`] was called. Hooks of what this server does not do are absent.
//! Source: kube-apiserver 1.37, `/readyz?verbose`, in its order.

use crate::Health;
use std::sync::{Arc, atomic::Ordering};

#[derive(Clone, Copy, PartialEq, Eq)]
enum DoneBy {
    /// The stages before the listener.
    Stages,
    /// Background tasks and control loops.
    Tasks,
    /// Tasks of a server that may have others beside it.
    SeveralServers,
}

const HOOKS: [(&str, DoneBy); 30] = [
    ("poststarthook/start-apiserver-admission-initializer", DoneBy::Stages),
    ("poststarthook/generic-apiserver-start-informers", DoneBy::Stages),
    ("poststarthook/priority-and-fairness-config-consumer", DoneBy::Tasks),
    ("poststarthook/priority-and-fairness-filter", DoneBy::Stages),
    ("poststarthook/storage-object-count-tracker-hook", DoneBy::Stages),
    ("poststarthook/start-apiextensions-informers", DoneBy::Stages),
    ("poststarthook/start-apiextensions-controllers", DoneBy::Stages),
    ("poststarthook/crd-informer-synced", DoneBy::Stages),
    ("poststarthook/start-system-namespaces-controller", DoneBy::Tasks),
    ("poststarthook/start-cluster-authentication-info-controller", DoneBy::Tasks),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", DoneBy::SeveralServers),
    ("poststarthook/start-kube-apiserver-identity-lease-garbage-collector", DoneBy::SeveralServers),
    ("poststarthook/storage-readiness", DoneBy::Stages),
    ("poststarthook/start-legacy-token-tracking-controller", DoneBy::Tasks),
    ("poststarthook/start-service-ip-repair-controllers", DoneBy::Tasks),
    ("poststarthook/rbac/bootstrap-roles", DoneBy::Stages),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", DoneBy::Stages),
    ("poststarthook/priority-and-fairness-config-producer", DoneBy::Stages),
    ("poststarthook/bootstrap-controller", DoneBy::Tasks),
    ("poststarthook/start-kubernetes-service-cidr-controller", DoneBy::Tasks),
    ("poststarthook/aggregator-reload-proxy-client-cert", DoneBy::Tasks),
    ("poststarthook/start-kube-aggregator-informers", DoneBy::Tasks),
    ("poststarthook/apiservice-status-local-available-controller", DoneBy::Tasks),
    ("poststarthook/apiservice-status-remote-available-controller", DoneBy::Tasks),
    ("poststarthook/apiservice-registration-controller", DoneBy::Tasks),
    ("poststarthook/apiservice-discovery-controller", DoneBy::Tasks),
    ("poststarthook/kube-apiserver-autoregistration", DoneBy::Stages),
    ("autoregister-completion", DoneBy::Stages),
    ("poststarthook/apiservice-openapi-controller", DoneBy::Tasks),
    ("poststarthook/apiservice-openapiv3-controller", DoneBy::Tasks),
];

impl Health {
    /// Adds the checks, of a server that may have others beside it or not.
    pub fn add_start_hooks(&self, several_servers: bool) {
        for (name, done_by) in
            HOOKS.into_iter().filter(|(_, done_by)| several_servers || *done_by != DoneBy::SeveralServers)
        {
            let tasks = (done_by != DoneBy::Stages).then(|| self.tasks_run.clone());
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

//! Load balancers that exist outside of the cluster, by calls of the cloud provider.
//!
//! A service is first given the finalizer, then its load balancer is made, then its status shows the addresses. A service that is
//! deleted, or is of another type, loses its load balancer first and the finalizer after it. The calls are made before the
//! decision (`prepare`), the decision writes what they answered.
//!
//! Invariants:
//! - No load balancer is made for a service without the finalizer, nor is the finalizer removed before the load balancer.
//! - A load balancer is ensured when something about its service changed that concerns it, updated when the set of nodes did, and
//!   left alone otherwise. After a failed call it is ensured anew.

use super::{COMPONENT, QUEUE, metrics, reference};
use crate::{
    cloud_provider::{
        Attempts, CloudError, CloudProvider, LoadBalancers, LoadBalancing, is_for_default_provider,
        is_included, is_leaving,
    },
    loop_config::CloudLoops,
};
use futures_util::future::BoxFuture;
use kaji_runtime::{
    Change, Client, Controller, Cx, EventRecord, Informers, Key, Metric, PatchKind, Plan, Reconciler, Step,
    View, Write,
    client::Target,
    objects::{LoadBalancerIngress, Node, Service},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What keeps a service until its load balancer is removed.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(300);
/// So many names of nodes are in a message.
const MOST_NAMES: usize = 20;

/// The controller of a provider with load balancers outside.
pub fn controller(
    informers: &Arc<Informers>,
    cloud: Arc<dyn CloudProvider>,
    loops: &CloudLoops,
) -> Controller {
    let outside = Outside::new(cloud, loops.cluster_name.clone());
    let (known, services) = (outside.known.clone(), informers.get::<Service>());
    Controller::new(outside, informers)
        .reads::<Service>(move |change, _| keys_of_service(change, &known))
        .reads::<Node>(move |change, _| {
            if nodes_changed(change) {
                let services = services.snapshot();
                let balanced = services.iter().filter(|service| is_for_default_provider(service));
                balanced.map(|service| service.metadata.key()).collect()
            } else {
                vec![]
            }
        })
        .gauges(|_| vec![metrics::runs()])
}

fn keys_of_service(change: &Change<Service>, known: &Known) -> Vec<Key> {
    let service = change.any();
    let concerns = |service: &Arc<Service>| is_for_default_provider(service) || has_finalizer(service);
    let key = service.metadata.key();
    let due = known.lock().contains_key(&key)
        || change.old.as_ref().is_some_and(concerns)
        || change.new.as_ref().is_some_and(concerns);
    due.then_some(key).into_iter().collect()
}

/// Whether the nodes behind load balancers may be others than before.
fn nodes_changed(change: &Change<Node>) -> bool {
    let facts = |node: &Option<Arc<Node>>| {
        node.as_deref()
            .map(|node| (is_included(node), node.metadata.deleting(), node.spec.provider_id.clone()))
    };
    facts(&change.old) != facts(&change.new)
}

fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}

/// What was last asked of the provider about a service.
struct Balanced {
    service: Arc<Service>,
    /// The nodes behind the load balancer, with their machines.
    nodes: BTreeMap<String, Box<str>>,
    /// Whether the call succeeded.
    settled: bool,
    /// Addresses that the service's status does not show yet.
    unwritten: Option<Vec<LoadBalancerIngress>>,
}

/// By service; entries go with their load balancers.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<HashMap<Key, Balanced>>>);

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Balanced>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the provider answered.
enum Outcome {
    /// Of so many nodes.
    Ensured(Result<Vec<LoadBalancerIngress>, CloudError>, usize),
    /// The hosts' names, and how long the call took.
    Updated(Result<(), CloudError>, Vec<String>, Duration),
    /// Whether there was a load balancer.
    Removed(Result<bool, String>),
    /// The load balancer of a service that is gone.
    Forgotten(Arc<Service>, Result<(), CloudError>),
}

struct Outside {
    cloud: Arc<dyn CloudProvider>,
    cluster: String,
    known: Known,
    outcomes: Mutex<HashMap<Key, Outcome>>,
    attempts: Attempts,
}

impl Outside {
    fn new(cloud: Arc<dyn CloudProvider>, cluster: String) -> Outside {
        let attempts = Attempts::new(FIRST_RETRY, LAST_RETRY);
        Outside { cloud, cluster, known: Known::default(), outcomes: Mutex::default(), attempts }
    }

    /// Asks the provider for what a service needs, if it needs anything.
    async fn ask(&self, balancers: &dyn LoadBalancers, key: &Key, view: &View) -> Option<Outcome> {
        let services = view.get::<Service>();
        let service = services.by_key(key);
        let former = self.known.lock().get(key).map(|known| known.service.clone());
        // One that was deleted without its finalizer, or deleted and made anew.
        if let Some(former) = former
            && service.is_none_or(|service| service.metadata.uid != former.metadata.uid)
        {
            let outcome = balancers.ensure_deleted(&self.cluster, &former).await;
            return Some(Outcome::Forgotten(former, outcome));
        }
        let service = service?;
        let known = self.known.lock().contains_key(key);
        let unwanted = !is_for_default_provider(service) || service.metadata.deleting();
        if unwanted {
            let remains = known || (has_finalizer(service) && !other_class(service));
            return match remains {
                true => Some(Outcome::Removed(self.remove(balancers, service).await)),
                false => None,
            };
        }
        if !has_finalizer(service) {
            return None;
        }
        let nodes = hosts(view);
        let machines: BTreeMap<String, Box<str>> =
            nodes.iter().map(|n| (n.metadata.name.clone(), n.spec.provider_id.clone())).collect();
        let (ensure, update) = match self.known.lock().get(key) {
            None => (true, false),
            Some(known) => (!known.settled || differs(&known.service, service), known.nodes != machines),
        };
        let outcome = if ensure {
            Outcome::Ensured(balancers.ensure(&self.cluster, service, &nodes).await, nodes.len())
        } else if update {
            let since = Instant::now();
            let answer = self.update(balancers, service, &nodes).await;
            Outcome::Updated(answer, machines.keys().cloned().collect(), since.elapsed())
        } else {
            return None;
        };
        let settled = match &outcome {
            Outcome::Ensured(answer, _) => matches!(answer, Ok(_) | Err(CloudError::ImplementedByAnother)),
            Outcome::Updated(answer, ..) => answer.is_ok(),
            _ => true,
        };
        let unwritten = match &outcome {
            Outcome::Ensured(Ok(ingress), _) => Some(ingress.clone()),
            _ => self.known.lock().remove(key).and_then(|known| known.unwritten),
        };
        let balanced = Balanced { service: service.clone(), nodes: machines, settled, unwritten };
        self.known.lock().insert(key.clone(), balanced);
        Some(outcome)
    }

    /// Removes a load balancer. Whether there was one.
    async fn remove(&self, balancers: &dyn LoadBalancers, service: &Service) -> Result<bool, String> {
        let found = balancers
            .get(&self.cluster, service)
            .await
            .map_err(|error| format!("failed to check if load balancer exists before cleanup: {error}"))?;
        if found.is_none() {
            return Ok(false);
        }
        match balancers.ensure_deleted(&self.cluster, service).await {
            Ok(()) | Err(CloudError::ImplementedByAnother) => Ok(true),
            Err(error) => Err(format!("failed to delete load balancer: {error}")),
        }
    }

    /// Changes the nodes of a load balancer; one that is gone has none.
    async fn update(
        &self,
        balancers: &dyn LoadBalancers,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<(), CloudError> {
        match balancers.update(&self.cluster, service, nodes).await {
            Ok(()) | Err(CloudError::ImplementedByAnother) => Ok(()),
            Err(error) => match balancers.get(&self.cluster, service).await {
                Ok(None) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn ensured(
        &self,
        service: &Service,
        key: &Key,
        answer: &Result<Vec<LoadBalancerIngress>, CloudError>,
        hosts: usize,
    ) -> Plan {
        let event = |reason: &str, text: &str| EventRecord::normal(reference(service), reason, text);
        let mut plan = Plan::nothing().event(event("EnsuringLoadBalancer", "Ensuring load balancer"));
        if hosts == 0 {
            plan = plan.event(unavailable(service));
        }
        match answer {
            Ok(_) => {
                self.attempts.forget(key);
                let plan = plan.event(event("EnsuredLoadBalancer", "Ensured load balancer"));
                self.shown(plan, service, key)
            }
            Err(CloudError::ImplementedByAnother) => plan,
            Err(error) => {
                let wait = self.wait(key, error);
                let text = format!("failed to ensure load balancer: {error}");
                plan.event(failed(service, &text)).again_after(wait)
            }
        }
    }

    /// Writes the addresses that are to be shown, unless they are.
    fn shown(&self, plan: Plan, service: &Service, key: &Key) -> Plan {
        let mut known = self.known.lock();
        let Some(known) = known.get_mut(key) else { return plan };
        known.unwritten.take_if(|ingress| *ingress == service.status.load_balancer.ingress);
        match &known.unwritten {
            Some(ingress) => plan.then(status_write(service, None, Some(ingress))),
            None => plan,
        }
    }

    fn updated(
        &self,
        service: &Service,
        key: &Key,
        answer: Result<(), CloudError>,
        hosts: &[String],
    ) -> Plan {
        match answer {
            Ok(()) if hosts.is_empty() => Plan::nothing().event(unavailable(service)),
            Ok(()) => {
                let text = "Updated load balancer with new hosts";
                Plan::nothing().event(EventRecord::normal(reference(service), "UpdatedLoadBalancer", text))
            }
            Err(error) => {
                let text = format!(
                    "Error updating load balancer with new hosts [{}] [node names limited, total number of nodes: {}], error: {error}",
                    some_names(hosts),
                    hosts.len()
                );
                let event = EventRecord::warning(reference(service), "UpdateLoadBalancerFailed", text);
                Plan::nothing().event(event).again_after(self.wait(key, &error))
            }
        }
    }

    fn removed(&self, service: &Service, key: &Key, answer: Result<bool, String>) -> Plan {
        let existed = match answer {
            Ok(existed) => existed,
            Err(text) => {
                let wait = self.attempts.failed(key);
                return Plan::nothing().event(failed(service, &text)).again_after(wait);
            }
        };
        self.attempts.forget(key);
        self.known.lock().remove(key);
        let event = |reason: &str, text: &str| EventRecord::normal(reference(service), reason, text);
        let mut plan = Plan::nothing();
        if existed {
            plan = plan.event(event("DeletingLoadBalancer", "Deleting load balancer"));
        }
        let deleted = event("DeletedLoadBalancer", "Deleted load balancer");
        let remaining: Vec<&String> =
            service.metadata.finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
        let shown = !service.status.load_balancer.ingress.is_empty();
        if !has_finalizer(service) && !shown {
            return plan.event(deleted);
        }
        let write = status_write(service, Some(json!(remaining)), Some(&[]));
        plan.stage(vec![Step { write, on_success: Some(deleted), on_failure: None }])
    }

    fn forgotten(&self, key: &Key, former: &Service, answer: Result<(), CloudError>) -> Plan {
        let event = |reason: &str, text: &str| EventRecord::normal(reference(former), reason, text);
        let plan = Plan::nothing().event(event("DeletingLoadBalancer", "Deleting load balancer"));
        match answer {
            Ok(()) | Err(CloudError::ImplementedByAnother) => {
                self.attempts.forget(key);
                self.known.lock().remove(key);
                // The service that has the name now, if any, is looked at next.
                plan.event(event("DeletedLoadBalancer", "Deleted load balancer"))
                    .again_after(Duration::from_millis(1))
            }
            Err(error) => {
                let text = format!("Error deleting load balancer: {error}");
                let event = EventRecord::warning(reference(former), "DeleteLoadBalancerFailed", text);
                plan.event(event).again_after(self.wait(key, &error))
            }
        }
    }

    fn wait(&self, key: &Key, error: &CloudError) -> Duration {
        match error {
            CloudError::TryLater { wait, .. } => *wait,
            _ => self.attempts.failed(key),
        }
    }
}

impl Reconciler for Outside {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        QUEUE
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, view: &'a View, key: &'a Key, _: &'a Client) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(LoadBalancing::Outside(balancers)) = self.cloud.load_balancing() else { return };
            let outcome = self.ask(balancers, key, view).await;
            let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome {
                Some(outcome) => drop(outcomes.insert(key.clone(), outcome)),
                None => drop(outcomes.remove(key)),
            }
        })
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let outcome = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        let services = view.get::<Service>();
        if let Some(Outcome::Forgotten(former, answer)) = outcome {
            return self.forgotten(key, &former, answer);
        }
        let Some(service) = services.by_key(key) else { return Plan::nothing() };
        match outcome {
            Some(Outcome::Ensured(answer, hosts)) => self.ensured(service, key, &answer, hosts),
            Some(Outcome::Updated(answer, hosts, took)) => {
                let failed = answer.is_err();
                metrics::updated(self.updated(service, key, answer, &hosts), took, failed)
            }
            Some(Outcome::Removed(answer)) => self.removed(service, key, answer),
            _ if is_for_default_provider(service)
                && !service.metadata.deleting()
                && !has_finalizer(service) =>
            {
                let mut finalizers = service.metadata.finalizers.clone();
                finalizers.push(FINALIZER.to_owned());
                Plan::nothing().then(status_write(service, Some(json!(finalizers)), None))
            }
            _ => self.shown(Plan::nothing(), service, key),
        }
    }
}

/// Whether a service of type `LoadBalancer` is another controller's, which may use the finalizer too.
fn other_class(service: &Service) -> bool {
    service.spec.kind == "LoadBalancer" && service.spec.load_balancer_class.is_some()
}

/// The nodes that load balancers lead to, ready or not: a load balancer finds out itself which of them serve.
fn hosts(view: &View) -> Vec<Arc<Node>> {
    let nodes = view.get::<Node>();
    let hosts = nodes.iter().filter(|n| !n.metadata.deleting() && is_included(n) && !is_leaving(n));
    hosts.cloned().collect()
}

/// Whether a load balancer may have to be another one than it was for the service as it was.
fn differs(old: &Service, new: &Service) -> bool {
    let facts = |service: &Service| {
        let spec = &service.spec;
        (
            spec.load_balancer_source_ranges.clone(),
            spec.ports.clone(),
            spec.session_affinity.clone(),
            spec.session_affinity_config.clone(),
            spec.load_balancer_ip.clone(),
            spec.external_ips.clone(),
            spec.external_traffic_policy.clone(),
            spec.health_check_node_port,
            spec.ip_families.len(),
            service.metadata.uid.clone(),
        )
    };
    facts(old) != facts(new) || old.metadata.annotations != new.metadata.annotations
}

fn unavailable(service: &Service) -> EventRecord {
    let text = "There are no available nodes for LoadBalancer";
    EventRecord::warning(reference(service), "UnAvailableLoadBalancer", text)
}

fn failed(service: &Service, error: &str) -> EventRecord {
    let text = format!("Error syncing load balancer: {error}");
    EventRecord::warning(reference(service), "SyncLoadBalancerFailed", text)
}

fn some_names(names: &[String]) -> String {
    let (shown, hidden) = names.split_at(names.len().min(MOST_NAMES));
    match hidden.len() {
        0 => shown.join(" "),
        more => format!("{} <{more} more>", shown.join(" ")),
    }
}

/// The controller's account may write the status only, and metadata with it.
fn status_write(
    service: &Service,
    finalizers: Option<Value>,
    ingress: Option<&[LoadBalancerIngress]>,
) -> Write {
    let meta = &service.metadata;
    let mut body = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}});
    if let Some(finalizers) = finalizers {
        body["metadata"]["finalizers"] = finalizers;
    }
    if let Some(ingress) = ingress {
        let ingress: Vec<Value> = ingress.iter().map(point).collect();
        body["status"] = json!({"loadBalancer": {"ingress": (!ingress.is_empty()).then_some(ingress)}});
    }
    Write::Patch {
        target: Target::of::<Service>(&meta.namespace, &meta.name).subresource("status"),
        kind: PatchKind::Merge,
        body,
    }
}

fn point(ingress: &LoadBalancerIngress) -> Value {
    let mut point = json!({});
    for (field, text) in [("ip", &ingress.ip), ("hostname", &ingress.hostname), ("ipMode", &ingress.ip_mode)]
    {
        if !text.is_empty() {
            point[field] = text.as_str().into();
        }
    }
    point
}

#[cfg(test)]
mod tests;

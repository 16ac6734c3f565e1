//! Resource quotas: their usage, counted from what there is.
//!
//! Admission charges; this controller makes the first count of a quota and releases the usage of deleted objects. Charges are
//! written in one transaction with their objects, so a count is right if it is of the same moment as the quota:
//! first the quota is read, then, freshly, the objects; and it is written only if the quota is still the same.
//!
//! Invariants:
//! - `status.hard` is `spec.hard`, and `status.used` has the same names as far as their usage is known.
//! - Only resources that some quota names are watched; without quotas, none are.

mod monitor;

use crate::{
    ControllerContext, Descriptor, Start, WorkersFlag,
    shared::{
        discovery::{Resource, discover},
        workers::{self, Works},
    },
};
use kaji_meta::{GroupResource, object};
use kaji_quota::{Context, Evaluator, Usage, add, amounts, charged_to_pod, objects_of, pod_of, total};
use kaji_runtime::{
    Change, Client, Error, Informer, Key, PatchKind, Projection, Shared, Target,
    objects::{PersistentVolumeClaim, Pod, ResourceQuota, Service},
    queue::Queue,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
};

/// How often discovery is read for a resource that a quota names and no server serves.
const REDISCOVER: Duration = Duration::from_secs(30);

struct Counter {
    client: Client,
    metadata: Client,
    shared: Shared,
    queue: Queue,
    quotas: Arc<Informer<ResourceQuota>>,
    /// How often everything is counted anew, whatever was noticed.
    period: Duration,
    /// The resources that quotas name and that are served, by what quotas call them.
    served: Mutex<HashMap<GroupResource, Resource>>,
    /// A quota came, or names other resources.
    renamed: Notify,
}

const COMPONENT: &str = "resourcequota-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "resourcequota-controller",
    components: &[COMPONENT],
    service_account: Some("resourcequota-controller"),
    workers: Some(WorkersFlag { name: "concurrent-resource-quota-syncs", default: 5 }),
    start: Start::Tasks(spawn),
};

/// Starts the controller.
fn spawn(tasks: &mut JoinSet<()>, context: ControllerContext<'_>) {
    let ControllerContext { informers, shared, config, stop } = context;
    let client = shared.client.named(COMPONENT);
    let counter = Arc::new(Counter {
        metadata: client.metadata_list(),
        client,
        shared: shared.clone(),
        queue: informers.queue("resourcequota_primary"),
        period: config.loops.quota_period,
        quotas: informers.get::<ResourceQuota>(),
        served: Mutex::default(),
        renamed: Notify::new(),
    });
    let seen = Arc::downgrade(&counter);
    counter.quotas.handle(move |change| {
        if let Some(counter) = seen.upgrade() {
            counter.quota_changed(change);
        }
    });
    follow(&counter, &informers.get::<Pod>(), pod_facts);
    follow(&counter, &informers.get::<Service>(), |s: &Service| (s.spec.kind.clone(), s.spec.ports.clone()));
    follow(&counter, &informers.get::<PersistentVolumeClaim>(), |c: &PersistentVolumeClaim| c.spec.clone());
    let workers = config.loops.workers(CONTROLLER.name);
    tasks.spawn(run(counter, workers, stop));
}

/// What of a pod's life changes its usage.
fn pod_facts(p: &Pod) -> impl PartialEq + use<> {
    let resize = |c: &&kaji_runtime::objects::PodCondition| c.kind.starts_with("PodResize");
    (
        (p.finished(), p.metadata.deletion_timestamp, p.spec.active_deadline_seconds),
        (p.spec.containers.clone(), p.spec.init_containers.clone(), p.spec.resources.clone()),
        p.status.conditions.iter().filter(resize).cloned().collect::<Vec<_>>(),
    )
}

/// Counts again when an object went, or changed in what counts. What comes was charged as it came.
fn follow<T: Projection, F: PartialEq>(
    counter: &Arc<Counter>,
    informer: &Informer<T>,
    facts: impl Fn(&T) -> F + Send + Sync + 'static,
) {
    let counter = Arc::downgrade(counter);
    informer.handle(move |change| {
        let Some(counter) = counter.upgrade() else { return };
        let same = match (&change.old, &change.new) {
            (Some(old), Some(new)) => facts(old) == facts(new),
            (None, _) => true,
            (Some(_), None) => false,
        };
        if !same {
            counter.recount(&change.any().meta().namespace);
        }
    });
}

async fn run(counter: Arc<Counter>, workers: usize, stop: watch::Receiver<bool>) {
    let beside = async {
        tokio::select! {
            biased;
            () = keep_monitors(&counter) => {}
            () = resync(&counter) => {}
        }
    };
    workers::run(counter.clone(), workers, beside, stop).await;
}

impl Works for Counter {
    fn queue(&self) -> &Queue {
        &self.queue
    }

    async fn handle(&self, key: &Key) {
        match self.count(key).await {
            Ok(()) => self.queue.forget(key),
            Err(error) => {
                tracing::debug!(%key, %error, "the usage of a quota could not be computed; retrying");
                self.queue.retry(key.clone());
            }
        }
    }
}

async fn resync(counter: &Counter) {
    loop {
        kaji_runtime::time::sleep(&*counter.shared.clock, counter.period).await;
        counter.quotas.snapshot().iter().for_each(|q| counter.queue.add(q.metadata.key()));
    }
}

/// Keeps one monitor running for each resource that a quota counts and no shared informer follows.
async fn keep_monitors(counter: &Arc<Counter>) {
    let mut monitors: HashMap<GroupResource, AbortHandle> = HashMap::new();
    let mut running = JoinSet::new();
    loop {
        let wanted: BTreeSet<GroupResource> =
            counter.quotas.snapshot().iter().flat_map(|q| counted(q.spec.hard.keys())).collect();
        monitors.retain(|gr, task| {
            let keep = wanted.contains(gr);
            if !keep {
                task.abort();
                counter.served(|s| s.remove(gr));
            }
            keep
        });
        while running.try_join_next().is_some() {}
        let mut missing: Vec<&GroupResource> =
            wanted.iter().filter(|gr| !monitors.contains_key(gr)).collect();
        if !missing.is_empty()
            && let Ok(found) = discover(&counter.client).await
        {
            for resource in found.preferred() {
                let gr = GroupResource::new(resource.group.as_str(), resource.resource.as_str());
                if !missing.contains(&&gr) || !resource.namespaced || !resource.supports(&["list", "watch"]) {
                    continue;
                }
                missing.retain(|m| **m != gr);
                counter.served(|s| s.insert(gr.clone(), resource.clone()));
                let task = running.spawn(monitor::run(counter.clone(), gr.clone(), resource));
                monitors.insert(gr, task);
            }
        }
        let again = if missing.is_empty() { counter.period } else { REDISCOVER };
        let _ = tokio::time::timeout(again, counter.renamed.notified()).await;
    }
}

/// The resources of which a quota over these names counts the objects, besides those that informers follow.
fn counted<'a>(names: impl Iterator<Item = &'a String>) -> BTreeSet<GroupResource> {
    let mut all = BTreeSet::new();
    for name in names {
        match name.as_str() {
            "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas" => {
                all.insert(GroupResource::new("", name.as_str()));
            }
            claims if claims.ends_with(".deviceclass.resource.k8s.io/devices") => {
                all.insert(GroupResource::new("resource.k8s.io", "resourceclaims"));
            }
            // Device classes may stand for any extended resource.
            other if other.starts_with("requests.") && other.contains('/') => {
                all.insert(GroupResource::new("resource.k8s.io", "resourceclaims"));
            }
            other => all.extend(objects_of(other)),
        }
    }
    for followed in ["pods", "services", "persistentvolumeclaims"] {
        all.remove(&GroupResource::new("", followed));
    }
    all
}

#[derive(Deserialize)]
struct List {
    items: Option<Vec<Value>>,
}

impl Counter {
    fn served<R>(&self, f: impl FnOnce(&mut HashMap<GroupResource, Resource>) -> R) -> R {
        f(&mut self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts all quotas of a namespace again.
    fn recount(&self, namespace: &str) {
        let quotas = self.quotas.snapshot();
        quotas.in_namespace(namespace).for_each(|q| self.queue.add(q.metadata.key()));
    }

    fn quota_changed(&self, change: &Change<ResourceQuota>) {
        let names = |q: &Option<Arc<ResourceQuota>>| {
            q.as_ref().map(|q| q.spec.hard.keys().cloned().collect::<Vec<_>>())
        };
        if names(&change.old) != names(&change.new) {
            self.renamed.notify_one();
        }
        let Some(new) = &change.new else {
            // Quotas count quotas.
            return self.recount(&change.any().metadata.namespace);
        };
        // Charges change nothing but `used`.
        let same = change.old.as_ref().is_some_and(|old| old.spec == new.spec);
        if !same || new.status.hard != new.spec.hard {
            self.queue.add(new.metadata.key());
        }
    }

    async fn list(&self, client: &Client, resource: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        let path = match namespace {
            "" => resource.to_owned(),
            ns => match resource.rsplit_once('/') {
                Some((prefix, plural)) => format!("{prefix}/namespaces/{ns}/{plural}"),
                None => resource.to_owned(),
            },
        };
        Ok(client.get::<List>(&path).await?.items.unwrap_or_default())
    }

    /// Counts one quota.
    async fn count(&self, key: &Key) -> Result<(), Error> {
        let target = Target::of::<ResourceQuota>(&key.namespace, &key.name);
        // By a list: the account of this controller may list and watch everything, and get nothing.
        let all = Target::of::<ResourceQuota>(&key.namespace, "").path();
        let one = format!("{all}?fieldSelector=metadata.name={}", key.name);
        let found = self.client.get::<List>(&one).await?.items.unwrap_or_default().pop();
        let Some(quota) = found else { return Ok(()) };
        if object::deletion_timestamp(&quota).is_some() {
            return Ok(());
        }
        let used = self.usage(key, &quota).await?;
        let Some(status) = status(&quota, &used) else { return Ok(()) };
        let body = json!({
            "metadata": {"uid": object::uid(&quota), "resourceVersion": object::resource_version(&quota)},
            "status": status,
        });
        let target = target.subresource("status");
        match self.client.patch(&target, PatchKind::Merge.content_type(), "", &body).await {
            Err(error) if error.not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    /// The usage of each resource name for which it is known.
    async fn usage(&self, key: &Key, quota: &Value) -> Result<Usage, Error> {
        let namespace = key.namespace.as_str();
        let hard = object::obj_at(quota, &["spec", "hard"]).cloned().unwrap_or_default();
        let extended = self.extended_resources(&hard).await?;
        let now = self.shared.clock.now();
        let nothing = BTreeMap::new();
        let cx = Context { now, extended_resources: &extended, charged_to_pods: &nothing };
        let mut sum = Usage::new();
        for (plural, evaluator) in [
            ("pods", Evaluator::Pods),
            ("services", Evaluator::Services),
            ("persistentvolumeclaims", Evaluator::Claims),
        ] {
            if !hard.keys().any(|n| evaluator.tracks(n, &cx)) {
                continue;
            }
            let items = self.list(&self.client, &format!("/api/v1/{plural}"), namespace).await?;
            if evaluator == Evaluator::Pods {
                self.count_when_graces_end(key, &items, cx.now);
            }
            add(&mut sum, &total(quota, &evaluator, &items, &cx));
        }
        for gr in counted(hard.keys()) {
            let Some(evaluator) = Evaluator::of(&gr) else { continue };
            let Some(resource) = self.served(|s| s.get(&gr).cloned()) else { continue };
            if !hard.keys().any(|n| evaluator.tracks(n, &cx)) {
                continue;
            }
            let counts_only = matches!(evaluator, Evaluator::Objects(_));
            let client = if counts_only { &self.metadata } else { &self.client };
            let items = self.list(client, &resource.target("", "").path(), namespace).await?;
            let charged_to_pods = match evaluator {
                Evaluator::ResourceClaims => self.charged_to_pods(namespace, &items, now).await?,
                _ => BTreeMap::new(),
            };
            let cx = Context { charged_to_pods: &charged_to_pods, ..cx.clone() };
            add(&mut sum, &total(quota, &evaluator, &items, &cx));
        }
        Ok(sum)
    }

    /// What pods are charged that claims were made for, by the claim's name.
    async fn charged_to_pods(
        &self,
        namespace: &str,
        claims: &[Value],
        now: jiff::Timestamp,
    ) -> Result<BTreeMap<String, Usage>, Error> {
        if !claims.iter().any(|claim| pod_of(claim).is_some()) {
            return Ok(BTreeMap::new());
        }
        let pods = self.list(&self.client, "/api/v1/pods", namespace).await?;
        let pods: HashMap<&str, &Value> = pods.iter().map(|pod| (object::uid(pod), pod)).collect();
        let of = |claim: &Value| {
            let (_, uid) = pod_of(claim)?;
            let usage = charged_to_pod(claim, pods.get(uid)?, claims, now)?;
            Some((object::name(claim).to_owned(), usage))
        };
        Ok(claims.iter().filter_map(of).collect())
    }

    /// Device classes by the extended resources they stand for, if the quota names any.
    async fn extended_resources(&self, hard: &Map<String, Value>) -> Result<BTreeMap<String, String>, Error> {
        let claims = GroupResource::new("resource.k8s.io", "resourceclaims");
        let named = hard.keys().any(|n| n.starts_with("requests.") && n.contains('/'));
        let Some(resource) = self.served(|s| s.get(&claims).cloned()).filter(|_| named) else {
            return Ok(BTreeMap::new());
        };
        let path = format!("/apis/{}/deviceclasses", resource.api_version());
        let named = |class: &Value| {
            let extended = object::str_at(class, &["spec", "extendedResourceName"]);
            (!extended.is_empty()).then(|| (object::name(class).to_owned(), extended.to_owned()))
        };
        Ok(self.list(&self.client, &path, "").await?.iter().filter_map(named).collect())
    }

    /// Pods of unreachable nodes stop counting after their grace period, without an event.
    fn count_when_graces_end(&self, key: &Key, pods: &[Value], now: jiff::Timestamp) {
        let end = |pod: &Value| {
            let at: jiff::Timestamp = object::deletion_timestamp(pod)?.parse().ok()?;
            let end = at.as_second().saturating_add(object::deletion_grace_period_seconds(pod)?) + 1;
            (end >= now.as_second()).then_some(end - now.as_second())
        };
        if let Some(seconds) = pods.iter().filter_map(end).min() {
            let wait = Duration::from_secs(u64::try_from(seconds).unwrap_or(0) + 1);
            self.queue.add_after(key.clone(), wait);
        }
    }
}

/// The merge patch of a quota's status; `None` if it is right already.
fn status(quota: &Value, counted: &Usage) -> Option<Value> {
    let map = |path: &[&str]| object::obj_at(quota, path).cloned().unwrap_or_default();
    let (hard, old_hard, old_used) =
        (map(&["spec", "hard"]), map(&["status", "hard"]), map(&["status", "used"]));
    let known = amounts(object::at(quota, &["status", "used"]));
    let mut used = Map::new();
    for name in hard.keys() {
        // The present spelling stays if it means the same, and what cannot be counted stays as it was.
        let value = match (counted.get(name), known.get(name)) {
            (Some(new), Some(old)) if old.sub(new).is_zero() => old_used.get(name).cloned(),
            (Some(new), _) => Some(new.to_string().into()),
            (None, _) => old_used.get(name).cloned(),
        };
        used.extend(value.map(|v| (name.clone(), v)));
    }
    if used == old_used && hard == old_hard {
        return None;
    }
    Some(json!({"hard": replaced(&old_hard, hard), "used": replaced(&old_used, used)}))
}

/// A merge patch from one map to another, whole.
fn replaced(old: &Map<String, Value>, new: Map<String, Value>) -> Map<String, Value> {
    let gone: Vec<String> = old.keys().filter(|k| !new.contains_key(*k)).cloned().collect();
    gone.into_iter().map(|k| (k, Value::Null)).chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn patches_changed_usage() {
        let quota = json!({
            "spec": {"hard": {"cpu": "2", "pods": "3", "count/widgets.example.com": "1", "count/gone.example.com": "1"}},
            "status": {"hard": {"cpu": "2", "old": "1"}, "used": {"cpu": "1.0", "old": "1", "count/gone.example.com": "7"}},
        });
        let count = |list: Value| amounts(Some(&list));
        expect![[r#"{"hard":{"count/gone.example.com":"1","count/widgets.example.com":"1","cpu":"2","old":null,"pods":"3"},"used":{"count/gone.example.com":"7","cpu":"1.0","old":null,"pods":"0"}}"#]]
            .assert_eq(&status(&quota, &count(json!({"cpu": "1", "pods": "0"}))).unwrap().to_string());
        let done =
            json!({"spec": {"hard": {"cpu": "2"}}, "status": {"hard": {"cpu": "2"}, "used": {"cpu": "1.0"}}});
        assert_eq!(status(&done, &count(json!({"cpu": "1"}))), None);
        assert!(status(&done, &count(json!({"cpu": "900m"}))).is_some());
    }

    #[test]
    fn parses_resources_that_quotas_name() {
        let names = [
            "pods",
            "count/pods",
            "secrets",
            "count/secrets",
            "count/widgets.example.com",
            "count/deployments.apps",
            "cpu",
            "requests.storage",
            "gpu.deviceclass.resource.k8s.io/devices",
        ]
        .map(str::to_owned);
        let mut all: Vec<String> = counted(names.iter()).iter().map(ToString::to_string).collect();
        all.sort();
        expect!["deployments.apps resourceclaims.resource.k8s.io secrets widgets.example.com"]
            .assert_eq(&all.join(" "));
    }
}

//! Terminating namespaces: all content is deleted, pods first, then the namespace is finalized.
//!
//! Invariants:
//! - Content is looked for on the server, in every namespaced resource that discovery lists, custom ones included.
//! - The `kubernetes` finalizer is taken off only after a pass that found nothing, failed nowhere, and began at least
//!   [`SETTLE`] after the deletion was seen, so that creations admitted just before it have been stored.
//! - Nothing but pods is touched while pods are left (they may need their secrets and config maps to end well).

mod conditions;

use crate::{
    ControllerContext, Descriptor, Start, WorkersFlag,
    shared::{
        discovery::{Resource, discover},
        workers::{self, Works},
    },
};
use conditions::{Left, Pass};
use futures_util::{StreamExt, stream};
use kaji_runtime::{
    Client, Error, Key, PatchKind, Projection, Shared,
    client::Target,
    objects::{Condition, Namespace, Pod},
    queue::Queue,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

/// Resources emptied at once in one namespace.
const PARALLEL: usize = 8;
/// The finalizer of this controller.
const FINALIZER: &str = "kubernetes";
/// How long an API server may take to store what it admitted before the deletion.
const SETTLE: Duration = Duration::from_millis(500);
const FIRST_POLL: Duration = Duration::from_millis(100);
const LONGEST_POLL: Duration = Duration::from_secs(60);

struct Deleter {
    client: Client,
    /// The same, asking for lists of metadata only.
    metadata: Client,
    shared: Shared,
    queue: Queue,
    /// The longest time between two passes: `--namespace-sync-period`.
    period: Duration,
    /// The namespaces being deleted.
    leaving: Mutex<HashMap<Key, Leaving>>,
}

/// A namespace that is being deleted.
struct Leaving {
    since: Instant,
    /// Passes that left something.
    tries: u32,
}

impl Default for Leaving {
    fn default() -> Self {
        Leaving { since: Instant::now(), tries: 0 }
    }
}

/// When to make the next pass.
enum Next {
    /// Never.
    Done,
    /// Then.
    After(Duration),
    /// Soon at first, for most content goes quickly; then more seldom, up to that.
    Poll(Duration),
}

const COMPONENT: &str = "namespace-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "namespace-controller",
    components: &[COMPONENT],
    service_account: Some("namespace-controller"),
    workers: Some(WorkersFlag { name: "concurrent-namespace-syncs", default: 10 }),
    start: Start::Tasks(spawn),
};

/// Starts the controller.
fn spawn(tasks: &mut JoinSet<()>, context: ControllerContext<'_>) {
    let ControllerContext { informers, shared, config, stop } = context;
    let client = shared.client.named(COMPONENT);
    let deleter = Arc::new(Deleter {
        metadata: client.metadata_list(),
        client,
        shared: shared.clone(),
        queue: informers.queue("namespace"),
        period: config.loops.namespace_period,
        leaving: Mutex::default(),
    });
    let namespaces = informers.get::<Namespace>();
    // A weak reference: informers must not keep the controller alive.
    let seen = Arc::downgrade(&deleter);
    namespaces.handle(move |change| {
        let Some(seen) = seen.upgrade() else { return };
        match &change.new {
            Some(namespace) if namespace.metadata.deleting() => {
                let key = namespace.metadata.key();
                seen.leaving(|l| {
                    l.entry(key.clone()).or_default();
                });
                seen.queue.add(key);
            }
            Some(_) => {}
            None => {
                seen.leaving(|l| l.remove(&change.any().metadata.key()));
            }
        }
    });
    // The last pod's end is what most deletions wait for.
    let pods = informers.get::<Pod>();
    let (waiting, all) = (Arc::downgrade(&deleter), Arc::downgrade(&pods));
    pods.handle(move |change| {
        let Some(waiting) = waiting.upgrade().filter(|_| change.new.is_none()) else { return };
        let namespace = &change.any().metadata.namespace;
        let key = Key::new("", namespace.as_str());
        if waiting.leaving(|l| l.contains_key(&key))
            && all.upgrade().is_some_and(|pods| pods.snapshot().in_namespace(namespace).next().is_none())
        {
            waiting.queue.add(key);
        }
    });
    let workers = config.loops.workers(CONTROLLER.name);
    tasks.spawn(workers::run(deleter, workers, std::future::pending(), stop));
}

impl Works for Deleter {
    fn queue(&self) -> &Queue {
        &self.queue
    }

    async fn handle(&self, key: &Key) {
        self.work(key).await;
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct List {
    items: Option<Vec<Item>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Item {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    name: String,
    finalizers: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: Option<String>,
}

/// The longest that any of these pods may take to end, unless the namespace's deletion is older than that.
fn grace(pods: &[Item], deleted: Option<jiff::Timestamp>, now: jiff::Timestamp) -> i64 {
    let over = |p: &&Item| matches!(p.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let live = pods.iter().filter(|p| !over(p));
    let longest = live.filter_map(|p| p.spec.termination_grace_period_seconds).fold(0, i64::max);
    let passed = deleted.map_or(0, |at| now.duration_since(at).as_secs());
    if passed >= longest { 0 } else { longest }
}

fn finalizers(items: &[Item]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for finalizer in items.iter().flat_map(|i| i.metadata.finalizers.iter().flatten()) {
        *counts.entry(finalizer.clone()).or_default() += 1;
    }
    counts
}

/// The wait after so many passes that left something.
fn pause(tries: u32, longest: Duration) -> Duration {
    FIRST_POLL.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(longest)
}

impl Deleter {
    fn leaving<R>(&self, f: impl FnOnce(&mut HashMap<Key, Leaving>) -> R) -> R {
        f(&mut self.leaving.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn work(&self, key: &Key) {
        let next = match self.sync(key).await {
            Ok(next) => next,
            Err(error) if error.not_found() => Next::Done,
            Err(error) => {
                tracing::debug!(namespace = key.name, %error, "deletion of a namespace is retried");
                Next::Poll(LONGEST_POLL)
            }
        };
        match next {
            Next::Done => {}
            Next::After(wait) => self.queue.add_after(key.clone(), wait),
            Next::Poll(longest) => {
                let tries = self.leaving(|l| {
                    let leaving = l.entry(key.clone()).or_default();
                    leaving.tries = leaving.tries.saturating_add(1);
                    leaving.tries
                });
                self.queue.add_after(key.clone(), pause(tries, longest.min(self.period)));
            }
        }
    }

    /// One pass.
    async fn sync(&self, key: &Key) -> Result<Next, Error> {
        let target = Target::of::<Namespace>("", &key.name);
        let namespace: Value = self.client.get(&target.path()).await?;
        let known = Namespace::from_value(&namespace).map_err(|e| Error::Decode(e.to_string()))?;
        if !known.metadata.deleting() || known.spec.finalizers.is_empty() {
            return Ok(Next::Done);
        }
        let status = target.clone().subresource("status");
        let namespace = if known.status.phase == "Terminating" {
            namespace
        } else {
            self.patch(&status, &namespace, json!({"phase": "Terminating"})).await?
        };
        let began = Instant::now();
        let pass = self.pass(&key.name, known.metadata.deletion_timestamp).await?;
        let present = namespace.pointer("/status/conditions").cloned().unwrap_or_default();
        let present: Vec<Condition> = kaji_meta::json::from_value(&present).unwrap_or_default();
        let namespace = match pass.conditions(&present, self.shared.clock.now()) {
            Some(conditions) => self.patch(&status, &namespace, json!({"conditions": conditions})).await?,
            None => namespace,
        };
        if !pass.clean() {
            return Ok(Next::Poll(pass.wait()));
        }
        let since = self.leaving(|l| l.entry(key.clone()).or_default().since);
        if let Some(wait) = (since + SETTLE).checked_duration_since(began) {
            return Ok(Next::After(wait));
        }
        self.finalize(&target, namespace).await?;
        Ok(Next::Done)
    }

    async fn patch(&self, target: &Target, namespace: &Value, status: Value) -> Result<Value, Error> {
        let meta = &namespace["metadata"];
        let body = json!({
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            "status": status,
        });
        self.client.patch(target, PatchKind::Merge.content_type(), "", &body).await
    }

    /// Takes this controller's finalizer off; the server removes the namespace when none is left.
    async fn finalize(&self, target: &Target, mut namespace: Value) -> Result<(), Error> {
        let finalizers = namespace.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut);
        if let Some(finalizers) = finalizers {
            finalizers.retain(|f| f != FINALIZER);
        }
        self.client.update(&target.clone().subresource("finalize"), &namespace).await.map(drop)
    }

    /// Deletes what there is, and looks what is left.
    async fn pass(&self, namespace: &str, deleted: Option<jiff::Timestamp>) -> Result<Pass, Error> {
        let found = discover(&self.client).await?;
        let mut pass = Pass::new(found.failure().map(|f| (found.failed.len(), f)));
        let deletable = |r: &Resource| r.namespaced && r.supports(&["delete"]);
        let (pods, others): (Vec<Resource>, Vec<Resource>) = found
            .preferred()
            .into_iter()
            .filter(deletable)
            .partition(|r| r.group.is_empty() && r.resource == "pods");
        for group in [pods, others] {
            let results: Vec<_> = stream::iter(group)
                .map(|resource| async move {
                    let left = self.empty(&resource, namespace, deleted).await;
                    (resource, left)
                })
                .buffer_unordered(PARALLEL)
                .collect()
                .await;
            for (resource, left) in results {
                match left {
                    Ok(left) => {
                        pass.add(namespace, &resource.group, &resource.version, &resource.resource, left);
                    }
                    Err(error) => pass.fail(error.to_string()),
                }
            }
            if pass.remains() {
                break;
            }
        }
        Ok(pass)
    }

    /// Deletes the objects of one resource.
    async fn empty(
        &self,
        resource: &Resource,
        namespace: &str,
        deleted: Option<jiff::Timestamp>,
    ) -> Result<Left, Error> {
        let Some(items) = self.list(resource, namespace).await? else { return Ok(Left::default()) };
        if items.is_empty() {
            return Ok(Left::default());
        }
        // Only pods have a grace period that is worth waiting for; of the others the list shows no spec.
        let estimate = grace(&items, deleted, self.shared.clock.now());
        let options = json!({"propagationPolicy": "Background"});
        let collection = resource.supports(&["deletecollection"])
            && match self.client.delete(&resource.target(namespace, ""), &options).await {
                Ok(_) => true,
                Err(error) if unsupported(&error) => false,
                Err(error) => return Err(error),
            };
        if !collection {
            for item in &items {
                match self.client.delete(&resource.target(namespace, &item.metadata.name), &options).await {
                    Err(error) if !unsupported(&error) => return Err(error),
                    _ => {}
                }
            }
        }
        let left = self.list(resource, namespace).await?.unwrap_or_default();
        Ok(Left { objects: left.len(), finalizers: finalizers(&left), estimate })
    }

    /// The objects, or `None` if they cannot be listed.
    async fn list(&self, resource: &Resource, namespace: &str) -> Result<Option<Vec<Item>>, Error> {
        if !resource.supports(&["list"]) {
            return Ok(None);
        }
        let pods = resource.group.is_empty() && resource.resource == "pods";
        let client = if pods { &self.client } else { &self.metadata };
        match client.get::<List>(&resource.target(namespace, "").path()).await {
            Ok(list) => Ok(Some(list.items.unwrap_or_default())),
            Err(error) if unsupported(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The resource is no longer served, or does not support the verb.
fn unsupported(error: &Error) -> bool {
    matches!(error.code(), Some(404 | 405))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, now};

    #[test]
    fn waits_for_graceful_deletions_once() {
        let pods =
            |values: Value| serde_json::from_value::<List>(json!({"items": values})).unwrap().items.unwrap();
        let list = pods(json!([
            {"spec": {"terminationGracePeriodSeconds": 30}},
            {"spec": {"terminationGracePeriodSeconds": 600}, "status": {"phase": "Failed"}},
        ]));
        let deleted = |seconds| ago(seconds).parse().ok();
        assert_eq!(grace(&list, deleted(5), now()), 30);
        assert_eq!(grace(&list, deleted(31), now()), 0);
        assert_eq!(grace(&pods(json!([])), deleted(0), now()), 0);
    }

    #[test]
    fn looks_again_soon_at_first_and_after_the_period_at_last() {
        let waits =
            |longest| [1, 2, 5, 40].map(|tries| pause(tries, Duration::from_secs(longest)).as_millis());
        assert_eq!(waits(60), [100, 200, 1600, 60_000]);
        assert_eq!(waits(1), [100, 200, 1000, 1000]);
    }

    #[test]
    fn counts_finalizers() {
        let list: List = serde_json::from_value(json!({"items": [
            {"metadata": {"name": "a", "finalizers": ["x", "y"]}}, {"metadata": {"name": "b", "finalizers": ["x"]}},
            {"metadata": {"name": "c"}},
        ]}))
        .unwrap();
        assert_eq!(finalizers(&list.items.unwrap()), BTreeMap::from([("x".into(), 2), ("y".into(), 1)]));
    }
}

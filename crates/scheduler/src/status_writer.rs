//! Writes what the scheduler says in the status of pods (the `PodScheduled` condition and the nominated node) and of their groups.
//!
//! Invariants:
//! - One write an object is in flight; while it is, a newer one replaces an older one that waits.
//! - So what waits is bounded by the number of objects, and calls in flight by [`WRITES`].

use futures_util::{StreamExt, stream};
use kaji_runtime::{Client, Key, Meta, PatchKind, Projection, Target, objects::Pod};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Notify;

/// Calls in flight.
const WRITES: usize = 16;

/// The writer's end for the loop, of the status of `T`s. Clones share what waits.
pub struct StatusWriter<T> {
    inner: Arc<Inner>,
    of: PhantomData<T>,
}

impl<T> Clone for StatusWriter<T> {
    fn clone(&self) -> Self {
        StatusWriter { inner: self.inner.clone(), of: PhantomData }
    }
}

impl<T> Default for StatusWriter<T> {
    fn default() -> Self {
        StatusWriter { inner: Arc::default(), of: PhantomData }
    }
}

#[derive(Default)]
struct Inner {
    waiting: Mutex<BTreeMap<Key, Value>>,
    wake: Notify,
}

/// A condition to be written.
pub struct Condition<'a> {
    /// `Unschedulable` or `SchedulerError`.
    pub reason: &'a str,
    /// Upstream's sentence.
    pub message: &'a str,
    /// The time.
    pub now: jiff::Timestamp,
}

/// The patch of a pod's status; `None` if nothing of it is new. The nominated node is `Some("")` to be removed.
pub fn status_patch(pod: &Pod, condition: Option<&Condition<'_>>, nominated: Option<&str>) -> Option<Value> {
    let mut status = Map::new();
    if let Some(Condition { reason, message, now }) = condition {
        let former = pod.condition("PodScheduled");
        let same =
            former.is_some_and(|c| c.status == "False" && c.reason == **reason && c.message == **message);
        if !same {
            let mut written = json!({
                "type": "PodScheduled",
                "status": "False",
                "reason": reason,
                "message": message,
                "observedGeneration": pod.metadata.generation,
            });
            if former.is_none_or(|c| c.status != "False") {
                written["lastTransitionTime"] = kaji_meta::time::Time::new(*now).to_string().into();
            }
            status.insert("conditions".into(), json!([written]));
        }
    }
    if let Some(node) = nominated.filter(|node| pod.status.nominated_node_name != **node) {
        let value = if node.is_empty() { Value::Null } else { node.into() };
        status.insert("nominatedNodeName".into(), value);
    }
    (!status.is_empty()).then(|| json!({"metadata": {"uid": pod.metadata.uid}, "status": status}))
}

/// The patch of a pod's status that removes its nominated node, whatever an informer shows.
pub fn without_nomination(pod: &Pod) -> Value {
    json!({"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": null}})
}

impl<T: Projection> StatusWriter<T> {
    /// Has a patch written.
    pub fn write(&self, meta: &Meta, patch: Value) {
        let mut waiting = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.entry(meta.key()) {
            Entry::Vacant(entry) => drop(entry.insert(patch)),
            Entry::Occupied(mut entry) => merge(entry.get_mut(), patch),
        }
        drop(waiting);
        self.inner.wake.notify_one();
    }

    /// Writes until it is dropped.
    pub async fn run(self, client: Client) {
        loop {
            let batch =
                std::mem::take(&mut *self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if batch.is_empty() {
                self.inner.wake.notified().await;
                continue;
            }
            let client = &client;
            let write = |(key, patch): (Key, Value)| async move {
                let target = Target::of::<T>(&key.namespace, &key.name).subresource("status");
                let kind = PatchKind::Strategic.content_type();
                if let Err(error) = client.patch_only(&target, kind, &patch).await {
                    // The next attempt writes it again.
                    tracing::debug!(resource = T::RESOURCE, %key, %error, "failed to write a status");
                }
            };
            stream::iter(batch).for_each_concurrent(WRITES, write).await;
        }
    }
}

/// A newer patch over one that waits. That of another object of the same name replaces it.
fn merge(older: &mut Value, newer: Value) {
    if older["metadata"] != newer["metadata"] {
        *older = newer;
        return;
    }
    if let (Some(older), Value::Object(newer)) = (older["status"].as_object_mut(), newer["status"].clone()) {
        older.extend(newer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_is_new() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "generation": 3},
            "status": {"nominatedNodeName": "a", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "old"}]},
        }))
        .unwrap();
        let condition =
            |message| Condition { reason: "Unschedulable", message, now: jiff::Timestamp::UNIX_EPOCH };
        let show = |message, nominated| {
            status_patch(&pod, Some(&condition(message)), nominated)
                .map_or("-".into(), |p| p["status"].to_string())
        };
        let lines = [show("old", None), show("new", None), show("old", Some("a")), show("old", Some(""))];
        expect_test::expect![[r#"
            -
            {"conditions":[{"message":"new","observedGeneration":3,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
            -
            {"nominatedNodeName":null}"#]]
        .assert_eq(&lines.join("\n"));
    }
}

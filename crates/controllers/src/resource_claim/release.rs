//! Takes pods that are done out of the reservations of claims, undoes allocations that nothing uses, and deletes claims that were
//! made for pods that are done.
//!
//! Invariants:
//! - A pod that no informer has is asked for before its reservation is removed: the scheduler may reserve for one that is new.
//! - The scheduler's finalizer is removed from a claim only after this loop undid the allocation, or when the claim is deleted:
//!   without an allocation it may stand for one that the scheduler is about to write.

use super::COMPONENT;
use futures_util::future::BoxFuture;
use kaji_runtime::{
    Change, Client, Controller, Cx, Informers, Key, PatchKind, Plan, Reconciler, View, Write,
    client::Target,
    objects::{ClaimConsumer, Pod, ResourceClaim},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// When a pod that could not be asked for is asked for again.
const RETRY: Duration = Duration::from_secs(5);

/// The controller.
pub fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Claims::default(), informers)
        .reads::<ResourceClaim>(|change, _| vec![change.any().metadata.key()])
        .reads::<Pod>(keys_of_pod)
}

/// The claims of a pod that needs them no more, with the one that the scheduler made for its extended resources, which its spec does
/// not name.
fn keys_of_pod(change: &Change<Pod>, view: &View) -> Vec<Key> {
    if change.new.as_ref().is_some_and(|pod| !done(pod)) {
        return vec![];
    }
    let pod = change.any();
    let named = pod.device_claims().map(|name| Key::new(pod.metadata.namespace.as_str(), name));
    let claims = view.get::<ResourceClaim>();
    let own: Vec<Key> = claims.owned_by(&pod.metadata.uid).map(|claim| claim.metadata.key()).collect();
    named.chain(own).collect()
}

/// Whether a pod will run no more.
fn done(pod: &Pod) -> bool {
    pod.finished() || (pod.metadata.deleting() && pod.spec.node_name.is_empty())
}

/// Whether a pod that no informer has exists: `None` when the server did not say.
type Asked = HashMap<String, Option<bool>>;

/// The loop, with what was asked for the keys in progress, and the uids of claims that it has undone the allocation of.
#[derive(Default)]
struct Claims {
    asked: Mutex<HashMap<Key, Asked>>,
    undone: Mutex<HashSet<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Found {
    metadata: FoundMeta,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FoundMeta {
    uid: String,
}

/// The pods that a claim is reserved for and that no informer has.
fn unknown(view: &View, key: &Key) -> Vec<ClaimConsumer> {
    let (claims, pods) = (view.get::<ResourceClaim>(), view.get::<Pod>());
    let Some(claim) = claims.by_key(key) else { return vec![] };
    let reserved = claim.status.reserved_for.iter().filter(|consumer| consumer.is_pod());
    reserved.filter(|consumer| pods.get(&key.namespace, &consumer.name).is_none()).cloned().collect()
}

impl Reconciler for Claims {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, view: &'a View, key: &'a Key, client: &'a Client) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut asked = Asked::new();
            for consumer in unknown(view, key) {
                let path = Target::of::<Pod>(&key.namespace, &consumer.name).path();
                let exists = match client.get::<Found>(&path).await {
                    Ok(pod) => Some(pod.metadata.uid == consumer.uid),
                    Err(error) if error.not_found() => Some(false),
                    Err(_) => None,
                };
                asked.insert(consumer.uid, exists);
            }
            let mut kept = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            kept.remove(key);
            if !asked.is_empty() {
                kept.insert(key.clone(), asked);
            }
        })
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(key).unwrap_or_default();
        let (claims, pods) = (view.get::<ResourceClaim>(), view.get::<Pod>());
        let Some(claim) = claims.by_key(key) else { return Plan::nothing() };
        let mut plan = Plan::nothing();
        let mut remaining = vec![];
        for consumer in &claim.status.reserved_for {
            let needs = match pods.get(&key.namespace, &consumer.name) {
                _ if !consumer.is_pod() => true,
                Some(pod) => pod.metadata.uid == consumer.uid && !done(pod),
                None => asked.get(&consumer.uid).copied().flatten().unwrap_or_else(|| {
                    plan = std::mem::take(&mut plan).again_after(RETRY);
                    true
                }),
            };
            if needs {
                remaining.push(consumer);
            }
        }
        let plan = self.give_back(plan, claim, &remaining);
        if remaining.is_empty() && !claim.metadata.deleting() && left_behind(view, claim) {
            return plan.then(Write::Delete {
                target: Target::of::<ResourceClaim>(&key.namespace, &key.name),
                options: json!({"preconditions": {"uid": claim.metadata.uid}}),
            });
        }
        plan
    }
}

impl Claims {
    /// Removes reservations, and with the last one the allocation and its finalizer.
    fn give_back(&self, plan: Plan, claim: &ResourceClaim, remaining: &[&ClaimConsumer]) -> Plan {
        let meta = &claim.metadata;
        let protected = meta.finalizers.iter().any(|f| f == ResourceClaim::FINALIZER);
        let mut undone = self.undone.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = undone.remove(&meta.uid);
        let over = remaining.is_empty() && protected;
        if remaining.len() < claim.status.reserved_for.len() {
            let mut body = json!({"reservedFor": (!remaining.is_empty()).then_some(remaining)});
            if over {
                body["allocation"] = Value::Null;
                undone.insert(meta.uid.clone());
            }
            return plan.then(status(claim, body));
        }
        if !over || !(ours || meta.deleting()) {
            return plan;
        }
        match claim.status.allocation {
            Some(_) if meta.deleting() => plan.then(status(claim, json!({"allocation": null}))),
            // Allocated anew.
            Some(_) => plan,
            None => plan.then(unprotected(claim)),
        }
    }
}

/// Whether a claim was made for a pod that needs it no more. One that no informer has is the garbage collector's.
fn left_behind(view: &View, claim: &ResourceClaim) -> bool {
    let Some(owner) = claim.metadata.controller().filter(|o| o.kind == "Pod" && o.api_version == "v1") else {
        return false;
    };
    let pods = view.get::<Pod>();
    pods.get(&claim.metadata.namespace, &owner.name)
        .is_some_and(|pod| pod.metadata.uid != owner.uid || done(pod))
}

/// A merge patch of the status of exactly the claim that was looked at.
pub fn status(claim: &ResourceClaim, body: Value) -> Write {
    let meta = &claim.metadata;
    Write::Patch {
        target: Target::of::<ResourceClaim>(&meta.namespace, &meta.name).subresource("status"),
        kind: PatchKind::Merge,
        body: json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": body}),
    }
}

fn unprotected(claim: &ResourceClaim) -> Write {
    let meta = &claim.metadata;
    let rest: Vec<&String> = meta.finalizers.iter().filter(|f| *f != ResourceClaim::FINALIZER).collect();
    Write::Patch {
        target: Target::of::<ResourceClaim>(&meta.namespace, &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": rest}}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;

    fn pod(name: &str, phase: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"nodeName": "n",
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}, "status": {"phase": phase}})
    }

    fn claim(consumers: &[&str]) -> Value {
        let consumers: Vec<Value> =
            consumers.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid})).collect();
        json!({"metadata": {"name": "c", "namespace": "ns", "uid": "c1", "resourceVersion": "7",
                "finalizers": [ResourceClaim::FINALIZER]},
            "status": {"allocation": {"devices": {}}, "reservedFor": consumers}})
    }

    fn plan(loops: &Claims, claim: Value, pods: Vec<Value>) -> String {
        let view = View::default().with(snapshot::<ResourceClaim>([claim])).with(snapshot::<Pod>(pods));
        text(&reconcile(loops, &view, "ns", "c", &[]))
            .replace("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/", "")
    }

    #[test]
    fn pods_that_are_done_lose_their_reservation() {
        let loops = Claims::default();
        let both = || vec![pod("a", "Running"), pod("b", "Succeeded")];
        expect![[r#"
            merge c/status {"metadata":{"resourceVersion":"7","uid":"c1"},"status":{"reservedFor":[{"name":"a","resource":"pods","uid":"a"}]}}
        "#]].assert_eq(&plan(&loops, claim(&["a", "b"]), both()));
        assert_eq!(plan(&loops, claim(&["a"]), both()), "");
        expect![[r#"
            merge c/status {"metadata":{"resourceVersion":"7","uid":"c1"},"status":{"allocation":null,"reservedFor":null}}
        "#]].assert_eq(&plan(&loops, claim(&["b"]), both()));
        // The finalizer goes once the allocation is seen to be gone, unless it came back.
        let mut free = claim(&[]);
        free["status"] = json!({});
        expect![[r#"
            merge c {"metadata":{"finalizers":[],"resourceVersion":"7","uid":"c1"}}
        "#]]
        .assert_eq(&plan(&loops, free.clone(), both()));
        assert_eq!(plan(&loops, free.clone(), both()), "");
        free["metadata"]["deletionTimestamp"] = ago(1).into();
        assert!(plan(&loops, free, both()).contains("finalizers"));
    }

    #[test]
    fn pods_that_are_not_known_are_asked_for() {
        let loops = Claims::default();
        let with = |exists: Option<bool>| {
            let asked = Asked::from([("x".to_owned(), exists)]);
            loops.asked.lock().unwrap().insert(Key::new("ns", "c"), asked);
            plan(&loops, claim(&["x"]), vec![])
        };
        assert_eq!(with(Some(true)), "");
        assert_eq!(with(None), "again after 5s\n");
        assert!(with(Some(false)).contains(r#""allocation":null"#));
        let view = View::default()
            .with(snapshot::<ResourceClaim>([claim(&["x", "a"])]))
            .with(snapshot::<Pod>([pod("a", "Running")]));
        let unknown = unknown(&view, &Key::new("ns", "c"));
        assert_eq!(unknown.iter().map(|c| c.uid.as_str()).collect::<Vec<_>>(), ["x"]);
    }

    #[test]
    fn a_claim_for_extended_resources_is_looked_at_when_its_pod_is_done() {
        let mut made = claim(&["a"]);
        made["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a", "controller": true}]);
        let view = View::default().with(snapshot::<ResourceClaim>([made])).with(snapshot::<Pod>([]));
        let keys = |phase: &str| {
            let mut pod = pod("a", phase);
            pod["spec"] = json!({"nodeName": "n"});
            let new = Some(Arc::new(serde_json::from_value(pod).unwrap()));
            keys_of_pod(&Change { old: None, new }, &view)
        };
        assert_eq!((keys("Failed"), keys("Running")), (vec![Key::new("ns", "c")], vec![]));
    }

    #[test]
    fn claims_of_pods_that_are_done_are_deleted() {
        let of = |uid: &str| {
            let mut made = claim(&[]);
            made["metadata"]["finalizers"] = json!([]);
            made["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid, "controller": true}]);
            made
        };
        let loops = Claims::default();
        let deleted = "delete c {\"preconditions\":{\"uid\":\"c1\"}}\n";
        assert_eq!(plan(&loops, of("a"), vec![pod("a", "Failed")]), deleted);
        assert_eq!(plan(&loops, of("former"), vec![pod("a", "Running")]), deleted);
        assert_eq!(plan(&loops, of("a"), vec![pod("a", "Running")]), "");
        assert_eq!(plan(&loops, of("a"), vec![]), "");
    }
}

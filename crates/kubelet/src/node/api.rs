//! The API server as the workers of pods see it.

use super::machine::Machine;
use super::objects::FullNode;
use crate::pods::context::{ApiError, NodeFacts, PodApi, PodRef};
use crate::pods::core::{Node, PodStatus};
use crate::pods::status::OWNED;
use futures_util::future::BoxFuture;
use kaji_meta::quantity::Quantity;
use kaji_runtime::objects::Service;
use kaji_runtime::{Client, Error, EventRecord, Informer, PatchKind, Recorder, Target};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lists of the status that are merged by address, where one that is gone would stay. Lists of containers' states are atomic:
/// a patch replaces them. Conditions are merged, since others write some of them.
const REPLACED: [&str; 2] = ["podIPs", "hostIPs"];

/// Writes with the node's client.
pub(super) struct KubeletApi {
    client: Client,
    recorder: Recorder,
}

impl KubeletApi {
    pub(super) fn new(client: Client, recorder: Recorder) -> KubeletApi {
        KubeletApi { client, recorder }
    }

    /// What a failed write says of the pod. A conflict may be about its uid, since another pod has the name now, or about a write
    /// at the same time, after which this one is tried again.
    async fn failure(&self, pod: &PodRef, error: Error) -> ApiError {
        if error.not_found() {
            return ApiError::Gone;
        }
        if error.conflict() {
            match self.client.get::<Value>(&target(pod).path()).await {
                Err(now) if now.not_found() => return ApiError::Gone,
                Ok(now) if now["metadata"]["uid"] != pod.uid.as_str() => return ApiError::Gone,
                _ => {}
            }
        }
        ApiError::Failed(error.to_string())
    }
}

fn target(pod: &PodRef) -> Target {
    Target {
        version: "v1".into(),
        resource: "pods".into(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        ..Target::default()
    }
}

/// The strategic merge patch from one status to another. Fields that are gone are removed; of conditions only the kubelet's own.
pub(crate) fn patch(uid: &str, before: &PodStatus, after: &PodStatus) -> Value {
    let object = |status: &PodStatus| match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (before, after) = (object(before), object(after));
    let mut status = Map::new();
    for (field, value) in &after {
        if before.get(field) != Some(value) {
            status.insert(field.clone(), value.clone());
            if REPLACED.contains(&field.as_str())
                && let Some(Value::Array(items)) = status.get_mut(field)
            {
                items.push(json!({"$patch": "replace"}));
            }
        }
    }
    for field in before.keys().filter(|f| !after.contains_key(*f)) {
        status.insert(field.clone(), Value::Null);
    }
    conditions(&before, &mut status);
    json!({"metadata": {"uid": uid}, "status": status})
}

/// Reason and message of a condition that has none any more are removed.
fn conditions(before: &Map<String, Value>, status: &mut Map<String, Value>) {
    let Some(Value::Array(conditions)) = status.get_mut("conditions") else { return };
    let former = before.get("conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    // Those of resizes are there only while they hold, and a pod that the node does not take has none.
    let own = |c: &&Value| c["type"].as_str().is_some_and(|kind| OWNED.contains(&kind));
    let gone = former.iter().filter(own).filter(|c| !conditions.iter().any(|n| n["type"] == c["type"]));
    let gone: Vec<Value> = gone.map(|c| json!({"$patch": "delete", "type": c["type"]})).collect();
    for condition in conditions.iter_mut() {
        let Some(old) = former.iter().find(|c| c["type"] == condition["type"]) else { continue };
        for field in ["reason", "message"] {
            if condition.get(field).is_none() && old.get(field).is_some() {
                condition[field] = Value::Null;
            }
        }
    }
    conditions.extend(gone);
}

impl PodApi for KubeletApi {
    fn patch_status<'a>(
        &'a self,
        pod: &'a PodRef,
        before: &'a PodStatus,
        status: &'a PodStatus,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let body = patch(&pod.uid, before, status);
            let target = target(pod).subresource("status");
            match self.client.patch(&target, PatchKind::Strategic.content_type(), "", &body).await {
                Ok(_) => Ok(()),
                Err(error) => Err(self.failure(pod, error).await),
            }
        })
    }

    fn delete<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let options = json!({
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": pod.uid},
            });
            match self.client.delete(&target(pod), &options).await {
                Ok(_) => Ok(()),
                Err(error) => Err(self.failure(pod, error).await),
            }
        })
    }

    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let target = Target {
            version: "v1".into(),
            resource: "persistentvolumeclaims".into(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: "status".into(),
            ..Target::default()
        };
        Box::pin(async move {
            let kind = PatchKind::Strategic.content_type();
            match self.client.patch(&target, kind, "", patch).await {
                Ok(_) => Ok(()),
                Err(error) if error.not_found() => Err(ApiError::Gone),
                Err(error) => Err(ApiError::Failed(error.to_string())),
            }
        })
    }

    fn record(&self, event: EventRecord) {
        self.recorder.record(event);
    }
}

/// What informers show of the node and of services.
pub(super) struct Facts {
    name: String,
    nodes: Arc<Informer<FullNode>>,
    services: Arc<Informer<Service>>,
    synced: Arc<std::sync::atomic::AtomicBool>,
    allocatable: BTreeMap<String, String>,
}

impl Facts {
    pub(super) fn new(
        name: String,
        nodes: Arc<Informer<FullNode>>,
        services: Arc<Informer<Service>>,
        machine: &Machine,
    ) -> Facts {
        let synced = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (done, informer) = (synced.clone(), services.clone());
        tokio::spawn(async move {
            informer.synced().await;
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        Facts { name, nodes, services, synced, allocatable: machine.allocatable() }
    }
}

impl NodeFacts for Facts {
    fn services(&self) -> Option<Vec<Arc<Service>>> {
        let synced = self.synced.load(std::sync::atomic::Ordering::Acquire);
        synced.then(|| self.services.snapshot().iter().cloned().collect())
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.nodes.snapshot().get("", &self.name).map(|n| n.node.clone())
    }

    fn allocatable(&self) -> BTreeMap<String, i64> {
        let of = |(name, text): (&String, &String)| {
            let q = Quantity::parse(text).ok()?;
            Some((name.clone(), if name == "cpu" { q.milli_value() } else { q.value() }))
        };
        self.allocatable.iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_has_what_differs_and_removes_what_is_gone() {
        let parse = |v: Value| -> PodStatus { serde_json::from_value(v).unwrap() };
        let before = parse(json!({
            "phase": "Pending", "reason": "R", "hostIP": "1.2.3.4",
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
                {"type": "PodResizePending", "status": "True"},
                {"type": "example.com/gate", "status": "True"},
            ],
        }));
        let after = parse(json!({
            "phase": "Running", "hostIP": "1.2.3.4", "podIPs": [{"ip": "5.6.7.8"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }));
        expect_test::expect![[
            r#"{"metadata":{"uid":"u"},"status":{"conditions":[{"reason":null,"status":"True","type":"Ready"},{"$patch":"delete","type":"PodResizePending"}],"phase":"Running","podIPs":[{"ip":"5.6.7.8"},{"$patch":"replace"}],"reason":null}}"#
        ]]
        .assert_eq(&patch("u", &before, &after).to_string());
    }

    fn failure(code: u16) -> Value {
        let reason = if code == 404 { "NotFound" } else { "Conflict" };
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "m"})
    }

    /// The API server's answers: a conflict, and then the pod of this uid, or none.
    async fn outcome(code: u16, uid: Option<&str>) -> ApiError {
        let uid = uid.map(str::to_owned);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (code, body) = match (request.method() == http::Method::GET, &uid) {
                (false, _) => (code, failure(code)),
                (true, Some(uid)) => (200, json!({"metadata": {"uid": uid}})),
                (true, None) => (404, failure(404)),
            };
            let response = http::Response::builder().status(code);
            let response = response.body(kube::client::Body::from(body.to_string().into_bytes())).unwrap();
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        });
        let client = Client::new(kube::Client::new(service, "default"), "kubelet");
        let clock = Arc::new(kaji_meta::time::SystemClock);
        let random = Arc::new(kaji_meta::random::SystemRandom);
        let api = KubeletApi::new(client.clone(), Recorder::start(client, "kubelet", clock, random));
        let pod = PodRef { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let status = PodStatus::default();
        let patched = api.patch_status(&pod, &status, &status).await.unwrap_err();
        assert_eq!(patched, api.delete(&pod).await.unwrap_err());
        patched
    }

    #[tokio::test]
    async fn a_conflict_is_about_another_pod_of_the_name_or_is_tried_again() {
        assert_eq!(outcome(404, Some("u")).await, ApiError::Gone);
        assert_eq!(outcome(409, Some("v")).await, ApiError::Gone);
        assert_eq!(outcome(409, None).await, ApiError::Gone);
        assert!(matches!(outcome(409, Some("u")).await, ApiError::Failed(_)));
        assert!(matches!(outcome(500, Some("v")).await, ApiError::Failed(_)));
    }
}

//! Mirror pods: objects of the API that show the node's static pods. Upstream's `mirror_client.go`.
//!
//! Invariants: a mirror pod belongs to the Node object and has the hash of its static pod; one that stands for another content, for
//! no static pod any more, or that a client deletes, is removed, and created anew where there is a static pod.

use super::objects::FullPod;
use super::static_pods::{self, MIRROR, StaticPods};
use crate::pods::context::NodeContext;
use crate::pods::core::Pod;
use crate::pods::model;
use kaji_runtime::{Client, Error, Informer, Target};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How often the node's registration is looked for.
const REGISTRATION: Duration = Duration::from_millis(100);
/// How long to wait after a failure, or when nothing has changed.
const RETRY: Duration = Duration::from_secs(5);
const RESYNC: Duration = Duration::from_secs(60);

/// What to do about a mirror pod.
#[derive(Debug, Clone, PartialEq)]
enum Action {
    /// Create one for this static pod.
    Create(Arc<Pod>),
    /// Delete this one.
    Delete { namespace: String, name: String, uid: String },
}

/// What brings mirror pods in line with static pods. `shown` are the node's pods in the API.
fn plan(statics: &[Arc<Pod>], shown: &[Arc<Pod>]) -> Vec<Action> {
    let same_name =
        |a: &Pod, b: &Pod| model::name(a) == model::name(b) && model::namespace(a) == model::namespace(b);
    let mut actions = vec![];
    for mirror in shown {
        let Some(hash) = static_pods::mirrored(mirror) else { continue };
        let current = statics.iter().any(|pod| same_name(pod, mirror) && model::uid(pod) == hash);
        if !current || model::deleting(mirror) {
            actions.push(Action::Delete {
                namespace: model::namespace(mirror).to_owned(),
                name: model::name(mirror).to_owned(),
                uid: model::uid(mirror).to_owned(),
            });
        }
    }
    // One that has to go first is created when the API does not show it any more.
    let absent = statics.iter().filter(|pod| !shown.iter().any(|other| same_name(pod, other)));
    actions.extend(absent.cloned().map(Action::Create));
    actions
}

/// The mirror pod of a static pod.
fn mirror_of(pod: &Pod, node: &str, node_uid: &str) -> Value {
    let mut mirror = serde_json::to_value(pod).unwrap_or_default();
    mirror["apiVersion"] = "v1".into();
    mirror["kind"] = "Pod".into();
    if let Some(fields) = mirror.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = mirror["metadata"].as_object_mut() {
        metadata.remove("uid");
    }
    mirror["metadata"]["annotations"][MIRROR] = model::uid(pod).into();
    mirror["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": true}]);
    mirror
}

/// Keeps mirror pods in line with static pods, for ever.
pub(super) async fn run(
    cx: Arc<NodeContext>,
    client: Client,
    mut statics: watch::Receiver<StaticPods>,
    pods: Arc<Informer<FullPod>>,
) {
    pods.synced().await;
    // They belong to the Node object.
    while cx.facts.node().is_none() {
        kaji_runtime::time::sleep(&*cx.clock, REGISTRATION).await;
    }
    let wake = Arc::new(Notify::new());
    let changed = wake.clone();
    pods.handle(move |change| {
        if static_pods::mirrored(&change.any().pod).is_some() {
            changed.notify_one();
        }
    });
    loop {
        let wanted = statics.borrow_and_update().clone();
        let shown: Vec<Arc<Pod>> = pods.snapshot().iter().map(|p| p.pod.clone()).collect();
        let mut pause = RESYNC;
        for action in plan(&wanted, &shown) {
            if let Err(error) = carry_out(&cx, &client, &action).await {
                tracing::warn!(%error, "a mirror pod could not be synchronized with its static pod");
                pause = RETRY;
            }
        }
        tokio::select! {
            () = wake.notified() => {}
            changed = statics.changed() => if changed.is_err() { return },
            () = kaji_runtime::time::sleep(&*cx.clock, pause) => {}
        }
    }
}

async fn carry_out(cx: &NodeContext, client: &Client, action: &Action) -> Result<(), Error> {
    let target = |namespace: &str, name: &str| Target {
        version: "v1".into(),
        resource: "pods".into(),
        namespace: namespace.into(),
        name: name.into(),
        ..Target::default()
    };
    match action {
        Action::Create(pod) => {
            let node = cx.facts.node().filter(|node| node.metadata.deletion_timestamp.is_none());
            let Some(uid) = node.and_then(|node| node.metadata.uid.clone()) else {
                return Err(Error::Transport("the node is not registered yet".into()));
            };
            let mirror = mirror_of(pod, &cx.config.node_name, &uid);
            match client.post(&target(model::namespace(pod), ""), &mirror).await {
                // The informer does not show it yet, or the name is another pod's.
                Err(error) if error.conflict() => Ok(()),
                created => created,
            }
        }
        Action::Delete { namespace, name, uid } => {
            let options = json!({
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": uid},
            });
            match client.delete(&target(namespace, name), &options).await {
                Err(error) if error.not_found() || error.conflict() => Ok(()),
                deleted => deleted.map(drop),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, uid: &str, annotations: &Value, deleting: bool) -> Arc<Pod> {
        let mut metadata = json!({"name": name, "namespace": "n", "uid": uid, "annotations": annotations});
        if deleting {
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap())
    }

    #[test]
    fn mirrors_follow_static_pods() {
        let from_file = json!({static_pods::SOURCE: "file"});
        let of = |hash: &str| json!({MIRROR: hash});
        let statics = [
            pod("kept", "h1", &from_file, false),
            pod("changed", "h2", &from_file, false),
            pod("deleted", "h3", &from_file, false),
            pod("new", "h4", &from_file, false),
        ];
        let shown = [
            pod("kept", "1", &of("h1"), false),
            pod("changed", "2", &of("old"), false),
            pod("deleted", "3", &of("h3"), true),
            pod("orphan", "4", &of("h5"), false),
            pod("plain", "5", &json!({}), false),
        ];
        let shown: Vec<String> = plan(&statics, &shown)
            .iter()
            .map(|action| match action {
                Action::Create(pod) => format!("create {}", model::name(pod)),
                Action::Delete { name, uid, .. } => format!("delete {name} {uid}"),
            })
            .collect();
        assert_eq!(shown, ["delete changed 2", "delete deleted 3", "delete orphan 4", "create new"]);
        let mirror = mirror_of(&statics[0], "node", "node-uid");
        expect_test::expect![[r#"{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"kubernetes.io/config.mirror":"h1","kubernetes.io/config.source":"file"},"name":"kept","namespace":"n","ownerReferences":[{"apiVersion":"v1","controller":true,"kind":"Node","name":"node","uid":"node-uid"}]},"spec":{"containers":[]}}"#]]
            .assert_eq(&mirror.to_string());
    }
}

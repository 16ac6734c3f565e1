//! `/pods`, the pods that the API binds to the node, and `/runningpods/`, those that the runtime shows.

use super::node_api::NodeApi;
use super::request::{self, JSON, ServerBody};
use crate::pods::{labels, model};
use http::{Response, StatusCode};
use kaji_containers::{ContainerFilter, ContainerState};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn list(items: Vec<Value>) -> Response<ServerBody> {
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    request::respond(StatusCode::OK, JSON, list.to_string())
}

/// `/pods`
pub(super) fn bound(api: &NodeApi) -> Response<ServerBody> {
    let mut pods = api.pods.all();
    pods.sort_by(|a, b| (model::namespace(a), model::name(a)).cmp(&(model::namespace(b), model::name(b))));
    let items = pods.iter().map(|pod| {
        let mut item = serde_json::to_value(&**pod).unwrap_or_default();
        // The items of a list do not say what they are.
        if let Some(item) = item.as_object_mut() {
            item.remove("apiVersion");
            item.remove("kind");
        }
        item
    });
    list(items.collect())
}

/// `/runningpods/`
pub(super) async fn running(api: &NodeApi) -> Response<ServerBody> {
    let filter = ContainerFilter { state: Some(ContainerState::Running), ..ContainerFilter::default() };
    let containers = match api.cx.runtime.list_containers(filter).await {
        Ok(containers) => containers,
        Err(error) => return request::error(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut pods: BTreeMap<[String; 3], Vec<Value>> = BTreeMap::new();
    for c in containers.iter().filter(|c| c.state == ContainerState::Running) {
        let label = |name: &str| c.labels.get(name).cloned().unwrap_or_default();
        let pod = [labels::POD_NAMESPACE, labels::POD_NAME, labels::POD_UID].map(label);
        let shown = json!({"name": labels::container_name(c), "image": c.image.image, "resources": {}});
        pods.entry(pod).or_default().push(shown);
    }
    let item = |([namespace, name, uid], containers): ([String; 3], Vec<Value>)| {
        json!({
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "spec": {"containers": containers},
            "status": {},
        })
    };
    list(pods.into_iter().map(item).collect())
}

//! kube-rs against a cluster over TLS: create, list, watch, patch, apply, delete; built-in and custom resources.

use crate::common::TestCluster;
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::ConfigMap},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams, WatchEvent, WatchParams,
    },
};
use serde_json::json;
use std::time::Duration;

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": "t"}}, "data": {"k": value},
    }))
    .unwrap()
}

/// Nothing here should take long; a hang is a failure with a name.
async fn soon<T>(what: &str, f: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), f).await.unwrap_or_else(|_| panic!("{what} did not happen"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_on_config_maps() {
    let cluster = TestCluster::start(0).await;
    let api: Api<ConfigMap> = Api::default_namespaced(cluster.kube().await);
    let a = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let version = a.metadata.resource_version.clone().unwrap();
    let clash = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap_err();
    assert!(matches!(&clash, kube::Error::Api(s) if s.reason == "AlreadyExists"), "{clash}");

    let mut events = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    let merged = Patch::Merge(json!({"data": {"k": "2"}}));
    api.patch("a", &PatchParams::default(), &merged).await.unwrap();
    let event = soon("the change", events.try_next()).await.unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Modified(ref cm) if cm.data.as_ref().unwrap()["k"] == "2"));

    let mut stale = a.clone();
    stale.data.as_mut().unwrap().insert("k".into(), "3".into());
    let conflict = api.replace("a", &PostParams::default(), &stale).await.unwrap_err();
    assert!(
        matches!(&conflict, kube::Error::Api(s) if s.code == 409 && s.reason == "Conflict"),
        "{conflict}"
    );

    let applied =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "4"}});
    let refused = api.patch("a", &PatchParams::apply("other"), &Patch::Apply(&applied)).await.unwrap_err();
    assert!(refused.to_string().contains("conflict"), "{refused}");
    let forced = api.patch("a", &PatchParams::apply("other").force(), &Patch::Apply(&applied)).await.unwrap();
    assert_eq!(forced.data.unwrap()["k"], "4");

    api.create(&PostParams::default(), &config_map("b", "1")).await.unwrap();
    let list = api.list(&ListParams::default().labels("app=t")).await.unwrap();
    assert_eq!(list.items.len(), 2);
    let page = api.list(&ListParams::default().labels("app=t").limit(1)).await.unwrap();
    assert_eq!((page.items.len(), page.metadata.continue_.is_some()), (1, true));

    api.delete("a", &DeleteParams::default()).await.unwrap();
    let gone = soon("the deletion", async {
        while let Some(event) = events.try_next().await.unwrap() {
            if let WatchEvent::Deleted(cm) = event {
                return cm.metadata.name.unwrap();
            }
        }
        String::new()
    })
    .await;
    assert_eq!(gone, "a");
    assert!(api.get_opt("a").await.unwrap().is_none());
    drop(events);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_are_served_as_soon_as_they_are_defined() {
    let cluster = TestCluster::start(0).await;
    let client = cluster.kube().await;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "maximum": 10, "default": 3}}}}}}}],
        },
    }))
    .unwrap();
    crds.create(&PostParams::default(), &crd).await.unwrap();
    let established = |c: &CustomResourceDefinition| {
        c.status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .any(|c| c.type_ == "Established" && c.status == "True")
    };
    soon("Established", async {
        while !established(&crds.get("widgets.example.com").await.unwrap()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let kind =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Widget"), "widgets");
    let widgets: Api<DynamicObject> = Api::default_namespaced_with(client, &kind);
    let widget = DynamicObject::new("w", &kind).data(json!({"spec": {"unknown": 1}}));
    let made = widgets.create(&PostParams::default(), &widget).await.unwrap();
    assert_eq!(made.data["spec"], json!({"size": 3}));
    let large = Patch::Merge(json!({"spec": {"size": 11}}));
    let refused = widgets.patch("w", &PatchParams::default(), &large).await.unwrap_err();
    assert!(refused.to_string().contains("should be less than or equal to 10"), "{refused}");
    crds.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
    soon("the definition's end", async {
        while crds.get_opt("widgets.example.com").await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(matches!(widgets.list(&ListParams::default()).await, Err(kube::Error::Api(s)) if s.code == 404));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_rolls_out() {
    let cluster = TestCluster::start(2).await;
    let api: Api<Deployment> = Api::default_namespaced(cluster.kube().await);
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "example.com/web:1"}]},
            },
        },
    }))
    .unwrap();
    let made = api.create(&PostParams::default(), &deployment).await.unwrap();
    let version = made.metadata.resource_version.unwrap();
    let mut events = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    soon("three available replicas", async {
        while let Some(event) = events.try_next().await.unwrap() {
            if let WatchEvent::Modified(d) = event
                && d.status.as_ref().and_then(|s| s.available_replicas) == Some(3)
            {
                break;
            }
        }
    })
    .await;
    drop(events);
    cluster.stop().await;
}

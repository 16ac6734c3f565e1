//! The default roles and bindings: created by the first start, completed by later ones.
//!
//! Invariants: additions of an administrator stay; an object with `autoupdate: false` is not changed; without differences
//! nothing is written. Source: upstream's `rbac/bootstrap-roles` post-start hook.

use futures_util::{StreamExt, TryStreamExt, stream};
use kaji_auth::authz::{
    policy::{self, Default},
    reconcile::{Action, reconcile, split_off},
};
use kaji_meta::{Features, GroupResource, Status};
use kaji_resource::{Api, DeleteOptions, FieldManagement, UpdateOptions};

const GROUP: &str = "rbac.authorization.k8s.io";
/// Bindings that were one: the old one, and what was split off.
const SPLIT: [(&str, &str); 1] = [("system:discovery", "system:public-info-viewer")];
/// Concurrent writes, which share commits.
const MAX_CONCURRENT_WRITES: usize = 128;
/// Attempts to write an object that other clients change at the same time.
const TRIES: usize = 5;

/// Creates or completes the cluster roles and their bindings.
///
/// # Errors
/// The first write that is rejected.
pub async fn ensure_cluster_wide(api: &dyn Api, features: Features) -> Result<(), Status> {
    ensure_split(api).await?;
    ensure_all(api, policy::defaults_with(features).into_iter().filter(|d| d.namespace.is_empty())).await
}

/// Creates the bindings that are missing beside those from which they were split off, with the subjects, labels and annotations
/// of these: a restriction by an administrator holds for both, also in a cluster from before the split.
async fn ensure_split(api: &dyn Api) -> Result<(), Status> {
    let resource = GroupResource::new(GROUP, "clusterrolebindings");
    for (from, name) in SPLIT {
        let (Some(existing), None) = (api.get(&resource, "", from), api.get(&resource, "", name)) else {
            continue;
        };
        let defaults = policy::defaults().into_iter();
        let Some(wanted) = defaults.filter(|d| d.resource == "clusterrolebindings").find(|d| d.name == name)
        else {
            continue;
        };
        match api.create(&resource, "", split_off(&existing, wanted.object), false).await {
            // Another server was faster.
            Err(status) if status.code != 409 => return Err(status),
            _ => api.sync().await?,
        }
    }
    Ok(())
}

/// Creates or completes the roles and bindings in namespaces.
///
/// # Errors
/// The first write that is rejected.
pub async fn ensure_namespaced(api: &dyn Api) -> Result<(), Status> {
    ensure_all(api, policy::defaults().into_iter().filter(|d| !d.namespace.is_empty())).await
}

async fn ensure_all(api: &dyn Api, all: impl Iterator<Item = Default>) -> Result<(), Status> {
    let all = stream::iter(all.map(|wanted| async move { ensure(api, &wanted).await }));
    all.buffer_unordered(MAX_CONCURRENT_WRITES).try_collect::<Vec<()>>().await.map(drop)
}

async fn ensure(api: &dyn Api, wanted: &Default) -> Result<(), Status> {
    let resource = GroupResource::new(GROUP, wanted.resource);
    let mut last = Ok(());
    for _ in 0..TRIES {
        let existing = api.get(&resource, wanted.namespace, wanted.name);
        let done = match reconcile(existing.as_deref(), &wanted.object) {
            Action::Keep => return Ok(()),
            Action::Create => create(api, &resource, wanted).await,
            Action::Update(_) => update(api, &resource, wanted).await,
            Action::Recreate => {
                let options = DeleteOptions {
                    uid: existing.as_ref().and_then(|o| o["metadata"]["uid"].as_str()).map(str::to_owned),
                    ..DeleteOptions::default()
                };
                match api.delete(&resource, wanted.namespace, wanted.name, options).await {
                    Ok(_) => create(api, &resource, wanted).await,
                    Err(status) => Err(status),
                }
            }
        };
        match done {
            // Another client has created, changed or deleted it: read it again.
            Err(status) if matches!(status.code, 404 | 409) => last = Err(status),
            other => return other,
        }
        api.sync().await?;
    }
    last
}

async fn create(api: &dyn Api, resource: &GroupResource, wanted: &Default) -> Result<(), Status> {
    api.create(resource, wanted.namespace, wanted.object.clone(), false).await.map(drop)
}

async fn update(api: &dyn Api, resource: &GroupResource, wanted: &Default) -> Result<(), Status> {
    let change = |object: &mut serde_json::Value| {
        if let Action::Update(new) = reconcile(Some(object), &wanted.object) {
            *object = new;
        }
        Ok(())
    };
    api.update(
        resource,
        wanted.namespace,
        wanted.name,
        UpdateOptions::new("", FieldManagement::Record),
        &change,
    )
    .await
    .map(drop)
}

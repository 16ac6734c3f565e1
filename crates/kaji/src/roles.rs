//! The default roles and bindings: created at the first start, completed at later ones.
//!
//! Invariants: what an administrator added stays; an object that says `autoupdate: false` is left alone; when nothing
//! differs, nothing is written. Source: upstream's `rbac/bootstrap-roles` post-start hook.

use futures_util::{StreamExt, TryStreamExt, stream};
use kaji_auth::authz::{
    policy::{self, Default},
    reconcile::{Action, reconcile},
};
use kaji_meta::{GroupResource, Status};
use kaji_resource::{Api, DeleteOptions, FieldManagement, UpdateOptions};

/// Writes on their way at the same time; they share commits.
const PARALLEL: usize = 64;
/// How often an object that changes under us is looked at anew.
const TRIES: usize = 5;

/// Brings all of them up to date.
///
/// # Errors
/// The first refusal.
pub async fn run(api: &dyn Api) -> Result<(), Status> {
    let all = stream::iter(policy::defaults().into_iter().map(|d| async move { ensure(api, &d).await }));
    all.buffer_unordered(PARALLEL).try_collect::<Vec<()>>().await.map(drop)
}

async fn ensure(api: &dyn Api, wanted: &Default) -> Result<(), Status> {
    let resource = GroupResource::new("rbac.authorization.k8s.io", wanted.resource);
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
            // Made, changed or deleted by somebody else meanwhile: look again.
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

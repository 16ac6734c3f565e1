//! The scale of owners that no informer has: custom resources, and whatever else has a scale subresource.
//!
//! Invariants: an owner is read once for a decision; what was read is of the owner that the pods name, by its uid, or nothing.
//!
//! Source: upstream's `getScaleController`.

use crate::shared::discovery;
use kaji_runtime::{Client, Error, OwnerRef};
use serde::Deserialize;
use std::collections::HashMap;

/// Replicas by the uid of the owner; `None` for one that is gone, or why its scale is unknown.
pub type Scales = HashMap<String, Result<Option<i64>, String>>;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Scale {
    metadata: Named,
    spec: Spec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Named {
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    replicas: i64,
}

/// The desired replicas of an owner. `None` if it is gone.
///
/// # Errors
/// Its kind is not served or cannot be scaled, or the server does not say; the texts are upstream's.
pub async fn replicas(client: &Client, owner: &OwnerRef, namespace: &str) -> Result<Option<i64>, String> {
    let (group, _) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    let text = |error: Error| error.to_string();
    let found = discovery::find_kind(client, group, &owner.kind).await.map_err(text)?;
    let quote = kaji_meta::text::quote;
    let unknown =
        || format!("no matches for kind {} in version {}", quote(&owner.kind), quote(&owner.api_version));
    let resource = found.ok_or_else(unknown)?;
    let target = resource.target(namespace, &owner.name).subresource("scale");
    match client.get::<Scale>(&target.path()).await {
        Ok(scale) => Ok((scale.metadata.uid == owner.uid).then_some(scale.spec.replicas)),
        Err(error) if error.not_found() => {
            // Either the owner is gone, or it has no scale.
            let name = format!("{}/scale", resource.resource);
            match discovery::find(client, group, &name).await.map_err(text)? {
                Some(_) => Ok(None),
                None => {
                    Err(format!("{} does not implement the scale subresource", resource.group_resource()))
                }
            }
        }
        Err(error) => Err(text(error)),
    }
}

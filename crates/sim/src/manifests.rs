//! Objects of a user's own, created as kubectl would: where to is looked up by their kind, in discovery.
//!
//! Invariant: objects are created in the order in which they are given. A kind that is not there yet is waited for, since a
//! CustomResourceDefinition may have come before.

use bytes::Bytes;
use http::Method;
use kaji_runtime::{Client, Error};
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A custom resource is served within this time after its definition.
const SERVED_TIMEOUT: Duration = Duration::from_secs(30);

/// Creates an object.
///
/// # Errors
/// When its kind does not come to be served, or the server refuses it.
pub async fn create(client: &Client, object: &Value) -> Result<(), String> {
    let until = Instant::now() + SERVED_TIMEOUT;
    let described = format!("{} {}", object["kind"], object["metadata"]["name"]);
    let path = loop {
        match path(client, object).await {
            Ok(Some(path)) => break path,
            Ok(None) | Err(_) if Instant::now() < until => sleep(Duration::from_millis(100)).await,
            Ok(None) => return Err(format!("{described}: {} has no such kind", object["apiVersion"])),
            Err(error) => return Err(format!("{described}: {error}")),
        }
    };
    let body = Bytes::from(object.to_string());
    let created = client.call(Method::POST, &path, "application/json", body).await;
    created.map(drop).map_err(|error| format!("{described}: {error}"))
}

/// The path of an object's collection; `None` when its kind is not served.
async fn path(client: &Client, object: &Value) -> Result<Option<String>, Error> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let answer = client.call(Method::GET, &root, "application/json", Bytes::new()).await?;
    let found: Value = serde_json::from_slice(&answer).map_err(|error| Error::Decode(error.to_string()))?;
    let is_of_kind =
        |resource: &&Value| resource["kind"] == object["kind"] && !text(&resource["name"]).contains('/');
    let Some(resource) = found["resources"].as_array().into_iter().flatten().find(is_of_kind) else {
        return Ok(None);
    };
    let name = text(&resource["name"]);
    Ok(Some(match (resource["namespaced"] == true, text(&object["metadata"]["namespace"])) {
        (false, _) => format!("{root}/{name}"),
        (true, namespace) if namespace.is_empty() => format!("{root}/namespaces/default/{name}"),
        (true, namespace) => format!("{root}/namespaces/{namespace}/{name}"),
    }))
}

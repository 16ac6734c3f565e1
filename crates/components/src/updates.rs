//! Updates in place of patches. Controllers here patch only the fields that they own, where upstream's update; upstream's default
//! roles let most of them update, but not patch. Where an API server refuses a patch as forbidden, the object is read, patched
//! here, and written with its resourceVersion.
//!
//! Invariants:
//! - The preconditions of a patch (uid, resourceVersion) are those of the update; without one, an update that met another write is
//!   made again from what is there then, a few times.
//! - Only a resource for which an update did what a patch was refused is updated at once the next time.
//!
//! Server-side apply has no such form; its refusal stands.

use crate::transport::{Message, Transport};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use kaji_meta::{Status, Work, object};
use kaji_schema::{
    patch::{json_patch, merge_patch, strategic_merge},
    types,
};
use kube::client::Body;
use serde_json::Value;
use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

/// Attempts of an update without a precondition.
const ATTEMPTS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Merge,
    Json,
    Strategic,
}

/// A client's name, a group version's path, a resource and its subresource.
type Resource = (String, String, String, String);

/// A patch that an update can replace.
#[derive(Debug)]
pub(crate) struct Patch {
    message: Message,
    kind: Kind,
    body: Value,
    /// The path of the object itself.
    main: String,
    resource: Resource,
}

/// The path of the object, and group version, resource and subresource, of the path of a request about an object.
fn split(path: &str) -> Option<(String, [&str; 3])> {
    let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    let version = match segments[0] {
        "api" => 2,
        "apis" => 3,
        _ => return None,
    };
    let rest = segments.get(version..)?;
    let scope = if rest.len() >= 4 && rest[0] == "namespaces" { 2 } else { 0 };
    let (resource, subresource) = match rest.get(scope..)? {
        [resource, _] => (*resource, ""),
        [resource, _, subresource] => (*resource, *subresource),
        _ => return None,
    };
    let main = format!("/{}", segments[..version + scope + 2].join("/"));
    let group_version = &path[..segments[..version].iter().map(|s| s.len() + 1).sum::<usize>()];
    Some((main, [group_version, resource, subresource]))
}

impl Patch {
    /// The patch that a message is.
    pub fn of(message: &Message) -> Option<Patch> {
        let content_type = message.headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        let kind = match content_type {
            "application/merge-patch+json" => Kind::Merge,
            "application/json-patch+json" => Kind::Json,
            "application/strategic-merge-patch+json" => Kind::Strategic,
            _ => return None,
        };
        if message.method != Method::PATCH {
            return None;
        }
        let (main, [group_version, resource, subresource]) = split(message.uri.path())?;
        let agent = message.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let texts = [agent.unwrap_or_default(), group_version, resource, subresource].map(str::to_owned);
        let [agent, group_version, resource, subresource] = texts;
        let body = serde_json::from_slice(&message.body).ok()?;
        let resource = (agent, group_version, resource, subresource);
        Some(Patch { message: message.clone(), kind, body, main, resource })
    }

    /// Whether the patch applies to one version of the object only.
    fn names_version(&self) -> bool {
        let version = |patch: &Value| !object::str_at(patch, &["metadata", "resourceVersion"]).is_empty();
        match self.kind {
            Kind::Merge | Kind::Strategic => version(&self.body),
            // An operation may test it; its failure then comes from the patch itself.
            Kind::Json => false,
        }
    }

    /// The object after the patch; `None` for a type without a strategy.
    fn applied(&self, mut object: Value) -> Result<Option<Value>, Status> {
        match self.kind {
            Kind::Merge => merge_patch(&mut object, &self.body),
            Kind::Json => json_patch(&mut object, &self.body, &Work::unbounded())?,
            Kind::Strategic => {
                let api_version = object::str_at(&object, &["apiVersion"]);
                let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
                let kind = object::str_at(&object, &["kind"]);
                let Some(schema) = types::for_gvk(group, version, kind) else { return Ok(None) };
                object = strategic_merge(schema.get(), &object, &self.body)?;
            }
        }
        Ok(Some(object))
    }

    /// Reads the object from its path, or as a list of one, which other rights allow.
    fn read(&self, as_list: bool) -> Option<Message> {
        let mut headers = HeaderMap::new();
        if let Some(agent) = self.message.headers.get(header::USER_AGENT) {
            headers.insert(header::USER_AGENT, agent.clone());
        }
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let uri: Uri = match as_list {
            true => {
                let (collection, name) = self.main.rsplit_once('/')?;
                format!("{collection}?fieldSelector=metadata.name%3D{name}").parse().ok()?
            }
            false => self.main.parse().ok()?,
        };
        Some(Message { method: Method::GET, uri, headers, body: Bytes::new() })
    }

    fn update(&self, object: &Value) -> Message {
        let mut message = self.message.clone();
        message.method = Method::PUT;
        message.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        message.body = object.to_string().into();
        message
    }
}

/// The resources for which updates replace patches.
#[derive(Default)]
pub(crate) struct Updates(Mutex<HashSet<Resource>>);

impl Updates {
    /// Whether patches of this resource were refused, and updates not.
    pub fn replaces(&self, patch: &Patch) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&patch.resource)
    }

    /// What the update in place of a patch was answered; `None` where none can be made, or is refused as well.
    pub async fn update(
        &self,
        transport: &Transport,
        patch: &Patch,
    ) -> Result<Option<Response<Body>>, kube::Error> {
        for attempt in 1..=ATTEMPTS {
            let object = match found(transport, patch).await? {
                Found::Object(object) => object,
                Found::Missing(answer) => return Ok(Some(answer)),
                Found::Unreadable => return Ok(None),
            };
            let object = match patch.applied(object) {
                Ok(Some(object)) => object,
                Ok(None) => return Ok(None),
                Err(status) => return Ok(Some(refusal(&status))),
            };
            let response = transport.send(&patch.update(&object)).await?;
            match response.status() {
                StatusCode::CONFLICT if attempt < ATTEMPTS && !patch.names_version() => {}
                StatusCode::FORBIDDEN => return Ok(None),
                status => {
                    if status.is_success() {
                        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                        known.insert(patch.resource.clone());
                    }
                    return Ok(Some(response));
                }
            }
        }
        Ok(None)
    }
}

/// What reading an object gave.
enum Found {
    Object(Value),
    /// The patch would not be found either.
    Missing(Response<Body>),
    Unreadable,
}

/// The object that a patch is for. Where its client may not get it, it may list it: a controller's role often has no more.
async fn found(transport: &Transport, patch: &Patch) -> Result<Found, kube::Error> {
    for as_list in [false, true] {
        let Some(read) = patch.read(as_list) else { break };
        let answer = transport.send(&read).await?;
        match answer.status() {
            StatusCode::NOT_FOUND => return Ok(Found::Missing(answer)),
            StatusCode::FORBIDDEN => continue,
            status if !status.is_success() => break,
            _ => {}
        }
        let body = answer.into_body().collect_bytes().await?;
        let object = serde_json::from_slice(&body).ok();
        let object = if as_list { object.and_then(only_item) } else { object };
        return Ok(object.map_or(Found::Unreadable, Found::Object));
    }
    Ok(Found::Unreadable)
}

/// The object of a list of one. The items of lists of built-in types have no kind of their own.
fn only_item(mut list: Value) -> Option<Value> {
    let kind = list["kind"].as_str()?.strip_suffix("List")?.to_owned();
    let api_version = list["apiVersion"].take();
    let mut item = list["items"].as_array_mut()?.pop()?;
    item["kind"] = kind.into();
    item["apiVersion"] = api_version;
    Some(item)
}

/// The response of a server that finds a patch impossible.
fn refusal(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::from(status.to_value().to_string().into_bytes()));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
    response
}

#[cfg(test)]
mod tests;

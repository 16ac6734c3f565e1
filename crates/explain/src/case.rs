//! The object that is explained, with what its questions read.

use crate::{
    discovery::{Discovery, Resource},
    paths,
    reader::{Found, Reader},
};
use kaji_meta::object::{self, arr_at, bool_at, str_at};
use serde_json::Value;
use std::sync::Arc;

/// An object and the means to read others.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// Reads.
    pub reader: &'a Reader<'a>,
    /// The server's resources.
    pub discovery: &'a Discovery,
    /// The object's resource.
    pub resource: &'a Resource,
    /// The object.
    pub object: &'a Value,
    /// The time.
    pub now: jiff::Timestamp,
    /// Objects that led to this one.
    depth: usize,
}

/// From a deployment over a replica set and a pod to a claim.
const DEEPEST: usize = 4;

impl<'a> Case<'a> {
    /// The object that was asked for.
    pub fn new(
        reader: &'a Reader<'a>,
        discovery: &'a Discovery,
        resource: &'a Resource,
        object: &'a Value,
        now: jiff::Timestamp,
    ) -> Self {
        Case { reader, discovery, resource, object, now, depth: 0 }
    }

    /// Another object that this one depends on; `None` when the chain is too long, or the kind is not served.
    pub fn other<'b>(&self, object: &'b Value) -> Option<Case<'b>>
    where
        'a: 'b,
    {
        let resource = self.discovery.of_kind(object::api_version(object), object::kind(object))?;
        (self.depth < DEEPEST).then_some(Case { resource, object, depth: self.depth + 1, ..*self })
    }

    /// Whether this is the object that was asked for.
    pub fn is_first(&self) -> bool {
        self.depth == 0
    }

    /// `Pod default/web`
    pub fn title(&self) -> String {
        title(self.object)
    }

    /// The object's namespace.
    pub fn namespace(&self) -> &'a str {
        object::namespace(self.object)
    }

    /// The object's name.
    pub fn name(&self) -> &'a str {
        object::name(self.object)
    }

    /// An object of the same namespace.
    pub async fn beside(&self, group_version: &str, plural: &str, name: &str) -> Found {
        self.reader.get(&paths::path(group_version, self.namespace(), plural, name)).await
    }

    /// The objects of a resource in the same namespace; `None` when they cannot be read.
    pub async fn all_beside(&self, group_version: &str, plural: &str) -> Option<Arc<Vec<Value>>> {
        self.reader.list(&paths::path(group_version, self.namespace(), plural, "")).await
    }

    /// The slices of a service's endpoints; `None` when they cannot be read.
    pub async fn endpoint_slices(&self, namespace: &str, service: &str) -> Option<Arc<Vec<Value>>> {
        self.reader.list(&paths::endpoint_slices(namespace, service)).await
    }

    /// The object's events, the latest first.
    pub async fn events(&self) -> Vec<Value> {
        let namespace = if self.namespace().is_empty() { "default" } else { self.namespace() };
        let path = paths::events(namespace, object::uid(self.object));
        let Some(events) = self.reader.list(&path).await else { return vec![] };
        let mut events: Vec<Value> = events.iter().cloned().collect();
        events.sort_by(|a, b| time_of(b).cmp(time_of(a)));
        events
    }

    /// The message of the latest event with one of these reasons.
    pub async fn event(&self, reasons: &[&str]) -> Option<String> {
        let events = self.events().await;
        let event = events.iter().find(|event| reasons.contains(&str_at(event, &["reason"])))?;
        Some(format!("event {}: {}", str_at(event, &["reason"]), str_at(event, &["message"])))
    }
}

/// Kinds of events have different times: the last one that is set.
fn time_of(event: &Value) -> &str {
    let times = [&["series", "lastObservedTime"][..], &["lastTimestamp"], &["eventTime"]];
    times.into_iter().map(|path| str_at(event, path)).find(|time| !time.is_empty()).unwrap_or_default()
}

/// `Pod default/web`, `Node a`
pub fn title(object: &Value) -> String {
    match object::namespace(object) {
        "" => format!("{} {}", object::kind(object), object::name(object)),
        namespace => format!("{} {namespace}/{}", object::kind(object), object::name(object)),
    }
}

/// Whether one of a service's endpoints is ready.
pub fn has_ready_endpoint(slices: &[Value]) -> bool {
    let mut endpoints = slices.iter().flat_map(|slice| arr_at(slice, &["endpoints"]));
    endpoints.any(|endpoint| bool_at(endpoint, &["conditions", "ready"]) != Some(false))
}

/// Whether a pod has ended for good.
pub fn is_finished(pod: &Value) -> bool {
    matches!(str_at(pod, &["status", "phase"]), "Succeeded" | "Failed")
}

/// Whether a pod mounts a claim.
pub fn uses_claim(pod: &Value, claim: &str) -> bool {
    let mut volumes = arr_at(pod, &["spec", "volumes"]).iter();
    volumes.any(|volume| str_at(volume, &["persistentVolumeClaim", "claimName"]) == claim)
}

/// A condition of `status.conditions`.
pub fn condition<'a>(object: &'a Value, sort: &str) -> Option<&'a Value> {
    arr_at(object, &["status", "conditions"]).iter().find(|c| str_at(c, &["type"]) == sort)
}

/// A condition with this status.
pub fn condition_is<'a>(object: &'a Value, sort: &str, status: &str) -> Option<&'a Value> {
    condition(object, sort).filter(|c| str_at(c, &["status"]) == status)
}

/// `condition Ready is False (KubeletNotReady): …`
pub fn tell(condition: &Value) -> String {
    let (sort, status) = (str_at(condition, &["type"]), str_at(condition, &["status"]));
    let mut text = format!("condition {sort} is {status}");
    match str_at(condition, &["reason"]) {
        "" => {}
        reason => text += &format!(" ({reason})"),
    }
    match str_at(condition, &["message"]) {
        "" => {}
        message => text += &format!(": {message}"),
    }
    text
}

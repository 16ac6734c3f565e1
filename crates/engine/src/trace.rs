//! The spans of what a request does here, by upstream's names: reads from the watch cache, writes to the store, the encoding of
//! an answer. Each is a child of the span that the request is carried out in; without one there is none.

use kaji_meta::GroupResource;
use kaji_traces::Span;

/// A transaction of the store. Upstream's store is etcd, and so are the names.
pub(crate) fn transaction(name: &str, key: &str, resource: &GroupResource) -> Option<Span> {
    let mut span = kaji_traces::child(name)?;
    span.set("key", key);
    span.set("group", &resource.group);
    span.set("resource", &resource.resource);
    Some(span)
}

/// A read from the watch cache.
pub(crate) fn cached(name: &str, resource: &GroupResource) -> Option<Span> {
    let mut span = kaji_traces::child(name)?;
    if span.is_recorded() {
        span.set("type", &resource.to_string());
    }
    Some(span)
}

/// The encoding of an answer.
pub(crate) fn serialization() -> Option<Span> {
    kaji_traces::child("SerializeObject")
}

/// Something that has happened.
pub(crate) fn event(span: &mut Option<Span>, name: &str, attributes: &[(&str, kaji_traces::Value<'_>)]) {
    if let Some(span) = span {
        span.event(name, attributes);
    }
}

//! The object of a request in the versions that webhooks and policies ask for, and what they make of it.
//!
//! Invariant: of a custom resource, only what the request's own version does not know is lost, whatever version a webhook or
//! policy sees it in.
//!
//! Source: upstream's `admission.VersionedAttributes` and `apiextensions/apiserver/conversion` (`nopConverter`).

use kaji_engine::Attributes;
use kaji_meta::{GroupVersion, GroupVersionKind, Status, object};
use kaji_resource::Api;
use serde_json::Value;
use std::borrow::Cow;

/// An object of a request as a kind; the object itself if it is one.
///
/// # Errors
/// It cannot be converted.
pub(crate) async fn versioned<'a>(
    api: &dyn Api,
    object: &'a Value,
    kind: &GroupVersionKind,
) -> Result<Cow<'a, Value>, Status> {
    if object.is_null() || same_version(object::api_version(object), kind) {
        return Ok(Cow::Borrowed(object));
    }
    api.versioned(object.clone(), kind).await.map(Cow::Owned)
}

/// Whether an `apiVersion` is that of a kind.
pub(crate) fn same_version(api_version: &str, kind: &GroupVersionKind) -> bool {
    match api_version.split_once('/') {
        Some((group, version)) => group == kind.group && version == kind.version,
        None => kind.group.is_empty() && api_version == kind.version,
    }
}

/// Makes an object, of whatever version, the request's, in the version that it has there.
///
/// # Errors
/// It cannot be converted.
pub(crate) async fn replace(a: &mut Attributes<'_>, new: Value) -> Result<(), Status> {
    let Some(present) = a.new_object() else { return Ok(()) };
    let parsed = GroupVersion::parse(object::api_version(present)).map_err(Status::internal)?;
    let own = GroupVersionKind::new(parsed.group.as_str(), parsed.version.as_str(), object::kind(present));
    let mut new =
        if same_version(object::api_version(&new), &own) { new } else { a.api.versioned(new, &own).await? };
    a.api.prune(&mut new);
    if let Some(object) = a.object.as_deref_mut() {
        *object = new;
    }
    Ok(())
}

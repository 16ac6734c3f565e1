//! Conversion between the stored version and the requested one, by the resource's hooks.
//!
//! Invariant: an object already in the wanted version is not touched.

use crate::{
    cache::Entry,
    decode,
    registry::{Registry, Resource},
};
use kaji_meta::{GroupVersion, GroupVersionKind, Status, object};
use kaji_resource::Conversion;
use serde_json::Value;
use std::sync::Arc;

/// Group and version of an `apiVersion`.
fn split(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// Calls the hook. Within one group it receives the versions (`v1`, `v2`); between the groups of resources that
/// share storage, the whole `apiVersion`s (`v1`, `events.k8s.io/v1`).
fn convert(res: &Resource, value: &mut Value, to: &str, kind: &str) -> Result<(), Status> {
    let from = object::api_version(value).to_owned();
    if from == to {
        return Ok(());
    }
    if res.def.conversion.webhook().is_some() {
        // The webhook's conversions are awaited before this is called.
        return Err(Status::internal(format!("an object in {from} was not converted to {to}")));
    }
    let ((from_group, from_version), (to_group, to_version)) = (split(&from), split(to));
    if from_group == to_group {
        res.def.hooks.convert(value, from_version, to_version)?;
    } else {
        res.def.hooks.convert(value, &from, to)?;
    }
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".into(), to.into());
        map.insert("kind".into(), kind.into());
    }
    Ok(())
}

/// Converts a stored object (of any version) to the requested version.
///
/// # Errors
/// The hooks refuse the conversion.
pub(crate) fn convert_out(res: &Resource, value: &mut Value, version: &str) -> Result<(), Status> {
    let wanted = res.api_version(version);
    if object::api_version(value) != wanted {
        convert(res, value, &wanted, &res.def.kind)?;
        if let Some(version) = res.def.version(version) {
            decode::canonicalize(&version.schema, value);
        }
    }
    Ok(())
}

/// Converts an object of any version to the storage version, which hooks see.
///
/// # Errors
/// The hooks refuse the conversion.
pub(crate) fn convert_in(res: &Resource, value: &mut Value) -> Result<(), Status> {
    convert(res, value, &res.storage_api_version, &res.storage_kind)
}

/// The resources of an object and of a kind in which it is asked for.
///
/// # Errors
/// One of them is not served, or they are about different objects.
pub(crate) fn between<'r>(
    registry: &'r Registry,
    object: &Value,
    to: &GroupVersionKind,
) -> Result<(&'r Arc<Resource>, &'r Arc<Resource>), Status> {
    let unknown = || Status::internal(format!("unable to convert to {to}: unknown kind"));
    let from = GroupVersion::parse(object::api_version(object)).map_err(|_| unknown())?;
    let from = registry.by_kind(&from.group, &from.version, object::kind(object)).ok_or_else(unknown)?;
    let to = registry.by_kind(&to.group, &to.version, &to.kind).ok_or_else(unknown)?;
    if Arc::ptr_eq(&from.cache, &to.cache) { Ok((from, to)) } else { Err(unknown()) }
}

/// Converts an object to another of its resource's versions, by hooks or webhook.
///
/// # Errors
/// The hooks, or the webhook, refuse the conversion.
pub(crate) async fn convert_to(res: &Resource, mut value: Value, api_version: &str) -> Result<Value, Status> {
    if object::api_version(&value) == api_version {
        return Ok(value);
    }
    match &res.def.conversion {
        Conversion::Webhook(converter) => {
            let converted = converter.convert(vec![value], api_version).await?;
            let none = || Status::internal("a conversion has no outcome");
            converted.into_iter().next().ok_or_else(none)
        }
        Conversion::Hub | Conversion::Direct => {
            convert(res, &mut value, api_version, &res.def.kind)?;
            Ok(value)
        }
    }
}

/// A cached object as hooks see it: decoded and, when it was stored under another version than now, converted. Objects
/// that a webhook converts stay in the version that they were stored in.
///
/// # Errors
/// The hooks refuse the conversion.
pub(crate) fn stored_value(res: &Resource, entry: &Entry) -> Result<Value, Status> {
    let mut value = entry.decode();
    if res.def.conversion.webhook().is_some() {
        return Ok(value);
    }
    convert_in(res, &mut value)?;
    Ok(value)
}

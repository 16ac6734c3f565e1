//! Parameters: the objects that a binding gives its policy. Source: apiserver `policy/generic` (`CollectParams`).

use crate::versioned::same_version;
use kaji_engine::Attributes;
use kaji_meta::{GroupResource, GroupVersionKind, labels::Selector, object};
use serde_json::Value;
use std::sync::Arc;

/// Which objects a binding names.
pub(crate) struct ParamRef {
    name: String,
    namespace: String,
    selector: Option<Result<Selector, String>>,
    /// Without a parameter the request is refused.
    deny: bool,
}

impl ParamRef {
    pub(crate) fn parse(reference: &Value) -> ParamRef {
        let text = |key: &str| reference[key].as_str().unwrap_or("").to_owned();
        let selector = &reference["selector"];
        ParamRef {
            name: text("name"),
            namespace: text("namespace"),
            selector: selector.is_object().then(|| Selector::from_label_selector(selector)),
            deny: reference["parameterNotFoundAction"] == "Deny",
        }
    }
}

/// A policy's `paramKind`.
pub(crate) fn kind(kind: &Value) -> Option<GroupVersionKind> {
    let (version, kind) = (kind["apiVersion"].as_str()?, kind["kind"].as_str()?);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Some(GroupVersionKind::new(group, version, kind))
}

/// Where the parameters of a policy are, and whether they are in namespaces.
///
/// # Errors
/// The kind is not served.
pub(crate) fn resource(a: &Attributes<'_>, kind: &GroupVersionKind) -> Result<(GroupResource, bool), String> {
    a.api
        .resource_of(kind)
        .ok_or_else(|| format!("failed to find resource referenced by paramKind: '{kind}'"))
}

/// The parameters with which a binding has its policy evaluated: one evaluation for each, `None` being without.
///
/// # Errors
/// In words: the reference does not fit the kind, or there is nothing where that is an error.
pub(crate) async fn collect(
    a: &Attributes<'_>,
    kind: Option<&GroupVersionKind>,
    reference: Option<&ParamRef>,
) -> Result<Vec<Option<Arc<Value>>>, String> {
    let (Some(kind), Some(reference)) = (kind, reference) else { return Ok(vec![None]) };
    let (resource, namespaced) = resource(a, kind)?;
    let namespace = match (namespaced, reference.namespace.as_str(), a.namespace) {
        (true, "", "") => {
            let text =
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Err(text.into());
        }
        (true, "", request) => request,
        (true, given, _) => given,
        (false, "", _) => "",
        (false, ..) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into());
        }
    };
    let found = find(a, &resource, namespace, reference).await?;
    if found.is_empty() && reference.deny {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
    }
    let mut params = Vec::with_capacity(found.len());
    for object in found {
        params.push(Some(in_version(a, object, kind).await?));
    }
    Ok(params)
}

async fn find(
    a: &Attributes<'_>,
    resource: &GroupResource,
    namespace: &str,
    reference: &ParamRef,
) -> Result<Vec<Arc<Value>>, String> {
    // Asked before and after the read, since the cache may become whole, or lose a change, meanwhile: an object that cannot be
    // read is not missing.
    let readable = || a.api.readable(resource).map_err(|e| e.to_string());
    readable()?;
    let found = match (&reference.selector, reference.name.as_str()) {
        (Some(_), name) if !name.is_empty() => {
            return Err("paramRef.name and paramRef.selector are mutually exclusive".into());
        }
        (Some(selector), _) => {
            let selector = selector.as_ref().map_err(Clone::clone)?;
            let scope = (!namespace.is_empty()).then_some(namespace);
            crate::read_own_writes(a.api).await.map_err(|e| e.to_string())?;
            a.api.selected(resource, scope, selector)
        }
        (None, "") => return Err("one of name or selector must be provided".into()),
        (None, name) => {
            let found = crate::get_expected(a.api, resource, namespace, name).await;
            found.map_err(|e| e.to_string())?.into_iter().collect()
        }
    };
    readable()?;
    Ok(found)
}

async fn in_version(
    a: &Attributes<'_>,
    object: Arc<Value>,
    kind: &GroupVersionKind,
) -> Result<Arc<Value>, String> {
    if same_version(object::api_version(&object), kind) {
        return Ok(object);
    }
    let converted = a.api.converted(Value::clone(&object), kind).await;
    converted.map(Arc::new).map_err(|e| e.to_string())
}

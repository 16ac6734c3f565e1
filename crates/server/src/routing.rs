//! Upstream's route table: which paths and methods exist, checked before a request is handled.
//!
//! Invariants: it is consulted after authorization, so that it reveals nothing to unauthorized clients; built-in resources
//! have upstream's routes, custom resources those of its handler of custom resources.

use crate::route::{RequestInfo, Target};
use http::Method;
use kaji_engine::{Registry, Resource};
use kaji_meta::{GroupResource, Status};
use kaji_resource::Verb;
use kaji_schema::SchemaRef;

/// Why there is no route.
#[derive(Clone, Debug, PartialEq)]
pub enum NoRoute {
    /// 404 as plain text: no server of the delegation chain has the path.
    Page,
    /// An error of the API.
    Status(Box<Status>),
}

impl From<Status> for NoRoute {
    fn from(status: Status) -> Self {
        NoRoute::Status(Box::new(status))
    }
}

/// Whether a request for a resource has a route.
///
/// # Errors
/// The answer without one.
pub fn check(
    registry: &Registry,
    method: &Method,
    info: &RequestInfo,
    target: &Target,
) -> Result<(), NoRoute> {
    let Target { group, version, resource, .. } = target;
    // Paths are compared as they are: a double slash at the beginning, or in place of a group, leads nowhere.
    let core = group.is_empty() && info.path.starts_with("/api/");
    if !core && (group.is_empty() || !info.path.starts_with("/apis/")) {
        return Err(NoRoute::Page);
    }
    match registry.lookup(group, version, resource) {
        Some(found) if is_custom(found, version) => custom(found, info, target),
        Some(found) => builtin(found, method, info, target),
        None if is_builtin_group(registry, group) => Err(Status::generic_not_found().into()),
        None => Err(NoRoute::Page),
    }
}

/// Whether a group is built in: what is not found in it is a 404 of the API.
pub fn is_builtin_group(registry: &Registry, group: &str) -> bool {
    let builtin = |r: &Resource| r.def.versions.iter().any(|v| !matches!(v.schema, SchemaRef::Owned(_)));
    group.is_empty() || registry.iter().any(|r| r.def.group == group && builtin(r))
}

fn is_custom(resource: &Resource, version: &str) -> bool {
    resource.def.version(version).is_some_and(|v| matches!(v.schema, SchemaRef::Owned(_)))
}

/// Upstream's 405 for a path with routes for other methods.
pub fn method_not_allowed() -> Status {
    Status::generic(405, "", &GroupResource::default(), "", "")
}

fn no_name() -> NoRoute {
    Status::bad_request("name must be provided").into()
}

/// The methods that a proxy takes.
const PROXIED: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// The verb that a route of such a method serves.
fn verb_of(method: &Method, item: bool) -> Option<Verb> {
    Some(match (method, item) {
        (&Method::GET, true) => Verb::Get,
        (&Method::GET, false) => Verb::List,
        (&Method::POST, _) => Verb::Create,
        (&Method::PUT, true) => Verb::Update,
        (&Method::PATCH, true) => Verb::Patch,
        (&Method::DELETE, true) => Verb::Delete,
        (&Method::DELETE, false) => Verb::DeleteCollection,
        _ => return None,
    })
}

/// Source: apiserver `APIInstaller.registerResourceHandlers`.
fn builtin(res: &Resource, method: &Method, info: &RequestInfo, target: &Target) -> Result<(), NoRoute> {
    let not_found = || Err(Status::generic_not_found().into());
    let allowed = |verbs: &[Verb], item: bool| match verb_of(method, item) {
        Some(verb) if verbs.contains(&verb) => Ok(()),
        _ => Err(method_not_allowed().into()),
    };
    let (def, verbs) = (&res.def, res.def.verbs);
    let of_namespace = def.group.is_empty() && def.plural == "namespaces";
    if !def.namespaced() && !of_namespace && !target.namespace.is_empty() {
        return not_found();
    }
    // Of a namespaced resource, only its list (or watch) spans namespaces.
    let spans = def.namespaced() && target.namespace.is_empty();
    let main = target.subresource.is_empty();
    if info.verb_in_path {
        let item = !target.name.is_empty();
        let exists = info.verb == "watch" && main && verbs.contains(&Verb::Watch) && !(spans && item);
        return match exists {
            false => not_found(),
            true if method == Method::GET => Ok(()),
            true => Err(method_not_allowed().into()),
        };
    }
    if main && target.name.is_empty() {
        let any = if spans { &[Verb::List][..] } else { &[Verb::List, Verb::Create, Verb::DeleteCollection] };
        if !any.iter().any(|v| verbs.contains(v)) {
            return not_found();
        }
        if info.verb == "watch" && method == Method::GET && !verbs.contains(&Verb::Watch) {
            return Err(Status::method_not_supported(&res.group_resource, "watch").into());
        }
        return allowed(if spans { &[Verb::List] } else { verbs }, false);
    }
    if spans {
        return not_found();
    }
    if main {
        let any = [Verb::Get, Verb::Update, Verb::Patch, Verb::Delete].iter().any(|v| verbs.contains(v));
        return match any {
            false => not_found(),
            true if method == Method::POST => Err(method_not_allowed().into()),
            true => allowed(verbs, true),
        };
    }
    let sub = def.version(&target.version).and_then(|v| v.subresource(&target.subresource));
    let Some(sub) = sub.filter(|s| target.subpath.is_empty() || s.name == "proxy") else {
        return not_found();
    };
    if sub.name != "proxy" {
        allowed(sub.verbs, true)?;
    } else if !PROXIED.contains(&method.as_str()) {
        return Err(method_not_allowed().into());
    }
    if target.name.is_empty() { Err(no_name()) } else { Ok(()) }
}

/// Source: apiextensions-apiserver `crdHandler`.
fn custom(res: &Resource, info: &RequestInfo, target: &Target) -> Result<(), NoRoute> {
    let spans = matches!(&*info.verb, "list" | "watch");
    if res.def.namespaced() == target.namespace.is_empty() && !(res.def.namespaced() && spans) {
        return Err(NoRoute::Page);
    }
    let known = match target.subresource.as_str() {
        "" => Verb::ALL.iter().any(|v| v.as_str() == info.verb),
        sub => {
            if res.def.version(&target.version).and_then(|v| v.subresource(sub)).is_none() {
                return Err(Status::not_found(&res.group_resource, info.name()).into());
            }
            matches!(&*info.verb, "get" | "update" | "patch")
        }
    };
    if !known {
        return Err(Status::method_not_supported(&res.group_resource, &info.verb).into());
    }
    if target.name.is_empty() && matches!(&*info.verb, "get" | "update" | "patch") {
        return Err(no_name());
    }
    Ok(())
}

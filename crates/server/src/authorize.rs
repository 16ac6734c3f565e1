//! Authorization: whether a user may do what a request asks.
//!
//! The place RBAC takes later. Until then: `system:masters` may do everything, everybody authenticated may see
//! discovery, everybody may see health and version (upstream's `system:public-info-viewer`), nobody else anything.

use crate::identity::{AUTHENTICATED, MASTERS};
use crate::route::RequestInfo;
use kaji_meta::{GroupResource, Status};
use kaji_resource::UserInfo;

/// Decides. Implementations must be fast: it runs on every request.
pub trait Authorizer: Send + Sync + 'static {
    /// `Ok` allows; `Err` carries the reason that upstream's 403 text ends with (may be empty).
    fn authorize(&self, user: &UserInfo, info: &RequestInfo) -> Result<(), String>;
}

/// The authorizer described at the head of this file.
pub struct MastersOnly;

impl Authorizer for MastersOnly {
    fn authorize(&self, user: &UserInfo, info: &RequestInfo) -> Result<(), String> {
        let member = |g: &str| user.groups.iter().any(|x| x == g);
        if member(MASTERS) {
            return Ok(());
        }
        let reads_path = info.resource.is_none() && matches!(info.verb.as_str(), "get" | "head");
        if reads_path && (public(&info.path) || (member(AUTHENTICATED) && discovery(&info.path))) {
            return Ok(());
        }
        Err(String::new())
    }
}

fn public(path: &str) -> bool {
    let under = |p: &str| path == p || path.strip_prefix(p).is_some_and(|rest| rest.starts_with('/'));
    under("/healthz") || under("/livez") || under("/readyz") || path == "/version" || path == "/version/"
}

fn discovery(path: &str) -> bool {
    let under = |p: &str| path == p || path.strip_prefix(p).is_some_and(|rest| rest.starts_with('/'));
    under("/api") || under("/apis") || under("/openapi")
}

/// Upstream's 403 for a refused request (apiserver `responsewriters.Forbidden`).
pub fn forbidden(user: &UserInfo, info: &RequestInfo, reason: &str) -> Status {
    let name = &user.name;
    let suffix = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let Some(target) = &info.resource else {
        return Status::forbidden(
            &GroupResource::new("", ""),
            "",
            format!("User {name:?} cannot {} path {:?}{suffix}", info.verb, info.path),
        );
    };
    let mut resource = target.resource.clone();
    if !target.subresource.is_empty() {
        resource = format!("{resource}/{}", target.subresource);
    }
    let place = if target.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", target.namespace)
    };
    Status::forbidden(
        &GroupResource::new(target.group.as_str(), target.resource.as_str()),
        &target.name,
        format!(
            "User {name:?} cannot {} resource {resource:?} in API group {:?} {place}{suffix}",
            info.verb, target.group
        ),
    )
}

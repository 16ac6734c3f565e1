//! Authorization at the HTTP edge: the question that a request asks, and upstream's 403.

use crate::{
    body::ResponseBody,
    plain,
    route::{RequestInfo, Target},
};
use http::{HeaderValue, Response};
use kaji_auth::{Attributes, Outcome};
use kaji_engine::Trail;
use kaji_meta::{GroupResource, Status};
use kaji_resource::UserInfo;

/// What a request asks of the authorizer. The selectors of lists and watches are part of it (KEP-4601).
pub fn attributes<'a>(
    user: &'a UserInfo,
    info: &'a RequestInfo,
    query: &'a [(String, String)],
) -> Attributes<'a> {
    let mut attributes = Attributes::path(user, &info.verb, &info.path);
    if let Some(target) = &info.resource {
        let Target { group, version, namespace, resource, name, subresource, subpath: _ } = target;
        let name = if name.is_empty() { &info.selected_name } else { name };
        attributes = Attributes { group, version, namespace, resource, name, subresource, ..attributes };
        if matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
            let parameter =
                |key: &str| query.iter().find(|(k, _)| k == key).map_or("", |(_, value)| value.as_str());
            attributes.field_selector = parameter("fieldSelector");
            attributes.label_selector = parameter("labelSelector");
        }
    }
    attributes
}

/// What the audit log is told about a decision. Source: apiserver `filters.WithAuthorization`.
pub fn annotate(trail: &dyn Trail, outcome: &Outcome) {
    if !outcome.allowed() && outcome.error.is_some() {
        return trail.annotate("authorization.k8s.io/reason", "internal error");
    }
    let decision = if outcome.allowed() { "allow" } else { "forbid" };
    trail.annotate("authorization.k8s.io/decision", decision);
    trail.annotate("authorization.k8s.io/reason", &outcome.reason);
}

/// Upstream's answer when something went wrong on the way to a decision: what went wrong, and no `Status`.
/// Source: apiserver `responsewriters.InternalError`.
pub fn undecided(uri: &http::Uri, error: &str) -> Response<ResponseBody> {
    let text = format!("Internal Server Error: {:?}: {error}\n", uri.to_string());
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut response = plain::text(500, "text/plain; charset=utf-8", text);
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
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
        if target.name.is_empty() { &info.selected_name } else { &target.name },
        format!(
            "User {name:?} cannot {} resource {resource:?} in API group {:?} {place}{suffix}",
            info.verb, target.group
        ),
    )
}

//! Authorization of HTTP requests: the attributes of a request, and upstream's 403. An update or patch that would create its object is
//! authorized a second time, as a create, from the engine's pipeline.

use crate::{
    body::ResponseBody,
    plain,
    route::{RequestInfo, Target},
};
use http::{HeaderValue, Response};
use kaji_auth::{Attributes, Authorizer, Outcome};
use kaji_engine::{ApiRequest, AuditContext, FurtherAuthorizer};
use kaji_meta::{GroupResource, Status};
use kaji_resource::{BoxFuture, UserInfo};
use std::{fmt, sync::Arc};

/// What a request asks of the authorizer. The selectors of lists and watches are part of it (KEP-4601).
pub fn attributes<'a>(user: &'a UserInfo, info: &'a RequestInfo) -> Attributes<'a> {
    let mut attributes = Attributes::path(user, &info.verb, &info.path);
    if let Some(target) = &info.resource {
        let Target { group, version, namespace, resource, name: _, subresource, subpath: _ } = target;
        let name = info.name();
        attributes = Attributes { group, version, namespace, resource, name, subresource, ..attributes };
        if !info.verb_in_path && matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
            // With one that does not parse the request is refused once it is authorized.
            attributes.field_selector = info.query.field_selector().unwrap_or_default();
            attributes.label_selector = info.query.label_selector().unwrap_or_default();
        }
    }
    attributes
}

/// The annotations of a decision in the audit log. Source: apiserver `filters.WithAuthorization`.
pub fn annotate(audit: &dyn AuditContext, outcome: &Outcome) {
    if !outcome.allowed() && outcome.error.is_some() {
        return audit.annotate("authorization.k8s.io/reason", "internal error");
    }
    let decision = if outcome.allowed() { "allow" } else { "forbid" };
    audit.annotate("authorization.k8s.io/decision", decision);
    audit.annotate("authorization.k8s.io/reason", &outcome.reason);
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
pub fn forbidden(asked: &Attributes<'_>, reason: &str) -> Status {
    let Attributes { verb, group, namespace, resource, subresource, name, path, .. } = *asked;
    let user = &asked.user.name;
    let suffix = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    if resource.is_empty() {
        let text = format!("User {user:?} cannot {verb} path {path:?}{suffix}");
        return Status::forbidden(&GroupResource::new("", ""), "", text);
    }
    let slash = if subresource.is_empty() { "" } else { "/" };
    let what = format!("{resource}{slash}{subresource}");
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let text =
        format!("User {user:?} cannot {verb} resource {what:?} in API group {group:?} {place}{suffix}");
    Status::forbidden(&GroupResource::new(group, resource), name, text)
}

/// Authorizes an update or a patch that creates its object, and a deletion of an object that cannot be read. Sources: apiserver
/// `handlers.withAuthorization` and `authorizeUnsafeDelete`.
pub fn authorizer_of_creates(
    authorizer: &Arc<dyn Authorizer>,
    info: &RequestInfo,
) -> Option<Arc<dyn FurtherAuthorizer>> {
    let of = match &*info.verb {
        "update" | "patch" => Creation::Object,
        "delete" => Creation::UnreadDeletion,
        _ => return None,
    };
    Some(Arc::new(ByAuthorizer { authorizer: authorizer.clone(), of }))
}

/// Authorizes a connection that GET opens as the creation that it amounts to: WebSockets are opened by GET, SPDY by POST.
/// Source: `ensureAuthorizedForVerb` in `pkg/registry/core/pod/rest`.
pub fn authorizer_of_connections(authorizer: &Arc<dyn Authorizer>) -> Arc<dyn FurtherAuthorizer> {
    Arc::new(ByAuthorizer { authorizer: authorizer.clone(), of: Creation::Connection })
}

/// What a request creates, or does besides.
#[derive(Clone, Copy, Debug)]
enum Creation {
    Object,
    /// By a subresource.
    Connection,
    /// Nothing: it deletes an object although that cannot be read.
    UnreadDeletion,
}

struct ByAuthorizer {
    authorizer: Arc<dyn Authorizer>,
    of: Creation,
}

impl fmt::Debug for ByAuthorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByAuthorizer({:?})", self.of)
    }
}

impl FurtherAuthorizer for ByAuthorizer {
    fn authorize<'a>(&'a self, request: &'a ApiRequest) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let ApiRequest { user, group, version, resource, namespace, name, .. } = request;
            let subresource = match self.of {
                Creation::Object | Creation::UnreadDeletion => "",
                Creation::Connection => &*request.subresource,
            };
            let verb = match self.of {
                Creation::UnreadDeletion => "unsafe-delete-ignore-read-errors",
                Creation::Object | Creation::Connection => "create",
            };
            let question = Attributes::resource(user, verb, group, resource);
            let question = Attributes { version, namespace, name, subresource, ..question };
            let outcome = self.authorizer.authorize(&question).await;
            if outcome.allowed() {
                return Ok(());
            }
            let refused =
                |why: &dyn fmt::Display| Status::forbidden(&GroupResource::new(group, resource), name, why);
            match (outcome.error, self.of) {
                (Some(error), Creation::UnreadDeletion) => {
                    Err(refused(&format!("error while checking permission for {verb:?}, {error}")))
                }
                (None, Creation::UnreadDeletion) => {
                    Err(refused(&format!("not permitted to do {verb:?}, reason: {}", outcome.reason)))
                }
                (Some(error), _) => Err(Status::internal(error)),
                (None, Creation::Object) => Err(forbidden(&question, &outcome.reason)),
                (None, Creation::Connection) => Err(refused(&outcome.reason)),
            }
        })
    }
}

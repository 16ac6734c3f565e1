//! The spans of a request, by upstream's names: `authentication`, the server's span, a span for each filter, and one for the
//! verb. Each is a child of the one before it, and all of them last until the request ends, as upstream's filters do.
//!
//! Invariants:
//! - A request that is not traced has no [`RequestTrace`].
//! - Only `system:masters` and `system:monitoring` choose the trace that a request belongs to, and with it whether it is sampled.
//!   What other clients name in `traceparent` becomes a link of a new trace.
//!
//! Source: `WithTracing`, `filterlatency` and `traceFields` of apiserver; `otelhttp` and its semantic conventions.

use crate::{
    api,
    audit::RemoteAddress,
    body::ResponseBody,
    route::{RequestInfo, Target},
};
use http::{HeaderValue, Response, Version, header, request::Parts, uri::Authority};
use http_body::Body;
use kaji_resource::UserInfo;
use kaji_traces::{Kind, Parent, Provider, Span, SpanContext, Tracer, Value};
use std::{fmt::Write as _, net::Ipv4Addr};

/// Members of these groups choose a request's trace.
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];
/// Bytes of an audit id. Source: `maxAuditIDLength`.
const AUDIT_ID: usize = 64;

/// The spans of a request that have begun, outermost first.
pub(crate) struct RequestTrace {
    tracer: Tracer,
    spans: Vec<Span>,
    /// Where the server's span is among them.
    server: usize,
}

impl RequestTrace {
    /// Begins with the authentication, which is a trace of its own until it is known that the client may choose one.
    pub fn begin(provider: Option<&Provider>) -> Option<Box<RequestTrace>> {
        let tracer = provider?.tracer().clone();
        let first = tracer.begin("authentication", Kind::Internal, None, None);
        Some(Box::new(RequestTrace { tracer, spans: vec![first], server: 0 }))
    }

    /// Begins the server's span of a request by this user.
    pub fn authenticated(&mut self, parts: &Parts, info: &RequestInfo, user: &UserInfo, id: &HeaderValue) {
        let trusted = user.groups.iter().any(|group| TRUSTED.contains(&group.as_str()));
        let named = SpanContext::extract(&parts.headers);
        let own = self.spans.last().map(|span| span.context().clone());
        let (parent, link) = match (trusted, named) {
            (true, Some(named)) => (Some(named), None),
            (true, None) => (own, None),
            (false, named) => (None, named),
        };
        let name = span_name(parts, info);
        let mut span = self.tracer.begin(&name, Kind::Server, parent.as_ref(), link.as_ref());
        if span.is_recorded() {
            describe(&mut span, parts);
            span.set("audit-id", audit_id(id));
        }
        self.server = self.spans.len();
        self.spans.push(span);
    }

    /// Begins a step of the request.
    pub fn enter(&mut self, name: &str) {
        if let Some(last) = self.spans.last() {
            let next = last.child(name, Kind::Internal);
            self.spans.push(next);
        }
    }

    /// Begins the verb of a request for a resource. A watch has none, unless it begins with a list.
    pub fn verb(&mut self, parts: &Parts, info: &RequestInfo, target: &Target, id: &HeaderValue) {
        let name = match info.verb.as_str() {
            "create" => "Create",
            "update" => "Update",
            "patch" => "Patch",
            "delete" | "deletecollection" => "Delete",
            "get" => "Get",
            "list" => "List",
            "watch" if info.query.flag("sendInitialEvents") == Some(true) => "WatchList",
            _ => return,
        };
        self.enter(name);
        let Some(span) = self.spans.last_mut().filter(|span| span.is_recorded()) else { return };
        let text = |name| parts.headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        span.set("accept", text(header::ACCEPT).unwrap_or_default());
        span.set("audit-id", audit_id(id));
        span.set("client", &client(parts));
        span.set("api-group", &target.group);
        span.set("api-version", &target.version);
        span.set("name", &target.name);
        span.set("subresource", &target.subresource);
        span.set("namespace", &target.namespace);
        span.set("protocol", protocol(parts.version));
        span.set("resource", &target.resource);
        span.set("scope", scope(info, target));
        span.set("url", &info.path);
        span.set("user-agent", text(header::USER_AGENT).unwrap_or_default());
        span.set("verb", verb(parts, info));
    }

    /// Says what happened in the present step.
    pub fn event(&mut self, name: &str, attributes: &[(&str, Value<'_>)]) {
        if let Some(span) = self.spans.last_mut() {
            span.event(name, attributes);
        }
    }

    /// What children of the present step are begun by.
    pub fn parent(&self) -> Option<Parent> {
        self.spans.last().map(Span::parent)
    }

    /// Says what the answer is.
    pub fn answered(&mut self, response: &Response<ResponseBody>) {
        let Some(span) = self.spans.get_mut(self.server).filter(|_| self.server > 0) else { return };
        if let Some(size) = response.body().size_hint().exact().filter(|size| *size > 0) {
            span.set("http.response.body.size", usize::try_from(size).unwrap_or(usize::MAX));
        }
        span.set("http.response.status_code", response.status().as_u16());
        if response.status().is_server_error() {
            span.fail("");
        }
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        // Inner ones end first.
        while self.spans.pop().is_some() {}
    }
}

/// `POST /api/v1/namespaces/{:namespace}/pods`, without what clients name; only the method if it is not about a resource.
fn span_name(parts: &Parts, info: &RequestInfo) -> String {
    let mut name = parts.method.to_string();
    let Some(Target { group, version, namespace, resource, subresource, .. }) = &info.resource else {
        return name;
    };
    let root = if info.path.trim_start_matches('/').starts_with("apis/") { "apis" } else { "api" };
    name.push_str(" /");
    name.push_str(root);
    // Writing to a String cannot fail.
    if !group.is_empty() {
        let _ = write!(name, "/{group}");
    }
    let _ = write!(name, "/{version}");
    if !namespace.is_empty() {
        name.push_str("/namespaces/{:namespace}");
    }
    let _ = write!(name, "/{resource}");
    if !info.name().is_empty() {
        name.push_str("/{:name}");
    }
    if !subresource.is_empty() {
        let _ = write!(name, "/{subresource}");
    }
    name
}

/// The attributes of OpenTelemetry's conventions for HTTP servers, and upstream's `http.target`.
fn describe(span: &mut Span, parts: &Parts) {
    let text = |name| parts.headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    let named = text(header::HOST).and_then(|host| host.parse::<Authority>().ok());
    if let Some(authority) = named.as_ref().or_else(|| parts.uri.authority()) {
        span.set("server.address", authority.host());
        if let Some(port) = authority.port_u16().filter(|port| *port != 443) {
            span.set("server.port", port);
        }
    }
    span.set("http.request.method", parts.method.as_str());
    span.set("url.scheme", "https");
    if let Some(RemoteAddress(remote)) = parts.extensions.get() {
        span.set("network.peer.address", &remote.to_string());
    }
    if let Some(agent) = text(header::USER_AGENT) {
        span.set("user_agent.original", agent);
    }
    span.set("client.address", &client(parts));
    span.set("url.path", parts.uri.path());
    span.set("network.protocol.version", protocol(parts.version).trim_start_matches("HTTP/"));
    if let Some(size) = text(header::CONTENT_LENGTH).and_then(|size| size.parse::<usize>().ok()) {
        span.set("http.request.body.size", size);
    }
    span.set("http.target", parts.uri.path_and_query().map_or("/", |target| target.as_str()));
}

/// The address that the request is from, as it or a proxy says.
fn client(parts: &Parts) -> String {
    let text = |name: &str| parts.headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()));
    let remote = parts.extensions.get::<RemoteAddress>().map_or(Ipv4Addr::LOCALHOST.into(), |r| r.0);
    let (forwarded, real) = (text("x-forwarded-for"), text("x-real-ip"));
    let addresses = kaji_audit::source_ips(forwarded.as_deref(), real.as_deref(), remote);
    addresses.into_iter().next().map_or_else(|| remote.to_string(), |address| address.to_string())
}

fn audit_id(id: &HeaderValue) -> &str {
    let id = id.to_str().unwrap_or_default();
    id.get(..AUDIT_ID).unwrap_or(id)
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// Source: `CleanScope`.
fn scope(info: &RequestInfo, target: &Target) -> &'static str {
    if !info.name().is_empty() || info.verb == "create" {
        "resource"
    } else if !target.namespace.is_empty() {
        "namespace"
    } else {
        "cluster"
    }
}

/// Source: `NormalizedVerb`.
fn verb(parts: &Parts, info: &RequestInfo) -> &'static str {
    match info.verb.as_str() {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" => "POST",
        "update" => "PUT",
        "patch" if api::is_apply(&parts.headers) => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use http::{Method, Request};
    use kaji_meta::Query;

    #[test]
    fn names_of_spans_hold_nothing_that_clients_choose() {
        let names = [
            ("GET", "/version"),
            ("GET", "/api/v1/nodes"),
            ("POST", "/api/v1/namespaces/default/pods"),
            ("PUT", "/api/v1/namespaces/default/pods/secret-name/status"),
            ("GET", "/apis/apps/v1/namespaces/default/deployments/web"),
            ("GET", "/apis/example.com/v1/widgets"),
            ("GET", "/api/v1/namespaces/secret"),
        ]
        .map(|(method, path)| {
            let method: Method = method.parse().unwrap();
            let info = RequestInfo::parse(&method, path, Query::default()).unwrap();
            let (parts, ()) = Request::builder().method(method).uri(path).body(()).unwrap().into_parts();
            span_name(&parts, &info)
        });
        expect![[r#"
            GET
            GET /api/v1/nodes
            POST /api/v1/namespaces/{:namespace}/pods
            PUT /api/v1/namespaces/{:namespace}/pods/{:name}/status
            GET /apis/apps/v1/namespaces/{:namespace}/deployments/{:name}
            GET /apis/example.com/v1/widgets
            GET /api/v1/namespaces/{:namespace}/namespaces/{:name}"#]]
        .assert_eq(&names.join("\n"));
    }
}

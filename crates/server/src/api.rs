//! Between HTTP and the engine: builds an `ApiRequest`, and turns an `ApiResponse` into HTTP.

use crate::{
    body::ResponseBody,
    negotiate,
    route::{RequestInfo, Target},
    routing,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use kaji_engine::{
    ApiRequest, ApiResponse, AuditContext, Body, Deadline, FurtherAuthorizer, MemoryReservation, WebhookTime,
};
use kaji_meta::{Query, Status};
use kaji_resource::{Carries, UserInfo, Verb};
use kaji_traces::Parent;
use std::{collections::HashSet, sync::Arc};

/// The parts of a request that the engine needs.
pub struct Parts<'a> {
    /// Request headers.
    pub headers: &'a HeaderMap,
    /// Its path and query.
    pub info: &'a RequestInfo,
    /// Its target.
    pub target: &'a Target,
    /// The authenticated user.
    pub user: UserInfo,
    /// The whole body.
    pub body: Bytes,
    /// Memory that it has reserved.
    pub memory: Option<Arc<dyn MemoryReservation>>,
    /// Its audit id.
    pub audit_id: &'a HeaderValue,
    /// Its audit record.
    pub audit: Option<Arc<dyn AuditContext>>,
    /// Authorizes an update that creates.
    pub further_authorizer: Option<Arc<dyn FurtherAuthorizer>>,
    /// Until when.
    pub deadline: Deadline,
    /// Counts the time of webhooks.
    pub webhooks: Arc<WebhookTime>,
    /// The span that it is carried out in.
    pub trace: Option<Parent>,
}

/// Builds the engine's request, or tells why not (405, 406).
pub fn request(parts: Parts<'_>) -> Result<ApiRequest, Status> {
    let Parts { headers, info, target, user, body, memory, audit_id, audit, .. } = parts;
    let Parts { further_authorizer, deadline, webhooks, trace, .. } = parts;
    let verb = verb(&info.verb).ok_or_else(routing::method_not_allowed)?;
    let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    let mut accept = negotiate::accept(text(header::ACCEPT)).ok_or_else(|| {
        let supported = negotiate::SUPPORTED;
        Status::not_acceptable(format!("only the following media types are accepted: {supported}"))
    })?;
    let agent = text(header::USER_AGENT).unwrap_or_default();
    accept.pretty |= wants_pretty(&info.query, agent);
    // The namespace of a namespace's own path is its name; the resource itself is cluster scoped.
    let namespace = if target.resource == "namespaces" && target.group.is_empty() {
        String::new()
    } else {
        target.namespace.clone()
    };
    Ok(ApiRequest {
        verb,
        group: target.group.clone(),
        version: target.version.clone(),
        resource: target.resource.clone(),
        namespace,
        name: target.name.clone(),
        subresource: target.subresource.clone(),
        subpath: target.subpath.clone(),
        query: info.query.clone(),
        accept,
        content_type: text(header::CONTENT_TYPE).unwrap_or_default().to_owned(),
        body,
        memory,
        user,
        user_agent: agent.to_owned(),
        audit_id: audit_id_of_write(verb, audit_id),
        audit,
        further_authorizer,
        deadline,
        webhooks,
        trace,
    })
}

/// Whether the body of a PATCH is a server-side apply.
pub fn is_apply(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().starts_with("application/apply-patch+"))
}

/// What the history has of a write.
fn audit_id_of_write(verb: Verb, id: &HeaderValue) -> String {
    match verb {
        Verb::Get | Verb::List | Verb::Watch => String::new(),
        _ => id.to_str().unwrap_or_default().to_owned(),
    }
}

/// Builds the engine's request of a connection. What the other server answers with is negotiated with that server; only a
/// log is negotiated here, as upstream does.
pub fn connect_request(parts: Parts<'_>, carries: Carries) -> Result<ApiRequest, Status> {
    if carries == Carries::Body {
        return request(parts);
    }
    let named = verb(&parts.info.verb);
    // OPTIONS has no verb; the proxy that takes it asks for none.
    let info = RequestInfo { verb: named.unwrap_or(Verb::Get).as_str().to_owned(), ..parts.info.clone() };
    let headers = HeaderMap::new();
    let mut request = request(Parts { headers: &headers, info: &info, ..parts })?;
    if info.path.ends_with('/') && !request.subpath.ends_with('/') {
        request.subpath.push('/');
    }
    Ok(request)
}

/// `?pretty`, or a browser or curl, as upstream decides.
pub fn wants_pretty(query: &Query, user_agent: &str) -> bool {
    match query.text("pretty") {
        "" => ["curl", "Wget", "Mozilla/5.0"].iter().any(|p| user_agent.starts_with(p)),
        text => matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"),
    }
}

fn verb(text: &str) -> Option<Verb> {
    Verb::ALL.iter().copied().find(|v| v.as_str() == text)
}

/// Turns an engine's answer into HTTP, compressed when the client takes gzip and the answer is large.
pub fn response(answer: ApiResponse, gzip: bool) -> Response<ResponseBody> {
    let retry_after = retry_after(&answer);
    let body = match answer.body {
        Body::Full(bytes) => ResponseBody::full(bytes),
        Body::Chunks(pieces) => ResponseBody::chunks(pieces),
        Body::Lazy(pieces) => ResponseBody::Lazy(pieces),
        Body::Watch(stream) => ResponseBody::Stream(stream),
        // Carried out before it could come here.
        Body::Connect(_) => ResponseBody::full(Bytes::new()),
    };
    let (body, compressed) = if gzip { body.gzip() } else { (body, false) };
    let mut response = Response::new(body);
    *response.status_mut() =
        http::StatusCode::from_u16(answer.code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if compressed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    add_warnings(headers, &answer.warnings);
    response
}

/// When to try again, as an error's details say it: clients go by the header. Source: `responsewriters/writers.go` of apiserver.
pub fn retry_after(answer: &ApiResponse) -> Option<u64> {
    /// Errors are short; one with many causes names no time.
    const SHORT: usize = 64 << 10;
    let Body::Full(bytes) = &answer.body else { return None };
    if answer.code < 400 || answer.content_type != "application/json" || bytes.len() > SHORT {
        return None;
    }
    let status: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    status["details"]["retryAfterSeconds"].as_u64().filter(|seconds| *seconds > 0)
}

/// `Warning: 299 - "text"` for each text, once. Bounded as upstream's: if all of them have more than 4096 characters, each
/// is cut to 256, and those that come when the 4096 are used up are left out.
pub fn add_warnings(headers: &mut HeaderMap, warnings: &[String]) {
    const TOTAL: usize = 4 * 1024;
    const EACH: usize = 256;
    let mut seen = HashSet::new();
    let texts: Vec<&str> = warnings.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect();
    let length = |text: &str| warning(text, usize::MAX).chars().count();
    let each = if texts.iter().map(|t| length(t)).sum::<usize>() > TOTAL { EACH } else { usize::MAX };
    let mut written = 0;
    for text in texts {
        if written >= TOTAL {
            return;
        }
        let line = warning(text, each);
        written += line.chars().count();
        if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
            headers.append(header::WARNING, value);
        }
    }
}

/// One value of the header, with no more than so many characters of the text.
fn warning(text: &str, most: usize) -> String {
    let clean = text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c });
    let quoted = clean.flat_map(|c| matches!(c, '"' | '\\').then_some('\\').into_iter().chain([c]));
    format!("299 - \"{}\"", quoted.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(warnings: &[String]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        add_warnings(&mut headers, warnings);
        headers.get_all(header::WARNING).iter().map(|v| v.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn warnings_are_quoted_once_and_cut_when_they_are_many() {
        let texts = ["say \"a\"\n".to_owned(), "b".into(), "b".into()];
        assert_eq!(sent(&texts), [r#"299 - "say \"a\" ""#, r#"299 - "b""#]);
        // One that is long is whole as long as all fit.
        assert_eq!(sent(&["c".repeat(1000)])[0].len(), 1000 + r#"299 - """#.len());
        let many: Vec<String> = (0..100).map(|i| format!("{i:03}{}", "d".repeat(400))).collect();
        let cut = sent(&many);
        assert!(cut.iter().all(|w| w.len() == 256 + r#"299 - """#.len()), "{cut:?}");
        assert_eq!(cut.len(), 4096_usize.div_ceil(256 + 8));
    }

    #[test]
    fn errors_that_say_when_to_try_again_say_it_in_a_header() {
        let mut status = Status::service_unavailable("apiserver is shutting down");
        let header = |status: &Status| {
            let response = response(ApiResponse::from(status.clone()), false);
            response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header(&status), None);
        status.details.get_or_insert_default().retry_after_seconds = 1;
        assert_eq!(header(&status).as_deref(), Some("1"));
    }
}
